"""Tests of peers that break AMQP, or ask for too much: they are disconnected, and nothing of them stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from fanout.amqp import publisher
from fanout.amqp.messages import read_message
from fanout.amqp.values import (
    NULL,
    AmqpInvalid,
    array_of_symbols,
    binary,
    boolean,
    described,
    list_of,
    string,
    symbol,
    uint,
)
from tests.amqp.conftest import Connect, amqp_port
from tests.amqp.jms_peer import JmsPeer, bytes_message, text_message
from tests.server.node_in_memory import NodeInMemory
from tests.support.waiting import wait_until

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
ANONYMOUS = bytes.fromhex("0000001a02010000005341c00d02a309414e4f4e594d4f555340")
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


def frame(code: int, *fields: bytes, payload: bytes = b"", kind: int = 0) -> bytes:
    """Return a frame on the first channel."""
    body = described(code, list_of(*fields)) + payload
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, kind, 0, 0)) + body


def open_frame(container: bytes) -> bytes:
    """Return an open that wants to be alone with its container id."""
    return frame(0x10, string(container), *[NULL] * 7, array_of_symbols(["sole-connection-for-container"]))


@pytest.fixture
async def calm(node: NodeInMemory) -> AsyncIterator[NodeInMemory]:
    """Give a node that must have no connection and no session left in the end."""
    yield node
    await wait_until(lambda: node.server.connection_count == 0 and node.server.session_count == 0)


async def say(node: NodeInMemory, *pieces: bytes, turns: int = 0, waits: bool = False) -> bytes:
    """Send bytes, and return the answer up to the end of the connection.

    Args:
        node: The node.
        pieces: What is sent, one after the other.
        turns: Turns of the event loop between two pieces, in which the node may answer.
        waits: True to wait for an answer to each piece.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", amqp_port(node))
    for piece in pieces:
        writer.write(piece)
        if waits:
            await reader.read(65536)
        for _ in range(turns):
            await asyncio.sleep(0)
    answer = b""
    try:
        writer.write_eof()
        async with asyncio.timeout(20):
            while data := await reader.read(65536):
                answer += data
    except OSError:  # the node was quicker
        pass
    writer.close()
    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        AMQP_HEADER + bytes(100),
        SASL_HEADER + bytes(8),
        SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00",
        SASL_HEADER + b"\x00\x00\x00\x09\xff\x01\x00\x00\x40",
        SASL_HEADER + ANONYMOUS[:-1] + b"\xa1",
        SASL_HEADER + b"\x00\x00\x00\x12\x02\x01\x00\x00\x00\x53\x41\xc0\x05\x01\xa3\x02\xff\xfe",
        SASL_HEADER + ANONYMOUS + SASL_HEADER,
        SASL_HEADER + ANONYMOUS + AMQP_HEADER + b"\xff\xff\xff\xff\x02\x00\x00\x00",
        SASL_HEADER + ANONYMOUS + AMQP_HEADER + bytes(64),
        SASL_HEADER + ANONYMOUS + AMQP_HEADER + b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x10\x45",
    ],
)
async def test_bytes_that_are_not_amqp_end_the_connection(calm: NodeInMemory, data: bytes) -> None:
    """Another protocol, frames that are none, and fields of the wrong type."""
    await say(calm, data)


async def test_random_changes_of_a_session_break_nothing(calm: NodeInMemory) -> None:
    """Flipped, missing and doubled bytes in what an application says; the node serves the next one all the same."""
    said = await recorded(calm)
    await say(calm, *said, waits=True)
    assert len(calm.published) == 2, "without a change it is what an application says"
    assert calm.server.counters.protocol_errors == 0
    source = random.Random(7)
    for _ in range(100):
        pieces = [bytearray(piece) for piece in said]
        for _ in range(source.randint(1, 3)):
            data = source.choice(pieces[1:])
            at = source.randrange(len(data))
            match source.randrange(3):
                case 0:
                    data[at] = source.randrange(256)
                case 1:
                    del data[at : at + source.randint(1, 9)]
                case 2:
                    data[at:at] = data[at : at + source.randint(1, 9)]
        await say(calm, *map(bytes, pieces), turns=20)
    peer = await JmsPeer.connect(amqp_port(calm))
    calm.set(b"a", b"1")
    await (await peer.subscribe("a")).wait(1)
    await peer.close()
    calm.set(b"a", b"")


async def recorded(node: NodeInMemory) -> list[bytes]:
    """Return what an application says that subscribes with a filter, publishes and closes, piece by piece."""
    peer = await JmsPeer.connect(amqp_port(node), mechanisms="ANONYMOUS")
    peer.recording = []
    await peer.subscribe("plant/#", no_local=True)
    producer = await peer.producer("plant/a")
    await producer.send(text_message("x"))
    await peer.close()
    open_and_begin = bytes.fromhex("0000001402000000005310c00702a10361707040") + bytes.fromhex(
        "0000001f02000000005311c012054043707fffffff707fffffff707fffffff"
    )
    return [SASL_HEADER + ANONYMOUS + AMQP_HEADER, open_and_begin, *peer.recording]


async def test_links_and_sessions_have_an_end(calm: NodeInMemory, connect: Connect) -> None:
    """A peer with more links, or more sessions, than there may be is disconnected."""
    peer = await connect()
    for number in range(300):
        link = peer.session.sender(f"link-{number}")
        link.target.address = "a"
        link.open()
    peer.flush()
    await wait_until(lambda: peer.ended)
    assert "links" in peer.connection.remote_condition.description


async def test_incomplete_messages_have_an_end(calm: NodeInMemory, connect: Connect) -> None:
    """A message beyond the limit, and many that are begun and not ended, are not collected."""
    peer = await connect()
    producer = await peer.producer("a")
    producer.link.delivery("one")
    for _ in range(40):
        producer.link.stream(bytes(32 * 1024))
        peer.flush()
        await asyncio.sleep(0)
    await wait_until(lambda: peer.ended)
    assert "1,048,576 bytes" in peer.connection.remote_condition.description


async def test_a_large_message_is_taken_in_many_frames(calm: NodeInMemory, connect: Connect) -> None:
    """A message as large as one of MQTT goes both ways."""
    peer = await connect()
    subscription = await peer.subscribe("a")
    assert await (await peer.producer("a")).send(bytes_message(b"x" * 1_000_000)) is None
    (message,) = await subscription.wait(1)
    assert message.body == b"x" * 1_000_000
    await peer.close()


async def test_a_connection_that_is_not_opened_in_time_ends(calm: NodeInMemory) -> None:
    """The time for CONNECT holds for SASL and the open frame, and a silent peer is gone after the idle time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", amqp_port(calm))
    writer.write(SASL_HEADER)
    assert (await reader.readexactly(8)) == SASL_HEADER
    await calm.pass_time(6)
    async with asyncio.timeout(20):
        while await reader.read(65536):
            pass
    writer.close()


async def test_a_silent_peer_is_gone_after_the_idle_time(calm: NodeInMemory, connect: Connect) -> None:
    """A peer that says nothing for a minute is disconnected."""
    peer = await connect()
    await calm.pass_time(61)
    await calm.pass_time(61)
    await wait_until(lambda: peer.ended)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x40",
        b"\x00\x53\x99\x40",
        b"\x00" * 500,
        b"\x00\x53\x74" + b"\xd1\x00\x00\x00\x05\xff\xff\xff\xff\x40",
        b"\x00\x53\x77\xd0\x00\x00\x00\x04\x00\x00\x00\x01",
        b"\x00\x53\x77\xa1\x02\xff\xfe",
        described(0x77, list_of(*[b"\x40"] * 20_000)),
        described(0x77, b"".join([b"\xc0\x40\x01"] * 20)),
        described(0x75, b"\xb0\xff\xff\xff\xff"),
    ],
)
async def test_messages_that_are_none_are_refused(calm: NodeInMemory, connect: Connect, data: bytes) -> None:
    """A message that cannot be read is rejected, or holds nothing; the connection goes on."""
    peer = await connect()
    producer = await peer.producer("a")
    if data:
        refused = await producer.send(data)
        assert refused is not None
        with pytest.raises(AmqpInvalid):
            read_message(data, now_ms=0)
    assert await producer.send(text_message("fine")) is None
    await peer.close()


async def test_a_peer_that_breaks_the_protocol_is_named_in_the_log(calm: NodeInMemory) -> None:
    """The log has the address and a short reason, and the counter of breaches goes up."""
    with capture_logs() as lines:
        await say(calm, SASL_HEADER + ANONYMOUS + AMQP_HEADER + bytes(64))
    (line,) = [line for line in lines if line["event"] == "client_broke_protocol"]
    assert line["address"].startswith("127.0.0.1:")
    assert len(line["detail"]) <= 200
    assert calm.server.counters.protocol_errors == 1


async def test_a_bug_ends_one_connection(calm: NodeInMemory, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody expected closes the connection, counts, and is in the log with its traceback."""
    peer = await connect()
    producer = await peer.producer("a")
    monkeypatch.setattr(publisher, "read_message", lambda data, *, now_ms: {}[data])
    producer.link.delivery("one")
    producer.link.stream(b"x")
    producer.link.advance()
    with capture_logs() as lines:
        peer.flush()
        await wait_until(lambda: peer.ended)
    (line,) = [line for line in lines if line["event"] == "client_broke_protocol"]
    assert line["detail"] == "KeyError"
    assert isinstance(line["exc_info"], KeyError)
    assert calm.server.counters.protocol_errors == 1


async def test_a_container_id_is_free_after_a_second_open(calm: NodeInMemory) -> None:
    """A connection is opened once, under one name, which others may have after it."""
    await say(calm, SASL_HEADER + ANONYMOUS + AMQP_HEADER, open_frame(b"one"), open_frame(b"two"), waits=True)
    assert calm.server.counters.protocol_errors == 1
    for name in ("one", "two"):
        peer = await JmsPeer.connect(amqp_port(calm), name, sole=True)
        assert not peer.connection.remote_condition
        await peer.close()


async def test_a_peer_that_does_not_read_its_answers_is_not_read(calm: NodeInMemory) -> None:
    """What the server has to write to it is bounded; it ends after the idle time."""
    _, writer = await asyncio.open_connection("127.0.0.1", amqp_port(calm), limit=1)
    writer.write(SASL_HEADER + ANONYMOUS + AMQP_HEADER + open_frame(b"deaf"))
    writer.write(frame(0x11, NULL, uint(0), uint(2**31 - 1), uint(2**31 - 1)))
    source, target = (described(code, list_of(string(name))) for code, name in ((0x28, b"s" * 60_000), (0x29, b"#")))
    for one in range(400):  # the answer to each is as long
        name = string(b"%d" % one)
        writer.write(frame(0x12, name, uint(one), boolean(False), NULL, NULL, source, target, NULL, NULL, uint(0)))
        writer.write(frame(0x16, uint(one), boolean(True)))
    await wait_until(lambda: calm.server.counters.received_bytes > 1_000_000)
    idle, received = 0, 0
    while idle < 1_000:
        await asyncio.sleep(0)
        before, received = received, calm.server.counters.received_bytes
        idle = idle + 1 if received == before else 0
    assert received < 20_000_000
    async with asyncio.timeout(20):
        while calm.server.connection_count:
            await calm.pass_time(61)
    writer.transport.abort()  # what it could not write would keep it


@pytest.mark.parametrize("response", [b"\0u\0" + b"p" * 65_536, b"\0" + b"u" * 65_536 + b"\0p"])
async def test_a_user_name_or_password_that_mqtt_cannot_hold_is_refused(calm: NodeInMemory, response: bytes) -> None:
    """The connection ends at SASL, before anybody looks at the credentials."""
    await say(calm, SASL_HEADER + frame(0x41, symbol("PLAIN"), binary(response), kind=1))
    assert calm.server.counters.protocol_errors == 1
