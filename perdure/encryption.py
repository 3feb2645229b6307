"""The codec of Perdure: AES-256-GCM, in the form of Temporal's own samples. `PERDURE_CODEC=perdure.encryption:aes_gcm`."""

from __future__ import annotations

import base64
import binascii
import copy
import os
from collections.abc import Mapping, Sequence
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from perdure.activities.secrets import keep_secret
from perdure.errors import SettingsError
from perdure.hosting.settings import in_force

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    raise SettingsError("encryption needs the package cryptography: pip install 'perdure[encryption]'") from None

KEYS: Final = "PERDURE_CODEC_KEYS"
"""JSON or `@file`: `{"2026-11": "<32 bytes, base64>", "2026-05": "…"}`. The first encrypts, every one decrypts."""
ENCODING: Final = b"binary/encrypted"
PLACE: Final = "perdure-run"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class AesGcm(PayloadCodec, WithSerializationContext):
    """Each payload whole, metadata included, under the newest key, with a random nonce and the key's id beside it.

    Where the SDK says what a value is for, it is bound to that run: the run's id stands beside it, is authenticated with it,
    and for any other run it is not decrypted. Within a run values are not told apart, nor runs of one id in two namespaces, which a
    replay does not know.

    What is not encrypted passes as it is, so that runs from before go on. What cannot be decrypted (a key that is not there, a
    forgery) stays as it is too: whoever needs the value then fails to read it, and a forged signal is dropped rather than stopping the run.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """`keys`: 32 bytes by id, the one to encrypt with first. At least one."""
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._newest = next(iter(keys))
        self._place = b""
        """The run that values are for, as far as it is known."""

    def with_context(self, context: SerializationContext) -> AesGcm:
        """Return this codec for the values of one run."""
        bound = copy.copy(self)
        if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext) and context.workflow_id:
            bound._place = context.workflow_id.encode()
        return bound

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypt(payload) for payload in payloads]

    def _encrypt(self, payload: Payload) -> Payload:
        nonce = os.urandom(_NONCE_BYTES)
        about = {"encoding": ENCODING, "encryption-key-id": self._newest.encode()}
        if self._place:
            about[PLACE] = self._place
        sealed = self._ciphers[self._newest].encrypt(nonce, payload.SerializeToString(), _bound(about))
        return Payload(metadata=about, data=nonce + sealed)

    def _decrypt(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        cipher = self._ciphers.get(payload.metadata.get("encryption-key-id", b"").decode(errors="replace"))
        elsewhere = self._place and payload.metadata.get(PLACE, self._place) != self._place
        if cipher is None or elsewhere or len(payload.data) <= _NONCE_BYTES:
            return payload
        nonce, sealed = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, sealed, _bound(payload.metadata)))
        except InvalidTag:
            return payload


def _bound(about: Mapping[str, bytes]) -> bytes | None:
    """Return the data that is authenticated beside a value; `None` for a value of no known run."""
    return None if PLACE not in about else b"\0".join([about["encoding"], about["encryption-key-id"], about[PLACE]])


def aes_gcm() -> PayloadCodec:
    """Return a codec with the keys of `PERDURE_CODEC_KEYS`: 32 bytes each, in base64. The first key encrypts, every key decrypts.

    `PERDURE_CODEC=perdure.encryption:aes_gcm` names this function. Raises `SettingsError` for a missing or wrong key, and, when
    the module is imported, where the package `cryptography` is missing (`pip install 'perdure[encryption]'`).

    ```python
    import dataclasses

    from temporalio.converter import default

    from perdure.encryption import aes_gcm

    converter = dataclasses.replace(default(), payload_codec=aes_gcm())
    client = await Client.connect("localhost:7233", data_converter=converter)
    ```
    """
    named = in_force().codec_keys
    if not named:
        raise SettingsError(
            f'{KEYS} must name keys: {{"2026-11": "<32 bytes, base64>"}}, made with: openssl rand -base64 32'
        )
    keys = {name: _read_key(name, value) for name, value in named.items()}
    keep_secret(*named.values())
    return AesGcm(keys)


def _read_key(name: str, value: str) -> bytes:
    try:
        key = base64.b64decode(value, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise SettingsError(f"{KEYS}: the key {name!r} must be {_KEY_BYTES} bytes in base64")
    return key
