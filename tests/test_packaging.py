"""What is installed: one import name, beside whatever a user's own project is called (R13.1)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.testing.scripted_model import ScriptedModel
from tests.support import ROOT

TAKEN = ("workflows", "activities", "cli", "client", "worker", "demo", "agents")
"""Names that a user's project has, and that Perdure's own folders have too."""

TOOLS = '''
from perdure import tool
from workflows import RULES

@tool
def price(fruit: str) -> float:
    """The price of a fruit."""
    return RULES[fruit]
'''

WORKER = """
import sys

import activities.shop, agents, cli, client, demo, workflows
import perdure.activities.calls, perdure.workflows.agent
from perdure.cli.main import main

assert all(sys.modules[name].__file__.startswith(sys.path[0]) for name in ("activities", "agents", "cli", "client", "demo", "workflows"))
sys.argv[1:1] = ["worker"]
main()
"""

AGENT: dict[str, Any] = {
    "name": "packaged",
    "context": [{"type": "system", "text": "Plan."}, {"type": "tool", "tool": "price"}],
    "schema": True,
}
PLAN = {"calls": [{"_tool": "price", "fruit": "apple", "_outputPath": "†state.price"}], "output": "priced"}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def python(distributions: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare environment with the wheel; the libraries that it needs are this one's, without this one's Perdure."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    (wheel,) = (path for path in distributions if path.suffix == ".whl")
    into = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(into)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    (into / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose own packages have the names of Perdure's folders."""
    for name in TAKEN:
        if name in ("client", "worker"):
            (tmp_path / f"{name}.py").write_text(WORKER if name == "worker" else "")
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "workflows" / "__init__.py").write_text('RULES = {"apple": 0.5}\n')
    (tmp_path / "activities" / "shop.py").write_text(TOOLS)
    (tmp_path / "agents" / "packaged.json").write_text(json.dumps(AGENT))
    return tmp_path


def test_r13_1_the_distributions_own_one_name(distributions: list[Path]) -> None:
    sdist, wheel = sorted(distributions, key=lambda path: path.suffix)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"perdure"}
    for needed in (
        "py.typed",
        "workflows/agent.py",
        "activities/calls.py",
        "pages/templates/inbox.html",
        "pages/static/vendor/htmx.min.js",
        "pages/static/vendor/LICENSES.txt",
        "demo/agents/devops.json",
    ):
        assert f"perdure/{needed}" in names
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    roots = {member.name.split("/")[1] for member in members if "/" in member.name}
    assert roots.isdisjoint(TAKEN), "the sdist holds nothing twice"
    assert "perdure" in roots


def test_r13_8_every_public_name_comes_with_the_wheel(python: Path) -> None:
    load = "import perdure, perdure.testing as kit; [getattr(m, name) for m in (perdure, kit) for name in m.__all__]; print(perdure.__file__)"
    loaded = subprocess.run([str(python), "-I", "-c", load], capture_output=True, text=True)
    assert loaded.stderr == ""
    assert Path(loaded.stdout).is_relative_to(python.parents[1])


@pytest.mark.soak  # an environment of its own, for seven CPU seconds
async def test_r13_1_a_project_with_packages_of_those_names_runs(
    dev_server: WorkflowEnvironment, python: Path, project: Path
) -> None:
    address = dev_server.client.service_client.config.target_host
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TEMPORAL_", "PERDURE_"))}
    async with ScriptedModel([PLAN, PLAN]) as model:
        env = {
            **clean,
            "TEMPORAL_ADDRESS": address,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "scripted",
            "PERDURE_TASK_QUEUE": "beside",
        }
        perdure = [str(python), "-m", "perdure"]
        own, installed = [str(python), "worker.py"], [*perdure, "worker"]
        for program in (own, installed):
            worker = await asyncio.create_subprocess_exec(
                *(*program, "--tools", "activities.shop", "--agents", "agents"),
                cwd=project,
                env=env,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                assert worker.stderr is not None
                said = (await worker.stderr.readline()).decode()
                assert "task queue 'beside'" in said, said + (await worker.stderr.read()).decode()
                run = await asyncio.create_subprocess_exec(
                    *(*perdure, "run", "packaged", "--json"), cwd=project, env=env, stdout=asyncio.subprocess.PIPE
                )
                out, _ = await run.communicate()
            finally:
                worker.terminate()
                await worker.wait()
            assert json.loads(out)["state"] == {"price": 0.5}
