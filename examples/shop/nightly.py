"""The tool of the nightly batch. Customers do not reach it: the agent at the desk does not have it."""

from __future__ import annotations

from typing import Any

from examples.shop.database import database
from perdure import tool


@tool(safe=True)
def refunds_so_far() -> dict[str, Any]:
    """Return the number of refunds, and their sum in euros."""
    with database() as db:
        count, euros = db.execute("select count(*), coalesce(sum(euros), 0) from refunds").fetchone()
    return {"count": count, "euros": euros}
