"""The search attributes by which runs are listed (R7.8)."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from perdure.runs.wire import ATTRIBUTES, WAITING_ATTRIBUTE

_REFUSALS: Final = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAUTHENTICATED)
_TYPES: Final = {
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}

_T = TypeVar("_T")


async def read_memo(found: WorkflowExecution, key: str, default: _T, type_hint: type[_T]) -> _T:
    """Return a value of a run's memo, or `default` where it has none that this process can decode.

    A list does not fail because one run of it is encrypted with another key, or has a memo that somebody else wrote.
    """
    try:
        value: _T = await found.memo_value(key, default, type_hint=type_hint)
    except Exception:  # a codec and a converter may raise anything
        return default
    return value


class SearchAttributes:
    """Registers `ATTRIBUTES` once per worker. Nothing is set that the namespace does not know: that would fail a run's tasks for ever."""

    def __init__(self) -> None:
        self.known: list[str] = []
        """Those that can be used, once `ensure` was asked."""
        self._problem: str | None = None
        self._requested = False
        self._lock = asyncio.Lock()

    async def ensure(self, client: Client) -> str | None:
        """Register those that are not there; why some cannot be used, or `None`. A refusal for good is not asked for again."""
        async with self._lock:
            if not self._requested:
                try:
                    refused = await self._register(client)
                    self._requested = True
                except RPCError as error:  # it cannot even say what it knows
                    refused = f"({error.message})"
                    self._requested = error.status in _REFUSALS
                self._problem = None if refused is None else self._words(client, refused)
            return self._problem

    def forget(self) -> None:
        """Ask again before the next run: the server that is there now may know others."""
        self._requested = False

    def _words(self, client: Client, refused: str) -> str:
        missing = [name for name in ATTRIBUTES if name not in self.known]
        lists = "'perdure approvals'" if WAITING_ATTRIBUTE in missing else "'perdure list'"
        wanted = ", ".join(f"{name} ({ATTRIBUTES[name]})" for name in missing)
        return (
            f"namespace {client.namespace!r} does not take the search attributes {wanted} {refused}, so {lists} cannot find runs by "
            "them; have them added"
        )

    async def _register(self, client: Client) -> str | None:
        """Record the attributes that the namespace has, and register the others. Return why one could not be registered. Raises `RPCError` if the server does not answer."""
        service = client.operator_service
        found = await service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        there = dict(found.custom_attributes)
        self.known = [name for name, kind in ATTRIBUTES.items() if there.get(name) == _TYPES[kind]]
        refused = (
            "(there are others of that name)"
            if any(name in there and name not in self.known for name in ATTRIBUTES)
            else None
        )
        missing = [name for name in ATTRIBUTES if name not in there]
        try:
            await add_attributes(client, missing)
            self.known += missing
        except RPCError as together:
            if together.status in _REFUSALS:
                return f"({together.message})"
            for name in missing:  # a namespace may have room for some, and two workers may start at once
                try:
                    await add_attributes(client, [name])
                except RPCError as error:
                    if error.status != RPCStatusCode.ALREADY_EXISTS:
                        refused = f"({error.message})"
                        continue
                self.known.append(name)
        return refused


async def add_attributes(client: Client, names: list[str]) -> None:
    """Register these of `ATTRIBUTES`. Raises `RPCError`, e.g. where one of them is there already."""
    if names:
        request = AddSearchAttributesRequest(namespace=client.namespace)
        for name in names:
            request.search_attributes[name] = _TYPES[ATTRIBUTES[name]]
        await client.operator_service.add_search_attributes(request)
