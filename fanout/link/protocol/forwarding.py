"""Queue of messages of local clients for the primary, for selectors with `writes = "forward"`.

Messages wait here for a place in the primary's Receive Maximum; each has a token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from fanout.link.protocol.sender import OutgoingMessage, PacketSender
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["QUEUE_MAX", "UNAVAILABLE", "Forwarding", "puback_reason_code"]

QUEUE_MAX = 10_000
"""Number of messages that may wait for a place in flight; more are refused."""
UNAVAILABLE = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
"""Reason Code for a message that the primary did not get or did not answer; PUBACK has no better one."""
_OF_PUBACK = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.NO_MATCHING_SUBSCRIBERS,
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_IDENTIFIER_IN_USE,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
"""Reason Codes of PUBACK and PUBREC (MQTT 5, sections 3.4.2.1 and 3.5.2.1)."""
_RESERVED = 4
"""Places in flight reserved for control messages, so that forwarding never looks like a stall."""


class Forwarding:
    """Forwarding queue of one link."""

    def __init__(self, sender: PacketSender) -> None:
        """Begin with an empty queue.

        Args:
            sender: Sender of packets.
        """
        self._sender = sender
        self._waiting: deque[OutgoingMessage] = deque()
        self._token = 0

    def add(self, message: OutgoingMessage, *, now: float) -> int | ReasonCode:
        """Add a message; it is sent now or in its turn.

        Args:
            message: The message; its token is assigned here.
            now: Monotonic seconds.

        Returns:
            Its token; or, when it is refused, the Reason Code for its publisher: Quota exceeded when too many wait,
            `UNAVAILABLE` when the primary does not take such a message.
        """
        if not self._sender.takes(message):
            return UNAVAILABLE
        if len(self._waiting) >= QUEUE_MAX:
            return ReasonCode.QUOTA_EXCEEDED
        self._token += 1
        self._waiting.append(replace(message, token=self._token))
        self.send(now)
        return self._token

    def send(self, now: float) -> None:
        """Send as many waiting messages as the primary's Receive Maximum allows."""
        sender = self._sender
        reserved = min(_RESERVED, sender.window - 1)
        while self._waiting and sender.free > reserved:
            sender.publish(self._waiting.popleft(), now=now)

    def drop_waiting(self) -> list[OutgoingMessage]:
        """Remove and return the messages that were not sent."""
        dropped = list(self._waiting)
        self._waiting.clear()
        return dropped


def puback_reason_code(reason_code: int) -> ReasonCode:
    """Return the Reason Code for a local publisher: the primary's if PUBACK and PUBREC may carry it."""
    return ReasonCode(reason_code) if reason_code in _OF_PUBACK else ReasonCode.UNSPECIFIED_ERROR
