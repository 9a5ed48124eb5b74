"""Client of MQTT that the door plays: one for each subscription of a JMS application, and one for its connection.

The server serves it as any client: with its rules, limits, quotas and sessions. Packets go to it by `send`, and come
from it by `take`. It waits while the server reads nothing, and makes the server wait by `hold`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from fanout.amqp.messages import Delivered, to_jms
from fanout.mqtt.decoder import Decoder, Item, PublishRun
from fanout.mqtt.packets import Packet, encode
from fanout.server.client.connection import ClientConnection

__all__ = ["MqttClient", "PacketCache"]

_HELD_BYTES: Final = 256 * 1024
"""Bytes that wait here before the server is made to wait."""
_CACHED_MAX: Final = 32
_CACHED_BYTES: Final = 4 * 1024 * 1024
_PACKET_BYTES: Final = 1 << 28


class PacketCache:
    """Packets of the server, decoded and encoded for JMS once for all clients that get the same bytes."""

    def __init__(self) -> None:
        self._decoder = Decoder(version=5, packet_bytes_max=_PACKET_BYTES, role="client")
        self._known: dict[int, tuple[bytes, list[Item | Delivered]]] = {}
        self._bytes = 0

    def read(self, data: bytes) -> list[Item | Delivered]:
        """Return whole packets; the list is shared, and must not be changed."""
        known = self._known.get(id(data))  # as long as it is known, no other object has its id
        if known is not None:
            return known[1]
        found: list[Item | Delivered] = []
        for item in self._decoder.feed(data):
            if isinstance(item, PublishRun):
                found += map(to_jms, item.rows)
            else:
                found.append(item)
        self._bytes += len(data)
        while self._known and (len(self._known) >= _CACHED_MAX or self._bytes > _CACHED_BYTES):
            oldest = self._known.pop(next(iter(self._known)))
            self._bytes -= len(oldest[0])
        self._known[id(data)] = data, found
        return found


class MqttClient(asyncio.Transport):
    """A client of MQTT 5, which is the transport of its connection at the server."""

    def __init__(self, connection: ClientConnection, *, cache: PacketCache, wake: Callable[[], None]) -> None:
        """Start the connection.

        Args:
            connection: A new connection of the server, with its slot.
            cache: Decodes packets.
            wake: Called when something waits to be taken, or the connection has ended; must not call the client.
        """
        super().__init__()
        self.connection = connection
        """Its connection at the server."""
        self.has_ended = False
        """True once the server has ended the connection."""
        self.reading = True
        """True while the server takes packets."""
        self._cache = cache
        self._wake = wake
        self._data: deque[bytes] = deque()
        self._bytes = 0
        self._items: deque[Item | Delivered] = deque()
        self._held = False
        connection.connection_made(self)

    def send(self, *packets: Packet | bytes) -> None:
        """Send packets to the server."""
        if not self.has_ended:
            for packet in packets:
                self.connection.receive(packet if isinstance(packet, bytes) else encode(packet, version=5))

    def take(self) -> Item | Delivered | None:
        """Take the next packet of the server; None when there is none."""
        items = self._items
        while not items:
            if not self._data:
                return None
            data = self._data.popleft()
            self._bytes -= len(data)
            items.extend(self._cache.read(data))
        return items.popleft()

    def put_back(self, items: Sequence[Item | Delivered]) -> None:
        """Put back what was taken, in its order, before all that waits."""
        self._items.extendleft(reversed(items))

    @property
    def has_waiting(self) -> bool:
        """True if messages wait for it, here or at the server."""
        session = self.connection.session
        return bool(self._items or self._data) or (session is not None and session.sender.pending)

    def hold(self, *, held: bool) -> None:
        """Make the server keep messages, or send them again."""
        if held is self._held or self.has_ended:
            return
        self._held = held
        if held:
            self.connection.pause_writing()
        else:
            self.connection.resume_writing()

    # The transport's side, for the connection.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take packets of the server; they are handled in another turn of the event loop."""
        data = bytes(data)
        self._data.append(data)
        self._bytes += len(data)
        if self._bytes > _HELD_BYTES:
            self.hold(held=True)
        self._wake()

    def is_closing(self) -> bool:
        """Return whether the connection has ended."""
        return self.has_ended

    def close(self) -> None:
        """End the connection: the server hears of it in the next turn of the event loop."""
        if not self.has_ended:
            self.has_ended = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)
            self._wake()

    abort = close

    def pause_reading(self) -> None:
        """Keep further packets."""
        self.reading = False

    def resume_reading(self) -> None:
        """Go on with packets."""
        self.reading = True
        self._wake()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait here."""
        return self._bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the link's credit is the limit."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the default: there is no socket."""
        return default
