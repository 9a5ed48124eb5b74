"""A strict decoder of MQTT 3.1.1 and MQTT 5, written from the specifications for tests.

Owns one packet at a time: its type, flags, lengths to the byte, strings, properties and Reason Codes, and which side
may send it. It must not know what was sent before (`tests.oracle.streams` does), and must not import the product: what
a node gets wrong in reading it would get wrong in writing too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "PROPERTIES",
    "Kind",
    "Packet",
    "Properties",
    "Sender",
    "Value",
    "ValueType",
    "Violation",
    "decode_packet",
    "decode_packets",
    "is_utf8",
    "is_valid_filter",
    "is_valid_topic",
    "packet_length",
]

Sender: TypeAlias = Literal["client", "server"]
Value: TypeAlias = int | bytes | tuple[bytes, bytes]
"""An integer, the bytes of a string or of binary data, or the two strings of a pair."""
Properties: TypeAlias = tuple[tuple[int, Value], ...]
"""Identifier and value of each property, in the order of the packet."""


class Violation(AssertionError):
    """Bytes that MQTT does not allow.

    Attributes:
        offset: Where in the bytes.
        reason: What is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"at byte {self.offset}: {self.reason}"


class Kind(enum.IntEnum):
    """The packet types (MQTT 5, section 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ValueType(enum.Enum):
    """The data types of properties (MQTT 5, section 2.2.2.2)."""

    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 3
    VARIABLE = 4
    STRING = 5
    BINARY = 6
    PAIR = 7


class _Property(NamedTuple):
    name: str
    type: ValueType
    server: frozenset[str]
    """The packets of a server that may hold it."""
    client: frozenset[str]
    """Those of a client; "WILL" stands for the Will Properties."""
    lowest: int = 0
    highest: int = 0xFFFF_FFFF


def _property(
    name: str, value_type: ValueType, *, server: str = "", client: str = "", lowest: int = 0, highest: int = 0xFFFF_FFFF
) -> _Property:
    return _Property(name, value_type, frozenset(server.split()), frozenset(client.split()), lowest, highest)


_B, _H, _I, _V, _S, _D, _P = ValueType
_ACKS = "PUBACK PUBREC PUBREL PUBCOMP"
PROPERTIES: Final = {
    0x01: _property("Payload Format Indicator", _B, server="PUBLISH", client="PUBLISH WILL", highest=1),
    0x02: _property("Message Expiry Interval", _I, server="PUBLISH", client="PUBLISH WILL"),
    0x03: _property("Content Type", _S, server="PUBLISH", client="PUBLISH WILL"),
    0x08: _property("Response Topic", _S, server="PUBLISH", client="PUBLISH WILL"),
    0x09: _property("Correlation Data", _D, server="PUBLISH", client="PUBLISH WILL"),
    0x0B: _property("Subscription Identifier", _V, server="PUBLISH", client="SUBSCRIBE", lowest=1, highest=268_435_455),
    0x11: _property("Session Expiry Interval", _I, server="CONNACK", client="CONNECT DISCONNECT"),
    0x12: _property("Assigned Client Identifier", _S, server="CONNACK"),
    0x13: _property("Server Keep Alive", _H, server="CONNACK"),
    0x15: _property("Authentication Method", _S, server="CONNACK AUTH", client="CONNECT AUTH"),
    0x16: _property("Authentication Data", _D, server="CONNACK AUTH", client="CONNECT AUTH"),
    0x17: _property("Request Problem Information", _B, client="CONNECT", highest=1),
    0x18: _property("Will Delay Interval", _I, client="WILL"),
    0x19: _property("Request Response Information", _B, client="CONNECT", highest=1),
    0x1A: _property("Response Information", _S, server="CONNACK"),
    0x1C: _property("Server Reference", _S, server="CONNACK DISCONNECT"),
    0x1F: _property(
        "Reason String",
        _S,
        server=f"CONNACK SUBACK UNSUBACK DISCONNECT AUTH {_ACKS}",
        client=f"DISCONNECT AUTH {_ACKS}",
    ),
    0x21: _property("Receive Maximum", _H, server="CONNACK", client="CONNECT", lowest=1),
    0x22: _property("Topic Alias Maximum", _H, server="CONNACK", client="CONNECT"),
    0x23: _property("Topic Alias", _H, server="PUBLISH", client="PUBLISH", lowest=1),
    0x24: _property("Maximum QoS", _B, server="CONNACK", highest=1),
    0x25: _property("Retain Available", _B, server="CONNACK", highest=1),
    0x26: _property(
        "User Property",
        _P,
        server=f"CONNACK PUBLISH SUBACK UNSUBACK DISCONNECT AUTH {_ACKS}",
        client=f"CONNECT PUBLISH SUBSCRIBE UNSUBSCRIBE DISCONNECT AUTH WILL {_ACKS}",
    ),
    0x27: _property("Maximum Packet Size", _I, server="CONNACK", client="CONNECT", lowest=1),
    0x28: _property("Wildcard Subscription Available", _B, server="CONNACK", highest=1),
    0x29: _property("Subscription Identifier Available", _B, server="CONNACK", highest=1),
    0x2A: _property("Shared Subscription Available", _B, server="CONNACK", highest=1),
}
"""The properties of MQTT 5 (table 2-4), and the values that the sections of the packets allow."""

_OF_PUBACK = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_OF_PUBREL = frozenset((0x00, 0x92))
_CLIENTS_DISCONNECT = frozenset((0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99))
_CODES: Final[dict[tuple[Kind, Sender], frozenset[int]]] = {
    (Kind.CONNACK, "server"): frozenset(
        (0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
    ),
    **{(kind, side): _OF_PUBACK for kind in (Kind.PUBACK, Kind.PUBREC) for side in ("client", "server")},
    **{(kind, side): _OF_PUBREL for kind in (Kind.PUBREL, Kind.PUBCOMP) for side in ("client", "server")},
    (Kind.SUBACK, "server"): frozenset((0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    (Kind.UNSUBACK, "server"): frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
    (Kind.DISCONNECT, "client"): _CLIENTS_DISCONNECT,
    (Kind.DISCONNECT, "server"): (_CLIENTS_DISCONNECT - {0x04})
    | {0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)},
    (Kind.AUTH, "client"): frozenset((0x18, 0x19)),
    (Kind.AUTH, "server"): frozenset((0x00, 0x18)),
}
"""Reason Codes by packet (MQTT 5, sections 3.2.2.2, 3.4.2.1 and so on)."""

_CLIENTS_ALONE = frozenset((Kind.CONNECT, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.PINGREQ))
_SERVERS_ALONE = frozenset((Kind.CONNACK, Kind.SUBACK, Kind.UNSUBACK, Kind.PINGRESP))
_KINDS = tuple(Kind)
_FLAGGED = frozenset((Kind.PUBREL, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE))
"""Packets with the flags 0010."""


class Packet(NamedTuple):
    """One packet; what its type does not have is as shown here."""

    kind: Kind
    size: int
    """Its bytes in all."""
    offset: int = 0
    """Where it began."""
    properties: Properties = ()
    packet_id: int = 0
    topic: bytes = b""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    codes: tuple[int, ...] = ()
    """Reason Codes, or Return Codes; one where none was sent means success."""
    session_present: bool = False
    filters: tuple[tuple[bytes, int], ...] = ()
    """Topic Filters of SUBSCRIBE and UNSUBSCRIBE with their options."""
    version: int = 0
    """Protocol Level of CONNECT."""
    client_id: bytes = b""
    clean_start: bool = False
    keep_alive: int = 0
    will: Packet | None = None
    """The Will Message of CONNECT, as a PUBLISH."""
    username: bytes | None = None
    password: bytes | None = None

    def property(self, identifier: int, default: int = 0) -> int:
        """Return the value of a property that is an integer."""
        for name, value in self.properties:
            if name == identifier:
                assert isinstance(value, int)
                return value
        return default

    def values(self, identifier: int) -> list[Value]:
        """Return all values of a property."""
        return [value for name, value in self.properties if name == identifier]


def is_utf8(data: bytes) -> bool:
    """Say whether bytes are a UTF-8 Encoded String of MQTT: well-formed, no surrogates, no U+0000 (section 1.5.4)."""
    if 0 in data:
        return False
    if data.isascii():
        return True
    try:
        data.decode("utf-8", "strict")  # Python refuses encoded surrogates, overlong forms and what is above U+10FFFF
    except UnicodeDecodeError:
        return False
    return True


def is_valid_topic(topic: bytes) -> bool:
    """Say whether bytes are a Topic Name (section 4.7)."""
    return bool(topic) and b"+" not in topic and b"#" not in topic and is_utf8(topic)


def is_valid_filter(topic_filter: bytes) -> bool:
    """Say whether bytes are a Topic Filter, perhaps of a shared subscription (sections 4.7 and 4.8.2)."""
    if topic_filter.startswith(b"$share/"):
        _, _, name_and_filter = topic_filter.partition(b"/")
        name, slash, topic_filter = name_and_filter.partition(b"/")
        if not name or not slash or b"+" in name or b"#" in name:
            return False
    if not topic_filter or not is_utf8(topic_filter):
        return False
    levels = topic_filter.split(b"/")
    return all(
        not (b"+" in level and level != b"+") and not (b"#" in level and (level != b"#" or index + 1 < len(levels)))
        for index, level in enumerate(levels)
    )


def packet_length(data: bytes, pos: int = 0, *, version: int | None = None) -> tuple[int, int] | None:
    """Return where the body of the packet at `pos` starts and stops; None when its Remaining Length is not whole.

    Raises:
        Violation: The Remaining Length is longer than four bytes, or than it has to be in MQTT 5.
    """
    length = 0
    for index in range(4):
        at = pos + 1 + index
        if at >= len(data):
            return None
        length |= (data[at] & 0x7F) << 7 * index
        if data[at] < 0x80:
            if index and data[at] == 0 and version == 5:
                raise Violation(at, "the Remaining Length is not in its shortest form")
            return at + 1, at + 1 + length
    raise Violation(pos + 1, "the Remaining Length has more than four bytes")


def decode_packets(data: bytes, *, version: int, sender: Sender) -> list[Packet]:
    """Decode whole packets, and nothing behind them; see `decode_packet`."""
    packets, pos = [], 0
    while pos < len(data):
        packet = decode_packet(data, pos, version=version, sender=sender)
        if packet is None:
            raise Violation(pos, "the packet is cut off")
        packets.append(packet)
        pos += packet.size
    return packets


def decode_packet(data: bytes, pos: int = 0, *, version: int, sender: Sender) -> Packet | None:
    """Decode the packet at `pos`; None when it is not whole.

    Args:
        data: Bytes.
        pos: Where the packet begins.
        version: 4 or 5; CONNECT says for itself.
        sender: Who sent it.

    Raises:
        Violation: MQTT does not allow this packet, whatever came before it.
    """
    first = data[pos]
    kind_number = first >> 4
    if kind_number == 0 or (kind_number == 15 and version == 4):
        raise Violation(pos, f"packet type {kind_number} is reserved")
    kind = _KINDS[kind_number - 1]
    server_disconnects = version == 4 and kind is Kind.DISCONNECT and sender == "server"
    if kind in (_CLIENTS_ALONE if sender == "server" else _SERVERS_ALONE) or server_disconnects:
        raise Violation(pos, f"a {sender} must not send {kind.name}")
    if kind is Kind.PUBLISH:
        if first & 0x06 == 0x06:
            raise Violation(pos, "the QoS is 3")
        if first & 0x0E == 0x08:
            raise Violation(pos, "DUP is set at QoS 0")
    elif first & 0x0F != (2 if kind in _FLAGGED else 0):
        raise Violation(pos, f"{kind.name} has the flags {first & 0x0F:04b}")
    bounds = packet_length(data, pos, version=version)
    if bounds is None or bounds[1] > len(data):
        return None
    start, stop = bounds
    if kind is Kind.PUBLISH:
        return _decode_publish(data, pos, start, stop, version, sender)
    body = _Body(data, start, stop, version, sender)
    packet = _BODIES[kind](body, Packet(kind, stop - pos, pos))
    if body.pos != stop:
        raise Violation(body.pos, f"{stop - body.pos} bytes behind the end of {kind.name}")
    return packet


def _decode_publish(data: bytes, pos: int, start: int, stop: int, version: int, sender: Sender) -> Packet:
    first = data[pos]
    if start + 2 > stop:
        raise Violation(start, "PUBLISH ends before its Topic Name")
    cursor = start + 2 + (data[start] << 8 | data[start + 1])
    if cursor > stop:
        raise Violation(start, "the Topic Name is longer than the packet")
    topic = data[start + 2 : cursor]
    if (topic or version == 4) and not is_valid_topic(topic):
        raise Violation(start + 2, f"{topic!r} is no Topic Name")
    qos = first >> 1 & 3
    packet_id = 0
    if qos:
        if cursor + 2 > stop:
            raise Violation(cursor, "PUBLISH ends before its Packet Identifier")
        packet_id = data[cursor] << 8 | data[cursor + 1]
        if not packet_id:
            raise Violation(cursor, "the Packet Identifier is 0")
        cursor += 2
    properties: Properties = ()
    if version == 5:
        length, cursor = _variable(data, cursor, stop)
        if cursor + length > stop:
            raise Violation(cursor, "the Property Length is beyond the packet")
        if length:
            block = data[cursor : cursor + length], sender
            known = _memo.get(block)
            if known is None:
                properties = _decode_properties(data, cursor, cursor + length, "PUBLISH", sender)
                if len(_memo) >= _MEMO_MAX:
                    _memo.clear()
                _memo[block] = properties
            else:
                properties = known
            cursor += length
    payload = data[cursor:stop]
    if not topic and version == 5 and not any(name == 0x23 for name, _ in properties):
        raise Violation(start, "neither a Topic Name nor a Topic Alias")
    if (0x01, 1) in properties and not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise Violation(cursor, "the payload is not the UTF-8 that its Payload Format Indicator says") from None
    return Packet(
        Kind.PUBLISH,
        stop - pos,
        pos,
        properties,
        packet_id,
        topic,
        payload,
        qos,
        bool(first & 1),
        bool(first & 8),
    )


_memo: dict[tuple[bytes, Sender], Properties] = {}
"""Property blocks that were right: several readers get the same ones."""
_MEMO_MAX = 4096


def _variable(data: bytes, pos: int, stop: int) -> tuple[int, int]:
    """Decode a Variable Byte Integer in its shortest form, and return the position behind it (section 1.5.5)."""
    value = 0
    for index in range(4):
        at = pos + index
        if at >= stop:
            raise Violation(at, "a Variable Byte Integer is cut off")
        value |= (data[at] & 0x7F) << 7 * index
        if data[at] < 0x80:
            if index and data[at] == 0:
                raise Violation(at, "a Variable Byte Integer is not in its shortest form")
            return value, at + 1
    raise Violation(pos, "a Variable Byte Integer has more than four bytes")


def _sized(data: bytes, pos: int, stop: int) -> tuple[bytes, int]:
    """Decode two bytes of length and so many bytes."""
    if pos + 2 > stop:
        raise Violation(pos, "a length is cut off")
    end = pos + 2 + (data[pos] << 8 | data[pos + 1])
    if end > stop:
        raise Violation(pos, f"a length reaches {end - stop} bytes beyond its end")
    return data[pos + 2 : end], end


def _string(data: bytes, pos: int, stop: int) -> tuple[bytes, int]:
    text, end = _sized(data, pos, stop)
    if not is_utf8(text):
        raise Violation(pos + 2, f"{text!r} is no UTF-8 Encoded String")
    return text, end


_WIDTHS = {ValueType.BYTE: 1, ValueType.TWO_BYTES: 2, ValueType.FOUR_BYTES: 4}


def _decode_properties(data: bytes, pos: int, stop: int, owner: str, sender: Sender) -> Properties:
    """Decode the properties of `owner`; nothing may be left before `stop`."""
    found: list[tuple[int, Value]] = []
    seen: set[int] = set()
    while pos < stop:
        at = pos
        identifier, pos = _variable(data, pos, stop)
        rule = PROPERTIES.get(identifier)
        if rule is None:
            raise Violation(at, f"0x{identifier:02X} is no property")
        if owner not in (rule.server if sender == "server" else rule.client):
            raise Violation(at, f"{rule.name} does not belong into {owner} of a {sender}")
        if identifier in seen and identifier != 0x26 and not (identifier == 0x0B and owner == "PUBLISH"):
            raise Violation(at, f"{rule.name} is there twice")
        seen.add(identifier)
        value: Value
        if rule.type is ValueType.PAIR:
            name, pos = _string(data, pos, stop)
            text, pos = _string(data, pos, stop)
            value = name, text
        elif rule.type is ValueType.STRING:
            value, pos = _string(data, pos, stop)
        elif rule.type is ValueType.BINARY:
            value, pos = _sized(data, pos, stop)
        else:
            if rule.type is ValueType.VARIABLE:
                number, pos = _variable(data, pos, stop)
            else:
                width = _WIDTHS[rule.type]
                if pos + width > stop:
                    raise Violation(pos, f"{rule.name} is cut off")
                number = int.from_bytes(data[pos : pos + width], "big")
                pos += width
            if not rule.lowest <= number <= rule.highest:
                raise Violation(at, f"{rule.name} is {number}")
            value = number
        if identifier == 0x08 and not is_valid_topic(data[at + 3 : pos]):
            raise Violation(at, f"the Response Topic {value!r} is no Topic Name")
        found.append((identifier, value))
    if 0x16 in seen and 0x15 not in seen:
        raise Violation(stop, "Authentication Data without an Authentication Method")
    return tuple(found)


class _Body:
    """The rest of a packet, read from the front."""

    def __init__(self, data: bytes, pos: int, stop: int, version: int, sender: Sender) -> None:
        self.data = data
        self.pos = pos
        self.stop = stop
        self.version = version
        self.sender = sender

    @property
    def left(self) -> int:
        return self.stop - self.pos

    def byte(self, what: str) -> int:
        if not self.left:
            raise Violation(self.pos, f"{what} is missing")
        self.pos += 1
        return self.data[self.pos - 1]

    def two_bytes(self, what: str) -> int:
        return self.byte(what) << 8 | self.byte(what)

    def packet_id(self) -> int:
        packet_id = self.two_bytes("the Packet Identifier")
        if not packet_id:
            raise Violation(self.pos - 2, "the Packet Identifier is 0")
        return packet_id

    def string(self) -> bytes:
        text, self.pos = _string(self.data, self.pos, self.stop)
        return text

    def binary(self) -> bytes:
        value, self.pos = _sized(self.data, self.pos, self.stop)
        return value

    def properties(self, owner: str) -> Properties:
        if self.version == 4:
            return ()
        length, self.pos = _variable(self.data, self.pos, self.stop)
        end = self.pos + length
        if end > self.stop:
            raise Violation(self.pos, "the Property Length is beyond the packet")
        found = _decode_properties(self.data, self.pos, end, owner, self.sender)
        self.pos = end
        return found

    def code(self, kind: Kind) -> int:
        code = self.byte("the Reason Code")
        allowed = _CODES[kind, self.sender]
        if code not in allowed:
            raise Violation(self.pos - 1, f"0x{code:02X} is no Reason Code of {kind.name} from a {self.sender}")
        return code


def _connect(body: _Body, packet: Packet) -> Packet:
    if body.binary() != b"MQTT":
        raise Violation(packet.offset, "the Protocol Name is not MQTT")
    level = body.byte("the Protocol Level")
    if level not in {4, 5, 0x84}:  # 0x84: Mosquitto's bridges over MQTT 3.1.1, which a link may be
        raise Violation(body.pos - 1, f"the Protocol Level is {level}")
    body.version = version = level & 0x7F
    flags = body.byte("the Connect Flags")
    has_will, has_username, has_password = flags & 4, flags & 0x80, flags & 0x40
    if flags & 1:
        raise Violation(body.pos - 1, "the reserved Connect Flag is set")
    if flags & 0x18 == 0x18 or (not has_will and flags & 0x38):
        raise Violation(body.pos - 1, f"the flags of the Will are {flags:08b}")
    if version == 4 and has_password and not has_username:
        raise Violation(body.pos - 1, "a password without a User Name")
    keep_alive = body.two_bytes("the Keep Alive")
    properties = body.properties("CONNECT")
    client_id = body.string()
    if version == 4 and not client_id and not flags & 2:
        raise Violation(body.pos, "an empty Client Identifier without Clean Session")
    will = None
    if has_will:
        of_will = body.properties("WILL")
        topic = body.string()
        if not is_valid_topic(topic):
            raise Violation(body.pos, f"the Will Topic {topic!r} is no Topic Name")
        will = Packet(Kind.PUBLISH, 0, 0, of_will, 0, topic, body.binary(), flags >> 3 & 3, bool(flags & 0x20))
    return packet._replace(
        version=version,
        clean_start=bool(flags & 2),
        keep_alive=keep_alive,
        properties=properties,
        client_id=client_id,
        will=will,
        username=body.string() if has_username else None,
        password=body.binary() if has_password else None,
    )


def _connack(body: _Body, packet: Packet) -> Packet:
    flags = body.byte("the Connect Acknowledge Flags")
    if flags > 1:
        raise Violation(body.pos - 1, f"the Connect Acknowledge Flags are {flags:08b}")
    if body.version == 4:
        code = body.byte("the Return Code")
        if code > 5:
            raise Violation(body.pos - 1, f"the Return Code is {code}")
    else:
        code = body.code(Kind.CONNACK)
    if code and flags:
        raise Violation(packet.offset, "Session Present is set in a refusal")
    return packet._replace(session_present=bool(flags), codes=(code,), properties=body.properties("CONNACK"))


def _ack(body: _Body, packet: Packet) -> Packet:
    packet_id = body.packet_id()
    code = body.code(packet.kind) if body.version == 5 and body.left else 0
    properties = body.properties(packet.kind.name) if body.version == 5 and body.left else ()
    return packet._replace(packet_id=packet_id, codes=(code,), properties=properties)


def _subscribe(body: _Body, packet: Packet) -> Packet:
    packet_id = body.packet_id()
    properties = body.properties("SUBSCRIBE")
    filters = []
    while body.left:
        at = body.pos
        topic_filter = body.string()
        options = body.byte("the Subscription Options")
        if not is_valid_filter(topic_filter):
            raise Violation(at, f"{topic_filter!r} is no Topic Filter")
        if options & 3 == 3 or options & (0xFC if body.version == 4 else 0xC0) or options & 0x30 == 0x30:
            raise Violation(body.pos - 1, f"the Subscription Options are {options:08b}")
        if topic_filter.startswith(b"$share/") and options & 4:
            raise Violation(body.pos - 1, "No Local for a shared subscription")
        filters.append((topic_filter, options))
    if not filters:
        raise Violation(body.pos, "SUBSCRIBE without a Topic Filter")
    return packet._replace(packet_id=packet_id, properties=properties, filters=tuple(filters))


def _unsubscribe(body: _Body, packet: Packet) -> Packet:
    packet_id = body.packet_id()
    properties = body.properties("UNSUBSCRIBE")
    filters = []
    while body.left:
        at = body.pos
        topic_filter = body.string()
        if not is_valid_filter(topic_filter):
            raise Violation(at, f"{topic_filter!r} is no Topic Filter")
        filters.append((topic_filter, 0))
    if not filters:
        raise Violation(body.pos, "UNSUBSCRIBE without a Topic Filter")
    return packet._replace(packet_id=packet_id, properties=properties, filters=tuple(filters))


def _suback(body: _Body, packet: Packet) -> Packet:
    packet_id = body.packet_id()
    properties = body.properties(packet.kind.name)
    codes = []
    if body.version == 4:
        if packet.kind is Kind.UNSUBACK:
            return packet._replace(packet_id=packet_id)
        while body.left:
            codes.append(body.byte("the Return Code"))
            if codes[-1] not in {0, 1, 2, 0x80}:
                raise Violation(body.pos - 1, f"the Return Code is {codes[-1]}")
    while body.left:
        codes.append(body.code(packet.kind))
    if not codes:
        raise Violation(body.pos, f"{packet.kind.name} without a Reason Code")
    return packet._replace(packet_id=packet_id, properties=properties, codes=tuple(codes))


def _disconnect(body: _Body, packet: Packet) -> Packet:
    if body.version == 4:
        return packet
    code = body.code(packet.kind) if body.left else 0
    properties = body.properties(packet.kind.name) if body.left else ()
    return packet._replace(codes=(code,), properties=properties)


def _auth(body: _Body, packet: Packet) -> Packet:
    packet = _disconnect(body, packet)
    if packet.size > 2 and not packet.values(0x15):
        raise Violation(packet.offset, "AUTH without an Authentication Method")
    return packet


_BODIES: dict[Kind, Callable[[_Body, Packet], Packet]] = {
    Kind.CONNECT: _connect,
    Kind.CONNACK: _connack,
    Kind.PUBACK: _ack,
    Kind.PUBREC: _ack,
    Kind.PUBREL: _ack,
    Kind.PUBCOMP: _ack,
    Kind.SUBSCRIBE: _subscribe,
    Kind.SUBACK: _suback,
    Kind.UNSUBSCRIBE: _unsubscribe,
    Kind.UNSUBACK: _suback,
    Kind.PINGREQ: lambda body, packet: packet,
    Kind.PINGRESP: lambda body, packet: packet,
    Kind.DISCONNECT: _disconnect,
    Kind.AUTH: _auth,
}
