"""`python -m benchmarks`: run what is named (default: all), print the tables, and write them into `README.md` and the docs; `guard` compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    conversation,
    engine,
    events,
    guard,
    injection,
    latency,
    limits,
    load,
    loops,
    plan,
    priorities,
    programs,
    prompts,
    public,
    retail,
    scaling,
    start,
    steer,
    stream,
    what_if,
)

BENCHMARKS: dict[str, Callable[[], str]] = {
    "plan": plan.table,
    "compose": plan.compose_table,
    "prompts": prompts.table,
    "latency": latency.table,
    "programs": programs.table,
    "public": public.table,
    "retail": retail.table,
    "steer": engine.run(steer.steer),
    "overhead": engine.run(engine.overhead),
    "throughput": engine.run(engine.throughput),
    "growth": engine.run(engine.growth),
    "conversation": engine.run(conversation.conversation),
    "loops": engine.run(loops.loops),
    "limits": engine.run(limits.limits),
    "injection": injection.table,
    "tokens": engine.run(stream.tokens),
    "actions": engine.run(stream.actions),
    "events": engine.run(events.events),
    "priorities": engine.run(priorities.priorities),
    "scaling": engine.run(scaling.scaling),
    "steady": engine.run(scaling.steady),
    "gateway": engine.run(load.gateway),
    "start": start.table,
    "whatif": what_if.table,
}
HERE = Path(__file__).parent
PAGES = (HERE / "README.md", HERE.parent / "docs" / "cloud.md", HERE.parent / "docs" / "what-if.md")
"""Where tables stand, between their marks."""


def main() -> int:
    if sys.argv[1:2] == ["guard"]:
        return guard.main(sys.argv[2:])
    names = sys.argv[1:] or [
        name for name in BENCHMARKS if name not in ("injection", "public", "retail")
    ]  # which need an extra, and files, of their own
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names:
        table = BENCHMARKS[name]()
        print(f"## {name}\n\n{table}\n", flush=True)
        _write(name, table)
    return 0


def _write(name: str, table: str) -> None:
    """Put the table between its marks."""
    marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
    between = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(between.sub(lambda _: f"{marks[0]}\n{table}\n{marks[1]}", text), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
