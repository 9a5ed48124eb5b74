"""Kinds of topics: what a selector does not take is not replicated, and the node says how much it was."""

from __future__ import annotations

import pytest

from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, selector
from tests.support.raw_reader import read_retained

pytestmark = pytest.mark.mosquitto


def test_only_what_a_selector_takes_is_replicated(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """By content, by RETAIN and by size, in the snapshot and live; the node is ready with what fits."""
    node = nodes.secondary(
        link(
            mosquitto.port,
            selector("json/#") + 'content = ["json"]\n',
            selector("kept/#") + "retained_only = true\n",
            selector("live/#") + "live_only = true\n",
            selector("small/#") + "max_payload = 4\n",
            settings=QUICK,
        )
    )
    with publisher(mosquitto.port) as client:
        publish_all(client, [("json/1", b"{}"), ("json/2", b"\xff"), ("live/1", b"x"), ("small/1", b"12345")])
        publish_all(client, [("json/3", b"{}")], properties=publish_properties(ContentType="image/png"))
        node.started()
        assert read_retained(node.port) == {"json/1": b"{}"}
        with subscriber(node.port, "#", qos=1) as live:
            live.wait(1)
            publish_all(client, [("json/1", b"no json"), ("live/1", b"now"), ("small/2", b"1234")])
            publish_all(client, [("kept/1", b"not retained")], retain=False)
            publish_all(client, [("kept/2", b"end")])
            live.wait_for("kept/2")
            got = [(one.topic, one.payload) for one in live.messages[1:]]
        assert sorted(got) == [("json/1", b""), ("kept/2", b"end"), ("live/1", b"now"), ("small/2", b"1234")]
    assert read_retained(node.port) == {"kept/2": b"end", "small/2": b"1234"}
    assert node.ready
    unfit = [one["unfit_total"] for one in node.link_status()["selectors"]]
    assert unfit == [{"content": 3}, {"not_retained": 1}, {}, {"payload_too_large": 1}]
    sample = 'fanout_selector_unfit_total{link="primary",reason="content",selector="json/#"} 3.0'
    assert sample in node.get("/metrics").text
