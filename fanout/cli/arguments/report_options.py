"""Common options of reports: input, question, output."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from fanout.cli.arguments.times import parse_time

__all__ = [
    "SETTLE_S",
    "AcceptUnion",
    "BehindMax",
    "Depth",
    "FailUnder",
    "HtmlFile",
    "JsonFile",
    "LogDirectories",
    "MarkdownFile",
    "Master",
    "MetricsFile",
    "ParquetDirectory",
    "PrefixDepth",
    "Reference",
    "Settle",
    "Since",
    "Tables",
    "Trend",
    "Until",
    "Verbose",
    "local_file",
    "local_path",
    "place_of",
]

SETTLE_S: Final = 30.0


def local_path(text: str) -> Path:
    """Return a path that this process writes to; refuse a URI, which would become a directory with a strange name."""
    if "://" in text:
        raise typer.BadParameter(f"{text} is a URI; give a local path")
    return Path(text)


def local_file(text: str) -> Path:
    """Return a path that this process reads or writes to; refuse a URI, and what stands for standard output."""
    if text == "-":
        raise typer.BadParameter("- is standard output; give a FILE, such as ./-")
    return local_path(text)


def place_of(text: str) -> Path | str:
    """Return a path that this process writes to, or a URI as it is, which Spark writes to."""
    return text if "://" in text else Path(text)


def _own_place(text: str | None) -> str | None:
    return text if text is None or "://" in text else str(local_file(text))


LogDirectories: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG_DIR", help="A node's log.directory, a directory above several, or the URI that nodes ship to."
    ),
]
JsonFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|URI",
        help="Write the report as JSON; - prints it in place of the tables.",
    ),
]
HtmlFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE|URI",
        help="Write the report as one self-contained page; - prints it in place of the tables.",
    ),
]
MarkdownFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--markdown",
        metavar="FILE|URI",
        help="Write the answers as Markdown, for a ticket; - prints them in place of the tables.",
    ),
]
MetricsFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="FILE|URI",
        help="Write the answers as metrics of Prometheus, for alerts; - prints them in place of the tables.",
    ),
]
Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", help="Print all tables, not only the answers.")]
Trend: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--trend",
        callback=_own_place,
        metavar="FILE|URI",
        help="Compare with the reports of the last 30 days in this file, and append this one as a line of JSON.",
    ),
]
ParquetDirectory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--parquet", metavar="DIR", help="Write the underlying tables as Parquet below this directory or URI."
    ),
]
Tables: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tables",
        metavar="URI|NAME",
        help="Append the results to tables: as Parquet below a path or URI, or in a namespace of a catalog of Spark.",
    ),
]
Reference: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NODE",
        help="The node whose log lists the updates to replicate. Default: the only primary, "
        "else the only secondary that stamps for others, else the only tap, else all secondaries together.",
    ),
]
Settle: TypeAlias = Annotated[
    float,
    typer.Option(
        "--settle", min=0, metavar="SECONDS", help="Updates younger than this at the end of the log are pending."
    ),
]
Depth: TypeAlias = Annotated[
    int,
    typer.Option(min=0, metavar="LEVELS", help="Also give figures by topic prefixes of this many levels; 0 for none."),
]
PrefixDepth: TypeAlias = Annotated[
    int, typer.Option(min=1, metavar="LEVELS", help="How many topic levels make a prefix.")
]
Since: TypeAlias = Annotated[
    datetime | None,
    typer.Option(
        parser=parse_time,
        metavar="TIME",
        help="Count only from this time on: 2026-02-02T14:00 (UTC; append +01:00 for another zone), yesterday, "
        "today, or an age such as 2h or 30m. Earlier updates are in no figure.",
    ),
]
Until: TypeAlias = Annotated[
    datetime | None,
    typer.Option(
        parser=parse_time,
        metavar="TIME",
        help=(
            "Count only updates published before this time, whenever they arrived. Final values are left out: they"
            " belong to the end of the logs."
        ),
    ),
]
BehindMax: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--behind-max",
        min=0,
        metavar="SECONDS",
        help=(
            "How long before the reference's log another one may end without a stop: later updates are pending,"
            " beyond that unknown. Default: 120 if only sealed files are read, else as --settle."
        ),
    ),
]
FailUnder: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=100,
        metavar="PERCENT",
        help="Exit 1 when any selector has a lower share, and when there is only the union of the secondaries to "
        "compare with.",
    ),
]
AcceptUnion: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-union",
        help="With --fail-under: judge by the union of the secondaries too. Updates that none of them got stay unseen.",
    ),
]
Master: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The Spark master, or sail. Without it Sail, which needs no Java, where it is installed and the logs are "
        "small enough; else local[*].",
    ),
]
