"""Starting and going on with the runs of responses: which session, which run, and what a run that waits is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from perdure.authoring.agent import Agent
from perdure.client.run import Run
from perdure.client.session import Session
from perdure.client.whose.wanted import Wanted
from perdure.errors import (
    DecisionRefusedError,
    MessageRefusedError,
    RunEndedError,
    RunError,
    RunExistsError,
    RunNotFoundError,
)
from perdure.gateway.callers import Caller
from perdure.gateway.door import Gateway
from perdure.gateway.keys import Key, reused
from perdure.gateway.openai.answers import Found, answer_of
from perdure.gateway.openai.deciding import decisions
from perdure.gateway.openai.documents import Record, changed_agent, new_record, settings_of, told_by, with_history
from perdure.gateway.openai.errors import refused, unsupported
from perdure.gateway.openai.following import Finder
from perdure.gateway.openai.ids import ResponseId, conversation_key, key_of, new_key, of_call, of_run, response_id
from perdure.gateway.openai.reading.asked import Asked, Changes
from perdure.gateway.problems import HttpError
from perdure.sessions.wire import COMMANDS, SessionView, digest
from perdure.values.jsons import JsonObject

Mode = Literal["followup", "reject"]
NO_PREVIOUS: Final = "previous_response_not_found"


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A request's key, and what it names here (R10.1)."""

    owned: Key
    key: str
    """Of the session, or run, that it names."""

    @classmethod
    def of(cls, caller: Caller, owned: Key) -> Idempotency:
        return cls(owned, key_of(caller.tenant, caller.sender, owned.wanted.key))

    @property
    def body(self) -> str:
        """Digest of the request."""
        return self.owned.wanted.body

    @property
    def message(self) -> str:
        """The id of the message that it names in any session."""
        return f"openai-{self.key}"


class Starter:
    """Takes requests to their runs."""

    def __init__(self, gateway: Gateway, finder: Finder) -> None:
        self._gateway = gateway
        self._perdure = gateway.perdure
        self._finder = finder

    async def begin(
        self, caller: Caller, asked: Asked, idempotency: Idempotency | None = None
    ) -> tuple[ResponseId, Record]:
        """Start what is asked for, or go on with it: the response's id, once that is in a history. Raises `HttpError`."""
        self._agent(asked.model)
        if (before := await self._answered(caller, idempotency)) is not None:
            return before
        try:
            return await self._begin(caller, asked, idempotency)
        except HttpError:  # the same request, sent at the same time, may have been faster
            if (before := await self._answered(caller, idempotency)) is None:
                raise
            return before

    async def _begin(self, caller: Caller, asked: Asked, idempotency: Idempotency | None) -> tuple[ResponseId, Record]:
        if asked.previous is not None:
            return await self._after(caller, asked, asked.previous, idempotency)
        if asked.conversation is not None:
            return await self._in_conversation(caller, asked, asked.conversation, idempotency)
        key = new_key() if idempotency is None else idempotency.key
        if asked.said.outputs or not asked.store or asked.chat:
            return await self.alone(caller, asked, key, idempotency)
        record = self._record(caller, asked)
        return await self._say(caller, asked, key, record, "followup", idempotency), record

    async def _answered(self, caller: Caller, idempotency: Idempotency | None) -> tuple[ResponseId, Record] | None:
        """As what a run went on when this request came before; `None`: it has not, also where that request broke off."""
        told = None if idempotency is None else await idempotency.owned.answer()
        if not told or (id := response_id(told)) is None:
            return None
        try:
            found = await self._finder.find(caller.tenant, id)
        except HttpError as error:
            if error.status != 404:
                raise
            return None
        return None if found is None else (id, found.record)

    async def alone(
        self, caller: Caller, asked: Asked, key: str, idempotency: Idempotency | None
    ) -> tuple[ResponseId, Record]:
        """A run by itself, from a whole history; one that waits for the results that this ends with goes on."""
        if asked.said.outputs and (found := await self._waiting_for(caller, asked)) is not None:
            return await self.go_on(caller, asked, *found, idempotency), found[1].record
        id, record = ResponseId(key), self._record(caller, asked)
        whole = with_history(self._changed(asked, record, alone=True), asked.said, record.source)
        run_id, wanted = id.run_id(caller.tenant), None
        if idempotency is not None:
            if not await idempotency.owned.take() and (before := await self._answered(caller, idempotency)) is not None:
                return before
            wanted = Wanted(idempotency.owned.wanted.key, run_id, idempotency.body)
        try:
            await self._perdure.start(
                Agent.of(whole), id=run_id, key=wanted, sender=caller.sender, tenant=caller.tenant or None
            )
        except RunExistsError:
            raise reused() from None
        return id, record

    async def go_on(
        self, caller: Caller, asked: Asked, id: ResponseId, found: Found, idempotency: Idempotency | None
    ) -> ResponseId:
        """Tell a run that waits what its client has come to. Raises `HttpError` where that is not all that it waits for."""
        if asked.model != found.record.agent:
            raise refused(f"{id} goes on with {found.record.agent!r}, which has begun it", "model", "invalid_value")
        if replace(asked.changes, must_call=[]) != Changes() and asked.changes.digest != found.record.changes:
            raise unsupported("tools", f"{id} goes on with the instructions, tools and settings that it began with")
        if asked.said.before and (asked.previous or asked.conversation):
            raise unsupported("input", "a run that goes on takes results, decisions and a user's words")
        said, by_person = decisions(asked, id, found, caller.sender)
        if by_person:
            caller.check("approve", "decide what waits for a person")
        is_first = idempotency is None or await idempotency.owned.take(str(id.next()))
        run = self._finder.run(caller.tenant, id)
        try:
            decided = [self._finder.run(caller.tenant, id, path).decide(decision) for path, decision in said]
            await asyncio.gather(*decided)
            for text in asked.said.texts:
                await self._steer(caller, run, id, text)
        except (DecisionRefusedError, MessageRefusedError, RunEndedError) as error:
            if is_first:
                raise refused(str(error), "input", "conflict") from None
        return id.next()

    async def _steer(self, caller: Caller, run: Run[object], id: ResponseId, text: str) -> None:
        if not id.run:
            await run.steer(text, by=caller.sender)
            return
        session = self._perdure.session(id.key, tenant=caller.tenant)
        receipt = await session.send(text, sender=caller.sender, rights=caller.rights, mode="steer")
        if receipt.run_id != run.id:
            await session.withdraw(receipt.message_id, sender=caller.sender)
            raise refused(f"{id} takes no more words of {caller.sender!r}: {receipt.why}", "input", "conflict")

    async def _after(
        self, caller: Caller, asked: Asked, previous: str, idempotency: Idempotency | None
    ) -> tuple[ResponseId, Record]:
        id, found = await self._previous(caller, previous)
        status = found.status(id.leg)
        if status in ("queued", "in_progress"):
            raise refused(
                f"{previous} is still under way: wait for it, or cancel it", "previous_response_id", "conflict"
            )
        if found.view.status == "running":
            if id.leg < found.leg:
                raise refused(f"{previous} went on already", "previous_response_id", "conflict")
            return await self.go_on(caller, asked, id, found, idempotency), found.record
        if asked.said.outputs or asked.said.verdicts:
            raise refused(f"nothing waits in {previous}", "input", "invalid_value")
        self._check_agent(caller, asked, found.record.agent)
        if not id.run:  # it has no session: one begins with all that it was about
            key = new_key() if idempotency is None else idempotency.key
            record = self._record(caller, asked, told_by(found.record, answer_of(found), found.view.met))
            return await self._say(caller, asked, key, record, "followup", idempotency), record
        record = self._record(caller, asked, found.record.before)
        return await self._continue(caller, asked, id, record, idempotency), record

    async def _previous(self, caller: Caller, previous: str) -> tuple[ResponseId, Found]:
        unknown = refused(
            f"Previous response with id {previous[:200]!r} not found.", "previous_response_id", NO_PREVIOUS
        )
        id = response_id(previous)
        if id is None:
            raise unknown
        try:
            found = await self._finder.stored(caller.tenant, id)
        except HttpError as error:
            raise unknown if error.status == 404 else error from None
        except RunNotFoundError:
            raise unknown from None
        if found is None:
            raise refused(f"{previous} has not begun: wait for it, or cancel it", "previous_response_id", "conflict")
        return id, found

    async def _continue(
        self, caller: Caller, asked: Asked, id: ResponseId, record: Record, idempotency: Idempotency | None
    ) -> ResponseId:
        """The next run of the session, or where another response follows this one already, that of a fork of it (R10.20)."""
        session = self._perdure.session(id.key, tenant=caller.tenant)
        view = await session.show()
        said_before = None if idempotency is None else _said_before(view, idempotency.message, caller.sender)
        if said_before is not None:
            # As it was said then: refused where it says something else now.
            await self._say(caller, asked, id.key, record, "reject", idempotency)
            return of_run(id.key, said_before)
        if view.run_id is None and not view.queue and _last_run(view) == id.run_id(caller.tenant):
            with suppress(MessageRefusedError):
                new = await self._say(caller, asked, id.key, record, "reject", idempotency)
                if new.number == id.number + 1:
                    return new
                with suppress(RunError):  # another was faster, and has ended: this is not the place for it
                    await self._finder.run(caller.tenant, new).cancel()
        key = new_key() if idempotency is None else key_of(idempotency.key, str(id))
        with suppress(RunExistsError):
            await session.fork(str(id.number), key)
        return await self._say(caller, asked, key, record, "followup", idempotency)

    async def _in_conversation(
        self, caller: Caller, asked: Asked, conversation: str, idempotency: Idempotency | None
    ) -> tuple[ResponseId, Record]:
        key = conversation_key(conversation)
        if key is None:
            raise _no_conversation(conversation)
        id, found, agent = await self._latest(caller, key)
        if found is not None and found.view.status == "running" and found.pauses:
            id = ResponseId(key, id.run, found.leg)
            return await self.go_on(caller, asked, id, found, idempotency), found.record
        if asked.said.outputs or asked.said.verdicts:
            raise refused("nothing waits in this conversation", "input", "invalid_value")
        if id.run:  # it was begun, perhaps at another door
            self._check_agent(caller, asked, agent)
        record = self._record(caller, asked, () if found is None else found.record.before)
        return await self._say(caller, asked, key, record, "followup", idempotency), record

    async def _latest(self, caller: Caller, key: str) -> tuple[ResponseId, Found | None, str]:
        """The last run of a session, what it was asked here, and the agent that answers; without a run nothing was said yet.

        Raises `HttpError` (404) where there is no such session.
        """
        try:
            view = await self._perdure.session(key, tenant=caller.tenant).show()
        except RunNotFoundError:
            raise _no_conversation(f"conv_{key}") from None
        if (last := view.run_id or _last_run(view)) is None:
            return ResponseId(key), None, view.agent
        id = of_run(key, last)
        try:
            return id, await self._finder.find(caller.tenant, id), view.agent
        except HttpError as error:
            if error.status != 404:
                raise
            return id, None, view.agent  # it was begun at another door

    def _check_agent(self, caller: Caller, asked: Asked, answers: str) -> None:
        """Another agent than the one that `answers` takes the right to it (R10.9)."""
        if answers != asked.model:
            caller.check("agent", "have another agent answer in a conversation")

    async def _say(
        self, caller: Caller, asked: Asked, key: str, record: Record, mode: Mode, idempotency: Idempotency | None
    ) -> ResponseId:
        text = "\n\n".join(asked.said.texts)
        if not text.strip():
            raise refused("'input' has nothing to answer: it needs a user's message", "input", "invalid_value")
        if text.strip() in COMMANDS:
            raise refused(f"{text.strip()!r} is a command of sessions, and is not said here", "input", "invalid_value")
        agent = self._agent(asked.model)
        session: Session = self._perdure.session(key, tenant=caller.tenant, agent=agent)
        if idempotency is not None:
            await idempotency.owned.take()
        try:
            receipt = await session.send(
                text,
                sender=caller.sender,
                rights=caller.rights,
                id=None if idempotency is None else idempotency.message,
                mode=mode,
                settings=settings_of(agent.document(), self._changed(asked, record)),
                request="" if idempotency is None else idempotency.body,
            )
        except MessageRefusedError:
            if idempotency is not None and await session.knows(idempotency.message, sender=caller.sender):
                raise reused() from None
            raise
        assert receipt.run_id is not None  # only a command takes no run
        return of_run(key, receipt.run_id)

    async def _waiting_for(self, caller: Caller, asked: Asked) -> tuple[ResponseId, Found] | None:
        """The run that waits for the results that a history ends with, if it began with the same history."""
        id = of_call(next(iter(asked.said.outputs)))
        if id is None:
            return None
        try:
            found = await self._finder.find(caller.tenant, id)
        except (HttpError, RunNotFoundError):
            return None
        if found is None or not found.pauses or asked.model != found.record.agent:
            return None
        earlier = asked.said.earlier[: found.record.length]
        waits = {id.call(ask.offer) for ask in found.asks(found.leg) if found.record.approval_tool or not ask.approval}
        fits = digest(earlier) == found.record.history and waits == set(asked.said.outputs)
        goes_on = fits and asked.changes.digest == found.record.changes
        return (ResponseId(id.key, id.run, found.leg), found) if goes_on else None

    def _record(self, caller: Caller, asked: Asked, before: Sequence[JsonObject] = ()) -> Record:
        approves = asked.approvals and caller.may("approve")
        agent = self._agent(asked.model)
        return new_record(
            asked,
            created=int(time.time()),
            sender=caller.sender,
            approves=approves,
            source=self._gateway.client_source(caller, agent),
            before=before,
            must_call=agent.parsed.config.must_call,
        )

    def _changed(self, asked: Asked, record: Record, *, alone: bool = False) -> JsonObject:
        wait = self._gateway.settings.gateway_client_wait
        document = self._agent(asked.model).document()
        return changed_agent(document, asked.changes, record, alone=alone, client_wait=wait)

    def _agent(self, name: str) -> Agent[Any]:
        try:
            return self._gateway.agents.get(name)
        except HttpError as error:
            if error.status != 404:
                raise
            raise refused(
                f"The model {name[:200]!r} does not exist: {error.detail}", "model", "model_not_found", status=404
            ) from None


def _no_conversation(id: str) -> HttpError:
    return refused(f"there is no conversation {id[:200]!r}", "conversation", "not_found", status=404)


def _said_before(view: SessionView, message: str, sender: str) -> str | None:
    """The run that took a message, if it was said already."""
    said = (entry for entry in view.entries if entry.get("messageId") == message and entry.get("sender") == sender)
    return next((str(entry["runId"]) for entry in said if entry.get("runId")), None)


def _last_run(view: SessionView) -> str | None:
    runs = (entry for entry in reversed(view.entries) if entry.get("type") == "run")
    return next((str(entry["runId"]) for entry in runs), None)
