"""`fanout log`: show, measure and verify a replication log without Spark, also while nodes write it."""

from __future__ import annotations

import dataclasses
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fanout.cli.output.exit_codes import ExitCode
from fanout.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from fanout.replog.read.inspection import NodeCheck, NodeFigures

__all__ = ["app"]

app = typer.Typer(help="Look into a replication log.", no_args_is_help=True)

LogDirectory: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DIR", help="A log.directory, or a directory above several.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FLAGS = {1: "dup", 2: "duplicate", 4: "stale", 8: "conflated"}
_NOTHING = "-"
_LAST_ROWS = 20
_LAST_ROWS_SINCE = 1000
_TEXT_LENGTH_MAX = 400
"""Characters of a topic or a detail that are shown; the JSON has all."""


@app.command(name="show", epilog="Exit codes: 0 shown, 2 the filter is no Topic Filter, 5 the log cannot be read.")
def show_rows(
    directory: LogDirectory,
    *,
    last: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROWS", help="Number of rows to show: 20; with --since 1000.", show_default=False),
    ] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Show the rows of this node only.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="FILTER", help="Show updates that this filter matches.")] = None,
    events: Annotated[bool, typer.Option("--events", help="Show events, not updates.")] = False,
    kind: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Show these events only, such as state,audit,alarm.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Show rows from this time on: ISO 8601 (UTC), or an age like 10m."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each row as one line of JSON.")] = False,
) -> None:
    """Show the newest rows of a log, oldest first.

    Names of topics are those at the primary. Payloads are not in a log.
    """
    from fanout.cli.arguments.times import parse_time
    from fanout.cli.output.terminal import columns, json_line, show
    from fanout.errors import SelectorInvalid
    from fanout.mqtt.topics import matches
    from fanout.replog.read.showing import newest_rows
    from fanout.selection import check_filter

    kinds = None if kind is None else _kinds_of(kind)
    events = events or kinds is not None
    begin = None if since is None else parse_time(since)
    if topic is not None and events:
        raise typer.BadParameter("events have no topic", param_hint="--topic")
    try:
        check_filter("#" if topic is None else topic)
    except SelectorInvalid as error:
        raise typer.BadParameter(str(error).removesuffix("."), param_hint="--topic") from error
    rows = newest_rows(
        directory,
        "events" if events else "updates",
        count=last if last is not None else _LAST_ROWS if begin is None else _LAST_ROWS_SINCE,
        node=node,
        wanted_topic=None if topic is None else lambda name: matches(topic.encode(), name.encode()),
        kinds=kinds,
        since=begin,
    )
    if as_json:
        for row in rows:
            sys.stdout.write(f"{json_line(row)}\n")
        return
    if not rows:
        show(f"{directory} holds no such rows")
        return
    numbers = ("bytes", "topics", "lag us", "pos")
    show_cells = _event_cells if events else _update_cells
    table = columns(*show_cells(rows[0]), right=numbers)
    for row in rows:
        table.add_row(*show_cells(row).values())
    show(table)


@app.command(epilog="Exit codes: 0 shown, 5 there is no log in the directory, or it cannot be read.")
def stat(directory: LogDirectory, as_json: JsonOption = False) -> None:
    """Show what a log holds of each node."""
    from fanout.cli.output.terminal import facts, print_json, show
    from fanout.replog.files.log_directories import find_logs
    from fanout.replog.read.inspection import stat as read_figures

    logs = find_logs(directory)
    figures = [(log, one) for log in logs for one in read_figures(log)]
    if as_json:
        print_json([{"log": str(log)} | dataclasses.asdict(one) for log, one in figures])
        return
    for index, (log, one) in enumerate(figures):
        place = [("log", str(log))] if len(logs) > 1 else []
        show(*([""] if index else []), facts(*place, *_figures(one)))
    if not figures:
        show(f"{directory} holds no rows")


@app.command(epilog="Exit codes: 0 sound, 1 damaged, 5 there is no log in the directory.")
def verify(directory: LogDirectory, as_json: JsonOption = False) -> None:
    """Read every row of a log and check that none is missing.

    A gap that the node itself told of (its queue or disk was full) is shown and is no damage; neither is the torn end
    that a kill leaves.
    """
    from fanout.cli.output.terminal import facts, print_json, show
    from fanout.replog.files.log_directories import find_logs
    from fanout.replog.read.inspection import verify as check_log

    logs = find_logs(directory)
    checks = [(log, one) for log in logs for one in check_log(log)]
    if as_json:
        print_json([{"log": str(log)} | _as_document(one) for log, one in checks])
    else:
        rows = [line for log, one in checks for line in _check(one, log=log if len(logs) > 1 else None)]
        show(facts(*rows) if checks else f"{directory} holds no rows")
    raise typer.Exit(ExitCode.OK if all(one.sound for _, one in checks) else ExitCode.NO)


def _kinds_of(text: str) -> frozenset[str]:
    """Return the names of events in the value of `--kind`.

    Raises:
        typer.BadParameter: There is no such event.
    """
    from fanout.replog.files.schema import event_names

    kinds = frozenset(name.strip() for name in text.split(","))
    if unknown := sorted(kinds - set(event_names)):
        raise typer.BadParameter(
            f"{unknown[0]!r} is no event; events are {', '.join(event_names)}", param_hint="--kind"
        )
    return kinds


def _figures(figures: NodeFigures) -> Iterator[tuple[str, str]]:
    from fanout.cli.output.quantities import as_bytes, as_count, counted

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
    torn += f", {as_bytes(figures.damaged_bytes)} damaged" if figures.damaged_bytes else ""
    yield "open", f"{counted(figures.open_segments, 'segment')}, {as_bytes(figures.open_bytes)}{torn}"
    yield "missing", counted(figures.missing_positions, "row")


def _as_document(check: NodeCheck) -> dict[str, Any]:
    problems = [{"path": str(one.path), "text": one.text} for one in check.problems]
    return dataclasses.asdict(check) | {"problems": problems, "sound": check.sound}


def _check(check: NodeCheck, *, log: Path | None) -> Iterator[tuple[str, RenderableType]]:
    from fanout.cli.output.quantities import counted
    from fanout.cli.output.terminal import styled

    verdict = ("sound", "green") if check.sound else ("damaged", "red")
    read = f", {counted(check.rows, 'row')} in {counted(check.files, 'file')}" + (f" of {log}" if log else "")
    yield check.node, styled(verdict, read)
    for gap in check.gaps:
        told = "the node told of it" if gap.explained else "nothing tells why"
        if gap.removed and not gap.explained:
            told = "the node removed the files"
        which = f"row {gap.first:,}" if gap.first == gap.last else f"rows {gap.first:,} to {gap.last:,}"
        yield "", f"missing: {which} of epoch {gap.node_epoch}; {told}"
    for problem in check.problems:
        yield "", f"{problem.path}: {problem.text}"


def _update_cells(row: dict[str, Any]) -> dict[str, str]:
    from fanout.replica.update import ChangeKind, Phase
    from fanout.replog.read.showing import name_of_code

    flags = [name for bit, name in _FLAGS.items() if row["flags"] & bit]
    stamp = f"{row['stamp_primary']}:{row['stamp_epoch']}:{row['sequence']}" if row["stamp_primary"] else _NOTHING
    return {
        "time": _short_time(row["applied"]),
        "node": row["node"],
        "link": row["link"] or _NOTHING,
        "pos": str(row["log_pos"]),
        "topic": printable(row["topic"], length_max=_TEXT_LENGTH_MAX),
        "bytes": str(row["payload_bytes"]),
        "qos": f"{row['qos']}{' retained' if row['retain'] else ''}",
        "change": name_of_code(ChangeKind, row["change"]),
        "phase": name_of_code(Phase, row["phase"]),
        "flags": " ".join(flags) or _NOTHING,
        "stamp": stamp,
    }


def _event_cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "time": _short_time(row["at"]),
        "node": row["node"],
        "link": row["link"] or _NOTHING,
        "pos": str(row["log_pos"]),
        "event": row["event"],
        "selector": row["selector"] or _NOTHING,
        "state": row["state"] or _NOTHING,
        "evidence": row["evidence"] or _NOTHING,
        "topics": str(row["topics"]),
        "lag us": _NOTHING if row["lag_us"] is None else str(row["lag_us"]),
        "detail": printable(row["detail"] or _NOTHING, length_max=_TEXT_LENGTH_MAX),
    }


def _short_time(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="milliseconds")


def _as_time(time_us: int) -> str:
    return (_UNIX_EPOCH + timedelta(microseconds=time_us)).isoformat(sep=" ", timespec="milliseconds")
