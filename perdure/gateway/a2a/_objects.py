"""Agents and runs as A2A's objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, Final

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    AuthenticationInfo,
    HTTPAuthSecurityScheme,
    Message,
    Part,
    Role,
    SecurityRequirement,
    SecurityScheme,
    StringList,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct, Value

from perdure.agents.agent import Agent
from perdure.agents.media import Media
from perdure.approvals.requests import WaitingView
from perdure.gateway.a2a._messages import DECIDES
from perdure.gateway.answers import failure_of, id_below, interrupt_id, output_text
from perdure.runs.wire import RunStatus, RunView
from perdure.sessions.status_webhooks import StatusWebhook
from perdure.sessions.wire import digest
from perdure.values.json import Json, JsonObject
from perdure.values.media import read_media

TEXT: Final = "text/plain"
JSON: Final = "application/json"
OUTPUT: Final = "output"
"""The id of a task's artifact."""
STATES: Final[dict[RunStatus, TaskState]] = {
    "running": TaskState.TASK_STATE_WORKING,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "cancelled": TaskState.TASK_STATE_CANCELED,
    "refused": TaskState.TASK_STATE_REJECTED,
    "failed": TaskState.TASK_STATE_FAILED,
    "terminated": TaskState.TASK_STATE_FAILED,
    "timed_out": TaskState.TASK_STATE_FAILED,
}
_BEARER: Final = "bearer"


def card_of(
    name: str, agent: Agent[Any], url: str, *, with_token: bool, with_files: bool, with_push: bool
) -> AgentCard:
    """Return an agent's card.

    `url`: the URL of its methods. `with_token`: whether the gateway requires a token. `with_files`: whether
    it takes and returns files. `with_push`: whether it sends push notifications.
    """
    modes = [TEXT, JSON, *(["*/*"] if with_files else [])]
    about = agent.description or f"Runs the agent {agent.name}."
    card = AgentCard(
        name=name,
        description=about,
        version=version("perdure"),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=each) for each in ("1.0", "0.3")
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=with_push),
        default_input_modes=modes,
        default_output_modes=modes,
        skills=[AgentSkill(id=name, name=name, description=about, tags=["agent"])],
    )
    if with_token:
        bearer = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
        card.security_schemes[_BEARER].CopyFrom(bearer)
        card.security_requirements.append(SecurityRequirement(schemes={_BEARER: StringList()}))
    return card


def task_of(
    view: RunView,
    context: str,
    at: str,
    waiting: Sequence[tuple[str, WaitingView]] = (),
    history: Iterable[Message] = (),
    files: Iterable[Media] = (),
) -> Task:
    """Return a run as a task, whose id is the run's.

    `view`: the run's view, with its whole output. `context`: the session's key. `at`: the time of the last change, ISO
    8601. `waiting`: requests that this client can decide, once the run waits for nothing else. `files`: the output's
    files, with their bytes.
    """
    status = input_required(view.run_id, waiting) if waiting else ended_status(view)
    status.timestamp.FromJsonString(at)
    artifacts = [] if (artifact := artifact_of(view)) is None else [artifact]
    parts = [file_part(each) for each in files]
    for each in artifacts:
        if parts and read_media(view.output) is not None:  # the output is one file, without text
            del each.parts[:]
        each.parts.extend(parts)
    about = {"perdure": {"status": view.status, "stopReason": view.stop_reason}}
    return Task(
        id=view.run_id,
        context_id=context,
        status=status,
        artifacts=artifacts,
        history=history,
        metadata=to_protobuf_struct(about),
    )


def submitted_task(run_id: str, context: str, history: Iterable[Message] = ()) -> Task:
    """Return the task of a message that waits for the run before it."""
    status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
    return Task(id=run_id, context_id=context, status=status, history=history)


def ended_status(view: RunView) -> TaskStatus:
    """Return the status of a run that waits for nobody, with the reason if it ended without an output."""
    status = TaskStatus(state=STATES[view.status])
    if view.status not in ("running", "completed"):
        status.message.CopyFrom(agent_message(f"{view.run_id}:end", [Part(text=failure_of(view))]))
    return status


def input_required(run_id: str, waiting: Sequence[tuple[str, WaitingView]]) -> TaskStatus:
    """Return the status of a run that waits for people. Its message has the requests as text, and their ids as data."""
    run = run_id.rpartition("/")[2]
    requests: list[Json] = [
        _request(interrupt_id(id_below(run, path), each.call, each.digest), each) for path, each in waiting
    ]
    words = "\n".join(each.sentence for _, each in waiting)
    parts = [Part(text=words), Part(data=to_protobuf_value({"requests": requests, "reply": DECIDES}), media_type=JSON)]
    id = f"{run_id}:{digest(requests, 16)}"
    return TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED, message=agent_message(id, parts))


def _request(interrupt: str, request: WaitingView) -> JsonObject:
    plan = request.calls is not None
    shown: JsonObject = {"calls": request.calls} if plan else {"params": request.params}
    if request.items is not None:
        shown["items"] = request.items
    if request.ways:
        shown["ways"] = list(request.ways)
    shown |= {name: value for name in ("server", "form", "url") if (value := getattr(request, name))}
    kind = "question" if request.question else "plan" if plan else "call"
    return {"interrupt": interrupt, "kind": kind, "tool": request.tool, "sentence": request.sentence, **shown}


def artifact_of(view: RunView) -> Artifact | None:
    """Return the output of a run as an artifact; `None` without an output."""
    if view.status != "completed" or view.output is None:
        return None
    if not isinstance(view.output, str):
        return output_artifact(Part(data=to_protobuf_value(view.output), media_type=JSON))
    return output_artifact(Part(text=text, media_type=TEXT)) if (text := output_text(view)) else None


def output_artifact(*parts: Part) -> Artifact:
    """Return a task's artifact, or a piece of it."""
    return Artifact(artifact_id=OUTPUT, name=OUTPUT, parts=parts)


def file_part(file: Media) -> Part:
    """Return a file, with its bytes."""
    return Part(raw=file.read(), media_type=file.type, filename=file.name)


def agent_message(id: str, parts: Iterable[Part]) -> Message:
    """Return a message of the agent."""
    return Message(message_id=id, role=Role.ROLE_AGENT, parts=parts)


def config_of(webhook: StatusWebhook) -> TaskPushNotificationConfig:
    """Return a task's push notification config."""
    config = TaskPushNotificationConfig(id=webhook.id, task_id=webhook.run_id, url=webhook.url, token=webhook.token)
    if webhook.scheme:
        authentication = AuthenticationInfo(scheme=webhook.scheme, credentials=webhook.credentials)
        config.authentication.CopyFrom(authentication)
    return config


def to_protobuf_value(plain: Any) -> Value:
    """Return JSON as a protobuf value."""
    return ParseDict(plain, Value())


def to_protobuf_struct(plain: JsonObject) -> Struct:
    """Return a JSON object as a protobuf struct."""
    return ParseDict(plain, Struct())
