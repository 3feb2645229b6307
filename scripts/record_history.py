"""Records the history of the demo's run, which `tests/test_replay.py` replays.

    .venv/bin/python scripts/record_history.py

Record anew only before a release, or when the demo's script changes: a history that no longer replays is a finding.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from waiting_demo import waiting_demo

TARGET = Path(__file__).parents[1] / "tests" / "histories" / "demo.json"


def without_traces(history: Any) -> Any:
    """Stack traces name the folders of this machine, and no replay reads them."""
    if isinstance(history, list):
        return [without_traces(item) for item in history]
    if not isinstance(history, dict):
        return history
    return {key: without_traces(value) for key, value in history.items() if key != "stackTrace"}


async def main() -> None:
    """Run the demo's agent once, and write its history down."""
    async with waiting_demo("demo") as (_, handle):
        await handle.signal("approve", {"call": "1.2", "by": "Ann"})
        await handle.result()
        history = json.loads((await handle.fetch_history()).to_json())
        TARGET.write_text(json.dumps(without_traces(history), indent=1) + "\n", encoding="utf-8")
    Console().print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
