"""What becomes of replica and clients when a session is lost: `on_session_loss`, `grace_s`, `disconnect_clients`."""

from __future__ import annotations

import pytest

from tests.acceptance.test_session_loss import give_back, take_away
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, Nodes, link, selector
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

STALE = QUICK + 'session_expiry_s = 1\non_session_loss = "serve_stale"\n'
VALUES = {f"plant/{number}": b"x" for number in range(100)}


async def test_stale_values_are_served_and_only_differences_follow(
    mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes
) -> None:
    """Not ready and `stale` while the primary is away; afterwards subscribers get what differs, and nothing twice."""
    node = nodes.secondary(link(proxy.port, selector("plant/#"), settings=STALE))
    with publisher(mosquitto.port) as client:
        publish_all(client, VALUES.items())
        await node.begin()
        with subscriber(node.port, "plant/#", qos=1) as live:
            live.wait(100)
            await take_away(proxy, node)
            await wait_until(lambda: node.link_state() == "stale", what="staleness")
            status, document = node.probe()
            assert (status, document["links"][0]["ready"]) == (503, False)
            assert document["links"][0]["reason"].startswith("stale (")
            assert 'fanout_link_state{link="primary",state="stale"} 1.0' in node.get("/metrics").text
            assert read_retained(node.port) == VALUES
            publish_all(client, [("plant/1", b"changed"), ("plant/2", b""), ("plant/new", b"n")])
            await give_back(proxy, node)
            publish_all(client, [("plant/end", b"")], retain=False)
            await wait_until(lambda: "plant/end" in live.topics, what="the last message")
            assert sorted((one.topic, one.payload) for one in live.messages[100:-1]) == [
                ("plant/1", b"changed"),
                ("plant/2", b""),
                ("plant/new", b"n"),
            ]
    assert node.link_status()["epochs_total"] == 2
    assert (node.link_status()["state"], node.link_status()["stale_left_seconds"]) == ("live", None)
