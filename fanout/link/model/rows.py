"""Positions in a PUBLISH row (`fanout.mqtt.decoder.PublishRow`), and masks of its flags.

The loops over every row of `fanout.link.ingest.convert` unpack rows and use numbers, for speed.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "COPY_MASK",
    "DUP",
    "FLAGS",
    "PACKET_ID",
    "PAYLOAD",
    "PROPERTIES",
    "QOS",
    "QOS_1",
    "QOS_2",
    "RETAIN",
    "TOPIC",
    "USER_AT",
]

TOPIC: Final = 0
PAYLOAD: Final = 1
FLAGS: Final = 2
PACKET_ID: Final = 3
PROPERTIES: Final = 4
USER_AT: Final = 6
"""Offset of the User Property that ends the properties."""

RETAIN: Final = 0b0001
QOS_1: Final = 0b0010
QOS_2: Final = 0b0100
QOS: Final = QOS_1 | QOS_2
DUP: Final = 0b1000
COPY_MASK: Final = QOS | RETAIN
"""Flags that are `RETAIN` in a copy of a retained value: QoS 0 and RETAIN."""
