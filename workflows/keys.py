"""The owner of an idempotency key that no run owns. It ends at once; the server keeps its id and memo while it keeps
ended workflows (R10.1).
"""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.sessions.wire import KEY_WORKFLOW
    from perdure.values.json import Json


@workflow.defn(name=KEY_WORKFLOW)
class KeyWorkflow:
    """A workflow without input or action: its id is made of the key, its memo holds a digest of the request."""

    @workflow.run
    async def run(self, *_: Json) -> None:
        """End."""
