"""The tutorial of ten minutes: its configurations, and its commands in one shell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fanout.config import parse_config
from tests.support.tutorial import blocks, run

BLOCKS = blocks("ten-minutes.md", "sh")
NOT_RUN = ("git clone ", "sudo apt-get install ", "scripts/setup ")
"""What installs: the tests run in what is installed."""


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
    ]


def test_it_waits_for_nothing_without_end_and_leaves_ports_of_packages_alone() -> None:
    """Debian starts the Prometheus that it installs, on 9090: another one cannot listen there."""
    script = "".join(BLOCKS)
    assert not re.findall(r"\b(?:until|while) ", script)
    assert "9090" not in script


@pytest.mark.long
@pytest.mark.timeout(600)
def test_its_commands_lead_there(tmp_path: Path) -> None:
    """From a primary to a pool behind HAProxy, with alerts, one member out and in again, and a report."""
    script = "\n".join(block for block in BLOCKS if not block.startswith(NOT_RUN))
    told = run(script, tmp_path, "haproxy", "mosquitto_pub", "prometheus", "promtool", timeout=550)
    assert told.count("plant/line-5/temperature 25.5\n") == 2
    assert told.count("the pool of 2 members, seen by") == 2
    assert "edge-1 has ended" in told
    assert re.search(r"^\{\} => 3 @", told, re.MULTILINE), told
    assert "COMPLETE  2 secondaries got everything" in told, told
    assert (tmp_path / "report.html").exists()
