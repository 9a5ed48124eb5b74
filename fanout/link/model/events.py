"""Events that the session machine of a link returns, in order.

The driver acts on them one after another. For `Applied` it records the batch, writes the acknowledgement, then
dispatches. At `Failed` the link closes the Network Connection; at `TearDown` it removes the replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fanout.chain.readiness_notice import ReadinessNotice
from fanout.errors import FanoutError
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.evidence import Evidence
from fanout.link.model.skipped import DeviationTolerated, MessageSkipped
from fanout.link.model.states import LinkState
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Changes

__all__ = [
    "AbsenceAsked",
    "Applied",
    "AuditCalled",
    "AuditEnded",
    "ControlRefused",
    "CountDiffers",
    "Event",
    "Failed",
    "Forwarded",
    "HeartbeatReturned",
    "HeartbeatsLost",
    "MarkerPassed",
    "MemberUnheard",
    "PromisesAsked",
    "QosLowered",
    "ResumedAtQos0",
    "SelectorComplete",
    "SessionSeen",
    "StandingTold",
    "StateEntered",
    "SystemTopicsShunned",
    "TearDown",
    "TopicsMissing",
    "TwinAlarmEnded",
    "TwinAlarmRaised",
    "ValuesReobtained",
    "WentStale",
]


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch changed the replica."""

    changes: Changes
    """Changes to the replica; without updates when the batch only needs an acknowledgement."""
    acknowledgement: bytes
    """Bytes to write, in one write, once the changes are recorded; empty for none."""
    epoch: int
    """Epoch of the batch."""


@dataclass(frozen=True, slots=True)
class MarkerPassed:
    """A heartbeat of a member of the pool came: its place is between the events before and after this one."""

    node: str
    """The member, which may be this node."""
    marker: str
    """Payload of the heartbeat."""


@dataclass(frozen=True, slots=True)
class AbsenceAsked:
    """Evidence about single unconfirmed topics is wanted; `LinkSession.prove_absent` and `end_answers` give it."""


@dataclass(frozen=True, slots=True)
class PromisesAsked:
    """The QoS at which values were published is wanted; `LinkSession.names_in_doubt` says which."""


@dataclass(frozen=True, slots=True)
class AuditCalled:
    """Something may be wrong until an audit that begins from now on has ended."""

    reason: str
    """Reason for an operator."""


@dataclass(frozen=True, slots=True)
class AuditEnded:
    """An audit of the live link has ended."""

    report: AuditReport
    """Report of the audit."""
    called: str = ""
    """Why another audit was called for while this one was under way; empty for no call."""


@dataclass(frozen=True, slots=True)
class TopicsMissing:
    """A comparison did not bring topics of a selector; they are unconfirmed, and their values are kept."""

    index: int
    """Position of the selector."""
    topics: int
    """Number of topics."""
    branch: bytes
    """Local topic above a branch that is gone as a whole; empty for none, or when it was not looked for."""
    refusal: str
    """Reason for which the primary refused the selector; empty when it granted it."""


@dataclass(frozen=True, slots=True)
class TwinAlarmRaised:
    """Another process seems to use this node's identity at the primary."""

    reason: str
    """Reason for an operator."""


@dataclass(frozen=True, slots=True)
class TwinAlarmEnded:
    """Nothing was heard of that process for a while."""


@dataclass(frozen=True, slots=True)
class ValuesReobtained:
    """A verification brought values whose messages the session was not promised; they are delivered as copies."""

    topics: int
    """Number of topics."""


@dataclass(frozen=True, slots=True)
class StateEntered:
    """The link entered another state."""

    state: LinkState
    """The state entered."""
    detail: str
    """Reason for an operator; empty when the state says it."""


@dataclass(frozen=True, slots=True)
class SelectorComplete:
    """A selector's snapshot is proved complete."""

    index: int
    """Position of the selector."""
    evidence: Evidence
    """Evidence that it is complete."""


@dataclass(frozen=True, slots=True)
class StandingTold:
    """Another primary answered, or the primary sent its readiness notice."""

    notice: ReadinessNotice
    """Its readiness; `NO_NODE` for a primary that is no fanout node."""


@dataclass(frozen=True, slots=True)
class HeartbeatReturned:
    """A heartbeat came back through the data path."""

    round_trip_ns: int
    """Round trip in nanoseconds."""


@dataclass(frozen=True, slots=True)
class HeartbeatsLost:
    """The primary dropped heartbeats, as a later one that came back shows. Updates may be lost, too."""

    count: int
    """Number of heartbeats dropped."""


@dataclass(frozen=True, slots=True)
class MemberUnheard:
    """The heartbeats of another member of the pool do not come: its values are not compared here."""

    topic: str
    """Control topic of that member."""
    reason: str
    """Reason for an operator."""


@dataclass(frozen=True, slots=True)
class ControlRefused:
    """The link's own messages do not come back: without heartbeats lag is unknown, and a stall is not noticed."""

    reason: str
    """Reason for an operator."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The fate of a forwarded message of a local client is known, or never will be."""

    token: int
    """Token that `LinkSession.forward` returned for the message."""
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
    """The replica differed from too many counts of the primary: the comparison has ended."""

    difference: str
    """Both figures, for an operator."""


@dataclass(frozen=True, slots=True)
class ResumedAtQos0:
    """Subscriptions of the resumed session had, or may have had, QoS 0 while there was no Network Connection."""

    indexes: tuple[int, ...]
    """Positions of their selectors."""


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """The session is known to exist at the primary at this moment."""


@dataclass(frozen=True, slots=True)
class SystemTopicsShunned:
    """The primary closes each connection in the capability check; the next ones leave something out."""

    left_out: str
    """Topics that they omit, for an operator."""


@dataclass(frozen=True, slots=True)
class TearDown:
    """The replica must be removed; `LinkSession.torn_down` is called afterwards."""

    reason: str
    """Reason for an operator."""


@dataclass(frozen=True, slots=True)
class WentStale:
    """The session is lost, and the replica is served for the grace period."""

    reason: str
    """Reason for an operator."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The Network Connection must be closed once all output is written."""

    error: FanoutError
    """Reason of the failure."""


Event: TypeAlias = (
    AbsenceAsked
    | Applied
    | AuditCalled
    | AuditEnded
    | ControlRefused
    | Forwarded
    | StateEntered
    | SelectorComplete
    | StandingTold
    | HeartbeatReturned
    | HeartbeatsLost
    | MarkerPassed
    | MemberUnheard
    | PromisesAsked
    | QosLowered
    | CountDiffers
    | DeviationTolerated
    | MessageSkipped
    | ResumedAtQos0
    | SessionSeen
    | SystemTopicsShunned
    | TearDown
    | TopicsMissing
    | TwinAlarmEnded
    | TwinAlarmRaised
    | ValuesReobtained
    | WentStale
    | Failed
)
"""Any event of the session machine."""
