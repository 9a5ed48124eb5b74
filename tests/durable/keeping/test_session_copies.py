"""Copies of sessions: what goes to another member, what waits for it, and how a session goes on there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from fanout.durable.form.session_copy import COPIED_MESSAGES_MAX, decode_copy, decode_places
from fanout.durable.hosting.session_inheritance import Inherited, inherit
from fanout.durable.keeping import session_copies
from fanout.durable.keeping.session_copies import LOOK_S, SessionCopies
from fanout.mqtt.packets import Ack, PacketType, Publish, Suback, Subscribe, Subscription, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.recent import Found, RecentUpdates
from fanout.replica.update import Update
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)
LINK = "plant"


class Carrier:
    """Keeps copies, as another member does."""

    def __init__(self) -> None:
        """Begin without any."""
        self.copies: dict[str, bytes] = {}
        self.puts = 0
        self.places: dict[str, bytes] = {}
        self.moved_bytes = 0
        self.is_held = False
        """Whether nothing is told of what is kept."""
        self.untold: list[Callable[[], None]] = []

    def put(self, copies: Mapping[str, bytes | None], *, done: Callable[[], None]) -> None:
        """Keep copies."""
        self.puts += 1
        for client_id, value in copies.items():
            self.places.pop(client_id, None)
            self.copies.pop(client_id, None)
            if value is not None:
                self.copies[client_id] = value
        if self.is_held:
            self.untold.append(done)
        else:
            asyncio.get_running_loop().call_soon(done)

    def leave(self, client_id: str) -> None:
        """Keep the copy as it is."""

    def put_places(self, places: bytes, client_ids: Sequence[str]) -> None:
        """Move sessions on."""
        self.moved_bytes += len(places) + sum(map(len, client_ids))
        self.places |= dict.fromkeys(client_ids, places)

    def tell(self) -> None:
        """Tell what is kept."""
        self.is_held = False
        while self.untold:
            self.untold.pop(0)()


class Member(NodeInMemory):
    """A member of a pool, without the others."""

    def __init__(self, *, history_bytes: int = 1 << 24, **settings: object) -> None:
        """Make it."""
        super().__init__(**settings)  # type: ignore[arg-type]  # tests know the keys
        self.carrier = Carrier()
        self.recent = RecentUpdates([LINK], bytes_max=history_bytes)
        self.copies = SessionCopies(self.server, self.carrier, recent=self.recent)
        self.server.lifecycles.keepers.join(self.copies)
        self.server.recent = self.recent

    def take(self, updates: list[Update], *, origin: str | None = None, packet_ids: tuple[int, ...] = ()) -> None:
        """Take updates of the link."""
        if origin is None:
            self.recent.note(LINK, updates, now_ns=self.clock.now_ns())
        super().take(updates, origin=origin, packet_ids=packet_ids)

    def mark(self, number: int) -> None:
        """Take a heartbeat."""
        self.recent.mark(LINK, "edge-1", f"7 {number}")
        self.copies.marker_passed()

    async def settle(self) -> None:
        """Have all sessions looked at, and all marks written."""
        await asyncio.sleep(0)
        await self.pass_time(LOOK_S + 0.05)
        await self.copies.marks.written()

    def inherit_from(self, other: Member, *client_ids: str, away_ms: int = 0) -> list[Inherited]:
        """Go on with the sessions of a member that is gone."""
        copies = []
        for client_id in client_ids:
            copy = decode_copy(other.carrier.copies[client_id], bytes_max=1 << 20)
            places = other.carrier.places.get(client_id)
            copies.append((copy if places is None else copy._replace(places=decode_places(places)), away_ms))
        return inherit(self.server, self.recent, copies, now_ns=self.clock.now_ns())


class Pool:
    """Two members that get the same."""

    def __init__(self, first: Member, second: Member) -> None:
        """Join them."""
        self.first, self.second = first, second
        self._marker = 0

    def mark(self) -> None:
        """Send both a heartbeat."""
        self._marker += 1
        self.first.mark(self._marker)
        self.second.mark(self._marker)

    def publish(self, first: int, last: int, *, qos: int = 2, topic: bytes = b"t", **more: Any) -> None:
        """Publish numbers, each member in batches of its own."""
        for number in range(first, last):
            self.first.take([update(topic, b"%d" % number, qos=qos, retain=False, **more)])
        self.second.take(
            [update(topic, b"%d" % number, qos=qos, retain=False, **more) for number in range(first, last)]
        )


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """Give two members, behind a first heartbeat."""
    members = Member(), Member()
    for member in members:
        await member.server.start()
    pool = Pool(*members)
    pool.mark()
    yield pool
    for member in members:
        member.carrier.tell()
        await member.server.stop(deadline_s=0.1)


@contextlib.asynccontextmanager
async def connected(member: Member, client_id: str = "c", **more: Any) -> AsyncIterator[RawClient]:
    """Give a connection with a durable session."""
    more = {"clean_start": False, "properties": DURABLE, **more}
    async with await RawClient.connect(member.port, client_id, **more) as client:
        yield client


async def gone(member: Member, client_id: str = "c") -> None:
    """Wait until a session has no connection any more."""
    session = member.server.registry.get(client_id)
    assert session is not None
    await wait_until(lambda: not session.is_connected)


async def numbers(client: RawClient, count: int, *, acknowledge: bool = True) -> list[int]:
    """Take so many messages, to the end of their handshakes."""
    got: list[int] = []
    open_ids: set[int] = set()
    while len(got) < count or open_ids:
        match await client.receive():
            case Publish(packet_id=int(packet_id), payload=payload, qos=qos):
                got.append(int(payload))
                if acknowledge and qos == 1:
                    client.send(Ack(PacketType.PUBACK, packet_id))
                elif acknowledge:
                    open_ids.add(packet_id)
                    client.send(Ack(PacketType.PUBREC, packet_id))
            case Ack(type=PacketType.PUBREL, packet_id=packet_id):
                open_ids.discard(packet_id)
                client.send(Ack(PacketType.PUBCOMP, packet_id))
            case other:
                raise AssertionError(f"did not expect {other}")
    return got


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_waits_for_an_absent_client_goes_on(pool: Pool, qos: int) -> None:
    """It is not in the copy: the other member has it, and what came while nobody had the session."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=qos)
    await gone(pool.first)
    pool.publish(0, 3)
    pool.mark()
    pool.publish(3, 6)
    await pool.first.settle()
    assert b'"0"' not in pool.first.carrier.copies["c"]
    assert len(pool.first.carrier.copies["c"]) < 250
    pool.publish(6, 8)
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    pool.publish(8, 9)
    async with connected(pool.second) as client:
        assert client.connack.session_present
        assert await numbers(client, 9) == list(range(9))


async def test_a_client_at_qos_1_gets_what_it_has_not_acknowledged(pool: Pool) -> None:
    """Again, with what came behind it."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=1)
        pool.publish(0, 3)
        assert await numbers(client, 3) == [0, 1, 2]
        pool.publish(3, 6)
        assert await numbers(client, 3, acknowledge=False) == [3, 4, 5]
        session = pool.first.server.registry.get("c")
        assert session is not None
        await wait_until(lambda: session.sender.inflight.messages == 3)
        await pool.first.settle()
        pool.publish(6, 7)
        assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    async with connected(pool.second) as client:
        assert await numbers(client, 4) == [3, 4, 5, 6]


async def test_handshakes_at_qos_2_go_on_where_they_were(pool: Pool) -> None:
    """One message is released, one taken, one sent and one waits: each with its Packet Identifier, none twice."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=2)
        pool.publish(0, 1)
        assert await numbers(client, 1) == [0]
        pool.publish(1, 3)
        first, second = await client.expect(Publish), await client.expect(Publish)
        assert (first.payload, second.payload) == (b"1", b"2")
        client.send(Ack(PacketType.PUBREC, first.packet_id or 0))
        assert (await client.expect(Ack)).type is PacketType.PUBREL
    await gone(pool.first)
    pool.publish(3, 5)
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    async with connected(pool.second) as client:
        released = await client.expect(Ack)
        assert (released.type, released.packet_id) == (PacketType.PUBREL, first.packet_id)
        client.send(Ack(PacketType.PUBCOMP, released.packet_id))
        again = await client.expect(Publish)
        assert (again.payload, again.packet_id, again.dup) == (b"2", second.packet_id, True)
        client.send(Ack(PacketType.PUBREC, again.packet_id or 0))
        others: list[bytes] = []
        while len(others) < 2:
            match await client.receive():
                case Publish(payload=payload, packet_id=packet_id):
                    others.append(payload)
                    assert packet_id not in (first.packet_id, second.packet_id)
                case Ack(type=PacketType.PUBREL):
                    pass
        assert others == [b"3", b"4"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_in_flight_go_along_by_their_places(pool: Pool, qos: int) -> None:
    """However they were sent: to all sessions in step, to one alone, or not yet; nothing of them is in the copy."""
    limit = Properties(session_expiry_interval=600, receive_maximum=2)
    async with (
        connected(pool.first, "in-step") as first,
        connected(pool.first, "with-window", properties=limit) as second,
        connected(pool.first, "own") as third,
    ):
        for client in (first, second, third):
            await client.subscribe(b"t", qos=qos)
        third.send(Subscribe(2, (Subscription(b"t", qos=qos, no_local=True),)))
        await third.expect(Suback)
        await pool.first.settle()
        for number in range(3):
            for member in (pool.first, pool.second):
                member.take([update(b"t", b"secret-%d" % (2 * number + each), qos=2, retain=False) for each in (0, 1)])
        for client, count in ((first, 6), (second, 2), (third, 6)):
            assert len([await client.expect(Publish) for _ in range(count)]) == count
        names = ("in-step", "with-window", "own")
        pool.first.copies.copy_again(names)
        await pool.first.settle()
        for name in names:
            assert b"secret" not in pool.first.carrier.copies[name], name
        assert pool.second.inherit_from(pool.first, *names) == [Inherited.HERE] * 3
    async with connected(pool.second, "with-window") as client:
        assert [(await client.expect(Publish)).payload for _ in range(6)] == [b"secret-%d" % n for n in range(6)]


async def test_a_session_goes_on_in_the_middle_of_a_batch(pool: Pool) -> None:
    """The other member has got in one read what came here before and behind the copy."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=2)
        for number in range(3):
            pool.first.take([update(b"t", b"%d" % number, qos=2, retain=False)])
        assert await numbers(client, 3) == [0, 1, 2]
        await pool.first.settle()
    pool.second.take([update(b"t", b"%d" % number, qos=2, retain=False) for number in range(6)])
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    async with connected(pool.second) as client:
        assert await numbers(client, 3) == [3, 4, 5]


async def test_sessions_that_go_on_together_have_what_each_waits_for(pool: Pool) -> None:
    """However far they are apart, and however their limits and the batches lie: none has what it had, or lacks one."""
    heir = Member(queue_messages_max=50, queue_overflow="disconnect")
    await heir.server.start()
    try:
        heir.mark(1)
        places: dict[str, int] = {}
        for number in range(120):
            client_id = f"c-{number:03}"
            async with connected(pool.first, client_id) as client:
                await client.subscribe(b"t" if number > 80 else b"u/%d" % number, qos=2)
            await gone(pool.first, client_id)
            places[client_id] = number
            pool.first.take([update(b"t", b"%d" % number, qos=2, retain=False)])
            pool.first.take([update(b"u/%d" % number, b"%d" % number, qos=2, retain=False)])
        await pool.first.settle()
        for begin in range(0, 240, 7):
            numbers_ = [(each // 2, b"t" if not each % 2 else b"u/%d" % (each // 2)) for each in range(240)]
            part = numbers_[begin : begin + 7]
            heir.take([update(topic, b"%d" % number, qos=2, retain=False) for number, topic in part])
        assert heir.inherit_from(pool.first, *places) == [Inherited.HERE] * 120
        for client_id, number in places.items():
            session = heir.server.registry.get(client_id)
            assert session is not None
            waiting = [int(message[0][1]) for message in session.sender.queue.waiting()]
            assert waiting == (list(range(number, 120)) if number > 80 else [number]), client_id
    finally:
        await heir.server.stop(deadline_s=0.1)


async def test_what_a_client_relies_on_waits_for_the_copy(pool: Pool) -> None:
    """CONNACK, SUBACK and everything at QoS 2 do; messages at QoS 1 go on."""
    carrier = pool.first.carrier
    async with connected(pool.first) as client:
        carrier.is_held = True
        subscribe = Subscribe(1, (Subscription(b"t", qos=1),))
        client.send(subscribe)
        await wait_until(lambda: carrier.untold)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.receive()
        carrier.tell()
        await client.expect(Suback)
        carrier.is_held = True
        pool.publish(0, 1)
        assert await numbers(client, 1) == [0]
    async with connected(pool.second) as client:
        await client.subscribe(b"t", qos=2)
        pool.second.carrier.is_held = True
        pool.publish(1, 2)
        await wait_until(lambda: pool.second.carrier.untold)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.receive()
        pool.second.carrier.tell()
        assert await numbers(client, 1) == [1]


async def test_what_waits_for_the_disk_does_not_wait_for_copies(pool: Pool) -> None:
    """A session is given away at once, though a member that keeps copies of others is slow to answer."""
    async with connected(pool.first) as client:
        pool.first.carrier.is_held = True
        client.send(Subscribe(1, (Subscription(b"t", qos=1),)))
        await wait_until(lambda: pool.first.carrier.untold)
        async with asyncio.timeout(30):
            await pool.first.sessions.on_disk()
        pool.first.carrier.tell()
        await client.expect(Suback)


async def test_sessions_in_step_move_on_with_few_bytes(pool: Pool) -> None:
    """Whatever they acknowledge at QoS 1, one place stands for all of them, and nothing is copied anew."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(pool.first, f"c-{number}")) for number in range(20)]
        for client in clients:
            await client.subscribe(b"t", qos=1)
        await pool.first.settle()
        before = dict(pool.first.carrier.copies)
        for turn in range(5):
            pool.publish(10 * turn, 10 * turn + 10, qos=1)
            for client in clients:
                await numbers(client, 10)
            followers = [session.follower for session in pool.first.server.registry]
            await wait_until(lambda followers=followers: all(not one.in_flight for one in followers))  # type: ignore[misc]
            await pool.first.settle()
        assert pool.first.carrier.copies == before
        assert 0 < pool.first.carrier.moved_bytes < 5 * 20 * 15
        names = [f"c-{number}" for number in range(20)]
        assert pool.second.inherit_from(pool.first, *names) == [Inherited.HERE] * 20
    pool.publish(50, 51)
    for name in names:
        async with connected(pool.second, name) as client:
            assert await numbers(client, 1) == [50]


async def test_retained_messages_under_way_go_along(pool: Pool) -> None:
    """They are in no stream: those that were sent go along whole, those that are left by their topics."""
    for number in range(5):
        for member in (pool.first, pool.second):
            member.take([update(b"r/%d" % number, b"%d" % number, qos=1)])
    limit = Properties(session_expiry_interval=600, receive_maximum=2)
    async with connected(pool.first, properties=limit) as client:
        await client.subscribe(b"r/#", qos=1)
        assert await numbers(client, 2, acknowledge=False) == [0, 1]
        pool.first.copies.copy_again(["c"])
        await pool.first.settle()
        assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    async with connected(pool.second) as client:
        assert await numbers(client, 5) == [0, 1, 2, 3, 4]


async def test_retained_messages_in_flight_are_no_place_in_a_stream(pool: Pool) -> None:
    """Their updates came before the session, and what followed them is not for it; nor are they behind a live one."""
    for member in (pool.first, pool.second):
        member.take([update(b"r/0", b"0", qos=1)])
    pool.publish(1, 3, topic=b"r/live", qos=1)
    async with connected(pool.first) as client:
        await client.subscribe(b"l", qos=1)
        pool.publish(3, 4, topic=b"l", qos=1)
        assert await numbers(client, 1, acknowledge=False) == [3]
        await client.subscribe(b"r/#", qos=1)
        assert await numbers(client, 1, acknowledge=False) == [0]
        pool.first.copies.copy_again(["c"])
        await pool.first.settle()
        assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    pool.publish(4, 5, topic=b"l", qos=1)
    async with connected(pool.second) as client:
        assert sorted(await numbers(client, 3)) == [0, 3, 4]


async def test_a_place_without_a_name_is_copied_at_the_next_heartbeat(pool: Pool) -> None:
    """In between a session at QoS 2 could not go on, and it says so rather than to skip or double messages."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=2)
        pool.first.recent.note_connection(LINK, epoch=1)
        pool.publish(0, 2)
        assert await numbers(client, 2) == [0, 1]
    await gone(pool.first)
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.NO_PLACE]
    pool.mark()
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    pool.publish(2, 3)
    async with connected(pool.second) as client:
        assert await numbers(client, 1) == [2]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_stream_that_begins_anew_gives_all_sessions_new_places(pool: Pool, qos: int) -> None:
    """The primary has forgotten the sessions of the links: without a change of it, no session would be copied again."""
    for member in (pool.first, pool.second):
        member.recent.note_connection(LINK, epoch=1)
    pool.mark()
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=qos)
        pool.publish(0, 2)
        assert await numbers(client, 2) == [0, 1]
    await gone(pool.first)
    await pool.first.settle()
    for member in (pool.first, pool.second):
        member.recent.note_connection(LINK, epoch=2)
    pool.mark()
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]


async def test_a_place_that_the_other_member_does_not_know_is_replaced_at_the_next_look_anew(pool: Pool) -> None:
    """That one's connection broke off where the session goes on, so the place has no name there."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=2)
        pool.second.recent.note_connection(LINK, epoch=1)
        pool.publish(0, 2)
        assert await numbers(client, 2) == [0, 1]
    await gone(pool.first)
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.NOT_HELD]
    interruptions = pool.second.recent.interruptions
    pool.mark()
    assert pool.second.recent.interruptions == interruptions + 1
    pool.first.copies.look_anew()
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    pool.publish(2, 3)
    async with connected(pool.second) as client:
        assert await numbers(client, 1) == [2]


async def test_messages_that_are_not_held_any_more_are_not_skipped(pool: Pool) -> None:
    """Neither those that wait nor those in flight."""
    small = Member(history_bytes=20_000)
    await small.server.start()
    try:
        for number in (1, 2):
            small.mark(number)
        async with connected(pool.first) as client:
            await client.subscribe(b"t", qos=1)
        await gone(pool.first)
        pool.publish(0, 100)
        small.take([update(b"t", b"%d" % number, qos=2, retain=False) for number in range(100)])
        await pool.first.settle()
        assert small.inherit_from(pool.first, "c") == [Inherited.NOT_HELD]
        assert small.server.registry.get("c") is None
    finally:
        await small.server.stop(deadline_s=0.1)


async def test_a_session_that_moves_leaves_its_copy(pool: Pool) -> None:
    """Whoever has it next may be killed before it has made one."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=1)
    await gone(pool.first)
    await pool.first.settle()
    pool.first.sessions.release("c")
    await pool.first.settle()
    assert "c" in pool.first.carrier.copies
    assert pool.first.copies.count == 0


async def test_the_copy_of_a_session_that_ends_goes(pool: Pool) -> None:
    """Before the CONNACK of the next one says so."""
    async with connected(pool.first):
        pass
    await gone(pool.first)
    await pool.first.settle()
    assert "c" in pool.first.carrier.copies
    async with connected(pool.first, clean_start=True, properties=Properties()) as client:
        assert not client.connack.session_present
        await pool.first.settle()
        assert "c" not in pool.first.carrier.copies


async def test_expiry_and_will_go_on_with_what_remained(pool: Pool) -> None:
    """Of a client that was connected both begin with the end of its member."""
    will = Will(b"w", b"gone", 1, properties=Properties(will_delay_interval=10))
    async with connected(pool.first, will=will):
        await pool.first.settle()
        assert pool.second.inherit_from(pool.first, "c", away_ms=3_000) == [Inherited.HERE]
        await pool.second.pass_time(6.0)
        assert pool.second.published == []
        await pool.second.pass_time(1.5)
        assert [row[1] for _, row in pool.second.published] == [b"gone"]
        await pool.second.pass_time(580.0)
        assert pool.second.server.registry.get("c") is not None
        await pool.second.pass_time(12.0)
        assert pool.second.server.registry.get("c") is None


async def test_a_session_that_has_expired_meanwhile_leaves_its_will(pool: Pool) -> None:
    """Its Will Message is published, and nothing else is left of it."""
    will = Will(b"w", b"gone", 1, properties=Properties(will_delay_interval=10_000))
    async with connected(pool.first, will=will):
        await pool.first.settle()
        assert pool.second.inherit_from(pool.first, "c", away_ms=600_000) == [Inherited.EXPIRED]
    assert [row[1] for _, row in pool.second.published] == [b"gone"]
    assert pool.second.server.registry.get("c") is None


async def test_a_session_with_a_shared_subscription_has_no_copy(pool: Pool) -> None:
    """What it got does not follow from what its members have in common; without it there is one again."""
    async with connected(pool.first) as client:
        await client.subscribe(b"$share/g/t", qos=1)
        await pool.first.settle()
        assert "c" not in pool.first.carrier.copies
        await client.unsubscribe(b"$share/g/t")
        await pool.first.settle()
        assert "c" in pool.first.carrier.copies


async def test_messages_that_one_member_alone_has_go_along_whole(pool: Pool) -> None:
    """As what an audit has found: no other member could find it in its streams."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=2)
    await gone(pool.first)
    super(Member, pool.first).take([update(b"t", b"7", qos=2, retain=False)])
    pool.publish(8, 9)
    pool.first.copies.copy_again(["c"])
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    async with connected(pool.second) as client:
        assert await numbers(client, 2) == [7, 8]


async def test_what_is_held_without_a_name_comes_once_and_in_order(pool: Pool) -> None:
    """As behind an interruption: it follows the first message that waits, whose place has a name."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=2)
    await gone(pool.first)
    pool.publish(0, 1)
    for member in (pool.first, pool.second):
        member.recent.note_connection(LINK, epoch=1)
    pool.publish(1, 3)
    pool.mark()
    pool.publish(3, 4)
    pool.first.copies.copy_again(["c"])
    await pool.first.settle()
    assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    pool.publish(4, 5)
    async with connected(pool.second) as client:
        assert await numbers(client, 5) == [0, 1, 2, 3, 4]


async def test_a_session_without_a_copy_costs_nothing_while_it_rests(pool: Pool) -> None:
    """It is not looked at as if it had changed, and counts for no part of the history."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=1)
        pool.publish(0, 1)
        assert await numbers(client, 1, acknowledge=False) == [0]
        await pool.first.settle()
        assert "c" in pool.first.carrier.copies
        await client.subscribe(b"$share/g/t", qos=1)
        pool.publish(1, 2)
        assert await numbers(client, 2, acknowledge=False) == [1, 1]
        for _ in range(2):
            await pool.first.settle()
        assert "c" not in pool.first.carrier.copies
        told = pool.first.carrier.puts
        for _ in range(3):
            await pool.first.settle()
        assert pool.first.carrier.puts == told


@pytest.mark.parametrize("state", ["waits", "in flight", "acknowledged", "shared"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_history_is_used_since_the_oldest_message_that_a_copy_needs(pool: Pool, state: str, qos: int) -> None:
    """However often it was copied since, and by that alone: a session without a copy needs none."""
    copies, recent = pool.first.copies, pool.first.recent
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=qos)
        if state == "shared":
            await client.subscribe(b"$share/g/u", qos=1)
        if state in ("waits", "shared"):
            await client.close()
            await gone(pool.first)
        await pool.first.settle()
        before = recent.grown
        pool.publish(0, 1)
        if state == "in flight":
            assert (await client.expect(Publish)).payload == b"0"
        elif state == "acknowledged":
            assert await numbers(client, 1) == [0]
        await pool.first.settle()
        pool.publish(0, 100, topic=b"other")
        pool.mark()
        copies.copy_again(["c"])
        for _ in range(3):  # a round of looks ends with the next one
            await pool.first.settle()
        used = (recent.grown - before) / recent.bytes_max
        assert copies.history_used == (pytest.approx(used) if state in ("waits", "in flight") else 0.0)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_long_queue_costs_a_copy_no_more_than_a_short_one(
    pool: Pool, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message that waits is looked for once, and one that no other member has still goes along whole."""
    recent, found = pool.first.recent, [0]
    find = recent.find

    def counted(one: Update) -> Found | None:
        found[0] += 1
        return find(one)

    monkeypatch.setattr(recent, "find", counted)
    limit = Properties(session_expiry_interval=600, receive_maximum=1)
    async with connected(pool.first, properties=limit) as client:
        await client.subscribe(b"t", qos=qos)
        for begin in range(0, 600, 20):
            batch = [update(b"t", b"%d" % number, qos=2, retain=False) for number in range(begin, begin + 20)]
            if begin == 300:
                super(Member, pool.first).take([update(b"t", b"1000", qos=2, retain=False)])
            for member in (pool.first, pool.second):
                member.take(batch)
        await pool.first.settle()
        for number in range(20):
            assert await numbers(client, 1) == [number]
            await pool.first.settle()
        assert found[0] < 2 * 601
        assert (await client.expect(Publish)).payload == b"20"
        assert b"1000" in pool.first.carrier.copies["c"]
        await pool.first.settle()
        assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    async with connected(pool.second) as client:
        assert sorted(await numbers(client, 581)) == [*range(20, 600), 1000]


async def test_much_in_flight_costs_a_look_no_more_than_little(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions at different places, too: of each the oldest message is looked for, and none behind it."""
    recent, found = pool.first.recent, [0]
    find = recent.find

    def counted(one: Update) -> Found | None:
        found[0] += 1
        return find(one)

    monkeypatch.setattr(recent, "find", counted)
    async with contextlib.AsyncExitStack() as stack:
        names = [f"c-{number}" for number in range(10)]
        clients = [await stack.enter_async_context(connected(pool.first, name)) for name in names]
        for client in clients:
            await client.subscribe(b"t", qos=1)
        await pool.first.settle()
        pool.publish(0, 300, qos=1)
        for number, client in enumerate(clients):
            assert await numbers(client, number) == list(range(number))
            assert len(await numbers(client, 300 - number, acknowledge=False)) == 300 - number
        followers = [session.follower for session in pool.first.server.registry]
        await wait_until(lambda: sorted(one.completed for one in followers) == list(range(10)))
        await pool.first.settle()
        found[0] = 0
        pool.publish(300, 301, qos=1)
        assert len(pool.first.carrier.places) == 10
        for client in clients:
            client.send(Ack(PacketType.PUBACK, 11))  # out of order: it has in-flight state of its own from now on
        await wait_until(lambda: all(one.log is None for one in followers))
        await pool.first.settle()
        assert 0 < found[0] <= 10
        assert pool.second.inherit_from(pool.first, *names) == [Inherited.HERE] * 10
    for number, name in enumerate(names):
        async with connected(pool.second, name) as client:
            assert await numbers(client, 301 - number) == list(range(number, 301))


@pytest.mark.parametrize("is_in_flight", [True, False])
async def test_a_look_finds_what_one_member_alone_has_behind_other_messages(pool: Pool, is_in_flight: bool) -> None:
    """It is in no stream, so the session is copied whole with it."""
    limit = Properties(session_expiry_interval=600, receive_maximum=10 if is_in_flight else 2)
    async with connected(pool.first, properties=limit) as client:
        await client.subscribe(b"t", qos=1)
        pool.publish(0, 2, qos=1)
        assert await numbers(client, 2, acknowledge=False) == [0, 1]
        await pool.first.settle()
        copied = pool.first.carrier.copies["c"]
        super(Member, pool.first).take([update(b"t", b"7", qos=1, retain=False)])
        pool.publish(8, 9, qos=1)
        client.send(Ack(PacketType.PUBACK, 1))
        sent = [7, 8] if is_in_flight else [7]
        assert await numbers(client, len(sent), acknowledge=False) == sent
        await pool.first.settle()
        assert pool.first.carrier.copies["c"] != copied
        assert pool.second.inherit_from(pool.first, "c") == [Inherited.HERE]
    async with connected(pool.second) as client:
        assert sorted(await numbers(client, 3)) == [1, 7, 8]


async def test_a_look_that_takes_long_leaves_sessions_to_the_next_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are served in between, and none of the sessions is forgotten."""
    find = pool.first.recent.find

    def slow(one: Update) -> Found | None:
        pool.first.clock.advance(0.015)
        return find(one)

    async with contextlib.AsyncExitStack() as stack:
        names = [f"c-{number}" for number in range(5)]
        clients = [await stack.enter_async_context(connected(pool.first, name)) for name in names]
        for client in clients:
            await client.subscribe(b"t", qos=1)
        await pool.first.settle()
        monkeypatch.setattr(pool.first.recent, "find", slow)
        pool.publish(0, 6, qos=1)
        for number, client in enumerate(clients):
            assert await numbers(client, number) == list(range(number))
        followers = [session.follower for session in pool.first.server.registry]
        await wait_until(lambda: sorted(one.completed for one in followers) == list(range(5)))
        seen: list[int] = []
        for _ in range(3):
            await pool.first.pass_time(LOOK_S * 4)
            seen.append(len(pool.first.carrier.places))
        assert seen == [2, 4, 5]


async def test_what_waits_for_its_copy_is_not_sent_behind_a_fence(pool: Pool) -> None:
    """Another member may have the session by the time that the copy is given up or kept."""
    async with connected(pool.first) as client:
        await client.subscribe(b"t", qos=2)
        await pool.first.settle()
        pool.first.carrier.is_held = True
        pool.publish(0, 1)
        await pool.first.pass_time(0.01)
        assert pool.first.server.lifecycles.raise_fence() == 1
        pool.first.carrier.tell()
        await client.expect_end(ReasonCode.SERVER_BUSY)


async def test_a_client_whose_session_was_not_kept_before_the_fence_is_refused(pool: Pool) -> None:
    """It gets a CONNACK, never a DISCONNECT, in either version: [MQTT-3.14.0-1]."""
    pool.first.carrier.is_held = True
    connecting = [
        asyncio.create_task(
            RawClient.connect(
                pool.first.port, f"c-{version}", version=version, clean_start=False, properties=properties
            )
        )
        for version, properties in ((4, Properties()), (5, DURABLE))
    ]
    await wait_until(lambda: len(pool.first.carrier.untold) > 0 and len(pool.first.server.registry) == 2)
    assert pool.first.server.lifecycles.raise_fence() == 2
    pool.first.carrier.tell()
    codes = (3, ReasonCode.SERVER_BUSY)
    for client, code in zip(await asyncio.gather(*connecting), codes, strict=True):
        assert client.connack.reason_code == code
        await client.expect_end()
        await client.close()


async def test_a_long_queue_without_places_has_no_copy_until_it_is_short(pool: Pool) -> None:
    """To copy all of it again for each change would take long each time; no look goes through all of it."""
    member = pool.first
    async with connected(member) as client:
        await client.subscribe(b"t", qos=1)
    await gone(member)
    await member.settle()
    assert "c" in member.carrier.copies
    session = member.server.registry.get("c")
    assert session is not None
    for first in range(0, 20_000, 500):  # the link brought none of these
        member.take(
            [update(b"t", b"%d" % number, qos=1, retain=False) for number in range(first, first + 500)], origin="x"
        )
    member.copies.note("c")
    await member.settle()
    assert "c" not in member.carrier.copies
    batch, _ = session.sender.queue.head()
    while session.sender.queue.messages > COPIED_MESSAGES_MAX - 1_000:
        session.sender.queue.advance(len(batch.messages))
        batch, _ = session.sender.queue.head()
    member.copies.note("c")
    await member.settle()
    copy = decode_copy(member.carrier.copies["c"], bytes_max=1 << 24)
    assert len(copy.session.queue) == session.sender.queue.messages


async def test_messages_without_a_place_are_looked_for_in_several_turns(pool: Pool) -> None:
    """Behind thousands that have one; the copy is made when all is known."""
    member = pool.first
    async with connected(member) as client:
        await client.subscribe(b"t", qos=1)
    await gone(member)
    for first in range(0, 12_000, 500):
        member.take([update(b"t", b"%d" % number, qos=1, retain=False) for number in range(first, first + 500)])
    member.take([update(b"t", b"own", qos=1, retain=False)], origin="x")
    member.copies.add("c")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "c" not in member.carrier.copies
    await wait_until(lambda: "c" in member.carrier.copies)
    copy = decode_copy(member.carrier.copies["c"], bytes_max=1 << 20)
    assert [message.payload for message in copy.session.queue] == [b"own"]
    assert copy.places["plant"].updates == 0


async def test_a_group_is_copied_in_several_turns(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it waits for all of it."""
    member = pool.first
    monkeypatch.setattr(session_copies, "_TURN_S", -1.0)
    for client_id in ("c", "d", "e"):
        async with connected(member, client_id) as client:
            await client.subscribe(b"t", qos=1)
        await gone(member, client_id)
    await member.copies.marks.written()
    puts = member.carrier.puts
    for client_id in ("c", "d", "e"):
        member.copies.marks.mark(client_id)
    member.carrier.is_held = True
    await wait_until(lambda: member.carrier.puts == puts + 3)
    assert member.copies.marks.unwritten("c")
    member.carrier.tell()
    await member.copies.marks.written()
    assert not any(map(member.copies.marks.unwritten, ("c", "d", "e")))
