"""Topics that clients of a secondary wait for, and that a handler at the primary creates."""

from __future__ import annotations

import json

import pytest

from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, selector

pytestmark = pytest.mark.mosquitto


def test_missing_topic_is_announced_and_created(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """T16: a SUBSCRIBE inside a selector that matches nothing is one notification at the primary; outside it is none.

    The handler creates the topic, which reaches the client that waits.
    """
    settings = QUICK + "announce_missing = true\n"
    with publisher(mosquitto.port) as client, subscriber(mosquitto.port, "fanout/control/missing", qos=1) as handler:
        publish_all(client, [("plant/there", b"x")])
        node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=settings)).started()
        with (
            subscriber(node.port, "plant/there", "office/none", "$share/group/plant/shared", qos=1),
            subscriber(node.port, "plant/new", qos=1) as waiting,
            subscriber(node.port, "plant/new", "plant/other/+", qos=1),
        ):
            handler.wait(2)
            told = [json.loads(one.payload) for one in handler.messages]
            assert [(one["filter"], one["node"]) for one in told] == [
                ("plant/new", "edge-1"),
                ("plant/other/+", "edge-1"),
            ]
            publish_all(client, [("plant/new", b"made")])
            waiting.wait_for("plant/new", b"made")
        with subscriber(node.port, "plant/new", "plant/last", qos=1):
            handler.wait(3)
        assert json.loads(handler.messages[-1].payload)["filter"] == "plant/last"
        status = node.link_status()
        assert (status["missing_announced_total"], status["missing_suppressed_total"]) == (3, 1)
        assert status["outside_total"] == 0
