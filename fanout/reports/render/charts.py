"""The charts of a report as inline SVG: no script, no style attribute, colours from the page's classes.

Every text is escaped here; nothing in a chart comes from a log unescaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Final

from fanout.reports.render.wording import away_said, printable
from fanout.reports.values.document import LagPoint, LagSeries, Outage, Propagation

__all__ = [
    "CHARTS_MAX",
    "LINES_MAX",
    "cumulative_lines",
    "lag_lines",
]

CHARTS_MAX: Final = 12
"""The most charts of lag over time."""
LINES_MAX: Final = 8
"""The most lines in the chart of distributions."""


def lag_lines(series: LagSeries, *, window_s: int, outages: Sequence[Outage] = ()) -> str:
    """Return the propagation times of one link over time: p50, p99 and the longest, on a logarithmic axis.

    Without the difference of the clocks where it is known. Windows without updates break the lines. When a value is
    not positive (clocks that differ) the axis is linear.
    """
    width, height, left, bottom, top = 370, 180, 58, 24, 8
    points = series.points
    begin, end = points[0].at, points[-1].at
    span_s = max((end - begin).total_seconds(), float(window_s))
    times = [_lag_times(point) for point in points]
    axis = _Axis.of([value for time in times for value in (time["p50"], time["most"])], height - bottom, top)

    def x_of(time: datetime) -> float:
        return left + (time - begin).total_seconds() / span_s * (width - left - 10)

    place, stamped_by = printable(f"{series.node}/{series.link}"), printable(series.stamped_by)
    title = f"{place}: propagation time of updates stamped by {stamped_by}"
    parts = [_open(width, height, title)]
    for outage in outages:
        first, last = max(outage.begin, begin), min(outage.end or end, end)
        if (outage.node, outage.link) == (series.node, series.link) and first < last:
            x, length = x_of(first), max(x_of(last) - x_of(first), 1)
            box = f'x="{x:.1f}" y="{top}" width="{length:.1f}" height="{height - bottom - top}"'
            parts.append(f'<rect class="outage band" {box}><title>{escape(away_said(outage))}</title></rect>')
    for tick in axis.ticks:
        y = axis.place(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick_label(tick)}</text>')
    clock = "%H:%M:%S" if begin.date() == end.date() else "%m-%d %H:%M"
    for time, anchor in ((begin, "start"), (end, "end")):
        if anchor == "start" or end > begin:
            x = left if anchor == "start" else width - 10
            parts.append(f'<text class="tick" x="{x}" y="{height - 8}" text-anchor="{anchor}">{time:{clock}}</text>')
    gap = timedelta(seconds=1.5 * window_s)
    for name in ("most", "p99", "p50"):
        path: list[str] = []
        for index, point in enumerate(points):
            move = index == 0 or point.at - points[index - 1].at > gap
            path.append(f"{'M' if move else 'L'}{x_of(point.at):.1f} {axis.place(times[index][name]):.1f}")
            if move and (index + 1 == len(points) or points[index + 1].at - point.at > gap):
                path.append("h0.1")  # a window alone is a dot
        parts.append(f'<path class="line {name}" d="{"".join(path)}"/>')
    parts.append("</svg>")
    return "".join(parts)


_ABOUT_NONE_US: Final = 100
"""The least of the corrected times in a chart: below it they are less than they are uncertain, or negative."""


def _lag_times(point: LagPoint) -> dict[str, int]:
    p50, p99, most = point.corrected_p50_us, point.corrected_p99_us, point.corrected_most_us
    if p50 is None or p99 is None or most is None:
        return {"p50": point.p50_us, "p99": point.p99_us, "most": point.most_us}
    return {"p50": max(p50, _ABOUT_NONE_US), "p99": max(p99, _ABOUT_NONE_US), "most": max(most, _ABOUT_NONE_US)}


def cumulative_lines(found: Sequence[Propagation]) -> str:
    """Return, for each distribution, the share of updates that took less than a time."""
    width, height, left, bottom, top = 760, 220, 48, 26, 8
    bounds = [c.below_us for p in found for c in p.lag.cumulative]
    axis = _Axis.of([max(1, min(bounds) // 2), max(bounds)], left, width - 24)
    parts = [_open(width, height, "Share of updates that took less than a time")]
    for share in (0, 25, 50, 75, 100):
        y = _share_y(share, height, bottom, top)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 24}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share} %</text>')
    for tick in axis.ticks:
        x = axis.place(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{_tick_label(tick)}</text>')
    for index, propagation in enumerate(found):
        cumulative = propagation.lag.cumulative
        start = axis.place(max(1, cumulative[0].below_us // 2))
        path = f"M{start:.1f} {_share_y(0, height, bottom, top):.1f}"
        for step in cumulative:
            y = _share_y(100 * step.rows / propagation.lag.rows, height, bottom, top)
            path += f"L{axis.place(step.below_us):.1f} {y:.1f}"
        name = f"{propagation.node}/{propagation.link} {propagation.filter}"
        parts.append(f'<path class="line series-{index}" d="{path}"><title>{escape(printable(name))}</title></path>')
    parts.append("</svg>")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A scale from values to places: logarithmic when all values are positive, else linear."""

    low: float
    high: float
    first_place: float
    last_place: float
    logarithmic: bool
    ticks: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[int], first_place: float, last_place: float) -> _Axis:
        low, high = min(values), max(values)
        if low > 0:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(max(high, low + 1)))
            ticks = tuple(10**exponent for exponent in range(first, last + 1))
            return cls(first, max(last, first + 1), first_place, last_place, True, ticks)
        step = _round_up(max(high - low, 4) / 4)
        first, last = math.floor(low / step), math.ceil(max(high, low + 1) / step)
        ticks = tuple(number * step for number in range(first, last + 1))
        return cls(first * step, last * step, first_place, last_place, False, ticks)

    def place(self, value: int) -> float:
        position = math.log10(max(value, 10**self.low)) if self.logarithmic else float(value)
        share = (position - self.low) / (self.high - self.low)
        return self.first_place + share * (self.last_place - self.first_place)


def _round_up(number: float) -> int:
    """Return the next of 1, 2, 5, 10, 20 and so on."""
    size: int = 10 ** math.floor(math.log10(number))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= number)


def _tick_label(value: int) -> str:
    """Return a round length of time without needless decimals."""
    for unit, size in (("s", 1_000_000), ("ms", 1_000)):
        if abs(value) >= size:
            return f"{value / size:g} {unit}"
    return f"{value} µs" if value else "0"


def _open(width: int, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        f"<title>{escape(title)}</title>"
    )


def _share_y(share: float, height: int, bottom: int, top: int) -> float:
    return height - bottom - share / 100 * (height - bottom - top)
