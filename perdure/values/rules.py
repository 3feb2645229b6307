"""How an agent's sessions take messages: the `session` of an agent file's `config` (R10.4, R10.8)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Mode: TypeAlias = Literal["steer", "followup", "collect", "interrupt", "reject"]
Told: TypeAlias = Literal["reasoning", "tools"]
"""What goes before an answer: what the model thought, a line for each call."""
MODES: Final[tuple[Mode, ...]] = ("steer", "followup", "collect", "interrupt", "reject")


class Rules(BaseModel):
    """What is left out is for those above to say, or the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode | None = None
    """What a message without a mode does; `steer`, and `followup` while the run waits for a person."""
    cap: int | None = Field(default=None, ge=1, le=1_000)
    """Messages that may wait; 20."""
    quiet: float | None = Field(default=None, ge=0, le=3_600)
    """Seconds without another message after which those collected begin a run; 0.5."""
    context_tokens: int | None = Field(default=None, ge=1_000)
    """Tokens of a context from which on the conversation is compacted; 100,000, or less where a model has refused that (R10.11)."""
    verbose: tuple[Told, ...] | None = None
    """What is delivered before an answer, to people whose messages name a route; nothing (R10.16)."""

    def over(self, below: Rules) -> Rules:
        """These, and where they say nothing those below."""
        return below.model_copy(update=self.model_dump(exclude_none=True))
