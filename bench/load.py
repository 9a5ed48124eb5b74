"""The load generator's sending side: raw sockets and packets encoded beforehand.

It must never be what is measured: a publisher writes prepared buffers, and counts acknowledgements by their bytes.
Every PUBLISH of a run has one size, so that the readers (`bench.readers`) may count bytes. It knows no server.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time

from fanout.mqtt.packets import Connect, encode
from fanout.mqtt.publish import encode_publish

__all__ = ["VERSION", "connect", "expect", "packet_bytes", "publish", "publish_paced", "publishes", "topic"]

VERSION = 4
"""The benchmarks speak MQTT 3.1.1, which every peer does, unless they say otherwise."""

_READ_BYTES = 1 << 20
_PATIENCE_S = 60
_PAUSE_S = 0.001
_PUBACK_BYTES = 4
_STAMP = struct.Struct("=Q")
"""A time of `time.monotonic_ns`, which all processes of a machine share, at the start of a payload."""


def connect(
    port: int,
    client_id: str,
    *,
    receive_buffer_bytes: int = 0,
    version: int = VERSION,
    durable: bool = False,
    resume: bool = False,
) -> socket.socket:
    """Open a connection with a new session and wait for its CONNACK.

    Args:
        port: On loopback.
        client_id: Client Identifier.
        receive_buffer_bytes: Size of the socket's receive buffer; 0: as the system likes.
        version: Protocol Level: 4 (MQTT 3.1.1) or 5.
        durable: True if the session outlives the connection; over MQTT 3.1.1.
        resume: True to go on with such a session in place of a new one.

    Raises:
        ConnectionError: There is no such session, or the client is refused.
    """
    if durable:
        connect(port, client_id).close()  # which ends a former one
    client = socket.socket()
    client.settimeout(_PATIENCE_S)
    if receive_buffer_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    # Closed with a reset, thousands of connections leave no port behind that waits for its peer.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.connect(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(
        encode(
            Connect(client_id=client_id, version=version, clean_start=not (durable or resume), keep_alive=0),
            version=version,
        )
    )
    remaining = expect(client, 2, b"\x20")[1]
    code = expect(client, remaining, b"\x01" if resume else b"\0")[1]
    if code:
        client.close()
        raise ConnectionError(f"the server refuses the client with 0x{code:02x}")
    return client


def expect(client: socket.socket, size: int, first: bytes) -> bytes:
    """Read one packet of `size` bytes.

    Raises:
        ConnectionError: It does not start with `first`, or the connection was closed.
    """
    answer = b""
    while len(answer) < size:
        piece = client.recv(size - len(answer))
        if not piece:
            raise ConnectionError("the server closed the connection")
        answer += piece
    if answer[:1] != first:
        raise ConnectionError(f"expected a packet that starts with {first.hex()}, got {answer.hex()}")
    return answer


def topic(root: str, number: int) -> bytes:
    """Return topic `number` below `root`; all have one length when the roots have."""
    return b"%s/t/%07d" % (root.encode(), number)


def publishes(
    messages: int,
    *,
    root: str,
    topics: int,
    payload_bytes: int,
    qos: int,
    retain: bool = False,
    start: int = 0,
    version: int = VERSION,
) -> bytes:
    """Return PUBLISH packets of one size, spread evenly over `topics` topics.

    Args:
        messages: Number of them.
        root: First level of their topics.
        topics: Number of topics.
        payload_bytes: Size of each payload.
        qos: 0 or 1.
        retain: The RETAIN flag.
        start: Number of the first message, for a piece of a longer row.
        version: Protocol Level.
    """
    payload = b"x" * payload_bytes
    return b"".join(
        encode_publish(
            topic(root, number % topics),
            payload,
            version=version,
            qos=qos,
            retain=retain,
            packet_id=number % 65535 + 1 if qos else 0,
        )
        for number in range(start, start + messages)
    )


def packet_bytes(*, root: str, payload_bytes: int, qos: int, version: int = VERSION) -> int:
    """Return the size of each packet of `publishes`."""
    return len(publishes(1, root=root, topics=1, payload_bytes=payload_bytes, qos=qos, version=version))


def publish(client: socket.socket, packets: bytes, *, messages: int, qos: int) -> None:
    """Write prepared packets at once; at QoS 1 read the acknowledgements meanwhile, and return when all have come."""
    if qos == 0:
        client.sendall(packets)
        return
    client.setblocking(False)
    sent, acknowledged, view = 0, 0, memoryview(packets)
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while acknowledged < messages * _PUBACK_BYTES:
            ready = selector.select(_PATIENCE_S)
            if not ready:
                raise TimeoutError(f"{messages - acknowledged // _PUBACK_BYTES} messages were not acknowledged")
            for _, events in ready:
                if events & selectors.EVENT_READ:
                    acknowledged += len(client.recv(_READ_BYTES))
                if events & selectors.EVENT_WRITE and sent < len(packets):
                    sent += client.send(view[sent : sent + _READ_BYTES])
                    if sent == len(packets):
                        selector.modify(client, selectors.EVENT_READ)
            if sent == len(packets):
                time.sleep(_PAUSE_S)  # a core of this machine is worth more to the servers than to a busy reader
    client.settimeout(_PATIENCE_S)


def publish_paced(client: socket.socket, *, messages: int, per_s: float, root: str, payload_bytes: int) -> None:
    """Publish at QoS 0 at an even rate; each payload starts with the time at which it is written.

    The rate is kept in ticks of a millisecond or more: what is due at a tick is written at once.
    """
    packet = publishes(1, root=root, topics=1, payload_bytes=payload_bytes, qos=0)
    head, tail = packet[:-payload_bytes], packet[len(packet) - payload_bytes + _STAMP.size :]
    started, sent = time.monotonic(), 0
    while sent < messages:
        due = min(messages, int((time.monotonic() - started) * per_s) + 1)
        if due > sent:
            client.sendall((head + _STAMP.pack(time.monotonic_ns()) + tail) * (due - sent))
            sent = due
        time.sleep(max(_PAUSE_S, started + sent / per_s - time.monotonic()))
