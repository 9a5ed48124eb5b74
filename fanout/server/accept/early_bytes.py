"""Budget of the bytes that clients send before they are admitted, in total and for each address.

Such bytes cost their sender nothing, and the node holds them: a CONNECT that is cut off, or one whose password waits
for its check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from fanout.config import ServerConfig
from fanout.server.base.counters import Limit

__all__ = ["EarlyBytes"]

_KEPT_SHARE: Final = 0.75
"""Share of a budget that is left after it was exceeded, so that connections are seldom sorted."""

C = TypeVar("C")


class EarlyBytes(Generic[C]):
    """The bytes of all connections that are not admitted."""

    def __init__(self, config: ServerConfig) -> None:
        self.limit(config)
        self.total = 0
        """Bytes of all connections."""
        self._waiting: dict[C, tuple[bytes, int]] = {}
        """Origin and bytes by connection."""
        self._of_origin: dict[bytes, int] = {}

    def limit(self, config: ServerConfig) -> None:
        """Take the limits of a configuration."""
        self._max = config.unauthenticated_bytes_max
        self._per_address_max = config.unauthenticated_bytes_per_address_max

    def add(self, connection: C, origin: bytes, nbytes: int) -> list[tuple[Limit, C]]:
        """Count bytes of a connection.

        Args:
            connection: The connection.
            origin: Key of its address, as of `ConnectionSlot`; empty for none, which only the total limits.
            nbytes: Bytes that it sent.

        Returns:
            The connections to end, the largest first, each with the limit that is exceeded; they are removed.
        """
        self._waiting[connection] = origin, self._waiting.get(connection, (origin, 0))[1] + nbytes
        self.total += nbytes
        if origin:
            self._of_origin[origin] = self._of_origin.get(origin, 0) + nbytes
        ended: list[tuple[Limit, C]] = []
        if origin and self._of_origin[origin] > self._per_address_max:
            excess = self._of_origin[origin] - int(self._per_address_max * _KEPT_SHARE)
            of_origin = [one for one in self._waiting.items() if one[1][0] == origin]
            limit = Limit.UNAUTHENTICATED_BYTES_PER_ADDRESS
            ended += [(limit, one) for one in self._end(of_origin, excess)]
        if self.total > self._max:
            excess = self.total - int(self._max * _KEPT_SHARE)
            ended += [(Limit.UNAUTHENTICATED_BYTES, one) for one in self._end(self._waiting.items(), excess)]
        return ended

    def remove(self, connection: C) -> None:
        """Forget a connection, which was admitted or has ended; does nothing for one without bytes."""
        origin, nbytes = self._waiting.pop(connection, (b"", 0))
        self.total -= nbytes
        if origin:
            left = self._of_origin[origin] - nbytes
            if left:
                self._of_origin[origin] = left
            else:
                del self._of_origin[origin]

    def _end(self, connections: Iterable[tuple[C, tuple[bytes, int]]], excess: int) -> list[C]:
        """Remove the largest of some connections until `excess` bytes are free, and return them."""
        ended: list[C] = []
        for connection, (_, nbytes) in sorted(connections, key=lambda one: one[1][1], reverse=True):
            if excess <= 0:
                break
            excess -= nbytes
            ended.append(connection)
            self.remove(connection)
        return ended
