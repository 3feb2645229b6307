"""`perdure init`, `tools`, `schema`, `--version`: what one begins with (issue 20)."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from perdure import Agent
from perdure.agents.schema import agent_schema, field_docstrings
from perdure.cli._project_commands import FILES
from perdure.cli.app import app
from perdure.errors import AgentError
from perdure.runs.agent import AgentSpec as Parsed
from perdure.runs.agent import Config, ModelSampling
from perdure.values.json import Json

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema.Draft202012Validator(agent_schema())


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_init_writes_a_project_that_runs_and_touches_nothing_that_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert invoke("init", str(folder)).exit_code == 0
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == sorted(
        [*FILES, "agent.schema.json"]
    )
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr
    again = invoke("init", str(folder))
    assert (again.exit_code, again.stderr) == (
        2,
        f"perdure: nothing was written: {folder / 'mytools.py'} already exists; give another folder\n",
    )


def test_the_agent_that_init_writes_is_the_one_of_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("init", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("shopping", "mytools"):
        sys.modules.pop(name, None)
    import shopping  # type: ignore[import-not-found]

    try:
        document = Agent.read_to_run("shopper").document()
        assert document.pop("$schema") == "../agent.schema.json"
        assert shopping.shopper.document() == document
    finally:
        for name in ("shopping", "mytools"):
            sys.modules.pop(name, None)


def test_the_tools_of_a_worker_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = json.loads(invoke("tools", "--tools", "perdure.demo.tools", "--files", str(tmp_path), "--json").stdout)
    names = {definition["name"] for definition in listed}
    assert {"check_disk", "read_file", "now", "ask_person"} <= names
    shown = invoke("tools", "--tools", "perdure.demo.tools").stdout
    assert "clean_logs" in shown
    assert "dangerous" in shown
    assert "undo              calls?                    exclusive" in shown


def test_a_flag_of_names_given_twice_has_the_names_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = invoke("tools", "--tools", "examples.shop.support", "--tools", "examples.shop.nightly", "--json")
    once = invoke("tools", "--tools", "examples.shop.support,examples.shop.nightly", "--json")
    assert twice.stdout == once.stdout
    monkeypatch.setenv("PERDURE_TOOLS", "examples.shop.nightly")
    assert "refunds_so_far" not in invoke("tools", "--tools", "").stdout
    assert "refunds_so_far" in invoke("tools").stdout
    assert {"find_order", "refunds_so_far"} <= {tool["name"] for tool in json.loads(once.stdout)}


def test_the_schema_takes_every_agent_file_that_there_is() -> None:
    files = [*ROOT.glob("examples/*/agents/*.json"), *ROOT.glob("perdure/demo/agents/*.json")]
    assert len(files) > 5
    for path in files:
        assert [error.message for error in SCHEMA.iter_errors(json.loads(path.read_text(encoding="utf-8")))] == []
    documents: list[Json] = [
        {"name": "a", "config": {"approval": "plan"}, "context": [{"type": "input", "request": "x"}]},
        {"context": [{"type": "data", "kind": "user", "data": {}}, {"role": "user", "content": "x"}], "schema": True},
        [{"type": "text", "text": "x"}, {"type": "error", "data": {"call": None, "error": {}}}],
    ]
    for document in documents:
        assert [error.message for error in SCHEMA.iter_errors(document)] == []
        Agent.of(document)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"name": "a", "config": {"dialct": "tools"}}, "$.config"),
        ({"name": "a", "config": {"max_requests": 0}}, "$.config.max_requests"),
        ({"name": "a", "config": {"approval": {"ask": "maybe"}}}, "$.config.approval"),
        ({"context": [{"type": "system", "txt": "x"}]}, "$.context[0]"),
        ([{"type": "inptu"}], "$[0].type"),
        ({"schma": {}}, "$"),
    ],
)
def test_the_schema_finds_what_a_run_would_refuse(document: Any, where: str) -> None:
    assert where in {error.json_path for error in SCHEMA.iter_errors(document)}
    with pytest.raises(AgentError):
        Agent.of(document)


def test_every_key_is_described() -> None:
    for model in (Config, ModelSampling, Parsed):
        silent = set(model.model_fields) - set(field_docstrings(model)) - {"context", "output_schema", "config"}
        assert silent == set(), model


def test_the_schema_is_printed_or_written(tmp_path: Path) -> None:
    assert json.loads(invoke("schema").stdout) == agent_schema()
    assert invoke("schema", "--out", str(tmp_path / "s.json")).exit_code == 0
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) == agent_schema()


def test_the_version_and_completion() -> None:
    assert invoke("--version").stdout == f"perdure {version('perdure')}\n"
    assert "--install-completion" in invoke("--help").stdout
