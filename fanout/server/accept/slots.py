"""How many Network Connections there may be, in total and from one address, and how fast they may come.

Owns the slots that connections hold, from the moment they are accepted until they are gone: a PROXY header, a TLS
handshake or a WebSocket that is still being opened holds one like a connected client. It must not know sockets, nor
read a clock: the time is an argument.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from fanout.config import ServerConfig
from fanout.server.base.counters import Counters, Limit

__all__ = ["ConnectionSlot", "ConnectionSlots", "TokenBucket"]

_IPV6_NETWORK_BYTES: Final = 8
"""What one customer gets is a network of 64 bits: whoever has one address of it has all of them."""


class ConnectionSlot:
    """The slot of one connection.

    Attributes:
        since_s: When it was taken, by the monotonic clock.
        over_rate: Whether it came faster than connections may; then it is refused as soon as it can be told so.
    """

    __slots__ = ("_origin", "over_rate", "since_s")

    def __init__(self, origin: bytes, *, since_s: float, over_rate: bool) -> None:
        self._origin = origin
        self.since_s = since_s
        self.over_rate = over_rate


class TokenBucket:
    """So many at once, and then so many in a second."""

    def __init__(self, *, rate: float, burst: int, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._counted_s = now_s

    def take(self, now_s: float) -> bool:
        """Take one; return False when none is left."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._rate)
        self._counted_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ConnectionSlots:
    """The slots of all connections of a server."""

    def __init__(self, config: ServerConfig, *, counters: Counters, now_s: float) -> None:
        self._max = config.connections_max
        self._per_address_max = config.connections_per_address_max
        self._bucket = TokenBucket(rate=config.connection_rate_max, burst=config.connection_burst_max, now_s=now_s)
        self._counters = counters
        self._taken = 0
        self._of_origin: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return how many are taken."""
        return self._taken

    @property
    def origins(self) -> int:
        """From how many addresses there are connections."""
        return len(self._of_origin)

    def take(self, host: str, *, now_s: float) -> ConnectionSlot | Limit:
        """Give a new connection a slot.

        Args:
            host: Its IP address; empty when it has none (a Unix socket), or when it is not known yet.
            now_s: Time of the monotonic clock, in seconds.

        Returns:
            The slot, or the limit that is reached.
        """
        if self._taken >= self._max:
            return self._reached(Limit.CONNECTIONS)
        origin = _origin(host)
        if not self._enter(origin):
            return self._reached(Limit.CONNECTIONS_PER_ADDRESS)
        self._taken += 1
        over_rate = not self._bucket.take(now_s)
        if over_rate:
            self._reached(Limit.CONNECTION_RATE)
        return ConnectionSlot(origin, since_s=now_s, over_rate=over_rate)

    def name(self, slot: ConnectionSlot, host: str) -> Limit | None:
        """Note from where a connection comes, which was not known as it took its slot.

        Returns:
            The limit that is reached by it, if any; the slot must be given back then like any other.
        """
        origin = _origin(host)
        if not self._enter(origin):
            return self._reached(Limit.CONNECTIONS_PER_ADDRESS)
        self._leave(slot._origin)
        slot._origin = origin
        return None

    def release(self, slot: ConnectionSlot) -> None:
        """Free the slot of a connection that is gone; called once."""
        self._taken -= 1
        self._leave(slot._origin)

    def _reached(self, limit: Limit) -> Limit:
        self._counters.limits[limit] += 1
        return limit

    def _enter(self, origin: bytes) -> bool:
        if not origin:
            return True
        count = self._of_origin.get(origin, 0)
        if count >= self._per_address_max:
            return False
        self._of_origin[origin] = count + 1
        return True

    def _leave(self, origin: bytes) -> None:
        if not origin:
            return
        left = self._of_origin[origin] - 1
        if left:
            self._of_origin[origin] = left
        else:
            del self._of_origin[origin]


def _origin(host: str) -> bytes:
    """Return what counts as one address: that of IPv4, the network of IPv6; empty for none."""
    if not host:
        return b""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return address.packed[:_IPV6_NETWORK_BYTES]
        address = address.ipv4_mapped
    return address.packed
