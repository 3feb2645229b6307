"""A work folder for the demo, filled with real files: logs, caches and a large dump."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

DAY = 86400.0


def fill(root: Path, seed: int = 7) -> None:
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
