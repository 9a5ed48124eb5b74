"""Which missing topics a link announces at its primary (core).

Owns the topic, the document, and the limits: a filter once in a while, and only so many filters a second. It must not
know who subscribed, nor how a message is published.
"""

from __future__ import annotations

import json

__all__ = ["BURST_MAX", "FILTERS_MAX", "REPEAT_S", "MissingTopics"]

REPEAT_S = 60.0
"""A filter is announced again only after so many seconds."""
BURST_MAX = 10
"""Announcements at a time, and then one more each second."""
FILTERS_MAX = 1_000
"""Filters remembered as announced; the oldest is forgotten first."""


class MissingTopics:
    """Decides what is announced.

    Attributes:
        topic: Where announcements go.
        announced_total: Filters announced.
        suppressed_total: Filters not announced: too soon after the last time, or too many at a time.
    """

    def __init__(self, control_topic: str, *, node_id: str) -> None:
        """Begin with nothing announced.

        Args:
            control_topic: The configured root of control topics.
            node_id: This node.
        """
        self.topic = f"{control_topic}/missing".encode()
        self.announced_total = 0
        self.suppressed_total = 0
        self._node_id = node_id
        self._last: dict[str, float] = {}
        """Filter to when it was announced, oldest first."""
        self._allowance = float(BURST_MAX)
        self._allowance_at = 0.0

    def announcement(self, topic_filter: str, *, now: float, now_ns: int) -> bytes | None:
        """Return the message for a filter at the primary that matches no topic; None when it is not the time for one.

        Args:
            topic_filter: The filter.
            now: Monotonic seconds.
            now_ns: Unix time in nanoseconds.
        """
        self._allowance = min(BURST_MAX, self._allowance + max(0.0, now - self._allowance_at))
        self._allowance_at = now
        last = self._last.get(topic_filter)
        if (last is not None and now < last + REPEAT_S) or self._allowance < 1:
            self.suppressed_total += 1
            return None
        self._allowance -= 1
        self._last.pop(topic_filter, None)
        self._last[topic_filter] = now
        if len(self._last) > FILTERS_MAX:
            del self._last[next(iter(self._last))]
        self.announced_total += 1
        return json.dumps({"filter": topic_filter, "node": self._node_id, "time_us": now_ns // 1000}).encode()
