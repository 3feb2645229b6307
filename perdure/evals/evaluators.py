"""Evaluators of plans: the flow of values, approval requests, and the cost of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import networkx
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from perdure.runs.wire import RunView

RUN: Final = "run"
"""The attribute of an evaluator's context that has the run's view."""


def run_of(context: EvaluatorContext[Any, Any, Any]) -> RunView:
    """Return the run that is evaluated: its calls, dependencies, approvals, usage and output.

    ```python
    @dataclass
    class FewCalls(Evaluator):
        def evaluate(self, ctx: EvaluatorContext) -> bool:
            return len(run_of(ctx).calls) < 5
    ```
    """
    view = context.attributes[RUN]
    assert isinstance(view, RunView)
    return view


def _flows(view: RunView) -> networkx.DiGraph[str]:
    """Return the calls as a graph: an edge for each reference of one to the result of another."""
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from((call.id, {"tool": call.tool}) for call in view.calls)
    graph.add_edges_from((writer, reader) for writer, reader, _ in view.edges if writer in graph and reader in graph)
    return graph


def _tools(graph: networkx.DiGraph[str]) -> dict[str, str]:
    return {call: str(about["tool"]) for call, about in graph.nodes.items()}


def _reached(graph: networkx.DiGraph[str], source: str, target: str) -> tuple[str, str] | None:
    """Return a call of the tool `source` and one of the tool `target` that reads its result, or a value derived from
    it.
    """
    tools = _tools(graph)
    for call in [each for each, tool in tools.items() if tool == source]:
        for reader in sorted(networkx.descendants(graph, call)):
            if tools[reader] == target:
                return call, reader
    return None


@dataclass(repr=False)
class Flows(Evaluator[object, object, object]):
    """Whether results flow from tool to tool, directly or through other calls.

    `expected`: pairs of tools. The second one reads the result of the first one. `exact`: the references between calls are these pairs and no others.

    ```python
    Flows([["find_order", "refund"]])
    ```
    """

    expected: list[list[str]]
    exact: bool = False

    def evaluate(self, ctx: EvaluatorContext[object, object, object]) -> EvaluationReason:
        """Return whether all flows exist, or else the missing one."""
        graph = _flows(run_of(ctx))
        pairs = [(str(source), str(target)) for source, target in self.expected]
        if missing := [pair for pair in pairs if _reached(graph, *pair) is None]:
            return EvaluationReason(False, f"no result of {missing[0][0]} reaches {missing[0][1]}")
        tools = _tools(graph)
        found = sorted({(tools[writer], tools[reader]) for writer, reader in graph.edges})
        if self.exact and (more := [pair for pair in found if pair not in pairs]):
            return EvaluationReason(False, f"a result of {more[0][0]} reaches {more[0][1]}, which is not expected")
        return EvaluationReason(True, f"{len(pairs)} flows")


@dataclass(repr=False)
class NoFlow(Evaluator[object, object, object]):
    """Whether no result of one tool reaches another, directly or through other calls.

    `source`: the tool that returns the value. `target`: the tool that must not read it.

    ```python
    NoFlow("read_mail", "send_money")
    ```
    """

    source: str
    target: str

    def evaluate(self, ctx: EvaluatorContext[object, object, object]) -> EvaluationReason:
        """Return whether there is no such flow, or else its two calls."""
        found = _reached(_flows(run_of(ctx)), self.source, self.target)
        if found is None:
            return EvaluationReason(True, f"no result of {self.source} reaches {self.target}")
        return EvaluationReason(False, f"{found[1]} {self.target} reads a result of {found[0]} {self.source}")


@dataclass(repr=False)
class Approvals(Evaluator[object, object, object]):
    """Whether people were asked about the calls of these tools, and of no others.

    `expected`: names of tools; an empty list means that nobody was asked.

    ```python
    Approvals(["refund"])
    ```
    """

    expected: list[str]

    def evaluate(self, ctx: EvaluatorContext[object, object, object]) -> EvaluationReason:
        """Return whether the tools are the same, or else the difference."""
        asked = {call.tool for call in run_of(ctx).calls if call.approval is not None}
        if missing := sorted({*self.expected} - asked):
            return EvaluationReason(False, f"no person was asked about {', '.join(missing)}")
        if more := sorted(asked - {*self.expected}):
            return EvaluationReason(False, f"a person was asked about {', '.join(more)}")
        return EvaluationReason(True, f"asked about {', '.join(sorted(asked)) or 'nothing'}")


@dataclass(repr=False)
class MaxCost(Evaluator[object, object, object]):
    """Whether a run costs at most this many dollars; a run with an unknown price does not pass.

    ```python
    MaxCost(0.05)
    ```
    """

    dollars: float

    def evaluate(self, ctx: EvaluatorContext[object, object, object]) -> EvaluationReason:
        """Return whether the run's cost is within the limit, and the cost."""
        cost = run_of(ctx).usage.cost
        if cost is None:
            return EvaluationReason(False, "the price of a model is not known: set prices")
        return EvaluationReason(cost <= self.dollars, f"${cost:.4f} of ${self.dollars:.4f}")


@dataclass(repr=False)
class MaxTokens(Evaluator[object, object, object]):
    """Whether a run and its delegates use at most this many tokens.

    ```python
    MaxTokens(20_000)
    ```
    """

    tokens: int

    def evaluate(self, ctx: EvaluatorContext[object, object, object]) -> EvaluationReason:
        """Return whether the run's tokens are within the limit, and their number."""
        tokens = run_of(ctx).usage.tokens
        return EvaluationReason(tokens <= self.tokens, f"{tokens:,} of {self.tokens:,} tokens")


OURS: Final[tuple[type[Evaluator[Any, Any, Any]], ...]] = (Flows, NoFlow, Approvals, MaxCost, MaxTokens)
"""The evaluators of this package, which files name beside those of `pydantic-evals`."""
