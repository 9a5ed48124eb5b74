"""Filter of the messages inside a selector: by kind of content, by RETAIN, by size.

Implements the keys `content`, `retained_only`, `live_only` and `max_payload` of a selector, and counts rejected
messages by reason. A link without such keys has no filter.

The kind of a payload: its Content Type decides if it is a media type; else the Payload Format Indicator may say text;
else valid UTF-8 is text, and everything else is binary. Every JSON document is text, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from fanout.mqtt.data_representation import encode_varint
from fanout.mqtt.packets import PacketType
from fanout.mqtt.properties import decode_properties
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import ContentKind, Selector

__all__ = ["REASONS", "ContentFilter", "kinds_of", "reason_against_payload"]

REASONS: Final = ("content", "not_retained", "retained", "payload_too_large")
"""Reasons to reject a message."""
_JSON: Final = frozenset[ContentKind]({"json", "text"})
_TEXT: Final = frozenset[ContentKind]({"text"})
_BINARY: Final = frozenset[ContentKind]({"binary"})


class ContentFilter:
    """Content filter of one link.

    Attributes:
        rejected: Number of rejected messages of each selector, by reason; a reason without any is absent.
    """

    def __init__(
        self,
        selectors: Sequence[Selector],
        *,
        replica: Replica,
        copies_come: bool,
        rejected: Sequence[dict[str, int]] | None = None,
    ) -> None:
        """Begin.

        Args:
            selectors: The link's selectors.
            replica: The link's replica, read only: a rejected value replaces the one held by a removal.
            copies_come: True if the primary sends retained sets even for `live_only` (MQTT 3.1.1).
            rejected: See the class; None for no rejected messages.
        """
        self.rejected = [dict[str, int]() for _ in selectors] if rejected is None else list(rejected)
        self._selectors = tuple(selectors)
        self._replica = replica
        self._copies_come = copies_come

    def admit(self, updates: list[Update], *, phase: Phase) -> list[Update]:
        """Return the updates to replicate, in order.

        A rejected retained value removes the value that its topic has, because that one is outdated.

        Args:
            updates: Updates of one run.
            phase: Why they came. Only in `LIVE` a message with RETAIN is certainly no copy of a retained value.
        """
        admitted: list[Update] = []
        taken: set[bytes] = set()  # topics with a retained value among these updates, not in the replica yet
        for update in updates:
            index = self._index(update[0])
            selector = self._selectors[index]
            reason = self._reason_against(update, selector, copies=self._copies_come and phase is not Phase.LIVE)
            if reason is not None:
                self.reject(index, reason)
                if update[3] and (update[0] in taken or update[0] in self._replica.view):
                    admitted.append(_removal(update, selector))
            elif selector.live_only and update[3]:
                admitted.append((*update[:3], False, *update[4:]))
            else:
                admitted.append(update)
                if update[3]:
                    taken.add(update[0])
        return admitted

    def reject(self, index: int, reason: str) -> None:
        """Count a message that the selector at `index` does not take."""
        self.rejected[index][reason] = self.rejected[index].get(reason, 0) + 1

    @staticmethod
    def _reason_against(update: Update, selector: Selector, *, copies: bool) -> str | None:
        _, payload, _, retain, properties, *_ = update
        if selector.retained_only and not retain:
            return "not_retained"
        if selector.live_only and retain and copies:
            return "retained"
        return reason_against_payload(payload, properties, selector)

    def _index(self, topic: bytes) -> int:
        if len(self._selectors) == 1:
            return 0
        known = self._replica.selector_of.get(topic)
        if known is not None:
            return known
        return next(index for index, selector in enumerate(self._selectors) if selector.covers_local(topic))


def reason_against_payload(payload: bytes, properties: bytes, selector: Selector) -> str | None:
    """Return why a selector rejects a payload, one of `REASONS`; None when it does not.

    Args:
        payload: The payload. An empty one has no kind; with RETAIN it is a removal.
        properties: The encoded properties of its message, without their length.
        selector: The selector.
    """
    if not payload:
        return None
    if selector.max_payload and len(payload) > selector.max_payload:
        return "payload_too_large"
    if selector.content and kinds_of(payload, properties).isdisjoint(selector.content):
        return "content"
    return None


def kinds_of(payload: bytes, properties: bytes) -> frozenset[ContentKind]:
    """Return the kinds of a payload.

    Args:
        payload: A payload that is not empty.
        properties: The encoded properties of its message, without their length.
    """
    if properties:
        told, _ = decode_properties(encode_varint(len(properties)) + properties, 0, packet=PacketType.PUBLISH)
        media_type = (told.content_type or "").partition(";")[0].strip().lower()
        kind, separator, subtype = media_type.partition("/")
        if separator:
            if subtype == "json" or subtype.endswith("+json"):
                return _JSON
            return _TEXT if kind == "text" else _BINARY
        if told.payload_format_indicator == 1:
            return _JSON if _is_json(payload) else _TEXT
    try:
        payload.decode()
    except UnicodeDecodeError:
        return _BINARY
    return _JSON if _is_json(payload) else _TEXT


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON (RFC 8259, section 6)")


def _removal(update: Update, selector: Selector) -> Update:
    topic, _, qos, _, _, received_ns, _, _, stamp = update
    digest = content_digest(topic[len(selector.prefix.encode()) :], b"")
    return (topic, b"", qos, True, b"", received_ns, 0, digest, stamp)
