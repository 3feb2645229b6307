"""Events of runs and sessions over HTTP, as server-sent events: each has its cursor as its id, so that a reconnected client,
here or at another gateway, continues after its last event (R10.14)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.responses import Response

from perdure.gateway.api._forms import EventsQuery
from perdure.gateway.api._operations import ApiRequest, operation
from perdure.gateway.callers import READ
from perdure.gateway.streams import EventStream, encode_event
from perdure.runs.events import Event
from perdure.values.json import Json, WireModel, dumps


class EventForm(WireModel):
    """The data of each."""

    topic: str
    phase: str
    at: str
    run_id: str
    cursor: str
    data: dict[str, object]


@operation("GET", "/v1/runs/{run}/events", READ, query=EventsQuery, answers={200: EventForm}, media="text/event-stream")
async def follow_run(request: ApiRequest[WireModel, EventsQuery]) -> Response:
    """Follow what happens in a run, as server-sent events."""
    run = await request.run()
    return _streamed(request, request.gateway.perdure.events(run.id, _from(request), _topics(request)))


@operation(
    "GET", "/v1/sessions/{session}/events", READ, query=EventsQuery, answers={200: EventForm}, media="text/event-stream"
)
async def follow_session(request: ApiRequest[WireModel, EventsQuery]) -> Response:
    """Follow what happens in a session, as server-sent events."""
    session = request.gateway.session(request.caller, request.named("session"))
    return _streamed(request, session.events(_from(request), _topics(request)))


class PartialOutputForm(WireModel):
    """The data of each."""

    output: object
    whole: bool
    """Whether it is the run's output, with which the stream ends."""


@operation("GET", "/v1/runs/{run}/partial-output", READ, answers={200: PartialOutputForm}, media="text/event-stream")
async def follow_output(request: ApiRequest) -> Response:
    """Stream a run's output while the model writes it, as server-sent events."""
    run = await request.run()

    def framed(output: Json, *, whole: bool) -> str:
        return encode_event(dumps({"output": output, "whole": whole}), event="output")

    async def frames() -> AsyncGenerator[str, None]:
        last: Json = None
        async with aclosing(run.partial_output()) as outputs:
            async for last in outputs:
                yield framed(last, whole=False)
        yield framed(last, whole=True)

    return EventStream(request.gateway, request.caller, frames())


def _streamed(request: ApiRequest[WireModel, EventsQuery], events: AsyncGenerator[Event, None]) -> Response:
    async def frames() -> AsyncGenerator[str, None]:
        async with aclosing(events):
            async for event in events:
                yield encode_event(dumps(event.as_json()), event=event.topic, id=event.cursor)

    return EventStream(request.gateway, request.caller, frames())


def _from(request: ApiRequest[WireModel, EventsQuery]) -> str | None:
    """Return the cursor of the header, else of the query. A browser that reconnects sends its position in a header."""
    return request.request.headers.get("last-event-id") or request.query.from_


def _topics(request: ApiRequest[WireModel, EventsQuery]) -> list[str] | None:
    topics = request.query.topics
    return None if topics is None else [topic.strip() for topic in topics.split(",") if topic.strip()]


EVENTS: Final = (follow_run, follow_session, follow_output)
