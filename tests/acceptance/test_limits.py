"""Limits of a running node: what is told at the limit of retained messages, and what `/metrics` shows of limits."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fanout.mqtt.packets import PacketType
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking

MAX_PAYLOAD = "[retained]\nmax_payload = 4\n"


def samples(node: LiveNode, name: str) -> dict[str, float]:
    """Return the values of one metric, by its only label."""
    families = text_string_to_metric_families(node.get("/metrics").text)
    return {
        next(iter(one.labels.values())): one.value for family in families for one in family.samples if one.name == name
    }


async def test_own_messages_over_a_limit_are_delivered_and_not_retained(nodes: Nodes) -> None:
    """T15: one too many is acknowledged and delivered, not retained, counted, and the status says so while it lasts."""
    key, payload = "retained_bytes_max", b"x" * 400
    hub = await nodes.primary(settings=f"sys_interval_s = 0\n{key} = 1024\n").begin()
    async with (
        await RawClient.connect(hub.port, "watcher") as watcher,
        await RawClient.connect(hub.port, "five") as five,
        await RawClient.connect(hub.port, "three", version=4) as three,
    ):
        await watcher.subscribe(b"r/#")
        await five.expect_ack(PacketType.PUBACK, five.publish(b"r/1", payload, qos=1, retain=True))
        await five.expect_ack(PacketType.PUBREC, five.publish(b"r/2", payload, qos=2, retain=True))
        assert hub.document("/v1/status")["server"]["own_complete"]
        await five.expect_ack(PacketType.PUBACK, five.publish(b"r/3", payload, qos=1, retain=True))
        await three.expect_ack(PacketType.PUBACK, three.publish(b"r/4", payload, qos=1, retain=True))
        await five.expect_ack(PacketType.PUBACK, five.publish(b"r/1", b"new" + payload[3:], qos=1, retain=True))
        topics = [message.topic for message in await watcher.messages_until_ping()]
        assert topics == [b"r/1", b"r/2", b"r/3", b"r/4", b"r/1"]
        assert read_retained(hub.port, "r/#") == {"r/1": b"new" + payload[3:], "r/2": payload}
        server = hub.document("/v1/status")["server"]
        assert (server["own_complete"], server["own_short_by"]) == (False, [key])
        assert samples(hub, "fanout_server_limits_reached_total")[key] == 2
        assert samples(hub, "fanout_limit")[f"server.{key}"] == 1024
        for topic in (b"r/3", b"r/4"):
            await five.expect_ack(PacketType.PUBACK, five.publish(topic, b"", qos=1, retain=True))
        assert hub.document("/v1/status")["server"]["own_complete"]
    assert hub.ready, "a client cannot make it leave its pool"


@pytest.mark.mosquitto
def test_value_over_a_limit_of_a_link_is_delivered_not_held(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """T15: it is counted, and the status, the metrics and `/readyz` say so."""
    limit, payload = "topics_max = 2", b"one too many"
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
    key = limit.partition(" ")[0]
    assert f"a limit kept values out ({key})" in readiness["reasons"][0]
    assert (status["short_by"], status["hint"].partition(";")[0]) == ([key], f"Raise {key}")
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/3", b"")])
    node.wait_until_ready()
    assert node.link_status()["short_by"] == []


@pytest.mark.mosquitto
def test_a_large_value_takes_a_node_out_only_while_it_stands(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """T15: a value over `retained.max_payload` that is replaced by a small one: the node is ready again."""
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK), settings=MAX_PAYLOAD)
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/1", b"1")])
        node.started()
        epoch = node.link_status()["epoch"]
        with subscriber(node.port, "plant/#", qos=1) as live:
            publish_all(client, [("plant/1", b"12345")])
            live.wait_for("plant/1", b"12345")
            assert live.payloads("plant/1") == [b"1", b"", b"12345"], "what is not true any more is removed first"
        code, readiness = node.probe()
        assert code == 503
        assert "retained.max_payload" in readiness["reasons"][0]
        assert "retained.max_payload" in node.link_status()["hint"]
        publish_all(client, [("plant/1", b"1234")])
        node.wait_until_ready()
    status = node.link_status()
    assert (status["epoch"], status["refused_total"]) == (epoch, 1)
    assert read_retained(node.port) == {"plant/1": b"1234"}


def test_below_a_limit_no_node_holds_what_the_one_above_does_not(nodes: Nodes) -> None:
    """T15: in a chain every node has what its primary has, whoever joined when; an audit finds nothing to repair."""
    settings = QUICK + "heartbeat_s = 1.0\n"
    hub = nodes.primary()
    a = nodes.secondary(link(hub.port, selector("plant/#"), settings=settings), name="a", settings=MAX_PAYLOAD)
    b = nodes.secondary(link(a.port, selector("plant/#"), settings=settings), name="b")
    for node in (hub, a, b):
        node.started()
    with publisher(hub.port) as client, subscriber(b.port, "plant/#", qos=1) as live:
        publish_all(client, [("plant/1", b"1"), ("plant/2", b"1")])
        publish_all(client, [("plant/2", b"12345"), ("plant/3", b"12345"), ("plant/end", b"1")])
        live.wait_for("plant/end")
        assert [(one.topic, one.payload) for one in live.messages] == [
            ("plant/1", b"1"),
            ("plant/2", b"1"),
            ("plant/2", b""),
            ("plant/2", b"12345"),
            ("plant/3", b"12345"),
            ("plant/end", b"1"),
        ]
        held = {"plant/1": b"1", "plant/end": b"1"}
        for node in (a, b):
            assert read_retained(node.port, "plant/#") == held
        wait_until_blocking(lambda: not (a.ready or b.ready), what="the node below hearing of it")
        publish_all(client, [("plant/2", b""), ("plant/3", b"")])
        for node in (a, b):
            node.wait_until_ready()
            epoch = node.link_status()["epoch"]
            answer = (
                httpx.post(f"{node.url}/v1/links/primary/audit", trust_env=False, timeout=60).raise_for_status().json()
            )
            assert (answer["failure"], answer["changed_topics"], answer["removed_topics"]) == (None, 0, 0)
            assert node.link_status()["epoch"] == epoch
        late = nodes.secondary(link(hub.port, selector("plant/#"), settings=settings), name="late").started()
        assert read_retained(late.port, "plant/#") == held


async def test_topics_deeper_than_a_primarys_filters_are_in_no_sample(nodes: Nodes) -> None:
    """A primary that takes Topic Filters of four levels refuses to be asked for them by name: no audit follows."""
    hub = await nodes.primary(settings="filter_levels_max = 4\nsys_interval_s = 0\n").begin()
    settings = f"{QUICK}heartbeat_s = 0.2\nsample_topics = 50\n"
    edge = nodes.secondary(link(hub.port, selector("plant/#"), settings=settings), log=False)
    with publisher(hub.port) as client:
        publish_all(client, [(f"plant/a/b/c/d/{number}", b"x") for number in range(20)])
        publish_all(client, [(f"plant/{number}", b"x") for number in range(20)])
    await edge.begin()
    edge.wait_until_ready()

    def sampling() -> dict[str, int | None]:
        detail: dict[str, int | None] = edge.link_status()["sampling"]
        return detail

    wait_until_blocking(lambda: (sampling()["samples_total"] or 0) >= 3, what="three samples")
    assert (sampling()["missing_total"], sampling()["audits_total"], sampling()["off"]) == (0, 0, None)
    assert edge.log_text().count("primary refuses to be asked for topics by name") == 1
    edge.wait_until_ready()
