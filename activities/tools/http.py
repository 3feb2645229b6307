"""Asking other servers over HTTP: those that the worker allows, at public addresses, bounded in time and size."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import json
import socket
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any, Final, Literal, NotRequired

import httpx2
from typing_extensions import TypedDict

from perdure import ToolContext, ToolError, tool

MAX_BYTES: Final = 1_000_000
MAX_REDIRECTS: Final = 5
MAX_TIMEOUT: Final = 120.0
_SHOWN_HEADERS: Final = ("content-type", "location", "etag", "last-modified", "retry-after", "link")
_OF_THE_ORIGIN: Final = ("authorization", "cookie", "proxy-authorization")
"""Headers that do not go along to another host."""
_NOT_YOURS: Final = ("host", "content-length", "transfer-encoding", "connection")
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
# Reading is not asked about; whatever may change something is.
_CHANGES: Final = {"when": {"required": ["method"], "properties": {"method": {"not": {"enum": ["GET", "HEAD"]}}}}}


class Answer(TypedDict):
    url: str
    status: int
    headers: dict[str, str]
    body: NotRequired[Any]
    """Text, or the value where the answer was JSON."""
    base64: NotRequired[str]
    """In place of a body that is no text."""


def http_tools(hosts: Sequence[str], *, private: bool) -> list[Callable[..., Any]]:
    """`http_request` for these hosts."""

    @tool(approval=_CHANGES, timeout=MAX_TIMEOUT + 10)
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
        if method not in ("GET", "HEAD"):
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
            raise ToolError("not_reachable", f"{url}: {error or type(error).__name__}", retry=True) from None

    return [http_request]


async def _ask(
    url: str, method: str, headers: dict[str, str], content: str | None, hosts: Sequence[str], private: bool
) -> Answer:
    """Follow redirects by hand: each step is checked like the first."""
    # No proxy, no cookies of another call: the address that was checked is the one that is asked.
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=None) as client:
        for _ in range(MAX_REDIRECTS + 1):
            target = httpx2.URL(url)
            address = await _address(target, hosts, private)
            request = client.build_request(
                method,
                target.copy_with(host=address),
                headers={**headers, "host": target.netloc.decode()},
                content=content,
                extensions={"sni_hostname": target.host},
            )
            response = await client.send(request, stream=True)
            try:
                if not response.has_redirect_location:
                    return await _result(response, method, url)
                following = target.join(response.headers["location"])
            finally:
                await response.aclose()
            if following.host != target.host:
                headers = {name: value for name, value in headers.items() if name not in _OF_THE_ORIGIN}
            if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
                method, content = "GET", None
                headers.pop("content-type", None)
            url = str(following)
    raise ToolError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects, the last to {url}")


async def _address(url: httpx2.URL, hosts: Sequence[str], private: bool) -> str:
    """The address to ask, once scheme, host and all of its addresses were found allowed."""
    if url.scheme not in ("http", "https") or not url.host or url.userinfo:
        raise ToolError("not_allowed", f"{url!s} is no plain http or https address")
    if not any(fnmatch(url.host.lower(), host.lower()) for host in hosts):
        raise ToolError("not_allowed", f"the host {url.host} is not allowed; the worker allows {', '.join(hosts)}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            url.host, url.port or (443 if url.scheme == "https" else 80), type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise ToolError("no_such_host", f"{url.host} has no address: {error.strerror or error}", retry=True) from None
    addresses = [str(info[4][0]) for info in found]
    refused = [address for address in addresses if not (private or is_public(address))]
    if refused:
        raise ToolError("not_allowed", f"{url.host} is {refused[0]}, which is no public address")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address is out on the internet; one that carries another inside it is what it carries."""
    ip = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inside = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inside is not None:
            return is_public(str(inside))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


async def _result(response: httpx2.Response, method: str, url: str) -> Answer:
    data = b""
    if method != "HEAD":
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > MAX_BYTES:
                raise ToolError("too_large", f"the answer has more than {MAX_BYTES:,} bytes")
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
