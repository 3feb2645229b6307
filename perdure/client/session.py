"""One session, seen from outside (section 10). Sender and rights are what the caller has verified (R10.9)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Final

from pydantic import ValidationError
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.asking import answer_of
from perdure.activities.transcripts.recalling import SessionReader
from perdure.authoring.agent import Agent
from perdure.client import runs, sessions
from perdure.client.errors import UNANSWERED, clear_errors, no_answer
from perdure.client.listing import STATUS
from perdure.client.relay.relay import relay_of, wanted
from perdure.client.run import Run
from perdure.errors import MessageRefusedError, RunError, RunNotFoundError, RunTimeoutError
from perdure.run.events.kinds import Event
from perdure.sessions.recall import recall
from perdure.sessions.wire import (
    COMPACT,
    DECIDE_IN_SESSION,
    END,
    ENDED,
    EVERYTHING,
    FATE,
    SHOW,
    WAIT,
    WITHDRAW,
    Ending,
    Fate,
    Message,
    Receipt,
    SessionDecision,
    SessionView,
    Waited,
    Withdrawal,
    digest,
)
from perdure.values.jsons import JsonObject
from perdure.values.problems import first_problem
from perdure.values.rules import Mode, Rules

_LONG: Final = 0.3
"""Seconds of pause from which it is asked whether the session is still there."""
_PAUSE: Final = 0.005
"""Seconds between two looks at a message whose run has not begun; twice as long after each, up to a second."""


class Session:
    """A session by its key: see `Perdure.session`. It holds nothing of the session itself.

    What each method asks is asked then. Raises `RunNotFoundError` where there is no such session for this tenant, `MessageRefusedError` with
    the reason why nothing changed, `NoWorkerError` where nobody answers, `ServerError` where no server does.
    """

    def __init__(
        self, address: sessions.Address, *, agent: Agent[Any] | None = None, rules: Rules | None = None, task_queue: str
    ) -> None:
        self._client = address.client
        self._address = address
        self._agent = agent
        self._rules = rules or Rules()
        self._task_queue = task_queue
        self.key = address.key
        self.tenant = address.tenant
        self.id: str = self._address.id
        """Its workflow's id: a digest of tenant and key (R10.2)."""

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """Temporal's own handle, for what is not offered here."""
        return self._address.handle

    async def send(
        self,
        text: str,
        *,
        sender: str,
        rights: Iterable[str] = (),
        id: str | None = None,
        mode: Mode | None = None,
        route: str = "",
    ) -> Receipt:
        """Say something; the receipt, once it is in the session's history. The first message to a key begins the session.

        `id`: the sender's key for it: sent again with the same text it is the same message, over any number of restarts (R10.1); by default
        it is a new one. `rights`: what the sender may do here: `stop`, `new`, `reset`, `approve`, `withdraw`, `agent`, `delete`, `*` for
        everything, and what else the caller compares: a run has its starter's (R10.9). `mode`: what it is to do (R10.4). `route`: where
        the reply goes. Raises `MessageRefusedError` with the reason why it was not taken.
        """
        agent = self._agent
        try:
            message = Message(
                message_id=uuid.uuid4().hex if id is None else id,
                sender=sender,
                rights=list(rights),
                text=text,
                mode=mode,
                route=route,
                agent="" if agent is None else digest([agent.document(), agent.delegates()]),
            )
        except ValidationError as error:
            raise MessageRefusedError(f"this is no message: {first_problem(error)}") from None
        return await sessions.send(self._client, self._address, message, agent, self._rules, self._task_queue)

    async def wait(self, what: str | Receipt, timeout: float = WAIT) -> Waited:
        """Wait for the end of the run that takes a message (by its id or its receipt), or of a run by its id. The time stops nothing."""
        wanted = what if isinstance(what, str) else what.message_id
        try:
            async with asyncio.timeout(timeout):
                fate = await self._end_of(wanted)
        except TimeoutError:
            started = await self._started(wanted)
            return Waited(status="timeout", started_at=started)
        status = fate.status or "error"
        return Waited(status=status, started_at=fate.started_at, ended_at=fate.ended_at, error=fate.error)

    async def reply(self, what: str | Receipt, timeout: float | None = None) -> str | None:
        """The text that answers a message; `None` where there is nothing to say. Waits for it for `timeout` seconds, by default for ever.

        Raises `RunError` where there is no answer, and why, `RunTimeoutError` where there is none yet.
        """
        wanted = what if isinstance(what, str) else what.message_id
        try:
            async with asyncio.timeout(timeout):
                fate = await self._end_of(wanted)
        except TimeoutError:
            raise RunTimeoutError(f"{wanted!r} has no answer after {timeout:g} s; it goes on") from None
        if fate.status != "ok":
            raise RunError(f"{wanted!r} has no answer: {fate.error or 'its run did not end well'}")
        return fate.reply

    async def show(self) -> SessionView:
        """The session as it stands; one whose run waits for a person is `waiting`."""
        view: SessionView = await self._ask(SHOW, SessionView)
        if view.status == "running" and view.run_id is not None:
            with clear_errors(self._client, view.run_id):
                if await Run(self._client, view.run_id).waiting():
                    view.status = "waiting"
        return view

    async def run(self) -> Run[Any] | None:
        """The run that is under way, if one is."""
        view: SessionView = await self._ask(SHOW, SessionView)
        return None if view.run_id is None else Run(self._client, view.run_id)

    async def events(
        self, from_: str | None = None, topics: Iterable[str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """What happens in the session and in its runs, and what had happened before, until the session has ended: its own events, and those of
        each run between the run's start and its end (R10.14). Otherwise as `Run.events`; one cursor says how far both were read."""
        with sessions.found(self._client, self.key):
            kinds = wanted(topics)
            async with aclosing(relay_of(self._client).session(self.id, from_, kinds)) as events:
                async for event in events:
                    yield event

    async def withdraw(self, id: str, *, sender: str, rights: Iterable[str] = ()) -> None:
        """Take a message back, until a Request holds it (R10.7)."""
        await self._update(WITHDRAW, Withdrawal(message_id=id, sender=sender, rights=list(rights)))

    async def stop(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> Receipt:
        """End what runs; what waits goes on. The same as the message `/stop`."""
        return await self.send("/stop", sender=sender, rights=rights)

    async def new(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> Receipt:
        """Begin an empty conversation, after what was accepted before; the state stays, and nothing is deleted. The same as `/new`."""
        return await self.send("/new", sender=sender, rights=rights)

    async def reset(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> Receipt:
        """The same, and the state is again what the agent's file says. The same as `/reset`."""
        return await self.send("/reset", sender=sender, rights=rights)

    async def decide(self, decision: JsonObject, *, sender: str, rights: Iterable[str] = ()) -> JsonObject:
        """Decide on a call of the run under way, `{"call", "decision": "approve", …}`, with the right `approve` (R10.9).

        What was done, `{"call", "decision"}`.
        """
        asked = SessionDecision(decision=decision, sender=sender, rights=list(rights))
        answer: JsonObject = await self._update(DECIDE_IN_SESSION, asked)
        return answer

    async def delete(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> None:
        """End the session and what runs in it, and have the server forget it and its runs. The key may then begin another one."""
        await self._update(END, Ending(sender=sender, rights=list(rights)))
        with clear_errors(self._client):
            await sessions.forget(self._client, self.id)

    async def compact(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> str:
        """Have what is older than the newest part told in short from now on, with the right `compact`; what was done, in words (R10.11)."""
        answer = await self._update(COMPACT, Ending(sender=sender, rights=list(rights)))
        return str(answer["compacted"])

    async def recall(self, what: str, page: int = 1) -> JsonObject:
        """What the conversation shows cut, or in short, word for word (R10.12): a call by its id there (`c12_1_0`), an entry by its number
        (`{"what", "page", "pages", "text"}`), or words to look for (`{"what", "page", "found": [{"n", "type", "at", "text"}], "more"}`).

        Raises `RunError` where there is nothing.
        """
        with sessions.found(self._client, self.key):
            await self._ask(FATE, Fate, "")  # one that was deleted answers no more, though the server still has it
            return await recall(SessionReader(self._client, self.id), what, page)

    async def fork(self, at: str, key: str | None = None) -> Session:
        """A new session, by default of a key of its own, that begins with what was said and done here up to run `R`, or to Request `N` of it,
        `R.N`; no call runs again, and this one is untouched (R10.20). Raises `RunError` where there is no such place."""
        key = key or f"{self.key}-{uuid.uuid4().hex[:8]}"
        address = sessions.Address(self._client, key, self.tenant)
        await self._ask(FATE, Fate, "")
        await sessions.begin_fork(self._address, at, address)
        return Session(address, agent=self._agent, rules=self._rules, task_queue=self._task_queue)

    async def _end_of(self, what: str) -> Fate:
        """What has become of it, once it has ended."""
        pause, over = _PAUSE, None
        while True:
            fate = await self._fate(what)
            if fate is not None and over is not None and fate.state in ("queued", "running"):
                return fate.model_copy(update={"status": "error", "error": f"the session was {over} from outside"})
            if fate is not None and fate.state in ("ended", "withdrawn"):
                return fate if fate.status is not None else await sessions.past(self._client, fate)
            run_id = None if fate is None else fate.run_id if fate.state == "running" else fate.under_way
            if run_id is not None:
                await self._until_ended(run_id)
            await asyncio.sleep(pause)  # it begins soon, or has just ended and is being taken in
            pause = min(1.0, 2 * pause)
            over = await self._over() if pause > _LONG else None

    async def _over(self) -> str | None:
        """How the session ended from outside, after which nothing begins in it; `None`: it goes on, or nobody can tell."""
        try:
            described = await self.handle.describe()
        except RPCError:
            return None
        status = "running" if described.status is None else STATUS[described.status]
        return status.replace("_", " ") if status in ("cancelled", "terminated", "timed_out", "failed") else None

    async def _until_ended(self, run_id: str) -> None:
        try:
            await runs.ended(self._client, run_id)
        except RPCError as error:
            if error.status not in UNANSWERED and "not found" not in error.message:
                raise

    async def _fate(self, what: str) -> Fate | None:
        """`None`: nobody can tell now. Raises `RunNotFoundError` for what was never said here."""
        try:
            fate: Fate = await self._query(FATE, Fate, what)
        except RPCError as error:
            if error.status in UNANSWERED:
                return None
            with sessions.found(self._client, self.key):
                raise
        if not fate.known:
            fate = await SessionReader(self._client, self.id).fate(what)
        if not fate.known:
            raise RunNotFoundError(f"the session {self.key!r} knows no message and no run {what!r}")
        return fate

    async def _started(self, what: str) -> str | None:
        try:
            async with asyncio.timeout(1):
                fate = await self._fate(what)
        except (TimeoutError, RunError):
            return None
        if fate is None or fate.state != "running" or fate.run_id is None:
            return None
        return await sessions.started(self._client, fate.run_id)

    async def _ask(self, query: str, kind: type[Any], *arguments: Any) -> Any:
        with sessions.found(self._client, self.key):
            try:
                return await self._query(query, kind, *arguments)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise
                await self.handle.describe()  # where the server answers, it is the worker that does not
                raise no_answer(error, self.key) from None

    async def _query(self, query: str, kind: type[Any], *arguments: Any) -> Any:
        try:
            return await answer_of(self.handle, query, *arguments, result_type=kind)
        except WorkflowQueryFailedError as error:
            if ENDED in str(error):
                raise RunNotFoundError(f"there is no session {self.key!r}: it was deleted") from None
            raise RunError(f"the session {self.key!r} cannot be asked: {error}") from None

    async def _update(self, name: str, argument: Any) -> Any:
        return await sessions.update(self._client, self._address, name, argument)

    def __repr__(self) -> str:
        return f"Session({self.key!r})"
