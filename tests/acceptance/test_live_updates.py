"""Live updates: what appears at the primary appears at the secondary, as MQTT says, and nothing else does."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Mirror
from tests.support.clients import mosquitto_sub, publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, Nodes, link, read_updates, selector
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until, wait_until_blocking

pytestmark = pytest.mark.mosquitto


def test_new_matching_topic_appears_without_restart(mirror: Mirror) -> None:
    """T2: a new topic inside a selector appears locally, live and retained; one outside never does."""
    with subscriber(mirror.secondary.port, "#", qos=1) as live, publisher(mirror.mosquitto.port) as client:
        publish_all(client, [("plant/debug/t2", b"no"), ("plane/t2", b"no"), ("office/a/b/state", b"no")])
        publish_all(client, [("plant/t2/1", b"a"), ("office/t2/state", b"b")])
        publish_all(client, [("plant/t2/end", b"")], retain=False)
        live.wait_for("plant/t2/end")
        live.wait_for("hq/office/t2/state", b"b")
        assert live.payloads("plant/t2/1") == [b"a"]
        # One link carries all selectors in order, so what was published first would have come first.
        assert not {"plant/debug/t2", "plane/t2", "office/a/b/state", "office/t2/state"} & set(live.topics)
    assert read_retained(mirror.secondary.port, "plant/t2/#") == {"plant/t2/1": b"a"}
    assert read_retained(mirror.secondary.port, "hq/office/t2/#") == {"hq/office/t2/state": b"b"}
    assert read_retained(mirror.secondary.port, "plant/debug/t2") == {}


def test_empty_retained_message_removes_the_topic(mirror: Mirror) -> None:
    """T3: an empty retained PUBLISH removes the replica, and local subscribers get the empty message once."""
    with publisher(mirror.mosquitto.port) as client:
        publish_all(client, [("plant/t3/gone", b"x"), ("plant/t3/stays", b"y")])
        with subscriber(mirror.secondary.port, "plant/t3/#", qos=1) as live:
            live.wait_for("plant/t3/gone", b"x")
            live.wait_for("plant/t3/stays", b"y")
            publish_all(client, [("plant/t3/gone", b"")])
            publish_all(client, [("plant/t3/end", b"")], retain=False)
            live.wait_for("plant/t3/end")
            assert live.payloads("plant/t3/gone") == [b"x", b""]
            assert live.payloads("plant/t3/stays") == [b"y"]
    assert read_retained(mirror.secondary.port, "plant/t3/#") == {"plant/t3/stays": b"y"}


def test_late_retained_message_is_live_for_those_who_are_there(mirror: Mirror) -> None:
    """T10: a later retained message comes with RETAIN 0 to subscribers (1 with RAP), with RETAIN 1 to new ones."""
    port = mirror.secondary.port
    with (
        subscriber(port, "plant/t10/#", qos=1) as plain,
        subscriber(port) as published,
        subscriber(port, "plant/t10/#", qos=1, version=4) as old,
    ):
        published.subscribe("plant/t10/#", qos=1, retain_as_published=True)
        with publisher(mirror.mosquitto.port) as client:
            publish_all(client, [("plant/t10/1", b"late")])
            publish_all(client, [("plant/t10/1", b"message")], retain=False)
        expected = {plain: [False, False], published: [True, False], old: [False, False]}
        for inbox, flags in expected.items():
            inbox.wait(2)
            assert [message.payload for message in inbox.messages] == [b"late", b"message"]
            assert [message.retain for message in inbox.messages] == flags
        with subscriber(port, "plant/t10/#", qos=1) as new:
            new.wait(1)
            assert [(one.payload, one.retain) for one in new.messages] == [(b"late", True)]


def test_messages_keep_their_qos_and_order(mirror: Mirror) -> None:
    """A burst arrives whole, once, in order; delivery is at the lower of both QoS."""
    qos, root = 1, "plant/order"
    with (
        subscriber(mirror.secondary.port, f"{root}/#", qos=2) as highest,
        subscriber(mirror.secondary.port, f"{root}/#", qos=0) as lowest,
        publisher(mirror.mosquitto.port) as client,
    ):
        messages = [(f"{root}/{number % 7}", b"%d" % number) for number in range(300)]
        publish_all(client, messages, qos=qos, retain=False)
        for inbox, delivered in ((highest, qos), (lowest, 0)):
            inbox.wait(300)
            assert [(one.topic, one.payload) for one in inbox.messages] == messages
            assert {one.qos for one in inbox.messages} == {delivered}


def test_message_expiry_interval_is_kept(mirror: Mirror) -> None:
    """A value that expires is served with the time that is left, and then removed, and subscribers are told."""
    with subscriber(mirror.secondary.port, "plant/expiry/#", qos=1) as live:
        with publisher(mirror.mosquitto.port) as client:
            publish_all(client, [("plant/expiry/1", b"x")], properties=publish_properties(MessageExpiryInterval=2))
        live.wait(2)
        assert [one.payload for one in live.messages] == [b"x", b""]
        assert live.messages[0].properties["MessageExpiryInterval"] <= 2
    assert read_retained(mirror.secondary.port, "plant/expiry/#") == {}


async def test_acknowledged_at_the_primary_is_not_yet_replicated(
    mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes
) -> None:
    """T20: what the primary has acknowledged counts as replicated only once it is in the replica and the log."""
    node = nodes.secondary(link(proxy.port, selector("plant/#"), settings=QUICK + "heartbeat_s = 0\n"))
    await node.begin()
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/1", b"before")])
        await wait_until(lambda: node.topics() == 1, what="the first value")
        proxy.pause()
        publish_all(client, [("plant/1", b"after"), ("plant/2", b"new")])  # returns with the primary's PUBACKs
        before = node.link_status()
        assert (before["topics"], before["selectors"][0]["topics"]) == (1, 1)
        assert mosquitto_sub(node.port, "plant/1", count=1)[0].payload == b"before"
        with subscriber(node.port, "plant/#", qos=1) as live:
            live.wait(1)
            proxy.resume()
            await wait_until(lambda: node.topics() == 2, what="both values")
            await wait_until(lambda: len(live.messages) == 3, what="the live values")
        after = node.link_status()
        assert after["selectors"][0]["digest"] != before["selectors"][0]["digest"]
    wait_until_blocking(lambda: node.document("/v1/status")["log"]["rows_total"] == 3, what="the rows of the log")
    node.stop()
    rows = read_updates(node.log_directory)
    assert [row["topic"] for row in rows] == ["plant/1", "plant/1", "plant/2"]
    assert [row["change"] for row in rows] == [1, 2, 1]
