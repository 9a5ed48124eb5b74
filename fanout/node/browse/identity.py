"""Identity of a message for people: its stamp, and the trace that its publisher began (W3C Trace Context)."""

from __future__ import annotations

import re
from typing import Final

from fanout.api.browse.models import MessageStamp
from fanout.api.models import utc_from_ns
from fanout.errors import ProtocolError
from fanout.mqtt.data_representation import encode_varint
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.properties import decode_properties
from fanout.replica.update import STAMP, Update

__all__ = ["stamp_of", "traceparent_of"]

_NAME: Final = "traceparent"
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.{0,128})?"
)
"""W3C Trace Context 3.2; versions after 00 may be longer."""


def traceparent_of(properties: bytes) -> str | None:
    """Return the User Property `traceparent`; None without one, or for what is none.

    Args:
        properties: Properties of an update.
    """
    if _NAME.encode() not in properties:  # so properties are decoded for few messages
        return None
    try:
        found, _ = decode_properties(encode_varint(len(properties)) + properties, 0, packet=PacketType.PUBLISH)
    except ProtocolError:  # more User Properties than usual, which a primary may let through
        return None
    given = [value for name, value in found.user_property if name == _NAME]
    return given[0] if len(given) == 1 and _TRACEPARENT.fullmatch(given[0]) else None


def stamp_of(update: Update) -> MessageStamp | None:
    """Return the stamp of an update; None when nobody stamped it."""
    stamp = update[STAMP]
    if stamp is None:
        return None
    return MessageStamp(
        node=stamp.primary, epoch=stamp.epoch, sequence=stamp.sequence, stamped=utc_from_ns(stamp.origin_us * 1000)
    )
