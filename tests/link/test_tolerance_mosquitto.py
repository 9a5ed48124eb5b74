"""Messages of a Mosquitto that a link cannot replicate, or that break MQTT: the link stays live with all others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.link.model.states import LinkState
from fanout.replica.update import PROPERTIES
from fanout.selection import Selector
from tests.link.harness import Running, config_for, running
from tests.support.mosquitto import Mosquitto, find_mosquitto, load_retained

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]

LIMIT = 4096
VALUES = {f"plant/{number}": b"%d" % number for number in range(20)}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a broker with some retained values."""
    with Mosquitto(tmp_path, settings=["sys_interval 1"]) as mosquitto:
        load_retained(mosquitto.port, list(VALUES.items()))
        yield mosquitto


def publish(port: int, topic: str, payload: bytes, *options: str, retain: bool = True, qos: int = 1) -> None:
    """Publish as `mosquitto_pub` does, which lets a user break MQTT."""
    command = [
        "mosquitto_pub",
        "-p",
        str(port),
        "-t",
        topic,
        "-q",
        str(qos),
        "-s",
        *options,
        *(["-r"] if retain else []),
    ]
    subprocess.run(command, input=payload, check=True, timeout=20)


async def check_lives(link: Running, port: int) -> None:
    """Check that a message behind the others arrives within the same epoch and connection."""
    status = link.status
    publish(port, "plant/behind", b"here")
    await link.wait(lambda: link.values().get("plant/behind") == b"here")
    after = link.status
    assert (after.state, after.epoch, after.counters.reconnects_total) == (LinkState.LIVE, status.epoch, 0)


@pytest.mark.parametrize("value", ["k/#", "+"])
async def test_a_response_topic_that_is_none_is_left_out(broker: Mosquitto, value: str) -> None:
    """Retained and live: the message is held without it, and counted."""
    options = ("-V", "5", "-D", "publish", "response-topic", value, "-D", "publish", "user-property", "k", "v")
    publish(broker.port, "plant/before", b"1", *options)
    async with running(config_for(broker.port, Selector("plant/#"))) as link:
        await link.wait_state(LinkState.LIVE)
        publish(broker.port, "plant/live", b"2", *options)
        await link.wait(lambda: "plant/live" in link.values())
        for topic in (b"plant/before", b"plant/live"):
            assert link.replica.view[topic][PROPERTIES] == b"\x26\x00\x01k\x00\x01v"
        assert link.status.tolerated_total["property"] >= 2
        await check_lives(link, broker.port)


@pytest.mark.parametrize(("version", "size"), [(4, 100 * LIMIT), (5, LIMIT)])
async def test_a_large_message_is_skipped_and_named(broker: Mosquitto, version: int, size: int) -> None:
    """Retained and live, a little and much too large; the topic is known not to be held, until it fits."""
    publish(broker.port, "plant/large", bytes(size))
    config = config_for(broker.port, Selector("plant/#"), version=version, packet_bytes_max=LIMIT)
    async with running(config) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == VALUES
        status = link.status
        assert status.ready
        assert status.not_held_reason == "1 topic is not held: larger than packet_bytes_max"
        assert [one.topic for one in status.skipped_newest] == ["plant/large"] * len(status.skipped_newest)
        publish(broker.port, "plant/3", bytes(size))
        await link.wait(lambda: "plant/3" not in link.values())
        assert link.status.not_held_topics == 2
        await check_lives(link, broker.port)
        publish(broker.port, "plant/3", b"small")
        await link.wait(lambda: link.values().get("plant/3") == b"small")
        assert link.status.not_held_topics == 1
        report = await link.link.audit()
        assert (report.failure, report.changed, report.removed) == ("", 0, 0)
        assert link.status.not_held_topics == 1


async def test_a_topic_too_long_for_its_prefix_is_skipped(broker: Mosquitto) -> None:
    """A retained topic of 65,530 bytes and a prefix: the node holds the others, and says so."""
    publish(broker.port, "plant/" + "x" * 65_524, b"1")
    async with running(config_for(broker.port, Selector("plant/#", prefix="site1/"))) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {f"site1/{topic}": payload for topic, payload in VALUES.items()}
        assert link.status.not_held_reason == "1 topic is not held: the local name is longer than 65,535 bytes"
