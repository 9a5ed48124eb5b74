"""Questions that show what a primary left out of a retained set, and set sizes that look like a limit (core).

Owns which narrower Topic Filters are asked for, and which counts are suspicious. It must not know packets, nor what
follows from the answers (`fanout.link.snapshot.retained_pass`).

A limit on the retained messages for one SUBSCRIBE (ejabberd: 1 000, by `match_retained_limit`) cuts each pass alike,
with every answer behind the cut part, so passes that agree show nothing. The narrower Topic Filters of branches that
the set has shown have the same limit for less, and may bring what the wide one did not. That they bring nothing new
proves nothing: where every branch has one topic they cannot. Then only the count itself is suspicious.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanout.selection import Selector

__all__ = ["SAMPLE_TOPICS", "is_likely_limit", "narrower_filters"]

SAMPLE_TOPICS = 2_000
"""So many of the newest topics are looked at for branches."""
_SPREAD = 8
"""From so many places of the sample a branch is asked for."""
_LIMIT_MIN = 100
"""Smaller counts are too common to be suspicious, although one broker is said to have a limit of 10 (0003)."""


def is_likely_limit(count: int) -> bool:
    """Say whether limits are set to such a count: 1, 2, 2.5 or 5 times a power of ten, a power of two, or one less."""
    if count < _LIMIT_MIN:
        return False
    return str(count).rstrip("0") in ("1", "2", "25", "5") or not count & (count - 1) or not count & (count + 1)


def narrower_filters(selector: Selector, topics: Sequence[bytes]) -> list[bytes]:
    """Return Topic Filters inside `selector`, each for more than one topic, for branches that the set has shown.

    Of the topic that came last, where a set that is cut short ends, all branches; of others, the smallest one.

    Args:
        selector: The selector of the set.
        topics: Topics of it at the primary, the newest first, `SAMPLE_TOPICS` at most.
    """
    if not topics or not selector.has_wildcard:
        return []
    found = dict(_branches(selector, topics[0]))
    for topic in topics[:: max(1, len(topics) // _SPREAD)]:
        found.update(_branches(selector, topic)[-1:])
    # A branch that everything is in would bring what the selector brought.
    return [branch for branch, prefix in found.items() if not all(one.startswith(prefix) for one in topics)]


def _branches(selector: Selector, topic: bytes) -> list[tuple[bytes, bytes]]:
    """Return the branches of the selector that a topic is in, the largest first.

    Returns:
        Of each its Topic Filter, and what all topics in it begin with.
    """
    asked, levels = selector.filter.encode().split(b"/"), topic.split(b"/")
    branches = []
    for depth in range(1, len(levels)):
        rest = asked[depth:] or [b"#"]  # behind the "#" of the selector
        if b"+" in rest or b"#" in rest:
            prefix = levels[:depth]
            branches.append((b"/".join(prefix + rest), b"/".join(prefix) + b"/"))
    return [branch for branch in branches if branch[0] != selector.filter.encode()]
