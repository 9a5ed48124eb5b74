"""Error conditions of AMQP (part 2, section 2.8.15) for the Reason Codes of the server."""

from __future__ import annotations

from typing import Final

from fanout.mqtt.packets import Connack, Disconnect, Suback
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["condition_of", "text_of"]

_UNAUTHORIZED: Final = "amqp:unauthorized-access"
_CONDITIONS: Final = {
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: _UNAUTHORIZED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: _UNAUTHORIZED,
    ReasonCode.NOT_AUTHORIZED: _UNAUTHORIZED,
    ReasonCode.QUOTA_EXCEEDED: "amqp:resource-limit-exceeded",
    ReasonCode.CONNECTION_RATE_EXCEEDED: "amqp:resource-limit-exceeded",
    ReasonCode.PACKET_TOO_LARGE: "amqp:link:message-size-exceeded",
    ReasonCode.TOPIC_FILTER_INVALID: "amqp:invalid-field",
    ReasonCode.TOPIC_NAME_INVALID: "amqp:invalid-field",
    ReasonCode.SERVER_SHUTTING_DOWN: "amqp:connection:forced",
    ReasonCode.ADMINISTRATIVE_ACTION: "amqp:connection:forced",
    ReasonCode.SESSION_TAKEN_OVER: "amqp:connection:forced",
    ReasonCode.USE_ANOTHER_SERVER: "amqp:connection:forced",
}


def condition_of(reason_code: int) -> str:
    """Return the condition for a Reason Code."""
    return _CONDITIONS.get(ReasonCode(reason_code), "amqp:precondition-failed")


def text_of(packet: Connack | Disconnect | Suback) -> str:
    """Return a description of a refusal."""
    code = packet.reason_codes[0] if isinstance(packet, Suback) else packet.reason_code
    return packet.properties.reason_string or ReasonCode(code).text
