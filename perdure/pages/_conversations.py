"""Conversations: a tenant's sessions, and the live page of one session."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.selection import WaitingRequest
from perdure.client.session import Session
from perdure.client.session_operations import first_line
from perdure.errors import JsonError, PerdureError, RunNotFoundError
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import Caller, caller_of, permitted_caller
from perdure.gateway.errors import HttpError
from perdure.gateway.streams import NO_PAUSE, EventStream, encode_event, with_pauses
from perdure.pages._decision_forms import Find, FormError, decide, fields_of
from perdure.pages._markdown import prepare_answers
from perdure.pages._site import Site, path
from perdure.runs.event_stream import EventAdapter
from perdure.runs.events import Event
from perdure.sessions.wire import Acceptance, SessionView, digest
from perdure.values.json import JsonObject
from perdure.values.messages import MODES, Mode

MODE_WORDS: Final[Mapping[Mode, str]] = {
    "steer": "add to the current work",
    "followup": "answer after the current run",
    "collect": "answer with the other waiting messages",
    "interrupt": "stop the current run",
    "reject": "do not send",
}
"""The effect of a message while the agent works, by its mode (R10.4)."""
CALLS: Final = 30
"""The most calls of a run that are shown while it works: the newest ones."""
AGAIN: Final = (1.0, 1.0)
"""Pause in seconds after a failed query of the approval requests: the first, and the longest."""
BELOW: Final = (1.0, 8.0)
"""The pause between queries while calls run: no event reports an approval request in a delegate's run."""
_ENTRIES: Final = ("lifecycle", "message", "reply", "compaction")
"""Topics of events that may add an entry to the transcript."""


RESET: Final = "This conversation was reset: reload the page to see its valid entries."


class ConversationParts(EventAdapter[tuple[str, str], None]):
    """The parts of a page that events change, each with the name that the page listens to."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._calls: dict[str, JsonObject] = {}

    @property
    def has_running(self) -> bool:
        """Whether a call of the run has begun and not ended."""
        return any(call["phase"] != "end" for call in self._calls.values())

    def on_lifecycle(self, event: Event) -> Iterator[tuple[str, str]]:
        if event.run_id:
            self._calls.clear()
            yield self._answer()
            yield self._running()
        elif event.phase == "reset":
            yield RESET, "reset"

    def on_assistant(self, event: Event) -> Iterator[tuple[str, str]]:
        if event.phase == "delta":
            yield str(escape(event.data["text"])), "delta"
        elif event.phase == "superseded" or not event.data.get("accepted", True):
            yield self._answer()

    def on_tool(self, event: Event) -> Iterator[tuple[str, str]]:
        self._calls[str(event.data.get("call"))] = {**event.data, "phase": event.phase}
        while len(self._calls) > CALLS:
            del self._calls[next(iter(self._calls))]
        yield self._running()

    def _answer(self) -> tuple[str, str]:
        return self._site.part("answer.html"), "answer"

    def _running(self) -> tuple[str, str]:
        return self._site.part("calls.html", calls=list(self._calls.values())), "calls"


class ConversationFrames:
    """The frames of a page's event stream, with the names that the page's parts listen to:

    `entry` is appended to the transcript, `delta` to the answer being written; `answer`, `calls`, `waiting` and
    `status` replace their part.
    """

    def __init__(self, session: Session, site: Site, caller: Caller, csrf: str) -> None:
        self._session = session
        self._site = site
        self._caller = caller
        self._csrf = csrf
        self._parts = ConversationParts(site)
        self._shown = ""
        self._unsure = False
        """Whether the last query of the approval requests has failed."""

    async def requests(self, view: SessionView) -> list[WaitingRequest]:
        """Return the approval requests of the active run; none if the query fails, e.g. because the run has just ended."""
        try:
            return await self._requests(view)
        except PerdureError:
            self._unsure = True
            return []

    async def _requests(self, view: SessionView) -> list[WaitingRequest]:
        return await self._session.waiting_below(view)

    async def frames(self, after: int, shown: str, cursor: str | None) -> AsyncGenerator[str, None]:
        """Yield the new parts: entries after `after`, approval requests other than `shown` (of `requests_digest`), and
        parts of events after `cursor`.

        Without a cursor, start with the first event of the active run.
        """
        view = await self._session.show()
        await prepare_answers(answers_of(view))
        self._shown = shown
        for part, name in await self._waiting():
            yield encode_event(part, event=name)
        for part in self._entries(view, after):
            yield part
        after, skipped = max(after, last_entry(view)), None if cursor is not None else view.run_id
        events = self._session.events(from_=cursor or ("now" if view.run_id is None else None))
        async for event in with_pauses(events, self._pauses):
            if event is None:
                for part, name in await self._waiting():
                    yield encode_event(part, event=name)
                continue
            if skipped is not None and event.run_id != skipped:
                continue
            skipped = None
            goes_back = event.phase == "reset" and not event.run_id
            changes_requests = event.topic == "approval" or (event.topic == "lifecycle" and (event.run_id or goes_back))
            for part, name in [*self._parts.fold(event), *(await self._waiting() if changes_requests else ())]:
                yield encode_event(part, event=name, id=event.cursor)
            if event.topic in _ENTRIES:
                view = await self._session.show()
                await prepare_answers(answers_of(view))
                after = min(after, last_entry(view)) if goes_back else after
                for part in self._entries(view, after):
                    yield part
                after = max(after, last_entry(view))
                yield encode_event(self._site.part("status.html", view=view), event="status", id=event.cursor)

    def _pauses(self) -> tuple[float, float]:
        return AGAIN if self._unsure else BELOW if self._parts.has_running else NO_PAUSE

    def _entries(self, view: SessionView, after: int) -> list[str]:
        return [
            encode_event(self._site.part("entry.html", entry=entry, me=self._caller.sender), event="entry")
            for entry in view.entries
            if int(entry.get("n", 0)) > after
        ]

    async def _waiting(self) -> list[tuple[str, str]]:
        """Return the approval requests, if they differ from those on the page: somebody may be typing in their forms."""
        try:
            requests = await self._requests(await self._session.show())
            self._unsure = False
        except PerdureError:  # no worker answers now
            self._unsure = True
            return []
        if requests_digest(requests) == self._shown:
            return []
        self._shown = requests_digest(requests)
        given = {
            "key": self._session.key,
            "csrf": self._csrf,
            "caller": self._caller,
            "fields_of": fields_of,
            "typed": {},
        }
        return [(self._site.part("waiting_requests.html", requests=requests, **given), "waiting")]


def answers_of(view: SessionView) -> list[str]:
    """Return the Markdown texts of a conversation."""
    return [str(entry["text"]) for entry in view.entries if entry.get("type") == "reply" and entry.get("text")]


def title_of(view: SessionView) -> str:
    """Return the first line of a view's first message; empty if it has none."""
    texts = (str(entry["text"]) for entry in view.entries if entry.get("type") == "message")
    return first_line(next(texts, ""))


def last_entry(view: SessionView) -> int:
    """Return the number of a view's newest entry; 0 if it has none."""
    return int(view.entries[-1].get("n", 0)) if view.entries else 0


def requests_digest(requests: list[WaitingRequest]) -> str:
    """Return a digest of the approval requests, which changes when they change."""
    return digest([[each.run_id, each.request.call, each.request.digest] for each in requests])


RECEIPTS: Final[Mapping[Acceptance, str]] = {
    "started": "Sent: the agent works on the message",
    "steered": "Sent: the agent adds the message to its current work",
    "queued": "Sent: the agent answers after its current run",
    "collected": "Sent: the agent answers with the other waiting messages",
    "interrupted": "Sent: the agent stopped its run and answers the message",
    "stopped": "Stopped",
    "new": "A new conversation has begun with the same state",
    "reset": "A new conversation has begun with the state of the agent's file",
}
"""The outcome of a message, by its receipt."""
LISTED: Final = 100
"""Conversations on the page."""


class Conversations:
    """The pages below `/conversations`."""

    def __init__(self, gateway: Gateway, site: Site, find: Find) -> None:
        self._gateway = gateway
        self._site = site
        self._find = find

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/conversations", self._list),
            Route("/conversations", self._begin, methods=["POST"]),
            Route("/conversations/{key:path}", self._show),
            Route("/conversations/{key:path}", self._send, methods=["POST"]),
            Route("/decide/{key:path}", self._decide, methods=["POST"]),
            Route("/live/conversations/{key:path}", self._live),
        ]

    async def _list(self, request: Request) -> Response:
        caller = permitted_caller(request, "read", "read conversations")
        page = request.query_params.get("page") or None
        found = await self._gateway.perdure.page_of_sessions(tenant=caller.tenant, size=LISTED, page=page)
        return self._site.page(
            request,
            "conversations.html",
            sessions=found.rows,
            more=urlencode({"page": found.following}) if found.following else "",
            agents=self._gateway.agents.names(),
            message_id=uuid.uuid4().hex,
            tenants=await self._site.tenants(request, self._gateway.perdure),
        )

    async def _begin(self, request: Request) -> Response:
        """Send a first message, to a new or an existing key. A form that is sent again has no effect: its id names both."""
        caller = permitted_caller(request, "send", "begin conversations")
        form, files = await self._site.form_with_files(request)
        id = form.get("id") or uuid.uuid4().hex
        key = form.get("key", "").strip() or f"{form.get('agent', '')}-{id[:8]}"
        session = self._gateway.session(caller, key, form.get("agent", ""))
        who: Any = {"sender": caller.sender, "rights": caller.rights, "context": caller.context}
        await session.send(form.get("text", ""), id=id, files=files, **who)
        return self._site.go_to(request, f"/conversations/{path(key)}")

    async def _show(self, request: Request, **more: Any) -> Response:
        caller = permitted_caller(request, "read", "read conversations")
        session = self._session(caller, request)
        view = await session.show()
        talk = ConversationFrames(session, self._site, caller, self._site.csrf(request))
        requests = await talk.requests(view)
        await prepare_answers(answers_of(view))
        return self._site.page(
            request,
            "conversation.html",
            **{
                "key": session.key,
                "title": title_of(view) or session.key,
                "view": view,
                "last": last_entry(view),
                "requests": requests,
                "modes": MODE_WORDS,
                "notice": self._site.notice_of(request),
                "live": urlencode({"after": last_entry(view), "shown": requests_digest(requests)}),
                "message_id": uuid.uuid4().hex,
                "typed": {},
                "problem": "",
                "fields_of": fields_of,
                **more,
            },
        )

    async def _live(self, request: Request) -> Response:
        """Stream events as parts of the page."""
        caller = permitted_caller(request, "read", "read conversations")
        session = self._session(caller, request)
        await session.show()  # raises if the tenant has no such session
        after = request.query_params.get("after", "")
        if not after.isdecimal() or len(after) > 12:
            raise HttpError(400, "after must be the number of the last entry that the page shows")
        talk = ConversationFrames(session, self._site, caller, self._site.csrf(request))
        frames: AsyncGenerator[str, None] = talk.frames(
            int(after), request.query_params.get("shown", ""), request.headers.get("last-event-id")
        )
        return self._site.guards.finish(request, EventStream(self._gateway, caller, frames))

    async def _send(self, request: Request) -> Response:
        caller = permitted_caller(request, "send", "say something")
        form, files = await self._site.form_with_files(request)
        session = self._session(caller, request)
        mode: Any = form.get("mode") or None
        if mode is not None and mode not in MODES:
            raise HttpError(422, f"mode must be one of {', '.join(MODES)}")
        command = form.get("command")
        text, files = (command, []) if command else (form.get("text", ""), files)
        try:
            who: Any = {"sender": caller.sender, "rights": caller.rights, "context": caller.context}
            receipt = await session.send(text, id=form.get("id") or None, mode=mode, files=files, **who)
        except RunNotFoundError:
            raise
        except PerdureError as error:
            return await self._refused(request, str(error), form)
        notice = RECEIPTS[receipt.done] + (f": {receipt.why}" if receipt.why else "")
        if request.headers.get("hx-request"):
            return self._composer(request, session.key, notice=notice)
        return self._site.go_to(
            request, f"/conversations/{path(session.key)}?{self._site.notice_query(request, notice)}#end"
        )

    async def _refused(self, request: Request, problem: str, form: dict[str, str]) -> Response:
        if request.headers.get("hx-request"):
            return self._composer(request, self._key(request), typed=form, problem=problem, message_id=form.get("id"))
        return await self._show(request, typed=form, problem=problem)

    def _composer(self, request: Request, key: str, **more: Any) -> Response:
        given = {"typed": {}, "problem": "", "notice": "", "message_id": None} | more
        given["message_id"] = given["message_id"] or uuid.uuid4().hex
        caller = caller_of(request)
        csrf = self._site.csrf(request)
        return self._site.fragment(
            request, "composer.html", key=key, modes=MODE_WORDS, csrf=csrf, caller=caller, **given
        )

    async def _decide(self, request: Request) -> Response:
        caller = permitted_caller(request, "approve", "decide approval requests")
        form = await self._site.form(request)
        key = self._key(request)
        try:
            run = await self._find(caller, form.get("run", ""))
            notice = await decide(run, form, caller=caller)
        except (PerdureError, FormError, JsonError) as error:
            if request.headers.get("hx-request"):
                raise HttpError(422, str(error)) from None
            return await self._show(request, problem=str(error))
        if request.headers.get("hx-request"):
            return self._site.fragment(request, "notice.html", notice=notice)
        return self._site.go_to(request, f"/conversations/{path(key)}?{self._site.notice_query(request, notice)}#end")

    def _key(self, request: Request) -> str:
        return str(request.path_params["key"])

    def _session(self, caller: Caller, request: Request) -> Session:
        return self._gateway.session(caller, self._key(request))
