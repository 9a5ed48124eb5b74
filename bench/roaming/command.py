"""Roaming: clients of a pool behind HAProxy are cut and come back elsewhere; exit code 1 when a message is wrong.

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

from bench.arguments import above_0, at_least, choices
from bench.roaming.faults import FAULTS
from bench.roaming.run import Outcome, Plan, run_seed

__all__ = ["REPEATED", "RoamingReport", "add_arguments", "run"]

REPEATED = False
"""Its command has no `--runs`: seeds have its place."""
_FIGURES = (
    *("published", "acknowledged", "expected", "delivered", "lost", "lost_in_lapses"),
    *("doubled", "doubled_at_risk", "repeated", "sessions_told"),
)


class RoamingReport:
    """Results of all seeds."""

    bench: ClassVar[str] = "roaming"

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes

    @property
    def exit_code(self) -> int:
        """1 when anything was found, else 0."""
        return 0 if all(outcome.verdict.passed for outcome in self._outcomes) else 1

    def table(self) -> Group:
        """Return for a terminal: the figures of each seed, what happened, and a verdict line per seed."""
        figures = self._table("roaming: messages")
        for name in _FIGURES:
            figures.add_row(name, *(f"{getattr(outcome.verdict, name):,}" for outcome in self._outcomes))
        figures.add_row("move p50 ms", *(f"{outcome.move_p50_ms:.1f}" for outcome in self._outcomes))
        figures.add_row("move p99 ms", *(f"{outcome.move_p99_ms:.1f}" for outcome in self._outcomes))
        figures.add_row("seconds", *(f"{outcome.seconds:.0f}" for outcome in self._outcomes))
        events = self._table("roaming: what happened")
        for name in self._outcomes[0].pool:
            events.add_row(f"members: {name}", *(f"{outcome.pool[name]:,}" for outcome in self._outcomes))
        for kind in sorted({kind for outcome in self._outcomes for kind in outcome.faults}):
            events.add_row(f"fault: {kind}", *(f"{outcome.faults.get(kind, 0):,}" for outcome in self._outcomes))
        for name in sorted({name for outcome in self._outcomes for name in outcome.counts}):
            events.add_row(name, *(f"{outcome.counts.get(name, 0):,}" for outcome in self._outcomes))
        return Group(figures, events, *(Text(_verdict(outcome)) for outcome in self._outcomes))

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "bench": self.bench,
            "passed": self.exit_code == 0,
            "seeds": [{**asdict(outcome), "passed": outcome.verdict.passed} for outcome in self._outcomes],
        }

    def _table(self, title: str) -> Table:
        table = Table(title=title)
        table.add_column("figure")
        for outcome in self._outcomes:
            table.add_column(f"seed {outcome.seed}", justify="right")
        return table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument("--clients", type=at_least(2), default=200, help="clients of MQTT 3.1.1 and 5 in turn (200)")
    parser.add_argument("--paho", type=at_least(0), default=10, help="how many of the clients are paho's (10)")
    parser.add_argument("--messages", type=at_least(1), default=10_000, help="numbered messages of all clients (10000)")
    parser.add_argument("--seconds", type=above_0, default=60.0, help="how long they publish, for each seed (60)")
    parser.add_argument("--members", type=at_least(2), default=3, help="members of the pool (3)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="how many seeds, one after another (1)")
    parser.add_argument(
        "--steps", type=at_least(1), default=80, help="steps of handshakes that a connection lives for (80)"
    )
    parser.add_argument(
        "--faults",
        type=choices(*FAULTS),
        default="hold,pause,restart",
        help=f"of {', '.join(FAULTS)}; empty for none (hold,pause,restart)",
    )
    parser.add_argument("--long-queues", type=at_least(0), default=0, help="clients that roam with a long queue (0)")
    parser.add_argument("--queued", type=at_least(1), default=20_000, help="messages that wait for each (20000)")
    parser.add_argument("--kill", action="store_true", help="kill members too (SIGKILL)")
    parser.add_argument("--disc", action="store_true", help="one member has values and sessions on disk")
    parser.add_argument("--keep", type=Path, help="keep the files of all servers below this directory")


def run(arguments: argparse.Namespace) -> RoamingReport:
    """Run the seeds; a seed that finds something says at once what."""
    faults = arguments.faults
    if arguments.kill and "kill" not in faults:
        faults += ("kill",)
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    outcomes = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        plan = Plan(
            seed=seed,
            clients=arguments.clients,
            messages=arguments.messages,
            seconds=arguments.seconds,
            members=arguments.members,
            faults=faults,
            steps_max=arguments.steps,
            paho=arguments.paho,
            disc=arguments.disc,
            long_queues=arguments.long_queues,
            queued=arguments.queued,
        )
        outcomes.append(asyncio.run(run_seed(plan, keep=arguments.keep)))
        console.print(_verdict(outcomes[-1]))
        console.print("\n".join((*outcomes[-1].verdict.findings, *outcomes[-1].told)))
    return RoamingReport(outcomes)


def _verdict(outcome: Outcome) -> str:
    faults, verdict = f"{sum(outcome.faults.values())} faults", outcome.verdict
    if verdict.passed:
        return f"seed {outcome.seed}: PASSED, {faults}, {verdict.delivered:,} deliveries, nothing found"
    return f"seed {outcome.seed}: FAILED, {faults}, {verdict.findings_total:,} violations"
