"""The payload codec and converter of workers and clients."""

from __future__ import annotations

import asyncio
import copy
import functools
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from typing import Any, ClassVar, Final, TypeAlias

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, PayloadCodec, SerializationContext, WithSerializationContext
from temporalio.converter import PayloadConverter as BasePayloadConverter

from perdure.activities.secrets import mask_text
from perdure.agents.modules import import_named
from perdure.errors import SettingsError, causes_of
from perdure.hosting.settings import in_force
from perdure.runs.audit import AUDIT_WORKFLOW
from perdure.runs.evaluation import EVALUATED_RUN_WORKFLOW, EVALUATION_WORKFLOW
from perdure.runs.ledger import LEDGER_WORKFLOW
from perdure.runs.loops import LOOP_WORKFLOW
from perdure.runs.notifications import NOTIFICATION_WORKFLOW
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.sessions.transcript import SEGMENT_WORKFLOW
from perdure.sessions.wire import KEY_WORKFLOW, SESSION_WORKFLOW
from perdure.values.json import UnreadArgument

CODEC: Final = "PERDURE_CODEC"
"""`module:function`; the function takes no argument and returns a `PayloadCodec`. Workers, clients and the codec server need the same."""


def payload_codec() -> PayloadCodec | None:
    """Return the codec that `PERDURE_CODEC` names; `None` if it is not set. Raises `SettingsError` if the codec cannot be used."""
    named = in_force().codec
    if not named:
        return None
    module, colon, function = named.partition(":")
    if not (module and colon and function):
        raise SettingsError(f"{CODEC} must be module:function, not {named!r}")
    try:
        codec = getattr(import_named(module), function)()
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{CODEC} {named!r} cannot be used: {type(error).__name__}: {error}") from error
    if not isinstance(codec, PayloadCodec):
        raise SettingsError(
            f"{CODEC} {named!r} returns a {type(codec).__name__}, but must return a temporalio.converter.PayloadCodec"
        )
    return codec


# A payload for which the codec raises must not fail the workflow task: the task would fail on every retry. The payload
# is replaced by an unreadable one. A signal, an update or a run's start with it is rejected. A result with it fails the
# task until the value is readable.

_ENCODING: Final = b"perdure/unreadable"
WORKFLOW_TYPES: Final = frozenset(
    {
        AGENT_WORKFLOW,
        LOOP_WORKFLOW,
        SESSION_WORKFLOW,
        SEGMENT_WORKFLOW,
        KEY_WORKFLOW,
        LEDGER_WORKFLOW,
        AUDIT_WORKFLOW,
        NOTIFICATION_WORKFLOW,
        EVALUATION_WORKFLOW,
        EVALUATED_RUN_WORKFLOW,
    }
)
"""The types of all workflows of Perdure. Their handlers accept any argument, and validate it."""
_GONE: Final = frozenset({"NoSuchKey", "NoSuchBucket", "AccessDenied", "InvalidBucketName", "404", "403", "400"})
"""Codes of S3's errors that are not worth a retry."""
_PROBE: Final = Payload(metadata={"encoding": b"json/plain"}, data=b'"perdure"')
_WITHIN: Final = 60.0
"""Timeout in seconds of one call of the codec: a call that hangs must not hold a worker's slot."""
_AWAY: Final = (ConnectionError, TimeoutError, socket.gaierror)
"""Errors of a service that the codec calls, not of a payload."""

_Work: TypeAlias = Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
_IN_WORKER: Final = ContextVar("_IN_WORKER", default=False)


@contextmanager
def worker_context() -> Iterator[None]:
    """Mark workers that start in this context. A value that their codec cannot encode fails its reader, not the workflow task."""
    token = _IN_WORKER.set(True)
    try:
        yield
    finally:
        _IN_WORKER.reset(token)


def is_unreadable(payload: Payload) -> bool:
    """Whether the payload replaces a value that could not be fetched, decoded or encoded."""
    return payload.metadata.get("encoding") == _ENCODING


def unreadable_payload(reason: str) -> Payload:
    return Payload(metadata={"encoding": _ENCODING}, data=mask_text(reason)[:300].encode(errors="replace"))


def _reason(payload: Payload) -> str:
    return payload.data.decode(errors="replace")[:300]


class GuardedCodec(PayloadCodec, WithSerializationContext):
    """A codec around the user's: a payload for which that codec raises is replaced by an unreadable one with the
    reason.

    An error of the codec itself is raised, and the task is retried: its key service is down, or it cannot decode its
    own output. A value that cannot be encoded raises an error too, except where a workflow sends it.
    """

    def __init__(self, inner: PayloadCodec, *, within: float = _WITHIN) -> None:
        self._inner, self._within = inner, within

    def with_context(self, context: SerializationContext) -> GuardedCodec:
        """Return this codec, bound to the values of one run."""
        inner = self._inner
        if not isinstance(inner, WithSerializationContext):
            return self
        return GuardedCodec(inner.with_context(context), within=self._within)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode the payloads. See `PayloadCodec`."""
        return await self._each(self._inner.encode, payloads, mends=_IN_WORKER.get() and not activity.in_activity())

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode the payloads. See `PayloadCodec`."""
        return await self._each(self._inner.decode, payloads, mends=True)

    async def _each(self, work: _Work, payloads: Sequence[Payload], *, mends: bool) -> list[Payload]:
        try:
            if not any(map(is_unreadable, payloads)):
                return await self._timed(work, payloads)
        except Exception as error:
            if not mends or isinstance(error, TimeoutError):
                raise
        done: list[Payload] = []
        for payload in payloads:
            done += [payload] if is_unreadable(payload) else await self._one(work, payload, mends=mends)
        return done

    async def _one(self, work: _Work, payload: Payload, *, mends: bool) -> list[Payload]:
        try:
            return await self._timed(work, [payload])
        except Exception as error:
            if not mends or _is_away(error):
                raise
            if (problem := await self._problem()) is not None:
                raise problem from error
        try:
            return await self._timed(work, [payload])
        except Exception as error:  # the second failure, although the codec works
            if _is_away(error):
                raise
            return [unreadable_payload(f"{type(error).__name__}: {error}")]

    async def _timed(self, work: _Work, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the codec's output for the payloads. Raises `TimeoutError` if it takes longer than `within`."""
        try:
            async with asyncio.timeout(self._within) as limit:
                return _payloads(await work(payloads))
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"the codec has not answered within {self._within:g} s") from None
            raise

    async def _problem(self) -> Exception | None:
        """Return the error of a codec that cannot decode its own output; `None` if it can."""
        try:
            [found] = await self._timed(self._inner.decode, await self._timed(self._inner.encode, [_PROBE]))
        except Exception as error:
            return error
        return None if found.data == _PROBE.data else RuntimeError("the codec does not decode a value that it encoded")


class UnboundCodec(PayloadCodec):
    """A codec that binds no value to a run, for values that several runs read."""

    def __init__(self, inner: PayloadCodec) -> None:
        self._inner = inner

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode the payloads. See `PayloadCodec`."""
        return await self._inner.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode the payloads. See `PayloadCodec`."""
        return await self._inner.decode(payloads)


def _is_away(error: Exception) -> bool:
    return any(isinstance(each, _AWAY) for each in causes_of(error))


def _payloads(found: Sequence[Payload]) -> list[Payload]:
    """Return a codec's output. Raises `TypeError` if it is not a list of payloads."""
    if not found or not all(isinstance(each, Payload) for each in found):
        raise TypeError("the codec did not return a list of payloads")
    return list(found)


class GuardedConverter(BasePayloadConverter, WithSerializationContext):
    """A payload converter around another one. It raises `ValueError` with the reason for an unreadable value.

    Perdure's own workflows receive an `UnreadArgument` instead. Their handlers reject it with the reason, and the
    workflow task does not fail.
    """

    def __init__(self, inner: BasePayloadConverter) -> None:
        self._inner = inner
        self._known = inner.converters if isinstance(inner, CompositePayloadConverter) else None

    def with_context(self, context: SerializationContext) -> GuardedConverter:
        """Return this converter, bound to the values of one run. Return itself if the inner converter ignores the
        context.

        The SDK calls this for each payload, and builds a data converter for each new object.
        """
        if not isinstance(self._inner, WithSerializationContext):
            return self
        inner = self._inner.with_context(context)
        if inner is self._inner:
            return self
        bound = copy.copy(self)
        bound._inner = inner
        return bound

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Convert the values. See `temporalio.converter.PayloadConverter`."""
        return self._inner.to_payloads(values)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Convert the payloads. See `temporalio.converter.PayloadConverter`."""
        if type_hints is None and _for_our_workflow():
            return [self._taken(payload) for payload in payloads]
        return self._read(payloads, type_hints)

    def _read(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        for payload, hint in zip_longest(payloads, type_hints or ()):
            if hint is not RawValue and is_unreadable(payload):
                raise ValueError(f"a value cannot be read: {_reason(payload)}")
        return self._inner.from_payloads(payloads, type_hints)

    def _taken(self, payload: Payload) -> Any:
        known = self._known is None or payload.metadata.get("encoding", b"") in self._known
        try:
            if is_unreadable(payload):
                known, why = True, _reason(payload)
            else:
                [value] = self._inner.from_payloads([payload])
                return value
        except Exception as error:
            why = str(error)[:300]
        unread = UnreadArgument(f"[cannot be read: {why}]")
        unread.waits = not known
        return unread


class PayloadConverter(GuardedConverter):
    """Pydantic's converter, guarded. All instances share it, because the SDK makes a converter for each workflow task."""

    _pydantic: ClassVar = PydanticPayloadConverter()

    def __init__(self) -> None:
        super().__init__(self._pydantic)


@functools.cache
def guarded(kind: type[BasePayloadConverter]) -> type[BasePayloadConverter]:
    """Return a guarded class for a user's own converter class."""
    if issubclass(kind, GuardedConverter):
        return kind

    class Guarded(GuardedConverter):
        def __init__(self) -> None:
            super().__init__(kind())

    return Guarded


def _for_our_workflow() -> bool:
    """Whether arguments are read for a workflow of Perdure."""
    if workflow.in_workflow():
        return workflow.info().workflow_type in WORKFLOW_TYPES
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # a workflow's input is read before it runs, in a thread without an event loop
        return True
    return False  # clients and activities have an event loop


def is_lasting(error: BaseException) -> bool:
    """Whether a retry would fail in the same way: the claim is invalid, or no storage is configured."""
    if isinstance(error.__cause__, Exception):  # S3's driver wraps S3's error
        response = getattr(error.__cause__, "response", None) or {}
        return str(response.get("Error", {}).get("Code")) in _GONE or is_lasting(error.__cause__)
    wrong = type(error).__name__ == "ParamValidationError" or "TMPRL110" in str(error)
    return wrong or isinstance(error, ValueError | KeyError | TypeError)
