"""A report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from fanout.reports.render import answers
from fanout.reports.render.table import Cell, Head, Table, Tone
from fanout.reports.render.tables import tables_of
from fanout.reports.render.wording import blind_spot, counted, facts, printable, threshold
from fanout.reports.values.document import Report, Verdict
from fanout.reports.values.summary import Summary

__all__ = ["print_report"]

_STYLES: dict[Tone, str] = {"": "", "good": "green", "fair": "yellow", "bad": "bold red", "dim": "dim"}
_NOTICES_MAX = 3
"""Notices above the answers; all of them stand above the tables."""
_LISTED_MAX = 12
"""Rows of a list on a terminal."""
_ROWS_MAX = 60
"""Rows of a table with the figures of selectors."""
_NARROW = 120
"""Below this width the node and its link share a column."""
_NAMES = frozenset({"node", "link", "node/link", "selector"})
"""Columns that say what a row is about."""
_GUTTER = 2
_TEXT_WIDTH_MIN = 13
"""Least width of a column of names; they fold inside it. Numbers are never narrowed."""


def print_report(report: Report, *, console: Console, verbose: bool = False) -> None:
    """Print a report: its answers and what is missing by topic; or all that it is relative to, and all its tables.

    Args:
        report: The report.
        console: Console to print to; its width decides how much is folded.
        verbose: True to print all tables too. A report without answers has nothing else.
    """
    summary = report.summary
    if summary is not None:
        _print_answers(report, summary, console=console)
    if summary is None or verbose:
        if summary is not None:
            console.print()
        console.print(_head(report))
        _print_notices(report.notices, console=console)
        for table in tables_of(report):
            console.print()
            console.print(_table(table, width=console.width))
    if report.verdict is not None:
        console.print()
        console.print(_verdict(report.verdict))
    if summary is not None and not verbose:
        console.print()
        console.print(Text("--verbose prints all tables, --html FILE draws them.", style="dim italic"))


def _print_answers(report: Report, summary: Summary, *, console: Console) -> None:
    head, sentence = answers.headline(report, summary)
    console.print(Text.assemble((head.text, f"bold {_STYLES[head.tone]}"), f"  {sentence}"))
    console.print(Text(answers.relative_to(report), style="dim"))
    _print_notices(report.notices[:_NOTICES_MAX], console=console)
    if (more := len(report.notices) - _NOTICES_MAX) > 0:
        console.print(Padding(Text(f"! {counted(more, 'more notice')}: see --verbose", style="yellow"), (0, 0, 0, 2)))
    for table in answers.answer_tables(report, summary):
        console.print()
        console.print(_table(table, width=console.width))
    trend = answers.trend_line(summary)
    console.print()
    console.print(Text(trend.text, style=_STYLES[trend.tone]))
    if steps := answers.next_steps(report, summary):
        console.print()
        console.print(Text("What to do", style="bold"))
        for step in steps:
            console.print(Padding(Text(step), (0, 0, 0, 2)))
    for topics in answers.topic_tables(report):
        console.print()
        console.print(_table(topics, width=console.width))


def _print_notices(notices: Sequence[str], *, console: Console) -> None:
    for notice in notices:
        console.print(Padding(Text(f"! {printable(notice)}", style="yellow"), (0, 0, 0, 2)))


def _head(report: Report) -> RenderableType:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in facts(report):
        grid.add_row(name, Text(text, style="yellow" if name == "lost" else ""))
    first = Text(f"fanout report: {report.report}", style="bold")
    if limit := blind_spot(report):
        first.append(f" ({limit})", style="bold yellow")
    return Group(first, Padding(grid, (0, 0, 0, 2)))


def _verdict(verdict: Verdict) -> Text:
    return Text(
        f"{'passed' if verdict.passed else 'FAILED'}: {threshold(verdict)}",
        style="bold green" if verdict.passed else "bold red",
    )


def _table(table: Table, *, width: int) -> RenderableType:
    rows = _worst(table.rows) if table.total is None else table.rows[:_LISTED_MAX]
    columns, rows = _merged(table.columns, rows) if width < _NARROW else (table.columns, rows)
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    for indices in _parts(columns, rows, width=width):
        drawn = RichTable(box=None, pad_edge=False, padding=(0, _GUTTER, 0, 0), header_style="dim")
        for index in indices:
            column, cells = columns[index], [row[index] for row in rows]
            drawn.add_column(
                column.name,
                justify="right" if column.numeric else "left",
                overflow="fold",
                # Left to itself, rich narrows the widest columns first, whatever is in them.
                width=_width_min(column, cells) if column.numeric else None,
                min_width=_width_min(column, cells),
            )
        for row in rows:
            drawn.add_row(*(Text(row[index].text, style=_STYLES[row[index].tone]) for index in indices))
        parts.append(drawn)
    note = table.note
    if table.total is not None and len(rows) < table.total:
        note = f"{len(rows)} of {table.total:,}. {note}".strip()
    elif len(rows) < len(table.rows):
        note = f"The worst {len(rows)} of {len(table.rows):,}; --json and --html have all. {note}".strip()
    return Group(*parts, Text(note, style="dim italic")) if note else Group(*parts)


def _worst(rows: tuple[tuple[Cell, ...], ...]) -> tuple[tuple[Cell, ...], ...]:
    """Return as many rows as are shown, in their order: those with most that is bad, then most that is fair."""
    if len(rows) <= _ROWS_MAX:
        return rows

    def rank(index: int) -> tuple[int, int]:
        tones = [cell.tone for cell in rows[index]]
        return -tones.count("bad"), -tones.count("fair")

    return tuple(rows[index] for index in sorted(sorted(range(len(rows)), key=rank)[:_ROWS_MAX]))


def _parts(columns: Sequence[Head], rows: Sequence[tuple[Cell, ...]], *, width: int) -> list[list[int]]:
    """Return which columns stand beside each other: all, or as many as fit, the rest below the same names."""
    widths = [_width_min(column, [row[index] for row in rows]) + _GUTTER for index, column in enumerate(columns)]
    names = [index for index, column in enumerate(columns) if column.name in _NAMES]
    parts = [list(names)]
    for index in range(len(columns)):
        if index in names:
            continue
        if len(parts[-1]) > len(names) and sum(widths[i] for i in parts[-1]) + widths[index] > width:
            parts.append(list(names))
        parts[-1].append(index)
    return parts


def _width_min(column: Head, cells: Sequence[Cell]) -> int:
    widest = max(len(cell.text) for cell in cells)
    longest_word = max(len(word) for word in column.name.split())
    return max(widest if column.numeric else min(widest, _TEXT_WIDTH_MIN), longest_word)


def _merged(
    columns: tuple[Head, ...], rows: tuple[tuple[Cell, ...], ...]
) -> tuple[tuple[Head, ...], tuple[tuple[Cell, ...], ...]]:
    """Return a table with its node and link in one column."""
    if [column.name for column in columns[:2]] != ["node", "link"]:
        return columns, rows
    return (
        (Head("node/link", numeric=False), *columns[2:]),
        tuple((Cell(f"{row[0].text}/{row[1].text}"), *row[2:]) for row in rows),
    )
