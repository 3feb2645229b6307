"""Which addresses are out on the internet, by IANA's registries of special-purpose addresses (RFC 6890)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

_REFUSED_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
            "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
            "224.0.0.0/4", "240.0.0.0/4",
            "168.63.129.16/32",  # in no registry: a cloud's own servers, as seen from its machines
        ),
    )
)  # fmt: skip
_REACHABLE_4: Final = (IPv4Address("192.0.0.9"), IPv4Address("192.0.0.10"))
"""Inside a refused network, and globally reachable all the same."""
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""All that is given out as global unicast; whatever is outside is for something else, today or one day."""
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
"""IPv4 in IPv6's clothes: as public as what it carries."""


def is_public(address: str) -> bool:
    """Whether an address, as `getaddrinfo` gives it, is globally reachable, and by no tunnel that could end elsewhere."""
    ip = ip_address(address.split("%")[0])
    if isinstance(ip, IPv6Address):
        if any(ip in network for network in _CARRIES_4):
            ip = IPv4Address(int(ip) & 0xFFFFFFFF)
        else:
            refused = any(ip in network for network in _REFUSED_6)
            return ip in _GLOBAL_6 and (not refused or any(ip in network for network in _REACHABLE_6))
    return ip in _REACHABLE_4 or not any(ip in network for network in _REFUSED_4)
