"""Messages between hub and worker: plain values for `pickle`.

The updates of a batch are the tuples of `fanout.replica.update`, which pickle writes and reads at about a third of a
microsecond each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fanout.access.gate import AccessStats
from fanout.affected_clients import Concerned
from fanout.config import AccessConfig, NodeConfig
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Update
from fanout.server.base.counters import ServerStats
from fanout.server.client.client_list import ClientPage, ClientQuery, Kicked

__all__ = [
    "Alive",
    "Answer",
    "AnswerValue",
    "AskClients",
    "AskSubscribed",
    "ChannelMessage",
    "Complete",
    "Corrected",
    "End",
    "FeedBatch",
    "Kick",
    "PublishVerdicts",
    "Published",
    "Reload",
    "ReloadCertificates",
    "Report",
    "SendAway",
    "SessionRecords",
    "SessionsTakenOver",
    "SetUp",
    "SilentWorkers",
    "Stop",
    "Stopped",
    "Subscribed",
    "WorkerReady",
]

AnswerValue: TypeAlias = int | ClientPage | Kicked | None
"""What an `Answer` may say."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """Hub: configuration and sockets of the worker. The first message."""

    config: NodeConfig
    """The node's configuration."""
    number: int
    """Number of the worker, from 0."""
    sockets: tuple[tuple[int, ...], ...]
    """For each listener the descriptors of its listening sockets."""
    handovers: int
    """Descriptor from which the worker receives connections that other workers have accepted."""
    others: tuple[int, ...]
    """For each worker the descriptor to which its connections are sent."""


@dataclass(frozen=True, slots=True)
class FeedBatch:
    """Hub: updates to apply and to deliver."""

    updates: list[Update]
    """The updates, in order."""
    origin: str | None = None
    """Client Identifier of the client that published all of them; None when they came from elsewhere."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """Hub: values whose expiry was corrected."""

    values: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """Hub: the worker has all values now."""


@dataclass(frozen=True, slots=True)
class PublishVerdicts:
    """Hub: the verdicts on published messages."""

    request: int
    """Request number of the `Published`."""
    codes: tuple[ReasonCode, ...]
    """One for each row."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Hub: replace the access configuration, and read the password file again."""

    access: AccessConfig
    """`[access]`."""


@dataclass(frozen=True, slots=True)
class ReloadCertificates:
    """Hub: read the TLS certificates again."""


@dataclass(frozen=True, slots=True)
class SendAway:
    """Hub: disconnect the clients with an affected subscription; the `Answer` is their number."""

    request: int
    """Request number, repeated by the `Answer`."""
    concerns: Concerned
    """Returns True for affected Topic Filters."""


@dataclass(frozen=True, slots=True)
class AskSubscribed:
    """Hub: the `Answer` is 1 when a client has a subscription to exactly this Topic Filter, 0 otherwise."""

    request: int
    """Request number, repeated by the `Answer`."""
    topic_filter: bytes
    """The Topic Filter."""


@dataclass(frozen=True, slots=True)
class AskClients:
    """Hub: the `Answer` is a `ClientPage`."""

    request: int
    """Request number, repeated by the `Answer`."""
    query: ClientQuery
    """The clients that are asked for."""


@dataclass(frozen=True, slots=True)
class Kick:
    """Hub: send a client away; the `Answer` is as of `Server.kick`."""

    request: int
    """Request number, repeated by the `Answer`."""
    client_id: str
    """Its Client Identifier."""
    clean: bool
    """True to end its session too."""
    reason_code: ReasonCode
    """Reason Code of the DISCONNECT."""


@dataclass(frozen=True, slots=True)
class SilentWorkers:
    """Hub: the workers whose new clients the others serve, because they say nothing; it replaces the former set."""

    numbers: frozenset[int]
    """Numbers of the workers, from 0; the receiver's own means nothing to it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Hub: disconnect the clients, then end, or wait for `End`."""

    deadline_s: float
    """As in `Server.stop`."""
    stays: bool = False
    """True to say `Stopped`, and to keep the sessions up to date until `End`, instead of ending."""


@dataclass(frozen=True, slots=True)
class End:
    """Hub: end, behind a `Stop` with `stays`."""

    leaves_sessions: bool
    """True to send the sessions before."""


@dataclass(frozen=True, slots=True)
class SessionRecords:
    """Both: sessions that one process leaves to the next, in pieces: to a worker that starts, from one that ends."""

    records: tuple[bytes, ...]
    """As `fanout.durable.form.session_format.encode_sessions` gives them."""
    left_ns: int | None = None
    """With the last piece the Unix time in nanoseconds at which they were left; None with the others."""


@dataclass(frozen=True, slots=True)
class SessionsTakenOver:
    """Worker: it has the sessions of the `SessionRecords`."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Worker: its clients are gone, after a `Stop`."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Worker: it serves clients from now on."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Worker: its event loop runs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Worker: the answer to a question of the hub."""

    request: int
    """Request number."""
    value: AnswerValue
    """The answer, as the question says."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Worker: a client has subscribed."""

    topic_filters: tuple[bytes, ...]
    """The granted Topic Filters, shared subscriptions left out."""


@dataclass(frozen=True, slots=True)
class Published:
    """Worker: messages that a client published."""

    request: int
    """Request number, repeated by `PublishVerdicts`."""
    client_id: str
    """The publisher."""
    rows: Sequence[PublishRow]
    """The messages, in order."""
    now_ns: int
    """Unix time in nanoseconds when they arrived."""


@dataclass(frozen=True, slots=True)
class Report:
    """Worker: its figures."""

    server: ServerStats
    """Figures of its server."""
    access: AccessStats
    """Figures of its gate."""
    topics: int
    """Number of its retained values."""
    cpu_s: float
    """Processor time that the process has used, in seconds."""


ChannelMessage = (
    SetUp
    | FeedBatch
    | Corrected
    | Complete
    | PublishVerdicts
    | Reload
    | ReloadCertificates
    | SendAway
    | AskClients
    | AskSubscribed
    | Kick
    | SilentWorkers
    | Stop
    | End
    | SessionRecords
    | SessionsTakenOver
    | Stopped
    | WorkerReady
    | Alive
    | Answer
    | Subscribed
    | Published
    | Report
)
