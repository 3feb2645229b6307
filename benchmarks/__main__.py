"""`python -m benchmarks`: run what is named (default: all), print the tables."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import latency, plan

BENCHMARKS: dict[str, Callable[[], str]] = {"plan": plan.table, "latency": latency.table}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names:
        print(f"## {name}\n\n{BENCHMARKS[name]()}\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
