"""Operations on sessions through a Temporal client."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import UpdateRef, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    GetSystemInfoRequest,
    PollWorkflowExecutionUpdateRequest,
)
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._pending_activities import explain_stall, unanswered
from perdure.client._run_lists import KEY_MEMO, STATUS, TITLE, TITLE_MEMO, names_attribute, start_attributes
from perdure.client.errors import clear_errors, silent_server
from perdure.client.tenancy import owned_memo, queue_priority
from perdure.errors import MessageRefusedError, NoWorkerError, RunExistsError, RunNotFoundError
from perdure.queries import UNANSWERED, SearchAttributes, SessionReader, answer_of, cancellable, update_with_start
from perdure.queries.media_store import erasable
from perdure.runs.provenance import CONVERSATION
from perdure.sessions.agent_file import input_name, with_settings
from perdure.sessions.fork import fork, run_number
from perdure.sessions.message_queue import (
    QueueState,
    check_command,
    check_content,
    check_name,
    check_text,
    judge_context,
)
from perdure.sessions.transcript import SESSION_FORM, SessionSnapshot
from perdure.sessions.wire import (
    FORK_INPUT,
    SEND,
    SESSION_WORKFLOW,
    UNKNOWN_AGENT,
    Description,
    Fate,
    Message,
    Receipt,
    SessionInput,
    session_id,
)
from perdure.values.json import pack
from perdure.values.limits import MAX_AGENT
from perdure.values.messages import SessionRules
from perdure.values.references import Reference
from perdure.values.sizes import Sizes

if TYPE_CHECKING:
    from perdure.agents.agent import Agent


ANSWERS_WITHIN: Final = 30.0
"""Seconds to wait for a receipt. The session may still accept the message later; a repeated send with its id is the
same message. While the session works on an accepted update, the wait has no limit: a compaction may take minutes.
"""
_ONE: Final = timedelta(seconds=10)
_ANSWERS: Final = timedelta(seconds=2)
"""The timeout of the check that a server answers."""
_AGAIN: Final = UNANSWERED | {
    RPCStatusCode.ABORTED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.FAILED_PRECONDITION,
}
"""Temporary errors: the session continues as new, its worker is being replaced, or the server restarts."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a session: its tenant and key, or its id."""

    client: Client
    key: str
    tenant: str = ""
    known: str | None = None
    """The workflow's id, if key and tenant are unknown."""

    @property
    def id(self) -> str:
        """Return the id of the session's workflow (R10.2)."""
        return self.known or session_id(self.tenant, self.key)

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(self.id)


async def send(
    client: Client, session: Address, message: Message, agent: Agent[Any] | None, rules: SessionRules, task_queue: str
) -> Receipt:
    """Send the message, and start the session if it does not exist. An unanswered send is retried; the message's id makes the retries one message.

    Raises `MessageRefusedError`, `RunNotFoundError` without a session and an agent to begin one, and `NoWorkerError`.
    """
    check_message(session, message, agent)
    starts, searchable, registered = False, True, False
    # All attempts share this update id, so the server treats them as one. A repeated send of the message needs another
    # id: a server still answers for an execution that has ended, and the session may be deleted by then.
    id = uuid.uuid4().hex

    async def attempt() -> Any:
        nonlocal starts, searchable, registered
        try:
            if not starts or agent is None:
                return await _update(session, SEND, message, id)
            given = _input(session, message, agent, rules, searchable)
            return await _update_with_start(client, session, message, agent, given, task_queue, id)
        except RPCError as error:
            if names_attribute(error):
                searchable = not registered
                if not registered:  # as a worker does at its start; after that, start without them
                    await SearchAttributes().ensure(client)
                    registered = True
            elif error.status is RPCStatusCode.NOT_FOUND and agent is not None and not starts:
                starts = True
            else:
                raise
            return None

    async with _clear_update_errors(client, session):
        while True:
            try:
                if (answer := await _wait_for_answer(client, session, id, attempt)) is not None:
                    return Receipt.model_validate(answer).model_copy(update={"sender": message.sender})
            except WorkflowUpdateFailedError as error:
                cause = error.cause
                if agent is None or not isinstance(cause, ApplicationError) or cause.type != UNKNOWN_AGENT:
                    raise
                given = _input(session, message, agent, rules, searchable)
                message = message.model_copy(update={"document": given.document, "delegates": given.delegates})
                # The session did not accept this message, but the server may have recorded its failure under the id.
                id = uuid.uuid4().hex
    raise AssertionError


def check_message(session: Address, message: Message, agent: Agent[Any] | None) -> None:
    """Check what is known of a message before it is sent. `agent`: its own. Raise `MessageRefusedError`."""
    check_name(session.key, "the session's key")
    check_text(session.tenant)
    check_content(message)
    check_command(message)
    if agent is None:
        return
    document = agent.document()
    input_name(with_settings(document, message.settings))
    if (size := Sizes().of([document, agent.delegates()])) > MAX_AGENT:
        raise MessageRefusedError(f"the agent file has {size:,} bytes; the limit is {MAX_AGENT:,} in a session")
    if message.command is None:  # a command does not reach the agent
        judge_context(message, agent.parsed.caller_context)


async def update(client: Client, session: Address, name: str, argument: Any) -> Any:
    """Send an update to an existing session, and return its answer. Raises as `send` does."""
    id = uuid.uuid4().hex  # one id for all attempts, as in `send`: the first one may have counted
    async with _clear_update_errors(client, session):
        return await _wait_for_answer(client, session, id, lambda: _update(session, name, argument, id))


async def _update(session: Address, name: str, argument: Any, id: str) -> Any:
    with cancellable():
        return await session.handle.execute_update(name, argument, id=id, rpc_timeout=_ONE)


async def _update_with_start(
    client: Client, session: Address, message: Message, agent: Agent[Any], given: SessionInput, task_queue: str, id: str
) -> Any:
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        SESSION_WORKFLOW,
        given,
        id=session.id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        memo={KEY_MEMO: session.key, TITLE_MEMO: first_line(message.text), **owned_memo(session.tenant)},
        priority=queue_priority(session.tenant, given.rules.priority or agent.parsed.config.priority),
        search_attributes=start_attributes(agent.name, None, session.tenant) if given.searchable else None,
        static_summary=f"session {session.key}: {agent.name}"[:200],
        static_details=agent.description or None,
    )
    return await update_with_start(client, SEND, message, start, id=id, rpc_timeout=_ONE)


def _input(
    session: Address, message: Message, agent: Agent[Any], rules: SessionRules, searchable: bool
) -> SessionInput:
    """Return the input of a new session."""
    return SessionInput(
        key=session.key,
        tenant=session.tenant,
        rules=rules,
        agent=message.agent,
        document=agent.document(),
        delegates=agent.delegates(),
        searchable=searchable,
    )


def first_line(text: str) -> str:
    """Return the first line of a message, as a list shows it."""
    line = next(iter(text.strip().splitlines()), "").strip()
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"


async def _wait_for_answer(
    client: Client, session: Address, update_id: str, attempt: Callable[[], Awaitable[Any]]
) -> Any:
    """Repeat an attempt until it has an answer. `update_id`: the id of the update that each attempt sends.

    Raise `TimeoutError` without an answer within `ANSWERS_WITHIN`, unless the session works on the update.
    """
    while True:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                return await _retry(attempt)
        except TimeoutError:
            if not await _is_accepted(client, session, update_id):
                raise


async def _retry(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat an attempt until it has an answer. The caller limits the time."""
    pause = 0.02
    while True:
        try:
            return await attempt()
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            pass
        except RPCError as error:
            if error.status not in _AGAIN:
                raise
        await asyncio.sleep(pause)
        pause = min(1.0, 2 * pause)


async def _is_accepted(client: Client, session: Address, update_id: str) -> bool:
    """Whether the session has accepted an update, and workers take its tasks."""
    accepted = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
    request = PollWorkflowExecutionUpdateRequest(
        namespace=client.namespace,
        update_ref=UpdateRef(workflow_execution=WorkflowExecution(workflow_id=session.id), update_id=update_id),
        wait_policy=WaitPolicy(lifecycle_stage=accepted),
    )
    with contextlib.suppress(RPCError):
        if await explain_stall(client, await session.handle.describe(rpc_timeout=_ANSWERS)):
            return False
        found = await client.workflow_service.poll_workflow_execution_update(request, timeout=_ANSWERS)
        return found.stage >= accepted
    return False


@asynccontextmanager
async def _clear_update_errors(client: Client, session: Address) -> AsyncIterator[None]:
    """Raise `NoWorkerError` for a `TimeoutError`, and `MessageRefusedError` for a refusal; translate other errors."""
    try:
        with clear_session_errors(client, session.key):
            yield
    except TimeoutError:
        await check_server(client)
        nobody = NoWorkerError(
            f"no worker answers for the session {session.key!r}; the message may still be accepted, and a second one with the same id is a duplicate"
        )
        raise await unanswered(client, session.id, nobody, f"the session {session.key!r}") from None
    except WorkflowUpdateFailedError as error:
        reason = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
        raise MessageRefusedError(reason) from None


async def check_server(client: Client) -> None:
    """Raise `ServerError` if no server answers, after `_ANSWERS` at the latest."""
    try:
        async with asyncio.timeout(_ANSWERS.total_seconds()):
            with clear_errors(client):
                request = GetSystemInfoRequest()
                await client.workflow_service.get_system_info(request, retry=False, timeout=_ANSWERS)
    except TimeoutError:
        raise silent_server(client) from None


@contextmanager
def clear_session_errors(client: Client, key: str) -> Iterator[None]:
    """Translate the server's errors into clear ones, also for a session that does not exist (R10.2)."""
    try:
        with clear_errors(client, key):
            yield
    except RunNotFoundError:
        raise RunNotFoundError(f"there is no session {key!r} in namespace {client.namespace!r}") from None


async def fetch_former_fate(client: Client, fate: Fate) -> Fate:
    """Return the end of a run that the session no longer has, from the server."""
    if fate.run_id is None:
        return fate
    try:
        described = await client.get_workflow_handle(fate.run_id).describe()
    except RPCError:
        return fate.model_copy(update={"status": "error", "error": "its end is no longer known"})
    completed = described.status is not None and STATUS[described.status] == "completed"
    return fate.model_copy(
        update={
            "status": "ok" if completed else "error",
            "started_at": described.start_time.isoformat(timespec="milliseconds"),
            "ended_at": None
            if described.close_time is None
            else described.close_time.isoformat(timespec="milliseconds"),
            "error": None if completed else f"the run {fate.run_id} did not complete",
        }
    )


async def fetch_start_time(client: Client, run_id: str) -> str | None:
    """Return the time of a run's start, as text; `None` if the server does not know it."""
    try:
        return (await client.get_workflow_handle(run_id).describe()).start_time.isoformat(timespec="milliseconds")
    except RPCError:
        return None


async def forget(client: Client, id: str) -> None:
    """Delete a session and its runs from the server, and their values from external storage.

    The server terminates a session that it deletes. So this function first waits for the session's last hooks and the
    ends of its calls, for at most `ANSWERS_WITHIN`. Raise `ServerError` if the server does not answer in time.
    """
    with contextlib.suppress(TimeoutError, WorkflowFailureError, RPCError):
        async with asyncio.timeout(ANSWERS_WITHIN):
            await client.get_workflow_handle(id).result()
    queries = (f"WorkflowId = '{id}'", f"WorkflowId STARTS_WITH '{id}/'")
    async with _expect_answer(client):
        found = [each for query in queries async for each in client.list_workflows(query)]
    storage = erasable(client.data_converter)
    if storage is not None:  # first: no erasure finds these values once the histories are deleted
        for workflow_id in sorted({each.id for each in found}):
            await storage.erase_owned(client.namespace, workflow_id)
    async with _expect_answer(client):
        for each in found:
            request = DeleteWorkflowExecutionRequest(
                namespace=client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=each.id, run_id=each.run_id),
            )
            try:
                await client.workflow_service.delete_workflow_execution(request)
            except RPCError as error:
                if error.status in UNANSWERED:
                    raise
                continue  # it is already deleted


@asynccontextmanager
async def _expect_answer(client: Client) -> AsyncIterator[None]:
    """Raise `ServerError` if the server does not answer within `ANSWERS_WITHIN`."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            with clear_errors(client):
                yield
    except TimeoutError:
        raise silent_server(client) from None


async def begin_session(session: Address, description: Description, rules: SessionRules, task_queue: str) -> str:
    """Start a session that has no agent yet; return its time of creation. Raises `RunExistsError` if the key has a session."""
    given = SessionInput(
        key=session.key,
        tenant=session.tenant,
        rules=rules,
        metadata=description.metadata,
        created_at=datetime.now(UTC).isoformat(),
    )
    await start_session(session, given, task_queue)
    return given.created_at


async def start_session(session: Address, given: SessionInput, task_queue: str, title: str = "") -> None:
    """Start a session with this input. Search attributes that the namespace lacks are registered. If it accepts none, the session has none.

    `title`: its first message, for lists. Raises `RunExistsError` if the key has a session.
    """
    check_name(session.key, "the session's key")
    check_text(session.tenant)
    agent = str(given.document.get("name") or "")
    searchable, registered = True, False
    with clear_session_errors(session.client, session.key):
        while True:
            try:
                await session.client.start_workflow(
                    SESSION_WORKFLOW,
                    given.model_copy(update={"searchable": searchable}),
                    id=session.id,
                    task_queue=task_queue,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    memo={
                        KEY_MEMO: session.key,
                        **({TITLE_MEMO: title} if title else {}),
                        **owned_memo(session.tenant),
                    },
                    priority=queue_priority(session.tenant, given.rules.priority),
                    search_attributes=start_attributes(agent, None, session.tenant) if searchable else None,
                    static_summary=f"session {session.key}{f': {agent}' if agent else ''}"[:200],
                )
                return
            except WorkflowAlreadyStartedError:
                raise RunExistsError(f"there is a session {session.key!r} already: use another key") from None
            except RPCError as error:
                if not searchable or not names_attribute(error):
                    raise
                searchable = not registered
                if not registered:
                    await SearchAttributes().ensure(session.client)
                    registered = True


def new_mark() -> str:
    """Return a mark for the ids of a session's runs, which no other session of its key has."""
    return f"{uuid.uuid4().hex[:6]}-"


async def begin_fork(source: Address, at: str, target: Address) -> None:
    """Start the `target` with the conversation of the `source` up to `at`.

    Raises `RunError` for an invalid `at`, `RunNotFoundError` without the `source`, and `RunExistsError` if the new key
    has a session.
    """
    check_name(target.key, "the session's key")
    with clear_session_errors(source.client, source.key):
        described = await source.handle.describe()
        given: SessionInput = await answer_of(source.handle, FORK_INPUT, result_type=SessionInput, client=source.client)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    carried, state = await fork(SessionReader(source.client, source.id), source.key, at, now)
    runs = [
        number for entry in carried.entries if (number := run_number(getattr(entry, "run_id", None) or "")) is not None
    ]
    # Run numbers continue, so that `R` names one run of either session.
    message_queue = QueueState(born=new_mark(), number=max(runs, default=0))
    # It is no longer known which parts others wrote.
    places = [Reference(CONVERSATION), *(Reference("state", (key,)) for key in state)]
    sources = {str(place): ["!tool:fork"] for place in places}
    snapshot = SessionSnapshot(message_queue=message_queue, transcript=carried, state=state or None, sources=sources)
    if given.snapshot is not None:  # a worker of 0.2.0 returns no snapshot
        snapshot.rule_record = given.snapshot.read(SessionSnapshot, SESSION_FORM, source.key).rule_record
    begins = given.model_copy(update={"key": target.key, "snapshot": pack(snapshot, SESSION_FORM)})
    title = await described.memo_value(TITLE_MEMO, "", type_hint=str)
    await start_session(target, begins, described.task_queue, title)
