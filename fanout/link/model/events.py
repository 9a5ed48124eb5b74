"""What a link's session machine tells its shell, in order.

Owns the types only. The shell acts on them one after another: it records, then writes the acknowledgement,
then dispatches an `Applied`; it closes the Network Connection at `Failed`; it removes the replica at
`TearDown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fanout.chain.readiness_notice import ReadinessNotice
from fanout.errors import FanoutError
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Changes

__all__ = [
    "Applied",
    "AuditEnded",
    "ControlRefused",
    "CountDiffers",
    "Event",
    "Failed",
    "Forwarded",
    "HeartbeatReturned",
    "HeartbeatsLost",
    "QosLowered",
    "ResumedAtQos0",
    "SelectorComplete",
    "SessionSeen",
    "StandingTold",
    "StateEntered",
    "SystemTopicsShunned",
    "TearDown",
    "WentStale",
]


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch changed the replica."""

    changes: Changes
    """What it did; without updates when the batch only needs an acknowledgement."""
    acknowledgement: bytes
    """To be written once the changes are recorded, in one write; empty for nothing."""
    epoch: int
    """The epoch it belongs to."""


@dataclass(frozen=True, slots=True)
class AuditEnded:
    """An audit of the live link has come to its end."""

    report: AuditReport
    """What it found."""


@dataclass(frozen=True, slots=True)
class StateEntered:
    """The link is in another state."""

    state: LinkState
    """The state entered."""
    detail: str
    """Why, for a person; empty when the state says it."""


@dataclass(frozen=True, slots=True)
class SelectorComplete:
    """A selector's snapshot is proved complete."""

    index: int
    """Position of the selector."""
    evidence: Evidence
    """What proves it."""


@dataclass(frozen=True, slots=True)
class StandingTold:
    """The primary is another than before, or said how it stands to those above it."""

    standing: ReadinessNotice
    """How it stands; `NO_NODE` for a primary that is no fanout node."""


@dataclass(frozen=True, slots=True)
class HeartbeatReturned:
    """A message of the link came back through the data path."""

    round_trip_ns: int
    """How long it took."""


@dataclass(frozen=True, slots=True)
class HeartbeatsLost:
    """The primary dropped messages of the link, as a later one that came back shows: updates may be lost, too."""

    count: int
    """How many heartbeats."""


@dataclass(frozen=True, slots=True)
class ControlRefused:
    """A message of the link's own does not come back: without heartbeats lag is not known, and a stall not noticed."""

    reason: str
    """Why, for a person."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The primary answered, or never will, for a message of a local client."""

    token: int
    """What `LinkSession.forward` returned for it."""
    reason_code: ReasonCode
    """The primary's answer; `UNAVAILABLE` when it is not known whether the message arrived."""


@dataclass(frozen=True, slots=True)
class QosLowered:
    """The primary granted a subscription at a lower QoS than its selector's: updates may be lost on the way."""

    index: int
    """Position of the selector."""
    qos: int
    """The QoS granted."""


@dataclass(frozen=True, slots=True)
class CountDiffers:
    """What is held and what the primary counts did not agree in so many figures that it is not compared any more."""

    difference: str
    """Both, for a person."""


@dataclass(frozen=True, slots=True)
class ResumedAtQos0:
    """A session was resumed whose subscriptions had, or may have had, QoS 0 while there was no Network Connection."""

    indexes: tuple[int, ...]
    """Positions of their selectors."""


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """The session is known to be there at the primary at this moment."""


@dataclass(frozen=True, slots=True)
class SystemTopicsShunned:
    """The primary closes the connection when asked below `$SYS/`; it is not asked there any more."""


@dataclass(frozen=True, slots=True)
class TearDown:
    """The replica must be removed; `LinkSession.torn_down` is called afterwards."""

    reason: str
    """Why, for a person."""


@dataclass(frozen=True, slots=True)
class WentStale:
    """The session is lost, and the replica is served on for the time of grace."""

    reason: str
    """Why, for a person."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The Network Connection must be closed, after what is to be sent was written."""

    error: FanoutError
    """What went wrong."""


Event: TypeAlias = (
    Applied
    | AuditEnded
    | ControlRefused
    | Forwarded
    | StateEntered
    | SelectorComplete
    | StandingTold
    | HeartbeatReturned
    | HeartbeatsLost
    | QosLowered
    | CountDiffers
    | ResumedAtQos0
    | SessionSeen
    | SystemTopicsShunned
    | TearDown
    | WentStale
    | Failed
)
"""Anything that the machine tells."""
