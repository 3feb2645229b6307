"""The route `/ag-ui/AGENT`: streams of a run, and answers to interrupts."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.client.run_tree import RunTreeReader
from perdure.client.session import Session
from perdure.gateway._idempotency import RequestKey
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.answers import AnswerStream, Delivery, answers_of_results, deliver
from perdure.gateway.bounds import read_json
from perdure.gateway.callers import APPROVE, READ, SEND, Caller, caller_of
from perdure.gateway.client_tools import MOST_TOOLS
from perdure.gateway.errors import HttpError
from perdure.gateway.files import with_stored_files
from perdure.gateway.streams import EventStream, yield_frames
from perdure.values.json import JsonObject

if TYPE_CHECKING:
    from perdure.gateway.agui._requests import AguiRequest


def agui_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter for AG-UI's threads. Without the library (`pip install perdure[agui]`) it has no routes."""
    if importlib.util.find_spec("ag_ui") is None:
        return Adapter("ag-ui", [])

    trees = RunTreeReader()

    async def answer(request: Request) -> Response:
        from perdure.gateway.agui._requests import read

        caller = caller_of(request)
        agent = gateway.agents.get(request.path_params["agent"])
        body = await with_stored_files(gateway.perdure, await read_json(request), "messages", caller.tenant)
        agui_request = read(body)
        key = RequestKey.of(gateway, request, caller, body)
        session = gateway.perdure.session(agui_request.thread, tenant=caller.tenant, agent=agent)
        if agui_request.answers:
            caller.check(APPROVE, "decide approval requests")
        agui_request, run_id = await _with_results(gateway, caller, session, agui_request)
        settings = agui_request.settings((session.agent or agent).document(), gateway.client_source(caller, agent))
        return await _answer(gateway, trees, caller, session, agui_request, run_id, settings, key)

    return Adapter("ag-ui", [Route("/ag-ui/{agent}", answer, methods=["POST"])])


async def _with_results(
    gateway: Gateway, caller: Caller, session: Session, agui_request: AguiRequest
) -> tuple[AguiRequest, str | None]:
    """Return the request, with the results of waiting calls as answers, and the id of the run that it follows.

    `None`: the request names no run. Raises `HttpError` (403).
    """
    results = agui_request.results
    if agui_request.answers:  # all answers are for one run
        results = [each for each in results if each.run == agui_request.answers[0].run]
    if not results:
        return agui_request, None
    caller.check(SEND, "send the results of a page's tools")
    answers, run_id = await answers_of_results(lambda id: gateway.own_run(caller, id), session, results[-MOST_TOOLS:])
    if run_id is None:
        return agui_request, None
    answers = [each for each in answers if each.run == answers[-1].run]
    message = None if agui_request.ends_with_results else agui_request.message
    return replace(agui_request, message=message, answers=[*agui_request.answers, *answers]), run_id


async def _answer(
    gateway: Gateway,
    trees: RunTreeReader,
    caller: Caller,
    session: Session,
    agui_request: AguiRequest,
    run_id: str | None,
    settings: JsonObject,
    key: RequestKey | None,
) -> Response:
    """Send messages and decisions, then stream the answer. An error sets the status, before the stream begins.

    `run_id`: the run that a request without messages and decisions follows; `None`: the active run.
    """
    from perdure.gateway.agui._events import AguiEvents, as_frame

    message, answers = agui_request.message, agui_request.answers
    if message is not None:
        caller.check(SEND, "send messages to threads")
    if message is None and not answers:
        if run_id is None:
            caller.check(READ, "watch a thread's run")
            if (running := await session.run()) is None:
                raise HttpError(409, "this thread has no active run: send a message first", kind="nothing-runs")
            run_id = running.id
        delivery = Delivery(run_id)
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
            gateway, caller, yield_frames(*map(as_frame, (*agui_events.begin(), agui_events.done()))), retry=False
        )
    agui_events = AguiEvents(agui_request, run_id.rpartition("/")[2], run_id, delivery.before)
    run = gateway.perdure.get_run(run_id)
    may_decide = caller.may(APPROVE)
    following = AnswerStream(run, session, trees, agui_events, as_frame, may_decide, delivery.late, delivery.receipt)
    return EventStream(gateway, caller, following.frames(), retry=False, problem=following.problem)
