"""Runs of responses: start, continuation, wait, and decisions."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from perdure.agents.agent import Agent
from perdure.client.errors import clear_errors
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.run_tree import REMEMBERED, RunTreeReader
from perdure.client.session import MessageOptions, Session
from perdure.client.tenancy import IdempotentStart
from perdure.errors import (
    DecisionRefusedError,
    MessageRefusedError,
    RunEndedError,
    RunError,
    RunExistsError,
    RunNotFoundError,
)
from perdure.gateway._idempotency import RequestKey, key_reused_error
from perdure.gateway.adapter import Gateway, check_same_context
from perdure.gateway.answers import note_waiting, steer, with_output
from perdure.gateway.callers import Caller
from perdure.gateway.errors import HttpError
from perdure.gateway.files import fetched_problem
from perdure.gateway.openai._agent_file import (
    Record,
    changed_agent,
    messages_of,
    new_record,
    record_of,
    settings_of,
    with_history,
)
from perdure.gateway.openai._objects import (
    FoundRun,
    RequiredAction,
    ResponseId,
    answer_of,
    conversation_key,
    decision_via,
    key_of,
    new_key,
    of_call,
    of_run,
    response_id,
    split_digest,
)
from perdure.gateway.openai._requests import Changes, ClientRequest, not_found, refused, unsupported_error
from perdure.gateway.streams import poll, with_pauses
from perdure.runs.events import Event, Topic
from perdure.runs.wire import RunView
from perdure.sessions.wire import COMMANDS, SessionView, digest
from perdure.values.json import Json, JsonObject, loads

_WORDS = {"approve": True, "reject": False}


def decisions(
    request: ClientRequest, id: ResponseId, found: FoundRun, caller: Caller
) -> tuple[list[tuple[str, JsonObject]], bool]:
    """Return the decisions, each with the path of its delegate's run (empty: the run itself), and whether any is a
    person's.

    Raises `HttpError` for a missing result, and for one that no call waits for.
    """
    asks, by_call = found.actions(id.leg), found.record.approval_tool
    calls = {id.call(ask.request_id): ask for ask in asks if not ask.approval}
    outputs, verdicts = dict(request.client_input.outputs), dict(request.client_input.verdicts)

    def name_of(request_id: str) -> str:
        return id.call(request_id) if by_call else id.item("mcpr", request_id)

    approvals = {name_of(ask.request_id): ask for ask in asks if ask.approval}
    found_decisions: list[tuple[RequiredAction, JsonObject]] = []
    for sent in [*(outputs if by_call else verdicts)]:
        name, shown = split_digest(sent)
        if (ask := approvals.get(name)) is not None:
            verdict = read_verdict(outputs.pop(sent), question=ask.question) if by_call else verdicts.pop(sent)
            found_decisions.append((ask, _decision(ask, verdict) | ({"digest": shown} if shown else {})))
    by_person = bool(found_decisions)
    for call in calls:
        if call not in outputs:
            raise refused(f"No tool output found for function call {call}.", "input", "missing_tool_output")
    for name in [*(set(outputs) - set(calls)), *verdicts]:
        raise refused(f"no request waits for {name!r} in {id}", "input", "invalid_value")
    if not outputs and not by_person:
        kind = "a 'function_call_output'" if by_call else "an 'mcp_approval_response'"
        wanted = ", ".join(name_of(ask.shown_id) for ask in approvals.values())
        raise refused(f"{id} waits for a decision: send {kind} for {wanted}", "input", "conflict")
    found_decisions += [(ask, {"decision": "answer", "answer": outputs[call]}) for call, ask in calls.items()]
    chosen = must_call(request, found, {ask.name for ask in calls.values()})
    made: list[tuple[str, JsonObject]] = []
    for ask, decision in found_decisions:
        own: JsonObject = {} if ask.run else {"must_call": chosen}  # a delegate's run has its own agent
        via = decision_via(id.next(), ask.call, str(decision.get("digest", "")))
        made.append((ask.run, caller.signed(decision | {"call": ask.call, "via": via} | own)))
    return made, by_person


def must_call(request: ClientRequest, found: FoundRun, answered: set[str]) -> list[str]:
    """Return the tools of which the run must call one from now on. A request's choice is valid for this request only.

    Without a choice, the agent file's tools are required until one of them is done. `answered`: the tools whose results
    are in the request.
    """
    own = set(found.record.must_call)
    done = answered | {call.tool for call in found.view.calls if call.status == "done"}
    return request.changes.must_call or ([] if own & done else found.record.must_call)


def _decision(ask: RequiredAction, verdict: JsonObject) -> JsonObject:
    """Return a verdict as a decision on a call. For a question, the reason is the answer."""
    if ask.question and verdict["decision"] == "approve":
        if not verdict["reason"]:
            raise refused(f"{ask.request_id} is a question: send its answer as the reason", "input", "invalid_value")
        return {"decision": "answer", "answer": verdict["reason"]}
    return verdict


def read_verdict(verdict: Json, *, question: bool) -> JsonObject:
    """Return the verdict in an approval tool's result: `approve`, `reject`, or `{"approve", "reason"}`; for a question the answer."""
    approve = verdict.get("approve") if isinstance(verdict, dict) else _WORDS.get(str(verdict).strip().lower())
    reason = verdict.get("reason") if isinstance(verdict, dict) else None
    if question and not isinstance(verdict, dict):
        return {"decision": "approve", "reason": str(verdict)}
    if not isinstance(approve, bool):
        words = "'approve', 'reject', or {\"approve\": true or false, \"reason\": …}"
        raise refused(f"an approval's result must be {words}", "messages", "invalid_value")
    return {"decision": "approve" if approve else "reject", "reason": str(reason or "")}


_KNOWN_WITHIN: Final = 5.0
"""Timeout in seconds for a session's answer whether it knows a run."""
_TOPICS: Final[frozenset[Topic]] = frozenset({"lifecycle", "request", "tool", "approval"})
"""The topics of events that may end a response."""
_SILENT: Final = (2.0, 60.0)
"""Seconds without an event after which a waiting run is queried: the first pause, which doubles each time, and the longest."""
_SILENT_BELOW: Final = 10.0
"""The longest pause while a call runs: its delegate's run may begin to wait, and no event of the run reports it."""


class RunFinder:
    """Finds runs by the ids of their responses. Another tenant's runs are not found."""

    def __init__(self, perdure: Perdure) -> None:
        self._perdure = perdure
        self._records: OrderedDict[str, Record] = OrderedDict()
        """A cache of records, which never change."""
        self._trees = RunTreeReader()

    def run(self, tenant: str, id: ResponseId, path: str = "") -> Run[object]:
        """Return the run, or with a `path` a delegate's run, without a query."""
        return self._perdure.get_run("/".join(filter(None, (id.run_id(tenant), path))))

    async def find(self, tenant: str, id: ResponseId) -> FoundRun | None:
        """Return the run; `None` if it has not begun. Raises `HttpError` (404) for an unknown response."""
        run = self.run(tenant, id)
        try:
            view = await self._view(tenant, id, run)
            record = None if view is None else await self.record(run)
        except RunNotFoundError:
            raise not_found(str(id)) from None
        if view is None or (record is None and not view.agent and view.status == "running"):
            return None
        if record is None:  # the run was not started here
            raise not_found(str(id))
        found = await self._found(run, view, record)
        if id.leg > found.leg:
            raise not_found(str(id))
        return found

    async def stored(self, tenant: str, id: ResponseId) -> FoundRun | None:
        """Find a stored run as `find` does. The run of a deleted session is not found, although the server still has it."""
        found = await self.find(tenant, id)
        if found is None:
            return None
        if not found.record.stored or found.record.chat:
            raise not_found(str(id))
        if id.run and found.view.status != "running":
            try:
                await self._perdure.session(id.key, tenant=tenant).wait(found.view.run_id, _KNOWN_WITHIN)
            except RunNotFoundError:
                raise not_found(str(id)) from None
        return found

    async def begun(self, tenant: str, id: ResponseId) -> FoundRun:
        """Return the run, once it has begun. Raises as `find` does."""
        return await poll(lambda: self.find(tenant, id))

    async def settled(self, tenant: str, id: ResponseId) -> FoundRun:
        """Return the run once the response has ended: with its answer, or because it waits for its client."""
        found = await self.begun(tenant, id)
        if not is_settled(found, id):
            async with aclosing(self.watch(tenant, id, found)) as events:
                async for _ in events:
                    pass
            found = await self.ended(tenant, id)
        return found

    async def watch(
        self, tenant: str, id: ResponseId, found: FoundRun, topics: frozenset[Topic] = frozenset()
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of the run from its beginning until the response has ended. `topics`: more topics; texts are
        the response's own.

        Query the run only after events that may have ended the response.
        """
        last = found.last_request(id.leg) if is_settled(found, id) else None
        before = found.last_request(id.leg - 1) if id.leg > 1 else 0
        topics = (topics | _TOPICS) - ({"assistant"} if found.record.formatted else set())
        waiting: set[str] = set()
        working = {call.id for call in found.view.calls if call.status == "running"}
        events_of_run = self._perdure.events(id.run_id(tenant), topics=topics)

        def pauses() -> tuple[float, float]:
            return _SILENT[0], _SILENT_BELOW if working else _SILENT[1]

        async with aclosing(with_pauses(events_of_run, pauses)) as events:
            async for event in events:
                if event is not None:
                    if event.topic != "assistant" or event.data["request"] > before:
                        yield event
                    if event.topic == "tool" and event.phase != "update":
                        change = working.add if event.phase == "start" else working.discard
                        change(str(event.data.get("call")))
                    note_waiting(waiting, event)
                if last is not None:
                    if event is None or (
                        event.topic == "request" and event.data.get("number") == last and event.phase == "end"
                    ):
                        return
                elif (waiting and (event is None or event.phase in ("start", "end"))) or (working and event is None):
                    seen = await self.find(tenant, id)
                    if seen is not None and is_settled(seen, id):
                        return

    async def ended(self, tenant: str, id: ResponseId) -> FoundRun:
        """Return the run once it has ended: its last event arrives a moment earlier."""

        async def look() -> FoundRun | None:
            found = await self.find(tenant, id)
            return found if found is not None and is_settled(found, id) else None

        return await poll(look)

    async def record(self, run: Run[object]) -> Record | None:
        """Return the run's record of its request; `None`: not started here, or the run has not read its agent file yet."""
        if (record := self._records.get(run.id)) is None:
            record = record_of(loads(await run.value("metadata")))
            if record is None:
                return None
            self._records[run.id] = record
            while len(self._records) > REMEMBERED:
                self._records.popitem(last=False)
        return record

    async def _found(self, run: Run[object], view: RunView, record: Record) -> FoundRun:
        output = (await with_output(run, view)).output
        with clear_errors(run.client, run.id):
            described = await run.handle.describe()
        ended = described.close_time.timestamp() if described.close_time and view.status != "running" else None
        return FoundRun(view, record, output, ended, await self._below(run, view, record))

    async def _below(self, run: Run[object], view: RunView, record: Record) -> dict[str, RunView]:
        """Return its delegates' runs, if one of them may wait for its client."""
        begun = any(call.started_at is not None and call.tool not in record.names for call in view.calls)
        with_client_tools = record.client_tools or bool(record.tools)
        if not begun or not (record.approves or with_client_tools):
            return {}
        return await self._trees.below(run, asked=not with_client_tools)

    async def _view(self, tenant: str, id: ResponseId, run: Run[object]) -> RunView | None:
        if not id.run:
            return await run.view()
        return await self._perdure.session(id.key, tenant=tenant).view_run(run.id)


def is_settled(found: FoundRun, id: ResponseId) -> bool:
    """Whether the response has ended."""
    return found.status(id.leg) not in ("queued", "in_progress")


Mode = Literal["followup", "reject"]
_MESSAGE: Final = "openai-"
"""The prefix of the ids of this adapter's messages in sessions."""
NO_PREVIOUS: Final = "previous_response_not_found"


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A request's key, and its session's or run's key here (R10.1)."""

    owned: RequestKey
    key: str
    """The key of the request's session or run."""

    @classmethod
    def of(cls, caller: Caller, owned: RequestKey) -> Idempotency:
        return cls(owned, key_of(caller.tenant, caller.sender, owned.wanted.key))

    @property
    def body(self) -> str:
        """The digest of the request."""
        return self.owned.wanted.body

    @property
    def message(self) -> str:
        """The id of the request's message in any session."""
        return f"{_MESSAGE}{self.key}"


class RunStarter:
    """Starts and continues runs for requests."""

    def __init__(self, gateway: Gateway, finder: RunFinder) -> None:
        self._gateway = gateway
        self._perdure = gateway.perdure
        self._finder = finder

    async def begin(
        self, caller: Caller, request: ClientRequest, idempotency: Idempotency | None = None
    ) -> tuple[ResponseId, Record]:
        """Start or continue a run. Return the response's id once a workflow history has it. Raises `HttpError`."""
        self._agent(request.model)
        if (before := await self._answered(caller, idempotency)) is not None:
            return before
        try:
            return await self._begin(caller, request, idempotency)
        except HttpError:  # a concurrent duplicate of the request may have been faster
            if (before := await self._answered(caller, idempotency)) is None:
                raise
            return before

    async def _begin(
        self, caller: Caller, request: ClientRequest, idempotency: Idempotency | None
    ) -> tuple[ResponseId, Record]:
        if request.previous is not None:
            return await self._after(caller, request, request.previous, idempotency)
        if request.conversation is not None:
            return await self._in_conversation(caller, request, request.conversation, idempotency)
        key = new_key() if idempotency is None else idempotency.key
        if request.client_input.outputs or not request.store or request.chat:
            return await self.alone(caller, request, key, idempotency)
        record = self._record(caller, request, key)
        return await self._send(caller, request, key, record, "followup", idempotency), record

    async def _answered(self, caller: Caller, idempotency: Idempotency | None) -> tuple[ResponseId, Record] | None:
        """Return the response of an earlier attempt of this request; `None` for a new request, or a failed attempt."""
        earlier = None if idempotency is None else await idempotency.owned.answer()
        if not earlier or (id := response_id(earlier)) is None:
            return None
        try:
            found = await self._finder.find(caller.tenant, id)
        except HttpError as error:
            if error.status != 404:
                raise
            return None
        return None if found is None else (id, found.record)

    async def alone(
        self, caller: Caller, request: ClientRequest, key: str, idempotency: Idempotency | None
    ) -> tuple[ResponseId, Record]:
        """Start a run without a session, from a whole history. Continue a run that waits for the results at the history's end."""
        if request.client_input.outputs and (found := await self._waiting_for(caller, request)) is not None:
            return await self.go_on(caller, request, *found, idempotency), found[1].record
        id = ResponseId(key)
        run_id, wanted = id.run_id(caller.tenant), None
        agent = self._agent(request.model).version_for(run_id, tenant=caller.tenant)
        record = self._record_of(caller, request, agent)
        whole = with_history(self._changed(agent, request, record, alone=True), request.client_input, record.source)
        if idempotency is not None:
            if not await idempotency.owned.take() and (before := await self._answered(caller, idempotency)) is not None:
                return before
            wanted = IdempotentStart(idempotency.owned.wanted.key, run_id, idempotency.body)
        try:
            await self._perdure.start(
                Agent.of(whole),
                id=run_id if wanted is None else None,  # a key names the run itself
                key=wanted,
                sender=caller.sender,
                tenant=caller.tenant or None,
                context=caller.context,
            )
        except RunExistsError:
            raise key_reused_error() from None
        return id, record

    async def go_on(
        self, caller: Caller, request: ClientRequest, id: ResponseId, found: FoundRun, idempotency: Idempotency | None
    ) -> ResponseId:
        """Send the client's answers to a waiting run. Raises `HttpError` if the run waits for more."""
        if request.model != found.record.agent:
            raise refused(f"{id} continues only with {found.record.agent!r}, its first agent", "model", "invalid_value")
        if replace(request.changes, must_call=[]) != Changes() and request.changes.digest != found.record.changes:
            raise unsupported_error("tools", f"{id} continues with its first instructions, tools and settings")
        if request.client_input.before and (request.previous or request.conversation):
            raise unsupported_error("input", "a run that continues accepts results, decisions and a user's messages")
        answers, by_person = decisions(request, id, found, caller)
        if by_person:
            caller.check("approve", "decide approval requests")
        for text in request.client_input.texts if id.run else ():
            _check_no_command(text)
        is_first = idempotency is None or await idempotency.owned.take(str(id.next()))
        run = self._finder.run(caller.tenant, id)
        try:
            decided = [self._finder.run(caller.tenant, id, path).decide(decision) for path, decision in answers]
            await asyncio.gather(*decided)
            for text in request.client_input.texts:
                await self._steer(caller, run, id, text)
        except (DecisionRefusedError, MessageRefusedError, RunEndedError) as error:
            if is_first:
                raise refused(str(error), "input", "conflict") from None
        return id.next()

    async def _steer(self, caller: Caller, run: Run[object], id: ResponseId, text: str) -> None:
        if not id.run:
            await check_same_context(caller, run)
            await run.steer(text, by=caller.sender)
            return
        session = self._perdure.session(id.key, tenant=caller.tenant)
        if problem := await steer(session, caller, run.id, text):
            raise refused(f"{id} accepts no more messages of {caller.sender!r}: {problem}", "input", "conflict")

    async def _after(
        self, caller: Caller, request: ClientRequest, previous: str, idempotency: Idempotency | None
    ) -> tuple[ResponseId, Record]:
        id, found = await self._previous(caller, previous)
        status = found.status(id.leg)
        if status in ("queued", "in_progress"):
            raise refused(f"{previous} is still running: wait for it, or cancel it", "previous_response_id", "conflict")
        if found.view.status == "running":
            if id.leg < found.leg:
                raise refused(f"{previous} was already continued", "previous_response_id", "conflict")
            return await self.go_on(caller, request, id, found, idempotency), found.record
        if request.client_input.outputs or request.client_input.verdicts:
            raise refused(f"no request waits in {previous}", "input", "invalid_value")
        self._check_agent(caller, request, found.record.agent)
        if not id.run:  # the run has no session: a new session begins with its messages
            key = new_key() if idempotency is None else idempotency.key
            record = self._record(caller, request, key, messages_of(found.record, answer_of(found), found.view.met))
            return await self._send(caller, request, key, record, "followup", idempotency), record
        record = self._record(caller, request, id.key, found.record.before)
        return await self._continue(caller, request, id, record, idempotency), record

    async def _previous(self, caller: Caller, previous: str) -> tuple[ResponseId, FoundRun]:
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
            raise refused(f"{previous} has not started: wait for it, or cancel it", "previous_response_id", "conflict")
        return id, found

    async def _continue(
        self, caller: Caller, request: ClientRequest, id: ResponseId, record: Record, idempotency: Idempotency | None
    ) -> ResponseId:
        """Start the next run of the session, or of a fork if this response already has a successor (R10.20)."""
        session = self._perdure.session(id.key, tenant=caller.tenant)
        view = await session.show()
        earlier_run = None if idempotency is None else _run_of_message(view, idempotency.message, caller.sender)
        if earlier_run is not None:
            # The same message as before. A different text under its id is rejected.
            await self._send(caller, request, id.key, record, "reject", idempotency)
            return of_run(id.key, earlier_run)
        if view.run_id is None and not view.queue and _last_run(view) == id.run_id(caller.tenant):
            with suppress(MessageRefusedError):
                new = await self._send(caller, request, id.key, record, "reject", idempotency)
                if new.number == id.number + 1:
                    return new
                with suppress(RunError):  # another request was faster, and its run has ended: use a fork
                    await self._finder.run(caller.tenant, new).cancel()
        key = new_key() if idempotency is None else key_of(idempotency.key, str(id))
        with suppress(RunExistsError):
            await session.fork(str(id.number), key)
        return await self._send(caller, request, key, record, "followup", idempotency)

    async def _in_conversation(
        self, caller: Caller, request: ClientRequest, conversation: str, idempotency: Idempotency | None
    ) -> tuple[ResponseId, Record]:
        key = conversation_key(conversation)
        if key is None:
            raise _no_conversation(conversation)
        id, found, agent = await self._latest(caller, key)
        if found is not None and found.view.status == "running" and found.pauses:
            id = ResponseId(key, id.run, found.leg)
            return await self.go_on(caller, request, id, found, idempotency), found.record
        if request.client_input.outputs or request.client_input.verdicts:
            raise refused("no request waits in this conversation", "input", "invalid_value")
        last = None if found is None else found.record
        if id.run:  # the conversation has a run, perhaps of another adapter
            self._check_agent(caller, request, agent)
            last = last or await self._last_record(caller, key)
        record = self._record(caller, request, key, () if last is None else last.before)
        return await self._send(caller, request, key, record, "followup", idempotency), record

    async def _latest(self, caller: Caller, key: str) -> tuple[ResponseId, FoundRun | None, str]:
        """Return a session's last run, its request if it was started here, and the session's agent.

        Raises `HttpError` (404) for an unknown session.
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
            return id, None, view.agent  # another adapter started the run

    async def _last_record(self, caller: Caller, key: str) -> Record | None:
        """Return the record of a session's last run that was started here; `None` without one."""
        entries = await self._perdure.session(key, tenant=caller.tenant).read_entries()
        own = [entry for entry in reversed(entries) if str(entry.get("messageId")).startswith(_MESSAGE)]
        for run_id in dict.fromkeys(str(entry["runId"]) for entry in own if entry.get("runId")):
            with suppress(RunNotFoundError):  # it has not begun, or the server has deleted it
                if (record := await self._finder.record(self._perdure.get_run(run_id))) is not None:
                    return record
        return None

    def _check_agent(self, caller: Caller, request: ClientRequest, answers: str) -> None:
        """Check the right to change the agent, if the request's differs from the one that `answers` (R10.9).

        `answers`: that agent's file, or its name, which a rollout's candidate shares.
        """
        if answers not in (request.model, self._agent(request.model).name):
            caller.check("agent", "change a conversation's agent")

    async def _send(
        self,
        caller: Caller,
        request: ClientRequest,
        key: str,
        record: Record,
        mode: Mode,
        idempotency: Idempotency | None,
    ) -> ResponseId:
        text = "\n\n".join(request.client_input.texts)
        if not text.strip():
            raise refused("'input' needs a user's message", "input", "invalid_value")
        _check_no_command(text)
        session: Session = self._perdure.session(key, tenant=caller.tenant, agent=self._agent(request.model))
        assert session.agent is not None
        agent = session.agent
        content: MessageOptions = {
            "rights": caller.rights,
            "id": f"{_MESSAGE}{new_key()}" if idempotency is None else idempotency.message,
            "mode": mode,
            "settings": settings_of(agent.document(), self._changed(agent, request, record)),
            "request": "" if idempotency is None else idempotency.body,
            "context": caller.context,
        }
        if idempotency is not None:
            session.check_message(text, sender=caller.sender, **content)
            await idempotency.owned.take()
        try:
            receipt = await session.send(text, sender=caller.sender, **content)
        except MessageRefusedError:
            if idempotency is not None and await session.knows(idempotency.message, sender=caller.sender):
                raise key_reused_error() from None
            raise
        assert receipt.run_id is not None  # only a command starts no run
        return of_run(key, receipt.run_id)

    async def _waiting_for(self, caller: Caller, request: ClientRequest) -> tuple[ResponseId, FoundRun] | None:
        """Return the run that began with the same history and waits for the results at its end."""
        id = of_call(next(iter(request.client_input.outputs)))
        if id is None:
            return None
        try:
            found = await self._finder.find(caller.tenant, id)
        except (HttpError, RunNotFoundError):
            return None
        if found is None or not found.pauses or request.model != found.record.agent:
            return None
        earlier = request.client_input.earlier[: found.record.length]
        waits = {
            id.call(ask.request_id)
            for ask in found.actions(found.leg)
            if found.record.approval_tool or not ask.approval
        }
        answered = {split_digest(call)[0] for call in request.client_input.outputs}
        fits = digest(earlier) == found.record.history and waits == answered
        goes_on = fits and request.changes.digest == found.record.changes
        return (ResponseId(id.key, id.run, found.leg), found) if goes_on else None

    def _record(self, caller: Caller, request: ClientRequest, key: str, before: Sequence[JsonObject] = ()) -> Record:
        """Return the record of a request to the session of this key."""
        session = self._perdure.session(key, tenant=caller.tenant, agent=self._agent(request.model))
        assert session.agent is not None
        return self._record_of(caller, request, session.agent, before)

    def _record_of(
        self, caller: Caller, request: ClientRequest, agent: Agent[Any], before: Sequence[JsonObject] = ()
    ) -> Record:
        approves = request.approvals and caller.may("approve")
        return new_record(
            request,
            created=int(time.time()),
            sender=caller.sender,
            approves=approves,
            source=self._gateway.client_source(caller, agent),
            before=before,
            must_call=agent.parsed.config.must_call,
            client_tools=self._gateway.agents.has_client_tool(agent),
        )

    def _changed(self, agent: Agent[Any], request: ClientRequest, record: Record, *, alone: bool = False) -> JsonObject:
        wait = self._gateway.settings.gateway_client_wait
        if problem := fetched_problem(record.before, agent.parsed.config.image_hosts):
            raise refused(problem, "input", "invalid_value")
        return changed_agent(agent.document(), request.changes, record, alone=alone, client_wait=wait)

    def _agent(self, name: str) -> Agent[Any]:
        try:
            return self._gateway.agents.get(name)
        except HttpError as error:
            if error.status != 404:
                raise
            raise refused(
                f"The model {name[:200]!r} does not exist: {error.detail}", "model", "model_not_found", status=404
            ) from None


def _check_no_command(text: str) -> None:
    """Raise `HttpError` for a text that the session would execute as a command."""
    if text.strip() in COMMANDS:
        words = f"{text.strip()!r} is a command of sessions, which this endpoint does not accept"
        raise refused(words, "input", "invalid_value")


def _no_conversation(id: str) -> HttpError:
    return refused(f"there is no conversation {id[:200]!r}", "conversation", "not_found", status=404)


def _run_of_message(view: SessionView, message: str, sender: str) -> str | None:
    """Return the run of a message that was sent before."""
    same_message = (
        entry for entry in view.entries if entry.get("messageId") == message and entry.get("sender") == sender
    )
    return next((str(entry["runId"]) for entry in same_message if entry.get("runId")), None)


def _last_run(view: SessionView) -> str | None:
    runs = (entry for entry in reversed(view.entries) if entry.get("type") == "run")
    return next((str(entry["runId"]) for entry in runs), None)
