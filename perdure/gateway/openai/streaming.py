"""A response's events as they go over the wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from perdure.gateway.openai.answers import Found, empty_response, response_object
from perdure.gateway.openai.completions import Chunks, completion_object
from perdure.gateway.openai.documents import Record
from perdure.gateway.openai.errors import after_start, error_body
from perdure.gateway.openai.following import Finder
from perdure.gateway.openai.ids import ResponseId
from perdure.gateway.openai.telling import Telling
from perdure.gateway.streams import frame
from perdure.run.events.kinds import Event
from perdure.values.jsons import JsonObject, dumps

DONE = frame("[DONE]")


async def response_frames(
    finder: Finder, tenant: str, id: ResponseId, record: Record | None, after: int = -1
) -> AsyncGenerator[str, None]:
    """The events of a response, behind number `after`, until it has ended."""
    telling, number = Telling(id, after), after
    try:
        async with aclosing(_events(finder, tenant, id, record, telling)) as events:
            async for event, _ in events:
                number = event["sequence_number"]
                yield frame(dumps(event), event=event["type"])
    except Exception as error:
        body = error_body(after_start(error, id))
        said = {key: body[key] for key in ("message", "param", "code")}
        yield frame(dumps({"type": "error", "sequence_number": number + 1, **said, "error": body}), event="error")
    yield DONE


async def chunk_frames(
    finder: Finder, tenant: str, id: ResponseId, record: Record, *, with_usage: bool
) -> AsyncGenerator[str, None]:
    """The chunks of a chat completion, until it has ended."""
    chunks = Chunks(id, record.created, record.agent, with_usage=with_usage)
    last: Found | None = None
    yield frame(dumps(chunks.begin()))
    try:
        async with aclosing(_events(finder, tenant, id, record, Telling(id))) as events:
            async for event, found in events:
                last = found
                for chunk in chunks.take(event):
                    yield frame(dumps(chunk))
        if last is not None:
            for chunk in chunks.end(completion_object(id, last)):
                yield frame(dumps(chunk))
    except Exception as error:
        yield frame(dumps({"error": error_body(after_start(error, id.completion))}))
    yield DONE


async def _events(
    finder: Finder, tenant: str, id: ResponseId, record: Record | None, telling: Telling
) -> AsyncGenerator[tuple[JsonObject, Found | None], None]:
    """Each with the run as it was found then; those before it was looked at with none."""
    if record is not None:
        for event in telling.begin(empty_response(id, record, id.run_id(tenant), "in_progress")):
            yield event, None
    found = await finder.begun(tenant, id)
    if record is None:
        for event in telling.begin(empty_response(id, found.record, id.run_id(tenant), "in_progress")):
            yield event, found
    before = found.last_request(id.leg - 1) if id.leg > 1 else 0
    async with aclosing(finder.watch(tenant, id, found, text=True)) as happened:
        async for happening in happened:
            for event in _told_of(happening, telling, before, found.record):
                yield event, found
    found = await finder.ended(tenant, id)
    for event in telling.end(response_object(id, found)):
        yield event, found


def _told_of(happening: Event, telling: Telling, before: int, record: Record) -> Iterator[JsonObject]:
    """What of an event of the run is one of the response. `before`: the last Request that counts for the response before it."""
    topic, phase, data = happening.topic, happening.phase, happening.data
    if topic == "request" and phase == "end":
        telling.answered(int(data["number"]), int(data.get("attempt") or 1))
    elif topic == "assistant" and phase == "delta" and not record.formatted and data["request"] > before:
        yield from telling.write(int(data["request"]), int(data["attempt"]), int(data["start"]), str(data["text"]))
    elif topic == "assistant" and (phase == "superseded" or (phase == "end" and not data.get("accepted"))):
        yield from telling.drop()
