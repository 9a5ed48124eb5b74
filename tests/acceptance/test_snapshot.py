"""The snapshot: exactly the primary's retained topics, ready only with all of them, and the evidence for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
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
