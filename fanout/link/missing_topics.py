"""Which Topic Filters wait to be announced at a link's primary as missing, which were announced, and how often (core).

Owns the topic, the document, the filters that wait, and the limits: a filter once in a while, and only so many filters
a second. It must not know who subscribed, whether a topic is there, nor how a message is published.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass

from fanout.errors import ProtocolError
from fanout.mqtt.topics import check_topic_filter
from fanout.peer_text import is_node_name, read_document

__all__ = [
    "ANNOUNCEMENT_BYTES_MAX",
    "BURST_MAX",
    "FILTERS_MAX",
    "HOPS_MAX",
    "PENDING_BYTES_MAX",
    "PENDING_MAX",
    "PER_SECOND",
    "REPEAT_S",
    "MissingTopics",
    "Waiting",
    "missing_topic",
    "read_announcement",
]

REPEAT_S = 60.0
"""A filter is announced again only after so many seconds."""
BURST_MAX = 10
"""Announcements at a time."""
PER_SECOND = 10
"""Announcements each second after that."""
FILTERS_MAX = 1_000
"""Filters remembered as announced, more than can be announced in `REPEAT_S`; the oldest is forgotten first."""
PENDING_MAX = 100_000
"""Filters that may wait; further ones are dropped."""
PENDING_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that they may have together, with the names of the nodes that told of them."""
HOPS_MAX = 64
"""Nodes that an announcement may have come through."""
ANNOUNCEMENT_BYTES_MAX = 256 * 1024
"""Bytes of the largest announcement of another node that is read."""

_TIME_US_END = 253_402_300_800_000_000
"""The year 10000."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of a filter that waits."""

    since_us: int
    """Since when somebody waits for its topics, Unix time in microseconds."""
    path: tuple[str, ...] = ()
    """The nodes that have announced it so far, first the one whose client waits; empty for a client of this node."""


class MissingTopics:
    """What one link has to announce, and has announced.

    Attributes:
        topic: Where announcements go.
        announced_total: Filters whose announcement the primary has accepted.
        suppressed_total: Filters not announced because they had been a short time before.
        dropped_total: Filters that are not announced: too many waited, the primary refused it, or what another node
            told could not be used.
    """

    def __init__(self, control_topic: str, *, node_id: str) -> None:
        """Begin with nothing announced.

        Args:
            control_topic: The configured root of control topics.
            node_id: This node.
        """
        self.topic = missing_topic(control_topic)
        self.announced_total = 0
        self.suppressed_total = 0
        self.dropped_total = 0
        self._node_id = node_id
        self._pending: OrderedDict[bytes, Waiting] = OrderedDict()
        """Local Topic Filter to what is known of it, oldest first."""
        self._pending_bytes = 0
        self._last: dict[str, float] = {}
        """Filter at the primary to when it was announced, oldest first."""
        self._allowance = float(BURST_MAX)
        self._allowance_at = 0.0

    def __len__(self) -> int:
        """Return how many filters wait."""
        return len(self._pending)

    def add(self, topic_filter: bytes, waiting: Waiting) -> None:
        """Let a local Topic Filter wait for its turn, unless it does already.

        What another node tells takes the place of what a client here has asked: it does not end with the client.
        """
        known = self._pending.get(topic_filter)
        if known is not None:
            if known.path or not waiting.path:
                return
            self._remove(topic_filter)
        size = _size(topic_filter, waiting)
        if len(self) >= PENDING_MAX or self._pending_bytes + size > PENDING_BYTES_MAX:
            self.dropped_total += 1
            return
        self._pending[topic_filter] = waiting
        self._pending_bytes += size

    def add_relayed(self, payload: bytes) -> None:
        """Let a filter wait that a node below has announced here; what came through this node before is dropped."""
        told = read_announcement(payload)
        if told is None or self._node_id in told[1].path:
            self.dropped_total += 1
        else:
            self.add(*told)

    def take(self) -> tuple[bytes, Waiting] | None:
        """Return the filter that has waited longest, which does not wait any more; None when none does."""
        if not self._pending:
            return None
        topic_filter = next(iter(self._pending))
        return topic_filter, self._remove(topic_filter)

    def wait_s(self, now: float) -> float:
        """Return in how many seconds the next announcement is allowed; `now` is monotonic seconds."""
        self._allowance = min(BURST_MAX, self._allowance + PER_SECOND * max(0.0, now - self._allowance_at))
        self._allowance_at = now
        return max(0.0, 1 - self._allowance) / PER_SECOND

    def is_repeated(self, topic_filter: str, now: float) -> bool:
        """Say, and count, whether a filter at the primary was announced a short time ago."""
        last = self._last.get(topic_filter)
        repeated = last is not None and now < last + REPEAT_S
        self.suppressed_total += repeated
        return repeated

    def announcement(self, topic_filter: str, waiting: Waiting) -> bytes:
        """Return the message for a filter at the primary that matches no topic, and count it for the limits.

        Args:
            topic_filter: The filter.
            waiting: What is known of it.
        """
        self._allowance -= 1
        path = [*waiting.path, self._node_id]
        document = {"filter": topic_filter, "node": path[0], "time_us": waiting.since_us, "path": path}
        return json.dumps(document).encode()

    def note_answer(self, topic_filter: str, *, accepted: bool, now: float) -> None:
        """Note that the primary has accepted or refused an announcement; `now` is monotonic seconds."""
        self._last.pop(topic_filter, None)
        self._last[topic_filter] = now
        if len(self._last) > FILTERS_MAX:
            del self._last[next(iter(self._last))]
        self.announced_total += accepted
        self.dropped_total += not accepted

    def _remove(self, topic_filter: bytes) -> Waiting:
        waiting = self._pending.pop(topic_filter)
        self._pending_bytes -= _size(topic_filter, waiting)
        return waiting


def missing_topic(control_topic: str) -> bytes:
    """Return the topic of announcements for a configured root of control topics."""
    return f"{control_topic}/missing".encode()


def read_announcement(payload: bytes) -> tuple[bytes, Waiting] | None:
    """Return the filter of another node's announcement and what is known of it; None when it is not one."""
    try:
        document = read_document(payload, bytes_max=ANNOUNCEMENT_BYTES_MAX)
        topic_filter = document["filter"].encode()
        check_topic_filter(topic_filter)
        time_us = document["time_us"]
        path = document.get("path") or [document["node"]]
    except (ValueError, KeyError, TypeError, AttributeError, ProtocolError):
        return None
    if not isinstance(path, list) or not all(map(is_node_name, path)):
        return None
    if type(time_us) is not int or not 0 <= time_us < _TIME_US_END:
        return None
    return (topic_filter, Waiting(time_us, tuple(path))) if len(path) <= HOPS_MAX else None


def _size(topic_filter: bytes, waiting: Waiting) -> int:
    return len(topic_filter) + sum(map(len, waiting.path))
