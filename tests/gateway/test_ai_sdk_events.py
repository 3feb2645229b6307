"""A run as a UI message stream, as a page of the AI SDK keeps it (R21.5)."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given

from perdure.approvals.requests import WaitingView
from perdure.gateway.ai_sdk._events import UiMessageEvents
from perdure.gateway.ai_sdk._requests import PageChatRequest, read
from perdure.gateway.errors import HttpError
from perdure.runs.events import Event
from perdure.runs.wire import RunView
from tests.gateway.test_agui_events import event, histories, long_answers

USER: dict[str, Any] = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go."}]}


class UiPage:
    """As `processUIMessageStream` keeps messages; raises where it would not take a chunk."""

    def __init__(self, messages: list[dict[str, Any]], *, resumes: bool = False) -> None:
        self.messages = deepcopy(messages)
        last = self.messages[-1]
        self.message: dict[str, Any] = {"id": "own", "parts": []}
        if last["role"] == "assistant" and not resumes:
            self.message = last
        self.open: dict[str, dict[str, Any]] = {}
        self.finish: dict[str, Any] | None = None
        self.error = ""

    def take(self, chunk: dict[str, Any]) -> None:
        chunk = json.loads(json.dumps(chunk))
        assert self.finish is None
        assert not self.error
        kind, _, event = chunk["type"].rpartition("-")
        if kind in ("text", "reasoning"):
            getattr(self, event)(kind, chunk)
        else:
            getattr(self, chunk["type"].replace("-", "_"))(chunk)

    def data_output(self, chunk: dict[str, Any]) -> None:
        shown = next((part for part in self.parts if part.get("id") == chunk["id"]), None)
        if shown is None:
            self.parts.append(chunk)
        else:
            shown["data"] = chunk["data"]

    @property
    def parts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.message["parts"]
        return found

    def start(self, kind: Any, chunk: dict[str, Any] | None = None) -> None:
        if chunk is not None:
            assert chunk["id"] not in self.open
            part = {"type": kind, "text": "", "providerMetadata": chunk.get("providerMetadata")}
            self.open[chunk["id"]] = part
            self.parts.append(part)
            return
        self.message["id"], self.message["role"] = kind["messageId"], "assistant"
        self.message["metadata"] = kind.get("messageMetadata")
        self.messages = [each for each in self.messages if each["id"] != self.message["id"]] + [self.message]

    def delta(self, _: str, chunk: dict[str, Any]) -> None:
        assert chunk["delta"]
        self.open[chunk["id"]]["text"] += chunk["delta"]

    def end(self, _: str, chunk: dict[str, Any]) -> None:
        part = self.open.pop(chunk["id"])
        part["providerMetadata"] = chunk.get("providerMetadata", part["providerMetadata"])

    def start_step(self, _: dict[str, Any]) -> None:
        assert not self.open
        self.parts.append({"type": "step-start"})

    def finish_step(self, _: dict[str, Any]) -> None:
        assert not self.open

    def call(self, id: str) -> dict[str, Any]:
        return next(part for part in self.parts if part.get("toolCallId") == id)

    def tool_input_available(self, chunk: dict[str, Any]) -> None:
        for shown in self.parts:
            if shown.get("toolCallId") == chunk["toolCallId"]:
                shown.update(state="input-available", input=chunk["input"])
                return
        shown_ids = [each.get("toolCallId") for message in self.messages for each in message["parts"]]
        assert chunk["toolCallId"] not in shown_ids
        part = {"type": f"tool-{chunk['toolName']}", "toolCallId": chunk["toolCallId"], "state": "input-available"}
        part |= {"input": chunk["input"], "providerExecuted": chunk.get("providerExecuted", False)}
        self.parts.append(part | {"callProviderMetadata": chunk.get("providerMetadata"), "title": chunk.get("title")})

    def tool_approval_request(self, chunk: dict[str, Any]) -> None:
        self.call(chunk["toolCallId"]).update(state="approval-requested", approval={"id": chunk["approvalId"]})

    def tool_output_available(self, chunk: dict[str, Any]) -> None:
        self.call(chunk["toolCallId"]).update(state="output-available", output=chunk["output"])

    def tool_output_error(self, chunk: dict[str, Any]) -> None:
        self.call(chunk["toolCallId"]).update(state="output-error", errorText=chunk["errorText"])

    def tool_output_denied(self, chunk: dict[str, Any]) -> None:
        self.call(chunk["toolCallId"]).update(state="output-denied")

    def abort(self, _: dict[str, Any]) -> None:
        pass

    def ends(self, chunk: dict[str, Any]) -> None:
        assert not self.open
        self.finish = chunk
        self.message["metadata"] = chunk.get("messageMetadata")

    def respond(self, *, approved: bool = True) -> None:
        """Answer every request for an approval, as `addToolApprovalResponse` does."""
        for part in self.parts:
            if part.get("state") == "approval-requested":
                part.update(state="approval-responded", approval=part["approval"] | {"approved": approved})

    def give(self, id: str, output: Any) -> None:
        """Give the output of a call, as `addToolOutput` does."""
        self.call(id).update(state="output-available", output=output)

    @property
    def sends_by_itself(self) -> bool:
        """Whether `lastAssistantMessageIsCompleteWith…` holds: then a page sends its messages again, by itself."""
        steps = [at for at, part in enumerate(self.parts) if part["type"] == "step-start"]
        last = [part for part in self.parts[steps[-1] if steps else 0 :] if "toolCallId" in part]
        own = [part for part in last if not part["providerExecuted"]]
        done = {"output-available", "output-error"}
        by_tools = bool(own) and all(part["state"] in done for part in own)
        responded = [part for part in last if part["state"] == "approval-responded"]
        return by_tools or (
            bool(responded) and all(part["state"] in {*done, "output-denied", "approval-responded"} for part in last)
        )

    @property
    def texts(self) -> list[str]:
        """The texts that count."""
        texts = [part for part in self.parts if part["type"] == "text"]
        return [part["text"] for part in texts if not part["providerMetadata"]["perdure"].get("superseded")]


def take(page: UiPage, chunks: Any) -> None:
    """Have a page take all chunks of an answer."""
    for chunk in chunks:
        if chunk["type"] == "finish":
            page.ends(chunk)
        elif chunk["type"] == "error":
            page.error = chunk["errorText"]
        else:
            page.take(chunk)


def request_of(messages: list[dict[str, Any]]) -> PageChatRequest:
    return read({"id": "chat", "messages": messages, "trigger": "submit-message"})


def shown(events: list[Event], messages: list[dict[str, Any]], before: int = 0) -> tuple[UiPage, UiMessageEvents]:
    adapter, page = UiMessageEvents(request_of(messages), "abcdef-1", "s/abcdef-1", before), UiPage(messages)
    take(page, adapter.begin())
    for each in events:
        take(page, adapter.fold(each))
    return page, adapter


@given(histories())
def test_only_what_counts_stays(made: tuple[list[Event], list[str], str]) -> None:
    events, counted, answer = made
    page, adapter = shown(events, [USER])
    take(page, adapter.end(RunView(run_id="run", status="completed", output=answer)))
    assert page.texts == counted
    calls = [part for part in page.parts if "toolCallId" in part]
    assert len(calls) == sum(one.topic == "tool" and one.phase == "start" for one in events)
    assert {part["state"] for part in calls} <= {"output-available"}
    assert page.finish is not None
    assert page.finish["messageMetadata"]["perdure"]["status"] == "completed"
    assert not page.sends_by_itself


@pytest.mark.parametrize(("events", "text"), long_answers())
def test_an_output_whose_event_is_cut_is_one_part(events: list[Event], text: str) -> None:
    page, adapter = shown(events, [USER])
    take(page, adapter.end(RunView(run_id="run", status="completed", output=text)))
    assert page.texts == [text]


def test_r20_7_an_output_is_one_part_that_grows() -> None:
    piece = {"request": 1, "attempt": 1, "form": "json"}
    page, adapter = shown([event("request", "start", number=1, model="m", reason="first")], [USER])
    seen: list[Any] = []
    for each in (
        event("assistant", "delta", start=0, text='{"title":"Lo', **piece),
        event("assistant", "superseded", request=1, attempt=1, reason="attempt 2 writes anew"),
        event("assistant", "delta", start=0, text='{"title":"App', **piece | {"attempt": 2}),
        event("assistant", "delta", start=13, text='les","n":', **piece | {"attempt": 2}),
    ):
        take(page, adapter.fold(each))
        (part,) = (part for part in page.parts if part["type"] == "data-output")
        seen.append(part["data"])
    take(page, adapter.end(RunView(run_id="run", status="completed", output={"title": "Apples", "n": 1})))
    assert seen == [{"title": "Lo"}, {"title": "Lo"}, {"title": "App"}, {"title": "Apples"}]
    assert [part["data"] for part in page.parts if part["type"] == "data-output"] == [{"title": "Apples", "n": 1}]


def waiting(call: str = "1.0", tool: str = "pay", **more: Any) -> WaitingView:
    base: dict[str, Any] = {"call": call, "agent": "shopper", "tool": tool, "params": {"amount": 5}, "reason": "why"}
    return WaitingView(**(base | {"requested_at": "", "digest": "0123456789abcdef"} | more))


ASKS = [
    event("request", "start", number=1, model="m", reason="first"),
    event("assistant", "delta", request=1, attempt=1, start=0, text="I pay."),
    event("request", "end", number=1, attempt=1, model="m", usage={}, says=True),
    event("tool", "start", call="1.1", tool="look", params={}),
    event("tool", "end", call="1.1", tool="look", status="done", result="red"),
    event("approval", "start", call="1.0", tool="pay", params={"amount": 5}, reason="why"),
]


@pytest.mark.parametrize("resumed", [True, False])
def test_a_call_that_a_person_has_edited_is_shown_as_it_ran(*, resumed: bool) -> None:
    page, adapter = shown(ASKS, [USER])
    take(page, adapter.interrupt([("", waiting())]))
    rest = [
        event("approval", "end", call="1.0", tool="pay", decision="edit"),
        event("tool", "start", call="1.0", tool="pay", params={"amount": 4}),
        event("tool", "end", call="1.0", tool="pay", status="done", result="paid 4"),
    ]
    page.respond(approved=True)
    again, _ = shown([*ASKS, *rest], page.messages if resumed else [USER], before=1 if resumed else 0)
    call = again.call("abcdef-1:1.0")
    assert (call["state"], call["input"], call["output"]) == ("output-available", {"amount": 4}, "paid 4")


@pytest.mark.parametrize(("approved", "status"), [(True, "done"), (False, "rejected")])
def test_an_approval_is_answered_and_the_message_goes_on(*, approved: bool, status: str) -> None:
    page, adapter = shown(ASKS, [USER])
    take(page, adapter.interrupt([("", waiting())]))
    assert page.finish is not None
    assert (page.finish["finishReason"], page.sends_by_itself) == ("tool-calls", False)
    part = page.call("abcdef-1:1.0")
    assert (part["type"], part["state"], part["input"]) == ("tool-pay", "approval-requested", {"amount": 5})
    assert part["title"] == waiting().sentence
    page.respond(approved=approved)
    assert page.sends_by_itself
    request = request_of(page.messages)
    (answer,) = request.answers
    assert (answer.run, answer.call) == ("abcdef-1", "1.0")
    assert answer.decision["decision"] == ("approve" if approved else "reject")
    assert (request.message, request.continued) == (None, page.message)
    # The same run, from its beginning: the message that the page has is continued, and nothing of it comes twice.
    rest = [
        event("approval", "end", call="1.0", tool="pay", decision="approve"),
        *([event("tool", "start", call="1.0", tool="pay", params={"amount": 5})] if approved else []),
        event("tool", "end", call="1.0", tool="pay", status=status, result="paid 5"),
        event("assistant", "end", request=1, attempt=1, text="I pay.", accepted=True),
        event("request", "start", number=2, model="m", reason="next"),
        event("assistant", "end", request=2, attempt=1, text="Done.", accepted=True, output=True),
    ]
    again, adapter = shown([*ASKS, *rest], page.messages, before=1)
    take(again, adapter.end(RunView(run_id="run", status="completed", output="Done.")))
    assert [message["id"] for message in again.messages] == ["m1", page.message["id"]]
    assert again.texts == ["I pay.", "Done."]
    assert again.call("abcdef-1:1.0")["state"] == ("output-available" if approved else "output-denied")
    assert not again.sends_by_itself


@pytest.mark.parametrize("ends", ["completed", "waiting", "failed"])
@pytest.mark.parametrize("kind", [{"question": True, "tool": "ask_person"}, {"client": True, "tool": "open"}])
def test_a_page_gives_an_output_and_sends_no_message_again_by_itself(kind: dict[str, Any], ends: str) -> None:
    page, adapter = shown(ASKS, [USER])
    take(page, adapter.interrupt([("", waiting(**kind))]))
    assert page.call("abcdef-1:1.0")["state"] == "input-available"
    assert not page.sends_by_itself
    page.give("abcdef-1:1.0", {"size": 42})
    assert page.sends_by_itself
    (answer,) = request_of(page.messages).answers
    assert answer.decision == {
        "decision": "answer",
        "answer": {"size": 42},
        "call": "1.0",
        "digest": "0123456789abcdef",
    }
    again, adapter = shown(
        [*ASKS, event("tool", "end", call="1.0", tool="x", status="done", result=7)], page.messages, before=1
    )
    if ends == "waiting":
        take(again, adapter.interrupt([("", waiting("1.2"))]))
        assert again.call("abcdef-1:1.2")["state"] == "approval-requested"
    else:
        take(again, adapter.end(RunView(run_id="run", status=ends, output="", error="it broke")))
        assert again.error == ("it broke" if ends == "failed" else "")
    assert again.call("abcdef-1:1.0")["output"] == {"size": 42}
    assert not again.sends_by_itself or again.error


def test_a_whole_plan_is_asked_about() -> None:
    page, adapter = shown(ASKS[:1], [USER])
    plan = waiting("1", "", calls=[{"_tool": "pay"}], params={})
    take(page, adapter.interrupt([("", plan)]))
    part = page.call("abcdef-1:plan-1")
    assert (part["type"], part["input"], part["state"]) == (
        "tool-plan",
        {"calls": [{"_tool": "pay"}]},
        "approval-requested",
    )
    page.respond()
    ended = event("approval", "end", call="1", tool="", decision="approve")
    again, _ = shown([ASKS[0], ended], page.messages, before=1)
    assert again.call("abcdef-1:plan-1")["state"] == "output-available"


def test_a_steered_run_shows_nothing_twice() -> None:
    """A new message goes to the run that works: its answer is a message of its own, without the calls that the page has."""
    page, adapter = shown(ASKS, [USER])
    take(page, adapter.interrupt([("", waiting())]))
    messages = [*page.messages, {**USER, "id": "m2"}]
    again, _ = shown([*ASKS, event("tool", "end", call="1.0", tool="pay", status="skipped")], messages)
    assert len({message["id"] for message in again.messages}) == 4
    assert [part for part in again.parts if "toolCallId" in part or part["type"] == "text"] == []


TEXT = [{"type": "text", "text": "x"}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": [USER]}, "id must be the chat's id, of 1 to 200 characters"),
        ({"id": "c" * 201, "messages": [USER]}, "id must be the chat's id, of 1 to 200 characters"),
        ({"id": "c", "messages": []}, "messages must be a list of UI messages, the newest last"),
        ({"id": "c", "messages": ["x"]}, "messages[0].role must be 'user', 'assistant' or 'system'"),
        ({"id": "c", "messages": [{"role": "user", "id": "", "parts": []}]}, "messages[0].id must have 1 to 200"),
        ({"id": "c", "messages": [{"role": "user", "id": "m", "parts": "x"}]}, "messages[0].parts must be a list"),
        (
            {"id": "c", "messages": [{"role": "user", "id": "m", "parts": []}]},
            "ends with a user's message without text",
        ),
        (
            {"id": "c", "messages": [{"role": "user", "id": "m", "parts": [{"type": "file"}]}]},
            "messages ends with a user's message that has a part 'file': only text is supported",
        ),
        (
            {"id": "c", "messages": [{"role": "assistant", "id": "m", "parts": TEXT}]},
            "messages must end with a user's message, a tool's output, or an approval's answer",
        ),
        ({"id": "c", "messages": [USER], "trigger": "resume"}, "trigger must be one of: submit-message, regenerate"),
        ({"id": "c", "messages": [USER], "tools": [{"name": "a b"}]}, "tools[0].name must have 1 to 64 letters"),
        ({"id": "c", "messages": [USER], "tools": [{"name": "a"}] * 2}, "tools[1].name must have 1 to 64 letters"),
        ({"id": "c", "messages": [USER], "tools": {}}, "tools must be a list of at most 128 tools"),
        (
            {"id": "c", "messages": [USER], "tools": [{"name": "a", "inputSchema": {"type": 5}}]},
            "tools[0] must be {name",
        ),
        (
            {
                "id": "c",
                "messages": [
                    {
                        "role": "assistant",
                        "id": "m",
                        "parts": [
                            {
                                "type": "tool-x",
                                "state": "approval-responded",
                                "approval": {"id": "../x", "approved": True},
                            }
                        ],
                    }
                ],
            },
            "messages answers a request that did not wait in this chat: '../x'",
        ),
    ],
)
def test_what_is_refused_is_one_line(body: dict[str, Any], words: str) -> None:
    with pytest.raises(HttpError) as found:
        read(body)
    assert found.value.status == 422
    assert words in found.value.detail
    assert "\n" not in found.value.detail
