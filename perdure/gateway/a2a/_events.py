"""A run as updates of its task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from a2a.types import Part, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent

from perdure.approvals.requests import WaitingView
from perdure.gateway.a2a._objects import (
    TEXT,
    artifact_of,
    ended_status,
    input_required,
    output_artifact,
    to_protobuf_struct,
)
from perdure.gateway.answers import AnswerEvents, output_text, text_name
from perdure.runs.events import Event, is_silence
from perdure.runs.wire import RunView
from perdure.values.json import JsonObject

Update: TypeAlias = TaskArtifactUpdateEvent | TaskStatusUpdateEvent


class TaskUpdates(AnswerEvents[Update]):
    """The updates of one task. A model's text is the task's artifact; a later text replaces an earlier, intermediate one."""

    def __init__(self, run_id: str, context: str) -> None:
        super().__init__(run_id.rpartition("/")[2])
        self._run_id, self._context = run_id, context
        self._works = False
        self._name = ""
        """The name of the text in the artifact: `REQUEST.ATTEMPT`; empty without a valid text."""
        self._written = ""

    def on_request(self, event: Event) -> Iterator[Update]:
        if event.phase == "start" and not self._works:
            self._works = True
            yield self._status(TaskStatus(state=TaskState.TASK_STATE_WORKING), event.at)

    def on_assistant(self, event: Event) -> Iterator[Update]:
        name, data = text_name(event.data), event.data
        if event.phase == "delta":
            start = int(data["start"])
            if name != self._name and start == 0:
                self._name, self._written = name, ""
            if name == self._name and start <= len(self._written):  # otherwise the end event has the rest
                yield from self._write(str(data["text"])[len(self._written) - start :])
        elif event.phase == "superseded" or not data.get("accepted"):
            self._name = ""
        elif "text" not in (data.get("cut") or ()):  # otherwise the deltas hold more of the text
            yield from self._whole(name, str(data["text"]))

    def on_tool(self, event: Event) -> Iterator[Update]:
        if event.phase in ("start", "end"):
            call = {"call": event.data["call"], "tool": event.data.get("tool")}
            call["status"] = "running" if event.phase == "start" else event.data["status"]
            yield self._status(TaskStatus(state=TaskState.TASK_STATE_WORKING), event.at, {"perdure": call})

    def interrupt(self, waiting: Sequence[tuple[str, WaitingView]]) -> Iterator[Update]:
        at = max(request.requested_at for _, request in waiting)
        yield self._status(input_required(self._run_id, waiting), at)

    def end(self, ended: RunView) -> Iterator[Update]:
        artifact = artifact_of(ended)
        if artifact is not None and (not isinstance(ended.output, str) or output_text(ended) != self._written):
            yield TaskArtifactUpdateEvent(
                task_id=self._run_id, context_id=self._context, artifact=artifact, append=False, last_chunk=True
            )
        yield self._status(ended_status(ended), ended.ended_at)

    def _result(self, id: str, data: Mapping[str, Any]) -> Iterator[Update]:
        del id, data
        yield from ()  # a task shows no results of calls

    def _whole(self, name: str, text: str) -> Iterator[Update]:
        if is_silence(text):
            return
        if name != self._name or not text.startswith(self._written):
            self._name, self._written = name, ""
        yield from self._write(text[len(self._written) :])

    def _write(self, text: str) -> Iterator[Update]:
        if not text:
            return
        yield TaskArtifactUpdateEvent(
            task_id=self._run_id,
            context_id=self._context,
            artifact=output_artifact(Part(text=text, media_type=TEXT)),
            append=bool(self._written),
        )
        self._written += text

    def _status(self, status: TaskStatus, at: str | None, metadata: JsonObject | None = None) -> Update:
        if at is None:
            status.timestamp.GetCurrentTime()
        else:  # the same time in every stream of the task
            status.timestamp.FromJsonString(at)
        return TaskStatusUpdateEvent(
            task_id=self._run_id, context_id=self._context, status=status, metadata=to_protobuf_struct(metadata or {})
        )
