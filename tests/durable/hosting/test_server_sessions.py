"""Sessions of a server as the pool moves them: where its queue is cut, and what a second request does."""

from __future__ import annotations

import asyncio
import gc
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from xxhash import xxh3_64_intdigest

from fanout.durable.form.session_format import decode_session
from fanout.durable.hosting.server_sessions import ServerSessions
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import Fetched, TakeQuestion
from fanout.link.link import Link
from fanout.mqtt.packets import Will
from fanout.mqtt.properties import Properties
from fanout.node.pool.session_host import link_of
from fanout.replica.recent import RecentUpdates
from fanout.selection import Selector
from fanout.server.session.session import Session
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)
QUESTION = TakeQuestion("c", Epoch(1, "b"), "", superuser=False, anyone=True)


def link(name: str, *filters: str) -> Link:
    """Return what the host needs of a link."""
    config = SimpleNamespace(name=name, selectors=tuple(Selector(each) for each in filters))
    return cast("Link", SimpleNamespace(config=config))


ONE_LINK = link_of((link("plant", "#"),))


async def with_session(node: NodeInMemory, *filters: bytes, **more: Any) -> None:
    """Leave a durable session without a connection."""
    client = await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE, **more)
    await client.subscribe(*filters, qos=1)
    await client.close()
    await wait_until(lambda: not node.server.connections)


def dispatch(node: NodeInMemory, *topics: str) -> None:
    """Deliver a message at QoS 1 on each topic."""
    node.server.dispatch([update(topic.encode(), topic.encode(), qos=1, retain=False) for topic in topics])


def queue_of(value: bytes) -> list[bytes]:
    """Return the topics of the messages in a value."""
    return [message.topic for message in decode_session(value, bytes_max=1 << 20).queue]


async def test_each_message_is_judged_by_the_marker_of_its_link(start_node: StartNode) -> None:
    """At the member that has the session, and at the one that collects for it: each message is at one of both."""
    old, new = await start_node(), await start_node()
    links = (link("plant", "a/#"), link("office", "b/#"))
    holder, taker = (ServerSessions(node.server, link_of=link_of(links)) for node in (old, new))
    await with_session(old, b"#")
    subscriptions = holder.promise(QUESTION)
    assert isinstance(subscriptions, tuple)
    await taker.collect("c", subscriptions)

    def both(*topics: str) -> None:
        dispatch(old, *topics)
        dispatch(new, *topics)

    both("a/1", "b/1")
    holder.note_place(["c"], "plant", "m1")
    taker.note_collected(["c"], "plant")
    both("a/2", "b/2")
    holder.note_place(["c"], "office", "m2")
    taker.note_collected(["c"], "office")
    both("a/3", "b/3")
    fetched = holder.export("c", {"plant": "m1", "office": "m2"})
    assert fetched.status == "exact"
    assert queue_of(fetched.value) == [b"a/1", b"b/1", b"b/2"]
    await taker.read("c", fetched.value)
    assert taker.may_adopt("c", QUESTION)
    assert taker.adopt("c", exact=True)
    taker.stop_collecting("c")
    both("a/4")
    holder.release("c")
    async with await RawClient.connect(new.port, "c", clean_start=False, properties=DURABLE) as client:
        assert client.connack.session_present
        got = [message.topic for message in await client.messages(7)]
        assert got == [b"a/1", b"b/1", b"b/2", b"a/2", b"a/3", b"b/3", b"a/4"]
    assert old.server.session_count == 0


async def test_a_marker_that_did_not_come_makes_it_inexact(start_node: StartNode) -> None:
    """Then everything goes along."""
    node = await start_node()
    host = ServerSessions(node.server, link_of=ONE_LINK)
    await with_session(node, b"#")
    host.promise(QUESTION)
    dispatch(node, "a/1")
    host.note_place(["c"], "plant", "m1")
    dispatch(node, "a/2")
    for markers in ({}, {"plant": "m2"}):
        fetched = host.export("c", markers)
        assert fetched.status == "inexact"
        assert queue_of(fetched.value) == [b"a/1", b"a/2"]
    host.note_place(["c"], "plant", "m3")
    dispatch(node, "a/3")
    fetched = host.export("c", {"plant": "m3"})
    assert fetched.status == "exact", "a later marker is as good"
    assert queue_of(fetched.value) == [b"a/1", b"a/2"]


def with_history(node: NodeInMemory) -> RecentUpdates:
    """Let a node hold its recent updates, after a heartbeat."""
    node.server.recent = recent = RecentUpdates(["plant"], bytes_max=1 << 20)
    recent.mark("plant", "edge-1", "7 1")
    return recent


def bring(node: NodeInMemory, *topics: str, qos: int = 1) -> None:
    """Deliver messages of the stream of the link."""
    updates = [update(topic.encode(), topic.encode(), qos=qos, retain=False) for topic in topics]
    assert node.server.recent is not None
    node.server.recent.note("plant", updates, now_ns=node.clock.now_ns())
    node.server.dispatch(updates)


@pytest.mark.parametrize("qos_of_one", [1, 0])
async def test_without_a_marker_a_session_goes_on_after_the_place_of_its_holder(
    start_node: StartNode, qos_of_one: int
) -> None:
    """Its holder lost its link at `a/2`; all that the other member had after it comes once, in order."""
    old, new = await start_node(), await start_node()
    for node in (old, new):
        with_history(node)
    holder, taker = (ServerSessions(node.server, link_of=ONE_LINK) for node in (old, new))
    await with_session(old, b"a/#", b"$share/g/b/#")  # its group is at one member: it gets no more of it meanwhile
    new.publish("elsewhere", [(b"a/kept", b"kept", 3, 1, b"", None, 0)], 0)
    for node in (old, new):
        bring(node, "a/1", "b/1", "a/2")
    bring(new, "a/3")
    bring(new, "a/volatile", qos=qos_of_one)
    subscriptions = holder.promise(QUESTION)
    assert isinstance(subscriptions, tuple)
    await taker.collect("c", subscriptions)
    bring(new, "a/4")
    fetched = holder.export("c", {})
    assert (fetched.status, queue_of(fetched.value)) == ("inexact", [b"a/1", b"a/2", b"b/1"])
    assert taker.follows(fetched.places)
    await taker.read("c", fetched.value)
    assert await taker.follow("c", fetched.places)
    bring(new, "a/5")
    taker.note_collected(["c"], "plant")  # a marker that is late says nothing any more
    assert taker.adopt("c", exact=True)
    taker.stop_collecting("c")
    bring(new, "a/6")
    volatile, retained = ([b"a/volatile"], []) if qos_of_one else ([], [b"a/kept"])
    expected = [b"a/1", b"a/2", b"b/1", b"a/3", *volatile, b"a/4", b"a/5", b"a/6", *retained]
    async with await RawClient.connect(new.port, "c", clean_start=False, properties=DURABLE) as client:
        assert client.connack.session_present
        assert [message.topic for message in await client.messages(len(expected))] == expected


async def test_a_place_that_is_not_held_is_not_followed(start_node: StartNode) -> None:
    """As at a member whose stream is behind, was another one, or has no history; then the session is inexact."""
    old, new = await start_node(), await start_node()
    with_history(old)
    holder, taker = (ServerSessions(node.server, link_of=ONE_LINK) for node in (old, new))
    await with_session(old, b"a/#")
    bring(old, "a/1")
    subscriptions = holder.promise(QUESTION)
    assert isinstance(subscriptions, tuple)
    await taker.collect("c", subscriptions)
    fetched = holder.export("c", {})
    await taker.read("c", fetched.value)
    assert not await taker.follow("c", fetched.places)
    assert not taker.awaits(fetched.places)
    recent = with_history(new)
    assert not taker.follows(fetched.places), "it is behind"
    assert taker.awaits(fetched.places)
    bring(new, "a/other")
    assert not taker.follows(fetched.places), "it had another message"
    assert not taker.awaits(fetched.places)
    assert not await taker.follow("c", fetched.places)
    assert not taker.follows(b"no places")
    assert not taker.awaits(b"no places")
    recent.note_connection("plant", epoch=2)
    assert old.server.recent is not None
    old.server.recent.note_connection("plant", epoch=2)
    bring(old, "a/2")
    assert holder.export("c", {}).places == b"", "its place has no name until the next heartbeat"


def has_deadlines(session: Session) -> bool:
    """Return whether a session ends by the time, and its Will Message is published by it."""
    return session.expiry is not None and session.will_deadline is not None


@pytest.mark.parametrize("again", ["promised", "exported", "taken back"])
async def test_a_second_request_finds_all_of_the_session(start_node: StartNode, again: str) -> None:
    """Its deadlines, its Will Message and what came since, whatever became of the first."""
    node = await start_node()
    host = ServerSessions(node.server, link_of=ONE_LINK)
    will = Will(b"w", b"gone", 1, False, Properties(will_delay_interval=100))
    await with_session(node, b"#", will=will)
    session = node.server.registry.get("c")
    assert session is not None
    host.promise(QUESTION)
    host.note_place(["c"], "plant", "m1")
    first = host.export("c", {"plant": "m1"})
    assert not has_deadlines(session)  # nothing happens to it by the time now
    dispatch(node, "a/1")
    if again == "promised":
        host.promise(QUESTION)
        host.note_place(["c"], "plant", "m2")
    elif again == "taken back":
        host.take_back("c")
        assert has_deadlines(session)
        host.promise(QUESTION)
        host.note_place(["c"], "plant", "m2")
    second = host.export("c", {"plant": "m1" if again == "exported" else "m2"})
    assert second.status == "exact"
    assert queue_of(first.value) == []
    assert queue_of(second.value) == ([] if again == "exported" else [b"a/1"])
    value = decode_session(second.value, bytes_max=1 << 20)
    assert 0 < value.expiry_left_ms <= 600_000
    assert value.will_left_ms is not None
    assert 0 < value.will_left_ms <= 100_000


class Turns:
    """The longest turn of the event loop, by the time of the processor: others on this machine make none longer."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.count = 0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        before_s = time.process_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.process_time()
            self.longest_s = max(self.longest_s, now_s - before_s)
            self.count += 1
            before_s = now_s

    async def end(self) -> float:
        """Return the longest turn in seconds."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.longest_s


async def test_a_long_session_moves_in_short_turns(start_node: StartNode) -> None:
    """Its queue and its subscriptions; all of it comes, in order, and the value in pieces of the size asked for."""
    count, filters = 60_000, [b"f/%d/#" % number for number in range(999)]
    old, new = await start_node(), await start_node()
    holder, taker = (ServerSessions(node.server, link_of=ONE_LINK) for node in (old, new))
    await with_session(old, b"a/1", *filters)
    for first in range(0, count, 1_000):
        old.take([update(b"a/1", b"%d" % number, qos=1, retain=False) for number in range(first, first + 1_000)])
    subscriptions = holder.promise(QUESTION)
    assert isinstance(subscriptions, tuple)
    gc.collect()
    gc.disable()
    turns = Turns()
    try:
        await taker.collect("c", subscriptions)
        assert holder.export("c", {}) == Fetched("inexact")
        data = b""
        while not (piece := holder.piece("c", len(data), bytes_max=100_000)).total or len(data) < piece.total:
            assert piece.is_there
            data += piece.data
            await asyncio.sleep(0)
        assert xxh3_64_intdigest(data) == piece.digest
        await taker.read("c", data)
        assert taker.may_adopt("c", QUESTION)
        assert taker.adopt("c", exact=True)
        taker.stop_collecting("c")
        holder.release("c")
    finally:
        longest_s = await turns.end()
        gc.enable()
    assert turns.count > 50
    assert longest_s < 0.1, "a tenth of what the whole takes; some milliseconds on a machine that does nothing else"
    assert old.server.session_count == 0
    session = new.server.registry.get("c")
    assert session is not None
    assert [int(message[0][1]) for message in session.sender.queue.waiting()] == list(range(count))
    assert len(session.subscriptions) == 1_000


async def test_a_session_that_is_taken_back_gives_no_further_piece(start_node: StartNode) -> None:
    """Its client has come back, and gets what is exported."""
    node = await start_node()
    host = ServerSessions(node.server, link_of=ONE_LINK)
    await with_session(node, b"#")
    dispatch(node, *[f"a/{number}" for number in range(1_000)])
    host.promise(QUESTION)
    assert host.export("c", {}) == Fetched("inexact")
    assert host.piece("c", 0, bytes_max=100).is_there
    host.take_back("c")
    assert not host.piece("c", 0, bytes_max=100).is_there
    await asyncio.sleep(0)
    session = node.server.registry.get("c")
    assert session is not None
    assert session.sender.queue.messages == 1_000
