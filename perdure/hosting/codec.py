"""The payload codec and converter of workers and clients."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter, EncodingPayloadConverter, PayloadCodec

from perdure.errors import SettingsError
from perdure.hosting.settings import in_force
from perdure.runs.loops import LOOP_WORKFLOW
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.sessions.transcript import SEGMENT_WORKFLOW
from perdure.values.json import UnreadArgument

CODEC: Final = "PERDURE_CODEC"
"""`module:function`; the function takes nothing and gives a `PayloadCodec`. Workers, clients and the codec server need the same."""


def payload_codec() -> PayloadCodec | None:
    """Return the codec that `PERDURE_CODEC` names; `None` if it is not set. Raises `SettingsError` if the codec cannot be used."""
    named = in_force().codec
    if not named:
        return None
    module, colon, function = named.partition(":")
    if not (module and colon and function):
        raise SettingsError(f"{CODEC} must be module:function, not {named!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as for modules of tools
    try:
        codec = getattr(importlib.import_module(module), function)()
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{CODEC} {named!r} cannot be used: {type(error).__name__}: {error}") from error
    if not isinstance(codec, PayloadCodec):
        raise SettingsError(
            f"{CODEC} {named!r} gives {type(codec).__name__}, which is no temporalio.converter.PayloadCodec"
        )
    return codec


# The SDK fetches what a payload says is stored elsewhere before it looks at what the payload is for, and fails the workflow's task when it cannot: one signal that names nothing would fail it for ever. Here such a payload becomes one that cannot be decoded: a signal, an update or a run's start with it is refused, as with any other argument that is none, and a result goes on failing its task until its value is back.

_ENCODING: Final = "perdure/unreadable"
_TAKE_ANYTHING: Final = frozenset({AGENT_WORKFLOW, LOOP_WORKFLOW, SEGMENT_WORKFLOW})
_GONE: Final = frozenset({"NoSuchKey", "NoSuchBucket", "AccessDenied", "InvalidBucketName", "404", "403", "400"})
"""What S3 says where asking again would not help."""


def is_unreadable(payload: Payload) -> bool:
    """Whether this stands for a value that could not be fetched."""
    return payload.metadata.get("encoding") == _ENCODING.encode()


class _Unreadable(EncodingPayloadConverter):
    @property
    def encoding(self) -> str:
        return _ENCODING

    def to_payload(self, value: Any) -> Payload | None:
        del value
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        del type_hint
        raise ValueError(f"a value that is stored elsewhere cannot be read: {payload.data.decode()}")


class PayloadConverter(CompositePayloadConverter):
    """Pydantic's, which also knows what could not be fetched. Raises `ValueError` with the reason for that.

    What is sent to a workflow of Perdure's, whose handlers take anything, is an `Unread` there instead: so it is refused with a
    reason, and does not fail the workflow's task.
    """

    def __init__(self) -> None:
        super().__init__(*PydanticPayloadConverter().converters.values(), _Unreadable())

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        if type_hints is None and _for_our_workflow():
            return [self._taken(payload) for payload in payloads]
        return super().from_payloads(payloads, type_hints)

    def _taken(self, payload: Payload) -> Any:
        try:
            [value] = super().from_payloads([payload])
        except Exception as error:
            unread = UnreadArgument(f"[cannot be read: {str(error)[:300]}]")
            unread.waits = payload.metadata.get("encoding", b"") not in self.converters
            return unread
        return value


def _for_our_workflow() -> bool:
    """Whether arguments are read for a workflow that takes anything."""
    if workflow.in_workflow():
        return workflow.info().workflow_type in _TAKE_ANYTHING
    # A workflow's input is read before it runs, in a thread with no loop of its own; clients and activities have one.
    return asyncio._get_running_loop() is None


class Converter(DataConverter):
    """The SDK's, but nothing that a payload claims about its place fails what it is read for."""

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        read = super()._decode_reference_payload_sequence
        return [await self._readable(read, payload) for payload in payloads]

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        read = super()._external_retrieve_payload_sequence
        try:
            return await read(payloads)
        except Exception:  # one of them: which?
            return [await self._readable(read, payload) for payload in payloads]

    async def _readable(self, read: Any, payload: Payload) -> Payload:
        try:
            [found] = await read([payload])
        except Exception as error:
            if not _lasting(error):
                raise
            return Payload(metadata={"encoding": _ENCODING.encode()}, data=str(error)[:300].encode())
        return found  # type: ignore[no-any-return]


def _lasting(error: BaseException) -> bool:
    """Whether asking again would fail in the same way: the claim itself is wrong, or there is no storage to ask."""
    if isinstance(error.__cause__, Exception):  # S3's driver wraps what S3 said
        response = getattr(error.__cause__, "response", None) or {}
        return str(response.get("Error", {}).get("Code")) in _GONE or _lasting(error.__cause__)
    wrong = type(error).__name__ == "ParamValidationError" or "TMPRL110" in str(error)
    return wrong or isinstance(error, ValueError | KeyError | TypeError)
