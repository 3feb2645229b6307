"""The agent, from its file, with a type for its output; its delegate `host` is a file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perdure import Agent

AGENTS = Path(__file__).parent / "agents"


class Updated(BaseModel):
    updated: int
    failed: list[str]


AGENT = Agent.read(AGENTS / "fleet.json", output=Updated)
INPUT: dict[str, Any] = {"version": "2.4.1"}
