"""Sessions over HTTP."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from perdure.client.session import Session
from perdure.errors import RunTimeoutError
from perdure.gateway.api._forms import (
    Fork,
    ForkedSession,
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


def _session(asked: ApiRequest[Any, Any], agent: str | None = None) -> Session:
    return asked.gateway.session(asked.caller, asked.named("session"), agent)


def _who(asked: ApiRequest[Any, Any]) -> dict[str, Any]:
    """Sender and rights are the token's (R10.9)."""
    return {"sender": asked.caller.sender, "rights": sorted(asked.caller.rights)}


def _says(asked: ApiRequest[Any, Any]) -> dict[str, Any]:
    """The context is the token's, too (R19.1)."""
    return {**_who(asked), "context": asked.caller.context}


def _of(asked: ApiRequest[Any, Any]) -> str:
    """Return the sender of the message that the path names: an id belongs to its sender (R10.1)."""
    return str(asked.query.sender or asked.caller.sender)


async def list_sessions(asked: ApiRequest[Paged, Paged]) -> Response:
    query = asked.query
    found = await asked.gateway.perdure.page_of_sessions(tenant=asked.caller.tenant, size=query.limit, page=query.page)
    return answered({"sessions": [row.as_json() for row in found.rows], "next": found.following})


async def say(asked: ApiRequest[SessionMessage]) -> Response:
    body, key = asked.body, asked.key
    session, id = _session(asked, body.agent), body.message_id
    if key is not None:
        await key.take()
        id = id or key.message
    receipt = await session.send(body.text, id=id, mode=body.mode, route=body.route, **_says(asked))
    return answered(receipt.as_json(), 202)


async def show(asked: ApiRequest) -> Response:
    return answered((await _session(asked).show()).as_json())


async def wait(asked: ApiRequest[Paged, WaitsForMessage]) -> Response:
    session, message, sender = _session(asked), asked.named("message"), _of(asked)
    return await waited(asked, lambda timeout: session.wait(message, timeout, sender=sender))


async def reply(asked: ApiRequest[Paged, WaitsForMessage]) -> Response:
    session, message, sender = _session(asked), asked.named("message"), _of(asked)

    async def found() -> list[str | None]:
        return [await session.reply(message, asked.query.timeout, sender=sender)]

    answer = await until_stopping(asked, found())
    if answer is None:
        raise RunTimeoutError("the gateway ends: ask again")
    return answered({"reply": answer[0]})


async def withdraw(asked: ApiRequest[Paged, SenderQuery]) -> Response:
    await _session(asked).withdraw(asked.named("message"), of=_of(asked), **_who(asked))
    return Response(status_code=204)


async def decide(asked: ApiRequest[SessionDecisionBody]) -> Response:
    decision = asked.body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"run"})
    return answered(await _session(asked).decide(decision, run=asked.body.run, **_who(asked)))


async def redeliver(asked: ApiRequest[Redeliver]) -> Response:
    await _session(asked).redeliver(asked.body.delivery, **_who(asked))
    return answered({"delivery": asked.body.delivery}, 202)


async def recall(asked: ApiRequest[Paged, RecallQuery]) -> Response:
    return answered(await _session(asked).recall(asked.query.what, asked.query.page))


async def compact(asked: ApiRequest) -> Response:
    return answered({"compacted": await _session(asked).compact(**_who(asked))})


async def fork(asked: ApiRequest[Fork]) -> Response:
    forked = await _session(asked).fork(asked.body.at, asked.body.session)
    return answered({"session": forked.key}, 201, {"Location": f"/v1/sessions/{quote(forked.key)}"})


async def delete(asked: ApiRequest) -> Response:
    await _session(asked).delete(**_who(asked))
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
        "Say something in a session.",
        say,
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
        "Have what is older told in short.",
        compact,
        "compact",
        answers={200: OBJECT},
    ),
    Operation(
        "forkSession",
        "POST",
        f"{_S}/fork",
        "Begin another session with what was said and done here.",
        fork,
        SEND,
        body=Fork,
        answers={201: ForkedSession},
    ),
    Operation("deleteSession", "DELETE", _S, "Delete a session and its runs.", delete, "delete", answers={204: None}),
    Operation("showSession", "GET", _S, "Show a session as it stands.", show, READ, answers={200: SessionView}),
)
"""What stands for a path with more behind it comes after it: keys may hold slashes."""
