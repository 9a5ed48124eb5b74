"""Result of a benchmark: a table of results and targets; also as JSON.

Owns the layout and the medians. It knows no server and no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields
from math import ceil
from statistics import median
from typing import Any, ClassVar, Protocol, TypeVar

from rich.table import Table

__all__ = ["Ask", "Report", "Row", "alternate", "medians", "percentile", "ratio", "rows"]

R = TypeVar("R")
Figures = Mapping[str, float | int | str]
Asks = tuple["Ask", ...]


class Measured(Protocol):
    """Result of one run: a dataclass of numbers."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    def figures(self) -> Figures:
        """Return what a table shows of it, by column."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One figure with its target."""

    what: str
    """The figure, with its unit where it has one."""
    reached: float | None
    """The measured value; None if it could not be measured."""
    at_least: float | None = None
    """The lowest figure that is good enough."""
    at_most: float | None = None
    """The highest figure that is good enough."""

    @property
    def met(self) -> bool:
        """True if the target was reached."""
        if self.reached is None:
            return False
        return (self.at_least is None or self.reached >= self.at_least) and (
            self.at_most is None or self.reached <= self.at_most
        )

    def __str__(self) -> str:
        limit = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        reached = "unknown" if self.reached is None else f"{self.reached:.3g}"
        return f"{self.what} {limit}: {reached} ({'met' if self.met else 'MISSED'})"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what one server reached in one case."""

    figures: Figures
    """By column, in order; the columns of all rows of a report are the same."""
    asked: tuple[Ask, ...] = ()
    """Verdict of the targets on this line."""
    runs: Sequence[Mapping[str, object]] = ()
    """Result of each single run; in JSON only."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark."""

    bench: str
    """Its name."""
    title: str
    """Measured quantity, and method."""
    rows: tuple[Row, ...]
    """In the order in which they were measured; at least one."""

    def table(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=f"{self.bench}: {self.title}")
        for column, figure in self.rows[0].figures.items():
            table.add_column(column, justify="left" if isinstance(figure, str) else "right")
        table.add_column("asked", no_wrap=True)
        for row in self.rows:
            cells = [_text(figure) for figure in row.figures.values()]
            table.add_row(*cells, "\n".join(str(ask) for ask in row.asked) or "-")
        return table

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "bench": self.bench,
            "title": self.title,
            "results": [
                {
                    **row.figures,
                    "asked": [{**asdict(ask), "met": ask.met} for ask in row.asked],
                    "runs": list(row.runs),
                }
                for row in self.rows
            ],
        }


def _text(figure: float | int | str) -> str:
    if isinstance(figure, str):
        return figure
    if isinstance(figure, int) or abs(figure) >= 1000:
        return f"{figure:,.0f}"
    return f"{figure:.3g}"


def alternate(runs: int, sides: Mapping[str, Callable[[], R]]) -> dict[str, list[R]]:
    """Run every side once, in turn, `runs` times."""
    results: dict[str, list[R]] = {side: [] for side in sides}
    for _ in range(runs):
        for side, run in sides.items():
            results[side].append(run())
    return results


def medians(runs: list[R]) -> R:
    """Return a run (a dataclass of numbers) with the median of each field."""
    kind = type(runs[0])
    return kind(*(median(getattr(run, field.name) for run in runs) for field in fields(kind)))  # type: ignore[arg-type]


def rows(
    case: Figures, runs: Mapping[str, Sequence[Measured]], *, labels: Mapping[str, str], asked: Mapping[str, Asks]
) -> list[Row]:
    """Return a row for each server: its medians in one case.

    Args:
        case: Columns in front that are the same for all.
        runs: Result of `alternate`.
        labels: Name of each server in the table.
        asked: Verdict of the targets on a server, for those that have any.
    """
    return [
        Row(
            {**case, "server": labels[name], **medians(list(results)).figures()},
            asked.get(name, ()),
            [asdict(one) for one in results],
        )
        for name, results in runs.items()
    ]


def percentile(values: list[float], share: float) -> float:
    """Return the smallest of `values` that at least `share` (0 to 1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share) - 1)]


def ratio(ours: float, peer: float) -> float | None:
    """Return `ours` divided by `peer`; None when that says nothing, since one is not above zero."""
    return ours / peer if ours > 0 and peer > 0 else None
