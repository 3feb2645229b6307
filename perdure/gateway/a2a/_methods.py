"""The methods of A2A. The library parses requests and writes answers; this module finds the task and executes the method."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, contextmanager
from functools import wraps
from itertools import starmap
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import httpx2
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from pydantic import ValidationError
from starlette.requests import Request

from perdure.activities.http_addresses import names_host
from perdure.agents.agent import Agent
from perdure.agents.media import Media
from perdure.approvals.requests import WaitingView
from perdure.client.run_tree import RunTree, RunTreeReader
from perdure.client.selection import STATUSES, Selection
from perdure.client.session import Session
from perdure.client.tenancy import IdempotentStart
from perdure.errors import RunEndedError, RunError, RunNotFoundError
from perdure.gateway._idempotency import RequestKey
from perdure.gateway.a2a._events import TaskUpdates, Update
from perdure.gateway.a2a._messages import (
    A2aMessage,
    decision_of,
    exchange_of,
    files_of,
    is_answer,
    read,
    replied_calls,
    sent_with,
    single_request,
)
from perdure.gateway.a2a._objects import (
    JSON,
    STATES,
    TEXT,
    agent_message,
    config_of,
    file_part,
    output_artifact,
    submitted_task,
    task_of,
)
from perdure.gateway.adapter import Gateway
from perdure.gateway.answers import AnswerStream, deliver, id_below, steer, with_output
from perdure.gateway.callers import APPROVE, READ, SEND, STOP, Caller, caller_of
from perdure.gateway.errors import HttpError, log_problem
from perdure.gateway.files import load_files
from perdure.gateway.streams import result_before, until_disconnected
from perdure.runs.notifications import check_callback
from perdure.runs.wire import CallView, RunView
from perdure.sessions.status_webhooks import StatusWebhook
from perdure.sessions.wire import SESSION_PREFIX, digest, session_id
from perdure.values.json import Json, loads
from perdure.values.problems import first_problem

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger("perdure.gateway")
PAGE: Final = 50
MOST_ON_PAGE: Final = 100
_AT_ONCE: Final = 16
"""The number of tasks of a page that are read at once. A task whose worker has stopped takes up to ten seconds."""
_CANCELLED_WITHIN: Final = 10.0
"""Seconds to wait for the end of a cancelled run; then the task is returned in its present state."""
_ENDED: Final = {state for status, state in STATES.items() if status != "running"}
_KINDS: Final[dict[int, type[A2AError]]] = {
    403: InvalidRequestError,
    404: TaskNotFoundError,
    409: UnsupportedOperationError,
}
"""A2A's errors by status; other problems of a request are `InvalidParamsError`."""
_ANY: Final = {TEXT, JSON, "*/*", "text/*", "application/*", "text"}
"""The media types of outputs that the adapter can return."""


class CallContexts(ServerCallContextBuilder):
    """Builds the contexts of calls: each has its HTTP request, and so its caller."""

    def build(self, request: Request) -> ServerCallContext:
        return ServerCallContext(state={"headers": dict(request.headers), "request": request})


@contextmanager
def _as_a2a() -> Any:
    """Translate errors into A2A's. A bug is logged, and the client gets no details."""
    try:
        yield
    except (A2AError, asyncio.CancelledError, GeneratorExit):
        raise
    except RunNotFoundError:
        raise TaskNotFoundError("the task does not exist") from None
    except Exception as error:
        problem = log_problem(error)
        kind = InternalError if problem.status >= 500 else _KINDS.get(problem.status, InvalidParamsError)
        raise kind(problem.detail, {"kind": problem.kind, "status": problem.status}) from None


def _method(
    method: Callable[Concatenate[A2AMethods, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[A2AMethods, P], Coroutine[Any, Any, R]]:
    @wraps(method)
    async def translated(self: A2AMethods, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with _as_a2a():
            return await method(self, *args, **kwargs)

    checked: Callable[Concatenate[A2AMethods, P], Coroutine[Any, Any, R]] = validate_request_params(translated)
    return checked


class A2AMethods(RequestHandler):
    """The methods of A2A, for the agent whose URL was called."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._trees = RunTreeReader()

    @_method
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Send a message, and wait until its task has ended or waits for this client, unless the client wants the task at once."""
        call = _MethodCall(self._gateway, self._trees, context)
        _check_configuration(params)
        session, run_id = await call.send(params.message, _push(params))
        if run_id is None:
            return _done(params.message)
        if not params.configuration.return_immediately:
            await call.follow(session, run_id)
        return await call.task(session, run_id, await call.history(params, session, run_id))

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Task | Message | Update, None]:
        """Send a message, and yield its task and the task's updates."""
        with _as_a2a():
            call = _MethodCall(self._gateway, self._trees, context)
            _check_configuration(params)
            session, run_id = await call.send(params.message, _push(params))
            if run_id is None:
                yield _done(params.message)
                return
            task = await call.task(session, run_id, await call.history(params, session, run_id))
            yield task
            if task.status.state in _ENDED:  # the same message was sent before: an ended task has no updates
                return
            async with aclosing(call.updates(session, run_id)) as updates:
                async for update in updates:
                    yield update

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Task | Update, None]:
        """Yield a task and its updates. The model's text is repeated from its first piece."""
        with _as_a2a():
            call = _MethodCall(self._gateway, self._trees, context)
            call.caller.check(READ, "watch a task")
            session = await call.session_of(params.id)
            task = await call.task(session, params.id, await call.messages(session, params.id))
            if task.status.state in _ENDED:
                raise UnsupportedOperationError(f"the task {params.id} has ended: read it with GetTask")
            yield task
            async with aclosing(call.updates(session, params.id)) as updates:
                async for update in updates:
                    yield update

    @_method
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        call = _MethodCall(self._gateway, self._trees, context)
        call.caller.check(READ, "read a task")
        session, length = await call.session_of(params.id), _history_length(params)
        return await call.task(session, params.id, await call.messages(session, params.id, length))

    @_method
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        call = _MethodCall(self._gateway, self._trees, context)
        call.caller.check(STOP, "cancel a task")
        session = await call.session_of(params.id)
        task = await call.task(session, params.id)
        if task.status.state == TaskState.TASK_STATE_SUBMITTED:
            raise TaskNotCancelableError(f"the task {params.id} has not started: it waits for the previous task")
        try:
            await self._gateway.perdure.get_run(params.id).cancel()
        except RunEndedError as error:
            raise TaskNotCancelableError(str(error)) from None
        await self._gateway.perdure.get_run(params.id).waited(_CANCELLED_WITHIN)
        return await call.task(session, params.id)

    @_method
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        call = _MethodCall(self._gateway, self._trees, context)
        call.caller.check(READ, "list tasks")
        await call.check_status()
        return await call.tasks(params, _history_length(params) or 0)

    @_method
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        call = _MethodCall(self._gateway, self._trees, context)
        call.check_push()
        session = await call.session_of(params.task_id)
        await call.view(session, params.task_id)
        return await call.push_to(params, session, params.task_id)

    @_method
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        call = _MethodCall(self._gateway, self._trees, context)
        for webhook in await call.pushed_to(params.task_id):
            if webhook.id == params.id:
                return config_of(webhook)
        raise TaskNotFoundError(f"the task has no push notification config {params.id!r}")

    @_method
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        call = _MethodCall(self._gateway, self._trees, context)
        webhooks = await call.pushed_to(params.task_id)
        return ListTaskPushNotificationConfigsResponse(configs=map(config_of, webhooks))

    @_method
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        call = _MethodCall(self._gateway, self._trees, context)
        for webhook in await call.pushed_to(params.task_id):
            if webhook.id == params.id:
                session = await call.session_of(params.task_id)
                await session.set_status_webhook(webhook, sender=call.caller.sender, remove=True)

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        del params, context
        raise ExtendedAgentCardNotConfiguredError


class _MethodCall:
    """One call of a method: its caller and its agent."""

    def __init__(self, gateway: Gateway, trees: RunTreeReader, context: ServerCallContext) -> None:
        self._gateway = gateway
        self._trees = trees
        self._request: Request = context.state["request"]
        self.caller: Caller = caller_of(self._request)
        self._name: str = self._request.path_params["agent"]

    @property
    def _agent(self) -> Agent[Any]:
        return self._gateway.agents.get(self._name)

    async def session_of(self, task: str) -> Session:
        """Return the session of a task. Raises `RunNotFoundError`, also for a delegate's run, which is not a task."""
        if task.count("/") != 1:
            raise RunNotFoundError(task)
        return await self._gateway.own_session_of(self.caller, task)

    async def view(self, session: Session, task: str) -> RunView | None:
        """Return the view of a task's run; `None` before the run begins. Raises `RunNotFoundError` for another agent's task."""
        view = await session.view_run(task)
        if view is not None and view.agent and view.agent != self._agent.name:
            raise RunNotFoundError(task)
        return view

    async def send(
        self, message: Message, push: TaskPushNotificationConfig | None = None
    ) -> tuple[Session, str | None]:
        """Send a message or its decisions. Return its session and its run's id; `None` for a command.

        `push`: a URL that receives push notifications of the run.
        """
        self.caller.check(SEND, "send messages to an agent")
        if push is not None:
            self.judge_push(push)
        session, run_id = await self._send(message)
        if push is not None and run_id is not None:
            await self.push_to(push, session, run_id)
        return session, run_id

    def check_push(self) -> None:
        """Raise if the gateway sends no push notifications."""
        if not self._gateway.settings.callback_hosts:
            raise PushNotificationNotSupportedError

    def judge_push(self, push: TaskPushNotificationConfig) -> None:
        """Raise if a config's URL is not allowed. A worker checks the URL again."""
        self.check_push()
        hosts = self._gateway.settings.callback_hosts
        problem = check_callback(push.url)
        host = "" if problem else httpx2.URL(push.url).host
        if not problem and not names_host(hosts, host):
            problem = f"the host {host} is not allowed. Use one of: {', '.join(hosts)}"
        if problem:
            raise HttpError(422, f"the push notification config's url: {problem}")

    async def push_to(
        self, push: TaskPushNotificationConfig, session: Session, run_id: str
    ) -> TaskPushNotificationConfig:
        """Register a task's push notifications, and return the config with its id."""
        self.caller.check(READ, "watch a task")
        self.judge_push(push)
        try:
            webhook = StatusWebhook(
                id=push.id or digest([push.url, push.token], 16),
                run_id=run_id,
                url=push.url,
                token=push.token,
                scheme=push.authentication.scheme,
                credentials=push.authentication.credentials,
                protocol="1.0" if self._request.headers.get("a2a-version", "").startswith("1") else "0.3",
                waits=self.caller.may(APPROVE),
            )
        except ValidationError as error:
            raise HttpError(422, f"the push notification config: {first_problem(error)}") from None
        await session.set_status_webhook(webhook, sender=self.caller.sender)
        return config_of(webhook)

    async def pushed_to(self, task: str) -> list[StatusWebhook]:
        """Return the caller's push notification configs of a task."""
        self.caller.check(READ, "watch a task")
        self.check_push()
        session = await self.session_of(task)
        await self.view(session, task)
        return await session.status_webhooks(task, sender=self.caller.sender)

    async def _send(self, message: Message) -> tuple[Session, str | None]:
        perdure = self._gateway.perdure
        files = await asyncio.to_thread(files_of, message) if perdure.stores_media else {}
        a2a_message = read(message, files)
        if files:
            await perdure.save_media(*files.values(), tenant=self.caller.tenant)
        if not a2a_message.task:
            # The same message, sent again, begins the same context; a different message with the same id does not.
            same = ["a2a", self.caller.sender, self._name, a2a_message.id, a2a_message.text]
            context = a2a_message.context or digest(same, 32)
            session = self._gateway.session(self.caller, context, self._name)
            return session, await self._deliver(session, (a2a_message.id, a2a_message.text))
        session = await self.session_of(a2a_message.task)
        if a2a_message.context and session_id(self.caller.tenant, a2a_message.context) != session.id:
            raise HttpError(
                422, "the message's contextId is not the task's: leave it out, or send the task's contextId"
            )
        await self._continue(session, a2a_message)
        return session, a2a_message.task

    async def _deliver(self, session: Session, message: tuple[str, str]) -> str | None:
        # A message without a `taskId` begins a task, also while another task of the context works.
        delivery = await deliver(session, self.caller, self._own_run, message=message, answers=[], mode="followup")
        return delivery.run_id

    async def _continue(self, session: Session, message: A2aMessage) -> None:
        """Send a message to an existing task: a decision, or a message to its active run."""
        view = await self.view(session, message.task)
        answers = list(message.decisions)
        if not answers and (request := await self._decided_request(message, view)) is not None:
            if not request:
                return  # an earlier version has delivered this text as a decision
            self.caller.check(APPROVE, "decide approval requests")
            answers = [decision_of(message.text, request)]
        if answers:
            if f"{session.id}/{answers[0].run}" != message.task:
                raise HttpError(422, "the message's parts decide for another task than its taskId")
            answers = [sent_with(each, message.id) for each in answers]
            await deliver(session, self.caller, self._own_run, message=None, answers=answers)
            return
        if (view is None or view.status != "running") and not await session.knows(
            message.id, sender=self.caller.sender
        ):
            words = "has ended" if view is not None else "has not started"
            raise HttpError(409, f"the task {words}: leave out taskId to start a new task in the context")
        if problem := await steer(session, self.caller, message.task, message.text, message.id):
            raise HttpError(409, f"the task does not accept the message: {problem}")

    async def _decided_request(self, message: A2aMessage, view: RunView | None) -> str | None:
        """Return the request that a text decides, as `single_request` returns it; `None` for a message to the agent.

        A text decides one request, also if it is sent again while another waits: its key keeps the request.
        """
        key = self._key(message)
        request = await key.answer()
        if request is None and view is not None and (waiting := await self._waiting(view)):
            request = single_request(message.task.rpartition("/")[2], waiting)
            decision_of(message.text, request)  # a text that decides nothing takes no key
            if not await key.take(request):  # the same message was sent twice at once
                request = await key.answer()
        return request

    def _key(self, message: A2aMessage) -> RequestKey:
        """Return the idempotency key of a text that is a decision. Its answer names the request that the text decides."""
        caller = self.caller
        wanted = IdempotentStart.of(caller.tenant, caller.sender, f"a2a:{message.id}", [message.task, message.text])
        return RequestKey(self._gateway.perdure, caller.tenant, wanted)

    async def _own_run(self, id: str) -> Any:
        return await self._gateway.own_run(self.caller, id)

    async def _waiting(self, view: RunView) -> list[tuple[str, WaitingView]]:
        """Return the requests that this client can decide, once the run waits for nothing else."""
        if not self.caller.may(APPROVE) or view.status != "running":
            return []
        run = self._gateway.perdure.get_run(view.run_id)
        busy = any(call.status == "running" for call in view.calls)
        tree = RunTree(view, await self._trees.below(run, asked=True) if busy else {})
        return await self._trees.waiting(run, tree) if tree.rests else []

    async def updates(self, session: Session, run_id: str) -> AsyncGenerator[Update, None]:
        """Yield a task's updates, until it has ended or waits for this client. The artifact ends with the files of the output."""
        run = self._gateway.perdure.get_run(run_id)
        updates = TaskUpdates(run_id, session.key)
        stream = AnswerStream(run, session, self._trees, updates, repr, self.caller.may(APPROVE))
        async with aclosing(stream.forms()) as forms:
            async for update in forms:
                is_end = isinstance(update, TaskStatusUpdateEvent) and update.status.state == STATES["completed"]
                if is_end and (files := await self._files(await with_output(run, await run.view()))):
                    artifact = output_artifact(*map(file_part, files))
                    yield TaskArtifactUpdateEvent(
                        task_id=run_id, context_id=session.key, artifact=artifact, append=True, last_chunk=True
                    )
                yield update

    async def follow(self, session: Session, run_id: str) -> None:
        """Wait until the task has ended or waits for this client, the client has gone, or the gateway ends."""

        async def read_all() -> None:
            async with aclosing(self.updates(session, run_id)) as updates:
                async for _ in updates:
                    pass

        await result_before(read_all(), until_disconnected(self._request.receive), self._gateway.stopping.wait())

    async def task(
        self, session: Session, run_id: str, messages: Sequence[Message] = (), *, with_files: bool = True
    ) -> Task:
        """Return a run as a task.

        `messages`: its history. `with_files`: whether its artifact has the files of the output. Raises
        `RunNotFoundError`.
        """
        view = await self.view(session, run_id)
        if view is None:
            return submitted_task(run_id, await self._context(session), messages)
        run = self._gateway.perdure.get_run(run_id)
        view, waiting = await with_output(run, view), await self._waiting(view)
        at = max([(await run.started_at()).isoformat(), *_times(view)])
        context = view.owner.session or await self._context(
            session
        )  # a run does not know its owner before its first workflow task
        files = await self._files(view) if with_files else []
        return task_of(view, context, at, waiting, messages, files)

    async def history(self, params: SendMessageRequest, session: Session, run_id: str) -> list[Message]:
        """Return the task history for the message that was just sent."""
        length, message = _history_length(params.configuration), params.message
        if length == 0:
            return []
        known = await self.messages(session, run_id) if message.task_id and self.caller.may(READ) else []
        if all(each.message_id != message.message_id for each in known):
            known.append(_with_ids(message, session.key, run_id))
        return known if length is None else known[-length:]

    async def messages(self, session: Session, run_id: str, length: int | None = None) -> list[Message]:
        """Return the history of a run's task: the user's messages that the session still has, and each request to a person
        with its decision.

        `length`: the number of last messages; `None`: all.
        """
        if length == 0:
            return []
        context = await self._context(session)
        found = [
            (
                str(entry["at"]),
                [
                    Message(
                        message_id=str(entry["messageId"]),
                        context_id=context,
                        task_id=run_id,
                        role=Role.ROLE_USER,
                        parts=[Part(text=str(entry["text"]))],
                    )
                ],
            )
            for entry in (await session.show()).entries
            if entry["type"] == "message" and entry.get("runId") == run_id
        ]
        found += await self._exchanges(session, run_id, context)
        messages = [message for _, each in sorted(found, key=lambda each: each[0]) for message in each]
        return messages if length is None else messages[-length:]

    async def _exchanges(self, session: Session, run_id: str, context: str) -> list[tuple[str, list[Message]]]:
        view = await self.view(session, run_id)
        if view is None or not view.calls:
            return []
        run = self._gateway.perdure.get_run(run_id)
        calls = replied_calls(RunTree(view, await self._trees.below(run, asked=True)).views)

        async def answer(name: str, call: CallView) -> Json:
            path, _, id = name.rpartition("/")
            try:
                whole = loads(await self._gateway.perdure.get_run(id_below(run_id, path)).value(id))
                return whole.get("result") if isinstance(whole, dict) else None
            except RunError:  # no worker replays the run: the view has the value's beginning
                return call.shown

        asked = {name: call for each in calls.values() for name, call in each.items() if is_answer(call)}
        answers = dict(zip(asked, await asyncio.gather(*starmap(answer, asked.items())), strict=True))
        return [exchange_of(run_id, context, id, each, answers) for id, each in calls.items()]

    async def _files(self, view: RunView) -> list[Media]:
        """Return the files of a run's whole output, with their bytes."""
        output = view.output if view.status == "completed" else None
        return await load_files(self._gateway.perdure, output, self.caller.tenant)

    async def _context(self, session: Session) -> str:
        return (await session.about()).session

    async def check_status(self) -> None:
        """Raise `HttpError` (422) for an unknown status: the library would ignore it."""
        body = await self._request.json()
        status = body["params"].get("status") if isinstance(body.get("params"), dict) else None
        if isinstance(status, str) and status not in TaskState.keys():  # noqa: SIM118  # an enum of protobuf is not a mapping
            raise HttpError(422, f"status must be one of {', '.join(TaskState.keys()[1:])}")

    async def tasks(self, params: ListTasksRequest, length: int) -> ListTasksResponse:
        """Return a page of the agent's tasks, the newest first. `length`: the number of last messages of each task."""
        size = params.page_size if params.HasField("page_size") else PAGE
        if not 1 <= size <= MOST_ON_PAGE:
            raise HttpError(422, f"pageSize must be a number from 1 to {MOST_ON_PAGE}")
        of = f"{session_id(self.caller.tenant, params.context_id)}/" if params.context_id else SESSION_PREFIX
        statuses = [status for status, state in STATES.items() if state == params.status]
        if params.status and not statuses:
            statuses = ["running"]  # a waiting task is a running run
        closed = " OR ".join(f"ExecutionStatus = '{STATUSES[status]}'" for status in statuses)
        query = f"WorkflowId STARTS_WITH '{of}'" + (f" AND ({closed})" if closed else "")
        selection = Selection(agent=self._agent.name, tenant=self.caller.tenant, query=query)
        page = await self._gateway.perdure.page_of_runs(selection, size=size, page=params.page_token or None)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def task_of(run_id: str) -> Task | None:
            async with limit:
                try:
                    session = await self.session_of(run_id)
                    messages = await self.messages(session, run_id, length)
                    return await self.task(session, run_id, messages, with_files=False)
                except (RunNotFoundError, RunError):  # a delegate's run, or a run without a worker
                    return None

        found = await asyncio.gather(*(task_of(row.id) for row in page.rows))
        kept = [task for task in found if task is not None and _fits(task, params)]
        if not params.include_artifacts:
            for task in kept:
                task.ClearField("artifacts")
        total = await self._gateway.perdure.count_runs(selection)
        return ListTasksResponse(
            tasks=kept, next_page_token=page.following or "", page_size=len(kept), total_size=max(total, len(kept))
        )


def _fits(task: Task, params: ListTasksRequest) -> bool:
    after = params.status_timestamp_after
    late = not params.HasField("status_timestamp_after") or task.status.timestamp.ToDatetime() >= after.ToDatetime()
    return late and (not params.status or task.status.state == params.status)


def _check_configuration(params: SendMessageRequest) -> None:
    configuration = params.configuration
    accepted = set(configuration.accepted_output_modes)
    if accepted and not accepted & _ANY:
        raise ContentTypeNotSupportedError(f"acceptedOutputModes must include {TEXT!r} or {JSON!r}")
    _history_length(configuration)


def _push(params: SendMessageRequest) -> TaskPushNotificationConfig | None:
    configuration = params.configuration
    named = configuration.HasField("task_push_notification_config")
    return configuration.task_push_notification_config if named else None


def _history_length(params: Any) -> int | None:
    if not params.HasField("history_length"):
        return None
    if params.history_length < 0:
        raise HttpError(422, "historyLength must be 0 or more")
    return int(params.history_length)


def _with_ids(message: Message, context: str, task: str) -> Message:
    known = Message()
    known.CopyFrom(message)
    known.context_id, known.task_id = context, task
    return known


def _times(view: RunView) -> list[str]:
    return [time for call in view.calls for time in (call.started_at, call.ended_at) if time is not None]


def _done(message: Message) -> Message:
    """Return the answer to a command, which starts no run."""
    return agent_message(f"{message.message_id}:done", [Part(text="done")])
