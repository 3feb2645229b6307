"""What the model reads: how to plan, and the context as chat messages.

Prompt caches keep what two Requests begin with alike, so what stands first does not change from Request to Request, and what has happened
is only added to (R10.19). What changes stands last: the state as it is now, the plan with its statuses, and what this Request alone says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from perdure.model.dialects import Dialect
from perdure.model.dialects.asking import Ask, written_names
from perdure.model.dialects.tools import function_names, turn_messages
from perdure.plan.calls import HELD
from perdure.run.agents import Context
from perdure.run.past.wire import Progress
from perdure.run.reading import Reading
from perdure.run.stopping import Limit
from perdure.values.history import ChatMessage, newest
from perdure.values.instances import split_state
from perdure.values.jsons import Json, JsonObject, dumps, shorten
from perdure.values.limits.fitting import cut_to
from perdure.values.limits.sizes import Sizes, preview
from perdure.values.messages import Merged, PlanMessage, SystemMessage, TextMessage
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
REFINE: Final = "An answer was drafted: {draft}. Make it better where what is known so far allows, or repeat it. {how}."


REVISED: Final = (
    "A new message has come while your plan was carried out; it stands below. The plan above shows how far everything is. What is done "
    "stands, what is running goes on by itself, and new calls may read what it will write."
)
KEEP: Final = (
    'What is "{held}" was not begun, and waits for you: {call} keeps calls as they are (write it first); to change one, write it anew '
    "in place of keeping it; what you do not keep is dropped."
)
UNANSWERED: Final = "Your answer broke off before you had decided on what is held in the plan above."


@dataclass(frozen=True)
class Revision:
    """A plan that goes on under the coming Request (R10.5)."""

    plan: list[JsonObject]
    """Its calls with their status."""
    since: int
    """How many of the run's messages were told before."""
    keep: str | None
    """The tool that keeps what is held, where anything is."""


STANDS_LAST: Final = "What it holds stands at the end."

TIGHT: Final = 500
"""Characters left of a value where the context was too long."""
TIGHT_HISTORY: Final = 20
"""Messages left of the history then."""


def chat_messages(
    context: Context,
    dialect: Dialect,
    ask: Ask,
    progress: Progress,
    shown: JsonObject,
    reading: Reading,
    limit: Limit | None,
    revision: Revision | None = None,
) -> list[JsonObject]:
    """The context of one Request as chat messages (R6.1).

    A dialect that keeps turns shows what has happened as the model's own answers and their results; the others as the state
    that it has led to, the last plan, and what returned to no path (R4.4). `shown`: the state as it is to be seen.
    """
    system = "\n\n".join(part for part in [*context.system, *_taught(context, dialect, ask, reading)] if part)
    chat: list[JsonObject] = [{"role": "system", "content": system}] if system else []
    chat += _given(context, dialect, ask, progress, shown, reading)
    # Once for all turns: a run may have hundreds of them, and of tools.
    names = written_names(function_names(ask.known)) if dialect.keeps_turns else {}
    for message in _happened(progress, dialect, len(progress.messages) if revision is None else revision.since):
        chat += (
            turn_messages(message, names, ask.server)
            if message["type"] == "turn"
            else [_history(message, dialect, ask)]
        )
    chat += _now(context, dialect, ask, progress, shown, revision)
    if (last := _last_words(dialect, ask, progress, limit)) is not None:
        chat.append({"role": "user", "content": last})
    if not any(message["role"] != "system" for message in chat):
        chat.append({"role": "user", "content": "Begin."})
    return chat


def _taught(context: Context, dialect: Dialect, ask: Ask, reading: Reading) -> list[str]:
    """How to plan, and with what: the same for all Requests of a run, also for one that wants an output alone, which says so at its end."""
    how = [dialect.how if ask.known else f"{dialect.only_output(ask)}."]
    if ask.known and ask.control:
        how.append(dialect.control)
    if context.instances:
        how.append(INSTANCES.format(names=", ".join(context.instances)))
    if ask.known and ask.parallel == 1:
        how.append(ONE_AT_A_TIME)
    if reading.tells_shapes:
        how.append(SHAPES)
    return [*how, dialect.tools_text(replace(ask, tools=ask.known))]


def _happened(progress: Progress, dialect: Dialect, since: int) -> list[JsonObject]:
    """What has happened up to a message, which is only ever added to: the model's turns; or what returned to no path, and what went wrong."""
    history: list[JsonObject] = []
    for message in progress.messages[:since]:
        if message["type"] == "results":
            returned = {id: progress.results[id] for id in message["calls"] if id in progress.results}
            history += [{"type": "results", "results": returned}] if returned else []
        elif not (dialect.keeps_turns and message["type"] == "error" and message["call"] is not None):
            history.append(message)  # a turn shows its calls' errors itself
    if progress.tight:
        said = [message for message in history[:-TIGHT_HISTORY] if message["type"] in ("message", "results")]
        history = [_tightened(message) for message in [*said, *history[-TIGHT_HISTORY:]]]
    return history


def _now(
    context: Context, dialect: Dialect, ask: Ask, progress: Progress, shown: JsonObject, revision: Revision | None
) -> Iterator[JsonObject]:
    """What is another from Request to Request: the state as it is, and the plan as it stands, with what is new behind a revised one."""
    if not dialect.keeps_turns:
        for name, value in _states(context, shown).items():
            if value or name is not None:
                yield _user("state" if name is None else f"state (instance {name})", value)
    if revision is not None:
        for message in _revision(revision, progress.messages[revision.since :], dialect, ask):
            yield _history(message, dialect, ask)
    elif progress.plan_message is not None:
        yield _history(progress.plan_message, dialect, ask)
    elif not (dialect.keeps_turns or context.starts_with_plan):
        for item in context.items:
            if isinstance(item, PlanMessage):
                yield _history(item.as_json(), dialect, ask)


def _states(context: Context, shown: JsonObject) -> dict[str | None, JsonObject]:
    """The state, and by instance its own."""
    shared, own = split_state(shown, context.instances)
    states: dict[str | None, JsonObject] = {None: shared}
    states |= own.items()
    return states


def _revision(revision: Revision, news: list[JsonObject], dialect: Dialect, ask: Ask) -> list[JsonObject]:
    """The plan as it stands, what may be done about it, and the new messages last."""
    told = [REVISED if any(message["type"] == "message" for message in news) else UNANSWERED]
    if revision.keep is not None:
        held = [str(call["_id"]) for call in revision.plan if call["_status"] == HELD]
        told.append(KEEP.format(held=HELD, call=dialect.plan([{"_tool": revision.keep, "calls": held[:2]}], ask)))
    return [{"type": "plan", "plan": revision.plan}, {"type": "note", "text": " ".join(told)}, *news]


def _given(
    context: Context, dialect: Dialect, ask: Ask, progress: Progress, shown: JsonObject, reading: Reading
) -> Iterator[JsonObject]:
    """What was given, in its order (R2.7); but for a plan, and for the state's value where that changes, which stand last."""
    states = _states(context, shown)
    for item in newest(context.items, shown=TIGHT) if progress.tight else context.items:
        if isinstance(item, Merged):
            title = item.kind if item.instance is None else f"{item.kind} (instance {item.instance})"
            if item.kind != "state":
                value = reading.shown_data(item) if item.exists else None
                yield _user(title, value, item.description, item.data_schema)
            elif not dialect.keeps_turns:
                if item.description or item.data_schema is not None:
                    schema = [] if item.data_schema is None else [f"schema: {dumps(item.data_schema)}"]
                    about = [item.description] if item.description else []
                    yield {"role": "user", "content": "\n".join([f"# {title}", *about, *schema, STANDS_LAST])}
            elif (value := states.pop(item.instance)) or item.data_schema is not None or item.instance is not None:
                yield _user(title, value, item.description, item.data_schema)
        elif isinstance(item, SystemMessage):
            yield {"role": "system", "content": item.text}
        elif isinstance(item, TextMessage):
            yield {"role": item.role, "content": item.text}
        elif isinstance(item, ChatMessage):
            yield _tight_result(item.as_json() if dialect.keeps_turns else item.as_text(), tight=progress.tight)
        elif not isinstance(item, PlanMessage) or (dialect.keeps_turns and not context.starts_with_plan):
            yield _history(item.as_json(), dialect, ask)
    for name, value in states.items() if dialect.keeps_turns else ():
        if value or name is not None:
            yield _user("state" if name is None else f"state (instance {name})", value)


def _tight_result(message: JsonObject, *, tight: bool) -> JsonObject:
    """A message of the history; where the context was too long, the result of a call only by its beginning."""
    if not tight or message["role"] != "tool":
        return message
    return {**message, "content": shorten(message["content"], TIGHT)}


def _last_words(dialect: Dialect, ask: Ask, progress: Progress, limit: Limit | None) -> str | None:
    """What a Request says at the end, if it only wants an output (R9.5)."""
    how = dialect.only_output(ask)
    if limit is not None:
        return FINAL.format(limit=limit.words, how=how)
    if progress.wants == "refined":
        # As data: a model that repeats it must not have its text read for references.
        return REFINE.format(draft=dumps(as_data(progress.draft)), how=how)
    return STRUCTURED.format(how=how) if progress.wants == "structured" else None


def _user(title: str, value: Json, description: str = "", schema: JsonObject | None = None) -> JsonObject:
    lines = [f"# {title}"]
    if description:
        lines.append(description)
    if schema is not None:
        lines.append(f"schema: {dumps(schema)}")
    if value is not None or schema is None:
        lines.append(dumps(value))
    return {"role": "user", "content": "\n".join(lines)}


def _history(message: JsonObject, dialect: Dialect, ask: Ask) -> JsonObject:
    kind = message["type"]
    if kind == "plan":
        text = f"# plan: the calls so far, with their status\n{dialect.plan(message['plan'], ask)}"
        return {"role": "user", "content": text}
    if kind in ("note", "message"):
        return {"role": "user", "content": message["text"]}
    if kind == "results":
        return _user("results", message["results"], "What calls without an _outputPath returned, by call id.")
    body = {key: value for key, value in message.items() if key != "type"}
    return {"role": "user", "content": f"# {kind}\n{dumps(body)}"}


def _tightened(message: JsonObject) -> JsonObject:
    if message["type"] == "results":
        results = message["results"].items()
        return {**message, "results": {id: {**one, "result": shorten(one["result"], TIGHT)} for id, one in results}}
    if message["type"] != "turn":
        return message
    return {**message, "calls": [{**call, "result": shorten(call["result"], TIGHT)} for call in message["calls"]]}


def fit_messages(messages: list[JsonObject], room: int, sizes: Sizes) -> list[JsonObject]:
    """Chat messages in so many bytes: long texts cut, more of them the less room there is; and then only the first and the last.

    Total. It is for what no model could read anyway: see `TIGHT` for what comes before.
    """
    for most in (100_000, 20_000, 4_000, TIGHT):
        cut = [
            message
            if sizes.of(message.get("content")) <= most
            else {**message, "content": cut_to(message.get("content"), most, sizes)}
            for message in messages
        ]
        if sum(map(sizes.of, cut)) <= room:
            return cut
    ends = [cut[0], cut[-1]] if "tool_calls" not in cut[-1] and cut[-1]["role"] != "tool" else cut[:1]
    return [{**message, "content": cut_to(message.get("content"), max(room // 3, 200), sizes)} for message in ends]


def call_line(raw: Mapping[str, Any], limit: int = 100) -> str:
    """A call's parameters on one line, for summaries and tables."""
    return ", ".join(f"{key}={preview(value, 40)}" for key, value in raw.items() if not key.startswith("_"))[:limit]
