"""Tools that the engine itself carries out, with no worker held: a sleep, and a question to a person.

Every worker offers them; a call of one is recognised by its activity's key, under `perdure.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.tools.tool import ASK_PERSON, SLEEP_UNTIL
from perdure.values.jsons import Json, JsonObject, shorten

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
}
"""Definitions by name."""


def answer_problem(params: JsonObject, answer: Json) -> str | None:
    """Why an answer is none to the question."""
    choices = params.get("choices")
    if answer is None:
        return "an answer needs 'answer'"
    if isinstance(choices, list) and choices and answer not in choices:
        return f"{shorten(answer, 60)} is none of the choices: {', '.join(map(str, choices))}"
    return None
