"""Tools that the engine itself carries out, with no worker held: a sleep, and a question to a person.

They are offered like any other; a call of one is recognised by its activity's key, under `perdure.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.errors import CallError
from perdure.jsons import Json, JsonObject, shorten
from perdure.toolkit import ToolFunction, tool, tool_function
from perdure.tools import ASK_PERSON, SLEEP_UNTIL


@tool(safe=True)
def sleep_until(time: str | None = None, seconds: float | None = None) -> dict[str, Any]:
    """Wait until a time, or for some seconds. Others go on; what reads the result starts then.

    Args:
        time: ISO 8601, e.g. 2030-01-31T08:00:00+01:00; without an offset it is UTC.
        seconds: from now, in place of a time.
    """
    raise NotImplementedError(f"carried out by the engine: {time or seconds}")


@tool(safe=True)
def ask_person(question: str, choices: list[str] | None = None) -> Any:
    """Ask a person a question, and wait for the answer.

    Args:
        question: in plain words; say what you need to know and why.
        choices: the answers to choose from; without them any answer goes.
    """
    raise NotImplementedError(f"carried out by the engine: {question} {choices}")


def _engine_tool(function: Any, key: str) -> ToolFunction:
    found = tool_function(function)
    assert found is not None
    found.definition["_activity"] = key
    return found


ENGINE_TOOLS: Final[Mapping[str, ToolFunction]] = {
    SLEEP_UNTIL: _engine_tool(sleep_until, SLEEP_UNTIL),
    ASK_PERSON: _engine_tool(ask_person, ASK_PERSON),
}


def answer_problem(params: JsonObject, answer: Json) -> str | None:
    """Why an answer is none to the question."""
    choices = params.get("choices")
    if answer is None:
        return "an answer needs 'answer'"
    if choices and answer not in choices:
        return f"{shorten(answer, 60)} is none of the choices: {', '.join(map(str, choices))}"
    return None


def sleep_problem(params: JsonObject) -> CallError | None:
    """Why a sleep cannot be meant."""
    given = [key for key in ("time", "seconds") if params.get(key) is not None]
    if len(given) != 1:
        return CallError("invalid_params", "sleep_until takes a time or seconds, one of them")
    if given == ["seconds"] and params["seconds"] < 0:
        return CallError("invalid_params", f"$.seconds is {params['seconds']}, but must not be negative")
    return None
