"""Data types of MQTT (MQTT 5, section 1.5): integers, UTF-8 strings, binary data and string pairs.

Owns reading and writing one value at a position, and the two kinds of fault of a peer (section 1.2). Readers take the
whole body of a packet, so reading past its end is a Malformed Packet.
"""

from __future__ import annotations

from fanout.errors import ProtocolError
from fanout.mqtt.reason_codes import ReasonCode

__all__ = [
    "MAX_STRING_BYTES",
    "MAX_VARINT",
    "decode_binary",
    "decode_string",
    "decode_u16",
    "decode_u32",
    "decode_varint",
    "encode_binary",
    "encode_string",
    "encode_varint",
    "malformed",
    "protocol_error",
]

MAX_STRING_BYTES = 65_535
"""The longest UTF-8 Encoded String or Binary Data (MQTT 5, sections 1.5.4 and 1.5.6)."""
MAX_VARINT = 268_435_455
"""The largest Variable Byte Integer: four bytes of seven bits (MQTT 5, section 1.5.5)."""


def malformed(detail: str) -> ProtocolError:
    """Return the error for a packet that cannot be parsed (MQTT 5, section 1.2, "Malformed Packet")."""
    return ProtocolError(ReasonCode.MALFORMED_PACKET, detail)


def protocol_error(detail: str) -> ProtocolError:
    """Return the error for a packet that holds data that MQTT does not allow (MQTT 5, section 1.2)."""
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, detail)


def encode_varint(value: int) -> bytes:
    """Encode a Variable Byte Integer in its shortest form [MQTT-1.5.5-1].

    Raises:
        ValueError: `value` is negative or above 268,435,455.
    """
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= MAX_VARINT:
        raise ValueError(f"{value} does not fit a Variable Byte Integer")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_varint(data: bytes, pos: int) -> tuple[int, int]:
    """Return the Variable Byte Integer at `pos` and the position after it.

    Raises:
        ProtocolError: It is longer than four bytes, not the shortest form [MQTT-1.5.5-1], or cut off.
    """
    value = 0
    for index, byte in enumerate(data[pos : pos + 4]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if byte == 0 and index > 0:
                raise malformed("a Variable Byte Integer is not in its shortest form")
            return value, pos + index + 1
    if len(data) - pos >= 4:
        raise malformed("a Variable Byte Integer is longer than four bytes")
    raise malformed("a Variable Byte Integer is cut off")


def decode_u16(data: bytes, pos: int) -> tuple[int, int]:
    """Return the Two Byte Integer at `pos` and the position after it.

    Raises:
        ProtocolError: It is cut off.
    """
    stop = pos + 2
    if stop > len(data):
        raise malformed("a Two Byte Integer is cut off")
    return data[pos] << 8 | data[pos + 1], stop


def decode_u32(data: bytes, pos: int) -> tuple[int, int]:
    """Return the Four Byte Integer at `pos` and the position after it.

    Raises:
        ProtocolError: It is cut off.
    """
    stop = pos + 4
    if stop > len(data):
        raise malformed("a Four Byte Integer is cut off")
    return int.from_bytes(data[pos:stop], "big"), stop


def encode_binary(data: bytes) -> bytes:
    """Encode Binary Data (or an already encoded UTF-8 string) with its length in front.

    Raises:
        ValueError: `data` is longer than 65,535 bytes.
    """
    if len(data) > MAX_STRING_BYTES:
        raise ValueError(f"{len(data)} bytes do not fit a length of two bytes")
    return len(data).to_bytes(2, "big") + data


def decode_binary(data: bytes, pos: int) -> tuple[bytes, int]:
    """Return the Binary Data at `pos` and the position after it.

    Raises:
        ProtocolError: The length or the data is cut off.
    """
    length, start = decode_u16(data, pos)
    stop = start + length
    if stop > len(data):
        raise malformed("a string or binary value is cut off")
    return data[start:stop], stop


def encode_string(text: str) -> bytes:
    """Encode a UTF-8 Encoded String with its length in front.

    Raises:
        ValueError: `text` has a surrogate [MQTT-1.5.4-1], U+0000 [MQTT-1.5.4-2], or more than 65,535 bytes.
    """
    if "\0" in text:
        raise ValueError("a UTF-8 Encoded String must not hold U+0000")
    return encode_binary(text.encode())


def decode_string(data: bytes, pos: int) -> tuple[str, int]:
    """Return the UTF-8 Encoded String at `pos` and the position after it; U+FEFF stays [MQTT-1.5.4-3].

    Raises:
        ProtocolError: It is cut off, ill-formed (surrogates included) [MQTT-1.5.4-1] or holds U+0000
            [MQTT-1.5.4-2].
    """
    encoded, stop = decode_binary(data, pos)
    try:
        text = encoded.decode()
    except UnicodeDecodeError as error:
        raise malformed("a string is not well-formed UTF-8") from error
    if "\0" in text:
        raise malformed("a string holds U+0000")
    return text, stop
