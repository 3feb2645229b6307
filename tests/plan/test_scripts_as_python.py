"""Random scripts do as plans what Python would do: names that rounds pass on, that branches assign, and that conditions guard (R5.14, R16.4)."""

from __future__ import annotations

import random
import re
from itertools import permutations
from typing import Any

import pytest

from perdure.models.dialects.common import Solution
from perdure.models.dialects.script import ScriptReader
from perdure.models.requests import ReaderVocabulary
from perdure.plan import Call, Plan, Returned
from perdure.tools.tool import resolve_tools
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.state import State, Write
from perdure.values.templates import parse_template
from tests.plan.test_programs_as_python import records

TOOLS: dict[str, list[str]] = {"f": ["x"], "g": ["x"], "p": ["x"]}
ROWS: Json = [{"n": 1, "ok": True, "s": "a"}, {"n": 0, "ok": False, "s": "b"}, {"n": 2, "ok": True, "s": "a"}]
ASSIGNED = re.compile(r"\b([abc]) :?= ")
NOT_OF_PYTHON = (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError, TimeoutError)


class World:
    """What the tools return: the same for the same parameters."""

    def __init__(self, seed: int) -> None:
        self.seed, self.made = seed, list[str]()

    def call(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        self.made.append(f"{tool} {dumps(given, sort_keys=True)}")
        if len(self.made) > 60:
            raise TimeoutError
        chance = random.Random(f"{self.seed} {self.made[-1]}")
        return {"n": chance.randrange(4), "ok": chance.random() < 0.5, "s": chance.choice(["a", "b", ""])}


class Writer:
    """A writer of scripts over few names, which it reads where a line before assigns them, whatever conditions decide."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.loops, self.items, self.known = chance, 0, list[str](), list[str]()

    def record(self) -> str:
        early = ["a", "b"] if self.loops and self.chance.random() < 0.1 else []
        return self.chance.choice([*self.known, *self.items, *early] or ["input.rows[0]"])

    def number(self) -> str:
        parts = (
            [f"{self.record()}.n"] * 3 + [f"w{n}" for n in range(1, self.loops + 1)] + [str(self.chance.randrange(3))]
        )
        return self.chance.choice(parts)

    def test(self, deep: int = 2) -> str:
        pick = self.chance.choice
        plain = [f"{self.record()}.ok", f"{self.number()} > {self.number()}", f"{self.record()}.n == {self.number()}"]
        if self.loops:
            plain += [f"w{self.loops} {pick(['==', '>', '<'])} {pick('0122')}"] * 4
        if not deep:
            return pick(plain)
        both = [f"{self.test(0)} {pick(['and', 'or'])} {self.test(deep - 1)}", f"not ({self.test(0)})"]
        calls = [f"f(x={self.number()}).ok", f"({pick('ab')} := g(x={self.number()})).ok"]
        joined = [f"{self.test(0)} {pick(['and', 'or'])} {each}" for each in calls]
        return pick([*plain, *plain, *both, *calls, *joined])

    def value(self) -> str:
        texts = [f"f\"{{{self.record()}.s if {self.test(0)} else 'no'}}\"", f"len({self.record()}.s)"]
        chosen = f"{self.number()} if {self.test(0)} else {self.number()}"
        return self.chance.choice([self.number(), self.number(), f"{self.number()} + {self.number()}", chosen, *texts])

    def call(self) -> str:
        return f"{self.chance.choice('fg')}(x={self.value()})"

    def lines(self, deep: int, pad: str = "") -> list[str]:
        return [line for _ in range(self.chance.randrange(1, 4)) for line in self.statement(deep, pad)]

    def statement(self, deep: int, pad: str) -> list[str]:
        lines = self.write(deep, pad)
        self.known += ASSIGNED.findall("\n".join(lines))
        return lines

    def write(self, deep: int, pad: str) -> list[str]:
        pick = self.chance.choice
        name = pick("aabbc")
        kind = pick(
            ["call", "call", "choice", "effect", "if", "if", "while", "while", "for", "walrus"]
            if deep
            else ["call", "choice", "effect"]
        )
        if kind == "call":
            return [f"{pad}{name} = {self.call()}"]
        if kind == "choice":
            either = pick(
                [
                    f"{self.call()} if {self.test(1)} else {self.call()}",
                    f"{self.call()} if {self.test(0)} else {self.record()}",
                ]
            )
            return [f"{pad}{name} = {either}"]
        if kind == "effect":
            return [f"{pad}p(x={self.value()})"]
        if kind == "walrus":
            return [f"{pad}if {self.test(0)} and ({name} := {self.call()}).ok:", f"{pad}    p(x={name}.n)"]
        if kind == "if":
            made = [f"{pad}if {self.test()}:", *self.lines(deep - 1, f"{pad}    ")]
            if self.chance.random() < 0.3:
                made += [f"{pad}elif {self.test()}:", *self.lines(deep - 1, f"{pad}    ")]
            return [*made, f"{pad}else:", *self.lines(deep - 1, f"{pad}    ")] if self.chance.random() < 0.5 else made
        if kind == "for":
            item = f"q{len(self.items)}"
            self.items.append(item)
            inside = [f"{pad}    p(x={self.value()})", f"{pad}    t.append({self.call()})"]
            if self.chance.random() < 0.5:
                inside = [f"{pad}    if {self.test(0)}:", *[f"    {line}" for line in inside]]
            self.items.pop()
            return [f"{pad}for {item} in input.rows:", *inside]
        self.loops += 1
        w = f"w{self.loops}"
        inside = self.lines(deep - 1, f"{pad}    ")
        more = pick(["", "", f" and {self.test(1)}", f" and ({w} == 0 or {self.record()}.ok)"])
        self.loops -= 1
        step = [f"{pad}    {w} += 1"]
        inside = pick(
            [[*inside, *step], [*step, *inside], [*step, f"{pad}    if {w} == 2:", f"{pad}        continue", *inside]]
        )
        return [f"{pad}{w} = 0", f"{pad}while {w} < 3{more}:", *inside]

    def script(self) -> str:
        lines = ["t = []", *[f"{name} = f(x={n})" for n, name in enumerate("ab") if self.chance.random() < 0.5]]
        self.known += ASSIGNED.findall("\n".join(lines))
        lines = [*lines, *(line for _ in range(self.chance.randrange(1, 4)) for line in self.statement(3, ""))]
        return "\n".join([*lines, f"output(t=t, n={self.number()})"])


def as_python(text: str, world: World) -> Any:
    outputs: list[Any] = []

    def tool(name: str) -> Any:
        return lambda x: records(world.call(name, {"x": x}))

    names = {name: tool(name) for name in TOOLS} | {"output": lambda **named: outputs.append(records(named))}
    exec(compile(text, "script", "exec"), names | {"input": records({"rows": ROWS})})
    return outputs[-1]


def read(text: str) -> tuple[Solution, list[JsonObject]]:
    """The solution of a script, and its refused lines."""
    reader = ScriptReader(ReaderVocabulary(names={name: name for name in TOOLS}, parameters=TOOLS, kinds=["input"]))
    reader.push(text)
    solution = reader.close("stop")
    return solution, [call for call in solution.calls if isinstance(call, dict) and "_syntax" in call]


def planned(text: str, state: JsonObject | None = None) -> tuple[Plan, Json] | None:
    """The script as a plan over a state, and its output; `None` if a line is refused."""
    solution, refused = read(text)
    return None if solution.problem or refused else (as_calls(solution, state), solution.output)


def as_calls(solution: Solution, state: JsonObject | None = None) -> Plan:
    definitions = {name: {"name": name, "properties": {key: {} for key in keys}} for name, keys in TOOLS.items()}
    before = State([Write(path=(), value=state or {})])
    plan = Plan(1, tools=resolve_tools(list(TOOLS), definitions), state=before, data={"input": {"rows": ROWS}})
    plan.extend(solution.calls)
    plan.close()
    return plan


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("('a† ' + 'b').replace('†', '')", "a b"),
        ("'†' in 'a†'", True),
        ("'† 1812 ' + 'x'", "† 1812 x"),
        ("'††state.w ' + 'x'", "†state.w x"),
        ("'{†state.w}' + 'x'", "0x"),
    ],
)
def test_a_dagger_that_names_no_value_is_a_character_of_its_text(written: str, value: Any) -> None:
    found = as_plan(f"w = 0\nv = {written}\noutput(v=v)\n", World(1), random.Random(1))
    assert found == ({"v": value}, [])


def test_a_loop_that_passes_on_a_name_waits_for_no_other_call() -> None:
    text = "a = p(x=0)\nw = 0\nwhile w < 3:\n    if w == 0:\n        tok = f(x=w)\n    else:\n        tok = f(x=tok.n)\n    w += 1\n"
    found = planned(text)
    assert found is not None
    plan, _ = found
    assert [call.spec.tool_name for call in plan.take_ready("now")] == ["p", "f"]


def as_plan(
    text: str, world: World, chance: random.Random, state: JsonObject | None = None
) -> tuple[Any, list[str]] | None:
    """The output of the script as a plan whose calls end in any order, and what went wrong; `None` if a line is refused."""
    found = planned(text, state)
    if found is None:
        return None
    plan, output = found
    running: list[Call] = []
    for task in range(3000):
        plan.checks.begin(task)
        plan.go_on()
        running += plan.take_ready("now")
        if running:
            call = running.pop(chance.randrange(len(running)))
            plan.home(call).end(call, Returned(world.call(call.spec.tool_name, call.inputs.params)), "then")
        elif plan.settled:
            break
    wrong = [f"{call.id} {call.state.error.message}" for call in plan.every_call() if call.state.error]
    return parse_template(output)[0].resolve(plan.read_at_end), wrong


def compare(seed: str) -> bool:
    """Compare one random script, and return whether Python runs it and the dialect reads it."""
    chance = random.Random(seed)
    text = Writer(chance).script()
    python, plan = World(1), World(1)
    try:
        wanted = as_python(text, python)
    except NOT_OF_PYTHON:
        return False
    if not {*re.findall(r"\b([abc])\.", text)} <= {*ASSIGNED.findall(text)}:
        return False  # Python does not reach the line, but the plan names the mistake
    found = as_plan(text, plan, chance)
    if found is not None:
        assert (text, found[1]) == (text, [])
        assert (text, sorted(plan.made)) == (text, sorted(python.made))
        assert (text, dumps(found[0], sort_keys=True)) == (text, dumps(wanted, sort_keys=True))
    return found is not None


def test_r5_14_random_scripts_do_as_plans_what_python_would_do() -> None:
    assert sum(compare(f"{seed}") for seed in range(300)) > 150


PASSED_ON = {
    "pages": """
        pages = []
        page = 0
        while page < 3:
            if page == 0:
                got = f(x=page)
            else:
                got = g(x=got.n)
            pages.append(got)
            page += 1
        output(pages=pages)""",
    "either": """
        got = f(x=0)
        tries = 0
        while tries < 3:
            p(x=tries)
            got = f(x=tries) if got.ok else g(x=got.s)
            p(x=got.n)
            tries += 1
        output(got=got)""",
    "token": """
        w = 0
        n = 0
        while w < 3:
            if w == 0:
                tok = f(x=w)
            n += tok.n
            q = g(x=[w, tok.n])
            w += 1
        output(n=n, q=q)""",
    "branch before": """
        if input.rows[0].n > 5:
            r = f(x=0)
        w = 0
        while w < 3:
            w += 1
            if w == 2:
                r = f(x=w)
                p(x=r.n)
        output(w=w)""",
    "walrus": """
        r = f(x=0)
        w = 0
        while w < 3:
            w += 1
            if w > 1 and (r := f(x=w)).ok:
                p(x=w)
            q = g(x=1).ok and (r := f(x=w)).ok
            p(x=r.n)
        output(w=w)""",
    "later": """
        w = 0
        while w == 0 or r.n > 5 or w < 3:
            x = r.n if w > 0 else 7
            r = f(x=x)
            w += 1
        output(x=x)""",
    "nested": """
        w = 0
        while w < 2:
            v = 0
            while v < 2:
                if w > 0 or v > 0:
                    r = g(x=[r.n, v])
                else:
                    r = f(x=v)
                v += 1
            w += 1
        output(r=r)""",
    "changed": """
        w = 0
        while w < 3:
            if w == 0:
                r = f(x=w)
            w += 1
            if w > 0:
                p(x=[w, r.n])
            if w == 2:
                r = g(x=r.n)
        output(r=r)""",
    "each": """
        t = []
        for q in input.rows:
            w = 0
            while w < 2:
                if w == 0:
                    tok = f(x=q.n)
                else:
                    tok = g(x=tok.n)
                w += 1
            t.append(tok)
        output(t=t)""",
}


GUARDED = [
    "p(x=d.n if r.ok else 0)",
    "n = d.n if r.ok else 0\np(x=n)",
    "if not r.ok or d.n > 9:\n    p(x=7)",
    "if r.ok and d.ok:\n    p(x=1)\nelse:\n    p(x=2)",
    "p(x=f\"{'yes ' + d.s if r.ok else 'no'}\")",
    "for q in input.rows:\n    p(x=[q.n, d.n if r.ok else q.s])",
    "if not (r.n > 9) and r.ok and f(x=d.n).ok:\n    p(x=1)",
    "p(x=1 + (d.n if r.ok else f(x=2).n))",
    "if r.ok and f(x=d.n).ok:\n    p(x=1)\nelse:\n    p(x=2)",
]


@pytest.mark.parametrize("read", GUARDED)
def test_r16_4_a_name_that_a_branch_left_out_is_missed_only_where_it_is_touched(read: str) -> None:
    text = f"r = f(x=1)\nif r.ok:\n    d = g(x=1)\n{read}\noutput(n=d.n if r.ok else 0)"
    for seed in range(6):
        python, plan = World(seed), World(seed)
        wanted = as_python(text, python)
        assert as_plan(text, plan, random.Random(seed)) == (wanted, [])
        assert sorted(plan.made) == sorted(python.made)


@pytest.mark.parametrize("case", PASSED_ON)
def test_r16_4_a_round_of_a_while_reads_what_python_would_read(case: str) -> None:
    lines = PASSED_ON[case].strip("\n").split("\n")
    text = "\n".join(line[8:] for line in lines)
    for seed in range(6):
        python, plan = World(seed), World(seed)
        wanted = as_python(text, python)
        assert as_plan(text, plan, random.Random(seed)) == (wanted, [])
        assert sorted(plan.made) == sorted(python.made)


EARLIER = {
    "first round": """
        w = 0
        while w < 3:
            if w > 0 or input.rows[0].ok:
                p(x=tok.n)
            tok = f(x=[w, tok.n if tok else 7])
            w += 1
        output(tok=tok)""",
    "left out": """
        w = 0
        while w < 2:
            if w > 0:
                tok = f(x=w)
            p(x=tok.n)
            w += 1
        output(tok=tok)""",
    "inner": """
        v = 0
        while v < 2:
            p(x=tok.n)
            w = 0
            while w < 2:
                if w > 0 or v > 0:
                    p(x=tok.n)
                tok = f(x=[v, w])
                w += 1
            v += 1
        output(tok=tok)""",
}


@pytest.mark.parametrize("case", EARLIER)
def test_r16_4_a_while_begins_with_the_value_of_a_name_from_before_the_script(case: str) -> None:
    text = "\n".join(line[8:] for line in EARLIER[case].strip("\n").split("\n"))
    for seed in range(6):
        python, plan = World(seed), World(seed)
        wanted = as_python(f"tok = f(x=9)\n{text}", python)
        found = as_plan(text, plan, random.Random(seed), {"tok": plan.call("f", {"x": 9})})
        assert found == (wanted, [])
        assert sorted(plan.made) == sorted(python.made)


IN_ROUNDS = [
    "for q in input.rows:\n    if w > 0:\n        p(x=tok.n)",
    "for q in input.rows:\n    c = g(x=[q.n, tok.n if w > 0 else 0])",
    "for q in input.rows:\n    if w > 0:\n        t.append(g(x=[q.n, tok.n]))",
    "for q in input.rows:\n    if w > 0 and tok.ok:\n        u = g(x=q.n)\n        p(x=u.n)",
    "c = [g(x=tok.n) if w > 0 else f(x=q.n) for q in input.rows]",
    "c = [g(x=[q.n, w]) for q in input.rows if w > 0 and tok.ok]",
    "if w > 0:\n    for q in input.rows:\n        t.append(g(x=[q.n, tok.n]))",
    "tok = f(x=w)",
    "tok = f(x=len(t))",
    "tok = f(x=len(c))",
    "tok = f(x=w) if w == 0 else g(x=tok.n)",
    "if len(t) < 2:\n    tok = f(x=w)",
]


def test_r16_4_a_for_inside_a_while_reads_what_the_round_before_assigned() -> None:
    compared = 0
    for number, parts in enumerate([*permutations(IN_ROUNDS, 2), *permutations(IN_ROUNDS, 3)]):
        body = "\n".join([*parts, "w += 1"]).replace("\n", "\n    ")
        if number % 5 or "tok =" not in body or "tok." not in body:
            continue
        text = f"t = []\n{'tok = None' if number % 2 else ''}\nw = 0\nwhile w < 3:\n    {body}\noutput(t=t)"
        python, plan = World(number), World(number)
        try:
            wanted = as_python(text, python)
        except NOT_OF_PYTHON:
            continue
        assert (text, as_plan(text, plan, random.Random(number))) == (text, (wanted, []))
        assert (text, sorted(plan.made)) == (text, sorted(python.made))
        compared += 1
    assert compared > 60


READS = ["†state.d.s", "Dear {†state.d.s}", "state.d.s", "Dear {state.d.s}", "'{†state.d.s}'.upper()"]


@pytest.mark.parametrize("read", READS)
def test_r16_4_a_read_by_a_reference_is_refused_like_that_of_the_name(read: str) -> None:
    argument = read if read[0] in "s'" else f'"{read}"' if "†" in read else f'f"{read}"'
    first = "d = f(x=1)\nfor q in input.rows:\n"
    left_out = f"{first}    if q.ok:\n        d = g(x=q.n)\n    p(x={argument})\n"
    later = f"{first}    p(x={argument})\n    d = g(x=q.n)\n"
    collected = f"d = []\nfor q in input.rows:\n    d.append(q.n)\n    p(x={argument})\n"
    assert [planned(text) for text in (left_out, later, collected)] == [None] * 3
    protected = left_out.replace("    p(", "    if q.ok:\n        p(")
    own = left_out.replace(argument, f"{argument}, _if=q.ok")
    assert None not in [planned(text) for text in (protected, own, f"{first}    p(x={argument})\n")]


TEXTS = {
    "'Dear {†state.u.s}' if u.n > 9 else 'Hi {†state.u.n}!'": "'Dear ' + u.s if u.n > 9 else f'Hi {u.n}!'",
    "'Dear {†state.u.s},\\n' + 'bye'": "f'Dear {u.s},\\n' + 'bye'",
    "'; '.join(['Dear {†state.u.s}', 'bye'])": "'; '.join([f'Dear {u.s}', 'bye'])",
    "['†state.u.n'][0] + 1": "u.n + 1",
    "[f'{q.n}' + ' {†state.u.s} {†q.n}' for q in input.rows]": "[f'{q.n} {u.s} {q.n}' for q in input.rows]",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_names_values_is_an_f_string_inside_an_expression(text: str) -> None:
    python, plan = World(1), World(1)
    wanted = as_python(f"u = f(x=1)\np(x={TEXTS[text]})\noutput(x={TEXTS[text]})", python)
    assert as_plan(f"u = f(x=1)\np(x={text})\noutput(x={text})", plan, random.Random(1)) == (wanted, [])
    assert plan.made == python.made


def test_the_name_of_an_item_can_be_assigned_after_its_loop() -> None:
    loop = "q = f(x=1)\nfor q in input.rows:\n    p(x=q.n)\n"
    text = f"{loop}q = g(x=2)\np(x=[q.n, input.rows[-1].n])\nfor q in input.rows:\n    p(x=q.s)\noutput(x=1)"
    python, plan = World(1), World(1)
    assert as_plan(text, plan, random.Random(1)) == (as_python(text, python), [])
    assert sorted(plan.made) == sorted(python.made)


CHANGES = [
    "a += 5",
    "a=a+1",
    "a  =  a * 2",
    "a: int = a + 1",
    "(a, b) = a + 1, 2",
    "b, *a = input.rows",
    "b = 3; a = a + 1",
    "a.sort()",
    "b = a.pop()",
    "a.insert(0, 2)",
    "a.append(2, 3)",
    "a.n += 1",
    "a['n'] -= 1",
    "a['n'].append(f(x=2).n)",
    "a[-1].append(2)",
    "del a['n']",
    "del a",
    "a.submit()",
    "try:\n    a=f(x=1).n\nexcept ValueError as e:\n    b = 0",
    "try:\n    b = 0\nexcept ValueError as a:\n    b = 1",
    "with f(x=1) as a:\n    p(x=2)",
    "match b:\n    case {'n': 1, **a}:\n        b = 2",
    "match b:\n    case [1, a]:\n        b = 2",
    "def a():\n    return 1",
    "import json as a",
    "if b:\n    a.sort()",
    "for a in input.rows:\n    break",
    "for q in input.rows:\n    if (a := f(x=q.n)).ok:\n        break",
    "b = (a := f(x=1)).n + lambda: 1",
    "a += f(x=1 2)",
    "a=f(x=1 2)",
    "a: int = f(x=1 2)",
    "b = a = f(x=1 2)",
    "b = 1; a = f(x=1 2)",
    "a.append(f(x=1 2))",
    "if b: a = f(x=1 2)",
    "for q in input.rows:\n    p(x=q)\n    a += f(x=1 2)",
]


@pytest.mark.parametrize("line", CHANGES)
def test_r5_1_a_call_that_reads_what_a_refused_statement_changes_is_not_made(line: str) -> None:
    text = f"a = f(x=1)\nb = f(x=2)\nc = f(x=3)\n{line}\np(x=a)\np(x=c)\na = g(x=9)\np(x=a)\n"
    solution, refused = read(text)
    assert len(refused) == 1
    plan, world = as_calls(solution), World(1)
    while calls := plan.take_ready("now"):
        for call in calls:
            plan.home(call).end(call, Returned(world.call(call.spec.tool_name, call.inputs.params)), "then")
    right = [World(1).call(tool, {"x": x}) for tool, x in (("f", 3), ("g", 9))]
    assert sorted(each for each in world.made if each[0] == "p") == sorted(
        f"p {dumps({'x': value}, sort_keys=True)}" for value in right
    )


def check_only_calls_of_python(text: str, seed: int) -> bool:
    """Check that the plan makes no call that Python does not make, and return whether each line is read. Then the plan
    makes all of Python's calls, and its output."""
    solution, refused = read(text)
    python, world = World(seed), World(seed)
    wanted = as_python(text, python)
    plan = as_calls(solution)
    while calls := plan.take_ready("now"):
        for call in calls:
            plan.home(call).end(call, Returned(world.call(call.spec.tool_name, call.inputs.params)), "then")
    assert (text, [each for each in world.made if each not in python.made]) == (text, [])
    if not refused:
        assert (text, sorted(world.made)) == (text, sorted(python.made))
        found = parse_template(solution.output)[0].resolve(plan.read_at_end)
        assert (text, dumps(found, sort_keys=True)) == (text, dumps(wanted, sort_keys=True))
    return not refused


SHARED = [
    "input.rows.sort(key=lambda q: q.n)\np(x=input.rows)\np(x=input.rows[0].n)",
    "input.rows.append(1)\nfor q in input.rows:\n    p(x=q)",
    "input.rows.append(1)\np(x='{†input.rows}')",
    "r = input.rows\nr.reverse()\np(x=r)\np(x=input.rows)",
    "r = input.rows\ninput.rows.reverse()\np(x=r)",
    "r = f(x=1)\nc = r\nc.update({'n': 7})\np(x=r)",
    "r = f(x=1)\nc = [r]\nr.update({'n': 7})\np(x=c)",
    "for q in input.rows:\n    q.update({'n': 7})\np(x=input.rows)\np(x=[q.n for q in input.rows])",
    "for i, q in enumerate(input.rows):\n    q['n'] = 7\np(x=input.rows[1].n)",
    "rows = [f(x=1), f(x=2)]\nfor q in rows:\n    r = q\n    r['n'] = 7\np(x=rows)",
    "b = sorted(input.rows, key=lambda q: q.n)\nb[0]['n'] = 7\np(x=input.rows)",
    "best = max(input.rows, key=lambda q: q.n)\nbest['n'] = 7\np(x=input.rows)",
    "r = input.rows\nr.append(4)\np(x=r)\np(x=input.rows)",
    "r = input.rows\nr += [4]\np(x=r)\np(x=input.rows)",
    "t = u = []\nt.append(4)\np(x=t)\np(x=u)",
    "t = []\nd = {'k': t}\nt.append(4)\np(x=d)",
    "t = []\nd = {'k': t}\nfor q in input.rows:\n    t.append(f(x=q.n))\np(x=d)",
    "w = 0\nt = []\nwhile w < 2:\n    r = [w]\n    t.append(r)\n    r.append(9)\n    w += 1\np(x=t)",
    "[q.update({'n': 7}) for q in input.rows]\np(x=input.rows)",
    "a = [1]\nb = [2]\na, b = b, a\nc = a\nc.append(3)\np(x=a)\np(x=b)",
    "a = f(x=1)\nif a.ok:\n    b = a\nelse:\n    b = f(x=2)\nb['n'] = 7\np(x=a)",
    "t = 'a b'.split()\nu = t\nt.append('c')\np(x=u)",
    "q = None\nrows = [f(x=1), f(x=2)]\nfor q in rows:\n    r = q\n    r['n'] = 7\np(x=rows)",
    "t = [1]\nu = t\nt.append(2)\np(x=[u for u in t])\np(x=[[u for u in t], u])",
    "rows = [f(x=1), f(x=2)]\nd = dict(zip(['k', 'm'], rows))\nr = d['k']\nr['n'] = 7\np(x=rows)",
    "t = [1]\nd = dict([['k', t]])\nu = d['k']\nu.append(2)\np(x=t)",
    "t = [1, 2, 3]\nu = t\ndel t[0]\np(x=t[1])\np(x=u[0])",
    "t = [1]\nu = t\nw = 0\nwhile w < 2:\n    t += [w]\n    w += 1\np(x=u)",
    "t = [1]\nu = t\nv = list(input.rows)\nt += v\np(x=u)",
    "t = [1]\nu = [t]\nif input.rows[0].ok:\n    t = []\nif input.rows[1].ok:\n    t = []\nt.append(2)\np(x=u)",
]
NOT_SHARED = [
    "t = []\nfor q in input.rows:\n    r = [q.n]\n    r.append(f(x=q.n).n)\n    t.append(r)\np(x=t)",
    "w = 0\nt = []\nwhile w < 2:\n    r = [w]\n    r.append(f(x=w).n)\n    t.append(r)\n    w += 1\np(x=t)",
    "r = f(x=1)\nc = {'row': r}\nc['n'] = 7\np(x=[c, r])",
    "r = input.rows\nr.append(4)\np(x=r)",
    "t = [q.n for q in input.rows]\nt.append(4)\np(x=[t, input.rows])",
    "w = 0\nn = 0\nwhile w < 3:\n    last = n\n    n += f(x=w).n\n    w += 1\np(x=[n, last])",
    "b = input.rows[0]\nb['m'] = 7\np(x=[b.m, input.rows[1], input.rows[0].n])",
    "t = []\nu = t\nt = [1]\nt.append(2)\np(x=[t, u])",
    "r = input.rows\nr.append(4)\nr = [1]\np(x=r)",
    "t = [q.n for q in input.rows]\nn = sum(t)\nt.append(f(x=n).n)\np(x=[t, n])",
    "t = [q.n for q in input.rows]\nlow = min(t)\nhigh = max(t, key=lambda n: n)\nt += [9]\np(x=[low, high])",
    "r = f(x=0)\nn = r.n\nw = 0\nwhile w < 2:\n    n += f(x=w).n\n    w += 1\np(x=[n, r.n, r])",
    "t = input.rows[0].s\nw = 0\nwhile w < 2:\n    t += f(x=w).s\n    w += 1\np(x=[t, input.rows[0].s])",
    "r = f(x=1)\nt = r.s if r.ok else 'no'\nw = 0\nwhile w < 2:\n    t += f(x=w).s\n    w += 1\np(x=[t, r])",
    "d = {'n': 0}\nbase = d['n']\nw = 0\nwhile w < 2:\n    d['n'] += f(x=w).n\n    w += 1\np(x=[d, base])",
    "t = []\nr = []\nw = 0\nwhile w < 5:\n    r.append(f(x=w).n)\n    if len(r) == 2:\n        t.append(r)\n        r = []\n    w += 1\np(x=[t, r])",
    "t = []\nr = [1]\nif f(x=1).n < 9:\n    t.append(r)\n    r = []\nr.append(f(x=2).n)\np(x=[t, r])",
    "t = []\nr = [1]\nd = {'first': r}\nif f(x=1).n < 9:\n    r = []\n    r.append(2)\np(x=[d, r])",
    "rows = [f(x=1), f(x=2)]\nfor q in rows:\n    r = q\n    r['m'] = 7\n    p(x=q.n)",
    "t = [1]\nu = t\nt.append(2)\np(x=[u for u in t])",
    "n = 0\nr = [1]\nt = []\nt.append(n)\nt.append(r)\nr.append(2)\np(x=[n, r])",
]


@pytest.mark.parametrize("text", SHARED)
def test_r5_1_no_call_reads_a_value_that_python_has_changed_under_another_name(text: str) -> None:
    assert not check_only_calls_of_python(f"{text}\noutput(x=1)", 1)


@pytest.mark.parametrize("text", NOT_SHARED)
def test_a_value_of_its_own_may_be_changed_in_place(text: str) -> None:
    assert check_only_calls_of_python(f"{text}\noutput(x=1)", 1)


def shared_values(chance: random.Random) -> str:
    """A script that gives values several names, and changes them in place."""
    pick = chance.choice
    known = ["a", "b", "d['k']", "input.rows"]
    lines = ["a = [1]", "b = [2, 3]", "d = {'k': [4], 'r': f(x=1)}"]
    for _ in range(chance.randrange(3, 8)):
        one, two = pick(known), pick(known)
        lines += pick(
            [
                [f"{pick('abc')} = {one}"],
                [f"{pick('abc')} = {pick(['list', 'sorted'])}({pick(['a', 'b'])})"],
                [f"{pick('abc')} = [{one}, {two}]"],
                [f"a, b = {one}, {two}"],
                [f"{pick('ab')}.append({one})"],
                [f"{pick('ab')} += [{chance.randrange(9)}]"],
                [f"{one}.{pick(['reverse()', 'append(8)', 'clear()', 'extend([6])'])}"],
                [f"d[{pick(['0', '1'])!r}] = {one}"],
                [f"if f(x={chance.randrange(3)}).ok:", f"    {pick('ab')} = {one}"],
                [f"for q in {one}:", f"    e = {two}", "    p(x=[q, e])"],
                [f"for q in [{one}, {two}]:", f"    {pick(['r = q', 'r = [q]', 'r = list(q)'])}", "    r.append(7)"],
                [f"for q in [{one}]:", f"    a.append({pick(['q', 'q[0]', 'f(x=1)'])})", "    p(x=q)"],
                [f"p(x={one})"],
                [f"p(x=len({one}))"],
            ]
        )
        known += ["c"] if "c" not in known and lines[-1].startswith("c =") else []
    return "\n".join([*lines, "p(x=a)", "p(x=b)", "p(x=d)", "p(x=input.rows)", "output(x=[a, b])"])


def test_r5_1_random_scripts_that_share_values_make_only_calls_of_python() -> None:
    compared = whole = 0
    for seed in range(250):
        text = shared_values(random.Random(f"shared {seed}"))
        try:
            whole += check_only_calls_of_python(text, seed)
        except (*NOT_OF_PYTHON, RecursionError):
            continue
        compared += 1
    assert compared > 150
    assert whole > 20


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("b += sum(a.n for a in input.rows)", "†state.b"),
        ("b = a.get('n') + lambda: 1", "†state.b"),
        ("b += a", "†state.b"),
        ("b[a] += 1", "†state.b"),
        ("p(x=1 2, a=1)", None),
        ("p(\n    a=1,\n    x=1 2,\n)", None),
        ("a.upper()", None),
    ],
)
def test_r5_1_a_refused_statement_names_only_the_paths_that_it_changes(line: str, path: str | None) -> None:
    (refused,) = read(f"{line}\n")[1]
    assert refused.get("_outputPath") == path


JOINED = [
    "if (a.ok and b.ok) or f(x=9).n > 9:\n    p(x=1)",
    "if f(x=9).n > 9 or (a.ok and b.ok):\n    p(x=1)",
    "if (a.ok or b.ok) and f(x=9).n < 9:\n    p(x=1)",
    "w = 0\nwhile (a.ok or b.ok) and f(x=w).n < 9 and w < 3:\n    w += 1",
    "for q in input.rows:\n    if (a.ok and q.ok) or g(x=q.n).ok:\n        p(x=q.n)",
    "c = [g(x=q.n).ok or (a.ok and b.ok) for q in input.rows]\np(x=c)",
    "p(x=(a.s or b.s) if g(x=1).n > 9 else (f(x=a.ok).ok or (a.s and b.s)))",
    "c = []\nfor q in input.rows:\n    c.append(q.ok and a.ok)\np(x=c)",
    "c = {q.s: f(x=q.n).n or q.s for q in input.rows}\np(x=c)",
    "c = [[q.s, f(x=q.n).n or q.s] for q in input.rows]\np(x=c)",
    "c = {}\nfor q in input.rows:\n    c[q.s] = q.n or q.s\np(x=c)",
    "c = []\nfor q in input.rows:\n    c.append([q.n or q.s, f(x=q.n).n or q.s])\np(x=c)",
    "c = (a.n or b.s) if a.ok else f(x=3)\np(x=c)",
    "c = f(x=3) if a.ok else (a.s and b.n)\np(x=c)",
    "c = f(x=3) if a.ok else [a.s and b.n, a.n or b.s]\np(x=c)",
    "c = f(x=3) if a.ok else (a.s and b.n) if b.ok else (a.n or b.s)\np(x=c)",
    "for q in e['rows'] or input.rows:\n    p(x=q.n)",
    "for i, q in enumerate(e['rows'] or input.rows):\n    p(x=[i, q.n])",
    "for q in e['rows'] and input.rows:\n    p(x=q.n)",
    "for q in [a.s or b.n, a.n and b.s, a.n]:\n    p(x=q)",
    "for q in (e['rows'] or input.rows) if a.ok else []:\n    c = f(x=q.n)\n    p(x=c)",
    "c = [f(x=q.n) for q in e['rows'] or input.rows]\np(x=c)",
    "c = [q.n for q in e['rows'] or input.rows if q.ok]\np(x=c)",
    "for q in input.rows:\n    for r in e['rows'] or [q.n]:\n        p(x=r)",
    "w = 0\nwhile w < 2:\n    for q in e['rows'] or input.rows:\n        p(x=[w, q.n])\n    w += 1",
    "w = 0\nwhile w < 2:\n    c = (a.s or b.n) if a.n > w else f(x=w)\n    w += 1\np(x=c)",
]


@pytest.mark.parametrize("text", JOINED)
def test_r16_4_plain_values_joined_inside_an_expression_with_a_call_are_pythons(text: str) -> None:
    text = f"a = f(x=1)\nb = g(x=2)\ne = {{'rows': []}}\n{text}\noutput(x=1)"
    for seed in range(8):
        python, plan = World(seed), World(seed)
        assert (seed, as_plan(text, plan, random.Random(seed))) == (seed, (as_python(text, python), []))
        assert (seed, sorted(plan.made)) == (seed, sorted(python.made))


@pytest.mark.parametrize(
    ("refused", "accepted"),
    [
        ("t.append(g(x=len(t)).n)", "t.append(g(x=len(u)).n)"),
        ("t.append(g(x=[q.n, t]))", "t.append(g(x=[q.n, u]))"),
        ("t.append(g(x='{†state.t}'))", "t.append(g(x='{†state.u}'))"),
        ("t.extend(t)", "t.extend(u)"),
        ("t += [len(t)]", "t += [len(u)]"),
        ("d[str(len(d))] = q.n", "d[str(len(u))] = q.n"),
        ("d[q.s] = g(x=len(d))", "d[q.s] = g(x=len(u))"),
    ],
)
def test_r16_4_a_value_that_a_for_adds_may_not_read_what_it_is_added_to(refused: str, accepted: str) -> None:
    text = "u = [1]\nt = []\nd = {{}}\nfor q in input.rows:\n    {}\n    p(x=q.n)\n"
    assert planned(text.format(refused)) is None
    assert planned(text.format(accepted))


@pytest.mark.parametrize("test", ["w > 0", "w != 1", "w > 5", "f(x=w).ok"])
def test_r16_4_a_round_goes_on_after_a_call_whose_own_condition_is_false(test: str) -> None:
    text = "w = 0\nwhile w < 3:\n    {}\n    r = f(x=w)\n    w += 1\noutput(w=w)\n"
    python, plan = World(1), World(1)
    wanted = as_python(text.format(f"if {test}:\n        p(x=w)"), python)
    assert as_plan(text.format(f"p(x=w, _if={test})"), plan, random.Random(1)) == (wanted, [])
    assert sorted(plan.made) == sorted(python.made)


LAZY = [
    "v = any(f(x=q.n).ok for q in input.rows)",
    "v = not all(f(x=q.n).ok for q in input.rows if q.ok)",
    "v = next((q for q in input.rows if f(x=q.n).ok), None)",
    "v = next((r for r in (f(x=q.n) for q in input.rows) if r.ok), None)",
    "if any(f(x=q.n).ok for q in input.rows):\n    p(x=1)",
    "w = 0\nwhile w < 3 and any(f(x=[w, q.n]).ok for q in input.rows):\n    w += 1",
    "p(x=[any(f(x=q.n).ok for q in input.rows)])",
    "v = 1 in (f(x=q.n).n for q in input.rows)",
    "v = any(zip((f(x=q.n).ok for q in input.rows), input.rows))",
    "v = any(q.ok for i, q in enumerate(f(x=q.n) for q in input.rows))",
]
WHOLE = [
    "v = any([f(x=q.n).ok for q in input.rows])",
    "v = sum(f(x=q.n).n for q in input.rows)",
    "v = any(q.n > r.n for q in input.rows for r in input.rows)",
    "v = [g(x=q.n).n for q in input.rows if f(x=q.n).ok if f(x=[q.n]).ok]",
    "v = [g(x=q.n).n for q in input.rows if f(x=[q.n]).ok if q.ok]",
    "v = any(x > 1 for x in [f(x=1).n, f(x=2).n])",
    "c = [f(x=q.n) for q in input.rows]\nv = next((r for r in c if r.ok), None)",
]


@pytest.mark.parametrize("text", LAZY)
def test_calls_in_a_generator_that_stops_early_are_refused(text: str) -> None:
    (refused,) = read(f"{text}\n")[1]
    assert re.search("(any|all|next|in|zip) would stop at the item", refused["_syntax"])


@pytest.mark.parametrize("text", WHOLE)
def test_calls_that_python_makes_for_all_items_are_made(text: str) -> None:
    python, plan = World(1), World(1)
    wanted = as_python(f"{text}\noutput(v=v)", python)
    assert as_plan(f"{text}\noutput(v=v)", plan, random.Random(1)) == (wanted, [])
    assert sorted(plan.made) == sorted(python.made)


ADDED = [
    "for q in input.rows:\n    t.append(None if q.ok else q.n)",
    "for q in input.rows:\n    t.append(q.get('zz'))",
    "for q in input.rows:\n    r = f(x=q.n)\n    t.append(r.s or None)",
    "for q in input.rows:\n    if q.ok:\n        t.append(f(x=q.n))\n    else:\n        t.append(None)",
    "for q in input.rows:\n    if q.ok:\n        t.extend([q.n, None])\n    else:\n        t.append(None)",
    "for q in input.rows:\n    if f(x=q.n).ok:\n        t.append(None)",
    "for q in input.rows:\n    u = None\n    if q.ok:\n        u = f(x=q.n)\n    t.append(u)",
    "for q in input.rows:\n    for r in input.rows:\n        t.append(q.n * r.n or None)",
    "w = 0\nwhile w < 2:\n    w += 1\n    for q in input.rows:\n        t.append(q.n if q.ok else None)",
    "for q in input.rows:\n    t.append(f(x=q.n))",
]


@pytest.mark.parametrize("text", ADDED)
def test_r16_4_what_a_for_adds_may_be_none(text: str) -> None:
    for seed in range(3):
        assert check_only_calls_of_python(f"t = []\n{text}\np(x=t)\noutput(t=t)\n", seed)


KEYS = {
    "for q in input.rows:\n    d['k'] = f(x=q.n)": True,
    "for q in input.rows:\n    if q.ok:\n        d['k'] = q.n": True,
    "for q in input.rows:\n    if q.ok:\n        d['k'] = q.n\n    else:\n        d['m'] = f(x=q.n).n": True,
    "for q in input.rows:\n    e = {'n': q.n}\n    e['k'] = f(x=q.n).n\n    p(x=e)": True,
    "w = 0\nwhile w < 2:\n    d['k'] = w\n    w += 1": True,
    "w = 0\nwhile w < 2:\n    for q in input.rows:\n        d['k'] = [w, q.n]\n    w += 1": True,
    "for q in input.rows:\n    d['k'] = q.n\n    d['m'] = q.s": False,
    "for q in input.rows:\n    d['r']['k'] = q.n": False,
    "for q in input.rows:\n    d['k'] = d['m'] = q.n": False,
    "for q in input.rows:\n    for r in input.rows:\n        d['k'] = [q.n, r.n]": False,
    "for q in input.rows:\n    w = 0\n    while w < 2:\n        d['k'] = q.n\n        w += 1": False,
}


@pytest.mark.parametrize(("text", "is_read"), KEYS.items())
def test_r16_4_a_key_that_a_for_sets_has_the_last_value_or_is_refused(text: str, is_read: bool) -> None:
    for seed in range(3):
        script = f"d = {{'k': 0, 'r': {{}}}}\n{text}\np(x=d)\noutput(d=d)\n"
        assert check_only_calls_of_python(script, seed) == is_read


OUTPUT_FIRST = [
    "output(n=a.n, t=t)\na = g(x=2)\np(x=a.n)",
    "output(n=a.n + 1, t=t)\na = g(x=2)\np(x=a.n)",
    "output(n=f'{a.n}', t=t)\nt.append(4)\np(x=t)",
    "output(n=a, t=t)\nfor q in input.rows:\n    t.append(q.n)\np(x=t)",
    "output(n=a, t=t)\nw = 0\nwhile w < 2:\n    a = f(x=w)\n    w += 1\np(x=a)",
    "output(n=a, t=t)\nif a.ok:\n    a = g(x=2)\na = g(x=3)\nt = [a]\np(x=t)",
    "if a.ok:\n    output(n=a.n)\nelse:\n    output(n=t)\na = g(x=2)\nt = [a.n]\np(x=t)",
]


@pytest.mark.parametrize("text", OUTPUT_FIRST)
def test_r5_14_an_output_has_the_values_of_its_own_line(text: str) -> None:
    for seed in range(3):
        assert check_only_calls_of_python(f"a = f(x=1)\nt = [1]\n{text}\n", seed)


ENDS = [
    "if not a.ok:\n    return",
    "if not a.ok:\n    raise ValueError('no')",
    "assert a.ok",
    "if not a.ok:\n    exit()",
    "if not a.ok:\n    sys.exit(1)",
    "for q in input.rows:\n    if not q.ok:\n        return f(x=q.n)",
    "try:\n    b = f(x=2)\nexcept ValueError:\n    raise",
    "if not a.ok: return f(x=1 2)",
    "if not a.ok\n    return",
]


@pytest.mark.parametrize("line", ENDS)
def test_r5_1_no_call_below_a_statement_that_may_end_the_script_is_made(line: str) -> None:
    solution, refused = read(f"a = f(x=1)\n{line}\nb = g(x=2)\nfor q in input.rows:\n    p(x=q.n)\np(x=[g(x=3).n])\n")
    assert len(refused) == 1
    plan, world = as_calls(solution), World(1)
    while calls := plan.take_ready("now"):
        for call in calls:
            plan.home(call).end(call, Returned(world.call(call.spec.tool_name, call.inputs.params)), "then")
    assert plan.settled
    assert [each[:1] for each in world.made] == ["f"]


def test_a_return_inside_a_definition_ends_no_script() -> None:
    solution, refused = read("def h(x):\n    return x\np(x=1)\n")
    assert len(refused) == 1
    last = solution.calls[-1]
    assert isinstance(last, dict)
    assert "_after" not in last


NO_ROUND = [
    "while d['more']:\n    p(x=d['cursor'])\n    w += 1",
    "while d['more'] and w < 3:\n    q = g(x=[d['cursor'], a.n])\n    if q.ok:\n        p(x=d['cursor'])\n    w += 1",
    "while d['rows'] and d['rows'][0].n:\n    p(x=a.cursor)\n    w += 1",
    "for q in d['rows']:\n    p(x=a.cursor)",
    "for q in d['rows']:\n    r = g(x=q)\n    p(x=[r, a.cursor])",
    "c = [g(x=a.cursor) for q in input.rows if q.n > 9]",
    "if not d['more']:\n    while w > 3:\n        p(x=a.cursor)\n        w += 1",
]


@pytest.mark.parametrize("text", NO_ROUND)
def test_r16_4_a_loop_without_a_round_needs_no_key_that_its_body_reads(text: str) -> None:
    text = f"a = f(x=1)\nd = {{'more': False, 'rows': []}}\nw = 0\n{text}\noutput(w=w, n=a.n)"
    python, plan = World(1), World(1)
    assert as_plan(text, plan, random.Random(1)) == (as_python(text, python), [])
    assert sorted(plan.made) == sorted(python.made)


def test_r16_4_a_round_that_reads_a_missing_key_is_not_made() -> None:
    text = "a = f(x=1)\nd = {'more': True}\nwhile d['more']:\n    p(x=a.cursor)\noutput(n=a.n)"
    found = planned(text)
    assert found is not None
    plan, world = found[0], World(1)
    while calls := plan.take_ready("now"):
        for call in calls:
            plan.home(call).end(call, Returned(world.call(call.spec.tool_name, call.inputs.params)), "then")
    (error,) = [call.state.error for call in plan.every_call() if call.state.error]
    assert "†state.a.cursor is not in what 1.0 f wrote" in error.message
    assert [each[0] for each in world.made] == ["f"]


HEADS = [
    "if input.amount > 500",
    "if input.amount > 500 then",
    "- if input.amount > 500",
    "for q in input.rows",
    "while input.amount > 500",
    "def h()",
    "try",
    "else",
    "with input.lock",
]


@pytest.mark.parametrize("first", ["", "w = 1\n", "w = f(x=1)\n"])
@pytest.mark.parametrize("head", HEADS)
def test_r16_4_the_lines_below_a_head_without_a_colon_fall_with_it(head: str, first: str) -> None:
    solution, refused = read(f"{first}{head}\n    p(x=99)\n\n    p(x=98)\noutput(w=1)\n")
    assert len(refused) == 1
    assert solution.output == {"w": 1}
    assert "p" not in [call.get("_tool") for call in solution.calls if isinstance(call, dict)]


def test_a_comparison_whose_last_call_python_may_not_make_is_refused() -> None:
    (refused,) = read("if input.n > f(x=2).n > f(x=3).n:\n    p(x=1)\n")[1]
    assert "write a < b and b < c" in refused["_syntax"]
    assert not read("if input.n > f(x=2).n > 3:\n    p(x=1)\n")[1]


@pytest.mark.parametrize(
    "words", ["for the late order", "if the order is late", "with the order", "finally the refund"]
)
def test_r5_1_calls_below_words_of_a_list_are_made(words: str) -> None:
    solution, refused = read(f"- {words}\n  - f(x=1)\n- output('done')\n")
    assert (not refused, solution.output) == (True, "done")
    assert [call["_tool"] for call in solution.calls if isinstance(call, dict)] == ["f"]


@pytest.mark.parametrize("words", ["with care", "with care and patience", "class action", "with the order."])
def test_calls_below_prose_that_begins_like_a_head_are_made(words: str) -> None:
    solution, refused = read(f"{words}\n    f(x=1)\noutput('done')\n")
    assert (not refused, solution.output) == (True, "done")
    assert [call["_tool"] for call in solution.calls if isinstance(call, dict)] == ["f"]


@pytest.mark.parametrize("words", ["with care", "if needed", "while input.amount > 500", "else"])
def test_a_head_without_a_colon_may_be_a_thought_whose_end_comes_later(words: str) -> None:
    reader = ScriptReader(ReaderVocabulary(names={name: name for name in TOOLS}, parameters=TOOLS, kinds=["input"]))
    assert reader.push(f"{words}\n    p(x=1)\ng(x=1)\n") == []
    calls = [*reader.push("</think>\nf(x=2)\n"), *reader.close("stop").calls[1:]]
    assert [call["_tool"] for call in calls if isinstance(call, dict)] == ["f"]


def test_r5_1_a_name_behind_a_head_with_arguments_is_not_written() -> None:
    _, [refused] = read("if f(x=1, y=':'): w = f(x=2))\n")
    assert refused["_outputPath"] == "†state.w"


def test_r16_3_only_the_parts_of_an_item_with_or_become_formulas() -> None:
    text = "long " * 500
    _, refused = read(f"xs = [{{'a': q.n or q.s, 'b': f(x=q), 'c': '{text}'}} for q in input.rows]\n")
    assert not refused
