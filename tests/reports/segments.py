"""Logs that grow by sealed segments, the way nodes roll them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.replog.files.schema import EVENTS, UPDATES
from tests.reports.logs import T0, NodeLog


def sealed(log: Path, node: str, number: int, table: str = "updates", *, node_epoch: int = T0) -> str:
    """Return the path of a sealed file."""
    place = log / "v1" / table / f"node={node}" / "date=2026-02-02" / "hour=02"
    return str(place / f"{node_epoch}-{number:06}.parquet")


def add_segment(log: Path, nodes: Iterable[NodeLog], number: int) -> None:
    """Seal what the nodes hold as segment `number`."""
    for node in nodes:
        for table, rows, schema in (("updates", node.updates, UPDATES), ("events", node.events, EVENTS)):
            path = Path(sealed(log, node.node, number, table, node_epoch=node.node_epoch))
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, write_page_checksum=True)
