"""The program `perdure`: each command loads its own module, and none is forgotten."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.core
import typer.main

from perdure.cli.app import PLACES, app
from tests.support import ROOT


@pytest.mark.parametrize("place", sorted(set(PLACES.values())))
def test_every_command_of_a_module_can_be_typed(place: str) -> None:
    module, _, apps = place.partition(":")
    declared = typer.main.get_group(getattr(importlib.import_module(f"perdure.cli.{module}"), apps)).commands
    named = [name for name, found in PLACES.items() if found == place]
    group = typer.main.get_group(app)
    if named[0] in declared:
        assert set(named) == set(declared)
    else:
        assert len(named) == 1, "a group has one name"
        own = group.commands[named[0]]
        assert isinstance(own, typer.core.TyperGroup)
        assert set(own.commands) == set(declared)
    assert [group.commands[name].name for name in named] == named


def test_no_command_is_loaded_for_the_version() -> None:
    code = (
        "import sys; sys.argv = ['perdure', '--version']; from perdure.cli.app import app\n"
        "try: app()\nexcept SystemExit as left: assert not left.code\n"
        "assert not {'pydantic', 'networkx', 'temporalio'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("perdure ")


def test_help_loads_neither_graphs_nor_agents_nor_a_client() -> None:
    code = (
        "import sys; sys.argv = ['perdure', 'run', '--help']; from perdure.cli.app import app\n"
        "try: app()\nexcept SystemExit as left: assert not left.code\n"
        "assert not {'networkx', 'temporalio', 'openai', 'perdure.agents.agent'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_command_is_answered_with_one_alike() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "shwo"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "show" in done.stderr


def test_a_reader_that_closes_the_pipe_causes_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"calls": [{"_tool": "now"}]}')
    words = ["plan", "validate", str(tmp_path / "plan.json"), "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "perdure", *words],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            check=False,
            stdout=writer,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"calls": [{"_tool": "now"}]}')
    words = ["plan", "validate", str(tmp_path / "plan.json"), "--json"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perdure", *words], cwd=ROOT, check=False, stdout=full, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (1, b"the output cannot be written: No space left on device\n")
