"""The load generator: raw sockets, packets encoded beforehand, subscribers that count bytes of fixed-size packets.

It must never be what is measured. A publisher writes one prepared buffer; the subscribers of a run share one
process that reads whatever has arrived and counts, and, at QoS 1, acknowledges every whole packet of a read
with one write.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from fanout.mqtt.packets import Connect, Subscribe, Subscription, encode
from fanout.mqtt.publish import encode_publish

__all__ = ["Subscribers", "burst", "connect", "packet_bytes", "publish_burst"]

_READ_BYTES = 1 << 20
_VERSION = 4


def connect(port: int, client_id: str) -> socket.socket:
    """Open an MQTT 3.1.1 connection with a clean session and wait for its CONNACK."""
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(
        encode(Connect(client_id=client_id, version=_VERSION, clean_start=True, keep_alive=0), version=_VERSION)
    )
    _expect(client, 4, b"\x20")
    return client


def _expect(client: socket.socket, size: int, first: bytes) -> bytes:
    answer = b""
    while len(answer) < size:
        piece = client.recv(size - len(answer))
        if not piece:
            raise ConnectionError("the server closed the connection")
        answer += piece
    if answer[:1] != first:
        raise ConnectionError(f"expected a packet that starts with {first.hex()}, got {answer.hex()}")
    return answer


def burst(messages: int, *, topics: int, payload_bytes: int, qos: int) -> bytes:
    """Return `messages` PUBLISH packets of one size, spread over `topics` topics below `bench/`."""
    payload = b"x" * payload_bytes
    return b"".join(
        encode_publish(
            b"bench/%07d" % (number % topics),
            payload,
            version=_VERSION,
            qos=qos,
            packet_id=number % 65535 + 1 if qos else 0,
        )
        for number in range(messages)
    )


def packet_bytes(*, payload_bytes: int, qos: int) -> int:
    """Return the size of each packet of `burst`."""
    return len(burst(1, topics=1, payload_bytes=payload_bytes, qos=qos))


def publish_burst(client: socket.socket, packets: bytes, *, messages: int, qos: int) -> None:
    """Write prepared packets; at QoS 1 read the acknowledgements meanwhile, and return when all have come."""
    if qos == 0:
        client.sendall(packets)
        return
    client.setblocking(False)
    sent, acknowledged, view = 0, 0, memoryview(packets)
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while acknowledged < messages * 4:
            for _, events in selector.select(30):
                if events & selectors.EVENT_READ:
                    acknowledged += len(client.recv(_READ_BYTES))
                if events & selectors.EVENT_WRITE and sent < len(packets):
                    sent += client.send(view[sent : sent + _READ_BYTES])
                    if sent == len(packets):
                        selector.modify(client, selectors.EVENT_READ)
    client.setblocking(True)


@dataclass(frozen=True, slots=True)
class _Plan:
    port: int
    count: int
    qos: int
    packet_bytes: int


class Subscribers:
    """A process with `count` subscribers of `bench/#`; a context manager."""

    def __init__(self, port: int, *, count: int, qos: int, payload_bytes: int) -> None:
        self._pipe, child = multiprocessing.Pipe()
        plan = _Plan(port, count, qos, packet_bytes(payload_bytes=payload_bytes, qos=qos))
        self._process = multiprocessing.get_context("fork").Process(target=_subscribe, args=(plan, child), daemon=True)
        self._process.start()
        child.close()
        self._answer(60)

    def _answer(self, deadline_s: float) -> float:
        if not self._pipe.poll(deadline_s):
            raise TimeoutError(f"the subscribers did not answer within {deadline_s:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise ConnectionError(answer)
        return float(answer)

    def expect(self, messages: int) -> None:
        """Tell the subscribers how many messages make the next burst."""
        self._pipe.send(messages)

    def wait(self, *, deadline_s: float = 120.0) -> float:
        """Return the time (`time.monotonic`) at which the last subscriber had the whole burst."""
        return self._answer(deadline_s)

    def __enter__(self) -> Subscribers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


def _subscribe(plan: _Plan, pipe: Connection) -> None:
    """Run the subscribers' process: subscribe, then count bursts until the other end of the pipe closes."""
    try:
        clients = [connect(plan.port, f"bench-{number}") for number in range(plan.count)]
        request = encode(Subscribe(packet_id=1, subscriptions=(Subscription(b"bench/#", plan.qos),)), version=_VERSION)
        for client in clients:
            client.sendall(request)
            _expect(client, 5, b"\x90")
            client.setblocking(False)
        pipe.send(0.0)
        while True:
            messages = pipe.recv()
            _count(clients, messages, plan)
            pipe.send(time.monotonic())
    except EOFError:
        return
    except (OSError, ValueError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _count(clients: list[socket.socket], messages: int, plan: _Plan) -> None:
    wanted = messages * plan.packet_bytes
    identifier_at = plan.packet_bytes and 2 + 2 + len(b"bench/0000000")
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ, [0, b""])
        waiting = len(clients)
        buffer = bytearray(_READ_BYTES)
        while waiting:
            ready = selector.select(60)
            if not ready:
                raise TimeoutError(f"no byte for 60 s; {waiting} of {len(clients)} subscribers still wait")
            for key, _ in ready:
                subscriber, state = key.fileobj, key.data
                assert isinstance(subscriber, socket.socket)
                read = subscriber.recv_into(buffer)
                if not read:
                    raise ConnectionError("the server closed the connection of a subscriber")
                state[0] += read
                if plan.qos:
                    state[1] = _acknowledge(
                        subscriber, state[1] + bytes(buffer[:read]), plan.packet_bytes, identifier_at
                    )
                if state[0] >= wanted:
                    selector.unregister(subscriber)
                    waiting -= 1


def _acknowledge(client: socket.socket, data: bytes, size: int, identifier_at: int) -> bytes:
    """Answer every whole packet in `data` with a PUBACK, in one write; return what is left of a packet."""
    whole = len(data) // size
    acknowledgements = bytearray(b"\x40\x02\x00\x00" * whole)
    end = whole * size
    acknowledgements[2::4] = data[identifier_at:end:size]
    acknowledgements[3::4] = data[identifier_at + 1 : end : size]
    client.setblocking(True)
    client.sendall(acknowledgements)
    client.setblocking(False)
    return data[end:]
