"""The attacks in their quick form: each holds, and has its line."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.attack import AT_ONCE


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
