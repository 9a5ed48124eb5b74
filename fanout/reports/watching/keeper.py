"""Keep the tables: read the sealed files that are new, add a batch, merge when there are many, publish the result.

Owns the order of one run. What a batch adds is in `fanout.reports.transforms.kept`, what counts in `ledger`.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.errors import ReportError
from fanout.replog.fetching import fetch, is_store
from fanout.replog.schema import SCHEMA_VERSION
from fanout.reports.document import Inputs, Parameters, Report
from fanout.reports.jobs.snapshots import describe_snapshots
from fanout.reports.log_files import LogFiles
from fanout.reports.parquet import ParquetTables
from fanout.reports.reading import Tables, read_tables, take_survey
from fanout.reports.render.page import render_page
from fanout.reports.schemas import EVENTS, UPDATES
from fanout.reports.sections import describe_cells
from fanout.reports.transforms import kept
from fanout.reports.transforms.rows import small_frame
from fanout.reports.watching.ledger import Batch, Ledger, Seen, new_files

__all__ = ["KEEP_DAYS", "LATEST_JSON", "LATEST_PAGE", "NODE_LAG", "Keeper", "Kept"]

KEEP_DAYS: Final = 30
"""Windows and events older than this before the newest are dropped when parts are merged."""
LATEST_JSON: Final = "latest.json"
"""The last result, as the JSON of a report."""
LATEST_PAGE: Final = "latest.html"
"""The same as a page."""
NODE_LAG: Final = "lag.json"
"""What nodes show of it in `/v1/lag`: for each link the latest minute. `fanout.node.kept_report` reads it."""

_FILES_MAX: Final = 1000
"""The most files of one table in one batch; the rest is taken by the next."""
_PARTS_MAX: Final = 24
"""Parts of a table that are left beside each other before they are merged."""
_LAG_WINDOWS: Final = 120
"""How many of the latest windows the published result covers."""
_LIST_LIMIT: Final = 50
_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """What one run did."""

    files: int
    """Files that were new."""
    more: bool
    """Whether there were more than one batch takes."""


class Keeper:
    """Keeps the tables of one directory from the sealed files of log directories.

    Args:
        spark: The session.
        logs: Log directories, or URIs of stores that nodes ship to; a file that is in several places counts once. What
            is new in a store is copied to this machine for the run that takes it in.
        ledger: The directory of the tables, locked by the caller.
        keep_days: How long windows and events are kept.
        settle_s: The settle horizon: an epoch that began later than this before its log ends is pending.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        logs: Sequence[Path | str],
        ledger: Ledger,
        keep_days: float = KEEP_DAYS,
        settle_s: float = 0,
    ) -> None:
        self._spark = spark
        self._logs = tuple(dict.fromkeys(map(str, logs)))
        self._ledger = ledger
        self._keep_us = round(keep_days * _DAY_US)
        self._settle_s = settle_s

    def run(self, *, parts_max: int = _PARTS_MAX) -> Kept:
        """Take what is new into the tables and publish the result.

        Args:
            parts_max: How many parts of a table may lie beside each other.

        Raises:
            LogError: A store cannot be read, or holds no log.
            ReportError: A log directory or the tables cannot be used.
        """
        batch = self._ledger.read()
        with tempfile.TemporaryDirectory(prefix="fanout-watch-") as scratch:
            listed = LogFiles.in_directories(self._on_this_machine(Path(scratch), seen=batch.seen))
            updates = new_files(listed.updates, seen=batch.seen, limit=_FILES_MAX)
            events = new_files(listed.events, seen=batch.seen, limit=_FILES_MAX)
            if updates or events:
                self._add(batch.next_number, updates=updates, events=events)
        if updates or events:
            batch = self._ledger.read()
            if len(batch.numbers) > parts_max:
                batch = self._merge(batch)
        if batch.numbers:
            self._publish(batch)
        return Kept(len(updates) + len(events), _FILES_MAX in (len(updates), len(events)))

    def _on_this_machine(self, scratch: Path, *, seen: Seen) -> list[str]:
        """Return the log directories; those of stores have what is not seen yet, no more than one batch takes."""
        return [
            str(fetch(place, target=scratch / str(number), wanted=_first_unseen(seen))) if is_store(place) else place
            for number, place in enumerate(self._logs)
        ]

    def _add(self, number: int, *, updates: Sequence[str], events: Sequence[str]) -> None:
        tables = read_tables(self._spark, LogFiles.of_files(updates=updates, events=events, directories=()))
        deltas = {
            "lag": kept.delta_lag(tables.updates, tables.events),
            "traffic": kept.delta_traffic(tables.updates),
            "events": kept.delta_events(tables.events),
        }
        for name, delta in deltas.items():
            self._write(name, delta, number)
        rows = {"updates": _count_rows(updates), "events": _count_rows(events)}
        self._ledger.commit(number, files=[*updates, *events], rows=rows)

    def _merge(self, batch: Batch) -> Batch:
        for name in kept.TABLES:
            merged = self.table(name, batch)
            self._write(name, kept.drop_old(name, merged, keep_us=self._keep_us), batch.next_number)
        self._ledger.commit_base(batch.next_number, before=batch)
        return self._ledger.read()

    def _write(self, name: str, frame: DataFrame, number: int) -> None:
        # A part is small; one file of it costs less to read than many.
        frame.coalesce(1).write.mode("overwrite").parquet(self._ledger.table_path(name, number))

    def table(self, name: str, batch: Batch) -> DataFrame:
        """Return a kept table, its parts merged."""
        parts = [self._spark.read.parquet(self._ledger.table_path(name, number)) for number in batch.numbers]
        return kept.MERGES[name](reduce(DataFrame.unionByName, parts))

    def _publish(self, batch: Batch) -> None:
        cells = self.table("lag", batch)
        newest = cells.agg(kept.newest_window().alias("newest_us")).first()
        if newest is not None and newest["newest_us"] is not None:
            newest_us: int = newest["newest_us"]
            cells = cells.where(
                (sf.col("window_us") > newest_us - _LAG_WINDOWS * kept.WINDOW_US) & kept.is_no_future(newest_us)
            )
        # A schema that is stated keeps what Parquet says of nulls out of the way.
        events = small_frame(self._spark, [], schema=EVENTS).unionByName(self.table("events", batch))
        tables = Tables(small_frame(self._spark, [], schema=UPDATES), events)
        survey = take_survey(tables)
        nowhere = ParquetTables(self._spark, None)
        report = Report(
            report="watch",
            parameters=Parameters(
                reference=None,
                settle_s=self._settle_s,
                depth=0,
                fail_under_percent=None,
                list_limit=_LIST_LIMIT,
            ),
            inputs=_inputs(self._logs, batch),
            logs=(),
            basis=(
                f"Lag is of the latest {_LAG_WINDOWS} minutes in which there was any, from sealed files alone: what "
                f"nodes have not sealed yet is not in it.",
            ),
            lag=describe_cells(cells, survey=survey, window_us=kept.WINDOW_US, from_us=0),
            snapshots=describe_snapshots(
                self._spark,
                tables,
                survey=survey,
                settle_us=round(self._settle_s * 1_000_000),
                list_limit=_LIST_LIMIT,
                parquet=nowhere,
            ),
        )
        self._ledger.publish(NODE_LAG, json.dumps({"version": 1, "links": _latest_lag(report)}))
        self._ledger.publish(LATEST_PAGE, render_page(report))
        self._ledger.publish(LATEST_JSON, report.to_json())


def _latest_lag(report: Report) -> list[dict[str, object]]:
    return [
        {
            "node": series.node,
            "link": series.link,
            "stamped_by": series.stamped_by,
            "minute_us": round(point.at.timestamp()) * 1_000_000,
            "updates": point.rows,
            "p50_us": point.p50_us,
            "p95_us": point.p95_us,
            "p99_us": point.p99_us,
            "most_us": point.most_us,
        }
        for series in report.lag.over_time
        for point in series.points[-1:]
    ]


def _first_unseen(seen: Seen) -> Callable[[str], bool]:
    """Return what says of sealed files, asked of each in turn, which one batch takes."""
    taken = Counter[str]()

    def is_wanted(name: str) -> bool:
        table = Path(name).parts[1]
        taken[table] += (wanted := name not in seen and taken[table] < _FILES_MAX)
        return wanted

    return is_wanted


def _inputs(logs: tuple[str, ...], batch: Batch) -> Inputs:
    files = batch.seen.count_by_table()
    return Inputs(
        directories=logs,
        update_files=files.get("updates", 0),
        event_files=files.get("events", 0),
        updates=batch.rows.get("updates", 0),
        events=batch.rows.get("events", 0),
        log_schema=SCHEMA_VERSION,
    )


def _count_rows(paths: Sequence[str]) -> int:
    """Return how many rows files hold, by their footers."""
    rows = 0
    for path in paths:
        try:
            rows += pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException) as error:
            raise ReportError(
                f"{path} cannot be read: {error}", hint="`fanout log verify` tells whether it is damaged"
            ) from error
    return rows
