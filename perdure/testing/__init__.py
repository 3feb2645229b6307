"""Testing one's own agent: plans, runs, people, faults and models without a key (R14). What is not used is not loaded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.testing.automatic import AutoModel
    from perdure.testing.cases.recording import Case, read_case, record, write_case
    from perdure.testing.cases.replaying import CaseDifferenceError, replay
    from perdure.testing.following import LocalRun
    from perdure.testing.local import Local, run_locally
    from perdure.testing.offline.checks import Checked, check
    from perdure.testing.offline.making import CannotMakeError
    from perdure.testing.offline.strategies import plans
    from perdure.testing.people import Person, answer, approve, edit, reject, replace
    from perdure.testing.scripted_model import ScriptedModel
    from perdure.testing.toolbox import Execution
    from perdure.testing.turns import ChatRequest, Fault, Pace, Turn, cut, rate_limited, refusal, server_error
    from perdure.testing.workers import Kill, kill

_WHERE: Final = {
    "automatic": ("AutoModel",),
    "offline.checks": ("Checked", "check"),
    "cases.recording": ("Case", "read_case", "record", "write_case"),
    "cases.replaying": ("CaseDifferenceError", "replay"),
    "following": ("LocalRun",),
    "local": ("Local", "run_locally"),
    "offline.making": ("CannotMakeError",),
    "people": ("Person", "answer", "approve", "edit", "reject", "replace"),
    "scripted_model": ("ScriptedModel",),
    "offline.strategies": ("plans",),
    "toolbox": ("Execution",),
    "turns": ("ChatRequest", "Fault", "Pace", "Turn", "cut", "rate_limited", "refusal", "server_error"),
    "workers": ("Kill", "kill"),
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
