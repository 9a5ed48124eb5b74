"""Filter of messages that a primary sends again in a resumed session.

Judges three things of a row: whether it was taken before, whether something newer for its topic was, and whether the
resumed session is the one that was left.

DUP alone does not show that a message was taken, because the first copy may have been lost with the connection. Its
content together with the Packet Identifier does: an identifier that was used again since was acknowledged, and its
message does not come again. The resumed session may also be another one: a Mosquitto that was killed begins with its
saved state, maybe with an older session of this Client Identifier, and sends what that session had queued. And a
process that resumes the session of an earlier one does not know which messages that one took; the values show it.

A message that comes again may be old. Mosquitto drops messages that it cannot write to a slow reader, at QoS 1 and 2
too, but keeps them in flight, and sends them when the session is resumed, maybe hours later. The Packet Identifier of
such a message was missing when the next one came, so a value that came with that one, or later, is newer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from fanout.link.ingest.convert import ConvertedRows
from fanout.link.model.counters import LinkCounters
from fanout.link.model.rows import DUP, FLAGS, PACKET_ID, PAYLOAD, QOS, QOS_1, RETAIN, TOPIC
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Update, content_digest

__all__ = ["RedeliveryFilter"]

_PACKET_ID_MAX = 65_535
_TAKEN_MAX = 16_384
"""Number of the newest QoS 1 messages that are remembered: as many as a fanout node has in flight."""
_GAPS_MAX = 1_024
"""Number of the newest gaps that are remembered."""
_digest = itemgetter(7)
_position = itemgetter(0)


class RedeliveryFilter:
    """Redelivery filter of one link.

    Attributes:
        counters: Counters of the link; messages that came again after something newer for their topic are overtaken.
    """

    def __init__(
        self,
        *,
        may_be_resumed: bool,
        counters: LinkCounters,
        held: Callable[[bytes], Update | None] = lambda topic: None,
    ) -> None:
        """Begin without any message.

        Args:
            may_be_resumed: True if the session outlives its connection; otherwise nothing is remembered.
            counters: Counters of the link.
            held: Returns the value of a topic at the primary; None for none.
        """
        self.counters = counters
        self._held = held
        self._may_be_resumed = may_be_resumed
        self._is_resumed = False
        self._counts_up = False
        self._took_unknown = False  # whether an earlier process took messages that may still come again
        # Packet Identifiers and digests of the newest messages at QoS 1, by batch; the PUBACK of any may be lost.
        self._taken: deque[tuple[Sequence[int], list[int]]] = deque()
        self._taken_count = 0
        self._known: dict[int, int] = {}  # taken on former connections of this session: Packet Identifier to digest
        self._last_packet_id = 0  # of the newest message at QoS 1 or 2; 0 for none in this session
        self._left_at = 0  # `_last_packet_id` when the connection began
        self._expected_behind = 0  # of the newest one that followed it in sequence
        self._last_position = self._left_position = 0  # these two, counted on beyond the range of Packet Identifiers
        # For each gap: a position after it, and Unix time in nanoseconds; later values are newer than the missing one.
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS_MAX)
        self._continues = True

    def restore(self) -> None:
        """Note that the session is that of an earlier process, whose messages are not remembered."""
        self._took_unknown = True

    def note_pending_applied(self) -> None:
        """Note that all pending messages of a resumed session have come."""
        self._took_unknown = False

    def begin_session(self) -> None:
        """Forget the messages of the former session."""
        self._took_unknown = False
        self._last_packet_id = 0
        self._taken.clear()
        self._taken_count = 0
        self._gaps.clear()

    def begin_connection(self, *, resumed: bool, counts_up: bool) -> None:
        """Note a Network Connection.

        Args:
            resumed: True if it has the session of the former one.
            counts_up: True if the primary is known to count Packet Identifiers up. Then a message with an identifier up
                to the last one is not new, even without DUP: a killed primary may have forgotten that it sent it.
        """
        self._is_resumed = resumed
        self._counts_up = counts_up
        self._known = {}
        if resumed:
            for packet_ids, digests in self._taken:
                self._known.update(zip(packet_ids, digests, strict=True))
        self._left_at = self._expected_behind = self._last_packet_id
        self._left_position = self._last_position
        self._continues = not self._took_unknown

    def note(self, rows: Sequence[PublishRow], converted: ConvertedRows, *, now_ns: int) -> None:
        """Note rows that are taken, some at QoS 1 or 2, their conversion, and the Unix time in nanoseconds."""
        last = 0
        for row in reversed(rows):
            if row[FLAGS] & QOS:
                last = row[PACKET_ID]
                break
        count = len(converted.to_puback) + len(converted.to_pubrec)
        step = (last - self._last_packet_id) % _PACKET_ID_MAX
        self._last_position += step
        if step != count and self._last_packet_id:
            self._note_gap(rows, last, count=count, now_ns=now_ns)
        self._last_packet_id = last
        if not (self._may_be_resumed and converted.to_puback):
            return
        if len(converted.to_puback) == len(converted.updates) == len(rows):  # as nearly always
            digests = list(map(_digest, converted.updates))
        else:
            digests = [content_digest(row[TOPIC], row[PAYLOAD]) for row in rows if row[FLAGS] & QOS == QOS_1]
        self._taken.append((converted.to_puback, digests))
        self._taken_count += len(digests)
        while self._taken_count > _TAKEN_MAX and len(self._taken) > 1:
            self._taken_count -= len(self._taken.popleft()[1])

    def split_known(self, rows: Sequence[PublishRow]) -> Iterable[tuple[bool, Sequence[PublishRow]]]:
        """Split rows, in order, by whether they, or something newer for their topic, came on a former connection."""
        if not self._is_resumed:
            return ((False, rows),)
        return (
            (known, list(part)) for known, part in groupby(rows, lambda row: self._knows(row) or self._is_outdated(row))
        )

    def continues(self, row: PublishRow) -> bool:
        """Say whether the session continues where this process left it, as far as Packet Identifiers tell.

        Call it with each row in order. A primary that does not count identifiers up is believed.
        """
        if self._counts_up and row[FLAGS] & QOS and self._left_at and self._continues:
            if row[PACKET_ID] == self._expected_behind % _PACKET_ID_MAX + 1:
                self._expected_behind = row[PACKET_ID]
            elif not row[FLAGS] & DUP:
                self._continues = False
        return self._continues

    def _knows(self, row: PublishRow) -> bool:
        topic, payload, flags, packet_id, *_ = row
        if flags & QOS != QOS_1:
            return False
        behind = self._counts_up and self._behind(packet_id) < _PACKET_ID_MAX // 2
        return bool(flags & DUP or behind) and self._known.get(packet_id) == content_digest(topic, payload)

    def _is_outdated(self, row: PublishRow) -> bool:
        """Say whether a missing retained message comes again while the replica has a newer value of its topic."""
        topic, _, flags, packet_id, *_ = row
        if not (flags & DUP and flags & RETAIN and self._gaps and self._counts_up):
            return False
        behind = self._behind(packet_id)
        if behind >= _PACKET_ID_MAX // 2:  # it did not precede the last one
            return False
        at = bisect_right(self._gaps, self._left_position - behind, key=_position)
        held = self._held(topic) if at < len(self._gaps) else None
        outdated = held is not None and held[5] > self._gaps[at][1]
        self.counters.overtaken_total += outdated
        return outdated

    def _behind(self, packet_id: int) -> int:
        """Return how far a Packet Identifier is behind the last one of the former connection."""
        return (self._left_at - packet_id) % _PACKET_ID_MAX

    def _note_gap(self, rows: Sequence[PublishRow], last: int, *, count: int, now_ns: int) -> None:
        """Note missing Packet Identifiers in front of rows or among them, unless older ones came again."""
        if (last - self._last_packet_id) % _PACKET_ID_MAX >= _PACKET_ID_MAX // 2:
            self._last_position -= _PACKET_ID_MAX
            return
        behind, since_ns = self._last_position, now_ns
        first = rows[0]
        if first[FLAGS] & QOS and (last - first[PACKET_ID]) % _PACKET_ID_MAX == count - 1:  # all of these are after it
            behind, since_ns = self._last_position - (count - 1), now_ns - 1
        if not self._gaps or self._gaps[-1][0] < behind:
            self._gaps.append((behind, since_ns))
