"""What OpenAI's door makes of runs and requests, without any server: responses, streams that add up to them, and ids (R17.2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approvals.requests import WaitingView
from perdure.gateway.errors import HttpError
from perdure.gateway.openai import _requests as requests
from perdure.gateway.openai import _requests as requests_module
from perdure.gateway.openai._agent_file import Record, new_record
from perdure.gateway.openai._events import CompletionEvents, ResponseEvents
from perdure.gateway.openai._objects import (
    FoundRun,
    ResponseId,
    conversation_key,
    decision_via,
    message_item,
    of_call,
    response_id,
    response_object,
)
from perdure.gateway.openai._requests import read_chat, read_input
from perdure.models.requests import RequestView
from perdure.models.usage import RunUsage, Usage
from perdure.plan import Approval
from perdure.runs.events import Event
from perdure.runs.wire import CallView, RunView
from perdure.sessions.wire import digest
from perdure.values.json import JsonObject

ID = ResponseId("0" * 24, "0a0b0c-1")
texts = st.text("ab \n…", min_size=1, max_size=30)


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[tuple[int, str]]:
    """A text as it is told: cut anywhere, pieces of it twice, and one of them perhaps missed."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=5)))
    bounds = [0, *cuts, len(text)]
    told = [(max(0, first - draw(st.integers(0, 3))), last) for first, last in itertools.pairwise(bounds)]
    kept = [each for each in told if draw(st.integers(0, 9)) > 0]
    return [(first, text[first:last]) for first, last in kept]


def response(answer: str, functions: int = 0) -> JsonObject:
    items = [message_item(ID, answer)] if answer else []
    calls = [
        {
            "type": "function_call",
            "id": f"fc_{n}",
            "call_id": f"c{n}",
            "name": "f",
            "arguments": "{}",
            "status": "completed",
        }
        for n in range(functions)
    ]
    return {"id": str(ID), "status": "completed", "output": [*items, *calls]}


def told(answer: JsonObject, cut: Sequence[Sequence[tuple[int, str]]], after: int = -1) -> list[JsonObject]:
    """All events: of answers that did not count, and of the one that does."""
    telling = ResponseEvents(ID, RECORD, "r", after)
    events = list(telling.begin())
    for number, each in enumerate(cut):
        # Every third is another Request, in between it is asked again.
        request, attempt = number // 3, number % 3 + 1
        about: JsonObject = {"request": request, "attempt": attempt}
        for start, text in each:
            events += telling.fold(Event("assistant", "delta", "", "r", {**about, "start": start, "text": text}))
        last = number + 1 == len(cut)
        if last or attempt == 3:
            if not last:
                beside_calls = request % 2 == 0
                events += telling.fold(Event("assistant", "end", "", "r", {**about, "accepted": beside_calls}))
            events += telling.fold(Event("request", "end", "", "r", {"number": request, "attempt": attempt}))
    return [*events, *telling.finish(answer)]


def added_up(events: Iterable[JsonObject]) -> list[JsonObject]:
    """What a client has that puts the pieces together: its items by their places, those alone that came to an end."""
    open_items: dict[int, JsonObject] = {}
    ended: list[JsonObject] = []
    for event in events:
        kind, at = event["type"], event.get("output_index", -1)
        if kind == "response.output_item.added":
            assert at not in open_items
            open_items[at] = event["item"] | {"text": "", "arguments": ""}
        elif kind == "response.output_text.delta":
            assert event["item_id"] == open_items[at]["id"]
            open_items[at]["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            open_items[at]["arguments"] += event["delta"]
        elif kind == "response.output_text.done":
            assert event["text"] == open_items[at]["text"]
        elif kind == "response.output_item.done":
            item, built = event["item"], open_items[at]
            assert item["id"] == built["id"]
            if item["type"] == "message":
                assert item["content"][0]["text"] == built["text"]
            else:
                assert item["arguments"] == built["arguments"]
            ended.append(item)
    return ended


@given(st.data(), st.lists(texts, max_size=3), texts | st.just(""), st.integers(0, 3))
def test_a_stream_adds_up_to_the_response(data: st.DataObject, drafts: list[str], text: str, functions: int) -> None:
    answer = response(text, functions)
    cut = [data.draw(pieces(each)) for each in [*drafts, text]]
    events = told(answer, cut)
    final = events[-1]["response"]
    assert [item for item in added_up(events) if item["status"] == "completed"] == final["output"]
    assert [item | {"id": ""} for item in final["output"]] == [item | {"id": ""} for item in answer["output"]]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[:2] == [0, 1]
    if not drafts:
        assert final == answer, "where nothing was written that did not count, it is the response that is retrieved"


@given(st.data(), texts, st.lists(texts, max_size=2))
def test_any_gateway_goes_on_behind_any_event(data: st.DataObject, text: str, drafts: list[str]) -> None:
    answer = response(text, 1)
    first = told(answer, [data.draw(pieces(each)) for each in [*drafts, text]])
    seen = first[: data.draw(st.integers(0, len(first)))]
    after = seen[-1]["sequence_number"] if seen else -1
    rest = told(answer, [data.draw(pieces(each)) for each in [*drafts, text]], after)
    assert all(event["sequence_number"] > after for event in rest)

    def of_the_answer(events: Iterable[JsonObject]) -> str:
        last = 2 + len(drafts) * (1 << 21)
        deltas = (each for each in events if each["type"] == "response.output_text.delta")
        return "".join(each["delta"] for each in deltas if each["sequence_number"] >= last)

    assert of_the_answer([*seen, *rest]) == text
    assert ([*seen, *rest])[-1]["type"] == "response.completed"


def test_a_text_that_is_superseded_within_its_attempt_turns_no_number_back() -> None:
    about: JsonObject = {"request": 1, "attempt": 1, "start": 0}
    events = [
        Event("assistant", "delta", "", "r", {**about, "text": "I think" * 50}),
        Event("assistant", "superseded", "", "r", {**about, "reason": "anew"}),
        Event("assistant", "delta", "", "r", {**about, "text": "Yes."}),
        Event("request", "end", "", "r", {"number": 1, "attempt": 1}),
    ]

    def read(after: int) -> list[JsonObject]:
        telling = ResponseEvents(ID, RECORD, "r", after)
        found = [*telling.begin(), *itertools.chain.from_iterable(map(telling.fold, events))]
        return [*found, *telling.finish(response("Yes."))]

    numbers = [event["sequence_number"] for event in read(-1)]
    assert numbers == sorted(set(numbers))
    for after in numbers[:-1]:
        assert read(after)[-1]["type"] == "response.completed"
        assert all(event["sequence_number"] > after for event in read(after))


def run(**about: Any) -> RunView:
    log = [
        RequestView(number=1, model="m", reason="", status="done", usage=Usage(prompt_tokens=5, completion_tokens=2))
    ]
    usage = RunUsage(prompt_tokens=5, completion_tokens=2)
    return RunView(**({"run_id": "r", "status": "running", "log": log, "usage": usage} | about))


RECORD = Record(echo={"model": "m"}, tools=[{"name": "f"}], agent="m")
CALL = {"id": "1.0", "tool": "f", "params": {"a": 1}}
OFFER = WaitingView(
    call="1.0",
    agent="m",
    tool="f",
    params={"a": 1},
    reason="",
    requested_at="2026-01-01T00:00:00",
    digest="",
    question=True,
    client=True,
)


def test_a_run_that_waits_for_its_client_has_ended_a_response_and_begins_another() -> None:
    waits = FoundRun(run(calls=[CallView(**CALL, status="waiting")], waiting=[OFFER]), RECORD)
    first = response_object(ID, waits)
    assert (first["status"], first["usage"]["total_tokens"]) == ("completed", 7)
    (asked,) = first["output"]
    assert (asked["type"], asked["call_id"], asked["arguments"]) == ("function_call", ID.call("1.0"), '{"a":1}')
    approval = Approval(requested_at=OFFER.requested_at, decision="answer", via=decision_via(ID.next(), "1.0", ""))
    done = CallView(**CALL, status="done", approval=approval)
    log = [*waits.view.log, RequestView(number=2, model="m", reason="", usage=Usage())]
    for more, status in (
        ({"status": "running", "log": log}, "in_progress"),
        ({"status": "completed", "log": log}, "completed"),
    ):
        usage = RunUsage(prompt_tokens=15, completion_tokens=4)
        found = FoundRun(
            run(**({"calls": [done], "stop_reason": "output", "usage": usage} | more)), RECORD, "Fine.", 1.0
        )
        assert response_object(ID, found) == first, "what was told of it stays so"
        second = response_object(ID.next(), found)
        assert second["status"] == status
    assert second["output"] == [message_item(ID.next(), "Fine.")]
    assert second["usage"]["total_tokens"] == 12


def test_a_chat_has_the_text_and_the_calls_beside_it() -> None:
    """The text's own end comes after its calls, and the run waits for these."""
    chunks = CompletionEvents(ID, RECORD, "r", with_usage=False)
    words = {"request": 1, "attempt": 1, "start": 0, "text": "Let me look."}
    written = [
        Event(run_id="r", topic="assistant", phase="delta", at="2026-01-01T00:00:00", data=words),
        Event(run_id="r", topic="request", phase="end", at="2026-01-01T00:00:01", data={"number": 1, "attempt": 1}),
    ]
    sent = [chunk for event in written for chunk in chunks.fold(event)]
    waits = FoundRun(run(calls=[CallView(**CALL, status="waiting")], waiting=[OFFER]), RECORD)
    choices = [chunk["choices"][0] for chunk in [*sent, *chunks.end(waits)]]
    assert "".join(each["delta"].get("content") or "" for each in choices) == "Let me look."
    assert [call["function"]["name"] for each in choices for call in each["delta"].get("tool_calls", ())] == ["f"]
    assert choices[-1]["finish_reason"] == "tool_calls"


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    "message",
    [{"content": "Hi"}, {"content": "Hi", "name": "ann"}, {"content": [{"type": "text", "text": "a"}, PICTURE]}],
)
def test_a_history_with_results_is_known_as_that_with_which_its_run_began(message: JsonObject) -> None:
    call = {"id": "call_k_1-0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    began = [{"role": "system", "content": "Be brief."}, {"role": "user", **message}]
    record = new_record(read_chat({"model": "m", "messages": began}), created=1, sender="ann", approves=False)
    answered = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "ok"},
    ]
    earlier = read_chat({"model": "m", "messages": [*began, *answered]}).client_input.earlier
    assert digest(earlier[: record.length]) == record.history


def test_a_refusal_is_a_text_of_the_history() -> None:
    refused: JsonObject = {"role": "assistant", "content": None, "refusal": "I cannot help."}
    said = [{"role": "user", "content": "x"}, refused, {"role": "user", "content": "y"}]
    before = read_chat({"model": "m", "messages": said}).client_input.before
    assert before[-1] == {"role": "assistant", "content": "I cannot help."}


@pytest.mark.parametrize(
    ("about", "status", "reason"),
    [
        ({"status": "failed", "error": "broke"}, "failed", None),
        ({"status": "terminated"}, "failed", None),
        ({"status": "cancelled"}, "cancelled", None),
        ({"status": "completed", "stop_reason": "token_budget"}, "incomplete", "max_output_tokens"),
        ({"status": "completed", "stop_reason": "max_requests"}, "incomplete", "max_messages"),
        ({"status": "completed", "stop_reason": "task_complete"}, "completed", None),
    ],
)
def test_how_a_run_ends(about: dict[str, Any], status: str, reason: str | None) -> None:
    told = response_object(ID, FoundRun(run(**about), RECORD, "x", 1.0))
    assert (told["status"], (told["incomplete_details"] or {}).get("reason")) == (status, reason)
    assert (told["error"] is not None) == (status == "failed")


keys = st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True)
runs = st.from_regex(r"([0-9a-f]{6}-[1-9][0-9]{0,8})?", fullmatch=True)


@given(keys, runs, st.integers(1, 999_999), st.from_regex(r"[1-9]\.[0-9](\[[0-9]\])?", fullmatch=True))
def test_ids_say_where_a_response_is(key: str, run: str, leg: int, call: str) -> None:
    id = ResponseId(key, run, leg)
    assert response_id(str(id)) == id
    assert response_id(id.completion, "chatcmpl-") == id
    assert of_call(id.call(call)) == ResponseId(key, run)
    assert id.run_id("one") != id.run_id("two"), "to another tenant it leads elsewhere"
    assert conversation_key(f"conv_{key}") == key


@given(st.text() | st.text("resp_call0a-").map(lambda rest: "resp_" + rest))
def test_what_is_no_id_leads_nowhere(text: str) -> None:
    found = response_id(text)
    assert found is None or str(found) == text or found.leg == 1
    of_call(text)
    conversation_key(text)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "call_id", "output", "approve", "image_url", "name", "arguments"]
            ),
            inner
            | st.sampled_from(["message", "user", "assistant", "function_call", "function_call_output", "input_text"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json_like, st.booleans())
def test_any_input_is_taken_or_refused_in_one_line(value: Any, follows: bool) -> None:
    try:
        said, items = read_input(value, follows=follows)
    except HttpError as error:
        assert error.status == 400
        assert error.more["param"]
        assert "\n" not in error.detail
    else:
        assert items
        assert said.texts or said.outputs or follows


REQUEST_KEYS = sorted(
    {
        *requests.HONOURED,
        *requests.HINTS,
        *requests.NEUTRAL,
        *requests_module.CHAT_HONOURED,
        *requests_module.CHAT_NEUTRAL,
        "other",
    }
)
bodies = st.dictionaries(st.sampled_from(REQUEST_KEYS), json_like, max_size=6)


@given(bodies, st.booleans())
def test_any_body_is_read_or_refused_in_one_line(body: dict[str, Any], chat: bool) -> None:
    body = {"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}]} | body
    body.pop("input" if chat else "messages")
    try:
        (requests_module.read_chat if chat else requests.read_request)(body)
    except HttpError as error:
        assert error.status == 400
        assert error.more["param"] in body or error.more["param"].split(".")[0].split("[")[0] in body
        assert "\n" not in error.detail


@pytest.mark.parametrize(
    ("choice", "names", "must"),
    [
        ("auto", ["a", "b"], []),
        ("none", [], []),
        ("required", ["a", "b"], ["a", "b"]),
        ({"type": "function", "name": "b"}, ["a", "b"], ["b"]),
        ({"type": "function", "function": {"name": "b"}}, ["a", "b"], ["b"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]},
            ["a"],
            ["a"],
        ),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "a"}]}}, ["a"], []),
    ],
)
def test_a_tool_choice(choice: Any, names: list[str], must: list[str]) -> None:
    tools = [{"type": "function", "name": name} for name in ("a", "b")]
    changes = requests.read_request({"model": "m", "input": "x", "tools": tools, "tool_choice": choice}).changes
    assert (sorted(changes.names), changes.must_call) == (names, must)


@pytest.mark.parametrize("choice", ["any", {"type": "function", "name": "c"}, {"type": "allowed_tools"}, 3])
def test_a_tool_choice_that_is_none(choice: Any) -> None:
    tools = [{"type": "function", "name": "a"}]
    with pytest.raises(HttpError, match="tool_choice"):
        requests.read_request({"model": "m", "input": "x", "tools": tools, "tool_choice": choice})
