"""The agent, from its file, with a type for its output; `writer` and `researcher`, below it, are files beside it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from perdure import Agent

AGENTS = Path(__file__).parent / "agents"


class Episode(BaseModel):
    title: str
    text: str


AGENT = Agent.read(AGENTS / "producer.json", output=Episode)
INPUT = {"topic": "tides"}
