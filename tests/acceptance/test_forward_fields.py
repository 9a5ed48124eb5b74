"""Every field of a PUBLISH and of a Will of a local client that is forwarded, at and over each limit, legal or not.

After each of them the link is live again, in the same epoch, everything around it arrived at the primary and came
back, and a message that was given up is counted and named. The primary is a Mosquitto, whose limits are lower.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fanout.escaping import printable
from fanout.mqtt.packets import Ack, PacketType, Publish, Will
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.publish import encode_publish
from tests.support.clients import Inbox, subscriber
from tests.support.mosquitto import Mosquitto, find_mosquitto
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

SIZE_LIMIT = 20_000
"""`message_size_limit` of the Mosquitto, which answers PUBACK 0x95 above it."""
K = (("k", "v"),)


@dataclass(frozen=True, slots=True)
class Case:
    """One message."""

    name: str
    topic: bytes = b""
    payload: bytes = b"x"
    retain: bool = False
    properties: Properties = NO_PROPERTIES
    block: bytes = b""
    """Encoded properties in place of these."""
    legal: bool = True
    """False when the node itself refuses it, or the whole client."""
    arrives: bool | None = True
    """Whether the primary takes it; None: it is left to the primary."""


def topics() -> Iterator[Case]:
    """Give Topic Names."""
    for name, level, arrives in (
        ("U+0001", "\x01", False),
        ("U+0085", "\x85", False),
        ("U+FFFE", "\ufffe", False),
        ("U+10FFFF", "\U0010ffff", None),
        ("U+FEFF", "\ufeff", True),
        ("a blank", " ", True),
        ("an empty level", "", True),
        ("a dollar", "$SYS", True),
    ):
        yield Case(f"topic with {name}", b"set/%b/t" % level.encode(), arrives=arrives)
    for levels in (200, 201, 5_000):
        yield Case(f"topic of {levels} levels", b"/".join([b"set", *[b"l"] * (levels - 1)]), arrives=None)
    yield Case("topic of one byte more than the filter", b"set/", arrives=True)
    yield Case("longest topic", b"set/" + b"x" * (65_535 - 4), arrives=None)
    for name, topic in (("+", b"set/+"), ("#", b"set/#"), ("U+0000", b"set/\0"), ("bad UTF-8", b"set/\xff"), ("", b"")):
        yield Case(f"illegal topic {name}", topic, legal=False)
    yield Case("surrogate in the topic", b"set/\xed\xa0\x80", legal=False)


def payloads() -> Iterator[Case]:
    """Give payloads."""
    for size in (0, 1, 126, 127, 128, SIZE_LIMIT - 100):
        yield Case(f"payload of {size}", b"set/payload", b"p" * size)
    yield Case("payload over the primary's limit", b"set/payload", b"p" * (SIZE_LIMIT + 1), arrives=False)
    yield Case("payload at the node's limit", b"set/payload", b"p" * ((1 << 20) - 40), arrives=False)
    yield Case("packet over the node's limit", b"set/payload", b"p" * (1 << 20), legal=False)
    yield Case("retained", b"set/retained", retain=True)
    yield Case("removal", b"set/retained", b"", retain=True)


def properties() -> Iterator[Case]:
    """Give properties, of MQTT 5 only."""
    long = "x" * 65_535
    for name, block, arrives in (
        ("User Property", Properties(user_property=K), True),
        ("empty User Property", Properties(user_property=(("", ""),)), True),
        ("User Property key with U+0001", Properties(user_property=(("\x01", "v"),)), False),
        ("User Property value with U+0001", Properties(user_property=(("k", "\x01"),)), False),
        ("User Property with U+FFFF", Properties(user_property=(("k", "\uffff"),)), False),
        ("500 User Properties", Properties(user_property=K * 500), True),
        ("longest User Property", Properties(user_property=((long, long),)), None),
        ("Content Type", Properties(content_type="text/plain"), True),
        ("empty Content Type", Properties(content_type=""), True),
        ("Content Type with U+0001", Properties(content_type="\x01"), False),
        ("Response Topic", Properties(response_topic="answers"), True),
        ("Response Topic with U+007F", Properties(response_topic="\x7f"), False),
        ("Response Topic of 300 levels", Properties(response_topic="/".join("x" * 300)), None),
        ("Correlation Data", Properties(response_topic="a", correlation_data=bytes(range(256))), True),
        ("empty Correlation Data", Properties(correlation_data=b""), True),
        ("longest Correlation Data", Properties(correlation_data=b"\0" * 65_535), None),
        ("Payload Format Indicator", Properties(payload_format_indicator=1), True),
        ("expiry 0", Properties(message_expiry_interval=0), None),
        ("expiry 1", Properties(message_expiry_interval=1), True),
        ("longest expiry", Properties(message_expiry_interval=0xFFFFFFFF), None),
        ("Topic Alias", Properties(topic_alias=1), True),
    ):
        yield Case(name, b"set/properties", properties=block, arrives=arrives)
    for name, encoded in (
        ("Response Topic with a wildcard", b"\x08\0\x03k/#"),
        ("empty Response Topic", b"\x08\0\0"),
        ("Topic Alias 0", b"\x23\0\0"),
        ("Topic Alias over the maximum", b"\x23\xff\xff"),
        ("Subscription Identifier", b"\x0b\x01"),
        ("Payload Format Indicator 2", b"\x01\x02"),
        ("two Content Types", b"\x03\0\0\x03\0\0"),
        ("property of another packet", b"\x11\0\0\0\0"),
        ("unknown property", b"\x7f"),
    ):
        yield Case(name, b"set/properties", block=encoded, legal=False)


OF_BOTH = [*topics(), *payloads()]
OF_5 = list(properties())
TAKEN = [case for case in (*OF_BOTH, *OF_5) if case.arrives and case.legal]
ILLEGAL = [case for case in (*OF_BOTH, *OF_5) if not case.legal]


def not_taken(*cases: Case) -> list[Any]:
    """Return what the primary does not take, or may not take: each is a test of its own."""
    return [pytest.param(case, id=case.name) for case in cases if case.legal and not case.arrives]


@dataclass
class Scene:
    """A node that forwards to a Mosquitto, and subscribers at both."""

    mosquitto: Mosquitto
    node: LiveNode
    at_primary: Inbox
    local: Inbox
    numbers: Iterator[int]

    def epoch(self) -> int:
        """Return the epoch of the link."""
        return int(self.node.link_status()["epoch"])

    def refused(self) -> int:
        """Return how many messages were refused, given-up ones included."""
        return int(self.node.document("/v1/status")["server"]["dropped_total"]["refused"])

    def given_up(self) -> int:
        """Return how many messages were given up."""
        return int(self.node.link_status()["skipped_total"]["closes_connection"])

    async def neighbour(self, client: RawClient) -> str:
        """Publish something harmless, and return its topic."""
        topic = f"set/neighbour/{next(self.numbers)}"
        client.publish(topic.encode(), b"n", qos=1)
        return topic

    async def check(self, case: Case, *, neighbours: list[str], epoch: int) -> None:
        """Wait until the link is live and everything around the message is at both sides."""
        await wait_until(lambda: self.node.link_state() == "live", what=f"the link live after {case.name}")
        for inbox in (self.at_primary, self.local):
            await wait_until(
                lambda inbox=inbox: set(neighbours) <= set(inbox.topics),  # type: ignore[misc]
                what=f"what surrounds {case.name}",
            )
        assert self.epoch() == epoch, case.name
        assert self.node.ready


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Give the scene that all cases share, with a link over MQTT 5."""
    with scene_of(tmp_path_factory.mktemp("fields"), link_version=5) as scene:
        yield scene


@pytest.fixture(scope="module")
def old_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Give the same with a link over MQTT 3.1.1, whose session no connection could resume."""
    with scene_of(tmp_path_factory.mktemp("old"), link_version=4) as scene:
        yield scene


@contextlib.contextmanager
def scene_of(directory: Path, *, link_version: int) -> Iterator[Scene]:
    """Run a Mosquitto, a node and subscribers at both."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    nodes = Nodes(directory)
    settings = f"{QUICK}version = {link_version}\n"
    with Mosquitto(directory, settings=[f"message_size_limit {SIZE_LIMIT}"]) as mosquitto:
        node = nodes.secondary(link(mosquitto.port, selector("set/#", qos=2, writes="forward"), settings=settings))
        try:
            node.started()
            with (
                subscriber(mosquitto.port, "set/neighbour/#", qos=1) as at_primary,
                subscriber(node.port, "set/neighbour/#", qos=1) as local,
            ):
                yield Scene(mosquitto, node, at_primary, local, itertools.count())
        finally:
            nodes.end()


async def answers(client: RawClient) -> AsyncIterator[Ack]:
    """Yield the acknowledgements that come until the client is closed or nothing comes any more."""
    with contextlib.suppress(ServerClosed, TimeoutError):
        while True:
            async with asyncio.timeout(60):
                packet = await client.receive()
            if isinstance(packet, Ack):
                yield packet


async def test_fields_that_are_taken_or_refused_here(scene: Scene) -> None:
    """What is legal and no primary minds arrives; what is illegal ends its publisher's connection alone."""
    for case in (*TAKEN, *ILLEGAL):
        await publish_case(scene, case)


@pytest.mark.parametrize("case", not_taken(*OF_BOTH, *OF_5))
async def test_a_field_that_is_not_taken(scene: Scene, case: Case) -> None:
    """At each QoS, with other messages around it."""
    await publish_case(scene, case)


@pytest.mark.parametrize("case", not_taken(*OF_BOTH))
async def test_a_field_that_is_not_taken_over_mqtt_3_1_1(old_scene: Scene, case: Case) -> None:
    """A link over MQTT 3.1.1 publishes on a connection of its own, which alone the primary closes."""
    if len(case.payload) > SIZE_LIMIT:
        case = replace(case, arrives=None)  # Mosquitto acknowledges it, as it would not have to
    await publish_case(old_scene, case)


async def publish_case(scene: Scene, case: Case) -> None:
    """Publish at each QoS, with other messages around it, and check what became of all."""
    epoch = scene.epoch()
    neighbours: list[str] = []
    for qos in (0, 1, 2):
        refused, given_up = scene.refused(), scene.given_up()
        async with await RawClient.connect(scene.node.port) as client:
            neighbours.append(await scene.neighbour(client))
            packet_id = client.next_packet_id() if qos else 0
            if case.block or not case.legal:
                client.send_bytes(
                    encode_publish(
                        case.topic, case.payload, version=5, qos=qos, packet_id=packet_id, properties=case.block
                    )
                )
            else:
                client.send(
                    Publish(case.topic, case.payload, qos, case.retain, False, packet_id or None, case.properties)
                )
            if not case.legal:
                async with await RawClient.connect(scene.node.port) as other:
                    neighbours.append(await scene.neighbour(other))
                    await other.expect(Ack)
                continue
            neighbours.append(await scene.neighbour(client))
            told = [await anext(answers(client)) for _ in range(3 if qos else 2)]
            if qos:
                code = next(one.reason_code for one in told if one.packet_id == packet_id)
                assert case.arrives is None or (code < 0x80) is case.arrives, (case.name, code)
                assert all(one.reason_code < 0x80 for one in told if one.packet_id != packet_id)
        if case.arrives is False:
            await wait_until(lambda before=refused: scene.refused() > before, what="a refused message")  # type: ignore[misc]
            if scene.given_up() > given_up:  # the log is thinned out, for there are many
                named = scene.node.link_status()["skipped_newest"][0]
                assert (named["reason"], named["topic"]) == ("closes_connection", printable(case.topic.decode()))
    await scene.check(case, neighbours=neighbours, epoch=epoch)


@pytest.mark.parametrize("case", [*not_taken(*OF_BOTH, *OF_5)[:2], pytest.param(None, id="those that are taken")])
async def test_a_field_of_a_will(scene: Scene, case: Case | None) -> None:
    """It is published as any other message when its client is gone without DISCONNECT; some that are not taken."""
    epoch = scene.epoch()
    neighbours: list[str] = []
    for one, qos in itertools.product(TAKEN if case is None else [case], (0, 1, 2)):
        if len(one.payload) > 0xFFFF or one.properties.topic_alias:
            continue  # a CONNECT cannot have it
        will = Will(one.topic, one.payload, qos, one.retain, one.properties)
        async with await RawClient.connect(scene.node.port, will=will) as client:
            assert client.connack.reason_code == 0
        async with await RawClient.connect(scene.node.port) as other:
            neighbours.append(await scene.neighbour(other))
            await other.expect_ack(PacketType.PUBACK, 1, 0)
    await scene.check(case or TAKEN[0], neighbours=neighbours, epoch=epoch)
