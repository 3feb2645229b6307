"""The route `/ag-ui/AGENT`: streams of a run, and answers to interrupts."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.client.run_tree import RunTreeReader
from perdure.client.session import Session
from perdure.gateway._keys import Key
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.answers import AnswerStream, Delivery, deliver
from perdure.gateway.bounds import read_json
from perdure.gateway.callers import APPROVE, READ, SEND, Caller, caller_of
from perdure.gateway.errors import HttpError
from perdure.gateway.files import with_stored_files
from perdure.gateway.streams import EventStream
from perdure.values.json import JsonObject

if TYPE_CHECKING:
    from perdure.gateway.agui._requests import AguiRequest


def agui_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter by which each agent answers in AG-UI's threads. Without the library (`pip install perdure[agui]`) it has no routes."""
    if importlib.util.find_spec("ag_ui") is None:
        return Adapter("ag-ui", [])

    trees = RunTreeReader()

    async def answer(request: Request) -> Response:
        from perdure.gateway.agui._requests import read

        caller = caller_of(request)
        agent = gateway.agents.get(request.path_params["agent"])
        body = await with_stored_files(gateway.perdure, await read_json(request), "messages")
        agui_request = read(body)
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
    from perdure.gateway.agui._events import AguiEvents, as_frame

    message, answers = agui_request.message, agui_request.answers
    if message is not None:
        caller.check(SEND, "say something in threads")
    if answers:
        caller.check(APPROVE, "decide what waits for a person")
    if message is None and not answers:
        caller.check(READ, "follow what runs in a thread")
        if (running := await session.run()) is None:
            raise HttpError(409, "nothing runs in this thread: send a message first", kind="nothing-runs")
        delivery = Delivery(running.id)
    else:
        delivery = await deliver(
            session,
            caller,
            lambda id: gateway.own_run(caller, id),
            message=message,
            answers=answers,
            settings=settings,
            key=key,
        )
    if (run_id := delivery.run_id) is None:  # a command
        agui_events = AguiEvents(agui_request)
        return EventStream(
            gateway, caller, only(*map(as_frame, (*agui_events.begin(), agui_events.done()))), retry=False
        )
    agui_events = AguiEvents(agui_request, run_id.rpartition("/")[2], run_id, delivery.before)
    run = gateway.perdure.get_run(run_id)
    following = AnswerStream(run, session, trees, agui_events, as_frame, caller.may(APPROVE), delivery.late)
    return EventStream(gateway, caller, following.frames(), retry=False)


async def only(*frames: str) -> AsyncGenerator[str, None]:
    """Yield the frames of an answer whose events are all known."""
    for each in frames:
        yield each
