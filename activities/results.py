"""The encoding of a tool's result before its activity ends: nothing else may be lost then, because the tool has run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
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
"""Share of the attempt's time after which no further try begins, so that the failure is reported in time."""


class EncodedResult(ToolResult):
    """A result whose payload exists already: `perdure.hosting.sdk_internals.Converter` encodes it no second time."""

    _payload: Payload = PrivateAttr()

    @property
    def payload(self) -> Payload:
        return self._payload


async def encode_result(tool: str, result: ToolResult) -> EncodedResult:
    """Return the result with its payload, encoded and stored as the SDK would do it. Raise `ToolError`."""
    [payload] = await store_result(tool, lambda: _converter().encode([result]))
    encoded = EncodedResult.model_construct(result.model_fields_set, **dict(result))
    encoded._payload = payload
    return encoded


async def store_result(tool: str, store: Callable[[], Awaitable[_T]]) -> _T:
    """Return what `store` returns. Repeat it until the attempt ends, because the tool must not run again.

    Raise `ToolError` (`RESULT_NOT_STORED`) at the end of the attempt, and `MediaError` at once.
    """
    info = activity.info()
    ends = info.started_time + _SHARE * (info.start_to_close_timeout or timedelta())
    while True:
        try:
            return await store()
        except MediaError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            left = (ends - datetime.now(UTC)).total_seconds()
            if left <= 0:
                message = f"{tool} has run, but its result could not be stored ({reason}). Do not assume that it had no effect"
                raise ToolError(RESULT_NOT_STORED, message, retry=True) from None
            place = {"run": info.workflow_id, "call": info.activity_id}
            _log.warning("%s has run; its result cannot be stored yet: %s", tool, reason, extra={"perdure": place})
        await asyncio.sleep(min(_PAUSE, left))


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
