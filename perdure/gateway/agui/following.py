"""A run's events and state as they come, until it ends or waits for a person."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from ag_ui.core import BaseEvent, RunErrorEvent

from perdure.client.run import Run
from perdure.client.session import Session
from perdure.errors import RunNotFoundError
from perdure.gateway.agui.interrupts import pauses
from perdure.gateway.agui.telling import Telling
from perdure.gateway.problems import HttpError, problem_of
from perdure.gateway.streams import frame
from perdure.run.events.kinds import Event
from perdure.run.wire import RunView
from perdure.values.jsons import JsonObject, loads

_TOPICS: Final = ("lifecycle", "request", "assistant", "reasoning", "tool", "approval")
_CHANGES: Final = {("lifecycle", "snapshot"), ("tool", "end"), ("approval", "start"), ("approval", "end")}
"""After which a run is looked at, once it is quiet."""
_WAITS: Final = {("approval", "start"): 1, ("approval", "end"): -1}
_QUIET: Final = (0.1, 2.0)
"""Seconds without an event: the first, and the longest."""
_PAUSES: Final = (0.02, 1.0)
_log: Final = logging.getLogger("perdure.gateway")


@dataclass(frozen=True, slots=True)
class Following:
    """What is followed, and how it is told."""

    run: Run[object]
    session: Session
    telling: Telling
    approves: bool
    """Whether whoever asked may decide: then what waits for a person ends the answer, which else goes on."""
    late: list[str]
    """Interrupts that did not wait any more when they were answered."""

    async def frames(self) -> AsyncGenerator[str, None]:
        """The answer, as it goes over the wire."""
        yield as_frame(self.telling.begin())
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    yield as_frame(event)
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                _log.error("a stream broke down", exc_info=error)
                problem = HttpError(500, "the gateway could not go on with this; its log says why")
            yield as_frame(RunErrorEvent(message=problem.detail, code=problem.kind))

    async def _events(self) -> AsyncGenerator[BaseEvent, None]:
        view = await self._begun()
        for told in (*self.telling.state(await self._state(view)), *self.telling.not_counted(self.late)):
            yield told
        changed, waits = True, 0
        async with aclosing(_or_quiet(self.run.events(topics=_TOPICS))) as events:
            async for event in events:
                if event is not None:
                    for told in self.telling.take(event):
                        yield told
                    changed = changed or (event.topic, event.phase) in _CHANGES
                    waits += _WAITS.get((event.topic, event.phase), 0)
                elif changed or waits > 0:
                    changed, view = False, await self.run.view()
                    for told in self.telling.state(await self._state(view)):
                        yield told
                    if self.approves and pauses(view):
                        for told in self.telling.interrupt(await self.run.waiting()):
                            yield told
                        return
        view = await self.run.wait()
        for told in self.telling.state(await self._state(view)):
            yield told
        output = loads(await self.run.value("output")) if view.output_size else view.output
        for told in self.telling.end(view, output):
            yield told

    async def _begun(self) -> RunView:
        """The run, once it has begun. Raises `HttpError` (409) where its message was taken back before that."""
        pause, was_promised = _PAUSES[0], True
        while True:
            try:
                return await self.run.view()
            except RunNotFoundError:
                if not was_promised:
                    raise HttpError(409, "the message was withdrawn before a run took it", kind="withdrawn") from None
            shown = await self.session.show()
            was_promised = self.run.id in (shown.run_id, *(queued.run_id for queued in shown.queue))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    async def _state(self, view: RunView) -> JsonObject:
        """Whole, also where the view has cut it."""
        if not any(line.startswith("state") for line in view.cut):
            return view.state
        state = loads(await self.run.value("state"))
        return state if isinstance(state, dict) else {}


async def only(*events: BaseEvent) -> AsyncGenerator[str, None]:
    """An answer of which all is known."""
    for event in events:
        yield as_frame(event)


def as_frame(event: BaseEvent) -> str:
    """An event as it goes over the wire."""
    return frame(event.model_dump_json(by_alias=True))


async def _or_quiet(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event | None, None]:
    """The events, and `None` whenever none came for a while."""
    coming: asyncio.Future[Event] | None = None
    pause = _QUIET[0]
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            await asyncio.wait([coming], timeout=pause)
            if not coming.done():
                yield None
                pause = min(2 * pause, _QUIET[1])
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            coming, pause = None, _QUIET[0]
            yield event
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await events.aclose()
