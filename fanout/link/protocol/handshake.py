"""Reading of CONNACK and DISCONNECT of a primary (MQTT 5, sections 3.2 and 3.14), and the texts for an operator."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.chain.readiness_notice import ReadinessNotice
from fanout.chain.stamp import ASK_FOR_STAMPS, COUNT_PROPERTY, NODE_PROPERTY, Count, decode_count
from fanout.config import Address, LinkConfig
from fanout.errors import LinkLost, PrimaryRefused
from fanout.link.protocol.sender import PrimaryLimits
from fanout.mqtt.packets import Connack, Disconnect
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.peer_text import clean_text, is_node_name

__all__ = [
    "AUTHENTICATION_CODES",
    "Handshake",
    "check_cycle",
    "disconnected",
    "read_connack",
    "reason_text",
    "refused_subscription",
    "unanswered_hint",
]

_RETURN_CODES = {
    1: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    2: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    3: ReasonCode.SERVER_UNAVAILABLE,
    4: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    5: ReasonCode.NOT_AUTHORIZED,
}
"""Connect Return Codes of MQTT 3.1.1 (section 3.2.2.3) as Reason Codes."""

AUTHENTICATION_CODES = frozenset((ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED))
"""Reason Codes of CONNACK for a user name, a password or rights that the primary does not accept."""

_OTHER_SERVER = "A link does not follow a primary to another server; if that is the right one, set primary to it"

_HINTS = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "Set version = 4 for the link; the primary may not speak MQTT 5",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "Set client_id for the link to one that the primary accepts",
    ReasonCode.NOT_AUTHORIZED: "Give the link's user at the primary the rights that fanout check --acl prints",
    ReasonCode.SESSION_TAKEN_OVER: "Another client uses the same Client Identifier: give each node its own id",
    ReasonCode.PACKET_TOO_LARGE: "Raise the primary's limit on the size of a packet",
    ReasonCode.USE_ANOTHER_SERVER: _OTHER_SERVER,
    ReasonCode.SERVER_MOVED: _OTHER_SERVER,
    ReasonCode.QUOTA_EXCEEDED: "The primary is at a limit of its own; its log says which",
}


@dataclass(frozen=True, slots=True)
class Handshake:
    """Content of a CONNACK that accepts the connection."""

    session_present: bool
    """True if the primary has the session."""
    limits: PrimaryLimits
    """Limits of the primary for packets of the link."""
    keep_alive_s: int
    """Keep Alive in force; 0 for none."""
    session_expiry_s: int
    """Time for which the primary keeps the session without a connection."""
    primary_node: str | None
    """Node identifier of the primary; None when it is no fanout node."""
    stamped: bool
    """True if the primary stamps its messages."""
    count: Count | None = None
    """Stamp count of a primary that stamps everything it serves; None of any other."""


def read_connack(packet: Connack, config: LinkConfig) -> Handshake:
    """Read a CONNACK.

    Args:
        packet: The packet.
        config: The link's configuration.

    Raises:
        PrimaryRefused: It refuses the connection.
    """
    if packet.reason_code:
        code = packet.reason_code if config.version == 5 else _RETURN_CODES.get(packet.reason_code, 0x80)
        raise PrimaryRefused(
            f"the primary refused the connection: {_told(code, packet.properties)}",
            reason_code=code,
            hint=_connack_hint(code, config),
        )
    properties = packet.properties
    told = dict(properties.user_property)
    node = told.get(NODE_PROPERTY)
    keep_alive_s, expiry_s = properties.server_keep_alive, properties.session_expiry_interval
    return Handshake(
        session_present=packet.session_present,
        limits=PrimaryLimits(
            receive_maximum=properties.receive_maximum or 0xFFFF,
            maximum_qos=2 if properties.maximum_qos is None else properties.maximum_qos,
            retain_available=properties.retain_available != 0,
            packet_bytes_max=properties.maximum_packet_size,
            wildcards_available=properties.wildcard_subscription_available != 0,
        ),
        keep_alive_s=config.keep_alive_s if keep_alive_s is None else keep_alive_s,  # [MQTT-3.2.2-21]
        session_expiry_s=config.session_expiry_s if expiry_s is None else expiry_s,
        primary_node=node if is_node_name(node) else None,
        stamped=ASK_FOR_STAMPS in properties.user_property,
        count=decode_count(told.get(COUNT_PROPERTY)),
    )


def _connack_hint(code: int, config: LinkConfig) -> str:
    """Return advice for a CONNACK that refuses the connection."""
    if code in AUTHENTICATION_CODES:  # brokers do not tell which it was; Mosquitto says 0x87 for a wrong password
        return _authentication_hint(config)
    if code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION and config.version == 4:
        return unanswered_hint(config)
    return _hint(code)


def _authentication_hint(config: LinkConfig) -> str:
    """Return the possible causes of a refused user, by the keys that the link has."""
    if config.username is None and config.password_file is None and config.password_env is None:
        return (
            "The link sends no user name and no password: set username and password_file, or allow anonymous"
            " clients there"
        )
    user = "no user name" if config.username is None else f"the user name {clean_text(config.username)}"
    if config.password_file is not None:
        password = f"the password in {clean_text(str(config.password_file))}, which is read again at each attempt"
    elif config.password_env is not None:
        password = f"the password in the variable {config.password_env}, which only a restart changes"
    else:
        password = "no password (password_file)"
    return f"Check {user}, {password}, and that the primary lets this user connect with this client_id"


def unanswered_hint(config: LinkConfig, *, address: Address | None = None) -> str:
    """Return advice for a CONNECT that was refused for its protocol, not answered, or answered with a close.

    Args:
        config: The link's configuration.
        address: Address of the primary, when it closed the connection without an answer.
    """
    if address is not None and address.has_tls:
        if config.client_certificate_file is None:
            return "The primary's log may say why; it may want a client certificate (client_certificate_file)"
        return "The primary's log may say why; it may not accept the client certificate (client_certificate_file)"
    if address is not None and config.version == 5:
        return (
            "The primary's log may say why; check that the address is that of its MQTT listener, and write "
            f"{'wss' if address.has_websocket else 'mqtts'}:// if that has TLS"
        )
    if config.version == 4 and config.retain_policy == "bridge":
        return 'Set retain_policy = "keep" for the link; many primaries do not accept the bridge bit in CONNECT'
    return "The primary's log may say why; check that the address is that of its MQTT listener"


def disconnected(packet: Disconnect) -> LinkLost:
    """Return the error for a DISCONNECT from the primary."""
    return LinkLost(
        f"the primary closed the connection: {_told(packet.reason_code, packet.properties)}",
        hint=_hint(packet.reason_code),
    )


def refused_subscription(topic_filter: str, reason_code: int) -> PrimaryRefused:
    """Return the error for a SUBACK that refuses `topic_filter`."""
    return PrimaryRefused(
        f"the primary refused the subscription {topic_filter}: {reason_text(reason_code)}",
        reason_code=reason_code,
        hint="Allow the link's user to subscribe to it at the primary, or correct the selector",
    )


def check_cycle(notice: ReadinessNotice, node_id: str) -> None:
    """Refuse a primary that is below this node.

    Raises:
        PrimaryRefused: This node is on a path above the primary.
    """
    for path in notice.paths:
        if node_id in path:
            raise PrimaryRefused(
                f"the links form a cycle: {' > '.join((*path, node_id))}",
                reason_code=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
                hint="Connect this node to a primary that is not below it; and no two nodes may have the same node.id",
            )


def reason_text(code: int) -> str:
    """Return a Reason Code in words, with its number."""
    known = code in ReasonCode.__members__.values()
    return f"{ReasonCode(code).text if known else 'unknown Reason Code'} (0x{code:02X})"


def _told(code: int, properties: Properties) -> str:
    """Return a Reason Code with the primary's Reason String and Server Reference."""
    words = properties.reason_string, properties.server_reference and f"it names {properties.server_reference}"
    told = "; ".join(clean_text(each) for each in words if each)
    return f"{reason_text(code)} ({told})" if told else reason_text(code)


def _hint(code: int) -> str:
    return _HINTS[ReasonCode(code)] if code in _HINTS else ""
