"""The attacks in their quick form: each holds, and has its line."""

from __future__ import annotations

import subprocess
import sys

from bench.attack import ATTACKS


def test_a_node_holds_against_each_attack() -> None:
    """The command ends with 0, and says so of each."""
    command = [sys.executable, "-m", "bench", "attack", "--scale", "0.05"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ATTACKS:
        assert name.replace("_", " ") in run.stdout
    assert run.stdout.count(" holds ") == len(ATTACKS)
