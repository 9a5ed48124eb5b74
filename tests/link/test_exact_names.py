"""Retained messages by exact Topic Name, on a short connection beside the link's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanout.config import Address
from fanout.errors import LinkLost, PrimaryRefused, ProtocolError
from fanout.link.exact_names import NAMES_MAX, NamedAnswer, ask_by_name
from fanout.link.model.evidence import Order
from fanout.link.model.states import LinkState
from fanout.link.protocol.name_request import CHUNK_NAMES
from fanout.link.short_connection import CLIENT_ID_BYTES, short_client_id
from fanout.mqtt.packets import Connack, Pingresp, Suback
from fanout.mqtt.properties import Properties
from tests.link.fake_primary import FakePrimary, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, running
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.waiting import wait_until

SENTINEL = b"$SYS/broker/version"
TWO_VALUES = {b"plant/1": b"one", b"plant/2": b"two"}


async def asked(
    primary: FakePrimary,
    *topics: str,
    sentinel: bytes | None = SENTINEL,
    order: Order = Order.KNOWN,
    qos: int = 0,
    **changes: object,
) -> NamedAnswer:
    """Return the answer of a fake primary."""
    config = make_config(version=primary.version, **{"snapshot_quiet_s": 0.2, "connect_timeout_s": 5.0, **changes})
    async with FakeServer(primary, beside=primary) as server:
        address = Address("mqtt", "127.0.0.1", server.port)
        return await ask_by_name(
            address,
            config,
            topics,
            node_id="edge-1",
            sentinel=sentinel,
            order=order,
            deadline_s=10 if not changes else 1,
            qos=qos,
        )


def payloads(answer: NamedAnswer) -> dict[str, bytes]:
    """Return the payloads of an answer."""
    return {topic: row[1] for topic, row in answer.values.items()}


@pytest.mark.parametrize("version", [4, 5])
async def test_each_name_is_held_absent_or_refused(version: int) -> None:
    """One connection with a name of its own, no session left, and nothing subscribed for live messages' sake."""
    primary = FakePrimary(version=version, retained=dict(TWO_VALUES), refuse_filters=(b"plant/secret",))
    answer = await asked(primary, "plant/1", "plant/2", "plant/none", "plant/secret", "plant/1")
    assert payloads(answer) == {"plant/1": b"one", "plant/2": b"two"}
    assert answer.absent == {"plant/none"}
    assert dict(answer.refused) == {"plant/secret": 0x87 if version == 5 else 0x80}
    (connect,) = primary.connects
    assert connect.client_id == "fanout-edge-1-plant-names"
    assert connect.clean_start
    assert not connect.properties.session_expiry_interval
    assert {each.qos for packet in primary.subscribes for each in packet.subscriptions} == {0}


async def test_many_names_go_in_chunks_one_after_another() -> None:
    """So that neither the primary's queue nor its Maximum Packet Size is exceeded."""
    values = {b"plant/%d" % number: b"%d" % number for number in range(180)}
    topics = [topic.decode() for topic in values]
    limits = Properties(maximum_packet_size=300)
    for primary in (FakePrimary(retained=values), FakePrimary(retained=values, connack=Connack(False, 0, limits))):
        answer = await asked(primary, *topics, "plant/none")
        assert payloads(answer) == {topic.decode(): value for topic, value in values.items()}
        assert answer.absent == {"plant/none"}
        assert primary.pings == len(primary.subscribes) >= 4
    assert len(primary.subscribes) > 10


@pytest.mark.parametrize(("published", "flags"), [(0, 1), (1, 3)])
async def test_a_request_at_qos_1_tells_at_which_qos_a_value_was_published(published: int, flags: int) -> None:
    """Each copy is acknowledged, and few are requested at a time, so that none waits in the primary's queue."""
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(50)}, published_qos=published)
    answer = await asked(primary, *(topic.decode() for topic in primary.retained), "plant/none", sentinel=None, qos=1)
    assert {row[2] for row in answer.values.values()} == {flags}
    assert answer.absent == {"plant/none"}
    assert len(primary.acks) == 50 * published
    assert [len(packet.subscriptions) for packet in primary.subscribes] == [20, 20, 11]


async def test_a_request_at_qos_1_that_is_granted_qos_0_tells_nothing() -> None:
    """The copies have QoS 0 then, however they were published."""
    primary = FakePrimary(retained=dict(TWO_VALUES), maximum_qos=0)
    answer = await asked(primary, "plant/1", "plant/2", sentinel=None, qos=1)
    assert not answer.values
    assert dict(answer.refused) == {"plant/1": 0, "plant/2": 0}


async def test_a_name_too_long_for_the_primary_is_an_error() -> None:
    """It says which limit; the primary would close the connection."""
    primary = FakePrimary(connack=Connack(False, 0, Properties(maximum_packet_size=100)))
    with pytest.raises(PrimaryRefused, match="packets of at most 100 bytes"):
        await asked(primary, "plant/" + "x" * 100)


async def test_without_a_known_order_a_name_is_absent_only_after_silence() -> None:
    """The retained message comes behind SUBACK and PINGRESP; with a known order and no sentinel it would be missed."""
    for order, sentinel in ((Order.NONE, None), (Order.LIKELY, SENTINEL)):
        primary = FakePrimary(retained=dict(TWO_VALUES), asynchronous=True)
        answer = await asked(primary, "plant/1", "plant/2", "plant/none", order=order, sentinel=sentinel)
        assert payloads(answer) == {"plant/1": b"one", "plant/2": b"two"}
        assert answer.absent == {"plant/none"}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("at_most", ["rest", "all", "close"])
@pytest.mark.parametrize("filters", [8, 1])
async def test_fewer_names_are_asked_for_at_a_primary_that_takes_no_more(
    filters: int, at_most: str, version: int
) -> None:
    """As AWS IoT Core with its 8 filters: no name counts as refused, and the size that works is remembered."""
    values = {b"plant/%d" % number: b"%d" % number for number in range(60)}
    primary = FakePrimary(version=version, retained=values, filters_max=filters, at_filters_max=at_most)
    answer = await asked(primary, *(topic.decode() for topic in values), "plant/none")
    assert payloads(answer) == {topic.decode(): value for topic, value in values.items()}
    assert answer.absent == {"plant/none"}
    assert not answer.refused
    assert answer.chunk_names == (7 if filters == 8 else 1)


async def test_names_that_are_too_deep_are_refused_and_the_others_told() -> None:
    """They are asked for one by one before that; the size for the others stays."""
    deep = [f"plant/{number}/a/b/c" for number in range(5)]
    primary = FakePrimary(retained=TWO_VALUES | {name.encode(): b"x" for name in deep}, levels_max=3)
    answer = await asked(primary, *deep, "plant/1", "plant/2", "plant/none")
    assert payloads(answer) == {"plant/1": b"one", "plant/2": b"two"}
    assert answer.absent == {"plant/none"}
    assert dict(answer.refused) == dict.fromkeys(deep, 0x97)
    assert not answer.denied
    assert answer.chunk_names == CHUNK_NAMES


async def test_a_thousand_names_that_are_refused_do_not_make_a_thousand_requests() -> None:
    """After some that are refused again, and alone, the others are not tried."""
    primary = FakePrimary(levels_max=1)
    answer = await asked(primary, *(f"plant/{number}" for number in range(NAMES_MAX)))
    assert len(answer.refused) == NAMES_MAX
    assert len(primary.subscribes) < NAMES_MAX / CHUNK_NAMES + 20


async def test_a_primary_that_closes_at_a_single_name_is_an_error() -> None:
    """There is nothing smaller to ask for; each size was tried once."""
    primary = FakePrimary(filters_max=0, at_filters_max="close")
    with pytest.raises(LinkLost, match="the primary closed it"):
        await asked(primary, "plant/1", "plant/2")
    assert len(primary.connects) == 3


async def test_a_sentinel_that_is_refused_is_not_waited_for() -> None:
    """Its absence says nothing then."""
    primary = FakePrimary(retained=dict(TWO_VALUES), refuse_filters=(SENTINEL,))
    answer = await asked(primary, "plant/1", "plant/none")
    assert (payloads(answer), answer.absent) == ({"plant/1": b"one"}, frozenset({"plant/none"}))


async def test_live_messages_are_not_taken_for_retained_ones() -> None:
    """A message without RETAIN that comes meanwhile says nothing about what is retained."""

    class Busy(FakePrimary):
        """Sends a live message in front of each SUBACK."""

        def send(self, packet: object) -> None:
            if isinstance(packet, Suback):
                self.deliver(b"plant/none", b"live")
            super().send(packet)  # type: ignore[arg-type]

    answer = await asked(Busy(retained=dict(TWO_VALUES)), "plant/1", "plant/none")
    assert (payloads(answer), answer.absent) == ({"plant/1": b"one"}, frozenset({"plant/none"}))


async def test_failures_say_what_to_do() -> None:
    """A refused connection, a silent primary, one that breaks the protocol, and one that is not there."""
    with pytest.raises(PrimaryRefused, match="Bad user name or password") as refused:
        await asked(FakePrimary(connack=Connack(False, 0x86)), "plant/1")
    assert "password_file" in refused.value.hint
    with pytest.raises(LinkLost, match="does not answer CONNECT"):
        await asked(FakePrimary(swallow=(Connack,)), "plant/1", connect_timeout_s=0.2)
    with pytest.raises(LinkLost, match="by name within 1 s"):
        await asked(FakePrimary(swallow=(Pingresp,)), "plant/1", heartbeat_s=1.0)

    class Short(FakePrimary):
        """Answers with too few Reason Codes."""

        def send(self, packet: object) -> None:
            super().send(Suback(packet.packet_id, (0,)) if isinstance(packet, Suback) else packet)  # type: ignore[arg-type]

    with pytest.raises(ProtocolError, match="number of Reason Codes"):
        await asked(Short(), "plant/1")


@pytest.mark.parametrize("present", [False, True])
async def test_a_session_that_the_primary_has_is_seen_and_left(present: bool) -> None:
    """It may be the link's own, at a primary that takes the User Name for the Client Identifier; else none is left."""
    primary = FakePrimary(retained=dict(TWO_VALUES))
    primary.has_session = present
    async with FakeServer(primary, beside=primary) as server:
        address = Address("mqtt", "127.0.0.1", server.port)
        asking = ask_by_name(address, make_config(), ["plant/1"], node_id="edge-1", clean_start=False, deadline_s=10)
        if present:
            with pytest.raises(LinkLost, match="resumed a session for a new Client Identifier"):
                await asking
            assert primary.subscribes == []
        else:
            assert payloads(await asking) == {"plant/1": b"one"}
        await wait_until(lambda: primary.disconnects, 10, what="DISCONNECT")
        (connect,), (disconnect,) = primary.connects, primary.disconnects
        assert (connect.clean_start, connect.properties.session_expiry_interval) == (False, 10)
        assert disconnect.properties.session_expiry_interval == (None if present else 0)


@pytest.mark.parametrize("topics", [["a/+"], ["#"], ["$share/g/a"], [f"a/{number}" for number in range(NAMES_MAX + 1)]])
async def test_what_is_no_list_of_names_is_refused(topics: list[str]) -> None:
    """Wildcards, shared subscriptions, and more names than are held in memory."""
    with pytest.raises(ValueError, match=r"Topic Name|more than"):
        await asked(FakePrimary(), *topics)


def test_the_client_identifier_fits_what_brokers_allow() -> None:
    """It is the link's with a suffix, cut where it would be longer than the link's and than known limits."""
    assert short_client_id("edge-1", "names") == "edge-1-names"
    long = short_client_id("é" * 31, "names")
    assert len(long.encode()) <= CLIENT_ID_BYTES
    assert long.endswith("-names")
    assert long != short_client_id("é" * 30 + "e", "names")
    assert len(short_client_id("x" * 100, "names")) == 100


@pytest.mark.mosquitto
@pytest.mark.parametrize("version", [4, 5])
async def test_mosquitto_answers_beside_a_live_link(tmp_path: Path, version: int) -> None:
    """It hides what the user may not read, keeps the link's session as it is, and another user may see more."""
    acl = tmp_path / "acl"
    acl.write_text(
        "topic read $SYS/#\nuser edge\ntopic readwrite fanout/#\ntopic read $SYS/#\ntopic read plant/open/#\n"
        "user auditor\ntopic read plant/#\ntopic read $SYS/#\nuser load\ntopic write plant/#\n"
    )
    with Mosquitto(tmp_path, settings=[f"acl_file {acl}"]) as mosquitto:
        with publisher(mosquitto.port, username="load") as client:
            publish_all(client, [("plant/open/1", b"1"), ("plant/closed/1", b"2")])
        async with running(config_for(mosquitto.port, username="edge", version=version)) as link:
            await link.wait_state(LinkState.LIVE)
            topics = ["plant/open/1", "plant/closed/1", "plant/none"]
            answer = await link.link.ask_by_name(topics)
            assert payloads(answer) == {"plant/open/1": b"1"}
            assert answer.absent | answer.refused.keys() == {"plant/closed/1", "plant/none"}
            answer = await link.link.ask_by_name(topics, username="auditor")
            assert payloads(answer) == {"plant/open/1": b"1", "plant/closed/1": b"2"}
            assert answer.absent == {"plant/none"}
            answers = await asyncio.gather(*(link.link.ask_by_name(topics) for _ in range(3)))
            assert [payloads(each) for each in answers] == [{"plant/open/1": b"1"}] * 3, "no request takes over another"
            assert link.sink.states()[-1] == "live"
            assert link.status.counters.epochs_total == 1
