"""Every limit of the server is reached over a real socket: what the client is told, and what is counted.

Those of retained messages belong to the node (`tests/acceptance/test_limits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import logging
import random
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.api.metrics import METRICS
from fanout.config import Address, ListenerConfig, ServerConfig
from fanout.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.runtime.logging_setup import configure_logging
from fanout.server.base.counters import Limit
from fanout.server.client import session_lifecycle
from fanout.server.client.connection import ClientConnection
from tests.server.accept.test_admission import V1, V2, behind_proxy, closed, sent
from tests.server.accept.test_websocket import LISTEN as WEBSOCKET
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.certificates import Authority, client_context
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)
LIMITS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"
CLIENT_HELLO = bytes.fromhex("1603010100010000fc0303")
"""How a TLS handshake begins; a hundred times more would follow."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def reached(node: NodeInMemory, limit: Limit) -> int:
    """Return how often a limit was reached, as the metrics tell it."""
    return int(node.server.figures()["limits_reached_total"][limit.value])


async def open_from(node: NodeInMemory, host: str) -> Streams:
    """Open a connection from another address of this machine."""
    return await asyncio.open_connection("127.0.0.1", node.port, local_addr=(host, 0))


async def connect_from(node: NodeInMemory, host: str, *, version: int = 5, header: bytes = b"") -> RawClient:
    """Return a client at another address of this machine, behind a load balancer if it has a header."""
    client = RawClient(*await open_from(node, host), version=version)
    client.send_bytes(header + encode(Connect(""), version=version))
    client.connack = await client.expect(Connack)
    return client


def header_for(host: str) -> bytes:
    """Return the PROXY header of a client at `host`."""
    family, to = ("TCP6", "2001:db8::1") if ":" in host else ("TCP4", "10.0.0.1")
    return f"PROXY {family} {host} {to} 56324 1883\r\n".encode()


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Authority, dict[str, object]]:
    """Return an authority, and the settings of a node with one TLS listener."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    listener = ListenerConfig(address=Address("mqtts", "127.0.0.1", 0), certificate_file=certificate, key_file=key)
    return authority, {"listen": (), "listener_tables": (listener,)}


# Connections.


async def test_connections_max(start_node: StartNode) -> None:
    """One too many is closed before anything is read; later there is room again."""
    node = await start_node(connections_max=2)
    async with await RawClient.connect(node.port), await RawClient.connect(node.port, version=4):
        await closed(*await asyncio.open_connection("127.0.0.1", node.port))
        assert (reached(node, Limit.CONNECTIONS), node.server.figures()["connections"]) == (1, 2)
        assert node.server.figures()["connections_refused_total"] == 1
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    async with await RawClient.connect(node.port) as client:
        assert client.connack.reason_code == 0


async def test_connections_per_address_max(start_node: StartNode) -> None:
    """One too many from an address is closed; other addresses are served, and so is this one when there is room."""
    node = await start_node(connections_per_address_max=2)
    first, second = await RawClient.connect(node.port), await RawClient.connect(node.port, version=4)
    await closed(*await open_from(node, "127.0.0.1"))
    async with await connect_from(node, "127.0.0.2") as other:
        assert other.connack.reason_code == 0
    assert reached(node, Limit.CONNECTIONS_PER_ADDRESS) == 1
    await first.close()
    await wait_until(lambda: node.server.figures()["connections"] == 1)
    async with second, await RawClient.connect(node.port) as again:
        assert again.connack.reason_code == 0
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert node.server._slots.origins == 0


async def test_connections_per_address_max_behind_a_load_balancer(start_node: StartNode) -> None:
    """The address that the header tells counts, not the load balancer's; of IPv6 it is the network."""
    node = await start_node(**behind_proxy(), connections_per_address_max=1)
    async with contextlib.AsyncExitStack() as stack:
        for host in ("192.0.2.7", "192.0.2.8", "2001:db8::7", "2001:db8:0:1::7"):
            client = await connect_from(node, "127.0.0.1", header=header_for(host))
            assert (await stack.enter_async_context(client)).connack.reason_code == 0
        for count, host in enumerate(("192.0.2.7", "::ffff:192.0.2.8", "2001:db8::8"), start=1):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(header_for(host) + encode(Connect(""), version=5))
            await closed(reader, writer)
            assert reached(node, Limit.CONNECTIONS_PER_ADDRESS) == count
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert node.server._slots.origins == 0


async def test_unix_sockets_have_no_address(start_node: StartNode, tmp_path: Path) -> None:
    """The limit of an address does not hold for them, that of all connections does."""
    path = str(tmp_path / "mqtt.sock")
    node = await start_node(listen=(Address("unix", path, 0),), connections_per_address_max=1, connections_max=2)
    streams = [await asyncio.open_unix_connection(path) for _ in range(3)]
    await closed(*streams.pop())
    assert (reached(node, Limit.CONNECTIONS), reached(node, Limit.CONNECTIONS_PER_ADDRESS)) == (1, 0)
    for _, writer in streams:
        writer.close()


@pytest.mark.parametrize(("version", "code"), [(5, ReasonCode.CONNECTION_RATE_EXCEEDED), (4, 3)])
async def test_connection_rate_max(start_node: StartNode, version: int, code: int) -> None:
    """Behind the burst a CONNECT is refused until time has passed; clients that are connected do not notice."""
    node = await start_node(connection_rate_max=2, connection_burst_max=3)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await RawClient.connect(node.port, version=version)) for _ in range(5)
        ]
        assert [client.connack.reason_code for client in clients] == [0, 0, 0, code, code]
        for refused in clients[3:]:
            await refused.expect_end()
        assert reached(node, Limit.CONNECTION_RATE) == 2
        node.clock.advance(0.5)
        async with await RawClient.connect(node.port, version=version) as client:
            assert client.connack.reason_code == 0
        async with await RawClient.connect(node.port, version=version) as client:
            assert client.connack.reason_code == code
        assert await clients[0].messages_until_ping() == []
    assert node.server.figures()["ended_total"] == {"connection_rate_exceeded": 3}
    assert node.server.figures()["connections_refused_total"] == 3


@pytest.mark.parametrize("proxied", [False, True])
async def test_connection_rate_max_over_tls(
    start_node: StartNode, tls: tuple[Authority, dict[str, object]], tmp_path: Path, proxied: bool
) -> None:
    """A TLS handshake is not begun, since that is what would cost."""
    settings = tls[1]
    if proxied:
        settings = behind_proxy("mqtts", certificate_file=tmp_path / "server.pem", key_file=tmp_path / "server.key")
    node = await start_node(**settings, connection_burst_max=1)
    _, writer = await asyncio.open_connection("127.0.0.1", node.port)
    await wait_until(lambda: node.server.figures()["connections"] == 1)
    await closed(*await asyncio.open_connection("127.0.0.1", node.port))
    figures = node.server.figures()
    assert (reached(node, Limit.CONNECTION_RATE), figures["connections"], figures["connections_refused_total"]) == (
        1,
        1,
        1,
    )
    writer.transport.abort()


# The way in.


async def trickle(node: NodeInMemory, data: bytes, *, count: int = 1) -> list[Streams]:
    """Open connections that send a little and then wait; return them when the server has what was sent.

    A ClientHello that is not whole is not read.
    """
    streams = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(count)]
    await wait_until(lambda: node.server.figures()["connections"] == count)
    for _, writer in streams:
        if data == CLIENT_HELLO:
            writer.write(data)
            await writer.drain()
        else:
            await sent(node, writer, data)
    return streams


UPGRADE_WHOLE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
UPGRADE = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: webs"


@pytest.mark.parametrize("stage", ["nothing", "connect", "proxy", "proxy-connect", "tls", "proxy-tls", "websocket"])
async def test_connect_timeout_s(
    start_node: StartNode, tls: tuple[Authority, dict[str, object]], tmp_path: Path, stage: str
) -> None:
    """Whoever is slow on the way to CONNECT is cut off in time, wherever; one that is through stays."""
    files = {"certificate_file": tmp_path / "server.pem", "key_file": tmp_path / "server.key"}
    settings, data = {
        "nothing": ({}, b""),
        "connect": ({}, encode(Connect("client"), version=5)[:-2]),
        "proxy": (behind_proxy(), V1[:20]),
        "proxy-connect": (behind_proxy(), V1 + b"\x10"),
        "tls": (tls[1], CLIENT_HELLO),
        "proxy-tls": (behind_proxy("mqtts", **files), V1 + CLIENT_HELLO),
        "websocket": ({"listen": WEBSOCKET}, UPGRADE),
    }[stage]
    node = await start_node(**settings)  # type: ignore[arg-type]  # of what kinds its settings are does not matter here
    streams = await trickle(node, data, count=3)
    await node.pass_time(2.5)
    for _, writer in streams:  # more bytes win no time
        if stage == "tls":
            writer.write(data[-1:])
        else:
            await sent(node, writer, data[-1:])
    await node.pass_time(2.4)
    assert node.server.figures()["connections"] == 3
    await node.pass_time(0.2)
    for reader, writer in streams:
        await closed(reader, writer)
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert reached(node, Limit.CONNECT_TIMEOUT) == node.server.figures()["connections_refused_total"] == 3
    assert sum(node.server.figures()["entry_faults_total"].values()) == 0
    assert node.server._listeners._pending == {}


async def test_handshakes_of_tls_hold_a_place(start_node: StartNode, tls: tuple[Authority, dict[str, object]]) -> None:
    """They count as connections, in total and from their address, until they end."""
    authority, settings = tls
    node = await start_node(**settings, connections_max=2, connections_per_address_max=1)
    streams = await trickle(node, CLIENT_HELLO)
    await closed(*await open_from(node, "127.0.0.1"))
    streams.append(await open_from(node, "127.0.0.2"))
    await wait_until(lambda: node.server.figures()["connections"] == 2)
    await closed(*await open_from(node, "127.0.0.3"))
    assert (reached(node, Limit.CONNECTIONS), reached(node, Limit.CONNECTIONS_PER_ADDRESS)) == (1, 1)
    for _, writer in streams:
        writer.transport.abort()
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert node.server.figures()["entry_faults_total"]["tls"] == 2
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=client_context(authority))
    async with RawClient(reader, writer, version=5) as client:
        client.send(Connect("c"))
        assert (await client.expect(Connack)).reason_code == 0
        assert node.server.figures()["connections"] == 1


async def test_stop_ends_handshakes(start_node: StartNode, tls: tuple[Authority, dict[str, object]]) -> None:
    """None of them holds up a stop, nor is left behind."""
    node = await start_node(**tls[1])
    streams = await trickle(node, CLIENT_HELLO, count=2)
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == "tls-handshake"]
    await node.server.stop(deadline_s=0.1)
    for reader, writer in streams:
        await closed(reader, writer)
    await wait_until(lambda: all(task.done() for task in tasks))
    assert (len(tasks), node.server.figures()["connections"]) == (2, 0)


@pytest.mark.parametrize("proxied", [False, True])
async def test_failed_handshakes_of_tls_are_counted(
    start_node: StartNode, tls: tuple[Authority, dict[str, object]], tmp_path: Path, proxied: bool
) -> None:
    """Rubbish in place of TLS, and a client that does not trust the certificate."""
    settings, header = tls[1], b""
    if proxied:
        files = {"certificate_file": tmp_path / "server.pem", "key_file": tmp_path / "server.key"}
        settings, header = behind_proxy("mqtts", **files), V1
    node = await start_node(**settings)
    for data in (encode(Connect("c"), version=5), b"GET / HTTP/1.1\r\n\r\n", CLIENT_HELLO + b"\0" * 500):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(header + data)
        await closed(reader, writer)
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    figures = node.server.figures()
    assert (
        figures["entry_faults_total"]["tls"],
        figures["connections_opened_total"],
        figures["connections_refused_total"],
    ) == (
        3,
        3,
        3,
    )


async def test_proxy_headers_that_are_wrong_are_counted(start_node: StartNode) -> None:
    """An invalid one, and one that is cut off by its sender."""
    node = await start_node(**behind_proxy())
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(b"PROXY NONSENSE\r\n")
    await closed(reader, writer)
    _, writer = (await trickle(node, V1[:20]))[0]
    writer.close()
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert node.server.figures()["entry_faults_total"] == {"proxy_header": 2, "tls": 0, "websocket": 0}


@pytest.mark.parametrize("listener", ["tls", "proxy", "proxy-tls"])
async def test_health_checks_are_no_warning(
    start_node: StartNode, tls: tuple[Authority, dict[str, object]], tmp_path: Path, listener: str
) -> None:
    """Who only connects and leaves is counted, and told at the level DEBUG."""
    files = {"certificate_file": tmp_path / "server.pem", "key_file": tmp_path / "server.key"}
    settings = {"tls": tls[1], "proxy": behind_proxy(), "proxy-tls": behind_proxy("mqtts", **files)}[listener]
    node = await start_node(**settings)
    with capture_logs() as lines:
        _, writer = await asyncio.open_connection("127.0.0.1", node.port)
        if listener == "proxy-tls":
            writer.write(b"PROXY UNKNOWN\r\n")
        writer.close()
        await wait_until(lambda: node.server.figures()["connections_refused_total"] == 1)
    layer = "proxy_header" if listener == "proxy" else "tls"
    assert [(line["log_level"], line["reason"]) for line in lines] == [("debug", f"{layer}_failed")]
    assert node.server.figures()["entry_faults_total"][layer] == 1


# What comes before a client is admitted.

HALF_OPEN = encode(Connect("half-open", username="u", password=b"x" * 59_000), version=5)[:-1]
"""A CONNECT that never ends, of 60 KB."""


async def half_open(node: NodeInMemory, host: str, data: bytes = HALF_OPEN) -> Streams:
    """Send a part of a CONNECT from an address; return when the server has read it."""
    reader, writer = await open_from(node, host)
    await sent(node, writer, data)
    return reader, writer


def has_ended(streams: Streams) -> bool:
    """Return whether the server has closed a connection."""
    return streams[0].at_eof() or streams[0].exception() is not None


async def test_unauthenticated_bytes_per_address_max(start_node: StartNode) -> None:
    """An address that exceeds its budget loses its largest connections; its small ones and other addresses stay."""
    node = await start_node(unauthenticated_bytes_per_address_max=200_000)
    small = await half_open(node, "127.0.0.2", HALF_OPEN[:30_000])
    other = await half_open(node, "127.0.0.3")
    large = [await half_open(node, "127.0.0.2") for _ in range(2)]
    assert reached(node, Limit.UNAUTHENTICATED_BYTES_PER_ADDRESS) == 0
    large.append(await half_open(node, "127.0.0.2"))
    await wait_until(lambda: node.server.figures()["connections"] < 5)
    await wait_until(lambda: sum(map(has_ended, large)) == 1, what="the end of a large one")
    assert [has_ended(small), has_ended(other)] == [False, False]
    async with await connect_from(node, "127.0.0.2") as client:
        assert client.connack.reason_code == 0
    assert (reached(node, Limit.UNAUTHENTICATED_BYTES_PER_ADDRESS), reached(node, Limit.UNAUTHENTICATED_BYTES)) == (
        1,
        0,
    )
    for _, writer in (small, other, *large):
        writer.transport.abort()


@pytest.mark.parametrize("websocket", [False, True])
async def test_unauthenticated_bytes_max(start_node: StartNode, websocket: bool) -> None:
    """All addresses share a budget: the largest go, ordinary clients get in, and what is held stays below it."""
    settings = {"listen": WEBSOCKET} if websocket else {}
    node = await start_node(unauthenticated_bytes_max=300_000, **settings)
    data = HALF_OPEN
    if websocket:  # one frame that does not end
        data = UPGRADE_WHOLE + b"\x82\xff" + (300_000).to_bytes(8, "big") + bytes(4) + HALF_OPEN
    streams = [await half_open(node, f"127.0.0.{2 + number % 4}", data) for number in range(20)]
    held = node.server.figures()["connections"]
    assert held <= 5
    assert reached(node, Limit.UNAUTHENTICATED_BYTES) == 20 - held
    if not websocket:
        async with await connect_from(node, "127.0.0.2") as client:
            assert client.connack.reason_code == 0
    for _, writer in streams:
        writer.transport.abort()
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert node.server._early_bytes.total == 0


async def test_bytes_of_admitted_clients_are_no_unauthenticated_ones(start_node: StartNode) -> None:
    """Neither a client that is connected nor one that has gone counts."""
    node = await start_node(unauthenticated_bytes_per_address_max=100_000)
    will = Will(b"t", b"x" * 60_000)
    for _ in range(3):
        async with await RawClient.open(node.port) as client:
            client.send(Connect("c", will=will))
            assert (await client.expect(Connack)).reason_code == 0
            client.publish(b"t", b"x" * 200_000)
            assert await client.messages_until_ping() == []
    assert reached(node, Limit.UNAUTHENTICATED_BYTES_PER_ADDRESS) == 0


# What one client may have.


def many_user_properties(count: int) -> Properties:
    """Return User Properties that are as small as can be."""
    return Properties(user_property=(("", ""),) * count)


@pytest.mark.parametrize(
    "packet",
    [
        Publish(b"t", b"", properties=many_user_properties(21)),
        Publish(b"t", b"", qos=2, packet_id=1, properties=many_user_properties(200_000)),
        Subscribe(1, (Subscription(b"t"),), many_user_properties(21)),
        Unsubscribe(1, (b"t",), many_user_properties(21)),
        Ack(PacketType.PUBACK, 1, 0, many_user_properties(21)),
        Ack(PacketType.PUBREL, 1, 0, many_user_properties(21)),
        Disconnect(0, many_user_properties(21)),
    ],
    ids=lambda packet: type(packet).__name__,
)
async def test_user_properties_max(start_node: StartNode, packet: Packet) -> None:
    """As many as are allowed are taken, in every packet; one more ends the connection."""
    node = await start_node(user_properties_max=20)
    allowed = replace(packet, properties=many_user_properties(20))  # type: ignore[arg-type]  # each of these has them
    async with await RawClient.connect(node.port) as client:
        if not isinstance(packet, Disconnect):
            client.send(allowed, Pingreq())
            while not isinstance(await client.receive(), Pingresp):
                pass
        client.send(packet)
        await client.expect_end(ReasonCode.QUOTA_EXCEEDED)
    assert reached(node, Limit.USER_PROPERTIES) == 1


@pytest.mark.parametrize("where", ["connect", "will"])
async def test_user_properties_max_of_connect(start_node: StartNode, where: str) -> None:
    """CONNECT and its Will count for themselves."""
    node = await start_node(user_properties_max=20)
    for count, code in ((20, 0), (21, ReasonCode.QUOTA_EXCEEDED)):
        of_will = Will(b"t", b"", properties=many_user_properties(count if where == "will" else 20))
        async with await RawClient.open(node.port) as client:
            client.send(
                Connect("c", will=of_will, properties=many_user_properties(count if where == "connect" else 20))
            )
            assert (await client.expect(Connack)).reason_code == code
    assert reached(node, Limit.USER_PROPERTIES) == 1


@pytest.mark.parametrize(("version", "code"), [(5, ReasonCode.QUOTA_EXCEEDED), (4, 3)])
async def test_sessions_max(start_node: StartNode, version: int, code: int) -> None:
    """A client that would need one more session is refused; one that has its own gets in."""
    node = await start_node(sessions_max=1)
    async with await RawClient.connect(node.port, "a", properties=DURABLE):
        pass
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    async with await RawClient.connect(node.port, "b", version=version) as refused:
        assert refused.connack.reason_code == code
        await refused.expect_end()
    async with await RawClient.connect(node.port, "a", version=version, clean_start=False) as client:
        assert client.connack.session_present
    assert reached(node, Limit.SESSIONS) == 1
    assert node.server.figures()["ended_total"] == {"quota_exceeded": 1}


@pytest.mark.parametrize(("version", "code"), [(5, ReasonCode.QUOTA_EXCEEDED), (4, 0x80)])
async def test_subscriptions_max(start_node: StartNode, version: int, code: int) -> None:
    """Each Topic Filter too many is refused for itself, shared ones too; one that exists can be renewed."""
    node = await start_node(subscriptions_max=2)
    async with await RawClient.connect(node.port, "edge", version=version) as client:
        with capture_logs() as lines:
            answer = await client.subscribe(b"a", b"$share/g/b", b"c", b"$share/g/d")
        assert answer.reason_codes == (0, 0, code, code)
        (line,) = (one for one in lines if one["event"] == "subscriptions_over_limits")
        assert (line["client_id"], line["refused"], line["subscriptions"]) == ("edge", 2, 2)
        assert (await client.subscribe(b"a", b"e", qos=1)).reason_codes == (1, code)
        await client.unsubscribe(b"a")
        assert (await client.subscribe(b"e")).reason_codes == (0,)
    assert reached(node, Limit.SUBSCRIPTIONS) == 3


@pytest.mark.parametrize(("version", "code"), [(5, ReasonCode.QUOTA_EXCEEDED), (4, 0x80)])
async def test_filter_bytes_max(start_node: StartNode, version: int, code: int) -> None:
    """Each Topic Filter with which a session would have too many bytes is refused; a renewed one takes none."""
    node = await start_node(filter_bytes_max=24)
    async with await RawClient.connect(node.port, version=version) as client:
        answer = await client.subscribe(b"12345678", b"$share/g/123", b"12345", b"1234", b"1")
        assert answer.reason_codes == (0, 0, code, 0, code)
        assert (await client.subscribe(b"12345678", b"$share/g/123", qos=1)).reason_codes == (1, 1)
        await client.unsubscribe(b"$share/g/123")
        assert (await client.subscribe(b"123456789abc", b"1")).reason_codes == (0, code)
    assert reached(node, Limit.FILTER_BYTES) == 3


@pytest.mark.parametrize("version", [5, 4])
async def test_packet_bytes_max(start_node: StartNode, version: int) -> None:
    """A packet that is too large ends its connection before it is read as a whole."""
    node = await start_node(packet_bytes_max=1024)
    async with await RawClient.connect(node.port, version=version) as client:
        client.publish(b"t", b"x" * 900)
        client.send_bytes(b"\x30\xff\xff\xff\x7f")  # 256 MiB will follow
        await client.expect_end(ReasonCode.PACKET_TOO_LARGE if version == 5 else None)
    async with await RawClient.open(node.port, version=version) as client:
        client.send(Connect("c" * 2000, version=version))
        await client.expect_end()
    assert [len(row[1]) for _, row in node.published] == [900]
    assert reached(node, Limit.PACKET_BYTES) == node.server.figures()["ended_total"]["packet_too_large"] == 2


async def test_receive_maximum(start_node: StartNode) -> None:
    """A client with more unacknowledged messages than it was told is disconnected."""
    node = await start_node(receive_maximum=2)
    async with await RawClient.connect(node.port) as client:
        assert client.connack.properties.receive_maximum == 2
        for number in range(3):
            client.publish(b"t", b"%d" % number, qos=2)
        for packet_id in (1, 2, 3):
            await client.expect_ack(PacketType.PUBREC, packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        await client.expect_end(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
    assert reached(node, Limit.RECEIVE_MAXIMUM) == 1


@pytest.mark.parametrize("version", [5, 4])
async def test_inflight_max(start_node: StartNode, version: int) -> None:
    """No more messages are in flight than that; the others wait in the queue and are not lost."""
    node = await start_node(inflight_max=3)
    async with await RawClient.connect(node.port, version=version) as client:
        await client.subscribe(b"t", qos=1)
        node.take([update(b"t", b"%d" % number, qos=1, retain=False) for number in range(10)])
        first = await client.messages(3)
        assert await client.messages_until_ping() == []
        figures = node.server.figures()
        assert (figures["in_flight_messages"], figures["queued_messages"]) == (3, 7)
        for message in first:
            client.send_bytes(b"\x40\x02" + (message.packet_id or 0).to_bytes(2, "big"))
        assert [one.payload for one in await client.messages(3)] == [b"3", b"4", b"5"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_queue_bytes_max_bounds_what_is_in_flight(start_node: StartNode, qos: int) -> None:
    """Beside what waits: who does not acknowledge is sent no more, and loses nothing; others of its audience go on."""
    node = await start_node(queue_bytes_max=8_000)
    async with (
        await RawClient.connect(node.port, "slow", properties=DURABLE) as slow,
        await RawClient.connect(node.port, "quick") as quick,
    ):
        for client in (slow, quick):
            await client.subscribe(b"t", qos=qos)
        for number in range(12):
            node.take([update(b"t", b"%02d" % number + b"x" * 998, qos=qos, retain=False)])
            (message,) = await quick.messages(1)
            assert message.payload[:2] == b"%02d" % number
            await complete(quick, message)
        first = await slow.messages(8)
        assert await slow.messages_until_ping() == []
        figures = node.server.figures()
        assert (figures["in_flight_messages"], figures["queued_messages"]) == (8, 4)
        assert 8_000 <= figures["in_flight_bytes"] < 8_500
        for message in first[:2]:
            await complete(slow, message)
        more = await slow.messages(2)
        assert await slow.messages_until_ping() == []
        await slow.close()
        await wait_until(lambda: node.server.figures()["connections"] == 1)
        async with await RawClient.connect(node.port, "slow", clean_start=False, properties=DURABLE) as again:
            received: list[tuple[bytes, bool]] = []
            completed = 0
            while completed < 10:
                packet = await again.receive()
                if isinstance(packet, Publish):
                    received.append((packet.payload[:2], packet.dup))
                    again.send(Ack(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, packet.packet_id or 0))
                else:
                    assert isinstance(packet, Ack)
                    again.send(Ack(PacketType.PUBCOMP, packet.packet_id))
                completed += qos == 1 or isinstance(packet, Ack)
            assert received == [(b"%02d" % number, number < 10) for number in range(2, 12)]
            await wait_until(lambda: node.server.figures()["in_flight_messages"] == 0)
    assert [message.payload[:2] for message in more] == [b"08", b"09"]
    assert node.server.figures()["in_flight_bytes"] == 0


async def complete(client: RawClient, message: Publish) -> None:
    """Acknowledge a message to the end."""
    packet_id = message.packet_id or 0
    client.send(Ack(PacketType.PUBACK if message.qos == 1 else PacketType.PUBREC, packet_id))
    if message.qos == 2:
        await client.expect_ack(PacketType.PUBREL, packet_id)
        client.send(Ack(PacketType.PUBCOMP, packet_id))


@pytest.mark.parametrize("version", [5, 4])
async def test_filter_levels_max(start_node: StartNode, version: int) -> None:
    """A Topic Filter with too many levels is refused for itself; those of a group do not count."""
    node = await start_node(filter_levels_max=2)
    code = ReasonCode.QUOTA_EXCEEDED if version == 5 else 0x80
    async with await RawClient.connect(node.port, version=version) as client:
        assert (await client.subscribe(b"a/b", b"a/b/c", b"$share/g/a/b")).reason_codes == (0, code, 0)
    assert (reached(node, Limit.FILTER_LEVELS), reached(node, Limit.SUBSCRIPTIONS)) == (1, 0)


async def test_what_waited_for_a_client_that_is_gone_is_freed_in_pieces(start_node: StartNode) -> None:
    """Some thousand messages with each turn of the event loop, however many they are."""
    node = await start_node()
    async with await RawClient.connect(node.port) as client:
        await client.subscribe(b"t")
        (session,) = node.server.lifecycles.connection_of
        waiting = {b"%d" % number: (update(b"%d" % number, b"x"), 0, False, ()) for number in range(12_000)}
        session.sender.newest_values.put(waiting, count=len(waiting))
        held = session.sender.newest_values._open
        assert len(held) == 12_000
        node.server.lifecycles.connection_of[session].disconnect(ReasonCode.QUOTA_EXCEEDED)
        left = [len(held)]
        async with asyncio.timeout(30):
            while left[-1]:
                await asyncio.sleep(0)
                left.append(len(held))
    assert {7_000, 2_000} <= set(left)
    assert node.server.figures()["sessions"] == 0


@pytest.mark.parametrize("version", [5, 4])
@pytest.mark.parametrize("settings", [{"queue_messages_max": 3}, {"queue_bytes_max": 1024}])
async def test_queue_of_a_session_is_bounded(start_node: StartNode, settings: dict[str, int], version: int) -> None:
    """In messages and in bytes: a session for which more waits ends, and its client is told."""
    node = await start_node(**settings, inflight_max=1)
    async with await RawClient.connect(node.port, version=version) as client:
        await client.subscribe(b"t", qos=1)
        for number in range(4):
            node.take([update(b"t", b"%04d" % number + b"x" * 296, qos=1, retain=False)])
        await client.messages(1)
        assert await client.messages_until_ping() == []
        figures = node.server.figures()
        assert (figures["queued_messages"], figures["sessions_overflowed_total"]) == (3, 0)
        node.take([update(b"t", b"0004" + b"x" * 296, qos=1, retain=False)])
        await client.expect_end(ReasonCode.QUOTA_EXCEEDED if version == 5 else None)
    figures = node.server.figures()
    assert (figures["sessions"], figures["sessions_overflowed_total"], figures["ended_total"]) == (
        0,
        1,
        {"quota_exceeded": 1},
    )


# Rubbish.


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Log into a buffer, as a node logs into its standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    uvicorn_level = logging.getLogger("uvicorn").level
    stream = io.StringIO()
    configure_logging(level=logging.INFO, as_json=True, stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(uvicorn_level)
    structlog.reset_defaults()


RUBBISH = {
    "malformed_packet": encode(Connect("r"), version=5) + b"\x00\x00",
    "protocol_error": encode(Connect("r"), version=5) + encode(Connect("r"), version=5),
    "topic_name_invalid": encode(Connect("r"), version=5) + b"\x30\x05\x00\x02+/\x00",
    "unsupported_protocol_version": b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00",
    "": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",  # what it is ended with is told by the test of the decoder
}
"""What clients send, by the Reason Code with which they are ended."""


def connections_in_memory(node: NodeInMemory) -> int:
    """Return for how many connections there are objects."""
    gc.collect()
    return sum(isinstance(one, ClientConnection) and one._handler is node.server for one in gc.get_objects())


async def test_rubbish_costs_few_lines_and_leaves_nothing(log: io.StringIO, start_node: StartNode) -> None:
    """1 000 connections with rubbish: counted by Reason Code, logged now and then, and nobody else notices."""
    node = await start_node()
    async with await RawClient.connect(node.port, "other") as other:
        await other.subscribe(b"t")
        tasks, deadlines = len(asyncio.all_tasks()), len(node.server.context.timer)
        kinds = list(RUBBISH.values())

        async def send_rubbish(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(kinds[number % len(kinds)])
            await closed(reader, writer)

        for start in range(0, 1000, 50):
            await asyncio.gather(*map(send_rubbish, range(start, start + 50)))
            node.take([update(b"t", b"%d" % start)])
            assert (await other.expect(Publish)).payload == b"%d" % start
        await wait_until(lambda: node.server.figures()["connections"] == 1)
        figures = node.server.figures()
        assert (figures["sessions"], figures["subscriptions"], figures["queued_messages"]) == (1, 1, 0)
        for reason in filter(None, RUBBISH):
            assert figures["ended_total"][reason] >= 200
        assert sum(figures["ended_total"].values()) == 1000
        assert figures["protocol_errors_total"] == 1000
        await wait_until(lambda: len(asyncio.all_tasks()) == tasks)
        assert connections_in_memory(node) == 1
        assert len(node.server.context.timer) == deadlines
        assert node.server._slots.origins == 1
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert "Traceback" not in log.getvalue()
    broken = [line for line in lines if line["event"] == "client_broke_protocol"]
    assert 5 <= len(broken) < 200  # 5 of a kind in ten seconds, however long the machine takes
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", line["address"]) for line in broken)


async def test_rubbish_on_every_transport(log: io.StringIO, start_node: StartNode, tmp_path: Path) -> None:
    """What comes in place of TLS, WebSocket and PROXY headers is as harmless, also when the client leaves half-way."""
    certificate, key = Authority(tmp_path).issue("server")
    files: dict[str, Any] = {"certificate_file": certificate, "key_file": key}
    loopback = (ip_network("127.0.0.0/8"),)
    node = await start_node(
        listen=(*WEBSOCKET,),
        listener_tables=(
            ListenerConfig(address=Address("mqtts", "127.0.0.1", 0), **files),
            ListenerConfig(address=Address("wss", "127.0.0.1", 0), **files),
            ListenerConfig(address=Address("mqtt", "127.0.0.1", 0), proxy_protocol_from=loopback),
            ListenerConfig(address=Address("mqtts", "127.0.0.1", 0), proxy_protocol_from=loopback, **files),
        ),
    )
    ports = [int(address.rpartition(":")[2]) for address in node.server.addresses]
    tasks, deadlines = len(asyncio.all_tasks()), len(node.server.context.timer)
    source = random.Random(1)
    heads = (b"", CLIENT_HELLO, UPGRADE, V1, V2[:20], encode(Connect("r"), version=5))

    async def send_rubbish() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", source.choice(ports))
        writer.write(source.choice(heads) + source.randbytes(source.choice((3, 400, 4000))))
        match source.randrange(3):
            case 0:
                writer.write_eof()
            case 1:
                writer.close()
        with contextlib.suppress(TimeoutError, ConnectionError):  # where more is awaited nothing comes
            async with asyncio.timeout(0.1):
                await reader.read()
        writer.transport.abort()

    for _ in range(10):
        await asyncio.gather(*(send_rubbish() for _ in range(50)))
    await wait_until(lambda: node.server.figures()["connections_refused_total"] == 500)
    await wait_until(lambda: len(asyncio.all_tasks()) == tasks)
    figures = node.server.figures()
    assert (figures["connections"], figures["connections_opened_total"]) == (0, 500)
    assert all(count > 20 for count in figures["entry_faults_total"].values())
    assert connections_in_memory(node) == 0
    assert (node.server._listeners._pending, len(node.server.context.timer)) == ({}, deadlines)
    assert "Traceback" not in log.getvalue()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert 5 <= len(lines) < 250
    assert all("address" in line for line in lines)


# The table of the page of limits.


def test_every_limit_stands_in_the_page_of_limits() -> None:
    """With its key, its default and the metric, if it has one of its own; and no other key does."""
    text = LIMITS_PAGE.read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| .+ \| (?:`(\w+)` )?\|$", text, re.MULTILINE)
    defaults = {one.name: one.default for one in fields(ServerConfig)}
    assert {key: int(default.replace(",", "")) for key, default, _ in rows} == {
        key: defaults[key] for key, _, _ in rows
    }
    assert {metric for _, _, metric in rows if metric} <= {metric.name for metric in METRICS}
    keys = {key for key, _, _ in rows}
    assert keys >= {limit.value for limit in Limit if "." not in limit.value}
    terms = {"keep_alive_max_s", "session_expiry_max_s", "qos_max", "topic_alias_max"}  # what a client is granted
    assert {key for key in defaults if key.endswith("_max")} - terms <= keys


# Turns of the event loop.


async def test_one_read_of_a_client_in_a_turn(start_node: StartNode) -> None:
    """A client that sends without a pause is read from once in each turn, so others are served in between."""
    node = await start_node()
    async with await RawClient.connect(node.port, version=4) as client:
        sender = client._writer.get_extra_info("socket").dup()
        sender.setblocking(True)
        data = encode(Publish(b"t", b"x" * 1000), version=4) * 8_000
        before = node.server.figures()["received_bytes_total"]
        sending = asyncio.create_task(asyncio.to_thread(sender.sendall, data))
        received = most = 0
        while received < len(data):
            await asyncio.sleep(0)
            now = node.server.figures()["received_bytes_total"] - before
            most, received = max(most, now - received), now
        await sending
        sender.close()
    assert most <= 256 * 1024


async def test_will_messages_take_turns(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many clients that leave at once, each turn publishes those for which there is time, in their order."""
    monkeypatch.setattr(session_lifecycle, "_WILLS_S", 1e-9)
    node = await start_node()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(20):
            client = await RawClient.connect(node.port, f"c{number}", will=Will(b"t", b"%d" % number))
            await stack.enter_async_context(client)
        for number in range(20):
            node.server.lifecycles.kick(f"c{number}")
        assert len(node.published) == 1
        await asyncio.sleep(0)
        assert len(node.published) == 2
        await wait_until(lambda: len(node.published) == 20)
        assert [row[1] for _, row in node.published] == [b"%d" % number for number in range(20)]
