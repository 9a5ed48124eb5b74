"""What a link tells: its status, and what it hands to the node it belongs to.

Owns the types at the link's edge. It must not know how a link works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from fanout.link.model.audit_report import AuditReport
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.replica.update import Changes
from fanout.runtime.system_clock import Clock

__all__ = ["STALE", "AuditTotals", "Clock", "LinkSink", "LinkStatus", "SelectorStatus"]

STALE: Final = "stale"
"""What a link is called, whatever its state, while it serves the replica of a lost session."""


@dataclass(frozen=True, slots=True)
class SelectorStatus:
    """What a link holds for one selector."""

    filter: str
    """Its Topic Filter at the primary."""
    topics: int
    """Retained values held now."""
    digest: int
    """Digest over them, unsigned 64 bits (`fanout.replica.store.Replica.digest`)."""
    evidence: Evidence | None
    """Why its snapshot of this epoch is believed complete; None while it is not."""
    complete: bool
    """Whether it is proved complete and no limit kept a value out in this epoch."""
    unfit: Mapping[str, int] = field(default_factory=dict)
    """Messages that are not replicated because they are not what the selector takes, by reason."""


@dataclass(frozen=True, slots=True)
class AuditTotals:
    """What the audits of a link found since it was started."""

    ended_total: int = 0
    """Audits that have ended, failed ones included."""
    failed_total: int = 0
    """Of these, audits that did not come to their end."""
    changed_total: int = 0
    """Topics repaired."""
    removed_total: int = 0
    """Topics removed."""
    last: AuditReport | None = None
    """The newest that has ended; None before the first."""
    last_ended_ns: int = 0
    """When that was, Unix time in nanoseconds."""

    def with_report(self, report: AuditReport, *, now_ns: int) -> AuditTotals:
        """Return the totals with one more audit."""
        return AuditTotals(
            ended_total=self.ended_total + 1,
            failed_total=self.failed_total + bool(report.failure),
            changed_total=self.changed_total + report.changed,
            removed_total=self.removed_total + report.removed,
            last=report,
            last_ended_ns=now_ns,
        )


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A link at one moment."""

    name: str
    primary: str
    """The address in use, or the one to be tried next."""
    state: LinkState
    since_ns: int
    """When this state was entered, Unix time in nanoseconds."""
    epoch: int
    """Identity of the session: Unix time in microseconds at which it began; 0 before the first."""
    epochs_total: int
    """Sessions begun since the link was started."""
    topics: int
    """Retained values held now."""
    selectors: tuple[SelectorStatus, ...]
    evidence: Evidence | None
    """The weakest evidence of the selectors; None unless all are complete."""
    last_error: str | None
    """What went wrong last, since the link was started."""
    last_error_hint: str | None
    """What an operator can do about it; None when nothing went wrong or there is nothing to do."""
    lag_ns: int | None
    """How far behind the replica is at least; grows by itself when heartbeats stay away; None when
    unknown."""
    items_behind: int | None
    """How many updates the primary had stamped that had not come, when that was known last; None when unknown."""
    round_trip_ns: int | None
    """What the newest heartbeat of this epoch took; None when none came back."""
    heartbeat_age_s: float | None
    """Time since a heartbeat came back, in seconds; None when none did in this epoch."""
    heartbeat_refusal: str
    """Why heartbeats do not come back, as far as the primary showed it; empty when they do, or may yet."""
    heartbeats_lost_total: int
    """Heartbeats that the primary dropped while the link was live, as later ones showed."""
    received_total: int
    """PUBLISH packets received."""
    outside_total: int
    """Those that no selector covers, the link's own control messages not counted."""
    overtaken_total: int
    """Those left out because something newer for their topic came in front of them."""
    truncated_total: int
    """Snapshots and verifications given up because the retained set did not come whole."""
    refused_total: int
    """Retained values that a limit of the replica kept out."""
    short_by: tuple[str, ...]
    """Keys of the limits that keep out the newest value of a topic now; empty when the replica lacks nothing."""
    payload_bytes: int
    """Bytes of payloads and properties held by the replica."""
    reconnects_total: int
    """Network Connections that were accepted (CONNACK) after the first one."""
    snapshot_seconds: float | None
    """Time from the first SUBSCRIBE to proof of the newest complete snapshot; None before the first."""
    snapshot_topics: int
    """Topics that the newest snapshot brought so far."""
    withheld: str | None = None
    """Why the link is not ready although it is live with everything proved; None when nothing is in the way."""
    paths_above: tuple[tuple[str, ...], ...] = ()
    """Fanout nodes above this one, from the top to the primary, for each way there is; empty without any."""
    stale_reason: str | None = None
    """Why its replica is that of a lost session; None while it is not."""
    stale_left_s: float | None = None
    """How long such a replica is served at most, in seconds; None while it is not stale."""
    audits: AuditTotals = field(default_factory=AuditTotals)
    """What its audits found."""
    missing_announced_total: int = 0
    """Filters without a topic that were announced at the primary, which has accepted it."""
    missing_suppressed_total: int = 0
    """Such filters that were not, too soon after the last time."""
    missing_dropped_total: int = 0
    """Filters given up: too many waited, the primary refused the announcement, or a node below told nonsense."""
    missing_pending: int = 0
    """Filters that wait to be looked for, and announced if nothing matches them."""
    client_certificate_expires_s: int | None = None
    """When the certificate that the link shows expires, in Unix seconds, as it was at the newest connection; None
    without one."""
    primary_certificate_expires_s: int | None = None
    """When the primary's certificate expires, in Unix seconds, as it was at the newest connection; None without TLS."""
    count_difference: str | None = None
    """How what is held differs from what the primary counts, or lists; None while both agree, or are not compared."""

    @property
    def called(self) -> str:
        """Its state in one word, as documents and metrics have it."""
        return self.state.value if self.stale_reason is None else STALE

    @property
    def alarm(self) -> str | None:
        """What a person must decide; None for nothing."""
        last = self.audits.last
        if last is None or not last.kept:
            return None
        return (
            f"the last audit left {last.kept} of {last.checked} topics in place that it did not find at the primary;"
            f" if they are gone there, remove them with: fanout audit {self.name} --confirm"
        )

    @property
    def ready(self) -> bool:
        """Whether it is live, with every selector proved complete, and nothing in the way."""
        proved = self.state is LinkState.LIVE and all(selector.complete for selector in self.selectors)
        return proved and self.withheld is None


class LinkSink(Protocol):
    """Where a link puts what it learns; the node implements it. Nothing here may wait."""

    def record(self, link: str, changes: Changes, *, epoch: int) -> None:
        """Append a batch to the replication log; called before the batch is acknowledged to the primary."""

    def dispatch(self, changes: Changes) -> None:
        """Deliver a batch to local clients; called after it was recorded and acknowledged."""

    def standing_changed(self) -> None:
        """Note that `withheld` or `paths_above` of a link's status may have changed."""

    def client_count(self) -> int:
        """Return how many clients may be told of each topic that is removed."""

    async def prepare_tear_down(self, link: str) -> int:
        """Make ready for the removal of a replica, and return how many clients may be told of each topic.

        The one method that may wait: clients are told to go where the configuration wants that.
        """

    def event(
        self,
        link: str,
        event: str,
        *,
        state: str = "",
        evidence: str = "",
        selector: str = "",
        topics: int = 0,
        digest: int = 0,
        lag_us: int | None = None,
        detail: str = "",
        epoch: int,
    ) -> None:
        """Append an event to the replication log.

        Args:
            link: The link's name.
            event: One of `fanout.replog.files.schema.event_names`.
            state: The state entered, for "state".
            evidence: For "complete".
            selector: The selector's filter, for "complete".
            topics: Retained values held after the event: of the selector, or of the link.
            digest: Digest over them.
            lag_us: Round trip in microseconds, for "heartbeat".
            detail: What a person should read.
            epoch: The link's epoch.
        """
