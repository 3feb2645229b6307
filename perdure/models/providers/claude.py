"""Facts about the Claude models that their servers, Anthropic's and Bedrock's, ask a client to know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perdure.models.provider_extras import THINKING_BLOCKS
from perdure.models.providers.chat_messages import ChatTurn, objects
from perdure.values.json import JsonObject

_NAME: Final = re.compile(r"claude-[\w.-]+")
_OLDEST: Final = re.compile(r"claude-(?:[123](?!\d)|instant|v\d|(?:opus|sonnet)-4(?:-0|-1|-20\d+)?(?:[@:-]|$))")
"""Models of before Claude 4.5: an answer is short, or input and answer together must fit the window."""
_HALF_NEW: Final = re.compile(r"claude-(?:opus|sonnet|haiku)-4-5")
_BUDGETS: Final = re.compile(rf"{_OLDEST.pattern}|{_HALF_NEW.pattern}|claude-haiku-4")
"""Models that think within a budget of tokens; later ones decide themselves, and only take an effort."""
_SAMPLED: Final = re.compile(rf"{_BUDGETS.pattern}|claude-(?:opus|sonnet)-4-6")
"""Models that take a temperature."""
_NO_SCHEMAS: Final = re.compile(r"claude-(?:[123](?!\d)|instant|v\d|(?:opus|sonnet)-4(?:-0|-20\d+)?(?:[@:-]|$))")
_NO_THOUGHTS: Final = re.compile(r"claude-(?:[12](?!\d)|instant|v\d|3-(?:5|opus|sonnet|haiku))")

_NO_HOSTED: Final = re.compile(r"claude-(?:[12](?!\d)|instant|v\d|3-(?:opus|sonnet|haiku|5-sonnet))")

_TOKENS: Final = 4096
_TOKENS_4_5: Final = 64_000
_TOKENS_LATER: Final = 128_000
_ROOM: Final = 4096
"""Tokens of an answer beyond its thoughts."""
_BUDGET: Final = {"minimal": 1024, "low": 2048, "medium": 10_000, "high": 16_384, "xhigh": 32_768, "max": 32_768}
_EFFORT: Final = {"minimal": "low"}
NO_THINKING: Final = ("none", "off")
"""Efforts that switch thinking off."""


@dataclass(frozen=True, slots=True)
class Claude:
    """A Claude model, by its name."""

    name: str
    """`claude-…`, without the marks that a server puts around it."""

    @property
    def strict_schemas(self) -> bool:
        """Whether its servers enforce schemas."""
        return _NO_SCHEMAS.match(self.name) is None

    @property
    def thinking(self) -> bool:
        """Whether it can think."""
        return _NO_THOUGHTS.match(self.name) is None

    @property
    def hosts_tools(self) -> bool:
        """Whether Anthropic runs tools for it."""
        return _NO_HOSTED.match(self.name) is None

    @property
    def sampled(self) -> bool:
        """Whether it takes a temperature."""
        return _SAMPLED.match(self.name) is not None

    @property
    def adaptive(self) -> bool:
        """Whether it decides itself how long to think."""
        return _BUDGETS.match(self.name) is None

    def thoughts(self, effort: str | None, turns: Sequence[ChatTurn]) -> JsonObject:
        """Return `thinking`, and `effort` where the model takes one; empty if the agent asks for no effort."""
        if effort is None or effort in NO_THINKING or not self.thinking or not self._may_think(turns):
            return {}
        if self.adaptive:
            return {
                "thinking": {"type": "adaptive", "display": "summarized"},
                "effort": _EFFORT.get(effort, effort),
            }
        return {"thinking": {"type": "enabled", "budget_tokens": _BUDGET.get(effort, _BUDGET["medium"])}}

    def _may_think(self, turns: Sequence[ChatTurn]) -> bool:
        """Whether the server accepts thinking: one with a budget demands the thoughts before the last calls."""
        calling = [turn for turn in turns if turn.calls]
        return self.adaptive or not calling or bool(signed_thoughts(calling[-1]))

    def tokens(self, thoughts: JsonObject) -> int:
        """Return how long an answer may be if the agent says nothing, with the thoughts."""
        most = _TOKENS_LATER
        if _OLDEST.match(self.name):
            most = _TOKENS
        elif not self.adaptive:
            most = _TOKENS_4_5
        budget: int = thoughts.get("thinking", {}).get("budget_tokens", 0)
        return max(most, budget + _ROOM)


def signed_thoughts(turn: ChatTurn) -> list[JsonObject]:
    """Return the thoughts of a turn that have their signature: the servers refuse others."""
    blocks = objects(turn.extras.get(THINKING_BLOCKS))
    return [block for block in blocks if block.get("signature") or block.get("data")]


def claude_of(model: str) -> Claude | None:
    """Return the Claude model in a name, such as `eu.anthropic.claude-sonnet-4-5-20250929-v1:0`; `None` for others."""
    found = _NAME.search(model)
    return None if found is None else Claude(found[0])
