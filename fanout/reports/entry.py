"""The reports as the command line calls them: run the job, write the files.

Nothing here imports pyspark until a report is run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fanout.errors import ReportError
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.scope import AskedWindow
from fanout.reports.session import sail
from fanout.reports.spark import (
    LOCAL_MASTER,
    SAIL,
    active_session,
    is_local,
    is_submitted,
    require_pyspark,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fanout.reports.read.survey import LogCut
    from fanout.reports.values.document import Report, ReportName
    from fanout.reports.values.history import PastReport

__all__ = [
    "BEHIND_MAX_S",
    "DEPTHS",
    "LIST_LIMIT",
    "RENDERED",
    "SETTLE_S",
    "ReportOptions",
    "ReportResult",
    "is_short_run",
    "run_report",
]

SETTLE_S: Final = 30.0
"""The settle horizon that is used when none is given."""

BEHIND_MAX_S: Final = 120.0
"""Time by which a log of sealed files may end before the reference's: a segment lasts 60 s, shipping takes a while."""

LIST_LIMIT: Final = 50
"""The most entries of a list in a report."""


_SHORT_RUN_BYTES: Final = 32 * 1024 * 1024
"""Logs up to this size (about two million rows) are read in less time than it takes to compile for speed."""


DEPTHS: Final[Mapping[ReportName, int]] = {"all": 2, "traffic": 1}
"""Default number of topic levels in a prefix; other reports have none by prefix by default."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Parameters of a report, and the places of its output; each report takes those that concern it.

    Raises:
        ReportError: They cannot be met, whatever the logs hold.
    """

    reference: str | None = None
    """The node whose log lists the updates to replicate; None takes the only primary in the logs, else the only
    secondary that stamps for others, else the only tap, else the union of the secondaries.
    """
    settle_s: float = SETTLE_S
    """The settle horizon in seconds: updates younger than this at the end of the reference's log are pending, neither
    applied nor missing."""
    behind_max_s: float | None = None
    """Time before the end of the reference's log at which a node's log may end without a stop. Later updates are
    pending then; of a log that ends earlier they are unknown. None means 120 s where the input has sealed files only,
    else settle_s.
    """
    depth: int | None = None
    """Number of topic levels in a prefix; 0 for no figures by prefix, None for the report's default."""
    since: datetime | None = None
    """Updates that were published before this are in no figure; None for no such bound."""
    until: datetime | None = None
    """Those that were published at this time or later neither."""
    fail_under: float | None = None
    """In per cent. The result fails if any selector has a lower share, or if secondaries could only be compared with
    one another.
    """
    accept_union: bool = False
    """True if it may pass then."""
    trend_path: Path | str | None = None
    """The file of the trend: compare with the reports in it, and add this one. None neither reads nor writes one, and
    compares the halves of the window. Of a report that has answers."""
    master: str | None = None
    """The Spark master's URL, or `sail`. None takes Sail, which needs no Java, if it is installed, the memory is enough
    for the logs, and neither a URI nor a table is written; else `local[*]`.
    """
    json_path: Path | str | None = None
    """Place of the JSON, a URI that Spark can write as text; None for nowhere. The same holds for those below."""
    html_path: Path | str | None = None
    """Place of the page; None for nowhere."""
    markdown_path: Path | str | None = None
    """Place of the answers as Markdown; None for nowhere. Only reports with answers have it."""
    metrics_path: Path | str | None = None
    """Place of the answers as metrics of Prometheus; None for nowhere. Only reports with answers have it."""
    parquet: str | None = None
    """The directory or URI for the tables as Parquet; None writes none."""
    tables: str | None = None
    """Place to which result tables are appended: a path or URI, or a namespace of a catalog; None appends none."""

    def __post_init__(self) -> None:
        if self.settle_s < 0 or (self.depth or 0) < 0 or (self.behind_max_s or 0) < 0:
            raise ReportError(
                "settle horizon, depth and how late a log may be cannot be negative", hint="Give 0 or a positive number"
            )
        AskedWindow.between(self.since, self.until)


@dataclass(frozen=True, slots=True)
class ReportResult:
    """Result of a run of a report."""

    report: Report
    passed: bool
    """False only when `fail_under` was given and not met."""

    @property
    def exit_code(self) -> int:
        """0, or 1 when `fail_under` was not met."""
        return 0 if self.passed else 1


def run_report(
    name: ReportName,
    logs: LogFiles | Sequence[Path | str],
    options: ReportOptions | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> ReportResult:
    """Make a report over the logs of several nodes, and write its files.

    Args:
        name: Name of the report.
        logs: The staged files, or log directories (of which only sealed files are read).
        options: Parameters of the report; None means the defaults.
        progress: Is told the name of each stage when it begins; None tells nobody.

    Raises:
        ExtraMissing: pyspark, or for Spark Connect what its client needs, is not installed.
        ReportError: No Java, no usable logs or no reference, or a file cannot be written.
    """
    asked = options or ReportOptions()
    depth = DEPTHS.get(name, 0) if asked.depth is None else asked.depth
    if name in ("all", "traffic") and depth < 1:
        raise ReportError("traffic is counted by prefixes of at least one level", hint="Give a depth of 1 or more")
    written = [*(getattr(asked, option) for option in RENDERED), asked.trend_path]
    _check_places(*(place for place in written if isinstance(place, Path)))
    files = logs if isinstance(logs, LogFiles) else LogFiles.in_directories(logs)
    tell = progress or (lambda stage: None)
    history: tuple[PastReport, ...] = ()
    if isinstance(asked.trend_path, Path):
        from fanout.reports.summary.trend_file import read_trend

        history = read_trend(asked.trend_path)
    from fanout.reports.read.gathering import gather_files

    with tempfile.TemporaryDirectory(prefix="fanout-report-") as scratch:
        files, cuts = _in_window(files, asked)
        require_pyspark()
        master = _master(files, asked)
        if master is not None and is_local(master):  # executors elsewhere would not find the copies
            files = gather_files(files, scratch=Path(scratch), every=master == SAIL)
        tell("starting Sail" if master == SAIL else "starting Spark")
        with spark_session(master=master or LOCAL_MASTER, short=is_short_run(files, master)) as spark:
            from fanout.reports.figures.job import make_report
            from fanout.reports.session.places import check_writable
            from fanout.reports.tables.appending import append_tables, check_appendable
            from fanout.reports.values.document import Parameters

            for place in written:
                if isinstance(place, str):
                    check_writable(spark, place)
            if asked.tables is not None:
                check_appendable(spark, asked.tables)
            if isinstance(asked.trend_path, str):
                history = _trend_at(spark, asked.trend_path)

            settle_s = behind_max_s = 0.0
            if name != "lag":  # it waits for nothing
                settle_s = asked.settle_s
                behind_max_s = _behind_max_s(files, settle_s=settle_s, asked_s=asked.behind_max_s)
            parameters = Parameters(
                reference=asked.reference,
                settle_s=settle_s,
                depth=depth,
                fail_under_percent=asked.fail_under,
                accept_union=asked.accept_union,
                list_limit=LIST_LIMIT,
                behind_max_s=behind_max_s,
                since=asked.since,
                until=asked.until,
            )
            report = make_report(
                spark,
                files,
                name=name,
                parameters=parameters,
                history=history,
                cuts=cuts,
                parquet=asked.parquet,
                progress=tell,
            )
            if asked.tables is not None:
                append_tables(spark, asked.tables, report, run_at=datetime.now(UTC))
            for option, render in RENDERED.items():
                if (place := getattr(asked, option)) is not None:
                    _write(spark, place, render(report))
            if asked.trend_path is not None and report.summary is not None:
                from fanout.reports.summary.past_reports import past_report
                from fanout.reports.summary.trend_file import trend_text

                text = trend_text(history, added=past_report(report))
                _write(spark, asked.trend_path, text, hint="Give --trend a path that this user may write to")
    return ReportResult(report, report.verdict is None or report.verdict.passed)


def _in_window(files: LogFiles, asked: ReportOptions) -> tuple[LogFiles, tuple[LogCut, ...]]:
    """Return the files that a report reads, and the begin of each log that is not read whole."""
    from fanout.reports.read.recent_files import recent_files

    if asked.since is None or asked.until is None:
        return files, ()
    since_us = AskedWindow.between(asked.since, asked.until).since_us
    return recent_files(files, since_us=since_us, reference=asked.reference)


def _master(files: LogFiles, asked: ReportOptions) -> str | None:
    """Return the requested master, or else the one that suits the logs and the output.

    None if `spark-submit` or a program has started a session, which says where it runs.
    """
    if is_submitted() or active_session() is not None:
        return None
    places = [*(getattr(asked, option) for option in RENDERED), asked.trend_path, *files.updates, *files.events]
    needs_spark = asked.parquet is not None or asked.tables is not None or any("://" in str(one) for one in places)
    if asked.master is None:
        fits = sail.is_installed() and not needs_spark and files.bytes_at_most(sail.bytes_max())
        return SAIL if fits else LOCAL_MASTER
    if asked.master == SAIL and needs_spark:
        raise ReportError(
            "Sail reads files of this machine and writes documents to it: neither URIs nor tables",
            hint=f"Leave --master out, or give --master '{LOCAL_MASTER}'",
        )
    return asked.master


def is_short_run(files: LogFiles, master: str | None) -> bool:
    """Return whether starting and compiling is most of the work of a report."""
    return master is not None and master.startswith("local[") and files.bytes_at_most(_SHORT_RUN_BYTES)


def _behind_max_s(files: LogFiles, *, settle_s: float, asked_s: float | None) -> float:
    """Return the time before the reference's end at which a log may end: as requested, else by the kind of files."""
    if asked_s is not None:
        return asked_s
    return max(settle_s, BEHIND_MAX_S) if files.sealed_only else settle_s


def _json(report: Report) -> str:
    return report.to_json()


def _html(report: Report) -> str:
    from fanout.reports.render.page import render_page

    return render_page(report)


def _markdown(report: Report) -> str:
    from fanout.reports.render.markdown import render_markdown

    return render_markdown(report)


def _metrics(report: Report) -> str:
    from fanout.reports.metrics import render_metrics

    return render_metrics(report)


RENDERED: Final[Mapping[str, Callable[[Report], str]]] = {
    "json_path": _json,
    "html_path": _html,
    "markdown_path": _markdown,
    "metrics_path": _metrics,
}
"""Texts of a report, by the option of `ReportOptions` that says where it goes."""


def _check_places(*paths: Path | None) -> None:
    """Make the directories of all outputs, so that a fault shows before the report is made."""
    for path in paths:
        if path is None:
            continue
        problem = "it is a directory" if path.is_dir() else ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            problem = "a file is in the place of a directory above it"
        except OSError as error:
            problem = str(error.strerror)
        if problem:
            raise ReportError(f"{path} cannot be written: {problem}", hint="Give a path that this user may write to")


def _trend_at(spark: SparkSession, uri: str) -> tuple[PastReport, ...]:
    """Return the reports in the file of the trend at a URI; none if there is no such file."""
    from fanout.reports.read.reading import collect_rows
    from fanout.reports.session.places import read_text
    from fanout.reports.summary.trend_file import parse_trend

    found = read_text(spark, uri)
    return () if found is None else parse_trend("".join(row["value"] for row in collect_rows(found)).encode(), path=uri)


def _write(
    spark: SparkSession, path: Path | str, text: str, *, hint: str = "Give a path that this user may write to"
) -> None:
    """Write a file aside, to the disk, and rename it, so that neither a reader nor a kill sees half of it.

    A path that is no regular file, such as `/dev/stdout` or a named pipe, is written to and stays what it is. A URI is
    left to Spark.
    """
    if isinstance(path, str):
        from fanout.reports.session.places import write_text

        write_text(spark, path, text)
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror}", hint=hint) from error
