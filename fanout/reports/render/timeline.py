"""The timeline of epochs as inline SVG: a row for each link, a bar for each epoch."""

from __future__ import annotations

from html import escape

from fanout.reports.render.lanes import LANE_HEIGHT, ROOM, ROWS_MAX, X0, close_lanes, lane_y, name_lane, open_lanes
from fanout.reports.render.wording import seconds, timestamp
from fanout.reports.values.findings import LinkEpoch, SnapshotSection

__all__ = ["timeline"]


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
            said = f"<title>{escape(_said(epoch))}</title>"
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


def _said(epoch: LinkEpoch) -> str:
    took = f"ready after {seconds(epoch.ready_s)}" if epoch.ready is not None else epoch.verdict
    torn = ", torn down" if epoch.tear_downs else ""
    return f"from {timestamp(epoch.begin)}: {took}{torn}"
