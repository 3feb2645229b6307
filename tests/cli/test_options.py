"""Options and arguments: ports, a folder to write, an agent's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure.cli._execute import CommandError
from perdure.cli._options import make_folder
from perdure.cli.app import app


@pytest.mark.parametrize("command", ["inbox", "codec-server"])
@pytest.mark.parametrize("port", ["99999", "-3"])
def test_a_port_that_no_machine_has_is_refused(command: str, port: str) -> None:
    found = CliRunner().invoke(app, [command, "--port", port])
    assert found.exit_code == 2
    assert "--port: must be" in found.output


def test_two_servers_do_not_have_one_port() -> None:
    found = CliRunner().invoke(app, ["dev", "--port", "7300", "--ui-port", "7300"])
    assert found.exit_code == 2
    assert found.stderr == "perdure: --port and --ui-port are both 7300: give each another port\n"


@pytest.mark.parametrize("words", [["start", "desk", "agents/writer.json"], ["stop", "writer.json"]])
def test_a_path_is_no_name(words: list[str]) -> None:
    found = CliRunner().invoke(app, ["rollout", *words, *(["--share", "5"] if words[0] == "start" else [])])
    assert found.exit_code == 2
    assert f"{words[-1]!r} is a path; give the agent's name in the agents folder, such as 'writer'" in found.output


def test_an_unknown_agent_is_answered_with_one_alike(tmp_path: Path) -> None:
    (tmp_path / "shopper.json").write_text("{}", encoding="utf-8")
    found = CliRunner().invoke(app, ["run", "shoper", "--agents", str(tmp_path)])
    assert found.exit_code == 2
    assert found.stderr.endswith(f"no {tmp_path}/shoper.json; did you mean 'shopper'?\n")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (file := tmp_path / "afile").write_text("", encoding="utf-8")
    make_folder(tmp_path / "a" / "b", "--to")
    assert (tmp_path / "a" / "b").is_dir()
    for path in (file, file / "below"):
        with pytest.raises(CommandError, match=f"--to: the folder {path} cannot be made: "):
            make_folder(path, "--to")
