"""Logs that grow by sealed segments, the way nodes roll them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.replog.files.schema import EVENTS, UPDATES
from tests.reports.logs import HOUR, T0, NodeLog, at, selector


def sealed(log: Path, node: str, number: int, table: str = "updates", *, node_epoch: int = T0, hour: int = 2) -> str:
    """Return the path of a sealed file."""
    place = log / "v1" / table / f"node={quote(node, safe='')}" / "date=2026-02-02" / f"hour={hour:02}"
    return str(place / f"{node_epoch}-{number:06}.parquet")


def add_segment(log: Path, nodes: Iterable[NodeLog], number: int, *, hour: int = 2) -> None:
    """Seal what the nodes hold as segment `number`, which was opened in an hour."""
    for node in nodes:
        for table, rows, schema in (("updates", node.updates, UPDATES), ("events", node.events, EVENTS)):
            path = Path(sealed(log, node.node, number, table, node_epoch=node.node_epoch, hour=hour))
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, write_page_checksum=True)


HOURLY_NODES = ("hub", "e/dge")
"""Names of directories are quoted."""


def hourly_log(log: Path) -> Path:
    """Seal six hours of a primary and a secondary: of ten updates in each, one is lost in the fifth."""
    hub, edge = NodeLog(HOURLY_NODES[0], "primary"), NodeLog(HOURLY_NODES[1])
    for hour in range(6):
        begin = hour * HOUR
        for node in (hub, edge):
            node.updates.clear()
            node.events.clear()
        if hour == 0:
            hub.start(at(begin))
            edge.start(at(begin), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]})
            edge.ready(at(begin + 1), "up", "#")
        for number in range(10):
            row = hub.publish(at(begin + 2 + number), 10 * hour + number + 1, f"t/{number}", "x")
            if (hour, number) != (4, 3):
                edge.apply(row, link="up", selector="#")
        for node in (hub, edge):
            node.event("heartbeat", at(begin + 30), link="up" if node is edge else "")
        add_segment(log, [hub, edge], hour, hour=2 + hour)
    return log


def damage_hours(log: Path, hours: range) -> None:
    """Damage the updates of some hours of such a log, so that whoever opens one of these files fails."""
    for node in HOURLY_NODES:
        for hour in hours:
            Path(sealed(log, node, hour, hour=2 + hour)).write_bytes(b"no Parquet")
