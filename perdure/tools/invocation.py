"""Invocations: what crosses between a run and the activity of a call, and the queues of rate-limited tools."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from pydantic import Field

from perdure.hooks.events import HookProblem, HookRef
from perdure.values.json import Json, JsonObject, WireModel, dumps
from perdure.values.limits import MAX_PAYLOAD


class ToolReads(WireModel):
    """What a call's tool is given. `definition` is only there when it is not the registry's own."""

    call: JsonObject
    params: JsonObject
    definition: JsonObject | None = None
    messages: list[JsonObject] = Field(default_factory=list)


class CallHookRefs(WireModel):
    """What a call's worker is told of the hooks that look at its result (R10.17)."""

    hooks: list[HookRef] = Field(default_factory=list)
    of: dict[str, str] = Field(default_factory=dict)
    """What their events say of the run: agent, tenant, sender, session."""
    records: bool = False
    """Whether a session's transcript keeps the result."""


class ToolInput(WireModel):
    """One tool call."""

    tool: str
    activity: str
    call_id: str
    earlier: int = 0
    """Attempts that began before those that the activity counts: see `perdure.plan.retry`."""
    elsewhere: bool = False
    """Whether the worker that took it up last lacks the tool."""
    reads: ToolReads | None = None
    """`None`: too large to be sent; the activity asks its run for it by `PARAMETERS_QUERY` (R18.2)."""
    approved: str | None = None
    """`approval_digest` of what a person let run, if one did."""
    clean: bool = False
    """Whether nothing of it was written by others, as its run knows (R15.3)."""
    free: int = MAX_PAYLOAD
    """Bytes that the result may have without a `CLAIM` (R18.4)."""
    hooks: CallHookRefs | None = None


class ToolResult(WireModel):
    """What a tool returned, and at which attempt."""

    value: Json = None
    branch: str | None = None
    attempt: int = 1
    size: int = 0
    """Bytes of the value as JSON, measured where it was made (R18.1)."""
    kept: list[Json] | None = None
    """What a session's transcript keeps in its place, where a hook says so; one value."""
    unheard: list[HookProblem] = Field(default_factory=list)
    """Hooks that failed and were gone past."""


class SpaceClaim(WireModel):
    """A result, or a delegate's output, that is larger than its call's `free` share of the history."""

    call_id: str
    size: int


class SpaceGrant(WireModel):
    """What was decided of a delegate's claim."""

    granted: bool


def idempotency_key(run_id: str, call_id: str, tool: str, params: JsonObject) -> str:
    """`<run id>/<call id>:<digest>`, the digest being 12 hexadecimal digits over the tool's name and its resolved parameters.

    The same on each attempt and after a reset with the same plan. A plan that is another after a reset has the same call ids, so
    the digest tells its effects from those that were made before. Made where the call is carried out: a workflow encodes no large
    value again (R18.1).
    """
    digest = hashlib.sha256(dumps([tool, params], sort_keys=True).encode(errors="replace")).hexdigest()[:12]
    return f"{run_id}/{call_id}:{digest}"


class Limited(WireModel):
    """The models, and the activities of tools, that workers hold to a rate."""

    models: list[str] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)
    runs: bool = False
    """Whether runs of sessions wait for a worker to have room (R10.3)."""

    def of_model(self, queue: str, model: str) -> str | None:
        """Where Requests of the model go; `None`: where all others of the queue go."""
        return model_queue(queue, model) if model in self.models else None

    def of_tool(self, queue: str, activity: str) -> str | None:
        """Where calls of the tool's code go; `None`: where all others of the queue go."""
        return tool_queue(queue, activity) if activity in self.tools else None


def limited(models: Collection[str], tools: Collection[str], *, runs: bool = False) -> Limited:
    return Limited(models=sorted(models), tools=sorted(tools), runs=runs)


def runs_queue(queue: str) -> str:
    """Where turns of sessions' runs are given."""
    return f"{queue}/runs"


def model_queue(queue: str, model: str) -> str:
    return f"{queue}/model/{model}"


def tool_queue(queue: str, activity: str) -> str:
    return f"{queue}/tool/{activity}"
