"""Whether a client's Topic Filter waits for topics that a selector would bring and the primary does not have (core)."""

from __future__ import annotations

from fanout.replica.store import Replica
from fanout.selection import Selector, common_filter, overlap

__all__ = ["missing_filter"]


def missing_filter(topic_filter: str, selector: Selector, replica: Replica) -> str | None:
    """Return the part of a local filter that a selector covers, as a filter at the primary, when nothing matches it.

    Args:
        topic_filter: A client's filter, not a `$share` form.
        selector: One of a link's selectors.
        replica: What the link holds.

    Returns:
        None when the selector covers nothing of it, or a topic that both match is there.
    """
    common = common_filter(topic_filter, selector.local_filter)
    if common is None or any(replica.match(common.encode())):
        return None
    at_primary = common.removeprefix(selector.prefix)
    if not at_primary or (selector.exclude and overlap(Selector(at_primary), selector, local=False) is None):
        return None
    return at_primary
