"""Formulas: what is read, what it gives, and that it never runs past its bounds (R16.3)."""

from __future__ import annotations

import ast
import contextlib
import gc
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.errors import FormulaError, TooLargeError
from perdure.plan import Plan, simulate
from perdure.runs._output import resolve_output
from perdure.values._formula_functions import EvaluationSteps
from perdure.values.formulas import parse_expression, parse_formula, parse_statements
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.references import MISSING, Path, get
from perdure.values.sizes import Sizes, TooManyBytesError
from perdure.values.state import State
from perdure.values.templates import TextBudget, parse_template
from tests.cpu import takes_less
from tests.soak import times

DATA: dict[str, Any] = {
    "state": {
        "l": {"name": "w", "cpu": [91, 97, 93], "items": 3},
        "hosts": [{"n": "a", "cpu": 99}, {"n": "b", "cpu": 10.5}],
        "text": "Hello, world",
        "none": None,
        "odd key": 7,
    },
    "input": {"limit": 90, "flags": [True, False]},
}


def found(values: Json, path: Path) -> Any:
    return get(values, path)


def value(text: str, data: Any = DATA, steps: EvaluationSteps | None = None) -> Any:
    formula = parse_formula(text)
    values: list[Any] = [get(data[reference.kind], reference.path) for reference in formula.references]
    assert MISSING not in [found for found in values if not isinstance(found, list | dict)]
    return formula.evaluate(values, steps)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f'{state.l.name}: {max(state.l.cpu)} %'", "w: 97 %"),
        ("max(†state.l.cpu) > 95 and not state.none", True),
        ("sum(x for x in state.l.cpu if x > 92) + len(state.l.cpu)", 193),
        ("[h.n for h in state.hosts if h.cpu > input.limit]", ["a"]),
        ("{h.n: h.cpu * 2 for h in state.hosts}", {"a": 198, "b": 21.0}),
        ("sorted(state.hosts, key=lambda h: h.cpu)[0].n", "b"),
        ("sorted(state.l.cpu, reverse=True)", [97, 93, 91]),
        ("max(state.hosts, key=lambda h: h['cpu'])", {"n": "a", "cpu": 99}),
        ("min([], default=0) + round(2.567, 1) * 10 + 7 // 2 - 7 % 4", 26.0),
        ("state.hosts[-1].n + state.text[:5].lower()", "bhello"),
        ('†state["odd key"] + state.l.items', 10),
        ("'yes' if any(input.flags) and all(input.flags) else 'no'", "no"),
        ("state.l.cpu[1:] + [x * 2 for x in (1, 2)]", [97, 93, 2, 4]),
        ("[[x, y] for x in range(2) for y in range(x + 1)]", [[0, 0], [1, 0], [1, 1]]),
        ("[f'{at}{h.n}' for at, h in enumerate(state.hosts)]", ["0a", "1b"]),
        ("{**state.l, 'cpu': [*state.l.cpu, 1]}", {"name": "w", "cpu": [91, 97, 93, 1], "items": 3}),
        ("'w' in state.l.name and 'cpu' in state.l and 5 not in state.l.cpu", True),
        ("state.l.get('gpu', 'none')", "none"),
        ("', '.join(h.n for h in state.hosts)", "a, b"),
        ("f'{10 / 4:.2f} {1234567:,} {state.text!r:>20}'", "2.50 1,234,567       'Hello, world'"),
        ("str(1.0) + str(None) + str(int('4') + float('0.5'))", "1.0None4.5"),
        ("true and not false and null is None", True),
        ("f'{†state.l.name} †state.l.name' + '†x'", "w †state.l.name†x"),
        ("2 ** 10 + 2 ** -1", 1024.5),
        ("1 < 2 < 3 != 4", True),
        ("[x for x in [1, 2] for x in [x, 10]]", [1, 10, 2, 10]),
    ],
)
def test_r16_3_what_a_formula_gives(text: str, expected: Any) -> None:
    assert value(text) == expected
    assert type(value(text)) is type(expected)


def test_r16_3_its_references_are_those_of_the_plan() -> None:
    formula = parse_formula(
        "[h.cpu for h in †state.hosts if h.cpu > input.limit] + state.l.cpu[0:1] + [state.hosts[0].n]"
    )
    assert list(map(str, formula.references)) == ["†state.hosts", "†input.limit", "†state.l.cpu", "†state.hosts[0].n"]


@pytest.mark.parametrize(
    ("text", "is_"),
    [
        ("set([3, 1, 3, 2])", [1, 2, 3]),
        ("{x for x in ['b', 'a', 'b']}", ["a", "b"]),
        ("{2, 1} == set([1, 2, 1])", True),
        ("set(['a', None, 1, 1.0])", [1, "a", None]),
        ("dict(zip(['a', 'b'], [1, 2]))", {"a": 1, "b": 2}),
        ("next((x for x in [1, 2] if x > 1), None)", 2),
        ("next([], 'none')", "none"),
        ("reversed([1, 2])", [2, 1]),
    ],
)
def test_r16_3_a_set_is_a_list_without_duplicates_in_one_order(text: str, is_: Any) -> None:
    assert value(text) == is_


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("1 +", (1, 4), "the expression is not valid"),
        ("", (1, 1), "the expression is not valid"),
        ("a := 3", (1, 3), "the expression is not valid"),
        ("1 +\n2", (1, 4), "the expression is not valid"),
        ("(1 +\n (x := 2))", (2, 3), "nothing is assigned"),
        ("foo(state.l)", (1, 1), "no function 'foo'"),
        ("maxx(state.l)", (1, 1), "did you mean 'max'"),
        ("__import__('os')", (1, 1), "no function"),
        ("state.l.cpu.append(1)", (1, 1), "no method 'append'"),
        ("state.l.cpu.lower()", (1, 1), "a list has no method 'lower'; it has: count, index"),
        ("(lambda: 1)()", (1, 1), "only functions"),
        ("sorted([1], key=lambda a, b: a)", (1, 17), "lambda item"),
        ("[state for state in [1]]", (1, 12), "a meaning of its own"),
        ("[x async for x in state.l]", (1, 1), "async"),
        ("~1", (1, 1), "write not"),
        ("1 << 2", (1, 1), "of operators there are"),
        ("1 is 1", (1, 6), "compared with =="),
        ("len", (1, 1), "write len(…)"),
        ("b'x'", (1, 1), "is not JSON"),
        ("1e999", (1, 1), "64-bit float"),
        ("1 + 'a'", (1, 1), "a number + a text is not defined; write str(…)"),
        ("2 + [1, 2][5]", (1, 5), "there is no [5]: it has 2 items"),
        ("[h.gpu for h in state.hosts]", (1, 2), "there is no 'gpu'; the object has: n, cpu"),
        ("1 / 0", (1, 1), "division by zero"),
        ("'5' * 2.0", (1, 1), "not defined"),
        ("sorted([1, 'a'])", (1, 1), "cannot be compared"),
        ("1 < 'a'", (1, 1), "cannot be compared"),
        ("max([])", (1, 1), "default="),
        ("int('4x')", (1, 1), "'4x' is not a whole number"),
        ("float('nan')", (1, 1), "64-bit float"),
        ("{1: 2}", (1, 1), "keys of an object are texts"),
        ("sum(['a'])", (1, 1), "sum adds numbers"),
        ("[a for a, b in [[1]]]", (1, 1), "2 names"),
        ("len(1, 2)", (1, 1), "does not take these arguments"),
        ("print(*state.l)", (1, 1), "one by one"),
    ],
)
def test_r16_3_a_mistake_says_what_where_and_what_would_be_right(text: str, where: tuple[int, int], said: str) -> None:
    with pytest.raises(FormulaError) as caught:
        value(text)
    assert said in caught.value.message
    assert (caught.value.line, caught.value.column) == where


@pytest.mark.parametrize(
    "text",
    [
        "9 ** 9 ** 9",
        "(10 ** 3999) ** 2",
        "'a' * 10 ** 9",
        "[0] * 10 ** 9",
        "[x for x in range(10 ** 12)]",
        "len(range(10 ** 30))",
        "sum(1 for a in range(1000) for b in range(1000))",
        "f'{1.5:>999999}'",
        "f'{1:.9999999}'",
        "round(1, -10 ** 9)",
        "'x'.join(['y' * 1000] * 10 ** 5)",
        "('a' * 10000).replace('a', 'b' * 10000)",
        "('a' * 500000).strip('b' * 500000 + 'a')",
        "sorted([[0] * 5000] * 5000)",
        "[[0] * 5000] * 5000 == [[0] * 5000] * 5000",
        "str([[0] * 5000] * 5000)",
        "-" * 1990 + "1",
        "(" * 900 + "1" + ")" * 900,
        "1" + " + 1" * 400,
        "state.l" + "[0]" * 300,
        "'" + "x" * 2000 + "'",
    ],
)
def test_r16_3_nothing_runs_past_its_bounds(text: str) -> None:
    with pytest.raises(FormulaError):
        value(text)


LONG = "x" * 100_000
NESTED = "[1]"
for _ in range(32):
    NESTED = f"[[x, x] for x in [{NESTED}]][0]"


@pytest.mark.parametrize(
    "text",
    [
        "'x'.replace('a', 'b', 10 ** 30)",
        "'a b'.split(' ', 10 ** 30)",
        "f'{state.t:.2f}'",
        "f'{1.5:d}'",
        "f'{5:k}'",
        "f'{55296:c}'",
        "f'{state.t:=9}'",
        "state.l[1:2, 3]",
        "[1][1:2,]",
        r"'\ud800'",
        r"f'{1:\ud800>5}'",
        r"state['\ud800']",
        "str(1)" + ".a" * 290,
        f"[1][{NESTED}]",
        f"{{}}[{NESTED}]",
    ],
)
def test_r18_6_what_python_cannot_do_is_a_formulas_error(text: str) -> None:
    """Each of these raised something else in a workflow task, or gave what nobody can write, or never came to an end."""
    with pytest.raises(FormulaError):
        parse_formula(text).evaluate([{"t": "abc", "l": [1]}] * 9)


@pytest.mark.parametrize(
    "text",
    [
        "state.t.split('z')",
        "''.strip(state.t)",
        "state.o[state.t + 'x'[1:]]",
        "state.o.get(state.t + 'x'[1:])",
        "{state.t: i}",
        "state.t in state.l",
        "2 ** 13000 * (i + 2 ** 100)",
        "(i + 2 ** 13000) // 2 ** 6000",
        "sum([i, 2 ** 13000])",
        "f'{i + 2 ** 13000:d}'",
    ],
)
def test_r18_5_each_part_of_a_formula_is_paid_for(text: str) -> None:
    """Time goes by steps: a million of them may take 0.5 s, on a machine that does something else as well 2."""
    formula = parse_formula(f"len([0 for i in range(16000) if [{text}]])")
    values: JsonObject = {"t": LONG, "o": {LONG: 1}, "l": [f"{LONG[1:]}a", f"{LONG[1:]}b"]}

    def evaluate() -> None:
        with contextlib.suppress(FormulaError):
            formula.evaluate([found(values, each.path) for each in formula.references], EvaluationSteps())

    assert takes_less(evaluate, 50)


def test_r18_5_the_formulas_of_one_call_share_their_steps() -> None:
    """1,000 formulas in the parameters of one call took 20 s of one task."""
    template, wrong = parse_template([{"_expr": "len([i for i in range(40000)])"}] * 10)
    assert wrong == []
    with pytest.raises(FormulaError, match="formulas of one call take more than 200,000 steps"):
        template.resolve(lambda _: None)


def test_r18_1_what_a_formula_gives_is_measured() -> None:
    texts = TextBudget(total=4_000_000)
    doubled, _ = parse_template({"_expr": NESTED})
    with pytest.raises(TooLargeError, match=r"gives a value of more than 1,900,000 bytes, which is the limit"):
        doubled.resolve(lambda _: None, texts)
    made, _ = parse_template({"_expr": "'x' * 1000000"})
    given, _ = parse_template({"_expr": "state.t if state.t else ''"})
    for _ in range(10):  # what is only passed on is no copy
        given.resolve(lambda _: "x" * 1_000_000, texts)
    for _ in range(3):
        made.resolve(lambda _: None, texts)
    with pytest.raises(TooLargeError, match="together"):
        made.resolve(lambda _: None, texts)


pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::hypothesis.errors.HypothesisWarning")
LEAVES = st.one_of(
    st.sampled_from(
        ["state['n']", "state['list']", "state['text']", "state['object']", "True", "None", "[]", "''", "0"]
    ),
    st.integers(-20, 20).map(repr),
    st.floats(-9, 9, allow_nan=False).map(repr),
    st.sampled_from(["'a'", "'b c'", "x", "y"]),
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def of(form: str, *parts: Any) -> st.SearchStrategy[str]:
        return st.tuples(*(parts or [inner] * form.count("{}"))).map(lambda given: form.format(*given))

    operators = st.sampled_from(
        ["+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
    )
    functions = st.sampled_from(
        [
            "len",
            "sum",
            "min",
            "max",
            "sorted",
            "any",
            "all",
            "round",
            "str",
            "int",
            "float",
            "bool",
            "abs",
            "list",
            "range",
        ]
    )
    return st.one_of(
        of("({} {} {})", inner, operators, inner),
        of("(not {})"),
        of("(-{})"),
        of("({} if {} else {})"),
        of("{}[{}]"),
        of("{}[{}:{}]"),
        of("[{}, {}]"),
        of("{{'k': {}}}"),
        of("{}({})", functions, inner),
        of("[{} for x in {}]"),
        of("[{} for x in {} if {}]"),
        of("sum({} for y in {})"),
        of("sorted({}, key=lambda x: {})"),
        of("max({}, {})"),
        of("f'a{{{}}}b'", inner.filter(lambda text: not set(text) & set("'\\{}"))),
    )


FORMULAS = st.recursive(LEAVES, _grown, max_leaves=8)
SMALL: JsonObject = {"n": 3, "list": [3, 1, 2], "text": "abc", "object": {"a": 1, "b": [1, 2]}}


def _carried(value: Any) -> bool:
    """Whether it is JSON as it stands: no tuple, range or dict with other keys."""
    if isinstance(value, list):
        return all(map(_carried, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _carried(item) for key, item in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)


class _NoRange(list[int]):
    """`range` as formulas have it: a list."""

    def __new__(cls, *bounds: Any) -> Any:
        return list(range(*bounds))


def assert_agrees_with_python(text: str) -> None:
    try:
        expected = eval(text, {"state": SMALL, "range": _NoRange})
    except Exception:
        expected = MISSING
    try:
        formula = parse_formula(text)
        known: dict[str, Json] = {"state": SMALL}
        values = [found(known, (each.kind, *each.path)) for each in formula.references]
        if MISSING in values:
            return  # such a call does not start; `x` outside of its comprehension is a reference of another kind
        got = formula.evaluate(values)
    except FormulaError:
        return
    assert _carried(got)
    if expected is not MISSING and _carried(expected):
        assert got == expected
        assert type(got) is type(expected)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(text=FORMULAS)
def test_r16_3_a_formula_agrees_with_python(text: str) -> None:
    assert_agrees_with_python(text)


@settings(max_examples=200)
@given(text=FORMULAS)
def test_r16_3_where_python_gives_json_a_formula_does(text: str) -> None:
    """But for what formulas refuse on purpose: a sum of what are no numbers, a text of many by `%`, keys that are no texts."""
    if (
        "%" in text
        or "sum" in text
        or "x" in {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    ):
        return
    try:
        expected = eval(text, {"state": SMALL, "range": _NoRange})
    except Exception:
        return
    if _carried(expected) and "y" not in text:
        formula = parse_formula(text)
        values = [found(SMALL, each.path) for each in formula.references]
        if not any(value is MISSING for value in values):  # a reference does not index a text (R3.2), Python does
            assert formula.evaluate(values) == expected


WRITTEN = st.lists(
    st.sampled_from(
        [*"()[]{}:,.+-*/%<>=!'\"†&|^~@ \n0123456789", "state", "x", "for", "in", "if", "else", "lambda", "and", "not"]
    )
    | st.sampled_from(
        ["f'{", "}'", "len(", "range(", "sorted(", "10**9", ".lower()", "[0]", "**", "//", "is", "None", "*"]
    ),
    max_size=30,
).map("".join)


def assert_within_bounds(text: str) -> None:
    try:
        formula = parse_formula(text)
        steps = EvaluationSteps()
        got = formula.evaluate([SMALL] * len(formula.references), steps)
    except FormulaError:
        return
    assert _carried(got)
    assert steps.left >= 0


@settings(max_examples=500)
@given(text=WRITTEN | FORMULAS)
def test_r16_3_whatever_is_written_is_a_value_or_an_error(text: str) -> None:
    assert_within_bounds(text)


@pytest.mark.soak
@settings(max_examples=times(20_000), suppress_health_check=list(HealthCheck), deadline=None)
@given(text=WRITTEN | FORMULAS)
def test_r16_3_whatever_is_written_many_thousand_times(text: str) -> None:
    assert_within_bounds(text)


SHARED = '[[""]*170]*190000'
"""A list of 190,000 places that are one list of 511 bytes: each workflow task took 15 s to measure it, again and again."""


def test_r18_9_a_value_of_shared_parts_is_refused_wherever_it_stands() -> None:
    formula: JsonObject = {"_expr": SHARED}
    plan = Plan(1, tools={}, state=State())
    plan.extend(
        [
            {"_tool": "_let", "value": formula, "_outputPath": "†state.a"},
            {"_tool": "_for", "_each": formula, "_body": [{"_tool": "_let", "value": 1}]},
            {"_tool": "_let", "value": 1, "_if": SHARED},
        ]
    )
    plan.close()
    assert plan.take_ready() == []
    dry = [Plan(1, tools={}, state=State(), dry_run=True) for _ in plan.calls[1:]]
    for each, call in zip(dry, plan.calls[1:], strict=True):
        simulate(each, [call.spec.raw])
    for call in (*plan.calls, *(each.calls[0] for each in dry)):
        assert call.state.error is not None
        assert call.state.error.code == "params_too_large"
        assert "gives a value of more than 1,900,000 bytes, which is the limit" in call.state.error.message
    made, wrong = resolve_output({"x": formula}, {}, TextBudget())
    assert made is None
    assert "more than 1,900,000 bytes" in wrong[0]


PARTS = st.recursive(
    st.sampled_from([None, True, 1, 2.5, "", "ä", "x" * 600, 10**30]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "ö", '"']), inner, max_size=3),
    max_leaves=8,
)


@given(parts=st.lists(PARTS, max_size=4), places=st.lists(st.integers(0, 3), max_size=12), known=st.booleans())
def test_r18_9_a_value_of_shared_parts_has_the_size_that_it_is_written_in(
    parts: list[Any], places: list[int], known: bool
) -> None:
    made: list[Json] = [[parts[place % len(parts)]] for place in places] if parts else []
    sizes = Sizes()
    if known:
        sizes.of(parts)
    written = len(dumps(made).encode())
    size, new, _ = sizes.of_composed(made, frozenset(map(id, parts)), written)
    assert size == sizes.of(made) == written
    assert 0 <= new <= size
    with pytest.raises(TooManyBytesError):
        Sizes().of_composed(made, frozenset(), written - 1)


@pytest.fixture
def parsed_meanwhile() -> Iterator[list[str]]:
    """Parse Python text during the next collections of garbage, as another thread may, once for each text of the list."""
    texts: list[str] = []

    def parse(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and texts:
            ast.parse(texts.pop())

    before = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(1)
    yield texts
    gc.set_threshold(*before)
    gc.callbacks.remove(parse)


@pytest.mark.parametrize("read", [parse_expression, parse_statements])
def test_r16_3_text_that_another_thread_parses_meanwhile_changes_nothing(
    read: Callable[[str], Any], parsed_meanwhile: list[str]
) -> None:
    parsed_meanwhile.extend(["1"] * 100)
    tree = read(f"[{','.join(['a + b'] * 60)}]")
    assert "a + b, a + b" in ast.unparse(tree)
    assert not parsed_meanwhile, "the text was not parsed while another was"
