"""HTTP requests to hosts that the worker allows, bounded in time and size."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NotRequired

import httpx2
from typing_extensions import TypedDict

from perdure.activities.http_addresses import PORTS, allowed_address
from perdure.errors import ToolError
from perdure.tools.decorator import ToolContext, tool

MAX_BYTES: Final = 1_000_000
MAX_REDIRECTS: Final = 5
MAX_LAYERS: Final = 5
"""Maximum of encodings in `content-encoding`: each takes its own memory."""
MAX_TIMEOUT: Final = 120.0
_SHOWN_HEADERS: Final = ("content-type", "location", "etag", "last-modified", "retry-after", "link")
_FOR_ANYBODY: Final = ("accept", "accept-language", "user-agent", "range", "if-none-match", "if-modified-since")
"""The only headers that are sent to another origin (another host, port or scheme): any other header may be a secret."""
_NOT_YOURS: Final = (
    *("host", "content-length", "transfer-encoding", "connection", "accept-encoding"),
    *("x-http-method-override", "x-http-method", "x-method-override"),  # the approved method is the executed method
)
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
# A method that only reads needs no approval; any other method does.
_CHANGES: Final = {"when": {"required": ["method"], "properties": {"method": {"not": {"enum": ["GET", "HEAD"]}}}}}


class Answer(TypedDict):
    url: str
    status: int
    headers: dict[str, str]
    body: NotRequired[Any]
    """Text, or the value if the answer was JSON."""
    base64: NotRequired[str]
    """In place of a body that is not text."""


_SAFE: Final = ("GET", "HEAD")
_UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
    httpx2.InvalidURL,
    UnicodeError,
)
"""Errors before the server has the request."""


def http_tools(hosts: Sequence[str], *, private: bool) -> list[Callable[..., Any]]:
    """Return `http_request` for these hosts."""

    @tool(untrusted=True, approval=_CHANGES, timeout=MAX_TIMEOUT + 10)
    async def http_request(
        context: ToolContext,
        url: str,
        method: Method = "GET",
        headers: dict[str, str] | None = None,
        body: Any = None,
        timeout: float = 30.0,
    ) -> Answer:
        """Ask a server over HTTP. Its answer, whatever its status, is the result.

        Args:
            url: http or https.
            method: GET, HEAD, POST, PUT, PATCH or DELETE.
            headers: to send.
            body: text as it is; anything else is sent as JSON.
            timeout: seconds for everything, 120 at most.
        """
        sent = {name.lower(): value for name, value in (headers or {}).items() if name.lower() not in _NOT_YOURS}
        if method not in _SAFE:
            sent.setdefault("idempotency-key", context.idempotency_key)
        content = None if body is None else body if isinstance(body, str) else json.dumps(body)
        if content is not None and not isinstance(body, str):
            sent.setdefault("content-type", "application/json")
        try:
            async with asyncio.timeout(min(timeout, MAX_TIMEOUT)):
                return await _ask(url, method, sent, content, hosts, private)
        except TimeoutError:
            raise ToolError("timeout", f"{url} did not answer within {min(timeout, MAX_TIMEOUT):g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            is_open = method not in _SAFE and not isinstance(error, _UNSENT)
            words = f"{url}: {error or type(error).__name__}"
            raise ToolError("not_reachable", words, retry=True, carried_out=None if is_open else False) from None

    return [http_request]


async def _ask(
    url: str, method: str, headers: dict[str, str], content: str | None, hosts: Sequence[str], private: bool
) -> Answer:
    """Follow redirects by hand: each step is checked like the first."""
    # No proxy, no cookies of another call: the request goes to the checked address.
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=None) as client:
        for _ in range(MAX_REDIRECTS + 1):
            target = httpx2.URL(url)
            address = await allowed_address(target, hosts, private=private)
            request = client.build_request(
                method,
                target.copy_with(host=address),
                headers={**headers, "host": target.netloc.decode(), "accept-encoding": "gzip"},
                content=content,
                extensions={"sni_hostname": target.host},
            )
            response = await client.send(request, stream=True)
            try:
                if not response.has_redirect_location:
                    try:
                        return await _result(response, method, url)
                    except ToolError as error:
                        is_open = response.request.method not in _SAFE
                        raise ToolError(
                            error.code, error.message, error.retry, carried_out=None if is_open else False
                        ) from None
                following = target.join(response.headers["location"])
            finally:
                await response.aclose()
            if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
                method, content = "GET", None
                headers.pop("content-type", None)
            if _origin(following) != _origin(target):
                _check_follows(url, method, following)
                content = None
                headers = {name: value for name, value in headers.items() if name in _FOR_ANYBODY}
            url = str(following)
    raise ToolError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects, the last to {url}")


def _check_follows(url: str, method: str, following: httpx2.URL) -> None:
    """Check a redirect: a request that changes data was meant, and perhaps approved, for one server only."""
    if method not in ("GET", "HEAD"):
        raise ToolError(
            "redirected", f"{url} sends a {method} on to {following}, another server; call that address if you mean it"
        )


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or PORTS.get(url.scheme)


async def _body(response: httpx2.Response) -> bytes:
    """Return the answer's bytes, decoded here in steps: the decoded body may be a thousand times as large."""
    layers = [layer.strip().lower() for layer in response.headers.get("content-encoding", "").split(",")]
    layers = [layer for layer in reversed(layers) if layer not in ("", "identity")]
    if len(layers) > MAX_LAYERS:
        raise ToolError("not_readable", f"the answer is encoded {len(layers)} times; the limit is {MAX_LAYERS}")
    decoders = [_Decoder(layer) for layer in layers]
    data, sent, count = bytearray(), 0, 0
    async for chunk in response.aiter_raw():
        sent, count = sent + len(chunk), count + 1
        for decoder in decoders:
            chunk = decoder.decoded(chunk)
        data += chunk
        if max(sent, len(data)) > MAX_BYTES:
            raise _TOO_LARGE
        if count % 64 == 0:
            await asyncio.sleep(0)  # chunks that have all arrived would block the event loop, even the timeout
    for decoder in decoders:
        decoder.check_end()
    return bytes(data)


class _Decoder:
    """One layer of `content-encoding`, which returns no more than an answer's maximum."""

    def __init__(self, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise ToolError("not_readable", f"the answer is encoded as {encoding[:40]!r}, which was not asked for")
        self._zlib = zlib.decompressobj(wbits=47)  # gzip's header or zlib's
        self._fed, self._given = False, 0

    def decoded(self, data: bytes) -> bytes:
        self._fed = self._fed or bool(data)
        try:
            found = self._zlib.decompress(data, MAX_BYTES + 1 - self._given)
        except zlib.error:
            raise ToolError("not_readable", "the response is not encoded as its Content-Encoding says") from None
        self._given += len(found)
        if self._given > MAX_BYTES:
            raise _TOO_LARGE
        return found

    def check_end(self) -> None:
        if self._fed and not self._zlib.eof:
            raise ToolError("not_readable", "the answer breaks off", retry=True)


_TOO_LARGE: Final = ToolError("too_large", f"the answer has more than {MAX_BYTES:,} bytes")


async def _result(response: httpx2.Response, method: str, url: str) -> Answer:
    data = b"" if method == "HEAD" else await _body(response)
    headers = {name: response.headers[name] for name in _SHOWN_HEADERS if name in response.headers}
    result: Answer = {"url": url, "status": response.status_code, "headers": headers}
    kind = response.headers.get("content-type", "")
    try:
        text = data.decode(response.charset_encoding or "utf-8")
    except (UnicodeDecodeError, LookupError):
        result["base64"] = base64.b64encode(data).decode()
        return result
    result["body"] = text
    if "json" in kind:
        with contextlib.suppress(ValueError):
            result["body"] = json.loads(text)
    return result
