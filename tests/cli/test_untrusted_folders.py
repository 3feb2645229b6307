"""A command that is run in a folder that somebody else has written takes nothing from it but its own files (SECURITY.md)."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.activities.registry import load_tools
from perdure.hosting.settings import load
from tests.support import perdure

LEAVES = "import pathlib\npathlib.Path({path!r}).touch()\n"
"""Code that leaves a mark where it is run."""
SHADOWED = ("cryptography", "cbor2", "networkx", "jsonschema", "yaml", "csv", "sitecustomize", "usercustomize", "tools")


def plant(folder: Path, mark: Path) -> None:
    """Write what a hostile folder may hold: packages under the names of installed ones, and settings."""
    for name in SHADOWED:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(LEAVES.format(path=str(mark)))
    evil = {"PERDURE_CODEC": "tools:evil", "TEMPORAL_ADDRESS": "127.0.0.1:9", "OPENAI_BASE_URL": "http://127.0.0.1:9"}
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in evil.items()))
    (folder / "temporal.toml").write_text('[profile.default]\naddress = "127.0.0.1:9"\n')
    (folder / "agents").mkdir()
    approval = {"approver": "tools:evil"}
    document = {"name": "evil", "context": [], "config": {"approval": approval}}
    (folder / "agents" / "evil.json").write_text(json.dumps(document))


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("command", [["list"], ["approvals"], ["plan", "validate", "agents/evil.json"]])
async def test_a_command_runs_no_code_of_the_folder_it_is_run_in(
    command: list[str], dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    folder = tmp_path / "foreign"
    folder.mkdir()
    plant(folder, mark)
    env = {
        "TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host,
        "PERDURE_CODEC": "perdure.encryption:aes_gcm",
        "PERDURE_CODEC_KEYS": json.dumps({"a": base64.b64encode(b"k" * 32).decode()}),
        "LC_ALL": "C.UTF-8",
    }
    done = await perdure(*command, env=env, cwd=folder)
    assert not mark.exists(), done.err
    assert "127.0.0.1:9" not in done.out + done.err
    assert done.code == 0 or command[0] == "plan", done.err


def test_settings_are_not_read_of_a_dotenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("PERDURE_APPROVAL_FLOOR=always\n")
    monkeypatch.chdir(tmp_path)
    assert load().approval_floor != "always"


def test_installed_modules_go_before_those_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from perdure import tool\n@tool\ndef {name}() -> str:\n    'Mine.'\n    return 'x'\n"
    for folder, module in (("here", "tools_of_both"), ("installed", "tools_of_both"), ("here", "tools_of_here")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{module}.py").write_text(code.format(name=f"{folder}_{module}"))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*(each for each in sys.path if each), str(tmp_path / "installed")])
    found = load_tools(["tools_of_both", "tools_of_here"])
    assert [each.name for each in found] == ["installed_tools_of_both", "here_tools_of_here"]
