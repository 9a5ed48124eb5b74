"""A table as rows of text with tones, before a terminal or a page draws it; and how figures become cells.

A column that has nothing but zeros, or nothing at all, and that readers do not expect is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fanout.reports.render.wording import NBSP, NOTHING, count, percentage, printable
from fanout.reports.values.document import TargetReport

__all__ = [
    "PLACE",
    "Cell",
    "Column",
    "Table",
    "Tone",
    "bounds_cell",
    "build",
    "count_cell",
    "place_cells",
    "share_at_most_cell",
    "share_cell",
]

Tone = Literal["", "good", "fair", "bad", "dim"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of text and how it is to be taken."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column."""

    name: str
    numeric: bool = True
    optional: bool = False
    """Whether it is left out when it is 0 or empty everywhere."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, ready to be drawn."""

    key: str
    """A short name without spaces, unique in a report."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str
    """What a reader should know of its columns; an empty string for nothing."""
    total: int | None = None
    """For a list, how many entries there are; more than it has rows when it was cut."""


PLACE = (Column("node", numeric=False), Column("link", numeric=False), Column("selector", numeric=False))


def build(
    key: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[Cell, ...]],
    note: str = "",
    *,
    total: int | None = None,
) -> Table:
    """Return a table without the optional columns that are 0 or empty everywhere."""
    empty = {
        index
        for index, column in enumerate(columns)
        if column.optional and all(row[index].text in ("0", NOTHING) for row in rows)
    }
    return Table(
        key,
        title,
        tuple(column for index, column in enumerate(columns) if index not in empty),
        tuple(tuple(cell for index, cell in enumerate(row) if index not in empty) for row in rows),
        note,
        total,
    )


def place_cells(target: TargetReport) -> tuple[Cell, Cell, Cell]:
    """Return the cells of `PLACE` for a selector."""
    selector = printable(target.filter)
    if target.exclude:
        # The filters themselves would take more room than all figures; the JSON has them.
        selector += f" ({len(target.exclude)} excluded)"
    return Cell(printable(target.node)), Cell(printable(target.link)), Cell(selector)


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
