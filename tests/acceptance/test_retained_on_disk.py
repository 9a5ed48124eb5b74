"""Retained values on disk: what a secondary that was killed has again, resumed and verified, with a real Mosquitto."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from pathlib import Path

import httpx
import pytest

from fanout.mqtt.packets import Ack, PacketType
from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_updates, selector
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

DISC = '[retained]\nstorage = "disc"\n'
STORAGES = {"disc": DISC, "disc_only": '[retained]\nstorage = "disc_only"\ncache_bytes = 65536\n'}
VALUES = [(f"plant/{number}", b"%d" % number) for number in range(500)]


async def publish(mosquitto: Mosquitto, values: list[tuple[str, bytes]], *, qos: int = 1) -> None:
    """Publish retained values, off the event loop."""

    def send() -> None:
        with publisher(mosquitto.port) as client:
            publish_all(client, values, qos=qos)

    await asyncio.to_thread(send)


async def kill(node: LiveNode) -> None:
    """End a node at once (SIGKILL)."""
    await asyncio.to_thread(node.kill)


def file_of(nodes: Nodes, name: str = "edge-1") -> Path:
    """Return where a node has its retained values."""
    return nodes.directory / name / f"retained-{name}.sqlite"


async def test_killed_in_a_stream_nothing_acknowledged_is_lost(patient: Mosquitto, nodes: Nodes) -> None:
    """Killed again and again while updates flow, a secondary resumes its session, and verification finds no loss."""
    node = nodes.secondary(DISC, link(patient.port, selector("plant/#", qos=2), settings=QUICK))
    await node.begin()
    epoch = node.link_status()["epoch"]
    final = [(topic, b"final") for topic, _ in VALUES]
    for round_number in range(2):
        received = node.link_status()["received_total"]
        stream = [(f"plant/{number % 500}", b"%d.%d" % (round_number, number)) for number in range(3000)]
        sending = asyncio.create_task(publish(patient, stream, qos=2))
        await receive(node, received + 500)
        await kill(node)
        await node.begin()
        assert node.link_status()["epoch"] == epoch, node.log_text()
        assert node.link_status()["epochs_total"] == 0, "the session is that of the first process"
        await sending
    await publish(patient, final, qos=2)
    await wait_until(lambda: read_retained(node.port) == dict(final), what="the newest values")
    assert read_retained(patient.port, "plant/#") == dict(final)


async def test_a_stopped_secondary_serves_its_values_before_the_primary_answers(
    mosquitto: Mosquitto, nodes: Nodes
) -> None:
    """After a stop in good order and with the primary away, values are served, and the node is not ready."""
    node = nodes.secondary(DISC, link(mosquitto.port, selector("plant/#"), settings=QUICK))
    await publish(mosquitto, VALUES)
    await node.begin()
    await asyncio.to_thread(node.stop)
    assert mosquitto.process is not None
    os.kill(mosquitto.process.pid, signal.SIGSTOP)
    try:
        await asyncio.to_thread(node.start)
        assert read_retained(node.port) == dict(VALUES)
        assert not node.ready
        assert node.link_state() == "connecting"
    finally:
        os.kill(mosquitto.process.pid, signal.SIGCONT)
    with subscriber(node.port, "plant/#", qos=1) as client:
        client.wait(500)
        await node.until_ready()
        await publish(mosquitto, [("plant/0", b"new")])
        client.wait_for("plant/0", b"new")
        assert len(client.messages) == 501, "verified values are not sent again"


@pytest.mark.parametrize(("damage", "storage"), [("truncated", "disc_only"), ("overwritten", "disc")])
async def test_a_damaged_file_is_set_aside(mosquitto: Mosquitto, nodes: Nodes, damage: str, storage: str) -> None:
    """A file that is not what was written is renamed, the log says so, and a snapshot is taken."""
    node = nodes.secondary(STORAGES[storage], link(mosquitto.port, selector("plant/#"), settings=QUICK))
    await publish(mosquitto, VALUES)
    await node.begin()
    await asyncio.to_thread(node.stop)
    file = file_of(nodes)
    content = file.read_bytes()
    assert b"plant/77" in content
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    else:
        at = content.index(b"plant/77") + len(b"plant/77")
        file.write_bytes(content[: at + 28] + b"?" + content[at + 29 :])  # in the payload, which SQLite cannot check
    await node.begin()
    assert read_retained(node.port) == dict(VALUES)
    assert "file of retained values is damaged, set aside" in node.log_text()
    assert len(list(file.parent.glob("*.damaged-*"))) == 1


async def test_a_second_process_is_refused(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """Two processes cannot have one file: the second does not start, and says why."""
    links = DISC, link(mosquitto.port, selector("plant/#"), settings=QUICK)
    node = nodes.secondary(*links)
    await node.begin()
    second = Nodes(nodes.directory).secondary(*links, log=False)
    with pytest.raises(RuntimeError, match="is in use by another process"):
        await asyncio.to_thread(second.start)
    assert node.ready


async def receive(node: LiveNode, messages: int) -> None:
    """Wait until a node has received so many messages."""
    await wait_until(lambda: int(node.link_status()["received_total"]) >= messages, what=f"{messages} messages")


async def begin_patiently(node: LiveNode) -> None:
    """Start a node of several processes, and wait until it is ready."""
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=120)


def committed(node: LiveNode) -> int:
    """Return how many updates a node has committed."""
    return int(node.document("/v1/status")["retained"]["committed_total"])


async def test_disc_only_serves_what_is_not_in_memory(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """A set far larger than the cache: snapshot, search, updates, removal, expiry, audit, kill, tear-down, snapshot."""
    every = {f"plant/{number // 100}/{number}": b"%d" % number * 40 for number in range(4000)}
    await publish(mosquitto, list(every.items()))
    node = nodes.secondary(
        STORAGES["disc_only"],
        link(mosquitto.port, selector("plant/#", qos=1), settings=QUICK + "session_expiry_s = 60\n"),
    )
    await node.begin()
    assert read_retained(node.port) == every
    assert read_retained(node.port, "plant/+/1234") == {"plant/12/1234": every["plant/12/1234"]}
    with subscriber(node.port, "plant/7/#", qos=1) as client:
        client.wait(100)
        await publish(mosquitto, [("plant/7/700", b"new"), ("plant/7/701", b""), ("plant/7/x", b"added")])
        client.wait(103)
    every |= {"plant/7/700": b"new", "plant/7/x": b"added"}
    del every["plant/7/701"]

    def send_expiring() -> None:
        with publisher(mosquitto.port) as sender:
            publish_all(sender, [("plant/soon", b"x")], properties=publish_properties(MessageExpiryInterval=3))

    with subscriber(node.port, "plant/soon") as client:
        await asyncio.to_thread(send_expiring)
        client.wait_for("plant/soon", b"x")
        client.wait_for("plant/soon", b"")
    answer = await asyncio.to_thread(httpx.post, f"{node.url}/v1/links/primary/audit", trust_env=False, timeout=30)
    report = answer.raise_for_status().json()
    assert (report["checked_topics"], report["changed_topics"]) == (len(every), 0)
    await kill(node)
    await publish(mosquitto, [("plant/0/0", b"meanwhile")])
    every["plant/0/0"] = b"meanwhile"
    await node.begin()
    assert node.link_status()["epochs_total"] == 0, node.log_text()
    assert read_retained(node.port) == every
    await asyncio.to_thread(mosquitto.restart)  # it forgets the session, and every value
    left = dict(list(every.items())[:50])
    await publish(mosquitto, list(left.items()))
    await wait_until(lambda: node.ready and read_retained(node.port) == left, what="the new snapshot")
    assert node.topics() == 50


# A fanout primary: what clients publish here.


async def test_values_published_here_survive_a_kill(nodes: Nodes) -> None:
    """Whatever was acknowledged to its publisher is there after a kill; cleared values stay cleared."""
    node = nodes.primary(settings=DISC)
    await begin_patiently(node)
    every = [(f"own/{number}", b"%d" % number) for number in range(200)]

    def send() -> None:
        with publisher(node.port) as client:
            publish_all(client, every)
            publish_all(client, [("own/0", b""), ("own/1", b"new")], qos=2)

    await asyncio.to_thread(send)
    await kill(node)
    await begin_patiently(node)
    expected = dict(every[2:]) | {"own/1": b"new"}
    assert await asyncio.to_thread(read_retained, node.port, "own/#") == expected
    await asyncio.to_thread(node.stop)
    rows = read_updates(node.log_directory)
    last = [row for row in rows if row["node_epoch"] == rows[-1]["node_epoch"]]
    assert {row["topic"] for row in last} == set(expected), "reports see what the last process holds"


async def test_killed_while_clients_publish_nothing_acknowledged_is_lost(nodes: Nodes) -> None:
    """Killed in the middle of a stream: each topic has what was acknowledged last for it, or what came behind it."""
    qos = 2
    node = nodes.primary(settings=STORAGES["disc_only"])
    await begin_patiently(node)
    acknowledged: set[int] = set()
    numbers = itertools.count(1)  # which are the Packet Identifiers too
    async with await RawClient.connect(node.port, "stream") as client:
        for burst in range(3):
            for number in itertools.islice(numbers, 900):
                packet_id = client.publish(
                    b"own/%d" % (number % 600), (b"%d" % number).ljust(4000), qos=qos, retain=True
                )
                assert packet_id == number
            answers = 900 * qos  # at QoS 2 PUBREC and PUBCOMP
            with contextlib.suppress(ServerClosed, ConnectionError):
                while answers:
                    packet = await client.receive()
                    assert isinstance(packet, Ack)
                    assert packet.reason_code < 0x80
                    answers -= 1
                    if packet.type is not PacketType.PUBCOMP:
                        acknowledged.add(packet.packet_id)
                    if packet.type is PacketType.PUBREC:
                        client.send(Ack(PacketType.PUBREL, packet.packet_id))
                    if burst == 2 and len(acknowledged) == 1801 and node.process is not None:
                        node.process.send_signal(signal.SIGKILL)  # in the middle of a burst
    await kill(node)
    assert len(acknowledged) >= 1801
    await begin_patiently(node)
    found = {
        topic: int(payload) for topic, payload in (await asyncio.to_thread(read_retained, node.port, "own/#")).items()
    }
    assert [number for number in acknowledged if found.get(f"own/{number % 600}", 0) < number] == []


async def test_values_published_here_expire_while_the_node_is_down(nodes: Nodes) -> None:
    """Message Expiry Interval counts on while nobody runs; what has none gets `retained.expiry_s`."""
    node = nodes.primary(settings=DISC + "expiry_s = 1\n")
    await node.begin()

    def send() -> None:
        with publisher(node.port) as client:
            publish_all(client, [("own/soon", b"x")])
            publish_all(client, [("own/later", b"x")], properties=publish_properties(MessageExpiryInterval=1000))

    await asyncio.to_thread(send)
    await asyncio.to_thread(node.stop)
    await node.begin()
    await wait_until(lambda: read_retained(node.port, "own/#") == {"own/later": b"x"}, what="the expiry")
