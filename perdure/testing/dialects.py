"""Writing a Solution as a model would, in each dialect (R9.2): the other side of `perdure.model.dialects`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.model.dialects.asking import written_names
from perdure.model.dialects.script import script_names
from perdure.model.dialects.scripts.writer import write_call, write_output
from perdure.model.dialects.tools import function_names


@dataclass(frozen=True)
class Answer:
    """What a model says: text, native calls as name and arguments in JSON, why it refuses, and what it thinks before."""

    text: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    reasoning: str = ""


def write_answer(content: str | dict[str, Any], dialect: str, kinds: Sequence[str] = ()) -> Answer:
    """Text as it is; a Solution in the dialect."""
    if isinstance(content, str):
        return Answer(content)
    if dialect == "script" and content.keys() <= {"calls", "output"}:
        return Answer(write_script(content, kinds))
    if dialect == "tools" and content.keys() <= {"calls", "output"}:
        return write_native(content)
    return Answer(_json(content))


def write_script(solution: dict[str, Any], kinds: Sequence[str] = ()) -> str:
    calls, output = solution.get("calls") or [], solution.get("output")
    names = written_names(script_names(dict.fromkeys(str(call.get("_tool")) for call in calls)))
    lines = [write_call(call, names=names, kinds=kinds) for call in calls]
    return "\n".join([*lines, *([write_output(output, kinds=kinds)] if output is not None else [])]) + "\n"


def write_native(solution: dict[str, Any]) -> Answer:
    """Native calls, and the output as text beside them; a text as it is, anything else as JSON."""
    calls, output = solution.get("calls") or [], solution.get("output")
    names = written_names(function_names(dict.fromkeys(str(call.get("_tool")) for call in calls)))
    native = [
        (names[str(call.get("_tool"))], _json({key: value for key, value in call.items() if key != "_tool"}))
        for call in calls
    ]
    text = "" if output is None else output if isinstance(output, str) else _json(output)
    return Answer(text, tuple(native))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
