"""Real tools over a real folder: the demo's hands. They touch nothing outside the folder that they are given."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from perdure import ToolError, tool
from perdure.values.json import JsonObject

QUOTA = 64 * 1024 * 1024
"""Bytes that the demo's "disk" holds."""

Folder = Annotated[str, Field(description="The folder that represents the disk.")]


class Disk(TypedDict):
    usedBytes: int
    quotaBytes: int
    usedPercent: float
    files: int


class LargeFile(TypedDict):
    path: str
    bytes: int


class Freed(TypedDict):
    freedBytes: int
    files: list[str]


class Compressed(TypedDict):
    path: str
    freedBytes: int


class Report(TypedDict):
    beforePercent: float
    afterPercent: float
    freedBytes: int
    actions: list[str]


@tool(safe=True, duration=0.6)
def check_disk(folder: Folder) -> Disk:
    """Measure how full the disk is."""
    time.sleep(0.6)  # a real `du` over a real disk takes its time, and the demo shows what runs beside it
    sizes = [path.stat().st_size for path in _files(_root(folder))]
    used = sum(sizes)
    return {"usedBytes": used, "quotaBytes": QUOTA, "usedPercent": round(100 * used / QUOTA, 1), "files": len(sizes)}


@tool(safe=True, duration=0.6)
def list_large_files(folder: Folder, limit: int = 5) -> list[LargeFile]:
    """List the largest files, largest first."""
    time.sleep(0.6)
    sizes = [LargeFile(path=str(path), bytes=path.stat().st_size) for path in _files(_root(folder))]
    return sorted(sizes, key=lambda file: -file["bytes"])[:limit]


@tool(dangerous=True, duration=0.4)
def clean_logs(folder: Folder, older_than_days: float = 7) -> Freed:
    """Delete rotated log files (*.log.N) that are older than some days. They are gone for good."""
    time.sleep(0.4)
    limit = time.time() - older_than_days * 86400
    old = [path for path in _files(_root(folder)) if ".log." in path.name and path.stat().st_mtime < limit]
    freed = sum(path.stat().st_size for path in old)
    for path in old:
        path.unlink()
    return {"freedBytes": freed, "files": [path.name for path in old]}


@tool(duration=0.8, retries=0)
def compress(path: Annotated[str, Field(description="The file to compress.")]) -> Compressed:
    """Compress one file with gzip and remove the original."""
    source = Path(path)
    if not source.is_file():
        raise ToolError("no_such_file", f"there is no file {path}")
    target = source.with_name(source.name + ".gz")
    with source.open("rb") as original, gzip.open(target, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(original, packed)
    freed = source.stat().st_size - target.stat().st_size
    source.unlink()
    return {"path": str(target), "freedBytes": freed}


@tool(safe=True, duration=0.1)
def disk_report(before: JsonObject, after: JsonObject, actions: list[Any]) -> Report:
    """Sum up what was done: how full the disk was and is, and the bytes freed."""
    return {
        "beforePercent": before["usedPercent"],
        "afterPercent": after["usedPercent"],
        "freedBytes": before["usedBytes"] - after["usedBytes"],
        "actions": [_action(action) for action in actions],
    }


def _action(action: Any) -> str:
    freed = f"{action.get('freedBytes', 0) / 1e6:.1f} MB"
    if "path" in action:
        return f"compressed {Path(action['path']).name}: {freed}"
    return f"deleted {len(action.get('files', []))} old logs: {freed}"


def _root(folder: str) -> Path:
    root = Path(folder)
    if not root.is_dir():
        raise ToolError("no_such_folder", f"there is no folder {folder}")
    return root


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path
