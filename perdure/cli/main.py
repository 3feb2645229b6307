"""The program's entry point and exit: `perdure …`, `python -m perdure …` and `python client.py …` are the same."""

from __future__ import annotations

import errno
import os
import signal
import sys

from perdure.cli._console import print_in_any_encoding
from perdure.cli.app import app


def main(*words: str) -> None:
    """Run the command line, with `words` before the given arguments, and end the process with its exit code."""
    if os.getpid() == 1:
        # The first process of a container gets only signals that it handles. Without this, it could not be stopped
        # while it waits.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    print_in_any_encoding(as_json="--json" in sys.argv)
    code = 0
    try:
        try:
            app([*words, *sys.argv[1:]])
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1 if leaving.code else 0
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 1  # The reader of the output, such as `head`, has closed the pipe.
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        code = 1
    # The SDK's threads may call into the interpreter while it shuts down, which sometimes aborts the process.
    # Everything is closed here, so end the process with the command's code.
    os._exit(code)
