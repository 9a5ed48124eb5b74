"""The simulator: a few seeds, that a seed says the same each time, and that planted faults are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.simulate.command import run_seeds
from bench.simulate.disks import SimulatedStore
from bench.simulate.run import Outcome
from fanout.durable.copying.inheritance import Inheritance
from fanout.durable.keeping.session_journal import SessionJournal
from fanout.durable.moving.fence import Fence
from fanout.durable.ownership.held_copies import HeldCopies, HeldCopy
from fanout.durable.ownership.ledger import SessionLedger
from fanout.link.link import Link
from fanout.link.session.lifecycle import SessionLifecycle
from fanout.mqtt.reason_codes import ReasonCode
from fanout.pool.failure_detection import FailureDetector, LifeSigns
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Update
from fanout.server.session.exported_session import ExportedSession
from fanout.server.session.receiver import SessionReceiver
from fanout.server.session.registry import SessionRegistry
from fanout.server.session.session import Session

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


def _inherit_nothing() -> None:
    """Let members take no other one for gone."""

    def is_over(self: Inheritance, *arguments: object, **named: object) -> bool:
        return False

    Inheritance._is_over = is_over  # type: ignore[method-assign]


def _forget_received() -> None:
    """Let a session that moves forget which messages at QoS 2 its client has published."""

    def restore(self: SessionReceiver, unreleased: Iterable[int]) -> None:
        pass

    SessionReceiver.restore = restore  # type: ignore[method-assign]


def _forget_released() -> None:
    """Let a session that moves forget which messages at QoS 2 its client has got, and waits for PUBREL for."""
    restore = SessionRegistry.restore

    def restored(self: SessionRegistry, exported: ExportedSession, **named: Any) -> Session:
        unanswered = tuple(one for one in exported.in_flight if one.message is not None)
        return restore(self, replace(exported, in_flight=unanswered), **named)

    SessionRegistry.restore = restored  # type: ignore[method-assign]


def _keep_nothing_given() -> None:
    """Let a member keep no copy of a session that it gives away, which may end with its next holder."""

    def keep_given(self: SessionLedger, *arguments: object, **named: object) -> None:
        pass

    SessionLedger.keep_given = keep_given  # type: ignore[method-assign]


def _forget_given() -> None:
    """Let a member remove the record of a session from its disk when it gives it away."""
    SessionJournal.note_moved = SessionJournal.note  # type: ignore[method-assign]


def _need_no_witness() -> None:
    """Let a member that is cut off from the primary too take the others for dead."""
    look = FailureDetector.look

    def looked(
        self: FailureDetector, others: Iterable[LifeSigns], *, own_sent_s: Sequence[float | None], now_s: float
    ) -> None:
        look(self, others, own_sent_s=[now_s], now_s=now_s)

    FailureDetector.look = looked  # type: ignore[method-assign]


def _force_nothing() -> None:
    """Let a member count what it has written though its disk was not forced to take it."""
    init = SimulatedStore.__init__

    def made(self: SimulatedStore, path: Path, **options: Any) -> None:
        init(self, path, **{**options, "sync": "interval"})

    SimulatedStore.__init__ = made  # type: ignore[method-assign]


def _correct_nothing() -> None:
    """Let links take a retained set for equal where they have values of its topics."""
    apply = Replica.apply

    def applied(self: Replica, updates: list[Update], *, phase: Phase, of_pass: bool = True) -> Changes:
        if phase is not Phase.LIVE:
            updates = [self.values.get(update[0], update) if update[3] else update for update in updates]
        return apply(self, updates, phase=phase, of_pass=of_pass)

    Replica.apply = applied  # type: ignore[method-assign]


def _resume_forgotten() -> None:
    """Let links go on with sessions that the primary has forgotten."""
    accept = SessionLifecycle.accept

    def accepted(self: SessionLifecycle, *, session_present: bool) -> None:
        accept(self, session_present=session_present or self.remote_session.exists)

    SessionLifecycle.accept = accepted  # type: ignore[method-assign]


def test_seeds() -> None:
    """The product keeps its promises under the faults of some seeds; the last six found that it did not."""
    outcomes: list[Outcome] = []
    run_seeds((*range(1, 6), 10_360, 10_600, 12_193, 12_770, 13_229, 60_261), outcomes.append)
    assert len(outcomes) == 11
    for outcome in outcomes:
        assert not outcome.findings, "\n".join(outcome.trace)


@pytest.mark.parametrize(
    ("plant", "kinds", "seeds", "says"),
    [
        (_keep_nothing, ("kill",), (1, 3), "lost its session"),
        (_acknowledge_first, ("kill",), (1, 3), "was told that the primary has"),
        (_raise_no_fence, ("cut",), (6,), "at QoS 2 2 times"),
        (_inherit_nothing, ("kill", "restart"), (1,), "the pool is never whole"),
        (_forget_received, ("restart",), (2, 3), "at QoS 2 2 times"),
        (_forget_released, ("restart",), (2,), "a client is not done"),
        (_keep_nothing_given, ("kill",), (12, 22), "lost its session"),
        (_forget_given, ("outage",), (26, 70), "lost its session"),
        (_need_no_witness, ("cut",), (15, 18), "at QoS 2 2 times"),
        (_force_nothing, ("outage",), (4, 28), "lost its session"),
        (_correct_nothing, ("kill", "restart"), (2, 3), "has other values of"),
        (_resume_forgotten, ("primary",), (1,), "the pool is never whole"),
    ],
)
def test_planted_fault(plant: Callable[[], None], kinds: Sequence[str], seeds: Sequence[int], says: str) -> None:
    """Each of some faults in the product is found, by what it does."""
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
