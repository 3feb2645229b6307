"""Invocations: the input and result of a call's activity, and the queues of rate-limited tools."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Collection

from pydantic import Field

from perdure.hooks.events import HookProblem, HookRef, RunOwner
from perdure.tools.server_input import ServerAnswers, ServerInput
from perdure.values.json import Json, JsonObject, WireModel, dumps
from perdure.values.limits import MAX_PAYLOAD


class ToolReads(WireModel):
    """The input for a call's tool. `definition` is only set when it is not the registry's own."""

    call: JsonObject
    params: JsonObject
    definition: JsonObject | None = None
    messages: list[JsonObject] = Field(default_factory=list)
    owner: RunOwner | None = Field(default=None, exclude_if=operator.not_)
    """The sender, for the tool's code; `None` if none was named (R19.1)."""
    undoes: str = Field(default="", exclude_if=operator.not_)
    """`<run id>/<call id>` of the call that this one undoes (R23.4)."""


class CallHookRefs(WireModel):
    """The hooks that examine a call's result, as its worker receives them (R10.17)."""

    hooks: list[HookRef] = Field(default_factory=list)
    of: dict[str, str] = Field(default_factory=dict)
    """The run's fields of their events: agent, tenant, sender, session."""
    records: bool = False
    """Whether a session's transcript keeps the result."""


class ToolInput(WireModel):
    """The input of one tool call."""

    tool: str
    activity: str
    call_id: str
    earlier: int = 0
    """Attempts that began before those that the activity counts: see `perdure.plan._retry`."""
    elsewhere: bool = False
    """Whether the last worker that received it lacks the tool."""
    reads: ToolReads | None = None
    """`None`: a claim check; the activity fetches it from its run (R18.2)."""
    approved: str | None = None
    """The `approval_digest` of the call that a person approved, if one did."""
    clean: bool = False
    """Whether the run knows that the call has no untrusted values (R15.3)."""
    free: int = MAX_PAYLOAD
    """Bytes that the result may have without a `CLAIM` (R18.4)."""
    hooks: CallHookRefs | None = None
    answers: ServerAnswers | None = Field(default=None, exclude_if=operator.not_)
    """The answers to the requests of the tool's server in earlier runs of the call (R21.3)."""


class ReportedUsage(WireModel):
    """The usage of a model that a tool's code has asked itself."""

    model: str
    requests: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = Field(default=0, exclude_if=operator.not_)


class ToolResult(WireModel):
    """The result of a tool's call, and its attempt."""

    value: Json = None
    branch: str | None = None
    attempt: int = 1
    size: int = 0
    """Bytes of the value as JSON, measured in the activity (R18.1)."""
    kept: list[Json] | None = None
    """The value that a session's transcript stores in its place, if a hook says so; a list of one value."""
    unheard: list[HookProblem] = Field(default_factory=list)
    """Hooks that failed and counted as absent."""
    usage: list[ReportedUsage] = Field(default_factory=list, exclude_if=operator.not_)
    """The usage that the tool has reported (R9.6)."""
    untrusted: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the tool has marked this result as written by others (R15.2)."""
    asks: ServerInput | None = Field(default=None, exclude_if=operator.not_)
    """What the tool's server asks for before it returns a result; the call runs again with the answers (R21.3)."""


class SpaceClaim(WireModel):
    """A result, or a delegate's output, that is larger than its call's `free` share of the history."""

    call_id: str
    size: int


class SpaceGrant(WireModel):
    """The decision about a delegate's claim."""

    granted: bool


def idempotency_key(run_id: str, call_id: str, tool: str, params: JsonObject, undoes: str = "") -> str:
    """Return `<run id>/<call id>:<digest>`; the digest is 12 hexadecimal digits over the tool's name and its resolved
    parameters. For a call that undoes another one: `<run id>/<call id>:undo:<digest>`, named after that other call, so
    it is the same in each run that tries it.

    The key is the same on each attempt and after a reset with the same plan. A plan that differs after a reset has the
    same call ids, so the digest distinguishes its effects from the earlier ones. The activity computes it: a workflow
    encodes no large value again (R18.1).
    """
    digest = hashlib.sha256(dumps([tool, params], sort_keys=True).encode(errors="replace")).hexdigest()[:12]
    return f"{undoes}:undo:{digest}" if undoes else f"{run_id}/{call_id}:{digest}"


class Limited(WireModel):
    """The models, and the activities of tools, whose rate the workers limit."""

    models: list[str] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)
    runs: bool = False
    """Whether runs of sessions wait for a worker to have room (R10.3)."""

    def of_model(self, queue: str, model: str) -> str | None:
        """Return the queue for Requests of the model; `None`: the general queue."""
        name = limiting_name(model, self.models)
        return None if name is None else model_queue(queue, name)

    def of_tool(self, queue: str, activity: str) -> str | None:
        """Return the queue for calls of the tool's code; `None`: the general queue."""
        return tool_queue(queue, activity) if activity in self.tools else None


def limited(models: Collection[str], tools: Collection[str], *, runs: bool = False) -> Limited:
    return Limited(models=sorted(models), tools=sorted(tools), runs=runs)


def limiting_name(model: str, names: Collection[str]) -> str | None:
    """Return the name under which a model is limited: its own, or its longest prefix with `*` after it."""
    if model in names:
        return model
    beginnings = [name for name in names if name.endswith("*") and model.startswith(name[:-1])]
    return max(beginnings, key=len, default=None)


def runs_queue(queue: str) -> str:
    """Return the queue for turns of sessions' runs."""
    return f"{queue}/runs"


def model_queue(queue: str, model: str) -> str:
    return f"{queue}/model/{model}"


def tool_queue(queue: str, activity: str) -> str:
    return f"{queue}/tool/{activity}"
