"""The program's entry point and exit: `perdure …`, `python -m perdure …` and `python client.py …` are the same."""

from __future__ import annotations

import os
import signal
import sys

from perdure.cli._console import print_in_any_encoding
from perdure.cli.app import app


def main(*words: str) -> None:
    """Run the command line, `words` before what was given, and leave the process with its exit code."""
    if os.getpid() == 1:
        # A container's first process gets no signal that it does not handle: one that still waits for its server could not be stopped.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    print_in_any_encoding(as_json="--json" in sys.argv)
    try:
        app([*words, *sys.argv[1:]])
    except SystemExit as leaving:
        # The SDK's threads may still call into the interpreter while it takes itself down, which aborts the process now
        # and then. Everything is closed by here; what is printed is flushed, and the code is the command's own.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leaving.code if isinstance(leaving.code, int) else 1 if leaving.code else 0)
