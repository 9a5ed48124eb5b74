"""Queue of messages of local clients for the primary, for selectors with `writes = "forward"`.

Messages wait here for a place in the primary's Receive Maximum; each has a token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from fanout.link.protocol.sender import OutgoingMessage, PacketSender
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["BUSY", "NOT_TAKEN", "QUEUE_MAX", "UNAVAILABLE", "Forwarding", "puback_reason_code"]

QUEUE_MAX = 10_000
"""Number of messages that may wait for a place in flight; more are refused."""
UNAVAILABLE = ReasonCode.SERVER_UNAVAILABLE
"""Verdict on a message that the primary did not get or did not answer; it may be accepted when it is sent again."""
BUSY = ReasonCode.SERVER_BUSY
"""Verdict on a message for which there is no place now."""
NOT_TAKEN = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
"""Verdict on a message that the primary would not take."""
_OF_PUBACK: dict[int, ReasonCode] = {
    **{
        code: code
        for code in (
            ReasonCode.SUCCESS,
            ReasonCode.NO_MATCHING_SUBSCRIBERS,
            ReasonCode.UNSPECIFIED_ERROR,
            ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
            ReasonCode.NOT_AUTHORIZED,
            ReasonCode.TOPIC_NAME_INVALID,
            ReasonCode.QUOTA_EXCEEDED,
            ReasonCode.PAYLOAD_FORMAT_INVALID,
        )
    },
    ReasonCode.SERVER_UNAVAILABLE: UNAVAILABLE,
    ReasonCode.SERVER_BUSY: BUSY,
    ReasonCode.BANNED: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.PACKET_TOO_LARGE: ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.MESSAGE_RATE_TOO_HIGH: ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.RETAIN_NOT_SUPPORTED: NOT_TAKEN,
    ReasonCode.QOS_NOT_SUPPORTED: NOT_TAKEN,
}
"""Answers of a primary, to the Reason Codes that PUBACK and PUBREC may carry (MQTT 5, sections 3.4.2.1 and 3.5.2.1).

Mosquitto tells in PUBACK that a message is too large. Packet Identifier in use concerns the link's, not the client's.
"""
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
            Its token; or, when it is refused, the verdict for its publisher: `BUSY` when too many wait, `NOT_TAKEN`
            when the primary does not take such a message.
        """
        if not self._sender.takes(message):
            return NOT_TAKEN
        if len(self._waiting) >= QUEUE_MAX:
            return BUSY
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
    """Return the verdict for a local publisher: the primary's code, or the nearest that PUBACK and PUBREC may carry."""
    if reason_code < 0x80:
        return ReasonCode.SUCCESS if reason_code != 0x10 else ReasonCode.NO_MATCHING_SUBSCRIBERS
    return _OF_PUBACK.get(reason_code, ReasonCode.UNSPECIFIED_ERROR)
