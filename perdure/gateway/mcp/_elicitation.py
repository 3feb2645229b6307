"""Approval requests and questions of a run as forms of an MCP client's user, and the filled forms as decisions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from mcp import types
from mcp.shared.exceptions import MCPError

from perdure.approvals.requests import WaitingView
from perdure.client.run_tree import join_ids
from perdure.errors import JsonError
from perdure.gateway.answers import InterruptAnswer
from perdure.values.json import JsonObject, dumps, loads

Waiting: TypeAlias = Sequence[tuple[str, WaitingView]]
"""Waiting requests, each with its run's path."""
_CHOICES: Final = ("approve", "reject")


def exact_keys(waiting: Waiting) -> dict[str, tuple[str, WaitingView]]:
    """Return the requests by keys with the digest of the shown content: `1.0/6f1ed002ab`, in a delegate's run `1.0/2.1/…`."""
    return {f"{join_ids(path, request.call)}/{request.digest}": (path, request) for path, request in waiting}


def input_requests(waiting: Waiting) -> types.InputRequests:
    """Return the forms of a task, by their exact keys."""
    return {key: _form(request) for key, (_, request) in exact_keys(waiting).items()}


def input_required(run_id: str, waiting: Waiting) -> types.InputRequiredResult:
    """Return the answer to a call that waits for its client's user. The state names the run and the content of each form."""
    asked: dict[str, str] = {}
    forms: types.InputRequests = {}
    for exact, (_, request) in exact_keys(waiting).items():
        name = request.tool or "plan"
        key = name if name not in forms else f"{name} {request.call}"
        key = key if key not in forms else exact
        asked[key], forms[key] = exact, _form(request)
    state = base64.urlsafe_b64encode(dumps({"run": run_id, "asked": asked}).encode()).decode()
    return types.InputRequiredResult(input_requests=forms, request_state=state)


def read_state(state: str) -> tuple[str, dict[str, str]]:
    """Return the run that a call waited for, and the exact key of each form. Raises `MCPError` for an invalid state."""
    try:
        found = loads(base64.b64decode(state, altchars=b"-_", validate=True).decode())
    except (binascii.Error, ValueError, JsonError):
        raise wrong_state() from None
    run, asked = (found.get("run"), found.get("asked")) if isinstance(found, dict) else (None, None)
    if not isinstance(run, str) or not isinstance(asked, dict):
        raise wrong_state()
    return run, {key: str(exact) for key, exact in asked.items()}


def wrong_state() -> MCPError:
    """Return the error for a `requestState` that is not of a call of this tool by this sender."""
    return MCPError(types.INVALID_PARAMS, "requestState: the value is not a state of this tool's call: leave it out")


def decisions(waiting: Waiting, responses: Mapping[str, Any]) -> list[InterruptAnswer]:
    """Return the decisions of the responses, by exact keys. Skip empty ones, and those to requests that do not wait."""
    found = []
    for key, (path, request) in exact_keys(waiting).items():
        response = responses.get(key)
        decision = _decision(request, response) if isinstance(response, types.ElicitResult) else None
        if decision is not None:
            decision |= {"call": request.call, "digest": request.digest}
            found.append(InterruptAnswer(key, "", path, request.call, decision))
    return found


def is_dismissed(responses: Iterable[Any]) -> bool:
    """Whether the user has dismissed a form."""
    return any(isinstance(each, types.ElicitResult) and each.action == "cancel" for each in responses)


def _form(request: WaitingView) -> types.ElicitRequest:
    """Return the form of a request: an answer to a question, or a decision with a reason."""
    properties: JsonObject
    if request.server:
        form = request.form or {"type": "object", "properties": {}}
        return types.ElicitRequest(
            params=types.ElicitRequestFormParams(message=request.sentence, requested_schema=form)
        )
    if request.question:
        choices = request.params.get("choices")
        answer: JsonObject = {"type": "string", "title": "Answer"}
        if isinstance(choices, list) and choices and all(isinstance(each, str) for each in choices):
            answer["enum"] = choices
        properties, required, message = {"answer": answer}, "answer", request.sentence
    else:
        properties = {
            "decision": {"type": "string", "title": "Decision", "enum": [*_CHOICES]},
            "reason": {"type": "string", "title": "Reason"},
        }
        shown = request.params if request.calls is None else request.calls
        ways = "".join(f"\n{way}" for way in request.ways)
        required, message = "decision", f"{request.sentence}\n{dumps(shown)}{ways}"
    schema = {"type": "object", "properties": properties, "required": [required]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _decision(request: WaitingView, response: types.ElicitResult) -> JsonObject | None:
    content = response.content or {}
    if response.action == "cancel":
        return None
    if response.action == "decline":
        return {"decision": "reject", "reason": "the user declined"}
    if request.server:
        return {"decision": "answer", "answer": content}
    if request.question:  # a form with one field, of any name
        answer = content.get("answer", next(iter(content.values())) if len(content) == 1 else None)
        return None if answer is None else {"decision": "answer", "answer": answer}
    reason: JsonObject = {"reason": str(content["reason"])} if content.get("reason") else {}
    return {"decision": content["decision"], **reason} if content.get("decision") in _CHOICES else None
