"""Sessions over HTTP."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from perdure.client.session import Session
from perdure.errors import RunTimeoutError
from perdure.gateway.api._forms import (
    ForkedSession,
    ForkForm,
    Paged,
    RecallQuery,
    Redeliver,
    ReplyBody,
    SenderQuery,
    SessionDecisionBody,
    SessionMessage,
    WaitsForMessage,
)
from perdure.gateway.api._operations import OBJECT, ApiRequest, Operation, answered, paged, until_stopping, waited
from perdure.gateway.callers import APPROVE, READ, SEND
from perdure.sessions.wire import Receipt, SessionView, WaitResult


def _session(request: ApiRequest[Any, Any], agent: str | None = None) -> Session:
    return request.gateway.session(request.caller, request.named("session"), agent)


def _who(request: ApiRequest[Any, Any]) -> dict[str, Any]:
    """Return the sender and the rights of the token (R10.9)."""
    return {"sender": request.caller.sender, "rights": sorted(request.caller.rights)}


def _content(request: ApiRequest[Any, Any]) -> dict[str, Any]:
    """Return the sender and the context of a message: both are the token's (R19.1)."""
    return {**_who(request), "context": request.caller.context}


def _of(request: ApiRequest[Any, Any]) -> str:
    """Return the sender of the message that the path names: an id belongs to its sender (R10.1)."""
    return str(request.query.sender or request.caller.sender)


async def list_sessions(request: ApiRequest[Paged, Paged]) -> Response:
    query = request.query
    found = await request.gateway.perdure.page_of_sessions(
        tenant=request.caller.tenant, size=query.limit, page=query.page
    )
    return answered({"sessions": [row.as_json() for row in found.rows], "next": found.following})


async def send_message(request: ApiRequest[SessionMessage]) -> Response:
    body, key = request.body, request.key
    session, id = _session(request, body.agent), body.message_id
    if key is not None:
        await key.take()
        id = id or key.message
    receipt = await session.send(body.text, id=id, mode=body.mode, route=body.route, **_content(request))
    return answered(receipt.as_json(), 202)


async def show(request: ApiRequest) -> Response:
    return answered((await _session(request).show()).as_json())


async def wait(request: ApiRequest[Paged, WaitsForMessage]) -> Response:
    session, message, sender = _session(request), request.named("message"), _of(request)
    return await waited(request, lambda timeout: session.wait(message, timeout, sender=sender))


async def reply(request: ApiRequest[Paged, WaitsForMessage]) -> Response:
    session, message, sender = _session(request), request.named("message"), _of(request)

    async def found() -> list[str | None]:
        return [await session.reply(message, request.query.timeout, sender=sender)]

    answer = await until_stopping(request, found())
    if answer is None:
        raise RunTimeoutError("the gateway ends: ask again")
    return answered({"reply": answer[0]})


async def withdraw(request: ApiRequest[Paged, SenderQuery]) -> Response:
    await _session(request).withdraw(request.named("message"), of=_of(request), **_who(request))
    return Response(status_code=204)


async def decide(request: ApiRequest[SessionDecisionBody]) -> Response:
    decision = request.body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"run"})
    who = _who(request) | {"roles": sorted(request.caller.roles)}
    return answered(await _session(request).decide(decision, run=request.body.run, **who))


async def redeliver(request: ApiRequest[Redeliver]) -> Response:
    await _session(request).redeliver(request.body.delivery, **_who(request))
    return answered({"delivery": request.body.delivery}, 202)


async def recall(request: ApiRequest[Paged, RecallQuery]) -> Response:
    return answered(await _session(request).recall(request.query.what, request.query.page))


async def compact(request: ApiRequest) -> Response:
    return answered({"compacted": await _session(request).compact(**_who(request))})


async def fork(request: ApiRequest[ForkForm]) -> Response:
    forked = await _session(request).fork(request.body.at, request.body.session)
    return answered({"session": forked.key}, 201, {"Location": f"/v1/sessions/{quote(forked.key)}"})


async def delete(request: ApiRequest) -> Response:
    await _session(request).delete(**_who(request))
    return Response(status_code=204)


_S: Final = "/v1/sessions/{session}"
_M: Final = _S + "/messages/{message}"
SESSIONS: Final = (
    Operation(
        "listSessions",
        "GET",
        "/v1/sessions",
        "List sessions, the last that did something first.",
        list_sessions,
        READ,
        query=Paged,
        answers={200: paged("sessions")},
    ),
    Operation(
        "say",
        "POST",
        f"{_S}/messages",
        "Send a message to a session.",
        send_message,
        SEND,
        body=SessionMessage,
        answers={202: Receipt},
    ),
    Operation(
        "waitForMessage",
        "GET",
        f"{_M}/wait",
        "Wait for the end of the run that takes a message.",
        wait,
        READ,
        query=WaitsForMessage,
        answers={200: WaitResult},
    ),
    Operation(
        "readReply",
        "GET",
        f"{_M}/reply",
        "Wait for the text that answers a message.",
        reply,
        READ,
        query=WaitsForMessage,
        answers={200: ReplyBody},
    ),
    Operation(
        "withdraw",
        "DELETE",
        _M,
        "Take a message back, until a Request holds it.",
        withdraw,
        SEND,
        query=SenderQuery,
        answers={204: None},
    ),
    Operation(
        "decideInSession",
        "POST",
        f"{_S}/decisions",
        "Decide what waits in the run under way.",
        decide,
        APPROVE,
        body=SessionDecisionBody,
        answers={200: OBJECT},
    ),
    Operation(
        "redeliver",
        "POST",
        f"{_S}/deliveries",
        "Deliver a reply once more of which nobody knows whether it arrived.",
        redeliver,
        "redeliver",
        body=Redeliver,
        answers={202: Redeliver},
    ),
    Operation(
        "recall",
        "GET",
        f"{_S}/recall",
        "Read again what a conversation shows cut, or in short.",
        recall,
        READ,
        query=RecallQuery,
        answers={200: OBJECT},
    ),
    Operation(
        "compact",
        "POST",
        f"{_S}/compact",
        "Compact the older part of the conversation.",
        compact,
        "compact",
        answers={200: OBJECT},
    ),
    Operation(
        "forkSession",
        "POST",
        f"{_S}/fork",
        "Begin another session with the conversation and the results of this one.",
        fork,
        SEND,
        body=ForkForm,
        answers={201: ForkedSession},
    ),
    Operation("deleteSession", "DELETE", _S, "Delete a session and its runs.", delete, "delete", answers={204: None}),
    Operation("showSession", "GET", _S, "Show a session as it stands.", show, READ, answers={200: SessionView}),
)
"""A longer path comes before its prefix, because keys may contain slashes."""
