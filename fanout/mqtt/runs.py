"""Output of the stream decoder: packets, and runs of those that come by the thousand.

A run is a sequence of PUBLISH packets, or of acknowledgements of one type, without an object for each packet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fanout.mqtt.breaches import Deviation, SkipReason
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.packets import Packet

__all__ = ["AckRun", "Item", "PublishRow", "PublishRun", "SkippedPublish", "ToleratedBreach", "is_empty_run"]

PublishRow: TypeAlias = tuple[bytes, bytes, int, int, bytes, int | None, int]
"""(topic, payload, flags, packet_id, properties, expiry_s, user_at) of one PUBLISH.

topic:       Topic Name, valid, Topic Alias already resolved.
payload:     Application Message.
flags:       the low four bits of the fixed header: bit 0 RETAIN, bits 1 and 2 QoS, bit 3 DUP.
packet_id:   Packet Identifier; 0 at QoS 0.
properties:  `PublishProperties.kept`, encoded and validated; empty for none.
expiry_s:    Message Expiry Interval in seconds; None for none.
user_at:     `PublishProperties.user_at`: begin of a User Property at the end of `properties`, else their length.
"""


@dataclass(slots=True)
class PublishRun:
    """Consecutive PUBLISH packets of one feed."""

    rows: list[PublishRow]
    """At least one row, in the order of arrival."""


@dataclass(slots=True)
class AckRun:
    """Consecutive PUBACK (or PUBREC, PUBREL, PUBCOMP) packets of one feed."""

    type: PacketType
    """One of the four."""
    packet_ids: list[int]
    """At least one Packet Identifier, in the order of arrival."""
    reason_codes: list[int] | None
    """The Reason Code of each of `packet_ids`; None when all are 0."""

    def __len__(self) -> int:
        """Return the number of packets."""
        return len(self.packet_ids)

    def part(self, start: int, stop: int) -> AckRun:
        """Return the packets from `start` to before `stop`."""
        codes = self.reason_codes[start:stop] if self.reason_codes is not None else None
        return AckRun(self.type, self.packet_ids[start:stop], codes)


@dataclass(frozen=True, slots=True)
class SkippedPublish:
    """A PUBLISH from a server that cannot be replicated; only the role of a client gets it."""

    reason: SkipReason
    """Why it is skipped."""
    topic: bytes
    """Its Topic Name as far as known, maybe no valid one; empty for unknown."""
    flags: int
    """Flags of its fixed header."""
    packet_id: int
    """Packet Identifier to acknowledge, as the QoS in `flags` demands; 0 for none."""
    detail: str
    """The fault, or the size."""
    payload_bytes: int = 0
    """Bytes of the payload of a packet that is too large; 0 for another reason."""


@dataclass(frozen=True, slots=True)
class ToleratedBreach:
    """A breach of MQTT by a server that costs no message; only the role of a client gets it."""

    deviation: Deviation
    """Kind of the breach."""
    detail: str
    """The fault."""


Item: TypeAlias = PublishRun | AckRun | SkippedPublish | ToleratedBreach | Packet
"""Results of `Decoder.feed`."""


def is_empty_run(item: Item) -> bool:
    """Return whether an item is a run without packets."""
    match item:
        case PublishRun(rows):
            return not rows
        case AckRun(_, packet_ids, _):
            return not packet_ids
        case _:
            return False
