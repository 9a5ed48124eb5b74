"""Clients that roam among real members of a pool behind a real HAProxy: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.processes import find_mosquitto
from bench.roaming.servers import find_haproxy
from tests.support.benches import run_bench

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
    pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed; scripts/test installs it"),
]

SEEDS = 20


def roam(tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    """Run the command and return what each seed showed; all must pass, and no process may be left."""
    document = tmp_path / "roaming.json"
    done = run_bench("roaming", *arguments, "--json", document, kept=tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    seeds: list[dict[str, object]] = json.loads(document.read_text())["seeds"]
    return seeds


def test_clients_lose_nothing_and_get_nothing_twice(tmp_path: Path) -> None:
    """Though they are cut in the middle of handshakes and come back anywhere, and members are held, stopped and killed.

    Some members are killed for good; one is stopped until it is taken for dead, or nearly.
    """
    sizes = ("--seeds", "1", "--clients", "16", "--paho", "2", "--messages", "300", "--seconds", "6", "--steps", "30")
    (outcome,) = roam(tmp_path, *sizes, "--faults", "hold,pause,die,stop,kill")
    verdict, pool, counts = outcome["verdict"], outcome["pool"], outcome["counts"]
    assert isinstance(verdict, dict)
    assert isinstance(pool, dict)
    assert isinstance(counts, dict)
    assert verdict["published"] == verdict["acknowledged"] == 300
    assert verdict["delivered"] == verdict["expected"] > 300
    assert verdict["sessions_told"] == pool["sessions_not_inherited"] == 0, outcome["told"]
    assert counts["session present"] > 18  # each comes back once on average, on a slow machine too
    assert outcome["faults"]


def test_long_queues_move_and_no_member_is_taken_for_dead(tmp_path: Path) -> None:
    """Nothing of them is missing, and nobody has lost a session, though others roam too."""
    sizes = ("--clients", "8", "--paho", "0", "--messages", "100", "--seconds", "4", "--long-queues", "3")
    (outcome,) = roam(tmp_path, *sizes, "--queued", "2000", "--faults", "")
    counts, pool = outcome["counts"], outcome["pool"]
    assert isinstance(counts, dict)
    assert isinstance(pool, dict)
    assert outcome["passed"]
    assert counts["long queues: visits"] >= 12  # each takes a quarter at most
    assert pool["fences"] == 0


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((), id="without kills"),
        pytest.param(("--long-queues", "5", "--queued", "50000"), id="with long queues"),
        pytest.param(("--kill",), id="with kills"),
        pytest.param(("--disc", "--faults", "kill,die,stop,peers,primary"), id="around the verdict"),
    ],
)
def test_many_seeds_find_nothing(tmp_path: Path, faults: tuple[str, ...]) -> None:
    """With 200 clients and 10,000 messages each, and members that are drained and restarted too."""
    outcomes = roam(tmp_path, "--seeds", str(SEEDS), *faults)
    assert [outcome["passed"] for outcome in outcomes] == [True] * SEEDS
