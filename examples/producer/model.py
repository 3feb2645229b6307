"""What the example's scripted model answers, by who is asking: four agents share one server."""

from __future__ import annotations

from typing import Any

from perdure.testing import ChatRequest

TEXT = "Twice a day the sea remembers the Moon."
ANSWERS: dict[str, list[dict[str, Any]]] = {
    "PRODUCER": [
        {
            "calls": [
                {"_tool": "write_episode", "topic": "†input.topic", "_outputPath": "†state.episode"},
                {"_tool": "name_it", "text": "†state.episode.text", "_outputPath": "†state.name"},
            ],
            "output": None,
        },
        {"calls": [], "output": {"title": "The Sea Remembers", "text": TEXT}},
    ],
    "WRITER": [
        {"calls": [{"_tool": "research", "topic": "†input.topic", "_outputPath": "†state.found"}], "output": None},
        {"calls": [], "output": {"text": TEXT}},
    ],
    "RESEARCHER": [
        {"calls": [{"_tool": "look_up", "topic": "†input.topic", "_outputPath": "†state.facts"}], "output": None},
        {"calls": [], "output": {"facts": ["The Moon causes most of the tide."]}},
    ],
    "NAMER": [{"calls": [], "output": {"title": "The Sea Remembers"}}],
}


def SCRIPT(asked: ChatRequest) -> dict[str, Any]:  # noqa: N802
    """The first answer before anything has run, the second after it."""
    who = next(name for name in ANSWERS if f"You are {name}." in asked.messages[0]["content"])
    return ANSWERS[who][-1 if "# plan" in asked.text else 0]
