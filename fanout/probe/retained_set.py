"""One retained set as it came: its topics, and what came before, within and behind it.

Owns the reading of the order of packets. It must not know how a set is asked for (`fanout.probe.sets`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanout.probe.client import Arrival

__all__ = ["RetainedSet"]


@dataclass(slots=True)
class RetainedSet:
    """What one SUBSCRIBE brought."""

    inside: str
    """What the topics of the set begin with."""
    expected: int | None
    """How many topics there are; None when that is not known."""
    fence: str | None
    """Topic of the fence; None for none."""
    control: str | None
    """Topic of the marker; None for none."""
    topics: set[str] = field(default_factory=set)
    """Topics that came."""
    places: dict[str, int] = field(default_factory=dict)
    """`SUBACK`, `fence`, `PINGRESP` and `marker`, as far as they came, to the number of topics before them."""
    codes: tuple[int, ...] = ()
    """Reason Codes of SUBACK."""
    pause_s: float = 0.0
    """Longest time without a topic, from the request to the last one, in seconds."""
    newest_at: float | None = None
    """When the newest topic came, or when the set was asked for; monotonic seconds, None before."""

    def take(self, arrival: Arrival) -> None:
        """Take the next packet."""
        message = arrival.message
        if message is None:
            self.places.setdefault(arrival.kind, len(self.topics))
            if arrival.kind == "SUBACK":
                self.codes = arrival.codes
        elif message.topic == self.fence:
            self.places.setdefault("fence", len(self.topics))
        elif message.topic == self.control:
            self.places.setdefault("marker", len(self.topics))
        elif message.topic.startswith(self.inside):
            if self.newest_at is not None:
                self.pause_s = max(self.pause_s, arrival.at - self.newest_at)
            self.newest_at = arrival.at
            self.topics.add(message.topic)

    @property
    def is_whole(self) -> bool:
        """Whether all topics came; also when it is not known how many there are."""
        return self.expected is None or len(self.topics) >= self.expected

    def is_behind(self, what: str) -> bool:
        """Say whether `what` came behind all topics, and all there are."""
        return self.places.get(what) == len(self.topics) and self.is_whole

    def describe(self, what: str) -> str:
        """Say where `what` came."""
        total, before = len(self.topics), self.places.get(what)
        if before is None:
            return "it does not come"
        short = "" if self.is_whole else f", of {self.expected:,} that there are"
        return f"behind all {total:,}{short}" if before == total else f"behind {before:,} of {total:,}{short}"
