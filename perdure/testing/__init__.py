"""Tests of your own agents: plans, runs, people, faults, and models without a key (R14). Unused modules are not
loaded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.testing._automatic import AutoModel
    from perdure.testing._checks import Checked, check
    from perdure.testing._gold_plans import gold_plan
    from perdure.testing._local import Local, run_locally
    from perdure.testing._people import Person, answer, approve, edit, reject, replace
    from perdure.testing._schema_values import CannotMakeError
    from perdure.testing._strategies import plans
    from perdure.testing._waits import LocalRun
    from perdure.testing.cases import Case, CaseDifferenceError, read_case, record, replay, write_case
    from perdure.testing.scripted_model import (
        ChatRequest,
        Fault,
        Pace,
        ScriptedModel,
        Turn,
        cut,
        rate_limited,
        refusal,
        server_error,
    )
    from perdure.testing.toolbox import Execution, Kill, kill

_WHERE: Final = {
    "_automatic": ("AutoModel",),
    "cases": ("Case", "CaseDifferenceError", "read_case", "record", "replay", "write_case"),
    "_checks": ("Checked", "check"),
    "_gold_plans": ("gold_plan",),
    "_local": ("Local", "run_locally"),
    "_people": ("Person", "answer", "approve", "edit", "reject", "replace"),
    "_schema_values": ("CannotMakeError",),
    "scripted_model": (
        "ChatRequest",
        "Fault",
        "Pace",
        "ScriptedModel",
        "Turn",
        "cut",
        "rate_limited",
        "refusal",
        "server_error",
    ),
    "_strategies": ("plans",),
    "toolbox": ("Execution", "Kill", "kill"),
    "_waits": ("LocalRun",),
}
_LATER: Final = {name: f"perdure.testing.{module}" for module, names in _WHERE.items() for name in names}

__all__ = [
    "AutoModel",
    "CannotMakeError",
    "Case",
    "CaseDifferenceError",
    "ChatRequest",
    "Checked",
    "Execution",
    "Fault",
    "Kill",
    "Local",
    "LocalRun",
    "Pace",
    "Person",
    "ScriptedModel",
    "Turn",
    "answer",
    "approve",
    "check",
    "cut",
    "edit",
    "gold_plan",
    "kill",
    "plans",
    "rate_limited",
    "read_case",
    "record",
    "refusal",
    "reject",
    "replace",
    "replay",
    "run_locally",
    "server_error",
    "write_case",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
