"""Requests of a worker to servers whose addresses others choose: allowed hosts, public addresses, no redirects."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

import httpx2

from perdure.errors import ToolError

PORTS: Final = {"http": 80, "https": 443}
_REFUSED_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
            "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
            "224.0.0.0/4", "240.0.0.0/4",
            "168.63.129.16/32",  # in no registry: a cloud's metadata servers, as seen from its machines
        ),
    )
)  # fmt: skip
_REACHABLE_4: Final = (IPv4Address("192.0.0.9"), IPv4Address("192.0.0.10"))
"""Globally reachable networks inside a refused one."""
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""The addresses assigned as global unicast; others have, or may get, another purpose."""
_REFUSED_6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_REACHABLE_6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:3::/32", "2001:4:112::/48", "2001:20::/28",
            "2001:30::/28",
        ),
    )
)  # fmt: skip
_CARRIES_4: Final = tuple(map(IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96")))
"""IPv6 networks that embed an IPv4 address: the embedded address decides."""


def is_public(address: str) -> bool:
    """Whether an address of `getaddrinfo` is globally reachable, and not by a tunnel that could end elsewhere."""
    ip = ip_address(address.split("%")[0])
    if isinstance(ip, IPv6Address):
        if any(ip in network for network in _CARRIES_4):
            ip = IPv4Address(int(ip) & 0xFFFFFFFF)
        else:
            refused = any(ip in network for network in _REFUSED_6)
            return ip in _GLOBAL_6 and (not refused or any(ip in network for network in _REACHABLE_6))
    return ip in _REACHABLE_4 or not any(ip in network for network in _REFUSED_4)


def names_host(hosts: Sequence[str], host: str) -> bool:
    """Whether one of the `hosts`, which may hold `*`, is this host."""
    return any(fnmatch(host.lower(), each.lower()) for each in hosts)


async def allowed_address(url: httpx2.URL, hosts: Sequence[str], *, private: bool) -> str:
    """Return the address to connect to, if the scheme, the host and all of its addresses are allowed.

    Raises `ToolError` with the code `not_allowed` or `no_such_host`. Connect to this address and no other: a name may
    have another address a moment later.
    """
    if url.scheme not in PORTS or not url.host or url.userinfo:
        raise ToolError("not_allowed", f"{url!s} is not a plain http or https URL")
    if not names_host(hosts, url.host):
        raise ToolError("not_allowed", f"the host {url.host} is not allowed; the worker allows {', '.join(hosts)}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            url.host, url.port or PORTS[url.scheme], type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise ToolError("no_such_host", f"{url.host} has no address: {error.strerror or error}", retry=True) from None
    addresses = [str(info[4][0]) for info in found]
    refused = [address for address in addresses if not (private or is_public(address))]
    if refused:
        raise ToolError("not_allowed", f"{url.host} is {refused[0]}, which is not a public address")
    return addresses[0]


async def post(address: str, headers: Mapping[str, str], body: str, hosts: Sequence[str]) -> tuple[int, float | None]:
    """Send a webhook; return the status of its answer, and the seconds of its `Retry-After`. No redirect is followed.

    A host that `hosts` names exactly, without `*`, may have a private address. The answer's body is not read. Raises as
    `allowed_address` does, and `httpx2.HTTPError`.
    """
    target = httpx2.URL(address)
    private = target.host.lower() in (each.lower() for each in hosts)
    connected = await allowed_address(target, hosts, private=private)
    # No proxy and no redirects: the request goes to the checked address.
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=None) as client:
        request = client.build_request(
            "POST",
            target.copy_with(host=connected),
            headers={**headers, "host": target.netloc.decode()},
            content=body.encode(),
            extensions={"sni_hostname": target.host},
        )
        response = await client.send(request, stream=True)
        await response.aclose()
    pause = response.headers.get("retry-after", "")
    return response.status_code, float(pause) if pause.isascii() and pause.isdigit() and len(pause) < 10 else None
