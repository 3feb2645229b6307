"""Connecting to Temporal, by Temporal's own settings (R12.6)."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
)
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError

from perdure.activities.secrets import keep_secret
from perdure.errors import ServerError
from perdure.hosting.codec import payload_codec
from perdure.hosting.converter import Converter, PayloadConverter
from perdure.hosting.leaving import leave_cleanly
from perdure.hosting.operating.reaching import unreachable
from perdure.hosting.storage import external_storage
from perdure.hosting.telemetry import interceptors

leave_cleanly()  # whoever has got as far as this will have the SDK's threads, whether they connect by this or not


def data_converter() -> DataConverter:
    """Pydantic's, with external storage for large values where `PERDURE_STORAGE` says so, and the codec that `PERDURE_CODEC` names.

    With a codec the texts of failures are payloads too. What goes to the storage has gone through the codec before.
    """
    converter: DataConverter = Converter(payload_converter_class=PayloadConverter, external_storage=external_storage())
    codec = payload_codec()
    if codec is None:
        return converter
    encoded = DefaultFailureConverterWithEncodedAttributes
    return dataclasses.replace(converter, payload_codec=codec, failure_converter_class=encoded)


def with_perdure_converter(theirs: DataConverter, ours: DataConverter | None = None) -> DataConverter:
    """Perdure's converter in the place of the SDK's own; codec, storage and all else stay in force. Where they have no codec, or no
    storage, they have that of `ours`.

    A payload converter of the user's own stays too, and has to know pydantic's models.
    """
    kind = theirs.payload_converter_class
    plain = kind in (DefaultPayloadConverter, PydanticPayloadConverter)
    changes: dict[str, Any] = {"payload_converter_class": PayloadConverter} if plain else {}
    if ours is not None and theirs.payload_codec is None and ours.payload_codec is not None:
        changes["payload_codec"] = ours.payload_codec
        if theirs.failure_converter_class is DefaultFailureConverter:
            changes["failure_converter_class"] = ours.failure_converter_class
    if ours is not None and theirs.external_storage is None and ours.external_storage is not None:
        changes["external_storage"] = ours.external_storage
    if not changes:
        return theirs
    if type(theirs) is not DataConverter or not plain:
        return dataclasses.replace(theirs, **changes)
    return Converter(
        **{
            "payload_codec": theirs.payload_codec,
            "failure_converter_class": theirs.failure_converter_class,
            "external_storage": theirs.external_storage,
            **changes,
        }
    )


def with_converter(client: Client) -> Client:
    """The client with `with_perdure_converter`."""
    converter = with_perdure_converter(client.data_converter)
    if converter is client.data_converter:
        return client
    config = client.config(active_config=True)
    config["data_converter"] = converter
    config["plugins"] = []  # what they change is in the configuration already: they are not asked again
    return Client(**config)


async def connect(runtime: Runtime | None = None, *, profile: str | None = None, **given: Any) -> Client:
    """A client for the server that `TEMPORAL_ADDRESS`, `TEMPORAL_PROFILE`, `temporal.toml`, … name.

    `runtime` is the SDK's, for metrics; `profile` one of `temporal.toml`; what is `given` to `Client.connect` goes before the settings.
    Raises `ServerError` when nothing answers there, or when the settings cannot be read.
    """
    try:
        found = ClientConfig.load_client_connect_config(profile=profile)
        settings: dict[str, Any] = {"target_host": "localhost:7233", **found, **given}
    except Exception as error:
        raise ServerError(
            f"Temporal's connection settings cannot be read: {_without_source(error)}", final=True
        ) from None
    if isinstance(key := settings.get("api_key"), str):
        keep_secret(key)
    converter = data_converter()
    tracing = interceptors()
    try:
        return await Client.connect(**settings, data_converter=converter, interceptors=tracing, runtime=runtime)
    except (RuntimeError, RPCError, ValueError, OSError) as error:
        raise unreachable(error, settings) from None


def _without_source(error: Exception) -> str:
    """What is wrong with a file, and where: not the line itself, in which a key may stand."""
    kept = [line.strip() for line in str(error).splitlines() if not re.match(r"\s*\d*\s*\|", line)]
    return ": ".join(filter(None, kept))
