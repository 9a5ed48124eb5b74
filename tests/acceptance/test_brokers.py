"""Brokers of others: what `fanout probe` prints, pasted, gives a node that becomes ready, each time it is started."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import Server
from tests.cli.processes import run_fanout
from tests.support.brokers import BROKERS, Unavailable
from tests.support.mosquitto import publish_all, publisher
from tests.support.nodes import Nodes

_READY_S = 40
_TOPICS = 300
_EXPECTED = {
    # Evidence of the settings that are printed, or None; and why a link does not become ready, where that may be so.
    "Mosquitto": ("marker", ""),
    "nats-server": ("marker", ""),
    "nats-server of the system": ("marker", ""),
    "amqtt": ("two-pass", "live updates do not come"),
    "Aedes": ("two-pass", ""),
    "mochi-mqtt": ("two-pass", ""),
    "HiveMQ CE": ("two-pass", ""),
    "RabbitMQ": (None, "sends no retained messages for Topic Filters with wildcards"),
}


@pytest.fixture(params=[pytest.param(name, marks=() if name == "Mosquitto" else pytest.mark.long) for name in BROKERS])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Server]]:
    """Return a running broker with some retained messages; skip it by name where it cannot be had."""
    directory = tmp_path / "broker"
    directory.mkdir()
    try:
        server = BROKERS[request.param](directory)
    except Unavailable as error:
        pytest.skip(f"{request.param}: {error}")
    with server:
        with publisher(server.port, version=4) as client:
            publish_all(client, [(f"plant/{number % 7}/{number}", b"%d" % number) for number in range(_TOPICS)])
        yield request.param, server


@pytest.mark.timeout(900)
def test_what_the_probe_prints_works_when_pasted(broker: tuple[str, Server], nodes: Nodes) -> None:
    """The node is ready in each fresh start, six of them at brokers of others; or the probe says why it cannot be."""
    name, server = broker
    evidence, reason = _EXPECTED[name]
    answer = run_fanout(
        "probe", server.address, "--filter", "plant/#", "--timeout", "240", "--set-size", "503", "--json"
    )
    document = json.loads(answer.stdout)
    assert (document["complete"], document["left_behind"]) == (True, None), answer.stderr
    if reason and document["evidence"] is None:
        assert reason in document["reason"]
        return
    assert document["evidence"] == evidence, document["trials"]
    pasted = document["configuration"]
    took = []
    for start in range(1 if name == "Mosquitto" else 6):
        node = nodes.secondary(pasted[pasted.index("[[link]]") :], name=f"edge-{start}", log=False)
        node.start()
        began = time.monotonic()
        node.wait_ready(deadline_s=_READY_S)
        took.append(round(time.monotonic() - began, 1))
        assert (node.topics(), node.link_status()["evidence"]) == (_TOPICS, evidence)
        node.stop()
    print(f"{name}, {document['server']}: ready in {took} s")  # noqa: T201 - for the page about primaries
