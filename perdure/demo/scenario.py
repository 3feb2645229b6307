"""The demo's scenario: the answers of its scripted model, and a work folder with real files."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path

from perdure.testing.scripted_model import ChatRequest, Turn
from perdure.values.json import JsonObject

FIRST: JsonObject = {
    "calls": [
        {"_tool": "check_disk", "folder": "†input.folder", "_outputPath": "†state.before"},
        {"_tool": "list_large_files", "folder": "†input.folder", "limit": 3, "_outputPath": "†state.large"},
        # Only after the disk was measured: the gate makes it wait, its value is the last.
        {
            "_tool": "clean_logs",
            "folder": "†state.before && †input.folder",
            "older_than_days": 7,
            "_outputPath": "†state.logs",
        },
        # A guess at the dump's name, as a model in a hurry makes it: the tool will say that there is no such file.
        {"_tool": "compress", "path": "{†input.folder}/dumps/orders.sql", "_outputPath": "†state.dump"},
        {
            "_tool": "check_disk",
            "folder": "†state.logs && †state.dump && †input.folder",
            "_outputPath": "†state.after",
        },
        {
            "_tool": "disk_report",
            "before": "†state.before",
            "after": "†state.after",
            "actions": ["†state.logs", "†state.dump"],
            "_outputPath": "†state.report",
        },
    ],
    "output": None,
}


def second_plan(request: ChatRequest) -> JsonObject:
    """Compress the dump by its real name, and the rest again; without the logs, if a person did not want them deleted."""
    cleaned = ["†state.logs"] if "logs" in _state(request) else []
    return {
        "calls": [
            {"_tool": "compress", "path": "†state.large[0].path", "_outputPath": "†state.dump"},
            {"_tool": "check_disk", "folder": "†state.dump && †input.folder", "_outputPath": "†state.after"},
            {
                "_tool": "disk_report",
                "before": "†state.before",
                "after": "†state.after",
                "actions": [*cleaned, "†state.dump"],
                "_outputPath": "†state.report",
            },
        ],
        "output": None,
    }


def final_answer(request: ChatRequest) -> JsonObject:
    """Return the answer, from the report that the prompt shows."""
    report = _state(request).get("report", {})
    freed = report.get("freedBytes", 0)
    summary = (
        f"The disk was {report.get('beforePercent')} % full and is {report.get('afterPercent')} % full now: "
        f"{'; '.join(report.get('actions', []))}."
    )
    return {"calls": [], "output": {"summary": summary, "freedBytes": freed}}


def _state(request: ChatRequest) -> JsonObject:
    """Return the state as the prompt shows it."""
    shown = re.search(r"^# state\n(\{.*\})$", request.text, re.MULTILINE)
    state: JsonObject = json.loads(shown.group(1)) if shown else {}
    return state


SCRIPT = [Turn(FIRST), Turn(second_plan), Turn(final_answer)]


DAY = 86400.0


def write_files(root: Path, seed: int = 7) -> None:
    """Write about 60 MB: rotated logs of several ages, a cache that does not compress, and a database dump that does."""
    chance = random.Random(seed)
    for folder in ("logs", "cache", "dumps"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    line = "2026-11-20T12:00:00Z INFO web-03 request served in 12 ms status=200 path=/api/v1/orders\n"
    for service in ("nginx", "app", "worker"):
        _write(root / "logs" / f"{service}.log", line.encode() * 2_000, age=0)
        for number in range(1, 5):
            _write(root / "logs" / f"{service}.log.{number}", line.encode() * 15_000, age=number * 4 * DAY)
    for number in range(8):
        _write(root / "cache" / f"object-{number:03}.bin", chance.randbytes(1_000_000), age=DAY)
    rows = "".join(
        f"INSERT INTO orders VALUES ({n}, 'customer-{chance.randrange(10**6)}', {chance.random():.6f}, 'shipped');\n"
        for n in range(20_000)
    )
    _write(root / "dumps" / "orders-2026-11-19.sql", rows.encode() * 25, age=DAY)


def _write(path: Path, content: bytes, age: float) -> None:
    path.write_bytes(content)
    then = time.time() - age
    os.utime(path, (then, then))
