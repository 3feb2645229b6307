"""An argument of a wrong type is one clear line, by the annotation of its parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import pytest
from pydantic import BaseModel

from perdure import Evaluation, Perdure, Run, Schedule, Selection, Session
from perdure.errors import ProtocolError
from perdure.values.arguments import _types, check_arguments
from perdure.values.json import Json, JsonObject

T = TypeVar("T")


class Options(TypedDict, total=False):
    ask: str


class Model(BaseModel):
    euros: float


@check_arguments
class Desk:
    def __init__(self, name: str = "desk") -> None:
        self.name = name

    def take(
        self,
        text: str | None = None,
        *names: str,
        count: int = 1,
        seconds: float = 1.0,
        dry_run: bool = False,
        roles: Iterable[str] = (),
        endorse: bool | Sequence[str] = False,
        bounds: JsonObject | None = None,
        results: Mapping[str, Json] | None = None,
        policy: Options | None = None,
        mode: Literal["steer", "queue"] | None = None,
        before: datetime | None = None,
        paths: Iterable[str | Path] = (),
        value: Json = None,
        input: object = None,
        on_run: Callable[[str], None] | None = None,
        **more: int,
    ) -> str:
        del names, count, seconds, dry_run, roles, endorse, bounds, results, policy, mode, before, paths, value, input
        del on_run, more
        return text or self.name

    async def wait(self, timeout: float | None = None) -> float:
        return timeout or 0.0

    @classmethod
    def read(cls, path: str | Path) -> str:
        return str(path)

    def _own(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"text": "a"},
        {"count": 3, "seconds": 3, "dry_run": True},
        {"roles": ["finance"]},
        {"roles": {"finance"}},
        {"roles": (each for each in ("finance",))},
        {"endorse": True},
        {"endorse": ("euros",)},
        {"bounds": {}, "results": {"1.0": 5}, "policy": {"ask": "always"}},
        {"mode": "steer", "before": datetime(2030, 1, 1), "paths": ["a", Path("b")]},
        {"value": {"a": [1]}, "input": Model(euros=1), "on_run": print},
        {"more": 5, "others": "x"},
    ],
)
def test_what_the_annotation_accepts_is_passed_on(right: dict[str, Any]) -> None:
    assert Desk("bob").take(**right) == right.get("text", "bob")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"text": 5}, "text must be str or None, not 5"),
        ({"count": "3"}, "count must be int, not '3'"),
        ({"count": True}, "count must be int, not True"),
        ({"seconds": timedelta(hours=1)}, "seconds must be float, not datetime.timedelta(seconds=3600)"),
        ({"dry_run": "no"}, "dry_run must be bool, not 'no'"),
        ({"roles": "finance"}, "roles must be a list of str, not 'finance'"),
        ({"roles": [5]}, "roles must be a list of str, not [5]"),
        ({"roles": Model(euros=1)}, "roles must be a list of str, not Model(euros=1.0)"),
        ({"endorse": "euros"}, "endorse must be bool or a list of str, not 'euros'"),
        ({"bounds": "euros"}, "bounds must be a dict or None, not 'euros'"),
        ({"results": ["1.0"]}, "results must be a dict or None, not ['1.0']"),
        ({"policy": "always"}, "policy must be a dict or None, not 'always'"),
        ({"mode": 5}, "mode must be str or None, not 5"),
        ({"before": "2030-01-01"}, "before must be datetime or None, not '2030-01-01'"),
        ({"paths": "a"}, "paths must be a list, not 'a'"),
        ({"on_run": "print"}, "on_run must be Callable or None, not 'print'"),
    ],
)
def test_another_type_is_one_line(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        Desk().take(**wrong)
    assert str(raised.value) == f"Desk.take: {words}"


async def test_constructors_class_methods_and_coroutines_are_checked_and_private_methods_are_not() -> None:
    wrong: Any = 5
    with pytest.raises(ProtocolError, match=r"^Desk: name must be str, not 5$"):
        Desk(wrong)
    with pytest.raises(ProtocolError, match=r"^Desk\.read: path must be str or Path, not 5$"):
        Desk.read(wrong)
    waiting = Desk().wait(timeout="soon")  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"^Desk\.wait: timeout must be float or None, not 'soon'$"):
        await waiting
    assert inspect.iscoroutinefunction(Desk.wait)
    assert await Desk().wait(2) == 2
    assert Desk()._own(wrong) is wrong
    with pytest.raises(TypeError, match="unexpected keyword argument 'nam'"):
        Desk(nam="bob")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Desk.read()  # type: ignore[call-arg]


def test_every_parameter_of_the_python_api_has_a_type_that_is_known() -> None:
    """A type that cannot be resolved is not checked. `Dataset` is of an optional package; `evaluate` checks it itself."""
    unknown = [
        f"{kind.__name__}.{name}: {parameter.name}"
        for kind in (Evaluation, Perdure, Run, Schedule, Selection, Session)
        for name, method in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(method)
        for parameter in inspect.signature(method).parameters.values()
        if parameter.name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.name not in dict(_types(inspect.unwrap(method)))
    ]
    assert unknown == ["Perdure.evaluate: dataset"]
