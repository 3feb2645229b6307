"""The Compose file: accepted by whichever program there is, and brought up where an engine answers."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from perdure import Agent, Perdure, tool
from perdure.errors import ServerError
from perdure.testing import run_locally
from tests.support import ROOT

FILE = "docker-compose.temporal.yml"
SERVICES = ("postgresql", "temporal-schema", "temporal", "temporal-namespace", "temporal-ui", "worker")
PROGRAMS = {"docker compose": ["docker", "compose"], "docker-compose": ["docker-compose"]}
ADDRESS = "127.0.0.1:7233"


def missing(program: list[str]) -> str | None:
    """Why the program cannot be used here, or `None`."""
    if shutil.which(program[0]) is None:
        return f"no {program[0]} here"
    said = subprocess.run([*program, "version"], capture_output=True, text=True)
    return None if said.returncode == 0 else f"no {' '.join(program)} here: {_first(said.stderr)}"


def no_engine() -> str | None:
    """Why nothing can be brought up here, or `None`."""
    if shutil.which("docker") is None:
        return "no docker here to ask for an engine"
    said = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True)
    return (
        None if said.returncode == 0 and said.stdout.strip() else f"no container engine answers: {_first(said.stderr)}"
    )


def _first(text: str) -> str:
    return next(iter(text.strip().splitlines()), "it says nothing")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A `.env`, and agents for the worker."""
    (tmp_path / "agents").mkdir()
    path = tmp_path / "compose.env"
    path.write_text(f"POSTGRES_PASSWORD=not-a-secret\nPERDURE_AGENTS={tmp_path / 'agents'}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_compose_file_is_accepted(program: list[str], environment: Path) -> None:
    if reason := missing(program):
        pytest.skip(reason)
    command = [*program, "-f", FILE, "--env-file", str(environment), "config"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert [service for service in SERVICES if f"  {service}:" not in checked.stdout] == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_the_services_come_up_and_run_an_agent(environment: Path) -> None:
    usable = [program for program in PROGRAMS.values() if missing(program) is None]
    if reason := no_engine() or (None if usable else "neither docker compose nor docker-compose is here"):
        pytest.skip(reason)
    from testcontainers.compose import DockerCompose

    program = None if usable[0] == ["docker", "compose"] else usable[0][0]
    services = DockerCompose(ROOT, FILE, build=True, wait=False, env_file=str(environment), docker_command_path=program)

    @tool
    async def greet(name: str) -> str:
        """Greet."""
        return f"hello, {name}"

    plan = {
        "calls": [{"_tool": "greet", "name": "you", "_outputPath": "†state.said"}],
        "output": {"said": "†state.said"},
    }
    with services:
        perdure = await _connected()
        async with asyncio.timeout(300):
            while True:  # its image is built, then it waits for the namespace
                if await perdure.has_worker("perdure"):
                    break
                await asyncio.sleep(1)
        async with run_locally(Agent("greeter", tools=[greet]), model=[plan], server=ADDRESS) as local:
            assert (await local.run()).output == {"said": "hello, you"}


async def _connected() -> Perdure:
    async with asyncio.timeout(600):
        while True:
            try:
                return await Perdure.connect(ADDRESS)
            except ServerError:
                await asyncio.sleep(1)
