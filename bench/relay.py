"""The least that a server can do: it hands each byte on to every subscriber. `python -m bench.relay PORT`.

It replaces the server in the self-test of the load generator, and shows the limit of loopback. It decodes only the
first packets of a connection, and acknowledges at QoS 1 by counting bytes. It is no MQTT server: topics and filters
mean nothing to it, packets have one size for the life of a publisher.
"""

from __future__ import annotations

import selectors
import socket
import sys
from dataclasses import dataclass, field

__all__ = ["serve"]

_READ_BYTES = 1 << 20
_PUBACKS = b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, 65536)) * 2
_CONNACK = b"\x20\x02\x00\x00"


@dataclass(slots=True)
class _Publisher:
    size: int
    qos: int
    read_bytes: int = 0
    acknowledged: int = 0


@dataclass(slots=True)
class _Relay:
    subscribers: list[socket.socket] = field(default_factory=list)
    publishers: dict[socket.socket, _Publisher] = field(default_factory=dict)

    def receive(self, client: socket.socket) -> bool:
        """Take what has arrived on one connection; return False when it is over."""
        data = client.recv(_READ_BYTES)
        if not data:
            return False
        publisher = self.publishers.get(client)
        if publisher is None and data[0] & 0xF0 == 0x30:
            size = data[1] + 2 if data[1] < 0x80 else (data[1] & 0x7F) + (data[2] << 7) + 3
            publisher = self.publishers[client] = _Publisher(size, data[0] >> 1 & 3)
        if publisher is not None:
            self._hand_on(client, publisher, data)
        elif data[0] == 0x10:
            client.sendall(_CONNACK)
        elif data[0] == 0x82:
            client.sendall(b"\x90\x03" + data[2:4] + data[-1:])
            self.subscribers.append(client)
        return True  # anything else acknowledges

    def _hand_on(self, client: socket.socket, publisher: _Publisher, data: bytes) -> None:
        for subscriber in self.subscribers:
            subscriber.sendall(data)
        publisher.read_bytes += len(data)
        if publisher.qos:
            whole = publisher.read_bytes // publisher.size
            first = publisher.acknowledged % 65535
            client.sendall(memoryview(_PUBACKS)[first * 4 : (first + whole - publisher.acknowledged) * 4])
            publisher.acknowledged = whole

    def forget(self, client: socket.socket) -> None:
        """Close one connection."""
        self.publishers.pop(client, None)
        if client in self.subscribers:
            self.subscribers.remove(client)
        client.close()


def serve(port: int) -> None:
    """Relay on `port` of loopback until the process is ended."""
    relay = _Relay()
    with socket.create_server(("127.0.0.1", port), backlog=1000) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    client, _address = listener.accept()
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(client, selectors.EVENT_READ)
                    continue
                client = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                try:
                    goes_on = relay.receive(client)
                except ConnectionError:
                    goes_on = False
                if not goes_on:
                    selector.unregister(client)
                    relay.forget(client)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
