"""Reason Codes of MQTT 5 (section 2.4) and the Connect Return Codes of MQTT 3.1.1 (section 3.2.2.3)."""

from __future__ import annotations

import enum

__all__ = ["ReasonCode", "connect_return_code"]


class ReasonCode(enum.IntEnum):
    """Every Reason Code of MQTT 5; a value of 0x80 or above means failure.

    0x00 has three names in the specification: Success, Normal disconnection, Granted QoS 0. Here it is `SUCCESS`.
    """

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def text(self) -> str:
        """The name in the specification."""
        if self is ReasonCode.SUCCESS:
            return "Success"
        return self.name.replace("_", " ").capitalize().replace("qos", "QoS").replace("Qos", "QoS")

    @property
    def is_failure(self) -> bool:
        """True if it means that the operation failed (MQTT 5, section 2.4)."""
        return self >= 0x80


_CONNECT_RETURN_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 0x01,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 0x02,
    ReasonCode.SERVER_UNAVAILABLE: 0x03,
    ReasonCode.SERVER_BUSY: 0x03,
    ReasonCode.QUOTA_EXCEEDED: 0x03,
    ReasonCode.CONNECTION_RATE_EXCEEDED: 0x03,
    ReasonCode.USE_ANOTHER_SERVER: 0x03,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 0x04,
    ReasonCode.BANNED: 0x05,
    ReasonCode.NOT_AUTHORIZED: 0x05,
    ReasonCode.SUCCESS: 0x00,
}


def connect_return_code(reason_code: ReasonCode) -> int | None:
    """Return the MQTT 3.1.1 Connect Return Code for `reason_code`; None means close without a CONNACK.

    MQTT 3.1.1 has six codes (section 3.2.2.3); a reason without a counterpart closes the Network Connection.
    """
    return _CONNECT_RETURN_CODES.get(reason_code)
