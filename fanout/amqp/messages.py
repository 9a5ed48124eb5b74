"""Messages between JMS and MQTT: sections of AMQP 1.0 (part 3) in the encoding of Apache Qpid JMS.

A TextMessage is a payload with Payload Format Indicator 1, and a BytesMessage one without. Properties of the
application are User Properties. `JMS_IBM_Retain` is RETAIN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from fanout.amqp import values
from fanout.amqp.values import AmqpInvalid, AmqpValue, Described, Reader
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.properties import Properties, decode_properties
from fanout.mqtt.publish import encode_varint
from fanout.mqtt.runs import PublishRow

__all__ = ["ORIGIN_PROPERTY", "RETAIN_PROPERTY", "Delivered", "JmsMessage", "MessageRefused", "read_message", "to_jms"]

RETAIN_PROPERTY: Final = "JMS_IBM_Retain"
"""Integer property of the application: 1 for a retained message."""
ORIGIN_PROPERTY: Final = "jms-connection"
"""User Property that names the connection of the publisher, for `noLocal`."""

_HEADER, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _VALUE = 0x70, 0x72, 0x73, 0x74, 0x75, 0x77
_SECTIONS: Final = frozenset(range(0x70, 0x79))
_TYPE: Final = "x-opt-jms-msg-type"
_DESTINATION: Final = "x-opt-jms-dest"
_MESSAGE, _BYTES, _TEXT = 0, 3, 5
_REFUSED_TYPES: Final = {1: "an ObjectMessage", 2: "a MapMessage", 4: "a StreamMessage"}
_QUEUES: Final = frozenset({0, 2})
"""Kinds of destination: a queue, and a temporary one."""
_TTL_MAX_MS: Final = 0xFFFF_FFFF
_NULL = values.NULL


class MessageRefused(AmqpInvalid):
    """A valid message that cannot be published."""


@dataclass(frozen=True, slots=True)
class JmsMessage:
    """A message that a JMS application publishes."""

    payload: bytes
    """Its body; empty for none."""
    is_text: bool
    """True for a TextMessage."""
    retain: bool
    """True if it is marked as retained."""
    to: str
    """Its destination, for a producer that has none; empty for none."""
    to_queue: bool
    """True if its destination is a queue."""
    expiry_s: int | None
    """Seconds until it expires, rounded up; None for never."""
    properties: tuple[tuple[str, str], ...]
    """Other properties of the application, as text."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A PUBLISH of the server, encoded for JMS once for all subscribers."""

    data: bytes
    """The message."""
    packet_id: int
    """Packet Identifier; 0 at QoS 0."""
    live_origin: str
    """Connection that published it, if it is delivered at the time of publication; empty otherwise."""
    is_durable: bool
    """True for QoS 1 or 2 of the publisher."""
    left_ms: int | None
    """Milliseconds until it expires, as its header has them; None for never."""
    delivery_count: int
    """Deliveries that failed before, as its header has them."""
    expires_at_s: float | None = None
    """Monotonic time at which it expires; None until it was delivered, and for never."""

    def aged(self, now_s: float) -> Delivered | None:
        """Return it with the time that it has left at a monotonic time; None once it has expired."""
        if self.left_ms is None:
            return self
        if self.expires_at_s is None:
            return replace(self, expires_at_s=now_s + self.left_ms / 1000)
        left_ms = int((self.expires_at_s - now_s) * 1000)
        return self._with_header(left_ms, self.delivery_count) if left_ms > 0 else None

    def failed(self) -> Delivered:
        """Return it with one more delivery that failed."""
        return self._with_header(self.left_ms, self.delivery_count + 1)

    def _with_header(self, left_ms: int | None, delivery_count: int) -> Delivered:
        body = self.data[len(_header(self.is_durable, self.left_ms, self.delivery_count)) :]
        data = _header(self.is_durable, left_ms, delivery_count) + body
        return replace(self, data=data, left_ms=left_ms, delivery_count=delivery_count)


def read_message(data: bytes, *, now_ms: int) -> JmsMessage:
    """Read a message that a peer publishes.

    Args:
        data: All its sections.
        now_ms: Unix time, for an absolute time of expiry.

    Raises:
        MessageRefused: It is of a kind that cannot be published.
        AmqpInvalid: It is not a message.
    """
    reader = Reader(data)
    sections: dict[int, AmqpValue] = {}
    parts: list[bytes] = []
    while not reader.at_end:
        section = reader.read()
        if not isinstance(section, Described) or not isinstance(section.descriptor, int):
            raise AmqpInvalid("a section is not described")
        code, value = section.descriptor, section.value
        if code not in _SECTIONS:
            raise AmqpInvalid("an unknown section")
        if code == _DATA and isinstance(value, bytes):
            parts.append(value)
        sections[code] = value
    annotations, application = _map(sections, _ANNOTATIONS), _map(sections, _APPLICATION)
    properties = _list(sections, _PROPERTIES)
    kind = annotations.get(_TYPE)
    if isinstance(kind, int) and kind in _REFUSED_TYPES:
        raise MessageRefused(f"{_REFUSED_TYPES[kind]} cannot be published here: use a BytesMessage or a TextMessage")
    payload, is_text = _body(sections, parts)
    to = properties[2] if len(properties) > 2 else None
    retain, destination = application.get(RETAIN_PROPERTY), annotations.get(_DESTINATION)
    return JmsMessage(
        payload,
        is_text,
        retain=retain == 1 and not isinstance(retain, bool),
        to=to if isinstance(to, str) else "",
        to_queue=isinstance(destination, int) and destination in _QUEUES,
        expiry_s=_expiry_s(_list(sections, _HEADER), properties, now_ms=now_ms),
        properties=tuple(_as_text(name, value) for name, value in application.items() if name != RETAIN_PROPERTY),
    )


def _body(sections: dict[int, AmqpValue], parts: list[bytes]) -> tuple[bytes, bool]:
    """Return the payload, and whether it is text."""
    if parts:
        return b"".join(parts), False
    value = sections.get(_VALUE)
    if _VALUE not in sections and sections.keys() & {0x76, _DATA}:
        raise MessageRefused("a list cannot be published here: use a BytesMessage or a TextMessage")
    if value is None:
        return b"", False
    if isinstance(value, str):
        return value.encode(), True
    if isinstance(value, bytes):
        return value, False
    raise MessageRefused("a body of this type cannot be published here: use a BytesMessage or a TextMessage")


def _map(sections: dict[int, AmqpValue], code: int) -> dict[str, AmqpValue]:
    value = sections.get(code)
    return value if isinstance(value, dict) else {}


def _list(sections: dict[int, AmqpValue], code: int) -> list[AmqpValue]:
    value = sections.get(code)
    return value if isinstance(value, list) else []


def _as_text(name: str, value: AmqpValue) -> tuple[str, str]:
    if isinstance(value, bool):
        return name, "true" if value else "false"
    if isinstance(value, int | float | str):
        return name, str(value)
    raise MessageRefused("a property is neither text nor a number nor a boolean")


def _expiry_s(header: list[AmqpValue], properties: list[AmqpValue], *, now_ms: int) -> int | None:
    """Return the seconds until a message expires, by its time to live or else its time of expiry."""
    left_ms = header[2] if len(header) > 2 else None
    if left_ms is None:
        expires_ms = properties[8] if len(properties) > 8 else None
        left_ms = expires_ms - now_ms if isinstance(expires_ms, int) and expires_ms else None
    if not isinstance(left_ms, int):
        return None
    return min(max(-(-left_ms // 1000), 1), _TTL_MAX_MS)


_ANNOTATED: Final = {
    is_text: values.described(
        _ANNOTATIONS,
        values.map_of(
            values.symbol(_TYPE),
            bytes((0x51, _TEXT if is_text else _BYTES)),
            values.symbol(_DESTINATION),
            bytes((0x51, 1)),
        ),
    )
    for is_text in (False, True)
}
_OCTETS: Final = values.symbol("application/octet-stream")
_RETAIN_KEY: Final = values.string(RETAIN_PROPERTY.encode())
_RETAINED: Final = {
    flag: values.described(_APPLICATION, values.map_of(_RETAIN_KEY, values.int32(flag))) for flag in (0, 1)
}


def to_jms(row: PublishRow) -> Delivered:
    """Encode a PUBLISH of the server as a message for JMS.

    Args:
        row: The PUBLISH, of MQTT 5, on a subscription without Retain As Published: RETAIN is set on messages that
            were published before the subscription was made.
    """
    topic, payload, flags, packet_id, block, expiry_s, _ = row
    retained = flags & 1
    is_text, origin, application = False, "", _RETAINED[retained]
    if block:
        properties, _ = decode_properties(encode_varint(len(block)) + block, 0, packet=PacketType.PUBLISH)
        is_text = properties.payload_format_indicator == 1 and _is_text(payload)
        origin, application = _application(properties, retained=retained)
    is_durable, left_ms = flags & 6 != 0, None if expiry_s is None else min(expiry_s * 1000, _TTL_MAX_MS)
    delivery_count = 1 if flags & 8 else 0
    parts = (
        _header(is_durable, left_ms, delivery_count),
        _ANNOTATED[is_text],
        values.described(
            _PROPERTIES,
            values.list_of(_NULL, _NULL, values.string(topic))
            if is_text
            else values.list_of(_NULL, _NULL, values.string(topic), _NULL, _NULL, _NULL, _OCTETS),
        ),
        application,
        values.described(_VALUE, values.string(payload))
        if is_text
        else values.described(_DATA, values.binary(payload)),
    )
    live_origin = "" if retained else origin
    return Delivered(b"".join(parts), packet_id, live_origin, is_durable, left_ms, delivery_count)


@lru_cache(maxsize=1_024)
def _header(is_durable: bool, left_ms: int | None, delivery_count: int) -> bytes:
    ttl = _NULL if left_ms is None else values.uint(left_ms)
    return values.described(
        _HEADER, values.list_of(values.boolean(is_durable), values.ubyte(4), ttl, _NULL, values.uint(delivery_count))
    )


def _application(properties: Properties, *, retained: int) -> tuple[str, bytes]:
    """Return the connection of the publisher, and the section with the properties of the application."""
    origin = ""
    pairs = [_RETAIN_KEY, values.int32(retained)]
    for name, value in dict(properties.user_property).items():
        if name == ORIGIN_PROPERTY:
            origin = value
        elif name != RETAIN_PROPERTY:
            pairs += [values.string(name.encode()), values.string(value.encode())]
    return origin, values.described(_APPLICATION, values.map_of(*pairs))


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
