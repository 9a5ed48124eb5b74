"""Replication logs made of literal rows, written the way nodes write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.replica.update import ChangeKind, Phase, content_digest
from fanout.replog.files.schema import EVENTS, UPDATES

T0 = 1_770_000_000_000_000
"""Where the clocks of the tests start: 2026-02-02 02:40:00 UTC, in microseconds."""

SECOND = 1_000_000

HOUR = 3600

Row = dict[str, Any]  # a row of the log by column name; the columns have many types


def at(seconds: float) -> int:
    """Return a time so many seconds after the start, in microseconds."""
    return T0 + round(seconds * SECOND)


def when(unix_us: int) -> datetime:
    """Return a time as Arrow and Spark take it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unix_us)


def digest_of(topic: str, payload: str) -> int:
    """Return the digest as the log holds it: signed."""
    digest = content_digest(topic.encode(), payload.encode())
    return digest - 2**64 if digest >= 2**63 else digest


def selector(topic_filter: str, *exclude: str) -> Row:
    """Return a selector as the `start` event describes it."""
    return {"filter": topic_filter, "exclude": list(exclude), "qos": 1, "prefix": ""}


@dataclass
class NodeLog:
    """The log of one node, row by row."""

    node: str
    role: str = "secondary"
    node_epoch: int = T0
    updates: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    log_pos: int = 0
    link_epoch: int = 1

    def restart(self, at_us: int) -> None:
        """Begin a new process: a new node epoch, positions from 1."""
        self.node_epoch = at_us
        self.log_pos = 0

    def start(self, at_us: int, *links: Row, detail: str | None = None) -> None:
        """Log `start` with these links."""
        text = json.dumps({"format": 1, "version": "0.1.0", "links": links}) if detail is None else detail
        self.event("start", at_us, detail=text)

    def event(self, event: str, at_us: int, **columns: Any) -> Row:
        """Log an event; the columns that are not given are empty."""
        self.log_pos += 1
        row: Row = {
            "node": self.node,
            "role": self.role,
            "link": "",
            "selector": "",
            "link_epoch": self.link_epoch,
            "log_pos": self.log_pos,
            "node_epoch": self.node_epoch,
            "at": when(at_us),
            "event": event,
            "state": "",
            "evidence": "",
            "topics": 0,
            "digest": 0,
            "lag_us": None,
            "detail": "",
        }
        self.events.append(row | columns)
        return self.events[-1]

    def ready(self, at_us: int, link: str, *filters: str, took_us: int = SECOND, evidence: str = "barrier") -> None:
        """Log how a link became ready: connecting, each selector complete, live."""
        self.event("state", at_us - took_us, link=link, state="connecting")
        self.event("state", at_us - took_us // 2, link=link, state="snapshot")
        for topic_filter in filters:
            self.event("complete", at_us, link=link, selector=topic_filter, evidence=evidence)
        self.event("state", at_us, link=link, state="live", topics=7)

    def gap(self, at_us: int, *, link: str = "", **detail: Any) -> None:
        """Log a gap with the keys of the contract, null where not given."""
        keys = ("rows", "first_log_pos", "last_log_pos", "first_us", "last_us")
        document = dict.fromkeys(keys) | {"reason": "queue", "events": 0, "node_epoch": self.node_epoch}
        self.event("gap", at_us, link=link, detail=json.dumps(document | detail))

    def update(self, at_us: int, topic: str, payload: str, **columns: Any) -> Row:
        """Log an update; without other columns a live value published at the node."""
        self.log_pos += 1
        row: Row = {
            "node": self.node,
            "role": self.role,
            "link": "",
            "selector": "",
            "link_epoch": self.link_epoch,
            "log_pos": self.log_pos,
            "node_epoch": self.node_epoch,
            "topic": topic,
            "digest": digest_of(topic, payload),
            "payload_bytes": len(payload),
            "qos": 1,
            "retain": True,
            "change": int(ChangeKind.REPLACED if payload else ChangeKind.REMOVED),
            "phase": int(Phase.LIVE),
            "flags": 0,
            "stamp_primary": None,
            "stamp_epoch": None,
            "sequence": None,
            "origin": None,
            "applied": when(at_us),
        }
        self.updates.append(row | columns)
        return self.updates[-1]

    def publish(self, at_us: int, sequence: int, topic: str, payload: str, **columns: Any) -> Row:
        """Log an update that this primary stamped."""
        return self.update(at_us, topic, payload, **(stamp(self.node, self.node_epoch, sequence, at_us) | columns))

    def apply(self, row: Row, *, link: str, selector: str, delay_us: int = 1000, **columns: Any) -> Row:
        """Log that a link brought an update of another log."""
        origin = row["origin"] if row["origin"] is not None else row["applied"]
        self.log_pos += 1
        own = {
            "node": self.node,
            "role": self.role,
            "link": link,
            "selector": selector,
            "link_epoch": self.link_epoch,
            "log_pos": self.log_pos,
            "node_epoch": self.node_epoch,
            "applied": origin + timedelta(microseconds=delay_us),
            "phase": int(Phase.LIVE),
            "flags": 0,
        }
        self.updates.append(row | own | columns)
        return self.updates[-1]


def stamp(primary: str, epoch: int, sequence: int, at_us: int) -> Row:
    """Return the columns of a stamp."""
    return {
        "stamp_primary": primary,
        "stamp_epoch": epoch,
        "sequence": sequence,
        "origin": when(at_us),
        "link_epoch": epoch,
    }


def write(directory: Path, logs: Iterable[NodeLog]) -> Path:
    """Write logs as sealed Parquet files under one log directory, and return it."""
    for log in logs:
        for table, rows, schema in (("updates", log.updates, UPDATES), ("events", log.events, EVENTS)):
            if rows:
                _write_table(directory, table, log.node, rows, schema)
    return directory


def _write_table(directory: Path, table: str, node: str, rows: Sequence[Row], schema: pa.Schema) -> None:
    place = directory / "v1" / table / f"node={quote(node, safe='')}" / "date=2026-02-02" / "hour=02"
    place.mkdir(parents=True, exist_ok=True)
    # Files are grouped by link, not sorted, so no reader may count on their order.
    half = len(rows) // 2
    for number, part in enumerate((rows[half:], rows[:half])):
        if part:
            pq.write_table(pa.Table.from_pylist(list(part), schema=schema), place / f"{T0}-{number:06}.parquet")
