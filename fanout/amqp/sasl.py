"""SASL at the beginning of a connection (AMQP 1.0, part 5.3), up to the header of AMQP.

A machine: bytes in; `credentials` out, or an end. The engine's own SASL checks no passwords.
"""

from __future__ import annotations

import enum
from typing import Final

from fanout.amqp import values
from fanout.amqp.values import AmqpInvalid, AmqpValue, Described, Reader

__all__ = ["AMQP_HEADER", "SASL_HEADER", "Sasl", "SaslOutcome"]

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
_FRAME_BYTES_MAX: Final = 512 + 64 * 1024
"""Limit of a frame: MIN-MAX-FRAME-SIZE, and some more for long passwords."""
_FIELD_BYTES_MAX: Final = 0xFFFF
"""Limit of a user name and of a password, which go on in a CONNECT of MQTT."""
_MECHANISMS, _INIT, _OUTCOME = 0x40, 0x41, 0x44


class SaslOutcome(enum.IntEnum):
    """Outcome of SASL."""

    OK = 0
    AUTH = 1
    """The credentials are not right."""
    SYS_TEMP = 4
    """Nobody can say now."""


class Sasl:
    """The server's side of SASL."""

    def __init__(self, *, has_certificate: bool) -> None:
        """Begin.

        Args:
            has_certificate: True to offer EXTERNAL.
        """
        self._mechanisms = (["EXTERNAL"] if has_certificate else []) + ["PLAIN", "ANONYMOUS"]
        self._buffer = b""
        self._greeted = False
        self.mechanism = ""
        """The mechanism that the client has chosen; empty before."""
        self.username: str | None = None
        """User Name, with PLAIN."""
        self.password: bytes | None = None
        """Password, with PLAIN."""
        self.done = False
        """True once the header of AMQP has come after an outcome."""
        self.decided = False
        """True once the client has been told the outcome."""

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the client.

        Returns:
            Bytes to write; empty for none.

        Raises:
            AmqpInvalid: The client breaks the protocol; the header of SASL is the answer.
        """
        self._buffer += data
        answer = b""
        if not self._greeted and len(self._buffer) >= 8:
            self._take_header(SASL_HEADER)
            self._greeted = True
            answer = SASL_HEADER + _frame(_MECHANISMS, values.array_of_symbols(self._mechanisms))
        if self._greeted and not self.mechanism:
            self._read_init()
        if self.decided and len(self._buffer) >= 8:
            self._take_header(AMQP_HEADER)
            self.done = True
        return answer

    def end(self, outcome: SaslOutcome) -> bytes:
        """Return the frame that tells the client the outcome."""
        self.decided = True
        return _frame(_OUTCOME, values.ubyte(outcome))

    def rest(self) -> bytes:
        """Return the header of AMQP and the bytes after it."""
        rest, self._buffer = self._buffer, b""
        return AMQP_HEADER + rest

    def _take_header(self, header: bytes) -> None:
        if self._buffer[:8] != header:
            raise AmqpInvalid("another protocol")
        self._buffer = self._buffer[8:]

    def _read_init(self) -> None:
        if len(self._buffer) < 8:
            return
        size = int.from_bytes(self._buffer[:4], "big")
        offset, kind = 4 * self._buffer[4], self._buffer[5]
        if not 8 <= offset <= size <= _FRAME_BYTES_MAX or kind != 1:
            raise AmqpInvalid("not a frame of SASL")
        if len(self._buffer) < size:
            return
        frame, self._buffer = self._buffer[offset:size], self._buffer[size:]
        init = Reader(frame).read()
        if not isinstance(init, Described) or init.descriptor != _INIT or not isinstance(init.value, list):
            raise AmqpInvalid("not a sasl-init")
        fields: list[AmqpValue] = [*init.value, None, None]
        mechanism, response = fields[:2]
        if mechanism not in self._mechanisms:
            raise AmqpInvalid("a mechanism that was not offered")
        assert isinstance(mechanism, str)
        if mechanism == "PLAIN":
            parts = response.split(b"\0") if isinstance(response, bytes) else []
            if len(parts) != 3:
                raise AmqpInvalid("not a response of PLAIN")
            try:
                self.username, self.password = parts[1].decode(), parts[2]
            except UnicodeDecodeError:
                raise AmqpInvalid("not a response of PLAIN") from None
            if max(map(len, parts)) > _FIELD_BYTES_MAX:
                raise AmqpInvalid(f"a user name or a password of more than {_FIELD_BYTES_MAX:,} bytes")
        self.mechanism = mechanism


def _frame(code: int, *fields: bytes) -> bytes:
    body = values.described(code, values.list_of(*fields))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body
