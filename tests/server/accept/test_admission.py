"""Tests of the way in: the PROXY protocol in front of TCP, TLS and WebSocket, and who may speak it."""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import ip_network
from pathlib import Path

import pytest

from fanout.config import Address, ListenerConfig
from fanout.mqtt.packets import Connack, Connect, encode
from tests.server.accept.test_proxy_header import tcp4, v2
from tests.server.accept.test_tls import HeldTurnstile
from tests.server.accept.test_websocket import Browser
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.support.certificates import Authority, client_context
from tests.support.network import unread_bytes
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 1883\r\n"
V2 = tcp4("192.0.2.7", 56324, b"\x04\x00\x05hello")
TRUSTED = (ip_network("10.0.0.0/8"), ip_network("127.0.0.1/32"))
CONNECT = encode(Connect("c"), version=5)


def behind_proxy(scheme: str = "mqtt", **more: object) -> dict[str, object]:
    """Describe a node with one listener that wants a PROXY header."""
    settings = {"address": Address(scheme, "127.0.0.1", 0), "proxy_protocol_from": TRUSTED, **more}
    return {"listen": (), "listener_tables": (ListenerConfig(**settings),)}  # type: ignore[arg-type]


@pytest.fixture
async def proxied(start_node: StartNode) -> NodeInMemory:
    """Give a node whose listener wants a PROXY header."""
    return await start_node(**behind_proxy())


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the server has closed, whichever way."""
    try:
        async with asyncio.timeout(30):
            await reader.read()
    except ConnectionResetError:
        pass
    finally:
        writer.transport.abort()


async def end_of(node: NodeInMemory, data: bytes) -> None:
    """Send bytes to a listener, which must close without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(data)
    await closed(reader, writer)


@pytest.mark.parametrize("header", [V1, V2])
async def test_client_has_the_address_that_is_told(proxied: NodeInMemory, header: bytes) -> None:
    """Header and CONNECT may come in one piece."""
    async with await RawClient.open(proxied.port) as client:
        client.send_bytes(header + CONNECT)
        await client.expect(Connack)
        [connection] = proxied.server.connections
        assert connection.address == "192.0.2.7:56324"
        assert (connection.peer.host, connection.peer.port) == ("192.0.2.7", 56324)


@pytest.mark.parametrize("header", [V1, V2])
async def test_header_in_single_bytes(proxied: NodeInMemory, header: bytes) -> None:
    """Split reads make no difference."""
    async with await RawClient.open(proxied.port) as client:
        for byte in header + CONNECT:
            client.send_bytes(bytes((byte,)))
            await asyncio.sleep(0.0005)
        await client.expect(Connack)
        assert [one.address for one in proxied.server.connections] == ["192.0.2.7:56324"]


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", v2(0x20, 0, b"")])
async def test_connection_of_the_load_balancer_itself(proxied: NodeInMemory, header: bytes) -> None:
    """Without a client it has the load balancer's own address."""
    async with await RawClient.open(proxied.port) as client:
        client.send_bytes(header + CONNECT)
        await client.expect(Connack)
        assert [one.peer.host for one in proxied.server.connections] == ["127.0.0.1"]


@pytest.mark.parametrize("data", [CONNECT, b"PROXY TCP4 a b c d\r\n" + CONNECT, b"\r\n\r\n\0\r\nQUIT\n\x41\x11\0\x0c"])
async def test_malformed_header_closes(proxied: NodeInMemory, data: bytes) -> None:
    """Without a valid header nothing is answered, and nothing is left behind."""
    await end_of(proxied, data)
    await wait_until(lambda: proxied.server.figures()["connections_refused_total"] == 1)
    assert proxied.server.figures()["connections"] == 0


async def test_untrusted_sender_closes(start_node: StartNode) -> None:
    """Who is not named gets nowhere, with the best header."""
    node = await start_node(**behind_proxy(proxy_protocol_from=(ip_network("10.0.0.0/8"), ip_network("::1"))))
    await end_of(node, V1 + CONNECT)
    await wait_until(lambda: node.server.figures()["connections_refused_total"] == 1)


async def test_header_where_none_is_expected_closes(start_node: StartNode) -> None:
    """An ordinary listener takes it for broken MQTT."""
    node = await start_node()
    await end_of(node, V1 + CONNECT)


async def sent(node: NodeInMemory, writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write to a node, and wait until it has read everything."""
    writer.write(data)
    await wait_until(lambda: not writer.transport.get_write_buffer_size() and not unread_bytes(node.port))


async def test_header_has_a_time_limit(proxied: NodeInMemory) -> None:
    """A connection that sends half a header is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxied.port)
    await sent(proxied, writer, V1[:20])
    await proxied.pass_time(5.1)
    await closed(reader, writer)
    assert proxied.server.figures()["connections_refused_total"] == 1


async def test_connections_on_their_way_count(start_node: StartNode) -> None:
    """No more connections wait for their header than there may be connections; a stop ends them."""
    node = await start_node(**behind_proxy(), connections_max=2)
    waiting = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(3)]
    await wait_until(lambda: node.server.figures()["connections_refused_total"] == 1)
    await node.server.stop(deadline_s=0.1)
    for reader, writer in waiting:
        await closed(reader, writer)


async def over_tls(node: NodeInMemory, header: bytes, context: ssl.SSLContext) -> RawClient:
    """Send a header, then speak TLS; the first bytes of TLS come with the header."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    early = header
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(early + outgoing.read())
            early = b""
            data = await reader.read(65536)
            if not data:
                writer.close()
                raise ConnectionResetError from None
            incoming.write(data)
    tls.write(CONNECT)  # in one piece with the end of the handshake
    writer.write(outgoing.read())
    plain = asyncio.StreamReader()
    while True:
        try:
            plain.feed_data(tls.read(65536))
            break
        except ssl.SSLWantReadError:
            incoming.write(await reader.read(65536))
    return RawClient(plain, writer, version=5)


@pytest.mark.parametrize("header", [V1, V2])
async def test_header_in_front_of_tls(start_node: StartNode, tmp_path: Path, header: bytes) -> None:
    """TLS begins with the byte behind the header; certificate and told address both count."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    node = await start_node(
        **behind_proxy("mqtts", certificate_file=certificate, key_file=key, client_ca_file=authority.certificate)
    )
    client = await over_tls(node, header, client_context(authority, *authority.issue("sensor")))
    async with client:
        await client.expect(Connack)
        [connection] = node.server.connections
        assert (connection.address, connection.peer.certificate_user) == ("192.0.2.7:56324", "sensor")


async def test_tls_behind_a_header_waits_for_its_turn(start_node: StartNode, tmp_path: Path) -> None:
    """A handshake of another client, which is refused meanwhile, takes no turn."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    node = await start_node(**behind_proxy("mqtts", certificate_file=certificate, key_file=key))
    node.server.context.turnstile = turnstile = HeldTurnstile()
    _, refused = await asyncio.open_connection("127.0.0.1", node.port)
    await turnstile.let_through(1)
    refused.write(V1)
    await wait_until(lambda: len(turnstile.held) == 2)
    await node.pass_time(3.0)
    connecting = asyncio.create_task(over_tls(node, V1, client_context(authority)))
    await wait_until(lambda: len(turnstile.held) == 3)
    turnstile.held[2]()  # its connection, after the handshake of the other
    await wait_until(lambda: len(turnstile.held) == 4)
    await node.pass_time(3.0)
    await wait_until(lambda: turnstile.held[1] in turnstile.withdrawn)
    assert not connecting.done()
    turnstile.held[3]()
    await wait_until(lambda: len(turnstile.held) == 5)  # CONNECT
    turnstile.held[4]()
    async with await connecting as client:
        await client.expect(Connack)
    refused.transport.abort()


async def test_failed_handshake_behind_a_header_closes(start_node: StartNode, tmp_path: Path) -> None:
    """Rubbish in place of TLS is closed and counted, and leaves nothing."""
    certificate, key = Authority(tmp_path).issue("server")
    node = await start_node(**behind_proxy("mqtts", certificate_file=certificate, key_file=key))
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(V1 + CONNECT)
    await closed(reader, writer)
    await wait_until(lambda: node.server.figures()["connections_refused_total"] == 1)


async def test_header_in_front_of_websocket(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake of WebSocket comes behind the header."""
    node = await start_node(**behind_proxy("ws"))
    send = Browser.send

    def send_behind_header(self: Browser, data: bytes) -> None:
        send(self, V2 + data)

    monkeypatch.setattr(Browser, "send", send_behind_header)
    async with await Browser.open(node) as client:
        assert client.status == 101
        assert [one.address for one in node.server.connections] == ["192.0.2.7:56324"]
