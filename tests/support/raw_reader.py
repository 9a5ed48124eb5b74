"""A quick subscriber over MQTT 3.1.1 at QoS 0, for sets of hundreds of thousands of topics.

It parses PUBLISH packets by itself, without fanout's codec: it is the independent side. Libraries take a
minute for what it reads in a second.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["RawReader", "read_retained"]

_READ_BYTES = 1 << 20
_CONNECT = b"\x10%c\x00\x04MQTT\x04%c\x00\x00%b"
_CLEAN, _CLEAN_WITH_USER_NAME = 0x02, 0x82
_PUBLISH, _SUBACK, _PINGRESP = 3, 9, 13


class RawReader:
    """One Network Connection that subscribes and reads.

    Attributes:
        values: Topic to the newest payload received, of retained and of live messages.
        messages: How many PUBLISH packets came.
        retained: How many of them had RETAIN set.
    """

    def __init__(self, port: int, *, client_id: str = "raw-reader", username: str = "") -> None:
        self.values: dict[str, bytes] = {}
        self.messages = 0
        self.retained = 0
        self._buffer = b""
        self._answers: list[int] = []
        self._connection = socket.create_connection(("127.0.0.1", port), 60)
        texts = [text.encode() for text in (client_id, username) if text]
        payload = b"".join(len(text).to_bytes(2, "big") + text for text in texts)
        flags = _CLEAN_WITH_USER_NAME if username else _CLEAN
        try:
            self._connection.sendall(_CONNECT % (10 + len(payload), flags, payload))
            self._await(2, deadline_s=60)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def subscribe(self, topic_filter: str, *, deadline_s: float = 60.0) -> None:
        """Subscribe and read all retained messages: until the answer to a PINGREQ sent behind SUBSCRIBE."""
        name = topic_filter.encode()
        self._connection.sendall(
            b"\x82%c\x00\x01%b%b\x00\xc0\x00" % (len(name) + 5, len(name).to_bytes(2, "big"), name)
        )
        self._await(_SUBACK, deadline_s=deadline_s)
        self._await(_PINGRESP, deadline_s=deadline_s)

    def read_until(self, condition: Callable[[], bool], *, what: str, deadline_s: float = 60.0) -> None:
        """Read until `condition` holds.

        Raises:
            TimeoutError: It did not hold in time.
        """
        end = time.monotonic() + deadline_s
        while not condition():
            self._connection.settimeout(max(0.01, end - time.monotonic()))
            try:
                data = self._connection.recv(_READ_BYTES)
            except TimeoutError:
                raise TimeoutError(
                    f"{what} did not happen within {deadline_s:g} s, {len(self.values)} values"
                ) from None
            assert data, "the server closed the connection"
            self._parse(self._buffer + data)

    def _await(self, kind: int, *, deadline_s: float) -> None:
        self.read_until(lambda: kind in self._answers, what=f"a packet of type {kind}", deadline_s=deadline_s)
        self._answers.remove(kind)

    def _parse(self, buffer: bytes) -> None:
        pos, end = 0, len(buffer)
        while pos + 2 <= end:
            length, start, shift = 0, pos + 1, 0
            while start < end:
                byte = buffer[start]
                length |= (byte & 0x7F) << shift
                start, shift = start + 1, shift + 7
                if byte < 0x80:
                    break
            else:
                break
            stop = start + length
            if stop > end:
                break
            first = buffer[pos]
            if first >> 4 == _PUBLISH:
                assert not first & 6, "subscribed at QoS 0, so nothing may come at a higher one"
                topic_end = start + 2 + int.from_bytes(buffer[start : start + 2], "big")
                self.values[buffer[start + 2 : topic_end].decode()] = buffer[topic_end:stop]
                self.messages += 1
                self.retained += first & 1
            else:
                self._answers.append(first >> 4)
            pos = stop
        self._buffer = buffer[pos:]


def read_retained(port: int, topic_filter: str = "#") -> dict[str, bytes]:
    """Return what a new subscriber reads: topics and their retained values."""
    with RawReader(port) as reader:
        reader.subscribe(topic_filter)
    return reader.values
