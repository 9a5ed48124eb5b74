"""The Payload Format Indicator of a PUBLISH (MQTT 5, section 3.3.2.3.2): whether a payload is what it claims.

Owns the check only; what becomes of a message that fails it is the server's business.
"""

from __future__ import annotations

from fanout.mqtt.decoder import PublishRow

__all__ = ["breaks_payload_format"]

_INDICATED = b"\x01\x01"  # the property 0x01 with the value 1
_FORMAT_INDICATOR = 0x01
_USER_PROPERTY = 0x26


def breaks_payload_format(row: PublishRow) -> bool:
    """Return whether a row says that its payload is UTF-8, and it is not."""
    payload, properties = row[1], row[4]
    if _INDICATED not in properties or payload.isascii() or not _is_indicated(properties):
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return True
    return False


def _is_indicated(properties: bytes) -> bool:
    """Find the property in a block that the decoder has validated, cut and kept."""
    pos = 0
    while pos < len(properties):
        identifier = properties[pos]
        if identifier == _FORMAT_INDICATOR:
            return properties[pos + 1] == 1
        # What else is kept are strings, binary data, and pairs of strings.
        for _ in range(2 if identifier == _USER_PROPERTY else 1):
            pos += 2 + (properties[pos + 1] << 8 | properties[pos + 2])
        pos += 1
    return False
