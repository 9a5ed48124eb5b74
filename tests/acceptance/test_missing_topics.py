"""Topics that clients of a secondary wait for, and that a handler at the primary creates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.clients import Inbox, subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, selector
from tests.support.waiting import wait_until_blocking

ANNOUNCING = QUICK + "announce_missing = true\n"
TOPIC = "fanout/control/missing"


def told(handler: Inbox) -> list[dict[str, Any]]:
    """Return the announcements that a handler has got."""
    return [json.loads(one.payload) for one in handler.messages]


@pytest.mark.mosquitto
def test_missing_topic_is_announced_and_created(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """T16: a SUBSCRIBE inside a selector that matches nothing is one notification at the primary; outside it is none.

    The handler creates the topic, which reaches the client that waits.
    """
    with publisher(mosquitto.port) as client, subscriber(mosquitto.port, TOPIC, qos=1) as handler:
        publish_all(client, [("plant/there", b"x")])
        node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=ANNOUNCING)).started()
        with (
            subscriber(node.port, "plant/there", "office/none", "$share/group/plant/shared", qos=1),
            subscriber(node.port, "plant/new", qos=1) as waiting,
        ):
            handler.wait(1)
            with subscriber(node.port, "plant/new", "plant/other/+", qos=1):
                handler.wait(2)
            assert [(one["filter"], one["node"], one["path"]) for one in told(handler)] == [
                ("plant/new", "edge-1", ["edge-1"]),
                ("plant/other/+", "edge-1", ["edge-1"]),
            ]
            publish_all(client, [("plant/new", b"made")])
            waiting.wait_for("plant/new", b"made")
        with subscriber(node.port, "plant/new", "plant/last", qos=1):
            handler.wait(3)
        assert told(handler)[-1]["filter"] == "plant/last"
        wait_until_blocking(lambda: node.link_status()["missing_announced_total"] == 3, what="three accepted")
        status = node.link_status()
        names = ("suppressed_total", "dropped_total", "pending")
        assert [status[f"missing_{name}"] for name in names] == [1, 0, 0]
        assert status["outside_total"] == 0


def test_a_chain_tells_the_primary_whose_topic_it_is(nodes: Nodes) -> None:
    """T16 through a chain: the handler at the top hears of a client at the bottom, once, and creates the topic.

    A middle node that has a topic tells nobody of it, and the one in between names who asked and the way.
    """
    hub = nodes.primary().started()
    a = nodes.secondary(link(hub.port, selector("plant/#", prefix="hq/"), settings=ANNOUNCING), name="a").started()
    b = nodes.secondary(link(a.port, selector("hq/#", prefix="x/"), settings=ANNOUNCING), name="b")
    with publisher(hub.port) as client, subscriber(hub.port, TOPIC, qos=1) as handler:
        publish_all(client, [("plant/there", b"x")])
        wait_until_blocking(lambda: a.topics() == 1, what="the topic at A")
        b.started()
        with (
            subscriber(b.port, "x/hq/plant/there", "x/hq/other", "x/hq/plant/new", qos=1) as waiting,
            subscriber(b.port, "x/hq/plant/new", "x/hq/plant/last", qos=1),
        ):
            handler.wait(2)
            assert sorted(one["filter"] for one in told(handler)) == ["plant/last", "plant/new"]
            assert all((one["node"], one["path"]) == ("b", ["b", "a"]) for one in told(handler))
            publish_all(client, [("plant/new", b"made")])
            waiting.wait_for("x/hq/plant/new", b"made")
    assert [node.link_status()["missing_dropped_total"] for node in (a, b)] == [0, 0]
