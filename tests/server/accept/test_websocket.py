"""MQTT over WebSocket (MQTT 5, chapter 6): frames in any form, refusals, closing, and clients of other people."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import struct
from pathlib import Path
from socket import SO_SNDBUF, SOL_SOCKET
from types import TracebackType
from typing import Literal, cast

import aiomqtt
import pytest
import websockets
from websockets.asyncio.client import connect as websocket_connect
from websockets.typing import Subprotocol

from fanout.config import Address, ListenerConfig
from fanout.mqtt.decoder import CONNECT_BYTES_MAX
from fanout.mqtt.packets import Connect, Packet, Pingreq, Publish, Subscribe, Subscription, Will, encode
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.server.test_clients import PahoClient
from tests.support.certificates import Authority, client_context
from tests.support.waiting import wait_until

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LISTEN = (Address("ws", "127.0.0.1", 0),)
CONNECT = encode(Connect("c"), version=5)
PINGREQ = encode(Pingreq(), version=5)
PINGRESP = b"\xd0\x00"


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """Make a frame as a client sends it, masked."""
    length = len(payload)
    head = bytes((opcode | (0x80 if fin else 0),))
    if length < 126:
        head += bytes((0x80 | length,))
    elif length < 65536:
        head += b"\xfe" + struct.pack("!H", length)
    else:
        head += b"\xff" + struct.pack("!Q", length)
    mask = b"\x01\x02\x03\x04"
    return head + mask + bytes(byte ^ mask[index & 3] for index, byte in enumerate(payload))


class Browser:
    """A client that writes frames byte by byte as a test wants them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.status = 0

    @classmethod
    async def open(cls, node: NodeInMemory, *, subprotocol: str = "mqtt", **headers: str) -> Browser:
        """Shake hands as far as the server's answer."""
        client = cls(*await asyncio.open_connection("127.0.0.1", node.port))
        fields = {
            "Host": "localhost",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": subprotocol,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = ["GET /mqtt HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
        client.send("\r\n".join(lines).encode())
        async with asyncio.timeout(30):
            answer = await client._reader.readuntil(b"\r\n\r\n")
        client.status = int(answer.split(b" ")[1])
        if client.status == 101:
            assert b"\r\nsec-websocket-protocol: mqtt\r\n" in answer.lower()
        return client

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.transport.abort()

    def send(self, data: bytes) -> None:
        """Write bytes."""
        self.writer.write(data)

    def send_packets(self, *packets: Packet) -> None:
        """Write packets in one frame."""
        self.send(frame(BINARY, b"".join(encode(packet, version=5) for packet in packets)))

    async def receive(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame."""
        async with asyncio.timeout(30):
            first, length = await self._reader.readexactly(2)
            assert first & 0x80, "the server sends whole messages"
            if length == 126:
                (length,) = struct.unpack("!H", await self._reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self._reader.readexactly(8))
            return first & 0x0F, await self._reader.readexactly(length)

    async def expect_connack(self) -> None:
        """Take the CONNACK, which accepts."""
        opcode, data = await self.receive()
        assert (opcode, data[0], data[3]) == (BINARY, 0x20, 0)

    async def expect_end(self, code: int | None = None) -> None:
        """Wait for the end, after a Close frame with `code` if given."""
        if code is not None:
            opcode, data = await self.receive()
            assert (opcode, int.from_bytes(data[:2], "big")) == (CLOSE, code)
        async with asyncio.timeout(30):
            assert await self._reader.read() == b""


@pytest.fixture
async def web(start_node: StartNode) -> NodeInMemory:
    """Give a node that speaks WebSocket only."""
    return await start_node(listen=LISTEN)


async def test_packets_come_in_binary_frames(web: NodeInMemory) -> None:
    """The handshake grants `mqtt`, and every answer is a binary frame."""
    assert web.server.addresses[0].startswith("ws://127.0.0.1:")
    async with await Browser.open(web) as client:
        assert client.status == 101
        client.send(frame(BINARY, CONNECT))
        await client.expect_connack()
        client.send(frame(BINARY, PINGREQ))
        assert await client.receive() == (BINARY, PINGRESP)


async def test_frames_in_any_pieces(web: NodeInMemory) -> None:
    """Single bytes on the network make the same frames."""
    async with await Browser.open(web) as client:
        for byte in frame(BINARY, CONNECT) + frame(BINARY, PINGREQ):
            client.send(bytes((byte,)))
            await asyncio.sleep(0)
        await client.expect_connack()
        assert await client.receive() == (BINARY, PINGRESP)


async def test_one_packet_over_several_frames(web: NodeInMemory) -> None:
    """Packets need not keep to frames, nor to messages; a Ping may come in between [MQTT-6.0.0-2]."""
    async with await Browser.open(web) as client:
        client.send(frame(BINARY, CONNECT[:5]))
        client.send(frame(BINARY, CONNECT[5:9], fin=False))
        client.send(frame(PING, b"still there?"))
        assert await client.receive() == (PONG, b"still there?")
        client.send(frame(CONTINUATION, CONNECT[9:11], fin=False))
        client.send(frame(CONTINUATION, CONNECT[11:] + PINGREQ[:1]))
        await client.expect_connack()
        client.send(frame(BINARY, b""))
        client.send(frame(BINARY, PINGREQ[1:]))
        assert await client.receive() == (BINARY, PINGRESP)


async def test_several_packets_in_one_frame(web: NodeInMemory) -> None:
    """One frame may hold many packets; all are answered in order."""
    async with await Browser.open(web) as client:
        client.send_packets(Connect("c"), Subscribe(1, (Subscription(b"t"),)), Pingreq(), Pingreq())
        await client.expect_connack()
        answers = b""
        while len(answers) < 10:
            answers += (await client.receive())[1]
        assert answers == b"\x90\x04\x00\x01\x00\x00" + PINGRESP * 2


async def test_a_batch_is_one_frame(web: NodeInMemory) -> None:
    """What a batch brings a subscriber comes in one frame."""
    async with await Browser.open(web) as client:
        client.send_packets(Connect("c"))
        await client.expect_connack()
        client.send_packets(Subscribe(1, (Subscription(b"#"),)))
        await client.receive()
        web.take([update(b"t/%d" % number, b"x" * 100) for number in range(1000)])
        opcode, data = await client.receive()
        assert opcode == BINARY
        assert len(data) > 100_000
        assert data.count(b"x" * 100) == 1000


async def test_messages_published_in_many_frames_are_one_run(web: NodeInMemory) -> None:
    """Frames that come in one read are decoded together."""
    async with await Browser.open(web) as client:
        client.send(
            frame(BINARY, CONNECT)
            + b"".join(frame(BINARY, encode(Publish(b"t", b"%d" % number), version=5)) for number in range(500))
            + frame(BINARY, PINGREQ)
        )
        await client.expect_connack()
        while (await client.receive())[1] != PINGRESP:
            pass
        assert [row[1] for _, row in web.published] == [b"%d" % number for number in range(500)]


async def test_text_frame_is_refused(web: NodeInMemory) -> None:
    """A text frame closes with 1003, what came before it counts, and a Will Message is published [MQTT-6.0.0-1]."""
    async with await Browser.open(web) as client:
        client.send_packets(Connect("c", will=Will(b"will", b"gone")))
        await client.expect_connack()
        client.send(frame(BINARY, encode(Publish(b"t", b"1"), version=5)) + frame(TEXT, PINGREQ))
        await client.expect_end(1003)
    assert [row[:2] for _, row in web.published] == [(b"t", b"1"), (b"will", b"gone")]
    assert web.server.figures()["protocol_errors_total"] == 1
    await wait_until(lambda: web.server.figures()["connections"] == 0)


@pytest.mark.parametrize("subprotocol", ["", "chat", "mqttv3.1"])
async def test_missing_subprotocol_is_refused(web: NodeInMemory, subprotocol: str) -> None:
    """Without `mqtt` among the subprotocols there is no WebSocket [MQTT-6.0.0-3]."""
    async with await Browser.open(web, subprotocol=subprotocol) as client:
        assert client.status == 400
    await wait_until(lambda: web.server.figures()["connections"] == 0)
    assert web.server.figures()["connections_refused_total"] == 1


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("plant.example:8083", "", 101),  # no browser
        ("plant.example:8083", "http://plant.example", 101),
        ("plant.example", "https://Plant.example:444", 101),
        ("10.0.0.7:8083", "http://10.0.0.7:80", 101),
        ("[2001:db8::7]:8083", "http://[2001:db8::7]", 101),
        ("plant.example:8083", "https://evil.example", 403),
        ("plant.example:8083", "https://plant.example.evil.example", 403),
        ("plant.example:8083", "https://sub.plant.example", 403),
        ("[2001:db8::7]:8083", "http://[2001:db8::8]", 403),
        ("plant.example:8083", "null", 403),  # a file, or a page in a sandbox
        ("", "http://", 403),
    ],
)
async def test_pages_of_the_same_host_may_connect(web: NodeInMemory, host: str, origin: str, status: int) -> None:
    """Without a list, an origin must name the host of the request; whoever sends none is no browser."""
    async with await Browser.open(web, Host=host, Origin=origin) as client:
        assert client.status == status
    await wait_until(lambda: web.server.figures()["connections"] == 0)
    figures = web.server.figures()
    assert figures["entry_faults_total"]["websocket"] == int(status == 403)
    assert figures["connections_refused_total"] == 1  # none of them sent CONNECT


@pytest.mark.parametrize(
    ("origins", "origin", "status"),
    [
        (("https://plant.example", "http://a:8080"), "https://plant.example", 101),
        (("https://plant.example", "http://a:8080"), "HTTP://A:8080", 101),
        (("https://plant.example", "http://a:8080"), "", 101),
        (("https://plant.example", "http://a:8080"), "http://plant.example", 403),
        (("https://plant.example", "http://a:8080"), "http://a", 403),
        (("https://plant.example", "http://a:8080"), "http://localhost", 403),  # its own host is not listed
        (("*",), "null", 101),
    ],
)
async def test_listed_origins_may_connect(
    start_node: StartNode, origins: tuple[str, ...], origin: str, status: int
) -> None:
    """With a list, nothing else may, but for clients that are no browsers."""
    node = await start_node(listen=LISTEN, websocket_origins=origins)
    async with await Browser.open(node, Origin=origin) as client:
        assert client.status == status


async def test_two_origins_are_refused(web: NodeInMemory) -> None:
    """Nobody can tell which one counts."""
    async with await Browser.open(web, Origin="http://localhost\r\nOrigin: http://localhost") as client:
        assert client.status == 403


async def test_client_that_reads_no_pongs_is_not_read_from(start_node: StartNode) -> None:
    """Answers to WebSocket pings fill no memory either: it is read from again when it has caught up."""
    node = await start_node(listen=LISTEN, write_buffer_high_bytes=16_384, write_buffer_low_bytes=4_096)
    async with await Browser.open(node) as client:
        client.send_packets(Connect("c"))
        await client.expect_connack()
        [connection] = node.server.connections
        transport = connection._transport
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, 4_096)
        transport_below = transport._transport  # type: ignore[attr-defined]  # it is a stream in a WebSocket
        cast("asyncio.ReadTransport", client.writer.transport).pause_reading()
        sent = 0
        while transport_below.is_reading():
            client.send(frame(PING, b"x" * 100) * 100)
            sent += 100
            await asyncio.sleep(0)
        assert transport_below.get_write_buffer_size() < 1_000_000
        client.send(frame(BINARY, PINGREQ))
        cast("asyncio.ReadTransport", client.writer.transport).resume_reading()
        for _ in range(sent):
            assert (await client.receive())[0] == PONG
        assert await client.receive() == (BINARY, PINGRESP)


async def test_mqtt_among_several_subprotocols(web: NodeInMemory) -> None:
    """The client may offer others too, and extensions, of which none is taken."""
    async with await Browser.open(
        web, subprotocol="mqttv3.1, mqtt", Sec_WebSocket_Extensions="permessage-deflate"
    ) as client:
        assert client.status == 101


async def test_plain_http_and_plain_mqtt_are_refused(web: NodeInMemory) -> None:
    """An ordinary request is told what is missing; what is no HTTP is closed."""
    async with await Browser.open(web, Upgrade="") as client:
        assert client.status == 426
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(CONNECT + b"\r\n")
    async with asyncio.timeout(30):
        await reader.read()
    writer.close()
    await wait_until(lambda: web.server.figures()["connections"] == 0)


async def test_close_is_answered(web: NodeInMemory) -> None:
    """A Close frame is answered and ends the connection."""
    async with await Browser.open(web) as client:
        client.send(frame(BINARY, CONNECT))
        await client.expect_connack()
        client.send(frame(CLOSE, b"\x03\xe8"))
        await client.expect_end(1000)
    await wait_until(lambda: web.server.figures()["connections"] == 0)
    assert web.server.figures()["protocol_errors_total"] == 0


async def test_broken_mqtt_is_told_and_closed(web: NodeInMemory) -> None:
    """DISCONNECT with the Reason Code comes in a binary frame, then a Close frame, which the client answers."""
    async with await Browser.open(web) as client:
        client.send(frame(BINARY, CONNECT))
        await client.expect_connack()
        client.send(frame(BINARY, b"\xff\x00"))
        opcode, data = await client.receive()
        assert (opcode, data[0], data[2]) == (BINARY, 0xE0, 0x81)
        opcode, data = await client.receive()
        assert (opcode, data) == (CLOSE, b"\x03\xe8")
        client.send(frame(CLOSE, data))
        await client.expect_end()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x82\x00", 1002),  # not masked
        (frame(3, b""), 1002),  # reserved
        (frame(CONTINUATION, b"x"), 1002),  # of nothing
        (b"\x82\xff" + (2**40).to_bytes(8, "big"), 1009),  # larger than any packet may be
    ],
)
async def test_broken_frames_close(web: NodeInMemory, data: bytes, code: int) -> None:
    """Rubbish closes with the code of RFC 6455, without waiting for the rest of a frame that is too large."""
    async with await Browser.open(web) as client:
        client.send(data)
        await client.expect_end(code)
    await wait_until(lambda: web.server.figures()["connections"] == 0)


async def test_little_is_kept_before_connect(web: NodeInMemory) -> None:
    """A frame that is larger than a CONNECT may be ends the connection before it is there; later it may be larger."""
    large = b"\x82\xff" + struct.pack("!Q", web.config.packet_bytes_max) + bytes(4)
    async with await Browser.open(web) as client:
        client.send(large + bytes(CONNECT_BYTES_MAX + 100_000))
        with contextlib.suppress(ConnectionError):  # of what it sent, a part is not read any more
            await client.expect_end(1009)
    await wait_until(lambda: web.server.figures()["connections"] == 0)
    assert web.server.figures()["entry_faults_total"]["websocket"] == 1
    assert web.server.figures()["received_bytes_total"] == 0
    async with await Browser.open(web) as client:
        payload = bytes(web.config.packet_bytes_max - 8)
        packet = encode(Publish(b"t", payload), version=5)
        client.send(frame(BINARY, CONNECT) + b"\x82\xff" + struct.pack("!Q", len(packet)) + bytes(4) + packet)
        await client.expect_connack()
        await wait_until(lambda: [row[1] for _, row in web.published] == [payload])


@pytest.mark.parametrize("subprotocol", ["mqtt", ""])
async def test_rubbish_right_behind_the_handshake(web: NodeInMemory, subprotocol: str) -> None:
    """A request and rubbish in one piece are a fault of the client, whether the request was good or not."""
    lines = [
        "GET /mqtt HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        *([f"Sec-WebSocket-Protocol: {subprotocol}"] if subprotocol else []),
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + b"\xff\xff\xff")
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    writer.close()
    await wait_until(lambda: web.server.figures()["connections"] == 0)
    assert web.server.figures()["protocol_errors_total"] == 1


async def test_silent_client_is_closed_in_time(web: NodeInMemory) -> None:
    """The limit of time until CONNECT counts from the first byte of the network, handshake included."""
    async with await Browser.open(web) as client:
        await web.pass_time(5.1)
        opcode, data = await client.receive()
        assert (opcode, data) == (CLOSE, b"\x03\xe8")
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    await wait_until(lambda: web.server.figures()["connections"] == 1)
    await web.pass_time(5.1)
    assert await reader.read() == b""
    writer.close()


async def test_slow_reader_keeps_its_messages_waiting(start_node: StartNode) -> None:
    """The marks for unsent bytes hold under WebSocket too: messages wait in the queue, and all arrive."""
    node = await start_node(listen=LISTEN, write_buffer_high_bytes=64 * 1024, write_buffer_low_bytes=16 * 1024)
    async with await Browser.open(node) as client:
        client.send_packets(Connect("c"))
        await client.expect_connack()
        client.send_packets(Subscribe(1, (Subscription(b"t"),)))
        await client.receive()
        for _ in range(400):
            node.take([update(b"t", b"x" * 100_000, retain=False)])
            await asyncio.sleep(0)
        assert node.server.figures()["queued_messages"] > 100
        received = 0
        while received < 400 * 100_000:
            opcode, data = await client.receive()
            assert opcode == BINARY
            received += data.count(b"x")


async def test_stop_closes_websockets(start_node: StartNode) -> None:
    """When the server stops, clients are told by DISCONNECT and by a Close frame."""
    node = await start_node(listen=LISTEN)
    async with websocket_connect(
        f"ws://127.0.0.1:{node.port}/mqtt", subprotocols=[Subprotocol("mqtt")], compression=None
    ) as client:
        await client.send(CONNECT)
        await client.recv()
        stopping = asyncio.create_task(node.server.stop())
        disconnect = await client.recv()
        assert disconnect[0] == 0xE0
        assert disconnect[2] == 0x8B
        with pytest.raises(websockets.ConnectionClosedOK):
            await client.recv()
        await stopping


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_paho_over_websocket(
    start_node: StartNode, tmp_path: Path, version: int, scheme: Literal["ws", "wss"]
) -> None:
    """A paho client gets retained values and its own messages over WebSocket, with TLS and without."""
    tls = None
    listener = ListenerConfig(address=Address("ws", "127.0.0.1", 0))
    if scheme == "wss":
        authority = Authority(tmp_path)
        certificate, key = authority.issue("server")
        tls = client_context(authority)
        address = Address("wss", "127.0.0.1", 0)
        listener = ListenerConfig(address=address, certificate_file=certificate, key_file=key)
    node = await start_node(listen=(), listener_tables=(listener,))
    node.set(b"t/retained", b"v" * 200_000)
    client = PahoClient(node.port, version=version, transport="websockets", tls=tls)
    try:
        await client.subscribe("t/#", 1)
        client.client.publish("t/live", b"x" * 200_000, qos=1)
        await wait_until(lambda: len(client.messages) == 2)
        assert client.seen() == [("t/retained", b"v" * 200_000, 0, True), ("t/live", b"x" * 200_000, 1, False)]
    finally:
        client.close()


@pytest.mark.parametrize("version", [4, 5])
async def test_aiomqtt_over_websocket(web: NodeInMemory, version: int) -> None:
    """An aiomqtt client reads and publishes over WebSocket."""
    web.set(b"t/retained", b"value", qos=2)
    protocol = aiomqtt.ProtocolVersion.V5 if version == 5 else aiomqtt.ProtocolVersion.V311
    async with aiomqtt.Client("127.0.0.1", web.port, protocol=protocol, transport="websockets") as client:
        await client.subscribe("t/#", qos=2)
        await client.publish("t/live", b"live", qos=2)
        messages = [await anext(client.messages) for _ in range(2)]
        assert [message.payload for message in messages] == [b"value", b"live"]


async def test_one_read_of_a_websocket_in_a_turn(start_node: StartNode) -> None:
    """A client that sends without a pause is read from once in each turn, so others are served in between."""
    node = await start_node(listen=LISTEN)
    async with await Browser.open(node) as client:
        client.send(frame(BINARY, CONNECT))
        await client.expect_connack()
        sender = client.writer.get_extra_info("socket").dup()
        sender.setblocking(True)
        publish = encode(Publish(b"t", b"x" * 1000), version=5)
        data, bytes_in_all = frame(BINARY, publish) * 500, len(publish) * 500
        before = node.server.figures()["received_bytes_total"]
        sending = asyncio.create_task(asyncio.to_thread(sender.sendall, data))
        received = most = 0
        async with asyncio.timeout(30):
            while received < bytes_in_all:
                await asyncio.sleep(0)
                now = node.server.figures()["received_bytes_total"] - before
                most, received = max(most, now - received), now
        await sending
        sender.close()
    assert most <= 32 * 1024
