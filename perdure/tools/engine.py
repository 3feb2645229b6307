"""Tools that the engine executes itself: a sleep, and a question to a person.

Every worker offers them; the key of their activity begins with `perdure.`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from perdure.errors import CallError
from perdure.tools.tool import ASK_PERSON, KEEP, SLEEP_UNTIL, UNDO, Tool, parse_tool
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import LONGEST

ENGINE_TOOLS: Final[Mapping[str, JsonObject]] = {
    "sleep_until": {
        "name": "sleep_until",
        "description": "Wait until a time, or for some seconds. Others go on; what reads the result starts then.",
        "properties": {
            "time": {
                "type": "string",
                "description": "ISO 8601, e.g. 2030-01-31T08:00:00+01:00; without an offset it is UTC",
            },
            "seconds": {"type": "number", "minimum": 0, "description": "from now, in place of a time"},
        },
        "additionalProperties": False,
        "_activity": SLEEP_UNTIL,
        "_safe": True,
    },
    "ask_person": {
        "name": "ask_person",
        "description": "Ask a person a question, and wait for the answer.",
        "properties": {
            "question": {"type": "string", "description": "in plain words; say what you need to know and why"},
            "choices": {
                "type": "array",
                "items": {"type": "string"},
                "description": "the answers to choose from; without them any answer goes",
            },
        },
        "required": ["question"],
        "additionalProperties": False,
        "_activity": ASK_PERSON,
        "_safe": True,
    },
    "undo": {
        "name": "undo",
        "description": "Take back what calls of this run have done, in reverse order, with all that depends on them. "
        "What cannot be taken back is named in the result.",
        "properties": {
            "calls": {
                "type": "array",
                "items": {"type": "string"},
                "description": 'ids of calls that are done, such as "1.2"; without them all calls',
            }
        },
        "additionalProperties": False,
        "_activity": UNDO,
        "_exclusive": True,
    },
}
"""Definitions by name."""


KEEP_TOOL: Final[JsonObject] = {
    "name": "keep",
    "description": "Say what becomes of held calls of the plan: those you keep run as they stand, under their ids, as if they stood here.",
    "properties": {
        "calls": {"type": "array", "items": {"type": "string"}, "description": 'ids of held calls, such as "1.2"'},
        "drop": {"type": "array", "items": {"type": "string"}, "description": "ids of held calls that are not to run"},
    },
    "additionalProperties": False,
    "_activity": KEEP,
    "_safe": True,
}
"""The tool that the run offers in a Request that revises a plan (R10.5)."""


UNDO_BELOW: Final[JsonObject] = {
    "name": "undo_run",
    "description": "Take back what the run of a delegate has done.",
    "properties": {"run": {"type": "string"}},
    "required": ["run"],
    "additionalProperties": False,
    "_activity": UNDO,
}
"""The tool with which an undo includes the runs of delegates."""


def keep_tool(taken: Container[str]) -> Tool:
    """Return the tool by which a Request keeps held calls, under a name that is not `taken`."""
    return parse_tool({**KEEP_TOOL, "name": free_name("keep", taken)}, activities=[KEEP])


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name for a tool that the run itself offers, with `_` appended until it is not `taken`."""
    while name in taken:
        name += "_"
    return name


def answer_problem(params: JsonObject, answer: Json) -> str | None:
    """Return the reason why an answer does not fit the question."""
    choices = params.get("choices")
    if answer is None:
        return "an answer needs 'answer'"
    if isinstance(choices, list) and choices and answer not in choices:
        return f"{shorten(answer, 60)} is none of the choices: {', '.join(map(str, choices))}"
    return None


def sleep_seconds(params: JsonObject, now: float, read_time: Callable[[str], float]) -> float | CallError:
    """Return the seconds of a sleep that begins `now`. Only times that a timer can hold are accepted, even if the
    tool's definition allows more.

    Times are seconds since the caller's epoch; `read_time` parses ISO 8601, and raises the errors of `datetime`.
    """
    time: Any = params.get("time")  # and `read_time` refuses an invalid time
    seconds: Any = params.get("seconds")  # `float` refuses a value that is not a number
    if (time is None) == (seconds is None):
        return CallError("invalid_params", "sleep_until takes a time or seconds, one of them")
    try:
        length = float(seconds) if time is None else read_time(time) - now
        if not length <= LONGEST:  # also not a number
            raise OverflowError
    except (ValueError, TypeError, OverflowError):
        return CallError(
            "invalid_params",
            f"$.seconds is {shorten(seconds, 60)}, but must be a number from 0 to {LONGEST:,.0f}, a hundred years"
            if time is None
            else f"$.time is {shorten(time, 60)}, but must be ISO 8601 and within a hundred years, such as 2030-01-31T08:00:00+01:00",
        )
    return max(0.0, length)
