"""Simulate: a pool of real nodes in one process, with virtual time and the faults of a seed; exit code 1 for a finding.

Owns the command line and the child in which each seed runs. A child begins as a copy of this process, so that seeds
cannot touch each other, and nothing of a simulation has to end in order.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.table import Table

from bench.arguments import at_least, choices
from bench.simulate.faults import KINDS
from bench.simulate.run import Outcome, simulate

__all__ = ["REPEATED", "SimulateReport", "add_arguments", "run", "run_seeds"]

REPEATED = False
"""Its command has no `--runs`: seeds have its place."""
_HASH_SEED: Final = "0"
"""`PYTHONHASHSEED` of the process: otherwise the order in sets of texts would be another one each time."""
_SECONDS_MAX: Final = 120
"""CPU seconds after which a seed is ended, as one that hangs."""
_CONTEXT: Final = 60
"""Lines of a trace that are shown before the first finding."""


class SimulateReport:
    """Results of all seeds."""

    bench: ClassVar[str] = "simulate"

    def __init__(self, failed: list[Outcome], *, seeds: int, seconds: float, figures: dict[str, float]) -> None:
        self._failed, self._seeds, self._seconds, self._figures = failed, seeds, seconds, figures

    @property
    def exit_code(self) -> int:
        """1 when anything was found, else 0."""
        return 1 if self._failed else 0

    def table(self) -> Table:
        """Return for a terminal: the figures, and the first finding of each seed that failed."""
        table = Table("figure", "value", title=f"simulate: {self._seeds:,} seeds")
        for name, value in self._document().items():
            table.add_row(name, f"{value:,.1f}")
        for outcome in self._failed:
            table.add_row(f"seed {outcome.seed}", outcome.findings[0])
        return table

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        failed = {outcome.seed: outcome.findings for outcome in self._failed}
        return {"bench": self.bench, "passed": not failed, "failed": failed, **self._document()}

    def _document(self) -> dict[str, float]:
        return {
            "seeds": self._seeds,
            "failed": len(self._failed),
            "seeds a minute": self._seeds / self._seconds * 60,
            **self._figures,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument("--seeds", type=at_least(1), default=100, help="how many seeds, one after another (100)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument(
        "--faults",
        type=choices(*dict.fromkeys(KINDS)),
        default=KINDS,
        help=f"of {', '.join(dict.fromkeys(KINDS))} (all of them)",
    )
    parser.add_argument("--trace", type=Path, help="write the trace of each seed that fails, or of the only one, here")


def run(arguments: argparse.Namespace) -> SimulateReport:
    """Run the seeds; a seed that finds something says at once what."""
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        os.environ["PYTHONHASHSEED"] = _HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "bench", *sys.argv[1:]])
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    failed: list[Outcome] = []
    totals = {"simulated seconds": 0.0, "callbacks": 0.0, "CPU seconds": 0.0}
    began = time.monotonic()

    def done(outcome: Outcome) -> None:
        totals["simulated seconds"] += outcome.simulated_s
        totals["callbacks"] += outcome.steps
        totals["CPU seconds"] += outcome.cpu_s
        if outcome.findings:
            failed.append(outcome)
            print(_told(outcome), file=sys.stderr, flush=True)
        if arguments.trace is not None and (outcome.findings or len(seeds) == 1):
            arguments.trace.mkdir(parents=True, exist_ok=True)
            (arguments.trace / f"seed-{outcome.seed}.txt").write_text("\n".join(outcome.trace) + "\n")

    simulate(0, ("restart",))  # what is imported late, by a stop too, is imported once
    gc.collect()
    gc.freeze()
    run_seeds(seeds, done, kinds=arguments.faults)
    return SimulateReport(failed, seeds=len(seeds), seconds=time.monotonic() - began, figures=totals)


def run_seeds(
    seeds: Iterable[int],
    done: Callable[[Outcome], None],
    *,
    kinds: Sequence[str] = KINDS,
    plant: Callable[[], None] | None = None,
) -> None:
    """Run seeds, each in a child of this process, of which nothing is left here.

    Args:
        seeds: The seeds.
        done: Takes each result.
        kinds: Kinds of faults.
        plant: Called in each child first; a test plants a fault with it.
    """
    for seed in seeds:
        done(_in_child(seed, kinds, plant))


def _in_child(seed: int, kinds: Sequence[str], plant: Callable[[], None] | None) -> Outcome:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS_MAX)
            if plant is not None:
                plant()
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(simulate(seed, kinds), pipe)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        return Outcome(seed, [f"the simulation ended with status {status}: a hang, or a fault of the simulator"])
    outcome: Outcome = pickle.loads(data)
    return outcome


def _told(outcome: Outcome) -> str:
    """Return what a person reads first about a seed that failed."""
    trace = outcome.trace[-_CONTEXT:]
    again = f"python -m bench simulate --seeds 1 --seed {outcome.seed} --trace DIRECTORY has the whole trace"
    return "\n".join([f"seed {outcome.seed}: FAILED", *trace, again])
