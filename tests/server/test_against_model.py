"""The way from publishing to each client against a slow and obvious model: subscriptions, retained values, stalls."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout.chain.age_bound import AgeBound
from fanout.config import ServerConfig
from fanout.mqtt.decoder import Decoder, PublishRow, PublishRun
from fanout.mqtt.packets import PacketType, Subscribe, Subscription, Unsubscribe, encode_acks
from fanout.mqtt.properties import Properties
from fanout.mqtt.topics import matches
from fanout.replica.store import Replica
from fanout.replica.update import Phase
from fanout.server.base.counters import Counters, DropReason
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.dispatch import Dispatcher
from fanout.server.session.registry import SessionRegistry
from tests.oracle.packets import decode_packets
from tests.server.node_in_memory import update
from tests.support.examples import examples

TOPICS = (b"t/a", b"t/b", b"u/a")
FILTERS = (b"#", b"t/#", b"+/a")
CLIENTS = 2
DUP = 0x08


@dataclass(frozen=True)
class Sent:
    """A message that the model sends to a client."""

    number: int
    topic: bytes
    payload: bytes
    qos: int
    retained: bool

    def may_be_conflated(self, bound: AgeBound | None) -> bool:
        """Whether a newer one may take its place, for a client with a bound on the age or without."""
        return self.retained and self.qos == 0 if bound is None else self.qos <= bound.qos_max


class Model:
    """Everything that the clients share: the server's parts, and what was published."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.replica = Replica()
        config = ServerConfig()
        self.registry = SessionRegistry(config=config, store=self.replica, counters=self.counters)
        self.dispatcher = Dispatcher(self.registry.index, counters=self.counters)
        self.numbers = itertools.count(1)
        self.clients: list[Client] = []

    def value(self, topic: bytes) -> bytes:
        """Return the payload of a topic's retained value, empty for none."""
        held = self.replica.values.get(topic)
        return held[1] if held is not None else b""

    def publish(self, messages: list[tuple[int, int, str]]) -> None:
        """Publish a batch: (topic, QoS, kind) each."""
        updates = []
        for index, qos, kind in messages:
            number = next(self.numbers)
            payload = b"" if kind == "removal" else b"%d" % number
            updates.append(update(TOPICS[index], payload, qos=qos, retain=kind != "event"))
            for client in self.clients:
                client.expect(number, TOPICS[index], payload, qos, retained=kind != "event")
        changes = self.replica.apply(updates, phase=Phase.LIVE)
        self.dispatcher.dispatch(changes.dispatch, now_ns=0)


class Client:
    """A client that checks every packet when it comes, and what it has got in the end."""

    def __init__(self, model: Model, index: int, *, wire: WireVariant, window: int, bound: AgeBound | None) -> None:
        self.model = model
        self.wire = wire
        self.window = window
        self.bound = bound if wire.version == 5 else None
        self.session = model.registry.create(f"c{index}", wire=self.wire)
        self.connected = False
        self.stalled = False
        self.ever_stalled = False
        self.subscriptions: dict[bytes, int] = {}  # to QoS
        self.sent: list[Sent] = []  # by the model
        self.received: list[Sent] = []  # live, as the model knows them
        self.state: dict[bytes, tuple[int, bytes]] = {}  # newest value of each topic, with its number
        self.uncertain: set[bytes] = set(TOPICS)  # topics of which it need not know the newest value
        self.unanswered: dict[int, tuple[bytes, int]] = {}  # by Packet Identifier, in order of sending
        self.unreleased: set[int] = set()  # PUBREC sent, PUBREL not received
        self.released: dict[int, None] = {}  # PUBREL received, PUBCOMP not sent
        self.on_connection: set[int] = set()  # Packet Identifiers that count for the window
        self.to_come_again: list[int] = []

    # What the model says.

    def expect(self, number: int, topic: bytes, payload: bytes, qos: int, *, retained: bool) -> None:
        """Note in the model that a message is published."""
        granted = [one for topic_filter, one in self.subscriptions.items() if matches(topic_filter, topic)]
        qos = min(qos, max(granted, default=0))
        if not granted or (not self.connected and not qos):
            if retained:
                self.uncertain.add(topic)
            return
        self.sent.append(Sent(number, topic, payload, qos, retained))
        if retained:
            self.uncertain.discard(topic)

    def forget_what_differs(self) -> None:
        """Note that what was on its way at QoS 0 may be lost."""
        for topic in TOPICS:
            if self.state.get(topic, (0, b""))[1] != self.model.value(topic):
                self.uncertain.add(topic)

    # What the client does.

    def subscribe(self, topic_filter: bytes, qos: int, *, wants_retained: bool) -> None:
        """Subscribe, or change a subscription."""
        identifier = (FILTERS.index(topic_filter) + 1,) if self.wire.version == 5 else ()
        asked = () if self.bound is None else self.bound.properties
        properties = Properties(subscription_identifier=identifier, user_property=asked)
        subscription = Subscription(topic_filter, qos, retain_handling=0 if wants_retained else 2)
        self.model.registry.subscribe(self.session, Subscribe(1, (subscription,), properties))
        self.subscriptions[topic_filter] = qos
        if wants_retained:
            self.uncertain -= {topic for topic in TOPICS if matches(topic_filter, topic)}
            for topic in TOPICS:
                if matches(topic_filter, topic) and not self.model.value(topic):
                    self.uncertain.add(topic)  # no retained message tells that there is no value

    def unsubscribe(self, topic_filter: bytes) -> None:
        """End a subscription; its retained messages stop."""
        self.model.registry.unsubscribe(self.session, Unsubscribe(1, (topic_filter,)))
        self.subscriptions.pop(topic_filter, None)
        self.forget_what_differs()

    def connect(self) -> None:
        """Connect; exactly what was not acknowledged is to come again, in order [MQTT-4.4.0-1]."""
        self.connected, self.stalled = True, False
        self.to_come_again = list(self.unanswered)
        self.unreleased |= set(self.released)
        self.released = {}
        self.on_connection = set(self.unreleased)
        self.decoder = Decoder(version=self.wire.version, packet_bytes_max=1000, role="client")
        self.server_decoder = Decoder(version=None, packet_bytes_max=1000, role="server")
        self.server_decoder.version = self.wire.version
        self.take(self.session.connect(self.take, window=self.window))
        assert not self.unreleased

    def disconnect(self) -> None:
        """Lose the connection, and what was on its way at QoS 0."""
        self.connected = False
        self.ever_stalled = self.ever_stalled or self.bound is not None  # what waits for it then may be conflated
        self.session.disconnect()
        lost = [one for one in self.sent if not one.qos and one not in self.received]
        self.sent = [one for one in self.sent if one not in lost]
        self.uncertain |= {one.topic for one in lost}  # what it gets at QoS 1 later may be older
        self.forget_what_differs()

    def stall(self) -> None:
        """Read nothing, or read again."""
        self.stalled = not self.stalled
        self.ever_stalled = True
        if self.stalled:
            self.session.pause()
        else:
            self.session.resume()

    def pump(self, pieces: int, messages_max: int) -> None:
        """Let the session write some pieces, as the pacer does."""
        for _ in range(pieces):
            sender = self.session.sender
            if not self.connected or self.stalled or not sender.pending or sender.inflight.blocked:
                return
            self.take(self.session.take(now_ns=0, messages_max=messages_max, bytes_max=1000))

    def answer(self, count: int) -> None:
        """Acknowledge the oldest messages of this connection."""
        data = encode_acks(PacketType.PUBCOMP, completing := list(self.released)[:count])
        for packet_id in completing:
            del self.released[packet_id]
            self.on_connection.discard(packet_id)
        here = [(packet_id, one[1]) for packet_id, one in self.unanswered.items() if packet_id in self.on_connection]
        for packet_id, qos in here[:count]:
            del self.unanswered[packet_id]
            data += encode_acks(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, [packet_id])
            if qos == 1:
                self.on_connection.discard(packet_id)
            else:
                self.unreleased.add(packet_id)
        taken, answer = self.session.follower.acknowledge_read(data)
        self.take(answer)
        for item in self.server_decoder.feed(data[taken:]):
            assert not isinstance(item, PublishRun)
            self.take(self.session.acknowledge(item))  # type: ignore[arg-type]  # nothing else was sent
        assert not self.unreleased

    # What it gets.

    def take(self, data: bytes) -> None:
        """Take what the server writes."""
        for packet in decode_packets(data, version=self.wire.version, sender="server"):
            assert self.wire.takes(packet.size)
        for item in self.decoder.feed(data):
            if isinstance(item, PublishRun):
                for row in item.rows:
                    self.take_publish(row)
            else:
                for packet_id in item.packet_ids:  # type: ignore[union-attr]  # a run of PUBRELs
                    self.unreleased.remove(packet_id)
                    self.released[packet_id] = None
        assert self.decoder.fault is None

    def take_publish(self, row: PublishRow) -> None:
        """Check one PUBLISH."""
        topic, payload, flags, packet_id, *_ = row
        qos, retain = flags >> 1 & 3, bool(flags & 1)
        if qos:
            assert packet_id not in self.on_connection
            self.on_connection.add(packet_id)
            assert len(self.on_connection) <= self.window  # [MQTT-3.3.4-9]
        if flags & DUP:
            assert self.unanswered[packet_id] == (payload, qos)
            assert self.to_come_again.pop(0) == packet_id
            return
        if qos:
            assert packet_id not in self.unanswered
            self.unanswered[packet_id] = (payload, qos)
        if retain:
            assert payload == self.model.value(topic)  # that of this moment
            self.take_state(topic, int(payload), payload)
            return
        before = max((one.number for one in self.received if one.topic == topic), default=0)
        same = (one for one in self.sent if (one.topic, one.payload, one.qos) == (topic, payload, qos))
        sent = next(one for one in same if one.number > before)
        self.received.append(sent)
        if sent.retained:
            self.take_state(topic, sent.number, payload)

    def take_state(self, topic: bytes, number: int, payload: bytes) -> None:
        """Note the newest value of a topic: nothing older follows it."""
        assert number >= self.state.get(topic, (0, b""))[0]
        self.state[topic] = (number, payload)

    def check(self) -> None:
        """Compare what was received with the model, when nothing is on its way."""
        assert not self.session.sender.pending
        assert not self.to_come_again
        if not self.ever_stalled:
            assert self.received == self.sent
        assert [one for one in self.received if not one.may_be_conflated(self.bound)] == [
            one for one in self.sent if not one.may_be_conflated(self.bound)
        ]
        for topic in TOPICS:
            if topic not in self.uncertain:
                assert self.state.get(topic, (0, b""))[1] == self.model.value(topic)


WIRES = st.sampled_from([WireVariant(5), WireVariant(5), WireVariant(4), WireVariant(5, packet_bytes_max=1000)])
BOUNDS = st.sampled_from([None, None, AgeBound(1.0), AgeBound(1.0, qos_max=1)])
CLIENT = st.integers(0, CLIENTS - 1)
KINDS = st.sampled_from(["value", "value", "removal", "event"])
TOPIC = st.integers(0, len(TOPICS) - 1)
MESSAGES = st.lists(st.tuples(TOPIC, st.integers(0, 2), KINDS), min_size=1, max_size=4)
VALUES = st.lists(st.tuples(TOPIC, st.just(0), st.sampled_from(["value", "value", "event"])), min_size=1, max_size=4)
OPERATIONS = st.one_of(
    st.tuples(st.just("publish"), MESSAGES),
    st.tuples(st.just("publish"), VALUES),
    st.tuples(st.just("subscribe"), CLIENT, st.sampled_from(FILTERS), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("unsubscribe"), CLIENT, st.sampled_from(FILTERS)),
    st.tuples(st.just("join"), st.sampled_from(FILTERS), st.integers(0, 2)),
    st.tuples(st.just("pump"), CLIENT, st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.just("pump"), CLIENT, st.just(1), st.just(1)),
    st.tuples(st.just("answer"), CLIENT, st.integers(1, 5)),
    st.tuples(st.sampled_from(["stall", "stall", "reconnect"]), CLIENT),
)


STALLED_AND_SUBSCRIBING: list[tuple[object, ...]] = [
    ("stall", 0),
    ("publish", [(0, 0, "value")]),
    ("join", b"#", 1),
    ("publish", [(0, 1, "value")]),
    ("subscribe", 0, b"#", 0, True),
]


MISSED_BETWEEN: list[tuple[object, ...]] = [
    ("join", b"t/#", 0),
    ("publish", [(2, 0, "value")]),
    ("unsubscribe", 0, b"#"),
    ("publish", [(2, 0, "value")]),
    ("join", b"#", 0),
]


REMOVED_WHILE_STALLED: list[tuple[object, ...]] = [
    ("publish", [(0, 0, "value")]),
    ("stall", 0),
    ("publish", [(0, 0, "removal")]),
    ("reconnect", 0),
]


VALUE_AND_REMOVAL_WAIT: list[tuple[object, ...]] = [
    ("publish", [(0, 1, "value"), (0, 0, "removal")]),
    ("reconnect", 1),
]


VALUES_COME_WHILE_AWAY: list[tuple[object, ...]] = [
    ("reconnect", 1),
    ("publish", [(0, 1, "value"), (0, 1, "value")]),
]


VALUE_BETWEEN_TWO_EVENTS: list[tuple[object, ...]] = [
    ("stall", 1),
    ("publish", [(0, 0, "value"), (1, 0, "event")]),
    ("subscribe", 1, b"#", 0, True),
    ("publish", [(1, 0, "value")]),
    ("subscribe", 1, b"#", 0, True),
    ("publish", [(0, 0, "value")]),
    ("publish", [(1, 0, "event")]),
]


@example([(WireVariant(5), 1, AgeBound(1.0, 0))] * CLIENTS, VALUE_BETWEEN_TWO_EVENTS)
@example([(WireVariant(5), 1, AgeBound(1.0, 1))] * CLIENTS, VALUES_COME_WHILE_AWAY)
@example([(WireVariant(5), 1, None)] * CLIENTS, VALUE_AND_REMOVAL_WAIT)
@example([(WireVariant(5), 1, None)] * CLIENTS, STALLED_AND_SUBSCRIBING)
@example([(WireVariant(5), 1, None)] * CLIENTS, REMOVED_WHILE_STALLED)
@example([(WireVariant(5), 1, None)] * CLIENTS, MISSED_BETWEEN)
@settings(max_examples=examples(1000), deadline=None)
@given(
    st.lists(st.tuples(WIRES, st.integers(1, 6), BOUNDS), min_size=CLIENTS, max_size=CLIENTS),
    st.lists(OPERATIONS, max_size=60),
)
def test_clients_receive_what_a_plain_model_says(
    clients_of: list[tuple[WireVariant, int, AgeBound | None]], operations: list[tuple[object, ...]]
) -> None:
    """Every message in order, but for older values of slow readers; and each topic's newest value in the end."""
    model = Model()
    for index, (wire, window, bound) in enumerate(clients_of):
        client = Client(model, index, wire=wire, window=window, bound=bound)
        model.clients.append(client)
        client.connect()
        client.subscribe(b"#", 2 * index, wants_retained=True)
    for name, *arguments in operations:
        if name == "publish":
            model.publish(arguments[0])  # type: ignore[arg-type]
            continue
        if name == "join":
            for client in model.clients:
                if client.connected:
                    client.subscribe(*arguments, wants_retained=True)  # type: ignore[arg-type]
            continue
        client = model.clients[arguments[0]]  # type: ignore[call-overload]
        match name:
            case "subscribe" if client.connected:
                client.subscribe(arguments[1], arguments[2], wants_retained=bool(arguments[3]))
            case "unsubscribe" if client.connected:
                client.unsubscribe(arguments[1])
            case "pump":
                client.pump(*arguments[1:])
            case "answer" if client.connected:
                client.answer(arguments[1])
            case "stall" if client.connected:
                client.stall()
            case "reconnect":
                if client.connected:
                    client.disconnect()
                else:
                    client.connect()
    for client in model.clients:
        if not client.connected:
            client.connect()
        if client.stalled:
            client.stall()
        while client.session.sender.pending or client.unanswered or client.released:
            client.pump(100, 100)
            client.answer(100)
        client.check()
    assert model.counters.dropped[DropReason.QUEUE_FULL] == 0
