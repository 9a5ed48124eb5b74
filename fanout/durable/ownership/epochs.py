"""Epochs: which of two sessions with one Client Identifier began later, at whatever members (core).

A hybrid logical clock that goes by the monotonic clock. It begins with the time of day. From then on members that hear
each other set theirs to the clock that is farthest ahead (`hear`), and all go on at one pace. So they count the same
when they are parted, and a wrong time of day at one of them changes nothing.

Another member may be wrong, or lie. So its word sets the clock ahead by a minute at a time; by more only now and then,
and never out of the range of an epoch. Members set each other ahead alike, so all go on together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fanout.peer_text import is_node_name
from fanout.runtime.system_clock import Clock

__all__ = [
    "INHERITED",
    "NO_EPOCH",
    "Epoch",
    "EpochClock",
    "RecordedEpochs",
    "decode_epochs",
    "encode_epoch",
    "encode_epochs",
    "is_epoch_node",
]

_COUNTER_BYTES: Final = 8
_END_OF_NODE: Final = b"\0"
INHERITED: Final = "!"
"""Prefix of the member in the epoch of an inherited session: it sorts before all members."""
_NEAR_MS: Final = 60_000
"""Farthest that the clock goes ahead at another member's word, any number of times."""
_LEAP_MS_MAX: Final = 1 << 41
"""Farthest that one leap sets the clock ahead: 70 years, as for a machine whose clock begins with 1970."""
_LEAP_PAUSE_S: Final = 60.0
"""Shortest time between two leaps."""


class Epoch(NamedTuple):
    """When a session began, or was asked for; epochs of a pool are totally ordered."""

    counter: int
    """Milliseconds of the clock of the pool, or one more than the newest epoch that was given."""
    node: str
    """`node.id` of the member that gave it, after `INHERITED` when it went on with the session of a dead one."""

    @property
    def member(self) -> str:
        """The member that gave it."""
        return self.node.removeprefix(INHERITED)

    @property
    def is_inherited(self) -> bool:
        """True if the member went on with the session of a dead one."""
        return self.node.startswith(INHERITED)


NO_EPOCH = Epoch(0, "")
"""Before every other epoch."""


class RecordedEpochs(NamedTuple):
    """Epochs of a session in its record on disk."""

    since: Epoch
    """Since when it is this member's."""
    given: Epoch = NO_EPOCH
    """Since when it is the member's to which this one gave it away; `NO_EPOCH` for one that is here."""


def is_epoch_node(value: object) -> bool:
    """Return whether a value is legal as the member of an epoch."""
    return isinstance(value, str) and is_node_name(value.removeprefix(INHERITED))


def encode_epoch(epoch: Epoch) -> bytes:
    """Return the bytes of an epoch."""
    return epoch.counter.to_bytes(_COUNTER_BYTES, "big") + epoch.node.encode()


def encode_epochs(epochs: RecordedEpochs) -> bytes:
    """Return the bytes of the epochs of a record: those of the one, or of both."""
    since = encode_epoch(epochs.since)
    return since if epochs.given == NO_EPOCH else since + _END_OF_NODE + encode_epoch(epochs.given)


def decode_epochs(data: bytes) -> RecordedEpochs:
    """Return the epochs of `encode_epochs`; `NO_EPOCH` for fewer bytes."""
    node, _, given = data[_COUNTER_BYTES:].partition(_END_OF_NODE)
    return RecordedEpochs(_decode_epoch(data[:_COUNTER_BYTES] + node), _decode_epoch(given))


def _decode_epoch(data: bytes) -> Epoch:
    if len(data) < _COUNTER_BYTES:
        return NO_EPOCH
    return Epoch(int.from_bytes(data[:_COUNTER_BYTES], "big"), data[_COUNTER_BYTES:].decode())


class EpochClock:
    """Gives the epochs of one member."""

    def __init__(self, node: str, *, clock: Clock) -> None:
        """Begin.

        Args:
            node: This member.
            clock: Gives the time.
        """
        self._node = node
        self._monotonic = clock.monotonic
        self._ahead_ms = clock.now_ns() // 1_000_000 - self._now_ms()
        """Lead of the counter over the monotonic clock."""
        self._newest = 0
        self._leap_at_s = float("-inf")
        """When the next leap may be."""

    @property
    def reading(self) -> int:
        """Present time of the clock: no epoch that was given or seen here is later, but for some of this moment."""
        return self._now_ms() + self._ahead_ms

    def next(self) -> Epoch:
        """Return an epoch that is later than all that were given or seen here."""
        self._newest = max(self._newest + 1, self.reading)
        return Epoch(self._newest, self._node)

    def hear(self, reading: int) -> None:
        """Set the clock to what another member's shows, as far as its word goes, unless it is ahead of that."""
        ahead_ms = reading - self.reading
        if ahead_ms > _NEAR_MS:
            now_s = self._monotonic()
            if now_s < self._leap_at_s:
                return
            self._leap_at_s = now_s + _LEAP_PAUSE_S
        self._ahead_ms += min(max(0, ahead_ms), _LEAP_MS_MAX)

    def admit(self, epoch: Epoch) -> None:
        """Take another member's word for an epoch.

        Raises:
            ValueError: It is too far ahead of the clock.
        """
        self.hear(epoch.counter)
        if epoch.counter > self.reading:
            raise ValueError("an epoch that is too far ahead")

    def see(self, epoch: Epoch) -> None:
        """Give only later epochs than this one from now on, which is this member's or was admitted."""
        self._newest = max(self._newest, epoch.counter)
        self._ahead_ms = max(self._ahead_ms, epoch.counter - self._now_ms())

    def _now_ms(self) -> int:
        return int(self._monotonic() * 1000)
