"""When links were away, and what audits found, by the clocks of their nodes.

A link gets every update while it is live. A heartbeat that came back proves that all messages before it have come. So
an absence begins when the last such heartbeat was sent, not when the loss was noticed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from fanout.reports.read.scope import NEVER_US

__all__ = ["UNHEARD_US", "Absence", "link_absences"]

UNHEARD_US: Final = 60_000_000
"""Longest time for which a link without heartbeats does not notice that it is cut off: twice its default Keep Alive."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A span in which a link may have lost updates."""

    node: str
    link: str
    after_us: int
    until_us: int
    """`NEVER_US` if the link was not live again."""
    cause: str
    """One of `fanout.reports.compare.absences.CAUSES`."""
    left_us: int | None = None
    """Time at which it ceased to be live; None of an audit."""


def link_absences(events: Iterable[Mapping[str, Any]]) -> tuple[Absence, ...]:
    """Return the absences of all links.

    Args:
        events: The rows of `first_look.summarize_events`.
    """
    found: list[Absence] = []
    lives: dict[tuple[str, str], dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in events:
        if row["event"] == "audit":
            after_us = -NEVER_US if row["proved_us"] is None else row["proved_us"]
            found.append(Absence(row["node"], row["link"], after_us, row["first_us"], "audit"))
        elif row["life"] and row["link"]:
            lives[row["node"], row["link"]][row["life"]].append(row)
    for (node, link), by_life in lives.items():
        in_order = [by_life[life] for life in sorted(by_life)]
        for parts, following in zip_longest(in_order, in_order[1:]):
            (live,) = (row for row in parts if row["live_us"] is not None)
            if not (left := [row["left_us"] for row in parts if row["left_us"] is not None]):
                continue
            heard = [row["heard_us"] for row in parts if row["heard_us"] is not None]
            after_us = max(heard, default=max(live["live_us"], min(left) - UNHEARD_US))
            until_us, cause = NEVER_US, "away"
            if following is not None:
                (back,) = (row for row in following if row["live_us"] is not None)
                until_us, cause = back["live_us"], _cause(live, back)
            found.append(Absence(node, link, after_us, until_us, cause, min(left)))
    return tuple(found)


def _cause(live: Mapping[str, Any], back: Mapping[str, Any]) -> str:
    if live["node_epoch"] != back["node_epoch"]:
        return "restart"
    return "resumed" if live["live_epoch"] == back["live_epoch"] else "new_epoch"
