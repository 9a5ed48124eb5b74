"""Benchmarks as commands, whose nodes start from the bytecode that the tests have already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_bench"]

_ROOT = Path(__file__).resolve().parents[2]


def run_bench(*arguments: str | Path, timeout_s: float = 230.0) -> subprocess.CompletedProcess[str]:
    """Run `python -m bench` with these arguments, for `timeout_s` seconds at most, and return how it ended."""
    command = [sys.executable, "-m", "bench", *map(str, arguments)]
    # Empty: beside the source, and not in a directory of this run, where the first node would compile everything.
    environment = os.environ | {"PYTHONPYCACHEPREFIX": ""}
    return subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
