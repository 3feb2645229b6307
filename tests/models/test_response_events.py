"""What model servers send, as bytes and as JSON: read whatever it is, in linear time, without ever raising (R9.1, R18.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.activities.requests import Events, EventTooLongError, ServerSentEvent, _documents
from perdure.models.dialects.registry import DIALECTS
from perdure.models.dialects.tools import turn_messages
from perdure.models.provider_errors import refusal_of, remove_features, step_down
from perdure.models.provider_extras import keys_beside
from perdure.models.requests import ReaderVocabulary, RequestResult
from perdure.models.response_stream import ResponseStream, join_chunks
from perdure.models.usage import RunUsage
from perdure.values.limits import MAX_ANSWER, MAX_EVENT
from tests.cpu import takes_less
from tests.strategies import json_values

SOLUTION = '{"calls":[{"_tool":"add","a":1}],"output":{"ok":true}}'


def events(raw: bytes, size: int, *, document: bool = False) -> list[ServerSentEvent]:
    reading = Events(document=document)
    return [event for at in range(0, len(raw), size) for event in reading.push(raw[at : at + size])] + reading.end()


STREAMS = {
    "as it should be": b'data: {"a":1}\n\ndata: [DONE]\n\n',
    "carriage returns": b'data: {"a":1}\r\rdata: [DONE]\r\r',
    "both": b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n',
    "a byte order mark": b'\xef\xbb\xbfdata: {"a":1}\n\ndata: [DONE]\n\n',
    "retry, id and comments": b'retry: 3000\n\n: hi\n\nid: 7\ndata: {"a":1}\n\n:\ndata: [DONE]\n\n',
    "no space": b'data:{"a":1}\n\ndata:[DONE]\n\n',
    "no end": b'data: {"a":1}\n\ndata: [DONE]',
    "a document": b'\n {"a":1}',
    "a document behind a byte order mark": b'\xef\xbb\xbf{"a":1}',
}


@pytest.mark.parametrize("raw", STREAMS.values(), ids=STREAMS)
def test_events_are_cut_whatever_ends_them(raw: bytes) -> None:
    for size in (1, 2, 3, 1000):
        found = [event.data.strip() for event in events(raw, size)]
        assert found == [b'{"a":1}', b"[DONE]"][: 1 if b"[DONE]" not in raw else 2]


def test_lines_without_an_empty_one_between_them_are_documents_each() -> None:
    (event,) = events(b'event: x\ndata: {"a":1}\ndata: {"a":2}\n', 3)
    assert event.name == "x"
    assert _documents(event) == [{"a": 1}, {"a": 2}]
    assert _documents(ServerSentEvent(b'{"a":"\\ud83d"}')) == [{"a": "\ud83d"}]
    assert _documents(ServerSentEvent(b"ping")) == []
    assert _documents(ServerSentEvent(b"no", "error")) == ["no"]


def test_what_is_no_event_is_kept_to_be_shown() -> None:
    reading = Events()
    reading.push(b"<html>\n<body>bad gateway</body>\n" * 1000)
    assert reading.strange.startswith(b"<html> <body>bad gateway")
    assert len(reading.strange) <= 20_000


def test_r18_6_a_line_without_end_is_ended() -> None:
    def read() -> None:
        reading = Events()
        for _ in range(MAX_EVENT // 50):
            reading.push(b"data" + b"x" * 46)
        with pytest.raises(EventTooLongError, match="4,000,000 bytes without the end of an event"):
            reading.push(b"x")

    assert takes_less(read, 2000)
    long = b'data: "' + b"x" * 1000 + b'"\n\n'
    many = Events()
    assert sum(len(many.push(long)) for _ in range(5000)) == 5000  # a stream may be longer


def answer(dialect: str = "solution") -> ResponseStream:
    return ResponseStream("m", 1, DIALECTS[dialect].reader(ReaderVocabulary()))


def read(*documents: Any, dialect: str = "solution") -> RequestResult:
    reading = answer(dialect)
    early = [call for document in documents for call in reading.take(document)]
    result = reading.result()
    assert early == result.calls[: len(early)]
    return result


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


COMPLETION = {"message": {"role": "assistant", "content": SOLUTION}, "finish_reason": "stop", "index": 0}
CONTENTS: dict[str, list[Any]] = {
    "text": [delta(content=SOLUTION)],
    "a list of parts": [delta(content=[{"type": "text", "text": SOLUTION[:9]}]), delta(content=[SOLUTION[9:]])],
    "thoughts among the parts": [
        delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "{"}]}, {"type": "text", "text": SOLUTION}])
    ],
    "a part": [delta(content={"type": "output_text", "text": SOLUTION})],
    "a whole completion": [{"object": "chat.completion", "choices": [COMPLETION]}],
    "a whole completion with an empty delta": [{"choices": [COMPLETION | {"delta": {}}]}],
    "the message again with each delta": [
        {"choices": [{"delta": {"content": SOLUTION}, "message": {"content": SOLUTION}}]}
    ],
    "a second choice": [delta(content=SOLUTION), {"choices": [{"index": 1, "delta": {"content": "{"}}]}],
}  # fmt: skip


@pytest.mark.parametrize("documents", CONTENTS.values(), ids=CONTENTS)
def test_the_text_of_an_answer_wherever_it_stands(documents: list[Any]) -> None:
    result = read(*documents, delta("stop"))
    assert (result.calls, result.output, result.problem) == ([{"_tool": "add", "a": 1}], {"ok": True}, None)


def test_a_character_that_is_cut_in_its_escapes() -> None:
    result = read(delta(content='{"output":"\ud83d'), delta(content="\ude00"), delta(content='"}'))
    assert result.output == "😀"


CALLS: dict[str, list[Any]] = {
    "arguments as an object": [delta(tool_calls=[{"id": "one", "function": {"name": "add", "arguments": {"a": 1}}}])],
    "one call, no list": [delta(tool_calls={"id": "one", "function": {"name": "add", "arguments": '{"a":1}'}})],
    "flat": [delta(tool_calls=[{"id": "one", "name": "add", "arguments": '{"a":1}'}])],
    "as it was before": [
        delta(function_call={"name": "add", "arguments": ""}),
        delta(function_call={"arguments": '{"a"'}),
        delta(function_call={"arguments": ":1}"}),
        delta("function_call"),
    ],
}


@pytest.mark.parametrize("documents", CALLS.values(), ids=CALLS)
def test_native_calls_however_they_are_written(documents: list[Any]) -> None:
    result = read(*documents, dialect="tools")
    calls: list[Any] = result.calls
    assert [{**call, "_id": ""} for call in calls] == [{"_tool": "add", "a": 1, "_id": ""}]
    assert result.problem is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 5}, (7, 5)),
        ({"prompt_tokens": None, "completion_tokens": "5"}, (0, 0)),
        ({"prompt_tokens": 7.0, "completion_tokens": -1}, (7, 0)),
        ([], (0, 0)),
    ],
)
def test_tokens_are_counted_where_they_are_numbers(usage: Any, tokens: tuple[int, int]) -> None:
    for document in ({"usage": usage}, {"x_groq": {"usage": usage}}):
        counted = read(delta(content=SOLUTION), document).usage
        assert (counted.prompt_tokens, counted.completion_tokens) == tokens


@pytest.mark.parametrize(("total", "completion"), [(14_428, 4308), (11_619, 1499), (None, 1499)])
def test_tokens_of_reasoning_count_once_where_a_server_counts_them_beside_the_completion(
    total: int | None, completion: int
) -> None:
    details: dict[str, Any] = {"completion_tokens_details": {"reasoning_tokens": 2809}}
    usage = {"prompt_tokens": 10_120, "completion_tokens": 1499, "total_tokens": total, **details}
    stream = ResponseStream("m", 1, DIALECTS["tools"].reader(ReaderVocabulary()))
    stream.take({"choices": [], "usage": usage})
    found = stream.result().usage
    assert (found.completion_tokens, found.reasoning_tokens) == (completion, 2809)


def test_what_a_server_says_of_its_cache_and_of_thoughts_is_counted_and_printed_only_then() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 3}}
    usage = {"prompt_tokens": 7, "completion_tokens": 4}
    assert read(delta(content=SOLUTION), {"usage": usage}).usage.as_json() == {"promptTokens": 7, "completionTokens": 4}
    counted = read(delta(content=SOLUTION), {"usage": usage | details}).usage
    assert counted.as_json() == {"promptTokens": 7, "completionTokens": 4, "cachedTokens": 5, "reasoningTokens": 3}
    run = RunUsage()
    for _ in range(2):
        run.count("m", counted, {})
    assert (run.cached_tokens, run.by_model["m"].reasoning_tokens) == (10, 6)
    said: list[Any] = ["", {"cached_tokens": None}, []]
    for nothing in said:
        assert read(delta(), {"usage": usage | {"prompt_tokens_details": nothing}}).usage.cached_tokens == 0


SPOKEN = st.sampled_from(
    ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "index", "id", "usage",
     "prompt_tokens", "function_call", "finish_reason", "reasoning_content", "extra_content", "model", "refusal", "text"]
)  # fmt: skip
DOCUMENTS = st.recursive(
    json_values() | st.sampled_from([SOLUTION, "{", "stop", 0, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SPOKEN, inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=40)
@given(documents=st.lists(DOCUMENTS | DOCUMENTS.map(lambda it: {"choices": [{"delta": it}]}), max_size=4))
def test_nothing_that_a_server_sends_raises(documents: list[Any]) -> None:
    for dialect in DIALECTS:
        reading = answer(dialect)
        for document in documents:
            refusal_of(None, document)
            reading.take(document)
        for result in (reading.result(), reading.interrupted([], "it broke off")):
            assert result.model_dump_json(), "it can be sent"


PIECES = st.text('{}[]",:/*\\ \nacloutps=()', max_size=8)
CHUNKS = st.one_of(
    st.builds(lambda text: delta(content=text), PIECES),
    st.builds(
        lambda index, text: delta(tool_calls=[{"index": index, "function": {"arguments": text}}]),
        st.integers(0, 1),
        PIECES,
    ),
    st.builds(
        lambda index, id: delta(tool_calls=[{"index": index, "id": id, "function": {"name": "look", "arguments": ""}}]),
        st.integers(0, 1),
        st.sampled_from(["a", "b"]),
    ),
    st.just(delta("stop")),
    st.just({"choices": [], "usage": {"prompt_tokens": 3}}),
    st.sampled_from(["one", "two"]).map(lambda model: {**delta(content="x"), "model": model}),
)


@given(documents=st.lists(CHUNKS, max_size=12), dialect=st.sampled_from(["solution", "tools", "script"]))
def test_chunks_that_arrive_together_are_read_as_one_by_one(documents: list[Any], dialect: str) -> None:
    one_by_one, together = answer(dialect), answer(dialect)
    calls = [call for document in documents for call in one_by_one.take(document)]
    assert [call for document in join_chunks(documents) for call in together.take(document)] == calls
    assert together.result() == one_by_one.result()
    assert together.output_text() == one_by_one.output_text()


def test_one_chunk_for_the_tokens_that_arrive_together() -> None:
    written = [{**delta(content=token), "object": "chat.completion.chunk"} for token in ("to", "ge", "ther")]
    found: list[Any] = join_chunks([*written, delta("stop")])
    assert [each["choices"][0]["delta"] for each in found] == [{"content": "together"}, {}]


def test_r18_6_an_answer_without_end_is_ended() -> None:
    reading, count = answer(), 0
    while not reading.too_long:
        reading.take(delta(content="ü" * 100_000))
        count += 1
    assert count == MAX_ANSWER // 200_000 + 1
    problem = reading.result().problem
    assert problem is not None
    assert problem["code"] == "answer_too_long"
    thinking = answer()
    for _ in range(20):
        thinking.take(delta(reasoning_content="x" * 100_000))
    assert thinking.too_long


SIGNED = {"google": {"thought_signature": "abc"}}


def signed(*servers: str) -> list[dict[str, Any]]:
    """The assistant's message as it goes to each server; it came from the default one."""
    call = {"index": 0, "id": "one", "function": {"name": "add", "arguments": '{"a":1}'}, "extra_content": SIGNED}
    result = read(
        delta(reasoning_content="I will "), delta(reasoning_content="add.", tool_calls=[call]), dialect="tools"
    )
    assert result.beside is not None
    turn = {
        "text": "",
        "calls": [{"id": "one", "tool": "add", "arguments": {"a": 1}, "result": "1", "beside": result.beside.calls[0]}],
        "server": "",
        "beside": result.beside.message,
    }
    return [turn_messages(turn, {}, server)[0] for server in servers]


def test_what_stands_beside_a_call_goes_back_to_who_sent_it() -> None:
    own, other = signed("", "backup")
    assert own["tool_calls"][0]["extra_content"] == SIGNED
    assert own["reasoning_content"] == "I will add."
    assert own["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":1}'}
    assert keys_beside([own]) == {"reasoning_content", "extra_content"}
    assert keys_beside([other]) == set()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("property 'reasoning_content' is unsupported", "reasoning_content"),
        ("messages.2.assistant.reasoning_content: Extra inputs are not permitted", "reasoning_content"),
        ("Unrecognized key extra_content in tool call", "extra_content"),
        ("Missing reasoning_content field in the assistant message", None),
        ("something else is wrong", None),
    ],
)
def test_what_a_server_forbids_is_not_sent_there_again(words: str, key: str | None) -> None:
    body = {"messages": [{"role": "user", "content": "reasoning_content"}, *signed("")]}
    refusal = refusal_of(400, {"error": {"message": words}})
    assert refusal is not None
    step = step_down(refusal, body)
    assert (step and step.feature) == key
    if key:
        assert keys_beside(remove_features(body, {key})["messages"]) == {"reasoning_content", "extra_content"} - {key}
        assert keys_beside(body["messages"]) == {"reasoning_content", "extra_content"}


def test_blocks_of_thoughts_that_come_in_pieces_are_joined() -> None:
    first = {"type": "reasoning.text", "index": 0, "text": "I will ", "format": "x"}
    second = {"type": "reasoning.text", "index": 0, "text": "add.", "signature": "s"}
    call = {"id": "one", "function": {"name": "add", "arguments": "{}"}}
    pieces = [delta(reasoning_details=[each]) for each in (first, second, {"type": "reasoning.encrypted", "data": "d"})]
    beside = read(*pieces, delta(tool_calls=[call]), dialect="tools").beside
    assert beside is not None
    assert beside.message["reasoning_details"] == [
        {**first, **second, "text": "I will add."},
        {"type": "reasoning.encrypted", "data": "d"},
    ]
    assert read(*pieces, delta(content="Done."), dialect="tools").beside is None
    large = {"id": "one", "function": {"name": "add", "arguments": "{}"}, "extra_content": "x" * 20_000}
    assert read(delta(tool_calls=[large]), dialect="tools").beside is None


def test_a_stream_costs_what_its_bytes_cost() -> None:
    """A token in a hundredth of a millisecond; the client's objects took a quarter of one."""
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", **delta(content='"xxx')}
    raw = f"data: {json.dumps(chunk)}\n\n".encode()

    def read() -> None:
        reading, taking = Events(), answer()
        for _ in range(20_000):
            for event in reading.push(raw):
                for document in _documents(event):
                    taking.take(document)

    assert takes_less(read, 800)
