"""Durable sessions that go from one node to another: their clients go on as if nothing had happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import structlog
from pydantic import TypeAdapter

from fanout.access.gate import Gate
from fanout.access.passwords import PasswordFile
from fanout.chain.manifest import ASK_FOR_MANIFEST
from fanout.config.access import AccessConfig
from fanout.durable.form.session_format import decode_session, encode_session
from fanout.durable.hosting.session_restart import SessionRestart
from fanout.durable.hosting.session_values import refused
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import Fetched, TakeQuestion
from fanout.durable.ownership.ownership import Reply
from fanout.errors import SessionMoveRefused
from fanout.mqtt.packets import Ack, PacketType, Publish, Subscribe, Subscription, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.session.exported_session import ExportedSession, MoveRefusal
from fanout.server.session.user_quotas import Usage
from tests.access.pieces import cheap_hash
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)
BYTES_MAX = 1 << 24
NS_PER_S = 1_000_000_000


async def connect(node: NodeInMemory, version: int = 5, client_id: str = "c", **more: Any) -> RawClient:
    """Connect with a durable session, in either version."""
    if version == 5:
        more = {"properties": DURABLE, **more}
    return await RawClient.connect(node.port, client_id, version=version, **{"clean_start": False, **more})


async def leave(node: NodeInMemory, client: RawClient) -> None:
    """End a Network Connection without DISCONNECT, and wait until the node has noticed."""
    left = len(node.server.connections) - 1
    await client.close()
    await wait_until(lambda: len(node.server.connections) == left)


def move(old: NodeInMemory, new: NodeInMemory, client_id: str = "c") -> ExportedSession:
    """Take a session out of one node and put it into another, through its bytes."""
    exported = decode_session(encode_session(taken(old, client_id)), bytes_max=BYTES_MAX)
    new.values.import_session(exported)
    return exported


def request(client_id: str = "c", user: str = "", *, anyone: bool = True) -> TakeQuestion:
    """Return the request of another member for a session."""
    return TakeQuestion(client_id, Epoch(1, "b"), user, False, anyone=anyone)


def taken(node: NodeInMemory, client_id: str) -> ExportedSession:
    """Take a session out of a node."""
    assert isinstance(node.sessions.promise(request(client_id)), tuple)
    fetched = node.sessions.export(client_id, {})
    assert fetched.status == "inexact", "no marker divides its queue, so all goes along"
    node.sessions.release(client_id)
    return decode_session(fetched.value, bytes_max=BYTES_MAX)


def refusal(act: Callable[[], object]) -> MoveRefusal:
    """Return the reason why a session does not come."""
    with pytest.raises(SessionMoveRefused) as caught:
        act()
    assert caught.value.hint
    return MoveRefusal(caught.value.reason)


def number(first: int, last: int, *, qos: int) -> list[Any]:
    """Return numbered messages that are not retained."""
    return [update(b"t", b"%d" % each, qos=qos, retain=False) for each in range(first, last + 1)]


def payloads(messages: list[Publish]) -> list[bytes]:
    """Return the payloads of messages."""
    return [message.payload for message in messages]


@pytest.fixture
async def nodes(start_node: StartNode) -> tuple[NodeInMemory, NodeInMemory]:
    """Give two nodes: the old one of a session, and the new one."""
    return await start_node(), await start_node()


@pytest.mark.parametrize("version", [4, 5])
async def test_messages_to_the_client_go_on_in_every_phase(
    nodes: tuple[NodeInMemory, NodeInMemory], version: int
) -> None:
    """PUBRELs first, then PUBLISHs again with DUP, then the queue, then what is new: each once and in order."""
    old, new = nodes
    client = await connect(old, version)
    await client.subscribe(b"t", qos=2)
    old.take([*number(1, 2, qos=2), *number(3, 4, qos=1), *number(5, 5, qos=2)])
    sent = await client.messages(5)
    ids = [message.packet_id for message in sent]
    assert payloads(sent) == [b"1", b"2", b"3", b"4", b"5"]
    client.send(Ack(PacketType.PUBREC, ids[0] or 0))
    await client.expect_ack(PacketType.PUBREL, ids[0] or 0)
    client.send(Ack(PacketType.PUBREC, ids[1] or 0))
    await client.expect_ack(PacketType.PUBREL, ids[1] or 0)
    client.send(Ack(PacketType.PUBCOMP, ids[0] or 0), Ack(PacketType.PUBACK, ids[2] or 0))
    assert await client.messages_until_ping() == []
    await leave(old, client)
    old.take(number(6, 7, qos=1))  # they wait

    move(old, new)
    old.take(number(8, 8, qos=1))
    assert old.server.session_count == 0
    new.take(number(8, 8, qos=2))

    client = await connect(new, version)
    assert client.connack.session_present
    await client.expect_ack(PacketType.PUBREL, ids[1] or 0)
    again = await client.messages(2)
    assert [(one.payload, one.dup, one.packet_id, one.qos) for one in again] == [
        (b"4", True, ids[3], 1),
        (b"5", True, ids[4], 2),
    ]
    queued = await client.messages(3)
    assert [(one.payload, one.dup, one.qos) for one in queued] == [(b"6", False, 1), (b"7", False, 1), (b"8", False, 2)]
    assert [one.packet_id for one in queued] == [(ids[4] or 0) + more for more in (1, 2, 3)]
    new.take(number(9, 9, qos=1))
    assert payloads(await client.messages(1)) == [b"9"]
    client.send(Ack(PacketType.PUBCOMP, ids[1] or 0), Ack(PacketType.PUBACK, ids[3] or 0))
    client.send(Ack(PacketType.PUBREC, ids[4] or 0))
    await client.expect_ack(PacketType.PUBREL, ids[4] or 0)
    client.send(Ack(PacketType.PUBCOMP, ids[4] or 0))
    assert await client.messages_until_ping() == []
    assert new.server.figures()["in_flight_messages"] == 4
    await leave(new, client)


@pytest.mark.parametrize("version", [4, 5])
async def test_messages_from_the_client_are_published_once(
    nodes: tuple[NodeInMemory, NodeInMemory], version: int
) -> None:
    """The new node knows which QoS 2 messages it must not take again, and which Packet Identifiers are free."""
    old, new = nodes
    client = await connect(old, version)
    for packet_id in (5, 6):
        client.publish(b"p", b"%d" % packet_id, qos=2, packet_id=packet_id)
        pubrec = await client.expect(Ack)
        assert (pubrec.type, pubrec.packet_id) == (PacketType.PUBREC, packet_id)
    client.send(Ack(PacketType.PUBREL, 6))
    await client.expect_ack(PacketType.PUBCOMP, 6)
    await leave(old, client)

    assert move(old, new).unreleased == {5}

    client = await connect(new, version)
    client.publish(b"p", b"5", qos=2, packet_id=5, dup=True)  # its PUBREC may have been lost
    await client.expect_ack(PacketType.PUBREC, 5)
    client.send(Ack(PacketType.PUBREL, 5))
    await client.expect_ack(PacketType.PUBCOMP, 5)
    client.publish(b"p", b"new", qos=2, packet_id=6)
    assert (await client.expect(Ack)).packet_id == 6
    assert [row[1] for _, row in (*old.published, *new.published)] == [b"5", b"6", b"new"]
    await leave(new, client)


async def test_a_message_without_a_verdict_keeps_the_session(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """It may still reach the primary from the old node; once it is decided, the session goes with the decision."""
    old, new = nodes
    verdicts: list[asyncio.Future[ReasonCode]] = []

    def pending() -> asyncio.Future[ReasonCode]:
        verdicts.append(asyncio.get_running_loop().create_future())
        return verdicts[-1]

    old.verdicts[b"slow"] = pending
    client = await connect(old)
    for packet_id in (1, 2):
        client.publish(b"slow", b"x", qos=2, packet_id=packet_id)
    await wait_until(lambda: len(verdicts) == 2)
    await leave(old, client)
    old.sessions.promise(request())
    assert old.sessions.export("c", {}) == Fetched("later")
    verdicts[0].set_result(ReasonCode.SUCCESS)
    assert old.sessions.export("c", {}) == Fetched("later")
    verdicts[1].set_result(ReasonCode.QUOTA_EXCEEDED)
    assert move(old, new).unreleased == {1}  # a refused one is new when it comes again


async def test_a_session_is_taken_out_once_and_can_be_put_back(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """There is no second export, nor a session for a client that comes too early; a move that fails loses nothing."""
    old, _ = nodes
    client = await connect(old)
    await client.subscribe(b"t", qos=1)
    await leave(old, client)
    old.take(number(1, 2, qos=1))
    exported = taken(old, "c")
    assert old.sessions.promise(request()) is Reply.NONE
    assert old.sessions.export("c", {}) == Fetched("later")
    async with await connect(old) as early:
        assert not early.connack.session_present
        assert refusal(lambda: old.values.import_session(exported)) is MoveRefusal.SESSION_EXISTS
        await early.disconnect(properties=Properties(session_expiry_interval=0))
    await wait_until(lambda: not old.server.session_count)
    old.values.import_session(exported)
    async with await connect(old) as client:
        assert client.connack.session_present
        assert payloads(await client.messages(2)) == [b"1", b"2"]


async def test_connected_and_short_sessions_and_links_stay(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """Whoever asks gets a new session, and the client does not notice."""
    old, _ = nodes
    async with await connect(old) as durable, await connect(old, client_id="short", properties=Properties()) as short:
        assert old.sessions.export("c", {}) == Fetched("later"), "nobody has asked for it"
        assert old.sessions.promise(request("short")) is Reply.NONE
        for client in (durable, short):
            assert await client.messages_until_ping() == []
    link = await connect(old, client_id="link")
    old.set(b"t", b"1", qos=1)
    options = (Subscription(b"t", 1),)
    link.send(Subscribe(1, options, Properties(user_property=(ASK_FOR_MANIFEST,))))
    session = old.server.registry.get("link")
    assert session is not None
    await wait_until(lambda: session.subscriptions)
    await leave(old, link)
    session.wire = session.wire._replace(stamped=True)
    assert old.sessions.promise(request("link")) is Reply.NONE


async def test_retained_messages_that_are_left_come_as_retained(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """Neither what was delivered before comes again, nor what a queued message replaces; later values are live."""
    old, new = nodes
    topics = [b"t/%03d" % each for each in range(40)]
    for node in nodes:
        for topic in topics:
            node.set(topic, b"old", qos=1)
    properties = Properties(session_expiry_interval=600, receive_maximum=3)
    client = await connect(old, properties=properties)
    await client.subscribe(b"t/#", qos=1)
    first = await client.messages(3)
    for node in nodes:  # it comes live, in place of its retained message
        node.set(b"t/030", b"newer", qos=1)
    await leave(old, client)

    move(old, new)

    client = await connect(new, properties=properties)
    got = await client.messages(3)
    assert [(one.topic, one.dup) for one in got] == [(one.topic, True) for one in first]
    while len(got) < len(topics):
        client.send(Ack(PacketType.PUBACK, got[-1].packet_id or 0))
        got += await client.messages(1)
    for one in got[-3:]:
        client.send(Ack(PacketType.PUBACK, one.packet_id or 0))
    assert await client.messages_until_ping() == []
    assert sorted(one.topic for one in got) == topics
    assert {one.topic: one.payload for one in got if not one.retain} == {b"t/030": b"newer"}
    await leave(new, client)


async def test_a_retained_delivery_that_has_not_begun_comes_whole(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """The values are those of the new node, since they are current there."""
    old, new = nodes
    for topic in (b"a/1", b"a/2", b"b/1"):
        old.set(topic, b"x", qos=1)
    for topic in (b"a/1", b"a/2", b"a/3", b"b/1", b"b/2"):
        new.set(topic, b"y", qos=1)
    client = await connect(old, properties=Properties(session_expiry_interval=600, receive_maximum=1))
    await client.subscribe(b"a/#", b"b/#", qos=1)
    await client.messages(1)  # unacknowledged, so the second one waits
    await leave(old, client)
    assert [(one.topic_filter, one.topics) for one in move(old, new).retained] == [
        (b"a/#", (b"a/2",)),
        (b"b/#", None),
    ]
    async with await connect(new) as client:
        got = [(one.topic, one.payload, one.retain) for one in await client.messages_until_ping()]
        rest = [(b"a/2", b"y", True), (b"b/1", b"y", True), (b"b/2", b"y", True)]
        assert got == [(b"a/1", b"x", True), *rest]


async def test_subscription_options_stay(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """Subscription Identifier, Retain As Published, No Local and QoS; and no retained messages come again."""
    old, new = nodes
    client = await connect(old)
    await client.subscribe(Subscription(b"t", 2, no_local=True, retain_as_published=True), identifier=7)
    await leave(old, client)
    new.set(b"t", b"before", qos=2)
    move(old, new)
    async with await connect(new) as client:
        client.publish(b"t", b"own")
        new.set(b"t", b"live", qos=2)
        (one,) = await client.messages_until_ping()
        assert (one.payload, one.qos, one.retain) == (b"live", 2, True)
        assert one.properties.subscription_identifier == (7,)


async def test_expiry_of_session_and_messages_goes_on(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """What has passed at the old node counts at the new one; expired messages do not travel, and are counted."""
    old, new = nodes
    client = await connect(old)
    await client.subscribe(b"t", qos=1)
    await leave(old, client)
    now_ns = old.clock.now_ns()
    for name, left_s in ((b"short", 3), (b"long", 1_000)):
        old.take([update(b"t", name, qos=1, retain=False, expires_ns=now_ns + left_s * NS_PER_S)])
    await old.pass_time(250)
    new.clock.advance(5_000)  # another clock
    exported = move(old, new)
    assert [message.payload for message in exported.queue] == [b"long"]
    assert old.server.figures()["dropped_total"]["expired"] == 1
    await new.pass_time(349)
    assert new.server.session_count == 1
    second = move(new, old)
    assert second.expiry_left_ms == 1_000
    async with await connect(old) as client:
        (one,) = await client.messages(1)
        assert (one.payload, one.properties.message_expiry_interval) == (b"long", 1_000 - 250 - 349)
    await leave(old, client)
    await old.pass_time(601)
    assert old.server.session_count == 0


@pytest.mark.parametrize(("delay_s", "due_s"), [(100, 100), (900, 600)])
async def test_the_will_delay_goes_on(nodes: tuple[NodeInMemory, NodeInMemory], delay_s: int, due_s: int) -> None:
    """The Will Message is published once: after its delay or at the end of the session, at the node that has it."""
    old, new = nodes
    will = Will(b"gone", b"c", qos=1, properties=Properties(will_delay_interval=delay_s, user_property=(("k", "v"),)))
    await leave(old, await connect(old, will=will))
    await old.pass_time(40)
    move(old, new)
    await old.pass_time(2_000)
    await new.pass_time(due_s - 41)
    assert (old.published, new.published) == ([], [])
    await new.pass_time(2)
    ((client_id, row),) = new.published
    assert (client_id, row[0], row[1], old.published) == ("c", b"gone", b"c", [])
    await new.pass_time(2_000)
    assert len(new.published) == 1


async def test_sessions_of_a_stopped_server_can_be_taken_out(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """It published no Will Messages and let nothing expire, so all their time is left."""
    old, new = nodes
    will = Will(b"gone", b"c", properties=Properties(will_delay_interval=100))
    async with await connect(old, will=will):
        await old.server.stop(deadline_s=0.1)
    exported = move(old, new)
    assert (exported.expiry_left_ms, exported.will_left_ms) == (600_000, 100_000)
    assert refusal(lambda: old.values.import_session(exported)) is MoveRefusal.STOPPING
    await new.pass_time(101)
    assert (len(old.published), len(new.published)) == (0, 1)


def test_every_refusal_is_explained() -> None:
    """Each reason has its text and its advice, which name the client; bytes of a stranger are escaped."""
    for reason in MoveRefusal:
        error = refused("c\x1b", reason)
        assert (error.reason, bool(error.hint)) == (reason, True)
        assert str(error).startswith(r"The session of client 'c\x1b' does not move: ")


async def test_a_client_that_comes_in_time_has_no_will(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """The Will Message of the old connection is not published when the client returns at the new node."""
    old, new = nodes
    will = Will(b"gone", b"c", properties=Properties(will_delay_interval=100))
    await leave(old, await connect(old, will=will))
    move(old, new)
    async with await connect(new):
        await new.pass_time(1_000)
        assert new.published == []


async def test_messages_of_shared_subscriptions_go_along(nodes: tuple[NodeInMemory, NodeInMemory]) -> None:
    """They are the session's: no other member gets them at the old node, and it is a member at the new one."""
    old, new = nodes
    client = await connect(old)
    await client.subscribe(b"$share/g/t", qos=1)
    await leave(old, client)
    old.take(number(1, 2, qos=1))
    async with await connect(old, client_id="other") as other:
        await other.subscribe(b"$share/g/t", qos=1)
        move(old, new)
        old.take(number(3, 3, qos=1))
        assert payloads(await other.messages_until_ping()) == [b"3"]
    new.take(number(4, 4, qos=1))
    async with await connect(new, client_id="heir") as heir:
        await heir.subscribe(b"$share/g/t", qos=1)
        new.server.lifecycles.kick("c", clean=True)  # what was not delivered goes to the other members
        assert payloads(await heir.messages(3)) == [b"1", b"2", b"4"]


@pytest.mark.parametrize(
    "limits",
    [
        {"subscriptions_max": 1},
        {"filter_bytes_max": 3},
        {"filter_levels_max": 2},
        {"queue_messages_max": 1},
        {"queue_bytes_max": 60},
        {"sessions_max": 1},
        {"session_expiry_max_s": 0},
    ],
)
async def test_a_session_over_a_limit_does_not_come(start_node: StartNode, limits: dict[str, int]) -> None:
    """The new node refuses it whole, so the old one can have it back."""
    old, new = await start_node(), await start_node(**limits)
    async with await RawClient.connect(new.port, "another"):
        client = await connect(old)
        await client.subscribe(b"t", b"$share/g/1/2/3", qos=1)
        await leave(old, client)
        old.take(number(1, 2, qos=1))
        exported = taken(old, "c")
        assert refusal(lambda: new.values.import_session(exported)) is MoveRefusal.LIMITS
        assert (new.server.session_count, new.server.figures()["queued_messages"]) == (1, 0)
    old.values.import_session(exported)
    assert old.server.figures()["queued_messages"] == 2


# Owners.

PASSWORDS = {"alice": b"wonder", "bob": b"builder"}


@pytest.fixture
async def start_guarded(start_node: StartNode) -> AsyncIterator[Callable[..., Any]]:
    """Give a function that starts a node with users and rules."""
    gates: list[Gate] = []

    async def start(hashes: dict[str, str], **access: Any) -> NodeInMemory:
        config = TypeAdapter(AccessConfig).validate_python({"rule": [{"allow": "all", "filter": "#"}], **access})
        users = PasswordFile(users=MappingProxyType(hashes))
        gate = Gate(config, passwords=users, monotonic=time.monotonic, logger=structlog.get_logger())
        gates.append(gate)
        return await start_node(gate=gate)

    yield start
    for gate in gates:
        await gate.close()


async def log_in(node: NodeInMemory, user: str) -> RawClient:
    """Connect as a user."""
    return await connect(node, username=user, password=PASSWORDS[user])


async def test_only_its_owner_gets_a_moved_session(start_guarded: Callable[..., Any]) -> None:
    """Another user is refused at the import and at CONNECT; the owner's proof is that of the new node."""
    hashes = {user: cheap_hash(password) for user, password in PASSWORDS.items()}
    old, new = await start_guarded(hashes), await start_guarded(hashes)
    client = await log_in(old, "alice")
    await client.subscribe(b"t", qos=1)
    await leave(old, client)
    old.take(number(1, 1, qos=1))
    assert old.sessions.promise(request(user="bob", anyone=False)) is Reply.REFUSED
    exported = taken(old, "c")
    assert exported.owner is not None
    assert exported.owner.proof == ""
    await new.sessions.collect("c", ())
    await new.sessions.read("c", encode_session(exported))
    assert not new.sessions.may_adopt("c", request(user="bob", anyone=False))
    assert new.sessions.may_adopt("c", request(user="alice", anyone=False))
    assert new.sessions.adopt("c", exact=False)
    new.sessions.stop_collecting("c")
    async with await log_in(new, "bob") as other:
        assert other.connack.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    await new.server.lifecycles.check_again()
    async with await log_in(new, "alice") as client:
        assert client.connack.session_present
        assert payloads(await client.messages(1)) == [b"1"]


async def test_a_session_that_comes_counts_for_its_user(start_guarded: Callable[..., Any]) -> None:
    """It stays where it is if its user has no room for it, or for its subscriptions, unless its member leaves."""
    hashes = {user: cheap_hash(password) for user, password in PASSWORDS.items()}
    old, full = await start_guarded(hashes), await start_guarded(hashes, quota=[{"sessions_max": 1}])
    narrow, new = await start_guarded(hashes, quota=[{"subscriptions_max": 1}]), await start_guarded(hashes)
    client = await log_in(old, "alice")
    await client.subscribe(b"t", b"$share/g/t", qos=1)
    await leave(old, client)
    exported = taken(old, "c")
    question = request(user="alice", anyone=False)
    async with await connect(full, client_id="a", username="alice", password=PASSWORDS["alice"]):
        for node in (full, narrow, new):
            await node.sessions.collect("c", ())
            await node.sessions.read("c", encode_session(exported))
        assert [node.sessions.may_adopt("c", question) for node in (full, narrow, new)] == [False, False, True]
        assert all(node.sessions.may_adopt("c", question, is_offered=True) for node in (full, narrow))
    assert old.server.quotas.usage("alice") == new.server.quotas.usage("alice") == Usage()
    assert new.sessions.adopt("c", exact=False)
    assert new.server.quotas.usage("alice") == Usage(sessions=1, subscriptions=2)


async def test_quotas_end_no_session_that_exists_already(start_guarded: Callable[..., Any]) -> None:
    """Those of an earlier process are restored; their Will Messages are published though their user is at its quota."""
    hashes = {user: cheap_hash(password) for user, password in PASSWORDS.items()}
    old, new = await start_guarded(hashes), await start_guarded(hashes, quota=[{"sessions_max": 1}])
    will = Will(b"wills", b"gone", qos=1, properties=Properties(will_delay_interval=100))
    for client_id in ("a", "b", "c"):
        client = await connect(old, client_id=client_id, username="alice", password=PASSWORDS["alice"], will=will)
        await leave(old, client)
    *living, ended = [taken(old, client_id) for client_id in ("a", "b", "c")]
    restart = SessionRestart(new.server, clock=new.clock, logger=structlog.get_logger())
    assert [restart.restore(session, left_ns=new.clock.now_ns()) for session in living] == [True, True]
    assert (new.server.quotas.usage("alice").sessions, new.server.figures()["wills_total"]) == (2, 0)
    new.values.publish_will(ended)
    assert (new.server.quotas.usage("alice").sessions, new.server.figures()["wills_total"]) == (2, 1)


async def test_rules_of_the_new_node_hold(start_guarded: Callable[..., Any], start_node: StartNode) -> None:
    """A user that it does not know does not come, nor one where nobody is known; lost subscriptions end."""
    hashes = {user: cheap_hash(password) for user, password in PASSWORDS.items()}
    old, stranger, open_node = await start_guarded(hashes), await start_guarded({}), await start_node()
    strict = await start_guarded(hashes, rule=[{"allow": "read", "filter": "t"}])
    client = await log_in(old, "alice")
    await client.subscribe(b"t", b"secret", qos=1)
    await leave(old, client)
    exported = taken(old, "c")
    for node in (stranger, open_node):
        assert refusal(partial(node.values.import_session, exported)) is MoveRefusal.NOT_ADMITTED
    strict.values.import_session(exported)
    strict.take([update(b"secret", b"s", qos=1), *number(1, 1, qos=1)])
    async with await log_in(strict, "alice") as client:
        assert payloads(await client.messages_until_ping()) == [b"1"]
    await leave(open_node, await connect(open_node))
    nobodys = taken(open_node, "c")
    assert refusal(lambda: stranger.values.import_session(nobodys)) is MoveRefusal.NOT_ADMITTED
