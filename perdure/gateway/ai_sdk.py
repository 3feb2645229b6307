"""The adapter for the AI SDK's `useChat`: a chat is a session, and an answer is a UI message stream (R21.5).

`POST /ai-sdk/AGENT` takes what the AI SDK's default transport sends, `GET /ai-sdk/AGENT/CHAT/stream` resumes an answer. `chat_response` and
`resume_response` are the same for an application's own routes.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from perdure.agents.agent import Agent
from perdure.approvals.requests import WaitingView
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.run_tree import RunTreeReader
from perdure.client.session import Session
from perdure.errors import PerdureError, RunNotFoundError, ToolDefinitionError
from perdure.gateway._keys import Key
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.answers import (
    AnswerEvents,
    AnswerStream,
    FindRun,
    InterruptAnswer,
    below,
    decide,
    interrupt_answer,
    interrupt_id,
)
from perdure.gateway.bounds import read_json
from perdure.gateway.callers import APPROVE, READ, SEND, Caller, caller_of
from perdure.gateway.errors import HttpError, as_problem_json, problem_of
from perdure.gateway.streams import EventStream, frame
from perdure.models.dialects.output_text import text_of
from perdure.runs.events import Event, is_silence
from perdure.runs.wire import RunView
from perdure.sessions.wire import session_id
from perdure.tools.tool import CLIENT, parse_tool
from perdure.values.caller_context import read_context
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.messages import Mode

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
MOST: Final = 200
"""Characters of an id that a client may choose."""
MOST_TOOLS: Final = 128
"""Tools that a page carries out."""
UiMessage: TypeAlias = dict[str, Any]
"""A message as the page keeps it: `{id, role, parts}`. Its parts are the page's own, so nothing of them is trusted."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TRIGGERS: Final = ("submit-message", "regenerate-message")
PLAN: Final = "plan"
"""The name of the tool part that asks about a whole plan."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of `useChat`, read."""

    chat: str
    """The session's key."""
    message: tuple[str, str] | None
    """The id and the text of the user's message that is last; `None`: the request answers what waits."""
    answers: list[InterruptAnswer]
    messages: list[UiMessage]
    """All that the page shows."""
    tools: list[JsonObject]
    """Tools that the page carries out, as an agent file defines them."""

    @property
    def continued(self) -> UiMessage | None:
        """The assistant's message that the answer continues."""
        return self.messages[-1] if self.message is None else None

    def settings(self, document: JsonObject, source: str) -> JsonObject:
        """Return the keys of the agent file that differ in the message's own run: it has the page's tools, too.

        `source`: of their results (R15.2). Raises `HttpError` (422) for a tool that has the name of one of the agent's.
        """
        if not self.tools or self.answers:  # with answers, the message goes to the run that they answer
            return {}
        own = document.get("context") or []
        names = {str(tool["name"]) for tool in self.tools}
        if taken := sorted(names & {_tool_name(message) for message in own}):
            raise _wrong("tools", f"has {taken[0]!r}, a tool of the agent's own: call yours another name")
        untrusted: JsonObject = {"_untrusted": bool(source)}
        return {"context": [*own, *({"type": "tool", "tool": tool | untrusted} for tool in self.tools)]}


def read(body: JsonObject) -> ChatRequest:
    """Raises `HttpError` (422), in one line, for a body that `useChat` does not send, and for what would be passed over."""
    chat, messages, trigger = body.get("id"), body.get("messages"), body.get("trigger", _TRIGGERS[0])
    if not isinstance(chat, str) or not 0 < len(chat) <= MOST:
        raise _wrong("id", f"must be the chat's id, of 1 to {MOST} characters")
    if trigger not in _TRIGGERS:
        raise _wrong("trigger", f"must be one of: {', '.join(_TRIGGERS)}")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "must be a list of UI messages, the newest last")
    read = [_message(each, at) for at, each in enumerate(messages)]
    last = read[-1]
    before = read[-2:-1] if last["role"] == "user" else read[-1:]
    answers = [answer for message in before if message["role"] == "assistant" for answer in _answers(message)]
    if len({answer.run for answer in answers}) > 1:
        raise _wrong("messages", "answers requests of two runs: answer one of them")
    if last["role"] != "user" and not answers:
        raise _wrong(
            "messages", "ends with nothing to answer: a user's message, a tool's output, or an approval's answer"
        )
    message = (last["id"], _text(last)) if last["role"] == "user" else None
    return ChatRequest(chat, message, answers, read, _tools(body.get("tools")))


def _message(message: Any, at: int) -> UiMessage:
    role = message.get("role") if isinstance(message, dict) else None
    id, parts = (message.get("id"), message.get("parts")) if isinstance(message, dict) else (None, None)
    if role not in ("user", "assistant", "system"):
        raise _wrong(f"messages[{at}].role", "must be 'user', 'assistant' or 'system'")
    if not isinstance(id, str) or not 0 < len(id) <= MOST:
        raise _wrong(f"messages[{at}].id", f"must have 1 to {MOST} characters")
    if not isinstance(parts, list) or not all(isinstance(each, dict) for each in parts):
        raise _wrong(f"messages[{at}].parts", "must be a list of parts")
    return dict(message)


def _text(message: UiMessage) -> str:
    texts = []
    for part in message["parts"]:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _wrong(
                "messages", f"ends with a user's message that has a part {part.get('type')!r}: only text is taken"
            )
        texts.append(part["text"])
    if not (text := "\n\n".join(texts)).strip():
        raise _wrong("messages", "ends with a user's message without words")
    return text


def _is_tool(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return kind == "dynamic-tool" or (isinstance(kind, str) and kind.startswith("tool-"))


def _answers(message: UiMessage) -> Iterator[InterruptAnswer]:
    """Yield the page's answers in the last step of a message; a step before it was answered before."""
    parts = message["parts"]
    first = max((at for at, part in enumerate(parts) if part.get("type") == "step-start"), default=0)
    for part in filter(_is_tool, parts[first:]):
        approval, state = part.get("approval"), part.get("state")
        if state == "approval-responded":
            about = approval if isinstance(approval, dict) else {}
            reason, approved = about.get("reason"), about.get("approved")
            if not isinstance(approved, bool) or not isinstance(reason, str | None):
                raise _wrong("messages", "has an approval's answer that must be {id, approved, reason?}")
            why: JsonObject = {"reason": reason} if reason else {}
            yield _answer(about.get("id"), {"decision": "approve" if approved else "reject", **why})
        elif state in ("output-available", "output-error") and not approval and not part.get("providerExecuted"):
            if state == "output-available":
                yield _answer(_interrupt_of(part), {"decision": "answer", "answer": part.get("output")})
            else:
                yield _answer(_interrupt_of(part), {"decision": "reject", "reason": str(part.get("errorText") or "")})


def _interrupt_of(part: dict[str, Any]) -> Json:
    found: Json = part.get("callProviderMetadata")
    for key in ("perdure", "interrupt"):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _answer(interrupt: Json, decision: JsonObject) -> InterruptAnswer:
    found = interrupt_answer(interrupt, decision) if isinstance(interrupt, str) else None
    if found is None:
        raise _wrong("messages", f"answers what did not wait in this chat: {str(interrupt)[:MOST]!r}")
    return found


def _tools(listed: Any) -> list[JsonObject]:
    """Return the tools that the page carries out. A call of one of them ends the answer until its output comes."""
    if listed is None:
        return []
    if not isinstance(listed, list) or len(listed) > MOST_TOOLS:
        raise _wrong("tools", f"must be a list of at most {MOST_TOOLS} tools")
    found: dict[str, JsonObject] = {}
    for at, tool in enumerate(listed):
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in found:
            raise _wrong(f"tools[{at}].name", "must have 1 to 64 letters, digits, '_' and '-', and be the only one")
        given: JsonObject = {
            "name": name,
            "parameters": tool.get("inputSchema") or {"type": "object", "properties": {}},
        }
        if isinstance(tool.get("description"), str):
            given["description"] = tool["description"]
        found[name] = {**given, "_activity": CLIENT}
        try:
            parse_tool(found[name])
        except ToolDefinitionError as error:
            raise _wrong(f"tools[{at}]", f"must be {{name, description?, inputSchema?}}: {error}") from None
    return list(found.values())


def _tool_name(message: Json) -> str:
    tool = message.get("tool") if isinstance(message, dict) and message.get("type") == "tool" else None
    name = tool.get("name") if isinstance(tool, dict) else tool
    return name if isinstance(name, str) else ""


def _wrong(key: str, words: str) -> HttpError:
    return HttpError(422, f"{key} {words}")


class _Texts:
    """The texts of one kind, of which one is open at most: `text` or `reasoning`."""

    def __init__(self, kind: str, run: str, shown: Mapping[str, str]) -> None:
        self._kind, self._run, self._shown = kind, run, shown
        self._number = 0
        self._name = ""
        """Of the one that is being written: `REQUEST.ATTEMPT`; empty, none is."""
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

    def is_shown(self, name: str, text: str) -> bool:
        """Whether the page has the text already."""
        return self._shown_of(name) == text

    def write(self, name: str, start: int, text: str) -> Iterator[JsonObject]:
        """Yield a piece behind so many characters. Of a text whose beginning is not there, or was shown by an earlier answer, the rest
        waits for the end."""
        if self._shown_of(name):
            return
        if self._name not in ("", name):
            yield from self.close(superseded=True)
        if start <= len(self._written):
            yield from self._write(name, text[len(self._written) - start :])

    def whole(self, name: str, text: str) -> Iterator[JsonObject]:
        """Yield what is missing of the whole text, and close it."""
        if self._name and (self._name != name or not text.startswith(self._written)):
            yield from self.close(superseded=True)
        shown = self._shown_of(name)
        if shown and text.startswith(shown):  # the answer before this one ended within the text
            yield from self._write(name, text[len(shown) :], start=len(shown))
        else:
            yield from self._write(name, text[len(self._written) :])
        yield from self.close()

    def close(self, *, superseded: bool = False) -> Iterator[JsonObject]:
        """Close the open text; `superseded`: it does not count, and a page leaves it out."""
        if self._name:
            yield self._chunk("end", **(self._about(superseded=True) if superseded else {}))
        self._name, self._written = "", ""

    def drop(self, request: object, attempt: int | None = None) -> Iterator[JsonObject]:
        """Close the open text as superseded if it is of this Request, and of an attempt up to this one."""
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
    """The chunks of one answer. `run`: the end of the run's id. `before`: Requests up to this number were shown."""

    runs_tools = True

    def __init__(self, chat_request: ChatRequest, run: str = "", run_id: str = "", before: int = 0) -> None:
        continued = chat_request.continued
        self._run, self._run_id, self._before = run, run_id, before
        self._continues = continued is not None
        self._message = str(continued["id"]) if continued is not None else _new_id(chat_request, run, run_id)
        shown = _shown_texts(chat_request.messages)
        self._text, self._thought = _Texts("text", run, shown), _Texts("reasoning", run, shown)
        own = [part for part in (continued or {"parts": []})["parts"] if _is_tool(part)]
        self._calls = {str(part.get("toolCallId")) for part in own}
        """Ids of calls of this message: only to these can a result be added."""
        self._ended = {str(part.get("toolCallId")) for part in own if str(part.get("state")).startswith("output-")}
        self._elsewhere = {
            str(part.get("toolCallId")) for each in chat_request.messages for part in each["parts"] if _is_tool(part)
        } - self._calls
        self._step = 0
        self._answered = False
        """Whether the run's output was sent as a text."""

    def begin(self) -> Iterator[JsonObject]:
        """Yield the first chunk."""
        about = {"messageMetadata": {"perdure": {"runId": self._run_id}}} if self._run_id else {}
        yield {"type": "start", "messageId": self._message, **about}

    @property
    def lacks_below(self) -> bool:
        return any(id.startswith(f"{self._run}/") for id in self._calls - self._ended)

    def lacks(self, call: str) -> bool:
        return self._id(call) in self._calls - self._ended

    def result_below(self, path: str, call: JsonObject) -> Iterator[JsonObject]:
        yield from self._result(self._id(str(call["id"]), path), call)

    def interrupt(self, waiting: Sequence[tuple[str, WaitingView]]) -> Iterator[JsonObject]:
        for path, request in waiting:
            plan = request.calls is not None
            id = self._id(f"{PLAN}-{request.call}" if plan else request.call, path)
            interrupt = interrupt_id(below(self._run, path), request.call, request.digest)
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
        view, text = ended, "" if ended.output is None else text_of(ended.output)
        yield from self._close()
        if self._continues and not self._step:  # else a page may take the answers of its last step for new ones
            yield from self._begin_step(max(1, self._before))
        if view.status == "completed" and not self._answered and text and not is_silence(text):
            yield from self._begin_step()
            yield from self._text.whole("answer", text)
        yield from self._close()
        if view.status == "completed":
            output: JsonObject = {} if isinstance(view.output, str) else {"output": view.output}
            yield from self._finish("stop", view.status, **output)
        elif view.status == "cancelled":
            yield {"type": "abort"}
            yield from self._finish("other", view.status)
        else:
            words = view.error or f"the run was {view.status.replace('_', ' ')}"
            yield {"type": "error", "errorText": words}

    def problem(self, problem: HttpError) -> Iterator[JsonObject]:
        yield {"type": "error", "errorText": problem.detail}

    def done(self) -> Iterator[JsonObject]:
        """Yield the answer to a command, which no run takes."""
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
        if event.phase != "end":
            yield from self._written(self._text, event)
        elif not event.data.get("accepted"):
            yield from self._text.drop(event.data["request"])
        elif "text" in (event.data.get("cut") or ()):  # what was written is more of it
            yield from self._text.close()
        else:
            name, text = _name(event.data), str(event.data["text"])
            self._answered = self._answered or bool(event.data.get("output"))
            if is_silence(text):
                yield from self._text.drop(event.data["request"])
            elif text and not self._text.is_shown(name, text):
                yield from self._begin_step()
                yield from self._text.whole(name, text)

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
            yield from texts.write(_name(event.data), int(event.data["start"]), str(event.data["text"]))

    def on_tool(self, event: Event) -> Iterator[JsonObject]:
        id = self._id(str(event.data["call"]))
        if event.phase == "start":
            yield from self._announce(
                id, str(event.data["tool"]), event.data.get("params") or {}, providerExecuted=True
            )
        elif event.phase == "end":
            yield from self._result(id, event.data)

    def on_approval(self, event: Event) -> Iterator[JsonObject]:
        if event.phase == "end" and not event.data.get("tool"):
            decision = event.data.get("decision")
            status = "rejected" if decision == "reject" else "done"
            yield from self._result(self._id(f"{PLAN}-{event.data['call']}"), {"status": status, "result": decision})

    def _announce(self, id: str, tool: str, params: JsonObject, **more: Any) -> Iterator[JsonObject]:
        if id not in self._calls and id not in self._elsewhere:
            self._calls.add(id)
            yield from self._begin_step()
            yield {"type": "tool-input-available", "toolCallId": id, "toolName": tool, "input": params, **more}

    def _result(self, id: str, data: Mapping[str, Any]) -> Iterator[JsonObject]:
        if id not in self._calls or id in self._ended:  # it never ran, or the page has its end
            return
        self._ended.add(id)
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
        """Begin a step, where none is open. An answer that is continued begins in the step that the page shows."""
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

    def _id(self, call: str, path: str = "") -> str:
        return f"{below(self._run, path)}:{call}"


def _name(data: Mapping[str, Any]) -> str:
    return f"{data['request']}.{data.get('attempt') or 1}"


def _shown_texts(messages: Iterable[UiMessage]) -> dict[str, str]:
    """Return the texts that a page shows of runs, by name. A part may hold the rest of an earlier one, from its `start`."""
    shown: dict[str, str] = {}
    for part in (part for message in messages for part in message["parts"]):
        metadata: Json = part.get("providerMetadata")
        about = metadata.get("perdure") if isinstance(metadata, dict) else None
        if part.get("type") in ("text", "reasoning") and isinstance(about, dict) and not about.get("superseded"):
            name, start = str(about.get("text")), about.get("start")
            before = shown.get(name, "")[:start] if isinstance(start, int) and start > 0 else ""
            shown[name] = before + str(part.get("text"))
    return shown


def _new_id(chat_request: ChatRequest, run: str, run_id: str) -> str:
    """Return the id of a new message: the run's, so that an answer that is resumed has the same one."""
    shown = [each for each in chat_request.messages if each["role"] == "assistant" and each["id"] == run]
    id = chat_request.message[0] if chat_request.message is not None else ""
    return f"{run}:{id}" if shown and run_id else run or f"{id}:answer"


def as_frame(chunk: JsonObject) -> str:
    """Return a chunk as a frame of the stream; the last one ends it."""
    ends = chunk["type"] in ("finish", "error")
    return frame(dumps(chunk)) + (frame("[DONE]") if ends else "")


def ai_sdk_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter by which each agent answers in the chats of `useChat`."""

    trees = RunTreeReader()

    async def answer(request: Request) -> Response:
        caller, body = caller_of(request), await read_json(request)
        agent = gateway.agents.get(request.path_params["agent"])
        chat_request = read(body)
        settings = chat_request.settings(agent.document(), gateway.client_source(caller, agent))
        chats = _Chats(gateway.perdure, caller, trees, lambda id: gateway.own_run(caller, id))
        frames = await chats.answer(chat_request, agent, settings, Key.of(gateway, request, caller, body))
        return EventStream(gateway, caller, frames, HEADERS, retry=False)

    async def resume(request: Request) -> Response:
        caller = caller_of(request)
        gateway.agents.get(request.path_params["agent"])
        frames = await _Chats(gateway.perdure, caller, trees).resume(request.path_params["chat"])
        return (
            Response(status_code=204) if frames is None else EventStream(gateway, caller, frames, HEADERS, retry=False)
        )

    routes = [
        Route("/ai-sdk/{agent}", answer, methods=["POST"]),
        Route("/ai-sdk/{agent}/{chat}/stream", resume, methods=["GET"]),
    ]
    return Adapter("ai-sdk", routes)


@dataclass(frozen=True)
class _Chats:
    """The chats of one caller."""

    perdure: Perdure
    caller: Caller
    trees: RunTreeReader = field(default_factory=RunTreeReader)
    find_run: FindRun | None = None
    """By default the API's own."""

    async def answer(
        self, chat_request: ChatRequest, agent: Agent[Any], settings: JsonObject, key: Key | None = None
    ) -> AsyncGenerator[str, None]:
        """Send the message and the decisions, and return the frames of what follows. Raises before anything is sent."""
        caller, answers = self.caller, chat_request.answers
        session = self.perdure.session(chat_request.chat, tenant=caller.tenant, agent=agent)
        run_id: str | None = None
        late: list[str] = []
        before = 0
        if chat_request.message is not None or not caller.may(APPROVE):
            caller.check(SEND, "say something in chats")
        if answers:
            run_id = f"{session_id(caller.tenant, chat_request.chat)}/{answers[0].run}"
            view = await (await self._own_run(run_id)).view()
            of_people = {request.call for request in view.waiting if not request.client}
            if any(answer.path or answer.call in of_people for answer in answers):
                caller.check(APPROVE, "decide what waits for a person")
        if key is not None:
            await key.take()
        if run_id is not None:
            late = await decide(self._own_run, run_id, view, answers, caller.sender)
            before = max((each.number for each in view.log), default=0)
        if chat_request.message is not None:
            id, text = chat_request.message
            mode: Mode | None = "steer" if answers else None
            receipt = await session.send(
                text,
                sender=caller.sender,
                rights=caller.rights,
                id=id,
                mode=mode,
                settings=settings,
                context=caller.context,  # never that of the body, which a page writes
            )
            before = before if receipt.run_id in (run_id, None) else 0
            run_id = receipt.run_id or run_id
        if run_id is None:  # a command
            return _only(UiMessageEvents(chat_request).done())
        events = UiMessageEvents(chat_request, run_id.rpartition("/")[2], run_id, before)
        return self._stream(run_id, session, events, late)

    async def resume(self, chat: str) -> AsyncGenerator[str, None] | None:
        """Return the frames of the answer that is being given, from its beginning; `None`: nothing runs in the chat."""
        self.caller.check(READ, "follow what runs in a chat")
        session = self.perdure.session(chat, tenant=self.caller.tenant)
        try:
            running = await session.run()
        except RunNotFoundError:
            return None
        if running is None:
            return None
        nothing = ChatRequest(chat, ("", ""), [], [], [])
        events = UiMessageEvents(nothing, running.id.rpartition("/")[2], running.id)
        return self._stream(running.id, session, events)

    async def _own_run(self, id: str) -> Run[Any]:
        if self.find_run is not None:
            return await self.find_run(id)
        return await self.perdure.find_run(id, tenant=self.caller.tenant)

    def _stream(
        self, run_id: str, session: Session, events: UiMessageEvents, late: Sequence[str] = ()
    ) -> AsyncGenerator[str, None]:
        run = self.perdure.get_run(run_id)
        return AnswerStream(run, session, self.trees, events, as_frame, self.caller.may(APPROVE), late).frames()


async def _only(chunks: Iterable[JsonObject]) -> AsyncGenerator[str, None]:
    for chunk in chunks:
        yield as_frame(chunk)


async def chat_response(
    perdure: Perdure,
    agent: Agent[Any],
    body: JsonObject,
    *,
    sender: str,
    tenant: str = "",
    context: object = None,
    rights: Iterable[str] = (READ, SEND, APPROVE),
    key: str | None = None,
) -> Response:
    """Return the response of an application's own route to a request of `useChat`.

    `body`: the request's JSON. `sender`, `tenant` and `context`: the user as your application has verified them; they are never taken from
    the body. `rights`: what the user may do; without `approve` a stream goes on when somebody else has decided. `key`: the session's
    (default: the sender and the chat's id, so that nobody reads another's chat). A refusal is a response with its status.

        @app.post("/api/chat")
        async def chat(request: Request, who: Annotated[Customer, Depends(signed_in)]) -> Response:
            return await chat_response(perdure, desk, await request.json(), sender=who.name, context=who)
    """
    try:
        caller = replace(_caller(sender, tenant, rights), context=read_context(context))
        if not isinstance(body, dict):
            raise HttpError(422, "the body must be a JSON object")
        chat_request = read(body)
        chat_request = replace(chat_request, chat=_own_key(sender, chat_request.chat) if key is None else key)
        frames = await _Chats(perdure, caller).answer(chat_request, agent, chat_request.settings(agent.document(), ""))
    except (HttpError, PerdureError) as error:
        return _refusal(error)
    return StreamingResponse(frames, headers=HEADERS, media_type="text/event-stream")


async def resume_response(
    perdure: Perdure, chat: str, *, sender: str, tenant: str = "", key: str | None = None
) -> Response:
    """Return the response of an application's own route to `useChat({resume: true})`: the answer that is being given, or 204.

    @app.get("/api/chat/{id}/stream")
    async def resume(id: str, who: Annotated[Customer, Depends(signed_in)]) -> Response:
        return await resume_response(perdure, id, sender=who.name)
    """
    try:
        frames = await _Chats(perdure, _caller(sender, tenant, (READ, SEND, APPROVE))).resume(
            _own_key(sender, chat) if key is None else key
        )
    except (HttpError, PerdureError) as error:
        return _refusal(error)
    if frames is None:
        return Response(status_code=204)
    return StreamingResponse(frames, headers=HEADERS, media_type="text/event-stream")


def _own_key(sender: str, chat: str) -> str:
    return f"{sender}/{chat}"


def _caller(sender: str, tenant: str, rights: Iterable[str]) -> Caller:
    return Caller(tenant, sender, frozenset(rights), "")


def _refusal(error: Exception) -> Response:
    problem = problem_of(error)
    assert problem is not None
    return as_problem_json(problem)
