"""The units of systemd in `configs/`, as systemd itself rates them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"
UNITS = ("fanout.service", "fanout@.service")
RATING_MAX = 3.0
"""Of 10, which is a service without any restriction."""


def settings(unit: str) -> list[str]:
    """Return the lines of a unit that say something."""
    return [line for line in (CONFIGS / unit).read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_leaves_the_node_few_rights(unit: str) -> None:
    """The rating of `systemd-analyze security`."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    command = [program, "security", "--offline=true", "--no-pager", str(CONFIGS / unit)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if "unrecognized option" in answer.stderr:
        pytest.skip("systemd-analyze is older than 250, and has no --offline")
    rated = re.search(r"Overall exposure level for \S+: ([\d.]+)", answer.stdout)
    assert rated is not None, answer.stderr
    assert float(rated[1]) <= RATING_MAX


def test_the_template_is_the_unit_for_each_member() -> None:
    """What makes one safe holds for the other."""
    own = {line.partition("=")[0] for line in set(settings(UNITS[0])) ^ set(settings(UNITS[1]))}
    assert own == {"Description", "ExecStart", "Restart"}
    assert "Type=notify" in settings(UNITS[0])
