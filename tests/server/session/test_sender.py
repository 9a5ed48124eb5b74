"""Tests of what a session sends to its client: what is written when, and what waits."""

from __future__ import annotations

from fanout.mqtt.decoder import AckRun
from fanout.mqtt.packets import PacketType
from fanout.replica.update import Update
from fanout.server.base.counters import Counters, DropReason
from fanout.server.messages.encoding import Message, WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.sender import PINGRESP
from fanout.server.session.session import Session
from tests.server.core_pieces import Peer, Values, make_session, options
from tests.server.node_in_memory import update

V5 = WireVariant(5)


def message(payload: bytes, *, qos: int = 0, topic: bytes = b"t", expires_ns: int = 0, retain: bool = True) -> Message:
    """Make a message."""
    return (update(topic, payload, qos=qos, expires_ns=expires_ns, retain=retain), qos, False, ())


def batch(*messages: Message, wire: WireVariant = V5) -> MessageBatch:
    """Make a batch as dispatch makes it, encoded."""
    made = MessageBatch(list(messages), wire=wire, expiring=any(one[0][6] for one in messages))
    made.shared_frames(wire, now_ns=0)
    return made


def deliver(
    session_peer: Peer,
    *values: Update,
    topic_filter: bytes = b"#",
    granted: SubscriptionOptions | None = None,
) -> None:
    """Give a session retained messages."""
    store = Values({value[0]: value for value in values})
    store.piece = 1
    session_peer.session.add_retained(store.delivery(topic_filter, granted or options(2)))


def publish(payload: bytes, qos: int = 0, packet_id: int = 0, *, flags: int = 0, topic: bytes = b"t") -> bytes:
    """Encode a PUBLISH without properties for MQTT 5."""
    body = len(topic).to_bytes(2, "big") + topic + (packet_id.to_bytes(2, "big") if qos else b"") + b"\0" + payload
    return bytes((0x30 | qos << 1 | flags, len(body))) + body


def ack(kind: PacketType, *packet_ids: int, codes: list[int] | None = None) -> AckRun:
    """Make a run of acknowledgements."""
    return AckRun(kind, list(packet_ids), codes)


def test_pieces_are_limited_in_bytes() -> None:
    """One piece has about as many bytes as asked for, wherever its messages come from."""
    peer = Peer(make_session(), window=4)
    large = b"x" * 1000
    for _ in range(2):
        peer.session.send(batch(message(large, qos=1), message(large, qos=1)), now_ns=0)
    peer.session.disconnect()
    peer.connect()
    deliver(peer, *(update(b"r/%d" % number, large) for number in range(4)))
    for _ in range(4):
        peer.session.enqueue(batch(message(large)))
    sizes: list[int] = []
    while peer.session.sender.pending:
        peer.take_piece(bytes_max=1500)
        sizes.append(peer.read().count(large))
    assert sum(sizes) == 12
    assert max(sizes) == 2


def test_resumption_honours_a_smaller_receive_maximum() -> None:
    """Only as many are sent again as the new Receive Maximum allows; acknowledged ones make room."""
    peer = Peer(make_session(), window=3)
    session = peer.session
    session.send(batch(*(message(b"%d" % number, qos=1) for number in (1, 2, 3))), now_ns=0)
    session.disconnect()
    session.enqueue(batch(message(b"4", qos=1)))
    peer.window = 1
    peer.connect()
    peer.take()
    assert peer.read() == publish(b"1", 1, 1, flags=8)
    assert session.sender.inflight.blocked
    session.acknowledge(ack(PacketType.PUBACK, 1, 3))  # 3 was acknowledged before it was sent again
    peer.take()
    assert peer.read() == publish(b"2", 1, 2, flags=8)
    session.acknowledge(ack(PacketType.PUBACK, 2))
    peer.take()
    assert peer.read() == publish(b"4", 1, 4)


def test_value_whose_message_was_dropped_comes_as_retained() -> None:
    """When the queue gives up the newer message, the retained value is not left out."""
    counters = Counters()
    peer = Peer(make_session(queue_messages_max=1, counters=counters))
    new = message(b"new", topic=b"b")
    deliver(peer, update(b"a", b"old"), new[0])
    peer.session.enqueue(batch(new))
    peer.session.enqueue(batch(message(b"last", topic=b"c")))
    peer.take()
    assert peer.read() == b"".join(
        (
            publish(b"old", flags=1, topic=b"a"),
            publish(b"new", flags=1, topic=b"b"),
            publish(b"last", topic=b"c"),
        )
    )
    assert counters.dropped[DropReason.QUEUE_FULL] == 1


def test_ping_behind_an_acknowledgement_waits_again() -> None:
    """As soon as the client has acknowledged, or subscribed anew, a PINGREQ takes its turn."""
    peer = Peer(make_session(), window=1)
    session = peer.session
    deliver(peer, update(b"a", b"1", qos=1), update(b"b", b"2", qos=1))
    peer.take()
    deliver(peer, update(b"c", b"3"), topic_filter=b"c")
    assert not session.sender.ping()
    peer.take()
    assert session.sender.ping()
    session.acknowledge(ack(PacketType.PUBACK, 1))
    assert not session.sender.ping()


def test_retained_messages_of_an_ended_subscription_stop() -> None:
    """UNSUBSCRIBE stops them; a PINGREQ that waited for them is answered in its turn."""
    peer = Peer(make_session(), window=1)
    session = peer.session
    deliver(peer, update(b"a/1", b"1", qos=1), update(b"a/2", b"2", qos=1), topic_filter=b"a")
    session.cancel_retained(b"other")
    peer.take()
    assert session.sender.inflight.blocked
    peer.read()
    session.cancel_retained(b"a")
    session.acknowledge(ack(PacketType.PUBACK, 1))
    deliver(peer, update(b"b", b"3"), topic_filter=b"b")
    assert not session.sender.ping()
    deliver(peer, update(b"c", b"4"), topic_filter=b"c")
    session.cancel_retained(b"b")
    peer.take()
    assert peer.read() == publish(b"4", flags=1, topic=b"c") + PINGRESP
    deliver(peer, update(b"b", b"3"), topic_filter=b"b")
    session.sender.ping()
    session.cancel_retained(b"b")
    peer.take()
    assert peer.read() == PINGRESP


def test_subscribing_again_starts_retained_messages_again() -> None:
    """What was left of them is replaced, and a PINGREQ that waited waits for the new ones."""
    peer = Peer(make_session())
    session = peer.session
    deliver(peer, update(b"a", b"1"), update(b"b", b"2"))
    peer.take_piece(messages_max=1)
    assert not session.sender.ping()
    deliver(peer, update(b"a", b"1"), update(b"b", b"2"))
    peer.take()
    first, second = publish(b"1", flags=1, topic=b"a"), publish(b"2", flags=1, topic=b"b")
    assert peer.read() == first + first + second + PINGRESP


def test_packet_over_the_maximum_size_is_not_sent() -> None:
    """A PUBLISH over the client's Maximum Packet Size is dropped and counted [MQTT-3.1.2-25]."""
    counters = Counters()
    wire = WireVariant(5, packet_bytes_max=20)
    peer = Peer(make_session(wire=wire, counters=counters))
    deliver(peer, update(b"a", b"x" * 100, qos=1), update(b"b", b"y"))
    peer.take()
    assert peer.read() == publish(b"y", flags=1, topic=b"b")
    assert counters.dropped[DropReason.PACKET_TOO_LARGE] == 1
    assert len(peer.session.sender.inflight.outbound) == 0


def test_message_too_large_for_the_new_connection_is_completed() -> None:
    """What was in flight and is over the new Maximum Packet Size counts as completed [MQTT-3.1.2-25]."""
    counters = Counters()
    peer = Peer(make_session(counters=counters))
    session = peer.session
    one = batch(message(b"x" * 100, qos=1), message(b"x" * 100, qos=2), message(b"y", qos=1))
    session.send(one, now_ns=0)
    session.disconnect()
    session.wire = WireVariant(5, packet_bytes_max=20)
    peer.connect()
    peer.take()
    assert peer.read() == publish(b"y", 1, 3, flags=8)
    assert counters.dropped[DropReason.PACKET_TOO_LARGE] == 2
    assert len(session.sender.inflight.outbound) == 1


def deliver_piece(store: Values, *peers: Peer, granted: SubscriptionOptions | None = None) -> None:
    """Give sessions all values of a store, in pieces of the store's size."""
    for peer in peers:
        peer.session.add_retained(store.delivery(b"#", granted or options()))


def test_joiners_share_the_bytes_of_a_piece() -> None:
    """Sessions that are given the same values get the very same bytes, which are encoded once."""
    peers = [Peer(make_session()) for _ in range(3)]
    values = [update(b"t/%d" % number, b"v") for number in range(5)]
    deliver_piece(Values({value[0]: value for value in values}), *peers)
    for peer in peers:
        peer.take_piece()
    first, *others = (peer.written.pop() for peer in peers)
    assert first == b"".join(publish(b"v", flags=1, topic=value[0]) for value in values)
    assert all(other == first for other in others)


def test_joiner_with_live_messages_waiting_gets_the_rest_of_a_piece() -> None:
    """What a live message for a topic takes the place of is left out of a shared piece."""
    peers = [Peer(make_session()) for _ in range(3)]
    store = Values({topic: update(topic, b"old") for topic in (b"a", b"b", b"c")})
    deliver_piece(store, *peers)
    store.values[b"b"] = update(b"b", b"new")
    live = batch((store.values[b"b"], 0, False, ()))
    peers[1].session.enqueue(live)
    peers[2].session.pause()
    peers[2].session.enqueue(live)
    for peer in peers:
        peer.take()
    old = [publish(b"old", flags=1, topic=topic) for topic in (b"a", b"c")]
    retained, new = publish(b"new", flags=1, topic=b"b"), publish(b"new", topic=b"b")
    assert [peer.read() for peer in peers] == [
        old[0] + retained + old[1],
        old[0] + old[1] + new,
        old[0] + retained + old[1],
    ]


def test_values_that_cannot_be_shared_come_within_the_limits() -> None:
    """A piece of large or expiring values is divided, and what has expired meanwhile is left out [MQTT-3.3.2-5]."""
    peer = Peer(make_session())
    properties = (b"\x26\x00\x01n\xc3\x50" + b"x" * 50_000) * 2
    large = {b"%d" % number: update(b"%d" % number, b"", properties=properties) for number in range(2)}
    large |= {b"%d" % number: update(b"%d" % number, b"x" * 100_000) for number in range(2, 4)}
    deliver_piece(Values(large | {b"e": update(b"e", b"expired", expires_ns=5)}), peer)
    sizes: list[int] = []
    while peer.session.sender.pending:
        peer.take_piece(bytes_max=150_000, now_ns=5)
        sizes.append(peer.read().count(b"x" * 50_000) // 2)
    assert sizes == [2, 2, 0]


def test_session_that_overflowed_takes_nothing_more() -> None:
    """It enters itself where the shell finds it, and what still comes counts as lost with its end."""
    counters = Counters()
    overflowed: dict[Session, None] = {}
    session = make_session(counters=counters, queue_messages_max=2, overflowed=overflowed)
    for number in range(3):
        assert not overflowed
        session.enqueue(batch(message(b"%d" % number, qos=1)))
    assert list(overflowed) == [session]
    session.enqueue(batch(message(b"4", qos=1), message(b"5", qos=2)))
    assert session.sender.queue.messages == 3
    assert counters.dropped[DropReason.SESSION_ENDED] == 2


def test_order_of_one_topic_is_kept_where_not_all_is_conflated() -> None:
    """A value stays before a message for its topic that is delivered as it is."""
    peer = Peer(make_session())
    peer.session.pause()
    peer.session.enqueue(batch(message(b"1"), message(b"other", topic=b"o")))
    peer.session.enqueue(batch(message(b"2", retain=False), message(b"3", qos=1)))
    peer.session.enqueue(batch(message(b"4")))
    peer.session.resume()
    peer.take()
    expected = publish(b"1") + publish(b"2") + publish(b"3", 1, 1)
    assert peer.read() == expected + publish(b"other", topic=b"o") + publish(b"4")


def test_ping_does_not_wait_for_acknowledgements() -> None:
    """A session that waits for its client answers PINGREQ at once [MQTT-3.3.4-10]."""
    peer = Peer(make_session(), window=1)
    session = peer.session
    deliver(peer, update(b"a", b"1", qos=1), update(b"b", b"2", qos=1))
    assert not session.sender.ping()
    peer.take()
    assert peer.read() == publish(b"1", 1, 1, flags=1, topic=b"a") + PINGRESP
    assert session.sender.ping()
    session.acknowledge(ack(PacketType.PUBACK, 1))
    peer.take()
    assert peer.read() == publish(b"2", 1, 2, flags=1, topic=b"b")


def test_a_restored_queue_may_be_above_the_limits() -> None:
    """An earlier process accepted its messages, maybe with a higher limit: none is lost in silence, nor ends it."""
    counters = Counters()
    peer = Peer(make_session(queue_messages_max=1, counters=counters))
    peer.session.disconnect()
    batches = [batch(message(b"%d" % number, qos=1), message(b"x", qos=1)) for number in range(2)]
    peer.session.sender.restore(batches, replacing={})
    peer.connect()
    peer.take()
    assert peer.read().count(b"x") == 2
    peer.session.acknowledge(ack(PacketType.PUBACK, 1, 2, 3, 4))
    peer.session.enqueue(batch(message(b"next", qos=1)))
    assert not peer.session.sender.queue.overflowed
    assert counters.dropped[DropReason.SESSION_ENDED] == 0
