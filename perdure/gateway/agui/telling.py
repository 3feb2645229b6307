"""A run as AG-UI's events: pure. Ids are made of the run's, so that any gateway tells the same, and what a client has is not told again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    CustomEvent,
    MessagesSnapshotEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from perdure.gateway.agui.interrupts import interrupt_of
from perdure.gateway.agui.patches import patch
from perdure.gateway.agui.reading import Asked
from perdure.gateway.agui.texts import Texts
from perdure.model.dialects.saying import text_of
from perdure.run.events.kinds import Event
from perdure.run.events.silence import is_silence
from perdure.run.wire import RunView, WaitingView
from perdure.values.jsons import Json, JsonObject, dumps

NOT_COUNTED: Final = "perdure.not_counted"
"""The name of the event that says that an answer came too late: its interrupt was decided already."""


class Telling:
    """What one input is answered with. `run`: the end of the run's id; `before`: Requests up to this number are told of no more."""

    def __init__(self, asked: Asked, run: str = "", run_id: str = "", before: int = 0) -> None:
        self._asked = asked
        self._run = run
        self._before = before
        self._about: JsonObject = {"perdure": {"runId": run_id}} if run_id else {}
        self._messages = [dict(message) for message in asked.messages]
        self._text = Texts(f"{run}:msg", self._messages)
        self._thought = Texts(f"{run}:reasoning", self._messages, reasoning=True)
        self._steps: dict[int, str] = {}
        self._calls = {str(call["id"]) for call in _calls_of(self._messages)}
        """Ids of calls that the client knows."""
        self._results = {str(message.get("toolCallId")) for message in self._messages if message.get("role") == "tool"}
        self._state: JsonObject | None = None
        self._answered = False
        """Whether the run's output was told as a message."""

    def begin(self) -> BaseEvent:
        """The first event."""
        return RunStartedEvent(
            thread_id=self._asked.thread,
            run_id=self._asked.run,
            protocol_version=PROTOCOL_VERSION,
            metadata=self._about or None,
        )

    def take(self, event: Event) -> Iterator[BaseEvent]:
        """What is told of an event of the run."""
        tell: Callable[[str, Mapping[str, Any]], Iterator[BaseEvent]] | None = {
            "request": self._request,
            "assistant": self._assistant,
            "reasoning": self._reasoning,
            "tool": self._tool,
            "approval": self._approval,
        }.get(event.topic)
        if tell is not None:
            yield from tell(event.phase, event.data)

    def state(self, state: JsonObject) -> Iterator[BaseEvent]:
        """The run's state as it is now: whole the first time, then what has changed."""
        if self._state is None:
            yield StateSnapshotEvent(snapshot=state)
        elif changes := patch(self._state, state):
            yield StateDeltaEvent.model_validate({"delta": changes})
        self._state = state

    def not_counted(self, interrupts: Iterable[str]) -> Iterator[BaseEvent]:
        """Answers that came too late."""
        for each in interrupts:
            yield CustomEvent(name=NOT_COUNTED, value={"interruptId": each, "reason": "it does not wait any more"})

    def interrupt(self, waiting: Sequence[WaitingView]) -> Iterator[BaseEvent]:
        """The run waits for a person."""
        for offer in waiting:
            if offer.calls is None:
                yield from self._announce(offer.call, offer.tool, offer.params)
        yield from self._close()
        interrupts = [interrupt_of(offer, self._run, self._call(offer.call)) for offer in waiting]
        yield self._finished(outcome=RunFinishedInterruptOutcome(interrupts=interrupts))

    def end(self, view: RunView, output: Json) -> Iterator[BaseEvent]:
        """The run has ended. `output`: whole."""
        text = "" if output is None else text_of(output)
        if view.status == "completed" and not self._answered and text and not is_silence(text):
            yield from self._text.whole("answer", text)
        yield from self._close()
        if view.status == "completed":
            yield self._finished(outcome=RunFinishedSuccessOutcome(), result=output)
        elif view.status == "cancelled":
            yield self._finished(outcome=RunFinishedCancelledOutcome())
        else:
            words = view.error or f"the run was {view.status.replace('_', ' ')}"
            yield RunErrorEvent(message=words, code=str(view.stop_reason or view.status))

    def done(self) -> BaseEvent:
        """Of what takes no run: a command."""
        return self._finished(outcome=RunFinishedSuccessOutcome())

    def _finished(self, **more: Any) -> BaseEvent:
        return RunFinishedEvent(
            thread_id=self._asked.thread, run_id=self._asked.run, metadata=self._about or None, **more
        )

    def _close(self) -> Iterator[BaseEvent]:
        yield from self._thought.close()
        yield from self._text.close()
        for name in self._steps.values():
            yield StepFinishedEvent(step_name=name)
        self._steps.clear()

    def _call(self, call: str) -> str:
        return f"{self._run}:{call}"

    def _request(self, phase: str, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        number = int(data["number"])
        if phase == "start" and number > self._before and number not in self._steps:
            self._steps[number] = f"request {number}"
            yield StepStartedEvent(step_name=self._steps[number], metadata={"model": str(data.get("model", ""))})
        elif phase == "end":
            if not data.get("says"):
                yield from self._drop(self._text, number)
            yield from self._thought.close()
            if (name := self._steps.pop(number, None)) is not None:
                yield StepFinishedEvent(step_name=name)

    def _assistant(self, phase: str, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        if phase == "end" and data.get("accepted"):
            yield from self._said(data)
        else:
            yield from self._written(self._text, phase, data)

    def _reasoning(self, phase: str, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        if phase == "end":
            yield from self._thought.close()
        else:
            yield from self._written(self._thought, phase, data)

    def _written(self, texts: Texts, phase: str, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        attempt = int(data.get("attempt") or 1)
        if phase != "delta":
            yield from self._drop(texts, data["request"], attempt + 1 if phase == "superseded" else None)
            return
        name = _name(data)
        if texts.is_other(name):
            yield from self._drop(texts, data["request"], attempt)
        yield from texts.write(name, int(data["start"]), str(data["text"]))

    def _said(self, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """A text that counts."""
        name, text = _name(data), str(data["text"])
        if "text" in (data.get("cut") or ()):  # then what was written is more of it
            yield from self._text.close()
            return
        self._answered = self._answered or bool(data.get("output"))
        if self._text.differs(name, text):
            yield from self._text.close()
        if not is_silence(text):
            yield from self._text.whole(name, text)
        if self._text.forget(data["request"], text):
            yield self._snapshot()

    def _drop(self, texts: Texts, request: object, end: int | None = None) -> Iterator[BaseEvent]:
        """End the open message and send the messages without the Request's texts, or without those of its attempts below `end`."""
        yield from texts.close()
        if texts.forget(request) if end is None else texts.forget_attempts(request, end):
            yield self._snapshot()

    def _snapshot(self) -> BaseEvent:
        return MessagesSnapshotEvent.model_validate({"messages": self._messages})

    def _tool(self, phase: str, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        if phase == "start":
            yield from self._announce(str(data["call"]), str(data["tool"]), data.get("params"))
        elif phase == "end":
            yield from self._result(data)

    def _approval(self, phase: str, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        if phase == "start" and data.get("tool"):
            yield from self._announce(str(data["call"]), str(data["tool"]), data.get("params"))

    def _announce(self, call: str, tool: str, params: Json) -> Iterator[BaseEvent]:
        id = self._call(call)
        if id in self._calls:
            return
        self._calls.add(id)
        arguments = dumps({} if params is None else params)
        yield ToolCallStartEvent(tool_call_id=id, tool_call_name=tool)
        yield ToolCallArgsEvent(tool_call_id=id, delta=arguments)
        yield ToolCallEndEvent(tool_call_id=id)
        function = {"name": tool, "arguments": arguments}
        self._messages.append(
            {"id": id, "role": "assistant", "toolCalls": [{"id": id, "type": "function", "function": function}]}
        )

    def _result(self, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        id = self._call(str(data["call"]))
        if id not in self._calls or id in self._results:  # it never ran, or the client has been told
            return
        self._results.add(id)
        if "result" in data:
            content = data["result"] if isinstance(data["result"], str) else dumps(data["result"])
        else:
            content = dumps({key: data[key] for key in ("status", "error", "reason") if key in data})
        message: JsonObject = {"id": f"{id}:result", "toolCallId": id, "content": content, "role": "tool"}
        self._messages.append(message)
        yield ToolCallResultEvent(message_id=f"{id}:result", tool_call_id=id, content=content, role="tool")


def _name(data: Mapping[str, Any]) -> str:
    return f"{data['request']}.{data.get('attempt') or 1}"


def _calls_of(messages: Iterable[JsonObject]) -> Iterator[JsonObject]:
    for message in messages:
        calls = message.get("toolCalls")
        yield from (call for call in (calls if isinstance(calls, list) else []) if isinstance(call, dict))
