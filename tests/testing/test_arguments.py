"""The testing kit refuses an argument that it could not use, in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import ProtocolError, SettingsError
from perdure.testing import (
    AutoModel,
    Case,
    Fault,
    ScriptedModel,
    Turn,
    approve,
    check,
    cut,
    edit,
    gold_plan,
    kill,
    rate_limited,
    replace,
    server_error,
    write_case,
)


@tool
def order(fruit: str) -> str:
    """Order."""
    return fruit


AGENT = Agent("shop", tools=[order])
PLAN = [{"_tool": "order", "fruit": "plum"}]
WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (approve, ("order",), {"after": True}, "approve: after must be "),
    (approve, ("order",), {"after": None}, "approve: after must be "),
    (approve, ("order",), {"after": -5}, "-5 is not a duration: give 0 or more seconds"),
    (approve, ("order",), {"after": math.nan}, "nan is not a duration"),
    (approve, (5,), {}, "approve: tool must be str or None, not 5"),
    (approve, (order,), {}, "approve: tool must be str or None, not <function order"),
    (approve, ("order",), {"roles": "finance"}, "approve: roles must be a list of str, not 'finance'"),
    (edit, ("order", "x"), {}, "edit: params must be a dict or None, not 'x'"),
    (replace, ("order", None), {}, "replace: call must be a dict, not None"),
    (kill, ("order",), {"call": 0}, "call must be 1 or more, not 0"),
    (kill, ("order",), {"call": "2"}, "kill: call must be int, not '2'"),
    (cut, ("text", "x"), {}, "cut: after must be int, not 'x'"),
    (rate_limited, ("x",), {}, "rate_limited: retry_after must be float, not 'x'"),
    (server_error, (200,), {}, "status 200 is not an error: give 400 or more"),
    (Fault, ("x",), {}, "kind must be cut, hang or silent, not 'x'"),
    (Turn, (), {"status": "x"}, "Turn: status must be int, not 'x'"),
    (ScriptedModel, ("text",), {}, "ScriptedModel: script must be "),
    (ScriptedModel, ({"output": "x"},), {}, "ScriptedModel: script must be "),
    (ScriptedModel, ((each for each in PLAN),), {}, "ScriptedModel: script must be "),
    (ScriptedModel, (None,), {}, "ScriptedModel: script must be "),
    (AutoModel, (), {"skip": "order"}, "AutoModel: skip must be a list of str, not 'order'"),
    (gold_plan, (None,), {}, "gold_plan: calls must be a list"),
    (check, (None, PLAN), {}, "check: agent must be "),
    (check, (AGENT, PLAN), {"tools": "nomod"}, "check: tools must be a list"),
    (check, (AGENT, PLAN), {"durations": {"ordr": 3}}, 'durations: "ordr" is not a known tool; did you mean "order"'),
    (check, (AGENT, PLAN), {"durations": {"order": -3}}, "durations: order must have 0 or more seconds, not -3"),
]


@pytest.mark.parametrize(("function", "given", "named", "words"), WRONG)
def test_an_argument_that_cannot_be_used_is_one_line(
    function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any], words: str
) -> None:
    with pytest.raises((ProtocolError, ValueError)) as found:
        function(*given, **named)
    assert str(found.value).startswith(words)


def test_a_case_is_written_only_if_it_is_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^the value is not a case: write one with 'perdure record ID'$"):
        write_case(Case(), tmp_path / "case.json")
    assert list(tmp_path.iterdir()) == []
