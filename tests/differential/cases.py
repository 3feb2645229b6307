"""Random cases for `test_differential.py`: a state, an input, and a list of calls with everything that goes wrong in one."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

PATHS = ("a", "a", "b", "c", "d", "a.x", "a.x.y", "b.x", "l", "l[0]", "l[1]", 'c["odd key"]')
VALUES: tuple[Any, ...] = (
    0,
    1,
    "text",
    "†state.a",
    None,
    {"x": 1},
    {"x": {"y": 2}, "z": 3},
    {"odd key": 4},
    [1],
    [1, [2]],
    {},
)
TAKES = {"p": "any", "q": "any", "r": "any", "n": "integer"}


@dataclass
class Case:
    """One Request. Each call has a tool of its own, `t0`, `t1`, …, in which it is said how it ends."""

    seed: int
    state: dict[str, Any]
    input: dict[str, Any]
    calls: list[dict[str, Any]]
    ends: dict[str, tuple[str, Any]]
    """Tool → how it ends: `returns` a value, `echo`es a parameter, has `failed`, takes the other `branch` with a value."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Tool → of the calls that run, that of the lowest ends first."""

    parallel: int | None = None
    step: bool = False
    groups: dict[str, str] = field(default_factory=dict)
    """Tool → the exclusive group that it is of."""

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        return {name: {"takes": TAKES} for name in self.ends}

    def tool(self, index: int) -> str:
        return str(self.calls[index].get("_tool"))

    def rank(self, index: int) -> int:
        return self.ranks[self.tool(index)]

    def outcome(self, index: int, params: dict[str, Any]) -> tuple[str, Any]:
        """`returns`, `failed` or `branch`, and the value."""
        how, value = self.ends[self.tool(index)]
        if how == "echo":
            return "returns", params.get(value)
        if how == "failed":
            return "failed", {"code": "boom", "message": self.tool(index)}
        return how, value


def make_case(seed: int, *, most: int = 9, order: bool | None = None) -> Case:
    """The case of a seed. Every other one, or where `order` says so, has order without data, limits and steps (R5.10 to R5.12)."""
    case = _make_plain(seed, most)
    return _ordered(case) if (seed % 2 == 1 if order is None else order) else case


def _make_plain(seed: int, most: int) -> Case:
    chance = random.Random(seed)
    state: dict[str, Any] = {}
    for name, values in (
        ("a", ({"x": {"y": 1}}, {"x": 5}, 7)),
        ("b", ({"x": "b"}, {})),
        ("c", ({"odd key": 1},)),
        ("l", ([1, 2], [])),
    ):
        if chance.random() < 0.4:
            state[name] = chance.choice(values)
    calls = [_call(chance, index) for index in range(chance.randint(1, most))]
    case = Case(seed, state, {"n": chance.choice([1, "x"]), "o": {"k": [0]}}, calls, {})
    ranks = list(range(len(calls)))
    chance.shuffle(ranks)
    for index, call in enumerate(calls):
        name = f"t{index}"
        ways = ["returns"] * 5 + ["failed"] * 2 + ["echo"] * ("p" in call)
        if "||" in str(call.get("_outputPath")):
            ways += ["branch"] * 4
        how = chance.choice(ways)
        case.ends[name] = (how, "p" if how == "echo" else chance.choice(VALUES))
        case.ranks[name] = ranks[index]
    return case


def _ordered(case: Case) -> Case:
    chance = random.Random(f"order {case.seed}")
    for index, call in enumerate(case.calls):
        if chance.random() < 0.4:
            written = " ".join(str(each.get("_outputPath", "")) for each in case.calls[:index])
            near = [path for path in PATHS if f"†state.{path}" in written.split()]
            after = [_after_item(chance, index, len(case.calls), near) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
            ended = random.Random(f"ended {case.seed} {index}")
            after = [f"ended {item}" if isinstance(item, str) and ended.random() < 0.3 else item for item in after]
            call["_after"] = after[0] if len(after) == 1 and chance.random() < 0.5 else after
        if chance.random() < 0.25:
            case.groups[f"t{index}"] = chance.choice(["door", "door", "window"])
    case.parallel = chance.choice([None, None, 1, 2, 3])
    case.step = chance.random() < 0.25
    return case


def _after_item(chance: random.Random, index: int, count: int, near: list[str]) -> Any:
    """Mostly what stands before the call of this index, so that not every second case is a ring."""
    if chance.random() < 0.04:
        return chance.choice(
            ["0.1", "2.0", f"1.{count}", f"1.{index}", "†input.n", "text {†state.a}", "†state.a ||", 3]
        )
    if chance.random() < 0.4:
        return f"1.{chance.randrange(index if index and chance.random() < 0.8 else count)}"
    one, two = (f"†state.{chance.choice(near if near and chance.random() < 0.8 else PATHS)}" for _ in range(2))
    return chance.choice(["{0}"] * 4 + ["{0} || {1}", "{0} && {1}"]).format(one, two)


def _call(chance: random.Random, index: int) -> dict[str, Any]:
    call: dict[str, Any] = {"_tool": f"t{index}" if chance.random() < 0.94 else "unknown"}
    for name in chance.sample(["p", "q", "r"], chance.choice([0, 1, 1, 2])):
        call[name] = _value(chance)
    if chance.random() < 0.06:
        call["n"] = chance.choice([1, "one", "†input.n", "†state.a.x"])
    if chance.random() < 0.02:
        call["surprise"] = 1
    if chance.random() < 0.8:
        call["_outputPath"] = _output_path(chance)
        if chance.random() < 0.45:
            call["_outputMethod"] = chance.choice(["push", "push", "concat", "merge", "assign", "set", "nope"])
    return call


def _output_path(chance: random.Random) -> str:
    first, second, third = (f"†state.{chance.choice(PATHS)}" for _ in range(3))
    form = chance.choice(
        ["{0}"] * 6 + ["{0} || {1}"] * 4 + ["{0} && {1}"] * 2 + ["{0} && {1} || {2}", "{0} || {1} || {2}"]
    )
    spoiled = " &&" if chance.random() < 0.02 else ""
    return str(form.format(first, second, third)) + spoiled


def _reference(chance: random.Random) -> str:
    if chance.random() < 0.15:
        return chance.choice(["†input.n", "†input.o.k[0]", "†input.nope", "†nope.x"])
    return f"†state.{chance.choice(PATHS)}"


def _value(chance: random.Random) -> Any:
    one, two, three = (_reference(chance) for _ in range(3))
    form = chance.choice(
        ["{0}"] * 8
        + ["{0} || {1}", "{0} && {1}", "({0} || {1}) && {2}", "{0} || {1} && {2}"]
        + ["text {{{0}}} and {{({1} || {2})}}", "{{ {0} }}", "††state.a {{††b}}", "plain"]
        + ["†state."] * (chance.random() < 0.1)
    )
    text = form.format(one, two, three)
    return chance.choice([text, text, text, [text, 1], {"deep": {"er": text}}])


def assigns_again(case: Case) -> bool:
    """Whether two calls of a case write to one name of the state."""
    names = [
        {
            re.split(r"[.\[]", path.strip().removeprefix("†state."))[0]
            for path in re.split(r"&&|\|\|", call["_outputPath"])
        }
        for call in case.calls
        if "_outputPath" in call
    ]
    return sum(map(len, names)) > len(set().union(*names))


NAMES = {"a": "alpha", "b": "beta", "c": "gamma", "d": "delta", "l": "list"}


def rename(value: Any) -> Any:
    """The value with other names for the state's keys in every reference."""
    if isinstance(value, dict):
        return {key: rename(child) for key, child in value.items()}
    if isinstance(value, list):
        return [rename(child) for child in value]
    return (
        re.sub(r"†state\.(\w+)", lambda match: f"†state.{NAMES[match[1]]}", value) if isinstance(value, str) else value
    )


def renamed(case: Case) -> Case:
    """The same with other names for the state's keys."""
    ends = {tool: (how, rename(value)) for tool, (how, value) in case.ends.items()}
    state = {NAMES[key]: value for key, value in case.state.items()}
    return replace(case, state=state, calls=rename(case.calls), ends=ends)
