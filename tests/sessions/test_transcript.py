"""The transcript of a session: append-only, with branches, and what a model is told of it (R10.10, R10.18)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from perdure.runs.wire import CallView, RunResult
from perdure.sessions.entries import CommandEntry, MessageEntry, ReplyEntry, RunEntry, reply_of, run_entry
from perdure.sessions.transcript import Transcript, TranscriptSnapshot
from perdure.sessions.wire import message_key
from perdure.values.json import Json, JsonObject, pack
from perdure.values.limits import MAX_RESULT, MAX_RUN
from perdure.values.media import result_text
from perdure.values.messages import parse_messages
from perdure.values.sizes import Sizes

AT = "2026-11-21T10:00:00Z"


def message(id: str, text: str, run: str | None = None, **more: Any) -> MessageEntry:
    return MessageEntry(at=AT, message_id=id, sender="anna", text=text, run_id=run, **more)


def call(id: str, tool: str = "price", status: str = "done", **more: Any) -> CallView:
    return CallView(id=id, tool=tool, params={"item": "tea"}, status=status, **more)


def ended(run: str, *calls: CallView, status: Any = "completed", **more: Any) -> RunEntry:
    return run_entry(RunResult(run_id=run, status=status, calls=list(calls), **more), AT)


def exchange(transcript: Transcript, run: str, said: str, answered: str | None, *calls: CallView, **more: Any) -> None:
    transcript.append(message(f"m-{run}", said, run))
    transcript.append(ended(run, *calls, **more))
    transcript.append(ReplyEntry(at=AT, run_id=run, text=answered))


def test_r10_10_a_conversation_is_what_was_said_called_and_answered() -> None:
    transcript = Transcript()
    exchange(transcript, "s/1", "what is tea?", "3 euros", call("1.0", result='{"price":3}'), call("2.0", result="ok"))
    transcript.append(message("m2", "and coffee?"))  # nobody has answered it
    chat = transcript.conversation()
    assert [each["role"] for each in chat] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert chat[0]["content"] == "anna: what is tea?"
    assert chat[1]["tool_calls"][0]["id"] == chat[2]["tool_call_id"]
    assert (chat[2]["content"], chat[-1]["content"]) == ('{"price":3}', "3 euros")
    assert len(parse_messages(chat)) == 6
    assert [entry.n for entry in transcript.entries] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("status", "word"), [("running", "unknown"), ("ready", "skipped"), ("pending", "skipped"), ("held", "skipped")]
)
def test_r10_10_a_call_has_an_outcome_whatever_has_ended_its_run(status: str, word: str) -> None:
    transcript = Transcript()
    exchange(transcript, "s/1", "pay", None, call("1.0", "pay", status), status="terminated")
    chat = transcript.conversation()
    assert word in chat[2]["content"]
    assert "terminated" in chat[3]["content"]
    parse_messages(chat)


def test_r10_5_a_message_stands_before_the_request_that_held_it() -> None:
    transcript = Transcript()
    transcript.append(message("a", "two teas", "s/1"))
    transcript.append(message("b", "no, three", "s/1"))
    transcript.assign(message_key("anna", "b"), "s/1", 2)
    transcript.append(ended("s/1", call("1.0", result="1"), call("2.0", result="2")))
    transcript.append(ReplyEntry(at=AT, run_id="s/1", text="done"))
    roles = [(each["role"], each.get("content")) for each in transcript.conversation()]
    assert roles[0] == ("user", "anna: two teas")
    assert roles[3] == ("user", "anna: no, three")
    transcript.settle(message_key("anna", "b"), "withdrawn")
    assert ("user", "anna: no, three") not in [(e["role"], e.get("content")) for e in transcript.conversation()]


def test_r10_10_a_branch_begins_anew_and_deletes_nothing() -> None:
    transcript = Transcript()
    exchange(transcript, "s/1", "what is tea?", "3 euros")
    transcript.append(message("late", "still the old one", "s/2"))
    transcript.append(CommandEntry(at=AT, command="new", sender="anna"))
    transcript.append(ended("s/2"))  # it was begun before
    assert transcript.conversation() == []
    exchange(transcript, "s/3", "hello", "hi")
    assert [each["content"] for each in transcript.conversation()] == ["anna: hello", "hi"]
    assert len(transcript.conversation(branch=0)) == 3
    assert len(transcript.entries) == 9


def test_r10_13_what_is_carried_gives_the_same_conversation() -> None:
    transcript = Transcript()
    exchange(transcript, "s/1", "tea?", "3", call("1.0", result="3"), context_tokens=900)
    carried = pack(transcript.carried(), 1).read(TranscriptSnapshot, 1, "it")
    again = Transcript(carried)
    assert again.conversation() == transcript.conversation()
    assert (again.tokens, again.bytes) == (transcript.tokens, transcript.bytes)


def test_r10_11_tokens_are_what_the_server_counted_and_what_was_added_since() -> None:
    transcript = Transcript()
    exchange(transcript, "s/1", "x" * 4000, "y" * 400, context_tokens=5000)
    assert 5080 < transcript.tokens < 5130


def test_r10_18_a_result_is_cut_to_what_suits_a_model_and_says_so() -> None:
    sizes = Sizes()
    values: list[Json] = ["x" * 20_000, ["y" * 10] * 5000, "z" * 3_000_000]
    for value in values:
        text = result_text(value, sizes.of(value))
        assert len(text) < MAX_RESULT + 60
        assert "the rest: recall]" in text
    assert result_text({"a": [1, "b"]}, 15) == '{"a":[1,"b"]}'
    assert result_text("as it is", 10) == "as it is"


def test_r10_18_images_are_taken_out_of_results() -> None:
    picture = base64.b64encode(bytes(range(256)) * 40).decode()
    value: JsonObject = {"image": f"data:image/png;base64,{picture}", "note": "a cat"}
    text = result_text(value, Sizes().of(value))
    assert "10,240 bytes" in text
    assert "a cat" in text
    assert picture[:40] not in text
    large = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 4000).decode()
    assert picture[:40] not in result_text(large, Sizes().of(large))


def test_r10_18_a_run_of_many_large_results_keeps_the_newest_whole() -> None:
    many = [call(f"1.{n}", result=f"{n} " + "r" * 15_000) for n in range(500)]
    entry = ended("s/1", *many)
    assert len(entry.model_dump_json().encode()) < 1.2 * MAX_RUN
    assert entry.calls[-1].result == many[-1].result
    assert entry.calls[0].id == f"1.{entry.left_out}"
    shown = [each.result or "" for each in entry.calls]
    assert "recall" in shown[0]


def test_r11_what_is_printed_of_entries() -> None:
    transcript = Transcript()
    exchange(transcript, "s/1", "tea?", None, call("1.0", result="3"))
    told, run, reply = (entry.as_json() for entry in transcript.entries)
    assert {
        "type": "message",
        "messageId": "m-s/1",
        "sender": "anna",
        "text": "tea?",
        "runId": "s/1",
    }.items() <= told.items()
    assert told["mode"] == "steer"
    assert run["calls"] == [{"id": "1.0", "tool": "price", "params": {"item": "tea"}, "status": "done", "result": "3"}]
    assert reply == {"type": "reply", "at": AT, "n": 3, "runId": "s/1", "text": None}
    json.dumps([told, run, reply])


@pytest.mark.parametrize(
    ("output", "reply"),
    [
        ("yes", "yes"),
        ({"answer": "yes"}, "yes"),
        ({"a": 1}, '{"a":1}'),
        (" NO_REPLY ", None),
        (None, None),
        ([1], "[1]"),
    ],
)
def test_r10_16_a_reply_is_the_output_as_a_text(output: Any, reply: str | None) -> None:
    assert reply_of(output) == reply
