"""Options: a port, and a folder to write."""

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


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (file := tmp_path / "afile").write_text("", encoding="utf-8")
    make_folder(tmp_path / "a" / "b", "--to")
    assert (tmp_path / "a" / "b").is_dir()
    for path in (file, file / "below"):
        with pytest.raises(CommandError, match=f"--to: the folder {path} cannot be made: "):
            make_folder(path, "--to")
