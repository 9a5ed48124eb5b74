"""Evidence at a primary that does not answer in order: silence after a set, and agreement of two passes.

Some primaries hand retained messages to another process, or send them bit by bit, and may answer later requests before
the set is complete (`fanout.link.snapshot.capability_check` finds out). There a pass ends when nothing new has come for
a while. One pass alone proves nothing: a primary that pauses, or drops messages for a slow reader, ends one early, too.
So the set is taken again until two passes in a row agree.

A topic created meanwhile cannot be told from a late copy, so a trickle of new topics hides the end of a set. A pass
that has only trickled for some time has no end that could be claimed.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Set

from fanout.link.model.evidence import Evidence
from fanout.link.snapshot.set_proof import SetProof

__all__ = ["PASSES_MAX", "PassComparison", "PassVerdict", "SilentProof", "is_suspiciously_small"]

PASSES_MAX = 5
"""Number of passes that disagree after which a set is given up: topics come and go, or are dropped, all the time."""

_TRICKLE_QUIETS = 12
"""Topics trickle when fewer than one of these bounds come within so many quiet times."""
_TRICKLE_TOPICS = 120
_TRICKLE_SHARE = 0.01
"""Share of the topics that had come before: a primary with a limited rate takes long for a large set, too."""


def is_suspiciously_small(topics: int, *, had: int, max_removed_percent: int) -> bool:
    """Say whether a first set needs silence after it, besides answers in an order that is only likely.

    A primary that looks names up at once, and scans for wildcards after other requests, answers in front of the set.

    Args:
        topics: Number of topics that the set brought.
        had: Number that this node held before, in this epoch or the one before; 0 for unknown.
        max_removed_percent: Share of the topics that may be gone without suspicion.
    """
    return not topics or 100 * topics < (100 - max_removed_percent) * had


class SilentProof(SetProof):
    """One pass that ends by silence: no new topic came for the quiet time.

    Attributes:
        ended: True if the pass has ended.
        trickles: True if few new topics come so often that the end of the set cannot be seen.
    """

    def __init__(self, suback_id: int, *, now: float, quiet_s: float) -> None:
        """Begin to wait.

        Args:
            suback_id: Packet Identifier of the SUBSCRIBE.
            now: When it was written, monotonic seconds.
            quiet_s: Seconds without a new topic after which the pass has ended.
        """
        super().__init__(suback_id, sentinel=None, marker=None, now=now, quiet_s=quiet_s)
        self.ended = False
        self.trickles = False
        self._topics = 0
        self._progress_s = now
        self._window_topics = 0
        """Number of topics that had come when the present window for trickling began."""
        self._window_ends_s = now + _TRICKLE_QUIETS * quiet_s

    @property
    def evidence(self) -> Evidence | None:
        """Evidence of this pass alone."""
        return Evidence.QUIET if self.ended else None

    @property
    def barrier(self) -> bool:
        """True if the pass has ended."""
        return self.ended

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause."""
        super().postpone(pause_s)
        self._progress_s += pause_s
        self._window_ends_s += pause_s

    def note_topics(self, topics: int, now: float) -> None:
        """Note the number of topics that have come."""
        if topics != self._topics:
            self._topics = topics
            self._progress_s = max(self._progress_s, now)

    def note_part(self, now: float) -> None:
        """Note that a part of a large packet came."""
        self._progress_s = max(self._progress_s, now)

    def end_if_due(self, now: float) -> None:
        """End the pass if it was quiet long enough, else check whether topics trickle; to be called at `deadline`."""
        self.ended = self._answered and now >= self._quiet_at_s
        if not self.ended and now >= self._window_ends_s:
            came = self._topics - self._window_topics
            self.trickles = self._answered and came < max(_TRICKLE_TOPICS, _TRICKLE_SHARE * self._window_topics)
            self._window_topics = self._topics
            self._window_ends_s = now + _TRICKLE_QUIETS * self._quiet_s

    def is_truncated(self, now: float) -> bool:
        """Say whether the primary does not answer at all."""
        return not self._answered and now >= self._last_byte + self._quiet_s

    def probe_due(self, now: float) -> bool:
        """Say no, because the answer to a probe shows nothing here."""
        return False

    @property
    def deadline(self) -> float:
        """When to call `end_if_due`, monotonic seconds."""
        return min(self._quiet_at_s, self._window_ends_s)

    @property
    def _quiet_at_s(self) -> float:
        since = self._progress_s if self._answered else max(self._progress_s, self._last_byte)
        return since + self._quiet_s

    @property
    def _answered(self) -> bool:
        return self._subacked and self._ponged


class PassVerdict(enum.Enum):
    """Result of the comparison of a pass with those before."""

    AGAIN = "again"
    """Another pass is needed."""
    SAME = "same"
    """The passes brought the same topics."""
    NOTHING = "nothing"
    """The newest pass brought nothing: the primary does not send its retained messages again."""


class PassComparison:
    """Comparison of the passes over one retained set.

    A pass is compared with all those before it, not only with the last: two passes truncated alike must not make
    topics of an earlier one look removed.

    Attributes:
        passes: Number of passes taken.
        missing: Number of topics of earlier passes that the newest did not bring, although nothing removed them.
        fresh: Number of topics that the newest pass was the first to bring.
        seen: All topics of all passes.
    """

    def __init__(self) -> None:
        """Begin without a pass."""
        self.passes = 0
        self.missing = 0
        self.fresh = 0
        self.seen: set[bytes] = set()

    def take(self, seen: Set[bytes], *, held: Container[bytes]) -> PassVerdict:
        """Compare a pass with those before.

        A topic created or removed between two passes makes them differ, which costs one more pass.

        Args:
            seen: Topics that the pass brought, without those removed since.
            held: Topics of the replica.
        """
        self.passes += 1
        self.missing = sum(1 for topic in self.seen - seen if topic in held)
        self.fresh = len(seen - self.seen)
        self.seen |= seen
        if self.passes == 1:
            return PassVerdict.AGAIN
        if self.missing and not seen:
            return PassVerdict.NOTHING
        return PassVerdict.AGAIN if self.missing or self.fresh else PassVerdict.SAME
