"""The user of this machine, for records of who did something at the command line (R24.4)."""

from __future__ import annotations

import getpass
import os


def local_user() -> str:
    """Return the name of this process's user; with `sudo` that of the caller. A user without a name is `uid 1000`.

    The name proves nothing: whoever has the machine may set it. It is never empty, so each decision names somebody.
    """
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # no entry for this number, as in a container
        return f"uid {os.getuid()}"
