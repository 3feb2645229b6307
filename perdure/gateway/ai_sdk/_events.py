"""A run as the chunks of a UI message stream. Ids come from the run, so every gateway returns the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from perdure.approvals.requests import WaitingView
from perdure.gateway.ai_sdk._requests import PageChatRequest, UiMessage, is_tool
from perdure.gateway.answers import AnswerEvents, failure_of, id_below, interrupt_id, output_text, text_name
from perdure.gateway.errors import HttpError
from perdure.gateway.streams import encode_event
from perdure.runs.events import Event, is_silence
from perdure.runs.partial_output import PartialOutputEvents
from perdure.runs.wire import RunView
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.references import MISSING

PLAN: Final = "plan"
"""The name of the tool part that requests approval of a whole plan."""


class _Texts:
    """The texts of one kind, `text` or `reasoning`. At most one is open."""

    def __init__(self, kind: str, run: str, shown: Mapping[str, str]) -> None:
        self._kind, self._run, self._shown = kind, run, shown
        self._number = 0
        self._name = ""
        """The name of the text being written: `REQUEST.ATTEMPT`; empty without one."""
        self._written = ""

    @property
    def _id(self) -> str:
        return f"{self._kind}-{self._number}"

    def _chunk(self, event: str, **more: Any) -> JsonObject:
        return {"type": f"{self._kind}-{event}", "id": self._id, **more}

    def _about(self, **more: Any) -> JsonObject:
        return {"providerMetadata": {"perdure": {"text": f"{self._run}:{self._name}", **more}}}

    def _shown_of(self, name: str) -> str:
        return self._shown.get(f"{self._run}:{name}", "")

    def follow(self, run: str) -> None:
        """Continue with the texts of another run of the same answer."""
        self._run = run

    def is_shown(self, name: str, text: str) -> bool:
        """Whether the page has the text already."""
        return self._shown_of(name) == text

    def write(self, name: str, start: int, text: str) -> Iterator[JsonObject]:
        """Yield a piece of the text after `start` characters. Skip a piece after a gap, or of a text that an earlier answer has shown:
        `whole` sends the rest."""
        if self._shown_of(name):
            return
        if self._name not in ("", name):
            yield from self.close(superseded=True)
        if start <= len(self._written):
            yield from self._write(name, text[len(self._written) - start :])

    def whole(self, name: str, text: str) -> Iterator[JsonObject]:
        """Yield the missing rest of the text, and close it."""
        if self._name and (self._name != name or not text.startswith(self._written)):
            yield from self.close(superseded=True)
        shown = self._shown_of(name)
        if shown and text.startswith(shown):  # the previous answer ended within the text
            yield from self._write(name, text[len(shown) :], start=len(shown))
        else:
            yield from self._write(name, text[len(self._written) :])
        yield from self.close()

    def close(self, *, superseded: bool = False) -> Iterator[JsonObject]:
        """Close the open text. `superseded`: it is invalid, and a page hides it."""
        if self._name:
            yield self._chunk("end", **(self._about(superseded=True) if superseded else {}))
        self._name, self._written = "", ""

    def drop(self, request: object, attempt: int | None = None) -> Iterator[JsonObject]:
        """Close the open text as superseded if it belongs to this Request and to an attempt up to `attempt`."""
        number, _, of = self._name.partition(".")
        if number == str(request) and (attempt is None or int(of) <= attempt):
            yield from self.close(superseded=True)

    def _write(self, name: str, text: str, start: int = 0) -> Iterator[JsonObject]:
        if not text:
            return
        if not self._name:
            self._name, self._number = name, self._number + 1
            yield self._chunk("start", **self._about(**({"start": start} if start else {})))
        self._written += text
        yield self._chunk("delta", delta=text)


class UiMessageEvents(AnswerEvents[JsonObject]):
    """The chunks of one answer. `run`: the end of the run's id. `before`: Requests up to this number are already shown."""

    runs_tools = True

    def __init__(self, chat_request: PageChatRequest, run: str = "", run_id: str = "", before: int = 0) -> None:
        continued = chat_request.continued
        own = [part for part in (continued or {"parts": []})["parts"] if is_tool(part)]
        ended = (part for part in own if str(part.get("state")).startswith("output-"))
        # A result can be added to calls of the same message only.
        super().__init__(run, map(_call_of, own), map(_call_of, ended))
        self._continues = continued is not None
        self._message = str(continued["id"]) if continued is not None else _new_id(chat_request, run, run_id)
        shown = _shown_texts(chat_request.messages)
        self._text, self._thought = _Texts("text", run, shown), _Texts("reasoning", run, shown)
        self._elsewhere = {
            _call_of(part) for each in chat_request.messages for part in each["parts"] if is_tool(part)
        } - self._calls
        self._inputs = {_call_of(part): part.get("input") for part in own}
        """The parameters that the page shows, by call."""
        self._asked: dict[str, tuple[str, JsonObject]] = {}
        """Calls that wait for a person or the page, by id: tool and parameters."""
        self._follow(run, run_id, before)

    def _follow(self, run: str, run_id: str, before: int = 0) -> None:
        """Reset what belongs to one run, for the next run of the same answer."""
        self._run, self._run_id, self._before = run, run_id, before
        self._step = 0
        self._output_name = "answer"
        """The name of the text that the run's output completes: its event was cut. `answer` if no event was cut."""
        self._answered = False
        """Whether the run's output was sent as a text."""
        self._outputs = PartialOutputEvents()
        self._output: Json = None
        """The output that the page shows, if it is not a text."""

    def begin(self) -> Iterator[JsonObject]:
        """Yield the first chunk."""
        about = {"messageMetadata": {"perdure": {"runId": self._run_id}}} if self._run_id else {}
        yield {"type": "start", "messageId": self._message, **about}

    def interrupt(self, waiting: Sequence[tuple[str, WaitingView]]) -> Iterator[JsonObject]:
        for path, request in waiting:
            plan = request.calls is not None
            id = self._call_id(f"{PLAN}-{request.call}" if plan else request.call, path)
            interrupt = interrupt_id(id_below(self._run, path), request.call, request.digest)
            params = {"calls": request.calls} if plan else dict(request.params)
            params |= {} if request.items is None else {"_each": request.items}
            about = {name: value for name in ("sender", "session", "said") if (value := getattr(request, name))}
            about |= {"ways": list(request.ways)} if request.ways else {}
            metadata = {"perdure": {"interrupt": interrupt, "message": request.sentence, **about}}
            more = {"title": request.sentence, "providerMetadata": metadata}
            yield from self._announce(id, PLAN if plan else request.tool, params, **more)
            if not request.question and not request.client and id in self._calls:
                yield {"type": "tool-approval-request", "approvalId": interrupt, "toolCallId": id}
        yield from self._close()
        yield from self._finish("tool-calls", "waiting")

    def end(self, ended: RunView) -> Iterator[JsonObject]:
        yield from self._last_output(ended)
        if ended.status == "completed":
            output: JsonObject = {} if isinstance(ended.output, str) else {"output": ended.output}
            yield from self._finish("stop", ended.status, **output)
        elif ended.status == "cancelled":
            yield {"type": "abort"}
            yield from self._finish("other", ended.status)
        else:
            yield {"type": "error", "errorText": failure_of(ended)}

    def leave(self, ended: RunView, run_id: str) -> Iterator[JsonObject]:
        yield from self._last_output(ended)
        if self._step:
            yield {"type": "finish-step"}
        run = run_id.rpartition("/")[2]
        self._continues = False
        self._text.follow(run)
        self._thought.follow(run)
        self._follow(run, run_id)

    def _last_output(self, ended: RunView) -> Iterator[JsonObject]:
        text = output_text(ended)
        yield from self._thought.close()
        if self._output_name == "answer":
            yield from self._text.close()
        if self._continues and not self._step:  # otherwise a page may take the answers of its last step for new ones
            yield from self._begin_step(max(1, self._before))
        if text and not self._answered:
            yield from self._begin_step()
            yield from self._text.whole(self._output_name, text)
        yield from self._close()
        if ended.status == "completed" and not isinstance(ended.output, str):
            yield from self._shown_output(ended.output)

    def problem(self, problem: HttpError) -> Iterator[JsonObject]:
        yield error_chunk(problem)

    def done(self) -> Iterator[JsonObject]:
        """Yield the answer to a command, which starts no run."""
        yield from self.begin()
        yield {"type": "finish"}

    def on_request(self, event: Event) -> Iterator[JsonObject]:
        number = int(event.data["number"])
        if event.phase == "start" and number > max(self._before, self._step):
            yield from self._close()
            yield from self._begin_step(number)
        elif event.phase == "end":
            if not event.data.get("says"):
                yield from self._text.drop(number)
            yield from self._thought.close()

    def on_assistant(self, event: Event) -> Iterator[JsonObject]:
        if int(event.data["request"]) > self._before:
            for partial in self._outputs.fold(event):
                if partial.form.kind != "text" and (value := partial.value) is not MISSING:
                    yield from self._begin_step()
                    yield from self._shown_output(value)
        if event.phase != "end":
            yield from self._written(self._text, event)
        elif not event.data.get("accepted"):
            yield from self._text.drop(event.data["request"])
        elif "text" in (event.data.get("cut") or ()):
            # The deltas hold more of the text than the event, and the run's end has all of an output.
            if event.data.get("output"):
                self._output_name = text_name(event.data)
            else:
                yield from self._text.close()
        else:
            name, text = text_name(event.data), str(event.data["text"])
            self._answered = self._answered or bool(event.data.get("output"))
            if is_silence(text):
                yield from self._text.drop(event.data["request"])
            elif text and not self._text.is_shown(name, text):
                yield from self._begin_step()
                yield from self._text.whole(name, text)

    def _shown_output(self, output: Json) -> Iterator[JsonObject]:
        """Yield the output so far: the part replaces the previous one (R20.7)."""
        if output not in (None, self._output):
            self._output = output
            yield {"type": "data-output", "id": f"output-{self._run}", "data": output}

    def on_reasoning(self, event: Event) -> Iterator[JsonObject]:
        if event.phase == "end":
            yield from self._thought.close()
        else:
            yield from self._written(self._thought, event)

    def _written(self, texts: _Texts, event: Event) -> Iterator[JsonObject]:
        if event.phase == "superseded":
            yield from texts.drop(event.data["request"], int(event.data.get("attempt") or 1))
        elif event.phase == "delta" and int(event.data["request"]) > self._before:
            yield from self._begin_step()
            yield from texts.write(text_name(event.data), int(event.data["start"]), str(event.data["text"]))

    def on_tool(self, event: Event) -> Iterator[JsonObject]:
        id = self._call_id(str(event.data["call"]))
        if event.phase == "start":
            params = event.data.get("params") or {}
            if self._inputs.get(id, params) != params:  # a person has edited the call
                self._calls.discard(id)
            yield from self._announce(id, str(event.data["tool"]), params, providerExecuted=True)
        elif event.phase == "end":
            asked = self._asked.pop(id, None)
            if asked is not None and event.data["status"] in ("done", "rejected"):  # the call ended without a start
                # As the worker's own call: a reloaded page does not send its answer again.
                yield from self._announce(id, *asked, providerExecuted=True)
            yield from self._result(id, event.data)

    def on_approval(self, event: Event) -> Iterator[JsonObject]:
        if event.phase == "start" and event.data.get("tool"):
            self._asked[self._call_id(str(event.data["call"]))] = event.data["tool"], event.data.get("params") or {}
        elif event.phase == "end" and not event.data.get("tool"):
            decision = event.data.get("decision")
            status = "rejected" if decision == "reject" else "done"
            yield from self._result(
                self._call_id(f"{PLAN}-{event.data['call']}"), {"status": status, "result": decision}
            )

    def _announce(self, id: str, tool: str, params: JsonObject, **more: Any) -> Iterator[JsonObject]:
        if id not in self._calls and id not in self._elsewhere:
            self._calls.add(id)
            self._inputs[id] = params
            yield from self._begin_step()
            yield {"type": "tool-input-available", "toolCallId": id, "toolName": tool, "input": params, **more}

    def _result(self, id: str, data: Mapping[str, Any]) -> Iterator[JsonObject]:
        if id not in self._calls or id in self._results:  # the call never ran, or the page has its result
            return
        self._results.add(id)
        status = data["status"]
        if status == "done":
            yield {"type": "tool-output-available", "toolCallId": id, "output": data.get("result")}
        elif status == "rejected":
            yield {"type": "tool-output-denied", "toolCallId": id}
        else:
            error = data.get("error") or {}
            words = error.get("message") or data.get("reason") or f"the call was {status}"
            yield {"type": "tool-output-error", "toolCallId": id, "errorText": str(words)}

    def _begin_step(self, number: int = 0) -> Iterator[JsonObject]:
        """Begin a step if none is open. A continued answer begins in the step that the page shows."""
        if number or not (self._step or self._continues):
            if self._step:
                yield {"type": "finish-step"}
            self._step = number or max(1, self._before)
            yield {"type": "start-step"}

    def _close(self) -> Iterator[JsonObject]:
        yield from self._thought.close()
        yield from self._text.close()

    def _finish(self, reason: str, status: str, **more: Any) -> Iterator[JsonObject]:
        if self._step:
            yield {"type": "finish-step"}
        about = {"perdure": {"runId": self._run_id, "status": status, **more}}
        yield {"type": "finish", "finishReason": reason, "messageMetadata": about}


def _call_of(part: Mapping[str, Any]) -> str:
    return str(part.get("toolCallId"))


def _shown_texts(messages: Iterable[UiMessage]) -> dict[str, str]:
    """Return the texts of runs that a page shows, by name. A part may continue an earlier part, from its `start`."""
    shown: dict[str, str] = {}
    for part in (part for message in messages for part in message["parts"]):
        metadata: Json = part.get("providerMetadata")
        about = metadata.get("perdure") if isinstance(metadata, dict) else None
        if part.get("type") in ("text", "reasoning") and isinstance(about, dict) and not about.get("superseded"):
            name, start = str(about.get("text")), about.get("start")
            before = shown.get(name, "")[:start] if isinstance(start, int) and start > 0 else ""
            shown[name] = before + str(part.get("text"))
    return shown


def _new_id(chat_request: PageChatRequest, run: str, run_id: str) -> str:
    """Return the id of a new message: the run's id, so that a resumed answer has the same id."""
    shown = [each for each in chat_request.messages if each["role"] == "assistant" and each["id"] == run]
    id = chat_request.message[0] if chat_request.message is not None else ""
    return f"{run}:{id}" if shown and run_id else run or f"{id}:answer"


def error_chunk(problem: HttpError) -> JsonObject:
    """Return the chunk that ends an answer with an error."""
    return {"type": "error", "errorText": problem.detail}


def as_frame(chunk: JsonObject) -> str:
    """Return a chunk as a frame of the stream; the last one ends it."""
    ends = chunk["type"] in ("finish", "error")
    return encode_event(dumps(chunk)) + (encode_event("[DONE]") if ends else "")
