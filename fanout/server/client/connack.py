"""Negotiation of CONNECT and CONNACK (MQTT 5, sections 3.1 and 3.2).

Owns the terms of a Network Connection: the client's wishes within the limits of this server, and the CONNACK that
states them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from fanout.chain.stamp import ASK_FOR_STAMPS, COUNT_PROPERTY, NODE_PROPERTY, StampCount
from fanout.config import ServerConfig
from fanout.errors import ProtocolError, UnsupportedProtocolVersion
from fanout.mqtt.packets import Connack, Connect, encode
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode, connect_return_code
from fanout.server.client.payload_format import breaks_payload_format
from fanout.server.messages.encoding import WireVariant
from fanout.server.session.wills import WillMessage, will_of

__all__ = ["Terms", "encode_refusal", "random_client_id", "terms_for"]

_EXPIRES_NEVER = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire."""

_RECEIVE_MAXIMUM_DEFAULT = 0xFFFF
_CLIENT_ID_BYTES = 10


@dataclass(frozen=True, slots=True)
class Terms:
    """Negotiated terms of a Network Connection."""

    client_id: str
    """Client Identifier, assigned by the server when the client sent none."""
    wire: WireVariant
    """Wire variant of the client."""
    clean_start: bool
    """True when an existing session is ended first; Clean Session in MQTT 3.1.1."""
    session_expiry_s: int
    """Seconds that its session outlives the Network Connection."""
    keep_alive_s: int
    """Effective Keep Alive; 0 turns it off."""
    window: int
    """Limit of messages at QoS 1 and 2 in flight to the client."""
    bridge: bool
    """True for a bridge over MQTT 3.1.1: RETAIN as published, and none of its own messages back."""
    topic_alias_max: int
    """Limit of Topic Aliases in packets to the client."""
    will: WillMessage | None
    """Its Will Message."""
    properties: Properties
    """Properties of the CONNACK."""


def terms_for(
    connect: Connect,
    *,
    config: ServerConfig,
    node_id: str,
    assign_client_id: Callable[[], str],
    retain_available: bool = True,
    stamps: StampCount | None = None,
) -> Terms | ReasonCode:
    """Negotiate the terms of a client's connection.

    Args:
        connect: Its CONNECT.
        config: The limits.
        node_id: This node's identifier, for clients that ask for stamps.
        assign_client_id: Makes a unique Client Identifier.
        retain_available: True when it may publish retained messages.
        stamps: Count of all updates that this node serves, for clients that ask for stamps; None when there is none.

    Returns:
        The terms, or the Reason Code that refuses the client.
    """
    asked = connect.properties
    if asked.authentication_method is not None:
        return ReasonCode.BAD_AUTHENTICATION_METHOD  # [MQTT-4.12.0-1]
    if connect.will is not None and connect.will.qos > config.qos_max:
        return ReasonCode.QOS_NOT_SUPPORTED  # [MQTT-3.2.2-12]
    if connect.will is not None and connect.will.retain and not retain_available:
        return ReasonCode.RETAIN_NOT_SUPPORTED  # [MQTT-3.2.2-13]
    will = will_of(connect.will) if connect.will is not None else None
    if will is not None and breaks_payload_format(will.row):
        return ReasonCode.PAYLOAD_FORMAT_INVALID  # section 3.1.3.2.3
    is_5 = connect.version == 5
    asked_expiry_s = _asked_expiry_s(connect)
    session_expiry_s = min(asked_expiry_s, config.session_expiry_max_s)
    keep_alive_max_s = config.keep_alive_max_s
    shortened = keep_alive_max_s > 0 and not 0 < connect.keep_alive <= keep_alive_max_s
    stamped = is_5 and ASK_FOR_STAMPS in asked.user_property
    told = () if stamps is None else ((COUNT_PROPERTY, str(stamps.now)),)
    properties = Properties(
        session_expiry_interval=session_expiry_s if session_expiry_s != asked_expiry_s else None,
        receive_maximum=config.receive_maximum if config.receive_maximum < _RECEIVE_MAXIMUM_DEFAULT else None,
        maximum_qos=config.qos_max if config.qos_max < 2 else None,
        retain_available=None if retain_available else 0,
        maximum_packet_size=config.packet_bytes_max,
        assigned_client_identifier=None if connect.client_id else assign_client_id(),  # [MQTT-3.2.2-16]
        topic_alias_maximum=config.topic_alias_max or None,
        server_keep_alive=keep_alive_max_s if shortened else None,  # [MQTT-3.2.2-21]
        user_property=(ASK_FOR_STAMPS, (NODE_PROPERTY, node_id), *told) if stamped else (),
    )
    wire = WireVariant(connect.version, stamped, asked.maximum_packet_size or 0)
    if is_5 and not wire.takes(
        len(encode(Connack(session_present=False, reason_code=0, properties=properties), version=5))
    ):
        return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # the CONNACK exceeds the client's limit [MQTT-3.1.2-24]
    return Terms(
        client_id=connect.client_id or properties.assigned_client_identifier or "",
        wire=wire,
        clean_start=connect.clean_start,
        session_expiry_s=session_expiry_s,
        # MQTT 3.1.1 has no Server Keep Alive, so the client's own Keep Alive counts.
        keep_alive_s=keep_alive_max_s if shortened and is_5 else connect.keep_alive,
        window=min(asked.receive_maximum or _RECEIVE_MAXIMUM_DEFAULT, config.inflight_max),
        bridge=connect.bridge,
        topic_alias_max=min(asked.topic_alias_maximum or 0, config.topic_alias_max),
        will=will,
        properties=properties,
    )


def random_client_id() -> str:
    """Return a unique Client Identifier."""
    return f"auto-{secrets.token_hex(_CLIENT_ID_BYTES)}"


def _asked_expiry_s(connect: Connect) -> int:
    if connect.version == 5:
        return connect.properties.session_expiry_interval or 0
    return 0 if connect.clean_start else _EXPIRES_NEVER  # MQTT 3.1.1, section 3.1.2.4


def encode_refusal(
    reason_code: ReasonCode,
    *,
    version: int | None,
    fault: ProtocolError | None = None,
    properties: Properties = NO_PROPERTIES,
) -> bytes:
    """Encode the CONNACK that refuses a client; empty when the connection is closed without one.

    Args:
        reason_code: The reason.
        version: Protocol Level of its CONNECT; None when that was invalid.
        fault: The client's error, if any.
        properties: Properties of the CONNACK in MQTT 5.
    """
    if isinstance(fault, UnsupportedProtocolVersion):
        version = 5 if fault.level > 5 else 4  # [MQTT-3.1.2-2], and [MQTT-3.1.2-2] of MQTT 3.1.1
    if version is None:
        return b""
    if version == 5:
        return encode(Connack(session_present=False, reason_code=reason_code, properties=properties), version=5)
    return_code = connect_return_code(reason_code)
    if return_code is None:
        return b""
    return encode(Connack(session_present=False, reason_code=return_code), version=4)
