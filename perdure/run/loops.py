"""The wire of a loop: what its workflow is told, carries on, and gives back (R8.5 to R8.7)."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from perdure.model.usage import RunUsage
from perdure.plan.iteration import DEFAULT_MAX, DEFAULT_PARALLEL
from perdure.run.shares import Expected
from perdure.run.stopping import Budget
from perdure.run.wire import MAX_PAYLOAD
from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire

LOOP_WORKFLOW: Final = "Loop"


class IterationError(Wire):
    """One iteration that failed; the others are kept (R8.5)."""

    index: int
    code: str
    message: str


class LoopState(Wire):
    """What has been done so far; a loop goes on from it in a new execution (R8.7)."""

    done: int = 0
    """Iterations that ended."""
    next: int = 0
    """Index of the first iteration that has not been started."""
    results: list[Any] = Field(default_factory=list)
    """In item order; of a failed iteration `{"error": {"index", "code", "message"}}`. Until-loops keep the last alone."""
    failed: list[IterationError] = Field(default_factory=list)
    usage: RunUsage = Field(default_factory=RunUsage)
    expected: Expected = Field(default_factory=Expected)
    """What an iteration is thought to use of the budget (R18.7)."""
    satisfied: bool = False
    """Whether the condition of an until-loop has come true."""


class LoopInput(Wire):
    """The input of the `Loop` workflow."""

    kind: Literal["each", "until"]
    agent: JsonObject
    """The delegate's agent file, with its scopes."""
    params: JsonObject
    items: list[Any] = Field(default_factory=list)
    parallel: int = DEFAULT_PARALLEL
    until: str = ""
    max: int = DEFAULT_MAX
    max_payload: int = MAX_PAYLOAD
    title: str = ""
    """The call in words, for summaries."""
    approval: JsonObject = Field(default_factory=dict)
    lineage: list[str] = Field(default_factory=list)
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    budget: Budget = Field(default_factory=Budget)
    """What the run above has left for all iterations together; its deadline binds each of them."""
    state: LoopState = Field(default_factory=LoopState)

    @property
    def count(self) -> int:
        """Iterations at most."""
        return len(self.items) if self.kind == "each" else self.max

    @property
    def lanes(self) -> int:
        """Iterations at a time."""
        return self.parallel if self.kind == "each" else 1

    def iteration(self, index: int) -> tuple[JsonObject, JsonObject]:
        """The agent and the input of one iteration: the call's parameters, `index`, and what is the iteration's own."""
        if self.kind == "each":
            return self.agent, {**self.params, "item": self.items[index], "index": index}
        previous = self.state.results[-1] if self.state.results else None
        state = {"type": "state", "state": {"previous": previous}}
        return {**self.agent, "context": [*self.agent.get("context", []), state]}, {**self.params, "index": index}

    def progress(self) -> str:
        """For the current details: `312 of 1000, 2 failed`."""
        failed = f", {len(self.state.failed)} failed" if self.state.failed else ""
        return f"{self.state.done} of {'at most ' if self.kind == 'until' else ''}{self.count}{failed}"
