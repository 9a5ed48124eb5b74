"""A short chaos run: the replica equals the primary in the end, and was never called ready while it did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.benches import run_bench

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto, pytest.mark.timeout(600)]

SEEDS = 20


def test_a_chaos_run_finds_nothing(tmp_path: Path) -> None:
    """Done when: a run ends with equal replicas, honest readiness, no value twice, bounded memory, and nothing left."""
    document = tmp_path / "chaos.json"
    arguments = ("--turns", "3", "--seed", "1348", "--skip-reports", "--json", document)
    answer = run_bench("chaos", *arguments, kept=tmp_path / "kept")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (outcome,) = json.loads(document.read_text())["seeds"]
    assert outcome["passed"]
    assert outcome["findings"] == []
    assert {"primary: narrow rights", "primary: kill and roll back"} <= outcome["faults"].keys()
    assert outcome["figures"]["joins_compared"] > 0
    assert outcome["figures"]["witnessed"] > 0
    assert "what the nodes serve was compared with the primary" in outcome["time_line"][-1]
    assert "seed 1348: PASSED" in answer.stdout


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_many_seeds_find_nothing(tmp_path: Path) -> None:
    """The same for a minute of faults with each of twenty seeds, and with reports on the logs."""
    document = tmp_path / "chaos.json"
    arguments = ("--minutes", "1", "--seeds", str(SEEDS), "--json", document)
    answer = run_bench("chaos", *arguments, kept=tmp_path / "kept")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    outcomes = json.loads(document.read_text())["seeds"]
    assert [outcome["findings"] for outcome in outcomes] == [[]] * SEEDS
