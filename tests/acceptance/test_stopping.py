"""How a node ends: in good order, at once, or killed; and what the next start finds."""

from __future__ import annotations

import json
import signal

import pytest

from tests.acceptance.conftest import Mirror
from tests.cli.processes import run_fanout
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, processes_with, read_events, read_updates, selector
from tests.support.raw_client import RawClient
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until, wait_until_blocking

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


async def test_second_signal_ends_at_once(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """A client that does not read keeps the first signal waiting for its messages; the second one waits for nothing."""
    load_retained(mosquitto.port, ((f"plant/{count}", b"x" * 10_000) for count in range(2_000)))
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK))
    await node.begin()
    process = node.process
    assert process is not None
    async with await RawClient.connect(node.port, "lazy") as lazy:
        lazy.pause()
        lazy.send_bytes(b"\x82\x0d\x00\x01\x00\x00\x07plant/#\x00")
        await wait_until(lambda: node.document("/v1/status")["server"]["subscriptions"], what="the subscription")
        process.send_signal(signal.SIGTERM)
        await wait_until(lambda: "stopping" in node.log_text(), what="the first signal")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        await wait_until(lambda: process.poll() is not None, what="the end")
    assert node.stop() == 128 + signal.SIGTERM
    assert "second signal, ending at once" in node.log_text()
    assert "node stopped" not in node.log_text()


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


def test_killed_secondary_with_a_damaged_log(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """Eight bytes overwritten in the log of a killed node cost one frame, and every look at the log says so."""
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=QUICK),
        log="flush_interval_s = 0.02\nfsync_interval_s = 0.05\n",
    )
    node.started()

    def synced() -> bool:
        return all(
            log["unsynced_rows"] == 0 and log["queued_rows"] == 0 for log in [node.document("/v1/status")["log"]]
        )

    with publisher(mosquitto.port) as client:
        for part in range(10):
            publish_all(client, [(f"plant/{part}/{number}", b"x") for number in range(200)])
            wait_until_blocking(lambda: node.topics() == (part + 1) * 200, 30, what="the updates")  # noqa: B023
            wait_until_blocking(synced, 30, what="the log on the disk")
    node.kill()
    (segment,) = node.log_directory.glob("open/*/*.seg")
    data = bytearray(segment.read_bytes())
    quarter = len(data) // 4
    data[quarter : quarter + 8] = bytes(byte ^ 0xA5 for byte in data[quarter : quarter + 8])
    segment.write_bytes(data)

    def verified() -> tuple[int, str]:
        answer = run_fanout("log", "verify", "--json", str(node.log_directory))
        (check,) = json.loads(answer.stdout)
        return answer.returncode, " ".join(problem["text"] for problem in check["problems"])

    code, before = verified()
    assert (code, "were damaged: rows" in before) == (1, True)
    node.started()
    assert "segment damaged" in node.log_text()
    assert node.stop() == 0
    code, after = verified()
    assert (code, before in after) == (1, True)
    rows = read_updates(node.log_directory)
    events = read_events(node.log_directory)
    run = min(event["node_epoch"] for event in events)
    (gap,) = [json.loads(event["detail"]) for event in events if '"damage"' in event["detail"]]
    positions = {row["log_pos"] for row in [*rows, *events] if row["node_epoch"] == run}
    lost = set(range(gap["first_log_pos"], gap["last_log_pos"] + 1))
    assert lost
    assert positions == set(range(1, max(positions) + 1)) - lost
    assert len([row for row in rows if row["node_epoch"] == run]) >= 2_000 - len(lost) > 1_000
    stated = json.loads(run_fanout("log", "stat", "--json", str(node.log_directory)).stdout)
    assert [one["missing_positions"] for one in stated] == [len(lost)]


def test_log_may_be_read_while_the_node_runs(mirror: Mirror) -> None:
    """`fanout log verify` and `stat` work beside a node that writes."""
    node = mirror.secondary

    def logged() -> int:
        answer = run_fanout("log", "stat", "--json", str(node.log_directory))
        assert answer.returncode == 0, answer.stderr
        return int(json.loads(answer.stdout)[0]["update_rows"])

    before = logged()
    with publisher(mirror.mosquitto.port) as client:
        publish_all(client, [(f"plant/log/{number}", b"x") for number in range(100)])
    wait_until_blocking(lambda: logged() == before + 100, 30, what="the rows of the log")
    assert run_fanout("log", "verify", str(node.log_directory)).returncode == 0
