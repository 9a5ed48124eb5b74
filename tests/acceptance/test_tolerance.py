"""Messages that cannot be replicated, at processes: a node goes on, serves everything else, and names what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.mqtt.packets import Ack
from tests.support.mosquitto import Mosquitto, find_mosquitto, load_retained
from tests.support.nodes import QUICK, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until

LIMIT = 65_536


@pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it")
async def test_a_topic_too_long_for_its_prefix_ends_no_node(nodes: Nodes, tmp_path: Path) -> None:
    """A client of `#` gets all other topics, retained and live, and the process and the link go on."""
    long = "plant/" + "x" * 65_524
    with Mosquitto(tmp_path) as mosquitto:
        load_retained(mosquitto.port, [("plant/a", b"1"), (long, b"2"), ("plant/b", b"3")])
        settings = QUICK + f"packet_bytes_max = {2 * LIMIT}\n"
        edge = nodes.secondary(link(mosquitto.port, selector("plant/#", prefix="site1/"), settings=settings))
        await edge.begin()
        await edge.until_ready()
        assert read_retained(edge.port, "#") == {"site1/plant/a": b"1", "site1/plant/b": b"3"}
        async with await RawClient.connect(edge.port, "watcher") as watcher:
            await watcher.subscribe(b"site1/#")
            assert len(await watcher.messages(2)) == 2
            load_retained(mosquitto.port, [(long, b"4"), ("plant/c", b"5")])
            (message,) = await watcher.messages(1)
            assert (message.topic, message.payload) == (b"site1/plant/c", b"5")
        readiness = edge.document("/readyz")
        assert readiness["ready"]
        assert readiness["links"][0]["not_held_topics"] == 1
        assert readiness["links"][0]["not_held_reason"].endswith("the local name is longer than 65,535 bytes")


async def test_a_large_message_of_a_fanout_primary(nodes: Nodes) -> None:
    """The rest is proved all the same, and what the node lacks is named."""
    hub = nodes.primary(settings="packet_bytes_max = 4_000_000\n")
    await hub.begin()
    payload = bytes(3_000_000)
    async with await RawClient.connect(hub.port, "publisher") as publisher:
        for topic, value in ((b"plant/a", b"1"), (b"plant/large", payload), (b"plant/b", b"2")):
            publisher.publish(topic, value, qos=1, retain=True)
            await publisher.expect(Ack)
        settings = QUICK + f"packet_bytes_max = {LIMIT}\n"
        edge = nodes.secondary(link(hub.port, selector("plant/#"), settings=settings))
        await edge.begin()
        await edge.until_ready()
        assert read_retained(edge.port, "#") == {"plant/a": b"1", "plant/b": b"2"}
        state = edge.document("/v1/status")["links"][0]
        assert state["not_held_reason"] == "1 topic is not held: larger than packet_bytes_max"
        assert state["skipped_newest"][0]["topic"] == "plant/large"
        publisher.publish(b"plant/a", payload, qos=1, retain=True)
        await publisher.expect(Ack)
        publisher.publish(b"plant/c", b"3", qos=1, retain=True)
        await publisher.expect(Ack)
        await wait_until(lambda: read_retained(edge.port, "#") == {"plant/b": b"2", "plant/c": b"3"})
        after = edge.document("/v1/status")["links"][0]
        assert (after["epoch"], after["state"], after["reconnects_total"]) == (state["epoch"], "live", 0)
        assert after["not_held_topics"] == 2
