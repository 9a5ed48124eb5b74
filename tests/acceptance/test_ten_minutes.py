"""The tutorial of ten minutes: its configurations, and its commands in one shell, on ports of the test's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import free_port
from fanout.config import parse_config

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "tutorial" / "ten-minutes.md").read_text(), re.DOTALL)
NOT_RUN = ("git clone ", "sudo apt-get install ", "scripts/setup ", "fanout report ")
"""What installs, as `tests/test_installation.py` does, and what starts a JVM, as `tests/cli/test_report.py` does."""


def test_its_configurations_have_no_faults() -> None:
    """A member's is that of a pool of two, with an address of its own for everything."""
    [text] = re.findall(r"<<END\n(.*?)\nEND\n", "".join(BLOCKS), re.DOTALL)
    members = [
        parse_config(text.replace("$((3 + n))", str(3 + n)).replace("$n", str(n)), path="edge.toml", role="secondary")
        for n in (1, 2)
    ]
    assert [member.node.id for member in members] == ["edge-1", "edge-2"]
    pools = [member.pool for member in members]
    assert [str(pool.listen) for pool in pools if pool] == [str(one) for one in pools[0].peers] if pools[0] else False


def test_all_blocks_but_those_named_are_run() -> None:
    """Each of those is there."""
    assert [block.split()[0] for block in BLOCKS if block.startswith(NOT_RUN)] == [
        "git",
        "sudo",
        "scripts/setup",
        "fanout",
    ]


def test_it_waits_for_nothing_without_end_and_leaves_ports_of_packages_alone() -> None:
    """Debian starts the Prometheus that it installs, on 9090: another one cannot listen there."""
    script = "".join(BLOCKS)
    assert not re.findall(r"\b(?:until|while) ", script)
    assert "9090" not in script


@pytest.mark.long
@pytest.mark.timeout(600)
def test_its_commands_lead_there(tmp_path: Path) -> None:
    """From a primary to a pool behind HAProxy, with alerts, one member out and in again; the first failure ends it."""
    for program in ("haproxy", "mosquitto_pub", "prometheus", "promtool"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{program} is not installed")
    script = "\n".join(block for block in BLOCKS if not block.startswith(NOT_RUN))
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    ports = {
        port: str(free_port())
        for port in ("1883", "1884", "1885", "1886", "8079", "8081", "8082", "9201", "9202", "9095")
    }
    for prefix, first, last in (
        ("188$((3 + n))", "1884", "1885"),
        ("808$n", "8081", "8082"),
        ("920$n", "9201", "9202"),
    ):
        script = script.replace(prefix, f"$([ $n = 1 ] && echo {first} || echo {last})")
    primary = tmp_path / "configs" / "primary.toml"
    for port, free in ports.items():
        script = re.sub(rf"\b{port}\b", free, script)
        primary.write_text(primary.read_text().replace(port, free))
    program = f"set -eo pipefail\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{script}"
    answer = subprocess.run(
        ["bash", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("plant/line-5/temperature 25.5\n") == 2
    assert answer.stdout.count("the pool of 2 members, seen by") == 2
    assert "edge-1 has ended" in answer.stdout
    assert re.search(r"^\{\} => 3 @", answer.stdout, re.MULTILINE), answer.stdout
