"""Will Messages (MQTT 5, section 3.1.2.5): conversion from the Will of a CONNECT to a row that can be published."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.packets import PacketType
from fanout.mqtt.packets import Will as WillPacket
from fanout.mqtt.properties import encode_properties, split_publish_properties

__all__ = ["WillMessage", "will_of"]


@dataclass(frozen=True, slots=True)
class WillMessage:
    """A session's Will Message, ready to be published."""

    row: PublishRow
    """The message as if the client had published it."""
    delay_s: int
    """Will Delay Interval in seconds."""


def will_of(will: WillPacket) -> WillMessage:
    """Return the Will Message of a CONNECT, its properties encoded as those of a PUBLISH."""
    properties = will.properties
    kept = replace(properties, will_delay_interval=None, message_expiry_interval=None)
    block = encode_properties(kept, packet=PacketType.PUBLISH)
    length_bytes = next(index + 1 for index, byte in enumerate(block) if byte < 0x80)
    flags = will.qos << 1 | will.retain
    split = split_publish_properties(block[length_bytes:])
    row = (will.topic, will.payload, flags, 0, split.kept, properties.message_expiry_interval, split.user_at)
    return WillMessage(row, delay_s=properties.will_delay_interval or 0)
