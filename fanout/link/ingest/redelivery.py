"""What a session brought, as far as its primary may send it again in the resumed one (core).

Owns three judgements on a row: whether it was taken before, whether something newer was, and whether the session that
was resumed is the one that was left. It must not know what is done with the row.

DUP alone does not say that a message was taken, for what was sent before may have been lost with the connection. Its
content does, together with the Packet Identifier: one that was used again since was acknowledged, and does not come
again. Nor is a session always the one that was left: a Mosquitto that was killed begins with what it saved some time
ago, maybe with an older session of this Client Identifier, and sends what that had in its queue. And a process that
resumes the session of an earlier one does not know what that took; the values do.

What comes again may be old: a Mosquitto drops what it cannot write to a slow reader, at QoS 1 and 2 too, but keeps it
in flight, and sends it when the session is resumed, maybe hours later. Its Packet Identifier was missing when the one
behind it came; so a value that came with that, or later, is newer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from fanout.link.ingest.convert import Batch
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Update, content_digest

__all__ = ["RedeliveryFilter"]

_PACKET_ID_MAX = 65_535
_TAKEN_MAX = 16_384
"""So many of the newest messages at QoS 1 are remembered: as many as a fanout node has in flight."""
_GAPS_MAX = 1_024
"""So many of the newest gaps are remembered."""
_digest = itemgetter(7)
_place = itemgetter(0)


class RedeliveryFilter:
    """The newest messages of one link's session.

    Attributes:
        outdated_total: Retained messages that came again although something newer for their topic had come.
    """

    def __init__(self, *, may_be_resumed: bool, held: Callable[[bytes], Update | None] = lambda topic: None) -> None:
        """Begin with none.

        Args:
            may_be_resumed: Whether the session outlives its connection; otherwise nothing need be remembered.
            held: Returns the value of a topic at the primary; None for none.
        """
        self.outdated_total = 0
        self._held = held
        self._may_be_resumed = may_be_resumed
        self._is_resumed = False
        self._counts_up = False
        self._took_unknown = False  # whether an earlier process took messages that may still come again
        # Packet Identifiers and digests of the newest messages at QoS 1, by batch; the PUBACK of any may be lost.
        self._taken: deque[tuple[Sequence[int], list[int]]] = deque()
        self._taken_count = 0
        self._known: dict[int, int] = {}  # what was taken on former connections of this session
        self._last_packet_id = 0  # of the newest message at QoS 1 or 2; 0 for none in this session
        self._left_at = 0  # what that was when the connection began
        self._expected_behind = 0  # of the newest one that went on behind it
        self._last_place = self._left_place = 0  # the same two, counted on beyond the range of Packet Identifiers
        # For each gap: a place behind it, and Unix time in nanoseconds; what came later is newer than what is missing.
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS_MAX)
        self._goes_on = True

    def restore(self) -> None:
        """Note that the session is that of an earlier process, of whose messages nothing is remembered."""
        self._took_unknown = True

    def settle(self) -> None:
        """Note that all that was pending in a resumed session has come."""
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
            resumed: Whether it has the session of the former one.
            counts_up: Whether the primary is known to count Packet Identifiers up: then one behind the last is no new
                message, without DUP too. A killed primary may not know any more that it had sent it.
        """
        self._is_resumed = resumed
        self._counts_up = counts_up
        self._known = {}
        if resumed:
            for packet_ids, digests in self._taken:
                self._known.update(zip(packet_ids, digests, strict=True))
        self._left_at = self._expected_behind = self._last_packet_id
        self._left_place = self._last_place
        self._goes_on = not self._took_unknown

    def note(self, rows: Sequence[PublishRow], batch: Batch, *, now_ns: int) -> None:
        """Note rows that are being taken, what became of them, and the Unix time in nanoseconds."""
        if not (batch.to_puback or batch.to_pubrec):
            return
        last = next(row[3] for row in reversed(rows) if row[2] & 6)
        count = len(batch.to_puback) + len(batch.to_pubrec)
        step = (last - self._last_packet_id) % _PACKET_ID_MAX
        self._last_place += step
        if step != count and self._last_packet_id:
            self._note_gap(rows, last, count=count, now_ns=now_ns)
        self._last_packet_id = last
        if not (self._may_be_resumed and batch.to_puback):
            return
        if len(batch.to_puback) == len(batch.updates) == len(rows):  # as nearly always
            digests = list(map(_digest, batch.updates))
        else:
            digests = [content_digest(row[0], row[1]) for row in rows if row[2] & 6 == 2]
        self._taken.append((batch.to_puback, digests))
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

    def goes_on(self, row: PublishRow) -> bool:
        """Say whether the session goes on where this process left it, as far as Packet Identifiers tell.

        To be asked of each row in order; a primary that does not count them up is believed.
        """
        if self._counts_up and row[2] & 6 and self._left_at and self._goes_on:
            if row[3] == self._expected_behind % _PACKET_ID_MAX + 1:
                self._expected_behind = row[3]
            elif not row[2] & 8:
                self._goes_on = False
        return self._goes_on

    def _knows(self, row: PublishRow) -> bool:
        topic, payload, flags, packet_id, *_ = row
        if flags & 6 != 2:
            return False
        behind = self._counts_up and self._behind(packet_id) < _PACKET_ID_MAX // 2
        return bool(flags & 8 or behind) and self._known.get(packet_id) == content_digest(topic, payload)

    def _is_outdated(self, row: PublishRow) -> bool:
        """Say whether a retained message comes again that was missing, while what is held of its topic is newer."""
        topic, _, flags, packet_id, *_ = row
        if not (flags & 8 and flags & 1 and self._gaps and self._counts_up):
            return False
        behind = self._behind(packet_id)
        if behind >= _PACKET_ID_MAX // 2:  # it is none of those in front of the last one
            return False
        at = bisect_right(self._gaps, self._left_place - behind, key=_place)
        held = self._held(topic) if at < len(self._gaps) else None
        outdated = held is not None and held[5] > self._gaps[at][1]
        self.outdated_total += outdated
        return outdated

    def _behind(self, packet_id: int) -> int:
        """Return by how many a Packet Identifier is behind the last one of the former connection."""
        return (self._left_at - packet_id) % _PACKET_ID_MAX

    def _note_gap(self, rows: Sequence[PublishRow], last: int, *, count: int, now_ns: int) -> None:
        """Note that Packet Identifiers are missing, in front of rows or among them, unless older ones came again."""
        if (last - self._last_packet_id) % _PACKET_ID_MAX >= _PACKET_ID_MAX // 2:
            self._last_place -= _PACKET_ID_MAX
            return
        behind, since_ns = self._last_place, now_ns
        if rows[0][2] & 6 and (last - rows[0][3]) % _PACKET_ID_MAX == count - 1:  # all of these are behind it
            behind, since_ns = self._last_place - (count - 1), now_ns - 1
        if not self._gaps or self._gaps[-1][0] < behind:
            self._gaps.append((behind, since_ns))
