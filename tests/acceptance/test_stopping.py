"""How a node ends: in good order, at once, or killed; and what the next start finds."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.processes import run_fanout
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, load_retained, publisher
from tests.support.nodes import QUICK, Nodes, link, processes_with, read_events, read_updates, selector
from tests.support.raw_client import RawClient
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto


async def test_sigterm_ends_a_secondary_in_good_order(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """Exit code 0, the log sealed and sound, clients told why, the session at the primary ended, nothing left."""
    load_retained(mosquitto.port, ((f"plant/{count}", b"x") for count in range(1000)))
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK))
    node.starts_from_nothing = True
    await node.begin()
    assert len(processes_with(node.command[-1])) == 1
    async with await RawClient.connect(node.port, "c") as client:
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        await client.expect_end(0x8B)
    await wait_until(lambda: not node.running, what="the end")
    assert node.stop() == 0
    assert processes_with(node.command[-1]) == []
    assert "node stopped" in node.log_text()

    assert len(read_updates(node.log_directory)) == 1000
    events = read_events(node.log_directory)
    assert (events[0]["event"], events[-1]["event"]) == ("start", "stop")
    assert list(node.log_directory.glob("open/**/*.seg")) == []
    verified = run_fanout("log", "verify", "--json", str(node.log_directory))
    assert (verified.returncode, [one["sound"] for one in json.loads(verified.stdout)]) == (0, [True])

    async with await RawClient.connect(mosquitto.port, "fanout-edge-1-primary", clean_start=False) as again:
        assert not again.connack.session_present


def test_killed_secondary_comes_back(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """SIGKILL in the middle of updates: ready again after a start, and its log has no torn rows."""
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=QUICK),
        log="flush_interval_s = 0.02\nfsync_interval_s = 0.05\n",
    )
    load_retained(mosquitto.port, ((f"plant/{count}", b"first") for count in range(2_000)))
    node.started()
    with publisher(mosquitto.port) as client, subscriber(node.port, "plant/#", qos=1) as live:
        live.wait(2_000)
        handles = [client.publish(f"plant/{count % 2_000}", b"%d" % count, 1, True) for count in range(5_000)]
        live.wait(3_000)
        node.kill()
        for handle in handles:
            handle.wait_for_publish(30)
    newest = {f"plant/{count % 2_000}": b"%d" % count for count in range(5_000)}

    node.started()
    assert node.topics() == 2_000
    with RawReader(node.port) as reader:
        reader.subscribe("plant/#")
    assert reader.values == newest
    assert node.stop() == 0

    rows = read_updates(node.log_directory)
    events = read_events(node.log_directory)
    first, second = sorted({event["node_epoch"] for event in events})
    positions = sorted(row["log_pos"] for row in [*rows, *events] if row["node_epoch"] == first)
    assert positions == list(range(1, len(positions) + 1))  # an exact prefix of what was written, each row once
    assert sum(row["node_epoch"] == first for row in rows) >= 2_000
    assert sum(row["node_epoch"] == second for row in rows) == 2_000
    (gap,) = [event for event in events if event["event"] == "gap"]
    detail = json.loads(gap["detail"])
    assert (detail["reason"], detail["node_epoch"], detail["first_log_pos"]) == ("crash", first, len(positions) + 1)
    verified = run_fanout("log", "verify", str(node.log_directory))
    assert verified.returncode == 0, verified.stdout
