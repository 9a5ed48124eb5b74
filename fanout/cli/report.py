"""`fanout report`: prove from replication logs what was applied, late or missing.

The commands stage the logs (what is not sealed yet becomes Parquet in a temporary directory) and run the
Spark job. pyspark is imported only then.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeAlias

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.reports.entry import ReportResult
    from fanout.reports.log_files import LogFiles

__all__ = ["app"]

app = typer.Typer(help="Make a report from replication logs, with Spark.", no_args_is_help=True)

_SETTLE_S: Final = 30.0
_LOCAL_MASTER: Final = "local[*]"
_STANDARD_OUTPUT: Final = Path("-")

LogDirectories: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="LOG_DIR", help="A node's log.directory, or a URI of a copy that Spark can read."),
]
JsonFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the report as JSON; - writes it to standard output, alone."),
]
HtmlFile: TypeAlias = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one self-contained page.")
]
Master: TypeAlias = Annotated[str, typer.Option(metavar="URL", help="The Spark master.")]


class _Run(Protocol):
    """A report with everything decided but its input and where it goes."""

    def __call__(self, logs: LogFiles, *, json_path: Path | None, progress: Callable[[str], None]) -> ReportResult: ...


@app.command(epilog="Exit codes: 0 done, 1 below --fail-under, 4 pyspark is not installed, 5 no report can be made.")
def completeness(
    log_dirs: LogDirectories,
    *,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="The node whose log says what there was to replicate. Default: the only primary, "
            "else the only tap, else all secondaries together.",
        ),
    ] = None,
    settle: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Updates younger than this at the end of the log are pending."),
    ] = _SETTLE_S,
    depth: Annotated[
        int,
        typer.Option(min=0, metavar="LEVELS", help="Also list shares by topic prefixes of so many levels."),
    ] = 0,
    fail_under: Annotated[
        float | None,
        typer.Option(min=0, max=100, metavar="PERCENT", help="Exit 1 when any selector has a lower share."),
    ] = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    master: Master = _LOCAL_MASTER,
) -> None:
    """Show what each secondary applied of what there was.

    For each selector: expected, applied, missing and duplicated updates, final values, propagation times and
    the time to ready; what is proved exactly is told from what is only a bound.
    """
    _require_spark()
    from fanout.reports.entry import run_completeness

    run = partial(
        run_completeness,
        reference=reference,
        settle_s=settle,
        depth=depth,
        master=master,
        fail_under=fail_under,
        html_path=html_file,
    )
    _make(run, log_dirs=log_dirs, json_file=json_file)


@app.command(epilog="Exit codes: 0 done, 4 pyspark is not installed, 5 no report can be made.")
def lag(
    log_dirs: LogDirectories,
    *,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    master: Master = _LOCAL_MASTER,
) -> None:
    """Show how long updates took to arrive.

    Propagation times from the stamps of a `fanout primary`, heartbeats, and the time from connect to ready;
    no reference is needed.
    """
    _require_spark()
    from fanout.reports.entry import run_lag

    _make(partial(run_lag, master=master, html_path=html_file), log_dirs=log_dirs, json_file=json_file)


def _require_spark() -> None:
    # Before anything is staged: on big logs that takes a while.
    from fanout.reports.spark import require_pyspark

    require_pyspark()


def _make(run: _Run, *, log_dirs: list[str], json_file: Path | None) -> None:
    """Run a report and print it, or its JSON alone; end with its exit code."""
    only_json = json_file == _STANDARD_OUTPUT
    with _progress() as progress, _staged(log_dirs, progress=progress) as files:
        result = run(files, json_path=None if only_json else json_file, progress=progress)
    if only_json:
        sys.stdout.write(result.report.to_json())
    else:
        from fanout.cli.terminal import output
        from fanout.reports.render.terminal import print_report

        with output() as console:
            print_report(result.report, console=console)
    raise typer.Exit(result.exit_code)


@contextmanager
def _staged(log_dirs: list[str], *, progress: Callable[[str], None]) -> Iterator[LogFiles]:
    """Give the files of all logs; of a URI those that are sealed, since Spark reads it, not this process."""
    import tempfile

    from fanout.replog.reading import stage
    from fanout.reports.log_files import LogFiles

    progress("reading the logs")
    local = [Path(directory) for directory in log_dirs if "://" not in directory]
    remote = LogFiles.in_directories([directory for directory in log_dirs if "://" in directory])
    with tempfile.TemporaryDirectory(prefix="fanout-report-") as target:
        staged = stage(local, target=Path(target))
        yield LogFiles.of_files(
            updates=[*staged.updates, *remote.updates],
            events=[*staged.events, *remote.events],
            directories=log_dirs,
        )


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the stage that runs, on standard error when it is a terminal."""
    from fanout.cli.terminal import error_console

    console = error_console()
    if not console.is_terminal:
        yield lambda stage: None
        return
    with console.status("") as status:
        yield status.update
