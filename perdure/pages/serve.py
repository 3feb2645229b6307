"""`perdure inbox` and `perdure codec-server`, until Ctrl-C."""

from __future__ import annotations

from perdure.client.perdure import Perdure
from perdure.errors import SettingsError
from perdure.gateway.guards import Guards, is_loopback
from perdure.gateway.server import served
from perdure.gateway.tokens import check_token
from perdure.hosting.codec import CODEC
from perdure.hosting.connection import data_converter
from perdure.hosting.process import until_interrupted
from perdure.pages._codec import CodecServer
from perdure.pages._inbox import inbox_app


async def serve_inbox(*, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted. Raises `SettingsError` for an empty token, a taken port, or an address that others reach without a token."""
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"other machines can reach {host}: require a token, with --token TEXT or PERDURE_INBOX_TOKEN",
        )
    check_token(token)  # before a server is needed
    async with served(inbox_app(await Perdure.connect(), Guards(token)), "inbox", host, port):
        await until_interrupted()


async def serve_codec(*, host: str, port: int, token: str, origin: str) -> None:
    """Serve until interrupted. Raises `SettingsError` without a codec, a token or an origin, or when the port is taken."""
    converter = data_converter()
    if converter.payload_codec is None and converter.external_storage is None:
        raise SettingsError(f"there is nothing to decode: set {CODEC}, as for the workers")
    async with served(CodecServer(converter, token, origin).app, "codec server", host, port):
        await until_interrupted()
