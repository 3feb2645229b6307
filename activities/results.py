"""The encoding of a tool's result before its activity ends: nothing else may be lost then, because the tool has run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from pydantic import PrivateAttr
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from perdure.errors import MediaError, ToolError
from perdure.tools.invocation import ToolResult
from perdure.values.limits import RESULT_NOT_STORED

_log: Final = logging.getLogger("perdure.run")
_T = TypeVar("_T")

_PAUSE: Final = 1.0
"""Seconds until a failed storage or codec is tried again."""
_SHARE: Final = 0.9
"""Share of the attempt's remaining time that the storage may take, so that a failure is reported in time."""


class EncodedResult(ToolResult):
    """A result whose payload exists already: `perdure.hosting.sdk_internals.Converter` encodes it no second time."""

    _payload: Payload = PrivateAttr()

    @property
    def payload(self) -> Payload:
        return self._payload


class ResultStorage:
    """The storage of one tool's result, in the time that its attempt has left. Create it when the attempt begins."""

    def __init__(self, tool: str) -> None:
        self._tool, self._began, self._problem = tool, time.monotonic(), ""

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Run the body, whose tool has returned. Raise `ToolError` (`RESULT_NOT_STORED`) if the attempt is about to
        end, or is cancelled, before the body ends: the tool must not run again.
        """
        limit = activity.info().start_to_close_timeout
        left = None if limit is None else _SHARE * (self._began + limit.total_seconds() - time.monotonic())
        timer = asyncio.timeout(left)
        try:
            async with timer:
                yield
        except (TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, TimeoutError) and not timer.expired():
                raise
            why = self._problem or ("its attempt had no time left" if timer.expired() else "it was interrupted")
            message = (
                f"{self._tool} has run, but its result could not be stored ({why}). Do not assume that it had no effect"
            )
            raise ToolError(RESULT_NOT_STORED, message) from None

    async def encode(self, result: ToolResult) -> EncodedResult:
        """Return the result with its payload, encoded and stored as the SDK would do it."""
        [payload] = await self.store(lambda: _converter().encode([result]))
        encoded = EncodedResult.model_construct(result.model_fields_set, **dict(result))
        encoded._payload = payload
        return encoded

    async def store(self, store: Callable[[], Awaitable[_T]]) -> _T:
        """Return what `store` returns. Repeat it until it succeeds. Raise `MediaError` at once."""
        info = activity.info()
        place = {"run": info.workflow_id, "call": info.activity_id}
        while True:
            try:
                return await store()
            except MediaError:
                raise
            except Exception as error:
                self._problem = f"{type(error).__name__}: {error}"
                words = "%s has run; its result cannot be stored yet: %s"
                _log.warning(words, self._tool, self._problem, extra={"perdure": place})
            await asyncio.sleep(_PAUSE)


def _converter() -> DataConverter:
    """Return the converter with which the SDK encodes this activity's result."""
    info = activity.info()
    serialization = ActivitySerializationContext(
        namespace=info.namespace,
        workflow_id=info.workflow_id,
        workflow_type=info.workflow_type,
        activity_type=info.activity_type,
        activity_id=info.activity_id,
        activity_task_queue=info.task_queue,
        is_local=info.is_local,
    )
    owner = StorageDriverWorkflowInfo(
        id=info.workflow_id, type=info.workflow_type, run_id=info.workflow_run_id, namespace=info.namespace
    )
    return activity.client().data_converter._with_contexts(serialization, StorageDriverStoreContext(target=owner))
