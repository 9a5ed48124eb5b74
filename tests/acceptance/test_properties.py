"""Properties that publishers choose come out of every node as they went in, whatever they hold."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from fanout.mqtt.packets import Ack, PacketType
from fanout.mqtt.properties import Properties, decode_properties
from fanout.mqtt.publish import encode_publish, encode_varint
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_updates, selector
from tests.support.raw_client import RawClient

DISC = '[retained]\nstorage = "disc"\n'


def user(name: str, value: str) -> bytes:
    """Return an encoded User Property."""
    return b"\x26" + b"".join(len(text).to_bytes(2, "big") + text for text in (name.encode(), value.encode()))


def correlation(data: bytes) -> bytes:
    """Return an encoded Correlation Data."""
    return b"\x09" + len(data).to_bytes(2, "big") + data


STAMP = user("fanout-stamp", "zz:5:6:7")
COPY = user("fanout-copy", "1")
MARKED_STAMP = user("fanout-stamp", "zz:5:6:7;copy")

# Cut the mark out of this Correlation Data, and it swallows the beginning of the User Property: what is left reads as a
# Subscription Identifier (or a Topic Alias), and a User Property with a value of 771 bytes.
CONTENT_TYPE_THAT_READS_AS_A_VALUE = b"\x03\x03\x02" + b"t" * 770


def swallowed(mark: bytes, smuggled: str) -> bytes:
    """Return Correlation Data with a mark in it, and behind it what becomes `smuggled` where the mark is cut out."""
    return correlation(mark) + user("n" * (len(mark) - 3) + smuggled + "\x26", "v") + CONTENT_TYPE_THAT_READS_AS_A_VALUE


NASTY = {
    "none": b"",
    "plain": user("unit", "K") + b"\x03\x00\x04text" + b"\x08\x00\x06answer",
    "Correlation Data that ends with a stamp": correlation(b"abc" + STAMP),
    "a User Property, then that": user("unit", "K") + correlation(b"abc" + STAMP),
    "Correlation Data that is a stamp": correlation(STAMP),
    "Correlation Data that ends with a stamp of a copy": correlation(b"abc" + MARKED_STAMP),
    "Correlation Data that ends with an empty stamp": correlation(b"abc" + user("fanout-stamp", "")),
    "Correlation Data with a mark, and a Subscription Identifier": swallowed(COPY, "\x0b\x07"),
    "Correlation Data with a mark, and a Topic Alias": swallowed(COPY, "#AA"),
    "Correlation Data with a stamp, and a Subscription Identifier": swallowed(STAMP, "\x0b\x07"),
    "a stamp": STAMP,
    "a stamp twice": STAMP + STAMP,
    "a stamp, not the last": STAMP + user("unit", "K"),
    "a stamp, then Correlation Data": STAMP + correlation(b"abc"),
    "a User Property, then a stamp": user("unit", "K") + STAMP,
    "a stamp of the node": user("fanout-stamp", "edge-1:5:6:7"),
    "an empty stamp": user("fanout-stamp", ""),
    "two empty stamps": user("fanout-stamp", "") * 2,
    "a stamp that is none": user("fanout-stamp", "x"),
    "a stamp of a copy": MARKED_STAMP,
    "an empty stamp of a copy": user("fanout-stamp", ";copy"),
    "a mark": COPY,
    "a mark and a stamp": COPY + STAMP,
    "a stamp and a mark": STAMP + COPY,
    "a mark with another value": user("fanout-copy", "0"),
    "names that a CONNECT has": user("fanout-stamps", "1") + user("fanout-node", "x") + user("fanout-manifest", "1"),
    "names elsewhere": b"\x03\x00\x0cfanout-stamp\x08\x00\x0bfanout-copy" + user("x", "fanout-stamp"),
    "too long to be remembered": user("unit", "K" * 300) + STAMP,
}


def read(block: bytes) -> Properties:
    """Return a property block without its length by type."""
    return decode_properties(encode_varint(len(block)) + block, 0, packet=PacketType.PUBLISH)[0]


@dataclass
class Way:
    """A chain of nodes, and where a publisher begins it.

    Attributes:
        port: Where messages are published.
        nodes: The nodes that serve them, from the primary down.
        messages: The properties of what is published.
    """

    port: int
    nodes: tuple[LiveNode, ...]
    messages: dict[str, bytes]


@pytest.fixture(params=["stamping", "hub"])
async def way(request: pytest.FixtureRequest, nodes: Nodes, mosquitto: Mosquitto) -> Way:
    """Return one node, or two, below a Mosquitto or a `fanout primary`; one has the retained values on disk."""
    above: tuple[LiveNode, ...] = ()
    port = mosquitto.port
    if request.param == "hub":
        above = (await nodes.primary(settings=DISC).begin(),)
        port = above[0].port
    settings = QUICK + ("stamp_updates = true\n" if request.param == "stamping" else "")
    edge = await nodes.secondary(
        link(port, selector("t/#", writes="forward"), settings=settings), settings=DISC
    ).begin()
    below = await nodes.secondary(
        link(edge.port, selector("t/#", writes="forward"), settings=QUICK), name="edge-2"
    ).begin()
    # Mosquitto takes no control characters in strings.
    messages = {name: block for name, block in NASTY.items() if above or b"\x0b\x07" not in block}
    return Way(port, (*above, edge, below), messages)


async def publish_all(port: int, root: bytes, messages: dict[str, bytes], *, retain: bool) -> None:
    """Publish messages with these properties at QoS 1, each to a topic of its own."""
    async with await RawClient.connect(port) as client:
        for number, block in enumerate(messages.values(), 1):
            packet = encode_publish(
                b"%s/%d" % (root, number), b"x", version=5, qos=1, packet_id=number, retain=retain, properties=block
            )
            client.send_bytes(packet)
        for number in range(1, len(messages) + 1):
            ack = await client.expect(Ack)
            assert (ack.packet_id, ack.reason_code & 0x80) == (number, 0)


@asynccontextmanager
async def subscribed(ports: list[int], topic_filter: bytes) -> AsyncIterator[list[RawClient]]:
    """Subscribe at each port."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await RawClient.connect(port)) for port in ports]
        for client in clients:
            await client.subscribe(topic_filter)
        yield clients


async def expect_all(client: RawClient, root: bytes, messages: dict[str, bytes], *, where: str) -> None:
    """Take every message, in any order, and demand that it has the properties that were sent."""
    came = {message.topic: message for message in await client.messages(len(messages))}
    for number, (name, block) in enumerate(messages.items(), 1):
        assert came[b"%s/%d" % (root, number)].properties == read(block), f"{name} at {where}"


@pytest.mark.mosquitto
async def test_properties_come_out_at_every_hop_as_they_went_in(way: Way) -> None:
    """By type, User Properties in order: live, retained, forwarded upwards, and after a restart."""
    names = [node.name for node in way.nodes]

    def ports() -> list[int]:
        return [node.port for node in way.nodes]

    for root, port, retain in (
        (b"t/live", way.port, False),
        (b"t/held", way.port, True),
        (b"t/forwarded", way.nodes[-1].port, False),
    ):
        async with subscribed(ports(), root + b"/#") as clients:
            await publish_all(port, root, way.messages, retain=retain)
            for name, client in zip(names, clients, strict=True):
                await expect_all(client, root, way.messages, where=name)

    async def expect_held(when: str) -> None:
        async with subscribed(ports(), b"t/held/#") as clients:
            for name, client in zip(names, clients, strict=True):
                await expect_all(client, b"t/held", way.messages, where=f"{name} {when}")

    await expect_held("retained")
    for node in reversed(way.nodes):
        await asyncio.to_thread(node.stop)
    for node in way.nodes:
        await node.begin()
    await expect_held("after a restart")
    for node in reversed(way.nodes):
        await asyncio.to_thread(node.stop)
    stamped_by = {row["stamp_primary"] for node in way.nodes for row in read_updates(node.log_directory)}
    assert stamped_by <= {None, *names}


@pytest.mark.mosquitto
async def test_a_publishers_word_on_copies_is_plain_data(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """Repeated values are delivered at the node and below it, though the publisher marks them as copies."""
    edge = await nodes.secondary(link(mosquitto.port, selector("t/#"), settings=QUICK)).begin()
    below = await nodes.secondary(link(edge.port, selector("t/#"), settings=QUICK), name="edge-2").begin()
    marks = (COPY, MARKED_STAMP, user("fanout-stamp", ";copy"))
    async with (
        subscribed([edge.port, below.port], b"t/#") as clients,
        await RawClient.connect(mosquitto.port) as publisher,
    ):
        for mark, _ in itertools.product(marks, range(3)):
            publisher.send_bytes(encode_publish(b"t/1", b"x", version=5, retain=True, properties=mark))
        for client in clients:
            came = [message.properties.user_property for message in await client.messages(3 * len(marks))]
            assert came == [read(mark).user_property for mark in marks for _ in range(3)]
