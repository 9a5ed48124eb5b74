"""Stream decoder: bytes of one Network Connection in, whole packets out, PUBLISH and acknowledgements in runs.

Owns the fixed header (MQTT 5, section 2.1), the incomplete last packet, the packets that a role may receive, Topic
Aliases (section 3.3.2.3.4), and the loop over PUBLISH, the hot path of the whole program. Rules of the Session, such as
the order of CONNACK or known Packet Identifiers, belong to its user.

A server is strict. A client tolerates what breaks MQTT inside a packet (`fanout.mqtt.tolerance`); only a fixed header
without a known type or length is a fault there, because the next packet cannot be found. The loops leave such a packet
to the slow path, which examines it by itself, and are entered again after it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container
from typing import Final

from fanout.errors import ProtocolError
from fanout.mqtt import tolerance
from fanout.mqtt.breaches import Deviation
from fanout.mqtt.data_representation import decode_varint, malformed, protocol_error
from fanout.mqtt.packet_bodies import decode_ack, decode_body, decode_connect, decode_protocol
from fanout.mqtt.packet_types import ACK_TYPES, FIXED_HEADER_FLAGS, RECEIVABLE, PacketType, Role
from fanout.mqtt.packets import Ack, Disconnect, Packet
from fanout.mqtt.properties import (
    USER_PROPERTIES_MAX,
    USER_PROPERTY_BYTES_MIN,
    check_user_properties,
    split_publish_block,
)
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.runs import AckRun, Item, PublishRow, PublishRun, ToleratedBreach, is_empty_run
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
_RUN_BYTES = 16 * 1024
_RUN_ROWS_MAX = 4096
"""With `work_max`, a run of PUBLISH ends after so many, give or take those in `_RUN_BYTES`."""
_UNLIMITED_BYTES = 1 << 40
_HEAD_BYTES = 2 + 2 + 4
"""Bytes of a PUBLISH between its fixed header and its properties, beside the Topic Name."""


class Decoder:
    """Decodes the bytes of one peer.

    Attributes:
        version: 4 or 5; None while a server waits for CONNECT. It is set as soon as the Protocol Version is read, so a
            fault in the rest of CONNECT can be answered in that version.
        known_topics: Valid Topic Names, such as the keys of a replica; membership saves validation. May be replaced
            at any time.
        fault: Fault of the peer; None without. Once set, nothing more is decoded.
        has_more: True if the last `feed` left bytes for the next one, because of `work_max`.
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
        "_passed",
        "_passing_bytes",
        "_role",
        "_run_bytes",
        "_topic_alias_max",
        "_user_properties_max",
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
        user_properties_max: int = USER_PROPERTIES_MAX,
        known_topics: Container[bytes] = (),
        work_max: int | None = None,
        role: Role,
    ) -> None:
        """Create a decoder for one Network Connection.

        Args:
            version: 4 or 5; None for a server that waits for CONNECT.
            packet_bytes_max: Bytes of the largest packet that is read. For a server it is the Maximum Packet Size that
                was sent to the peer, and a longer packet is a fault; CONNECT, which comes earlier, has at most
                `CONNECT_BYTES_MAX`. A client skips a longer packet without holding it.
            topic_alias_max: Topic Alias Maximum that was sent to the peer; 0 allows none.
            user_properties_max: User Properties of one packet; more are a fault. For a server.
            known_topics: See the attribute.
            work_max: Work after which `feed` leaves the rest for the next one, in bytes of packets other than PUBLISH
                and acknowledgements; each packet or run counts as 64 more, and some 4,096 PUBLISHs use it up. None for
                no limit.
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
        self._user_properties_max = user_properties_max
        self._work_max = sys.maxsize if work_max is None else work_max
        self._run_bytes = _UNLIMITED_BYTES if work_max is None else _RUN_BYTES
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
        # Of a packet that is too large and passes: its bytes that have not come, and its item, returned at its end.
        self._passing_bytes = 0
        self._passed: Item | None = None

    @property
    def is_passing(self) -> bool:
        """True if a packet that is too large is under way, of which nothing is held."""
        return self._passing_bytes > 0

    @property
    def _bytes_max(self) -> int:
        """The largest packet that may come now."""
        return min(self._packet_bytes_max, CONNECT_BYTES_MAX) if self.version is None else self._packet_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete packet that are held; at most the largest packet, or the head of a larger one."""
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
        if self._passing_bytes:
            left = self._passing_bytes - len(buffer)
            self._passing_bytes = max(0, left)
            if left > 0:
                return []
            self._end_passing(items)
            buffer = buffer[len(buffer) + left :]
        try:
            pos = self._decode(buffer, items)
        except ProtocolError as fault:
            self.fault = fault.with_traceback(None)  # it would hold this decoder and the packet in a cycle
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
                before = pos
                while True:
                    piece = pos
                    pos = self._decode_publish_run(buffer, pos, rows, new_topics)
                    if pos - piece < self._run_bytes - 3:
                        break
                    if len(rows) >= _RUN_ROWS_MAX:
                        work_left = 0
                        break
                if pos > before:
                    items.append(PublishRun(rows))
                    if new_topics:
                        self._check_topics(new_topics, rows, items)
                    continue
            packet_type = self._check_first_byte(buffer[pos])
            header = self._decode_remaining_length(buffer, pos)
            if header is None:
                self._needed = end - pos + 1
                return pos
            start, stop = header
            if stop - pos > self._bytes_max:
                if self._role == "server":  # [MQTT-3.2.2-15]
                    raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"a packet of {stop - pos} bytes")
                if not self._begin_passing(buffer, pos, start, stop):
                    return pos
                self._end_passing(items, last=stop <= end)
                pos = min(stop, end)
                continue
            if stop > end:
                self._needed = stop - pos
                return pos
            flags = buffer[pos] & 0x0F
            if packet_type == PacketType.PUBLISH:  # the run left it
                self._decode_odd_publish(flags, buffer[start:stop], items)
                pos = stop
                continue
            has_legal_flags = flags == FIXED_HEADER_FLAGS[packet_type]  # else it is a client's
            if not has_legal_flags:
                self._tolerate(items, Deviation.FLAGS, f"{packet_type.name} with the flags 0b{flags:04b}")
            if packet_type in ACK_TYPES:
                run = AckRun(packet_type, [], None)
                items.append(run)
                before = pos
                if has_legal_flags:
                    pos = self._decode_ack_run(buffer, pos, run)
                if pos == before:
                    items.pop()
                    self._decode_odd_ack(packet_type, buffer[start:stop], items)
                    pos = stop
            elif packet_type == PacketType.CONNECT and self._role == "server":
                items.append(self._decode_connect(buffer, pos, start, stop))
                pos = stop
            else:
                self._decode_other(packet_type, buffer[start:stop], items)
                work_left -= stop - pos
                pos = stop
        return pos

    def _begin_passing(self, buffer: bytes, pos: int, start: int, stop: int) -> bool:
        """Begin to skip the packet at `pos`, which is too large to be read; return False while its head is to come."""
        packet_type, size, end = buffer[pos] >> 4, stop - pos, len(buffer)
        if packet_type != PacketType.PUBLISH:
            name = PacketType(packet_type).name
            self._passed = ToleratedBreach(Deviation.PACKET, f"{name} with {size:,} bytes is ignored")
        else:
            needed = start + 2
            if end >= needed:
                needed = min(stop, start + _HEAD_BYTES + (buffer[start] << 8 | buffer[start + 1]))
            if end < needed:
                self._needed = needed - pos
                return False
            assert self.version is not None  # a client knows it
            self._passed = tolerance.read_head(
                buffer[pos] & 0x0F, buffer[start:needed], size=size, length=stop - start, version=self.version
            )
        self._passing_bytes = max(0, stop - end)
        return True

    def _end_passing(self, items: list[Item], *, last: bool = True) -> None:
        """Return the item of a skipped packet, once its last byte has come."""
        if last and self._passed is not None:
            items.append(self._passed)
            self._passed = None

    def _tolerate(self, items: list[Item], deviation: Deviation, detail: str) -> None:
        items.append(ToleratedBreach(deviation, detail))

    def _check_first_byte(self, first: int) -> PacketType:
        """Return the packet type; a server raises when the peer may not send it now or its flags are wrong."""
        kind = first >> 4
        flags = first & 0x0F
        if kind == 0 or (kind == PacketType.AUTH and self.version == 4):
            raise malformed(f"the packet type {kind} is reserved")  # section 2.1.2
        packet_type = PacketType(kind)
        if self._role == "client":
            return packet_type
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
                if self.version == 5 and self._role == "server":
                    _check_shortest(buffer, pos, start)
                return start, start + value
            if index == 3:
                raise malformed("the Remaining Length is longer than four bytes")  # section 1.5.5
        return None

    def _decode_other(self, packet_type: PacketType, body: bytes, items: list[Item]) -> None:
        """Decode a packet that comes seldom; a client ignores one that does not belong, or is not readable."""
        assert self.version is not None  # `_check_first_byte` lets only CONNECT through before it is known
        if self._role == "server":
            items.append(
                decode_body(packet_type, body, version=self.version, user_properties_max=self._user_properties_max)
            )
            return
        if packet_type not in RECEIVABLE["client", self.version]:
            self._tolerate(items, Deviation.PACKET, f"a server does not send {packet_type.name}")
            return
        packet: Packet | None
        try:
            packet = decode_body(packet_type, body, version=self.version)
        except ProtocolError as fault:
            packet = tolerance.read_packet(packet_type, body, version=self.version)
            self._tolerate(items, Deviation.FIELD, f"{packet_type.name}: {fault.detail}")
        if isinstance(packet, Disconnect) and packet.properties.session_expiry_interval is not None:
            self._tolerate(items, Deviation.FIELD, "DISCONNECT has a Session Expiry Interval")  # [MQTT-3.14.2-2]
        if packet is not None:
            items.append(packet)

    def _decode_odd_ack(self, packet_type: PacketType, body: bytes, items: list[Item]) -> None:
        """Decode an acknowledgement that the run of a client left."""
        assert self.version is not None
        ack: Ack | None
        try:
            ack = decode_ack(packet_type, body, version=self.version)
        except ProtocolError as fault:
            self._tolerate(items, Deviation.FIELD, f"{packet_type.name}: {fault.detail}")
            ack = tolerance.read_ack(packet_type, body)
        if ack is not None:
            items.append(AckRun(packet_type, [ack.packet_id], [ack.reason_code] if ack.reason_code else None))

    def _decode_odd_publish(self, flags: int, body: bytes, items: list[Item]) -> None:
        """Decode a PUBLISH that the run left because something is wrong with it; a server raises the fault."""
        assert self.version is not None
        try:
            row = self._decode_publish(flags, body)
        except ProtocolError as fault:
            if self._role == "server":
                raise
            items += tolerance.read_publish(flags, body, version=self.version, fault=fault)
        else:
            items.append(PublishRun([row]))

    def _decode_publish(self, flags: int, body: bytes) -> PublishRow:
        """Decode one PUBLISH, as the run does, with the reason for what is wrong.

        Raises:
            ProtocolError: It breaks MQTT.
        """
        if len(body) < 2:
            raise malformed("a PUBLISH without a Topic Name")
        if flags not in _PUBLISH_FLAGS:
            raise _publish_flags_fault(flags)
        pos = 2 + (body[0] << 8 | body[1])
        topic, packet_id = body[2:pos], 0
        if flags > 1:
            pos += 2
            if pos > len(body):
                raise malformed("a PUBLISH ends before its Packet Identifier")
            packet_id = body[pos - 2] << 8 | body[pos - 1]
            if packet_id == 0:
                raise protocol_error("the Packet Identifier is 0")  # [MQTT-2.2.1-3]
        elif pos > len(body):
            raise malformed("a PUBLISH ends before its Topic Name")
        if self.version == 4:
            check_topic_name(topic)
            return topic, body[pos:], flags, packet_id, b"", None, 0
        if pos == len(body):
            raise malformed("a PUBLISH ends before its Property Length")
        length, pos = decode_varint(body[: pos + 4], pos)
        stop = pos + length
        if stop > len(body):
            raise malformed("the Property Length is beyond the packet")
        if length > USER_PROPERTY_BYTES_MIN * self._user_properties_max:
            check_user_properties(body[pos:stop], self._user_properties_max)
        kept, expiry_s, topic_alias, subscription_identifiers, user_at = split_publish_block(body[pos:stop])
        if subscription_identifiers and self._role == "server":
            raise protocol_error("a client sent a Subscription Identifier")  # [MQTT-3.3.4-6]
        if topic_alias is not None:
            if topic:
                check_topic_name(topic)
            topic = self._resolve_alias(topic_alias, topic)
        elif not topic:
            raise protocol_error("a PUBLISH with neither Topic Name nor Topic Alias")  # section 3.3.2.1
        check_topic_name(topic)
        return topic, body[stop:], flags, packet_id, kept, expiry_s, user_at

    def _decode_connect(self, buffer: bytes, pos: int, start: int, stop: int) -> Packet:
        body = buffer[start:stop]
        protocol = decode_protocol(body)
        self.version = protocol.version
        if protocol.version == 5:
            _check_shortest(buffer, pos, start)  # only now is it known whether MQTT 5 applies
        return decode_connect(body, protocol=protocol, user_properties_max=self._user_properties_max)

    def _decode_publish_run(self, buffer: bytes, pos: int, rows: list[PublishRow], new_topics: list[bytes]) -> int:
        """Decode PUBLISH packets into `rows` until another, an incomplete or an odd packet; return its position.

        A packet is odd if it is too large or breaks MQTT. Unknown Topic Names go into `new_topics`, for the caller to
        check.

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
        short_block = USER_PROPERTY_BYTES_MIN * self._user_properties_max
        plain_length_max = min(0x7F, packet_bytes_max - 2)
        end = len(buffer)
        last = (
            min(end, pos + self._run_bytes) - 3
        )  # below it, a Remaining Length of one byte and the topic's length are there
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
                        try:
                            header = self._decode_remaining_length(buffer, pos)
                        except ProtocolError:
                            break
                        if header is None:
                            break
                        start = header[0]
                        length = header[1] - start
                        if length < 2:
                            break
                if start + length - pos > packet_bytes_max:
                    break
            stop = start + length
            if stop > end:
                break
            cursor = start + 2 + (buffer[start] << 8 | buffer[start + 1])
            topic = buffer[start + 2 : cursor]
            if flags > 1:
                if flags not in legal_flags:
                    break
                cursor += 2
                if cursor > stop:
                    break
                packet_id = buffer[cursor - 2] << 8 | buffer[cursor - 1]
                if packet_id == 0:
                    break
            else:
                packet_id = 0
                if cursor > stop:
                    break
            if with_properties:
                if cursor == stop:
                    break
                length = buffer[cursor]
                cursor += 1
                if length:
                    if length > 0x7F:
                        try:
                            length, width = decode_varint(buffer[cursor - 1 : min(cursor + 3, stop)], 0)
                        except ProtocolError:
                            break
                        cursor += width - 1
                    block_stop = cursor + length
                    if block_stop > stop:
                        break
                    block = buffer[cursor:block_stop]
                    split = memo.get(block)
                    if split is None:
                        try:
                            if length > short_block:
                                check_user_properties(block, self._user_properties_max)
                            split = split_publish_block(block)
                        except ProtocolError:
                            break
                        if length <= _MEMO_BLOCK_BYTES_MAX:
                            if len(memo) >= _MEMO_ENTRIES_MAX:
                                memo.clear()
                            memo[block] = split
                    kept, expiry_s, topic_alias, subscription_identifiers, user_at = split
                    if subscription_identifiers and self._role == "server":
                        break
                    if topic_alias is not None:
                        named = self._find_alias(topic_alias, topic)
                        if not named:
                            break
                        if topic and topic not in known_topics and topic not in checked:
                            note_new(topic)
                        topic = named
                    elif not topic:
                        break
                    elif topic not in known_topics and topic not in checked:
                        note_new(topic)
                    append((topic, buffer[block_stop:stop], flags, packet_id, kept, expiry_s, user_at))
                    pos = stop
                    continue
            if topic not in known_topics and topic not in checked:
                if not topic:
                    break
                note_new(topic)
            append((topic, buffer[cursor:stop], flags, packet_id, b"", None, 0))
            pos = stop
        return pos

    def _check_topics(self, topics: list[bytes], rows: list[PublishRow], items: list[Item]) -> None:
        """Check and remember unknown Topic Names of the last item, a run.

        A bad one ends the run before its row and is raised; a client skips its rows.
        """
        try:
            check_topic_names(topics)
        except ProtocolError:
            if self._role == "client":
                items.pop()
                items += tolerance.skip_bad_topics(rows, set(topics))
                return
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

    def _find_alias(self, topic_alias: int, topic: bytes) -> bytes:
        """Return the Topic Name of a PUBLISH with a Topic Alias, which one in it sets; empty when it is not known."""
        if not 0 < topic_alias <= self._topic_alias_max:
            return b""
        if topic:
            self._aliases[topic_alias] = topic
            return topic
        return self._aliases.get(topic_alias, b"")

    def _resolve_alias(self, topic_alias: int, topic: bytes) -> bytes:
        """Return the Topic Name as `_find_alias` does.

        Raises:
            ProtocolError: It is not known.
        """
        named = self._find_alias(topic_alias, topic)
        if not 0 < topic_alias <= self._topic_alias_max:
            # [MQTT-3.3.2-8]; [MQTT-3.3.2-9] from a client, [MQTT-3.3.2-11] from a server
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"the Topic Alias is {topic_alias}")
        if not named:
            raise protocol_error(f"the Topic Alias {topic_alias} has no Topic Name yet")  # section 3.3.4
        return named

    def _decode_ack_run(self, buffer: bytes, pos: int, run: AckRun) -> int:
        """Decode acknowledgements into `run` until another or an incomplete packet; return its position.

        A client leaves one that breaks MQTT, too.
        """
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
            try:
                ack = decode_ack(
                    run.type,
                    buffer[start:stop],
                    version=self.version,
                    user_properties_max=self._user_properties_max,
                )
            except ProtocolError:
                if self._role == "server":
                    raise
                break
            if run.reason_codes is not None:
                run.reason_codes.append(ack.reason_code)
            elif ack.reason_code:
                run.reason_codes = [0] * len(packet_ids) + [ack.reason_code]
            packet_ids.append(ack.packet_id)
            pos = stop
        return pos


def _publish_flags_fault(flags: int) -> ProtocolError:
    if flags & 0x06 == 0x06:
        return malformed("the QoS of a PUBLISH is 3")  # [MQTT-3.3.1-4]
    return malformed("DUP is set at QoS 0")  # [MQTT-3.3.1-2]


def _check_shortest(buffer: bytes, pos: int, start: int) -> None:
    if start > pos + 2 and buffer[start - 1] == 0:
        raise malformed("the Remaining Length is not in its shortest form")  # [MQTT-1.5.5-1]
