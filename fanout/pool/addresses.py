"""Addresses of members: those of the configuration, and those that a name in DNS has now."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final

from fanout.config import Address, PoolConfig

__all__ = ["MemberAddress", "configured_addresses", "host_addresses", "resolve"]

_RESOLVE_S: Final = 5.0
"""Time for one look-up; a resolver that takes longer changes nothing."""


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """One address at which a member is asked."""

    authority: str
    """`host:port`."""
    server_name: str | None = None
    """Name that the member's certificate must have; None for the host."""


def configured_addresses(config: PoolConfig) -> tuple[MemberAddress, ...]:
    """Return the addresses of `peers`."""
    return tuple(MemberAddress(peer.authority) for peer in config.peers)


async def host_addresses(host: str) -> frozenset[str]:
    """Return the IP addresses of a host; none when its name is not known, or the resolver does not answer in time."""
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # a time-out is one too
        return frozenset()
    return frozenset(str(sockaddr[0]) for *_, sockaddr in found)


async def resolve(name: Address) -> tuple[MemberAddress, ...]:
    """Return the addresses that a name has now, in order.

    Raises:
        OSError: The name is not known, or the resolver does not answer in time (`TimeoutError`).
    """
    async with asyncio.timeout(_RESOLVE_S):
        found = await asyncio.get_running_loop().getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    hosts = sorted({sockaddr[0] for *_, sockaddr in found if isinstance(sockaddr[0], str)})
    return tuple(MemberAddress(Address("http", host, name.port).authority, name.host) for host in hosts)
