"""`fanout report`: prove from replication logs which updates were applied, late or missing.

The commands stage the logs and run the Spark job: open segments become Parquet in a temporary directory, and shipped
files are fetched from their store. pyspark is imported only then.
"""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from fanout.cli.arguments.report_options import (
    SETTLE_S,
    AcceptUnion,
    BehindMax,
    Depth,
    FailUnder,
    HtmlFile,
    JsonFile,
    LogDirectories,
    MarkdownFile,
    Master,
    MetricsFile,
    ParquetDirectory,
    PrefixDepth,
    Reference,
    Settle,
    Since,
    Tables,
    Trend,
    Until,
    Verbose,
    place_of,
)
from fanout.cli.output.interruption import ended_by_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fanout.reports.read.log_files import LogFiles
    from fanout.reports.values.document import ReportName

__all__ = ["app"]

app = typer.Typer(help="Make a report from replication logs, with Spark.", no_args_is_help=True)

_EXIT_CODES: Final = "Exit codes: 0 done, 4 a package for it is not installed, 5 no report can be made."
_JUDGED_EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 --fail-under is not met, 4 a package for it is not installed, 5 no report can be made."
)
_STANDARD_OUTPUT: Final = Path("-")
_ALONE: Final = ("json_path", "html_path", "markdown_path", "metrics_path")
"""Documents; one of them can go to standard output."""
_PLACES: Final = (*_ALONE, "trend_path")
"""Output to a path or a URI."""
_PLACES_LISTED: Final = 4
"""Directories that a note lists."""


def _every_report(
    *,
    since: Since = None,
    until: Until = None,
    json_path: JsonFile = None,
    html_path: HtmlFile = None,
    parquet: ParquetDirectory = None,
    tables: Tables = None,
    master: Master = None,
) -> None:
    """Name the options that every report has, after its own."""


def _judged_report(
    *,
    reference: Reference = None,
    settle_s: Settle = SETTLE_S,
    behind_max_s: BehindMax = None,
    fail_under: FailUnder = None,
    accept_union: AcceptUnion = False,
    trend_path: Trend = None,
    markdown_path: MarkdownFile = None,
    metrics_path: MetricsFile = None,
    verbose: Verbose = False,
) -> None:
    """Name the options that every report has which judges secondaries."""


def _makes(name: ReportName, *named_too: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command that hands its arguments to `fanout.reports.entry.run_report`.

    Args:
        name: The report.
        named_too: Functions whose options follow those that the decorated function names; `_every_report` is the last.
    """

    def decorate(named: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(named)
        def command(log_dirs: list[str], **options: Any) -> None:
            _check_window(options["since"], options["until"])
            _require_spark()
            verbose = options.pop("verbose", False)
            places = {name: place_of(options[name]) for name in _PLACES if options.get(name) is not None}
            _make(name, log_dirs=log_dirs, asked=options | places, verbose=verbose)

        signatures = [inspect.signature(each, eval_str=True) for each in (named, *named_too, _every_report)]
        command.__signature__ = signatures[0].replace(  # type: ignore[attr-defined]  # typer reads the options from it
            parameters=[parameter for one in signatures for parameter in one.parameters.values()]
        )
        return command

    return decorate


@app.command(epilog=_JUDGED_EXIT_CODES)
@_makes("summary", _judged_report)
def summary(log_dirs: LogDirectories, *, depth: Depth = 0) -> None:
    """Answer what an operator asks first, as quickly as can be.

    Did every secondary get everything; if not, which topics, since when, still going on, and why? How late was it?
    Is it getting worse?
    """


@app.command("all", epilog=_JUDGED_EXIT_CODES)
@_makes("all", _judged_report)
def everything(log_dirs: LogDirectories, *, depth: PrefixDepth = 2) -> None:
    """Show everything in one report.

    Completeness, stalled topics, convergence, epochs, lag and traffic, from one look at the logs.
    """


@app.command(epilog=_JUDGED_EXIT_CODES)
@_makes("completeness", _judged_report)
def completeness(log_dirs: LogDirectories, *, depth: Depth = 0) -> None:
    """Show which updates each secondary applied or lacks.

    For each selector: expected, applied, missing and duplicated updates, final values, propagation times and
    the time to ready; exact figures are told from bounds.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("lag")
def lag(log_dirs: LogDirectories, *, depth: Depth = 0) -> None:
    """Show how long updates took to arrive.

    Propagation times from the stamps of a `fanout primary`, heartbeats, and the time from connect to ready;
    no reference is needed.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("snapshots")
def snapshots(log_dirs: LogDirectories, *, settle_s: Settle = SETTLE_S) -> None:
    """Show every epoch of every link, and when it was ready.

    An epoch is the life of one MQTT session: its topics, evidence and tear-downs. No reference is needed.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("convergence")
def convergence(log_dirs: LogDirectories, *, reference: Reference = None, settle_s: Settle = SETTLE_S) -> None:
    """Show whether the nodes hold the same values.

    At the end by topic, over time by their digests.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("stalls")
def stalls(log_dirs: LogDirectories, *, reference: Reference = None, settle_s: Settle = SETTLE_S) -> None:
    """Show the topics that stopped at a node.

    And whether they stopped at the others too.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("traffic")
def traffic(
    log_dirs: LogDirectories,
    *,
    reference: Reference = None,
    settle_s: Settle = SETTLE_S,
    depth: PrefixDepth = 1,
) -> None:
    """Show who publishes what, by topic prefix.

    Updates, bytes, and the nodes that they were published at.
    """


@app.command(epilog="Exit codes: 0 done.")
def schema() -> None:
    """Print the JSON schema of the reports.

    It describes what --json writes, of every report; needs neither Spark nor Java.
    """
    from fanout.reports.values.document import schema_text

    sys.stdout.write(schema_text())


def _check_window(since: datetime | None, until: datetime | None) -> None:
    if since is not None and until is not None and since >= until:
        raise typer.BadParameter(
            f"{until:%F %T} UTC is not later than --since, {since:%F %T} UTC; give a later one, as in --since 2h "
            f"--until 1h",
            param_hint="--until",
        )


def _require_spark() -> None:
    # Before anything is staged: on big logs that takes a while.
    from fanout.reports.spark import require_pyspark

    require_pyspark()


def _make(name: ReportName, *, log_dirs: list[str], asked: dict[str, Any], verbose: bool) -> None:
    """Make a report and print it, or the one document that goes to standard output alone; end with its exit code."""
    from fanout.cli.output.report_progress import report_progress
    from fanout.cli.output.terminal import error_console, output
    from fanout.reports import entry

    alone = [option for option in _ALONE if asked.get(option) == _STANDARD_OUTPUT]
    if len(alone) > 1:
        raise typer.BadParameter(
            "only one of --json, --html, --markdown and --metrics can go to standard output; give the others a FILE"
        )
    options = entry.ReportOptions(**(asked | dict.fromkeys(alone)))
    logs = _found(log_dirs)
    with _scratch() as scratch, ended_by_ctrl_c(scratch), report_progress(error_console()) as progress:
        files = _staged(logs, scratch=scratch, master=options.master, progress=progress)
        result = entry.run_report(name, files, options, progress=progress)
    if alone:
        sys.stdout.write(entry.RENDERED[alone[0]](result.report))
    else:
        from fanout.reports.render.terminal import print_report

        with output() as console:
            print_report(result.report, console=console, verbose=verbose)
    raise typer.Exit(result.exit_code)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a directory for all that this process writes for a while, and remove it."""
    import tempfile

    kept = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="fanout-report-", ignore_cleanup_errors=True) as scratch:
        tempfile.tempdir = scratch
        try:
            yield Path(scratch)
        finally:
            tempfile.tempdir = kept


def _found(log_dirs: list[str]) -> list[str]:
    """Return the logs in the places that were given; name the nodes that have several below one of them."""
    from fanout.replog.files.log_directories import find_logs

    found: list[str] = []
    for place in log_dirs:
        logs = () if "://" in place else find_logs(Path(place))
        found += map(str, logs) if logs else [place]
        _note_shared_nodes(place, logs)
    return found


def _note_shared_nodes(place: str, logs: Sequence[Path], *, copied_to: Path | None = None) -> None:
    """Name the nodes that have several of the logs that were found below a place."""
    from fanout.cli.output.terminal import print_note
    from fanout.replog.files.log_directories import shared_nodes
    from fanout.replog.files.sealing import node_of

    for name, shared in shared_nodes(logs).items():
        places = shared if copied_to is None else [log.relative_to(copied_to) for log in shared]
        print_note(
            f"below {place} are {len(shared)} logs of node {node_of(name)}: {_listed(places)}",
            hint="Rows that are in several count once. Different machines each need their own node.id",
        )


def _listed(places: Sequence[Path]) -> str:
    return ", ".join(map(str, places[:_PLACES_LISTED])) + (", ..." if len(places) > _PLACES_LISTED else "")


def _staged(log_dirs: list[str], *, scratch: Path, master: str | None, progress: Callable[[str], None]) -> LogFiles:
    """Return the files of all logs; copies are put below `scratch`.

    On a cluster, and of a URI that Spark can read by itself, only sealed files: Spark reads them, not this process.
    """
    from fanout.replog.read.reading import stage
    from fanout.replog.shipping.fetching import is_store
    from fanout.reports.read.log_files import LogFiles
    from fanout.reports.spark import is_local, is_submitted

    is_here = (master is None or is_local(master)) and not is_submitted()
    stores = [place for place in log_dirs if is_store(place)] if is_here else []
    others = LogFiles.in_directories([place for place in log_dirs if "://" in place and place not in stores])
    fetched = _fetched(stores, scratch / "fetched", progress=progress)
    local = [Path(place) for place in log_dirs if "://" not in place]
    progress("reading the logs")
    staged = stage([*local, *fetched], target=scratch / "staged")
    return LogFiles.of_files(
        updates=[*staged.updates, *others.updates],
        events=[*staged.events, *others.events],
        directories=log_dirs,
        # Shipped or copied logs are sealed; where a node writes, its open segments are staged too.
        sealed_only=len(local) < len(log_dirs) or not all((place / "open").is_dir() for place in local),
    )


def _fetched(stores: list[str], scratch: Path, *, progress: Callable[[str], None]) -> list[Path]:
    """Return log directories with the files of these stores."""
    from fanout.replog.files.log_directories import find_logs
    from fanout.replog.shipping.fetching import fetch

    found: list[Path] = []
    for number, uri in enumerate(dict.fromkeys(stores)):
        copy = fetch(uri, target=scratch / str(number), tell=progress)
        logs = find_logs(copy)
        _note_shared_nodes(uri, logs, copied_to=copy)
        found += logs
    return found
