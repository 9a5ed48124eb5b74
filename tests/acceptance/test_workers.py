"""A node of several processes behaves as one: sessions, order, take-over, figures, restarts, the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosedOK
from websockets.typing import Subprotocol

from bench.processes import free_port
from fanout.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Publish,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.workers.channel import HIGH_BYTES
from fanout.workers.ownership import owner_of
from tests.support.certificates import Authority, client_context
from tests.support.clients import publish_properties
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, processes_with, selector, watched
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_until

WORKERS = "workers = 2\n"
BUSY_S = 2.0
"""Time that a busy machine takes to see in a test what a node has done."""
DEADLINE_S = 60.0
"""A worker that is started takes seconds on a busy machine."""
DURABLE = Properties(session_expiry_interval=600)


def ids_of(worker: int, *, count: int, stem: str) -> list[str]:
    """Return Client Identifiers of clients that one worker serves, 0 or 1."""
    candidates = (f"{stem}-{index}" for index in range(1000))
    return [one for one in candidates if owner_of(one, 2) == worker][:count]


def workers_of(node: LiveNode) -> list[dict[str, Any]]:
    """Return what the status says about the workers."""
    found: list[dict[str, Any]] = node.document("/v1/status")["workers"]
    return found


def metric(node: LiveNode, name: str) -> float:
    """Return the value of one line of the metrics."""
    lines = node.get("/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)


async def take(client: RawClient, count: int) -> list[bytes]:
    """Return the payloads of the next messages, which are acknowledged."""
    payloads: list[bytes] = []
    for message in await client.messages(count):
        payloads.append(message.payload)
        if message.qos:
            client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
    return payloads


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """Return the `fanout primary` with two workers that tests share: each uses topics and clients of its own."""
    nodes = Nodes(tmp_path_factory.mktemp("workers"))
    node = nodes.primary(settings=WORKERS)
    try:
        node.start()
        node.wait_until_ready(deadline_s=DEADLINE_S)
        yield node
    finally:
        nodes.end()


async def test_every_worker_serves_and_each_client_gets_everything_in_order(node: LiveNode) -> None:
    """What one publishes reaches clients of all workers in its order, and the figures are those of the whole node."""
    names = ids_of(0, count=25, stem="reader") + ids_of(1, count=25, stem="reader")
    sent = [b"%d" % number for number in range(200)]
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(await RawClient.connect(node.port, name)) for name in names]
        for reader in readers:
            await reader.subscribe(b"a/#", qos=1)
        writer = await stack.enter_async_context(await RawClient.connect(node.port, "writer"))
        for payload in sent:
            writer.publish(b"a/b", payload, qos=1)
        for _ in sent:
            assert (await writer.expect(Ack)).reason_code == ReasonCode.SUCCESS
        assert all([await take(reader, len(sent)) == sent for reader in readers])

        await wait_until(
            lambda: metric(node, "fanout_server_deliveries_total") == 50 * len(sent), what="the sum of the deliveries"
        )
        status = node.document("/v1/status")
        assert [one["sessions"] >= 25 for one in status["workers"]] == [True, True]
        assert len({status["pid"], *(one["pid"] for one in status["workers"])}) == 3
        assert status["server"]["sessions"] == status["server"]["connections"] == 51
        assert status["server"]["received_total"] == len(sent)
        assert metric(node, 'fanout_worker_serving{worker="1"}') == 1


async def test_delivery_to_a_client_is_explained_whichever_worker_serves_it(node: LiveNode) -> None:
    """The hub asks the worker of the Client Identifier; one without a session has none in any."""
    for name in ids_of(0, count=1, stem="asked") + ids_of(1, count=1, stem="asked"):
        async with await RawClient.connect(node.port, name) as client:
            await client.subscribe(b"e/+")
            facts = node.document(f"/v1/explain?topic=e/1&client={name}")["facts"]["client"]
            assert (facts["connected"], facts["filters"], facts["unknown"]) == (True, ["e/+"], None)
        assert not node.document(f"/v1/explain?topic=e/1&client=no-{name}")["facts"]["client"]["session"]


async def test_a_client_identifier_is_taken_over_and_its_session_resumed(node: LiveNode) -> None:
    """Whichever worker accepts: there is one session for a Client Identifier."""
    for name in ids_of(0, count=2, stem="same") + ids_of(1, count=2, stem="same"):
        first = await RawClient.connect(node.port, name, properties=DURABLE)
        await first.subscribe(b"s/#", qos=1)
        second = await RawClient.connect(node.port, name, clean_start=False, properties=DURABLE)
        assert second.connack.session_present
        await first.expect_end(ReasonCode.SESSION_TAKEN_OVER)
        await first.close()
        await second.close()
        async with await RawClient.connect(node.port, "writer") as writer:
            await writer.expect_ack(PacketType.PUBACK, writer.publish(b"s/1", name.encode(), qos=1))
        for _ in range(3):
            third = await RawClient.connect(node.port, name, clean_start=False, properties=DURABLE)
            assert third.connack.session_present
            message = await third.expect(Publish)
            assert message.payload == name.encode()
            await third.close()
        last = await RawClient.connect(node.port, name)
        assert not last.connack.session_present
        await last.close()


async def test_an_assigned_client_identifier_is_found_again(node: LiveNode) -> None:
    """A client that sends none gets one with which it finds its session."""
    first = await RawClient.connect(node.port, properties=DURABLE)
    assigned = first.connack.properties.assigned_client_identifier
    assert assigned
    await first.close()
    async with await RawClient.connect(node.port, assigned, clean_start=False, properties=DURABLE) as again:
        assert again.connack.session_present


async def test_no_local_and_wills_hold_across_workers(node: LiveNode) -> None:
    """A client does not get its own messages, the others do; so with a Will Message."""
    (near, gone), (far,) = ids_of(0, count=2, stem="local"), ids_of(1, count=1, stem="local")
    will = Will(b"n/will", b"gone")
    async with await RawClient.connect(node.port, near) as writer, await RawClient.connect(node.port, far) as reader:
        await writer.subscribe(Subscription(b"n/#", qos=1, no_local=True))
        await reader.subscribe(b"n/#", qos=1)
        await writer.expect_ack(PacketType.PUBACK, writer.publish(b"n/1", b"mine", qos=1))
        third = await RawClient.connect(node.port, gone, will=will)
        await third.close()
        assert [one.payload for one in [await writer.expect(Publish)]] == [b"gone"]
        assert await take(reader, 2) == [b"mine", b"gone"]


async def test_clients_of_all_workers_are_shown_and_kicked(node: LiveNode) -> None:
    """In one list, in pages; whichever worker has it, a client is told 0x98 and can resume its session."""
    names = sorted([*ids_of(0, count=2, stem="shown"), *ids_of(1, count=2, stem="shown")])
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await RawClient.connect(node.port, n, properties=DURABLE)) for n in names
        ]
        for name, client in zip(names, clients, strict=True):
            await client.subscribe(f"of/{name}".encode())
        found: list[dict[str, Any]] = []
        after: str | None = "shown"
        while after is not None:
            page = await asyncio.to_thread(node.get, f"/v1/clients?limit=3&after={after}")
            document = page.json()
            assert document["missing_workers"] == []
            found += [one for one in document["clients"] if one["client_id"].startswith("shown-")]
            after = document["next"]
        assert [one["client_id"] for one in found] == names
        assert [one["filters"] for one in found] == [[f"of/{name}"] for name in names]
        assert all(one["address"].startswith("127.0.0.1:") for one in found)
        for name, client in zip(names, clients, strict=True):
            answer = await asyncio.to_thread(
                httpx.post, f"{node.url}/v1/clients/kick", json={"client_id": name}, timeout=DEADLINE_S
            )
            assert answer.json()["session"] == "kept"
            await client.expect_end(ReasonCode.ADMINISTRATIVE_ACTION)


async def test_a_long_connect_goes_to_its_worker_too(node: LiveNode) -> None:
    """One that does not fit beside a descriptor, and one that comes in pieces.

    Each has a topic of its own: what one worker delivered may come later to another, and so to who subscribes there.
    """
    for name in ids_of(0, count=2, stem="long") + ids_of(1, count=2, stem="long"):
        topic = b"l/" + name.encode()
        async with await RawClient.connect(node.port, name, will=Will(b"w", b"x" * 60_000)) as client:
            assert client.connack.reason_code == ReasonCode.SUCCESS
            await client.subscribe(topic, qos=1)
            client.publish(topic, name.encode() * 10_000)
            assert await take(client, 1) == [name.encode() * 10_000]


async def test_shared_subscriptions_are_refused(node: LiveNode) -> None:
    """CONNACK says so, and SUBACK has 0x9E, while other filters of the packet are granted."""
    async with await RawClient.connect(node.port, "c") as client:
        assert client.connack.properties.shared_subscription_available == 0
        suback = await client.subscribe(b"$share/group/a/#", b"a/#")
        assert suback.reason_codes == (ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, 0)


async def test_a_killed_worker_is_started_again_and_nobody_else_notices(nodes: Nodes) -> None:
    """Clients of the other worker get every message once; the new worker has all values; the node stays ready."""
    node = nodes.primary(settings=WORKERS)
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    (lost,), (kept, writer_id) = ids_of(0, count=1, stem="k"), ids_of(1, count=2, stem="k")
    async with (
        await RawClient.connect(node.port, kept) as reader,
        await RawClient.connect(node.port, writer_id) as writer,
    ):
        await reader.subscribe(b"k/#", qos=1)
        for number in range(100):
            writer.publish(b"k/%d" % number, b"before", qos=1, retain=True)
        assert await take(reader, 100) == [b"before"] * 100
        for _ in range(100):
            await writer.expect(Ack)
        victim = await RawClient.connect(node.port, lost)
        await wait_until(lambda: sum(one["connections"] for one in workers_of(node)) == 3, what="the reports")
        before = workers_of(node)
        deliveries = metric(node, "fanout_server_deliveries_total")
        with watched(node) as answers:
            os.kill(before[0]["pid"], signal.SIGKILL)
            with pytest.raises(ServerClosed):
                await victim.receive()
            await victim.close()
            # It waits until the worker is there again, and then has what was published meanwhile.
            connecting = asyncio.create_task(connect_again(node.port, lost))
            writer.publish(b"k/new", b"meanwhile", qos=1, retain=True)
            assert await take(reader, 1) == [b"meanwhile"]
            assert (await writer.expect(Ack)).reason_code == ReasonCode.SUCCESS
            async with await connecting as back:
                await back.subscribe(b"k/#")
                assert len(await back.messages_until_ping()) == 101
            await wait_until(lambda: workers_of(node)[0]["state"] == "serving", DEADLINE_S, what="the new worker")
        assert {answer["ready"] for answer in answers} == {True}
        after = workers_of(node)
        assert after[0]["pid"] != before[0]["pid"]
        assert after[1]["pid"] == before[1]["pid"]
        assert [one["restarts_total"] for one in after] == [1, 0]
        await wait_until(
            lambda: metric(node, "fanout_server_deliveries_total") >= deliveries + 102, what="totals that only grow"
        )


async def test_a_stopped_worker_is_noticed_and_its_new_clients_are_served_elsewhere(nodes: Nodes) -> None:
    """Within 3 s, in readiness, status and log; its come-back too, and then its clients are its own again."""
    node = nodes.primary(settings=WORKERS)
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    early, late = ids_of(0, count=2, stem="s")
    (other,) = ids_of(1, count=1, stem="s")
    will = Will(b"s/will", b"gone", 0, False)
    async with await RawClient.connect(node.port, other) as writer:
        await writer.subscribe(b"s/#")
        stopped = workers_of(node)[0]["pid"]
        stopped_at = time.monotonic()
        os.kill(stopped, signal.SIGSTOP)
        try:
            waiting = await RawClient.open(node.port, deadline_s=DEADLINE_S)  # it waits in the queue of that worker
            waiting.send(Connect(early, will=will))
            await wait_until(lambda: not node.ready, 30, what="the stopped worker being noticed")
            assert time.monotonic() - stopped_at < 3 + BUSY_S
            assert "worker 1 says nothing, and its clients get nothing" in node.probe()[1]["reasons"]
            assert [one["state"] for one in workers_of(node)] == ["silent", "serving"]
            assert metric(node, 'fanout_worker_serving{worker="1"}') == 0
            assert (await waiting.expect(Connack)).reason_code == ReasonCode.SUCCESS
            second = await RawClient.connect(node.port, late, properties=DURABLE)
            for client in (waiting, second):
                await client.subscribe(b"s/#")
            writer.publish(b"s/1", b"meanwhile")
            assert [await take(client, 1) for client in (waiting, second)] == [[b"meanwhile"]] * 2
        finally:
            os.kill(stopped, signal.SIGCONT)
        await node.until_ready(deadline_s=DEADLINE_S)
        for client in (waiting, second):
            assert (await client.expect(Disconnect)).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
            await client.close()
        async with await connect_again(node.port, late) as back:
            await wait_until(
                lambda: workers_of(node)[0]["sessions"] == 1,
                what=lambda: f"its own worker serving it {workers_of(node)}",
            )
            await back.subscribe(b"s/#")
            writer.publish(b"s/2", b"after")
            assert await take(back, 1) == [b"after"]
        # Its own message that was published in between, and no Will Message: the clients only moved.
        assert await take(writer, 2) == [b"meanwhile", b"after"]
    assert [one["restarts_total"] for one in workers_of(node)] == [0, 0]
    (noticed,) = (line for line in node.log_text().splitlines() if "worker says nothing" in line)
    assert f"pid={stopped}" in noticed
    (returned,) = (line for line in node.log_text().splitlines() if "worker runs again" in line)
    assert "silent_s=" in returned


async def connect_again(port: int, client_id: str) -> RawClient:
    """Connect until the server lets the client in."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            client = await RawClient.open(port, deadline_s=DEADLINE_S)
            client.send(Connect(client_id))
            try:
                if (await client.expect(Connack)).reason_code == ReasonCode.SUCCESS:
                    return client
            except ServerClosed:
                pass
            await client.close()


async def test_sources_wait_for_a_worker_that_does_not_read(nodes: Nodes) -> None:
    """The hub keeps a bounded part of the batches, publishers wait, and in the end everybody has everything."""
    node = nodes.primary(settings=WORKERS)
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    (slow,), (quick, name) = ids_of(0, count=1, stem="p"), ids_of(1, count=2, stem="p")
    sent = [b"%d" % number + bytes(500_000) for number in range(100)]
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(await RawClient.connect(node.port, one)) for one in (slow, quick)]
        for reader in readers:
            await reader.subscribe(b"p", qos=1)
        writer = await stack.enter_async_context(await RawClient.connect(node.port, name))
        stopped = workers_of(node)[0]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            for payload in sent:
                writer.publish(b"p", payload, qos=1)
            await wait_until(lambda: workers_of(node)[0]["unread_bytes"] > HIGH_BYTES, what="the mark being passed")
            seen: list[int] = []

            def stands_still() -> bool:
                seen.append(workers_of(node)[0]["unread_bytes"])
                return len(seen) >= 10 and len(set(seen[-10:])) == 1

            await wait_until(stands_still, what="the hub taking no more")
            assert HIGH_BYTES < seen[-1] < 1.5 * HIGH_BYTES < sum(map(len, sent))
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert [await take(reader, len(sent)) for reader in readers] == [sent, sent]
        for _ in sent:
            assert (await writer.expect(Ack)).reason_code == ReasonCode.SUCCESS


async def test_stopping_ends_every_process(nodes: Nodes) -> None:
    """Clients of all workers are told, and no process is left; nor is one when the first is killed."""
    node = nodes.primary(settings=WORKERS)
    for how in (signal.SIGTERM, signal.SIGKILL):
        await asyncio.to_thread(node.start)
        await node.until_ready(deadline_s=DEADLINE_S)
        pids = [one["pid"] for one in workers_of(node)]
        clients = [await RawClient.connect(node.port, *ids_of(worker, count=1, stem="end")) for worker in (0, 1)]
        assert node.process is not None
        node.process.send_signal(how)
        for client in clients:
            await client.expect_end(0x8B)
            await client.close()
        await wait_until(lambda: not node.running, what="the end of the hub")
        await wait_until(partial(all_gone, pids), what="the end of the workers")
        assert processes_with(node.command[-1]) == []
        node.process = None
    assert "node stopped" in node.log_text()


def all_gone(pids: list[int]) -> bool:
    """Return whether none of these processes is left."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_access_is_reloaded_in_every_worker(nodes: Nodes) -> None:
    """SIGHUP reaches all of them: subscriptions that are not allowed any more go, and connections stay."""
    node = nodes.primary(settings=WORKERS)
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    path = Path(node.command[-1])
    names = [*ids_of(0, count=1, stem="r"), *ids_of(1, count=1, stem="r")]
    clients = [await RawClient.connect(node.port, name) for name in names]
    path.write_text(path.read_text() + '[[access.rule]]\nfilter = "open/#"\nallow = "all"\n')
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    for client in clients:
        async with asyncio.timeout(DEADLINE_S):
            while (await client.subscribe(b"closed/#")).reason_codes[0] != ReasonCode.NOT_AUTHORIZED:
                await asyncio.sleep(0.05)
        assert (await client.subscribe(b"open/#")).reason_codes == (0,)
        await client.close()


@pytest.mark.mosquitto
async def test_a_secondary_serves_its_replica_from_every_worker(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """Snapshot, live updates and forwarded writes are the same for the clients of all workers."""
    load_retained(mosquitto.port, ((f"plant/{number}", b"%d" % number) for number in range(5000)))
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), selector("set/#", writes="forward"), settings=QUICK), settings=WORKERS
    )
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    names = [*ids_of(0, count=1, stem="s"), *ids_of(1, count=1, stem="s")]
    clients = [await RawClient.connect(node.port, name) for name in names]
    for client in clients:
        await client.subscribe(b"plant/#", b"set/#")
        assert len(await client.messages_until_ping()) == 5000
    with publisher(mosquitto.port) as primary:
        publish_all(primary, [(f"plant/{number % 7}", b"%d" % number) for number in range(1000)], qos=1)
    for client in clients:
        assert [int(message.payload) for message in await client.messages(1000)] == list(range(1000))
    assert (await refused(clients[0], b"plant/1")).reason_code == ReasonCode.NOT_AUTHORIZED
    for client in clients:
        packet_id = client.publish(b"set/1", b"on", qos=1)
        seen = sorted([type(await client.receive()), type(await client.receive())], key=str)
        assert [kind.__name__ for kind in seen] == ["Ack", "Publish"], packet_id
        other = clients[1 - clients.index(client)]
        assert (await other.expect(Publish)).payload == b"on"
    for client in clients:
        await client.close()


async def test_workers_keep_what_the_primary_keeps_for_longer_than_it_said(
    mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes
) -> None:
    """A copy of the same value without an expiry is not delivered again, and stays in every worker."""
    settings = f'{QUICK}on_session_loss = "serve_stale"\n'
    node = nodes.secondary(link(proxy.port, selector("plant/#"), settings=settings), settings=WORKERS)

    def publish(*topics: str, **properties: int) -> None:
        with publisher(mosquitto.port) as client:
            values = ((topic, b"same") for topic in topics)
            publish_all(client, values, properties=publish_properties(**properties))

    publish("plant/kept", "plant/gone", MessageExpiryInterval=5)
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    proxy.accepting = False
    proxy.cut()
    await wait_until(lambda: not node.ready)
    with publisher(mosquitto.port, client_id="fanout-edge-1-primary"):
        pass  # ends the session: what is published now is not sent to it
    publish("plant/kept")
    proxy.accepting = True
    await node.until_ready(deadline_s=DEADLINE_S)

    async def held(name: str) -> list[bytes]:
        async with await RawClient.connect(node.port, name) as client:
            await client.subscribe(b"plant/#")
            return [message.topic for message in await client.messages_until_ping()]

    for name in (*ids_of(0, count=1, stem="k"), *ids_of(1, count=1, stem="k")):
        async with asyncio.timeout(DEADLINE_S):
            while b"plant/gone" in (found := await held(name)):
                pass
        assert found == [b"plant/kept"]


async def refused(client: RawClient, topic: bytes) -> Ack:
    """Publish what is not allowed, and return the answer."""
    client.publish(topic, b"x", qos=1)
    return await client.expect(Ack)


async def test_tls_websocket_and_unix_clients_are_served_by_their_worker(nodes: Nodes, tmp_path: Path) -> None:
    """Relayed or handed over: large messages both ways, take-over from another listener, and a clean end."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    context = client_context(authority)
    tls_port, web_port, path = free_port(), free_port(), tmp_path / "mqtt.sock"
    files = f'certificate_file = "{certificate}"\nkey_file = "{key}"\n'
    node = nodes.primary(
        settings=f'{WORKERS}[[server.listener]]\naddress = "mqtts://127.0.0.1:{tls_port}"\n{files}'
        f'[[server.listener]]\naddress = "wss://127.0.0.1:{web_port}"\n{files}'
        f'[[server.listener]]\naddress = "unix://{path}"\n'
    )
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    large = bytes(range(256)) * 3000
    for name in ids_of(0, count=2, stem="t") + ids_of(1, count=2, stem="t"):
        for open_streams in (
            partial(asyncio.open_connection, "127.0.0.1", tls_port, ssl=context),
            partial(asyncio.open_unix_connection, path),
        ):
            async with RawClient(*await open_streams(), version=5) as client:
                client.send(Connect(name))
                await client.expect(Connack)
                await client.subscribe(b"t/#", qos=1)
                await echo(client, b"t/1", large)
                # Until the PUBACK was read: a connection that is closed before may lose what is on its way back.
                assert await client.messages_until_ping() == []
                async with await RawClient.connect(node.port, name):
                    await client.expect_end(ReasonCode.SESSION_TAKEN_OVER)
        async with websocket_connect(
            f"wss://127.0.0.1:{web_port}/mqtt", ssl=context, subprotocols=[Subprotocol("mqtt")], max_size=None
        ) as web:
            await web.send(encode(Connect(name), version=5) + encode(Subscribe(1, (Subscription(b"w/#"),)), version=5))
            received = b""
            while len(received) < 5 or b"\x90\x04\x00\x01\x00\x00" not in received:
                received += await received_from(web)
            await web.send(encode(Publish(b"w/1", large, 0, False, False, None), version=5))
            received = b""
            while large not in received:
                received += await received_from(web)
            async with await RawClient.connect(node.port, name):
                assert encode(Disconnect(ReasonCode.SESSION_TAKEN_OVER), version=5) in await received_from(web)
                with pytest.raises(ConnectionClosedOK):
                    await received_from(web)
    await wait_until(lambda: sum(one["connections"] for one in workers_of(node)) == 0, what="nobody being left")
    assert node.document("/v1/status")["server"]["connections_refused_total"] == 0


async def received_from(web: ClientConnection) -> bytes:
    """Return the next binary frame of a WebSocket."""
    async with asyncio.timeout(DEADLINE_S):
        data = await web.recv()
    assert isinstance(data, bytes)
    return data


async def echo(client: RawClient, topic: bytes, payload: bytes) -> None:
    """Publish to oneself at QoS 1, and take message and acknowledgement, whichever comes first."""
    client.publish(topic, payload, qos=1)
    packets = [await client.receive(), await client.receive()]
    (message,) = [one for one in packets if isinstance(one, Publish)]
    assert message.payload == payload
    client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
    assert any(isinstance(one, Ack) for one in packets)


@pytest.mark.mosquitto
async def test_workers_hold_no_more_than_the_limits_of_a_link(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """A value that has no place is delivered, and found in no worker later; nor is the one before it."""
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=f"{QUICK}topics_max = 3\n"), settings=WORKERS
    )
    await asyncio.to_thread(node.start)
    await node.until_ready(deadline_s=DEADLINE_S)
    names = [*ids_of(0, count=1, stem="m"), *ids_of(1, count=1, stem="m")]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await RawClient.connect(node.port, name)) for name in names]
        for client in clients:
            await client.subscribe(b"plant/#")
        load_retained(mosquitto.port, ((f"plant/{number}", b"x") for number in range(5)))
        for client in clients:
            assert len(await client.messages(5)) == 5
            await client.subscribe(b"plant/#")
            assert {one.topic for one in await client.messages_until_ping()} == {b"plant/0", b"plant/1", b"plant/2"}


@pytest.mark.mosquitto
async def test_what_links_ask_of_clients_is_asked_of_all_workers(tmp_path: Path, nodes: Nodes) -> None:
    """Missing topics are announced for clients of both, and clients of both are sent away before a tear-down.

    Who has unsubscribed at either of them while the link was not ready waits for nothing.
    """
    with Mosquitto(tmp_path, name="own") as mosquitto:
        load_retained(mosquitto.port, [("plant/held", b"x")])
        settings = f"{QUICK}announce_missing = true\ndisconnect_clients = true\n"
        node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=settings), settings=WORKERS)
        names = [*ids_of(0, count=1, stem="q"), *ids_of(1, count=1, stem="q")]
        async with AsyncExitStack() as stack:
            watcher = await stack.enter_async_context(await RawClient.connect(mosquitto.port, "watcher"))
            await watcher.subscribe(b"fanout/control/missing")
            assert mosquitto.process is not None
            os.kill(mosquitto.process.pid, signal.SIGSTOP)
            stack.callback(lambda: os.kill(mosquitto.process.pid, signal.SIGCONT) if mosquitto.process else None)
            await asyncio.to_thread(node.start)
            await wait_until(lambda: all(one["state"] == "serving" for one in workers_of(node)), DEADLINE_S)
            clients = [await stack.enter_async_context(await RawClient.connect(node.port, name)) for name in names]
            for client, topic in zip(clients, (b"plant/a", b"plant/b"), strict=True):
                await client.subscribe(topic, b"plant/left", b"plant/left/by/" + topic)
                await client.unsubscribe(b"plant/left", b"plant/left/by/" + topic)
            os.kill(mosquitto.process.pid, signal.SIGCONT)
            async with asyncio.timeout(DEADLINE_S):
                told = [json.loads((await watcher.expect(Publish)).payload)["filter"] for _ in clients]
            assert sorted(told) == ["plant/a", "plant/b"]
            await wait_until(lambda: not node.link_status()["missing_pending"], DEADLINE_S)
            assert node.link_status()["missing_announced_total"] == 2
            await asyncio.to_thread(mosquitto.restart)
            for client in clients:
                await client.expect_end(ReasonCode.USE_ANOTHER_SERVER)
