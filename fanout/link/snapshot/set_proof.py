"""Evidence that the retained set of one SUBSCRIBE arrived completely, and signs that it will not.

SUBSCRIBE, PINGREQ and the marker leave in one write. Mosquitto answers SUBACK first, then the retained set, then
PINGRESP, then the marker, which goes through the queue of QoS 1 messages. While the client does not read, its
outgoing queue fills, and the rest of the set is dropped: a prefix of the set comes. Nearly always PINGRESP and
marker are dropped as well, but not when the reader has caught up just before they are handled. Measured on 2.0.11:
readers that stop once for 10 to 600 ms, 740 snapshots of 100 000 topics, came short 200 times, and 3 times
PINGRESP and marker came all the same; behind a proxy that forwards slowly, 4 times of 13.

The *sentinel* closes this gap: a second Topic Filter in the same SUBSCRIBE that requests one more retained message. It
is queued after the set before anything else is handled, so it comes only after a complete set. It came in every
complete snapshot and in no other. Without a sentinel the evidence depends on the order of the primary's answers.

A fanout node sends a manifest of the set (`fanout.chain.manifest`), which is compared with the messages that came. The
other answers then only show that everything before them has come too.

Live updates may flow all the time, so the link cannot wait for silence alone. A *probe*, a later request, ends the
waiting: if it is answered while SUBACK is missing, the answers were dropped. The same holds while PINGRESP or the
sentinel is missing and no further topic has come since the probe was sent. (A primary that sends retained sets bit by
bit answers SUBSCRIBE first.)
"""

from __future__ import annotations

from fanout.link.model.evidence import Evidence

__all__ = ["PROBES_MAX", "SetProof"]

PROBES_MAX = 8
"""Number of unanswered probes after which the primary counts as having dropped them too."""


class SetProof:
    """Evidence for one retained set.

    Attributes:
        suback_id: Packet Identifier of the SUBSCRIBE.
        sentinel: Topic of the sentinel; None when the primary has none.
        marker: Payload of the marker; None when none could be sent.
    """

    def __init__(
        self,
        suback_id: int,
        *,
        sentinel: bytes | None,
        marker: bytes | None,
        now: float,
        quiet_s: float,
        silence_s: float | None = None,
    ) -> None:
        """Begin to wait.

        Args:
            suback_id: See the class.
            sentinel: See the class.
            marker: See the class.
            now: When the SUBSCRIBE was written, monotonic seconds.
            quiet_s: Seconds without a byte after which a probe is sent.
            silence_s: Seconds without a byte after which the set counts as truncated; None for `quiet_s`.
        """
        self.suback_id = suback_id
        self.sentinel = sentinel
        self.marker = marker
        self._quiet_s = quiet_s
        self._silence_s = quiet_s if silence_s is None else silence_s
        self._subacked = False
        self._ponged = False
        self._sentinel_came = False
        self._marker_came = False
        self._barrier_at: float | None = None
        self._last_byte = now
        self._last_probe = now
        self._probes: dict[int, int] = {}
        """Packet Identifier of a probe to the number of topics that had come when it was sent."""
        self._overtaken = False
        self._awaits_manifest = False
        self._has_manifest = False
        self.refuted = ""
        """Difference of the set from the manifest, in words; empty when there is none."""

    @property
    def evidence(self) -> Evidence | None:
        """Evidence that the set is complete; None while an answer is awaited."""
        if self._barrier_at is None or (self.marker is not None and not self._marker_came):
            return None
        if self.refuted:
            return None
        if self._has_manifest:
            return Evidence.MANIFEST
        return Evidence.BARRIER if self.marker is None else Evidence.MARKER

    @property
    def barrier(self) -> bool:
        """True if SUBACK, PINGRESP and the sentinel, if there is one, have come."""
        return self._barrier_at is not None

    @property
    def missing(self) -> str:
        """Answers that are awaited, for an operator."""
        awaited = []
        if not self._subacked:
            awaited.append("SUBACK")
        if self.sentinel is not None and not self._sentinel_came:
            awaited.append("the sentinel")
        if self._awaits_manifest and not self._has_manifest:
            awaited.append("the manifest")
        if not self._ponged:
            awaited.append("PINGRESP")
        if self.marker is not None and not self._marker_came:
            awaited.append("the marker")
        return " and ".join(awaited)

    def receive_bytes(self, now: float) -> None:
        """Note that the primary sent something."""
        self._last_byte = max(self._last_byte, now)  # it may lie in the future after `postpone`

    def receive_suback(self, now: float) -> None:
        """Note SUBACK."""
        self._subacked = True
        self._note_barrier(now)

    def receive_pingresp(self, now: float) -> None:
        """Note PINGRESP."""
        self._ponged = True
        self._note_barrier(now)

    def receive_sentinel(self, topic: bytes, now: float) -> None:
        """Note a retained message outside the set, which may be the sentinel."""
        self._sentinel_came = self._sentinel_came or topic == self.sentinel
        self._note_barrier(now)

    def expect_manifest(self) -> None:
        """Note that SUBACK promises a manifest; to be called before `receive_suback`."""
        self._awaits_manifest = True

    def receive_manifest(self, difference: str, now: float) -> None:
        """Note the manifest, and how the set differs from it; empty when it does not."""
        self._has_manifest = True
        self.refuted = difference
        self._note_barrier(now)

    def refute(self, difference: str) -> None:
        """Note that the set is not complete, whatever else comes."""
        self.refuted = difference

    def receive_marker(self, payload: bytes) -> None:
        """Note that a message of the control topic came back."""
        self._marker_came = self._marker_came or payload == self.marker

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause."""
        self._last_byte += pause_s
        self._last_probe += pause_s
        if self._barrier_at is not None:
            self._barrier_at += pause_s

    def add_probe(self, packet_id: int, *, now: float, topics: int) -> None:
        """Note that a probe was sent when `topics` topics of the set had come."""
        self._probes[packet_id] = topics
        self._last_probe = now

    def receive_probe_answer(self, packet_id: int, *, topics: int) -> bool:
        """Note an answer that came after `topics` topics; return True if it answers a probe of this set."""
        topics_before = self._probes.pop(packet_id, None)
        if topics_before is None:
            return False
        if self._barrier_at is None and (not self._subacked or topics == topics_before):
            self._overtaken = True
        return True

    def is_truncated(self, now: float) -> bool:
        """Say whether the evidence will not come."""
        if self.evidence is not None:
            return False
        if self.refuted or self._overtaken or len(self._probes) > PROBES_MAX:
            return True
        return now >= self._patience_ends

    def probe_due(self, now: float) -> bool:
        """Say whether it is time for another probe: the barrier is still awaited."""
        return self._barrier_at is None and now >= self._last_probe + self._quiet_s

    @property
    def deadline(self) -> float:
        """When to ask `is_truncated` and `probe_due` again, monotonic seconds."""
        if self.refuted or (self._overtaken and self._silence_s > self._quiet_s):
            return self._last_byte  # a long patience is for a silent primary, not for one that has answered
        if self._barrier_at is not None:
            return self._patience_ends
        return min(self._last_byte + self._silence_s, self._last_probe + self._quiet_s)

    @property
    def _patience_ends(self) -> float:
        if self._barrier_at is None:
            return self._last_byte + self._silence_s
        # Only the marker is missing: live updates may go on for ever, so the wait has an end.
        return min(
            max(self._barrier_at, self._last_byte) + self._quiet_s,
            self._barrier_at + PROBES_MAX * self._quiet_s,
        )

    def _note_barrier(self, now: float) -> None:
        is_closed = (self.sentinel is None or self._sentinel_came) and (self._has_manifest or not self._awaits_manifest)
        if self._subacked and self._ponged and is_closed and self._barrier_at is None:
            self._barrier_at = now
