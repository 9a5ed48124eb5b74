"""A pool of two secondaries as processes: the other tells of one that is stopped or killed; no value goes with it."""

from __future__ import annotations

import signal

import pytest

from tests.cli.processes import run_fanout
from tests.support.durable import start_pool
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import LiveNode, Nodes
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto


def other_of(node: LiveNode) -> dict[str, object]:
    """Return what a node says of the other member."""
    members = node.document("/v1/pool")["members"]
    return dict(members[1]) if len(members) == 2 else {}


async def test_a_member_that_is_stopped_or_killed_takes_nothing_along(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """The other says so and goes on; every value that the dead one acknowledged is there, and two racing ones agree."""
    first, second = await start_pool(mosquitto, nodes, count=2)
    assert run_fanout("ready", "--pool", first.url).returncode == 0

    assert second.process is not None
    second.process.send_signal(signal.SIGSTOP)  # it listens on, and says nothing
    try:
        wait_until_blocking(lambda: other_of(first)["reachable"] is False, what="a suspect member")
        assert other_of(first)["node"] == "edge-2"
        assert run_fanout("ready", "--pool", first.url).returncode == 1
        assert first.ready
    finally:
        second.process.send_signal(signal.SIGCONT)
    assert run_fanout("ready", "--pool", "--wait", "60", first.url).returncode == 0

    with publisher(first.port) as one, publisher(second.port) as two:
        handles = []
        for count in range(200):
            handles.append(one.publish("plant/raced", b"one-%d" % count, 1, retain=True))
            handles.append(two.publish("plant/raced", b"two-%d" % count, 1, retain=True))
        for handle in handles:
            handle.wait_for_publish(30)
        publish_all(two, ((f"plant/kept/{count}", b"%d" % count) for count in range(500)))
        publish_all(two, [("plant/kept/0", b"")])  # cleared: it does not come back
        second.kill()

    expected = {f"plant/kept/{count}": b"%d" % count for count in range(1, 500)}

    def whole() -> bool:
        return {
            topic: value for topic, value in read_retained(first.port, "plant/#").items() if topic != "plant/raced"
        } == expected

    wait_until_blocking(whole, what="what the dead member accepted")
    second.start()
    assert run_fanout("ready", "--pool", "--wait", "60", first.url).returncode == 0
    assert read_retained(first.port, "plant/#") == read_retained(second.port, "plant/#")
    assert read_retained(first.port, "plant/#")["plant/raced"] in (b"one-199", b"two-199")
    wait_until_blocking(lambda: other_of(first)["digest_equal"] is True, what="members that are equal at a cut")
    assert "HTTP Request" not in first.log_text() + second.log_text()
