"""The fence in front of durable sessions: whom it disconnects, and what stands still behind it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fanout.durable.form.session_format import decode_session
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import TakeQuestion
from fanout.mqtt.packets import Disconnect, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.ports import SessionFound
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)


@dataclass
class Finder:
    """The pool, as the server asks it."""

    node: NodeInMemory
    may_resume: bool = True
    is_leaving: bool = False
    asked: list[asyncio.Future[SessionFound]] = field(default_factory=list)

    @property
    def is_fenced(self) -> bool:
        """Whether the fence is up."""
        return self.node.server.lifecycles.fence.is_up

    def began(self, client_id: str, *, is_copied: bool) -> None:
        """Do nothing."""

    def epochs_of(self, client_id: str) -> bytes:
        """Return nothing."""
        return b""

    def find(self, client_id: str, *, user: str, superuser: bool, clean: bool = False) -> asyncio.Future[SessionFound]:
        """Answer when the test does."""
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


@pytest.fixture(name="node")
async def in_a_pool(start_node: StartNode) -> NodeInMemory:
    """Give a node that is in a pool."""
    node = await start_node()
    node.server.lifecycles.finder = Finder(node)
    return node


def will(delay_s: int = 0) -> Will:
    """Return a Will Message."""
    return Will(b"wills", b"gone", 0, False, Properties(will_delay_interval=delay_s or None))


async def durable(node: NodeInMemory, client_id: str, *, version: int = 5, delay_s: int = 0) -> RawClient:
    """Begin a durable session with a Will Message."""
    if version == 4:  # with Clean Start 0 the session is asked for elsewhere
        connecting = asyncio.create_task(
            RawClient.connect(node.port, client_id, version=4, clean_start=False, will=Will(b"wills", b"gone"))
        )
        finder = finder_of(node)
        await wait_until(lambda: bool(finder.asked))
        finder.asked.pop().set_result(SessionFound.NONE)
        return await connecting
    return await RawClient.connect(node.port, client_id, properties=DURABLE, will=will(delay_s))


def finder_of(node: NodeInMemory) -> Finder:
    """Return the pool of a node."""
    finder = node.server.lifecycles.finder
    assert isinstance(finder, Finder)
    return finder


def pass_time(node: NodeInMemory, seconds: float) -> None:
    """Let time pass, with what is due."""
    node.clock.advance(seconds)
    node.server.context.timer.run_due()


def wills(node: NodeInMemory) -> int:
    """Return how many Will Messages were published."""
    return int(node.server.figures()["wills_total"])


async def test_clients_with_a_durable_session_are_disconnected(node: NodeInMemory) -> None:
    """0x89 in MQTT 5, nothing in 3.1.1, no Will Message; others go on, and their Will Messages too."""
    old, new = await durable(node, "old", version=4), await durable(node, "new")
    other = await RawClient.connect(node.port, "other", will=will())
    assert node.server.lifecycles.raise_fence() == 2
    assert node.server.lifecycles.raise_fence() == 0
    await old.expect_end()
    await new.expect_end(ReasonCode.SERVER_BUSY)
    await wait_until(lambda: len(node.server.connections) == 1)
    assert (node.server.session_count, wills(node)) == (3, 0)
    await other.subscribe(b"t")
    node.take([update(b"t", b"1", retain=False)])
    assert len(await other.messages(1)) == 1
    await other.close()
    await wait_until(lambda: node.server.session_count == 2)
    assert wills(node) == 1
    node.server.lifecycles.lower_fence()
    assert wills(node) == 3
    await old.close()
    await new.close()


async def test_another_server_is_named_where_one_is_configured(start_node: StartNode) -> None:
    """0x9C, as when the node stops."""
    node = await start_node(server_reference="edge-2:1883")
    async with await durable(node, "c") as client:
        node.server.lifecycles.raise_fence()
        while not isinstance(packet := await client.receive(), Disconnect):
            pass
        assert packet.reason_code == ReasonCode.USE_ANOTHER_SERVER
        assert packet.properties.server_reference == "edge-2:1883"


async def test_deadlines_stand_still(node: NodeInMemory) -> None:
    """Those that ran, and those of clients that are disconnected; they go on with what remained."""
    away = await durable(node, "away", delay_s=100)
    await away.close()
    await wait_until(lambda: not node.server.connections)
    pass_time(node, 60)
    here = await durable(node, "here", delay_s=100)
    node.server.lifecycles.raise_fence()
    await here.expect_end(ReasonCode.SERVER_BUSY)
    pass_time(node, 10_000)
    assert (node.server.session_count, wills(node)) == (2, 0)
    assert isinstance(node.sessions.promise(TakeQuestion("away", Epoch(1, "b"), "", False, anyone=True)), tuple)
    exported = decode_session(node.sessions.export("away", {}).value, bytes_max=1 << 20)
    assert (exported.expiry_left_ms, exported.will_left_ms) == (540_000, 40_000)
    node.sessions.take_back("away")
    pass_time(node, 10_000)
    node.server.lifecycles.lower_fence()
    for seconds, expected in ((39, (2, 0)), (2, (2, 1)), (60, (2, 2)), (438, (2, 2)), (2, (1, 2)), (60, (0, 2))):
        pass_time(node, seconds)
        assert (node.server.session_count, wills(node)) == expected
    await here.close()


async def test_a_session_that_goes_on_elsewhere_ends_without_its_will_message(node: NodeInMemory) -> None:
    """One that an operator ends has it published behind the fence."""
    for client_id in ("elsewhere", "kicked"):
        await (await durable(node, client_id, delay_s=100)).close()
    await wait_until(lambda: not node.server.connections)
    lifecycles = node.server.lifecycles
    lifecycles.raise_fence()
    node.sessions.end("elsewhere")
    lifecycles.kick("kicked", clean=True, reason_code=ReasonCode.ADMINISTRATIVE_ACTION)
    assert (node.server.session_count, wills(node)) == (0, 0)
    lifecycles.lower_fence()
    pass_time(node, 10_000)
    assert wills(node) == 1


async def test_nobody_gets_a_durable_session(node: NodeInMemory) -> None:
    """Neither a new one nor the one that is here, also by ending it; without one a client is served."""
    await (await durable(node, "c")).close()
    await wait_until(lambda: not node.server.connections)
    node.server.lifecycles.raise_fence()
    for client_id, properties, clean_start in (
        ("new", DURABLE, True),
        ("new", DURABLE, False),
        ("c", DURABLE, False),
        ("c", Properties(), True),
    ):
        client = await RawClient.connect(node.port, client_id, clean_start=clean_start, properties=properties)
        assert client.connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
        await client.close()
    old = await RawClient.connect(node.port, "old", version=4, clean_start=False)
    assert old.connack.reason_code == 3
    await old.close()
    async with await RawClient.connect(node.port, "other") as other:
        assert other.connack.reason_code == ReasonCode.SUCCESS
    assert not finder_of(node).asked
    node.server.lifecycles.lower_fence()


async def test_a_client_that_waits_gets_none_either(node: NodeInMemory) -> None:
    """The fence goes up while others are asked for its session."""
    connecting = asyncio.create_task(RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE))
    finder = finder_of(node)
    await wait_until(lambda: bool(finder.asked))
    node.server.lifecycles.raise_fence()
    finder.asked.pop().set_result(SessionFound.NONE)
    client = await connecting
    assert client.connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
    await client.close()


async def test_a_client_that_leaves_while_it_waits_is_forgotten(node: NodeInMemory) -> None:
    """Nobody is asked for it any more."""
    connecting = asyncio.create_task(RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE))
    finder = finder_of(node)
    await wait_until(lambda: bool(finder.asked))
    (connection,) = node.server.connections
    connection.abort()
    await wait_until(finder.asked[0].cancelled)
    assert node.server.session_count == 0
    with pytest.raises(Exception):  # noqa: B017, PT011  # however the test's client says that its connection ended
        await connecting


@pytest.mark.parametrize("act", ["read", "batch", "queue", "expiry", "will"])
async def test_a_pause_is_seen_before_anything_is_done(act: str, node: NodeInMemory) -> None:
    """What waits in the sockets, in queues and with the timer comes behind the fence."""
    pauses, lifecycles = node.server.pauses, node.server.lifecycles
    away = await durable(node, "away", delay_s=5)
    await away.subscribe(b"t", qos=1)
    await away.close()
    await wait_until(lambda: not node.server.connections)
    here = await RawClient.connect(node.port, "here", properties=Properties(session_expiry_interval=600))
    await here.subscribe(b"t", qos=1)
    published = len(node.published)
    pauses.look = lifecycles.raise_fence
    pauses.until_s = node.clock.monotonic() + 2.0
    if act == "queue":
        node.take([update(b"t", b"1", qos=1, retain=False)])
        assert len(await here.messages(1)) == 1
        node.clock.advance(1.0)
        node.server.context.pacer.schedule(next(iter(node.server.connections)))
        node.clock.advance(3.0)
    else:
        node.clock.advance({"expiry": 700.0, "will": 6.0}.get(act, 3.0))
    if act == "read":
        here.publish(b"t", b"2", qos=1, packet_id=1)
    elif act == "batch":
        node.take([update(b"t", b"2", qos=1, retain=False)])
    elif act in ("expiry", "will"):
        node.server.context.timer.run_due()
    await wait_until(lambda: lifecycles.fence.is_up)
    await here.expect_end(ReasonCode.SERVER_BUSY)
    assert (len(node.published), node.server.session_count, wills(node)) == (published, 2, 0)
    pauses.until_s = None
    lifecycles.lower_fence()
    node.server.context.timer.run_due()
    left = 1 if act == "expiry" else 2
    assert (node.server.session_count, wills(node)) == (left, act in ("expiry", "will"))
    await here.close()


async def test_a_session_that_ends_as_the_fence_falls_has_no_deadline(start_node: StartNode) -> None:
    """The Will Message of another overflows its queue; its expiry must not end the next session of its client."""
    node = await start_node(queue_messages_max=1)
    node.server.lifecycles.finder = Finder(node)
    lifecycles, properties = node.server.lifecycles, Properties(session_expiry_interval=600, receive_maximum=1)
    async with (
        await RawClient.connect(node.port, "first", properties=DURABLE, will=Will(b"wills", b"gone", 1)),
        await RawClient.connect(node.port, "full", properties=properties) as full,
    ):
        await full.subscribe(b"#", qos=1)
        node.take([update(b"data", b"x", qos=1, retain=False)] * 2)
        lifecycles.raise_fence()
        lifecycles.lower_fence()
    assert node.server.registry.get("full") is None
    async with await RawClient.connect(node.port, "full", properties=properties):
        pass_time(node, 601)
        assert node.server.registry.get("full") is not None
