"""Whose subscriptions a link's topics concern (core).

Owns this one judgement, by Topic Filters: excludes play no part, so that rather too many subscriptions are concerned
than too few. It must not know sessions.
"""

from __future__ import annotations

from collections.abc import Iterable

from fanout.errors import SelectorInvalid
from fanout.selection import Selector, intersect

__all__ = ["Concerned"]


class Concerned:
    """Says of Topic Filters whether they match a local topic of some selectors; each is judged once."""

    def __init__(self, selectors: Iterable[Selector]) -> None:
        self._local = [selector.local_filter for selector in selectors]
        self._known: dict[bytes, bool] = {}

    def __call__(self, topic_filter: bytes) -> bool:
        """Return whether a client's Topic Filter, not a `$share` form, may match one of their topics."""
        known = self._known.get(topic_filter)
        if known is None:
            known = self._known[topic_filter] = self._judge(topic_filter.decode())
        return known

    def _judge(self, topic_filter: str) -> bool:
        try:
            return any(intersect(local, topic_filter) is not None for local in self._local)
        except SelectorInvalid:  # more levels than a selector may have, which a client's Topic Filter may
            return True
