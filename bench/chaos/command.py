"""Chaos: faults drawn from a seed while everything is checked from outside; exit code 1 when anything is found.

Owns the command line, the tables and the verdict. It knows no server.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bench.arguments import at_least
from bench.chaos.plan import PRIMARIES
from bench.chaos.run import Outcome, run_seed

__all__ = ["REPEATED", "ChaosReport", "add_arguments", "run"]

REPEATED = False
"""Its command has no `--runs`: seeds have its place."""


class ChaosReport:
    """Result of all seeds."""

    bench: ClassVar[str] = "chaos"

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes

    @property
    def exit_code(self) -> int:
        """1 when anything was found, else 0."""
        return 0 if all(outcome.passed for outcome in self._outcomes) else 1

    def table(self) -> Group:
        """Return for a terminal: the faults, the figures of each seed, and a verdict line per seed."""
        kinds = sorted({kind for outcome in self._outcomes for kind in outcome.faults})
        faults = Table(title="chaos: faults injected")
        faults.add_column("fault")
        for outcome in self._outcomes:
            faults.add_column(f"seed {outcome.seed}", justify="right")
        for kind in kinds:
            faults.add_row(kind, *(str(outcome.faults.get(kind, 0)) for outcome in self._outcomes))
        figures = Table(title="chaos: what was seen")
        figures.add_column("figure")
        for outcome in self._outcomes:
            figures.add_column(f"seed {outcome.seed}", justify="right")
        for name in self._outcomes[0].figures:
            figures.add_row(name, *(f"{outcome.figures.get(name, '-')}" for outcome in self._outcomes))
        return Group(faults, figures, *(Text(_verdict(outcome)) for outcome in self._outcomes))

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "bench": self.bench,
            "passed": self.exit_code == 0,
            "seeds": [{**asdict(outcome), "passed": outcome.passed} for outcome in self._outcomes],
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults are injected, for each seed (1)")
    parser.add_argument("--turns", type=at_least(1), help="how often, however long that takes, in place of the minutes")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="how many seeds, one after another (1)")
    parser.add_argument(
        "--primary", choices=PRIMARIES, help="what the primary is in every run; the seed decides (default)"
    )
    parser.add_argument("--tls", action="store_true", help="let every link speak TLS")
    parser.add_argument(
        "--skip-reports", action="store_true", help="leave out the reports on the logs, which need Java"
    )
    parser.add_argument("--keep", type=Path, help="keep the files of all servers below this directory")


def run(arguments: argparse.Namespace) -> ChaosReport:
    """Run the seeds; a seed that finds something says at once what, and the time line that led to it."""
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    outcomes = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        outcome = asyncio.run(
            run_seed(
                seed,
                seconds=arguments.minutes * 60,
                turns=arguments.turns,
                reports=not arguments.skip_reports,
                keep=arguments.keep,
                primary_role=arguments.primary,
                tls=arguments.tls,
            )
        )
        outcomes.append(outcome)
        console.print(_verdict(outcome))
        if not outcome.passed:
            primary = f" --primary {arguments.primary}" if arguments.primary else ""
            primary += " --tls" if arguments.tls else ""
            length = f"--turns {arguments.turns}" if arguments.turns else f"--minutes {arguments.minutes:g}"
            console.print(f"to repeat: python -m bench chaos {length} --seed {seed}{primary}")
            console.print(str(outcome.setting))
            console.print("\n".join(outcome.time_line))
    return ChaosReport(outcomes)


def _verdict(outcome: Outcome) -> str:
    faults = f"{sum(outcome.faults.values())} faults"
    if outcome.passed:
        return f"seed {outcome.seed}: PASSED, {faults}, nothing found"
    return f"seed {outcome.seed}: FAILED, {faults}, {outcome.findings_total} violations"
