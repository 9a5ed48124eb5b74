"""Tables declared by their columns, drawn by a terminal, a page and Markdown alike; and how figures become cells.

A column that has nothing but zeros, or nothing at all, and that readers do not expect is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Literal, TypeVar

from fanout.reports.render.wording import (
    CAUSES,
    NBSP,
    NOTHING,
    count,
    duration,
    percentage,
    printable,
    seconds,
    timestamp,
)
from fanout.reports.values.document import TargetReport
from fanout.reports.values.figures import AtLink, AtSelector, Listed
from fanout.reports.values.summary import MissingCause

__all__ = [
    "LINK",
    "PLACE",
    "TARGET",
    "Cell",
    "Column",
    "Head",
    "Table",
    "Tone",
    "accuracy_cell",
    "bounds_cell",
    "build",
    "build_list",
    "cause_cell",
    "count_cell",
    "delay",
    "length",
    "moment",
    "number",
    "of_part",
    "selector_cell",
    "share_at_most_cell",
    "share_cell",
    "text",
]

Tone = Literal["", "good", "fair", "bad", "dim"]
Entry = TypeVar("Entry")
Part = TypeVar("Part")
Entry_contra = TypeVar("Entry_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of text and how it is to be taken."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column that is drawn."""

    name: str
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Column(Generic[Entry_contra]):
    """A column of a table: its title, and its text for an entry."""

    name: str
    cell: Callable[[Entry_contra], Cell]
    numeric: bool = True
    optional: bool = False
    """True if it is left out when it is 0 or empty everywhere."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, ready to be drawn."""

    key: str
    """A short name without spaces, unique in a report."""
    title: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str
    """Note for the reader on its columns; empty for none."""
    total: int | None = None
    """For a list, how many entries there are; more than it has rows when it was cut."""


def text(name: str, get: Callable[[Entry], str]) -> Column[Entry]:
    """Return a column of text, which may be a stranger's."""
    return Column(name, lambda entry: Cell(printable(get(entry)) or NOTHING), numeric=False)


def number(
    name: str, get: Callable[[Entry], int | None], tone: Tone | None = None, *, optional: bool = False
) -> Column[Entry]:
    """Return a column of counts; with a tone, which may be empty, they are quiet where they are 0."""
    if tone is None:
        return Column(name, lambda entry: Cell(count(get(entry))), optional=optional)
    return Column(name, lambda entry: count_cell(get(entry), tone), optional=optional)


def moment(name: str, get: Callable[[Entry], datetime | None], *, decimals: int = 3) -> Column[Entry]:
    """Return a column of points in time, in UTC."""
    return Column(f"{name} (UTC)", lambda entry: Cell(timestamp(get(entry), decimals=decimals)), numeric=False)


def length(name: str, get: Callable[[Entry], float | None]) -> Column[Entry]:
    """Return a column of lengths of time that are given in seconds."""
    return Column(name, lambda entry: Cell(seconds(get(entry))))


def delay(name: str, get: Callable[[Entry], int | None], tone: Tone = "", *, optional: bool = False) -> Column[Entry]:
    """Return a column of lengths of time that are given in microseconds."""
    return Column(name, lambda entry: Cell(duration(get(entry)), tone), optional=optional)


def accuracy_cell(uncertain_us: int | None) -> Cell:
    """Return the uncertainty of a time in either direction; unknown without the difference of the clocks."""
    return Cell(f"not{NBSP}known", "fair") if uncertain_us is None else Cell(f"±{NBSP}{duration(uncertain_us)}", "dim")


def selector_cell(topic_filter: str, exclude: tuple[str, ...]) -> Cell:
    """Return a selector, with how many filters it excludes: they would take more room than all figures."""
    excluded = f" ({len(exclude)} excluded)" if exclude else ""
    return Cell(printable(topic_filter) + excluded)


LINK: Final[tuple[Column[AtLink], ...]] = (text("node", lambda one: one.node), text("link", lambda one: one.link))
"""Says which link an entry is about."""

PLACE: Final[tuple[Column[AtSelector], ...]] = (*LINK, text("selector", lambda one: one.filter))
"""Says which selector of a link an entry is about."""

TARGET: Final[tuple[Column[TargetReport], ...]] = (
    *LINK,
    Column("selector", lambda one: selector_cell(one.filter, one.exclude), numeric=False),
)
"""As `PLACE`, with how much the selector excludes."""


def of_part(get: Callable[[Entry], Part], columns: Iterable[Column[Part]]) -> tuple[Column[Entry], ...]:
    """Return columns of a part of each entry as columns of the entry."""
    return tuple(_of_part(get, column) for column in columns)


def _of_part(get: Callable[[Entry], Part], column: Column[Part]) -> Column[Entry]:
    return Column(column.name, lambda entry: column.cell(get(entry)), column.numeric, column.optional)


def build(
    key: str,
    title: str,
    columns: Sequence[Column[Entry]],
    entries: Iterable[Entry],
    note: str = "",
    *,
    total: int | None = None,
) -> Table:
    """Return a table without the optional columns that are 0 or empty everywhere."""
    rows = [tuple(column.cell(entry) for column in columns) for entry in entries]
    shown = [
        index
        for index, column in enumerate(columns)
        if not column.optional or any(row[index].text not in ("", "0", NOTHING) for row in rows)
    ]
    return Table(
        key,
        title,
        tuple(Head(columns[index].name, columns[index].numeric) for index in shown),
        tuple(tuple(row[index] for index in shown) for row in rows),
        note,
        total,
    )


def build_list(
    key: str, title: str, columns: Sequence[Column[Entry]], found: Listed[Entry] | None, note: str = ""
) -> Table:
    """Return the table of a list that may have been cut; without a row where there is none."""
    if found is None:
        return build(key, title, columns, (), note)
    return build(key, title, columns, found.listed, note, total=found.total)


def cause_cell(cause: MissingCause) -> Cell:
    """Return why updates are missing."""
    return Cell(CAUSES[cause], "bad" if cause == "live" else "")


def count_cell(number: int | None, tone: Tone = "") -> Cell:
    """Return a count that is quiet when it is 0 and has a tone when it is not."""
    return Cell(count(number), tone if number else "dim")


def bounds_cell(at_least: float | None, at_most: float | None) -> Cell:
    """Return a share from what it is at least and at most: exact where both are equal, green only for all of it."""
    if at_least is not None and at_least == at_most:
        return share_cell(at_least)
    if at_least is not None:
        return Cell(f"≥{NBSP}{percentage(at_least)}", "fair")
    return share_at_most_cell(at_most)


def share_at_most_cell(share: float | None) -> Cell:
    """Return an upper bound; at 100 % it shows no loss, but proves nothing, so it is not green."""
    cell = share_cell(share)
    return cell if share is None else Cell(f"≤{NBSP}{cell.text}", "" if cell.tone == "good" else cell.tone)


def share_cell(share: float | None) -> Cell:
    """Return a share: green only for all of it."""
    if share is None:
        return Cell(percentage(share), "dim")
    return Cell(percentage(share), "good" if share == 100 else "fair" if share >= 99 else "bad")
