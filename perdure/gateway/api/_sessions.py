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
from perdure.gateway.api._operations import (
    OBJECT,
    ApiRequest,
    json_response,
    operation,
    page_schema,
    until_stopping,
    wait_response,
)
from perdure.gateway.callers import APPROVE, READ, SEND
from perdure.sessions.wire import Receipt, SessionView, WaitResult

_S: Final = "/v1/sessions/{session}"
_M: Final = _S + "/messages/{message}"


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


@operation("GET", "/v1/sessions", READ, query=Paged, answers={200: page_schema("sessions")})
async def list_sessions(request: ApiRequest[Paged, Paged]) -> Response:
    """List sessions, last used first."""
    query = request.query
    found = await request.gateway.perdure.page_of_sessions(
        tenant=request.caller.tenant, size=query.limit, page=query.page
    )
    return json_response({"sessions": [row.as_json() for row in found.rows], "next": found.following})


@operation("POST", f"{_S}/messages", SEND, body=SessionMessage, answers={202: Receipt})
async def say(request: ApiRequest[SessionMessage]) -> Response:
    """Send a message to a session."""
    body, key = request.body, request.key
    session, id = _session(request, body.agent), body.message_id
    content = {**_content(request), "mode": body.mode, "route": body.route}
    if key is not None:
        id = id or key.message
        session.check_message(body.text, id=id, **content)
        await key.take()
    receipt = await session.send(body.text, id=id, **content)
    return json_response(receipt.as_json(), 202)


@operation("GET", _S, READ, answers={200: SessionView})
async def show_session(request: ApiRequest) -> Response:
    """Show a session."""
    return json_response((await _session(request).show()).as_json())


@operation("GET", f"{_M}/wait", READ, query=WaitsForMessage, answers={200: WaitResult})
async def wait_for_message(request: ApiRequest[Paged, WaitsForMessage]) -> Response:
    """Wait for the end of a message's run."""
    session, message, sender = _session(request), request.named("message"), _of(request)
    return await wait_response(request, lambda timeout: session.wait(message, timeout, sender=sender))


@operation("GET", f"{_M}/reply", READ, query=WaitsForMessage, answers={200: ReplyBody})
async def read_reply(request: ApiRequest[Paged, WaitsForMessage]) -> Response:
    """Wait for the reply to a message."""
    session, message, sender = _session(request), request.named("message"), _of(request)

    async def found() -> list[str | None]:
        return [await session.reply(message, request.query.timeout, sender=sender)]

    answer = await until_stopping(request, found())
    if answer is None:
        raise RunTimeoutError("the gateway is stopping: send the request again")
    return json_response({"reply": answer[0]})


@operation("DELETE", _M, SEND, query=SenderQuery, answers={204: None})
async def withdraw(request: ApiRequest[Paged, SenderQuery]) -> Response:
    """Withdraw a message that no Request contains yet."""
    await _session(request).withdraw(request.named("message"), of=_of(request), **_who(request))
    return Response(status_code=204)


@operation("POST", f"{_S}/decisions", APPROVE, body=SessionDecisionBody, answers={200: OBJECT})
async def decide_in_session(request: ApiRequest[SessionDecisionBody]) -> Response:
    """Decide an approval request of the current run."""
    decision = request.body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"run"})
    who = _who(request) | {"roles": sorted(request.caller.roles)}
    return json_response(await _session(request).decide(decision, run=request.body.run, **who))


@operation("POST", f"{_S}/deliveries", "redeliver", body=Redeliver, answers={202: Redeliver})
async def redeliver(request: ApiRequest[Redeliver]) -> Response:
    """Deliver a reply with the status `unknown` again."""
    await _session(request).redeliver(request.body.delivery, **_who(request))
    return json_response({"delivery": request.body.delivery}, 202)


@operation("GET", f"{_S}/recall", READ, query=RecallQuery, answers={200: OBJECT})
async def recall(request: ApiRequest[Paged, RecallQuery]) -> Response:
    """Read entries in full that the conversation shortens or summarises."""
    return json_response(await _session(request).recall(request.query.what, request.query.page))


@operation("POST", f"{_S}/compact", "compact", answers={200: OBJECT})
async def compact(request: ApiRequest) -> Response:
    """Compact the older part of the conversation."""
    return json_response({"compacted": await _session(request).compact(**_who(request))})


@operation("POST", f"{_S}/fork", SEND, body=ForkForm, answers={201: ForkedSession})
async def fork_session(request: ApiRequest[ForkForm]) -> Response:
    """Begin a session with this one's conversation and results."""
    forked = await _session(request).fork(request.body.at, request.body.session)
    return json_response({"session": forked.key}, 201, {"Location": f"/v1/sessions/{quote(forked.key)}"})


@operation("DELETE", _S, "delete", answers={204: None})
async def delete_session(request: ApiRequest) -> Response:
    """Delete a session and its runs."""
    await _session(request).delete(**_who(request))
    return Response(status_code=204)


SESSIONS: Final = (
    list_sessions,
    say,
    wait_for_message,
    read_reply,
    withdraw,
    decide_in_session,
    redeliver,
    recall,
    compact,
    fork_session,
    delete_session,
    show_session,
)
"""A longer path comes before its prefix, because keys may contain slashes."""
