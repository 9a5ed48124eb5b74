"""Limits of a running node: what is told at the limit of retained messages, and what `/metrics` shows of limits."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fanout.mqtt.packets import PacketType
from fanout.mqtt.reason_codes import ReasonCode
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.raw_reader import read_retained


def samples(node: LiveNode, name: str) -> dict[str, float]:
    """Return the values of one metric, by its only label."""
    families = text_string_to_metric_families(node.get("/metrics").text)
    return {
        next(iter(one.labels.values())): one.value for family in families for one in family.samples if one.name == name
    }


@pytest.mark.parametrize(
    ("key", "value", "payload"), [("retained_topics_max", 2, b"x"), ("retained_bytes_max", 1024, b"x" * 400)]
)
async def test_retained_messages_are_bounded(nodes: Nodes, key: str, value: int, payload: bytes) -> None:
    """T15: one too many is refused with 0x97 (MQTT 3.1.1: closed); what was accepted stays, and can be replaced."""
    hub = await nodes.primary(settings=f"{key} = {value}\nsys_interval_s = 0\n").begin()
    async with (
        await RawClient.connect(hub.port, "watcher") as watcher,
        await RawClient.connect(hub.port, "five") as five,
        await RawClient.connect(hub.port, "three", version=4) as three,
    ):
        await watcher.subscribe(b"r/#")
        for qos, ack in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
            packet_id = five.publish(b"r/%d" % qos, payload, qos=qos, retain=True)
            await five.expect_ack(ack, packet_id)
            packet_id = five.publish(b"r/new/%d" % qos, payload, qos=qos, retain=True)
            if qos == 2:
                await five.expect_ack(ack, packet_id, ReasonCode.QUOTA_EXCEEDED)
            else:
                await five.expect_ack(ack, packet_id)
                packet_id = five.publish(b"r/new/%d" % qos, b"", qos=qos, retain=True)
                await five.expect_ack(ack, packet_id)
        five.publish(b"r/new", payload, retain=True)  # nobody can be told
        packet_id = five.publish(b"r/1", b"new" + payload[3:], qos=1, retain=True)
        await five.expect_ack(PacketType.PUBACK, packet_id)
        three.publish(b"r/new/3", payload, qos=1, retain=True)
        await three.expect_end()
        topics = [message.topic for message in await watcher.messages_until_ping()]
        assert topics == [b"r/1", b"r/new/1", b"r/new/1", b"r/2", b"r/1"]
        async with await RawClient.connect(hub.port, "late") as late:
            await late.subscribe(b"r/#")
            kept = {message.topic: message.payload for message in await late.messages_until_ping()}
        assert kept == {b"r/1": b"new" + payload[3:], b"r/2": payload}
    assert samples(hub, "fanout_server_limits_reached_total")[key] == 3
    assert samples(hub, "fanout_limit")[f"server.{key}"] == value
    assert samples(hub, "fanout_server_dropped_total")["refused"] == 3


@pytest.mark.mosquitto
@pytest.mark.parametrize(("limit", "payload"), [("topics_max = 2", b"one too many"), ("bytes_max = 1024", b"x" * 1024)])
def test_value_over_a_limit_of_a_link_is_delivered_not_held(
    mosquitto: Mosquitto, nodes: Nodes, limit: str, payload: bytes
) -> None:
    """T15: by count and by bytes; it is counted, and the status, the metrics and `/readyz` say so."""
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=f"{QUICK}{limit}\n"))
    held = {"plant/1": b"1", "plant/2": b"2"}
    with publisher(mosquitto.port) as client:
        publish_all(client, held.items())
        node.started()
        assert node.link_status()["refused_total"] == 0
        with subscriber(node.port, "plant/#", qos=1) as live:
            live.wait(2)
            publish_all(client, [("plant/3", payload)])
            live.wait_for("plant/3", payload)
    assert read_retained(node.port) == held
    status = node.link_status()
    assert (status["refused_total"], status["topics"]) == (1, 2)
    assert samples(node, "fanout_link_refused_total") == {"primary": 1}
    code, readiness = node.probe()
    assert code == 503
    assert "a limit kept values out" in readiness["reasons"][0]


async def test_limits_show_in_the_metrics(nodes: Nodes) -> None:
    """A client that is refused for a limit moves the metric of that limit, and of its Reason Code."""
    hub = await nodes.primary(settings="sessions_max = 1\nsubscriptions_max = 1\n").begin()
    async with await RawClient.connect(hub.port, "a") as client:
        assert (await client.subscribe(b"a", b"b")).reason_codes == (0, ReasonCode.QUOTA_EXCEEDED)
        async with await RawClient.connect(hub.port, "b") as refused:
            assert refused.connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    found = samples(hub, "fanout_server_limits_reached_total")
    assert (found["sessions_max"], found["subscriptions_max"], found["connections_max"]) == (1, 1, 0)
    assert samples(hub, "fanout_server_ended_total") == {"quota_exceeded": 1}
    assert samples(hub, "fanout_server_entry_faults_total") == {"proxy_header": 0, "tls": 0, "websocket": 0}
