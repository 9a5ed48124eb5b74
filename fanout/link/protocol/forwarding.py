"""Messages of local clients on their way to the primary, for selectors with `writes = "forward"` (core).

Owns the queue in front of the primary's Receive Maximum and what each message is known by. It must not know who
waits for the verdict.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from fanout.link.protocol.sender import Message, PacketSender
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["QUEUE_MAX", "UNAVAILABLE", "Forwarding", "verdict"]

QUEUE_MAX = 10_000
"""How many messages may wait for a place in flight; more are refused."""
UNAVAILABLE = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
"""The Reason Code for a message that the primary did not get, or did not answer: PUBACK knows no better one."""
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
"""Places in flight that are kept for control messages, so that forwarding never looks like a stall."""


class Forwarding:
    """The messages under way from local clients to the primary."""

    def __init__(self, sender: PacketSender) -> None:
        """Make an empty queue.

        Args:
            sender: Where messages go.
        """
        self._sender = sender
        self._waiting: deque[Message] = deque()
        self._token = 0

    def add(self, message: Message, *, now: float) -> int | ReasonCode:
        """Take a message; it is sent now or when its turn comes.

        Args:
            message: The message; its token is chosen here.
            now: Monotonic seconds.

        Returns:
            Its token; or, when it is not taken, the Reason Code for its publisher: Quota exceeded when too many wait,
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
        """Send what the primary's Receive Maximum allows."""
        sender = self._sender
        reserved = min(_RESERVED, sender.window - 1)
        while self._waiting and sender.free > reserved:
            sender.publish(self._waiting.popleft(), now=now)

    def drop_waiting(self) -> list[Message]:
        """Forget the messages that were not sent, and return them."""
        dropped = list(self._waiting)
        self._waiting.clear()
        return dropped


def verdict(reason_code: int) -> ReasonCode:
    """Return what a local publisher is told for the primary's Reason Code: one that PUBACK and PUBREC may carry."""
    return ReasonCode(reason_code) if reason_code in _OF_PUBACK else ReasonCode.UNSPECIFIED_ERROR
