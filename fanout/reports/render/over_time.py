"""Completeness over time as inline SVG: a row for each link, a box for each window, coloured like the heat map."""

from __future__ import annotations

from datetime import timedelta
from html import escape

from fanout.reports.render.heat_map import heat_step
from fanout.reports.render.lanes import LANE_HEIGHT, ROOM, ROWS_MAX, X0, close_lanes, lane_y, name_lane, open_lanes
from fanout.reports.render.wording import count, percentage, timestamp
from fanout.reports.values.document import CompletenessPoint, CompletenessSection
from fanout.reports.values.figures import percent

__all__ = ["strips"]


def strips(section: CompletenessSection) -> str:
    """Return the chart; nothing where there was nothing to get. Of more than `ROWS_MAX` links those that lack most."""
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
        for point in series.points:
            x = X0 + (point.at - begin) / width * step
            parts.append(
                f'<rect class="heat-{heat_step(_share(point))}" x="{x:.1f}" y="{y}" width="{max(step - 0.5, 1):.1f}"'
                f' height="{LANE_HEIGHT}"><title>{escape(_said(point))}</title></rect>'
            )
    parts.append(close_lanes(begin, end, rows=len(rows)))
    return "".join(parts)


def _share(point: CompletenessPoint) -> float:
    share = percent(point.expected - point.missing - point.unknown, point.expected)
    return 100.0 if share is None else share


def _said(point: CompletenessPoint) -> str:
    lacking = f"{count(point.missing + point.unknown)} of {count(point.expected)} lacking"
    return f"from {timestamp(point.at, decimals=0)}: {percentage(_share(point))}, {lacking}"
