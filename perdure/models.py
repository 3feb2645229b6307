"""Which model answers a Request, and why (R9.4)."""

from __future__ import annotations

from perdure.agents import Models


def choose_model(models: Models, *, number: int, after_error: bool, final: bool) -> tuple[str, str]:
    """The model's name and the reason in words: cheap for choosing tools, strong where there is something to think about."""
    if final:
        return models.smart, "final answer"
    if after_error:
        return models.smart, "after an error"
    if number >= 3:
        return models.smart, "third Request on"
    return models.fast, "choosing tools"
