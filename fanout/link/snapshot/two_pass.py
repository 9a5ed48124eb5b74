"""The end of a retained set that no answer tells of, and whether two passes in a row brought the same (core).

Owns the two weakest kinds of evidence. It must not know packets, nor how a pass is begun
(`fanout.link.snapshot.retained_pass`).

Some primaries hand retained messages to another process, or send them bit by bit; whatever is asked for behind the set
may then be answered in front of it (`fanout.link.snapshot.capability_check` finds out). There a pass ends when nothing
new has come for a while, and one pass alone proves nothing: a primary that pauses, or drops what a slow reader leaves,
ends one early, too. So it is taken again, until two in a row agree.

Nothing tells a topic that is created meanwhile from a copy that is late, so a trickle of new topics hides the end of a
set: a pass that has only trickled for some time has no end that could be claimed.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Set

from fanout.link.model.evidence import Evidence
from fanout.link.snapshot.set_proof import SetProof

__all__ = ["PASSES_MAX", "Comparison", "SilentProof", "Verdict"]

PASSES_MAX = 5
"""After so many passes that disagree a set is given up: topics come and go, or are dropped, all the time."""

_TRICKLE_QUIETS = 12
"""Topics only trickle when in so many quiet times fewer came than one of these two says."""
_TRICKLE_TOPICS = 120
_TRICKLE_SHARE = 0.01
"""Of the topics that had come before: a primary with a limited rate takes long for a large set, too."""


class SilentProof(SetProof):
    """One pass that ends by silence: no topic that was not there before came for the quiet time.

    Attributes:
        ended: Whether it has ended.
        trickles: Whether new topics have come for long, so few and so often that its end cannot be told.
    """

    def __init__(self, suback_id: int, *, now: float, quiet_s: float) -> None:
        """Begin to wait.

        Args:
            suback_id: Packet Identifier of the SUBSCRIBE.
            now: When it was written, monotonic seconds.
            quiet_s: How long nothing new may come before the pass has ended.
        """
        super().__init__(suback_id, fence=None, marker=None, now=now, quiet_s=quiet_s)
        self.ended = False
        self.trickles = False
        self._topics = 0
        self._progress_s = now
        self._window_topics = 0
        """How many topics had come when the time began in which they may turn out to trickle."""
        self._window_ends_s = now + _TRICKLE_QUIETS * quiet_s

    @property
    def evidence(self) -> Evidence | None:
        """What the pass alone would prove."""
        return Evidence.QUIET if self.ended else None

    @property
    def barrier(self) -> bool:
        """Whether the pass has ended."""
        return self.ended

    def postpone(self, pause_s: float) -> None:
        """Give the primary so much more time for what is awaited."""
        super().postpone(pause_s)
        self._progress_s += pause_s
        self._window_ends_s += pause_s

    def note_topics(self, topics: int, now: float) -> None:
        """Note how many topics have come by now."""
        if topics != self._topics:
            self._topics = topics
            self._progress_s = max(self._progress_s, now)

    def end_if_due(self, now: float) -> None:
        """End at `deadline`, or later, unless topics still come; then find out whether they trickle."""
        self.ended = self._answered and now >= self._quiet_at_s
        if not self.ended and now >= self._window_ends_s:
            came = self._topics - self._window_topics
            self.trickles = self._answered and came < max(_TRICKLE_TOPICS, _TRICKLE_SHARE * self._window_topics)
            self._window_topics = self._topics
            self._window_ends_s = now + _TRICKLE_QUIETS * self._quiet_s

    def is_truncated(self, now: float) -> bool:
        """Say whether the primary does not even answer."""
        return not self._answered and now >= self._last_byte + self._quiet_s

    def probe_due(self, now: float) -> bool:
        """Say no: an answer would show nothing."""
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


class Verdict(enum.Enum):
    """What a pass shows beside the one before it."""

    AGAIN = "again"
    """Nothing yet: another pass is needed."""
    SAME = "same"
    """Both brought the same topics."""
    NOTHING = "nothing"
    """This one brought nothing at all: the primary does not send its retained messages again."""


class Comparison:
    """The passes over one retained set, one after another.

    A pass is compared with all those before it, not only with the last: two that are cut short alike must not make what
    an earlier one brought look removed.

    Attributes:
        passes: How many were taken.
        missing: Topics of a pass before that the newest did not bring, although nothing removed them.
        fresh: Topics that the newest brought and none before did.
        seen: All topics that any of them brought.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.passes = 0
        self.missing = 0
        self.fresh = 0
        self.seen: set[bytes] = set()

    def take(self, seen: Set[bytes], *, held: Container[bytes]) -> Verdict:
        """Compare a pass with those before.

        A topic that was created or removed between two passes makes them differ, so there is one more.

        Args:
            seen: The topics that it brought, those not that were removed since.
            held: The topics that the replica has.
        """
        self.passes += 1
        self.missing = sum(1 for topic in self.seen - seen if topic in held)
        self.fresh = len(seen - self.seen)
        self.seen |= seen
        if self.passes == 1:
            return Verdict.AGAIN
        if self.missing and not seen:
            return Verdict.NOTHING
        return Verdict.AGAIN if self.missing or self.fresh else Verdict.SAME
