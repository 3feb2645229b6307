"""The methods of MCP: tools are listed and called; tasks are read, awaited, answered and cancelled."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from importlib.metadata import version
from typing import Any, Final

from mcp import types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from perdure.agents.agent import Agent
from perdure.client.run import Run
from perdure.client.run_tree import RunTree, RunTreeReader
from perdure.client.selection import Selection
from perdure.errors import PerdureError, RunEndedError, RunNotFoundError
from perdure.gateway.adapter import Gateway
from perdure.gateway.answers import AnswerStream, judge_answers, send_decisions, with_output
from perdure.gateway.callers import APPROVE, Caller
from perdure.gateway.errors import HttpError, log_problem
from perdure.gateway.files import load_files
from perdure.gateway.mcp._context import (
    TASKS,
    McpContext,
    as_mcp,
    caller_in,
    check_takes_tasks,
    is_modern,
    may_decide,
    takes_tasks,
)
from perdure.gateway.mcp._elicitation import Waiting, decisions, input_required, is_dismissed, read_state, wrong_state
from perdure.gateway.mcp._objects import (
    CallProgress,
    block_of,
    current_time,
    detailed_task,
    error_of,
    result_of,
    result_to_json,
    task_of,
    task_to_json,
    tool_of,
)
from perdure.gateway.mcp._prompts import Prompts
from perdure.gateway.mcp._resources import Resources
from perdure.runs.wire import RunView
from perdure.sessions.wire import digest
from perdure.values.json import JsonObject
from perdure.values.problems import none_of

LISTED: Final = 50
"""The number of tasks on a page."""
CAPABILITY: Final = types.ServerTasksCapability(
    list=types.TasksListCapability(),
    cancel=types.TasksCancelCapability(),
    requests=types.ServerTasksRequestsCapability(tools=types.TasksToolsCapability(call=types.TasksCallCapability())),
)
_RELATED: Final = "io.modelcontextprotocol/related-task"
_CANCELLED_WITHIN: Final = 10.0
_FOUND_WITHIN: Final = 5.0
"""Seconds in which the server's index lists a run that was started before its cancellation arrived."""
_LOOK_AGAIN: Final = 0.25
SESSION: Final = "mcp-session-id"
"""The header with the client's session: request ids are unique within it."""
_KEY: Final = "perdure/key"
"""The key of `_meta` with a call's idempotency key: a call that is sent again starts no second run."""


class _TaskServer(Server[Any]):
    """The library's server, with the capability of tasks: the library has their types, but not their methods."""

    def get_capabilities(self, *args: Any, **given: Any) -> types.ServerCapabilities:
        found = super().get_capabilities(*args, **given)
        if given.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            return found
        return found.model_copy(update={"tasks": CAPABILITY, "extensions": None})


class _UpdateTaskParams(types.RequestParams):
    task_id: str
    input_responses: types.InputResponses


def mcp_server(methods: McpMethods, prompts: Prompts, resources: Resources) -> Server[Any]:
    """Return a server without state between requests: any number of gateways can answer one client."""
    server = _TaskServer(
        "perdure",
        version=version("perdure"),
        title="Perdure's agents",
        on_list_tools=methods.list_tools,
        on_call_tool=methods.call_tool,  # type: ignore[arg-type]  # the library does not know the extension's tasks
        on_list_prompts=prompts.list_prompts,
        on_get_prompt=prompts.prompt,
        on_list_resources=resources.list_resources,
        on_list_resource_templates=resources.list_templates,
        on_read_resource=resources.read,
        on_completion=resources.complete,
    )
    server.extensions[TASKS] = {}
    server.middleware.append(methods.as_task)
    server.add_request_handler("tasks/get", types.GetTaskRequestParams, methods.task)
    server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, methods.cancel_task)
    server.add_request_handler("tasks/update", _UpdateTaskParams, methods.update_task)
    server.add_request_handler("tasks/result", types.GetTaskPayloadRequestParams, methods.task_result)
    server.add_request_handler("tasks/list", types.PaginatedRequestParams, methods.list_tasks)
    return server


class McpMethods:
    """The methods of MCP, for tools and tasks."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._trees = RunTreeReader()
        self._calls: dict[str, Run[Any]] = {}
        """The runs of calls that wait in this gateway, by the prefix of the run's id."""

    async def list_tools(self, context: McpContext, _: Any) -> types.ListToolsResult:
        caller_in(context).check("read", "list agents")
        return types.ListToolsResult(
            tools=[tool_of(name, each) for name, each in self._gateway.agents.by_name().items()]
        )

    async def as_task(self, ctx: McpContext, call_next: CallNext) -> HandlerResult:
        """Return the task at once for a call of version 2025-11-25 that requests a task."""
        params = ctx.params or {}
        if is_modern(ctx) or ctx.method != "tools/call" or not isinstance(params.get("task"), Mapping):
            return await call_next(ctx)
        with as_mcp():
            run = await self._start(ctx, params)
            task = task_of(await run.view(), current_time())
        return {"task": task_to_json(task)}

    async def call_tool(
        self, context: McpContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | JsonObject:
        """Run the agent, and wait until it ends or waits for the client's user. A closed connection cancels the run,
        unless the call has a key: the same call, sent again, then waits for the run. Since 2026-07-28, a client that
        accepts tasks gets one at once.
        """
        given = {"name": params.name, "arguments": params.arguments}
        if takes_tasks(context) and params.request_state is None:
            with as_mcp():
                run = await self._start(context, given)
                return {"resultType": "task", **detailed_task(await run.view(), current_time(), (), None)}
        beginning = _beginning(caller_in(context), _session(context), context.request_id)
        try:
            if is_modern(context) and params.request_state is not None:
                run = await self._continue(context, params, params.request_state)
            else:
                run = await self._start(context, given, beginning)
        except (PerdureError, HttpError) as error:
            return error_of(log_problem(error).detail)
        if beginning:
            self._calls[beginning] = run
        try:
            if waiting := await self._follow(context, run):
                if is_dismissed((params.input_responses or {}).values()):
                    return error_of(f"the run {run.id} waits for a decision, and the client's user made none")
                return input_required(run.id, waiting)
            return await self._result(context, run)
        except asyncio.CancelledError:
            # Where the gateway stops or the call has a key, the run continues, and is found by its id or its key.
            if not self._gateway.stopping.is_set() and _KEY not in (context.meta or {}):
                await asyncio.shield(run.cancel())
            raise
        except PerdureError as error:
            return error_of(log_problem(error).detail)
        finally:
            self._calls.pop(beginning, None)

    async def _continue(self, context: McpContext, params: types.CallToolRequestParams, state: str) -> Run[Any]:
        """Send the user's decisions, and return the run that a call waits for. Raises `MCPError` for another caller's state."""
        caller = caller_in(context)
        caller.check("send", "run an agent")
        agent = self._agent(params.name)
        id, asked = read_state(state)
        try:
            run = await self._gateway.own_run(caller, id)
            is_own = (await run.origin()).sender == caller.sender and (await run.view()).agent == agent.name
        except RunNotFoundError:
            is_own = False
        if not is_own:
            raise wrong_state()
        responses = {asked[key]: each for key, each in (params.input_responses or {}).items() if key in asked}
        await self._decide(context, run, responses)
        return run

    async def _decide(self, context: McpContext, run: Run[Any], responses: Mapping[str, Any]) -> None:
        """Send decisions to the run and its delegates' runs. `responses`: by exact keys. Skip requests that no longer wait."""
        caller = caller_in(context)
        caller.check(APPROVE, "decide approval requests")
        view = await run.view()
        answers = decisions(await self._waiting(run, view), responses)
        judged = await judge_answers(lambda id: self._gateway.own_run(caller, id), run.id, view, answers)
        await send_decisions(judged, caller)

    async def _waiting(self, run: Run[Any], view: RunView) -> Waiting:
        """Return the requests that wait now for people, in the run and its delegates' runs."""
        if view.status != "running":
            return []
        busy = any(call.status == "running" for call in view.calls)
        tree = RunTree(view, await self._trees.below(run, asked=True) if busy else {})
        return await self._trees.waiting(run, tree)

    async def cancel_call(self, caller: Caller, session: str, request_id: object) -> None:
        """Cancel the run of the sender's call in this session, made through any gateway. Do nothing without a session: request ids of
        clients with the same token are not unique."""
        if not (beginning := _beginning(caller, session, request_id)):
            return
        if (run := self._calls.get(beginning)) is not None:
            with suppress(RunEndedError):
                await run.cancel()
            return
        runs = Selection(status="running", query=f"WorkflowId STARTS_WITH '{beginning}'")
        clock = asyncio.get_running_loop().time
        until = clock() + _FOUND_WITHIN
        # No event reports that the server's index lists a run.
        while not await self._gateway.perdure.cancel_runs(runs) and clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN)

    async def task(self, context: McpContext, params: types.GetTaskRequestParams) -> JsonObject:
        if not is_modern(context):
            with as_mcp():
                return task_to_json(await self._task(context, params.task_id))
        check_takes_tasks(context, params.task_id)
        with as_mcp():
            run = await self._own(context, params.task_id)
            view, created = await run.view(), (await run.started_at()).isoformat(timespec="milliseconds")
            waiting = await self._waiting(run, view) if may_decide(context) else ()
            result = None if view.status == "running" else await self._result(context, run)
        return detailed_task(view, created, waiting, result)

    async def update_task(self, context: McpContext, params: _UpdateTaskParams) -> JsonObject:
        """Send the user's decisions to the run."""
        _check_method(context, "tasks/update", modern=True)
        check_takes_tasks(context, params.task_id)
        with as_mcp():
            await self._decide(context, await self._own(context, params.task_id), params.input_responses)
        return {}

    async def _result(self, context: McpContext, run: Run[Any]) -> types.CallToolResult:
        """Return the result of a run once it has ended, with the files of its output (R20.3)."""
        view = await with_output(run, await run.wait())
        result = result_of(view)
        tenant = caller_in(context).tenant
        files = [] if view.status != "completed" else await load_files(self._gateway.perdure, view.output, tenant)
        result.content += [block_of(file) for file in files]
        return result

    async def task_result(self, context: McpContext, params: types.GetTaskPayloadRequestParams) -> JsonObject:
        """Return the result of `tools/call`, once the task has ended."""
        _check_method(context, "tasks/result", modern=False)
        with as_mcp():
            run = await self._own(context, params.task_id)
            result = await self._result(context, run)
        return result_to_json(result) | {"_meta": {_RELATED: {"taskId": run.id}}}

    async def cancel_task(self, context: McpContext, params: types.CancelTaskRequestParams) -> JsonObject:
        if is_modern(context):
            check_takes_tasks(context, params.task_id)
        with as_mcp():
            caller_in(context).check("stop", "cancel a task")
            run = await self._own(context, params.task_id)
            if is_modern(context):
                with suppress(RunEndedError):
                    await run.cancel()
                return {}
            view = await run.view()
            if view.status != "running":
                raise MCPError(types.INVALID_PARAMS, f"the task {run.id} has already ended: {view.status}")
            await run.cancel()
            await run.waited(_CANCELLED_WITHIN)
            return task_to_json(await self._task(context, run.id))

    async def list_tasks(self, context: McpContext, params: types.PaginatedRequestParams) -> JsonObject:
        _check_method(context, "tasks/list", modern=False)
        caller = caller_in(context)
        with as_mcp():
            caller.check("read", "list tasks")
            page = await self._gateway.perdure.page_of_runs(
                Selection(tenant=caller.tenant), size=LISTED, page=params.cursor
            )
            views = await asyncio.gather(
                *(self._gateway.perdure.get_run(row.id).view() for row in page.rows), return_exceptions=True
            )
        rows = zip(page.rows, views, strict=True)
        tasks = [task_of(view, row.started_at.isoformat()) for row, view in rows if not isinstance(view, BaseException)]
        more = {} if page.following is None else {"nextCursor": page.following}
        return {"tasks": [task_to_json(task) for task in tasks], **more}

    async def _start(self, context: McpContext, params: Mapping[str, Any], beginning: str = "") -> Run[Any]:
        caller = caller_in(context)
        caller.check("send", "run an agent")
        agent = self._agent(params.get("name"))
        arguments = params.get("arguments")
        key = (context.meta or {}).get(_KEY)
        if not isinstance(key, str | None):
            raise MCPError(types.INVALID_PARAMS, f"_meta: {_KEY} must be text, not {type(key).__name__}")
        return await self._gateway.perdure.start(
            agent,
            {} if arguments is None else arguments,
            id=f"{beginning}{uuid.uuid4().hex[:8]}" if beginning and key is None else None,
            key=key,
            sender=caller.sender,
            tenant=caller.tenant,
            context=caller.context,
        )

    def _agent(self, name: Any) -> Agent[Any]:
        agents = self._gateway.agents.by_name()
        if not isinstance(name, str) or name not in agents:
            raise MCPError(types.INVALID_PARAMS, none_of(str(name), "tool", sorted(agents)))
        return agents[name]

    async def _follow(self, context: McpContext, run: Run[Any]) -> Waiting:
        """Report progress on request, until the run ends or waits only for the client's user. Return the waiting requests."""
        token = (context.meta or {}).get("progress_token")
        progress, steps = CallProgress(run.id), 0.0
        if not may_decide(context) and not isinstance(token, str | int):
            return ()
        async with aclosing(self._forms(context, run, progress)) as forms:
            async for form in forms:
                if not isinstance(form, str):
                    return form
                steps += 1
                if isinstance(token, str | int):
                    await context.session.send_progress_notification(
                        token, steps, message=form, related_request_id=str(context.request_id)
                    )
        return ()

    async def _forms(
        self, context: McpContext, run: Run[Any], progress: CallProgress
    ) -> AsyncGenerator[str | Waiting, None]:
        if may_decide(context):
            stream = AnswerStream(run, None, self._trees, progress, str, approves=True)
            async with aclosing(stream.forms()) as forms:
                async for form in forms:
                    yield form
            return
        async with aclosing(run.events(topics=progress.topics)) as events:
            async for event in events:
                for form in progress.fold(event):
                    yield form

    async def _own(self, context: McpContext, id: str) -> Run[Any]:
        caller = caller_in(context)
        caller.check("read", "read a task")
        return await self._gateway.own_run(caller, id)

    async def _task(self, context: McpContext, id: str) -> types.Task:
        run = await self._own(context, id)
        return task_of(await run.view(), (await run.started_at()).isoformat(timespec="milliseconds"))


def _check_method(context: McpContext, method: str, *, modern: bool) -> None:
    """Raise `MCPError` if the client's protocol version does not have the method."""
    if is_modern(context) is not modern:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", data=method)


def _beginning(caller: Caller, session: str, request_id: object) -> str:
    """Return the prefix of a call's run id, which no other caller can produce; empty without a session."""
    if not session or not isinstance(request_id, str | int):
        return ""
    return f"mcp-{digest([caller.tenant, caller.sender, session, str(request_id)])}-"


def _session(context: McpContext) -> str:
    assert context.request is not None
    return context.request.headers.get(SESSION, "")
