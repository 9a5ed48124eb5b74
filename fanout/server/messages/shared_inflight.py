"""What an audience sent at QoS 1 or 2 with shared Packet Identifiers, and how far each follower has acknowledged.

Owns the shared identifiers: members of an audience that are in step get the same identifiers, hence the same bytes,
and one log of messages says for all of them what is in flight (MQTT 5, sections 2.2.1, 4.3, 4.4 and 4.9). A follower
costs a few numbers, whatever is in flight; only when it leaves does it get messages of its own. It must not know
sessions, sockets or clocks.

Positions count the messages of a log; a position decides its Packet Identifier. A follower has everything up to the
end of its log in flight or completed: who is not to get what the log is about to take, leaves before.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from fanout.mqtt.decoder import AckRun
from fanout.mqtt.delivery import Outbound, SendState
from fanout.mqtt.packets import PacketType, encode_acks
from fanout.server.messages.encoding import TWO_BYTES, Message, message_bytes

__all__ = ["Follower", "SharedInflight", "packet_ids"]

_CYCLE: Final = 0xFFFF
_NO_LIMIT: Final = 1 << 62
_TRIM_ENTRIES_MIN: Final = 64

# Two cycles, so that a run that passes the last identifier is one slice.
_NUMBERS: Final = list(range(1, _CYCLE + 1)) * 2
_ENCODED: Final = TWO_BYTES[1:] * 2
_PUBACKS: Final = encode_acks(PacketType.PUBACK, _NUMBERS)
_PUBRECS: Final = encode_acks(PacketType.PUBREC, _NUMBERS)
_PUBRELS: Final = encode_acks(PacketType.PUBREL, _NUMBERS)
_PUBCOMPS: Final = encode_acks(PacketType.PUBCOMP, _NUMBERS)
_ACK_BYTES: Final = 4


def packet_ids(position: int, count: int) -> tuple[bytes, ...]:
    """Return the encoded Packet Identifiers of `count` positions from `position`; at most 65,535."""
    start = position % _CYCLE
    return _ENCODED[start : start + count]


class SharedInflight:
    """What one audience sent, as far as a follower may still have it in flight."""

    __slots__ = (
        "_bytes_max",
        "_entries",
        "_recent",
        "_recent_bytes",
        "_trim_at",
        "behind",
        "bytes",
        "end",
        "floor",
        "followers",
        "qos",
    )

    def __init__(self, *, bytes_max: int = sys.maxsize) -> None:
        """Make an empty log.

        Args:
            bytes_max: About how many bytes a follower may have in flight: less than one slice more.
        """
        self.bytes = 0
        """Bytes of what is kept, as they were sent."""
        self.floor = 0
        """Who has not completed everything before this position has too many bytes in flight to follow any further."""
        self.end = 0
        """The position of the next message."""
        self.followers = 0
        """Members that share its identifiers."""
        self.behind = 0
        """Of these, how many have not completed everything; with none nothing is kept."""
        self.qos = 1
        """The QoS of its messages: all have the same; who follows leaves before it changes."""
        self._entries: deque[tuple[int, list[Message], int]] = deque()  # position, messages, bytes
        self._recent: deque[tuple[int, int]] = deque()  # position and bytes of the entries from `floor` on
        self._recent_bytes = 0
        self._bytes_max = bytes_max
        self._trim_at = _TRIM_ENTRIES_MIN

    def begin_behind(self, packet_id: int) -> None:
        """Set the next identifier to that behind `packet_id`, or behind none at 0; only without followers."""
        assert not self.followers
        self.end = packet_id
        self.floor = 0

    def append(self, messages: list[Message], *, size: int, oldest: Callable[[], int]) -> None:
        """Note that `messages` are being sent to all followers; there is at least one.

        Args:
            messages: All of them at the QoS `qos`.
            size: Their bytes.
            oldest: Finds the lowest position that a follower has in flight.
        """
        self._entries.append((self.end, messages, size))
        self.bytes += size
        self._recent.append((self.end, size))
        self._recent_bytes += size
        self.end += len(messages)
        while self._recent_bytes > self._bytes_max:
            self._recent_bytes -= self._recent.popleft()[1]
            self.floor = self._recent[0][0] if self._recent else self.end
        self.behind = self.followers
        if len(self._entries) >= self._trim_at:  # seldom, so that looking at all followers costs little
            position = oldest()
            while self._entries and self._entries[0][0] + len(self._entries[0][1]) <= position:
                self.bytes -= self._entries.popleft()[2]
            self._trim_at = max(_TRIM_ENTRIES_MIN, 2 * len(self._entries))

    def messages_from(self, position: int) -> Iterator[tuple[int, Message]]:
        """Return position and message from `position` on, which somebody has in flight."""
        for start, messages, _ in self._entries:
            if start + len(messages) > position:
                first = max(position, start)
                yield from enumerate(messages[first - start :], first)

    def catch_up(self) -> None:
        """Note that one follower that was behind is not any more."""
        self.behind -= 1
        if not self.behind:
            self._entries.clear()
            self._recent.clear()
            self.bytes = self._recent_bytes = 0


class Follower:
    """A session's part in the shared log of its audience, if it has any."""

    __slots__ = ("_outbound", "_own_until", "_received", "completed", "limit", "log")

    def __init__(self, outbound: Outbound[Message]) -> None:
        self._outbound = outbound  # what it sent by itself, and how much may be in flight
        self.log: SharedInflight | None = None
        """The log that it follows; None while it is served on its own."""
        self.limit = 0
        """How far the log may go before this follower has to leave it."""
        self.completed = 0
        """The position up to which everything is completed, while it follows."""
        self._received = 0  # at QoS 2, up to which PUBREC came and PUBREL was sent
        self._own_until = _NO_LIMIT  # the first position whose identifier is in flight in `_outbound`

    @property
    def in_flight(self) -> int:
        """How many messages of the log are in flight."""
        return self.log.end - self.completed if self.log is not None else 0

    @property
    def last_packet_id(self) -> int:
        """The Packet Identifier that was sent last while it was served on its own; 0 for none."""
        return self._outbound.last_packet_id

    def join(self, log: SharedInflight, count: int) -> bool:
        """Follow `log`, if `count` more messages fit the window and their identifiers are not in use.

        Everything older must have been sent. What is in flight already stays in `Outbound` until acknowledged.

        Returns:
            Whether it follows now.
        """
        outbound = self._outbound
        end = log.end
        own_until = _NO_LIMIT
        for packet_id in outbound.packet_ids():
            own_until = min(own_until, end + (packet_id - 1 - end) % _CYCLE)
        limit = min(end + outbound.window - len(outbound), own_until)
        if limit < end + count or outbound.bytes >= outbound.bytes_max:
            return False
        self.log = log
        self.limit = limit
        self.completed = self._received = end
        self._own_until = own_until
        log.followers += 1
        return True

    def leave(self) -> None:
        """Follow no more: what is in flight becomes the session's own, in order. Does nothing without a log."""
        log = self.log
        if log is None:
            return
        self.log = None
        self.limit = 0
        outbound = self._outbound
        if self.completed < log.end:
            state = SendState.AWAIT_PUBACK if log.qos == 1 else SendState.AWAIT_PUBREC
            for position, message in log.messages_from(self.completed):
                outbound.adopt(
                    position % _CYCLE + 1,
                    message,
                    SendState.AWAIT_PUBCOMP if position < self._received else state,
                    size=message_bytes(message),
                )
            log.catch_up()
        outbound.continue_behind((log.end - 1) % _CYCLE + 1 if log.end else 0)
        log.followers -= 1

    def refresh(self) -> None:
        """Bring `limit` up to date after an acknowledgement."""
        if self.log is None:
            return
        own = len(self._outbound)
        if not own:
            self._own_until = _NO_LIMIT
        self.limit = min(self.completed + self._outbound.window - own, self._own_until)

    def acknowledge_read(self, data: bytes) -> tuple[int, bytes]:
        """Take the acknowledgements with which a read begins, if they are all the expected ones in order.

        One comparison of memory for the whole read, with what a client sends that acknowledges in order.

        Args:
            data: What was read; a packet begins at its begin.

        Returns:
            How many bytes were taken, and the answers. With 0, `data` is for the decoder.
        """
        log = self.log
        count = len(data) // _ACK_BYTES
        if log is None or not count:
            return 0, b""
        size = count * _ACK_BYTES
        whole = data if size == len(data) else data[:size]
        first = data[0]
        if first == _PUBACKS[0] and log.qos == 1:
            start = self.completed % _CYCLE * _ACK_BYTES
            if count <= log.end - self.completed and _PUBACKS.startswith(whole, start):
                self._complete(count)
                return size, b""
        elif first == _PUBRECS[0] and log.qos == 2:
            start = self._received % _CYCLE * _ACK_BYTES
            if count <= log.end - self._received and _PUBRECS.startswith(whole, start):
                self._received += count
                return size, _PUBRELS[start : start + size]
        elif first == _PUBCOMPS[0] and log.qos == 2:
            start = self.completed % _CYCLE * _ACK_BYTES
            if count <= self._received - self.completed and _PUBCOMPS.startswith(whole, start):
                self._complete(count)
                return size, b""
        return 0, b""

    def acknowledge(self, run: AckRun) -> bytes | None:
        """Take a run of PUBACK, PUBREC or PUBCOMP.

        Returns:
            The answers; None, and nothing is changed, when they are not the expected ones in order.
        """
        log = self.log
        assert log is not None
        ids = run.packet_ids
        count = len(ids)
        refuses = run.reason_codes is not None
        if run.type is PacketType.PUBACK and log.qos == 1:
            start, stop = self.completed, log.end
        elif run.type is PacketType.PUBREC and log.qos == 2 and not refuses:
            start, stop = self._received, log.end
        elif run.type is PacketType.PUBCOMP and log.qos == 2 and not refuses:
            start, stop = self.completed, self._received
        else:
            return None
        first = start % _CYCLE
        if count > stop - start or ids != _NUMBERS[first : first + count]:
            return None
        if run.type is PacketType.PUBREC:
            self._received += count
            return _PUBRELS[first * _ACK_BYTES : (first + count) * _ACK_BYTES]
        self._complete(count)
        return b""

    def _complete(self, count: int) -> None:
        log = self.log
        assert log is not None
        self.completed += count
        if log.qos == 1:
            self._received = self.completed
        self.refresh()
        if self.completed == log.end:
            log.catch_up()
