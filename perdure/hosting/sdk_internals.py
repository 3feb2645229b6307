"""Uses of private parts of the Temporal SDK, each with the public API that is missing.

- `Converter` overrides two private methods. The SDK reads a value's place and fetches the value before it calls a payload converter,
  and fails the workflow's task where either fails. Missing: a hook for a payload that cannot be fetched, and types of its errors:
  `perdure.hosting.codec.is_lasting` reads their codes from their messages.
- `perdure.activities.results` binds the converter of a result with a private method. Missing: an activity's own data converter.
- `ReportingInstance` reads the activations of a workflow, whose types are the SDK core's. Missing: a callback when a task is refused or
  cannot be replayed, and when a run leaves the cache.
  It reads the tasks of a run that cannot be replayed: an unsandboxed instance is their event loop. Missing: their stacks,
  of which `__stack_trace` has the outermost line.
- `before_eviction` reads them too: a replay records an open run before the SDK cancels its tasks.
- `ReportingInstance` also makes each activation of a run wait for the previous one. Missing: an eviction that waits for
  an interrupted task.
- `hide_loops` sets the running event loop of a thread. Missing: event loops that take no task from finalizers.
- `activity_name` and `workflow_name` read the attributes that `activity.defn` and `workflow.defn` set. Missing: a function that returns a definition's name. Tools of users'
  activities and workflows read it too, in `perdure.tools.temporal`.
- `perdure.hosting.logs.core_logging` filters lines of the SDK's core by their text. Missing: a name for each kind of line.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, local
from types import FrameType
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import RemoveFromCache
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info

from perdure.activities.results import EncodedResult
from perdure.hosting import _health as health
from perdure.hosting.codec import is_lasting, unreadable_payload
from perdure.hosting.worker_group import carried_out
from perdure.queries import replay_problem
from perdure.queries.media_store import NamedStorage
from perdure.tools.temporal import ACTIVITY_DEFINITION, WORKFLOW_DEFINITION

_log: Final = logging.getLogger("perdure.run")


def activity_name(function: Callable[..., Any]) -> str | None:
    """Return the name of an activity; `None` for a dynamic one, an empty text for a function that is not an activity."""
    name: str | None = getattr(getattr(function, ACTIVITY_DEFINITION, None), "name", "")
    return name


def workflow_name(cls: Any) -> str | None:
    """Return the name of a workflow; `None` for a dynamic one, an empty text for an object that is not a workflow."""
    definition = getattr(cls, WORKFLOW_DEFINITION, None)
    if definition is None or definition.cls is not cls:
        return ""
    name: str | None = definition.name
    return name


@dataclass(frozen=True)
class Converter(DataConverter):
    """The SDK's data converter, except that an invalid claim in a payload does not fail the workflow task."""

    files: NamedStorage | None = None
    """The storage of files, as in a `FilesConverter`."""

    async def encode(self, values: Sequence[Any]) -> list[Payload]:
        """Encode the values. See `DataConverter`."""
        if len(values) == 1 and isinstance(values[0], EncodedResult):
            return [values[0].payload]
        return await super().encode(values)

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        read = super()._decode_reference_payload_sequence
        return [await self._readable(read, payload) for payload in payloads]

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        read = super()._external_retrieve_payload_sequence
        try:
            return await read(payloads)
        except Exception:  # find the payload that fails
            return [await self._readable(read, payload) for payload in payloads]

    async def _readable(self, read: Any, payload: Payload) -> Payload:
        try:
            [found] = await read([payload])
        except Exception as error:
            if not is_lasting(error):
                raise
            return unreadable_payload(f"in external storage: {error}")
        return found  # type: ignore[no-any-return]


# The garbage collector runs in any thread that allocates. A finalizer there may find the thread's event loop and start a
# task in it: an unclosed `AsyncOpenAI` does so. In a workflow no replay would start that task again. In any other loop
# the task closes connections whose sockets were collected with the client: their file descriptors may be those of other
# sockets by then, and the loop would no longer read from these.


class _Hidden(local):
    """The event loop that this thread hides while the collector runs."""

    loop: asyncio.AbstractEventLoop | None = None


_hidden: Final = _Hidden()


def hide_loops() -> None:
    """Hide running event loops from finalizers that the collector calls, in this process and from now on."""
    if _collecting not in gc.callbacks:
        gc.callbacks.append(_collecting)


def _collecting(phase: str, _: dict[str, Any]) -> None:
    if phase == "start":
        _hidden.loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
    else:
        asyncio._set_running_loop(_hidden.loop)
        _hidden.loop = None


class _Instance(WorkflowInstance):
    """A run in memory, as the SDK keeps it."""

    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner

    def activate(self, act: Any) -> Any:
        return self._inner.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


def _awaited_lines(instance: object) -> str:
    """Return the stacks of a run's tasks, each once: its code is there. Empty for a sandboxed run, and for one without
    tasks.
    """
    stacks: dict[str, None] = {}
    for task in asyncio.all_tasks(instance) if isinstance(instance, asyncio.AbstractEventLoop) else ():
        frames: list[tuple[FrameType, int]] = []
        awaited: Any = task.get_coro()
        while (frame := getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        stacks["".join(traceback.StackSummary.extract(frames).format()).rstrip("\n")] = None
    return "\n\n".join(sorted(stacks))


class ReportingInstance(_Instance):
    """A run in a worker's memory. It reports rejected tasks and failed replays."""

    def __init__(self, inner: WorkflowInstance) -> None:
        super().__init__(inner)
        self._activation = Lock()
        """Held while a task is executed: an eviction waits for it.

        The SDK interrupts a task that takes longer than two seconds, and evicts the run at once, in another thread. If
        the interrupt is late, or is lost in a finalizer, both threads would use one event loop. The run could never be
        evicted then.
        """
        hide_loops()

    def activate(self, act: Any) -> Any:
        evicted = [job.remove_from_cache for job in act.jobs if job.HasField("remove_from_cache")]
        with carried_out(self._inner.get_info().workflow_id, evicts=bool(evicted)), self._activation:
            for removed in evicted:
                self._note(removed)
            return self._inner.activate(act)

    def _note(self, removed: RemoveFromCache) -> None:
        info, reasons = self._inner.get_info(), RemoveFromCache.EvictionReason
        fields = {
            "run": info.workflow_id,
            "workflow": info.workflow_type,
            "why": replay_problem(removed.message)[:2_000],
        }
        if removed.reason == reasons.NONDETERMINISM:
            health.note(info.workflow_id)
            extra = {"perdure": fields, "traceback": _awaited_lines(self._inner)}
            _log.error("a run cannot be replayed by this worker", extra=extra)
        else:
            health.forget(info.workflow_id)
        if removed.reason == reasons.FATAL:
            # The reason is in the history alone.
            _log.warning("the server rejected a task; it is retried: see perdure show RUN", extra={"perdure": fields})


class Unsandboxed(UnsandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return ReportingInstance(super().create_instance(det))


class Sandboxed(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return ReportingInstance(super().create_instance(det))


def before_eviction(report: Callable[[], None]) -> UnsandboxedWorkflowRunner:
    """Return a workflow runner for a replay. It calls `report` before the SDK evicts the run.

    An eviction cancels the tasks of an open run, and the run then has the state of a cancelled one.
    """

    class Instance(_Instance):
        def activate(self, act: Any) -> Any:
            if any(job.HasField("remove_from_cache") for job in act.jobs):
                report()
            return super().activate(act)

    class Runner(UnsandboxedWorkflowRunner):
        def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
            return Instance(super().create_instance(det))

    return Runner()
