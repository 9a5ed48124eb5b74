"""How one retained value stands in the file.

Owns the encoding of an update as the bytes beside its topic. It must not know about files, nor what is retained when.
A change of the encoding needs a new `FORMAT` in `fanout.storage.file`.
"""

from __future__ import annotations

import struct

from fanout.replica.update import Stamp, Update

__all__ = ["decode_update", "encode_value"]

_HEAD = struct.Struct("<BQQQHB")
"""QoS, received_ns, expires_ns, digest, bytes of the properties, bytes of the stamping node's name and one; 0: none."""
_LONG_HEAD = struct.Struct("<BQQQIB")
"""The same for properties that are longer than two bytes can tell, as User Properties can be; known by `_LONG`."""
_SHORT_MAX = 0xFFFF
_LONG = 0x80
"""Stands in the byte of the QoS before a long head; values of format 1 never have it."""
_LONG_BYTE = bytes([_LONG])
_STAMP = struct.Struct("<QQQ")


def encode_value(update: Update) -> bytes:
    """Return everything of a retained update but its topic."""
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
    """Return the update of `encode_value`.

    Raises:
        ValueError: The bytes are not such a value.
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
    if end >= len(value) or qos > 2:  # a retained value has a payload
        raise ValueError("it is too short, or its QoS does not exist")
    return topic, value[end:], qos, True, value[at:end], received_ns, expires_ns, digest, stamp
