"""Comprehensions and calls of a formula: what gives names, and what is called by name."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from typing import Any, Final

from perdure.errors import clip
from perdure.values.formulas.functions import FUNCTIONS, METHODS, call_method
from perdure.values.formulas.nodes import CONSTANTS, Frame, Nodes, Step, wrong
from perdure.values.formulas.operators import WrongError, items, kind, text_key
from perdure.values.formulas.steps import CHARACTERS, Steps
from perdure.values.jsons import Json

_METHODS: Final = frozenset(name for methods in METHODS.values() for name in methods)


class Reader(Nodes):
    """Turns the nodes that are allowed into steps, and takes down the references."""

    def _set(self, node: ast.Set) -> Step:
        make = self._list(ast.copy_location(ast.List(node.elts, ast.Load()), node))
        return lambda frame: FUNCTIONS["set"](frame.steps, make(frame))

    def _dict(self, node: ast.Dict) -> Step:
        pairs = [
            (self.read(key) if key is not None else None, self.read(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]

        def make(frame: Frame) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for key, value in pairs:
                given = value(frame)
                if key is not None:
                    made[text_key(frame.steps, key(frame))] = given
                elif isinstance(given, dict):
                    frame.steps.take(len(given))
                    frame.steps.text(sum(map(len, given)))
                    made.update(given)
                else:
                    raise WrongError(f"** takes an object, not {kind(given)}")
            return made

        return make

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Step:
        with_variables, make = self._loops(node, node.generators, [node.elt])
        element = make[0]

        def collect(frame: Frame) -> list[Any]:
            return [element(frame) for _ in with_variables(frame)]

        return collect

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp) -> Step:
        collect = self._listcomp(ast.copy_location(ast.ListComp(node.elt, node.generators), node))
        return lambda frame: FUNCTIONS["set"](frame.steps, collect(frame))

    def _dictcomp(self, node: ast.DictComp) -> Step:
        with_variables, (key, value) = self._loops(node, node.generators, [node.key, node.value])

        def collect(frame: Frame) -> dict[str, Any]:
            return {text_key(frame.steps, key(frame)): value(frame) for _ in with_variables(frame)}

        return collect

    def _loops(
        self, node: ast.expr, generators: list[ast.comprehension], made: list[ast.expr]
    ) -> tuple[Callable[[Frame], Iterator[None]], list[Step]]:
        """The loops of a comprehension, and what it makes within them."""
        before = list(self.bound)
        loops: list[tuple[Step, ast.expr, list[Step]]] = []
        for generator in generators:
            if generator.is_async:
                wrong(node, "async has no place in an expression")
            source = self.read(generator.iter)
            self.bound.extend(_names(generator.target))
            loops.append((source, generator.target, [self.read(test) for test in generator.ifs]))
        steps = [self.read(each) for each in made]
        self.bound = before

        def run(frame: Frame, depth: int = 0) -> Iterator[None]:
            if depth == len(loops):
                yield
                return
            source, target, tests = loops[depth]
            for item in items(frame.steps, source(frame)):
                _assign(frame.steps, target, item, frame.variables)
                if all(test(frame) for test in tests):
                    yield from run(frame, depth + 1)

        def scoped(frame: Frame) -> Iterator[None]:
            kept = _copied(frame)
            yield from run(frame)
            frame.variables = kept

        return scoped, steps

    def _lambda(self, node: ast.Lambda) -> Step:
        wrong(
            node,
            "a lambda can only be the key of sorted, min or max: key=lambda item: item.size; write [… for item in list if …]",
        )

    def _ranking(self, node: ast.expr) -> Step:
        """`key=lambda item: …`: a step that gives a function."""
        if isinstance(node, ast.Constant) and node.value is None:
            return lambda frame: None
        if isinstance(node, ast.Name) and node.id in FUNCTIONS and node.id not in self.bound:
            named = FUNCTIONS[node.id]
            return lambda frame: lambda item: named(frame.steps, item)
        given = node.args if isinstance(node, ast.Lambda) else None
        if given is None or len(given.args) != 1 or given.defaults or given.vararg or given.kwarg or given.kwonlyargs:
            wrong(node, "a key is written as lambda item: …")
        assert isinstance(node, ast.Lambda)
        name = given.args[0].arg
        self.bound.append(_allowed(node, name))
        body = self.read(node.body)
        self.bound.pop()

        def make(frame: Frame) -> Callable[[Json], Json]:
            inner = Frame(frame.values, frame.steps, _copied(frame))

            def rank(item: Json) -> Json:
                inner.variables[name] = item
                return body(inner)

            return rank

        return make

    def _call(self, node: ast.Call) -> Step:
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            wrong(node, "arguments are written one by one, without *")
        given = [self.read(each) for each in node.args]
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, given)
        if not isinstance(node.func, ast.Name) or node.func.id in self.bound:
            wrong(node, "only functions can be called")
        name = node.func.id
        function = FUNCTIONS.get(name)
        if function is None:
            near = difflib.get_close_matches(name, FUNCTIONS, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            wrong(node, f"there is no function {clip(name, 60)!r} for values; {hint}There are: {', '.join(FUNCTIONS)}")
        named = {
            str(each.arg): self._ranking(each.value) if each.arg == "key" else self.read(each.value)
            for each in node.keywords
        }

        def call(frame: Frame) -> Json:
            arguments = [step(frame) for step in given]
            by_name = {key: step(frame) for key, step in named.items()}
            try:
                return function(frame.steps, *arguments, **by_name)
            except TypeError:
                raise WrongError(f"{name} does not take these arguments") from None
            except OverflowError:
                raise WrongError("the result is outside the range of a 64-bit float") from None

        return call

    def _method(self, node: ast.Call, func: ast.Attribute, given: list[Step]) -> Step:
        if node.keywords:
            wrong(node, "methods take no arguments by name here")
        if func.attr not in _METHODS:
            wrong(
                node, f"there is no method {clip(func.attr, 60)!r} for values; there are: {', '.join(sorted(_METHODS))}"
            )
        value = self.read(func.value)
        return lambda frame: call_method(frame.steps, value(frame), func.attr, [step(frame) for step in given])


def _allowed(node: ast.AST, name: str) -> str:
    if name in ("state", "input", "item", "index") or name in FUNCTIONS or name in CONSTANTS:
        wrong(node, f"{name!r} has a meaning of its own here; take another name")
    return name


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Name):
        return [_allowed(target, target.id)]
    if not isinstance(target, ast.Tuple | ast.List):
        wrong(target, "a comprehension gives its items names: for host in …")
    return [name for each in target.elts for name in _names(each)]


def _copied(frame: Frame) -> dict[str, Json]:
    """The variables, for what changes them to be undone."""
    frame.steps.take(len(frame.variables) // CHARACTERS)
    return dict(frame.variables)


def _assign(steps: Steps, target: ast.expr, value: Json, variables: dict[str, Json]) -> None:
    """Give the names of `target` their values; each takes a step."""
    steps.take()
    if isinstance(target, ast.Name):
        variables[target.id] = value
        return
    assert isinstance(target, ast.Tuple | ast.List)
    if not isinstance(value, list) or len(value) != len(target.elts):
        raise WrongError(f"{len(target.elts)} names take a list of so many items, not {kind(value)}")
    for each, item in zip(target.elts, value, strict=True):
        _assign(steps, each, item, variables)
