"""Queue of messages of local clients for the primary, for selectors with `writes = "forward"`.

Messages wait here for a place in the primary's Receive Maximum; each has a token.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from dataclasses import replace
from itertools import chain

from fanout.link.protocol.sender import OutgoingMessage, PacketSender
from fanout.mqtt.data_representation import encode_varint
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.properties import decode_properties
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["BUSY", "NOT_TAKEN", "QUEUE_MAX", "UNAVAILABLE", "Forwarding", "puback_reason_code"]

QUEUE_MAX = 10_000
"""Number of messages that may wait for a place in flight; more are refused."""
UNAVAILABLE = ReasonCode.SERVER_UNAVAILABLE
"""Verdict on a message that the primary did not get or did not answer; it may be accepted when it is sent again."""
BUSY = ReasonCode.SERVER_BUSY
"""Verdict on a message without a free place now."""
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


_CLOSES_MAX = 2
"""Connections that a primary closes with one message alone unanswered, before the message is given up."""
_QUARANTINED_MAX = 1_000
"""Causes of closed connections that are remembered, the newest ones."""
_LEVELS_USUAL = 100
_DISCOURAGED = re.compile("[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that a receiver may treat as malformed (MQTT 5, section 1.5.4), of the Basic Multilingual Plane."""


class Forwarding:
    """Forwarding queue of one link.

    A primary may close the connection at a message that it does not accept, and would do so each time that the message
    is sent again. So after a close with messages unanswered these are sent one at a time, and all others wait. The one
    with which alone the primary closes two connections is given up. So are later ones with the same cause, until the
    session ends.

    Attributes:
        is_to_blame: True if the primary may have closed the newest connection at a message.
    """

    def __init__(self, sender: PacketSender) -> None:
        """Begin with an empty queue.

        Args:
            sender: Sender of packets.
        """
        self.is_to_blame = False
        self._sender = sender
        self._waiting: deque[OutgoingMessage] = deque()
        self._token = 0
        self._suspect = 0
        """Token of the message that was alone unanswered when the primary closed the newest connection; 0 for none."""
        self._closes = 0
        """Connections in a row that it closed with that message alone."""
        self._quarantine: dict[object, None] = {}
        """Causes of given-up messages (`_cause`), the oldest first."""

    def add(self, message: OutgoingMessage, *, now: float, live: bool = True) -> int | ReasonCode:
        """Add a message; it is sent now or in its turn.

        Args:
            message: The message; its token is assigned here.
            now: Monotonic seconds.
            live: As in `send`.

        Returns:
            Its token; or, when it is refused, the verdict for its publisher: `BUSY` when too many wait, `NOT_TAKEN`
            when the primary does not take such a message.
        """
        if not self._sender.takes(message) or (self._quarantine and self._is_quarantined(message)):
            return NOT_TAKEN
        if len(self._waiting) >= QUEUE_MAX:
            return BUSY
        self._token += 1
        self._waiting.append(replace(message, token=self._token))
        self.send(now, live=live)
        return self._token

    def send(self, now: float, *, live: bool = True) -> None:
        """Send as many waiting messages as the primary's Receive Maximum allows.

        Args:
            now: Monotonic seconds.
            live: True if the link is live. Before, nothing is sent at which the primary may close the connection.
        """
        sender = self._sender
        if not live:
            return
        if sender.held:
            sender.try_held(now)
            return
        reserved = min(_RESERVED, sender.window - 1)
        while self._waiting and sender.free > reserved:
            sender.publish(self._waiting.popleft(), now=now)

    @property
    def is_waiting(self) -> bool:
        """True if messages wait for `send`."""
        return bool(self._sender.held or self._waiting)

    def note_lost(self, *, by_primary: bool) -> tuple[OutgoingMessage | None, list[OutgoingMessage]]:
        """Note that the Network Connection is gone.

        Args:
            by_primary: True if the primary closed it, for no reason that has nothing to do with messages.

        Returns:
            The message that is given up because the primary closes the connection at it, or None; and the messages that
            were not sent and are not kept.
        """
        sender, given_up = self._sender, None
        unanswered = sender.unanswered()
        self.is_to_blame = by_primary and bool(unanswered)
        if self.is_to_blame:
            message = sender.message(unanswered[0])
            if len(unanswered) > 1:
                self._suspect = 0
            else:
                self._closes = 1 + (self._closes if message.token == self._suspect else 0)
                self._suspect = message.token
                if self._closes >= _CLOSES_MAX:
                    given_up = message
                    sender.quarantine(unanswered[0])
                    self._note_quarantined(message)
            sender.hold()
        if sender.held or given_up is not None:
            return given_up, []
        return None, self._drop_waiting()

    def begin_session(self) -> list[OutgoingMessage]:
        """Forget the former session, and return its messages, which may have arrived or not."""
        self._quarantine.clear()
        return self.drop_all()

    def drop_all(self) -> list[OutgoingMessage]:
        """Remove and return all messages, sent or not."""
        self._suspect = 0
        return self._sender.begin_session() + self._drop_waiting()

    def _drop_waiting(self) -> list[OutgoingMessage]:
        """Remove and return the messages that were not sent."""
        dropped = list(self._waiting)
        self._waiting.clear()
        return dropped

    def _note_quarantined(self, message: OutgoingMessage) -> None:
        self._quarantine[_cause(message)] = None
        if len(self._quarantine) > _QUARANTINED_MAX:
            del self._quarantine[next(iter(self._quarantine))]

    def _is_quarantined(self, message: OutgoingMessage) -> bool:
        quarantine = self._quarantine
        return message.topic in quarantine or (message.properties, "") in quarantine or _whole(message) in quarantine


def _cause(message: OutgoingMessage) -> object:
    """Return what a primary probably does not accept: an unusual topic, unusual properties, or the message as it is."""
    topic = message.topic.decode()
    if _DISCOURAGED.search(topic) or topic.count("/") >= _LEVELS_USUAL:
        return message.topic
    properties, _ = decode_properties(
        encode_varint(len(message.properties)) + message.properties, 0, packet=PacketType.PUBLISH
    )
    texts = [properties.content_type or "", properties.response_topic or "", *chain(*properties.user_property)]
    if any(map(_DISCOURAGED.search, texts)):
        return message.properties, ""
    return _whole(message)


def _whole(message: OutgoingMessage) -> object:
    digest = hashlib.sha256(message.payload).digest()
    return message.topic, message.properties, message.qos, message.retain, digest


def puback_reason_code(reason_code: int) -> ReasonCode:
    """Return the verdict for a local publisher: the primary's code, or the nearest that PUBACK and PUBREC may carry."""
    if reason_code < 0x80:
        return ReasonCode.SUCCESS if reason_code != 0x10 else ReasonCode.NO_MATCHING_SUBSCRIBERS
    return _OF_PUBACK.get(reason_code, ReasonCode.UNSPECIFIED_ERROR)
