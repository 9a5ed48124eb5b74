"""Announcements of missing topics at a link's primary: Topic Filters that wait for one, and rate limits.

Each filter is announced only once in a while, and the number of filters per second is limited.
`fanout.node.missing_topics` finds the filters and publishes the announcements.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass

from fanout.errors import ProtocolError
from fanout.link.model.counters import LinkCounters
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
"""Seconds after which a filter may be announced again."""
BURST_MAX = 10
"""Largest burst of announcements."""
PER_SECOND = 10
"""Announcements per second after a burst."""
FILTERS_MAX = 1_000
"""Number of announced filters remembered, more than can be announced in `REPEAT_S`; the oldest is forgotten first."""
PENDING_MAX = 100_000
"""Number of filters that may wait; further ones are dropped."""
PENDING_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of all waiting filters with the names of the nodes on their paths; further ones are dropped."""
HOPS_MAX = 64
"""Largest number of nodes on the path of an announcement."""
ANNOUNCEMENT_BYTES_MAX = 256 * 1024
"""Size of the largest announcement of another node that is read."""

_TIME_US_END = 253_402_300_800_000_000
"""The year 10000."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A filter that waits: since when, and through which nodes it came."""

    since_us: int
    """When a client began to wait for its topics, Unix time in microseconds."""
    path: tuple[str, ...] = ()
    """Nodes that have announced it, the one with the client first; empty for a client of this node."""


class MissingTopics:
    """Announcements of one link.

    Attributes:
        topic: Topic of announcements.
        counters: Counters of the link.
    """

    def __init__(self, control_topic: str, *, node_id: str, counters: LinkCounters) -> None:
        """Begin with nothing announced.

        Args:
            control_topic: Configured root of control topics.
            node_id: This node.
            counters: Counters of the link.
        """
        self.topic = missing_topic(control_topic)
        self.counters = counters
        self._node_id = node_id
        self._pending: OrderedDict[bytes, Waiting] = OrderedDict()
        """Local Topic Filters that wait, oldest first."""
        self._pending_bytes = 0
        self._last: dict[str, float] = {}
        """Filter at the primary to when it was announced, monotonic seconds, oldest first."""
        self._allowance = float(BURST_MAX)
        self._allowance_at = 0.0

    def __len__(self) -> int:
        """Return the number of filters that wait."""
        return len(self._pending)

    def add(self, topic_filter: bytes, waiting: Waiting) -> None:
        """Let a local Topic Filter wait for its turn, unless it does already.

        The request of another node replaces that of a local client, because it does not end with that client.
        """
        known = self._pending.get(topic_filter)
        if known is not None:
            if known.path or not waiting.path:
                return
            self._remove(topic_filter)
        size = _size(topic_filter, waiting)
        if len(self) >= PENDING_MAX or self._pending_bytes + size > PENDING_BYTES_MAX:
            self.counters.missing_dropped_total += 1
            return
        self._pending[topic_filter] = waiting
        self._pending_bytes += size

    def add_relayed(self, payload: bytes) -> None:
        """Let a filter wait that a node below has announced; drop it if it came through this node before."""
        told = read_announcement(payload)
        if told is None or self._node_id in told[1].path:
            self.counters.missing_dropped_total += 1
        else:
            self.add(*told)

    def take(self) -> tuple[bytes, Waiting] | None:
        """Remove and return the filter that has waited longest; None when none waits."""
        if not self._pending:
            return None
        topic_filter = next(iter(self._pending))
        return topic_filter, self._remove(topic_filter)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next announcement is allowed; `now` is monotonic seconds."""
        self._allowance = min(BURST_MAX, self._allowance + PER_SECOND * max(0.0, now - self._allowance_at))
        self._allowance_at = now
        return max(0.0, 1 - self._allowance) / PER_SECOND

    def is_repeated(self, topic_filter: str, now: float) -> bool:
        """Return whether a filter at the primary was announced a short time ago, and count it if so."""
        last = self._last.get(topic_filter)
        repeated = last is not None and now < last + REPEAT_S
        self.counters.missing_suppressed_total += repeated
        return repeated

    def announcement(self, topic_filter: str, waiting: Waiting) -> bytes:
        """Return the announcement of a filter at the primary that matches no topic, and count it for the rate limit.

        Args:
            topic_filter: The filter.
            waiting: Since when and through which nodes it waits.
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
        self.counters.missing_announced_total += accepted
        self.counters.missing_dropped_total += not accepted

    def _remove(self, topic_filter: bytes) -> Waiting:
        waiting = self._pending.pop(topic_filter)
        self._pending_bytes -= _size(topic_filter, waiting)
        return waiting


def missing_topic(control_topic: str) -> bytes:
    """Return the topic of announcements for a configured root of control topics."""
    return f"{control_topic}/missing".encode()


def read_announcement(payload: bytes) -> tuple[bytes, Waiting] | None:
    """Decode the announcement of another node; None when it is invalid."""
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
