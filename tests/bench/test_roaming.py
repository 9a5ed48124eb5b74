"""What a roaming run checks with: the verdict on literal records, and the bytes and the Session State of its client."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from bench.roaming import packets
from bench.roaming.client import Figures, RoamingClient
from bench.roaming.paho_client import PahoClient
from bench.roaming.paths import Paths
from bench.roaming.records import FINDINGS_MAX, Lapse, Received, Sent, Subscriber, Verdict, judge
from fanout.mqtt.packets import Ack, Connack, Connect, PacketType, Publish, Suback, Subscribe, Subscription, encode
from fanout.mqtt.packets import Packet as AnyPacket
from fanout.mqtt.properties import Properties
from tests.support.waiting import wait_until


def sent(number: int, *, qos: int = 2, at: float = 0.0, acknowledged: bool = True, at_risk: bool = False) -> Sent:
    """Return a message of the publisher `p`."""
    return Sent("p", qos, number, at or float(number), acknowledged, at_risk)


def verdict(
    messages: Sequence[Sent],
    came: Sequence[int],
    *,
    granted: int = 2,
    lapses: Sequence[Lapse] = (),
    kills: bool = False,
) -> Verdict:
    """Judge one subscriber that got the messages with these numbers, each a tenth of a second after it was sent."""
    by_number = {each.number: each for each in messages}
    received = [Received("p", by_number[one].qos, one, by_number[one].at + 0.1) for one in came]
    return judge(messages, {"s": Subscriber({"p": granted}, received, list(lapses))}, kills=kills)


# --- the verdict ---


def test_every_message_once_is_as_promised() -> None:
    """Whether it was published at QoS 1 or 2."""
    found = verdict([sent(1), sent(2, qos=1), sent(3)], [1, 2, 3])
    assert found.passed
    assert (found.published, found.acknowledged, found.expected, found.delivered) == (3, 3, 3, 3)
    assert (found.lost, found.doubled, found.repeated) == (0, 0, 0)


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_lost_message_is_found(qos: int, kills: bool) -> None:
    """At each QoS; that another member was killed explains nothing to a client whose session went on."""
    found = verdict([sent(1, qos=qos), sent(2, qos=qos)], [2], kills=kills)
    assert (found.lost, found.findings) == (1, (f"s never got message 1 of p at QoS {qos}",))
    assert not found.passed


@pytest.mark.parametrize(
    ("qos", "granted", "doubled", "repeated"), [(2, 2, 2, 0), (2, 1, 0, 2), (1, 2, 0, 2), (1, 1, 0, 2)]
)
def test_a_message_that_comes_twice(qos: int, granted: int, doubled: int, repeated: int) -> None:
    """It is a finding where both sides are at QoS 2, and counted elsewhere."""
    found = verdict([sent(1, qos=qos)], [1, 1, 1], granted=granted)
    assert (found.doubled, found.repeated, found.passed) == (doubled, repeated, not doubled)


@pytest.mark.parametrize("kills", [False, True])
def test_a_double_is_excused_only_where_members_were_killed_and_it_was_sent_again(kills: bool) -> None:
    """All are counted."""
    found = verdict([sent(1, at_risk=True)], [1, 1, 1], kills=kills)
    assert (found.doubled, found.doubled_at_risk, found.passed) == (2, 2, kills)
    found = verdict([sent(1)], [1, 1], kills=kills)
    assert (found.doubled, found.doubled_at_risk, found.findings_total) == (1, 0, 1)
    assert found.findings == ("s got message 1 of p at QoS 2 2 times, at 1.100, 1.100",)


@pytest.mark.parametrize("kills", [False, True])
def test_a_session_that_is_lost_is_found(kills: bool) -> None:
    """Also when nothing is missing, and it explains nothing: what a killed member had goes on at others."""
    lapse = Lapse(begin=1.5, end=2.5)
    found = verdict([sent(1)], [1], lapses=[lapse], kills=kills)
    assert (found.sessions_told, found.findings) == (1, ("s lost its session",))
    found = verdict([sent(1), sent(2)], [1], lapses=[lapse], kills=kills)
    assert (found.lost_in_lapses, found.findings_total) == (1, 2)


@pytest.mark.parametrize(
    ("missing", "is_explained"),
    [
        pytest.param(1, False, id="a later one came before the session was lost"),
        pytest.param(3, True, id="on its way when the session was lost"),
        pytest.param(4, True, id="sent while there was none"),
        pytest.param(6, False, id="sent after the new subscription"),
    ],
)
def test_a_lapse_explains_only_what_it_may_have_swallowed(missing: int, is_explained: bool) -> None:
    """Message N is sent at second N, and the session is away from 3.5 to 5.5; the message is found in any case."""
    came = [number for number in range(1, 8) if number != missing]
    found = verdict([sent(number) for number in range(1, 8)], came, lapses=[Lapse(3.5, 5.5)], kills=True)
    assert (found.lost_in_lapses, found.lost, found.findings_total) == (is_explained, not is_explained, 2)


def test_a_message_that_is_never_acknowledged_is_found_once() -> None:
    """It is not lost as well: nobody was promised that it comes."""
    found = verdict([sent(1, acknowledged=False)], [])
    assert (found.lost, found.findings) == (0, ("message 1 of p at QoS 2 was never acknowledged",))


def test_a_message_that_nobody_published_is_found() -> None:
    """A stranger's, and one of a publisher that the subscriber did not ask for."""
    got = [Received("p", 2, 9, 1.0), Received("q", 2, 1, 1.0)]
    found = judge([sent(1), Sent("q", 2, 1, 1.0, True)], {"s": Subscriber({"p": 2}, got)}, kills=True)
    assert found.findings == (
        "s got message 9 of p at QoS 2, which nobody published for it",
        "s got message 1 of q at QoS 2, which nobody published for it",
        "s never got message 1 of p at QoS 2",
    )


def test_all_findings_are_counted_and_some_told() -> None:
    """So that a run that went wrong does not fill the screen."""
    found = verdict([sent(number) for number in range(1, 101)], [])
    assert (found.lost, found.findings_total, len(found.findings)) == (100, 100, FINDINGS_MAX)


# --- the client ---


@pytest.mark.parametrize("version", [4, 5])
def test_packets_are_those_of_the_specification(version: int) -> None:
    """As another codec writes them."""
    expiry = Properties(session_expiry_interval=3600) if version == 5 else Properties()
    expected = Connect("c", version=version, clean_start=False, keep_alive=10, properties=expiry)
    assert packets.connect("c", version=version, keep_alive_s=10) == encode(expected, version=version)
    subscribe = Subscribe(3, (Subscription(b"a/#", 2), Subscription(b"b", 1)))
    filters = {"a/#": 2, "b": 1}
    assert packets.subscribe(filters, packet_id=3, version=version) == encode(subscribe, version=version)
    publish = encode(Publish(b"t", b"x" * 300, 2, dup=True, packet_id=7), version=version)
    assert packets.publish("t", b"x" * 300, qos=2, packet_id=7, dup=True, version=version) == publish
    rest = bytearray(publish + publish[:-1])
    (packet,) = packets.take_packets(rest)
    assert rest == publish[:-1]
    assert packets.read_publish(packet, version=version) == (2, 7, b"x" * 300)


class Session:
    """A server that a test plays by hand, for one client."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue(8)
        self.figures = Figures()
        self.client: RoamingClient
        self.writer: asyncio.StreamWriter
        self._writers: list[asyncio.StreamWriter] = []
        self._reader: asyncio.StreamReader
        self._buffer = bytearray()
        self._received: deque[packets.Packet] = deque()
        self.version = 0

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep a connection until `accept` takes it."""
        self._writers.append(writer)
        self.connections.put_nowait((reader, writer))

    async def accept(self, *, present: bool, code: int = 0) -> bytes:
        """Take the next connection, answer its CONNECT, and return that."""
        self._reader, self.writer = await self.connections.get()
        self._buffer.clear()
        self._received.clear()
        packet = await self.receive()
        assert packet.kind == PacketType.CONNECT
        self.version = packet.body[6]
        self.send(Connack(present, code))
        return packet.body

    def send(self, *answers: AnyPacket) -> None:
        """Write packets in one piece."""
        self.writer.write(b"".join(encode(each, version=self.version) for each in answers))

    async def receive(self) -> packets.Packet:
        """Return the client's next packet."""
        async with asyncio.timeout(60):
            while not self._received:
                data = await self._reader.read(65_536)
                assert data, "the client closed"
                self._buffer += data
                self._received.extend(packets.take_packets(self._buffer))
        return self._received.popleft()

    async def begin(self, *, present: bool = False) -> None:
        """Take the first connection and its subscriptions."""
        await self.accept(present=present)
        packet = await self.receive()
        assert packet.kind == PacketType.SUBSCRIBE
        self.send(Suback(packet.packet_id, (2,)))

    def cut(self) -> None:
        """End the connection."""
        self.writer.transport.abort()

    async def end(self) -> None:
        """End all connections, those that `accept` never took too."""
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest_asyncio.fixture(name="session", params=[4, 5])
async def play_session(request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    """Give the server's side of a client that connects."""
    session = Session()
    server = await asyncio.start_server(session.connect, "127.0.0.1", 0)
    session.client = RoamingClient(
        "me",
        port=server.sockets[0].getsockname()[1],
        version=request.param,
        publishers={"p": 2},
        draw=random.Random(1),
        figures=session.figures,
        kills=True,
        steps_max=10,
    )
    session.client.start()
    yield session
    await session.client.finish()
    server.close()
    await server.wait_closed()
    await session.end()


async def test_a_message_at_qos_2_without_pubrec_is_at_risk(session: Session) -> None:
    """It is sent again to a session that went on after a kill, where nobody may know whether the primary has it."""
    await session.begin()
    await session.client.subscribed.wait()
    session.client.publish(2, 1)
    await session.receive()
    session.cut()
    await session.accept(present=True)
    assert (await session.receive()).flags == 0b1100
    assert [each.at_risk for each in session.client.sent] == [True]


async def test_all_begins_anew_where_the_session_is_gone(session: Session) -> None:
    """It subscribes again and notes the lapse; messages in flight are new ones and at risk, but for one with PUBREC."""
    await session.begin()
    await session.client.subscribed.wait()
    session.client.publish(2, 1)
    session.send(
        Ack(PacketType.PUBREC, packets.read_publish(await session.receive(), version=session.version).packet_id)
    )
    assert (await session.receive()).kind == PacketType.PUBREL
    session.client.publish(2, 2)
    await session.receive()
    session.cut()
    await session.accept(present=False)
    packet = await session.receive()
    assert packet.kind == PacketType.SUBSCRIBE
    session.send(Suback(packet.packet_id, (2,)))
    anew = await session.receive()
    assert (anew.flags, packets.read_publish(anew, version=session.version).payload) == (0b0100, b"me 2 2")
    assert [(each.acknowledged, each.at_risk) for each in session.client.sent] == [(True, False), (False, True)]
    (lapse,) = session.client.subscriber.lapses
    assert lapse.begin < lapse.end


@pytest.mark.parametrize("present", [True, False])
async def test_a_lapse_begins_with_the_first_connection_that_was_lost(session: Session, present: bool) -> None:
    """Though the connection in which its client subscribed again was lost too, before the answer."""
    await session.begin()
    await session.client.subscribed.wait()
    session.cut()
    lost_at = time.monotonic()
    await session.accept(present=False)
    assert (await session.receive()).kind == PacketType.SUBSCRIBE
    accepted_at = time.monotonic()
    session.cut()
    await session.accept(present=present)
    session.send(Suback((await session.receive()).packet_id, (2,)))
    await wait_until(lambda: session.client.subscriber.lapses)
    (lapse,) = session.client.subscriber.lapses
    assert lost_at <= lapse.begin <= accepted_at < lapse.end


async def test_paho_does_not_publish_again_what_it_has_released() -> None:
    """However many of its connections are refused in a row: with paho 2.2.0 as it is, PUBLISH comes after two."""
    session = Session()
    server = await asyncio.start_server(session.connect, "127.0.0.1", 0)
    client = PahoClient(
        "me",
        port=server.sockets[0].getsockname()[1],
        version=5,
        publishers={"p": 2},
        draw=random.Random(1),
        figures=session.figures,
        kills=True,
    )
    client.start()
    try:
        await session.begin()
        await wait_until(client.subscribed.is_set)
        client.publish(2, 1)
        packet_id = packets.read_publish(await session.receive(), version=5).packet_id
        session.send(Ack(PacketType.PUBREC, packet_id))
        assert (await session.receive()).kind == PacketType.PUBREL
        session.cut()
        await session.accept(present=False, code=0x88)
        await session.accept(present=True)
        assert (await session.receive()).kind == PacketType.PUBREL
        session.send(Ack(PacketType.PUBCOMP, packet_id))
        await wait_until(lambda: client.is_done)
        assert [(each.acknowledged, each.at_risk) for each in client.sent] == [(True, False)]
    finally:
        await client.finish()
        server.close()
        await session.end()


# --- the ways ---


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a server that says one byte, and closes when the other side has."""
    writer.write(b"!")
    with contextlib.suppress(OSError):
        await reader.read()
    writer.close()


async def reaches(port: int, *, expected: bool) -> bool:
    """Return whether the greeting of a server comes through; only what is not expected is given up soon."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(60 if expected else 0.2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await reader.read(1) == b"!"
            finally:
                writer.transport.abort()
    return False


@pytest.mark.parametrize("silently", [False, True])
async def test_a_member_is_cut_off_from_others_and_reached_again(silently: bool) -> None:
    """In one direction or both, or from the primary alone; the other ways stay open."""
    servers = [await asyncio.start_server(greet, "127.0.0.1", 0) for _ in range(3)]
    primary, *members = [each.sockets[0].getsockname()[1] for each in servers]
    with Paths(primary, members) as paths:
        ways = paths.peer_port(0, 1), paths.peer_port(1, 0), paths.primary_port(0), paths.primary_port(1)

        async def are_open(*expected: bool) -> bool:
            return [await reaches(port, expected=each) for port, each in zip(ways, expected, strict=True)] == [
                *expected
            ]

        assert await are_open(True, True, True, True)
        paths.cut_peers(0, asks=True, is_asked=False, silently=silently)
        assert await are_open(False, True, True, True)
        paths.cut_primary(1, silently=silently)
        assert await are_open(False, True, True, False)
        paths.heal()
        paths.cut_peers(0, asks=True, is_asked=True, silently=silently)
        assert await are_open(False, False, True, True)
        paths.heal()
        assert await are_open(True, True, True, True)
    for server in servers:
        server.close()
        await server.wait_closed()
