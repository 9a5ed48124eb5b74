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
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fanout.cli.arguments.report_options import (
    LOCAL_MASTER,
    SETTLE_S,
    AcceptUnion,
    Baseline,
    BehindMax,
    FailUnder,
    HtmlFile,
    JsonFile,
    LogDirectories,
    MarkdownFile,
    Master,
    ParquetDirectory,
    Reference,
    Settle,
    Since,
    Until,
    Verbose,
    local_path,
)
from fanout.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from fanout.cli.output.report_progress import ReportProgress
    from fanout.reports.read.compacted import Compacted
    from fanout.reports.read.log_files import LogFiles
    from fanout.reports.values.document import ReportName

__all__ = ["app"]

app = typer.Typer(help="Make a report from replication logs, with Spark.", no_args_is_help=True)

_EXIT_CODES: Final = "Exit codes: 0 done, 4 pyspark is not installed, 5 no report can be made."
_JUDGED_EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 --fail-under is not met, 4 pyspark is not installed, 5 no report can be made."
)
_STANDARD_OUTPUT: Final = Path("-")


_OPTIONS: Final = {
    "settle": "settle_s",
    "behind_max": "behind_max_s",
    "json_file": "json_path",
    "html_file": "html_path",
    "markdown_file": "markdown_path",
}
"""Arguments of the commands that have another name in `fanout.reports.entry.ReportOptions`."""


def _every_report(
    *,
    since: Since = None,
    until: Until = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    parquet: ParquetDirectory = None,
    master: Master = LOCAL_MASTER,
) -> None:
    """Name the options that every report has, behind its own."""


def _makes(name: ReportName) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command that hands its arguments to `fanout.reports.entry.run_report`.

    The decorated function names its own; those of `_every_report` follow.
    """

    def decorate(named: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(named)
        def command(log_dirs: list[str], **options: Any) -> None:
            _check_window(options["since"], options["until"])
            _require_spark()
            verbose = options.pop("verbose", False)
            asked = {_OPTIONS.get(option, option): value for option, value in options.items()}
            _make(name, log_dirs=log_dirs, asked=asked, verbose=verbose)

        own, common = (inspect.signature(each, eval_str=True) for each in (named, _every_report))
        command.__signature__ = own.replace(  # type: ignore[attr-defined]  # typer reads the options from it
            parameters=[*own.parameters.values(), *common.parameters.values()]
        )
        return command

    return decorate


@app.command(epilog=_JUDGED_EXIT_CODES)
@_makes("summary")
def summary(
    log_dirs: LogDirectories,
    *,
    reference: Reference = None,
    settle: Settle = SETTLE_S,
    behind_max: BehindMax = None,
    depth: Annotated[
        int, typer.Option(min=0, metavar="LEVELS", help="How many topic levels make a prefix; 0 tells whole topics.")
    ] = 2,
    fail_under: FailUnder = None,
    accept_union: AcceptUnion = False,
    baseline: Baseline = None,
    markdown_file: MarkdownFile = None,
    verbose: Verbose = False,
) -> None:
    """Answer what an operator asks first, as quickly as can be.

    Did every secondary get everything; if not, which topics, since when, still going on, and why? How late was it?
    Is it getting worse?
    """


@app.command("all", epilog=_JUDGED_EXIT_CODES)
@_makes("all")
def everything(
    log_dirs: LogDirectories,
    *,
    reference: Reference = None,
    settle: Settle = SETTLE_S,
    behind_max: BehindMax = None,
    depth: Annotated[int, typer.Option(min=1, metavar="LEVELS", help="How many topic levels make a prefix.")] = 2,
    fail_under: FailUnder = None,
    accept_union: AcceptUnion = False,
    baseline: Baseline = None,
    markdown_file: MarkdownFile = None,
    verbose: Verbose = False,
) -> None:
    """Show everything in one report.

    Completeness, stalled topics, convergence, epochs, lag and traffic, from one look at the logs.
    """


@app.command(epilog=_JUDGED_EXIT_CODES)
@_makes("completeness")
def completeness(
    log_dirs: LogDirectories,
    *,
    reference: Reference = None,
    settle: Settle = SETTLE_S,
    behind_max: BehindMax = None,
    depth: Annotated[
        int,
        typer.Option(
            min=0, metavar="LEVELS", help="Also list shares and the slowest by topic prefixes of so many levels."
        ),
    ] = 0,
    fail_under: FailUnder = None,
    accept_union: AcceptUnion = False,
    baseline: Baseline = None,
    markdown_file: MarkdownFile = None,
    verbose: Verbose = False,
) -> None:
    """Show what each secondary applied of what there was.

    For each selector: expected, applied, missing and duplicated updates, final values, propagation times and
    the time to ready; what is proved exactly is told from what is only a bound.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("lag")
def lag(
    log_dirs: LogDirectories,
    *,
    depth: Annotated[
        int,
        typer.Option(min=0, metavar="LEVELS", help="Also list the slowest topic prefixes of so many levels."),
    ] = 0,
) -> None:
    """Show how long updates took to arrive.

    Propagation times from the stamps of a `fanout primary`, heartbeats, and the time from connect to ready;
    no reference is needed.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("snapshots")
def snapshots(
    log_dirs: LogDirectories,
    *,
    settle: Settle = SETTLE_S,
) -> None:
    """Show every epoch of every link, and when it was ready.

    An epoch is the life of one MQTT session: its topics, evidence and tear-downs. No reference is needed.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("convergence")
def convergence(
    log_dirs: LogDirectories,
    *,
    reference: Reference = None,
    settle: Settle = SETTLE_S,
) -> None:
    """Show whether the nodes hold the same values.

    At the end by topic, over time by their digests.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("stalls")
def stalls(
    log_dirs: LogDirectories,
    *,
    reference: Reference = None,
    settle: Settle = SETTLE_S,
) -> None:
    """Show the topics that stopped at a node.

    And whether they stopped at the others too.
    """


@app.command(epilog=_EXIT_CODES)
@_makes("traffic")
def traffic(
    log_dirs: LogDirectories,
    *,
    reference: Reference = None,
    settle: Settle = SETTLE_S,
    depth: Annotated[int, typer.Option(min=1, metavar="LEVELS", help="How many topic levels make a prefix.")] = 1,
) -> None:
    """Show who publishes what, by topic prefix.

    Updates, bytes, and the nodes that they were published at.
    """


@app.command(epilog=_EXIT_CODES)
def watch(
    log_dirs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG_DIR",
            help="A node's log.directory, on this machine or mounted, or the URI that nodes ship to, s3:// or gs://.",
        ),
    ],
    *,
    into: Annotated[
        Path,
        typer.Option(
            parser=local_path, metavar="DIR", help="Where the tables, the checkpoint and the last result are kept."
        ),
    ],
    every: Annotated[
        float, typer.Option(min=1, max=86_400, metavar="SECONDS", help="Time between the beginnings of two runs.")
    ] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Take in what is new and end, for a timer or cron.")] = False,
    keep: Annotated[
        float, typer.Option(min=1, max=36_500, metavar="DAYS", help="How long windows and events are kept.")
    ] = 30.0,
    completeness_of: Annotated[
        float | None,
        typer.Option(
            "--completeness",
            min=1,
            max=525_600,
            metavar="MINUTES",
            help="Also say with each run what each secondary applied of the last minutes that are sealed.",
        ),
    ] = None,
    reference: Reference = None,
    master: Master = LOCAL_MASTER,
) -> None:
    """Keep tables of lag, traffic and epochs up to date.

    They are made from the logs of running nodes. Each sealed file counts exactly once, however often this is
    killed and started again. SIGTERM and SIGINT end it after the run that is under way. Completeness is computed
    anew of the last minutes, with --completeness. Final values and stalled topics are not kept: run the reports on
    them, for example by a timer.
    """
    if reference is not None and completeness_of is None:
        raise typer.BadParameter("it is for the completeness, so give --completeness too", param_hint="--reference")
    _require_spark()
    import signal
    import threading

    from fanout.reports.entry import run_watch

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run_watch(
        log_dirs,
        into=into,
        every_s=None if once else every,
        keep_days=keep,
        completeness_minutes=completeness_of,
        reference=reference,
        master=master,
        stop=stop,
        tell=lambda text: typer.echo(printable(text), err=True),
    )


@app.command(epilog="Exit codes: 0 done, 5 a log cannot be read, or the directory cannot be written.")
def compact(
    log_dirs: LogDirectories,
    *,
    into: Annotated[
        Path, typer.Option(parser=local_path, metavar="DIR", help="Where the large files are kept; reports read it.")
    ],
) -> None:
    """Make few large files of the many small ones.

    Of those that nodes seal, by date, primary and node. Takes in what is new each time; needs no Spark. Of a URI
    only what is new is fetched. A report may be given DIR and the logs together: no row counts twice.
    """
    import tempfile

    from fanout.replog.shipping.fetching import is_store
    from fanout.reports.keep.compaction import compact as compact_logs
    from fanout.reports.read.compacted import read_compacted

    known = read_compacted(into)
    with _progress() as progress, tempfile.TemporaryDirectory(prefix="fanout-compact-") as scratch:
        fetched = _fetched(
            [place for place in log_dirs if is_store(place)],
            Path(scratch),
            compacted=[known] if known else [],
            progress=progress,
        )
        local = [place for place in log_dirs if not is_store(place)]
        result = compact_logs([*local, *fetched], into=into, tell=progress)
    typer.echo(printable(f"{result.sealed_files} new files taken in; {into} has {result.files}"))


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
    from fanout.reports import entry

    alone = [option for option in ("json_path", "markdown_path") if asked.get(option) == _STANDARD_OUTPUT]
    if len(alone) > 1:
        raise typer.BadParameter("only one of --json and --markdown can go to standard output; give the other a FILE")
    options = entry.ReportOptions(**(asked | dict.fromkeys(alone)))
    with _progress() as progress, _staged(log_dirs, master=options.master, progress=progress) as files:
        result = entry.run_report(name, files, options, progress=progress)
    if alone == ["json_path"]:
        sys.stdout.write(result.report.to_json())
    elif alone == ["markdown_path"]:
        from fanout.reports.render.markdown import render_markdown

        sys.stdout.write(render_markdown(result.report))
    else:
        from fanout.cli.output.terminal import output
        from fanout.reports.render.terminal import print_report

        with output() as console:
            print_report(result.report, console=console, verbose=verbose)
    raise typer.Exit(result.exit_code)


@contextmanager
def _staged(log_dirs: list[str], *, master: str, progress: Callable[[str], None]) -> Iterator[LogFiles]:
    """Yield the files of all logs.

    On a cluster, and of a URI that Spark can read by itself, only sealed files: Spark reads them, not this process.
    """
    import tempfile

    from fanout.replog.read.reading import stage
    from fanout.replog.shipping.fetching import is_store
    from fanout.reports.read.compacted import read_compacted, without_compacted
    from fanout.reports.read.log_files import LogFiles
    from fanout.reports.spark import is_local, is_submitted

    progress("reading the logs")
    compacted = {
        directory: found for directory in log_dirs if "://" not in directory and (found := read_compacted(directory))
    }
    local = [Path(directory) for directory in log_dirs if "://" not in directory and directory not in compacted]
    stores = [place for place in log_dirs if is_store(place)] if is_local(master) and not is_submitted() else []
    others = LogFiles.in_directories(
        [place for place in log_dirs if ("://" in place and place not in stores) or place in compacted]
    )
    with tempfile.TemporaryDirectory(prefix="fanout-report-") as scratch:
        fetched = _fetched(stores, Path(scratch) / "fetched", compacted=compacted.values(), progress=progress)
        staged = stage([*local, *fetched], target=Path(scratch) / "staged")
        yield LogFiles.of_files(
            updates=[*without_compacted(staged.updates, compacted.values()), *others.updates],
            events=[*without_compacted(staged.events, compacted.values()), *others.events],
            directories=log_dirs,
            # Shipped, copied or compacted logs are sealed; where a node writes, its open segments are staged too.
            sealed_only=len(local) < len(log_dirs) or not all((place / "open").is_dir() for place in local),
        )


def _fetched(
    stores: list[str], scratch: Path, *, compacted: Collection[Compacted], progress: Callable[[str], None]
) -> list[Path]:
    """Return log directories with the files of these stores that are not compacted yet."""
    from fanout.replog.shipping.fetching import fetch

    def wanted(name: str) -> bool:
        return not any(name in one.seen for one in compacted)

    return [
        fetch(uri, target=scratch / str(number), wanted=wanted, tell=progress)
        for number, uri in enumerate(dict.fromkeys(stores))
    ]


def _progress() -> ReportProgress:
    from fanout.cli.output.report_progress import ReportProgress
    from fanout.cli.output.terminal import error_console

    return ReportProgress(error_console())
