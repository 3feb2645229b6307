"""Tokens and money, per Request and per run, by model (R9.6)."""

from __future__ import annotations

from pydantic import Field

from perdure.wire import Wire


class Usage(Wire):
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


class ModelUsage(Usage):
    requests: int = 0


class RunUsage(Usage):
    cost: float | None = None
    """Dollars; `None` where no price is known."""
    by_model: dict[str, ModelUsage] = Field(default_factory=dict)

    def count(self, model: str, usage: Usage) -> None:
        before = self.by_model.get(model, ModelUsage())
        total = before + usage
        self.by_model[model] = ModelUsage(
            prompt_tokens=total.prompt_tokens, completion_tokens=total.completion_tokens, requests=before.requests + 1
        )
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens

    def include(self, child: RunUsage) -> None:
        """Count what a delegate has used (R9.6)."""
        for model, usage in child.by_model.items():
            before = self.by_model.get(model, ModelUsage())
            self.by_model[model] = ModelUsage(
                prompt_tokens=before.prompt_tokens + usage.prompt_tokens,
                completion_tokens=before.completion_tokens + usage.completion_tokens,
                requests=before.requests + usage.requests,
            )
        self.prompt_tokens += child.prompt_tokens
        self.completion_tokens += child.completion_tokens
