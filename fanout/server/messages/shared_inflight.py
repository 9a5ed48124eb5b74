"""Shared in-flight log of an audience at QoS 1 or 2, and the acknowledged position of each follower in it.

Members of an audience that are in step get the same Packet Identifiers, hence the same bytes, and one log says for all
of them which messages are in flight (MQTT 5, sections 2.2.1, 4.3, 4.4 and 4.9). A follower costs a few numbers,
however much is in flight; it gets in-flight state of its own only when it leaves the log.

Positions count the messages of a log; a position decides its Packet Identifier. A follower has every message up to the
end of its log in flight or completed, so a session that is not sent the next messages must leave the log first.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from fanout.mqtt.decoder import AckRun
from fanout.mqtt.delivery import Outbound, SendState
from fanout.mqtt.packets import PacketType, encode_acks
from fanout.server.messages.encoding import TWO_BYTES, Message, message_bytes

__all__ = ["CYCLE", "PACKET_IDS", "Follower", "SharedInflight"]

CYCLE: Final = 0xFFFF
_NO_LIMIT: Final = 1 << 62
_TRIM_ENTRIES_MIN: Final = 64
_RUNS_MAX: Final = 64
"""Runs of one type in a read that are looked at."""

# Two cycles, so that a run that passes the last identifier is one slice.
_CYCLE_NUMBERS: Final = array("H", range(1, CYCLE + 1))
_NUMBERS: Final = _CYCLE_NUMBERS.tolist() * 2
PACKET_IDS: Final = TWO_BYTES[1:] * 2
"""Encoded Packet Identifiers of positions, from position 0 modulo `CYCLE` on."""
_PUBACKS: Final = encode_acks(PacketType.PUBACK, _CYCLE_NUMBERS) * 2
_PUBRECS: Final = encode_acks(PacketType.PUBREC, _CYCLE_NUMBERS) * 2
_PUBRELS: Final = encode_acks(PacketType.PUBREL, _CYCLE_NUMBERS) * 2
_PUBCOMPS: Final = encode_acks(PacketType.PUBCOMP, _CYCLE_NUMBERS) * 2
_ACK_BYTES: Final = 4

_start = itemgetter(0)


class SharedInflight:
    """Messages that one audience sent and that a follower may still have in flight."""

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
        "run",
    )

    def __init__(self, *, bytes_max: int = sys.maxsize) -> None:
        """Make an empty log.

        Args:
            bytes_max: Approximate limit of the bytes that a follower may have in flight; one slice may exceed it.
        """
        self.bytes = 0
        """Bytes of the messages in the log, as sent."""
        self.floor = 0
        """Followers that have acknowledged only messages before here exceed the in-flight byte limit and must leave."""
        self.end = 0
        """The position of the next message."""
        self.followers = 0
        """Number of members that follow this log."""
        self.run = 0
        """Number of times at which positions have begun anew."""
        self.behind = 0
        """Number of followers with messages in flight; the log is cleared when it reaches 0."""
        self.qos = 1
        """QoS of all messages in the log; followers leave before it changes."""
        self._entries: deque[tuple[int, list[Message], int]] = deque()  # position, messages, bytes
        self._recent: deque[tuple[int, int]] = deque()  # position and bytes of the entries from `floor` on
        self._recent_bytes = 0
        self._bytes_max = bytes_max
        self._trim_at = _TRIM_ENTRIES_MIN

    @property
    def begin(self) -> int:
        """The position of the oldest message that is kept; `end` without any."""
        return self._entries[0][0] if self._entries else self.end

    def begin_behind(self, packet_id: int) -> None:
        """Continue with the Packet Identifier after `packet_id`; 0 starts with the first. Only without followers."""
        assert not self.followers
        self.run += 1
        self.end = packet_id
        self.floor = 0

    def append(self, messages: list[Message], *, size: int, oldest: Callable[[], int]) -> None:
        """Record that `messages` are sent to all followers, of which there is at least one.

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
        if len(self._entries) >= self._trim_at:  # rare, because it looks at all followers
            position = oldest()
            while self._entries and self._entries[0][0] + len(self._entries[0][1]) <= position:
                self.bytes -= self._entries.popleft()[2]
            self._trim_at = max(_TRIM_ENTRIES_MIN, 2 * len(self._entries))

    def messages_from(self, position: int) -> Iterator[tuple[int, Message]]:
        """Return position and message from `position` on; a follower must have them in flight."""
        at = max(0, bisect_right(self._entries, position, key=_start) - 1)  # entries of long ago may be there still
        for start, messages, _ in islice(self._entries, at, None):
            first = max(start, position)
            yield from enumerate(messages[first - start :], first)

    def catch_up(self) -> None:
        """Record that one follower that was behind has completed everything."""
        self.behind -= 1
        if not self.behind:
            self._entries.clear()
            self._recent.clear()
            self.bytes = self._recent_bytes = 0


class Follower:
    """Position of one session in the shared log of its audience, while it follows one."""

    __slots__ = ("_outbound", "_own_until", "completed", "limit", "log", "received")

    def __init__(self, outbound: Outbound[Message]) -> None:
        self._outbound = outbound  # messages sent to this session alone, and its window
        self.log: SharedInflight | None = None
        """The log that the session follows; None while it is served individually."""
        self.limit = 0
        """Position that the log must not pass while this session follows it."""
        self.completed = 0
        """Position up to which all messages are completed, while it follows."""
        self.received = 0
        """Position up to which PUBREC came and PUBREL was sent, while it follows; at QoS 1 as `completed`."""
        self._own_until = _NO_LIMIT  # the first position whose identifier is in flight in `_outbound`

    @property
    def in_flight(self) -> int:
        """Number of messages of the log that are in flight."""
        return self.log.end - self.completed if self.log is not None else 0

    @property
    def last_packet_id(self) -> int:
        """Packet Identifier that was last sent to this session individually; 0 for none."""
        return self._outbound.last_packet_id

    def messages(self) -> Iterator[tuple[int, Message, SendState]]:
        """Return the messages of the log that are in flight, as `Outbound.in_flight` does."""
        log = self.log
        if log is None or self.completed == log.end:
            return
        state = SendState.AWAIT_PUBACK if log.qos == 1 else SendState.AWAIT_PUBREC
        for position, message in log.messages_from(self.completed):
            released = position < self.received
            yield position % CYCLE + 1, message, SendState.AWAIT_PUBCOMP if released else state

    def join(self, log: SharedInflight, count: int) -> bool:
        """Follow `log`, if `count` more messages fit the window and their identifiers are not in use.

        All older messages must have been sent. Messages in flight stay in `Outbound` until they are acknowledged.

        Returns:
            True if it follows now.
        """
        outbound = self._outbound
        end = log.end
        own_until = _NO_LIMIT
        for packet_id in outbound.packet_ids():
            own_until = min(own_until, end + (packet_id - 1 - end) % CYCLE)
        limit = min(end + outbound.window - len(outbound), own_until)
        if limit < end + count or outbound.bytes >= outbound.bytes_max:
            return False
        self.log = log
        self.limit = limit
        self.completed = self.received = end
        self._own_until = own_until
        log.followers += 1
        return True

    def leave(self) -> None:
        """Leave the log: messages in flight become the session's own, in order. Does nothing without a log."""
        log = self.log
        if log is None:
            return
        in_flight = list(self.messages())
        self.log = None
        self.limit = 0
        outbound = self._outbound
        if self.completed < log.end:
            for packet_id, message, state in in_flight:
                outbound.adopt(packet_id, message, state, size=message_bytes(message))
            log.catch_up()
        outbound.continue_behind(_last_packet_id(log))
        log.followers -= 1

    @property
    def last_shared_packet_id(self) -> int | None:
        """Packet Identifier that its log used last, 0 for none; None while it follows none."""
        return None if self.log is None else _last_packet_id(self.log)

    def refresh(self) -> None:
        """Bring `limit` up to date after an acknowledgement."""
        if self.log is None:
            return
        own = len(self._outbound)
        if not own:
            self._own_until = _NO_LIMIT
        self.limit = min(self.completed + self._outbound.window - own, self._own_until)

    def acknowledge_read(self, data: bytes) -> tuple[int, bytes]:
        """Process the acknowledgements at the beginning of a read, if they are exactly the expected ones.

        A client that acknowledges in order costs one memory comparison for the whole read; one at QoS 2 that answers
        PUBLISH and PUBREL in one write, one for each run.

        Args:
            data: The bytes read; a packet starts at the first byte.

        Returns:
            The number of bytes processed, and the answers. The rest of `data` is for the decoder.
        """
        taken, answer = self._acknowledge_alike(data)
        if taken or self.log is None or self.log.qos == 1:
            return taken, answer
        answers: list[bytes] = []
        for _, run in islice(groupby(data[::_ACK_BYTES]), _RUNS_MAX):
            size = _ACK_BYTES * sum(1 for _ in run)
            if size >= len(data):
                break
            processed, answer = self._acknowledge_alike(data[taken : taken + size])
            if processed < size:
                break
            taken += size
            answers.append(answer)
        return taken, b"".join(answers)

    def _acknowledge_alike(self, data: bytes) -> tuple[int, bytes]:
        """Process acknowledgements of one type; see `acknowledge_read`."""
        log = self.log
        count = len(data) // _ACK_BYTES
        if log is None or not count:
            return 0, b""
        size = count * _ACK_BYTES
        whole = data if size == len(data) else data[:size]
        first = data[0]
        if first == _PUBACKS[0] and log.qos == 1:
            start = self.completed % CYCLE * _ACK_BYTES
            if count <= log.end - self.completed and _PUBACKS.startswith(whole, start):
                self._complete(count)
                return size, b""
        elif first == _PUBRECS[0] and log.qos == 2:
            start = self.received % CYCLE * _ACK_BYTES
            if count <= log.end - self.received and _PUBRECS.startswith(whole, start):
                self.received += count
                return size, _PUBRELS[start : start + size]
        elif first == _PUBCOMPS[0] and log.qos == 2:
            start = self.completed % CYCLE * _ACK_BYTES
            if count <= self.received - self.completed and _PUBCOMPS.startswith(whole, start):
                self._complete(count)
                return size, b""
        return 0, b""

    def acknowledge(self, run: AckRun) -> bytes | None:
        """Process a run of PUBACK, PUBREC or PUBCOMP.

        Returns:
            The answers; None, without any change, when they are not the expected ones in order.
        """
        log = self.log
        assert log is not None
        ids = run.packet_ids
        count = len(ids)
        refuses = run.reason_codes is not None
        if run.type is PacketType.PUBACK and log.qos == 1:
            start, stop = self.completed, log.end
        elif run.type is PacketType.PUBREC and log.qos == 2 and not refuses:
            start, stop = self.received, log.end
        elif run.type is PacketType.PUBCOMP and log.qos == 2 and not refuses:
            start, stop = self.completed, self.received
        else:
            return None
        first = start % CYCLE
        if count > stop - start or ids != _NUMBERS[first : first + count]:
            return None
        if run.type is PacketType.PUBREC:
            self.received += count
            return _PUBRELS[first * _ACK_BYTES : (first + count) * _ACK_BYTES]
        self._complete(count)
        return b""

    def _complete(self, count: int) -> None:
        log = self.log
        assert log is not None
        self.completed += count
        if log.qos == 1:
            self.received = self.completed
        self.refresh()
        if self.completed == log.end:
            log.catch_up()


def _last_packet_id(log: SharedInflight) -> int:
    return (log.end - 1) % CYCLE + 1 if log.end else 0
