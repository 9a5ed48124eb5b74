"""Delivery with shared Packet Identifiers against a slow and obvious model of what each client receives."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.mqtt.decoder import AckRun, Decoder, PublishRun
from fanout.mqtt.packets import PacketType, encode_acks
from fanout.replica.update import Update
from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.dispatch import Dispatcher
from fanout.server.routing.share_groups import SharedSubscriptions
from fanout.server.session.session import Session
from tests.server.core_pieces import make_session, options
from tests.server.node_in_memory import update
from tests.support.examples import examples

DUP = 0x08


class Client:
    """A client that checks every packet against what it knows, beside the model of what it is to receive."""

    def __init__(self, session: Session, *, window: int, packet_id: int) -> None:
        self.session = session
        self.window = window
        self.connected = False
        self.paused = False
        self.expected: list[tuple[bytes, int]] = []  # the model: payload and QoS, in order
        self.received: list[tuple[bytes, int]] = []
        self.unanswered: dict[int, tuple[bytes, int]] = {}  # by Packet Identifier, in order of sending
        self.unreleased: dict[int, None] = {}  # PUBREC sent, PUBREL not received
        self.uncompleted: dict[int, None] = {}  # PUBREL received, PUBCOMP not sent
        self.to_come_again: list[tuple[int, bytes]] = []
        session.sender.inflight.outbound.continue_behind(packet_id)

    def publish(self, payload: bytes, qos: int) -> None:
        """Note in the model that a matching message was published."""
        if self.connected or qos:
            self.expected.append((payload, qos))

    def connect(self) -> None:
        """Connect; exactly what was not acknowledged is to come again, in order [MQTT-4.4.0-1]."""
        self.connected, self.paused = True, False
        self.to_come_again = [(packet_id, payload) for packet_id, (payload, _) in self.unanswered.items()]
        unreleased = {**self.unreleased, **self.uncompleted}
        self.uncompleted = {}
        self.unreleased = unreleased
        self.on_connection: set[int] = set(unreleased)
        self.to_client = Decoder(version=5, packet_bytes_max=1000, role="client")
        self.to_server = Decoder(version=None, packet_bytes_max=1000, role="server")
        self.to_server.version = 5
        self.write(self.session.connect(self.write, window=self.window))
        assert not self.unreleased
        self.pump()

    def disconnect(self) -> None:
        """Lose the connection, and what was on its way at QoS 0."""
        self.connected = False
        self.session.disconnect()
        self.expected = [one for one in self.expected if one[1] or one in self.received]

    def write(self, data: bytes) -> None:
        """Take what the server writes."""
        for item in self.to_client.feed(data):
            if isinstance(item, PublishRun):
                for _, payload, flags, packet_id, *_ in item.rows:
                    self.take_publish(payload, flags, packet_id)
            else:
                assert isinstance(item, AckRun)
                assert item.type is PacketType.PUBREL
                for packet_id in item.packet_ids:
                    del self.unreleased[packet_id]
                    self.uncompleted[packet_id] = None
        assert self.to_client.fault is None

    def take_publish(self, payload: bytes, flags: int, packet_id: int) -> None:
        """Check one PUBLISH."""
        qos = flags >> 1 & 3
        if qos:
            assert packet_id not in self.unreleased | self.uncompleted
            assert packet_id not in self.on_connection
            self.on_connection.add(packet_id)
            assert len(self.on_connection) <= self.window  # [MQTT-3.3.4-9]
        if flags & DUP:
            assert self.unanswered[packet_id] == (payload, qos)
            assert self.to_come_again.pop(0) == (packet_id, payload)
            return
        self.received.append((payload, qos))
        if qos:
            assert packet_id not in self.unanswered
            self.unanswered[packet_id] = (payload, qos)

    def answer(self, count: int, *, reverse: bool = False, split: int = 0) -> None:
        """Acknowledge some of what was received on this connection: the oldest first, or the newest first."""
        here = [(packet_id, one[1]) for packet_id, one in self.unanswered.items() if packet_id in self.on_connection]
        data = b""
        completing = list(self.uncompleted)[:count]
        for packet_id in completing:
            del self.uncompleted[packet_id]
            self.on_connection.discard(packet_id)
        data += encode_acks(PacketType.PUBCOMP, completing)
        for packet_id, qos in (here[::-1] if reverse else here)[:count]:
            del self.unanswered[packet_id]
            if qos == 1:
                data += encode_acks(PacketType.PUBACK, [packet_id])
                self.on_connection.discard(packet_id)
            else:
                data += encode_acks(PacketType.PUBREC, [packet_id])
                self.unreleased[packet_id] = None
        for part in (data[:split], data[split:]):
            self.send(part)
        assert not self.unreleased
        self.pump()

    def send(self, data: bytes) -> None:
        """Give the server a read, as a connection does."""
        if not self.to_server.buffered_bytes:
            taken, answer = self.session.follower.acknowledge_read(data)
            self.write(answer)
            data = data[taken:]
        for item in self.to_server.feed(data):
            assert isinstance(item, AckRun)
            self.write(self.session.acknowledge(item))

    def pump(self) -> None:
        """Let the session write what it can, as the pacer does."""
        while self.connected and not self.paused and self.session.sender.pending:
            self.write(self.session.take(now_ns=0, messages_max=5, bytes_max=1000))
            if self.session.sender.inflight.blocked:
                return


OPERATIONS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 2), min_size=1, max_size=4), st.booleans()),
    st.tuples(st.just("publish"), st.integers(1, 2).flatmap(lambda q: st.lists(st.just(q), min_size=1, max_size=4))),
    st.tuples(st.just("answer"), st.integers(0, 2), st.integers(1, 6), st.sampled_from([0, 0, 0, 2, 4, 7])),
    st.tuples(st.just("answer newest"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.sampled_from(["stall", "reconnect", "subscribe", "share"]), st.integers(0, 2)),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 3, 65_530])), min_size=3, max_size=3),
    st.lists(OPERATIONS, max_size=40),
)
def test_clients_receive_what_a_plain_model_says(
    clients_of: list[tuple[int, int]], operations: list[tuple[object, ...]]
) -> None:
    """Each client gets each message once and in order on one connection, and again with DUP what it did not answer."""
    counters, index = Counters(), AudienceIndex()
    dispatcher, shared = Dispatcher(index, counters=counters), SharedSubscriptions(index)
    numbers = itertools.count()
    clients: list[Client] = []
    sharing: set[Client] = set()
    for window, packet_id in clients_of:
        session = make_session(wire=WireVariant(5), counters=counters)
        index.change(session, added={b"t/#": options(2)})
        clients.append(Client(session, window=window, packet_id=packet_id))
        clients[-1].connect()

    def publish(levels: list[int], *, with_group: bool = False) -> None:
        updates: list[Update] = []
        for qos in levels:
            payload = b"%d" % next(numbers)
            updates.append(update(b"t/x", payload, qos=qos, retain=False))
            for client in clients:
                client.publish(payload, qos)
        if with_group:
            for client in sharing:  # what a session gets alone comes behind what its audience gets
                payload = b"%d" % next(numbers)
                updates.append(update(b"g/%d" % clients.index(client), payload, qos=1, retain=False))
                client.publish(payload, 1)
        dispatcher.dispatch(updates, now_ns=0)

    for name, *arguments in operations:
        if name == "publish":
            publish(arguments[0], with_group=len(arguments) > 1 and bool(arguments[1]))  # type: ignore[arg-type]
            continue
        client = clients[arguments[0]]  # type: ignore[call-overload]
        match name:
            case "answer" | "answer newest" if client.connected:
                split = arguments[2] if name == "answer" else 0
                client.answer(arguments[1], reverse=name == "answer newest", split=split)
            case "stall" if client.connected:
                client.paused = not client.paused
                if client.paused:
                    client.session.pause()
                else:
                    client.session.resume()
                    client.pump()
            case "reconnect":
                if client.connected:
                    client.disconnect()
                else:
                    client.connect()
            case "subscribe":  # to what nobody publishes: into another audience and back
                has = b"other" in client.session.subscriptions
                index.change(
                    client.session,
                    added={} if has else {b"other": options(1)},
                    removed=[b"other"] if has else [],
                )
            case "share":
                topic_filter = b"g/%d" % clients.index(client)
                if client in sharing:
                    sharing.discard(client)
                    shared.unsubscribe(client.session, (b"s", topic_filter))
                else:
                    sharing.add(client)
                    shared.subscribe(client.session, (b"s", topic_filter), options(1))
    for client in clients:
        if client.paused:
            client.disconnect()
        if not client.connected:
            client.connect()
        for _ in range(200):
            client.answer(3)
        assert client.received == client.expected
        assert not client.to_come_again
        assert client.session.sender.inflight.messages == 0
    publish([1, 0, 1])
    for client in clients:
        client.answer(3)
        client.answer(3)
        assert client.received == client.expected
    for client in clients:
        assert client.session.audience is not None
        assert client.session.audience.log.bytes == 0
