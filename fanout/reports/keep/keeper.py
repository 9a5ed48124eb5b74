"""Keep the tables: read the sealed files that are new, add a batch, merge when there are many, publish the result.

Owns the order of one run. What a batch adds is in `fanout.reports.compare.rolling`, what counts in `ledger`.
Completeness is no kept table: with each run it is computed anew of the last minutes (`recent`), behind the commit.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.errors import LogError, ReportError
from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.replog.shipping.fetching import fetch, is_store, names_in
from fanout.reports.compare import rolling as kept
from fanout.reports.figures.job import make_report
from fanout.reports.figures.lag import describe_cells
from fanout.reports.figures.snapshots import describe_links
from fanout.reports.keep.headlines import headlines, with_completeness
from fanout.reports.keep.recent import recent_files, recent_names
from fanout.reports.read.ledger import Batch, Ledger, Seen, new_files
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import Earlier, Tables, read_tables, spark_errors, take_survey
from fanout.reports.read.rows import small_frame
from fanout.reports.read.schemas import EVENTS, UPDATES
from fanout.reports.render.page import render_page
from fanout.reports.values.document import Inputs, Parameters, Report

__all__ = [
    "COMPLETENESS_JSON",
    "KEEP_DAYS",
    "LATEST_JSON",
    "LATEST_PAGE",
    "NODE_COMPLETENESS",
    "NODE_LAG",
    "Keeper",
    "Kept",
    "LastMinutes",
]

KEEP_DAYS: Final = 30
"""Windows and events older than this before the newest are dropped when parts are merged."""
LATEST_JSON: Final = "latest.json"
"""The last result, as the JSON of a report."""
LATEST_PAGE: Final = "latest.html"
"""The same as a page."""
NODE_LAG: Final = "lag.json"
"""What nodes show of it in `/v1/lag`: for each link the latest minute. `fanout.node.watch_results` reads it."""
COMPLETENESS_JSON: Final = "completeness.json"
"""The report on completeness of the last minutes, as `fanout report completeness --json` writes it."""
NODE_COMPLETENESS: Final = "links.json"
"""What nodes show of that in `/v1/lag`: a headline for each link."""

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
    failure: LogError | ReportError | None = None
    """Why completeness could not be computed; the tables are kept all the same."""


@dataclass(frozen=True, slots=True)
class LastMinutes:
    """The completeness that is asked for beside the tables."""

    minutes: float
    """How much of the logs it is of, up to the newest that is sealed."""
    reference: str | None
    """The node to take as the reference; None lets the report choose."""
    behind_max_s: float
    """How long before the reference's a log may end, without a stop, and what came later be pending."""
    now: Callable[[], datetime]
    """Says when it was computed."""


class Keeper:
    """Keeps the tables of one directory from the sealed files of log directories.

    Args:
        spark: The session.
        logs: Log directories, or URIs of stores that nodes ship to; a file that is in several places counts once. What
            is new in a store is copied to this machine for the run that takes it in.
        ledger: The directory of the tables, locked by the caller.
        keep_days: How long windows and events are kept.
        settle_s: The settle horizon: an epoch that began later than this before its log ends is pending.
        last: The completeness to compute with each run that leaves nothing for the next; None computes none.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        logs: Sequence[Path | str],
        ledger: Ledger,
        keep_days: float = KEEP_DAYS,
        settle_s: float = 0,
        last: LastMinutes | None = None,
    ) -> None:
        self._spark = spark
        self._logs = tuple(dict.fromkeys(map(str, logs)))
        self._ledger = ledger
        self._keep_us = round(keep_days * _DAY_US)
        self._settle_s = settle_s
        self._last = last
        # The last that was computed here: the page shows it until there is a newer one.
        self._found: Report | None = None

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
            listed = self._on_this_machine(Path(scratch), wanted=lambda _: _first_unseen(batch.seen))
            updates = new_files(listed.updates, seen=batch.seen, limit=_FILES_MAX)
            events = new_files(listed.events, seen=batch.seen, limit=_FILES_MAX)
            if updates or events:
                self._add(batch.next_number, updates=updates, events=events)
        if updates or events:
            batch = self._ledger.read()
            if len(batch.numbers) > parts_max:
                batch = self._merge(batch)
        more = _FILES_MAX in (len(updates), len(events))
        failure: LogError | ReportError | None = None
        if batch.numbers and not more:
            # What is committed stays, and is published, whatever becomes of this.
            try:
                self._find_completeness(batch)
            except (LogError, ReportError) as error:
                failure = error
        if batch.numbers:
            self._publish(batch)
        return Kept(len(updates) + len(events), more, failure)

    def _on_this_machine(self, scratch: Path, *, wanted: Callable[[str], Callable[[str], bool]]) -> LogFiles:
        """Return the sealed files; of a store those that what is made for it says are wanted."""
        return LogFiles.in_directories(
            [
                str(fetch(place, target=scratch / str(number), wanted=wanted(place))) if is_store(place) else place
                for number, place in enumerate(self._logs)
            ]
        )

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

    def _find_completeness(self, batch: Batch) -> None:
        """Publish the completeness of the last minutes; where none is asked for, take away what an earlier run left.

        Of the time before the files that are read, the kept events say what there is to know.
        """
        if (last := self._last) is None:
            for name in (NODE_COMPLETENESS, COMPLETENESS_JSON):
                self._ledger.withdraw(name)
            return
        with tempfile.TemporaryDirectory(prefix="fanout-watch-") as scratch, spark_errors():
            listed = self._on_this_machine(
                Path(scratch), wanted=lambda place: recent_names(names_in(place), minutes=last.minutes).__contains__
            )
            recent = recent_files(listed, minutes=last.minutes, reference=last.reference, directories=self._logs)
            self._found = make_report(
                self._spark,
                recent.files,
                name="completeness",
                parameters=Parameters(
                    reference=last.reference,
                    settle_s=self._settle_s,
                    depth=0,
                    fail_under_percent=None,
                    list_limit=_LIST_LIMIT,
                    behind_max_s=last.behind_max_s,
                    since=recent.since,
                    until=recent.until,
                ),
                earlier=Earlier(self.table("events", batch), recent.cuts),
                progress=lambda _: None,
            )
        self._ledger.publish(COMPLETENESS_JSON, self._found.to_json())
        self._ledger.publish(NODE_COMPLETENESS, headlines(self._found, computed=last.now()))

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
            snapshots=describe_links(
                self._spark,
                tables,
                survey=survey,
                settle_us=round(self._settle_s * 1_000_000),
                list_limit=_LIST_LIMIT,
                parquet=None,
            ).snapshots,
        )
        self._ledger.publish(NODE_LAG, json.dumps({"version": 1, "links": _latest_lag(report)}))
        report = with_completeness(report, found=self._found)
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
