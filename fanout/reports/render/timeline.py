"""The timeline of epochs as inline SVG: a row for each link, a bar for each epoch."""

from __future__ import annotations

from html import escape
from typing import Final

from fanout.reports.findings import LinkEpoch, SnapshotSection
from fanout.reports.render.wording import printable, seconds, timestamp

__all__ = ["ROWS_MAX", "timeline"]

ROWS_MAX: Final = 40
"""The most links in one timeline."""

_WIDTH: Final = 760
_LABEL_WIDTH: Final = 200
_ROW: Final = 20
_LABEL_LENGTH_MAX: Final = 28


def timeline(section: SnapshotSection) -> str:
    """Return the timeline of the listed epochs: from begin to ready in one colour, held in another.

    An epoch that ended in a tear-down ends with a mark. Links beyond `ROWS_MAX` are left to the tables.
    """
    epochs = section.epochs.listed
    if not epochs:
        return ""
    begin, end = min(epoch.begin for epoch in epochs), max(epoch.last for epoch in epochs)
    span_s = max((end - begin).total_seconds(), 1e-6)
    room = _WIDTH - _LABEL_WIDTH - 8
    by_link: dict[tuple[str, str], list[LinkEpoch]] = {}
    for epoch in sorted(epochs, key=lambda epoch: (epoch.node, epoch.link, epoch.begin)):
        by_link.setdefault((epoch.node, epoch.link), []).append(epoch)
    rows = list(by_link.items())[:ROWS_MAX]
    height = len(rows) * _ROW + 26
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">'
        f"<title>Epochs of each link over time</title>"
    ]
    for row, ((node, link), found) in enumerate(rows):
        y, name = row * _ROW + 3, printable(f"{node}/{link}")
        label = name if len(name) <= _LABEL_LENGTH_MAX else f"{name[: _LABEL_LENGTH_MAX - 1]}…"
        parts.append(
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 12}" text-anchor="end">{escape(label)}'
            f"<title>{escape(name)}</title></text>"
        )
        for epoch in found:
            edges = [epoch.begin, epoch.ready or epoch.last, epoch.last]
            x = [_LABEL_WIDTH + (edge - begin).total_seconds() / span_s * room for edge in edges]
            said = f"<title>{escape(_said(epoch))}</title>"
            not_ready = "pending" if epoch.verdict != "never" else "unknown"
            for kind, first, last in ((not_ready, x[0], x[1]), ("applied", x[1], x[2])):
                if last > first or kind == not_ready:
                    width = max(last - first, 1.0)
                    box = f'x="{first:.1f}" y="{y}" width="{width:.1f}" height="14"'
                    parts.append(f'<rect class="piece {kind}" {box}>{said}</rect>')
            if epoch.tear_downs:
                parts.append(
                    f'<rect class="piece different" x="{x[2] - 1:.1f}" y="{y - 2}" width="2" height="18">{said}</rect>'
                )
    for time, x_tick, anchor in ((begin, _LABEL_WIDTH, "start"), (end, _WIDTH - 8, "end")):
        text = escape(timestamp(time, decimals=0))
        parts.append(f'<text class="tick" x="{x_tick}" y="{height - 6}" text-anchor="{anchor}">{text}</text>')
    parts.append("</svg>")
    return "".join(parts)


def _said(epoch: LinkEpoch) -> str:
    took = f"ready after {seconds(epoch.ready_s)}" if epoch.ready is not None else epoch.verdict
    torn = ", torn down" if epoch.tear_downs else ""
    return f"from {timestamp(epoch.begin)}: {took}{torn}"
