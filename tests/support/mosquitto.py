"""A real Mosquitto on a free port, and a fast way to fill it.

The process is that of the benchmarks (`bench.processes.Mosquitto`): its default configuration, apart from the
listener, anonymous access and the account it runs under; tests add settings one by one. The module must not
use fanout's own codec: it is the independent side.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from bench.processes import Mosquitto, find_mosquitto, free_port
from tests.support.waiting import wait_until_blocking

__all__ = [
    "Mosquitto",
    "find_mosquitto",
    "free_port",
    "load_retained",
    "publish_all",
    "publisher",
    "save_with_session",
]


def load_retained(port: int, values: Iterable[tuple[str, bytes]], *, host: str = "127.0.0.1") -> int:
    """Publish retained values at QoS 0 as fast as the server reads; return their number when it has them all.

    The packets are encoded here (MQTT 3.1.1) and written in large pieces. A server handles the packets of one
    connection in order, so the answer to a final PINGREQ says that all of them were handled.
    """
    count = 0
    with socket.create_connection((host, port), 60) as connection:
        connection.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04load")
        _expect(connection, b"\x20\x02\x00\x00")
        piece = bytearray()
        for topic, payload in values:
            name = topic.encode()
            piece += b"\x31" + _varint(2 + len(name) + len(payload)) + len(name).to_bytes(2, "big") + name + payload
            count += 1
            if len(piece) > 1 << 18:
                connection.sendall(piece)
                piece.clear()
        connection.sendall(bytes(piece) + b"\xc0\x00")
        _expect(connection, b"\xd0\x00")
        connection.sendall(b"\xe0\x00")
    return count


@contextmanager
def publisher(
    port: int, *, host: str = "127.0.0.1", version: int = 5, client_id: str = "", username: str | None = None
) -> Iterator[paho.Client]:
    """Give a connected paho-mqtt client whose network loop runs in a thread.

    Args:
        port: The server's port.
        host: The server's host.
        version: 5, or 4 for MQTT 3.1.1.
        client_id: Its Client Identifier; empty lets the server choose.
        username: User Name; None for none.
    """
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        protocol=paho.MQTTv5 if version == 5 else paho.MQTTv311,
    )
    if username is not None:
        client.username_pw_set(username, "")
    client.connect(host, port)
    client.loop_start()
    try:
        wait_until_blocking(client.is_connected, what="the publisher's CONNACK")
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def publish_all(
    client: paho.Client,
    messages: Iterable[tuple[str, bytes]],
    *,
    qos: int = 1,
    retain: bool = True,
    properties: Properties | None = None,
) -> int:
    """Publish `messages` and wait until the server has taken them all; return their number."""
    handles = [client.publish(topic, payload, qos, retain, properties) for topic, payload in messages]
    for handle in handles:
        handle.wait_for_publish(60)
        assert handle.is_published()
    return len(handles)


def save_with_session(mosquitto: Mosquitto, store: Path, *, client_id: str) -> None:
    """Have Mosquitto write `store`, its persistent store, with the session of a client in it.

    Mosquitto 2.0.11 does so only while the client's newest CONNECT was one without Clean Start.
    """
    assert mosquitto.process is not None
    store.unlink(missing_ok=True)
    mosquitto.process.send_signal(signal.SIGUSR1)
    wait_until_blocking(store.exists, what="Mosquitto's store being written")  # and then renamed
    assert client_id.encode() in store.read_bytes()


def _expect(connection: socket.socket, wanted: bytes) -> None:
    answer = b""
    while len(answer) < len(wanted):
        data = connection.recv(len(wanted) - len(answer))
        if not data:
            break
        answer += data
    assert answer == wanted, f"the server answered {answer!r}, not {wanted!r}"


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, low = divmod(value, 128)
        encoded.append(low | (0x80 if value else 0))
        if not value:
            return bytes(encoded)
