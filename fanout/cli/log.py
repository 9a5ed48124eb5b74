"""`fanout log`: look into a replication log without Spark, also while nodes write it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fanout.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from fanout.replog.inspection import NodeCheck, NodeFigures

__all__ = ["app"]

app = typer.Typer(help="Look into a replication log.", no_args_is_help=True)

LogDirectory: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DIR", help="The log.directory of one or several nodes.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@app.command(epilog="Exit codes: 0 shown, 5 the directory is not a log or cannot be read.")
def stat(directory: LogDirectory, as_json: JsonOption = False) -> None:
    """Show what a log holds of each node."""
    from fanout.cli.terminal import facts, print_json, show
    from fanout.replog.inspection import stat as read_figures

    figures = read_figures(directory)
    if as_json:
        print_json([dataclasses.asdict(one) for one in figures])
        return
    for index, one in enumerate(figures):
        show(*([""] if index else []), facts(*_figures(one)))
    if not figures:
        show(f"{directory} holds no rows")


@app.command(epilog="Exit codes: 0 sound, 1 damaged, 5 the directory is not a log.")
def verify(directory: LogDirectory, as_json: JsonOption = False) -> None:
    """Read every row of a log and check that none is missing.

    A gap that the node itself told of (its queue or disk was full) is shown and is no damage.
    """
    from fanout.cli.terminal import facts, print_json, show
    from fanout.replog.inspection import verify as check_log

    checks = check_log(directory)
    if as_json:
        print_json([dataclasses.asdict(one) | {"sound": one.sound} for one in checks])
    else:
        show(facts(*(line for one in checks for line in _check(one))) if checks else f"{directory} holds no rows")
    raise typer.Exit(ExitCode.OK if all(one.sound for one in checks) else ExitCode.NO)


def _figures(figures: NodeFigures) -> Iterator[tuple[str, str]]:
    from fanout.cli.quantities import as_bytes, as_count, counted

    yield "node", figures.node
    if figures.last_run is not None:
        run = figures.last_run
        ended = "stopped in good order" if run.clean else f"not stopped: process {run.pid} runs, or it crashed"
        yield "last run", f"began {_as_time(run.node_epoch)}, {ended}"
    yield "rows", f"{counted(figures.update_rows, 'update')}, {counted(figures.event_rows, 'event')}"
    if figures.first_us is not None and figures.last_us is not None:
        yield "from", _as_time(figures.first_us)
        yield "until", _as_time(figures.last_us)
    yield "runs", as_count(figures.node_epochs)
    yield "sealed", f"{counted(figures.sealed_files, 'file')}, {as_bytes(figures.sealed_bytes)}"
    torn = f", {as_bytes(figures.torn_bytes)} torn" if figures.torn_bytes else ""
    yield "open", f"{counted(figures.open_segments, 'segment')}, {as_bytes(figures.open_bytes)}{torn}"
    yield "missing", counted(figures.missing_positions, "row")


def _check(check: NodeCheck) -> Iterator[tuple[str, RenderableType]]:
    from rich.text import Text

    from fanout.cli.quantities import counted

    verdict = Text("sound", "green") if check.sound else Text("damaged", "red")
    read = f", {counted(check.rows, 'row')} in {counted(check.files, 'file')}"
    yield check.node, Text.assemble(verdict, read)
    for gap in check.gaps:
        told = "the node told of it" if gap.explained else "nothing tells why"
        if gap.removed and not gap.explained:
            told = "the node removed the files"
        which = f"row {gap.first:,}" if gap.first == gap.last else f"rows {gap.first:,} to {gap.last:,}"
        yield "", f"missing: {which} of epoch {gap.node_epoch}; {told}"
    for problem in check.problems:
        yield "", f"{problem.path}: {problem.text}"


def _as_time(time_us: int) -> str:
    return (_UNIX_EPOCH + timedelta(microseconds=time_us)).isoformat(sep=" ", timespec="milliseconds")
