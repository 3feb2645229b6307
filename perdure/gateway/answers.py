"""Answers to a chat's client: the events of a run in the client's form, until the run ends or only people can continue it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, TypeAlias

from perdure.approvals.requests import WaitingView
from perdure.client.run import Run
from perdure.client.run_tree import RunTree, RunTreeReader
from perdure.client.session import MessageOptions, Session
from perdure.errors import DecisionRefusedError, RunEndedError, RunNotFoundError
from perdure.gateway._idempotency import RequestKey
from perdure.gateway.callers import APPROVE, SEND, Caller
from perdure.gateway.errors import HttpError, log_problem
from perdure.gateway.streams import poll, with_pauses
from perdure.models.dialects.output_text import text_of
from perdure.runs.event_stream import EventAdapter, Form
from perdure.runs.events import Event, is_silence
from perdure.runs.wire import RunView
from perdure.sessions.wire import Receipt
from perdure.values.json import JsonObject, loads
from perdure.values.messages import Mode

_RUN: Final = r"([0-9a-f]{6}-[0-9]{1,9})"
_INTERRUPT: Final = re.compile(_RUN + r"((?:/[0-9.\[\]]{1,60}){1,40})/([0-9a-f]{8,64})")
_CALL: Final = re.compile(_RUN + r"((?:/[0-9.\[\]]{1,60}){0,40}):([0-9.\[\]]{1,60})")


@dataclass(frozen=True, slots=True)
class InterruptAnswer:
    """An answer to an interrupt, as a decision."""

    interrupt: str
    """The interrupt's id."""
    run: str
    """The last part of the id of the conversation's run."""
    path: str
    """The path of the delegate's run with the request; empty: the conversation's run itself."""
    call: str
    decision: JsonObject


def interrupt_id(run: str, call: str, digest: str) -> str:
    """Return the id of an approval request for clients: its run, its call, and the digest of the shown content (R7.2).

    `run`: the last part of the id of the conversation's run, followed by the path of the delegate's run with the
    request. The id is useless without its session.
    """
    return f"{run}/{call}/{digest}"


def interrupt_answer(interrupt: str, decision: JsonObject) -> InterruptAnswer | None:
    """Return the answer to the interrupt of this id; `None` for an invalid id."""
    found = _INTERRUPT.fullmatch(interrupt)
    if found is None:
        return None
    path, _, call = found[2][1:].rpartition("/")
    return InterruptAnswer(interrupt, found[1], path, call, decision | {"call": call, "digest": found[3]})


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The result of a call that a client has executed, under the client's id of the call."""

    run: str
    """The last part of the id of the conversation's run."""
    path: str
    """The path of the delegate's run with the call; empty: the conversation's run itself."""
    call: str
    decision: JsonObject


def client_result(id: str, decision: JsonObject) -> ClientResult | None:
    """Return the result of the call with this client id; `None` for an invalid id."""
    found = _CALL.fullmatch(id)
    return None if found is None else ClientResult(found[1], found[2][1:], found[3], decision)


async def answers_of_results(
    find_run: FindRun, session: Session, results: Sequence[ClientResult]
) -> tuple[list[InterruptAnswer], str | None]:
    """Return the results of calls that still wait for the client, as answers, and the id of the last result's run.

    Other results were taken before, or belong to another caller. A call that waits for a person needs an answer to its
    interrupt. `None`: none of the runs is the caller's.
    """
    found, last = [], None
    for run, path in dict.fromkeys((each.run, each.path) for each in results):
        try:
            view = await (await find_run(id_below(f"{session.id}/{run}", path))).view()
        except RunNotFoundError:
            continue
        last = f"{session.id}/{run}"
        waiting = {request.call: request for request in view.waiting if request.client}
        for each in results:
            if (each.run, each.path) == (run, path) and (request := waiting.get(each.call)) is not None:
                interrupt = interrupt_id(id_below(run, path), each.call, request.digest)
                decision = each.decision | {"call": each.call, "digest": request.digest}
                found.append(InterruptAnswer(interrupt, run, path, each.call, decision))
    return found, last


def id_below(run: str, path: str) -> str:
    """Return the id, or its last part, of the run at a path below a run."""
    return f"{run}/{path}" if path else run


FindRun: TypeAlias = Callable[[str], Awaitable[Run[Any]]]
"""Finds a run of the caller's tenant by its id. Raises `RunNotFoundError`."""


@dataclass(slots=True)
class JudgedAnswers:
    """Answers to a run's interrupts, before they are sent."""

    waiting: list[tuple[Run[Any], InterruptAnswer]] = field(default_factory=list)
    """The answers to requests that wait, each with its run."""
    late: list[str] = field(default_factory=list)
    """Interrupts that no longer wait: another person decided first, or the same input arrived before."""
    by_person: bool = False
    """Whether an answer is a person's."""
    by_client: bool = False
    """Whether an answer is the result of a call that the client has executed."""


async def judge_answers(
    find_run: FindRun, run_id: str, view: RunView, answers: Sequence[InterruptAnswer]
) -> JudgedAnswers:
    """Judge answers to interrupts of a run and its delegates' runs. `view`: the run's view. Raises `HttpError` (422) for
    an unknown interrupt, and for an approval of a question.
    """
    judged = JudgedAnswers()
    for path in dict.fromkeys(answer.path for answer in answers):
        run = await find_run(id_below(run_id, path))
        own = [answer for answer in answers if answer.path == path]
        _judge(judged, run, await run.view() if path else view, own)
    return judged


def _judge(judged: JudgedAnswers, run: Run[Any], view: RunView, answers: Iterable[InterruptAnswer]) -> None:
    waiting = {request.call: request for request in view.waiting}
    known = {call.id for call in view.calls if call.approval is not None}
    known |= {str(each.number) for each in view.log}
    for answer in answers:
        request = waiting.get(answer.call)
        if request is not None and request.client:
            judged.by_client = True
        elif request is not None:
            judged.by_person = True
        if request is None or request.digest != answer.decision["digest"]:
            if request is None and answer.call not in known:
                raise HttpError(422, f"{answer.interrupt!r} is not an interrupt of this thread")
            judged.late.append(answer.interrupt)
        elif request.question and answer.decision["decision"] == "approve":
            raise HttpError(422, f"{answer.interrupt!r} is a question: send an answer instead of an approval")
        else:
            judged.waiting.append((run, answer))


async def send_decisions(judged: JudgedAnswers, caller: Caller) -> list[str]:
    """Send the decisions. Return the interrupts that no longer waited. Raises `DecisionRefusedError` for an invalid
    answer.
    """
    late = list(judged.late)
    for run, answer in judged.waiting:
        try:
            await run.decide(caller.signed(answer.decision))
        except RunEndedError:
            late.append(answer.interrupt)
        except DecisionRefusedError:
            if any(each.call == answer.call for each in await run.waiting()):
                raise
            late.append(answer.interrupt)
    return late


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of a client's input."""

    run_id: str | None
    """The run that answers; `None` for a command."""
    before: int = 0
    """Requests of that run up to this number came before the input: its client has them already."""
    late: Sequence[str] = ()
    """Interrupts that no longer waited."""
    receipt: Receipt | None = None
    """The receipt of the input's message, if another run may answer it: it steers the run, or waits for its turn."""


async def deliver(
    session: Session,
    caller: Caller,
    find_run: FindRun,
    *,
    message: tuple[str, str] | None,
    answers: Sequence[InterruptAnswer],
    settings: JsonObject | None = None,
    key: RequestKey | None = None,
    mode: Mode | None = None,
) -> Delivery:
    """Send the answers' decisions, then the message to the session.

    `message`: id and text. `answers`: answers to interrupts of one run. `settings`: keys of the agent file that differ
    in the message's run. `key`: taken once the input is accepted. `mode`: the message's mode, for an input without
    answers. Raises `HttpError` (403) for a caller without the right to decide, and as `judge_answers` and `send_decisions`.
    """
    run_id, before, receipt_to_follow = None, 0, None
    late: list[str] = []
    id, text = message or ("", "")
    content: MessageOptions = {
        "rights": caller.rights,
        "id": id,
        "mode": "steer" if answers else mode,
        "settings": settings,
        "context": caller.context,  # never the body's, which a client writes
    }
    if message is not None:  # before a decision is sent, and before the key is taken
        session.check_message(text, sender=caller.sender, **content)
    if answers:
        run_id = f"{session.id}/{answers[0].run}"
        view = await (await find_run(run_id)).view()
        judged = await judge_answers(find_run, run_id, view, answers)
        if judged.by_person:
            caller.check(APPROVE, "decide approval requests")
        if judged.by_client:
            caller.check(SEND, "send the results of a page's tools")
    if key is not None:
        await key.take()
    if run_id is not None:
        late = await send_decisions(judged, caller)
        before = max((each.number for each in view.log), default=0)
    if message is not None:
        receipt = await session.send(text, sender=caller.sender, **content)
        before = before if receipt.run_id in (run_id, None) else 0
        run_id = receipt.run_id or run_id
        if receipt.run_id is not None and receipt.done in ("steered", "queued", "collected", "interrupted"):
            receipt_to_follow = receipt
    return Delivery(run_id, before, late, receipt_to_follow)


async def steer(session: Session, caller: Caller, run_id: str, text: str, id: str | None = None) -> str | None:
    """Send a message to a running run of the session. Return the reason if the run does not accept it: then the message
    is withdrawn, and begins no other run.

    `id`: the message's id; `None`: a new one. Raises `MessageRefusedError`.
    """
    receipt = await session.send(
        text, sender=caller.sender, rights=caller.rights, id=id, mode="steer", context=caller.context
    )
    if receipt.run_id in (run_id, None):  # a command begins no run
        return None
    await session.withdraw(receipt.message_id, sender=caller.sender)
    return receipt.why or f"{run_id} has ended"


def text_name(data: Mapping[str, Any]) -> str:
    """Return the name of a text within its run: `REQUEST.ATTEMPT`. `data`: of the text's event."""
    return f"{data['request']}.{data.get('attempt') or 1}"


def output_text(view: RunView) -> str:
    """Return the output of a completed run as a text; empty without a readable output."""
    text = "" if view.output is None or view.status != "completed" else text_of(view.output)
    return "" if is_silence(text) else text


async def with_output(run: Run[Any], view: RunView) -> RunView:
    """Return the view of a run with its whole output, even if the output is too large for a view."""
    return view.model_copy(update={"output": loads(await run.value("output"))}) if view.output_size else view


def failure_of(view: RunView) -> str:
    """Return the reason why a run ended without an output."""
    return view.error or f"the run was {view.status.replace('_', ' ')}"


class AnswerEvents(EventAdapter[Form, RunView]):
    """One answer in a protocol's form: `begin`, then `fold` for each event, then `interrupt` or `end`."""

    def __init__(self, run: str, calls: Iterable[str] = (), results: Iterable[str] = ()) -> None:
        """`run`: the end of the run's id. `calls`: ids of the client's calls. `results`: ids of calls whose results the client has."""
        self._run = run
        self._calls, self._results = set(calls), set(results)

    def _call_id(self, call: str, path: str = "") -> str:
        """Return the client's id of a call of the run at this path."""
        return f"{id_below(self._run, path)}:{call}"

    shows_state: ClassVar[bool] = False
    """Whether the run's state is a part of the answer."""
    runs_tools: ClassVar[bool] = False
    """Whether the client executes calls itself: such calls end the answer too."""

    def on_approval(self, event: Event) -> Iterator[Form]:
        """Yield the form of an approval event. By default yield nothing: the stream needs the topic to know when to query the run."""
        del event
        yield from ()

    def state(self, state: JsonObject) -> Iterator[Form]:
        """Yield the run's present state."""
        del state
        yield from ()

    def not_counted(self, interrupts: Iterable[str]) -> Iterator[Form]:
        """Yield the form of late answers."""
        del interrupts
        yield from ()

    @property
    def lacks_below(self) -> bool:
        """Whether the client has a call of a delegate's run without its result."""
        return any(id.startswith(f"{self._run}/") for id in self._calls - self._results)

    def lacks(self, call: str) -> bool:
        """Whether the client has this call without its result."""
        return self._call_id(call) in self._calls - self._results

    def below(self, runs: Mapping[str, RunView]) -> Iterator[Form]:
        """Yield the results of calls that waited in delegates' runs. `runs`: these runs, by their paths."""
        for path, view in sorted(runs.items()):
            for call in view.calls:
                if call.status not in _OPEN:
                    data = {"result": call.shown or ""} if call.status == "done" else {}
                    yield from self._result(self._call_id(call.id, path), call.as_json() | data)

    def _result(self, id: str, data: Mapping[str, Any]) -> Iterator[Form]:
        """Yield the result of the call with this client id. `data`: the call's data in the view or the event."""
        raise NotImplementedError

    def leave(self, ended: RunView, run_id: str) -> Iterator[Form]:
        """Yield the rest of a run that has ended without the client's message, and continue with the run that answers it."""
        raise NotImplementedError

    def interrupt(self, waiting: Sequence[tuple[str, WaitingView]]) -> Iterator[Form]:
        """Yield the last events of an answer that waits. `waiting`: each request with its run's path."""
        raise NotImplementedError

    def problem(self, problem: HttpError) -> Iterator[Form]:
        """Yield the last events of an answer that fails."""
        raise NotImplementedError


_SPARED: Final = 20
"""The number of queries after which the stream no longer waits for missing events."""
_OPEN: Final = ("pending", "ready", "waiting", "held", "running")
"""Statuses of a call that has not ended."""
_CHANGES: Final = {("lifecycle", "snapshot"), ("tool", "end"), ("approval", "start"), ("approval", "end")}
"""Events after which the run is queried, once no more events arrive."""
_QUIET: Final = (0.1, 2.0)
"""Seconds without an event before a query: the first pause, and the longest."""
_QUIET_BELOW: Final = (1.0, 10.0)
"""The pauses while a call runs: its delegate's run may begin to wait, and no event of the run reports it."""


def note_waiting(waiting: set[str], event: Event) -> None:
    """Keep the set of calls that wait for a person. Each change of a request is one more `approval` `start`."""
    if event.topic == "approval" and event.phase in ("start", "end"):
        change = waiting.add if event.phase == "start" else waiting.discard
        change(str(event.data["call"]))


@dataclass(slots=True)
class _Looks:
    """The times at which a run is queried, computed from its events."""

    working: set[str] | None
    """The calls that run; `None`: the client can answer no request, so delegates' runs are not queried."""
    changed: bool = True
    waiting: set[str] = field(default_factory=set)
    """Calls that wait for a person in the run itself."""
    requested: set[str] = field(default_factory=set)
    """Calls whose approval request has been seen as an event."""
    spared: int = 0
    """The number of queries in which the run was ahead of its events."""

    def note(self, event: Event) -> None:
        self.changed = self.changed or (event.topic, event.phase) in _CHANGES
        note_waiting(self.waiting, event)
        if (event.topic, event.phase) == ("approval", "start"):
            self.requested.add(str(event.data["call"]))
        elif event.phase == "snapshot":  # the missed events will not arrive
            self.spared = _SPARED
        if self.working is not None and event.topic == "tool" and event.phase in ("start", "end"):
            change = self.working.add if event.phase == "start" else self.working.discard
            change(str(event.data["call"]))

    def are_ahead(self, view: RunView, lacks: Callable[[str], bool]) -> bool:
        """Whether the run is ahead of its events: the answer still lacks some of them."""
        ended = any(call.status not in _OPEN and lacks(call.id) for call in view.calls)
        if self.spared == _SPARED or not (ended or {each.call for each in view.waiting} - self.requested):
            return False
        self.spared, self.changed = self.spared + 1, True
        return True

    @property
    def are_due(self) -> bool:
        """Whether to query the run once no more events arrive."""
        return self.changed or bool(self.waiting or self.working)

    def pauses(self) -> tuple[float, float]:
        return _QUIET_BELOW if self.working and not (self.changed or self.waiting) else _QUIET


@dataclass(frozen=True, slots=True)
class AnswerStream(Generic[Form]):
    """The stream of one run, for one client."""

    run: Run[Any]
    session: Session | None
    """The run's session; `None`: a run without a session, which has begun."""
    trees: RunTreeReader
    events: AnswerEvents[Form]
    as_frame: Callable[[Form], str]
    approves: bool
    """Whether the client may decide: then an approval request ends the answer, which otherwise continues."""
    late: Sequence[str] = ()
    """Interrupts that no longer waited when they were answered."""
    receipt: Receipt | None = None
    """As in `Delivery`: if the run ends without the message, the answer continues with the run that answers it."""

    async def frames(self) -> AsyncGenerator[str, None]:
        """Yield the answer's frames."""
        try:
            async with aclosing(self.forms()) as forms:
                async for form in forms:
                    yield self.as_frame(form)
        except Exception as error:
            for frame in self.problem(log_problem(error)):
                yield frame

    def problem(self, problem: HttpError) -> Iterator[str]:
        """Yield the frames of an error that ends the answer."""
        return map(self.as_frame, self.events.problem(problem))

    async def forms(self) -> AsyncGenerator[Form, None]:
        """Yield the answer in the protocol's form. Errors are raised."""
        for form in self.events.begin():
            yield form
        async with aclosing(self._run_forms()) as forms:
            async for form in forms:
                yield form

    async def _run_forms(self) -> AsyncGenerator[Form, None]:
        """Yield the answer without its beginning."""
        view = await self._begun()
        for form in (*await self._state(view), *self.events.not_counted(self.late)):
            yield form
        looks = _Looks(
            {call.id for call in view.calls if call.status == "running"} if self._can_answer_delegates else None
        )
        async with aclosing(with_pauses(self.run.events(topics=self.events.topics), looks.pauses)) as events:
            async for event in events:
                if event is not None:
                    for form in self.events.fold(event):
                        yield form
                    looks.note(event)
                elif looks.are_due:
                    looks.changed, tree = False, await self._tree(await self.run.view())
                    for form in (*await self._state(tree.view), *self.events.below(tree.below)):
                        yield form
                    if not tree.rests or looks.are_ahead(tree.view, self.events.lacks):
                        continue
                    if waiting := await self._waiting(tree):
                        for form in self.events.interrupt(waiting):
                            yield form
                        return
        async with aclosing(self._end()) as forms:
            async for form in forms:
                yield form

    async def _end(self) -> AsyncGenerator[Form, None]:
        """Yield the end of the run, or its rest and the answer of the run that follows it."""
        view = await self.run.wait()
        tree = await self._tree(view)
        for form in (*await self._state(view), *self.events.below(tree.below)):
            yield form
        view = await with_output(self.run, view)
        if (following := await self._find_following()) is None:
            for form in self.events.end(view):
                yield form
            return
        for form in self.events.leave(view, following.run.id):
            yield form
        async with aclosing(following._run_forms()) as forms:
            async for form in forms:
                yield form

    async def _find_following(self) -> AnswerStream[Form] | None:
        """Return the stream of the run that answers the message, if this run has ended without it."""
        if self.session is None or self.receipt is None:
            return None
        run = await self.session.answering_run(self.receipt, self.run.id)
        return None if run is None else replace(self, run=run, late=())

    @property
    def _can_answer_delegates(self) -> bool:
        """Whether the client can answer requests of delegates' runs."""
        return self.approves or self.events.runs_tools

    async def _waiting(self, tree: RunTree) -> list[tuple[str, WaitingView]]:
        """Return the requests that this client can answer."""
        of_people = await self.trees.waiting(self.run, tree) if self.approves else []
        return [*of_people, *(each for each in tree.waiting if each[1].client and self.events.runs_tools)]

    async def _begun(self) -> RunView:
        """Return the run, once it has begun. Raises `HttpError` (409) if its message was withdrawn before that."""
        session = self.session
        if session is None:
            return await self.run.view()
        try:
            return await poll(lambda: session.view_run(self.run.id))
        except RunNotFoundError:
            raise HttpError(409, "the message was withdrawn before a run took it", kind="withdrawn") from None

    async def _tree(self, view: RunView) -> RunTree:
        """Return the run's tree. Query delegates' runs only if one may wait, or has a result that the client lacks."""
        busy = self._can_answer_delegates and any(call.status == "running" for call in view.calls)
        if not busy and not self.events.lacks_below:
            return RunTree(view)
        return RunTree(view, await self.trees.below(self.run, asked=True))

    async def _state(self, view: RunView) -> list[Form]:
        """Return the form of the run's whole state, even if the view has only a part of it."""
        if not self.events.shows_state:
            return []
        if not any(line.startswith("state") for line in view.cut):
            return list(self.events.state(view.state))
        state = loads(await self.run.value("state"))
        return list(self.events.state(state if isinstance(state, dict) else {}))
