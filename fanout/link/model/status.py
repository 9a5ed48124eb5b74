"""Status of a link, and the interface of the node that the link calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypedDict, Unpack

from fanout.link.model.audit_report import AuditReport
from fanout.link.model.counters import LinkCounters
from fanout.link.model.evidence import Evidence
from fanout.link.model.sampling_totals import SamplingTotals
from fanout.link.model.skipped import MessageSkipped
from fanout.link.model.states import WAITS_FOR, LinkState
from fanout.replica.update import Changes
from fanout.runtime.system_clock import Clock
from fanout.selection import Selector

__all__ = [
    "STALE",
    "Clock",
    "EventColumns",
    "LinkSink",
    "LinkStatus",
    "SelectorStatus",
    "causes_of_absence",
]

STALE: Final = "stale"
"""State name of a link that serves the replica of a lost session."""


@dataclass(frozen=True, slots=True)
class SelectorStatus:
    """Status of one selector of a link."""

    filter: str
    """Topic Filter at the primary."""
    topics: int
    """Retained values held now."""
    digest: int
    """Digest over them, unsigned 64 bits (`fanout.replica.store.Replica.digest`)."""
    evidence: Evidence | None
    """Evidence that its snapshot of this epoch is complete; None while there is none."""
    complete: bool
    """True if the snapshot is proved complete and no limit kept a value out in this epoch."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Messages that the content filter of the selector rejected, by reason."""
    joining: bool = False
    """True if it was added to a link whose other selectors were proved, and is not proved yet."""
    maybe_unreadable: bool = False
    """True if it is empty, and may be so because the link's user may not read it at the primary."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Status of a link at one moment."""

    name: str
    primary: str
    """Address in use, or to be tried next."""
    state: LinkState
    since_ns: int
    """When this state was entered, Unix time in nanoseconds."""
    epoch: int
    """Identity of the session: Unix time in microseconds at which it began; 0 before the first."""
    topics: int
    """Retained values held now."""
    selectors: tuple[SelectorStatus, ...]
    evidence: Evidence | None
    """Weakest evidence among the selectors; None unless all are complete."""
    last_error: str | None
    """Newest error since the link was started."""
    last_error_hint: str | None
    """Advice to the operator about that error; None without an error or advice."""
    lag_ns: int | None
    """Lower bound of the lag of the replica; grows while heartbeats stay away; None when unknown."""
    items_behind: int | None
    """Updates that the primary had stamped and that had not come, as last known; None when unknown."""
    round_trip_ns: int | None
    """Round trip of the newest heartbeat of this epoch; None when none came back."""
    heartbeat_age_s: float | None
    """Seconds since a heartbeat came back; None when none did in this epoch."""
    heartbeat_refusal: str
    """Why heartbeats do not come back, as far as known; empty when they do, or still may."""
    counters: LinkCounters
    """Counters since the link was started."""
    refused_total: int
    """Retained values refused by a limit of the replica."""
    short_by: tuple[str, ...]
    """Config keys of the limits that keep the newest value of some topic out now; empty when none does."""
    payload_bytes: int
    """Bytes of payloads and properties held by the replica."""
    snapshot_seconds: float | None
    """Seconds from the first SUBSCRIBE to the proof of the newest complete snapshot; None before the first."""
    snapshot_topics: int
    """Topics that the newest snapshot brought so far."""
    not_ready_reason: str | None
    """Why a link that is live and proved is not ready all the same; None for no reason."""
    paths_above: tuple[tuple[str, ...], ...]
    """Paths of fanout nodes above this one, each from the top to the primary; empty without any."""
    stale_reason: str | None
    """Why the replica is stale; None while it is not."""
    stale_left_s: float | None
    """Seconds until the grace period of a stale replica ends; None while it is not stale."""
    stale_s: float | None
    """Age of the values: seconds since they were last known to be current, 0 while they are; None without any."""
    serves_stale: bool
    """True if the values are complete and stale, and may be offered as such."""
    newest_audit: AuditReport | None
    """Report of the newest audit that ended; None before the first."""
    audit_ended_ns: int
    """When that audit ended, Unix time in nanoseconds."""
    audit_completed_ns: int
    """When the newest audit that did not fail ended, Unix time in nanoseconds; 0 before one."""
    unconfirmed: int
    """Topics that the newest comparison did not bring, whose values are kept."""
    user: str
    """User Name of the link at the primary; empty for none."""
    counted_outside: int | None
    """Retained messages that the primary had beyond the replica when both were counted last; None for unknown."""
    sampling: SamplingTotals
    """Totals over its samples of topics."""
    missing_pending: int
    """Filters that wait to be checked, and to be announced if no topic matches."""
    client_certificate_expires_s: int | None
    """When the link's client certificate expires, in Unix seconds, as of the newest connection; None without one."""
    primary_certificate_expires_s: int | None
    """When the primary's certificate expires, in Unix seconds, as of the newest connection; None without TLS."""
    count_difference: str | None
    """Difference of the replica from the primary's count or list; None while they agree or are not compared."""
    last_error_ns: int | None
    """When the newest error was noted, Unix time in nanoseconds; None without one, or for a limit that holds on."""
    last_error_over: bool
    """True if the link has been live since that error."""
    skipped_total: Mapping[str, int] = field(default_factory=dict)
    """Messages that cannot be replicated, by `SkipReason`."""
    skipped_newest: tuple[MessageSkipped, ...] = ()
    """The newest of them, the newest first."""
    tolerated_total: Mapping[str, int] = field(default_factory=dict)
    """Breaches of the specification by the primary that cost no message, by `Deviation`."""
    not_held_topics: int = 0
    """Topics that are known to exist at the primary and are not held, because their newest message was skipped."""
    not_held_reason: str | None = None
    """Why these are not held, for an operator; None without any."""
    twin: str = ""
    """Why another process seems to use this node's identity at the primary; empty for no sign of one."""

    @property
    def shown_state(self) -> str:
        """State name, as documents and metrics show it."""
        return self.state.value if self.stale_reason is None else STALE

    @property
    def alarm(self) -> str | None:
        """Decision that an operator must make; None for none."""
        if self.twin:
            return f"{self.twin}; stop one of the two, or give each host a node.id of its own"
        if not self.unconfirmed:
            return None
        one = self.unconfirmed == 1
        return (
            f"{'1 topic' if one else f'{self.unconfirmed} topics'} did not come from the primary and"
            f" {'is' if one else 'are'} kept: {causes_of_absence(self.user)};"
            f" see them: fanout audit {self.name} --list; only if they are deleted there:"
            f" fanout audit {self.name} --confirm {self.unconfirmed}"
        )

    @property
    def ready(self) -> bool:
        """True if no reason is against it."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the link is not ready, for a person; None when it is.

        The text holds no running counter: every change of it is sent to the nodes below.
        """
        waits_for = WAITS_FOR[self.state]
        if waits_for is not None:
            error = f": {self.last_error}" if self.last_error and not self.last_error_over else ""
            state = self.state.value.replace("_", " ")
            if self.stale_reason is not None:
                return f"stale ({self.stale_reason}), {state}{error}"
            return f"{state}, waits for {waits_for}{error}"
        if not all(selector.complete or selector.joining for selector in self.selectors):
            return f"incomplete: a limit kept values out ({', '.join(self.short_by)})"
        return None if self.not_ready_reason is None else f"live, but {self.not_ready_reason}"


def causes_of_absence(user: str) -> str:
    """Return why topics may not come from a primary, the likeliest first.

    Args:
        user: User Name of the link at the primary; empty for none.
    """
    reader = f"user {user}" if user else "this link"
    return f"deleted there, no longer readable by {reader}, or expired there"


class EventColumns(TypedDict, total=False):
    """Columns of an event in the replication log that only some events have."""

    state: str
    """State entered, for "state"."""
    evidence: str
    """Evidence, for "complete"."""
    selector: str
    """Filter of the selector, for "complete"."""
    topics: int
    """Retained values held after the event: of the selector, or of the link."""
    digest: int
    """Digest over them."""
    lag_us: int | None
    """Round trip in microseconds, for "heartbeat"."""
    detail: str
    """Text for an operator."""


class LinkSink(Protocol):
    """Receiver of batches and events; the node implements it. No method may block, unless it says so."""

    def record(self, link: str, changes: Changes, *, epoch: int) -> None:
        """Append a batch to the replication log; called before the batch is acknowledged to the primary."""

    def dispatch(self, link: str, changes: Changes) -> None:
        """Deliver a batch of a link to local clients; called after it was recorded and acknowledged."""

    def marker_passed(self, link: str, node: str, marker: str) -> None:
        """Note the place of a member's heartbeat: earlier updates were dispatched, later ones not yet."""

    def readiness_changed(self, link: str) -> None:
        """Note that `not_ready_reason` or `paths_above` of a link's status may have changed."""

    def client_count(self) -> int:
        """Return the largest number of clients that one removal may reach."""

    async def prepare_tear_down(self, link: str, selectors: Sequence[Selector] | None = None) -> int:
        """Prepare the removal of a replica, and return the largest number of clients that one removal may reach.

        This method may wait: it disconnects clients where the configuration asks for that.

        Args:
            link: The link's name.
            selectors: The selectors whose values are removed; None for all.
        """

    def event(self, link: str, event: str, *, epoch: int, **columns: Unpack[EventColumns]) -> None:
        """Append an event to the replication log.

        Args:
            link: The link's name.
            event: One of `fanout.replog.files.schema.event_names`.
            epoch: The link's epoch.
            columns: Further columns of the log.
        """
