"""Tests of `fanout.server.client.authorization_flow` and what follows from it, over real sockets with a real gate."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import paho.mqtt.client as paho
import pytest
import structlog
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from fanout.access.gate import Gate
from fanout.access.passwords import PasswordFile
from fanout.config.access import AccessConfig
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
    encode,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.accept import admission as entry
from tests.access.pieces import cheap_hash
from tests.access.service import Service, open_service
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)
USERS = {"alice": b"wonder", "bob": b"builder"}
RULES = [
    {"deny": "read", "filter": "plant/secret/#"},
    {"allow": "all", "filter": "home/%u/#"},
    {"allow": "write", "filter": "device/%c"},
    {"allow": "read", "filter": "plant/#"},
]

StartGuarded = Callable[..., Awaitable[NodeInMemory]]


def access_config(**settings: Any) -> AccessConfig:
    """Return `[access]` as a file would give it."""
    return TypeAdapter(AccessConfig).validate_python(settings)


def users(**passwords: bytes) -> PasswordFile:
    """Return a password file whose hashes take no time."""
    return PasswordFile(users=MappingProxyType({user: cheap_hash(password) for user, password in passwords.items()}))


@pytest.fixture
async def gates() -> AsyncIterator[list[Gate]]:
    """Give a list of gates that are closed after the test."""
    made: list[Gate] = []
    yield made
    for gate in made:
        await gate.close()


@pytest.fixture
def start_guarded(gates: list[Gate], start_node: StartNode) -> StartGuarded:
    """Give a function that starts a node behind a gate with some settings of `[access]`."""

    async def start(
        *, passwords: PasswordFile | None = None, server: dict[str, object] | None = None, **settings: Any
    ) -> NodeInMemory:
        gate = Gate(
            access_config(**settings), passwords=passwords, monotonic=time.monotonic, logger=structlog.get_logger()
        )
        gates.append(gate)
        return await start_node(gate=gate, **(server or {}))

    return start


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Give a service for the hook."""
    async with open_service() as service:
        yield service


async def alice(node: NodeInMemory, client_id: str = "a", **more: Any) -> RawClient:
    """Connect as a user of the password file."""
    return await RawClient.connect(node.port, client_id, username="alice", password=USERS["alice"], **more)


# Who a client is.


@pytest.mark.parametrize("version", [4, 5])
async def test_anonymous_client_of_this_machine_costs_no_task(start_guarded: StartGuarded, version: int) -> None:
    """With the defaults it is accepted at once, in the same turn of the event loop, and may do everything."""
    node = await start_guarded()
    before = asyncio.all_tasks()
    async with await RawClient.connect(node.port, "c", version=version) as client:
        assert client.connack.reason_code == 0
        assert (await client.subscribe(b"#")).reason_codes == (0,)
        client.publish(b"t", b"1")
        assert (await client.expect(Publish)).payload == b"1"
        assert "server-identify" not in {task.get_name() for task in asyncio.all_tasks() - before}


async def test_anonymous_client_is_refused_where_others_reach_the_listener(
    start_guarded: StartGuarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is of this machine: the listener decides; with `anonymous = "always"` it is accepted."""
    monkeypatch.setattr(entry, "is_local", lambda address: False)  # tests listen on loopback only
    node = await start_guarded()
    for version, code in ((5, ReasonCode.NOT_AUTHORIZED), (4, 5)):
        async with await RawClient.connect(node.port, "c", version=version) as client:
            assert client.connack.reason_code == code
            await client.expect_end()
    node = await start_guarded(anonymous="always")
    async with await RawClient.connect(node.port, "c") as client:
        assert client.connack.reason_code == 0


@pytest.mark.parametrize(("version", "code"), [(4, 4), (5, ReasonCode.BAD_USER_NAME_OR_PASSWORD)])
async def test_password_decides(start_guarded: StartGuarded, version: int, code: int) -> None:
    """The right one is accepted; a wrong one, and an unknown user, are told so and counted."""
    node = await start_guarded(passwords=users(**USERS), anonymous="never")
    async with await alice(node, version=version) as client:
        assert client.connack.reason_code == 0
        assert await client.messages_until_ping() == []
    for username, password in (("alice", b"wrong"), ("eve", b"wonder")):
        with capture_logs() as lines:
            connect = partial(RawClient.connect, node.port, "x", version=version)
            async with await connect(username=username, password=password) as client:
                assert client.connack.reason_code == code
                await client.expect_end()
        assert [(line["event"], line["username"]) for line in lines if line["log_level"] == "warning"] == [
            ("client_refused", username)
        ]
    assert node.server.figures()["connections_refused_total"] == 2
    async with await RawClient.connect(node.port, "c", version=version) as client:
        assert client.connack.reason_code == (5 if version == 4 else ReasonCode.NOT_AUTHORIZED)


async def test_what_follows_connect_waits_for_the_decision(start_guarded: StartGuarded, service: Service) -> None:
    """Packets of the same write, and later ones, are answered after CONNACK, in order."""
    service.open.clear()
    node = await start_guarded(http={"url": service.url})
    client = await RawClient.open(node.port)
    connect = Connect("c", 5, True, 60)
    client.send(connect, Subscribe(1, (Subscription(b"t", 0),)), Publish(b"t", b"1", 0, False, False, None))
    await wait_until(lambda: service.asked, what="the question")
    client.send(Pingreq())
    await node.pass_time(100)  # neither the time for CONNECT nor the Keep Alive counts meanwhile
    service.open.set()
    kinds = [type(await client.receive()) for _ in range(4)]
    assert kinds == [Connack, Suback, Publish, Pingresp]
    await client.close()


async def test_broken_packet_behind_connect_is_told_after_connack(
    start_guarded: StartGuarded, service: Service
) -> None:
    """The fault ends the connection in its turn."""
    node = await start_guarded(http={"url": service.url})
    client = await RawClient.open(node.port)
    client.send_bytes(encode(Connect("c", 5, True, 0), version=5) + b"\xf0\xff\xff\xff\xff")
    assert (await client.expect(Connack)).reason_code == 0
    await client.expect_end(ReasonCode.MALFORMED_PACKET)
    await client.close()


async def test_stop_ends_the_wait_for_a_decision(start_guarded: StartGuarded, service: Service) -> None:
    """A client that waits is refused, and its task is gone."""
    service.open.clear()
    node = await start_guarded(http={"url": service.url})
    client = await RawClient.open(node.port)
    client.send(Connect("c", 5, True, 0))
    await wait_until(lambda: service.asked, what="the question")
    await node.server.stop(deadline_s=0.1)
    assert (await client.expect(Connack)).reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert "server-identify" not in {task.get_name() for task in asyncio.all_tasks()}
    await client.close()


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, ReasonCode.SERVER_UNAVAILABLE)])
async def test_hook_that_is_down_refuses(start_guarded: StartGuarded, version: int, code: int) -> None:
    """Nobody is accepted without an answer, and it is counted."""
    node = await start_guarded(http={"url": "http://127.0.0.1:1/"})
    async with await RawClient.connect(node.port, "c", version=version) as client:
        assert client.connack.reason_code == code


# Rules.


async def test_rules_hold_for_each_user_and_client(start_guarded: StartGuarded, gates: list[Gate]) -> None:
    """`%u` is the verified user, `%c` the Client Identifier; what is not allowed is refused and counted."""
    node = await start_guarded(passwords=users(**USERS), rule=RULES)
    async with await alice(node, "a1") as client:
        wanted = (b"home/alice/#", b"home/bob/#", b"plant/public/+", b"plant/#", b"$share/g/home/alice/x")
        with capture_logs() as lines:
            assert (await client.subscribe(*wanted)).reason_codes == (0, 0x87, 0, 0x87, 0)
        logged = [(line["filter"], line["topic"], line["rule"]) for line in lines if line["log_level"] == "warning"]
        assert logged == [
            ("home/bob/#", "home/bob", "none allows it"),
            ("plant/#", "plant/secret", 0),
        ]
        unheard = ReasonCode.NO_MATCHING_SUBSCRIBERS
        cases = ((b"home/alice/x", 0), (b"device/a1", unheard), (b"device/a2", 0x87), (b"plant/public/1", 0x87))
        for topic, code in cases:
            packet_id = client.publish(topic, b"v", qos=1)
            while not isinstance(packet := await client.receive(), Ack):
                assert isinstance(packet, Publish)
            assert packet == Ack(PacketType.PUBACK, packet_id, code)
    assert [row[0] for _, row in node.published] == [b"home/alice/x", b"device/a1"]
    assert node.server.figures()["dropped_total"]["refused"] == 2
    assert gates[0].figures()["admitted_total"]["password"] == 1


async def test_mqtt_3_1_1_is_told_what_it_understands(start_guarded: StartGuarded) -> None:
    """SUBACK has 0x80; a refused PUBLISH is dropped, and acknowledged at QoS 1 [MQTT-3.3.5-2]."""
    node = await start_guarded(rule=RULES)
    async with await RawClient.connect(node.port, "c", version=4) as client:
        assert (await client.subscribe(b"plant/#", b"plant/public/#")).reason_codes == (0x80, 0)
        client.publish(b"plant/public/1", b"v")
        assert await client.messages_until_ping() == []
        await client.expect_ack(PacketType.PUBACK, client.publish(b"plant/public/1", b"v", qos=1))
    assert node.published == []
    assert node.server.figures()["dropped_total"]["refused"] == 2


async def test_one_run_is_allowed_and_refused_in_order(start_guarded: StartGuarded) -> None:
    """Of many PUBLISHs in one write each gets its own verdict, at QoS 2 too."""
    node = await start_guarded(rule=RULES)
    async with await RawClient.connect(node.port, "c") as client:
        topics = (b"device/c", b"x", b"device/c", b"y", b"device/c")
        client.send(*(Publish(topic, b"%d" % n, 2, False, False, n + 1) for n, topic in enumerate(topics)))
        for number, code in enumerate((0x10, 0x87, 0x10, 0x87, 0x10)):  # 0x10: nobody has subscribed
            await client.expect_ack(PacketType.PUBREC, number + 1, code)
    assert [row[1] for _, row in node.published] == [b"0", b"2", b"4"]


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, ReasonCode.NOT_AUTHORIZED)])
async def test_will_message_needs_the_right(start_guarded: StartGuarded, version: int, code: int) -> None:
    """A client whose Will Message may not be published is refused; an allowed one is published."""
    node = await start_guarded(rule=RULES)
    connect = partial(RawClient.connect, node.port, "c", version=version)
    async with await connect(will=Will(b"device/other", b"gone", 0, False)) as client:
        assert client.connack.reason_code == code
    async with await connect(will=Will(b"device/c", b"gone", 0, False)) as client:
        assert client.connack.reason_code == 0
    await wait_until(lambda: node.published, what="the Will Message")
    assert [row[0] for _, row in node.published] == [b"device/c"]


async def test_will_message_is_decided_again_when_it_is_published(
    start_guarded: StartGuarded, gates: list[Gate]
) -> None:
    """A right that was lost meanwhile does not come back by a Will Message."""
    node = await start_guarded(rule=RULES)
    async with await RawClient.connect(node.port, "c", will=Will(b"device/c", b"gone", 0, False)) as client:
        assert client.connack.reason_code == 0
        gates[0].replace(access_config(rule=[{"allow": "read", "filter": "#"}]), passwords=None)
        await node.server.lifecycles.check_again()
        assert await client.messages_until_ping() == []
    await wait_until(lambda: node.server.figures()["dropped_total"]["refused"], what="the refusal")
    assert node.published == []


async def test_too_many_filters_are_not_looked_at(start_guarded: StartGuarded) -> None:
    """Beyond `subscriptions_max` of one packet nothing is decided."""
    node = await start_guarded(rule=RULES, server={"subscriptions_max": 2})
    async with await RawClient.connect(node.port, "c") as client:
        suback = await client.subscribe(b"no", b"plant/public", b"no", b"plant/other")
        assert suback.reason_codes == (0x87, 0, 0x97, 0x97)


# Sessions of others.


async def test_session_of_another_user_is_not_taken_over(start_guarded: StartGuarded) -> None:
    """Neither its messages nor its connection: the other one is refused (0x85), its owner resumes."""
    node = await start_guarded(passwords=users(**USERS))
    owner = await alice(node, "a", properties=DURABLE)
    await owner.subscribe(b"t", qos=1)
    bob = partial(RawClient.connect, node.port, "a", username="bob", password=USERS["bob"], clean_start=False)
    for other, code in ((bob(), 0x85), (bob(version=4), 2), (RawClient.connect(node.port, "a"), 0x85)):
        async with await other as client:
            assert client.connack.reason_code == code
    assert await owner.messages_until_ping() == []
    await owner.close()
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    node.set(b"t", b"1", qos=1)
    async with await bob() as client:
        assert client.connack.reason_code == 0x85
    async with await alice(node, "a", clean_start=False, properties=DURABLE) as owner:
        assert owner.connack.session_present
        assert (await owner.expect(Publish)).payload == b"1"


async def test_session_of_nobody_can_be_replaced_by_a_user(start_guarded: StartGuarded) -> None:
    """It is ended, not resumed: what an anonymous client subscribed to is not the user's."""
    node = await start_guarded(passwords=users(**USERS))
    async with await RawClient.connect(node.port, "a", properties=DURABLE) as client:
        await client.subscribe(b"t", qos=1)
        async with await alice(node, "a", clean_start=False) as user:
            assert (user.connack.reason_code, user.connack.session_present) == (0, False)
            await client.expect_end(ReasonCode.SESSION_TAKEN_OVER)
            assert node.server.figures()["subscriptions"] == 0


async def test_session_of_a_superuser_is_not_resumed_without_that_power(
    start_guarded: StartGuarded, service: Service
) -> None:
    """A user that is no superuser any more starts clean; an anonymous client does not get the session at all."""
    node = await start_guarded(http={"url": service.url, "remember_s": 0}, rule=RULES)
    connect = partial(RawClient.connect, node.port, "s", clean_start=False, properties=DURABLE)
    service.answer = {"allow": True, "superuser": True, "user": "root"}
    async with await connect() as client:
        assert (await client.subscribe(b"#")).reason_codes == (0,)
    service.answer = {"allow": True}
    async with await connect() as client:
        assert client.connack.reason_code == 0x85
    service.answer = {"allow": True, "user": "root"}
    async with await connect() as client:
        assert (client.connack.reason_code, client.connack.session_present) == (0, False)


# The HTTP hook.


async def test_slow_hook_holds_one_client_and_no_other(start_guarded: StartGuarded, service: Service) -> None:
    """SUBACK waits for the answer, and so does what the client sent behind; others go on."""
    node = await start_guarded(http={"url": service.url, "actions": ["subscribe"]})
    service.open.clear()
    async with await RawClient.connect(node.port, "slow") as slow, await RawClient.connect(node.port, "other") as other:
        slow.send(Subscribe(1, (Subscription(b"a", 0), Subscription(b"$share/g/b", 0))), Pingreq())
        await wait_until(lambda: len(service.asked) == 2, what="both questions")
        assert await other.messages_until_ping() == []
        assert node.server.figures()["subscriptions"] == 0
        service.open.set()
        assert await slow.expect(Suback) == Suback(1, (0, 0))
        assert isinstance(await slow.receive(), Pingresp)
    assert sorted((asked["action"], asked["topic"]) for asked in service.asked) == [
        ("subscribe", "a"),
        ("subscribe", "b"),
    ]


async def test_rules_that_were_replaced_meanwhile_count(
    start_guarded: StartGuarded, gates: list[Gate], service: Service
) -> None:
    """What the hook allows after a reload must be allowed by the new rules."""
    http = {"url": service.url, "actions": ["subscribe"]}
    node = await start_guarded(http=http)
    service.open.clear()
    async with await RawClient.connect(node.port, "c") as client:
        client.send(Subscribe(1, (Subscription(b"a", 0), Subscription(b"b", 0))))
        await wait_until(lambda: len(service.asked) == 2, what="both questions")
        gates[0].replace(access_config(http=http, rule=[{"allow": "read", "filter": "b"}]), passwords=None)
        await node.server.lifecycles.check_again()
        service.open.set()
        assert await client.expect(Suback) == Suback(1, (0x87, 0))


async def test_rules_that_were_replaced_meanwhile_count_for_remembered_answers(
    start_guarded: StartGuarded, gates: list[Gate], service: Service
) -> None:
    """A subscription that the hook allowed before waits for another one of its packet, and for the rules of then."""
    http = {"url": service.url, "actions": ["subscribe"]}
    node = await start_guarded(http=http)
    async with await RawClient.connect(node.port, "c") as client:
        assert (await client.subscribe(b"a")).reason_codes == (0,)
        service.open.clear()
        client.send(Subscribe(2, (Subscription(b"a", 0), Subscription(b"b", 0))))
        await wait_until(lambda: len(service.asked) == 2, what="the second question")
        gates[0].replace(access_config(http=http, rule=[{"allow": "read", "filter": "b"}]), passwords=None)
        await node.server.lifecycles.check_again()
        service.open.set()
        assert await client.expect(Suback) == Suback(2, (0x87, 0))


async def test_subscriptions_of_one_client_do_not_fill_the_queue_of_the_hook(
    start_guarded: StartGuarded, service: Service
) -> None:
    """As many as messages are asked about at a time; another client finds room meanwhile."""
    node = await start_guarded(http={"url": service.url, "actions": ["subscribe"], "queue_max": 1, "timeout_s": 30})
    service.open.clear()
    async with await RawClient.connect(node.port, "many") as many, await RawClient.connect(node.port, "one") as one:
        many.send(Subscribe(1, tuple(Subscription(b"t/%d" % number, 0) for number in range(100))))
        await wait_until(lambda: len(service.asked) == 32, what="the first questions")
        one.send(Subscribe(1, (Subscription(b"t", 0),)))
        service.open.set()
        assert await one.expect(Suback) == Suback(1, (0,))
        assert await many.expect(Suback) == Suback(1, (0,) * 100)


async def test_messages_wait_for_the_hook_in_order(start_guarded: StartGuarded, service: Service) -> None:
    """More topics than are asked about at a time, allowed ones before and behind; verdicts come in order."""
    node = await start_guarded(
        http={"url": service.url, "actions": ["publish"], "queue_max": 1, "timeout_s": 30},
        rule=[{"allow": "all", "filter": "t/#"}],
    )
    service.open.clear()
    async with await RawClient.connect(node.port, "c") as client:
        client.send(*(Publish(b"t/%d" % n, b"", 1, False, False, n) for n in range(1, 101)), Pingreq())
        client.send(Publish(b"no", b"", 1, False, False, 101))
        await wait_until(lambda: len(service.asked) == 32, what="the first questions")
        assert node.published == []
        service.open.set()
        for number in range(1, 101):
            await client.expect_ack(PacketType.PUBACK, number)
        assert isinstance(await client.receive(), Pingresp)
        await client.expect_ack(PacketType.PUBACK, 101, 0x87)
    assert [row[0] for _, row in node.published] == [b"t/%d" % n for n in range(1, 101)]


async def test_message_whose_client_is_gone_is_decided_all_the_same(
    start_guarded: StartGuarded, service: Service
) -> None:
    """At QoS 2 the session has taken it: it is published once, and the resumed session goes on with PUBREC."""
    node = await start_guarded(http={"url": service.url, "actions": ["publish"]})
    connect = partial(RawClient.connect, node.port, "c", clean_start=False, properties=DURABLE)
    service.open.clear()
    async with await connect() as client:
        client.publish(b"t", b"1", qos=2, packet_id=7)
        await wait_until(lambda: service.asked, what="the question")
        async with await connect() as again:  # takes the session over
            assert again.connack.session_present
            again.publish(b"t", b"1", qos=2, dup=True, packet_id=7)
            service.open.set()
            await again.expect_ack(PacketType.PUBREC, 7)
    assert [row[1] for _, row in node.published] == [b"1"]


async def test_hook_that_says_no_or_nothing_refuses_the_message(
    start_guarded: StartGuarded, gates: list[Gate], service: Service
) -> None:
    """0x87, a counter of refused messages, and a counter of failures where there was no answer."""
    node = await start_guarded(http={"url": service.url, "actions": ["publish"], "remember_s": 0})
    async with await RawClient.connect(node.port, "c") as client:
        service.answer = {"allow": False}
        await client.expect_ack(PacketType.PUBACK, client.publish(b"t", b"", qos=1), 0x87)
        service.status = 500
        await client.expect_ack(PacketType.PUBACK, client.publish(b"t", b"", qos=1), 0x87)
    assert node.published == []
    assert node.server.figures()["dropped_total"]["refused"] == 2
    assert gates[0].figures()["hook_failures_total"]["status"] == 1


async def test_will_message_is_put_to_the_hook(start_guarded: StartGuarded, service: Service) -> None:
    """CONNACK waits for its answer."""
    node = await start_guarded(http={"url": service.url, "actions": ["publish"], "remember_s": 0})
    for allow, code in ((True, 0), (False, 0x87)):
        service.answer = {"allow": allow}
        async with await RawClient.connect(node.port, "c", will=Will(b"t", b"gone", 0, False)) as client:
            assert client.connack.reason_code == code
    assert {asked["topic"] for asked in service.asked} == {"t"}


# Replaced while clients are connected.


async def test_lost_rights_end_subscriptions_and_nothing_else(start_guarded: StartGuarded, gates: list[Gate]) -> None:
    """Connected and absent sessions lose what the new rules do not grant; the others notice nothing."""
    node = await start_guarded()
    async with await RawClient.connect(node.port, "absent", properties=DURABLE) as client:
        await client.subscribe(b"a", b"b", qos=1)
    async with await RawClient.connect(node.port, "c") as client:
        await client.subscribe(b"a", b"b", b"$share/g/a", b"$share/g/b")
        change = gates[0].replace(access_config(rule=[{"allow": "read", "filter": "b"}]), passwords=None)
        assert change.sessions_to_check
        with capture_logs() as lines:
            await node.server.lifecycles.check_again()
        assert sorted(line["client_id"] for line in lines if line["event"] == "subscriptions_revoked") == [
            "absent",
            "c",
        ]
        node.set(b"a", b"1", qos=1, retain=False)
        node.set(b"b", b"2", qos=1, retain=False)
        assert [message.topic for message in await client.messages_until_ping()] == [b"b", b"b"]
        assert node.server.figures()["subscriptions"] == 3
    async with await RawClient.connect(node.port, "absent", clean_start=False, properties=DURABLE) as client:
        assert (await client.expect(Publish)).topic == b"b"


async def test_revoked_user_is_disconnected(start_guarded: StartGuarded, gates: list[Gate]) -> None:
    """Its sessions end, absent ones too; other users stay."""
    node = await start_guarded(passwords=users(**USERS))
    async with await alice(node, "absent", properties=DURABLE):
        pass
    bob = await RawClient.connect(node.port, "b", username="bob", password=USERS["bob"])
    async with await alice(node, "a", properties=DURABLE) as client, bob:
        await wait_until(lambda: node.server.figures()["connections"] == 2)
        gates[0].replace(access_config(), passwords=users(bob=USERS["bob"]))
        await node.server.lifecycles.check_again()
        await client.expect_end(ReasonCode.NOT_AUTHORIZED)
        assert await bob.messages_until_ping() == []
        assert [session.client_id for session in node.server.registry] == ["b"]


async def test_many_sessions_are_checked_in_turns(start_guarded: StartGuarded, gates: list[Gate]) -> None:
    """The event loop goes on in between, and what has ended by then is left alone."""
    node = await start_guarded(server={"subscriptions_max": 1000})
    with contextlib.ExitStack():
        clients = [await RawClient.connect(node.port, f"c{number}") for number in range(3)]
        filters = [b"t/%d" % number for number in range(300)]
        for client in clients:
            await client.subscribe(*filters)
        gates[0].replace(access_config(rule=[{"allow": "read", "filter": "none"}]), passwords=None)
        check = asyncio.create_task(node.server.lifecycles.check_again())
        await asyncio.sleep(0)
        assert node.server.figures()["subscriptions"] == 600
        await clients[2].disconnect()
        await wait_until(lambda: node.server.figures()["connections"] == 2)
        await check
        assert node.server.figures()["subscriptions"] == 0
        for client in clients[:2]:
            await client.close()


# A client library.


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
async def test_paho_is_let_in_or_told_why_not(start_guarded: StartGuarded, version: MQTTProtocolVersion) -> None:
    """A client library sees the refusal of a password and of a subscription as what it is."""
    node = await start_guarded(passwords=users(**USERS), rule=RULES)
    assert (await asyncio.to_thread(run_paho, node.port, version, "wrong"))[0] == "Bad user name or password"
    connected, granted = await asyncio.to_thread(run_paho, node.port, version, "wonder")
    refused = "Not authorized" if version is MQTTProtocolVersion.MQTTv5 else "Unspecified error"
    assert (connected, granted) == ("Success", ["Granted QoS 1", refused])


def run_paho(port: int, version: MQTTProtocolVersion, password: str) -> tuple[str, list[str]]:
    """Connect and subscribe with paho; return what it was told."""
    connected: list[str] = []
    granted: list[str] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "p", protocol=version)
    client.username_pw_set("alice", password)

    def on_connect(_client: object, _data: object, _flags: object, reason_code: object, _properties: object) -> None:
        connected.append(str(reason_code))
        if str(reason_code) == "Success":
            client.subscribe([("home/alice/#", 1), ("home/bob/#", 1)])
        else:
            client.disconnect()

    def on_subscribe(_client: object, _data: object, _mid: int, codes: list[object], _properties: object) -> None:
        granted.extend(map(str, codes))
        client.disconnect()

    client.on_connect = on_connect
    client.on_subscribe = on_subscribe  # type: ignore[assignment]  # paho's own types are narrower than its calls
    client.connect("127.0.0.1", port)
    deadline_s = time.monotonic() + 10
    while not granted and time.monotonic() < deadline_s and client.loop(0.1) == paho.MQTT_ERR_SUCCESS:
        pass
    return connected[0], granted
