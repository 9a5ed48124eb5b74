"""Skipped messages of a link: those that cannot be replicated, by reason, and the newest of them by topic (core).

A skipped message costs itself only: it is acknowledged, and everything after it flows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from fanout.escaping import printable
from fanout.mqtt.breaches import SKIP_TEXTS, Deviation, SkipReason

__all__ = ["SKIPPED_SHOWN_MAX", "DeviationTolerated", "MessageSkipped", "SkippedMessages", "not_held_text"]

SKIPPED_SHOWN_MAX: Final = 16
"""Newest skipped messages that are shown."""
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
    """What exactly was wrong."""


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
        return skipped

    def tolerate(self, deviation: Deviation, detail: str) -> DeviationTolerated:
        """Count a breach that cost no message, and return its event; `detail` says what was wrong."""
        self.tolerated[deviation] += 1
        return DeviationTolerated(deviation, printable(detail, length_max=_TOPIC_CHARACTERS_MAX))


def not_held_text(reason: str, topics: int, *, at_least: bool) -> str:
    """Return for an operator how many topics exist at the primary and are not held, for a `SkipReason`."""
    count = f"{'at least ' if at_least else ''}{topics:,} {'topic is' if topics == 1 else 'topics are'}"
    return f"{count} not held: {SKIP_TEXTS[SkipReason(reason)]}"
