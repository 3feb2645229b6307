"""Reading a Solution out of what the model wrote (section 1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.errors import CallError, JsonError
from perdure.jsons import Json, dumps, loads


@dataclass(frozen=True, slots=True)
class Solution:
    """`calls` as written, unchecked; `problem` is set when the text was no Solution, and is told to the model."""

    calls: list[Json] = field(default_factory=list)
    output: Json = None
    problem: CallError | None = None


def parse_solution(text: str, finish_reason: str | None = None) -> Solution:
    """The Solution that a finished answer holds. Never raises: whatever a model can write is an answer to it."""
    if not text.strip():
        return _no_solution("empty_answer", "the answer was empty")
    try:
        document = loads(text, source="the answer")
    except JsonError as error:
        if finish_reason == "length":
            return _no_solution(
                "cut_off", "the answer was cut off at the model's length limit; plan fewer calls at a time"
            )
        return _no_solution("not_json", f"{error}. It began: {text.strip()[:120]!r}")
    if not isinstance(document, dict) or not document.keys() & {"calls", "output"}:
        return _no_solution(
            "not_a_solution", f"expected an object with 'calls' and 'output', not {dumps(document)[:120]}"
        )
    unknown = sorted(document.keys() - {"calls", "output"})
    if unknown:
        return _no_solution("not_a_solution", f"unknown keys {', '.join(unknown[:5])} beside 'calls' and 'output'")
    calls = document.get("calls")
    if calls is not None and not isinstance(calls, list):
        return _no_solution("not_a_solution", f"'calls' must be an array, not {dumps(calls)[:120]}")
    return Solution(calls or [], document.get("output"))


def _no_solution(code: str, message: str) -> Solution:
    return Solution(
        problem=CallError(code, f'{message}. Answer with one JSON object {{"calls": [...], "output": ...}}')
    )
