"""Pieces of retained values, encoded once for all sessions that are being given them (MQTT 5, section 3.3.1.3).

Owns the messages of a piece and their frames while several deliveries are under way. Nothing has to be told when a
value changes: every delivery reads its values anew, and a piece is used again only for the very same ones. It must
not know sessions, nor where values come from.
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
"""Bytes of payloads and properties of a piece that is encoded as a whole; of a larger one a session gets as much as its
turn allows."""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""About how much memory the pieces take, of all deliveries together; beyond it the oldest go."""

_MESSAGE_BYTES: Final = 250  # what a message takes beside its two copies: in a frame, and joined

_Key: TypeAlias = tuple[WireVariant, int, tuple[int, ...], bytes]


class RetainedPieces:
    """Encoded pieces, as long as anybody may use them."""

    def __init__(self, *, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pieces: dict[_Key, tuple[Sequence[Update], MessageBatch, int]] = {}
        self._users = 0
        self.bytes = 0
        """About how much memory the pieces take."""

    def add_user(self, user: object) -> None:
        """Keep pieces until `user` is gone: deleted, however that comes about."""
        self._users += 1
        weakref.finalize(user, self._remove_user).atexit = False

    def batch(
        self, values: Sequence[Update], *, wire: WireVariant, qos_max: int, identifiers: tuple[int, ...]
    ) -> MessageBatch | None:
        """Return the messages of a piece for a kind of receiver, the same object for the same values.

        Args:
            values: Those of the piece, as they are now; at least one.
            wire: The kind of receiver.
            qos_max: The Maximum QoS of the subscription.
            identifiers: Its Subscription Identifier, if it has one.

        Returns:
            A batch; None for a piece that cannot be encoded once for all, or is too large for one turn.
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
