"""The snapshot: exactly the primary's retained topics, ready only with all of them, and the evidence for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import mosquitto_sub, publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector, watched
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto


def sensor_values(count: int, *, generation: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` topics with payloads of 64 bytes, different in each generation."""
    for number in range(count):
        yield f"plant/line-{number // 500}/sensor-{number}", b"%01d/%062d" % (generation, number)


def read_back(node: LiveNode) -> RawReader:
    """Read everything retained below `plant/` through the node's own port."""
    with RawReader(node.port) as reader:
        reader.subscribe("plant/#")
    return reader


def read_back_equals(node: LiveNode, count: int) -> bool:
    """Return whether a node serves the first generation, whole."""
    return read_back(node).values == dict(sensor_values(count, generation=1))


@pytest.mark.parametrize("count", [5_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_mirror_of_a_default_broker_that_restarts(mosquitto: Mosquitto, nodes: Nodes, count: int) -> None:
    """Done when: 64-byte topics of a default Mosquitto: ready only with all, values equal, evidence named; a restart.

    Restarting Mosquitto without persistence empties the replica, its subscribers receive the removals, `/readyz` is
    503 meanwhile, and it is ready again after the topics are published again. T1, T7 and T8 at size.
    """
    first, second = (dict(sensor_values(count, generation=generation)) for generation in (1, 2))
    load_retained(mosquitto.port, first.items())
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK))
    with watched(node) as answers:
        node.start()
        node.wait_until_ready(deadline_s=60)
    for answer in answers:
        (state,) = answer["links"]
        assert not answer["ready"] or state["topics"] == count
    ready = node.probe()[1]["links"][0]
    assert (ready["state"], ready["topics"], ready["evidence"]) == ("live", count, "marker")
    proof = {"complete": True, "evidence": "marker", "joining": False, "maybe_unreadable": False}
    assert ready["selectors"] == [{"filter": "plant/#", "topics": count, **proof}]

    back = read_back(node)
    assert back.messages == back.retained == count
    assert back.values == first

    with RawReader(node.port, client_id="stays") as stays:
        stays.subscribe("plant/#")
        mosquitto.stop()
        wait_until_blocking(lambda: not node.ready, what="503 without a primary")
        with watched(node) as answers:
            mosquitto.start()
            stays.read_until(lambda: stays.messages == 2 * count, what="the removals", deadline_s=60)
            node.wait_until_ready()
        assert set(stays.values.values()) == {b""}
        assert not any(answer["ready"] for answer in answers if answer["links"][0]["topics"])
        assert node.link_status()["epochs_total"] == 2
        assert read_back(node).messages == 0

        load_retained(mosquitto.port, second.items())
        stays.read_until(lambda: stays.messages == 3 * count, what="the new values", deadline_s=60)
        assert stays.values == second
    assert node.ready
    back = read_back(node)
    assert back.messages == back.retained == count
    assert back.values == second


def test_exactly_the_selected_topics_are_served(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """T1: exactly the N retained topics of the selector, with value, QoS and MQTT 5 properties; no other.

    T8: the queue limit of the primary is not hit by the secondary that joins, by the primary's own count.
    """
    mosquitto.settings.append("sys_interval 1")
    mosquitto.restart()
    sent = publish_properties(
        ContentType="application/json",
        ResponseTopic="answers/here",
        CorrelationData=b"\x00\xff",
        UserProperty=[("unit", "°C"), ("unit", "again"), ("site", "north")],
        PayloadFormatIndicator=1,
    )
    wanted = {f"plant/{number}": b'{"value": %d}' % number for number in range(100)}
    unicode_topic, binary = "plant/ünïcode/温度", b"\x00binary\xff"
    bulk = dict(sensor_values(5_000, generation=1))
    load_retained(mosquitto.port, bulk.items())
    with publisher(mosquitto.port) as client:
        publish_all(client, wanted.items(), properties=sent)
        publish_all(client, [(unicode_topic, binary)])
        publish_all(client, [(other, b"x") for other in ("plant/debug/1", "plane/1", "office/1")])
        publish_all(client, [("plant/not-retained", b"x")], retain=False)
        publish_all(client, [("plant/cleared", b"x"), ("plant/cleared", b"")])
    node = nodes.secondary(link(mosquitto.port, selector("plant/#", exclude=["plant/debug/#"]))).started()
    assert node.topics() == 5_101
    with RawReader(node.port) as everything:
        everything.subscribe("#")
    assert everything.values == bulk | wanted | {unicode_topic: binary}
    assert everything.messages == everything.retained == 5_101
    with subscriber(node.port, "plant/+", qos=2) as reader:
        reader.wait(100)
        assert {one.topic: (one.payload, one.qos, one.retain) for one in reader.messages} == {
            topic: (payload, 1, True) for topic, payload in wanted.items()
        }
        expected = sent.json()  # type: ignore[no-untyped-call]  # paho
        assert all(one.properties == expected for one in reader.messages)

    count = "$SYS/broker/publish/messages/sent"
    with subscriber(mosquitto.port, count, "$SYS/broker/publish/messages/dropped") as figures:
        wait_until_blocking(
            lambda: any(int(one.payload) > 5_000 for one in figures.of(count)), what="Mosquitto's count"
        )
        assert {one.payload for one in figures.messages if one.topic != count} <= {b"0"}


async def test_connection_lost_in_the_middle_of_the_snapshot(mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes) -> None:
    """T9: the full set is still reached, and readiness is not given early."""
    load_retained(mosquitto.port, sensor_values(10_000, generation=1))
    proxy.cut_after_bytes = 300_000
    node = nodes.secondary(link(proxy.port, selector("plant/#"), settings=QUICK))
    with watched(node) as answers:
        await node.begin()
    assert proxy.connections_total == 2
    assert all(answer["links"][0]["topics"] == 10_000 for answer in answers if answer["ready"])
    assert node.link_status()["last_error"] is not None
    assert read_back_equals(node, 10_000)


async def test_snapshot_that_the_primary_cut_short(mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes) -> None:
    """T8: a reader so slow that Mosquitto drops part of the snapshot is not ready, says why, and tries again.

    Ten megabytes are more than the buffers between Mosquitto and a slow reader hold. The second try uses the second
    address of the same primary, where nothing is in the way. On a busy machine it may be too slow there too, or its
    connection may not be made in time: then both have another turn.
    """
    values = {f"plant/{number}": b"%01000d" % number for number in range(10_000)}
    load_retained(mosquitto.port, values.items())
    proxy.throttle_bytes_per_s = 3_000_000
    node = nodes.secondary(
        link(
            proxy.port,
            selector("plant/#"),
            other_ports=[mosquitto.port],
            settings=QUICK + "snapshot_quiet_s = 0.5\n",
        )
    )
    with watched(node) as answers:
        await node.begin()
    assert all(answer["links"][0]["topics"] == 10_000 for answer in answers if answer["ready"])
    status = node.link_status()
    assert status["primary"] == mosquitto.address
    assert status["truncated_total"] >= 1
    assert status["epochs_total"] == status["truncated_total"] + 1
    assert "plant/#" in status["last_error"]
    assert (status["last_error_over"], status["hint"]) == (True, None)
    assert "max_queued_messages" in node.log_text()
    assert read_back(node).values == values


def test_evidence_without_the_right_to_publish(tmp_path: Path, nodes: Nodes) -> None:
    """Where the link may only read, the evidence is the barrier alone, and lag is unknown, not zero."""
    rules = tmp_path / "acl"
    rules.write_text("user writer\ntopic readwrite #\nuser edge\ntopic read #\ntopic read $SYS/broker/version\n")
    with (
        Mosquitto(tmp_path, settings=[f"acl_file {rules}"]) as mosquitto,
        publisher(mosquitto.port, username="writer") as client,
    ):
        publish_all(client, [(f"plant/{number}", b"x") for number in range(50)])
        node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK + 'username = "edge"\n'))
        node.started()
        (state,) = node.probe()[1]["links"]
        assert (state["topics"], state["evidence"]) == (50, "barrier")
        (lag,) = node.document("/v1/lag")["links"]
        assert (lag["lag_seconds"], lag["basis"]) == (None, "unknown")
        publish_all(client, [("plant/late", b"y")])
        wait_until_blocking(lambda: node.topics() == 51, what="the live value")


def test_link_over_mqtt_3_1_1(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """A primary that speaks MQTT 3.1.1 only: the snapshot, and live updates that keep RETAIN (the bridge bit)."""
    load_retained(mosquitto.port, sensor_values(500, generation=1))
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK + "version = 4\n")).started()
    assert node.topics() == 500
    with publisher(mosquitto.port, version=4) as client, subscriber(node.port, "plant/#") as reader:
        reader.wait(500)
        publish_all(client, [("plant/new", b"n"), ("plant/line-0/sensor-0", b"")])
        publish_all(client, [("plant/message", b"m")], retain=False)
        reader.wait_for("plant/message")
        assert node.topics() == 500
    assert mosquitto_sub(node.port, "plant/new", count=1)[0].retain
