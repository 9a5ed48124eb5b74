"""Stream decoder: bytes of one Network Connection in, whole packets out, PUBLISH and acknowledgements in runs.

Owns the fixed header (MQTT 5, section 2.1), the incomplete last packet, the packets that a role may receive, Topic
Aliases (section 3.3.2.3.4), and the loop over PUBLISH, the hot path of the whole program. Rules of the Session, such as
the order of CONNACK or known Packet Identifiers, belong to its user.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container
from typing import Final

from fanout.errors import ProtocolError
from fanout.mqtt.data_representation import decode_varint, malformed, protocol_error
from fanout.mqtt.packet_bodies import decode_ack, decode_body, decode_connect, decode_protocol
from fanout.mqtt.packet_types import ACK_TYPES, FIXED_HEADER_FLAGS, RECEIVABLE, PacketType, Role
from fanout.mqtt.packets import Disconnect, Packet
from fanout.mqtt.properties import split_publish_block
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.runs import AckRun, Item, PublishRow, PublishRun, is_empty_run
from fanout.mqtt.topics import check_topic_name, check_topic_names

__all__ = ["CONNECT_BYTES_MAX", "AckRun", "Decoder", "Item", "PublishRow", "PublishRun"]

CONNECT_BYTES_MAX: Final = 384 * 1024
"""Largest CONNECT of a client that is not authenticated yet: five fields of 64 KiB, and 64 KiB of properties."""

_PUBLISH_FLAGS = frozenset({0b0000, 0b0001, *range(0b0010, 0b0110), *range(0b1010, 0b1110)})
_PUBLISH = PacketType.PUBLISH << 4
_MEMO_ENTRIES_MAX = 64
_MEMO_BLOCK_BYTES_MAX = 256
_CHECKED_TOPICS_MAX = 65_536
_CHECKED_TOPICS_OF_CLIENT_MAX = 256
_CHECKED_TOPIC_BYTES_MAX = 128
_ACK_CHUNK_MIN = 64
_ACK_CHUNK_MAX = 4096
_ITEM_WORK = 64


class Decoder:
    """Decodes the bytes of one peer.

    Attributes:
        version: 4 or 5; None while a server waits for CONNECT. It is set as soon as the Protocol Version is read, so a
            fault in the rest of CONNECT can be answered in that version.
        known_topics: Valid Topic Names, such as the keys of a replica; membership saves validation. May be replaced
            at any time.
        fault: Fault of the peer; None without. Once set, nothing more is decoded.
        has_more: Whether the last `feed` left bytes for the next one, because of `work_max`.
    """

    __slots__ = (
        "_aliases",
        "_buffered",
        "_checked",
        "_checked_max",
        "_chunks",
        "_memo",
        "_needed",
        "_packet_bytes_max",
        "_role",
        "_topic_alias_max",
        "_work_max",
        "fault",
        "has_more",
        "known_topics",
        "version",
    )

    def __init__(
        self,
        *,
        version: int | None,
        packet_bytes_max: int,
        topic_alias_max: int = 0,
        known_topics: Container[bytes] = (),
        work_max: int | None = None,
        role: Role,
    ) -> None:
        """Create a decoder for one Network Connection.

        Args:
            version: 4 or 5; None for a server that waits for CONNECT.
            packet_bytes_max: Maximum Packet Size that was sent to the peer; a longer packet is a fault. CONNECT, which
                comes earlier, has at most `CONNECT_BYTES_MAX`.
            topic_alias_max: Topic Alias Maximum that was sent to the peer; 0 allows none.
            known_topics: See the attribute.
            work_max: Work after which `feed` leaves the rest for the next one, in bytes of packets other than PUBLISH
                and acknowledgements; each packet or run counts as 64 more. None for no limit.
            role: Our own side, which determines what the peer may send.

        Raises:
            ValueError: `version` is not 4 or 5, or is None for a client.
        """
        if version not in (4, 5) and not (version is None and role == "server"):
            raise ValueError(f"a {role} cannot decode version {version}")
        self.version = version
        self.known_topics = known_topics
        self.fault: ProtocolError | None = None
        self._packet_bytes_max = packet_bytes_max
        self._topic_alias_max = topic_alias_max
        self._work_max = sys.maxsize if work_max is None else work_max
        self.has_more = False
        self._role: Role = role
        self._aliases: dict[int, bytes] = {}
        # Topic Names that were checked: a publisher repeats few of them. A link has one decoder, a server one for each
        # client.
        self._checked: set[bytes] = set()
        self._checked_max = _CHECKED_TOPICS_MAX if role == "client" else _CHECKED_TOPICS_OF_CLIENT_MAX
        # Validated property blocks of PUBLISH: a publisher repeats one block in most of its messages.
        self._memo: dict[bytes, tuple[bytes, int | None, int | None, tuple[int, ...], int]] = {}
        # The bytes of an incomplete packet, joined only when `_needed` bytes are there: a large packet in small reads
        # costs one copy, not one per read.
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._needed = 0

    @property
    def _bytes_max(self) -> int:
        """The largest packet that may come now."""
        return min(self._packet_bytes_max, CONNECT_BYTES_MAX) if self.version is None else self._packet_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete packet that are held; at most the Maximum Packet Size."""
        return self._buffered

    def feed(self, data: bytes | bytearray | memoryview) -> list[Item]:
        """Decode all whole packets in the held bytes and `data`.

        Args:
            data: The bytes of one read; copied unless `bytes`, so the caller may reuse its buffer. Empty to continue
                when `has_more` is set.

        Returns:
            The packets in order. When the peer breaks the protocol: those before the fault, and `fault` is set.

        Raises:
            ProtocolError: `fault` was set before.
        """
        if self.fault is not None:
            raise self.fault
        if self._buffered:
            self._chunks.append(bytes(data))
            self._buffered += len(self._chunks[-1])
            if self._buffered < self._needed:
                return []
            buffer = b"".join(self._chunks)
            self._chunks.clear()
        else:
            buffer = bytes(data)
        items: list[Item] = []
        self.has_more = False
        try:
            pos = self._decode(buffer, items)
        except ProtocolError as fault:
            self.fault = fault
            pos = len(buffer)
            if items and is_empty_run(items[-1]):
                items.pop()
        self._buffered = len(buffer) - pos
        if self._buffered:
            self._chunks.append(buffer[pos:])
        return items

    def _decode(self, buffer: bytes, items: list[Item]) -> int:
        """Decode whole packets into `items` and return the position of the first incomplete one."""
        pos = 0
        end = len(buffer)
        work_left = self._work_max
        while pos < end:
            if work_left <= 0:
                self._needed = 0
                self.has_more = True
                return pos
            work_left -= _ITEM_WORK
            if buffer[pos] & 0xF0 == _PUBLISH and self.version is not None:
                rows: list[PublishRow] = []
                new_topics: list[bytes] = []
                items.append(PublishRun(rows))  # rows before a fault count
                before = pos
                try:
                    pos = self._decode_publish_run(buffer, pos, rows, new_topics)
                finally:
                    if new_topics:
                        self._check_topics(new_topics, rows)
                if pos > before:
                    continue
                items.pop()
            packet_type = self._check_first_byte(buffer[pos])
            header = self._decode_remaining_length(buffer, pos)
            if header is None:
                self._needed = end - pos + 1
                return pos
            start, stop = header
            if stop - pos > self._bytes_max:  # [MQTT-3.1.2-24] [MQTT-3.2.2-15]
                raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"a packet of {stop - pos} bytes")
            if stop > end:
                self._needed = stop - pos
                return pos
            if packet_type == PacketType.PUBLISH:  # the run skips packets too short for a Topic Name
                raise malformed("a PUBLISH without a Topic Name")
            if packet_type in ACK_TYPES:
                run = AckRun(packet_type, [], None)
                items.append(run)
                pos = self._decode_ack_run(buffer, pos, run)
            elif packet_type == PacketType.CONNECT:
                items.append(self._decode_connect(buffer, pos, start, stop))
                pos = stop
            else:
                items.append(self._decode_other(packet_type, buffer[start:stop]))
                work_left -= stop - pos
                pos = stop
        return pos

    def _check_first_byte(self, first: int) -> PacketType:
        """Return the packet type, or raise when this peer may not send it now or its flags are wrong."""
        kind = first >> 4
        flags = first & 0x0F
        if kind == 0 or (kind == PacketType.AUTH and self.version == 4):
            raise malformed(f"the packet type {kind} is reserved")  # section 2.1.2
        packet_type = PacketType(kind)
        if self.version is None:
            if packet_type != PacketType.CONNECT:
                raise protocol_error(f"the first packet is {packet_type.name}, not CONNECT")  # [MQTT-3.1.0-1]
        elif packet_type == PacketType.CONNECT and self._role == "server":
            raise protocol_error("a second CONNECT")  # [MQTT-3.1.0-2]
        elif packet_type not in RECEIVABLE[self._role, self.version]:
            raise protocol_error(f"a {self._role} does not receive {packet_type.name}")  # section 2.1.2
        if packet_type == PacketType.PUBLISH:
            if flags not in _PUBLISH_FLAGS:
                raise _publish_flags_fault(flags)
        elif flags != FIXED_HEADER_FLAGS[packet_type]:
            raise malformed(f"{packet_type.name} has the flags 0b{flags:04b}")  # [MQTT-2.1.3-1]
        return packet_type

    def _decode_remaining_length(self, buffer: bytes, pos: int) -> tuple[int, int] | None:
        """Return begin and end of the body of the packet at `pos`; None for an incomplete length."""
        value = 0
        for index, byte in enumerate(buffer[pos + 1 : pos + 5]):
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                start = pos + 2 + index
                if self.version == 5:
                    _check_shortest(buffer, pos, start)
                return start, start + value
            if index == 3:
                raise malformed("the Remaining Length is longer than four bytes")  # section 1.5.5
        return None

    def _decode_other(self, packet_type: PacketType, body: bytes) -> Packet:
        assert self.version is not None  # `_check_first_byte` lets only CONNECT through before it is known
        packet = decode_body(packet_type, body, version=self.version)
        if (
            isinstance(packet, Disconnect)
            and self._role == "client"
            and packet.properties.session_expiry_interval is not None
        ):
            raise protocol_error("a server sent DISCONNECT with a Session Expiry Interval")  # [MQTT-3.14.2-2]
        return packet

    def _decode_connect(self, buffer: bytes, pos: int, start: int, stop: int) -> Packet:
        body = buffer[start:stop]
        protocol = decode_protocol(body)
        self.version = protocol.version
        if protocol.version == 5:
            _check_shortest(buffer, pos, start)  # only now is it known whether MQTT 5 applies
        return decode_connect(body, protocol=protocol)

    def _decode_publish_run(self, buffer: bytes, pos: int, rows: list[PublishRow], new_topics: list[bytes]) -> int:
        """Decode PUBLISH packets into `rows` until another or an incomplete packet; return its position.

        Unknown Topic Names go into `new_topics`, which the caller checks even after an exception.

        One loop on local variables, and no call for a packet with a known topic and without properties: 1.5 M
        packets per second and core.
        """
        known_topics = self.known_topics
        checked = self._checked
        memo = self._memo
        append = rows.append
        note_new = new_topics.append
        legal_flags = _PUBLISH_FLAGS
        with_properties = self.version == 5
        packet_bytes_max = self._packet_bytes_max
        plain_length_max = min(0x7F, packet_bytes_max - 2)
        end = len(buffer)
        last = end - 3  # below it, a Remaining Length of one byte and the topic's length are there
        while pos < last:
            flags = buffer[pos] ^ 0x30
            if flags > 0x0F:
                break
            start = pos + 2
            length = buffer[pos + 1]
            if length > plain_length_max:
                if length > 0x7F:
                    high = buffer[start]
                    if 0 < high < 0x80:
                        start += 1
                        length += (high << 7) - 0x80
                    else:
                        header = self._decode_remaining_length(buffer, pos)
                        if header is None:
                            break
                        start = header[0]
                        length = header[1] - start
                        if length < 2:
                            raise malformed("a PUBLISH without a Topic Name")
                if start + length - pos > packet_bytes_max:
                    break  # the caller raises
            stop = start + length
            if stop > end:
                break
            cursor = start + 2 + (buffer[start] << 8 | buffer[start + 1])
            topic = buffer[start + 2 : cursor]
            if flags > 1:
                if flags not in legal_flags:
                    raise _publish_flags_fault(flags)
                cursor += 2
                if cursor > stop:
                    raise malformed("a PUBLISH ends before its Packet Identifier")
                packet_id = buffer[cursor - 2] << 8 | buffer[cursor - 1]
                if packet_id == 0:
                    raise protocol_error("the Packet Identifier is 0")  # [MQTT-2.2.1-3]
            else:
                packet_id = 0
                if cursor > stop:
                    raise malformed("a PUBLISH ends before its Topic Name")
            if with_properties:
                if cursor == stop:
                    raise malformed("a PUBLISH ends before its Property Length")
                length = buffer[cursor]
                cursor += 1
                if length:
                    if length > 0x7F:
                        length, width = decode_varint(buffer[cursor - 1 : min(cursor + 3, stop)], 0)
                        cursor += width - 1
                    block_stop = cursor + length
                    if block_stop > stop:
                        raise malformed("the Property Length is beyond the packet")
                    block = buffer[cursor:block_stop]
                    split = memo.get(block)
                    if split is None:
                        split = split_publish_block(block)
                        if length <= _MEMO_BLOCK_BYTES_MAX:
                            if len(memo) >= _MEMO_ENTRIES_MAX:
                                memo.clear()
                            memo[block] = split
                    kept, expiry_s, topic_alias, subscription_identifiers, user_at = split
                    if subscription_identifiers and self._role == "server":
                        raise protocol_error("a client sent a Subscription Identifier")  # [MQTT-3.3.4-6]
                    if topic and topic not in known_topics and topic not in checked:
                        note_new(topic)
                    if topic_alias is not None:
                        topic = self._resolve_alias(topic_alias, topic)
                    elif not topic:
                        raise _nameless_fault()
                    append((topic, buffer[block_stop:stop], flags, packet_id, kept, expiry_s, user_at))
                    pos = stop
                    continue
            if topic not in known_topics and topic not in checked:
                if with_properties and not topic:
                    raise _nameless_fault()
                note_new(topic)
            append((topic, buffer[cursor:stop], flags, packet_id, b"", None, 0))
            pos = stop
        return pos

    def _check_topics(self, topics: list[bytes], rows: list[PublishRow]) -> None:
        """Check and remember unknown Topic Names of a run; a bad one ends the run before its row."""
        try:
            check_topic_names(topics)
        except ProtocolError:
            for index, row in enumerate(rows):
                try:
                    check_topic_name(row[0])
                except ProtocolError:
                    del rows[index:]
                    break
            raise
        if max(map(len, topics)) > _CHECKED_TOPIC_BYTES_MAX:
            topics = [topic for topic in topics if len(topic) <= _CHECKED_TOPIC_BYTES_MAX]
        if len(self._checked) + len(topics) > self._checked_max:
            self._checked.clear()
        self._checked.update(topics[-self._checked_max :])

    def _resolve_alias(self, topic_alias: int, topic: bytes) -> bytes:
        """Return the Topic Name of a PUBLISH with a Topic Alias; a Topic Name in it sets the alias."""
        if topic_alias == 0 or topic_alias > self._topic_alias_max:
            # [MQTT-3.3.2-8]; [MQTT-3.3.2-9] from a client, [MQTT-3.3.2-11] from a server
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"the Topic Alias is {topic_alias}")
        if topic:
            self._aliases[topic_alias] = topic
            return topic
        known = self._aliases.get(topic_alias)
        if known is None:
            raise protocol_error(f"the Topic Alias {topic_alias} has no Topic Name yet")  # section 3.3.4
        return known

    def _decode_ack_run(self, buffer: bytes, pos: int, run: AckRun) -> int:
        """Decode acknowledgements into `run` until another or an incomplete packet; return its position."""
        assert self.version is not None
        packet_ids = run.packet_ids
        first = buffer[pos]
        head = first << 8 | 2
        end = len(buffer)
        # Plain acks are four bytes each: read them as an array of words, in pieces that grow while all are
        # plain, so that a read with other packets in between is not scanned again and again.
        chunk = _ACK_CHUNK_MIN
        while end - pos >= 4 * chunk:
            words = array("H", buffer[pos : pos + 4 * chunk])
            if sys.byteorder == "little":
                words.byteswap()
            chunk_ids = words[1::2].tolist()
            if words[::2].count(head) < chunk or 0 in chunk_ids:
                break
            packet_ids += chunk_ids
            pos += 4 * chunk
            chunk = min(2 * chunk, _ACK_CHUNK_MAX)
        while pos < end and buffer[pos] == first:
            if end - pos >= 4 and buffer[pos + 1] == 2 and run.reason_codes is None:  # a plain one, in line
                packet_id = buffer[pos + 2] << 8 | buffer[pos + 3]
                if packet_id:
                    packet_ids.append(packet_id)
                    pos += 4
                    continue
            header = self._decode_remaining_length(buffer, pos)
            if header is None or header[1] > end or header[1] - pos > self._packet_bytes_max:
                break
            start, stop = header
            ack = decode_ack(run.type, buffer[start:stop], version=self.version)
            if run.reason_codes is not None:
                run.reason_codes.append(ack.reason_code)
            elif ack.reason_code:
                run.reason_codes = [0] * len(packet_ids) + [ack.reason_code]
            packet_ids.append(ack.packet_id)
            pos = stop
        return pos


def _nameless_fault() -> ProtocolError:
    return protocol_error("a PUBLISH with neither Topic Name nor Topic Alias")  # section 3.3.2.1


def _publish_flags_fault(flags: int) -> ProtocolError:
    if flags & 0x06 == 0x06:
        return malformed("the QoS of a PUBLISH is 3")  # [MQTT-3.3.1-4]
    return malformed("DUP is set at QoS 0")  # [MQTT-3.3.1-2]


def _check_shortest(buffer: bytes, pos: int, start: int) -> None:
    if start > pos + 2 and buffer[start - 1] == 0:
        raise malformed("the Remaining Length is not in its shortest form")  # [MQTT-1.5.5-1]
