"""The simulator: a few seeds, that a seed says the same each time, and that planted faults are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench.simulate.command import run_seeds
from bench.simulate.run import Outcome
from fanout.durable.moving.fence import Fence
from fanout.durable.ownership.held_copies import HeldCopies, HeldCopy
from fanout.link.link import Link
from fanout.mqtt.reason_codes import ReasonCode

pytestmark = pytest.mark.timeout(300)


def _keep_nothing() -> None:
    """Let members say that they keep a copy before they have it."""

    def put(self: HeldCopies, copy: HeldCopy) -> bool:
        return True

    HeldCopies.put = put  # type: ignore[method-assign]


def _acknowledge_first() -> None:
    """Let members acknowledge what the primary has not."""
    forward = Link.forward

    def forwarded(self: Link, *arguments: object, **named: object) -> ReasonCode:
        forward(self, *arguments, **named)  # type: ignore[arg-type]
        return ReasonCode.SUCCESS

    Link.forward = forwarded  # type: ignore[method-assign]


def _raise_no_fence() -> None:
    """Let members serve durable sessions while others may take them for dead."""

    def raise_fence(self: Fence, reason: str, *, now_s: float) -> None:
        pass

    Fence._raise = raise_fence  # type: ignore[method-assign]


def test_seeds() -> None:
    """The product keeps its promises under the faults of some seeds."""
    outcomes: list[Outcome] = []
    run_seeds(range(1, 6), outcomes.append)
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert not outcome.findings, "\n".join(outcome.trace)


@pytest.mark.parametrize(
    ("plant", "kinds", "seeds", "says"),
    [
        (_keep_nothing, ("kill",), (2, 3), "lost its session"),
        (_acknowledge_first, ("kill",), (2, 3), "was told that the primary has"),
        (_raise_no_fence, ("cut", "pause"), (5,), "at QoS 2 2 times"),
    ],
)
def test_planted_fault(plant: Callable[[], None], kinds: Sequence[str], seeds: Sequence[int], says: str) -> None:
    """A copy that is not kept, an acknowledgement that comes first and a missing fence are found by what they do."""
    outcomes: list[Outcome] = []
    run_seeds(seeds, outcomes.append, kinds=kinds, plant=plant)
    assert any(says in finding for outcome in outcomes for finding in outcome.findings)


def test_same_trace(tmp_path: Path) -> None:
    """A seed says the same twice in one process, and in another one with other hashes of texts.

    Each is a process of its own: members that were killed stay behind, and would end in a later test.
    """
    twice = (
        "from pathlib import Path\n"
        "from bench.simulate.run import simulate\n"
        "for name in ('first', 'second'):\n"
        "    Path(name).write_text(''.join(f'{line}\\n' for line in simulate(3).trace))"
    )
    command = ["-m", "bench", "simulate", "--seeds", "1", "--seed", "3", "--trace", "."]
    for number, arguments in enumerate((["-c", twice], command)):
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": os.getcwd()}
        run = [sys.executable, *arguments]
        subprocess.run(run, check=True, capture_output=True, env=environment, cwd=tmp_path, timeout=250)
    first, second, other = (tmp_path.joinpath(name).read_text() for name in ("first", "second", "seed-3.txt"))
    assert first.count("\n") > 100
    assert first == second == other
