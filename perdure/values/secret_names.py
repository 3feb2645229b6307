"""Names of secret values: of variables, headers, and keys of a context."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "[masked]"
_NAMES: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def looks_secret(name: str) -> bool:
    """Whether a variable, header or key of this name holds a secret."""
    return bool(_NAMES.search(name)) or name.lower() in ("authorization", "cookie", "proxy-authorization")
