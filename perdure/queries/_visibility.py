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
    """Return a value of a run's memo, or `default` if it has none that this process can decode.

    So one run with another encryption key, or with a memo of another program, does not make a list fail.
    """
    try:
        value: _T = await found.memo_value(key, default, type_hint=type_hint)
    except Exception:  # a codec and a converter may raise anything
        return default
    return value


class SearchAttributes:
    """The registration of `ATTRIBUTES`, once per worker. An attribute that the namespace lacks would fail a run's
    tasks, so only `known` ones are set.
    """

    def __init__(self) -> None:
        self.known: list[str] = []
        """The usable attributes, after `ensure`."""
        self._problem: str | None = None
        self._requested = False
        self._lock = asyncio.Lock()

    async def ensure(self, client: Client) -> str | None:
        """Register missing attributes, and return the reason why some cannot be used, or `None`. A permanent refusal is
        not retried.
        """
        async with self._lock:
            if not self._requested:
                try:
                    refused = await self._register(client)
                    self._requested = True
                except RPCError as error:  # it does not even list its attributes
                    refused = f"({error.message})"
                    self._requested = error.status in _REFUSALS
                self._problem = None if refused is None else self._words(client, refused)
            return self._problem

    def forget(self) -> None:
        """Register again before the next run: another server may have other attributes."""
        self._requested = False

    def _words(self, client: Client, refused: str) -> str:
        missing = [name for name in ATTRIBUTES if name not in self.known]
        lists = "'perdure approvals'" if WAITING_ATTRIBUTE in missing else "'perdure list'"
        wanted = ", ".join(f"{name} ({ATTRIBUTES[name]})" for name in missing)
        return f"namespace {client.namespace!r} does not take the search attributes {wanted} {refused}, so {lists} cannot find runs by them; ask an administrator to add them"

    async def _register(self, client: Client) -> str | None:
        """Record the attributes that the namespace has, and register the others. Return the reason of a failure. Raises
        `RPCError` if the server does not answer.
        """
        service = client.operator_service
        found = await service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        there = dict(found.custom_attributes)
        self.known = [name for name, kind in ATTRIBUTES.items() if there.get(name) == _TYPES[kind]]
        refused = (
            "(others have that name)" if any(name in there and name not in self.known for name in ATTRIBUTES) else None
        )
        missing = [name for name in ATTRIBUTES if name not in there]
        try:
            await add_attributes(client, missing)
            self.known += missing
        except RPCError as together:
            if together.status in _REFUSALS:
                return f"({together.message})"
            for name in missing:  # a namespace may accept only some, and two workers may start at once
                try:
                    await add_attributes(client, [name])
                except RPCError as error:
                    if error.status != RPCStatusCode.ALREADY_EXISTS:
                        refused = f"({error.message})"
                        continue
                self.known.append(name)
        return refused


async def add_attributes(client: Client, names: list[str]) -> None:
    """Register these `ATTRIBUTES`. Raises `RPCError`, e.g. if one of them already exists."""
    if names:
        request = AddSearchAttributesRequest(namespace=client.namespace)
        for name in names:
            request.search_attributes[name] = _TYPES[ATTRIBUTES[name]]
        await client.operator_service.add_search_attributes(request)
