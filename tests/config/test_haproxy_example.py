"""`configs/haproxy.cfg`, as HAProxy itself reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.haproxy import find_haproxy

EXAMPLE = Path(__file__).parents[2] / "configs" / "haproxy.cfg"


def test_haproxy_takes_the_example() -> None:
    """`haproxy -c` finds no fault and nothing to warn of."""
    binary = find_haproxy()
    if binary is None:
        pytest.skip("HAProxy is not installed; scripts/setup installs it")
    answer = subprocess.run([binary, "-c", "-f", str(EXAMPLE)], capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "[WARNING]" not in answer.stderr
