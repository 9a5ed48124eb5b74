"""One retained set as it came: its topics, and the packets before, within and behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fanout.probe.client import Arrival

__all__ = ["RetainedSet"]


@dataclass(slots=True)
class RetainedSet:
    """The retained messages of one SUBSCRIBE."""

    inside: str
    """Beginning of the topics of the set."""
    expected: int | None
    """Number of topics in the set; None when not known."""
    fence: str | None
    """Topic of the fence; None for none."""
    control: str | None
    """Topic of the marker; None for none."""
    topics: set[str] = field(default_factory=set)
    """Topics that came."""
    places: dict[str, int] = field(default_factory=dict)
    """Number of topics before `SUBACK`, `fence`, `PINGRESP` and `marker`, for those that came."""
    codes: tuple[int, ...] = ()
    """Reason Codes of SUBACK."""
    pause_s: float = 0.0
    """Longest time without a topic, from the request to the last one, in seconds."""
    newest_at: float | None = None
    """Time of the newest topic, or of the request; monotonic seconds, None before."""

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
        """Whether all topics came; true when their number is not known."""
        return self.expected is None or len(self.topics) >= self.expected

    def is_behind(self, what: str) -> bool:
        """Tell whether `what` came behind a whole set."""
        return self.places.get(what) == len(self.topics) and self.is_whole

    def describe(self, what: str) -> str:
        """Describe the place of `what`."""
        total, before = len(self.topics), self.places.get(what)
        if before is None:
            return "it does not come"
        short = "" if self.is_whole else f", of {self.expected:,} that there are"
        return f"behind all {total:,}{short}" if before == total else f"behind {before:,} of {total:,}{short}"
