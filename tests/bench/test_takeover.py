"""Durable sessions of a member that dies, small: the verdict on literal clients, and one run with real servers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bench.processes import find_mosquitto
from bench.roaming.servers import find_haproxy
from bench.takeover.crowd import RECEIVERS, Crowd, judge
from tests.support.benches import run_bench


def test_the_verdict_counts_what_came() -> None:
    """Lost at each QoS; doubled at QoS 2, repeated at QoS 1."""
    clients = Crowd(RECEIVERS, ports=[1], at_once=1, draw=random.Random(1)).clients
    assert {(each.qos, each.is_away, each.version) for each in clients} == {
        (qos, is_away, version) for qos in (1, 2) for is_away in (False, True) for version in (4, 5)
    }
    for client in clients:
        client.received += [0, 1, 2]
    assert judge(clients, 3, 1) == {"expected": 24, "lost": 0, "doubled": 0, "repeated": 0}
    clients[0].received += [0, 0]
    clients[1].received += [2]
    clients[2].received.remove(1)
    assert judge(clients, 3, 1) == {"expected": 24, "lost": 1, "doubled": 1, "repeated": 2}


@pytest.mark.mosquitto
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it")
@pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed; scripts/test installs it")
def test_a_member_dies_among_sessions(tmp_path: Path) -> None:
    """Nothing is lost or comes twice, and every client finds its session."""
    document = tmp_path / "takeover.json"
    sizes = ("--sessions", "40", "--rate", "50", "--seconds", "3", "--at-once", "40", "--runs", "1", "--copies", "on")
    done = run_bench("takeover", *sizes, "--json", document)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(document.read_text())["results"]
    assert result["copies"] == "on"
    assert (result["expected"], result["lost"], result["doubled"]) == (1_200, 0, 0)
    assert (result["returned_present"], result["returned_absent"]) == (40, 0)
    assert result["acknowledged"] > 0
    assert result["inherited"] == result["of_dead"] > 0
    assert result["copy_bytes_per_message"] > 0
