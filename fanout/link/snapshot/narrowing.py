"""Narrower Topic Filters that show omissions of a primary, and set sizes that look like a limit.

A limit on the retained messages for one SUBSCRIBE (ejabberd: 1 000, by `match_retained_limit`) truncates each pass
alike, with every answer after it, so passes that agree show nothing. Narrower Topic Filters, for branches that the set
has shown, have the same limit for fewer topics, and may bring topics that the wide filter did not. If they bring
nothing new, that proves nothing: they cannot when every branch has one topic. Then only the count itself is suspicious.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanout.mqtt.topics import MAX
from fanout.selection import Selector

__all__ = ["SAMPLE_TOPICS", "is_likely_limit", "narrower_filters"]

SAMPLE_TOPICS = 2_000
"""Number of the newest topics that are examined for branches."""
_SPREAD = 8
"""Number of positions in the sample from which a branch is requested."""
_LIMIT_MIN = 100
"""Smaller counts are too common to be suspicious, although one broker is said to have a limit of 10 (0003)."""


def is_likely_limit(count: int) -> bool:
    """Say whether a count is typical of a limit: 1, 2, 2.5 or 5 times a power of ten, a power of two, or one less."""
    if count < _LIMIT_MIN:
        return False
    return str(count).rstrip("0") in ("1", "2", "25", "5") or not count & (count - 1) or not count & (count + 1)


def narrower_filters(selector: Selector, topics: Sequence[bytes]) -> list[bytes]:
    """Return Topic Filters inside `selector`, each for more than one topic, for branches that the set has shown.

    They are all branches of the last topic, where a truncated set ends, and the smallest branch of some others.

    Args:
        selector: The selector of the set.
        topics: Its topics at the primary, the newest first, at most `SAMPLE_TOPICS`.
    """
    if not topics or not selector.has_wildcard:
        return []
    found = dict(_branches(selector, topics[0]))
    for topic in topics[:: max(1, len(topics) // _SPREAD)]:
        found.update(_branches(selector, topic)[-1:])
    # A branch that contains every topic would bring the same as the selector.
    return [
        branch
        for branch, prefix in found.items()
        if len(branch) <= MAX and not all(one.startswith(prefix) for one in topics)
    ]


def _branches(selector: Selector, topic: bytes) -> list[tuple[bytes, bytes]]:
    """Return the branches of the selector that contain a topic, the largest first.

    Returns:
        For each branch its Topic Filter, and the prefix of all topics in it.
    """
    asked, levels = selector.filter.encode().split(b"/"), topic.split(b"/")
    branches = []
    for depth in range(1, len(levels)):
        rest = asked[depth:] or [b"#"]  # after the "#" of the selector
        if b"+" in rest or b"#" in rest:
            prefix = levels[:depth]
            branches.append((b"/".join(prefix + rest), b"/".join(prefix) + b"/"))
    return [branch for branch in branches if branch[0] != selector.filter.encode()]
