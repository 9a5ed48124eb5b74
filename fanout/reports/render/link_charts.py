"""Charts with a lane for each link over time, as inline SVG: shares of the expected updates, and epochs.

A lane is as wide as there is room for it. On a narrow screen its name stands above it, so nothing scrolls sideways.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Final

from fanout.reports.render.heat_map import heat_step, share_without
from fanout.reports.render.wording import NBSP, away_said, count, percentage, printable, seconds, timestamp
from fanout.reports.values.document import CompletenessPoint, CompletenessSection, CompletenessSeries, Outage
from fanout.reports.values.findings import LinkEpoch, SnapshotSection

__all__ = ["ROWS_MAX", "strips", "timeline"]

ROWS_MAX: Final = 40
"""The most links in one chart."""

_WIDTH: Final = 1000
"""Units of a lane's length; the browser stretches them."""
_HEIGHT: Final = 14
_UNKNOWN_MIN: Final = 3
"""The least height of a window's unknown share."""


def strips(section: CompletenessSection, *, outages: Sequence[Outage] = ()) -> str:
    """Return the chart; nothing where there was nothing to get.

    It has at most `ROWS_MAX` links, those that lack most.

    Args:
        section: The shares.
        outages: When links were away: a line below their boxes.
    """
    times = [point.at for series in section.series for point in series.points]
    if not times:
        return ""
    width = timedelta(seconds=section.window_s)
    begin, end = min(times), max(times) + width
    step = _WIDTH * (width / (end - begin))
    worst = sorted(section.series, key=_lacking, reverse=True)
    lanes = []
    for series in sorted(worst[:ROWS_MAX], key=lambda one: (one.node, one.link)):
        pieces = [_window(point, (point.at - begin) / width * step, step) for point in series.points]
        for outage in outages:
            first, last = max(outage.begin, begin), min(outage.end or end, end)
            if (outage.node, outage.link) == (series.node, series.link) and first < last:
                x, length = (first - begin) / width * step, (last - first) / width * step
                pieces.append(_box("outage", x, max(length, 2), said=away_said(outage), y=_HEIGHT + 1, height=3))
        lanes.append(_lane(series.node, series.link, pieces))
    return _chart("Share of the expected updates of each link over time", lanes, begin=begin, end=end)


def _window(point: CompletenessPoint, x: float, length: float) -> str:
    """Return a box in the colour of what is missing for sure, and below it one as high as the unknown share."""
    said = _window_said(point)
    unknown = min(_HEIGHT, max(_UNKNOWN_MIN, round(_HEIGHT * point.unknown / point.expected))) if point.unknown else 0
    boxes = []
    if unknown < _HEIGHT:
        kind = f"heat-{heat_step(share_without(point, point.missing))}"
        boxes.append(_box(kind, x, length, said=said, height=_HEIGHT - unknown))
    if unknown:
        boxes.append(_box("unknown", x, length, said=said, y=_HEIGHT - unknown, height=unknown))
    return "".join(boxes)


def _lacking(series: CompletenessSeries) -> tuple[int, int]:
    """Return how many updates of a link are missing, and how many are unknown."""
    return sum(point.missing for point in series.points), sum(point.unknown for point in series.points)


def _window_said(point: CompletenessPoint) -> str:
    lacking = [f"{count(number)} {name}" for number, name in ((point.missing, "missing"), (point.unknown, "unknown"))]
    bound = f"≥{NBSP}" if point.unknown else ""
    there = bound + percentage(share_without(point, point.missing + point.unknown))
    return f"from {timestamp(point.at, decimals=0)}: {there} of {count(point.expected)}, {', '.join(lacking)}"


def timeline(section: SnapshotSection) -> str:
    """Return the timeline of the listed epochs: from begin to ready in one colour, held in another.

    An epoch that ended in a tear-down ends with a mark. Links beyond `ROWS_MAX` are left to the tables.
    """
    epochs = section.epochs.listed
    if not epochs:
        return ""
    begin, end = min(epoch.begin for epoch in epochs), max(epoch.last for epoch in epochs)
    span_s = max((end - begin).total_seconds(), 1e-6)
    by_link: dict[tuple[str, str], list[LinkEpoch]] = {}
    for epoch in sorted(epochs, key=lambda epoch: (epoch.node, epoch.link, epoch.begin)):
        by_link.setdefault((epoch.node, epoch.link), []).append(epoch)
    rows = list(by_link.items())[:ROWS_MAX]
    lanes = []
    for (node, link), found in rows:
        pieces = []
        for epoch in found:
            edges = [epoch.begin, epoch.ready or epoch.last, epoch.last]
            x = [(edge - begin).total_seconds() / span_s * _WIDTH for edge in edges]
            said = _epoch_said(epoch)
            not_ready = "pending" if epoch.verdict != "never" else "unknown"
            for kind, first, last in ((not_ready, x[0], x[1]), ("applied", x[1], x[2])):
                if last > first or kind == not_ready:
                    pieces.append(_box(kind, first, last - first, said=said))
            if epoch.tear_downs:
                pieces.append(_box("different", x[2] - 2, 2, said=said, height=_HEIGHT + 4))
        lanes.append(_lane(node, link, pieces))
    return _chart("Epochs of each link over time", lanes, begin=begin, end=end)


def _chart(title: str, lanes: Sequence[str], *, begin: datetime, end: datetime) -> str:
    """Return lanes below one another, and the times at both of their ends."""
    ends = "".join(f"<span>{escape(timestamp(time, decimals=0))}</span>" for time in (begin, end))
    return f'<div class="lanes" role="group" aria-label="{escape(title)}">{"".join(lanes)}<p>{ends}</p></div>'


def _lane(node: str, link: str, pieces: Sequence[str]) -> str:
    name = escape(printable(f"{node}/{link}"))
    return (
        f'<span title="{name}">{name}</span><svg viewBox="0 0 {_WIDTH} {_HEIGHT + 4}" preserveAspectRatio="none" '
        f'role="img"><title>{name}</title>{"".join(pieces)}</svg>'
    )


def _box(kind: str, x: float, length: float, *, said: str, y: int = 0, height: int = _HEIGHT) -> str:
    box = f'x="{x:.1f}" y="{y}" width="{max(length, 1):.1f}" height="{height}"'
    return f'<rect class="{kind}" {box}><title>{escape(said)}</title></rect>'


def _epoch_said(epoch: LinkEpoch) -> str:
    took = f"ready after {seconds(epoch.ready_s)}" if epoch.ready is not None else epoch.verdict
    torn = ", torn down" if epoch.tear_downs else ""
    return f"from {timestamp(epoch.begin)}: {took}{torn}"
