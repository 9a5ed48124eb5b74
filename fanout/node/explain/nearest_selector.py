"""Search for the selector that comes closest to a topic that no link replicates (core)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fanout.api.topic_facts import NearestSelector
from fanout.config import LinkConfig
from fanout.mqtt.topics import matches
from fanout.selection import Selector

__all__ = ["nearest_selector"]


def nearest_selector(topic: str, links: Sequence[LinkConfig]) -> NearestSelector | None:
    """Return the selector that comes closest to a topic outside all; None without any selector.

    A selector that only an exclude keeps from matching is the closest. Then comes one whose link keeps the topic for
    itself (its control topic), then the one that matches the most levels from the left; the first of equals.

    Args:
        topic: The topic's name at this node.
        links: The links.
    """
    places = [(link, selector) for link in links for selector in link.selectors]
    for link, selector in places:
        if not matches(selector.local_filter.encode(), topic.encode()):
            continue
        at_primary = topic.removeprefix(selector.prefix)
        if at_primary.startswith(f"{link.control_topic}/"):
            return NearestSelector(link=link.name, filter=selector.local_filter, exclude=f"{link.control_topic}/#")
        for exclude in selector.exclude:
            if matches(exclude.encode(), at_primary.encode()):
                return NearestSelector(link=link.name, filter=selector.local_filter, exclude=exclude)
    levels = topic.split("/")
    best = max(places, key=lambda place: _levels_alike(place[1], levels), default=None)
    return None if best is None else NearestSelector(link=best[0].name, filter=best[1].local_filter)


def _levels_alike(selector: Selector, levels: Iterable[str]) -> int:
    """Return how many levels of a topic, from the left, the selector's local filter matches."""
    count = 0
    for own, level in zip(selector.local_filter.split("/"), levels, strict=False):
        if own not in (level, "+", "#"):
            break
        count += 1
    return count
