"""Public addresses against IANA's special-purpose registries, whole, and what is dangerous beside them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from perdure.activities.http_addresses import is_public

# Each row of the two registries with its "Globally Reachable"; what is "N/A" there (tunnels and what is deprecated) is not.
REGISTRY = {
    "0.0.0.0/8": False, "0.0.0.0/32": False, "10.0.0.0/8": False, "100.64.0.0/10": False, "127.0.0.0/8": False,
    "169.254.0.0/16": False, "172.16.0.0/12": False, "192.0.0.0/29": False, "192.0.0.8/32": False, "192.0.0.9/32": True,
    "192.0.0.10/32": True, "192.0.0.170/32": False, "192.0.0.171/32": False, "192.0.2.0/24": False, "192.31.196.0/24": True,
    "192.52.193.0/24": True, "192.88.99.0/24": False, "192.168.0.0/16": False, "192.175.48.0/24": True,
    "198.18.0.0/15": False, "198.51.100.0/24": False, "203.0.113.0/24": False, "240.0.0.0/4": False,
    "255.255.255.255/32": False,
    "::1/128": False, "::/128": False, "64:ff9b:1::/48": False, "100::/64": False, "100:0:0:1::/64": False,
    "2001::/32": False, "2001:1::1/128": True, "2001:1::2/128": True, "2001:1::3/128": True, "2001:2::/48": False,
    "2001:3::/32": True, "2001:4:112::/48": True, "2001:10::/28": False, "2001:20::/28": True, "2001:30::/28": True,
    "2001:db8::/32": False, "2002::/16": False, "2620:4f:8000::/48": True, "3fff::/20": False, "5f00::/16": False,
    "fc00::/7": False, "fe80::/10": False,
}  # fmt: skip
BESIDE = {
    "8.8.8.8": True, "1.1.1.1": True, "192.0.1.0": True, "172.32.0.0": True, "100.128.0.0": True, "198.20.0.0": True,
    "2606:4700::1111": True, "2a00::1": True, "2001:200::1": True, "224.0.0.1": False, "239.255.255.255": False,
    "168.63.129.16": False, "fec0::1": False, "ff02::1": False, "fe80::1%eth0": False, "::127.0.0.1": False,
    "::8.8.8.8": False, "::ffff:0:7f00:1": False, "::ffff:8.8.8.8": True, "::ffff:192.168.0.1": False,
    "::ffff:192.0.0.8": False, "64:ff9b::808:808": True, "64:ff9b::a00:1": False, "64:ff9b::a83f:8110": False,
    "2002:808:808::1": False, "2002:a00:1::": False, "4000::1": False,
}  # fmt: skip


@pytest.mark.parametrize(("network", "reachable"), REGISTRY.items())
def test_each_row_of_the_registries(network: str, reachable: bool) -> None:
    row = ip_network(network)
    middle = ip_address(int(row.network_address) + row.num_addresses // 2)
    assert [is_public(str(one)) for one in (row[0], middle, row[-1])] == [reachable] * 3


@pytest.mark.parametrize(("address", "public"), BESIDE.items())
def test_what_is_beside_the_registries(address: str, public: bool) -> None:
    assert is_public(address) is public
