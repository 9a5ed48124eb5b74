"""Sessions on disk that survive a kill: what is there after it, what waits for the disk, and what becomes of damage."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.durable.hosting.server_sessions import ServerSessions
from fanout.durable.hosting.session_restart import RETURN_S
from fanout.durable.keeping import session_journal as journal_module
from fanout.durable.ownership.epochs import NO_EPOCH
from fanout.durable.ownership.move_messages import TakeQuestion
from fanout.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    PacketType,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.disk.journaled_sessions import JournaledSessions
from fanout.storage.direct import DirectStore
from fanout.storage.file import CACHE_BYTES, RetainedFile
from fanout.storage.store import DiskStore, StoreOptions
from fanout.storage.write_behind import WriteBehindStore
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)
LOOKED_S = journal_module.LOOK_S + 0.1


class DiskNode:
    """A node in memory whose sessions are on disk."""

    def __init__(self, path: Path, store: type[DiskStore], *, now_ns: int | None = None, **settings: object) -> None:
        """Prepare; `now_ns` is the time, None for the default."""
        self.path = path
        self.node = NodeInMemory(gate=None, **settings)
        clock = self.node.clock
        clock.advance(100.0 if now_ns is None else (now_ns - clock.now_ns()) / 1e9)
        logger = structlog.get_logger()
        hold: list[bool] = []
        options = StoreOptions(sync="interval", sync_interval_s=0.01, hold=hold.append, logger=logger)
        self.storage: DiskStore = (
            DirectStore(path, cache_bytes=CACHE_BYTES, **options)
            if store is DirectStore
            else WriteBehindStore(path, **options)
        )
        self.sessions = JournaledSessions(self.node.server, self.storage, clock=clock, logger=logger)

    async def start(self) -> None:
        """Start as a node does."""
        await asyncio.to_thread(self.storage.open, now_ns=1)
        await self.sessions.recover()
        self.storage.start()
        self.node.storage = self.storage
        self.sessions.begin()
        await self.node.server.start()

    async def written(self) -> None:
        """Wait until the disk has what was handed over."""
        done = asyncio.Event()
        self.storage.put("link", [], done=done.set)
        await asyncio.wait_for(done.wait(), 20)

    async def look(self) -> None:
        """Have the journal look at the sessions, and wait until the disk has what it found."""
        await self.node.pass_time(LOOKED_S)
        await self.written()

    async def leave(self) -> None:
        """Stop as a node does."""
        await self.node.server.stop(deadline_s=0.1)
        self.sessions.leave()
        await asyncio.to_thread(self.storage.close, timeout_s=10)

    async def record_of(self, client_id: str) -> bytes | None:
        """Return what is on disk of a session."""
        await self.written()
        return records(self.path).get(client_id)


def records(path: Path) -> dict[str, bytes]:
    """Return the records in a copy of the file, which may be open."""
    image = copied(path, path.with_name("looked-at"))
    file = RetainedFile(image, sync="interval")
    found = file.client_records()
    file.close()
    return found


def history(path: Path) -> list[int]:
    """Return the numbers of the batches in a copy of the file."""
    image = copied(path, path.with_name("looked-at"))
    file = RetainedFile(image, sync="interval")
    found = [batch.position for batch in file.history()]
    file.close()
    return found


def copied(path: Path, target: Path) -> Path:
    """Copy the file and its write-ahead log, as a process that is killed now leaves them."""
    for suffix in ("", "-wal"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(path.with_name(path.name + suffix), target.with_name(target.name + suffix))
    return target


class HeldDisk:
    """Keeps back that records are on the disk."""

    def __init__(self, node: DiskNode) -> None:
        """Begin with nothing kept back."""
        self._node = node
        self._kept: list[Callable[[], None]] = []

    async def __aenter__(self) -> HeldDisk:
        """Keep back from now on."""
        storage = self._node.storage
        put = storage.put_sessions

        def put_and_keep(records: dict[str, bytes | None], *, history_from: int, done: Callable[[], None]) -> None:
            put(records, history_from=history_from, done=lambda: None)
            self._kept.append(done)

        storage.put_sessions = put_and_keep  # type: ignore[method-assign]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Tell what is on the disk by now."""
        del self._node.storage.put_sessions
        await self._node.written()
        for done in self._kept:
            done()

    async def is_silent(self, client: RawClient) -> bool:
        """Return whether a client gets nothing, although its record is on its way."""
        await wait_until(lambda: self._kept, what="a record")
        try:
            async with asyncio.timeout(0.1):
                await client.receive()
        except TimeoutError:
            return True
        return False


Begin = Callable[..., Awaitable[DiskNode]]


@pytest.fixture(params=[WriteBehindStore, DirectStore], ids=["disc", "disc_only"])
async def begin(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Begin]:
    """Give a function that starts a node; with `killed` or `stopped` with what that one left."""
    started: list[DiskNode] = []

    async def start(
        *, killed: DiskNode | None = None, stopped: DiskNode | None = None, away_s: float = 0.0, **settings: object
    ) -> DiskNode:
        path, now_ns = tmp_path / f"retained-{len(started)}", None
        if before := killed or stopped:
            now_ns = before.node.clock.now_ns() + int(away_s * 1e9)
            if stopped is not None:
                started.remove(stopped)
                await stopped.leave()
            path = copied(before.path, tmp_path / f"retained-after-{len(started)}-{before.path.name}")
        node = DiskNode(path, request.param, now_ns=now_ns, **settings)
        started.append(node)
        await node.start()
        return node

    yield start
    for node in started:
        await node.leave()


@contextlib.asynccontextmanager
async def connected(node: DiskNode, client_id: str = "c", **more: Any) -> AsyncIterator[RawClient]:
    """Give a connection with a durable session."""
    more = {"clean_start": False, "properties": DURABLE, **more}
    async with await RawClient.connect(node.node.port, client_id, **more) as client:
        yield client


async def gone(node: DiskNode) -> None:
    """Wait until a node has noticed that no client is connected."""
    await wait_until(lambda: not node.node.server.connections)


def numbered(first: int, last: int, *, qos: int = 1, topic: bytes = b"t") -> list[Any]:
    """Return numbered messages that are not retained."""
    return [update(topic, b"%d" % number, qos=qos, retain=False) for number in range(first, last + 1)]


def payloads(messages: list[Publish]) -> list[bytes]:
    """Return the payloads of messages."""
    return [message.payload for message in messages]


async def subscribed(node: DiskNode, *topics: bytes, client_id: str = "c", qos: int = 1) -> None:
    """Leave a session that is subscribed and whose client is away."""
    async with connected(node, client_id) as client:
        await client.subscribe(*(topics or (b"t",)), qos=qos)
    await gone(node)


async def test_what_waits_for_a_client_that_is_away_is_there_after_a_kill(begin: Begin) -> None:
    """Nothing but the history was written for it, and the session is as it was, at every later kill too."""
    node = await begin()
    await subscribed(node)
    before = await node.record_of("c")
    for first in (1, 11, 21):
        node.node.take(numbered(first, first + 9))
    assert await node.record_of("c") == before
    for _ in range(2):
        node = await begin(killed=node)
    async with connected(node) as client:
        assert client.connack.session_present
        assert payloads(await client.messages_until_ping()) == [b"%d" % number for number in range(1, 31)]


async def test_what_the_client_has_acknowledged_comes_no_more_once_it_was_looked_at(begin: Begin) -> None:
    """What it got after the last look comes again, without DUP: the next process does not know that it was sent."""
    node = await begin()
    async with connected(node, properties=Properties(session_expiry_interval=600, receive_maximum=3)) as client:
        await client.subscribe(b"t", qos=1)
        node.node.take(numbered(1, 8))
        for message in await client.messages(3):
            client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
        sent = await client.messages(3)
        await node.look()
        for message in sent:
            client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
        assert payloads(await client.messages(2)) == [b"7", b"8"]
        other = await begin(killed=node)
    async with connected(other) as client:
        again = await client.messages_until_ping()
        assert [(one.payload, one.dup) for one in again] == [
            (b"4", True),
            (b"5", True),
            (b"6", True),
            (b"7", False),
            (b"8", False),
        ]
        assert [one.packet_id for one in again[:3]] == [one.packet_id for one in sent]


async def test_a_message_at_qos_2_is_on_disk_before_it_is_sent(begin: Begin) -> None:
    """Messages at QoS 1 do not wait, and what comes behind one that waits keeps its place."""
    node = await begin()
    async with connected(node) as client:
        await client.subscribe(b"t", qos=2)
        async with connected(node, "once") as once:
            await once.subscribe(b"t", qos=1)
            node.node.take(numbered(0, 0, qos=2))
            await client.messages(1)
            assert payloads(await once.messages(1)) == [b"0"]
            await node.written()
            async with HeldDisk(node) as disk:
                node.node.take(numbered(1, 1, qos=2))
                client.send(Pingreq())
                assert payloads(await once.messages(1)) == [b"1"]
                assert await disk.is_silent(client)
            assert payloads(await client.messages(1)) == [b"1"]
            await client.expect(Pingresp)


async def test_a_session_is_on_disk_before_its_client_hears_of_it(begin: Begin) -> None:
    """CONNACK and SUBACK wait; a client without a durable session waits for nothing."""
    node = await begin()
    async with HeldDisk(node) as disk:
        client = await RawClient.open(node.node.port)
        client.send(Connect(client_id="c", clean_start=False, properties=DURABLE))
        async with await RawClient.connect(node.node.port, "volatile") as other:
            await other.subscribe(b"t", qos=2)
        assert await disk.is_silent(client)
    await client.expect(Connack)
    async with HeldDisk(node) as disk:
        client.send(Subscribe(1, (Subscription(b"t", 1),)))
        assert await disk.is_silent(client)
    await client.expect(Suback)
    assert list(records(node.path)) == ["c"]
    await client.close()


async def test_what_the_client_sends_at_qos_2_is_published_once_over_a_kill(begin: Begin) -> None:
    """Its PUBREC waits for the disk, and the next process does not publish it again."""
    node = await begin()
    async with connected(node) as client:
        async with HeldDisk(node) as disk:
            client.publish(b"p", b"x", qos=2, packet_id=7)
            assert await disk.is_silent(client)
        assert (await client.expect(Ack)).packet_id == 7
        node = await begin(killed=node)
    async with connected(node) as client:
        client.publish(b"p", b"x", qos=2, packet_id=7, dup=True)
        await client.expect_ack(PacketType.PUBREC, 7)
        assert node.node.published == []
        client.send(Ack(PacketType.PUBREL, 7))
        await client.expect_ack(PacketType.PUBCOMP, 7)


async def test_a_verdict_that_comes_after_the_client_has_gone_is_on_disk(begin: Begin) -> None:
    """A message at QoS 2 that the primary has taken is not published again after a restart in order."""
    node = await begin()
    verdict: asyncio.Future[ReasonCode] = asyncio.get_running_loop().create_future()
    node.node.verdicts[b"p"] = lambda: verdict
    async with connected(node) as client:
        client.publish(b"p", b"x", qos=2, packet_id=7)
        await wait_until(lambda: node.node.published)
    await wait_until(lambda: not node.node.server.connection_count)
    await node.written()
    verdict.set_result(ReasonCode.SUCCESS)
    await node.written()  # a node that stops waits for verdicts, and for what follows from them
    node = await begin(stopped=node)
    async with connected(node) as client:
        client.publish(b"p", b"x", qos=2, packet_id=7, dup=True)
        await client.expect_ack(PacketType.PUBREC, 7)
        assert node.node.published == []


@pytest.mark.parametrize("is_recorded", [False, True], ids=["before its record", "behind its record"])
async def test_a_message_at_qos_2_is_on_disk_with_its_packet_identifier(begin: Begin, is_recorded: bool) -> None:
    """A kill between the message and the record of its publisher doubles nothing; nor does one later, or a third."""
    node = await begin()
    await subscribed(node, b"p", client_id="s", qos=2)
    async with connected(node) as client:
        await client.subscribe(b"other", qos=2)
        put = node.storage.put_sessions
        if not is_recorded:
            node.storage.put_sessions = lambda records, **more: None  # type: ignore[method-assign]
        client.publish(b"p", b"x", qos=2, packet_id=7)
        await wait_until(lambda: node.node.published)
        if is_recorded:
            await client.expect_ack(PacketType.PUBREC, 7)
        await node.written()
        killed = node
        for _ in range(2):
            node = await begin(killed=node)
        killed.storage.put_sessions = put  # type: ignore[method-assign]
    async with connected(node) as client:
        client.publish(b"p", b"x", qos=2, packet_id=7, dup=True)
        await client.expect_ack(PacketType.PUBREC, 7)
        assert node.node.published == []
        node = await begin(killed=node)
    async with connected(node) as client:
        client.send(Ack(PacketType.PUBREL, 7))
        await client.expect_ack(PacketType.PUBCOMP, 7)
        node = await begin(killed=node)
    async with connected(node) as client:
        client.publish(b"p", b"y", qos=2, packet_id=7)
        await client.expect_ack(PacketType.PUBREC, 7)
        assert [row[1] for _, row in node.node.published] == [b"y"]
    async with connected(node, "s") as client:
        assert payloads(await client.messages(2)) == [b"x", b"y"]


async def test_messages_of_a_subscription_that_was_ended_still_come(begin: Begin) -> None:
    """They do not follow from the subscriptions that the record has; those of a new one do not begin earlier."""
    node = await begin()
    async with connected(node, properties=Properties(session_expiry_interval=600, receive_maximum=1)) as client:
        await client.subscribe(b"old", qos=1)
        node.node.take([*numbered(1, 2, topic=b"old"), *numbered(3, 3, topic=b"new")])
        node.node.take(numbered(4, 4, topic=b"old"))
        await client.messages(1)
        await client.unsubscribe(b"old")
        await client.subscribe(b"new", qos=1)
        node.node.take([*numbered(5, 5, topic=b"old"), *numbered(6, 6, topic=b"new")])
        await node.written()
        node = await begin(killed=node)
    async with connected(node) as client:
        assert payloads(await client.messages_until_ping()) == [b"1", b"2", b"4", b"6"]


async def test_no_local_holds_for_what_waits(begin: Begin) -> None:
    """What a client published itself is not delivered to it after the kill, where it asked for that."""
    node = await begin()
    async with connected(node, properties=Properties(session_expiry_interval=600, receive_maximum=1)) as client:
        await client.subscribe(Subscription(b"t", 1, no_local=True))
        node.node.take(numbered(1, 2))
        client.publish(b"t", b"own", qos=1)
        await client.messages(1)
        await client.expect(Ack)
        node.node.take(numbered(3, 3))
        await node.written()
        node = await begin(killed=node)
    async with connected(node) as client:
        assert payloads(await client.messages_until_ping()) == [b"1", b"2", b"3"]


async def test_the_history_goes_when_nobody_needs_it(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has got what it waited for lets go of it at a look; who is away and waits for nothing does so later."""
    monkeypatch.setattr(journal_module, "_FAR", 20)
    node = await begin()
    node.node.take(numbered(1, 1))
    await node.written()
    assert history(node.path) == [], "there is no session yet"
    await subscribed(node, b"elsewhere", client_id="away")
    async with connected(node, properties=Properties(session_expiry_interval=600, receive_maximum=1)) as client:
        await client.subscribe(b"t", qos=1)
        for number in range(1, 61):
            node.node.take(numbered(number, number))
            if number % 5 == 0:
                await node.look()
        assert len(history(node.path)) >= 59, "it waits for all but the first"
        for _ in range(60):
            (message,) = await client.messages(1)
            client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
        assert await client.messages_until_ping() == []
        await node.look()
        await node.look()
        assert len(history(node.path)) <= 22


async def test_a_session_far_behind_is_written_with_what_waits(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the history stays bounded, whoever is away; nothing of it is missing after a kill, nor comes twice."""
    monkeypatch.setattr(journal_module, "_FAR", 20)
    monkeypatch.setattr(journal_module, "_TOO_FAR", 40)
    node = await begin()
    await subscribed(node)
    for number in range(1, 101):
        node.node.take(numbered(number, number))
        if number % 5 == 0:
            await node.look()
    await node.look()
    assert len(history(node.path)) <= 60
    node = await begin(killed=node)
    node.node.take(numbered(101, 101))
    await node.written()
    node = await begin(killed=node)
    async with connected(node) as client:
        assert payloads(await client.messages_until_ping()) == [b"%d" % number for number in range(1, 102)]


@pytest.mark.parametrize("ends_by", ["claim", "history", "client"])
async def test_a_session_that_was_given_away_is_on_disk_until_the_other_member_has_it(
    begin: Begin, ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on if this process is killed meanwhile. Its record goes at the claim, or when much has come since."""
    node = await begin()
    await subscribed(node)
    node.node.take(numbered(1, 3))
    host = ServerSessions(node.node.server, link_of=lambda topic: "plant")
    host.promise(TakeQuestion("c", NO_EPOCH, user="", superuser=False, anyone=True, clean=False))
    host.export("c", {})
    node.node.take(numbered(4, 5))
    host.release("c")
    assert node.node.server.registry.get("c") is None
    await node.look()
    assert await node.record_of("c") is not None
    other = await begin(killed=node)
    async with connected(other) as client:
        assert client.connack.session_present
        assert payloads(await client.messages_until_ping()) == [b"1", b"2", b"3", b"4", b"5"]
    if ends_by == "client":
        async with connected(node, clean_start=True):
            pass
        await gone(node)
        again = await begin(killed=node)
        async with connected(again) as client:
            assert client.connack.session_present
            assert await client.messages_until_ping() == []
        host.let_go("c")
        assert await node.record_of("c") is not None
        return
    if ends_by == "claim":
        host.let_go("c")
    else:
        monkeypatch.setattr(journal_module, "_FAR", 10)
        await subscribed(node, client_id="d")  # so that there is a history
        node.node.take(numbered(6, 30))
        await node.look()
        node.node.take(numbered(31, 60))
        await node.look()
    assert await node.record_of("c") is None


async def test_a_session_that_has_ended_is_not_on_disk(begin: Begin) -> None:
    """However it ended; and without a durable session no history is kept."""
    node = await begin()
    async with connected(node, "expires-at-once", properties=Properties(session_expiry_interval=0)):
        pass
    async with connected(node, "ends") as client:
        await client.disconnect(properties=Properties(session_expiry_interval=0))
    await subscribed(node, client_id="begins-anew")
    async with connected(node, "begins-anew", clean_start=True, properties=Properties()):
        pass
    await gone(node)
    assert set(records(node.path)) <= {"ends", "begins-anew"}
    await node.written()
    assert records(node.path) == {}
    node.node.take(numbered(1, 1))
    await node.written()
    assert history(node.path) == []


async def test_an_expired_session_ends_and_its_will_comes(begin: Begin) -> None:
    """The time without a process counts for a client that was away; over further kills its Will Message is kept."""
    node = await begin()
    will = Will(b"gone", b"c", qos=1, properties=Properties(will_delay_interval=500))
    async with connected(node, "here", properties=DURABLE), connected(node, will=will):
        pass
    await gone(node)
    async with connected(node, "here"):
        await node.written()
        node = await begin(killed=node, away_s=700)
    assert [session.client_id for session in node.node.server.registry] == ["here"]
    node = await begin(killed=node)
    assert node.node.published == []
    await node.node.pass_time(RETURN_S + 1)
    assert [(client, row[0]) for client, row in node.node.published] == [("c", b"gone")]
    assert await node.record_of("c") is None


@pytest.mark.parametrize("limit", ["sessions_max", "subscriptions_max", "filter_bytes_max"])
async def test_no_limit_ends_a_session_that_was_accepted(begin: Begin, limit: str) -> None:
    """After a start with narrower limits all sessions go on, with their messages and Will Messages."""
    node = await begin()
    will = Will(b"gone", b"c", qos=1, properties=Properties(will_delay_interval=500))
    for client_id in ("a", "b"):
        await subscribed(node, b"t", b"u", client_id=client_id)
    async with connected(node, will=will) as client:
        await client.subscribe(b"t", b"u", qos=1)
    await gone(node)
    node.node.take(numbered(1, 5))
    await node.look()
    node = await begin(killed=node, away_s=100, **{limit: 1})
    assert {session.client_id for session in node.node.server.registry} == {"a", "b", "c"}
    async with connected(node, "a") as client:
        assert client.connack.session_present
        assert payloads(await client.messages_until_ping()) == [b"%d" % number for number in range(1, 6)]
    await gone(node)
    await node.node.pass_time(500)
    assert [(client, row[0]) for client, row in node.node.published] == [("c", b"gone")]


async def test_sessions_with_shared_subscriptions_survive_a_stop_only(begin: Begin) -> None:
    """What comes by a shared subscription does not follow from the history: another member may have got it."""
    node = await begin()
    await subscribed(node, b"$share/g/t")
    node.node.take(numbered(1, 2))
    assert await node.record_of("c") is None
    node = await begin(stopped=node)
    assert await node.record_of("c") is None, "from now on it is not written any more"
    async with connected(node) as client:
        assert client.connack.session_present
        assert payloads(await client.messages_until_ping()) == [b"1", b"2"]
    await gone(node)
    node = await begin(killed=node)
    assert node.node.server.session_count == 0


async def test_records_are_made_in_groups(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients that come at once hold the event loop for a few milliseconds only, and share transactions."""
    node = await begin()
    sizes: list[int] = []
    put = node.storage.put_sessions

    def counted(records: dict[str, bytes | None], **more: Any) -> None:
        sizes.append(len(records))
        put(records, **more)

    monkeypatch.setattr(node.storage, "put_sessions", counted)
    async with contextlib.AsyncExitStack() as clients:
        for number in range(600):
            await clients.enter_async_context(connected(node, f"c-{number}"))
        await node.written()
        sizes.clear()
        for connection in list(node.node.server.connections):
            connection.abort()
        await gone(node)
        await wait_until(lambda: sum(sizes) == 600)
    assert max(sizes) <= 256
    assert len(sizes) <= 6
    assert len(records(node.path)) == 600


async def test_a_record_that_cannot_be_read_is_told_and_removed(begin: Begin) -> None:
    """The other sessions are restored."""
    node = await begin()
    await subscribed(node, client_id="good")
    await subscribed(node, client_id="bad")
    await node.written()
    image = copied(node.path, node.path.with_name("damaged"))
    with contextlib.closing(sqlite3.connect(image)) as database, database:
        database.execute("UPDATE client_session SET record = x'0102' WHERE client_id = 'bad'")
    node.path = image
    with capture_logs() as lines:
        node = await begin(killed=node)
    assert [line["client_id"] for line in lines if line["event"] == "session not restored"] == ["bad"]
    await node.written()
    assert list(records(node.path)) == ["good"]


def damages(path: Path) -> dict[str, Callable[[], object]]:
    """Return ways to damage the write-ahead log of a file, by name: bytes that differ, and logs that were cut off."""
    log = path.with_name(f"{path.name}-wal")
    whole = log.read_bytes()

    def flip(at: int) -> Callable[[], object]:
        return lambda: log.write_bytes(whole[:at] + bytes((whole[at] ^ 0x55,)) + whole[at + 1 :])

    def cut(to: int) -> Callable[[], object]:
        return lambda: log.write_bytes(whole[:to])

    frame = 24 + 4096
    places = {at + 32 + frame * number for number in range((len(whole) - 32) // frame) for at in (3, 9, 17, 24, 3000)}
    found = {f"byte {at}": flip(at) for at in sorted({0, 9, 18, 25, *places})}
    found |= {f"cut to {to}": cut(to) for to in (0, 16, 32, *range(32 + frame, len(whole) - 1, frame), len(whole) - 1)}
    return found


async def test_damage_of_the_write_ahead_log_loses_nothing_silently(begin: Begin, tmp_path: Path) -> None:
    """SQLite goes on with the part in front of it: either nothing is missing, or the client has Session Present 0."""
    node = await begin()
    await subscribed(node)
    for number in range(1, 7):
        node.node.take(numbered(number, number))
        await node.written()
    image = copied(node.path, tmp_path / "image")
    mark = node.path.with_name(f"{node.path.name}-told").read_bytes()
    told: dict[str, bool] = {}
    for name, damage in damages(image).items():
        damage()
        variant = DiskNode(copied(image, tmp_path / f"variant-{len(told)}"), type(node.storage))
        variant.path.with_name(f"{variant.path.name}-told").write_bytes(mark)
        with capture_logs() as lines:
            await variant.start()
        errors = [line["event"] for line in lines if line["log_level"] == "error"]
        async with connected(variant) as client:
            told[name] = not client.connack.session_present
            if client.connack.session_present:
                expected = [b"%d" % number for number in range(1, 7)]
                assert payloads(await client.messages_until_ping()) == expected, name
                assert errors == [], name
            else:
                cut_whole = name.startswith("cut") and not errors  # neither sessions nor anything else is left
                assert cut_whole or errors == ["file of retained values has lost its end"], name
        await variant.leave()
    assert sum(told.values()) > len(told) / 2


async def test_a_node_that_stops_leaves_all_that_its_sessions_are(begin: Begin) -> None:
    """What the client acknowledged just before is there without a look."""
    node = await begin()
    async with connected(node) as client:
        await client.subscribe(b"t", qos=1)
        node.node.take(numbered(1, 3))
        first, *_ = await client.messages(3)
        client.send(Ack(PacketType.PUBACK, first.packet_id or 0))
        assert await client.messages_until_ping() == []
    await gone(node)
    node = await begin(stopped=node)
    async with connected(node) as client:
        assert [(one.payload, one.dup) for one in await client.messages_until_ping()] == [(b"2", True), (b"3", True)]
