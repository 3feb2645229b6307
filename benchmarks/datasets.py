"""Public datasets, fetched when a benchmark needs them: none is part of this repository.

`PERDURE_PUBLIC` names the folder that keeps them, by default `.public`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

FOLDER: Final = "PERDURE_PUBLIC"
_HERE: Final = Path(__file__).parent.parent / ".public"
_REPOSITORIES: Final = {
    "NESTFUL": ("IBM", "053cbde0446dddd31e8293f179085e1b39ab79b5", "data/"),
    "NesTools": ("hhan1018", "fb617f396d61ead9f857a48f9ea7cf12fa522450", "data/"),
    "Seal-Tools": (
        "fairyshine",
        "ce753ecd60ed08dd376984035de531ab8421f1c6",
        "Seal-Tools_Dataset/test_*.jsonl Seal-Tools_Dataset/tool.jsonl",
    ),
    "tau2-bench": (
        "sierra-research",
        "a2c024725189473d2d7cea3a5cfdbcc67478e41f",
        "src/tau2/ " + " ".join(f"data/tau2/domains/[ar]*/{file}" for file in ("db.json", "policy.md", "tasks.json")),
    ),
}
"""Owner on GitHub, commit, and the files that are needed."""
_BFCL: Final = "bfcl-eval==2026.3.23"


def repository(name: str) -> Path:
    """Return the folder of a repository at its commit. Fetches the files that are needed, where they are not there."""
    folder = _folder() / name
    if not (folder / ".fetched").exists():
        owner, commit, needed = _REPOSITORIES[name]
        folder.mkdir(parents=True, exist_ok=True)
        for command in (
            "init -q",
            f"config remote.origin.url https://github.com/{owner}/{name}",
            f"sparse-checkout set --no-cone {needed}",
            f"fetch -q --depth 1 --filter=blob:none origin {commit}",
            "checkout -q FETCH_HEAD",
        ):
            _run(["git", "-C", str(folder), *command.split()])
        (folder / ".fetched").touch()
    return folder


def bfcl() -> Path:
    """Return the data of the Berkeley Function Calling Leaderboard, from its package."""
    folder = _folder() / "bfcl"
    if not folder.exists():
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", _BFCL, "-d", str(_folder())])
        wheel = next(_folder().glob("bfcl_eval-*.whl"))
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder)
        wheel.unlink()
    return folder / "bfcl_eval" / "data"


def _folder() -> Path:
    return Path(os.environ.get(FOLDER) or _HERE)


def _run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:  # noqa: S603
        raise SystemExit(f"a public dataset could not be fetched: {' '.join(command)}")
