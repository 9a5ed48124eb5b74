"""Tests of dispatch: what each member of each audience gets from one batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.chain.stamp import as_copy, with_trailer
from fanout.mqtt.publish import encode_publish
from fanout.mqtt.topics import matches
from fanout.replica.update import Stamp, Update
from fanout.server.base.counters import Counters, DropReason
from fanout.server.messages.encoding import SHORT_MAX, WireVariant, encode_frame, encode_message
from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.dispatch import SLICE_BYTES, Dispatcher
from fanout.server.routing.share_groups import SharedSubscriptions
from fanout.server.routing.subscribers import SubscriptionOptions
from tests.server.core_pieces import Peer, make_session, options
from tests.server.node_in_memory import update

V4, V5 = WireVariant(4), WireVariant(5)
NOW_NS = 1_000_000_000_000


@dataclass
class Bench:
    """A dispatcher with its index and counters."""

    counters: Counters = field(default_factory=Counters)
    index: AudienceIndex = field(default_factory=AudienceIndex)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(self.index, counters=self.counters)

    def peer(
        self,
        subscriptions: dict[bytes, SubscriptionOptions],
        *,
        wire: WireVariant = V5,
        client_id: str = "c",
        window: int = 100,
    ) -> Peer:
        """Make a connected session with subscriptions."""
        session = make_session(client_id, wire=wire, counters=self.counters)
        self.index.change(session, added=subscriptions)
        return Peer(session, window=window)

    def dispatch(self, *updates: Update, origin: Peer | None = None) -> None:
        """Dispatch updates."""
        self.dispatcher.dispatch(list(updates), now_ns=NOW_NS, origin=origin.session if origin is not None else None)


def frame(
    one: Update, wire: WireVariant, *, qos: int = 0, retain: bool = False, packet_id: int = 0, ids: tuple[int, ...] = ()
) -> bytes:
    """Encode what a receiver should get."""
    return encode_message((one, qos, retain, ids), wire=wire, now_ns=NOW_NS, packet_id=packet_id)


def test_batch_reaches_every_member_in_one_write() -> None:
    """All members of an audience get the same bytes object, in one write, in order."""
    bench = Bench()
    peers = [bench.peer({b"#": options()}) for _ in range(3)]
    first, second = update(b"a", b"1"), update(b"b", b"2")
    bench.dispatch(first, second)
    for peer in peers:
        (written,) = peer.written
        assert written == frame(first, V5) + frame(second, V5)
        assert written is peers[0].written[0]
    assert bench.counters.deliveries == 6
    assert bench.counters.sent_bytes == 3 * len(peers[0].written[0])


def test_every_wire_variant_gets_its_form() -> None:
    """MQTT 3.1.1, MQTT 5, with stamps, with properties and expiry, long and short: each as it should be."""
    stamped = WireVariant(5, stamped=True)
    updates = [
        update(b"t", b"plain"),
        update(b"t", b"x" * 3000),
        update(b"t", b"x" * 200),
        update(b"t", b"stamped", stamp=Stamp("p", 1, 2, 3)),
        update(b"t", b"typed", properties=b"\x03\x00\x01t"),
        update(b"t", b"expires", expires_ns=NOW_NS + 5_000_000_000),
        update(b"t", b""),
    ]
    for wire in (V4, V5, stamped):
        for granted in (options(), options(retain_as_published=True), options(identifier=300)):
            bench = Bench()
            peer = bench.peer({b"t": granted}, wire=wire)
            bench.dispatch(*updates)
            ids = (300,) if granted.identifier and wire.version == 5 else ()
            expected = [frame(one, wire, retain=granted.retain_as_published, ids=ids) for one in updates]
            assert peer.read() == b"".join(expected)


def test_a_corrected_expiry_is_for_nodes_only() -> None:
    """A client has the value and is not told; a node gets it with the mark, in its turn, wherever it is."""
    bench = Bench()
    granted = options(1, retain_as_published=True)
    node, slow = (
        bench.peer({b"#": granted}, wire=WireVariant(5, stamped=True), client_id=name) for name in ("node", "slow")
    )
    others = [bench.peer({b"#": granted}, client_id="client"), bench.peer({b"#": options(1)}, wire=V4)]
    elsewhere = bench.peer({b"other": granted}, wire=WireVariant(5, stamped=True), client_id="elsewhere")
    slow.session.pause()
    value = update(b"t", b"1", qos=1, properties=b"\x03\x00\x01t", expires_ns=NOW_NS + 5_000_000_000)
    bench.dispatcher.correct([value], now_ns=NOW_NS)
    expected = frame(as_copy(value), WireVariant(5, stamped=True), qos=1, retain=True, packet_id=1)
    assert node.read() == expected
    assert slow.read() == b""
    slow.session.resume()
    slow.take(now_ns=NOW_NS)
    assert slow.read() == expected
    assert [peer.read() for peer in (*others, elsewhere)] == [b"", b"", b""]


def test_members_that_cannot_be_written_to_share_the_queued_batch() -> None:
    """Slow and absent members get the batch into their queues, others at once."""
    bench = Bench()
    ready, slow, absent = (bench.peer({b"#": options(1)}) for _ in range(3))
    slow.session.pause()
    absent.session.disconnect()
    updates = [update(b"a", b"1", qos=1, retain=False), update(b"a", b"2", qos=0, retain=False)]
    bench.dispatch(*updates)
    assert ready.read() == frame(updates[0], V5, qos=1, packet_id=1) + frame(updates[1], V5)
    assert (slow.session.sender.queue.messages, absent.session.sender.queue.messages) == (2, 1)
    assert slow.session.sender.queue.head()[0].frames is not None
    slow.session.resume()
    slow.take(now_ns=NOW_NS)
    assert slow.read() == frame(updates[0], V5, qos=1, packet_id=1) + frame(updates[1], V5)


def test_each_message_has_the_very_update_that_was_dispatched() -> None:
    """Compiled or not, to whomever it goes: what keeps updates for copies of sessions recognizes them."""
    bench = Bench()
    shared = SharedSubscriptions(bench.index)
    waiting = bench.peer({b"t": options(1)})
    publisher = bench.peer({b"t": options(1), b"#": options(1, no_local=True)})
    member = bench.peer({})
    shared.subscribe(member.session, (b"g", b"t"), options(1))
    for peer in (waiting, publisher, member):
        peer.session.disconnect()
    one = update(b"t", b"1", qos=1)
    bench.dispatch(one, origin=publisher)
    queues = [peer.session.sender.queue for peer in (waiting, publisher, member)]
    messages = [message for queue in queues for message in queue.waiting()]
    assert [message[0] is one for message in messages] == [True] * 3


def test_member_whose_window_is_full_is_queued() -> None:
    """What the window does not take waits; the next batch queues behind it."""
    bench = Bench()
    narrow, wide = bench.peer({b"#": options(1)}, window=1), bench.peer({b"#": options(1)})
    updates = [update(b"a", b"%d" % number, qos=1) for number in range(3)]
    bench.dispatch(*updates[:2])
    bench.dispatch(updates[2])
    assert narrow.read() == frame(updates[0], V5, qos=1, packet_id=1)
    assert narrow.session.sender.queue.messages == 2
    assert len(wide.written) == 2


def test_socket_that_fills_during_a_batch_stops_after_its_slice() -> None:
    """A large batch is written in slices; a member whose socket fills gets the rest into its queue."""
    bench = Bench()
    ready, slow = bench.peer({b"#": options()}), bench.peer({b"#": options()})
    slow_writes: list[bytes] = []

    def write(data: bytes) -> None:
        slow_writes.append(data)
        slow.session.pause()

    slow.session.disconnect()
    slow.session.connect(write, window=100)
    large = [update(b"a", b"%06d" % number + b"x" * 10_000, retain=False) for number in range(50)]
    described = [update(b"a", b"", properties=b"\x03\x27\x10" + b"p" * 10_000, retain=False) for _ in range(50)]
    updates = described + large
    bench.dispatch(*updates)
    expected = b"".join(frame(one, V5) for one in updates)
    assert len(slow_writes) == 1
    assert len(slow_writes[0]) < 2 * SLICE_BYTES
    assert ready.read() == expected
    slow.session.resume()
    slow.take(now_ns=NOW_NS)
    assert slow_writes[0] + slow.read() == expected


def test_shared_subscription_gives_each_message_to_one_member() -> None:
    """Members take turns, each at its own QoS; queued for one that is away when nobody is there."""
    bench = Bench()
    shared = SharedSubscriptions(bench.index)
    first, second = bench.peer({}, wire=V4), bench.peer({b"t": options()})
    for peer, qos in ((first, 0), (second, 1)):
        shared.subscribe(peer.session, (b"g", b"#"), options(qos))
    updates = [update(b"t", b"%d" % number, qos=2) for number in range(4)]
    bench.dispatch(*updates)
    assert first.read() == frame(updates[0], V4) + frame(updates[2], V4)
    own = b"".join(frame(one, V5) for one in updates)
    turn = frame(updates[1], V5, qos=1, packet_id=1) + frame(updates[3], V5, qos=1, packet_id=2)
    assert second.read() == own + turn
    second.session.sender.inflight.outbound.window = 2
    shared.leave(first.session)
    bench.dispatch(update(b"only shared", b"x", qos=1))
    assert second.written == []
    assert second.session.sender.queue.messages == 1
    second.session.disconnect()
    bench.dispatch(updates[0])
    assert second.session.sender.queue.messages == 2


def test_expired_update_is_dropped() -> None:
    """What expired before dispatch is handed to nobody [MQTT-3.3.2-5], and counted for each session."""
    bench = Bench()
    peers = [bench.peer({b"#": options()}) for _ in range(2)]
    bench.dispatch(update(b"a", b"1", expires_ns=NOW_NS))
    assert all(peer.written == [] for peer in peers)
    assert bench.counters.dropped[DropReason.EXPIRED] == 2


def test_packet_over_the_maximum_size_reaches_only_others() -> None:
    """Sessions with a Maximum Packet Size do not get what is over it [MQTT-3.1.2-24]; it is counted."""
    bench = Bench()
    limited = bench.peer({b"#": options(1)}, wire=WireVariant(5, packet_bytes_max=20))
    other = bench.peer({b"#": options(1)})
    large, small = update(b"a", b"x" * 50, qos=1), update(b"a", b"y", qos=1)
    bench.dispatch(large)
    assert limited.written == []
    other.read()
    bench.dispatch(large, small)
    assert limited.read() == frame(small, V5, qos=1, packet_id=1)
    assert len(other.read()) > 60
    assert bench.counters.dropped[DropReason.PACKET_TOO_LARGE] == 2


FILTERS = (b"#", b"a/#", b"a/b", b"+/b", b"c")
TOPICS = (b"a/b", b"a/c", b"c", b"x/b")
OPTIONS = st.builds(SubscriptionOptions, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2))
CLIENTS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(FILTERS), OPTIONS, max_size=3),
        st.sampled_from([V4, V5, WireVariant(5, stamped=True)]),
    ),
    min_size=1,
    max_size=5,
)
UPDATES = st.lists(
    st.builds(
        lambda topic, payload, qos, retain, stamp: update(topic, payload, qos=qos, retain=retain, stamp=stamp),
        st.sampled_from(TOPICS),
        st.binary(max_size=3),
        st.integers(0, 2),
        st.booleans(),
        st.none() | st.just(Stamp("p", 1, 2, 3)),
    ),
    max_size=6,
)


@given(CLIENTS, UPDATES, st.integers(0, 5))
def test_dispatch_agrees_with_a_plain_model(
    clients: list[tuple[dict[bytes, SubscriptionOptions], WireVariant]], updates: list[Update], origin: int
) -> None:
    """Each client gets each matching update once: highest QoS, RETAIN and identifiers as its subscriptions say."""
    bench = Bench()
    peers = [
        bench.peer(subscriptions, wire=wire, client_id=str(number))
        for number, (subscriptions, wire) in enumerate(clients)
    ]
    bench.dispatch(*updates, origin=peers[origin] if origin < len(peers) else None)
    for number, (subscriptions, wire) in enumerate(clients):
        expected: list[bytes] = []
        packet_id = 0
        for one in updates:
            hits = [
                granted
                for topic_filter, granted in subscriptions.items()
                if matches(topic_filter, one[0]) and not (granted.no_local and number == origin)
            ]
            if not hits:
                continue
            qos = min(one[2], max(granted.qos for granted in hits))
            packet_id += qos > 0
            ids = tuple(sorted(granted.identifier for granted in hits if granted.identifier))
            retain = one[3] and any(granted.retain_as_published for granted in hits)
            expected.append(frame(one, wire, qos=qos, retain=retain, packet_id=packet_id if qos else 0, ids=ids))
        assert peers[number].read() == b"".join(expected)


def plain_publish(
    one: Update, wire: WireVariant, *, qos: int, retain: bool, packet_id: int, ids: tuple[int, ...]
) -> bytes:
    """Encode a PUBLISH with no fast path."""
    topic, payload, _, _, properties, _, expires_ns, _, stamp = one
    if wire.version == 4:
        return encode_publish(topic, payload, version=4, qos=qos, retain=retain, packet_id=packet_id)
    return encode_publish(
        topic,
        payload,
        version=5,
        qos=qos,
        retain=retain,
        packet_id=packet_id,
        properties=with_trailer(properties, stamp) if wire.stamped else properties,
        expiry_s=10 if expires_ns else None,
        subscription_identifiers=ids,
    )


WIRES = (V4, V5, WireVariant(5, stamped=True), WireVariant(5, packet_bytes_max=100_000))


@pytest.mark.parametrize("wire", WIRES)
def test_fast_paths_of_the_encoding_agree(wire: WireVariant) -> None:
    """The loop of dispatch, `encode_message` and `encode_frame` have copies of a fast path: all give the same bytes.

    Every combination is tried at the lengths at which a path or the size of a length changes.
    """
    lengths = (0, 1, *range(114, 127), *range(SHORT_MAX - 14, SHORT_MAX + 2))
    for length, qos, retain, identifier, properties, expires_ns, stamp in product(
        lengths,
        (0, 1, 2),
        (False, True),
        (0, 7),
        (b"", b"\x26\0\1k\0\1v"),
        (0, NOW_NS + 10_000_000_000),
        (None, Stamp("p", 1, 2, 3)),
    ):
        one = update(
            b"a/b", b"x" * length, qos=qos, retain=retain, properties=properties, expires_ns=expires_ns, stamp=stamp
        )
        bench = Bench()
        peer = bench.peer({b"#": options(2, retain_as_published=True, identifier=identifier)}, wire=wire)
        bench.dispatch(one)
        ids = (identifier,) if identifier and wire.version == 5 else ()
        packet_id = 1 if qos else 0
        expected = plain_publish(one, wire, qos=qos, retain=retain, packet_id=packet_id, ids=ids)
        assert peer.read() == expected
        message = (one, qos, retain, ids)
        assert encode_message(message, wire=wire, now_ns=NOW_NS, packet_id=packet_id) == expected
        split = encode_frame(message, wire=wire, now_ns=NOW_NS)
        assert (split if isinstance(split, bytes) else split[0] + b"\0\1" + split[1]) == expected


def test_stalled_member_costs_the_others_nothing() -> None:
    """One member reads nothing and keeps its newest values; the others get the same writes as without it."""
    bench = Bench()
    quick, stalled = [bench.peer({b"#": options()}) for _ in range(20)], bench.peer({b"#": options()})
    stalled.session.pause()
    for number in range(50):
        bench.dispatch(*(update(b"t/%d" % topic, b"%d" % number) for topic in range(10)))
    expected = [
        b"".join(frame(update(b"t/%d" % topic, b"%d" % number), V5) for topic in range(10)) for number in range(50)
    ]
    assert all(peer.written == expected for peer in quick)
    assert stalled.written == []
    assert len(stalled.session.sender.newest_values) == 10
    assert not stalled.session.sender.queue
    assert bench.counters.conflated == 49 * 10
    stalled.session.resume()
    stalled.take(now_ns=NOW_NS)
    assert stalled.read() == expected[-1]


def test_slow_member_that_publishes_with_no_local_is_conflated_too() -> None:
    """What a slow publisher gets apart from its audience is conflated in the same way."""
    bench = Bench()
    subscriptions = {b"#": options(no_local=True), b"t/#": options()}
    publisher, other = bench.peer(subscriptions), bench.peer(subscriptions)
    publisher.session.pause()
    for payload in (b"1", b"2"):
        bench.dispatch(update(b"t/a", payload), update(b"u/a", payload), origin=publisher)
    publisher.session.resume()
    publisher.take(now_ns=NOW_NS)
    assert publisher.read() == frame(update(b"t/a", b"2"), V5)
    assert other.read().count(b"u/a") == 2
