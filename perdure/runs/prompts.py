"""Prompts: the instructions for planning, and the context as chat messages.

A prompt cache keeps the common beginning of two Requests (R10.19). The first messages do not change from Request to
Request, and later events are only appended. The messages that change come last: the current state, the plan with its
statuses, and the instructions of this Request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.models.dialects.common import DialectRequest, taught_lines, written_names
from perdure.models.dialects.registry import Dialect
from perdure.models.dialects.tools import function_names, turn_messages
from perdure.plan import HELD
from perdure.runs.agent import Context
from perdure.runs.limits import Limit
from perdure.runs.progress import RunProgress
from perdure.runs.prompt_parts import (
    TIGHT,
    BootstrapFile,
    PromptParts,
    as_chat,
    characters,
    describe_schema,
    file_text,
    shorten_message,
    skills_text,
    tight_result,
    user,
)
from perdure.runs.provenance import RunProvenance
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.messages import ChatMessage, MergedMessages, PlanMessage, SystemMessage, TextMessage, keep_newest
from perdure.values.sizes import preview
from perdure.values.state import split_state
from perdure.values.templates import as_data

INSTANCES: Final = (
    'The context has instances that know nothing of each other: {names}. A call with "_instance": name reads that one\'s data '
    "(and what is shared) and writes to its state; write references without the instance's name. A call without it only sees "
    "and writes what is shared. To do the same for several instances, write the calls for each."
)

SHAPES: Final = (
    "Text that others wrote is not shown to you: in its place stands its shape, such as ‹text, 312 characters›. You need not read it to "
    "use it: refer to it. Where somebody has to read it, give it to a tool that does."
)

ONE_AT_A_TIME: Final = "Calls run one after another, in the order of your list as far as the wiring allows."

FINAL: Final = "No more calls can be made: {limit}. {how}: the best answer that what is known so far allows."
STRUCTURED: Final = "Now give that answer in the form that its schema asks for. {how}."
MUST_CALL: Final = "Your answer has to make a call of {names}: an output counts only after that."
REFINE: Final = "An answer was drafted: {draft}. Make it better where what is known so far allows, or repeat it. {how}."


REVISED: Final = (
    "A new message has come while your plan was carried out; it stands below. The plan above shows how far everything is. What is done "
    "stands, what is running goes on by itself, and new calls may read what it will write."
)
KEEP: Final = (
    'What is "{held}" was not begun, and waits for you to say what becomes of each: {call} keeps the calls that it names, as they are, '
    "and drops others (write it first). To change one that sets a value, write it anew with its output path; for any other, drop it and write another."
)
HOSTED: Final = "{names}: use these while you write, not in calls. Others write what they return."
PRESSED: Final = (
    "Your last answer did not say what is to become of {calls}. They are still held: keep them or drop them now. Those that you do not "
    "name stay held: they run only where a person who was asked about them lets them."
)
UNDECIDED: Final = "Nothing is decided yet about what is held in the plan above."


@dataclass(frozen=True)
class RevisedPlan:
    """A plan that continues under the coming Request (R10.5)."""

    plan: list[JsonObject]
    """The plan's calls with their status."""
    since: int
    """Number of the run's messages in earlier Requests."""
    keep: str | None
    """Name of the tool that keeps held calls, where there are any."""
    pressed: list[str] = field(default_factory=list)
    """Held calls that the last answer did not name."""


STANDS_LAST: Final = "What it holds stands at the end."

TIGHT_HISTORY: Final = 20
"""Messages of the history that remain if the context was too long."""


class Prompt:
    """The prompt of one Request (R6.1), and the size of its parts.

    A dialect that keeps turns shows the history as the model's own answers and their results. Other dialects show
    the resulting state, the last plan, and results that were written to no path (R4.4). `shown`: the state as the model
    may see it.
    """

    def __init__(
        self,
        context: Context,
        parts: PromptParts,
        dialect: Dialect,
        ask: DialectRequest,
        progress: RunProgress,
        shown: JsonObject,
        provenance: RunProvenance,
    ) -> None:
        self._context, self._recorded, self._dialect, self._ask = context, parts, dialect, ask
        self._progress, self._provenance = progress, provenance
        self._states: dict[str | None, JsonObject] = {}
        shared, own = split_state(shown, context.instances)
        self._states[None] = shared
        self._states |= own.items()
        self.parts: list[tuple[str, int]] = []
        """Characters of each part, by name, once the messages were made."""
        self.stable = 0
        """The number of messages that only grow from Request to Request."""

    def messages(self, limit: Limit | None, revision: RevisedPlan | None = None) -> list[JsonObject]:
        """Return the whole prompt as chat messages."""
        chat: list[JsonObject] = []

        def add(part: str, messages: Iterable[JsonObject]) -> None:
            for message in messages:
                chat.append(message)
                self.parts.append((part, characters(message)))

        system = [(part, text) for part, text in self._system() if text]
        self.parts += [(part, len(text)) for part, text in system]
        if system:
            chat.append({"role": "system", "content": "\n\n".join(text for _, text in system)})
        for file in self._recorded.files:
            if file.untrusted:  # not instructions of the operator
                add(f"file {file.name}", [{"role": "user", "content": self._file(file)}])
        for part, message in self._received():
            add(part, [message])
        since = len(self._progress.messages) if revision is None else revision.since
        add("what has happened", self._happened(since))
        self.stable = len(chat)
        for part, message in self._now(revision):
            add(part, [message])
        if (last := self._last_words(limit)) is not None:
            add("last words", [{"role": "user", "content": last}])
        if not any(message["role"] != "system" for message in chat):
            add("last words", [{"role": "user", "content": "Begin."}])
        return chat

    def _system(self) -> Iterator[tuple[str, str]]:
        """Yield the system texts: the agent's own words, how to plan, and the tools.

        They are the same for all Requests of a run. A Request for only an output says so at the prompt's end. The texts
        of the run itself come last.
        """
        dialect, ask = self._dialect, self._ask
        for text in self._context.system:
            yield "agent", text
        yield "base", taught_lines(dialect.how, ask.untaught) if ask.known else f"{dialect.only_output(ask)}."
        if ask.known and (ask.control or ask.names_control):
            yield "control", dialect.control if ask.control else dialect.control_named
        if self._context.instances:
            yield "base", INSTANCES.format(names=", ".join(self._context.instances))
        if ask.known and ask.parallel == 1:
            yield "base", ONE_AT_A_TIME
        if self._provenance.shows_shapes:
            yield "base", SHAPES
        yield "tools", dialect.tools_text(replace(ask, tools=ask.known))
        if hosted := self._context.hosted:
            yield "tools", HOSTED.format(names=" and ".join(hosted))
        yield "skills", skills_text(self._recorded, self._provenance.hides, tight=self._progress.tight)
        for file in self._recorded.files:
            if not file.untrusted:
                yield f"file {file.name}", self._file(file)
        yield "instructions", self._recorded.text

    def _file(self, file: BootstrapFile) -> str:
        return file_text(file, self._provenance.hides, tight=self._progress.tight)

    def _received(self) -> Iterator[tuple[str, JsonObject]]:
        """Yield the context in its order (R2.7), without a plan, and without the state's value if it changes: both come
        last.
        """
        context, turns, tight = self._context, self._dialect.keeps_turns, self._progress.tight
        states = dict(self._states)
        for item in keep_newest(context.items, shown=TIGHT) if tight else context.items:
            if isinstance(item, MergedMessages) and item.kind == "state":
                value = states.pop(item.instance)
                if turns and (value or item.data_schema is not None or item.instance is not None):
                    yield "state", user(_title(item), value, item.description, item.data_schema)
                elif not turns and (item.description or item.data_schema is not None):
                    yield "context", describe_schema(_title(item), item.description, item.data_schema, STANDS_LAST)
            elif isinstance(item, MergedMessages):
                data = self._provenance.shown_data(item) if item.exists else None
                yield "context", user(_title(item), data, item.description, item.data_schema)
            elif isinstance(item, SystemMessage | TextMessage):
                yield "context", {"role": item.role, "content": item.text}
            elif isinstance(item, ChatMessage):
                yield "conversation", tight_result(item.as_json() if turns else item.as_text(), tight=tight)
            elif not isinstance(item, PlanMessage) or (turns and not context.starts_with_plan):
                yield "context", as_chat(item.as_json(), self._dialect, self._ask)
        if turns:
            yield from (("state", message) for message in _state_messages(states))

    def _happened(self, since: int) -> Iterator[JsonObject]:
        """Yield the history up to a message, which only grows: turns, or results that were written to no path, and
        errors.
        """
        progress, turns = self._progress, self._dialect.keeps_turns
        history: list[JsonObject] = []
        for message in progress.messages[:since]:
            if message["type"] == "results":
                returned = {id: progress.results[id] for id in message["calls"] if id in progress.results}
                history += [{"type": "results", "results": returned}] if returned else []
            elif not (turns and message["type"] == "error" and message["call"] is not None):
                history.append(message)  # a turn shows its calls' errors itself
        if progress.tight:
            spoken = [message for message in history[:-TIGHT_HISTORY] if message["type"] in ("message", "results")]
            history = [shorten_message(message) for message in [*spoken, *history[-TIGHT_HISTORY:]]]
        # Once for all turns: a run may have hundreds of them, and of tools.
        names = written_names(function_names(self._ask.known)) if turns else {}
        for message in history:
            if message["type"] == "turn":
                yield from turn_messages(message, names, self._ask.server)
            else:
                yield as_chat(message, self._dialect, self._ask)

    def _now(self, revision: RevisedPlan | None) -> Iterator[tuple[str, JsonObject]]:
        """Yield the parts that differ between Requests: the current state and plan, with news after a revised plan."""
        context, progress, turns = self._context, self._progress, self._dialect.keeps_turns
        if not turns:
            yield from (("state", message) for message in _state_messages(self._states))
        if revision is not None:
            parts = self._revision(revision, progress.messages[revision.since :])
        elif progress.plan_message is not None:
            parts = [progress.plan_message]
        else:
            received = [] if turns or context.starts_with_plan else context.items
            parts = [item.as_json() for item in received if isinstance(item, PlanMessage)]
        yield from (("plan", as_chat(message, self._dialect, self._ask)) for message in parts)

    def _revision(self, revision: RevisedPlan, news: list[JsonObject]) -> list[JsonObject]:
        """Return the present plan, the model's choices, and the new messages last."""
        pressed = ", ".join(revision.pressed)
        parts = [PRESSED.format(calls=pressed)] if pressed else []
        if any(message["type"] == "message" for message in news):
            parts.insert(0, REVISED)
        elif not parts:
            parts.append(UNDECIDED)
        if revision.keep is not None:
            held = [str(call["_id"]) for call in revision.plan if call["_status"] == HELD]
            example = {"calls": held[:1]} | ({"drop": held[1:2]} if len(held) > 1 else {})
            keeping = self._dialect.plan([{"_tool": revision.keep, **example}], self._ask)
            parts.append(KEEP.format(held=HELD, call=keeping))
        return [{"type": "plan", "plan": revision.plan}, {"type": "note", "text": " ".join(parts)}, *news]

    def _last_words(self, limit: Limit | None) -> str | None:
        """Return the last text of a Request for only an output (R9.5)."""
        how, progress = self._dialect.only_output(self._ask), self._progress
        if limit is not None:
            return FINAL.format(limit=limit.words, how=how)
        if progress.wants == "refined":
            # As data: a model that repeats it must not have its text read for references.
            return REFINE.format(draft=dumps(as_data(progress.draft)), how=how)
        if progress.wants == "structured":
            return STRUCTURED.format(how=how)
        return MUST_CALL.format(names=" or ".join(progress.must_call)) if progress.must_call else None


def _title(item: MergedMessages) -> str:
    return item.kind if item.instance is None else f"{item.kind} (instance {item.instance})"


def _state_messages(states: Mapping[str | None, JsonObject]) -> Iterator[JsonObject]:
    for name, value in states.items():
        if value or name is not None:
            yield user("state" if name is None else f"state (instance {name})", value)


def call_line(raw: Mapping[str, Json], limit: int = 100) -> str:
    """Return a call's parameters on one line, for summaries and tables."""
    return ", ".join(f"{key}={preview(value, 40)}" for key, value in raw.items() if not key.startswith("_"))[:limit]
