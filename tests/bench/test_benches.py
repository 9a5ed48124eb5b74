"""Every benchmark, tiny, against the real peers: the figures are there and agree with each other. None must be fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.processes import find_mosquitto

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]


def measure(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run one benchmark once on each side and return its results; every delivery must have arrived."""
    path = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", *arguments, "--runs", "1", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert document["bench"] == arguments[0]
    assert document["machine"]["mosquitto"]
    results: list[dict[str, Any]] = document["results"]
    for result in results:
        assert len(result["runs"]) == 1
        for run in result["runs"]:
            assert run["delivered"] == run["expected"] > 0
        for ask in result["asked"]:
            assert f"{ask['what']} " in done.stdout
    return results


def servers(results: list[dict[str, Any]]) -> list[str]:
    """Return which servers the results are of, in order."""
    return [result["server"] for result in results]


def test_fanout_measures_each_server_at_each_qos(tmp_path: Path) -> None:
    """With and without log, the bridge and the load generator's limit; the asked ratio follows from the figures."""
    options = ["--subscribers", "1,10", "--deliveries", "1000", "--messages-min", "300", "--log", "on,off"]
    results = measure(tmp_path, "fanout", *options, "--self-test")

    assert servers(results) == ["ours", "ours, no log", "bridge", "load generator's limit"] * 4
    assert [result["messages"] for result in results] == ([1000] * 4 + [300] * 4) * 2
    for at in range(0, len(results), 4):
        ours, _, bridge, limit = results[at : at + 4]
        (ask,) = ours["asked"]
        assert ask["reached"] == pytest.approx(ours["delivered/s"] / bridge["delivered/s"])
        assert ask["met"] == (ask["reached"] >= ask["at_least"])
        assert limit["asked"][0]["reached"] > 0
    assert [result["asked"][0]["at_least"] for result in results[::4]] == [1, 5, 1, 3]


def test_steady_takes_latencies_and_cpu(tmp_path: Path) -> None:
    """Every update reaches every subscriber, and latencies are in order."""
    options = ["--subscribers", "5", "--samples", "2", "--rate", "500", "--seconds", "0.4"]
    results = measure(tmp_path, "steady", *options)

    assert servers(results) == ["ours", "bridge"]
    for result in results:
        assert 0 < result["p50 ms"] <= result["p99 ms"] <= result["max ms"]
        assert result["runs"][0]["delivered"] == 1000
    assert [ask["what"] for ask in results[0]["asked"]] == ["p99, times the bridge's", "CPU, times the bridge's"]


def test_light_adds_the_hop_to_the_primary(tmp_path: Path) -> None:
    """What a hop adds is its median without that of the primary."""
    results = measure(tmp_path, "light", "--rate", "50", "--seconds", "0.4")

    assert servers(results) == ["primary", "ours", "bridge"]
    for result in results:
        assert result["added p50 ms"] == pytest.approx(result["p50 ms"] - results[0]["p50 ms"])
        assert result["runs"][0]["delivered"] == 20
