"""What a call's effect is called, for whoever makes it once (R6.7)."""

from __future__ import annotations

import hashlib

from perdure.values.jsons import JsonObject, dumps


def idempotency_key(run_id: str, call_id: str, tool: str, params: JsonObject) -> str:
    """`<run id>/<call id>:<digest>`, the digest being 12 hexadecimal digits over the tool's name and its resolved parameters.

    The same on each attempt and after a reset with the same plan. A plan that is another after a reset has the same call ids, so
    the digest tells its effects from those that were made before.
    """
    digest = hashlib.sha256(dumps([tool, params], sort_keys=True).encode(errors="replace")).hexdigest()[:12]
    return f"{run_id}/{call_id}:{digest}"
