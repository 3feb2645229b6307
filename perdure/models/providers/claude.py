"""Facts about the Claude models that clients of Anthropic's and Bedrock's servers need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perdure.models.provider_extras import THINKING_BLOCKS
from perdure.models.providers.chat_messages import ChatTurn, objects
from perdure.values.json import JsonObject

_NAME: Final = re.compile(r"claude-[\w.-]+")
_VERSION: Final = re.compile(r"claude-(?:instant-)?(?:[a-z]+-)?v?(\d{1,2})(?!\d)(?:[.-](\d{1,2})(?!\d))?")
_NEWEST: Final = (99, 0)
"""The version of a model without one in its name."""

_TOKENS: Final = 4096
_TOKENS_4_5: Final = 64_000
_TOKENS_LATER: Final = 128_000
_ROOM: Final = 4096
"""Tokens of an answer beyond its thoughts."""
_BUDGET: Final = {"minimal": 1024, "low": 2048, "medium": 10_000, "high": 16_384, "xhigh": 32_768, "max": 32_768}
_LEAST_BUDGET: Final = 1024
NO_THINKING: Final = ("none", "off")
"""Efforts that disable thinking."""


@dataclass(frozen=True, slots=True)
class Claude:
    """A Claude model, by its name."""

    name: str
    """`claude-…`, without the marks that a server puts around it."""

    @property
    def version(self) -> tuple[int, int]:
        """The major and the minor number in its name: `(4, 5)` of `claude-sonnet-4-5-20250929`."""
        found = _VERSION.match(self.name)
        return _NEWEST if found is None else (int(found[1]), int(found[2] or 0))

    @property
    def strict_schemas(self) -> bool:
        """Whether its servers enforce schemas."""
        return self.version >= (4, 1)

    @property
    def thinking(self) -> bool:
        """Whether it can think."""
        return self.version >= (3, 7)

    @property
    def hosts_tools(self) -> bool:
        """Whether Anthropic runs tools for it."""
        return self._is_from_haiku_3_5

    @property
    def has_bedrock_cache(self) -> bool:
        """Whether Bedrock caches its prompts. Bedrock refuses cache marks for any other Claude model."""
        return self._is_from_haiku_3_5

    @property
    def _is_from_haiku_3_5(self) -> bool:
        """Whether it is Claude 3.5 Haiku, or of version 3.7 or later."""
        return self.version >= (3, 7) or self.name.startswith("claude-3-5-haiku")

    @property
    def adaptive(self) -> bool:
        """Whether it sets the length of its thinking itself; earlier models have a budget of tokens."""
        return self.version >= (4, 6)

    def sampling(self, chat: JsonObject) -> JsonObject:
        """Return `temperature` and `top_p` as the model accepts them: none from version 4.7 on, one of them from 4.1
        on.
        """
        sampling = {key: chat[key] for key in ("temperature", "top_p") if chat.get(key) is not None}
        if self.version >= (4, 7):
            return {}
        return dict([*sampling.items()][:1]) if self.version >= (4, 1) else sampling

    def thoughts(self, effort: str | None, turns: Sequence[ChatTurn], most: int | None = None) -> JsonObject:
        """Return `thinking`, and `effort` if the model accepts one; an empty object keeps the model's default.

        `most`: the limit of the answer's tokens. The server requires a smaller budget of thoughts.
        """
        if effort in NO_THINKING:
            return self._no_thoughts()
        if effort is None or not self.thinking or not self._may_think(turns):
            return {}
        if not self.adaptive:
            budget = _BUDGET.get(effort, _BUDGET["medium"])
            if most is not None and most <= budget:
                budget = most // 2
            return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= _LEAST_BUDGET else {}
        known = {"minimal": "low", **({"xhigh": "max"} if self.version < (4, 7) else {})}
        return {"thinking": {"type": "adaptive", "display": "summarized"}, "effort": known.get(effort, effort)}

    def _no_thoughts(self) -> JsonObject:
        """Return the parameter that disables thinking. Models from version 5 on think by default, and some always
        do."""
        always = ("claude-fable", "claude-mythos", "claude-opus-5-5")
        if self.version < (5, 0) or self.name.startswith(always):
            return {}
        return {"thinking": {"type": "between_tools" if self.name.startswith("claude-sonnet-5-5") else "disabled"}}

    def _may_think(self, turns: Sequence[ChatTurn]) -> bool:
        """Whether the server accepts thinking: with a budget it requires the thoughts before the last calls."""
        calling = [turn for turn in turns if turn.calls]
        return self.adaptive or not calling or bool(signed_thoughts(calling[-1]))

    def tokens(self, thoughts: JsonObject) -> int:
        """Return the default limit of an answer's tokens, with its thoughts."""
        most = _TOKENS_LATER
        if self.version < (4, 5):  # short answers, or one window for input and answer
            most = _TOKENS
        elif not self.adaptive:
            most = _TOKENS_4_5
        budget: int = thoughts.get("thinking", {}).get("budget_tokens", 0)
        return max(most, budget + _ROOM)


def signed_thoughts(turn: ChatTurn) -> list[JsonObject]:
    """Return the thoughts of a turn with a signature: the servers reject others."""
    blocks = objects(turn.extras.get(THINKING_BLOCKS))
    return [block for block in blocks if block.get("signature") or block.get("data")]


def claude_of(model: str) -> Claude | None:
    """Return the Claude model in a name, such as `eu.anthropic.claude-sonnet-4-5-20250929-v1:0`; `None` for others."""
    found = _NAME.search(model)
    return None if found is None else Claude(found[0])
