"""Cache of encoded pieces of retained values, shared by the deliveries that are under way (MQTT 5, section 3.3.1.3).

It needs no invalidation: every delivery reads its values anew, and a piece is reused only for identical values.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final, TypeAlias

from fanout.replica.update import Update
from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import MessageBatch

__all__ = ["RetainedPieces"]

PIECE_BYTES_MAX: Final = 256 * 1024
"""Limit of payload and property bytes of a piece that is encoded as a whole. The messages of a larger piece are encoded
one by one, as the session's turn allows."""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Approximate memory limit of all pieces; above it the oldest are dropped."""

_MESSAGE_BYTES: Final = 250  # memory of a message beside its two copies: in a frame, and joined

_Key: TypeAlias = tuple[WireVariant, int, tuple[int, ...], bytes]


class RetainedPieces:
    """Encoded pieces, kept while deliveries use them."""

    def __init__(self, *, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pieces: dict[_Key, tuple[Sequence[Update], MessageBatch, int]] = {}
        self._users = 0
        self.bytes = 0
        """Approximate memory of the pieces."""

    def add_user(self, user: object) -> None:
        """Keep pieces until `user` has been garbage collected."""
        self._users += 1
        weakref.finalize(user, self._remove_user).atexit = False

    def batch(
        self, values: Sequence[Update], *, wire: WireVariant, qos_max: int, identifiers: tuple[int, ...]
    ) -> MessageBatch | None:
        """Return the batch of a piece for a wire variant; the same object for the same values.

        Args:
            values: The current values of the piece; at least one.
            wire: Wire variant of the receiver.
            qos_max: The Maximum QoS of the subscription.
            identifiers: Its Subscription Identifier, if it has one.

        Returns:
            The batch; None for a piece that cannot be encoded once for all receivers, or is too large for one turn.
        """
        key = (wire, qos_max, identifiers, values[0][0])
        kept = self._pieces.get(key)
        if kept is not None and kept[0] == values:  # compares identities: 10 ns a value
            return kept[1]
        size = sum(len(value[1]) + len(value[4]) for value in values)
        if size > PIECE_BYTES_MAX or wire.packet_bytes_max or any(value[6] for value in values):
            return None
        # RETAIN 1 [MQTT-3.3.1-8]
        batch = MessageBatch(
            [(value, value[2] if value[2] < qos_max else qos_max, True, identifiers) for value in values], wire=wire
        )
        if kept is not None:
            self._drop(key)
        if self._users > 1:
            size = 2 * (size + sum(len(value[0]) for value in values)) + _MESSAGE_BYTES * len(values)
            self._pieces[key] = (values, batch, size)
            self.bytes += size
            while self.bytes > self._bytes_max:
                self._drop(next(iter(self._pieces)))
        return batch

    def _drop(self, key: _Key) -> None:
        self.bytes -= self._pieces.pop(key)[2]

    def _remove_user(self) -> None:
        self._users -= 1
        if not self._users:
            self._pieces = {}
            self.bytes = 0
