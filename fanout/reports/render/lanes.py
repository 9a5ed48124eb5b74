"""Charts with a lane for each link over time, as inline SVG: the frame, the names and the two ends of the time.

Owns where things stand; what a lane shows is drawn by others. Every text is escaped here.
"""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Final

from fanout.reports.render.wording import printable, timestamp

__all__ = ["LANE_HEIGHT", "ROOM", "ROWS_MAX", "X0", "close_lanes", "lane_y", "name_lane", "open_lanes"]

ROWS_MAX: Final = 40
"""The most links in one chart."""
X0: Final = 200
"""Where lanes begin."""
LANE_HEIGHT: Final = 14

_WIDTH: Final = 760
_ROW: Final = 20
_LABEL_LENGTH_MAX: Final = 28
ROOM: Final = _WIDTH - X0 - 8
"""How long lanes are."""


def open_lanes(title: str, *, rows: int) -> str:
    """Return the begin of a chart with so many lanes."""
    height = _height(rows)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">'
        f"<title>{escape(title)}</title>"
    )


def lane_y(row: int) -> int:
    """Return where the lane of a row begins."""
    return row * _ROW + 3


def name_lane(row: int, *, node: str, link: str) -> str:
    """Return the name of a lane, cut where it has no room."""
    name = printable(f"{node}/{link}")
    label = name if len(name) <= _LABEL_LENGTH_MAX else f"{name[: _LABEL_LENGTH_MAX - 1]}…"
    return (
        f'<text x="{X0 - 8}" y="{lane_y(row) + 12}" text-anchor="end">{escape(label)}'
        f"<title>{escape(name)}</title></text>"
    )


def close_lanes(begin: datetime, end: datetime, *, rows: int) -> str:
    """Return the end of the chart, with the times at both ends of its lanes."""
    y = _height(rows) - 6
    ticks = (
        f'<text class="tick" x="{x}" y="{y}" text-anchor="{anchor}">{escape(timestamp(time, decimals=0))}</text>'
        for time, x, anchor in ((begin, X0, "start"), (end, X0 + ROOM, "end"))
    )
    return "".join((*ticks, "</svg>"))


def _height(rows: int) -> int:
    return rows * _ROW + 26
