"""Exceptions to an approval policy, as a tool or a policy says them (R7.1)."""

from __future__ import annotations

from typing import Any

from perdure.values.jsons import shorten
from perdure.values.schemas import Schema


def check_rule(rule: Any) -> str | None:
    """What is wrong with an exception to an approval policy, if anything is (R7.1)."""
    if rule in ("never", "always"):
        return None
    if not isinstance(rule, dict) or set(rule) != {"when"} or not isinstance(rule["when"], dict | bool):
        return (
            f'{shorten(rule, 60)} is no rule: expected "never", "always" or {{"when": <JSON Schema of the parameters>}}'
        )
    problem = None if isinstance(rule["when"], bool) else Schema(rule["when"]).problem
    return f"the condition is no JSON Schema: {problem}" if problem else None
