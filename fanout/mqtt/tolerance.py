"""Tolerant reading of a server's packets, for the role of a client: a breach of MQTT costs one message, or nothing.

The decoder comes here with a packet that its strict reading refused, at its known boundaries. The rules are in
`docs/reference/tolerance.md`. For clients of a server there is no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from fanout.errors import ProtocolError
from fanout.mqtt.breaches import Deviation, SkipReason
from fanout.mqtt.data_representation import decode_binary, decode_u16, decode_varint, encode_varint
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.packets import Ack, Auth, Connack, Disconnect, Packet, Pingresp, Suback, Unsuback
from fanout.mqtt.properties import Properties, clean_block, decode_properties, split_publish_block
from fanout.mqtt.runs import Item, PublishRow, PublishRun, SkippedPublish, ToleratedBreach
from fanout.mqtt.topics import check_topic_name

__all__ = ["read_ack", "read_head", "read_packet", "read_publish", "skip_bad_topics"]


def read_publish(flags: int, body: bytes, *, version: int, fault: ProtocolError) -> list[Item]:
    """Return the message of a PUBLISH that breaks MQTT, with its breaches, or that it is skipped.

    Args:
        flags: Flags of its fixed header.
        body: The bytes after the fixed header.
        version: 4 or 5.
        fault: Result of the strict reading.
    """
    qos = flags >> 1 & 3
    topic, packet_id, pos = _read_topic(flags, body)

    def skip(reason: SkipReason, detail: str = fault.detail) -> list[Item]:
        # Without a Packet Identifier, or with the QoS 3, no acknowledgement is possible.
        return [SkippedPublish(reason, topic, flags, 0 if qos == 3 else packet_id, detail)]

    if qos == 3 or pos < 0 or (qos and not packet_id):
        return skip(SkipReason.MALFORMED)
    breaches: list[Item] = []
    if flags & 8 and not qos:
        flags &= ~8
        breaches.append(ToleratedBreach(Deviation.FLAGS, fault.detail))
    kept, expiry_s, user_at, alias = b"", None, 0, None
    if version == 5:
        try:
            length, pos = decode_varint(body, pos)
        except ProtocolError:
            return skip(SkipReason.MALFORMED)
        if pos + length > len(body):
            return skip(SkipReason.MALFORMED)
        block = body[pos : pos + length]
        pos += length
        try:
            kept, expiry_s, alias, _, user_at = split_publish_block(block)
        except ProtocolError as problem:
            breaches.append(ToleratedBreach(Deviation.PROPERTY, f"{_shown(topic)}: {problem.detail}"))
            kept, expiry_s, alias, _, user_at = split_publish_block(clean_block(block, packet=PacketType.PUBLISH))
    try:
        check_topic_name(topic)
    except ProtocolError as problem:
        return skip(SkipReason.INVALID_TOPIC, problem.detail if topic or alias is None else fault.detail)
    if alias is not None:
        breaches.append(ToleratedBreach(Deviation.PROPERTY, f"{_shown(topic)}: {fault.detail}"))
    row: PublishRow = (topic, body[pos:], flags, packet_id if qos else 0, kept, expiry_s, user_at)
    return [*breaches, PublishRun([row])]


def read_head(flags: int, head: bytes, *, size: int, length: int, version: int) -> SkippedPublish:
    """Return that a PUBLISH is skipped which is too large to be read whole.

    Args:
        flags: Flags of its fixed header.
        head: The bytes after the fixed header up to the properties, and maybe some more.
        size: Bytes of the whole packet.
        length: Its Remaining Length.
        version: 4 or 5.
    """
    topic, packet_id, pos = _read_topic(flags, head)
    payload_bytes = max(0, length - max(pos, 0))
    if version == 5 and pos >= 0:
        with suppress(ProtocolError):
            properties, start = decode_varint(head, pos)
            payload_bytes = max(0, length - start - properties)
    packet_id = 0 if flags & 6 == 6 else packet_id
    return SkippedPublish(SkipReason.PACKET_TOO_LARGE, topic, flags, packet_id, f"{size:,} bytes", payload_bytes)


def skip_bad_topics(rows: Iterable[PublishRow], topics: Iterable[bytes]) -> list[Item]:
    """Return rows in runs, with those skipped whose Topic Name is not valid; `topics` are their Topic Names."""
    bad: dict[bytes, str] = {}
    for topic in topics:
        try:
            check_topic_name(topic)
        except ProtocolError as problem:
            bad[topic] = problem.detail
    items: list[Item] = []
    run: list[PublishRow] = []
    for row in rows:
        if row[0] not in bad:
            run.append(row)
            continue
        if run:
            items.append(PublishRun(run))
            run = []
        items.append(SkippedPublish(SkipReason.INVALID_TOPIC, row[0], row[2], row[3], bad[row[0]]))
    if run:
        items.append(PublishRun(run))
    return items


def read_ack(packet_type: PacketType, body: bytes) -> Ack | None:
    """Return an acknowledgement that breaks MQTT by its Packet Identifier and Reason Code; None when it has none."""
    try:
        packet_id, pos = decode_u16(body, 0)
    except ProtocolError:
        return None
    return Ack(packet_type, packet_id, body[pos] if pos < len(body) else 0) if packet_id else None


def read_packet(packet_type: PacketType, body: bytes, *, version: int) -> Packet | None:
    """Return what can be read of a packet that breaks MQTT; None when it is ignored."""
    return _READERS[packet_type](body, version) if packet_type in _READERS else None


def _read_connack(body: bytes, version: int) -> Connack | None:
    if len(body) < 2:
        return None
    flags, code = body[0], body[1]
    return Connack(bool(flags & 1) and not code, code, _read_properties(body, 2, version, PacketType.CONNACK)[0])


def _read_suback(body: bytes, version: int) -> Suback | None:
    if len(body) < 2:
        return None
    _, pos = _read_properties(body, 2, version, PacketType.SUBACK)
    # An unknown code below 0x80 grants something (section 2.4); the QoS is not known.
    codes = tuple(code if code in (1, 2) or code >= 0x80 else 0 for code in body[pos:])
    return Suback(int.from_bytes(body[:2], "big"), codes)


def _read_unsuback(body: bytes, _version: int) -> Unsuback | None:
    return Unsuback(int.from_bytes(body[:2], "big")) if len(body) >= 2 else None


def _read_disconnect(body: bytes, version: int) -> Disconnect:
    code = body[0] if body and version == 5 else 0
    return Disconnect(code, _read_properties(body, 1, version, PacketType.DISCONNECT)[0])


_READERS: dict[PacketType, Callable[[bytes, int], Packet | None]] = {
    PacketType.CONNACK: _read_connack,
    PacketType.SUBACK: _read_suback,
    PacketType.UNSUBACK: _read_unsuback,
    PacketType.PINGRESP: lambda _body, _version: Pingresp(),
    PacketType.DISCONNECT: _read_disconnect,
    PacketType.AUTH: lambda _body, _version: Auth(),
}


def _read_properties(body: bytes, pos: int, version: int, packet: PacketType) -> tuple[Properties, int]:
    """Return the properties at `pos` that are allowed, and the position after the block."""
    if version == 4:
        return Properties(), pos
    try:
        length, start = decode_varint(body, pos)
    except ProtocolError:
        return Properties(), len(body)
    stop = min(start + length, len(body))
    block = clean_block(body[start:stop], packet=packet)
    return decode_properties(encode_varint(len(block)) + block, 0, packet=packet)[0], stop


def _read_topic(flags: int, body: bytes) -> tuple[bytes, int, int]:
    """Return topic, Packet Identifier (0 for none) and the position after them; -1 when the body ends before it."""
    try:
        topic, pos = decode_binary(body, 0)
    except ProtocolError:
        return b"", 0, -1
    if not flags & 6:
        return topic, 0, pos
    try:
        packet_id, pos = decode_u16(body, pos)
    except ProtocolError:
        return topic, 0, -1
    return topic, packet_id, pos


def _shown(topic: bytes) -> str:
    return topic[:256].decode(errors="backslashreplace")
