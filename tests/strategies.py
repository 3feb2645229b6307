"""What hypothesis generates: JSON values, references, writes and plans."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from perdure.values.references import Reference
from perdure.values.state import METHODS, Write


def keys() -> st.SearchStrategy[str]:
    return st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)


def json_values() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | keys()
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys(), inner, max_size=4), max_leaves=12
    )


def references() -> st.SearchStrategy[Reference]:
    names = st.from_regex(r'[^\s.\[\](){}|&†"]+', fullmatch=True)
    parts = st.integers(min_value=0, max_value=10**8) | keys()
    return st.builds(Reference, names, st.lists(parts, max_size=5).map(lambda parts: tuple(parts)))


def paths() -> st.SearchStrategy[tuple[str | int, ...]]:
    parts: st.SearchStrategy[str | int] = st.sampled_from(["a", "b", "c", 0, 1])
    return st.lists(parts, min_size=1, max_size=3).map(lambda parts: tuple(parts))


def writes() -> st.SearchStrategy[Write]:
    values = st.one_of(
        st.integers(0, 9),
        st.just({}),
        st.just({"a": 1}),
        st.just({"a": {"b": 2}}),
        st.just([]),
        st.just([1, 2]),
        st.just("x"),
    )
    return st.builds(Write, path=paths(), value=values, method=st.sampled_from(METHODS))


@st.composite
def plans(draw: st.DrawFn, methods: tuple[str, ...] = ("set", "set", "set", "push", "merge")) -> list[dict[str, Any]]:
    """Calls of the tool `t` over a few paths: chains, joins, branches, cycles, dangling reads, several writers of a path."""
    path = st.sampled_from(["†state.a", "†state.b", "†state.c", "†state.a.x", "†state.b.x.y", "†state.d"])
    calls: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 12))):
        call: dict[str, Any] = {"_tool": "t"}
        for name in draw(st.lists(st.sampled_from(["p", "q"]), max_size=2, unique=True)):
            first, second = draw(path), draw(path)
            call[name] = draw(
                st.sampled_from([first, f"{first} || {second}", f"{first} && {second}", f"text {{{first}}}"])
            )
        if draw(st.booleans()):
            first, second = draw(path), draw(path)
            call["_outputPath"] = draw(st.sampled_from([first, f"{first} || {second}", f"{first} && {second}"]))
            call["_outputMethod"] = draw(st.sampled_from(methods))
        calls.append(call)
    return calls
