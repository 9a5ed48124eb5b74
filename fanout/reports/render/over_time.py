"""Completeness over time as inline SVG: a row for each link, a box for each window, coloured like the heat map."""

from __future__ import annotations

from datetime import timedelta
from html import escape
from typing import Final

from fanout.reports.document import CompletenessPoint, CompletenessSection
from fanout.reports.figures import percent
from fanout.reports.render.heat_map import heat_step
from fanout.reports.render.wording import count, percentage, printable, timestamp

__all__ = ["ROWS_MAX", "strips"]

ROWS_MAX: Final = 40
"""The most links in one chart; those that lack most are kept."""

_WIDTH: Final = 760
_LABEL_WIDTH: Final = 200
_ROW: Final = 20
_LABEL_LENGTH_MAX: Final = 28


def strips(section: CompletenessSection) -> str:
    """Return the chart; nothing where there was nothing to get. Links beyond `ROWS_MAX` are left to the table."""
    times = [point.at for series in section.series for point in series.points]
    if not times:
        return ""
    width = timedelta(seconds=section.window_s)
    begin, end = min(times), max(times) + width
    step = (_WIDTH - _LABEL_WIDTH - 8) * (width / (end - begin))
    worst = sorted(section.series, key=lambda one: -sum(point.missing + point.unknown for point in one.points))
    rows = sorted(worst[:ROWS_MAX], key=lambda one: (one.node, one.link))
    height = len(rows) * _ROW + 26
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">'
        f"<title>Share of the expected updates of each link over time</title>"
    ]
    for row, series in enumerate(rows):
        y, name = row * _ROW + 3, printable(f"{series.node}/{series.link}")
        label = name if len(name) <= _LABEL_LENGTH_MAX else f"{name[: _LABEL_LENGTH_MAX - 1]}…"
        parts.append(
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 12}" text-anchor="end">{escape(label)}'
            f"<title>{escape(name)}</title></text>"
        )
        for point in series.points:
            x = _LABEL_WIDTH + (point.at - begin) / width * step
            parts.append(
                f'<rect class="heat-{heat_step(_share(point))}" x="{x:.1f}" y="{y}" width="{max(step - 0.5, 1):.1f}"'
                f' height="14"><title>{escape(_said(point))}</title></rect>'
            )
    for time, x_tick, anchor in ((begin, _LABEL_WIDTH, "start"), (end, _WIDTH - 8, "end")):
        text = escape(timestamp(time, decimals=0))
        parts.append(f'<text class="tick" x="{x_tick}" y="{height - 6}" text-anchor="{anchor}">{text}</text>')
    parts.append("</svg>")
    return "".join(parts)


def _share(point: CompletenessPoint) -> float:
    share = percent(point.expected - point.missing - point.unknown, point.expected)
    return 100.0 if share is None else share


def _said(point: CompletenessPoint) -> str:
    lacking = f"{count(point.missing + point.unknown)} of {count(point.expected)} lacking"
    return f"from {timestamp(point.at, decimals=0)}: {percentage(_share(point))}, {lacking}"
