"""The messages around retained ones: they say what was sent, whatever happens to the values meanwhile."""

from __future__ import annotations

import random

import pytest

from fanout.chain.manifest import ASK_FOR_MANIFEST, MANIFEST_TOPIC, ManifestSum, decode_manifest
from fanout.config import ServerConfig
from fanout.mqtt.decoder import Decoder, PublishRow, PublishRun
from fanout.mqtt.packets import Subscribe, Subscription
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.session.registry import SessionRegistry
from tests.server.core_pieces import Peer, Values, make_session, options
from tests.server.node_in_memory import update

ASKS = Properties(user_property=(ASK_FOR_MANIFEST,))


def rows_of(peer: Peer) -> list[PublishRow]:
    """Return the PUBLISH packets that a peer got."""
    decoder = Decoder(version=5, packet_bytes_max=1 << 20, role="client")
    return [row for item in decoder.feed(peer.read()) if isinstance(item, PublishRun) for row in item.rows]


def between_marks(rows: list[PublishRow]) -> list[PublishRow]:
    """Return what came between the two messages, and check that these agree with it."""
    first, last = (index for index, row in enumerate(rows) if row[0] == MANIFEST_TOPIC)
    begin, end = decode_manifest(rows[first][1]), decode_manifest(rows[last][1])
    assert begin is not None
    assert end is not None
    assert begin.count is None
    assert begin.topic_filter == end.topic_filter == "t/#"
    total = ManifestSum()
    for row in rows[first + 1 : last]:
        assert row[2] & 7 == 1, "nothing but copies"
        total.add(row[0], row[1])
    assert (total.count, total.digest) == (end.count, end.digest)
    return rows[first + 1 : last]


@pytest.mark.parametrize("packet_bytes_max", [0, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_a_moving_set_is_told_as_it_was_sent(seed: int, packet_bytes_max: int) -> None:
    """Values change, come and go, before, while and after they are sent, with and without a live message."""
    chance = random.Random(seed)
    store = Values({topic: update(topic, b"0") for topic in (b"t/%d" % number for number in range(60))})
    store.piece = 7
    peer = Peer(make_session(wire=WireVariant(5, packet_bytes_max=packet_bytes_max)))
    session = peer.session
    session.enqueue(MessageBatch([(update(b"t/1", b"before"), 0, True, ())], wire=session.wire))
    session.add_retained(store.delivery(b"t/#", options(), manifest=True))
    step = 0
    while session.sender.pending:
        step += 1
        for _ in range(chance.randrange(4)):
            topic = b"t/%d" % chance.randrange(70)
            value = update(topic, b"" if chance.random() < 0.2 else b"%d" % step)
            if value[1]:
                store.values[topic] = value
            else:
                store.values.pop(topic, None)
            if step < 200:
                session.enqueue(MessageBatch([(value, 0, True, ())], wire=session.wire))
        peer.take_piece(messages_max=chance.randrange(1, 9))
    rows = rows_of(peer)
    assert len(between_marks(rows)) > 20
    last = {row[0]: row[1] for row in rows if row[0] != MANIFEST_TOPIC}
    assert {topic: payload for topic, payload in last.items() if payload} == {
        topic: value[1] for topic, value in store.values.items()
    }


def test_what_is_too_large_for_the_client_is_missed() -> None:
    """It is of the set, and not sent: the sum has it, so that the client notices."""
    store = Values({topic: update(topic, payload) for topic, payload in ((b"t/1", b"x"), (b"t/2", b"x" * 500))})
    peer = Peer(make_session(wire=WireVariant(5, packet_bytes_max=100)))
    peer.session.add_retained(store.delivery(b"t/#", options(), manifest=True))
    peer.take()
    rows = rows_of(peer)
    assert [row[0] for row in rows] == [MANIFEST_TOPIC, b"t/1", MANIFEST_TOPIC]
    manifest = decode_manifest(rows[-1][1])
    assert manifest is not None
    assert manifest.count == 2


def test_an_empty_set_is_told_too() -> None:
    """With both messages."""
    peer = Peer(make_session())
    peer.session.add_retained(Values({}).delivery(b"t/#", options(), manifest=True))
    peer.take()
    assert between_marks(rows_of(peer)) == []


@pytest.mark.parametrize(
    ("version", "properties", "retain_handling", "told"),
    [(5, ASKS, 0, True), (5, NO_PROPERTIES, 0, False), (5, ASKS, 2, False), (4, NO_PROPERTIES, 0, False)],
)
def test_only_who_asks_is_told(version: int, properties: Properties, retain_handling: int, told: bool) -> None:
    """SUBACK promises it; without retained messages there is nothing to tell."""
    store = Values({b"t/1": update(b"t/1", b"x")})
    registry = SessionRegistry(config=ServerConfig(), store=store, counters=Counters())
    peer = Peer(registry.create("c", wire=WireVariant(version)))
    subscription = Subscription(b"t/#", retain_handling=retain_handling)
    suback = registry.subscribe(peer.session, Subscribe(1, (subscription,), properties))
    peer.take()
    assert (ASK_FOR_MANIFEST in suback.properties.user_property) is told
    assert (MANIFEST_TOPIC in peer.read()) is told
