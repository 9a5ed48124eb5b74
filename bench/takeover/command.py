"""Durable sessions of a member that is killed for good go on at the others; exit code 1 when a promise is broken.

Owns the command line, the table and the verdict. It knows no server.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any, ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bench.arguments import above_0, at_least, choices
from bench.report import Ask, alternate, medians
from bench.takeover.crowd import RECEIVERS
from bench.takeover.run import Plan, Run, run_once

__all__ = ["TakeoverReport", "add_arguments", "run"]

_COPIES = {"on": True, "off": False}


class TakeoverReport:
    """Result of all runs."""

    bench: ClassVar[str] = "takeover"

    def __init__(self, runs: Mapping[str, Sequence[Run]], *, sessions: int) -> None:
        """Take the runs.

        Args:
            runs: By whether sessions have copies, `on` or `off`.
            sessions: Of each run.
        """
        self._runs = runs
        self.asked = tuple(
            ask
            for name, some in runs.items()
            for each in some
            for ask in (
                Ask(f"copies {name}: lost", each.lost, at_most=0),
                Ask(f"copies {name}: doubled at QoS 2", each.doubled, at_most=0),
                Ask(f"copies {name}: clients with Session Present 1", each.returned_present, at_least=sessions),
            )
        )
        """Promises of each run."""

    @property
    def exit_code(self) -> int:
        """1 when a promise was broken, else 0."""
        return 0 if all(ask.met for ask in self.asked) else 1

    def table(self) -> Group:
        """Return for a terminal: medians of all figures, and each promise."""
        table = Table(title=f"takeover: medians of {max(map(len, self._runs.values()))} alternating runs")
        table.add_column("figure")
        for name in self._runs:
            table.add_column(f"copies {name}", justify="right")
        middles = [medians(list(some)) for some in self._runs.values()]
        for field in fields(Run):
            cells = [_text(getattr(middle, field.name)) for middle in middles]
            table.add_row(field.name.replace("_", " "), *cells)
        return Group(table, *(Text(str(ask)) for ask in self.asked))

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "bench": self.bench,
            "passed": self.exit_code == 0,
            "results": [
                {"copies": name, **asdict(medians(list(some))), "runs": [asdict(each) for each in some]}
                for name, some in self._runs.items()
            ],
            "asked": [{**asdict(ask), "met": ask.met} for ask in self.asked],
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--sessions", type=at_least(1), default=10_000, help="durable sessions, half of them away (10000)"
    )
    parser.add_argument(
        "--rate", type=above_0, default=500.0, help=f"updates/s, each for {RECEIVERS} of the sessions (500)"
    )
    parser.add_argument("--seconds", type=above_0, default=20.0, help="how long; the kill is in the middle (20)")
    parser.add_argument("--members", type=at_least(2), default=3, help="members of the pool (3)")
    parser.add_argument("--at-once", type=at_least(1), default=100, help="clients that connect at a time (100)")
    parser.add_argument(
        "--copies",
        type=choices(*_COPIES),
        default="on,off",
        help="on and off, by turns; without copies nobody is killed (on,off)",
    )


def run(arguments: argparse.Namespace) -> TakeoverReport:
    """Run with copies and without, by turns."""
    sides = arguments.copies
    sessions = max(RECEIVERS, arguments.sessions // RECEIVERS * RECEIVERS)
    plans = {
        name: Plan(
            sessions=sessions,
            rate=arguments.rate,
            seconds=arguments.seconds,
            members=arguments.members,
            at_once=min(arguments.at_once, sessions),
            has_copies=_COPIES[name],
        )
        for name in sides
    }
    runs = alternate(arguments.runs, {name: partial(run_once, plan) for name, plan in plans.items()})
    return TakeoverReport(runs, sessions=sessions)


def _text(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 or figure == int(figure) else f"{figure:.3g}"
