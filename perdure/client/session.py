"""A session, as a client uses it (section 10). The caller has verified sender and rights (R10.9)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypedDict, TypeVar

from pydantic import ValidationError
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode
from typing_extensions import Unpack

from perdure.agents.agent import Agent
from perdure.agents.media import Media
from perdure.approvals.requests import WaitingView
from perdure.client import approvals, run_operations, session_operations
from perdure.client._event_relay import is_wanted, parse_topics, relay_of
from perdure.client._pending_activities import END_TAKEN_WITHIN, check_ends, find_wait_reason, unanswered
from perdure.client._run_lists import STATUS
from perdure.client.errors import clear_errors, no_answer
from perdure.client.run import Run
from perdure.client.selection import WaitingRequest
from perdure.errors import InputError, MessageRefusedError, NoWorkerError, RunError, RunNotFoundError, RunTimeoutError
from perdure.queries import UNANSWERED, SessionReader, answer_of, query_problem
from perdure.queries.media_store import MediaStore
from perdure.runs.caller_context import read_context
from perdure.runs.events import Event, Topic
from perdure.runs.partial_output import PartialOutputEvents
from perdure.runs.wire import RunView
from perdure.sessions.recall import oldest_first, recall
from perdure.sessions.status_webhooks import SET_STATUS_WEBHOOK, STATUS_WEBHOOKS, StatusWebhook, StatusWebhookChange
from perdure.sessions.wire import (
    COMPACT,
    DECIDE_IN_SESSION,
    DESCRIBE,
    END,
    ENDED,
    EVERYTHING,
    FATE,
    REDELIVER,
    SHOW,
    WAIT,
    WITHDRAW,
    Description,
    Fate,
    Message,
    MessageWithdrawal,
    Receipt,
    Redelivery,
    SessionDecision,
    SessionDeletion,
    SessionInfo,
    SessionView,
    WaitResult,
    digest,
)
from perdure.values.arguments import check_arguments
from perdure.values.json import JsonObject
from perdure.values.messages import Mode, SessionRules
from perdure.values.problems import first_problem
from perdure.values.references import MISSING

T = TypeVar("T")
_LONG: Final = 0.3
"""The pause in seconds from which each look also checks that the session still exists."""
_SO_FAR: Final = 1.0
"""Seconds for a session to return a message's fate after the caller's timeout."""
_TIMED: Final[frozenset[Topic]] = frozenset({"lifecycle", "request", "message"})
"""Topics whose events have the time of the run itself; a delta has the time of its reader."""
_PAUSE: Final = 0.005
"""Seconds between two looks at a message whose run has not begun; twice as long after each, up to a second."""


class MessageOptions(TypedDict, total=False):
    """Options of `Session.send` beside text and sender."""

    rights: Iterable[str]
    id: str | None
    mode: Mode | None
    route: str
    settings: JsonObject | None
    request: str
    context: object


@check_arguments
class Session:
    """A session, found by its key: see `Perdure.session`. The object holds no data of the session; each method queries
    it.

    Methods raise `RunNotFoundError` if there is no such session for this tenant, `MessageRefusedError` with the reason
    if the session refuses, `NoWorkerError` if no worker answers, and `ServerError` if no server does. Sender and rights
    are those that the caller has verified.

    ```python
    session = perdure.session("ann", agent=shopper)
    print(await session.ask("Order three apples.", sender="ann"))
    ```
    """

    def __init__(
        self,
        address: session_operations.Address,
        *,
        agent: Agent[Any] | None = None,
        rules: SessionRules | None = None,
        task_queue: str,
    ) -> None:
        self._client = address.client
        self._address = address
        self._agent = None if agent is None else agent.version_for(address.id, tenant=address.tenant)
        self._rules = rules or SessionRules()
        self._task_queue = task_queue
        self.key = address.key
        self.tenant = address.tenant
        self.id: str = self._address.id
        """Its workflow's id: a digest of tenant and key (R10.2)."""

    @property
    def agent(self) -> Agent[Any] | None:
        """The agent that answers the messages that this object sends, in the version of this session; `None`: the session's own."""
        return self._agent

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """Temporal's own handle, for operations that Perdure does not offer."""
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
        settings: JsonObject | None = None,
        request: str = "",
        context: object = None,
        files: Sequence[Media] = (),
    ) -> Receipt:
        """Send a message and return its receipt, once the message is in the session's history. The first message to a
        key begins the session.

        `sender`: the verified sender. `rights`: what the sender may do here: `stop`, `new`, `reset`, `approve`,
        `withdraw`, `agent`, `delete`, `compact`, `redeliver`, or `*` for all. A run has the rights of its starter.
        `id`: the sender's idempotency key (default: a new one). The same id with the same text is the same message,
        over any number of restarts. `mode`: `steer`, `followup`, `collect` or `interrupt` (default: the session's).
        `route`: the reply's route, `name` or `name:address` (default: no delivery). `settings`: keys of the agent file
        (`context`, `config`, `schema`, `metadata`) that differ in the message's own run. `request`: a digest of other
        data that belongs to the message: a known `id` with another digest is refused. `context`: data about
        the sender, an object or a value that pydantic writes as one. Tools read it and no model does; with another
        context it is another message. `files`: pictures, documents and recordings, each of which becomes a line at the
        text's end. Raises `MediaError` if they cannot be stored, `MessageRefusedError` with
        the reason if the session refuses the message, and `RunError` if `/stop` was accepted and the run continues
        because its workflow tasks fail.

        ```python
        receipt = await session.send("Two pears, too.", sender="ann", id="telegram-4711", mode="steer")
        print(receipt.run_id, receipt.position)
        ```
        """
        # R10.1, R10.4, R10.9
        await MediaStore(self._client.data_converter, self.tenant).save(files)
        if files and isinstance(text, str):  # another text is refused below
            text = "\n".join([*([text] if text else []), *(file.value.line for file in files)])
        options: MessageOptions = {"rights": rights, "id": id, "mode": mode, "route": route, "settings": settings}
        message = self._message(text, sender, {**options, "request": request, "context": context})
        receipt = await session_operations.send(
            self._client, self._address, message, self._agent, self._rules, self._task_queue
        )
        if receipt.done == "stopped" and receipt.run_id is not None:
            # The server may no longer keep a run that has ended.
            with suppress(RunNotFoundError), clear_errors(self._client, receipt.run_id):
                await check_ends(self._client, receipt.run_id, within=END_TAKEN_WITHIN)
        return receipt

    def check_message(self, text: str, *, sender: str, **options: Unpack[MessageOptions]) -> None:
        """Check a message as `send` does before it calls the server; parameters as in `send`, without `files`. Raises
        `MessageRefusedError` with the reason. The session itself may refuse more.

        ```python
        session.check_message("Two pears, too.", sender="ann")
        ```
        """
        session_operations.check_message(self._address, self._message(text, sender, options), self._agent)

    def _message(self, text: str, sender: str, options: MessageOptions) -> Message:
        agent, id = self._agent, options.get("id")
        try:
            return Message(
                message_id=uuid.uuid4().hex if id is None else id,
                sender=sender,
                rights=list(options.get("rights", ())),
                text=text,
                mode=options.get("mode"),
                route=options.get("route", ""),
                agent="" if agent is None else digest([agent.document(), agent.delegates()]),
                settings=options.get("settings") or {},
                request=options.get("request", ""),
                context=read_context(options.get("context")),
            )
        except InputError as error:
            raise MessageRefusedError(str(error)) from None
        except ValidationError as error:
            raise MessageRefusedError(f"the message is not valid: {first_problem(error)}") from None

    async def exists(self) -> bool:
        """Whether there is such a session, from the server alone. No worker is queried, and it costs no Action.

        ```python
        if not await session.exists():
            await session.begin({"channel": "web"})
        ```
        """
        with session_operations.clear_session_errors(self._client, self.key):
            try:
                return (await self.handle.describe()).status == WorkflowExecutionStatus.RUNNING
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise
                return False

    async def wait(self, what: str | Receipt, timeout: float = WAIT, *, sender: str = "") -> WaitResult:
        """Wait for the end of the run that takes a message, found by receipt or id, or of a run, found by its id.

        `timeout`: seconds; the run continues after them, and the result's status is `timeout`. If its workflow tasks
        fail, `error` has the reason and the remedy. `sender`: the sender of the message with that id (default: its only
        sender). Raises `RunError` if several senders have such a message.

        ```python
        result = await session.wait(receipt, timeout=60)
        print(result.status, result.error)
        ```
        """
        wanted, sender = _named(what, sender)
        try:
            async with asyncio.timeout(timeout):
                fate = await self._end_of(wanted, sender)
        except TimeoutError:
            started, why = await self._so_far(wanted, sender)
            return WaitResult(status="timeout", started_at=started, error=why)
        status = fate.status or "error"
        return WaitResult(status=status, started_at=fate.started_at, ended_at=fate.ended_at, error=fate.error)

    async def reply(self, what: str | Receipt, timeout: float | None = None, *, sender: str = "") -> str | None:
        """Wait for the reply to a message and return its text; `None` if the reply is empty.

        `timeout`: seconds (default: no limit). `sender`: as `wait` has it. Raises `RunError` with the reason if there
        is no reply, and `RunTimeoutError` if there is none within `timeout`.

        ```python
        receipt = await session.send("Where is my parcel?", sender="ann")
        print(await session.reply(receipt, timeout=60))
        ```
        """
        wanted, sender = _named(what, sender)
        title = repr(what) if isinstance(what, str) else f"the message to {self.key!r}"  # its id may be a random one
        try:
            async with asyncio.timeout(timeout):
                fate = await self._end_of(wanted, sender)
        except TimeoutError:
            _, why = await self._so_far(wanted, sender)
            goes_on = "; it continues" if why is None else f": {why}"
            raise RunTimeoutError(f"{title} has no answer after {timeout:g} s{goes_on}") from None
        if fate.status != "ok":
            raise RunError(f"{title} has no answer: {fate.error or 'its run did not complete'}")
        return fate.reply

    async def ask(
        self, text: str, *, sender: str, timeout: float | None = None, **options: Unpack[MessageOptions]
    ) -> str | None:
        """Send a message and return its reply: `send`, then `reply`, with their parameters, result and errors.

        `timeout`: seconds (default: no limit). After them the run continues.

        ```python
        print(await session.ask("Where is my parcel?", sender="ann"))
        ```
        """
        # R19.2
        return await self.reply(await self.send(text, sender=sender, **options), timeout)

    async def stream(self, receipt: Receipt, topics: Iterable[str] | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of the run that answers a message, from the message to the end of that run, and no others.

        A message that waits for its turn yields nothing until then; a command, or a message that was withdrawn, never
        does. `topics`: only these (default: all). The reply as its reader receives it is `reply(receipt)`. Raises as
        `Run.events` does.

        ```python
        async for event in session.stream(receipt, topics=["assistant"]):
            if event.phase == "delta":
                print(event.data["text"], end="", flush=True)
        ```
        """
        # R19.2
        run_id, is_heard, kinds = "", False, parse_topics(topics)
        since = receipt.accepted_at if receipt.done == "steered" else ""  # its run has begun before it
        while (run := await self.answering_run(receipt, run_id)) is not None:
            run_id, pause = run.id, _PAUSE
            while await self._look(run_id, Run.started_at) is None:
                await asyncio.sleep(pause)
                pause = min(1.0, 2 * pause)
            async with aclosing(run.events(topics=kinds | _TIMED)) as events:
                async for event in events:
                    # The time of a delta is that of its reader.
                    is_heard = is_heard or (event.phase != "delta" and event.at >= since)
                    if is_heard and is_wanted(event, kinds):
                        yield event

    async def answering_run(self, receipt: Receipt, ended: str) -> Run[Any] | None:
        """Wait for the run that answers a message, and return it. It may not have begun.

        `ended`: the id of a run that has ended, or an empty text. Return `None` if that run has read the message, or if
        no run answers it: it is a command, or was withdrawn.

        ```python
        following = await session.answering_run(receipt, run.id)
        ```
        """

        def is_settled(fate: Fate) -> bool:
            # The session may learn later than this reader of a run's end, and gives the messages that it has not taken to the next one.
            return fate.state in ("ended", "withdrawn") or (fate.state == "running" and fate.run_id != ended)

        if receipt.run_id is None:
            return None
        fate = await self._until(receipt.message_id, receipt.sender, is_settled)
        if fate.state == "queued" or fate.run_id in (None, ended):
            return None
        return Run(self._client, fate.run_id)

    async def partial_output(self, receipt: Receipt) -> AsyncGenerator[Any, None]:
        """Yield the output of the run that answers a message, as `Run.partial_output` does; JSON if the session was
        found without its agent.

        If another run takes the message, its output follows. A command, or a message that was withdrawn, has none. If a
        run ends without an output, raises as `Run.result` does.

        ```python
        async for report in session.partial_output(receipt):
            print(report)
        ```
        """
        # R20.7
        fold, last, run_id = PartialOutputEvents(), MISSING, ""
        value: Any
        async with aclosing(self.stream(receipt, topics=fold.topics)) as events:
            async for event in events:
                run_id = event.run_id or run_id
                for text in fold.fold(event):
                    value = text.value if self._agent is None else self._agent.read_partial_output(text)
                    if value is not MISSING and value != last:
                        last = value
                        yield value
        if run_id:
            whole = await Run(self._client, run_id, self._agent).result()
            if last is MISSING or whole != last:
                yield whole

    async def knows(self, id: str, *, sender: str) -> bool:
        """Whether the session has accepted a message of this id from this sender.

        ```python
        known = await session.knows("telegram-4711", sender="ann")
        ```
        """
        try:
            await self._fate(id, sender)
        except RunNotFoundError:
            return False
        return True

    async def begin(self, metadata: Mapping[str, str] | None = None) -> SessionInfo:
        """Begin the session before its first message; the agent of that message answers in it. `metadata`: as
        `describe` takes it.

        Raises `RunExistsError` if the key has a session.

        ```python
        info = await perdure.session("ann").begin({"channel": "web"})
        ```
        """
        kept = _description(metadata or {})
        created = await session_operations.begin_session(self._address, kept, self._rules, self._task_queue)
        return SessionInfo(session=self.key, metadata=kept.metadata, created_at=created)

    async def about(self) -> SessionInfo:
        """Return the session's metadata and the time of its beginning, without its messages.

        ```python
        print((await session.about()).metadata)
        ```
        """
        about: SessionInfo = await self._ask(DESCRIBE, SessionInfo)
        return about

    async def describe(self, metadata: Mapping[str, str]) -> SessionInfo:
        """Replace the session's metadata: at most 16 pairs of texts, of 64 and 512 characters. No model reads them.

        Raises `MessageRefusedError` for more than that.

        ```python
        await session.describe({"channel": "web", "title": "Parcels"})
        ```
        """
        return SessionInfo.model_validate(await self._update(DESCRIBE, _description(metadata)))

    async def set_status_webhook(self, webhook: StatusWebhook, *, sender: str, remove: bool = False) -> None:
        """Send a run's status to an address: when it waits for a person, and its end. `remove`: stop that.

        A webhook with the `id` of an earlier one of this sender and run replaces it. Workers send only to
        `callback_hosts`, and retry for a day. Raises `MessageRefusedError` for a run of another session, for one that
        ended so long ago that its entry is archived, or for the 101st address.

        ```python
        webhook = StatusWebhook(run_id=receipt.run_id or "", url="https://example.com/ended")
        await session.set_status_webhook(webhook, sender="ann")
        ```
        """
        await self._update(SET_STATUS_WEBHOOK, StatusWebhookChange(webhook=webhook, remove=remove, sender=sender))

    async def status_webhooks(self, run_id: str, *, sender: str) -> list[StatusWebhook]:
        """Return the addresses that this sender has set for a run, as long as the session keeps them.

        ```python
        urls = [webhook.url for webhook in await session.status_webhooks(receipt.run_id or "", sender="ann")]
        ```
        """
        found: list[StatusWebhook] = await self._ask(STATUS_WEBHOOKS, list[StatusWebhook], run_id, sender)
        return found

    async def show(self) -> SessionView:
        """Return the session as it is now. Its status is `waiting` if its run waits for a person. If the run does not
        answer, `trouble` has the reason.

        ```python
        view = await session.show()
        print(view.status, view.entries[-1:])
        ```
        """
        view: SessionView = await self._ask(SHOW, SessionView)
        if view.status == "running":
            try:
                if await self.waiting(view):
                    view.status = "waiting"
            except NoWorkerError as error:
                view.trouble = str(error)
        return view

    async def waiting(self, view: SessionView | None = None) -> list[WaitingView]:
        """Return the approval requests of the running run, the oldest first. `view`: the view that names the run
        (default: the session as it is now).

        A run that has been accepted and not started has none. Raises `NoWorkerError` if no worker answers.

        ```python
        for request in await session.waiting():
            print(request.call, request.sentence)
        ```
        """
        seen: SessionView = await self._ask(SHOW, SessionView) if view is None else view
        return [] if seen.run_id is None else await self._look(seen.run_id, Run.waiting) or []

    async def waiting_below(self, view: SessionView | None = None) -> list[WaitingRequest]:
        """Return the approval requests of the running run and of its delegates' runs, each with its run's id, the
        oldest first.

        `view` and errors are those of `waiting`. `decide` takes the id as `run`.

        ```python
        for each in await session.waiting_below():
            print(each.run_id, each.request.sentence)
        ```
        """
        seen: SessionView = await self._ask(SHOW, SessionView) if view is None else view
        if seen.run_id is None:
            return []
        with session_operations.clear_session_errors(self._client, self.key):
            found, problems = await approvals.waiting_in(self._client, [seen.run_id, *seen.waiting_runs])
        if problems:
            raise problems[0]
        return found

    async def view_run(self, run_id: str) -> RunView | None:
        """Return a run of the session as it is now; `None` if the session has accepted it and it has not begun.

        Raises `RunNotFoundError` for an unknown run, or one that has ended without beginning.

        ```python
        view = await session.view_run(receipt.run_id or "")
        ```
        """
        return await self._look(run_id, Run.view)

    async def _look(self, run_id: str, look: Callable[[Run[Any]], Awaitable[T]]) -> T | None:
        """Return the result of `look` for a run of the session; `None`: the run has not begun. Raises as `view_run`
        does.
        """
        run, ended = Run(self._client, run_id), False
        while True:
            try:
                return await look(run)
            except RunNotFoundError:
                if ended:
                    raise
            fate = await self._fate(run_id)
            if fate is None or fate.state in ("queued", "running"):
                return None
            ended = True  # it may have begun and ended between the two looks

    async def run(self) -> Run[Any] | None:
        """Return the running run; `None` if there is none.

        ```python
        if run := await session.run():
            await run.cancel()
        ```
        """
        view: SessionView = await self._ask(SHOW, SessionView)
        return None if view.run_id is None else Run(self._client, view.run_id)

    async def events(
        self, from_: str | None = None, topics: Iterable[str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of the session and of its runs, from the beginning until the session has ended: its own
        events, and those of each run between the run's start and its end.

        Parameters and errors are those of `Run.events`. One cursor holds the position in both.

        ```python
        async for event in session.events(from_="now", topics=["message", "reply"]):
            print(event.at, event.topic, event.phase)
        ```
        """
        # R10.14
        with session_operations.clear_session_errors(self._client, self.key):
            kinds = parse_topics(topics)
            async with aclosing(relay_of(self._client).session(self.id, from_, kinds)) as events:
                async for event in events:
                    yield event

    async def withdraw(self, id: str, *, sender: str, rights: Iterable[str] = (), of: str = "") -> None:
        """Withdraw a message, as long as no Request holds it.

        `of`: the message's sender (default: `sender`). To withdraw the message of another sender, `rights` must include
        `withdraw`. Raises `MessageRefusedError` if a Request holds the message.

        ```python
        await session.withdraw("telegram-4711", sender="ann")
        ```
        """
        # R10.7
        await self._update(WITHDRAW, MessageWithdrawal(message_id=id, sender=sender, rights=list(rights), of=of))

    async def stop(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> Receipt:
        """End the running run; messages that wait stay in the queue. The same as the message `/stop`.

        ```python
        await session.stop(sender="ann")
        ```
        """
        return await self.send("/stop", sender=sender, rights=rights)

    async def new(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> Receipt:
        """Begin an empty conversation behind the messages that were accepted. The state stays, and nothing is deleted.
        The same as `/new`.

        ```python
        await session.new(sender="ann")
        ```
        """
        return await self.send("/new", sender=sender, rights=rights)

    async def reset(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> Receipt:
        """Begin a new conversation as `new` does, with the state of the agent's file. The same as the message `/reset`.

        ```python
        await session.reset(sender="ann")
        ```
        """
        return await self.send("/reset", sender=sender, rights=rights)

    async def decide(
        self,
        decision: JsonObject,
        *,
        sender: str,
        rights: Iterable[str] = (),
        roles: Iterable[str] = (),
        run: str | None = None,
    ) -> JsonObject:
        """Decide on a call of the running run, or of a delegate's run, and return the result: `{"call",
        "decision"}`, with `missing` if a quorum needs more approvals. `rights` must include `approve`; `roles`: the
        sender's, for a quorum.

        `decision`: `{"call": "1.0", "decision": "approve", …}`. `run`: the id of the call's run, as `waiting_below`
        returns it (default: the running run if something waits in it, else the only run below it in which something
        waits). Raises `MessageRefusedError` with the reason why nothing changed.

        ```python
        await session.decide({"call": "1.0", "decision": "approve"}, sender="ann", rights=["approve"])
        ```
        """
        # R10.9
        asked = SessionDecision(decision=decision, sender=sender, rights=list(rights), roles=list(roles), run=run)
        answer: JsonObject = await self._update(DECIDE_IN_SESSION, asked)
        return answer

    async def delete(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> None:
        """End the session and its run, and delete both from the server. The key may then begin another session.

        ```python
        await session.delete(sender="ann")
        ```
        """
        await self._update(END, SessionDeletion(sender=sender, rights=list(rights)))
        await self._forget()

    async def redeliver(self, delivery: str, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> None:
        """Deliver a reply of status `unknown` once more, under the same key. `rights` must include `redeliver`.

        `delivery`: `<run>/<reply>`, the reply's `key`. Raises `MessageRefusedError` for a reply that was delivered or
        refused.

        ```python
        await session.redeliver("perdure-session-1a2b/3/1", sender="ann")
        ```
        """
        await self._update(REDELIVER, Redelivery(delivery=delivery, sender=sender, rights=list(rights)))

    async def compact(self, *, sender: str, rights: Iterable[str] = (EVERYTHING,)) -> str:
        """Replace the old part of the conversation by a summary, and return a report as text. `rights` must
        include `compact`.

        ```python
        print(await session.compact(sender="ann"))
        ```
        """
        # R10.11
        answer = await self._update(COMPACT, SessionDeletion(sender=sender, rights=list(rights)))
        return str(answer["compacted"])

    async def recall(self, what: str, page: int = 1) -> JsonObject:
        """Read in full what the conversation shows in part or as a summary.

        `what`: a call by its id there (`c12_1_0`) or an entry by its number; the result is `{"what", "page", "pages",
        "text"}`. Other words are a search, with the result `{"what", "page", "found": [{"n", "type", "at", "text"}],
        "more"}`, and `gone` if an older part of the transcript no longer exists. `page`: counted from 1. Raises `RunError` if nothing is found.

        ```python
        found = await session.recall("parcel")
        ```
        """
        # R10.12
        with session_operations.clear_session_errors(self._client, self.key):
            await self._ask(FATE, Fate, "")  # a deleted session rejects queries, though the server may still have it
            return await recall(SessionReader(self._client, self.id), what, page)

    async def read_entries(self) -> list[JsonObject]:
        """Return all entries of the session, archived ones too, the oldest first, as `session show --json` prints them.

        Raises `RunError` if one cannot be read: the list is never shorter than the session.

        ```python
        texts = [entry["text"] for entry in await session.read_entries() if entry["type"] == "message"]
        ```
        """
        with session_operations.clear_session_errors(self._client, self.key):
            await self._ask(FATE, Fate, "")  # a deleted session rejects queries, though the server may still have it
            return [entry.as_json() async for entry in oldest_first(SessionReader(self._client, self.id))]

    async def export(self) -> JsonObject:
        """Return the session as JSON, with all entries and files: `Perdure.import_session` restores it in another namespace.

        While a run, a reply or a message has not ended, the export has only entries and files, and its `problem` names
        the reason. Raises `RunError` if an entry cannot be read.

        ```python
        Path("ann.json").write_text(json.dumps(await session.export()))
        ```
        """
        # R24.5
        from perdure.client.exports import export_session  # imports the workflows, for a replay

        await self._ask(FATE, Fate, "")
        return (await export_session(self._address)).as_json()

    async def watch(self) -> AsyncGenerator[JsonObject, None]:
        """Yield the entries that are not archived, and each later entry as it is written, until the session has
        ended.

        ```python
        async for entry in session.watch():
            print(entry["n"], entry["type"])
        ```
        """
        last, at = 0, ""
        with session_operations.clear_session_errors(self._client, self.key):
            for entry in (await self.show()).entries:
                last, at = entry["n"], str(entry["at"])
                yield entry
            topics = parse_topics(("lifecycle", "message", "reply", "compaction"))
            async with aclosing(relay_of(self._client).session(self.id, None, topics)) as events:
                async for event in events:
                    if event.at < at:
                        continue  # the event of an entry that was yielded
                    try:
                        entries = (await self.show()).entries
                    except RunNotFoundError:
                        return  # the session has ended meanwhile
                    for entry in entries:
                        if entry["n"] > last:
                            last, at = entry["n"], str(entry["at"])
                            yield entry

    async def fork(self, at: str, key: str | None = None) -> Session:
        """Return a new session that begins with the conversation of this one, up to a run (`"3"`) or a Request of it
        (`"3.1"`).

        `key`: the new session's key (default: this one's with a random suffix). No call runs again, and this session
        stays as it is. Raises `RunError` if there is no such place.

        ```python
        other = await session.fork("3", key="ann-again")
        ```
        """
        # R10.20
        key = key or f"{self.key}-{uuid.uuid4().hex[:8]}"
        address = session_operations.Address(self._client, key, self.tenant)
        await self._ask(FATE, Fate, "")
        await session_operations.begin_fork(self._address, at, address)
        return self._sibling(address)

    def _sibling(self, address: session_operations.Address) -> Session:
        return Session(address, agent=self._agent, rules=self._rules, task_queue=self._task_queue)

    async def _end_of(self, what: str, sender: str) -> Fate:
        """Return the fate of a message once it has ended."""
        fate = await self._until(what, sender, lambda fate: fate.state in ("ended", "withdrawn"))
        return fate if fate.status is not None else await self._archived(fate)

    async def _until(self, what: str, sender: str, is_settled: Callable[[Fate], bool]) -> Fate:
        """Return the fate of a message once it is settled, or an error if the session was ended from outside before."""
        pause, over = _PAUSE, None
        while True:
            fate = await self._fate(what, sender)
            if fate is not None and over is not None and fate.state in ("queued", "running"):
                return fate.model_copy(
                    update={"status": "error", "error": f"the session was {over} by a Temporal command"}
                )
            if fate is not None and is_settled(fate):
                return fate
            run_id = None if fate is None else fate.run_id if fate.state == "running" else fate.under_way
            if run_id is not None:
                await self._until_ended(run_id)
            await asyncio.sleep(pause)  # the run begins soon, or the session is about to learn of its end
            pause = min(1.0, 2 * pause)
            over = await self._over() if pause > _LONG else None

    async def _archived(self, fate: Fate) -> Fate:
        """Return the end of a run that the session itself no longer has: from the archive, or else from the server."""
        if fate.run_id is None:
            return fate
        found = await SessionReader(self._client, self.id).end_of(fate.run_id)
        return found if found is not None else await session_operations.fetch_former_fate(self._client, fate)

    async def _over(self) -> str | None:
        """Return the status of a session that was ended from outside; `None`: it was not, or the server does not
        answer.
        """
        try:
            described = await self.handle.describe()
        except RPCError:
            return None
        status = "running" if described.status is None else STATUS[described.status]
        return status.replace("_", " ") if status in ("cancelled", "terminated", "timed_out", "failed") else None

    async def _until_ended(self, run_id: str) -> None:
        try:
            await run_operations.wait_for_result(self._client, run_id)
        except RPCError as error:
            if error.status not in UNANSWERED and "not found" not in error.message:
                raise

    async def _fate(self, what: str, sender: str = "") -> Fate | None:
        """Return the fate of a message or a run; `None`: no worker answers now. Raises `RunNotFoundError` for an unknown id."""
        with session_operations.clear_session_errors(self._client, self.key):
            try:
                fate: Fate = await self._query(FATE, Fate, what, *([sender] if sender else []))
            except RPCError as error:
                if error.status in UNANSWERED or error.status == RPCStatusCode.FAILED_PRECONDITION:
                    return None  # `FAILED_PRECONDITION`: the session's last task failed
                raise
        if not fate.known:
            fate = await SessionReader(self._client, self.id).fate(what, sender)
        if not fate.known:
            raise RunNotFoundError(f"the session {self.key!r} has no message and no run {what!r}")
        return fate

    async def _so_far(self, what: str, sender: str) -> tuple[str | None, str | None]:
        """Return the start of the awaited run, and the reason why it, or the run before it, has not ended
        (R18.10).

        Each is `None` if it does not apply.
        """
        fate = None
        with suppress(TimeoutError, RunError):
            async with asyncio.timeout(_SO_FAR):
                fate = await self._fate(what, sender)
        if fate is None:  # no worker answers for the session
            return None, await find_wait_reason(self._client, self.id)
        runs = fate.state == "running"
        started = (
            await session_operations.fetch_start_time(self._client, fate.run_id)
            if runs and fate.run_id is not None
            else None
        )
        under_way = fate.run_id if runs else fate.under_way
        return started, None if under_way is None else await find_wait_reason(self._client, under_way)

    async def _ask(self, query: str, kind: type[Any], *arguments: Any) -> Any:
        with session_operations.clear_session_errors(self._client, self.key):
            try:
                return await self._query(query, kind, *arguments)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise
                await self.handle.describe()  # if the server answers, it is the worker that does not
                nobody = no_answer(error, self.key)
                raise await unanswered(self._client, self.id, nobody, f"the session {self.key!r}") from None

    async def _query(self, query: str, kind: type[Any], *arguments: Any) -> Any:
        try:
            return await answer_of(self.handle, query, *arguments, result_type=kind, client=self._client)
        except WorkflowQueryFailedError as error:
            if ENDED in str(error):
                raise RunNotFoundError(f"there is no session {self.key!r}: it was deleted") from None
            raise RunError(f"the session {self.key!r} cannot be queried: {query_problem(self.id, error)}") from None

    async def _forget(self) -> None:
        await session_operations.forget(self._client, self.id)

    async def _update(self, name: str, argument: Any) -> Any:
        return await session_operations.update(self._client, self._address, name, argument)

    def __repr__(self) -> str:
        return f"Session({self.key!r})"


def _description(metadata: Mapping[str, str]) -> Description:
    """Return the metadata as a `Description`. Raise `MessageRefusedError` for more than a session keeps."""
    try:
        return Description(metadata=dict(metadata))
    except ValidationError as error:
        raise MessageRefusedError(f"the metadata of the session is not valid: {first_problem(error)}") from None


def _named(what: str | Receipt, sender: str) -> tuple[str, str]:
    """Return a message's or a run's id, and the message's sender."""
    return (what, sender) if isinstance(what, str) else (what.message_id, sender or what.sender)
