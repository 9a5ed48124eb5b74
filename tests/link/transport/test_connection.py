"""The Network Connection of a link, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import uvloop

from fanout.config import Address
from fanout.errors import PrimaryUnreachable
from fanout.link.transport import connection
from fanout.link.transport.coalescing import FREE_S
from fanout.link.transport.connection import LinkConnection, connect
from tests.support.mosquitto import free_port
from tests.support.waiting import wait_until


@dataclass
class Case:
    """A connection under test, with the peer's socket."""

    connection: LinkConnection
    received: list[bytes] = field(default_factory=list)
    closed_calls: int = 0
    peer: socket.socket | None = None
    now_s: float = 0.0
    cost_s: float = 0.0
    """How far the case's clock goes on while a read is handled."""
    answer: bytes = b""
    """What is written while a read is handled."""

    def take(self, data: bytes) -> None:
        """Handle a read."""
        self.received.append(data)
        self.now_s += self.cost_s
        self.connection.write(self.answer)

    def read(self, *reads: bytes) -> None:
        """Let the connection have reads, one after the other in one turn of the event loop."""
        for data in reads:
            self.connection.data_received(data)

    def total(self) -> bytes:
        """Return everything received."""
        return b"".join(self.received)

    async def send(self, data: bytes) -> None:
        """Send from the peer's side."""
        assert self.peer is not None
        await asyncio.get_running_loop().sock_sendall(self.peer, data)


@asynccontextmanager
async def connected(
    *, read_ahead: bool, read_ahead_bytes_max: int = 1 << 20, receive_buffer_bytes: int = 1 << 20
) -> AsyncIterator[Case]:
    """Give a connection to a listening socket."""
    received: list[bytes] = []
    case = Case(None, received)  # type: ignore[arg-type]

    def closed() -> None:
        case.closed_calls += 1

    case.connection = LinkConnection(
        on_data=case.take,
        on_closed=closed,
        read_ahead_bytes_max=read_ahead_bytes_max,
        monotonic=lambda: case.now_s,
    )
    case.connection.read_ahead = read_ahead
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        address = Address("mqtt", "127.0.0.1", listener.getsockname()[1])
        await connect(case.connection, address, receive_buffer_bytes=receive_buffer_bytes, timeout_s=30.0)
        case.peer, _ = await asyncio.get_running_loop().sock_accept(listener)
        case.peer.setblocking(False)
        try:
            yield case
        finally:
            case.peer.close()
            await case.connection.close()
    assert case.closed_calls == 1


@pytest.mark.parametrize("read_ahead", [False, True])
async def test_what_is_sent_arrives_in_order(read_ahead: bool) -> None:
    """All bytes are handed over, in order, however they are read."""
    data = bytes(range(256)) * 8000
    async with connected(read_ahead=read_ahead) as case:
        await case.send(data)
        await wait_until(lambda: len(case.total()) == len(data))
        assert case.total() == data


async def test_small_reads_are_joined_to_slices() -> None:
    """Many small reads that wait are handed over together."""
    async with connected(read_ahead=True) as case:
        for _ in range(20):
            case.connection.data_received(b"abc")
        await wait_until(lambda: case.total() == b"abc" * 20)
        assert len(case.received) == 1


async def test_cheap_reads_are_handed_over_one_by_one() -> None:
    """With few clients nothing waits."""
    async with connected(read_ahead=False) as case:
        case.cost_s = FREE_S * 0.99
        case.read(b"one", b"two", b"three")
        assert case.received == [b"one", b"two", b"three"]


async def test_reads_behind_a_costly_read_are_coalesced() -> None:
    """The read itself is not late; the ones behind it come as one."""
    async with connected(read_ahead=False) as case:
        case.cost_s = 0.002
        case.read(b"one")
        assert case.received == [b"one"]
        case.read(b"two", b"three")
        assert case.received == [b"one"]
        await wait_until(lambda: len(case.received) == 2)
        assert case.received == [b"one", b"twothree"]


async def test_a_lone_update_is_never_late() -> None:
    """When nothing came while the connection gathered, what comes then is handed over within its read."""
    async with connected(read_ahead=False) as case:
        case.cost_s = 0.002
        for number in range(3):
            await wait_until(lambda: case.connection._coalescing is None)
            case.read(b"x")
            assert len(case.received) == number + 1


async def test_a_batch_ends_the_coalescing() -> None:
    """What has become large enough does not wait for the rest of the time."""
    async with connected(read_ahead=False) as case:
        case.cost_s = 1000.0
        case.read(b"one", b"x" * 10_000, b"y" * 10_000)
        assert case.connection._coalescing is None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert list(map(len, case.received)) == [3, 20_000]


async def test_nothing_is_coalesced_behind_an_answer() -> None:
    """A primary may wait for the next acknowledgement before it sends more."""
    async with connected(read_ahead=False) as case:
        case.cost_s = 0.002
        case.answer = b"ack"
        case.read(b"one", b"two")
        assert case.received == [b"one", b"two"]


async def test_coalesced_reads_wait_while_held_and_come_before_the_end() -> None:
    """Holding and closing treat it as what was read ahead."""
    async with connected(read_ahead=False) as case:
        case.cost_s = 0.002
        case.read(b"one", b"two")
        case.connection.hold(True)
        await wait_until(lambda: case.connection._coalescing is None)
        await asyncio.sleep(0)
        assert case.received == [b"one"]
        case.connection.hold(False)
        await wait_until(lambda: case.received == [b"one", b"two"])
        case.read(b"three")
        assert case.peer is not None
        case.peer.close()
        await asyncio.wait_for(case.connection.closed.wait(), 30)
        assert case.total() == b"onetwothree"


async def test_the_order_is_kept_when_reading_ahead_ends() -> None:
    """What waits is handed over before what is read later."""
    async with connected(read_ahead=True) as case:
        for data in (b"one", b"two"):
            case.connection.data_received(data)
            case.connection.read_ahead = False
        assert case.received == []
        await wait_until(lambda: case.total() == b"onetwo")


@pytest.mark.parametrize("read_ahead", [False, True])
async def test_nothing_is_handed_over_while_held(read_ahead: bool) -> None:
    """What was read before and what comes then waits, the socket included, and follows in order."""
    async with connected(read_ahead=read_ahead) as case:
        for data in (b"one", b"two"):
            case.connection.data_received(data)
            case.connection.hold(True)
        sending = asyncio.create_task(case.send(b"x" * 20_000_000))
        before = case.total()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert case.total() == before
        assert not sending.done()
        case.connection.hold(False)
        await sending
        await wait_until(lambda: len(case.total()) == 20_000_006)
        assert case.total().startswith(b"onetwox")


async def test_reading_ahead_is_bounded() -> None:
    """Beyond the bound the socket has to wait; below half of it reading goes on."""
    async with connected(read_ahead=True, read_ahead_bytes_max=200_000) as case:
        sending = asyncio.create_task(case.send(b"x" * 8_000_000))
        peak = 0
        while len(case.total()) < 8_000_000:
            await asyncio.sleep(0)
            peak = max(peak, case.connection._pending_bytes)
        await sending
        assert 100_000 < peak <= 200_000 + 256 * 1024


async def test_what_was_read_is_handed_over_after_the_peer_closed() -> None:
    """The end is told behind the last byte."""
    async with connected(read_ahead=True) as case:
        await case.send(b"x" * 500_000)
        assert case.peer is not None
        case.peer.close()
        await asyncio.wait_for(case.connection.closed.wait(), 30)
        assert len(case.total()) == 500_000
        assert case.connection.error is None
        case.connection.write(b"too late")


async def test_an_aborted_connection_tells_its_error() -> None:
    """A reset is an error; an orderly end is none."""
    async with connected(read_ahead=False) as case:
        assert case.peer is not None
        case.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        case.peer.close()
        await asyncio.wait_for(case.connection.closed.wait(), 30)
        assert isinstance(case.connection.error, ConnectionError)


async def test_close_writes_what_is_left_and_drops_what_comes() -> None:
    """What was written arrives; what was read and not handed over is dropped."""
    async with connected(read_ahead=True) as case:
        case.connection.write(b"")
        case.connection.write(b"bye")
        case.connection.data_received(b"abc")
        await case.connection.close()
        assert case.peer is not None
        assert await asyncio.get_running_loop().sock_recv(case.peer, 100) == b"bye"
        assert case.received == []
        await case.connection.close()


async def test_what_comes_beside_a_disconnect_does_not_reset_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary that still sends reads the DISCONNECT, and the end of the stream; what it sent is dropped."""
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_S", 60.0)
    async with connected(read_ahead=True) as case:
        assert case.peer is not None
        loop = asyncio.get_running_loop()
        case.connection.hold(True)
        await case.send(b"x" * 100_000)
        case.connection.write(b"bye")
        closing = asyncio.create_task(case.connection.close(after_disconnect=True))
        assert await loop.sock_recv(case.peer, 100) == b"bye"
        assert await loop.sock_recv(case.peer, 100) == b""
        case.connection.write(b"too late")
        await case.send(b"y" * 100_000)  # with a reset the second of these would fail
        await case.send(b"y" * 100_000)
        case.peer.close()
        await closing
        assert case.connection.error is None
        assert case.received == []


async def test_close_does_not_wait_for_a_peer_that_does_not_read() -> None:
    """After a second the connection is aborted."""
    async with connected(read_ahead=False) as case:
        case.connection.write(b"x" * 50_000_000)
        await asyncio.wait_for(case.connection.close(), 30)
        assert case.connection.closed.is_set()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_attempt_that_is_cancelled_as_it_succeeds_can_be_closed(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """In the very turn in which the protocol got its transport: uvloop would never tell it of the end."""
    attempt: asyncio.Task[int | None]

    class Cancelling(LinkConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            attempt.cancel()

    async def cancel_and_close(listener: socket.socket) -> bool:
        nonlocal attempt
        connection = Cancelling(on_data=lambda data: None, on_closed=lambda: None, read_ahead_bytes_max=1)
        address = Address("mqtt", "127.0.0.1", listener.getsockname()[1])
        attempt = asyncio.create_task(connect(connection, address, receive_buffer_bytes=1 << 16, timeout_s=30.0))
        await asyncio.wait([attempt])
        assert attempt.cancelled()
        await asyncio.wait_for(connection.close(), 30)
        return connection.closed.is_set()

    with socket.socket() as listener, asyncio.Runner(loop_factory=loop_factory) as runner:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert runner.run(cancel_and_close(listener))


async def test_reading_stops_while_the_peer_does_not_read() -> None:
    """When acknowledgements pile up, nothing more is read until they are gone."""
    async with connected(read_ahead=False) as case:
        case.connection.write(b"x" * 20_000_000)
        await case.send(b"later")
        await asyncio.sleep(0)
        assert case.received == []
        loop = asyncio.get_running_loop()
        assert case.peer is not None
        got = 0
        while got < 20_000_000:
            got += len(await loop.sock_recv(case.peer, 1 << 20))
        await wait_until(lambda: case.total() == b"later")


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the system has no such option")
async def test_small_reads_are_acknowledged_at_once() -> None:
    """A primary with Nagle's algorithm sends the second of two small packets without waiting for a delayed one."""
    async with connected(read_ahead=False) as case:
        assert case.peer is not None
        case.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        loop = asyncio.get_running_loop()
        quick = 0
        async with asyncio.timeout(60):
            while quick < 5:  # the system's delay is 40 ms; a busy machine makes some longer, not all
                case.connection.write(b"asked")  # from here on the system counts it as a dialogue, and delays
                await loop.sock_recv(case.peer, 100)
                before = len(case.total())
                started = loop.time()
                await case.send(b"one")
                await case.send(b"two")
                await wait_until(lambda: len(case.total()) == before + 6, what="both")  # noqa: B023
                quick += loop.time() - started < 0.035


async def test_closing_before_connecting_is_allowed() -> None:
    """A connection that was never made has nothing to close."""
    connection = LinkConnection(on_data=lambda _: None, on_closed=lambda: None, read_ahead_bytes_max=1)
    connection.write(b"nowhere")
    await connection.close()
    assert not connection.closed.is_set()


async def test_the_receive_buffer_is_as_large_as_asked() -> None:
    """SO_RCVBUF is set before the connection, so that the window can grow that far."""
    async with connected(read_ahead=False, receive_buffer_bytes=100_000) as case:
        endpoint = case.connection.socket
        assert endpoint is not None
        assert endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 100_000
        assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_receive_buffer_that_is_not_granted_is_left_to_the_system() -> None:
    """More than the system allows: then the buffer keeps growing by itself rather than being fixed too small."""
    async with connected(read_ahead=False, receive_buffer_bytes=1 << 30) as case:
        await case.send(b"x")
        await wait_until(lambda: case.total() == b"x")


def refused() -> Address:
    """Return an address where nothing listens."""
    return Address("mqtt", "127.0.0.1", free_port())


def unknown() -> Address:
    """Return a name that does not exist."""
    return Address("mqtt", "no-such-host.invalid", 1883)


@pytest.mark.parametrize(("make_address", "reason"), [(refused, "Connection refused"), (unknown, "")])
async def test_an_address_that_does_not_answer_is_an_error(make_address: Callable[[], Address], reason: str) -> None:
    """The error names the address and the system's reason."""
    address = make_address()
    connection = LinkConnection(on_data=lambda _: None, on_closed=lambda: None, read_ahead_bytes_max=1)
    with pytest.raises(PrimaryUnreachable) as raised:
        await connect(connection, address, receive_buffer_bytes=1 << 16, timeout_s=20.0)
    assert raised.value.message.startswith(f"cannot connect to {address}: {reason}")
    assert raised.value.hint


async def test_connecting_has_an_end() -> None:
    """A peer whose queue of connections is full lets us wait; not for ever."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = Address("mqtt", "127.0.0.1", listener.getsockname()[1])
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", address.port))
        connection = LinkConnection(on_data=lambda _: None, on_closed=lambda: None, read_ahead_bytes_max=1)
        with pytest.raises(PrimaryUnreachable, match=r"no answer within 0\.2 s"):
            await connect(connection, address, receive_buffer_bytes=1 << 16, timeout_s=0.2)
        for filler in fillers:
            filler.close()


def test_a_costly_stream_leaves_turns_to_other_sockets() -> None:
    """The event loop reads up to 32 times in a row while the buffer is filled; a costly read ends that."""

    async def flood() -> int:
        async with connected(read_ahead=False, receive_buffer_bytes=4 << 20) as case:
            assert case.peer is not None
            peer = case.peer.dup()
            peer.setblocking(True)
            case.cost_s = 0.01
            in_a_turn = most = 0
            take = case.take

            def costly(data: bytes) -> None:
                nonlocal in_a_turn
                in_a_turn += 1
                time.sleep(0.01)  # the peer fills the receive buffer meanwhile
                take(data)

            case.connection._on_mqtt = case.connection._on_data = costly
            sending = asyncio.create_task(asyncio.to_thread(peer.sendall, bytes(16 << 20)))
            while len(case.total()) < 16 << 20:
                most = max(most, in_a_turn)
                in_a_turn = 0
                await asyncio.sleep(0)
            await sending
            peer.close()
            return most

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(flood()) == 1
