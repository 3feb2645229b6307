"""Datasets and evaluators of agents, on `pydantic-evals` (R22.3).

Datasets, cases, judges, and evaluators of tools and Requests are those of `pydantic-evals`. This package adds
evaluators of plans: `Flows`, `NoFlow`, `Approvals`, `MaxCost` and `MaxTokens`. It needs the extra `evals`.
"""

from perdure.evals.evaluators import OURS, Approvals, Flows, MaxCost, MaxTokens, NoFlow, run_of
from perdure.evals.scores import load_evaluators, score_run

__all__ = ["OURS", "Approvals", "Flows", "MaxCost", "MaxTokens", "NoFlow", "load_evaluators", "run_of", "score_run"]
