"""A node that drains: out of its pool first, then gone, and nothing that it acknowledged is lost."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fanout.mqtt.packets import Disconnect
from tests.cli.processes import run_fanout
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until, wait_until_blocking

pytestmark = pytest.mark.mosquitto


def test_fanout_drain_waits_for_the_end(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """`/readyz` says `draining`, new clients still get everything, and `--wait` ends with the node."""
    load_retained(mosquitto.port, ((f"plant/{count}", b"x") for count in range(500)))
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK), drain_s=3600).started()
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(run_fanout, "drain", "--wait", "60", node.url)
        wait_until_blocking(lambda: not node.ready, what="503")
        document = node.probe()[1]
        assert (document["state"], document["reasons"]) == ("draining", ["the node is draining"])
        assert document["links"][0]["ready"]
        with RawReader(node.port) as reader:
            reader.subscribe("plant/#")
        assert len(reader.values) == 500
        assert not draining.done()
        assert node.stop(signal.SIGINT) == 0  # the rest of the hour is not waited for
        answer = draining.result(60)
    assert (answer.returncode, answer.stderr) == (0, "")
    first, last = answer.stdout.splitlines()
    assert first.startswith("edge-1 is draining, 3600.0 s")
    assert last == "edge-1 has ended"


async def test_clients_are_sent_to_another_server(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """SIGTERM: they stay for `drain_s`, then get 0x9C with the Server Reference of the configuration."""
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=QUICK),
        settings='server_reference = "edge-2:1883"\n',
        drain_s=1,
    )
    await node.begin()
    assert node.process is not None
    async with await RawClient.connect(node.port, "c") as client:
        begun = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        told = await client.expect(Disconnect)
        assert time.monotonic() - begun >= 1
        assert (told.reason_code, told.properties.server_reference) == (0x9C, "edge-2:1883")
        await client.expect_end()
    await wait_until(lambda: not node.running, what="the end")


def test_writes_that_were_acknowledged_are_at_the_primary(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """A client that publishes without a pause while the node goes: the primary has each message that got its PUBACK."""
    node = nodes.secondary(link(mosquitto.port, selector("set/#", writes="forward"), settings=QUICK), drain_s=1.0)
    node.started()
    with subscriber(mosquitto.port, "set/#", qos=1) as at_primary, publisher(node.port) as client:
        publish_all(client, [("set/first", b"")], retain=False)
        assert node.process is not None
        sent: dict[int, bytes] = {}
        answered: set[int] = set()

        def note(_client: Any, _data: Any, packet_id: int, code: Any, _properties: Any) -> None:
            if not code.is_failure:
                answered.add(packet_id)

        client.on_publish = note
        before = 0
        while client.is_connected() and len(sent) < 60_000:  # each with a Packet Identifier of its own
            sent[client.publish("set/value", b"%d" % len(sent), 1).mid] = b"%d" % len(sent)
            if not before and len(answered) > 100:
                before = len(answered)
                node.process.send_signal(signal.SIGTERM)
            time.sleep(0.0005)
        assert 100 < before < len(answered)
        acknowledged = {sent[packet_id] for packet_id in answered}
        wait_until_blocking(
            lambda: acknowledged <= set(at_primary.payloads("set/value")), what="the acknowledged messages"
        )
    wait_until_blocking(lambda: not node.running, what="the end")  # a signal would end it where it listens to none
