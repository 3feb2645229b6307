"""Starting and going on with the runs of responses: which session, which run, and what a run that waits is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from perdure.authoring.agent import Agent
from perdure.client.run import Run
from perdure.client.session import Session
from perdure.errors import DecisionRefusedError, MessageRefusedError, RunError, RunExistsError, RunNotFoundError
from perdure.gateway.callers import Caller
from perdure.gateway.door import Gateway
from perdure.gateway.openai.answers import Found, answer_of
from perdure.gateway.openai.deciding import decisions
from perdure.gateway.openai.documents import Record, changed_agent, new_record, told_by, with_history
from perdure.gateway.openai.errors import refused, unsupported
from perdure.gateway.openai.following import Finder
from perdure.gateway.openai.ids import ResponseId, conversation_key, key_of, new_key, of_call, of_run, response_id
from perdure.gateway.openai.reading.asked import Asked, Changes
from perdure.gateway.problems import HttpError
from perdure.sessions.wire import COMMANDS, SessionView, digest
from perdure.values.jsons import JsonObject

Mode = Literal["followup", "reject"]
NO_PREVIOUS: Final = "previous_response_not_found"


class Starter:
    """Takes requests to their runs."""

    def __init__(self, gateway: Gateway, finder: Finder) -> None:
        self._gateway = gateway
        self._perdure = gateway.perdure
        self._finder = finder

    async def begin(self, caller: Caller, asked: Asked, idempotency: str | None = None) -> tuple[ResponseId, Record]:
        """Start what is asked for, or go on with it: the response's id, once that is in a history. Raises `HttpError`."""
        self._agent(asked.model)
        if asked.previous is not None:
            return await self._after(caller, asked, asked.previous, idempotency)
        if asked.conversation is not None:
            return await self._in_conversation(caller, asked, asked.conversation, idempotency)
        key = new_key() if idempotency is None else key_of(caller.tenant, caller.sender, idempotency)
        if asked.said.outputs or not asked.store or asked.chat:
            return await self.alone(caller, asked, key)
        record = self._record(caller, asked)
        return await self._say(caller, asked, key, record, "followup", idempotency), record

    async def alone(self, caller: Caller, asked: Asked, key: str) -> tuple[ResponseId, Record]:
        """A run by itself, from a whole history; one that waits for the results that this ends with goes on."""
        if asked.said.outputs and (found := await self._waiting_for(caller, asked)) is not None:
            return await self.go_on(caller, asked, *found), found[1].record
        id, record = ResponseId(key), self._record(caller, asked)
        whole = with_history(self._changed(asked, record, alone=True), asked.said)
        run_id, sender = id.run_id(caller.tenant), caller.sender
        with suppress(RunExistsError):  # the same request, sent again
            await self._perdure.start(Agent.of(whole), id=run_id, sender=sender, tenant=caller.tenant or None)
        return id, record

    async def go_on(self, caller: Caller, asked: Asked, id: ResponseId, found: Found) -> ResponseId:
        """Tell a run that waits what its client has come to. Raises `HttpError` where that is not all that it waits for."""
        if asked.model != found.record.agent:
            raise refused(f"{id} goes on with {found.record.agent!r}, which has begun it", "model", "invalid_value")
        if asked.changes != Changes() and asked.changes.digest != found.record.changes:
            raise unsupported("tools", f"{id} goes on with the instructions, tools and settings that it began with")
        if asked.said.before and (asked.previous or asked.conversation):
            raise unsupported("input", "a run that goes on takes results, decisions and a user's words")
        said, by_person = decisions(asked, id, found, caller.sender)
        if by_person:
            caller.check("approve", "decide what waits for a person")
        run = self._finder.run(caller.tenant, id)
        try:
            await asyncio.gather(*(run.decide(decision) for decision in said))
            for text in asked.said.texts:
                await self._steer(caller, run, id, text)
        except (DecisionRefusedError, MessageRefusedError) as error:
            raise refused(str(error), "input", "conflict") from None
        return id.next()

    async def _steer(self, caller: Caller, run: Run[object], id: ResponseId, text: str) -> None:
        if not id.run:
            await run.steer(text, by=caller.sender)
            return
        session = self._perdure.session(id.key, tenant=caller.tenant)
        await session.send(text, sender=caller.sender, rights=_rights(caller), mode="steer")

    async def _after(
        self, caller: Caller, asked: Asked, previous: str, idempotency: str | None
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
            return await self.go_on(caller, asked, id, found), found.record
        if asked.said.outputs or asked.said.verdicts:
            raise refused(f"nothing waits in {previous}", "input", "invalid_value")
        self._check_agent(caller, asked, found.record)
        if not id.run:  # it has no session: one begins with all that it was about
            key = new_key() if idempotency is None else key_of(caller.tenant, caller.sender, idempotency)
            record = self._record(caller, asked, told_by(found.record, answer_of(found)))
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
        self, caller: Caller, asked: Asked, id: ResponseId, record: Record, idempotency: str | None
    ) -> ResponseId:
        """The next run of the session, or where another response follows this one already, that of a fork of it (R10.20)."""
        session = self._perdure.session(id.key, tenant=caller.tenant)
        view = await session.show()
        if idempotency is not None and (known := _said_before(view, _message(idempotency))) is not None:
            return of_run(id.key, known)
        if view.run_id is None and not view.queue and _last_run(view) == id.run_id(caller.tenant):
            with suppress(MessageRefusedError):
                new = await self._say(caller, asked, id.key, record, "reject", idempotency)
                if new.number == id.number + 1:
                    return new
                with suppress(RunError):  # another was faster, and has ended: this is not the place for it
                    await self._finder.run(caller.tenant, new).cancel()
        key = new_key() if idempotency is None else key_of(caller.tenant, caller.sender, idempotency, str(id))
        with suppress(RunExistsError):
            await session.fork(str(id.number), key)
        return await self._say(caller, asked, key, record, "followup", idempotency)

    async def _in_conversation(
        self, caller: Caller, asked: Asked, conversation: str, idempotency: str | None
    ) -> tuple[ResponseId, Record]:
        key = conversation_key(conversation)
        if key is None:
            raise refused(f"there is no conversation {conversation[:200]!r}", "conversation", "not_found", status=404)
        id, found = await self._latest(caller, key)
        if found is not None and found.view.status == "running" and found.pauses:
            id = ResponseId(key, id.run, found.leg)
            return await self.go_on(caller, asked, id, found), found.record
        if asked.said.outputs or asked.said.verdicts:
            raise refused("nothing waits in this conversation", "input", "invalid_value")
        if id.run:  # it was begun, perhaps at another door
            self._check_agent(caller, asked, None if found is None else found.record)
        record = self._record(caller, asked, () if found is None else found.record.before)
        return await self._say(caller, asked, key, record, "followup", idempotency), record

    async def _latest(self, caller: Caller, key: str) -> tuple[ResponseId, Found | None]:
        """The last run of a session, and what it was asked here; without a run nothing was said yet."""
        try:
            view = await self._perdure.session(key, tenant=caller.tenant).show()
        except RunNotFoundError:
            return ResponseId(key), None
        if (last := view.run_id or _last_run(view)) is None:
            return ResponseId(key), None
        id = of_run(key, last)
        try:
            return id, await self._finder.find(caller.tenant, id)
        except HttpError as error:
            if error.status != 404:
                raise
            return id, None  # it was begun at another door

    def _check_agent(self, caller: Caller, asked: Asked, record: Record | None) -> None:
        """Another agent than the one that has answered takes the right to it (R10.9)."""
        if record is None or record.agent != asked.model:
            caller.check("agent", "have another agent answer in a conversation")

    async def _say(
        self, caller: Caller, asked: Asked, key: str, record: Record, mode: Mode, idempotency: str | None
    ) -> ResponseId:
        text = "\n\n".join(asked.said.texts)
        if not text.strip():
            raise refused("'input' has nothing to answer: it needs a user's message", "input", "invalid_value")
        if text.strip() in COMMANDS:
            raise refused(f"{text.strip()!r} is a command of sessions, and is not said here", "input", "invalid_value")
        agent = Agent.of(self._changed(asked, record))
        session: Session = self._perdure.session(key, tenant=caller.tenant, agent=agent)
        receipt = await session.send(
            text,
            sender=caller.sender,
            rights=_rights(caller),
            id=None if idempotency is None else _message(idempotency),
            mode=mode,
        )
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
        waits = {id.call(ask.offer) for ask in found.asks(found.leg) if asked.chat or not ask.approval}
        fits = digest(earlier) == found.record.history and waits == set(asked.said.outputs)
        goes_on = fits and asked.changes.digest == found.record.changes
        return (ResponseId(id.key, id.run, found.leg), found) if goes_on else None

    def _record(self, caller: Caller, asked: Asked, before: Sequence[JsonObject] = ()) -> Record:
        approves = asked.approvals and caller.may("approve")
        return new_record(asked, created=int(time.time()), sender=caller.sender, approves=approves, before=before)

    def _changed(self, asked: Asked, record: Record, *, alone: bool = False) -> JsonObject:
        return changed_agent(self._agent(asked.model).document(), asked.changes, record, alone=alone)

    def _agent(self, name: str) -> Agent[Any]:
        try:
            return self._gateway.agents.get(name)
        except HttpError as error:
            if error.status != 404:
                raise
            raise refused(
                f"The model {name[:200]!r} does not exist: {error.detail}", "model", "model_not_found", status=404
            ) from None


def _rights(caller: Caller) -> set[str]:
    """Those of a message: each says the agent's file anew, with what its request asks for. Whether it may be another agent was looked at."""
    return {*caller.rights, "agent"}


def _message(idempotency: str) -> str:
    return f"openai-{key_of(idempotency)}"


def _said_before(view: SessionView, message: str) -> str | None:
    """The run that took a message, if it was said already."""
    found = (entry for entry in view.entries if entry.get("messageId") == message and entry.get("runId"))
    return next((str(entry["runId"]) for entry in found), None)


def _last_run(view: SessionView) -> str | None:
    runs = (entry for entry in reversed(view.entries) if entry.get("type") == "run")
    return next((str(entry["runId"]) for entry in runs), None)
