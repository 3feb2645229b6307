"""Events of runs and sessions over HTTP, as server-sent events: each has its cursor as its id, so that who comes back, here or at another
gateway, goes on behind the last that they have read (R10.14)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.responses import Response

from perdure.gateway.api._forms import EventsQuery
from perdure.gateway.api._operations import ApiRequest, Operation
from perdure.gateway.callers import READ
from perdure.gateway.streams import EventStream, frame
from perdure.runs.events import Event
from perdure.values.json import WireModel, dumps


class EventForm(WireModel):
    """The data of each."""

    topic: str
    phase: str
    at: str
    run_id: str
    cursor: str
    data: dict[str, object]


async def of_run(asked: ApiRequest[WireModel, EventsQuery]) -> Response:
    run = await asked.run()
    return _streamed(asked, asked.gateway.perdure.events(run.id, _from(asked), _topics(asked)))


async def of_session(asked: ApiRequest[WireModel, EventsQuery]) -> Response:
    session = asked.gateway.session(asked.caller, asked.named("session"))
    return _streamed(asked, session.events(_from(asked), _topics(asked)))


def _streamed(asked: ApiRequest[WireModel, EventsQuery], events: AsyncGenerator[Event, None]) -> Response:
    async def frames() -> AsyncGenerator[str, None]:
        async with aclosing(events):
            async for event in events:
                yield frame(dumps(event.as_json()), event=event.topic, id=event.cursor)

    return EventStream(asked.gateway, asked.caller, frames())


def _from(asked: ApiRequest[WireModel, EventsQuery]) -> str | None:
    """A browser that comes back sends its position in a header, and requests the same address."""
    return asked.request.headers.get("last-event-id") or asked.query.from_


def _topics(asked: ApiRequest[WireModel, EventsQuery]) -> list[str] | None:
    said = asked.query.topics
    return None if said is None else [topic.strip() for topic in said.split(",") if topic.strip()]


EVENTS: Final = tuple(
    Operation(
        f"follow{what.capitalize()}",
        "GET",
        f"/v1/{what}s/{{{what}}}/events",
        f"Follow what happens in a {what}, as server-sent events.",
        do,
        READ,
        query=EventsQuery,
        answers={200: EventForm},
        media="text/event-stream",
    )
    for what, do in (("run", of_run), ("session", of_session))
)
