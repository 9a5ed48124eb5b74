"""Encoding of one retained value: the bytes that stand beside its topic in the file.

A change of the encoding needs a new `FORMAT` in `fanout.storage.file`.
"""

from __future__ import annotations

import struct

from fanout.replica.update import Stamp, Update

__all__ = ["decode_update", "encode_value"]

_HEAD = struct.Struct("<BQQQHB")
"""QoS, received_ns, expires_ns, digest, length of properties, length of the stamping node's name plus one (0: none)."""
_LONG_HEAD = struct.Struct("<BQQQIB")
"""The same for properties of more than 65,535 bytes; marked with `_LONG`."""
_SHORT_MAX = 0xFFFF
_LONG = 0x80
"""Bit of the QoS byte that marks a long head; format 1 never sets it."""
_LONG_BYTE = bytes([_LONG])
_STAMP = struct.Struct("<QQQ")


def encode_value(update: Update) -> bytes:
    """Encode a retained update without its topic."""
    _, payload, qos, _, properties, received_ns, expires_ns, digest, stamp = update
    layout = _HEAD
    if len(properties) > _SHORT_MAX:
        layout, qos = _LONG_HEAD, qos | _LONG
    if stamp is None:
        return layout.pack(qos, received_ns, expires_ns, digest, len(properties), 0) + properties + payload
    name = stamp.primary.encode()
    head = layout.pack(qos, received_ns, expires_ns, digest, len(properties), len(name) + 1)
    return head + _STAMP.pack(stamp.epoch, stamp.sequence, stamp.origin_us) + name + properties + payload


def decode_update(topic: bytes, value: bytes) -> Update:
    """Decode the result of `encode_value`.

    Raises:
        ValueError: The bytes are not an encoded value.
    """
    try:
        layout = _LONG_HEAD if value[:1] >= _LONG_BYTE else _HEAD
        qos, received_ns, expires_ns, digest, properties_length, name_length = layout.unpack_from(value)
        at = layout.size
        stamp: Stamp | None = None
        if name_length:
            epoch, sequence, origin_us = _STAMP.unpack_from(value, at)
            at += _STAMP.size
            stamp = Stamp(value[at : at + name_length - 1].decode(), epoch, sequence, origin_us)
            at += name_length - 1
    except struct.error as error:
        raise ValueError(str(error)) from error
    end = at + properties_length
    qos &= ~_LONG
    if end >= len(value) or qos > 2:  # a retained value is never empty
        raise ValueError("it is too short, or its QoS does not exist")
    return topic, value[end:], qos, True, value[at:end], received_ns, expires_ns, digest, stamp
