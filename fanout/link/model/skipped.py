"""Skipped messages of a link: those that cannot be replicated, by reason, and the newest of them by topic (core).

A skipped message costs itself only: it is acknowledged, and everything after it flows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from fanout.escaping import printable
from fanout.mqtt.breaches import SKIP_TEXTS, Deviation, SkipReason

__all__ = [
    "SKIPPED_SHOWN_MAX",
    "TALLIED_TOPICS_MAX",
    "DeviationTolerated",
    "MessageSkipped",
    "SkippedMessages",
    "SkippedTally",
    "not_held_text",
]

SKIPPED_SHOWN_MAX: Final = 16
"""Newest skipped messages that are shown."""
TALLIED_TOPICS_MAX: Final = 100
"""Topics of skipped messages that are recorded at once, of each reason."""
_TOPIC_CHARACTERS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class MessageSkipped:
    """A message was skipped; also an event of the session machine."""

    reason: SkipReason
    """Why it was skipped."""
    topic: str
    """Its topic, escaped and cut; empty for unknown."""
    detail: str
    """Details of the fault, or the size; empty if the reason says it all."""
    at_ns: int
    """When it was skipped, Unix time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class DeviationTolerated:
    """The primary broke the specification, and no message was skipped for it; an event of the session machine."""

    deviation: Deviation
    """Kind of the breach."""
    detail: str
    """The exact fault."""


@dataclass(slots=True)
class SkippedTally:
    """Messages skipped for one reason since they were last recorded.

    Attributes:
        first_ns: When the first of them was skipped, Unix time in nanoseconds.
        last_ns: When the last of them was.
        messages: Their number.
        topics: Their topics as far as known, the first `TALLIED_TOPICS_MAX`; a dict to keep the order.
    """

    first_ns: int
    last_ns: int
    messages: int = 0
    topics: dict[str, None] = field(default_factory=dict)


class SkippedMessages:
    """Skipped messages, and tolerated breaches, of one link since it was started.

    Attributes:
        totals: Number of skipped messages of each reason.
        tolerated: Number of tolerated breaches of each kind.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.totals = dict.fromkeys(SkipReason, 0)
        self.tolerated = dict.fromkeys(Deviation, 0)
        self._newest: deque[MessageSkipped] = deque(maxlen=SKIPPED_SHOWN_MAX)
        self._unrecorded: dict[SkipReason, SkippedTally] = {}

    @property
    def newest(self) -> tuple[MessageSkipped, ...]:
        """The newest skipped messages, the newest first."""
        return tuple(reversed(self._newest))

    def note(self, reason: SkipReason, topic: bytes, *, now_ns: int, detail: str = "") -> MessageSkipped:
        """Count a skipped message, and return its event.

        Args:
            reason: Why it is skipped.
            topic: Its topic as far as known, maybe no valid one; empty for unknown.
            now_ns: Unix time in nanoseconds.
            detail: Details of the fault; untrusted text is escaped here.
        """
        shown = printable(topic.decode(errors="backslashreplace"), length_max=_TOPIC_CHARACTERS_MAX)
        skipped = MessageSkipped(reason, shown, printable(detail, length_max=_TOPIC_CHARACTERS_MAX), now_ns)
        self.totals[reason] += 1
        self._newest.append(skipped)
        tally = self._unrecorded.setdefault(reason, SkippedTally(now_ns, now_ns))
        tally.last_ns = now_ns
        tally.messages += 1
        if shown and len(tally.topics) < TALLIED_TOPICS_MAX:
            tally.topics[shown] = None
        return skipped

    def take_unrecorded(self) -> dict[SkipReason, SkippedTally]:
        """Return what was skipped since this was last asked, by reason."""
        taken, self._unrecorded = self._unrecorded, {}
        return taken

    def tolerate(self, deviation: Deviation, detail: str) -> DeviationTolerated:
        """Count a breach that cost no message, and return its event; `detail` says what was wrong."""
        self.tolerated[deviation] += 1
        return DeviationTolerated(deviation, printable(detail, length_max=_TOPIC_CHARACTERS_MAX))


def not_held_text(reason: str, topics: int, *, at_least: bool) -> str:
    """Return for an operator how many topics exist at the primary and are not held, for a `SkipReason`."""
    count = f"{'at least ' if at_least else ''}{topics:,} {'topic is' if topics == 1 else 'topics are'}"
    return f"{count} not held: {SKIP_TEXTS[SkipReason(reason)]}"
