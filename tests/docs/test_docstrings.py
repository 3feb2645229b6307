"""Public docstrings have examples, and the examples are right: a type checker accepts all, and those that need no server run."""

from __future__ import annotations

import ast
import builtins
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
import perdure.testing
from scripts.docstrings import FACES, NO_VERB, PublicName, docstrings, examples, public_names, public_problems
from tests.support import ROOT

IMPORTS = """
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from perdure import *
from perdure.activities.registry import Registry
from perdure.agents.agent import *
from perdure.client.errors import *
from perdure.errors import *
from perdure.hooks.events import *
from perdure.hosting.settings import Settings, in_force
from perdure.hosting.worker import build_worker
from perdure.runs.evaluation import compare
from perdure.runs.notifications import RouteOutcome
from perdure.testing import *
from perdure.workflow import run_agent
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker


@tool
def order(fruit: str, count: int = 1) -> str:
    return f"ordered {count} {fruit}"


@workflow.defn
class Order:
    @workflow.run
    async def run(self, request: str) -> Any:
        return request


shopper: Agent[Any] = Agent("shopper", tools=[order])
"""
"""What an example may use without a word about it, beside the values in `VALUES`."""
VALUES = {
    "after": "EvaluationResult",
    "before": "EvaluationResult",
    "context": "ToolContext",
    "evaluation": "Evaluation",
    "local": "Local",
    "model": "ScriptedModel",
    "notification": "Notification",
    "outcome": "RouteOutcome",
    "perdure": "Perdure",
    "receipt": "Receipt",
    "registry": "Registry",
    "result": "EvaluationResult",
    "run": "Run[Any]",
    "session": "Session",
    "view": "RunView",
}
"""Values that only a server or a model gives."""
NAMES = list(public_names())
EXAMPLES = [(each.name, example) for each in NAMES for example in examples(each.docstring)]


def test_public_names_have_an_example_and_no_rule() -> None:
    assert public_problems() == []
    exported = [name for face in FACES for name in sys.modules[face].__all__]
    assert len(NAMES) > len(EXAMPLES) > len(exported) / 2 > 30


def test_a_public_name_without_an_example_or_with_a_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [
        PublicName("perdure.a", "", needs_example=True),
        PublicName("perdure.b", "Do it.", needs_example=True),
        PublicName("perdure.c", "Do it (R7.4).", needs_example=False),
        PublicName("perdure.d", "Do it.\n\n```python\nd()\n```", needs_example=True),
    ]
    monkeypatch.setattr("scripts.docstrings.public_names", lambda: iter(wrong))
    assert public_problems() == [
        "perdure.a: has no docstring",
        "perdure.b: has no example",
        "perdure.c: names the rule R7.4, which belongs in a comment",
    ]


def test_openings_that_are_no_verb_are_found() -> None:
    verbs = ["Return it.", "Yield", "Whether it is.", "Process", "Bring", "Focus on it."]
    others = [
        "Returns it.",
        "Returning",
        "`None`: nothing.",
        "JSON text",
        "A tool",
        "Why",
        "Pydantic's converter",
        "Tools",
        "At most",
    ]
    assert [bool(NO_VERB.match(text)) for text in [*verbs, *others]] == [False] * len(verbs) + [True] * len(others)


def test_functions_begin_with_a_verb_but_not_their_classes_properties_and_tools(tmp_path: Path) -> None:
    made = ["@property", "@functools.cached_property", "@tool(dangerous=True)", "@perdure.tool", "@app.group()"]
    texts = [f'{line}\ndef f(): "A name."\n' for line in made]
    texts += [
        'class A:\n    "A name."\n    def __init__(self): "`a`: a name."\n    @staticmethod\n    async def f(): "A name."\n'
    ]
    (module := tmp_path / "module.py").write_text("".join(texts), encoding="utf-8")
    assert [line for line, _, acts in docstrings(module) if acts] == [15]


@pytest.mark.soak  # mypy reads the whole project, for 13 CPU seconds
def test_a_type_checker_accepts_every_example(tmp_path: Path) -> None:
    module = tmp_path / "examples.py"
    module.write_text(IMPORTS + "".join(_wrapped([*EXAMPLES, ("a wrong one", "run.no_such()")])), encoding="utf-8")
    user = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={ROOT / '.mypy_cache' / 'user'}"]
    ran = subprocess.run([sys.executable, "-m", "mypy", *user, str(module)], cwd=ROOT, capture_output=True, text=True)
    lines = module.read_text(encoding="utf-8").splitlines()
    found = [
        f"{error[2]} in {lines[int(error[1]) - 1].strip()!r}"
        for line in ran.stdout.splitlines()
        if (error := re.match(r".*?examples\.py:(\d+): error: (.*?)  \[", line))
    ]
    assert found == ['"Run[Any]" has no attribute "no_such" in \'run.no_such()\''], ran.stdout + ran.stderr


def _wrapped(named: list[tuple[str, str]]) -> Iterator[str]:
    """Yield each example as a function of its own, which has the values as parameters unless it makes them itself."""
    for number, (name, example) in enumerate(named):
        used = [each for each in VALUES if each in _loaded(example) and each not in _stored(example)]
        parameters = ", ".join(f"{each}: {VALUES[each]}" for each in used)
        yield f"\n\nasync def example_{number}({parameters}) -> None:  # {name}\n{textwrap.indent(example, '    ')}"


def _loaded(example: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Name)}


def _stored(example: str) -> set[str]:
    """Return the names that an example makes before it reads them."""
    nodes = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Name)]
    first = {node.id: node for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True)}
    made = {name for name, node in first.items() if isinstance(node.ctx, ast.Store)}
    return {name for name in made if not re.search(rf"\b{name} = .*\b{name}\b", example)}


RUNNABLE = [
    pytest.param(example, id=name)
    for name, example in EXAMPLES
    if not (set(VALUES) - _stored(example)) & _loaded(example) and "await " not in example and "async " not in example
]


def test_help_of_a_public_class_shows_its_own_docstring() -> None:
    classes = [getattr(perdure.testing, name) for name in perdure.testing.__all__]
    classes += [getattr(perdure, name) for name in perdure.__all__]
    builtin = {each.__doc__ for each in vars(builtins).values()}
    assert [each for each in classes if each.__doc__ in builtin] == []


@pytest.mark.parametrize("example", RUNNABLE)
def test_an_example_that_needs_no_server_runs(example: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    agent = {"name": "shopper", "context": [{"type": "text", "text": "Order three apples."}]}
    files: dict[str, object] = {"shopper.json": agent, "agents/shopper.json": agent}
    files["tests/cases/order.json"] = {"form": 1, "agent": agent, "runs": {}}
    for name, document in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(document), encoding="utf-8")
    space: dict[str, Any] = {"__name__": "example", "__builtins__": builtins}
    exec(compile(IMPORTS, "imports", "exec"), space)
    exec(compile(example, "example", "exec"), space)  # an error in it fails the test


def test_enough_examples_run() -> None:
    assert len(RUNNABLE) > 60
