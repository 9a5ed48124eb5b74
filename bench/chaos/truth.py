"""Values that the primary must hold according to the only publisher, and those that are certain at a time.

Owns the ledger and its uncertainty. A value counts from its acknowledgement on. Its topic is uncertain while it is
under way and around its expiry. After the primary was killed nothing is certain until it was read again. All times are
`time.monotonic`. It must not know who asks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.client import Message

__all__ = ["EXPIRY_SLACK_S", "Truth", "Value", "number_of"]

EXPIRY_SLACK_S = 2.5
"""Message Expiry Intervals travel in whole seconds, and every server counts down by itself."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a topic."""

    payload: bytes
    properties: Mapping[str, Any] = field(default_factory=dict)
    expires: float | None = None
    """When it goes; None for never."""


@dataclass(slots=True)
class _Topic:
    value: Value | None = None
    changed: float = 0.0
    """When it was touched last: sent, acknowledged, or read anew."""
    under_way: int = 0
    doubtful: bool = False
    """True if the newest value may have expired before the primary took it, and left what was there."""


class Truth:
    """The publisher's ledger.

    Attributes:
        life: Counts the primary's processes; each may have begun with older values than the former one ended with.
        known_since: Time from which the ledger equals the values of the primary; None while that is not known.
    """

    def __init__(self) -> None:
        self.life = 0
        self.known_since: float | None = None
        self.publishes: Counter[tuple[str, bytes]] = Counter()
        """Number of times that each value of a topic was sent."""
        self._life_of: dict[bytes, int] = {}
        self._topics: dict[str, _Topic] = {}

    def begin_life(self) -> None:
        """Note that the primary was, or is about to be, killed: nothing is known."""
        self.life += 1
        self.known_since = None

    def learn(self, held: Mapping[str, Message], *, since: float) -> None:
        """Take what a client read at the primary, which only the publisher changes, as the truth since its start."""
        now = time.monotonic()
        for topic in {*self._topics, *held}:
            message = held.get(topic)
            value = None
            if message is not None:
                expires = None if message.expiry_s is None else now + message.expiry_s
                value = Value(message.payload, message.properties, expires)
            self._topics[topic] = _Topic(value, since)
        self.known_since = since

    def sent(self, topic: str, value: Value | None) -> None:
        """Note that the publisher sends a value, or with None a clear."""
        entry = self._topics.setdefault(topic, _Topic())
        entry.under_way += 1
        entry.changed = time.monotonic()
        if value is not None:
            self.publishes[topic, value.payload] += 1
            self._life_of[value.payload] = self.life

    def acknowledged(self, topic: str, value: Value | None) -> None:
        """Note that the primary has it; to be called in the order of the acknowledgements."""
        entry = self._topics[topic]
        entry.value = value
        entry.under_way -= 1
        entry.changed = time.monotonic()
        entry.doubtful = value is not None and value.expires is not None and value.expires <= entry.changed

    def life_of(self, payload: bytes) -> int:
        """Return in which of the primary's lives a value was published last."""
        return self._life_of[payload]

    def held(self, topic: str) -> Value | None:
        """Return the value of a topic by the ledger; None without one, or when it has expired."""
        entry = self._topics.get(topic)
        if entry is None or entry.value is None:
            return None
        expires = entry.value.expires
        return None if expires is not None and expires <= time.monotonic() else entry.value

    @property
    def topics(self) -> list[str]:
        """Every topic that ever had a value."""
        return list(self._topics)

    def is_stable(self, topic: str, *, since: float) -> bool:
        """Say whether it is certain that a topic has had the one value that `held` returns from `since` until now."""
        if self.known_since is None or self.known_since > since:
            return False
        entry = self._topics.get(topic)
        if entry is None:
            return True
        if entry.under_way or entry.doubtful or entry.changed > since:
            return False
        expires = None if entry.value is None else entry.value.expires
        return expires is None or not since - EXPIRY_SLACK_S < expires < time.monotonic() + EXPIRY_SLACK_S

    @property
    def settled_at(self) -> float:
        """When the last value that will expire has done so for certain."""
        ends = [entry.value.expires for entry in self._topics.values() if entry.value and entry.value.expires]
        return max(ends, default=0.0) + EXPIRY_SLACK_S


def number_of(payload: bytes) -> int:
    """Return the number with which every payload of the publisher begins; later ones are higher."""
    return int(payload.partition(b" ")[0])
