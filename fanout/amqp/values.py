"""Values of AMQP 1.0 (part 1, types): a strict reader with bounds, and the encodings that the door writes.

The protocol engine reads performatives; this reads what it leaves to its user: SASL frames and sections of messages.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fanout.errors import FanoutError

__all__ = [
    "NULL",
    "AmqpInvalid",
    "AmqpValue",
    "Described",
    "Reader",
    "Symbol",
    "array_of_symbols",
    "binary",
    "boolean",
    "described",
    "int32",
    "list_of",
    "map_of",
    "string",
    "symbol",
    "ubyte",
    "uint",
]

VALUES_MAX: Final = 10_000
"""Limit of the values of one message: each takes some microseconds, and a byte of it may be one."""
DEPTH_MAX: Final = 8
"""Limit of nested lists, maps and described values."""


class AmqpInvalid(FanoutError):
    """Bytes of a peer that are not valid AMQP, or beyond a bound."""


class Symbol(str):
    """A symbol: text of ASCII characters from a domain."""

    __slots__ = ()


class Described(NamedTuple):
    """A described value."""

    descriptor: AmqpValue
    value: AmqpValue


AmqpValue: TypeAlias = (
    bool | int | float | bytes | str | Symbol | Described | Sequence["AmqpValue"] | Mapping[str, "AmqpValue"] | None
)
"""A decoded value. Arrays, decimals, floats, characters and UUIDs are their bytes."""

_FIXED: Final[dict[int, struct.Struct]] = {
    0x50: struct.Struct(">B"),
    0x51: struct.Struct(">b"),
    0x52: struct.Struct(">B"),
    0x53: struct.Struct(">B"),
    0x54: struct.Struct(">b"),
    0x55: struct.Struct(">b"),
    0x60: struct.Struct(">H"),
    0x61: struct.Struct(">h"),
    0x70: struct.Struct(">I"),
    0x71: struct.Struct(">i"),
    0x72: struct.Struct(">f"),
    0x80: struct.Struct(">Q"),
    0x81: struct.Struct(">q"),
    0x82: struct.Struct(">d"),
    0x83: struct.Struct(">q"),
}
_CONSTANT: Final[dict[int, AmqpValue]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_OPAQUE_BYTES: Final = {0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16, 0x98: 16}
_SIZED: Final = frozenset({0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0})


class Reader:
    """Reads values one after the other."""

    def __init__(self, data: bytes) -> None:
        """Begin.

        Args:
            data: All the bytes.
        """
        self._data = data
        self._pos = 0
        self._values_left = VALUES_MAX

    @property
    def at_end(self) -> bool:
        """True once all bytes are read."""
        return self._pos >= len(self._data)

    def read(self, depth: int = 0) -> AmqpValue:
        """Read the next value.

        Raises:
            AmqpInvalid: It is not valid, or the bytes hold too many values, or too deep ones.
        """
        self._values_left -= 1
        if self._values_left < 0 or depth > DEPTH_MAX:
            raise AmqpInvalid("too many values")
        code = self._take(1)[0]
        if code == 0x45:
            return []
        if code in _CONSTANT:
            return _CONSTANT[code]
        if code == 0x00:
            descriptor = self.read(depth + 1)
            return Described(descriptor, self.read(depth + 1))
        if code == 0x56:
            return self._take(1) != b"\0"
        if fixed := _FIXED.get(code):
            value: int | float = fixed.unpack(self._take(fixed.size))[0]
            return value
        if code in _OPAQUE_BYTES:
            return self._take(_OPAQUE_BYTES[code])
        if code not in _SIZED:
            raise AmqpInvalid(f"no type has the code 0x{code:02x}")
        width = 1 if code & 0x10 == 0 else 4
        data = self._take(int.from_bytes(self._take(width), "big"))
        kind = code & 0xEF
        if kind in (0xA0, 0xE0):
            return data
        if kind in (0xA1, 0xA3):
            return _text(data, is_symbol=kind == 0xA3)
        return self._compound(data, width, is_map=kind == 0xC1, depth=depth)

    def _compound(self, data: bytes, width: int, *, is_map: bool, depth: int) -> AmqpValue:
        if len(data) < width:
            raise AmqpInvalid("a list or a map without a count")
        count = int.from_bytes(data[:width], "big")
        if count > len(data) - width:  # each value has at least one byte
            raise AmqpInvalid("a list or a map is shorter than its count")
        part = Reader(data[width:])
        part._values_left = self._values_left
        values = [part.read(depth + 1) for _ in range(count)]
        self._values_left = part._values_left
        if not part.at_end or (is_map and count % 2):
            raise AmqpInvalid("a list or a map is longer than its count")
        if not is_map:
            return values
        return {key: value for key, value in zip(values[::2], values[1::2], strict=True) if isinstance(key, str)}

    def _take(self, count: int) -> bytes:
        data = self._data[self._pos : self._pos + count]
        if len(data) < count:
            raise AmqpInvalid("a value ends too early")
        self._pos += count
        return data


def _text(data: bytes, *, is_symbol: bool) -> str:
    try:
        return Symbol(data.decode("ascii")) if is_symbol else data.decode()
    except UnicodeDecodeError:
        raise AmqpInvalid("text is not valid") from None


NULL: Final = b"\x40"


def boolean(value: bool) -> bytes:
    """Encode a boolean."""
    return b"\x41" if value else b"\x42"


def ubyte(value: int) -> bytes:
    """Encode an unsigned byte."""
    return bytes((0x50, value))


def uint(value: int) -> bytes:
    """Encode an unsigned integer of 32 bits."""
    return b"\x70" + value.to_bytes(4, "big")


def int32(value: int) -> bytes:
    """Encode a signed integer of 32 bits."""
    return b"\x71" + value.to_bytes(4, "big", signed=True)


def binary(data: bytes) -> bytes:
    """Encode bytes."""
    return _sized(0xA0, data)


def string(data: bytes) -> bytes:
    """Encode text that is UTF-8 already."""
    return _sized(0xA1, data)


def symbol(text: str) -> bytes:
    """Encode a symbol."""
    return _sized(0xA3, text.encode("ascii"))


def list_of(*values: bytes) -> bytes:
    """Encode a list of encoded values."""
    return _compound(0xC0, len(values), b"".join(values))


def map_of(*pairs: bytes) -> bytes:
    """Encode a map of encoded keys and values, in turn."""
    return _compound(0xC1, len(pairs), b"".join(pairs))


def array_of_symbols(texts: Sequence[str]) -> bytes:
    """Encode an array of symbols."""
    items = b"".join(bytes((len(text),)) + text.encode("ascii") for text in texts)
    return _compound(0xE0, len(texts), b"\xa3" + items)


def described(code: int, value: bytes) -> bytes:
    """Encode a described value whose descriptor is a small number."""
    return bytes((0x00, 0x53, code)) + value


def _sized(code: int, data: bytes) -> bytes:
    if len(data) < 256:
        return bytes((code, len(data))) + data
    return bytes((code | 0x10,)) + len(data).to_bytes(4, "big") + data


def _compound(code: int, count: int, data: bytes) -> bytes:
    if len(data) < 255 and count < 256:
        return bytes((code, len(data) + 1, count)) + data
    return bytes((code | 0x10,)) + (len(data) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + data
