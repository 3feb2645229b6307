"""The user of this machine, for records of who did something at the command line (R24.4)."""

from __future__ import annotations

import getpass
import os
import socket


def local_user() -> str:
    """Return `user@host` of this process; with `sudo` the user who called it.

    The name proves nothing: whoever has the machine may set it. It tells an auditor where to look.
    """
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # no entry for this number, as in a container
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
