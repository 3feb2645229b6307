"""The route `/ag-ui/AGENT`: streams of a run, and answers to interrupts."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ag_ui.core import BaseEvent, RunErrorEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.approvals.requests import requests_of_people
from perdure.client.run import Run
from perdure.client.run_tree import RunTree, RunTreeReader
from perdure.client.session import Session
from perdure.errors import DecisionRefusedError, RunEndedError, RunNotFoundError
from perdure.gateway._keys import Key
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.agui._events import AguiEvents
from perdure.gateway.agui._requests import InterruptAnswer
from perdure.gateway.bounds import read_json
from perdure.gateway.callers import APPROVE, READ, SEND, Caller, caller_of
from perdure.gateway.errors import HttpError
from perdure.gateway.streams import EventStream, frame, poll, stream_problem, with_pauses
from perdure.runs.events import Event
from perdure.runs.wire import RunView
from perdure.sessions.wire import session_id
from perdure.values.json import JsonObject, loads

if TYPE_CHECKING:
    from perdure.gateway.agui._requests import AguiRequest
    from perdure.values.messages import Mode


def agui_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter by which each agent answers in AG-UI's threads. Without the library (`pip install perdure[agui]`) it has no routes."""
    if importlib.util.find_spec("ag_ui") is None:
        return Adapter("ag-ui", [])

    trees = RunTreeReader()

    async def answer(request: Request) -> Response:
        from perdure.gateway.agui._requests import read

        caller = caller_of(request)
        agent = gateway.agents.get(request.path_params["agent"])
        agui_request = read(body := await read_json(request))
        key = Key.of(gateway, request, caller, body)
        session = gateway.perdure.session(agui_request.thread, tenant=caller.tenant, agent=agent)
        settings = agui_request.settings(agent.document(), gateway.client_source(caller, agent))
        return await _answer(gateway, trees, caller, session, agui_request, settings, key)

    return Adapter("ag-ui", [Route("/ag-ui/{agent}", answer, methods=["POST"])])


async def _answer(
    gateway: Gateway,
    trees: RunTreeReader,
    caller: Caller,
    session: Session,
    agui_request: AguiRequest,
    settings: JsonObject,
    key: Key | None,
) -> Response:
    """Send messages and decisions, and then stream what follows. A refusal is a status, before anything is streamed."""
    from perdure.gateway.agui._events import AguiEvents

    run_id: str | None = None
    late: list[str] = []
    before = 0
    if agui_request.message is not None:
        caller.check(SEND, "say something in threads")
    if agui_request.answers:
        caller.check(APPROVE, "decide what waits for a person")
    if key is not None and (agui_request.message is not None or agui_request.answers):
        await key.take()
    if agui_request.answers:
        run_id = f"{session_id(caller.tenant, agui_request.thread)}/{agui_request.answers[0].run}"
        view = await (await gateway.own_run(caller, run_id)).view()
        for path in dict.fromkeys(answer.path for answer in agui_request.answers):
            found = await gateway.own_run(caller, "/".join(filter(None, (run_id, path))))
            answers = [answer for answer in agui_request.answers if answer.path == path]
            late += await decide(found, await found.view() if path else view, answers, caller.sender)
        before = max((each.number for each in view.log), default=0)
    if agui_request.message is not None:
        id, text = agui_request.message
        mode: Mode | None = "steer" if agui_request.answers else None
        receipt = await session.send(
            text,
            sender=caller.sender,
            rights=caller.rights,
            id=id,
            mode=mode,
            settings=settings,
            context=caller.context,  # never that of the body, which a client writes
        )
        before = before if receipt.run_id in (run_id, None) else 0
        run_id = receipt.run_id or run_id
    elif not agui_request.answers:
        caller.check(READ, "follow what runs in a thread")
        if (running := await session.run()) is None:
            raise HttpError(409, "nothing runs in this thread: send a message first", kind="nothing-runs")
        run_id = running.id
    if run_id is None:  # a command
        agui_events = AguiEvents(agui_request)
        return EventStream(gateway, caller, only(*agui_events.begin(), agui_events.done()), retry=False)
    agui_events = AguiEvents(agui_request, run_id.rpartition("/")[2], run_id, before)
    run = gateway.perdure.get_run(run_id)
    following = RunStream(run, session, trees, agui_events, caller.may(APPROVE), late)
    return EventStream(gateway, caller, following.frames(), retry=False)


async def decide(run: Run[object], view: RunView, answers: list[InterruptAnswer], by: str) -> list[str]:
    """Decide; the interrupts that did not wait any more, because somebody was faster or this input was sent before.

    Raises `HttpError` (422) for what was never offered, `DecisionRefusedError` for an answer that cannot be.
    """
    waiting = {offer.call: offer for offer in requests_of_people(view.waiting)}
    offered = {call.id for call in view.calls if call.approval is not None}
    offered |= {str(each.number) for each in view.log}
    late = []
    for answer in answers:
        offer = waiting.get(answer.call)
        if offer is None or offer.digest != answer.decision["digest"]:
            if offer is None and answer.call not in offered:
                raise HttpError(422, f"resume: {answer.interrupt!r} is not an interrupt of this thread")
            late.append(answer.interrupt)
            continue
        decision = dict(answer.decision)
        if offer.question and decision["decision"] == "approve":
            raise HttpError(422, 'resume has a payload that must be {"answer": …}: this is a question')
        try:
            await run.decide({**decision, "by": by})
        except RunEndedError:
            late.append(answer.interrupt)
        except DecisionRefusedError:
            if any(each.call == answer.call for each in await run.waiting()):
                raise
            late.append(answer.interrupt)
    return late


_CHANGES: Final = {("lifecycle", "snapshot"), ("tool", "end"), ("approval", "start"), ("approval", "end")}
"""After which a run is looked at, once it is quiet."""
_WAITS: Final = {("approval", "start"): 1, ("approval", "end"): -1}
_QUIET: Final = (0.1, 2.0)
"""Seconds without an event: the first, and the longest."""
_QUIET_BELOW: Final = (1.0, 10.0)
"""The same while a call runs: a delegate's run that carries it out may have come to wait, and no event of the run reports it."""


@dataclass(slots=True)
class _Looks:
    """When to look at a run, by its events."""

    working: set[str] | None
    """The calls that run; `None`: whoever reads may not decide, so nothing below is of interest."""
    changed: bool = True
    waits: int = 0
    """How many requests wait for a person in the run itself."""

    def note(self, event: Event) -> None:
        self.changed = self.changed or (event.topic, event.phase) in _CHANGES
        self.waits += _WAITS.get((event.topic, event.phase), 0)
        if self.working is not None and event.topic == "tool" and event.phase in ("start", "end"):
            change = self.working.add if event.phase == "start" else self.working.discard
            change(str(event.data["call"]))

    @property
    def are_due(self) -> bool:
        """Whether to look once the run is quiet."""
        return self.changed or self.waits > 0 or bool(self.working)

    def pauses(self) -> tuple[float, float]:
        return _QUIET_BELOW if self.working and not self.changed and self.waits <= 0 else _QUIET


@dataclass(frozen=True, slots=True)
class RunStream:
    """The stream of one run, and its form as AG-UI's events."""

    run: Run[object]
    session: Session
    trees: RunTreeReader
    agui_events: AguiEvents
    approves: bool
    """Whether whoever asked may decide: then what waits for a person ends the answer, which else goes on."""
    late: list[str]
    """Interrupts that did not wait any more when they were answered."""

    async def frames(self) -> AsyncGenerator[str, None]:
        """The answer, as it goes over the wire."""
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    yield as_frame(event)
        except Exception as error:
            problem = stream_problem(error)
            yield as_frame(RunErrorEvent(message=problem.detail, code=problem.kind))

    async def _events(self) -> AsyncGenerator[BaseEvent, None]:
        for out in self.agui_events.begin():
            yield out
        view = await self._begun()
        for out in (*self.agui_events.state(await self._state(view)), *self.agui_events.not_counted(self.late)):
            yield out
        looks = _Looks({call.id for call in view.calls if call.status == "running"} if self.approves else None)
        async with aclosing(with_pauses(self.run.events(topics=self.agui_events.topics), looks.pauses)) as events:
            async for event in events:
                if event is not None:
                    for out in self.agui_events.fold(event):
                        yield out
                    looks.note(event)
                elif looks.are_due:
                    looks.changed, tree = False, await self._tree(await self.run.view())
                    for out in (
                        *self.agui_events.state(await self._state(tree.view)),
                        *self.agui_events.below(tree.below),
                    ):
                        yield out
                    if self.approves and tree.rests and (waiting := await self.trees.waiting(self.run, tree)):
                        for out in self.agui_events.interrupt(waiting):
                            yield out
                        return
        view = await self.run.wait()
        tree = await self._tree(view)
        for out in (*self.agui_events.state(await self._state(view)), *self.agui_events.below(tree.below)):
            yield out
        if view.output_size:
            view = view.model_copy(update={"output": loads(await self.run.value("output"))})
        for out in self.agui_events.end(view):
            yield out

    async def _begun(self) -> RunView:
        """The run, once it has begun. Raises `HttpError` (409) where its message was taken back before that."""
        try:
            return await poll(lambda: self.session.view_run(self.run.id))
        except RunNotFoundError:
            raise HttpError(409, "the message was withdrawn before a run took it", kind="withdrawn") from None

    async def _tree(self, view: RunView) -> RunTree:
        """Return the run with the runs below it, where one of these may wait or has what the client lacks."""
        busy = self.approves and any(call.status == "running" for call in view.calls)
        if not busy and not self.agui_events.lacks_below:
            return RunTree(view)
        return RunTree(view, await self.trees.below(self.run, asked=True))

    async def _state(self, view: RunView) -> JsonObject:
        """Return the whole state of the run, also where the view has only a part of it."""
        if not any(line.startswith("state") for line in view.cut):
            return view.state
        state = loads(await self.run.value("state"))
        return state if isinstance(state, dict) else {}


async def only(*events: BaseEvent) -> AsyncGenerator[str, None]:
    """Yield the frames of an answer whose events are all known."""
    for event in events:
        yield as_frame(event)


def as_frame(event: BaseEvent) -> str:
    """Return an event as a frame of the stream."""
    return frame(event.model_dump_json(by_alias=True))
