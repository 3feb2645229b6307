"""The search attribute by which runs that wait for a person are listed (R7.8)."""

from __future__ import annotations

import asyncio

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.run.wire import WAITING_ATTRIBUTE

_REFUSALS = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAUTHENTICATED)


class WaitingAttribute:
    """Registers `WAITING_ATTRIBUTE` once per worker."""

    def __init__(self) -> None:
        self._problem: str | None = None
        self._known = False
        self._lock = asyncio.Lock()

    async def ensure(self, client: Client) -> str | None:
        """Register it unless it is there; why it cannot be used, or `None`. A refusal for good is not asked for again."""
        async with self._lock:
            if not self._known and self._problem is None:
                try:
                    await _register(client)
                    self._known = True
                except RPCError as error:
                    problem = (
                        f"namespace {client.namespace!r} does not take the search attribute {WAITING_ATTRIBUTE} "
                        f"({error.message}), so 'perdure approvals' cannot list its runs; have it added as an Int"
                    )
                    if error.status not in _REFUSALS:
                        return problem
                    self._problem = problem
            return self._problem


async def _register(client: Client) -> None:
    service = client.operator_service
    found = await service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    if WAITING_ATTRIBUTE in found.custom_attributes:
        return
    request = AddSearchAttributesRequest(namespace=client.namespace)
    request.search_attributes[WAITING_ATTRIBUTE] = IndexedValueType.INDEXED_VALUE_TYPE_INT
    try:
        await service.add_search_attributes(request)
    except RPCError as error:
        # Two workers may start at once.
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise
