"""What hub and worker tell each other over their channel.

Owns the messages, as plain values that `pickle` carries; what they cause is decided at either end. The updates of a
batch are the tuples of `fanout.replica.update`, which pickle writes and reads at about a third of a microsecond each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanout.access.gate import AccessStats
from fanout.affected_clients import Concerned
from fanout.config import AccessConfig, NodeConfig
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Update
from fanout.server.base.counters import ServerStats

__all__ = [
    "AskSubscribed",
    "ChannelMessage",
    "Complete",
    "Corrected",
    "FeedBatch",
    "PublishVerdicts",
    "Published",
    "Reload",
    "ReloadCertificates",
    "Report",
    "SendAway",
    "SentAway",
    "SetUp",
    "StillSubscribed",
    "Stop",
    "Subscribed",
    "WorkerReady",
]


@dataclass(frozen=True, slots=True)
class SetUp:
    """Hub: who you are. The first message."""

    config: NodeConfig
    """The node's configuration."""
    number: int
    """Which worker, from 0."""
    sockets: tuple[tuple[int, ...], ...]
    """For each listener the descriptors that it listens on."""
    handovers: int
    """Descriptor from which connections come that other workers have accepted."""
    others: tuple[int, ...]
    """For each worker the descriptor to which its connections go."""


@dataclass(frozen=True, slots=True)
class FeedBatch:
    """Hub: these values hold, and are to be delivered."""

    updates: list[Update]
    """In order."""
    origin: str | None = None
    """Client Identifier of the client that published all of them; None when they came from elsewhere."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """Hub: these values that you have expire at another time than I said."""

    values: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """Hub: now you have all that I have."""


@dataclass(frozen=True, slots=True)
class PublishVerdicts:
    """Hub: what becomes of what was published."""

    request: int
    """Of the `Published`."""
    codes: tuple[ReasonCode, ...]
    """One for each row."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Hub: from now on this decides on access; the password file is to be read again."""

    access: AccessConfig
    """`[access]`."""


@dataclass(frozen=True, slots=True)
class ReloadCertificates:
    """Hub: read the certificates again."""


@dataclass(frozen=True, slots=True)
class SendAway:
    """Hub: disconnect the clients whose subscriptions are of this kind, and tell when that is done."""

    concerns: Concerned
    """The kind."""


@dataclass(frozen=True, slots=True)
class AskSubscribed:
    """Hub: tell whether a client of yours is subscribed to this."""

    topic_filter: bytes
    """The very Topic Filter."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Hub: let the clients go, and end."""

    deadline_s: float
    """As for `Server.stop`."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Worker: clients are served from now on."""


@dataclass(frozen=True, slots=True)
class SentAway:
    """Worker: the clients of the first `SendAway` without an answer are gone."""

    clients: int
    """How many they were."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Worker: clients have subscribed to this."""

    topic_filters: tuple[bytes, ...]
    """Those that were granted, `$share` forms left out."""


@dataclass(frozen=True, slots=True)
class StillSubscribed:
    """Worker: the answer to the first `AskSubscribed` without one."""

    answer: bool
    """Whether a client is."""


@dataclass(frozen=True, slots=True)
class Published:
    """Worker: a client published this."""

    request: int
    """Which `PublishVerdicts` will name."""
    client_id: str
    """The client."""
    rows: Sequence[PublishRow]
    """In order."""
    now_ns: int
    """When they came, Unix time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Report:
    """Worker: my figures."""

    server: ServerStats
    """Of its server."""
    access: AccessStats
    """Of its gate."""
    topics: int
    """Retained values that it holds."""
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
    | AskSubscribed
    | Stop
    | WorkerReady
    | SentAway
    | Subscribed
    | StillSubscribed
    | Published
    | Report
)
