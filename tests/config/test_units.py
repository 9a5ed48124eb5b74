"""The units of systemd in `configs/`, as systemd itself rates them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
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


def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    """Those in `configs/`, and the service and timer of the page on reports; the programs and users are not there."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    page = (ROOT / "docs" / "how-to" / "report-on-many-logs.md").read_text()
    service, timer = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    texts = {"fanout-report.service": service, "fanout-report.timer": timer}
    texts |= {unit.replace("@", "@1"): (CONFIGS / unit).read_text() for unit in UNITS}
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace("/opt/fanout/bin/fanout", "/bin/true"))
    command = [program, "verify", "--man=no", *(str(tmp_path / name) for name in texts)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = [line for line in answer.stderr.splitlines() if any(name in line for name in texts)]
    assert (answer.returncode, found) == (0, [])
