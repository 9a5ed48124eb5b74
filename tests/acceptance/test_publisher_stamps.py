"""Nodes side by side at a foreign broker that read what the publishers stamped."""

from __future__ import annotations

import asyncio

import pytest
from paho.mqtt.properties import Properties

from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, read_updates, selector

pytestmark = [pytest.mark.mosquitto]

SETTINGS = QUICK + "publisher_stamps = true\n"
ORIGIN_US = 1_770_000_000_000_000


async def test_a_tap_and_a_secondary_log_the_publishers_stamps(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """Of live updates and retained copies, alike at both; clients get the other properties, and no stamp."""

    def stamped(sequence: int) -> Properties:
        value = f"press-4:7:{sequence}:{ORIGIN_US + sequence}"
        return publish_properties(UserProperty=[("unit", "K"), ("fanout-stamp", value)])

    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/held", b"1")], properties=stamped(1))
    tap = nodes.tap(link(mosquitto.port, selector("plant/#"), settings=SETTINGS))
    edge = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=SETTINGS))
    for node in (tap, edge):
        await node.begin()
    with publisher(mosquitto.port) as client, subscriber(edge.port, "plant/#", qos=1) as inbox:
        await asyncio.to_thread(publish_all, client, [("plant/live", b"2")], retain=False, properties=stamped(2))
        await asyncio.to_thread(publish_all, client, [("plant/plain", b"3")], retain=False)
        await asyncio.to_thread(inbox.wait, 3)
    for node in (edge, tap):
        await asyncio.to_thread(node.stop)
    for node in (edge, tap):
        found = {row["topic"]: (row["stamp_primary"], row["sequence"]) for row in read_updates(node.log_directory)}
        assert found == {"plant/held": ("press-4", 1), "plant/live": ("press-4", 2), "plant/plain": (None, None)}
    shown = {message.topic: list(message.properties.get("UserProperty", ())) for message in inbox.messages}
    assert shown == {"plant/held": [("unit", "K")], "plant/live": [("unit", "K")], "plant/plain": []}
