"""The attacks in their quick form: each holds, and has its line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.attack import AT_ONCE
from bench.attacks import answers
from bench.attacks.at_once import attack_at_once
from bench.attacks.control import control
from bench.attacks.target import Target


def test_a_node_holds_against_each_attack() -> None:
    """The command ends with 0, and says so of each; a pool and files of logs have tests of their own."""
    names = [word for name in AT_ONCE for word in ("--only", name)]
    command = [sys.executable, "-m", "bench", "attack", "--scale", "0.01", "--patience", "10", *names]
    environment = os.environ | {"PYTHONPYCACHEPREFIX": ""}  # beside the source, where it is compiled already
    run = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    for name in AT_ONCE:
        assert name.replace("_", " ") in run.stdout
    assert run.stdout.count(" holds ") == len(AT_ONCE)


def test_an_answer_that_is_a_bomb_is_given_up_before_it_is_read() -> None:
    """Eight MiB of empty sessions took 2.3 s of the processor, 16 MiB of empty objects 2.6 s and 500 MiB."""
    verdict = asyncio.run(answers.run(Target(port=0, patience=2.0)))
    assert verdict.held, verdict.figures


@pytest.mark.parametrize(("scale", "seconds_max", "word"), [(0.001, 300.0, "ended"), (1_000.0, 0.01, "UNFINISHED")])
def test_an_attack_that_did_not_come_to_its_end_shows_nothing(scale: float, seconds_max: float, word: str) -> None:
    """It has a verdict of its own; others count what they did. The target answers pings only, and so does the decoy.

    The large attack would take hours at its rate, so it has not ended however late the time limit is noticed.
    """

    @contextlib.contextmanager
    def target() -> Iterator[Target]:
        with control() as port:
            yield Target(port=port, scale=scale)

    with target() as attacked:
        verdicts = dict(attack_at_once(attacked, target, ["takeovers"], seconds=0.01, seconds_max=seconds_max))
    takeovers = verdicts["takeovers"]
    assert takeovers.word == word
    assert (takeovers.figures["rounds"] > 0) == takeovers.held == (word == "ended")
    assert not takeovers.held or takeovers.figures["connections"] >= 10
    assert verdicts["ordinary client"].word in {"holds", "BROKEN"}
