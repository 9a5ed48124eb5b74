"""Errors: every exception that fanout raises on purpose.

FanoutError
├── ConfigError            the operator's file is wrong; carries every fault that was found
├── AddressInvalid         a text is not an address that fanout can use
├── SelectorInvalid        a Topic Filter, an exclude, a prefix or a QoS of a selector is not legal
├── AccessRuleInvalid      the filter of an access rule is not legal
├── PasswordFileError      a password file cannot be written, or a User Name cannot stand in it
├── ProtocolError          the peer broke MQTT; carries the Reason Code to send
│   └── UnsupportedProtocolVersion  CONNECT asks for a protocol that is not MQTT 5 or 3.1.1
├── SendQuotaExceeded      no Packet Identifier is free, or the peer's Receive Maximum is used up
├── LinkError              something went wrong between a link and its primary
│   ├── PrimaryUnreachable   no address of the primary answered
│   │   ├── TlsFailed            something answered, and TLS could not be agreed on with it
│   │   └── WebSocketRefused     something answered, and it does not speak MQTT over WebSocket there
│   ├── PrimaryRefused       the primary answered CONNECT or SUBSCRIBE with a failing Reason Code
│   ├── SnapshotUnproved     the snapshot ended without the evidence that makes a replica complete
│   ├── LinkLost             the Network Connection ended
│   └── AuditRefused         an audit was asked for that cannot begin now
├── ListenError            a listener's address cannot be bound
├── LogError               the replication log cannot be written or read
├── StoreError             the file of retained values cannot be used
├── NodeUnreachable        a command could not reach a node's HTTP address
│   └── NodeSilent           something took the question, and did not answer in time
├── RequestRefused         a node refuses what an operator asked of it
├── SessionMoveRefused     a session cannot be taken out of a node, or put into it
├── SessionFormInvalid     bytes are not a session that this version reads
├── ExtraMissing           an optional part is not installed; the hint is the install command
└── ReportError            a report cannot be made from what was given

"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Self

from fanout.mqtt.reason_codes import ReasonCode

__all__ = [
    "AccessRuleInvalid",
    "AddressInvalid",
    "AuditRefused",
    "ConfigError",
    "ConfigFault",
    "ExtraMissing",
    "FanoutError",
    "LinkError",
    "LinkLost",
    "ListenError",
    "LogError",
    "NodeSilent",
    "NodeUnreachable",
    "PasswordFileError",
    "PrimaryRefused",
    "PrimaryUnreachable",
    "ProtocolError",
    "ReportError",
    "RequestRefused",
    "SelectorInvalid",
    "SendQuotaExceeded",
    "SessionFormInvalid",
    "SessionMoveRefused",
    "SnapshotUnproved",
    "StoreError",
    "TlsFailed",
    "UnsupportedProtocolVersion",
    "WebSocketRefused",
    "system_reason",
]


class FanoutError(Exception):
    """The root of the tree.

    Attributes:
        hint: Advice for an operator; empty for none.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One fault of a configuration file."""

    key: str
    """Dotted key, such as `link[0].selector[1].filter`; empty for the whole file."""
    problem: str
    """The problem, without a full stop."""
    hint: str
    """Advice for the operator."""

    def __str__(self) -> str:
        place = f"{self.key}: " if self.key else ""
        return f"{place}{self.problem}. {self.hint}"


class ConfigError(FanoutError):
    """A configuration that cannot be used; all its faults are reported at once."""

    def __init__(self, path: str, faults: tuple[ConfigFault, ...]) -> None:
        self.path = path
        self.faults = faults
        super().__init__("\n".join(f"{path}: {fault}" for fault in faults))


class AddressInvalid(FanoutError):
    """A text is not an address that fanout can use."""


class SelectorInvalid(FanoutError):
    """A Topic Filter, an exclude, a prefix or a QoS of a selector is not legal."""


class AccessRuleInvalid(FanoutError):
    """The filter of an access rule is not legal."""


class PasswordFileError(FanoutError):
    """A password file cannot be written, or a User Name cannot stand in it."""


class ProtocolError(FanoutError):
    """The peer broke the rules of MQTT.

    Attributes:
        reason_code: The Reason Code of the DISCONNECT or CONNACK that tells the peer (MQTT 5, section 4.13).
    """

    def __init__(self, reason_code: ReasonCode, detail: str) -> None:
        self.reason_code = reason_code
        self.detail = detail
        super().__init__(f"{reason_code.text} (0x{reason_code:02X}): {detail}")


class UserPropertiesExceeded(ProtocolError):
    """A packet has more User Properties than are taken; the client is told Quota exceeded.

    Attributes:
        most: The limit.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(ReasonCode.QUOTA_EXCEEDED, f"more than {most:,} User Properties in one packet")


class UnsupportedProtocolVersion(ProtocolError):
    """CONNECT asks for a protocol that is not MQTT 5 or 3.1.1 [MQTT-3.1.2-1] [MQTT-3.1.2-2].

    Attributes:
        level: Protocol Version of the CONNECT; below 5 the client understands only the CONNACK of MQTT 3.1.1.
    """

    def __init__(self, protocol_name: str, level: int) -> None:
        self.protocol_name = protocol_name
        self.level = level
        super().__init__(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"the client asks for protocol {protocol_name!r}, level {level}",
        )


class SendQuotaExceeded(FanoutError):
    """No Packet Identifier is free, or the peer's Receive Maximum is used up [MQTT-4.9.0-2]."""


class LinkError(FanoutError):
    """Something went wrong between a link and its primary."""


class PrimaryUnreachable(LinkError):
    """No address of the primary accepted a Network Connection."""


class TlsFailed(PrimaryUnreachable):
    """The TLS handshake at the primary's address failed.

    Attributes:
        address: The address, as the configuration has it.
        problem: The problem.
    """

    def __init__(self, *, address: str, problem: str, hint: str) -> None:
        self.address = address
        self.problem = problem
        super().__init__(f"no TLS with {address}: {problem}", hint=hint)


class WebSocketRefused(PrimaryUnreachable):
    """The server at the primary's address does not speak MQTT over WebSocket.

    Attributes:
        address: The address, as the configuration has it.
        status: Status code of the answer; empty where it is not the problem.
        problem: The problem; empty where the status code tells it.
    """

    def __init__(self, *, address: str, status: str = "", problem: str = "") -> None:
        self.address = address
        self.status = status
        self.problem = problem
        match status:
            case "401" | "403":
                hint = "It requires authentication or an Origin: let the gateway pass WebSocket without them"
            case "404" | "405":
                hint = "Write the path of its MQTT endpoint after the port, often /mqtt"
            case "301" | "302" | "307" | "308":
                hint = "It redirects: write that address, with wss:// if it leads to https"
            case "502" | "503" | "504":
                hint = "The gateway does not reach the broker behind it; its log says why"
            case _:
                hint = "Check that the address is that of a listener for MQTT over WebSocket, and its path, often /mqtt"
        super().__init__(f"no WebSocket with {address}: {f'HTTP status {status}' if status else problem}", hint=hint)


class PrimaryRefused(LinkError):
    """The primary answered with a Reason Code that means failure."""

    def __init__(self, message: str, *, reason_code: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason_code = reason_code


class SnapshotUnproved(LinkError):
    """A snapshot ended without evidence that it was complete."""


class LinkLost(LinkError):
    """The Network Connection to the primary ended."""


class AuditRefused(LinkError):
    """An audit was asked for that cannot begin now."""


class ListenError(FanoutError):
    """A listener's address cannot be bound."""

    @classmethod
    def of(cls, error: OSError, *, address: str, key: str, what: str = "port") -> Self:
        """Return the error for an error of the system, with a fitting hint.

        Args:
            error: Error of the system.
            address: The address, as the configuration has it.
            key: Key of the address.
            what: The part of the address that could be changed.
        """
        reason = (error.strerror or str(error)).rpartition(": ")[2].lower()  # asyncio puts a sentence in front,
        reason = reason.removeprefix(f"[errno {error.errno}] ")  # Python 3.13 with the number
        hint = f"Check {key} in the configuration"
        match error.errno:
            case errno.EADDRINUSE:
                hint = f"Another process listens there: stop it, or choose another {what} in {key}"
            case errno.EEXIST:
                hint = f"Remove what is there, or choose another {what} in {key}"
            case errno.EACCES if what == "port":
                hint = f"Ports below 1024 need privileges: choose a higher one in {key}"
            case errno.EACCES | errno.ENOENT:
                hint = f"Make the directory for this user, or choose another {what} in {key}"
            case errno.EADDRNOTAVAIL:
                hint = f"This machine does not have that address: use one of its own, or 0.0.0.0, in {key}"
            case int(number) if number < 0:  # those of the resolver
                hint = f"Check the host name in {key}"
        return cls(f"cannot listen on {address}: {reason}", hint=hint)


class LogError(FanoutError):
    """The replication log cannot be written or read."""


class StoreError(FanoutError):
    """A file of retained values or of sessions cannot be used."""


class NodeUnreachable(FanoutError):
    """A command could not reach a node's HTTP address."""


class NodeSilent(NodeUnreachable):
    """Something listens at a node's HTTP address and did not answer in time."""


class RequestRefused(FanoutError):
    """A node refuses what an operator asked of it, such as to send away a client that it does not have."""


class SessionMoveRefused(FanoutError):
    """A session cannot be taken out of a node, or put into it; nothing has changed.

    Attributes:
        reason: The reason, a `MoveRefusal` of the server.
    """

    def __init__(self, message: str, *, reason: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class SessionFormInvalid(FanoutError):
    """Bytes are not a session: cut, damaged, too large, or of a version that this one does not read."""


class ExtraMissing(FanoutError):
    """An optional part of fanout is not installed."""

    def __init__(self, part: str, *, install: str) -> None:
        """Name the part, and the command that installs it."""
        super().__init__(f"{part} needs a package that is not installed", hint=f"Run: {install}")


class ReportError(FanoutError):
    """A report cannot be made from what was given."""


def system_reason(error: OSError) -> str:
    """Return why the system refuses something, for the end of a sentence."""
    return (error.strerror or "the system gives no reason").lower()
