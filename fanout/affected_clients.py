"""Affected subscriptions: those that may match topics of some selectors (core).

The decision is by Topic Filters and ignores excludes, so it errs on the side of too many subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterable

from fanout.errors import SelectorInvalid
from fanout.selection import Selector, intersect

__all__ = ["Concerned"]


class Concerned:
    """Tells whether a Topic Filter may match a local topic of some selectors; results are cached."""

    def __init__(self, selectors: Iterable[Selector]) -> None:
        self._local = [selector.local_filter for selector in selectors]
        self._known: dict[bytes, bool] = {}

    def __call__(self, topic_filter: bytes) -> bool:
        """Tell whether a client's Topic Filter, not a `$share` form, may match one of their topics."""
        known = self._known.get(topic_filter)
        if known is None:
            known = self._known[topic_filter] = self._judge(topic_filter.decode())
        return known

    def _judge(self, topic_filter: str) -> bool:
        try:
            return any(intersect(local, topic_filter) is not None for local in self._local)
        except SelectorInvalid:  # more levels than a selector may have, which a client's Topic Filter may
            return True
