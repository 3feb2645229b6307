"""A run as AG-UI's events. Ids come from the run, so every gateway returns the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    CustomEvent,
    Interrupt,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
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
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from perdure.approvals.requests import WaitingView
from perdure.gateway.agui._requests import AguiRequest
from perdure.gateway.answers import AnswerEvents, failure_of, id_below, interrupt_id, output_text, text_name
from perdure.gateway.errors import HttpError
from perdure.gateway.streams import encode_event
from perdure.runs.events import Event, is_silence
from perdure.runs.wire import RunView
from perdure.values.json import Json, JsonObject, dumps


class MessageTexts:
    """The text messages of an answer, at most one open. `messages`: all of the client's, in order; `prefix`: the prefix of their ids."""

    def __init__(self, prefix: str, messages: list[JsonObject], *, reasoning: bool = False) -> None:
        self._prefix = prefix
        self._messages = messages
        self._reasoning = reasoning
        self._known = {str(each.get("id")) for each in messages}
        """Ids that were sent. A message that a client has in part is sent again, under another id."""
        self._name = ""
        """The name of the text being written; empty without one."""
        self._message: JsonObject | None = None
        """The open message."""

    def is_other(self, name: str) -> bool:
        """Whether another message is open."""
        return self._message is not None and self._name != name

    def differs(self, name: str, text: str) -> bool:
        """Whether the open message is not a beginning of this text."""
        return self._message is not None and (self._name != name or not text.startswith(self._written))

    def write(self, name: str, start: int, text: str) -> Iterator[BaseEvent]:
        """Yield a piece of the text after `start` characters. Skip a piece after a gap: `whole` sends the rest."""
        if self._base(name) in self._known or start > len(self._written):
            return
        yield from self._write(name, text[len(self._written) - start :])

    def whole(self, name: str, text: str) -> Iterator[BaseEvent]:
        """Write the whole text, and close the message."""
        if self._message is None and any(each["content"] == text for each in self._of(self._base(name), "-")):
            return
        yield from self._write(name, text[len(self._written) :])
        yield from self.close()

    def forget(self, request: object, text: str | None = None) -> bool:
        """Remove the Request's texts from the messages, except one that equals `text`. Return whether any was removed.

        Texts of another connection are removed too.
        """
        wrong = list(self._of(f"{self._prefix}-{request}", "."))
        kept = next((each for each in reversed(wrong) if each["content"] == text), None)
        return self._remove(each for each in wrong if each is not kept)

    def forget_attempts(self, request: object, end: int) -> bool:
        """Remove the texts of the Request's attempts below `end` from the messages. Return whether any was removed.

        A reconnected client may hold the text of a later attempt: it stays in its place.
        """
        of_request = list(self._of(f"{self._prefix}-{request}", "."))
        return self._remove(each for each in of_request if _attempt(str(each["id"])) < end)

    def _remove(self, wrong: Iterable[JsonObject]) -> bool:
        ids = {id(each) for each in wrong}
        self._messages[:] = [each for each in self._messages if id(each) not in ids]
        return bool(ids)

    def close(self) -> Iterator[BaseEvent]:
        """Close the open message."""
        if self._message is not None:
            id = str(self._message["id"])
            self._known.add(id)
            self._message = None
            if self._reasoning:
                yield ReasoningMessageEndEvent(message_id=id)
                yield ReasoningEndEvent(message_id=id)
            else:
                yield TextMessageEndEvent(message_id=id)

    @property
    def _written(self) -> str:
        return "" if self._message is None else str(self._message["content"])

    def _base(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _of(self, base: str, separator: str) -> Iterator[JsonObject]:
        for each in self._messages:
            if str(each.get("id")).startswith(base + separator) or each.get("id") == base:
                yield each

    def _begin(self, name: str) -> Iterator[BaseEvent]:
        id, number = self._base(name), 1
        while id in self._known:
            number += 1
            id = f"{self._base(name)}-{number}"
        self._name = name
        self._message = {"id": id, "role": "reasoning" if self._reasoning else "assistant", "content": ""}
        self._messages.append(self._message)
        if self._reasoning:
            yield ReasoningStartEvent(message_id=id)
            yield ReasoningMessageStartEvent(message_id=id, role="reasoning")
        else:
            yield TextMessageStartEvent(message_id=id, role="assistant")

    def _write(self, name: str, text: str) -> Iterator[BaseEvent]:
        if not text:
            return
        if self._message is None:
            yield from self._begin(name)
        assert self._message is not None
        id = str(self._message["id"])
        self._message["content"] = self._written + text
        if self._reasoning:
            yield ReasoningMessageContentEvent(message_id=id, delta=text)
        else:
            yield TextMessageContentEvent(message_id=id, delta=text)


def _attempt(id: str) -> int:
    """Return the attempt in a text's id, such as 2 of `…:msg-1.2-3`; 0 for a client's own id."""
    number = id.rpartition(".")[2].partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def patch(before: Json, after: Json, at: str = "") -> list[JsonObject]:
    """Return the operations that change `before` into `after`; a value that is not an object is replaced as a whole."""
    if is_same_json(before, after):
        return []
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [{"op": "replace", "path": at, "value": after}]
    made: list[JsonObject] = [{"op": "remove", "path": _at(at, key)} for key in before if key not in after]
    for key, value in after.items():
        if key in before:
            made += patch(before[key], value, _at(at, key))
        else:
            made.append({"op": "add", "path": _at(at, key), "value": value})
    return made


def is_same_json(one: Json, other: Json) -> bool:
    """Whether both are the same JSON value: in Python, `1` equals `True`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_json, one, other))
    return type(one) is type(other) and one == other


def _at(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _answer(request: WaitingView) -> JsonObject:
    return {"type": "object", "properties": {"answer": request.form or {}}, "required": ["answer"]}


def interrupt_of(request: WaitingView, run: str, run_id: str, call: str) -> Interrupt:
    """Return the interrupt of a request. `run`: as in `interrupt_id`; `run_id`: the run's id; `call`: the client's id of the call."""
    plan = request.calls is not None
    shown: JsonObject = {"calls": request.calls} if plan else {"params": request.params}
    if request.items is not None:
        shown["items"] = request.items
    shown |= {name: value for name in ("sender", "session", "said") if (value := getattr(request, name))}
    shown |= {name: value for name in ("server", "url") if (value := getattr(request, name))}
    if request.ways:
        shown["ways"] = list(request.ways)
    about: JsonObject = {"tool": request.tool, "call": request.call, "runId": run_id, **shown}
    about["requestedAt"] = request.requested_at
    return Interrupt(
        id=interrupt_id(run, request.call, request.digest),
        reason="input_required" if request.question else "confirmation" if plan else "tool_call",
        message=request.sentence,
        tool_call_id=None if plan else call,
        response_schema=_answer(request) if request.question else _decision(request),
        metadata={"perdure": about},
    )


def _decision(request: WaitingView) -> JsonObject:
    properties: JsonObject = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
    if request.calls is None:
        properties["editedArgs"] = {"type": "object"}
    return {"type": "object", "properties": properties, "required": ["approved"]}


NOT_COUNTED: Final = "perdure.not_counted"
"""The name of the event for a late answer: its interrupt was decided already."""


class AguiEvents(AnswerEvents[BaseEvent]):
    """The events that answer one input. `run`: the end of the run's id. `before`: Requests up to this number are not reported."""

    shows_state = True
    runs_tools = True

    def __init__(self, request: AguiRequest, run: str = "", run_id: str = "", before: int = 0) -> None:
        self._messages = [dict(message) for message in request.messages]
        results = (str(message.get("toolCallId")) for message in self._messages if message.get("role") == "tool")
        super().__init__(run, (str(call["id"]) for call in _calls_of(self._messages)), results)
        self._request = request
        self._steps: dict[int, str] = {}
        self._state: JsonObject | None = None
        self._follow(run, run_id, before)

    def _follow(self, run: str, run_id: str, before: int = 0) -> None:
        """Reset what belongs to one run, for the next run of the same answer."""
        self._run, self._run_id, self._before = run, run_id, before
        self._about: JsonObject = {"perdure": {"runId": run_id}} if run_id else {}
        self._text = MessageTexts(f"{run}:msg", self._messages)
        self._thought = MessageTexts(f"{run}:reasoning", self._messages, reasoning=True)
        self._output_name = "answer"
        """The name of the message that the run's output completes: its event was cut. `answer` if no event was cut."""
        self._answered = False
        """Whether the run's output was sent as a message."""

    def begin(self) -> Iterator[BaseEvent]:
        """Yield the first event."""
        yield RunStartedEvent(
            thread_id=self._request.thread,
            run_id=self._request.run,
            protocol_version=PROTOCOL_VERSION,
            metadata=self._about or None,
        )

    def state(self, state: JsonObject) -> Iterator[BaseEvent]:
        """Yield the run's present state: the whole state the first time, then its changes."""
        if self._state is None:
            yield StateSnapshotEvent(snapshot=state)
        elif changes := patch(self._state, state):
            yield StateDeltaEvent.model_validate({"delta": changes})
        self._state = state

    def not_counted(self, interrupts: Iterable[str]) -> Iterator[BaseEvent]:
        """Yield an event for each late answer."""
        for each in interrupts:
            yield CustomEvent(name=NOT_COUNTED, value={"interruptId": each, "reason": "it no longer waits"})

    def interrupt(self, waiting: Sequence[tuple[str, WaitingView]]) -> Iterator[BaseEvent]:
        """Yield the interrupt of a run that waits for a person or the page's tools. `waiting`: each request with its run's path."""
        for path, request in waiting:
            if request.calls is None:
                yield from self._announce(self._call_id(request.call, path), request.tool, request.params)
        yield from self._close()
        interrupts = [
            interrupt_of(
                request, id_below(self._run, path), id_below(self._run_id, path), self._call_id(request.call, path)
            )
            for path, request in waiting
            if not request.client
        ]
        if interrupts:
            yield self._finished(outcome=RunFinishedInterruptOutcome(interrupts=interrupts))
        else:  # only calls of the page; clients before 1.0 reject an outcome that names them
            yield self._finished(outcome=RunFinishedSuccessOutcome())

    def end(self, ended: RunView) -> Iterator[BaseEvent]:
        """Yield the last events. `ended`: the run with its whole output."""
        yield from self._last_text(ended)
        if ended.status == "completed":
            yield self._finished(outcome=RunFinishedSuccessOutcome(), result=ended.output)
        elif ended.status == "cancelled":
            yield self._finished(outcome=RunFinishedCancelledOutcome())
        else:
            yield RunErrorEvent(message=failure_of(ended), code=str(ended.stop_reason or ended.status))

    def leave(self, ended: RunView, run_id: str) -> Iterator[BaseEvent]:
        yield from self._last_text(ended)
        self._follow(run_id.rpartition("/")[2], run_id)

    def _last_text(self, ended: RunView) -> Iterator[BaseEvent]:
        text = output_text(ended)
        if text and not self._answered:
            if self._text.differs(self._output_name, text):
                yield from self._drop(self._text, self._output_name.partition(".")[0])
            yield from self._text.whole(self._output_name, text)
        yield from self._close()

    def problem(self, problem: HttpError) -> Iterator[BaseEvent]:
        """Yield the error that ends the answer."""
        yield RunErrorEvent(message=problem.detail, code=problem.kind)

    def done(self) -> BaseEvent:
        """Return the last event of a command, which needs no run."""
        return self._finished(outcome=RunFinishedSuccessOutcome())

    def _finished(self, **more: Any) -> BaseEvent:
        return RunFinishedEvent(
            thread_id=self._request.thread, run_id=self._request.run, metadata=self._about or None, **more
        )

    def _close(self) -> Iterator[BaseEvent]:
        yield from self._thought.close()
        yield from self._text.close()
        for name in self._steps.values():
            yield StepFinishedEvent(step_name=name)
        self._steps.clear()

    def on_request(self, event: Event) -> Iterator[BaseEvent]:
        phase, data, number = event.phase, event.data, int(event.data["number"])
        if phase == "start" and number > self._before and number not in self._steps:
            self._steps[number] = f"request {number}"
            yield StepStartedEvent(step_name=self._steps[number], metadata={"model": str(data.get("model", ""))})
        elif phase == "end":
            if not data.get("says"):
                yield from self._drop(self._text, number)
            yield from self._thought.close()
            if (name := self._steps.pop(number, None)) is not None:
                yield StepFinishedEvent(step_name=name)

    def on_assistant(self, event: Event) -> Iterator[BaseEvent]:
        if event.phase == "end" and event.data.get("accepted"):
            yield from self._on_text(event.data)
        else:
            yield from self._written(self._text, event)

    def on_reasoning(self, event: Event) -> Iterator[BaseEvent]:
        if event.phase == "end":
            yield from self._thought.close()
        else:
            yield from self._written(self._thought, event)

    def _written(self, texts: MessageTexts, event: Event) -> Iterator[BaseEvent]:
        phase, data = event.phase, event.data
        attempt = int(data.get("attempt") or 1)
        if phase != "delta":
            yield from self._drop(texts, data["request"], attempt + 1 if phase == "superseded" else None)
            return
        name = text_name(data)
        if texts.is_other(name):
            yield from self._drop(texts, data["request"], attempt)
        yield from texts.write(name, int(data["start"]), str(data["text"]))

    def _on_text(self, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Yield an accepted text."""
        name, text = text_name(data), str(data["text"])
        if "text" in (data.get("cut") or ()):
            # The deltas hold more of the text than the event, and the run's end has all of an output.
            if data.get("output"):
                self._output_name = name
            else:
                yield from self._text.close()
            return
        self._answered = self._answered or bool(data.get("output"))
        if self._text.differs(name, text):
            yield from self._text.close()
        if not is_silence(text):
            yield from self._text.whole(name, text)
        if self._text.forget(data["request"], text):
            yield self._snapshot()

    def _drop(self, texts: MessageTexts, request: object, end: int | None = None) -> Iterator[BaseEvent]:
        """End the open message and send the messages without the Request's texts, or without those of its attempts below `end`."""
        yield from texts.close()
        if texts.forget(request) if end is None else texts.forget_attempts(request, end):
            yield self._snapshot()

    def _snapshot(self) -> BaseEvent:
        return MessagesSnapshotEvent.model_validate({"messages": self._messages})

    def on_tool(self, event: Event) -> Iterator[BaseEvent]:
        if event.phase == "start":
            yield from self._started(event.data)
            yield from self._corrected(event.data)
        elif event.phase == "end":
            yield from self._result(self._call_id(str(event.data["call"])), event.data)

    def on_approval(self, event: Event) -> Iterator[BaseEvent]:
        if event.phase == "start" and event.data.get("tool"):
            yield from self._started(event.data)

    def _started(self, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        yield from self._announce(self._call_id(str(data["call"])), str(data["tool"]), data.get("params"))

    def _corrected(self, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Yield the messages with the call as it runs, where a person has edited or replaced the announced one."""
        function = _function(str(data["tool"]), data.get("params"))
        for call in _calls_of(self._messages):
            if call.get("id") == self._call_id(str(data["call"])) and call.get("function") != function:
                call["function"] = function
                yield from self._thought.close()
                yield from self._text.close()
                yield self._snapshot()

    def _announce(self, id: str, tool: str, params: Json) -> Iterator[BaseEvent]:
        if id in self._calls:
            return
        self._calls.add(id)
        function = _function(tool, params)
        yield ToolCallStartEvent(tool_call_id=id, tool_call_name=tool)
        yield ToolCallArgsEvent(tool_call_id=id, delta=function["arguments"])
        yield ToolCallEndEvent(tool_call_id=id)
        self._messages.append(
            {"id": id, "role": "assistant", "toolCalls": [{"id": id, "type": "function", "function": function}]}
        )

    def _result(self, id: str, data: Mapping[str, Any]) -> Iterator[BaseEvent]:
        if id not in self._calls or id in self._results:  # the call never ran, or the client has its result
            return
        self._results.add(id)
        if "result" in data:
            content = data["result"] if isinstance(data["result"], str) else dumps(data["result"])
        else:
            content = dumps({key: data[key] for key in ("status", "error", "reason") if key in data})
        message: JsonObject = {"id": f"{id}:result", "toolCallId": id, "content": content, "role": "tool"}
        self._messages.append(message)
        yield ToolCallResultEvent(message_id=f"{id}:result", tool_call_id=id, content=content, role="tool")


def _function(tool: str, params: Json) -> JsonObject:
    return {"name": tool, "arguments": dumps({} if params is None else params)}


def _calls_of(messages: Iterable[JsonObject]) -> Iterator[JsonObject]:
    for message in messages:
        calls = message.get("toolCalls")
        yield from (call for call in (calls if isinstance(calls, list) else []) if isinstance(call, dict))


def as_frame(event: BaseEvent) -> str:
    """Return an event as a frame of the stream."""
    return encode_event(event.model_dump_json(by_alias=True))
