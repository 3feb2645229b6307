"""The context of a Request: feedback, turns of the running plan, and messages that wait."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from pydantic import ValidationError

from perdure.approvals.requests import IncomingMessage, MessageFate
from perdure.errors import CallError, DecisionError, clip
from perdure.models.dialects.common import DialectRequest
from perdure.models.dialects.output_text import output_form
from perdure.models.dialects.registry import DIALECTS
from perdure.models.provider_extras import server_of
from perdure.models.requests import RequestContext, RequestResult, RequestView
from perdure.models.response_stream import problem_words
from perdure.plan import Call, Plan, errors_of
from perdure.runs.agent import AgentSpec, Context, ModelChoice
from perdure.runs.limits import Limit
from perdure.runs.progress import RunProgress
from perdure.runs.prompt_parts import fit_messages, sum_parts
from perdure.runs.prompts import Prompt, RevisedPlan
from perdure.runs.provenance import RunProvenance
from perdure.runs.version_switches import CARRIES_LESS
from perdure.runs.wire import PreparedWorker
from perdure.tools.engine import keep_tool
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, contains_list, dumps
from perdure.values.limits import (
    MAX_INBOX,
    MAX_LAST_MESSAGES,
    MAX_RESULT,
    MAX_SESSION_MESSAGE,
    MAX_STATE_SHOWN,
    MAX_UNHEARD,
)
from perdure.values.media import excerpt
from perdure.values.messages import PlanMessage
from perdure.values.problems import first_problem
from perdure.values.schemas import allows_list, is_plain
from perdure.values.sizes import Sizes, preview
from perdure.values.state import State


class Contexts:
    """A maker of the contexts of one run's Requests, each of at most `max_payload` bytes."""

    def __init__(
        self, agent: AgentSpec, context: Context, prepared: PreparedWorker, sizes: Sizes, provenance: RunProvenance
    ) -> None:
        self._agent, self._context, self._parts = agent, context, prepared.prompt
        self._dialect = DIALECTS[agent.config.dialect]
        self._max_payload = prepared.max_payload
        self._sizes = sizes
        self._provenance = provenance
        self._output_form = output_form(agent.output_schema)
        taught = agent.config.control_taught
        self._control = _lists_occur(context, prepared.tools, agent.output_schema) if taught == "auto" else taught
        self._names_control = taught == "auto" and not self._control
        self._untaught = _untaught(agent, context, prepared)
        self._parameters: dict[tuple[bool, bool, int], tuple[JsonObject, int, int]] = {}
        """By the kind of Request its parameters, and the characters and bytes of their JSON."""

    def make(
        self,
        tools: Mapping[str, Tool],
        progress: RunProgress,
        state: State,
        limit: Limit | None,
        *,
        final: bool,
        server: str = "",
        revision: RevisedPlan | None = None,
    ) -> RequestContext:
        """Return the present context, for a `server`.

        A context that is too large is too long for any model: the model sees it shortened from then on (R9.7).
        """
        context, size = self._make(tools, progress, state, limit, final, server, revision)
        if size > self._max_payload and not progress.tight:
            progress.tight = True
            context, size = self._make(tools, progress, state, limit, final, server, revision)
        if size > self._max_payload:
            room = self._max_payload - (size - sum(map(self._sizes.of, context.messages)))
            context.messages, context.stable = fit_messages(context.messages, room, self._sizes), 0
        return context

    def _make(
        self,
        tools: Mapping[str, Tool],
        progress: RunProgress,
        state: State,
        limit: Limit | None,
        final: bool,
        server: str,
        revision: RevisedPlan | None,
    ) -> tuple[RequestContext, int]:
        """Return a context, and its size in bytes, about."""
        kinds = [merged.kind for merged in self._context.data]
        if self._dialect.keeps_turns:  # the turns show the later writes
            shown = self._provenance.shown_start(self._context.initial_state)
        else:
            most = min(self._max_payload, MAX_STATE_SHOWN)
            shown, progress.tight = self._provenance.shown_state(state, tight=progress.tight, most=most)
        keep = None if revision is None else revision.keep  # the messages about held calls describe this tool
        ask = DialectRequest(
            tools={} if final else dict(tools),
            taught={name: tool for name, tool in tools.items() if name != keep},
            output=self._agent.output_schema,
            final=final,
            max_calls=self._agent.config.max_calls,
            parallel=self._agent.config.parallel,
            instances=self._context.instances,
            kinds=kinds,
            control=self._control,
            names_control=self._names_control,
            untaught=self._untaught,
            server=server,
        )
        kind = final, revision is not None and revision.keep is not None, len(tools)
        if kind not in self._parameters:
            self._parameters[kind] = _compose_parameters(_Composition(self._agent.config.dialect, ask))
        parameters, characters, size = self._parameters[kind]
        prompt = Prompt(self._context, self._parts, self._dialect, ask, progress, shown, self._provenance)
        messages = prompt.messages(limit, revision)
        beside = [("beside the messages", characters)] if parameters else []
        vocabulary = self._dialect.vocabulary(ask.tools, kinds).model_copy(update={"said": self._output_form})
        size += 1000 + len(vocabulary.model_dump_json().encode()) + sum(map(self._sizes.of, messages))
        context = RequestContext(
            messages=messages,
            stable=prompt.stable,
            parameters=parameters,
            parts=sum_parts([*prompt.parts, *beside]),
            left_out=self._parts.left_out,
            dialect=self._agent.config.dialect,
            vocabulary=vocabulary,
        )
        return context, size


class _Composition:
    """A Request as a cache key: two are equal if their parameters are."""

    def __init__(self, dialect: str, ask: DialectRequest) -> None:
        self.dialect, self.ask = dialect, ask
        tools = {name: tool.model_dump() for name, tool in ask.tools.items()}
        self._key = dialect, dumps(tools), dumps(ask.output), repr(replace(ask, tools={}, taught=None, output=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Composition) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=16)
def _compose_parameters(composition: _Composition) -> tuple[JsonObject, int, int]:
    """Return a Request's parameters, and the characters and bytes of their JSON. Runs with equal tools share the object, so nobody may change it."""
    parameters = DIALECTS[composition.dialect].parameters(composition.ask)
    text = dumps(parameters)
    return parameters, len(text), len(text.encode(errors="surrogatepass"))


def _lists_occur(context: Context, tools: Iterable[Tool], output: JsonObject | bool) -> bool:
    """Return whether a list can occur in the run's data, in a tool's result, or in the output. An unknown value counts as one."""
    schemas = [output, *(True if tool.output is None else tool.output for tool in tools)]
    schemas += [merged.data_schema for merged in (*context.data, context.state) if merged.data_schema is not None]
    values = [context.values(), context.initial_state]
    return any(map(allows_list, schemas)) or any(map(contains_list, values))


def _untaught(agent: AgentSpec, context: Context, prepared: PreparedWorker) -> frozenset[str]:
    """Return the meta-properties for which the run has no use.

    `_outputMethod` adds to a list, an object or a text: the run has none if the state begins empty, and results and output
    are plain values. `_after` orders effects: safe tools have none, and no rule asks for an order. A plan in the context
    may have both, and the model has to understand it.
    """
    if any(isinstance(item, PlanMessage) for item in context.items):
        return frozenset()
    results = [True if tool.output is None else tool.output for tool in prepared.tools]
    adds = bool(context.initial_state) or context.state.data_schema is not None
    adds = adds or not all(map(is_plain, [agent.output_schema, *results]))
    orders = bool(agent.config.rules or prepared.worker_rules)
    orders = orders or not all(tool.safe or tool.latent for tool in prepared.tools)
    return frozenset({"_outputMethod"} if not adds else ()) | frozenset({"_after"} if not orders else ())


CUT: Final = "A new message came while you were writing: your answer was ended there, and what had closed of it stands."
OVERTAKEN: Final = "Your output was not returned, because a new message came before everything had ended."
_SHOWN_NOTES: Final = 5
"""Notes of one kind that the model reads about one plan."""
_SHOWN_IN_ERRORS: Final = 2000
"""Characters of a call that an error message repeats to the model: enough to recognise and correct it."""


def error_message(call: JsonObject | None, error: JsonObject) -> JsonObject:
    """Return an error message (R2.5). A very long call is shown as the start of its JSON."""
    shown: Json = call
    if call is not None and len(text := preview(call, _SHOWN_IN_ERRORS)) == _SHOWN_IN_ERRORS:
        shown = text
    return {"type": "error", "call": shown, "error": error}


def engine_message(text: str) -> JsonObject:
    """Return a message of the engine itself, which is neither an error nor a person's message."""
    return {"type": "note", "text": text}


def ended_badly(call: Call) -> bool:
    """Whether a call failed without a branch for the failure, was invalid, or was rejected."""
    return (call.state.error is not None and not call.state.writes) or call.state.status == "rejected"


def not_well(calls: Iterable[Call], plan: Plan) -> str | None:
    """Return why the output is not returned: a call beside it failed without a branch for the failure, or a person
    rejected the plan; `None` if it can be returned.

    A failed item of a loop has its place in the loop's list, which the output may report. A call that a person rejected
    is always reported.
    """
    bad = [call for call in calls if ended_badly(call)]
    own = set(map(id, plan.calls))
    bad += [call for call in plan.every_call() if call.state.status == "rejected" and id(call) not in own]
    which = ", ".join(f"{call.id} {call.spec.tool_name} ({call.state.status})" for call in bad[:5])
    if not (bad or plan.rejected):
        return None
    why = f"calls beside it did not succeed: {which}" if bad else "its plan was rejected"
    return f"The output was not returned, because {why}. Answer again."


def request_problems(
    calls: Sequence[Call], result: RequestResult, to_message: Callable[[Call, CallError], JsonObject]
) -> list[JsonObject]:
    """Return the error messages of a Request: of its calls in the plan's order, their notes, and the answer's own
    (R6.6).

    `to_message` returns the part of an error that the model may read.
    """
    problems = [
        error_message(call.as_plan_entry(), to_message(call, call.state.error))
        for call in errors_of(calls)
        if call.state.error
    ]
    problems += [
        error_message(call.as_plan_entry(), to_message(call, note)) for call in calls for note in call.state.notes
    ]
    return [*problems, *([error_message(None, result.problem)] if result.problem is not None else [])]


def plan_notes(calls: Sequence[Call], plan: Plan) -> list[JsonObject]:
    """Return notes on calls that ran: literals that were converted (R5.13), and writes that race (R5.14)."""
    converted = [
        f"{call.id} {form.spec.tool_name}: {text}"
        for call in calls
        for form in call.written()
        for text in form.spec.converted
    ]
    return [
        engine_message(_listed(texts)) for texts in (converted, plan.races(ended=True) if plan.settled else []) if texts
    ]


def _listed(texts: Sequence[str]) -> str:
    more = f"; {len(texts) - _SHOWN_NOTES} more" if len(texts) > _SHOWN_NOTES else ""
    return "; ".join(texts[:_SHOWN_NOTES]) + more


def with_reasons(view: RequestView, log: Sequence[RequestView], messages: Sequence[JsonObject]) -> RequestView:
    """Return a Request with its reasons other than calls: a wrong output, a person's change, a note of the engine.

    The first Request has only the errors of a plan that the run began with.
    """
    view.told = len(messages)
    new = messages[log[-1].told :] if log else [each for each in messages if each["type"] == "error"]
    view.because = _reasons(new)
    return view


def _reasons(messages: Iterable[JsonObject]) -> list[str]:
    found: list[str] = []
    for message in messages:
        if message["type"] == "error" and message.get("call") is None:
            found.append(problem_words(message["error"]))
        elif message["type"] in ("note", "message"):
            found.append(message["text"])
        elif message["type"] == "feedback":
            found.append(f"decided: {dumps({key: value for key, value in message.items() if key != 'type'})}")
    return [clip(each, 300) for each in found[:5]]


_LEAST_SHOWN: Final = 2_000
"""Characters that a result may have when the results before it have used up their Request's room."""


class ResultsRoom:
    """The characters that the results of one Request share, `MAX_STATE_SHOWN`, so that hundreds of long results do not make
    a workflow task too long. Each result may have `MAX_RESULT` of them while they last, and `_LEAST_SHOWN` after that.
    Without `bounded` each may have `MAX_RESULT`.
    """

    def __init__(self, sizes: Sizes, provenance: RunProvenance, *, bounded: bool = True) -> None:
        self.sizes, self.provenance = sizes, provenance
        self._left = MAX_STATE_SHOWN if bounded else None
        self.has_cut = False
        """Whether a result has less room than it would have alone."""

    def shown(self, call: Call) -> Json:
        """Return a call's result as the model sees it."""
        hidden, value = self.provenance.shown_result(call)
        if hidden:
            return value
        size, most = self.sizes.of(value), MAX_RESULT
        if self._left is not None:
            most = max(_LEAST_SHOWN, min(MAX_RESULT, self._left))
            self._left -= min(size, most)
        shown, is_cut = excerpt(value, size, call.id, most)
        self.has_cut = self.has_cut or is_cut
        return shown


def turn_message(
    of: Sequence[Call],
    result: RequestResult,
    before: list[JsonObject],
    room: ResultsRoom,
    server: str = "",
    history_ids: Iterable[str] = (),
) -> JsonObject | None:
    """Return an answer and the results of its calls, for a dialect that shows turns; `None` for an empty answer.

    Calls keep the ids that the server gave them. An id that was used already, `before` or in `history_ids`, is
    replaced, because servers refuse it. Fields that the `server` put beside a call stay with it.
    """
    used = {call["id"] for message in before if message["type"] == "turn" for call in message["calls"]} | {*history_ids}
    calls: list[JsonObject] = []
    for call in of:
        id = call.written_id if call.written_id and call.written_id not in used else f"call_{call.id.replace('.', '_')}"
        used.add(id)
        unended = {} if call.state.ended else {"call": call.id}
        arguments = {key: value for key, value in call.spec.raw.items() if key != "_tool"}
        calls.append(
            {
                "id": id,
                "tool": call.spec.tool_name,
                "arguments": arguments,
                "result": _result_text(call, room),
                **unended,
            }
        )
    if not (calls or result.text):
        return None
    turn: JsonObject = {"type": "turn", "text": result.text, "calls": calls}
    if result.beside is not None:
        for entry, beside in zip(calls, result.beside.calls, strict=False):
            entry |= {"beside": beside} if beside else {}
        turn |= {"server": server, "beside": result.beside.message}
    return turn


def complete_turns(messages: Iterable[JsonObject], ended: Iterable[Call], room: ResultsRoom) -> None:
    """Put the results of calls that have ended since into the turns that made them."""
    by_id = {call.id: call for call in ended}
    for message in messages if by_id else ():
        for entry in message["calls"] if message["type"] == "turn" else ():
            if (call := by_id.get(entry.get("call"))) is not None:
                entry["result"] = _result_text(call, room)
                del entry["call"]


def _result_text(call: Call, room: ResultsRoom) -> str:
    if call.state.status == "done":
        value = room.shown(call)
        return value if isinstance(value, str) else dumps(value)
    if call.state.error is not None:
        return dumps({"error": room.provenance.shown_error(call, call.state.error)})
    return dumps(
        {"status": call.standing, "reason": call.state.reason} if call.state.reason else {"status": call.standing}
    )


def results_of(calls: Iterable[Call], room: ResultsRoom) -> JsonObject:
    """Return, by call id, the results that were written to no path (R4.4)."""
    results: JsonObject = {}
    for call in calls:
        if call.state.status == "done" and not call.state.writes:
            written = call.spec.written_params
            results[call.id] = {"tool": call.spec.tool_name, "params": written, "result": room.shown(call)}
    return results


QUIET: Final = 0.5
"""Seconds: messages that follow so soon after one that ended an answer go into the same Request."""
LONGEST_QUIET: Final = 2.0
"""Seconds for which the next Request waits at most for more messages."""


def accept(progress: RunProgress, raw: Json) -> IncomingMessage | None:
    """Accept a message; return `None` for a message that was accepted before. Raise `DecisionError` if it is invalid or
    exceeds the limit.
    """
    try:
        message = IncomingMessage.model_validate(raw)
    except ValidationError as error:
        raise DecisionError(f"the message is not valid: {first_problem(error, raw)}") from None
    if any(each.names(message.id, message.sender) for each in message_fates(progress)):
        return None
    size = len(message.text.encode())
    if size > MAX_SESSION_MESSAGE:
        raise DecisionError(f"the message {message.id} has {size:,} bytes; the limit is {MAX_SESSION_MESSAGE:,}")
    waiting = sum(len(each.text.encode()) for each in progress.inbox)
    if len(progress.inbox) >= MAX_INBOX or size + waiting > MAX_UNHEARD:
        raise DecisionError(
            f"the message {message.id} was rejected: {MAX_INBOX:,} messages of {MAX_UNHEARD:,} bytes together may wait for a Request"
        )
    progress.inbox.append(message)
    return message


def check_withdrawal(progress: RunProgress, id: Json) -> None:
    """Raise `DecisionError` with the reason why the message cannot be withdrawn."""
    name, sender = _named(id)
    found = [each for each in progress.inbox if _is(each, name, sender)]
    if len(found) > 1:
        raise DecisionError(f'several senders have a message {name!r} in this run: give {{"id", "sender"}}')
    if found:
        return
    request = next((each.request for each in progress.heard if _is(each, name, sender)), None)
    if request is not None:
        raise DecisionError(f"Request {request} has the message {name}, which can no longer be withdrawn")
    raise DecisionError(f"this run has no message {str(name)[:60]!r}")


def _named(id: Json) -> tuple[Json, Json]:
    """Return a message's id, and its sender where `{"id", "sender"}` names one."""
    return (id.get("id"), id.get("sender")) if isinstance(id, dict) else (id, None)


def _is(message: IncomingMessage | MessageFate, id: Json, sender: Json) -> bool:
    return message.id == id and (sender is None or message.sender in ("", sender))


def withdraw(progress: RunProgress, id: Json) -> JsonObject:
    """Withdraw a message and return `{"id", "withdrawn": true}`. Raise `DecisionError`."""
    check_withdrawal(progress, id)
    name, sender = _named(id)
    progress.inbox = [each for each in progress.inbox if not _is(each, name, sender)]
    return {"id": str(name), "withdrawn": True}


def hold(progress: RunProgress) -> None:
    """Put all waiting messages into the Request that begins."""
    for message in progress.inbox:
        progress.messages.append({"type": "message", "text": message.text})
        progress.heard.append(MessageFate(id=message.id, sender=message.sender, request=progress.number))
    progress.inbox = []


def message_fates(progress: RunProgress) -> list[MessageFate]:
    """Return for each message the Request that held it; messages that no Request held come last."""
    return [*progress.heard, *(MessageFate(id=message.id, sender=message.sender) for message in progress.inbox)]


def return_to_planning(progress: RunProgress) -> None:
    """Discard the draft and plan again if a message has arrived."""
    if progress.inbox:
        progress.wants, progress.draft, progress.answers = "plan", None, []


class ModelTurns:
    """The turns of one run. `turns`: its dialect shows them. `history_ids`: ids of calls in the history that the run
    received. `room` returns the room for a Request's results.
    """

    def __init__(self, room: Callable[[], ResultsRoom], history_ids: Iterable[str], *, turns: bool) -> None:
        self._room, self._history_ids, self._turns = room, history_ids, turns
        self._reported: set[str] = set()
        self._turned = -1
        self._request = -1
        self._since = 0  # number of messages that were sent before the running Request
        self._keep: Tool | None = None

    def begin(self, number: int, progress: RunProgress, plan: Plan | None, tools: Container[str]) -> RevisedPlan | None:
        """Put all new messages into Request `number`. Return the plan that continues under the Request (R10.5)."""
        if self._request != number:
            self._request, self._since = number, len(progress.messages)
        hold(progress)
        self._keep = keep_tool(tools) if plan is not None and plan.held_calls.held else None
        if plan is None:
            return None
        entries = [call.as_plan_entry() for call in plan.calls]
        pressed = [call.id for call in plan.held_calls.held if call.hold.pressed]
        return RevisedPlan(entries, self._since, None if self._keep is None else self._keep.name, pressed)

    def tools(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Return the run's tools, with the tool by which the running Request keeps held calls."""
        return {**tools, **({} if self._keep is None else {self._keep.name: self._keep})}

    def fresh(self, plan: Plan) -> list[Call]:
        """Return the calls that have ended since the model's last Request. They count as reported."""
        found = [call for call in plan.calls if call.state.ended and call.id not in self._reported]
        self._reported.update(call.id for call in found)
        return found

    def plan_is_over(self) -> None:
        """End the plan: another plan with its own calls follows."""
        self._reported.clear()

    def keep_results(self, progress: RunProgress, calls: Iterable[Call]) -> None:
        """Keep results that were written to no path, where no turn holds them (R4.4)."""
        room = self._room()
        if not self._turns and (found := results_of(calls, room)):
            progress.results |= found
            progress.messages.append({"type": "results", "calls": list(found)})
            progress.has_cut = progress.has_cut or room.has_cut

    def note_plan(self, progress: RunProgress, plan: Plan) -> None:
        """Record the present plan, for a model that does not see its turns (R2.5)."""
        if self._turns:
            progress.plan_message = None
        elif plan.calls:
            progress.plan_message = {"type": "plan", "plan": [call.as_plan_entry() for call in plan.calls]}

    def turn(
        self, progress: RunProgress, plan: Plan, fresh: list[Call], result: RequestResult, log: list[RequestView]
    ) -> list[JsonObject]:
        """Return the Request's turn, once. Results of calls that an earlier Request made are put into its turn."""
        if not self._turns:
            return []
        room = self._room()
        complete_turns(progress.messages, fresh, room)
        turn = None
        if plan.request != self._turned:
            self._turned = plan.request
            server = server_of(log[-1].model) if log else ""
            turn = turn_message(plan.own, result, progress.messages, room, server, self._history_ids)
        progress.has_cut = progress.has_cut or room.has_cut
        return [turn] if turn else []


class RunConversation:
    """The conversation of one run with its models: its turns, and the context of the last Request begun."""

    def __init__(
        self, agent: AgentSpec, context: Context, prepared: PreparedWorker, sizes: Sizes, provenance: RunProvenance
    ) -> None:
        dialect = DIALECTS[agent.config.dialect]
        self.shows_turns = dialect.keeps_turns
        """Whether the agent's dialect shows the model its earlier turns."""
        room = partial(ResultsRoom, sizes, provenance, bounded=prepared.follows(CARRIES_LESS))
        self.turns = ModelTurns(room, context.call_ids, turns=dialect.keeps_turns)
        self._contexts = Contexts(agent, context, prepared, sizes, provenance)
        self._sampling, self._models = agent.config.sampling, prepared.models
        self._sizes = sizes
        self._last: tuple[int, RequestContext] | None = None

    def begin(
        self,
        choice: ModelChoice,
        tools: Mapping[str, Tool],
        progress: RunProgress,
        state: State,
        plan: Plan | None,
        limit: Limit | None,
        *,
        final: bool,
    ) -> RequestContext:
        """Return the context of the Request that begins, to this model."""
        revision = self.turns.begin(progress.number, progress, plan, tools)
        context = self._contexts.make(
            self.turns.tools(tools),
            progress,
            state,
            limit,
            final=final,
            server=server_of(choice.model),
            revision=revision,
        )
        context.parameters = {**context.parameters, **self._sampling.of(choice.model, self._models)}
        self._last = progress.number, context
        return context

    def context(self, number: int) -> RequestContext:
        """Return the context of Request `number`. Raises `KeyError` once another Request has begun."""
        if self._last is None or self.number != number:
            raise KeyError(f"Request {number} is not running; the last one begun is {self.number}")
        return self._last[1]

    @property
    def number(self) -> int:
        """The number of the last Request begun; 0: none."""
        return 0 if self._last is None else self._last[0]

    def last_messages(self) -> list[JsonObject]:
        """Return the messages of the last Request begun: the newest that have at most `MAX_LAST_MESSAGES` bytes."""
        newest: list[JsonObject] = []
        room = MAX_LAST_MESSAGES
        for message in reversed([] if self._last is None else self._last[1].messages):
            room -= self._sizes.of(message)
            if room < 0:
                break
            newest.append(message)
        return newest[::-1]
