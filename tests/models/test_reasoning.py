"""Reasoning: heard wherever a server puts it, and never part of the answer (R10.14)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.models.response_stream import ResponseStream

THOUGHT = "I will add. "
ADD = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
SAYS = {"solution": '{"calls":[],"output":"yes"}', "tools": "yes", "script": 'output("yes")\n'}


def delta(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said}]}


def halves(key: str, wrap: Any) -> list[dict[str, Any]]:
    return [delta(**{key: wrap(THOUGHT[:6])}), delta(**{key: wrap(THOUGHT[6:])})]


FORMS: dict[str, list[dict[str, Any]]] = {
    "reasoning_content": halves("reasoning_content", str),
    "reasoning": halves("reasoning", str),
    "details": halves("reasoning_details", lambda text: [{"type": "reasoning.text", "text": text, "signature": "s"}]),
    "a summary": halves("reasoning_details", lambda text: [{"type": "reasoning.summary", "summary": text}]),
    "the same twice": [
        delta(reasoning=half, reasoning_details=[{"type": "reasoning.text", "text": half}])
        for half in (THOUGHT[:6], THOUGHT[6:])
    ],
    "blocks": halves("thinking_blocks", lambda text: [{"type": "thinking", "thinking": text}]),
    "a part of the content": halves(
        "content", lambda text: [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]
    ),
    "a part with a summary": halves(
        "content", lambda text: [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}]
    ),
    "tags": [delta(content="<think>I wi"), delta(content="ll add. </th"), delta(content="ink>\n")],
    "a message": [delta(reasoning_content={"text": THOUGHT, "other": 1})],
}


@pytest.mark.parametrize("dialect", SAYS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_it_is_heard_in_each_form(form: list[dict[str, Any]], dialect: str) -> None:
    answer = ResponseStream("m", 1, DIALECTS[dialect].reader(ReaderVocabulary()))
    heard, said = "", ""
    for document in [*form, delta(content=SAYS[dialect])]:
        answer.take(document)
        said += answer.output_text()
        heard += answer.thought()
    result = answer.result()
    assert (heard, said) == (THOUGHT, "yes")
    assert (result.thought, result.reasoned) == (THOUGHT, len(THOUGHT))
    assert result.problem is None
    assert result.output == "yes" or result.text == "yes"


@pytest.mark.parametrize("form", [FORMS["reasoning_content"], FORMS["details"], FORMS["tags"]])
def test_beside_calls_it_is_kept_once(form: list[dict[str, Any]]) -> None:
    answer = ResponseStream("m", 1, DIALECTS["tools"].reader(ReaderVocabulary()))
    for document in [*form, delta(tool_calls=[ADD])]:
        answer.take(document)
    result = answer.result()
    assert result.thought == THOUGHT
    assert result.model_dump_json().count("I will") == 1 or form is FORMS["details"]


@pytest.mark.parametrize(
    "thought", [{"type": "reasoning.encrypted", "data": "d"}, {"text": 7}, [[[[[[[["deep"]]]]]]]], 5, {"text": None}]
)
def test_what_has_no_words_is_none(thought: Any) -> None:
    answer = ResponseStream("m", 1, DIALECTS["solution"].reader(ReaderVocabulary()))
    answer.take(delta(reasoning_details=[thought], reasoning=thought))
    answer.take(delta(content=SAYS["solution"]))
    assert (answer.thought(), answer.result().reasoned) == ("", 0)


def test_of_a_long_one_the_beginning_is_kept_and_all_of_it_told() -> None:
    answer = ResponseStream("m", 1, DIALECTS["solution"].reader(ReaderVocabulary()))
    heard = 0
    for _ in range(100):
        answer.take(delta(reasoning_content="x" * 999 + "\ud83d"))
        heard += len(answer.thought())
    result = answer.result()
    assert (heard, result.reasoned, len(result.thought)) == (100_000, 100_000, 16_000)
    result.model_dump_json()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("dialect", SAYS)
def test_a_thought_whose_beginning_was_lost_is_one_all_the_same(dialect: str, told: bool) -> None:
    answer, said = ResponseStream("m", 1, DIALECTS[dialect].reader(ReaderVocabulary())), ""
    for piece in ("I will ", "add.\n", "</think>\n", SAYS[dialect]):
        answer.take(delta(content=piece))
        said += answer.output_text() if told else ""
    result = answer.result()
    assert result.thought == "I will add."
    assert result.output == "yes" or result.text == "yes"
    assert result.anew == (dialect == "tools" and told)
    assert said == ("I will add." if result.anew else "yes" if dialect == "script" and told else "")
