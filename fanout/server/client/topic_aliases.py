"""Topic Aliases in packets to one client (MQTT 5, section 3.3.2.3.4).

Members of an audience share their bytes, but each connection has its own aliases. So aliases are inserted when one
connection is written to, and only for a client that sent a Topic Alias Maximum. The first topics keep the aliases.
"""

from __future__ import annotations

from fanout.mqtt.data_representation import decode_varint, encode_varint
from fanout.mqtt.packet_types import PacketType

__all__ = ["TopicAliases"]


class TopicAliases:
    """The Topic Aliases of one Network Connection."""

    __slots__ = ("_aliases", "_maximum", "_packet_bytes_max")

    def __init__(self, maximum: int, *, packet_bytes_max: int) -> None:
        """Start without aliases.

        Args:
            maximum: Topic Alias Maximum [MQTT-3.1.2-26].
            packet_bytes_max: The client's Maximum Packet Size; 0 for none.
        """
        self._maximum = maximum
        self._packet_bytes_max = packet_bytes_max
        self._aliases: dict[bytes, int] = {}

    def rewrite(self, data: bytes) -> bytes:
        """Return whole packets with aliases inserted in their PUBLISHs."""
        parts: list[bytes] = []
        pos = 0
        while pos < len(data):
            length, start = decode_varint(data, pos + 1)
            stop = start + length
            packet = b""
            if data[pos] >> 4 == PacketType.PUBLISH:
                packet = self._with_alias(data[pos], data[start:stop])
            parts.append(packet or data[pos:stop])
            pos = stop
        return b"".join(parts)

    def _with_alias(self, first: int, body: bytes) -> bytes:
        """Return a PUBLISH with an alias; empty when it is sent without one."""
        topic_stop = 2 + (body[0] << 8 | body[1])
        topic = body[2:topic_stop]
        alias = self._aliases.get(topic)
        if alias is None and len(self._aliases) >= self._maximum:
            return b""
        number = alias or len(self._aliases) + 1
        identifier_stop = topic_stop + (2 if first & 0x06 else 0)
        length, start = decode_varint(body, identifier_stop)
        packet = b"".join(
            (
                body[:topic_stop] if alias is None else b"\0\0",
                body[topic_stop:identifier_stop],
                encode_varint(length + 3),
                b"\x23",
                number.to_bytes(2, "big"),
                body[start:],
            )
        )
        packet = bytes((first,)) + encode_varint(len(packet)) + packet
        if 0 < self._packet_bytes_max < len(packet):
            return b""  # its bare form fits, or it would not be here [MQTT-3.1.2-24]
        self._aliases[topic] = number
        return packet
