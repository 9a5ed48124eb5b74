"""Nodes with sessions on disk that are killed soon after each start: nothing is lost, nor doubled at QoS 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.processes import find_mosquitto
from tests.support.benches import run_bench

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]

SEEDS = 20


def kill(tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    """Run the command and return what each seed showed; all must pass, and no process may be left."""
    document = tmp_path / "kills.json"
    done = run_bench("kills", *arguments, "--json", document, kept=tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    seeds: list[dict[str, object]] = json.loads(document.read_text())["seeds"]
    return seeds


def test_kills_of_both_kinds_of_node_lose_and_double_nothing(tmp_path: Path) -> None:
    """A secondary while its link resumes, verifies or is live, and a primary that clients publish at."""
    outcomes = kill(tmp_path, "--kills", "5", "--topics", "2000")
    assert [outcome["role"] for outcome in outcomes] == ["secondary", "primary"]
    for outcome in outcomes:
        verdict = outcome["verdict"]
        assert isinstance(verdict, dict)
        assert verdict["delivered"] == verdict["expected"] > 1_000
        assert verdict["sessions_told"] == 0


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_many_seeds_find_nothing(tmp_path: Path) -> None:
    """20 kills each, with 5,000 topics that a comparison reads."""
    outcomes = kill(tmp_path, "--seeds", str(SEEDS))
    assert [outcome["passed"] for outcome in outcomes] == [True] * 2 * SEEDS
