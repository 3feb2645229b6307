"""Which model answers a Request, and why (R9.4).

A policy is a function of the `Situation` that gives a model's name and the reason in words. Those here go by name; one of the
worker's own goes by `module:function`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from pydantic import Field

from perdure.model.usage import RunUsage
from perdure.run.agents import Models
from perdure.tools.tool import Tool
from perdure.values.wire import Wire


class Called(Wire):
    """A tool that an answer called, and how dangerous it is as far as its definition says."""

    tool: str
    danger: Literal["safe", "undeclared", "dangerous", "unknown"]
    """`unknown`: there is no such tool."""

    @classmethod
    def of(cls, name: str, tool: Tool | None) -> Called:
        dangerous = tool is not None and (tool.dangerous or tool.code_dangerous)
        danger = "unknown" if tool is None else "dangerous" if dangerous else "safe" if tool.safe else "undeclared"
        return cls.model_validate({"tool": name, "danger": danger})


class Situation(Wire):
    """What a policy can go by."""

    models: Models
    number: int
    """Of the Request, from 1."""
    after_error: bool = False
    """Whether a call of the last Request failed, or its answer was wrong."""
    final: bool = False
    """Whether only the answer is wanted: no tools are offered."""
    usage: RunUsage = RunUsage()
    """Of the run so far."""
    called: list[Called] = Field(default_factory=list)
    """What the last answer called, in its order; empty before the first (R9.8)."""


class ChooseInput(Wire):
    policy: str
    """`module:function`."""
    situation: Situation


class Choice(NamedTuple):
    model: str
    reason: str


Policy = Callable[[Situation], Choice]


def auto(situation: Situation) -> Choice:
    """The fast model for choosing tools, the smart one where there is something to think about."""
    models = situation.models
    if situation.final:
        return Choice(models.smart, "final answer")
    if situation.after_error:
        return Choice(models.smart, "after an error")
    if situation.number >= 3:
        return Choice(models.smart, "third Request on")
    return Choice(models.fast, "first Request" if situation.number == 1 else "choosing tools")


def fast(situation: Situation) -> Choice:
    """Always the fast model."""
    return Choice(situation.models.fast, "policy fast")


def smart(situation: Situation) -> Choice:
    """Always the smart model."""
    return Choice(situation.models.smart, "policy smart")


POLICIES: Final[Mapping[str, Policy]] = {"auto": auto, "fast": fast, "smart": smart}
