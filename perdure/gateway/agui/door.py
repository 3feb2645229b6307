"""The door's one address, `/ag-ui/AGENT`."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.gateway.bounds import read_json
from perdure.gateway.callers import APPROVE, READ, SEND, Caller, caller_of
from perdure.gateway.door import Door, Gateway
from perdure.gateway.keys import Key
from perdure.gateway.problems import HttpError
from perdure.gateway.streams import EventStream
from perdure.sessions.wire import session_id

if TYPE_CHECKING:
    from perdure.client.session import Session
    from perdure.gateway.agui.reading import Asked
    from perdure.values.jsons import JsonObject
    from perdure.values.rules import Mode


def agui_door(gateway: Gateway) -> Door:
    """Each agent answers in AG-UI's threads. Without the library (`pip install perdure[agui]`) there is no such door."""
    if importlib.util.find_spec("ag_ui") is None:
        return Door("ag-ui", [])

    async def answer(request: Request) -> Response:
        from perdure.gateway.agui.reading import read

        caller = caller_of(request)
        agent = gateway.agents.get(request.path_params["agent"])
        asked = read(body := await read_json(request))
        key = Key.of(gateway, request, caller, body)
        session = gateway.perdure.session(asked.thread, tenant=caller.tenant, agent=agent)
        settings = asked.settings(agent.document(), gateway.client_source(caller, agent))
        return await _answer(gateway, caller, session, asked, settings, key)

    return Door("ag-ui", [Route("/ag-ui/{agent}", answer, methods=["POST"])])


async def _answer(
    gateway: Gateway, caller: Caller, session: Session, asked: Asked, settings: JsonObject, key: Key | None
) -> Response:
    """Say and decide what is asked for, and then tell what comes of it: what is refused is a status, before anything is told."""
    from perdure.gateway.agui.deciding import decide
    from perdure.gateway.agui.following import Following, only
    from perdure.gateway.agui.telling import Telling

    run_id: str | None = None
    late: list[str] = []
    before = 0
    if asked.message is not None:
        caller.check(SEND, "say something in threads")
    if asked.answers:
        caller.check(APPROVE, "decide what waits for a person")
    if key is not None and (asked.message is not None or asked.answers):
        await key.take()
    if asked.answers:
        run_id = f"{session_id(caller.tenant, asked.thread)}/{asked.answers[0].run}"
        found = await gateway.own_run(caller, run_id)
        view = await found.view()
        late = await decide(found, view, asked.answers, caller.sender)
        before = max((each.number for each in view.log), default=0)
    if asked.message is not None:
        id, text = asked.message
        mode: Mode | None = "steer" if asked.answers else None
        receipt = await session.send(
            text, sender=caller.sender, rights=caller.rights, id=id, mode=mode, settings=settings
        )
        before = before if receipt.run_id in (run_id, None) else 0
        run_id = receipt.run_id or run_id
    elif not asked.answers:
        caller.check(READ, "follow what runs in a thread")
        if (running := await session.run()) is None:
            raise HttpError(409, "nothing runs in this thread: say something in it", kind="nothing-runs")
        run_id = running.id
    if run_id is None:  # a command
        telling = Telling(asked)
        return EventStream(gateway, caller, only(telling.begin(), telling.done()), retry=False)
    telling = Telling(asked, run_id.rpartition("/")[2], run_id, before)
    run = gateway.perdure.get_run(run_id)
    following = Following(run, session, telling, caller.may(APPROVE), late)
    return EventStream(gateway, caller, following.frames(), retry=False)
