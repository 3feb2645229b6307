"""One conversation for one page that is open: what happens in it, as parts of the page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from markupsafe import escape

from perdure.client.lists import Offered
from perdure.client.session import Session
from perdure.client.sessions import first_line
from perdure.errors import PerdureError
from perdure.gateway.callers import Caller
from perdure.gateway.streams import frame
from perdure.pages.deciding import fields_of
from perdure.pages.markdown import prepare_answers
from perdure.pages.pausing import with_pauses
from perdure.pages.site import Site
from perdure.run.events.kinds import Event
from perdure.sessions.wire import SessionView, digest
from perdure.values.jsons import JsonObject
from perdure.values.rules import Mode

MODE_WORDS: Final[Mapping[Mode, str]] = {
    "steer": "change what it does now",
    "followup": "answer when it has finished",
    "collect": "answer with the other messages that wait",
    "interrupt": "stop what it does now",
    "reject": "do not send",
}
"""What a message does while the agent works, by its mode (R10.4)."""
CALLS: Final = 30
"""The newest calls of a run that are shown while it works."""
AGAIN: Final = 1.0
"""Seconds until it is asked again what waits, where nobody has answered."""
_ENTRIES: Final = ("lifecycle", "message", "reply", "compaction")
"""Topics that tell of something that the transcript may have now."""


class Talk:
    """Gives frames of a page's event stream, by the names that its parts listen to:

    `entry` comes behind the transcript, `delta` behind the answer being written; `answer`, `calls`, `waiting` and `status` take the place of
    what stood there.
    """

    def __init__(self, session: Session, site: Site, caller: Caller, csrf: str) -> None:
        self._session = session
        self._site = site
        self._caller = caller
        self._csrf = csrf
        self._calls: dict[str, JsonObject] = {}
        self._offered = ""
        self._unsure = False
        """Whether it could not be asked what waits."""

    async def offers(self, view: SessionView) -> list[Offered]:
        """What waits for a person in the run under way; nothing where nobody answers for it, as when it has just ended."""
        try:
            return await self._offers(view)
        except PerdureError:
            self._unsure = True
            return []

    async def _offers(self, view: SessionView) -> list[Offered]:
        return [Offered(str(view.run_id), offer) for offer in await self._session.waiting(view)]

    async def frames(self, after: int, offered: str, cursor: str | None) -> AsyncGenerator[str, None]:
        """What is new behind the entry `after`, in place of what is `offered` (as `named` says it), and behind an event; without one, what the
        run under way has done so far, and what follows."""
        view = await self._session.show()
        await prepare_answers(answers_of(view))
        self._offered = offered
        for part, name in await self._waiting():
            yield frame(part, event=name)
        for part in self._entries(view, after):
            yield part
        after, skipped = max(after, last_entry(view)), None if cursor is not None else view.run_id
        events = self._session.events(from_=cursor or ("now" if view.run_id is None else None))
        async for event in with_pauses(events, lambda: AGAIN if self._unsure else None):
            if event is None:
                for part, name in await self._waiting():
                    yield frame(part, event=name)
                continue
            if skipped is not None and event.run_id != skipped:
                continue
            skipped = None
            for part, name in await self._parts(event):
                yield frame(part, event=name, id=event.cursor)
            if event.topic in _ENTRIES:
                view = await self._session.show()
                await prepare_answers(answers_of(view))
                for part in self._entries(view, after):
                    yield part
                after = max(after, last_entry(view))
                yield frame(self._site.part("status.html", view=view), event="status", id=event.cursor)

    def _entries(self, view: SessionView, after: int) -> list[str]:
        return [
            frame(self._site.part("entry.html", entry=entry, me=self._caller.sender), event="entry")
            for entry in view.entries
            if int(entry.get("n", 0)) > after
        ]

    async def _parts(self, event: Event) -> list[tuple[str, str]]:
        if event.topic == "assistant" and event.phase == "delta":
            return [(str(escape(event.data["text"])), "delta")]
        if event.topic == "assistant" and (event.phase == "superseded" or not event.data.get("accepted", True)):
            return [(self._answer(), "answer")]
        if event.topic == "lifecycle" and event.run_id:
            self._calls.clear()
            return [(self._answer(), "answer"), (self._running(), "calls"), *await self._waiting()]
        if event.topic == "tool":
            self._calls[str(event.data.get("call"))] = {**event.data, "phase": event.phase}
            while len(self._calls) > CALLS:
                del self._calls[next(iter(self._calls))]
            return [(self._running(), "calls")]
        if event.topic == "approval":
            return await self._waiting()
        return []

    def _answer(self) -> str:
        return self._site.part("answer.html")

    def _running(self) -> str:
        return self._site.part("calls.html", calls=list(self._calls.values()))

    async def _waiting(self) -> list[tuple[str, str]]:
        """What waits, if that is other than what the page shows: in its forms somebody may be typing."""
        try:
            offers = await self._offers(await self._session.show())
            self._unsure = False
        except PerdureError:  # nobody answers now
            self._unsure = True
            return []
        if named(offers) == self._offered:
            return []
        self._offered = named(offers)
        given = {
            "key": self._session.key,
            "csrf": self._csrf,
            "caller": self._caller,
            "fields_of": fields_of,
            "typed": {},
        }
        return [(self._site.part("offers.html", offers=offers, **given), "waiting")]


def answers_of(view: SessionView) -> list[str]:
    """The texts of a conversation that are Markdown."""
    return [str(entry["text"]) for entry in view.entries if entry.get("type") == "reply" and entry.get("text")]


def title_of(view: SessionView) -> str:
    """The first line of the first message that a view has; empty: it has none."""
    texts = (str(entry["text"]) for entry in view.entries if entry.get("type") == "message")
    return first_line(next(texts, ""))


def last_entry(view: SessionView) -> int:
    """The number of the newest entry that a view has; 0: it has none."""
    return int(view.entries[-1].get("n", 0)) if view.entries else 0


def named(offers: list[Offered]) -> str:
    """What waits, in a word that is another one when something else does."""
    return digest([[each.run_id, each.offer.call, each.offer.digest] for each in offers])
