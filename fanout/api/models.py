"""Documents that a node answers over HTTP, as frozen pydantic models.

Owns the shape of every JSON document: names with the unit last, null for values that are not known (never zero),
timestamps in UTC, digests as 16 hexadecimal digits (JSON readers lose integers above 2**53). `fanout.node` fills the
models, `fanout.api.app` serves them, `fanout.cli` reads them. A reader ignores unknown fields, so an older command
understands a newer node.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AwareDatetime,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    model_validator,
)

from fanout.api.schema.described import Described

__all__ = [
    "BODY_BYTES_MAX",
    "EVIDENCE",
    "HTTP_CLOSE_REASONS",
    "LINK_STATES",
    "AccessStatus",
    "ArchiveStatus",
    "AuditDetail",
    "AuditRequest",
    "BranchCount",
    "ClientDetail",
    "ClientsDocument",
    "Document",
    "Draining",
    "Fault",
    "Held",
    "HoldRequest",
    "HttpStatus",
    "KickRequest",
    "KickResult",
    "LagDocument",
    "LinkDetail",
    "LinkLag",
    "LinkReadiness",
    "Liveness",
    "LogStatus",
    "NodeState",
    "NodeStatus",
    "PoolDocument",
    "PoolMember",
    "PoolStatus",
    "Readiness",
    "RetainedStatus",
    "Role",
    "SamplingDetail",
    "SelectorDetail",
    "SelectorReadiness",
    "ServerStatus",
    "SkippedDetail",
    "UnconfirmedDocument",
    "utc_from_ns",
]

Role = Literal["primary", "secondary", "tap"]
"""Role of a node: serve without links, serve the values of its links, or only log them."""

NodeState = Literal["ready", "not_ready", "draining", "stopping"]
"""A node in one word: whether it may join a pool, and if it never will again, how far it has gone."""

LINK_STATES = (
    "down",
    "connecting",
    "snapshot",
    "proving",
    "live",
    "resuming",
    "verifying",
    "stalled",
    "stale",
    "tearing_down",
)
"""The states of a link, in the order of its life (`docs/explanation/architecture.md`, "A link's life"). While it serves
the replica of a lost session it is called `stale`, whatever it does besides."""

EVIDENCE = ("manifest", "count", "marker", "barrier", "two-pass", "quiet")
"""Why a snapshot is believed complete, strongest first."""

BODY_BYTES_MAX = 64 * 1024
"""Largest body of a request."""

HTTP_CLOSE_REASONS = ("room", "request_timeout", "answer_timeout", "body_too_large", "malformed")
"""Why the node closes an HTTP connection: a newer one needs its place; the request did not come in time; the answer was
not read in time; the body is larger than any request needs; what came is not HTTP."""

LinkState = Annotated[
    str, Field(description="Present state of the link.", json_schema_extra={"enum": list(LINK_STATES)})
]
Evidence = Annotated[
    str | None,
    Field(
        description="Why the snapshot is believed complete, strongest rung first: "
        + ", ".join(EVIDENCE)
        + ". Null while it is not.",
    ),
]

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING: Final = object()


def utc_from_ns(time_ns: int) -> datetime:
    """Return Unix time in nanoseconds as a UTC timestamp with microseconds."""
    return _UNIX_EPOCH + timedelta(microseconds=time_ns // 1000)


class Document(Described):
    """A document, or a part of one; its docstrings are the descriptions in the schema of the interface."""

    model_config = ConfigDict(
        json_schema_serialization_defaults_required=True,  # every key is written, that of a default too
    )

    @classmethod
    def of(cls, *parts: object, **values: Any) -> Self:
        """Return the document of what parts of the node have under the names of its fields.

        Args:
            parts: Parts, or their figures; of those that have the same name, the last one counts.
            values: Fields of other values than the parts have.
        """
        found = {
            name: value
            for part in parts
            for name in cls.model_fields.keys() - values.keys()
            if (value := getattr(part, name, _MISSING)) is not _MISSING
        }
        return cls(**found, **values)


class Liveness(Document):
    """`/livez`: the process runs and its event loop answers; says nothing about its links."""

    live: Literal[True] = True
    """Always true: a node that is not live does not answer."""


class SelectorReadiness(Document):
    """Values that a link holds for one selector."""

    filter: str
    """The selector's Topic Filter at the primary."""
    topics: NonNegativeInt
    """Retained topics held for the selector now."""
    complete: bool
    """True if its snapshot of this epoch is proved complete, and no limit keeps a value out."""
    evidence: Evidence
    joining: bool = False
    """True if a reload has added it to a proved link, and it is not proved yet."""
    maybe_unreadable: bool = False
    """True if the selector is empty, and maybe because the link's user may not read it at the primary."""


class LinkReadiness(Document):
    """One link, as far as readiness is concerned."""

    name: str
    ready: bool
    """True if this link is live, and no reason is against it."""
    state: LinkState
    reason: str | None = None
    """Why it is not ready, and what it waits for; null when it is."""
    since: AwareDatetime
    """When the link entered this state."""
    epoch: NonNegativeInt
    """Identity of the link's current MQTT session: when it began, Unix time in microseconds. 0 before the first."""
    topics: NonNegativeInt
    """Retained topics held by the link's replica now."""
    stale_seconds: NonNegativeFloat | None = None
    """Age of its values: time since they were last known to be current, 0 while they are; null without values that
    were complete."""
    evidence: Evidence
    not_held_topics: NonNegativeInt = 0
    """Topics known to exist at the primary and not held: their newest message cannot be replicated."""
    not_held_reason: str | None = None
    """Why these are not held; null without any."""
    selectors: tuple[SelectorReadiness, ...]


class Readiness(Document):
    """`/readyz`: whether this node may join a pool, and if not, why not."""

    ready: bool
    state: NodeState
    reasons: tuple[str, ...]
    """Why the node is not ready, with the first reason of each link; empty when it is."""
    stale_seconds: NonNegativeFloat | None = None
    """Age of the oldest values of a node that is not ready only because they are stale, and offers them as stale
    (`on_stall`, `on_session_loss`); null otherwise."""
    node: str
    role: Role
    links: tuple[LinkReadiness, ...]
    held_since: AwareDatetime | None = None
    """Since when an operator holds the node out of its pool; null when none does."""

    @model_validator(mode="after")
    def _reasons_agree(self) -> Self:
        if self.ready == bool(self.reasons) or self.ready != (self.state == "ready"):
            raise ValueError("a node is ready exactly when there is no reason against it")
        return self


class Draining(Document):
    """The answer to `POST /v1/drain`: the node has begun to go."""

    node: str
    state: NodeState
    left_seconds: NonNegativeFloat
    """How long clients are still served, before they are told to leave and the process ends."""


class HoldRequest(Document):
    """Options of a request to hold a node."""

    model_config = ConfigDict(extra="forbid")

    disconnect: bool = Field(default=False, strict=True)
    """True if the clients that are connected are sent away, at a pace."""


class Held(Document):
    """The answer to `POST /v1/hold` and `POST /v1/undrain`."""

    node: str
    state: NodeState
    reasons: tuple[str, ...]
    """Every reason why the node is not ready now; empty when it is."""
    held_since: AwareDatetime | None
    """Since when an operator holds the node; null when none does."""
    changed: bool
    """True if the request changed that; false when it was so already."""
    connections: NonNegativeInt
    """Network Connections of clients now."""


class ReloadRequest(Document):
    """Body of a request to read the configuration again."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(default=False, strict=True)
    """True to answer only what would change."""
    partial: bool = Field(default=False, strict=True)
    """True if changes that need a restart are left out; else they refuse the whole reload."""


class ConfigChange(Document):
    """One difference between the configuration in force and the file."""

    key: str
    """Dotted key."""
    change: Literal["added", "changed", "removed"]
    cost: Literal["nothing", "selector", "link", "session", "restart"]
    """Cost of the change to the running node."""
    reason: str
    """Why it needs a restart; empty when it does not."""


class ReloadResult(Document):
    """The answer to `POST /v1/reload`."""

    node: str
    applied: bool
    """True if the changes that need no restart are in force; false for a dry run."""
    changes: tuple[ConfigChange, ...]
    """Every difference, as it was before."""
    digest: str
    """SHA-256 of the file."""


class KickRequest(Document):
    """The client to send away, and how."""

    model_config = ConfigDict(extra="forbid")

    client_id: str
    """Its Client Identifier."""
    clean: bool = Field(default=False, strict=True)
    """True if its session ends too."""


class KickResult(Document):
    """The answer to `POST /v1/clients/kick`."""

    node: str
    client_id: str
    was_connected: bool
    """True if a Network Connection was ended."""
    session: Literal["kept", "ended"]
    """`kept`: the client can resume it, as after a lost connection; it may come back at once."""


class ClientDetail(Document):
    """One client that has a session."""

    client_id: str
    address: str | None
    """Its address, from the PROXY header of a trusted proxy; null while it is not connected."""
    connected_since: AwareDatetime | None
    """Null while it is not connected."""
    user: str | None
    """The verified user; null without one."""
    version: Literal["3.1.1", "5"]
    """Its protocol version, of the last Network Connection."""
    queued_messages: NonNegativeInt
    """Messages that wait for it now."""
    queued_bytes: NonNegativeInt
    """Their bytes."""
    conflated_topics: NonNegativeInt
    """Newest values of topics that wait for it now, at QoS 0."""
    in_flight_messages: NonNegativeInt
    """QoS 1 and 2 messages sent and not completed."""
    unsent_bytes: NonNegativeInt
    """Bytes written to it that the system has not taken."""
    slow_since: AwareDatetime | None
    """Since when messages wait because it does not read or acknowledge, to within a second; else null."""
    bytes_per_second: NonNegativeFloat | None
    """Bytes that it acknowledged in the last half second, by its system; null when that is not known: it is not
    connected or has just come, a Unix socket, another system than Linux."""
    subscriptions: NonNegativeInt
    """Subscriptions, shared ones included."""
    filters: tuple[str, ...]
    """Their Topic Filters: all for a single client, the first 20 in a list of clients."""
    matching: tuple[str, ...] = ()
    """With `filter`: the first of its Topic Filters that may match a topic of it."""


class ClientsDocument(Document):
    """`/v1/clients`: the clients of one node, a page of them."""

    node: str
    at: AwareDatetime
    """Now, by the node's clock."""
    sessions: NonNegativeInt
    """All sessions of the node, those without a connection included; with `filter` those that it is for."""
    clients: tuple[ClientDetail, ...]
    next: str | None
    """Value of `after` for the next page; null on the last, and always with `order=slowest`."""


class SelectorDetail(SelectorReadiness):
    """One selector of a link, with what identifies its content."""

    digest: str = Field(pattern=r"^[0-9a-f]{16}$")
    """Digest over the retained set, independent of order: equal sets have equal digests."""
    unfit_total: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Messages that the selector does not take, by reason."""


class AuditRequest(Document):
    """Options of a request for an audit; an unknown one is refused, because it may be a safeguard."""

    model_config = ConfigDict(extra="forbid")

    confirmed: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Number of unconfirmed topics, all of them, which are deleted at the primary; null confirms none."""


class AuditDetail(Document):
    """One audit that has ended."""

    ended: AwareDatetime
    confirmed: bool
    """True if an operator confirmed that unconfirmed topics are deleted."""
    checked_topics: NonNegativeInt
    """Topics compared."""
    changed_topics: NonNegativeInt
    """Topics that were wrong or missing here, and are repaired."""
    removed_topics: NonNegativeInt
    """Topics that the primary no longer had, removed here."""
    kept_topics: NonNegativeInt
    """Such topics left in place, unconfirmed: more than may be removed without confirmation, or perhaps only hidden."""
    took_seconds: NonNegativeFloat
    failure: str | None
    """Why it failed; null if it did not."""
    reason: str = ""
    """Its cause: "sample", "pool", "evidence", "resumed"; empty for the schedule or a person."""


class SamplingDetail(Document):
    """Samples of a link: a few topics that it holds, requested from the primary by name and compared."""

    samples_total: NonNegativeInt = 0
    """Samples that the primary answered."""
    topics_total: NonNegativeInt = 0
    """Topics requested in them."""
    missing_total: NonNegativeInt = 0
    """Of these, topics that the primary did not send."""
    changed_total: NonNegativeInt = 0
    """Of these, topics with another value."""
    audits_total: NonNegativeInt = 0
    """Audits that samples called for."""
    failed_total: NonNegativeInt = 0
    """Samples that failed: refused, lost, or not answered in time."""
    newest: AwareDatetime | None = None
    """When the primary answered the newest sample; null before the first."""
    off: str | None = None
    """Why no samples are taken at present; null while they are."""


class BranchCount(Document):
    """Unconfirmed topics of one branch."""

    branch: str
    """Topic levels above the topics; empty for topics of one level."""
    topics: NonNegativeInt
    """Unconfirmed topics below it."""


class UnconfirmedDocument(Document):
    """A page of a link's unconfirmed topics."""

    link: str
    unconfirmed: NonNegativeInt
    """Unconfirmed topics of the link in all, as a confirmation gives."""
    unnamed: NonNegativeInt
    """Of these, topics known only by their number: there are too many."""
    causes: str
    """Why they may not have come from the primary, the likeliest first."""
    branches: tuple[BranchCount, ...]
    """Their branches, the fullest first; empty after page 1."""
    topics: tuple[str, ...]
    """Local topics of this page, in order."""
    next: str | None
    """Value of `after` for the next page; null when there is none."""


class SkippedDetail(Document):
    """A message that was skipped, because it cannot be replicated."""

    at: AwareDatetime
    topic: str
    """Its topic, escaped and cut; empty for unknown."""
    reason: str
    """Why it was skipped, as in `skipped_total`."""
    detail: str
    """Details of the fault; empty if the reason says it all."""


class LinkDetail(LinkReadiness):
    """One link, in full."""

    selectors: tuple[SelectorDetail, ...]
    primary: str
    """The primary's address in use, or the one to be tried next."""
    last_error: str | None
    """The last error since the node started, if any."""
    last_error_at: AwareDatetime | None = None
    """When that was; null without an error, or for a limit that is in the way now."""
    last_error_over: bool = False
    """True if the link has been live since that error."""
    hint: str | None
    """Remedy for `last_error`; null once that is over."""
    stale_left_seconds: NonNegativeFloat | None = None
    """How long the replica of a lost session is served at most; null while it is not."""
    payload_bytes: NonNegativeInt
    """Bytes of payloads and properties held by the replica."""
    refused_total: NonNegativeInt
    """Retained values not stored because of a limit of the replica."""
    short_by: tuple[str, ...] = ()
    """Keys of the limits that keep the newest value of a topic out now."""
    received_total: NonNegativeInt
    """PUBLISH packets received from the primary."""
    outside_total: NonNegativeInt
    """Messages dropped because no selector covers them."""
    overtaken_total: NonNegativeInt
    """Messages left out because a newer one for the topic came first."""
    heartbeats_lost_total: NonNegativeInt = 0
    """Heartbeats that the primary dropped while the link was live."""
    epochs_total: NonNegativeInt
    """MQTT sessions begun since the node started."""
    reconnects_total: NonNegativeInt
    """Network Connections begun after the first."""
    truncated_total: NonNegativeInt
    """Snapshots and verifications whose set did not come whole."""
    snapshot_seconds: NonNegativeFloat | None
    """Time from SUBSCRIBE to proof of the newest complete snapshot; null before the first."""
    snapshot_topics: NonNegativeInt
    """Topics that the newest snapshot brought so far."""
    audit: AuditDetail | None = None
    """The newest audit that has ended; null before one."""
    alarm: str | None = None
    """Decision that a person must make; null for none."""
    unconfirmed: NonNegativeInt = 0
    """Topics that the newest comparison with the primary did not bring, kept all the same."""
    counted_outside: int | None = None
    """Retained messages that the primary had beyond those here when both were counted; null if unknown."""
    client_certificate_expires: AwareDatetime | None = None
    """When the certificate that the link shows expires; null without one."""
    primary_certificate_expires: AwareDatetime | None = None
    """When the primary's certificate expires; null without TLS."""
    count_difference: str | None = None
    """Difference between the number held and the primary's count; null when equal, or not compared."""
    audit_completed: AwareDatetime | None = None
    """When the newest audit that did not fail ended; null before one."""
    stalls_total: NonNegativeInt = 0
    """Stalls of the live link: heartbeats did not come back, or the node did not run."""
    audits_total: NonNegativeInt = 0
    """Audits that have ended."""
    audits_failed_total: NonNegativeInt = 0
    """Audits that were broken off."""
    audit_changed_total: NonNegativeInt = 0
    """Topics that audits repaired."""
    audit_removed_total: NonNegativeInt = 0
    """Topics that audits removed."""
    sampling: SamplingDetail = Field(default_factory=SamplingDetail)
    """Samples of topics, requested from the primary by name."""
    missing_announced_total: NonNegativeInt = 0
    """Filters of clients that match no topic, announced at the primary."""
    missing_suppressed_total: NonNegativeInt = 0
    """Filters of clients that match no topic, not announced again so soon."""
    missing_dropped_total: NonNegativeInt = 0
    """Filters of clients given up: too many waited, or the primary refused the announcement."""
    missing_pending: NonNegativeInt = 0
    """Filters of clients that wait to be looked for, and announced if nothing matches them."""
    skipped_total: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Messages skipped because they cannot be replicated, by reason."""
    skipped_newest: tuple[SkippedDetail, ...] = ()
    """The newest of them, the newest first."""
    tolerated_total: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Breaches of MQTT by the primary that cost no message, by kind."""
    paths_above: tuple[str, ...] = ()
    """Fanout nodes above this one, from the top to the primary, one text for each way."""
    hops: NonNegativeInt = 0
    """Fanout nodes above this one on the longest way; 0 at another primary."""


class ServerStatus(Document):
    """Figures of the node's service to its own MQTT clients."""

    connections: NonNegativeInt
    """Network Connections of clients now."""
    sessions: NonNegativeInt
    """Sessions now, those without a Network Connection included."""
    subscriptions: NonNegativeInt
    """Subscriptions of all sessions now."""
    audiences: NonNegativeInt
    """Groups of sessions with identical subscriptions now."""
    retained_topics: NonNegativeInt
    """Topics with a retained value that a client can read now."""
    own_complete: bool = True
    """True if the newest retained message of each topic published here is held."""
    own_short_by: tuple[str, ...] = ()
    """Keys of the limits that keep such messages out now; they were delivered all the same."""
    deliveries_total: NonNegativeInt
    """PUBLISH packets handed to clients."""
    sent_bytes_total: NonNegativeInt
    """Bytes written to clients."""
    received_total: NonNegativeInt
    """PUBLISH packets received from clients."""
    received_bytes_total: NonNegativeInt
    """Bytes received from clients."""
    queued_messages: NonNegativeInt
    """Messages queued for sessions now."""
    queued_bytes: NonNegativeInt
    """Bytes queued for sessions now."""
    in_flight_messages: NonNegativeInt
    """QoS 1 and 2 messages sent and not completed by the client now."""
    in_flight_bytes: NonNegativeInt
    """Bytes of QoS 1 and 2 messages sent and not completed now; shared bytes count once."""
    conflated_topics: NonNegativeInt
    """Newest values of topics that wait for slow QoS 0 readers now, for each session."""
    conflated_total: NonNegativeInt
    """Messages replaced by a newer value for slow QoS 0 readers."""
    dropped_total: dict[str, NonNegativeInt]
    """Messages dropped, by reason."""
    connections_opened_total: NonNegativeInt
    """Network Connections accepted."""
    connections_refused_total: NonNegativeInt
    """Network Connections ended before a successful CONNACK."""
    takeovers_total: NonNegativeInt
    """Sessions taken over by a new connection while one was open."""
    unknown_releases_total: NonNegativeInt
    """PUBRELs with a Packet Identifier that the session does not know."""
    keep_alive_timeouts_total: NonNegativeInt
    """Network Connections ended for silence."""
    protocol_errors_total: NonNegativeInt
    """Network Connections ended because the client broke MQTT."""
    sessions_overflowed_total: NonNegativeInt
    """Sessions ended because too many messages at QoS 1 and 2 waited for them."""
    wills_total: NonNegativeInt
    """Will Messages published."""
    limits_reached_total: dict[str, NonNegativeInt]
    """How often clients reached a limit, by its key in [server] or access.quota."""
    entry_faults_total: dict[str, NonNegativeInt]
    """Network Connections with a fault below MQTT: proxy_header, tls, websocket."""
    ended_total: dict[str, NonNegativeInt]
    """Network Connections that the server ended, by Reason Code."""


class ConfigStatus(Document):
    """The configuration in force."""

    read: AwareDatetime
    """When it was read."""
    digest: str | None
    """SHA-256 of the file that it was read from; null for none."""
    pending: tuple[str, ...]
    """Keys of that file that wait for a restart."""
    reloads_total: dict[str, NonNegativeInt]
    """Reloads since the node started, by result."""


class AccessStatus(Document):
    """Admitted and refused clients, and the checks; totals count since the node started."""

    admitted_total: dict[str, NonNegativeInt]
    """Clients admitted, by proof of identity."""
    refused_total: dict[str, NonNegativeInt]
    """Clients refused, by Reason Code."""
    password_checks_total: NonNegativeInt
    """Passwords checked."""
    password_remembered_total: NonNegativeInt
    """Password checks that a remembered outcome saved."""
    password_waiting: NonNegativeInt
    """Password checks that run or wait now."""
    hook_asked_total: NonNegativeInt
    """Questions sent to the HTTP hook."""
    hook_remembered_total: NonNegativeInt
    """Questions to the HTTP hook that a remembered answer saved."""
    hook_waiting: NonNegativeInt
    """Questions to the HTTP hook that are asked or wait now."""
    hook_failures_total: dict[str, NonNegativeInt]
    """Questions to the HTTP hook without an answer, each a refusal, by reason."""
    rules: NonNegativeInt
    """Rules in force; with none everything is allowed."""
    users: NonNegativeInt
    """Users of the password file."""
    decisions: NonNegativeInt
    """Decisions on topics remembered now."""


class ArchiveStatus(Document):
    """The sealed files of the replication log; totals count since the node started."""

    kept_files: NonNegativeInt
    """Sealed files of this node that are here."""
    kept_bytes: NonNegativeInt
    """Bytes of the sealed files that are here."""
    removed_files_total: NonNegativeInt
    """Sealed files removed for their age or size."""
    shipped_files_total: NonNegativeInt
    """Sealed files copied to the store."""
    shipped_bytes_total: NonNegativeInt
    """Bytes of sealed files copied to the store."""
    waiting_files: NonNegativeInt
    """Sealed files that the store has not confirmed."""
    oldest_waiting_seconds: NonNegativeFloat
    """How long the oldest file that the store has not confirmed has been sealed."""
    failures_total: NonNegativeInt
    """Attempts to use the store that failed."""


class LogStatus(Document):
    """The node's replication log; totals count since the node started."""

    directory: str
    alarm: str | None
    """Present fault of the log; null for none."""
    last_sync: AwareDatetime | None
    """When rows were last forced to the disk; null before the first time."""
    rows_total: NonNegativeInt
    """Updates written."""
    events_total: NonNegativeInt
    """Events written."""
    lost_rows_total: NonNegativeInt
    """Updates not logged: the queue was full, or the disk failed."""
    lost_events_total: NonNegativeInt
    """Events not logged."""
    queued_rows: NonNegativeInt
    """Updates waiting to be written now."""
    queued_bytes: NonNegativeInt
    """Approximate bytes of the waiting updates."""
    unsynced_rows: NonNegativeInt
    """Updates and events not on the disk yet; a power failure would lose them."""
    written_bytes_total: NonNegativeInt
    """Bytes of segments written."""
    disk_free_bytes: NonNegativeInt | None
    """Bytes free on the disk of the log when rows were last forced to it; null before, or if that could not be told."""
    sealed_segments_total: NonNegativeInt
    """Segments that became Parquet."""
    unsealed_segments: NonNegativeInt
    """Segments waiting to become Parquet now."""
    duplicates_total: NonNegativeInt
    """Updates whose stamp was applied before."""
    stale_total: NonNegativeInt
    """Updates older than the value already applied."""
    recovered_segments: NonNegativeInt
    """Segments that the last run left open."""
    recovered_rows: NonNegativeInt
    """Updates recovered from segments that the last run left open."""
    recovered_torn_bytes: NonNegativeInt
    """Bytes in segments of the last run that were no whole frame."""
    ship_to: str | None = None
    """Destination of sealed files; null for none."""
    archive: ArchiveStatus | None = None
    """Null when sealed files are neither shipped nor removed."""


class RetainedStatus(Document):
    """The file of retained values; totals count since the node started."""

    file: str
    alarm: str | None
    """Why values cannot be written now; null when they can."""
    file_bytes: NonNegativeInt
    """Size of the file, with its write-ahead log."""
    committed_total: NonNegativeInt
    """Updates committed to the file of retained values."""
    transactions_total: NonNegativeInt
    """Transactions that committed retained values."""
    waiting_rows: NonNegativeInt
    """Updates not committed, nor acknowledged, yet."""
    waiting_bytes: NonNegativeInt
    """Bytes of payloads and properties of updates not committed yet; 0 with disc_only."""


class HttpStatus(Document):
    """The HTTP interface itself."""

    connections: NonNegativeInt
    """HTTP connections now."""
    closed_total: dict[str, NonNegativeInt] = Field(
        description="HTTP connections that the node closed, by reason: " + ", ".join(HTTP_CLOSE_REASONS) + "."
    )


class PoolStatus(Document):
    """This node as a member of its pool: figures, without the members one by one."""

    members: NonNegativeInt
    """Members of the pool that are known, this node included."""
    members_reachable: NonNegativeInt
    """Members of the pool that answer, this node included."""
    members_ready: NonNegativeInt
    """Members of the pool that answer and are ready."""
    members_equal: NonNegativeInt
    """Members of the pool whose values equalled this node's at their newest common cut, this node included."""
    asked_total: NonNegativeInt
    """Questions sent to other members of the pool."""
    ask_failures_total: dict[str, NonNegativeInt]
    """Questions to other members of the pool without a result, by reason."""
    answered_total: NonNegativeInt
    """Questions of members of the pool answered here."""
    refused_total: dict[str, NonNegativeInt]
    """Requests at the listener for members of the pool that were refused, by reason."""
    sessions_moved_in_total: NonNegativeInt = 0
    """Sessions that came to this node from other members of the pool."""
    sessions_moved_out_total: NonNegativeInt = 0
    """Sessions that left this node for other members of the pool."""
    sessions_inexact_total: NonNegativeInt = 0
    """Sessions that came without a marker between what the former and the new member send: messages may be missing
    or come twice, and retained messages come again."""
    sessions_ended_total: NonNegativeInt = 0
    """Sessions that ended here because their clients began anew at other members."""
    sessions_lost_total: NonNegativeInt = 0
    """Sessions that were on their way here when the other member died."""
    sessions_copied: NonNegativeInt = 0
    """Sessions of this node with a copy at another member of the pool."""
    copies_held: NonNegativeInt = 0
    """Copies of sessions of other members of the pool that this node keeps."""
    copies_held_bytes: NonNegativeInt = 0
    """Bytes that the copies kept here take."""
    copies_oldest_unconfirmed_seconds: NonNegativeFloat = 0.0
    """Time that the oldest copy of a session of this node has been on its way; 0 for none."""
    copies_sent_total: NonNegativeInt = 0
    """Copies and progress reports of sessions, sent to other members of the pool."""
    copies_sent_bytes_total: NonNegativeInt = 0
    """Bytes of the copies that were sent."""
    copies_failed_total: NonNegativeInt = 0
    """Calls with copies of sessions that failed; they are repeated."""
    copies_alone_total: NonNegativeInt = 0
    """Times that a session went on without a copy, because no other member of the pool could keep one."""
    copies_refused_total: NonNegativeInt = 0
    """Copies of sessions that were too large, or that another member had no room for."""
    sessions_inherited_total: NonNegativeInt = 0
    """Sessions of dead members of the pool that went on here."""
    sessions_not_inherited_total: NonNegativeInt = 0
    """Sessions of dead members of the pool that could not go on here; their clients are told."""
    history_bytes: NonNegativeInt = 0
    """Bytes of recent updates, from which the queues of dead members' sessions are rebuilt."""
    history_seconds: NonNegativeFloat = 0.0
    """Age of the oldest recent update that is held."""
    history_used_ratio: NonNegativeFloat = 0.0
    """Share of pool.history_bytes used since the oldest message that waits for a session; from 1 on that session
    cannot go on elsewhere."""
    fenced: bool = False
    """True if this node serves no durable session, because other members may take it for dead."""
    fences_total: NonNegativeInt = 0
    """Times at which this node stopped serving durable sessions, because other members might take it for dead."""
    clients_later_total: NonNegativeInt = 0
    """CONNECTs that were refused (0x88) because the session was not found or here in time."""
    session_calls_total: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Calls to other members about sessions, by kind; each is for many sessions."""
    connections: NonNegativeInt
    """Connections of members of the pool now."""
    closed_total: dict[str, NonNegativeInt]
    """Connections closed at the listener for members of the pool, by reason."""
    cuts_compared_total: NonNegativeInt
    """Cuts at which this node was compared with another member of the pool."""
    cuts_differed_total: NonNegativeInt
    """Cuts at which this node and another member of the pool held different values."""
    repairs_total: NonNegativeInt
    """Audits of links of this node because members of the pool held different values."""


class PoolMember(Document):
    """One member of the pool; null stands for a value that is unknown, or that a member did not give."""

    node: str | None = None
    """Its `node.id`; null before it has answered."""
    address: str | None
    """Its address; null for the node that answers."""
    url: str | None = None
    """Its HTTP interface at that host, where it may be for its own machine only; null if not known."""
    is_self: bool
    """True if it is the node that answers."""
    reachable: bool
    """True if it has answered within `pool.suspect_after_s`."""
    failure: str | None = None
    """Why the newest question failed; null when it was answered."""
    state: NodeState | None = None
    """True if it is ready, in a word; null while it is not reachable."""
    ready: bool | None = None
    """True if it is ready; null while it is not reachable."""
    topics: NonNegativeInt | None = None
    """Retained topics that its clients can read."""
    digest_equal: bool | None = None
    """True if its values equalled this node's at their newest common cut; null without a recent one."""
    digest_equal_since: AwareDatetime | None = None
    """Since when that is so."""
    lag: NonNegativeFloat | None = None
    """Greatest lag of its links, in seconds."""
    sessions: NonNegativeInt | None = None
    """Sessions of its clients."""
    moved_in: NonNegativeInt | None = None
    """Sessions that came to it from other members."""
    moved_out: NonNegativeInt | None = None
    """Sessions that left it for other members."""
    sessions_copied: NonNegativeInt | None = None
    """Its sessions with a copy at another member; null without copies."""
    copies_held: NonNegativeInt | None = None
    """Copies of other members' sessions that it keeps; null without copies."""
    copies_late_seconds: NonNegativeFloat | None = None
    """Time that its oldest copy has been on its way, in seconds; 0 for none."""
    history_seconds: NonNegativeFloat | None = None
    """Age of the oldest recent update that it holds, in seconds; null without any."""
    history_used_ratio: NonNegativeFloat | None = None
    """Share of `pool.history_bytes` used since the oldest message that waits for one of its sessions; from 1 on that
    session cannot go on elsewhere."""
    version: str | None = None
    """The version of fanout that it runs, as it said last."""
    config_digest: str | None = None
    """Digest of its links and selectors, as it said last; equal for the same ones."""


class PoolDocument(Document):
    """`/v1/pool`: the members of the pool, as one of them sees them."""

    node: str
    ready: bool
    """True if every member is reachable and ready, and replicates the same."""
    reasons: tuple[str, ...]
    """Every reason why the pool is not ready; empty when it is."""
    members: tuple[PoolMember, ...]
    """This node first, the others in the order of their names."""
    fenced: bool = False
    """True if this node serves no durable session, because other members may take it for dead."""
    stay_reasons: tuple[str, ...] | None = None
    """Every reason why this node should not be stopped now, its clients and sessions having nowhere to go; empty
    when it may be. Null from an older node."""

    def others_to_ask(self, *, needs_tls: bool) -> tuple[dict[str, str], dict[str, str]]:
        """Return the HTTP addresses of the other members, and why those left out cannot be asked; both by name.

        Args:
            needs_tls: True if a token goes with the questions that came, or went to this node, over TLS.
        """
        urls: dict[str, str] = {}
        left_out: dict[str, str] = {}
        for member in self.members:
            name = member.node or member.address or ""
            if member.is_self:
                continue
            if member.url is None:
                left_out[name] = "its HTTP address is not known"
            elif needs_tls and not member.url.startswith("https:"):
                left_out[name] = "a token is not sent there: it has no TLS"
            else:
                urls[name] = member.url
        return urls, left_out


class NodeStatus(Document):
    """`/v1/status`: everything about one node."""

    node: str
    version: str
    """The version of fanout that the node runs."""
    build: Literal["compiled", "pure"] = "pure"
    """True if the modules of the hot path are compiled; they do the same, faster."""
    role: Role
    started: AwareDatetime
    uptime_seconds: NonNegativeFloat
    ready: bool
    state: NodeState
    reasons: tuple[str, ...]
    listeners: tuple[str, ...]
    """Addresses at which MQTT clients are served, with their real ports."""
    links: tuple[LinkDetail, ...]
    server: ServerStatus | None
    """Null on a node that serves nobody (a tap)."""
    config: ConfigStatus | None = None
    """Null where an older node answers."""
    pid: int | None = None
    """Of the node's process."""
    access: AccessStatus | None = None
    """Null on a node that serves nobody (a tap)."""
    log: LogStatus | None
    """Null without a replication log."""
    retained: RetainedStatus | None = None
    """Null when retained values are in memory only."""
    http: HttpStatus | None = None
    """Null from an older node."""
    pool: PoolStatus | None = None
    """Null for a node that is in no pool."""
    limits: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """The bounds in force, by their dotted key in the configuration."""


class LinkLag(Document):
    """Lag of one link from its primary."""

    name: str
    state: LinkState
    lag_seconds: NonNegativeFloat | None
    """Least lag of the replica. Null if unknown, never zero."""
    basis: Literal["heartbeat", "unknown"]
    """`heartbeat`: measured by the link's own message through the data path; or `unknown`."""
    detail: str
    """Why the lag is unknown or only a lower bound; empty otherwise."""
    items_behind: NonNegativeInt | None = None
    """Updates of all topics that a `fanout primary` had stamped and that had not come, as last known. Null if
    unknown, as at any other primary, never zero."""
    heartbeat_age_seconds: NonNegativeFloat | None
    """Time since a heartbeat last came back; null when none did in this epoch."""
    heartbeat_interval_seconds: NonNegativeFloat | None
    """Time between heartbeats; null when they are switched off."""
    received_total: NonNegativeInt
    """PUBLISH packets received from the primary."""
    topics: NonNegativeInt
    """Retained topics held by the link's replica now."""

    @model_validator(mode="after")
    def _unknown_is_null(self) -> Self:
        if (self.basis == "unknown") != (self.lag_seconds is None):
            raise ValueError("lag_seconds is null exactly when the basis is unknown")
        return self


class LagDocument(Document):
    """`/v1/lag`: how far each link is behind."""

    node: str
    role: Role
    at: AwareDatetime | None = None
    """When the document was made, by the node's clock; null from an older node."""
    links: tuple[LinkLag, ...]


class Fault(Document):
    """Any answer that is an error."""

    error: str
    """The fault."""
    hint: str
    """The remedy."""
