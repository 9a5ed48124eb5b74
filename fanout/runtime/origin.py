"""Origin of a client: the key by which limits count what comes from one address."""

from __future__ import annotations

import ipaddress
from typing import Final

__all__ = ["origin_of"]

_IPV6_NETWORK_BYTES: Final = 8
"""IPv6 addresses count by /64 network: a customer has all addresses of one."""


def origin_of(host: str) -> bytes:
    """Return the key of an IP address: the IPv4 address, or the IPv6 network; empty for none."""
    if not host:
        return b""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return address.packed[:_IPV6_NETWORK_BYTES]
        address = address.ipv4_mapped
    return address.packed
