"""Check of the Payload Format Indicator of a PUBLISH (MQTT 5, section 3.3.2.3.2)."""

from __future__ import annotations

from fanout.mqtt.decoder import PublishRow

__all__ = ["breaks_payload_format"]

_INDICATED = b"\x01\x01"  # the property 0x01 with the value 1
_FORMAT_INDICATOR = 0x01
_USER_PROPERTY = 0x26


def breaks_payload_format(row: PublishRow) -> bool:
    """Return whether a row claims that its payload is UTF-8, and it is not."""
    payload, properties = row[1], row[4]
    if _INDICATED not in properties or payload.isascii() or not _is_indicated(properties):
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return True
    return False


def _is_indicated(properties: bytes) -> bool:
    """Return whether the property is 1 in a block that the decoder has validated and reduced."""
    pos = 0
    while pos < len(properties):
        identifier = properties[pos]
        if identifier == _FORMAT_INDICATOR:
            return properties[pos + 1] == 1
        # The other properties in the block are strings, binary data, and pairs of strings.
        for _ in range(2 if identifier == _USER_PROPERTY else 1):
            pos += 2 + (properties[pos + 1] << 8 | properties[pos + 2])
        pos += 1
    return False
