"""The image: built by Buildah on a base of Debian's packages, its worker and gateway run against a dev server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure
from perdure.hosting.server import free_port
from tests.support import ROOT
from tests.timeouts import HANG

BASE = "docker.io/library/python:3.11-slim"
AGENT = {
    "name": "planned",
    "config": {"start": "plan"},
    "context": [
        {
            "type": "plan",
            "plan": [{"_tool": "sleep", "seconds": 0.01, "_outputPath": "†state.slept"}],
            "output": {"slept": True},
        }
    ],
    "schema": {"type": "object"},
}


def missing() -> str | None:
    """Return why no image can be built here, or `None`."""
    if os.getuid() != 0:
        return "building without an engine needs root"
    return next((f"no {name} here" for name in ("buildah", "debootstrap") if shutil.which(name) is None), None)


class Images:
    """Buildah with a store of its own, without a daemon and without namespaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._options = ["--storage-driver", "overlay", "--root", f"{folder}/store", "--runroot", f"{folder}/run"]

    def command(self, *words: str) -> list[str]:
        return ["buildah", *self._options, *words]

    def do(self, *words: str) -> str:
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """The image `perdure-worker`, as the Dockerfile makes it. Docker's own base cannot be had without its registry."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("image")
    root = folder / "root"
    include = "--include=python3,python3-venv,python-is-python3,ca-certificates"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", include, "bookworm", str(root)], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"Debian's packages cannot be had: {made.stderr.strip()[-200:]}")
    certificates = "etc/ssl/certs/ca-certificates.crt"  # a proxy of this machine may have added its own
    shutil.copyfile(f"/{certificates}", root / certificates)
    found = Images(folder)
    base = found.do("from", "scratch")
    subprocess.run(["tar", "-C", str(root), "-cf", str(folder / "base.tar"), "."], check=True)
    found.do("add", base, str(folder / "base.tar"), "/")
    found.do("commit", base, BASE)
    shutil.rmtree(root)
    trusted = f"PIP_CERT=/{certificates}"
    found.do(
        *("bud", "--isolation", "chroot", "--format", "docker", "--pull-never", "--env", trusted),
        *("-t", "perdure-worker", str(ROOT)),
    )
    yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """A folder with one agent, which the image's user may read."""
    tmp_path.chmod(0o755)
    (tmp_path / "planned.json").write_text(json.dumps(AGENT), encoding="utf-8")
    return tmp_path


@asynccontextmanager
async def running(images: Images, environment: dict[str, str], agents: Path, *words: str) -> AsyncIterator[None]:
    """A container that runs a command, on the network of this machine."""
    container = images.do("from", "--pull-never", "localhost/perdure-worker")
    variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    command = images.command(
        *("run", "--isolation", "chroot", "--volume", f"{agents}:/app/agents:ro", *variables, container, *words)
    )
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()
        images.do("rm", container)


async def answers(address: str) -> None:
    async with asyncio.timeout(HANG), httpx2.AsyncClient(timeout=HANG) as client:
        while True:
            try:
                if (await client.get(address)).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_a_worker_and_a_gateway_in_the_image_run_an_agent(
    images: Images, dev_server: WorkflowEnvironment, agents: Path
) -> None:
    health, port = free_port(), free_port()
    address = str(dev_server.client.service_client.config.target_host)
    queue = f"image-{port}"
    environment = {
        "TEMPORAL_ADDRESS": address,
        "OPENAI_API_KEY": "none",
        "PERDURE_TASK_QUEUE": queue,
        "PERDURE_AGENTS": "/app/agents",
    }
    async with (
        running(images, {**environment, "PERDURE_HEALTH_PORT": str(health)}, agents, "perdure", "worker"),
        running(images, environment, agents, "perdure", "serve", "--port", str(port)),
    ):
        await answers(f"http://127.0.0.1:{health}/readyz")
        await answers(f"http://127.0.0.1:{port}/readyz")
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG) as client:
            started = await client.post("/v1/runs", json={"agent": "planned"})
            assert started.status_code == 201, started.text
        run = Perdure(dev_server.client).get_run(started.json()["runId"])
        assert await run.result() == {"slept": True}
