"""Everything that one side sends over a Network Connection, checked against what the other side said.

`ServerStream` reads what a node sends to a client, `ClientStream` what a link sends to its primary. Each is told what
the other side wrote, since that decides what is allowed: Topic Aliases, sizes, Packet Identifiers, answers. Where the
other side wrote what MQTT does not allow, used a Packet Identifier that was in use, or where a session goes on that was
begun elsewhere, only packets by themselves are checked from then on, and the limits of CONNECT and CONNACK.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.oracle.packets import Kind, Packet, Sender, Violation, decode_packet, packet_length

__all__ = ["ClientStream", "InFlight", "ServerStream"]

_REASON_STRING, _USER_PROPERTY, _TOPIC_ALIAS = 0x1F, 0x26, 0x23
_OTHER_PROTOCOL = b"\x20\x02\x00\x01"
_ANSWERS = frozenset((Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP, Kind.SUBACK, Kind.UNSUBACK))


@dataclass
class InFlight:
    """The messages at QoS 1 and 2 that one side sent in a session, and that are not completed.

    Attributes:
        messages: Packet Identifier to the PUBLISH; None where PUBREC came.
    """

    messages: dict[int, Packet | None] = field(default_factory=dict)

    def complete(self, packet: Packet) -> None:
        """Take an acknowledgement of the receiver."""
        if packet.kind is Kind.PUBREC and packet.codes[0] < 0x80:
            if packet.packet_id in self.messages:
                self.messages[packet.packet_id] = None
        else:
            self.messages.pop(packet.packet_id, None)


class _Reader:
    """Bytes of one side, cut into packets."""

    def __init__(self, sender: Sender, version: int) -> None:
        self.sender = sender
        self.version = version
        self._buffer = b""
        self._base = 0

    def packets(self, data: bytes) -> Iterator[Packet]:
        """Give the packets that are whole now; those before a violation are given before it is raised."""
        buffer, pos = self._buffer + data, 0
        try:
            while pos < len(buffer):
                packet = decode_packet(buffer, pos, version=self.version, sender=self.sender)
                if packet is None:
                    break
                if packet.kind is Kind.CONNECT:
                    self.version = packet.version
                    packet_length(buffer, pos, version=self.version)  # only now is it known what applies
                pos += packet.size
                yield packet
        except Violation as violation:
            raise Violation(self._base + violation.offset, f"{violation.reason}: {buffer[pos : pos + 400]!r}") from None
        finally:
            self._base += pos
            self._buffer = buffer[pos:]

    @property
    def rest(self) -> bytes:
        """What came of a packet that is not whole."""
        return self._buffer


class _Stream:
    """What both directions have in common; see the module."""

    def __init__(self, *, version: int, sender: Sender) -> None:
        self.version = version
        self.is_blind = False
        """Whether what was sent before is not known, so that only packets by themselves are checked."""
        self.is_resumed = False
        """Whether the session goes on: what was on its way at the end of the last Network Connection is not known."""
        self.in_flight = InFlight()
        self.packet_bytes_max = 0
        self.topic_alias_max = 0
        self.receive_maximum = 0xFFFF
        self.is_over = False
        """Whether nothing may follow."""
        self._reader = _Reader(sender, version)
        self._peer = _Reader("server" if sender == "client" else "client", version)
        self._under_way: set[int] = set()
        """Packet Identifiers of messages that were sent over this Network Connection and are not completed."""
        self._is_unreadable = False  # whether the other side wrote what MQTT does not allow
        self._aliases: dict[int, bytes] = {}
        self._answers: dict[Kind, deque[int]] = {Kind.PUBACK: deque(), Kind.PUBREC: deque()}
        """Packet Identifiers of the peer's PUBLISHs that are to be answered, in order."""
        self._unanswered: set[int] = set()
        """The same."""
        self._released = Counter[int]()
        """Packet Identifiers of the peer's PUBRELs that are to be answered."""
        self._pubrecs: set[int] = set()
        """Packet Identifiers of the peer's PUBRECs."""
        self._at = 0
        """Where the current packet began, in all that came."""

    def feed(self, data: bytes) -> list[Packet]:
        """Check bytes of this side, and return the packets with the topics that their Topic Aliases mean.

        Raises:
            Violation: MQTT does not allow this.
        """
        checked = []
        for packet in self._reader.packets(data):
            if packet.kind is Kind.PUBLISH:
                packet = self._with_topic(packet)
            self._check(packet)
            self._at += packet.size
            checked.append(packet)
        return checked

    def end(self) -> None:
        """Take the end of the Network Connection.

        Raises:
            Violation: A packet is not whole.
        """
        if self._reader.rest:
            raise Violation(self._at, f"the end cuts a packet off: {self._reader.rest[:400]!r}")

    def note(self, data: bytes) -> None:
        """Take what the other side wrote; whatever it is, it is not judged."""
        if self._is_unreadable:
            return
        try:
            for packet in self._peer.packets(data):
                self._note(packet)
        except Violation:
            self.is_blind = self._is_unreadable = True

    def _check(self, packet: Packet) -> None:
        raise NotImplementedError

    def _note(self, packet: Packet) -> None:
        raise NotImplementedError

    def _fail(self, reason: str, packet: Packet) -> None:
        raise Violation(self._at, f"{reason}: {packet}")

    def _check_size(self, packet: Packet) -> None:
        if 0 < self.packet_bytes_max < packet.size:  # [MQTT-3.1.2-24] [MQTT-3.2.2-15]
            self._fail(f"{packet.size} bytes where the Maximum Packet Size is {self.packet_bytes_max}", packet)

    def _with_topic(self, packet: Packet) -> Packet:
        alias = packet.property(_TOPIC_ALIAS)
        if not alias:
            return packet
        if alias > self.topic_alias_max:  # [MQTT-3.1.2-26] [MQTT-3.3.2-9] [MQTT-3.3.2-11]
            self._fail(f"the Topic Alias {alias} is above the Topic Alias Maximum {self.topic_alias_max}", packet)
        if packet.topic:
            self._aliases[alias] = packet.topic
            return packet
        topic = self._aliases.get(alias)
        if topic is None:
            raise Violation(self._at, f"the Topic Alias {alias} has no Topic Name yet")
        return packet._replace(topic=topic)

    def _check_message(self, packet: Packet) -> None:
        """Check the Packet Identifier of a PUBLISH, and how many are under way (sections 2.2.1, 4.3 and 4.9)."""
        if not packet.qos or self.is_blind:
            return
        messages = self.in_flight.messages
        before = messages.get(packet.packet_id)
        if packet.dup:
            if packet.packet_id not in messages and self.is_resumed:
                pass
            elif before is None:
                self._fail("DUP is set for a message that was not sent before, or was received", packet)
            elif _content(before) != _content(packet):
                self._fail(f"sent again as another message than {before}", packet)
        elif packet.packet_id in messages:
            self._fail(f"the Packet Identifier is in use for {before}", packet)
        messages[packet.packet_id] = packet
        self._under_way.add(packet.packet_id)
        count = len(self._under_way)
        if self.version == 5 and count > self.receive_maximum:  # [MQTT-3.3.4-7] [MQTT-3.3.4-9]
            self._fail(f"{count} messages in flight, the Receive Maximum is {self.receive_maximum}", packet)

    def _check_answer(self, packet: Packet) -> None:
        """Check that an acknowledgement answers something, PUBACK and PUBREC in their order [MQTT-4.6.0-2]."""
        if self.is_blind:
            return
        packet_id = packet.packet_id
        if packet.kind in self._answers:
            waiting = self._answers[packet.kind]
            if not waiting or waiting.popleft() != packet_id:
                self._fail("the next answer is due to another PUBLISH, or to none", packet)
            self._unanswered.discard(packet_id)
        elif packet.kind is Kind.PUBCOMP:
            if not self._released[packet_id]:
                self._fail("no PUBREL is to be answered", packet)
            self._released[packet_id] -= 1
        elif packet.kind is Kind.PUBREL:
            known = self.in_flight.messages.get(packet_id, None if self.is_resumed else packet) is None
            # PUBREL answers a PUBREC that nobody knows, too: over MQTT 5 with 0x92, over MQTT 3.1.1 as any other.
            unknown = bool(packet.codes[0]) if self.version == 5 else packet_id in self._pubrecs
            if not known and not unknown:
                self._fail("a PUBREL without a PUBREC", packet)

    def _note_message(self, packet: Packet) -> None:
        """Note what the other side's messages and acknowledgements mean for this side."""
        if packet.kind is Kind.PUBLISH and packet.qos:
            self.is_blind |= packet.packet_id in self._unanswered
            self._unanswered.add(packet.packet_id)
            self._answers[Kind.PUBACK if packet.qos == 1 else Kind.PUBREC].append(packet.packet_id)
        elif packet.kind is Kind.PUBREL:
            self._released[packet.packet_id] += 1
        elif packet.kind in {Kind.PUBACK, Kind.PUBREC, Kind.PUBCOMP}:
            if packet.kind is Kind.PUBREC:
                self._pubrecs.add(packet.packet_id)
            self.in_flight.complete(packet)
            if packet.kind is not Kind.PUBREC or packet.codes[0] >= 0x80:
                self._under_way.discard(packet.packet_id)


def _content(packet: Packet) -> tuple[object, ...]:
    """Return what a message that is sent again has in common; its expiry goes on, its alias may be another."""
    kept = [one for one in packet.properties if one[0] not in {0x02, _TOPIC_ALIAS}]
    return packet.topic, packet.payload, packet.qos, packet.retain, kept


class ServerStream(_Stream):
    """What a server sends to one client.

    Attributes:
        identifiers: The Subscription Identifiers that the client gave in this session.
        connack: The CONNACK, once it came.
    """

    def __init__(self, *, version: int = 5, earlier: ServerStream | None = None) -> None:
        """Begin a Network Connection.

        Args:
            version: 4 or 5, until CONNECT says it.
            earlier: The stream of the client's last Network Connection, whose session may go on; None for none.
        """
        super().__init__(version=version, sender="server")
        self.identifiers: set[int] = set()
        self.connack: Packet | None = None
        self._earlier = earlier
        self._connect: Packet | None = None
        self._requests: dict[Kind, dict[int, Packet]] = {Kind.SUBACK: {}, Kind.UNSUBACK: {}}
        self._pings = 0

    def feed(self, data: bytes) -> list[Packet]:
        """Check bytes of the server; as an answer to another protocol, MQTT 3.1.1 has a CONNACK for it."""
        if self._is_unreadable and self._connect is None and data == _OTHER_PROTOCOL:
            self.is_over = True
            return []
        return super().feed(data)

    def _note(self, packet: Packet) -> None:
        if packet.kind is Kind.CONNECT:
            self._connect = packet
            self.version = self._reader.version = packet.version
            self.topic_alias_max = packet.property(0x22)
            self.packet_bytes_max = packet.property(0x27)
            self.receive_maximum = packet.property(0x21, 0xFFFF)
        elif packet.kind in {Kind.SUBSCRIBE, Kind.UNSUBSCRIBE}:
            requests = self._requests[Kind.SUBACK if packet.kind is Kind.SUBSCRIBE else Kind.UNSUBACK]
            self.is_blind |= packet.packet_id in requests
            requests[packet.packet_id] = packet
            self.identifiers |= {value for value in packet.values(0x0B) if isinstance(value, int)}
        elif packet.kind is Kind.PINGREQ:
            self._pings += 1
        else:
            self._note_message(packet)

    def _check(self, packet: Packet) -> None:
        kind = packet.kind
        if self.is_over:
            self._fail("nothing may follow a refusal or DISCONNECT", packet)
        self._check_size(packet)
        if self.connack is None and kind not in {Kind.CONNACK, Kind.AUTH, Kind.DISCONNECT}:
            self._fail("the first packet is no CONNACK", packet)  # [MQTT-3.2.0-1]
        if kind is Kind.PUBLISH:
            self._check_publish(packet)
        elif kind is Kind.CONNACK:
            self._check_connack(packet)
        elif kind is Kind.DISCONNECT:
            self.is_over = True
        elif kind is Kind.PINGRESP:
            self._pings -= 1
            if self._pings < 0 and not self.is_blind:
                self._fail("a PINGRESP that answers nothing", packet)
        elif kind in self._requests:
            self._check_suback(packet)
        else:
            self._check_answer(packet)
        is_told = packet.values(_REASON_STRING) or packet.values(_USER_PROPERTY)
        if is_told and kind in _ANSWERS and self._connect is not None and not self._connect.property(0x17, 1):
            self._fail("Problem Information that the client does not want", packet)  # [MQTT-3.1.2-29]

    def _check_publish(self, packet: Packet) -> None:
        given = packet.values(0x0B)
        if not self.is_blind and not self.identifiers.issuperset(given):
            self._fail(f"the Subscription Identifiers {given} were not given, but {self.identifiers}", packet)
        self._check_message(packet)

    def _check_connack(self, packet: Packet) -> None:
        if self.connack is not None:
            self._fail("a second CONNACK", packet)
        self.connack = packet
        self.is_over = packet.codes[0] != 0
        connect = self._connect
        if connect is None or self.is_over:
            return
        if packet.session_present and connect.clean_start:  # [MQTT-3.2.2-2]
            self._fail("Session Present after Clean Start", packet)
        if self.version == 5 and not connect.client_id and not packet.values(0x12):  # [MQTT-3.2.2-16]
            self._fail("no Assigned Client Identifier", packet)
        if packet.values(0x1A) and not connect.property(0x19):  # section 3.1.2.11.6
            self._fail("Response Information that was not asked for", packet)
        if packet.session_present:
            self.is_resumed = True
            if self._earlier is None:
                self.is_blind = True
            else:
                self.in_flight = self._earlier.in_flight
                self.identifiers |= self._earlier.identifiers
                self.is_blind |= self._earlier.is_blind

    def _check_suback(self, packet: Packet) -> None:
        if self.is_blind:
            return
        request = self._requests[packet.kind].pop(packet.packet_id, None)
        if request is None:
            self._fail("no request is to be answered", packet)
            return
        if packet.codes and len(packet.codes) != len(request.filters):  # [MQTT-3.8.4-5] [MQTT-3.11.3-1]
            self._fail(f"{len(packet.codes)} Reason Codes for {len(request.filters)} Topic Filters", packet)
        if packet.kind is Kind.SUBACK:
            for code, (_, options) in zip(packet.codes, request.filters, strict=True):
                if options & 3 < code < 0x80:
                    self._fail("more QoS than was asked for", packet)


class ClientStream(_Stream):
    """What a client, such as a link, sends to one server; goes on over several Network Connections."""

    def __init__(self, *, version: int = 5) -> None:
        super().__init__(version=version, sender="client")
        self._connect: Packet | None = None
        self._connack: Packet | None = None
        self._requests: set[int] = set()
        self._was_blind = False
        """Whether what an earlier Network Connection did to the session is not known."""

    def begin(self) -> None:
        """Begin another Network Connection."""
        in_flight, was_blind = self.in_flight, self.is_blind or self._was_blind
        super().__init__(version=self.version, sender="client")
        self.in_flight, self._was_blind = in_flight, was_blind
        self._connect = self._connack = None
        self._requests = set()

    def _note(self, packet: Packet) -> None:
        if packet.kind is Kind.CONNACK and self._connack is None:  # a second one is ignored
            self._connack = packet
            self.topic_alias_max = packet.property(0x22)
            self.packet_bytes_max = packet.property(0x27)
            self.receive_maximum = packet.property(0x21, 0xFFFF)
            self.is_resumed = packet.session_present
            if packet.session_present:
                self.is_blind |= self._was_blind
            else:
                self.in_flight, self._was_blind = InFlight(), False
        elif packet.kind in {Kind.SUBACK, Kind.UNSUBACK}:
            self._requests.discard(packet.packet_id)
        else:
            self._note_message(packet)

    def _check(self, packet: Packet) -> None:
        kind = packet.kind
        if self.is_over:
            self._fail("nothing may follow DISCONNECT", packet)  # [MQTT-3.14.4-1]
        if (kind is Kind.CONNECT) is (self._connect is not None):  # [MQTT-3.1.0-1] [MQTT-3.1.0-2]
            self._fail("CONNECT is the first packet and comes once", packet)
        self._check_size(packet)
        if kind is Kind.CONNECT:
            self._connect = packet
            self.version = self._peer.version = packet.version
        elif kind is Kind.PUBLISH:
            self._check_publish(packet)
        elif kind is Kind.DISCONNECT:
            self.is_over = True
        elif kind in {Kind.SUBSCRIBE, Kind.UNSUBSCRIBE}:
            self._check_request(packet)
        else:
            self._check_answer(packet)

    def _check_publish(self, packet: Packet) -> None:
        if self._connack is not None:
            if packet.qos > self._connack.property(0x24, 2):  # [MQTT-3.2.2-11]
                self._fail("more than the Maximum QoS", packet)
            if packet.retain and not self._connack.property(0x25, 1):  # [MQTT-3.2.2-14]
                self._fail("RETAIN where it is not available", packet)
        if packet.packet_id in self._requests and not self.is_blind:
            self._fail("the Packet Identifier is in use for a request", packet)
        self._check_message(packet)

    def _check_request(self, packet: Packet) -> None:
        if not self.is_blind and (packet.packet_id in self._requests or packet.packet_id in self.in_flight.messages):
            self._fail("the Packet Identifier is in use", packet)  # [MQTT-2.2.1-3]
        self._requests.add(packet.packet_id)
        if self._connack is None:
            return
        shared = any(name.startswith(b"$share/") for name, _ in packet.filters)
        if packet.values(0x0B) and not self._connack.property(0x29, 1):
            self._fail("a Subscription Identifier where none is available", packet)
        if shared and not self._connack.property(0x2A, 1):
            self._fail("a shared subscription where there is none", packet)
        wild = any(b"+" in name or b"#" in name for name, _ in packet.filters)
        if wild and packet.kind is Kind.SUBSCRIBE and not self._connack.property(0x28, 1):
            self._fail("wildcards where they are not available", packet)
