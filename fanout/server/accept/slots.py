"""Connection slots: the limits of Network Connections in total, for each address, and of their rate.

A connection holds a slot from accept until it has ended, so that a pending PROXY header, TLS handshake or WebSocket
handshake counts like a connected client.
"""

from __future__ import annotations

from fanout.config import ServerConfig
from fanout.runtime.origin import origin_of
from fanout.server.base.counters import Counters, Limit

__all__ = ["ConnectionSlot", "ConnectionSlots", "TokenBucket"]


class ConnectionSlot:
    """The slot of one connection.

    Attributes:
        origin: Key of its address; empty when it has none, or when it is not known yet.
        since_s: Time when it was taken, by the monotonic clock.
        over_rate: True when the connection exceeds the rate limit; it is refused as soon as it can be answered.
    """

    __slots__ = ("origin", "over_rate", "since_s")

    def __init__(self, origin: bytes, *, since_s: float, over_rate: bool) -> None:
        self.origin = origin
        self.since_s = since_s
        self.over_rate = over_rate


class TokenBucket:
    """Rate limiter: a burst, then a number of tokens per second."""

    def __init__(self, *, rate: float, burst: int, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._counted_s = now_s

    def take(self, now_s: float) -> bool:
        """Take a token; return False when none is left."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._rate)
        self._counted_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ConnectionSlots:
    """The slots of all connections of a server."""

    def __init__(self, config: ServerConfig, *, counters: Counters, now_s: float) -> None:
        self.limit(config, now_s=now_s)
        self._counters = counters
        self._taken = 0
        self._of_origin: dict[bytes, int] = {}

    def limit(self, config: ServerConfig, *, now_s: float) -> None:
        """Take the limits of a configuration; connections stay.

        Args:
            config: The configuration.
            now_s: Time of the monotonic clock, in seconds.
        """
        self._max = config.connections_max
        self._per_address_max = config.connections_per_address_max
        self._bucket = TokenBucket(rate=config.connection_rate_max, burst=config.connection_burst_max, now_s=now_s)

    def __len__(self) -> int:
        """Return the number of slots taken."""
        return self._taken

    @property
    def origins(self) -> int:
        """Number of addresses with connections."""
        return len(self._of_origin)

    def take(self, host: str, *, now_s: float) -> ConnectionSlot | Limit:
        """Take a slot for a new connection.

        Args:
            host: Its IP address; empty when it has none (a Unix socket), or when it is not known yet.
            now_s: Time of the monotonic clock, in seconds.

        Returns:
            The slot, or the limit that is reached.
        """
        if self._taken >= self._max:
            return self._reached(Limit.CONNECTIONS)
        origin = origin_of(host)
        if not self._enter(origin):
            return self._reached(Limit.CONNECTIONS_PER_ADDRESS)
        self._taken += 1
        over_rate = not self._bucket.take(now_s)
        if over_rate:
            self._reached(Limit.CONNECTION_RATE)
        return ConnectionSlot(origin, since_s=now_s, over_rate=over_rate)

    def name(self, slot: ConnectionSlot, host: str) -> Limit | None:
        """Set the IP address of a connection, which was not known when it took its slot.

        Returns:
            The limit that is reached, if any; the slot must be released then like any other.
        """
        origin = origin_of(host)
        if not self._enter(origin):
            return self._reached(Limit.CONNECTIONS_PER_ADDRESS)
        self._leave(slot.origin)
        slot.origin = origin
        return None

    def release(self, slot: ConnectionSlot) -> None:
        """Free the slot of a connection that has ended; called once."""
        self._taken -= 1
        self._leave(slot.origin)

    def _reached(self, limit: Limit) -> Limit:
        self._counters.limits_reached[limit] += 1
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
