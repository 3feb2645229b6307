"""Agents and runs as MCP's objects."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from mcp import types

from perdure.agents.agent import Agent
from perdure.agents.media import Media
from perdure.approvals.requests import requests_of_people
from perdure.errors import clip, pluralize
from perdure.gateway.answers import AnswerEvents
from perdure.gateway.mcp._elicitation import Waiting, input_requests
from perdure.runs.events import Event
from perdure.runs.wire import RunView
from perdure.values.json import Json, JsonObject, dumps

POLL: Final = 1000
"""The poll interval of tasks for clients, in milliseconds."""
_STATUS: Final[dict[str, types.TaskStatus]] = {
    "running": "working",
    "completed": "completed",
    "cancelled": "cancelled",
    "refused": "failed",
    "failed": "failed",
    "terminated": "failed",
    "timed_out": "failed",
}
_LONGEST: Final = 1000


def tool_of(name: str, agent: Agent[Any]) -> types.Tool:
    """Return the agent as a tool. The agent's input is the tool's; an output that is an object is structured content."""
    output = agent.parsed.output_schema
    shaped = isinstance(output, dict) and output.get("type") == "object"
    return types.Tool(
        name=name,
        description=agent.description or f"Runs the agent {agent.name}.",
        input_schema=agent.input_schema,
        output_schema=output if shaped and isinstance(output, dict) else None,
        execution=types.ToolExecution(task_support="optional"),
    )


def result_of(view: RunView) -> types.CallToolResult:
    """Return the result of a run that has ended. A failed run is an error that the calling model reads."""
    if view.status != "completed":
        words = view.error or f"the run {view.run_id} is {view.status}"
        return _result(words, is_error=True)
    text = view.output if isinstance(view.output, str) else dumps(view.output)
    return _result(text, structured=view.output if isinstance(view.output, dict) else None)


def block_of(file: Media) -> types.ContentBlock:
    """Return a file as content: a picture, a recording, or a resource."""
    data = base64.b64encode(file.read()).decode()
    if file.type.startswith("image/"):
        return types.ImageContent(data=data, mime_type=file.type)
    if file.type.startswith("audio/"):
        return types.AudioContent(data=data, mime_type=file.type)
    resource = types.BlobResourceContents(
        uri=f"perdure:///{quote(file.name or file.digest)}", mime_type=file.type, blob=data
    )
    return types.EmbeddedResource(resource=resource)


def error_of(words: str) -> types.CallToolResult:
    """Return the result of a call that has failed."""
    return _result(words, is_error=True)


def _result(text: str, *, structured: Json = None, is_error: bool = False) -> types.CallToolResult:
    content: list[Any] = [types.TextContent(text=text)]
    return types.CallToolResult(content=content, structured_content=structured, is_error=is_error)


def task_of(view: RunView, created: str) -> types.Task:
    """Return a run as a task, whose id is the run's. `created`: ISO 8601. The namespace's retention bounds the task's lifetime."""
    status: types.TaskStatus = "input_required" if requests_of_people(view.waiting) else _STATUS[view.status]
    return types.Task(
        task_id=view.run_id,
        status=status,
        status_message=_message(view),
        created_at=created,
        last_updated_at=_last(view, created),
        ttl=None,
        poll_interval=POLL,
    )


def task_to_json(task: types.Task) -> JsonObject:
    """Return the task as JSON. The protocol requires `ttl`, even if it is `null`; the library leaves out `null`."""
    plain: JsonObject = task.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain | {"ttl": task.ttl}


def _message(view: RunView) -> str:
    if waiting := requests_of_people(view.waiting):
        questions = "; ".join(f"{one.call} {one.sentence}" for one in waiting[:5])
        return clip(f"waits for a person: {questions}", _LONGEST)
    if view.error:
        return clip(view.error, _LONGEST)
    done = sum(call.status == "done" for call in view.calls)
    return f"{pluralize(view.requests, 'Request')}, {done} of {pluralize(len(view.calls), 'call')} done"


def _last(view: RunView, created: str) -> str:
    times = [time for call in view.calls for time in (call.started_at, call.ended_at) if time is not None]
    return max([created, *times])


def current_time() -> str:
    """Return the present time in ISO 8601, as tasks have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def detailed_task(view: RunView, created: str, waiting: Waiting, result: types.CallToolResult | None) -> JsonObject:
    """Return a run as a task of 2026-07-28.

    `waiting`: requests that this client's user can decide. `result`: the result of a run that has ended, also of a
    failed one.
    """
    status = "input_required" if waiting else "working"
    more: JsonObject = {"inputRequests": _plain(input_requests(waiting))} if waiting else {}
    if result is not None:
        status = "cancelled" if view.status == "cancelled" else "completed"
        more = {} if status == "cancelled" else {"result": {"resultType": "complete", **result_to_json(result)}}
    return {
        "taskId": view.run_id,
        "status": status,
        "statusMessage": _message(view),
        "createdAt": created,
        "lastUpdatedAt": _last(view, created),
        "ttlMs": None,
        "pollIntervalMs": POLL,
        **more,
    }


def result_to_json(result: types.Result) -> JsonObject:
    """Return a result as JSON."""
    found: JsonObject = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _plain(requests: types.InputRequests) -> JsonObject:
    return {key: each.model_dump(mode="json", by_alias=True, exclude_none=True) for key, each in requests.items()}


class CallProgress(AnswerEvents[str | Waiting]):
    """The progress of a call in words, and then the waiting requests, if the run waits only for its client's user."""

    def interrupt(self, waiting: Waiting) -> Iterator[str | Waiting]:
        yield waiting

    def on_request(self, event: Event) -> Iterator[str]:
        if event.phase == "start":
            yield f"Request {event.data.get('number')} to {event.data.get('model')}"

    def on_tool(self, event: Event) -> Iterator[str]:
        if event.phase != "update":
            step = "runs" if event.phase == "start" else event.data.get("status", "ended")
            yield f"{event.data.get('call')} {event.data.get('tool')} {step}"

    def on_approval(self, event: Event) -> Iterator[str]:
        if event.phase == "start":
            whom = "its client" if event.data.get("client") else "a person"
            yield f"{event.data.get('call')} {event.data.get('tool')} waits for {whom}"
