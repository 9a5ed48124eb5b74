"""Charts with a lane for each link over time, as inline SVG: shares of the expected updates, and epochs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from html import escape

from fanout.reports.render.heat_map import heat_step
from fanout.reports.render.lanes import LANE_HEIGHT, ROOM, ROWS_MAX, X0, close_lanes, lane_y, name_lane, open_lanes
from fanout.reports.render.wording import away_said, count, percentage, seconds, timestamp
from fanout.reports.values.document import CompletenessPoint, CompletenessSection, Outage
from fanout.reports.values.figures import percent
from fanout.reports.values.findings import LinkEpoch, SnapshotSection

__all__ = ["strips", "timeline"]


def strips(section: CompletenessSection, *, outages: Sequence[Outage] = ()) -> str:
    """Return the chart; nothing where there was nothing to get. Of more than `ROWS_MAX` links those that lack most.

    Args:
        section: The shares.
        outages: When links were away: a line below their boxes.
    """
    times = [point.at for series in section.series for point in series.points]
    if not times:
        return ""
    width = timedelta(seconds=section.window_s)
    begin, end = min(times), max(times) + width
    step = ROOM * (width / (end - begin))
    worst = sorted(section.series, key=lambda one: -sum(point.missing + point.unknown for point in one.points))
    rows = sorted(worst[:ROWS_MAX], key=lambda one: (one.node, one.link))
    parts = [open_lanes("Share of the expected updates of each link over time", rows=len(rows))]
    for row, series in enumerate(rows):
        y = lane_y(row)
        parts.append(name_lane(row, node=series.node, link=series.link))
        for outage in outages:
            first, last = max(outage.begin, begin), min(outage.end or end, end)
            if (outage.node, outage.link) == (series.node, series.link) and first < last:
                x, length = X0 + (first - begin) / width * step, (last - first) / width * step
                box = f'x="{x:.1f}" y="{y + LANE_HEIGHT + 1}" width="{max(length, 2):.1f}" height="3"'
                parts.append(f'<rect class="outage" {box}><title>{escape(away_said(outage))}</title></rect>')
        for point in series.points:
            x = X0 + (point.at - begin) / width * step
            parts.append(
                f'<rect class="heat-{heat_step(_share(point))}" x="{x:.1f}" y="{y}" width="{max(step - 0.5, 1):.1f}"'
                f' height="{LANE_HEIGHT}"><title>{escape(_window_said(point))}</title></rect>'
            )
    parts.append(close_lanes(begin, end, rows=len(rows)))
    return "".join(parts)


def _share(point: CompletenessPoint) -> float:
    share = percent(point.expected - point.missing - point.unknown, point.expected)
    return 100.0 if share is None else share


def _window_said(point: CompletenessPoint) -> str:
    lacking = f"{count(point.missing + point.unknown)} of {count(point.expected)} lacking"
    return f"from {timestamp(point.at, decimals=0)}: {percentage(_share(point))}, {lacking}"


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
    parts = [open_lanes("Epochs of each link over time", rows=len(rows))]
    for row, ((node, link), found) in enumerate(rows):
        y = lane_y(row)
        parts.append(name_lane(row, node=node, link=link))
        for epoch in found:
            edges = [epoch.begin, epoch.ready or epoch.last, epoch.last]
            x = [X0 + (edge - begin).total_seconds() / span_s * ROOM for edge in edges]
            said = f"<title>{escape(_epoch_said(epoch))}</title>"
            not_ready = "pending" if epoch.verdict != "never" else "unknown"
            for kind, first, last in ((not_ready, x[0], x[1]), ("applied", x[1], x[2])):
                if last > first or kind == not_ready:
                    width = max(last - first, 1.0)
                    box = f'x="{first:.1f}" y="{y}" width="{width:.1f}" height="{LANE_HEIGHT}"'
                    parts.append(f'<rect class="piece {kind}" {box}>{said}</rect>')
            if epoch.tear_downs:
                parts.append(
                    f'<rect class="piece different" x="{x[2] - 1:.1f}" y="{y - 2}" width="2" height="18">{said}</rect>'
                )
    parts.append(close_lanes(begin, end, rows=len(rows)))
    return "".join(parts)


def _epoch_said(epoch: LinkEpoch) -> str:
    took = f"ready after {seconds(epoch.ready_s)}" if epoch.ready is not None else epoch.verdict
    torn = ", torn down" if epoch.tear_downs else ""
    return f"from {timestamp(epoch.begin)}: {took}{torn}"
