"""Documents of the HTTP interface, filled from the parts of the node (`fanout.api.node_view.NodeView`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from fanout import __version__
from fanout.access.gate import Gate
from fanout.api.agent import agent_line
from fanout.api.http_server import HttpServer
from fanout.api.lag import lag_detail
from fanout.api.models import (
    AccessStatus,
    ArchiveStatus,
    AuditDetail,
    ClientsDocument,
    ConfigChange,
    ConfigStatus,
    Draining,
    Held,
    KickRequest,
    KickResult,
    LagDocument,
    LinkDetail,
    LinkLag,
    LinkReadiness,
    LogStatus,
    NodeStatus,
    PoolDocument,
    Readiness,
    ReloadRequest,
    ReloadResult,
    RetainedStatus,
    SamplingDetail,
    SelectorDetail,
    SelectorReadiness,
    ServerStatus,
    SkippedDetail,
    UnconfirmedDocument,
    utc_from_ns,
)
from fanout.api.node_view import ClientOrder
from fanout.api.unconfirmed_page import unconfirmed_page
from fanout.chain.readiness_notice import ReadinessNotice, join
from fanout.config import NodeConfig, Role, ServerConfig
from fanout.errors import ConfigError, ListenError, RequestRefused
from fanout.installation import build
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.sampling_totals import SamplingTotals
from fanout.link.model.status import LinkStatus, causes_of_absence
from fanout.node.browse.browser import Browser
from fanout.node.clients import ClientsView
from fanout.node.combined_store import CombinedStore
from fanout.node.drain import Drain
from fanout.node.pool.documents import config_digest
from fanout.node.pool.parts import NodePool
from fanout.node.readiness import NodeReadiness, judge, link_reasons
from fanout.node.reload import Reloads
from fanout.pool.member_facts import MemberFacts
from fanout.replica.owners import RetainedOwners
from fanout.replica.store import Replica
from fanout.runtime.system_clock import SystemClock
from fanout.server.client.client_list import ClientQuery
from fanout.server.client.server import Server
from fanout.storage.store import DiskStore

if TYPE_CHECKING:
    from fanout.link.link import Link
    from fanout.replog.write.writer import LogWriter

if TYPE_CHECKING:
    from fanout.api.browse.models import PoolComparisonDocument
    from fanout.api.topic_facts import TopicExplanation

__all__ = ["NodeDocuments", "NodeParts"]

_NS_PER_S: Final = 1_000_000_000
_NO_LOAD: Final = ("qos_max", "topic_alias_max")
_SERVER_LIMITS: Final = (
    "connect_timeout_s",
    "receive_maximum",
    *(one.name for one in fields(ServerConfig) if one.name.endswith("_max") and one.name not in _NO_LOAD),
)
"""Keys of `[server]` that bound what clients take."""


class NodeParts(Protocol):
    """The parts of a node that its documents describe; `fanout.node.node.Node` has them."""

    config: NodeConfig
    """The configuration in force."""
    role: Role
    """Role of the node."""
    clock: SystemClock
    """Gives the time."""
    opening: str
    """Step of the start that is under way; empty once the node serves."""
    drain: Drain
    """Phase of the node: serving, draining or stopping."""

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link, in the order of the configuration."""

    @property
    def link_replicas(self) -> Sequence[tuple[Link, Replica]]:
        """Every link with its replica, in the order of the configuration."""

    owners: RetainedOwners
    """Users of the values of own topics."""
    own: Replica
    """Retained values that clients published at this node."""
    store: CombinedStore
    """All retained values that clients can read."""
    browser: Browser
    """Reads topics and events of the node."""
    server: Server | None
    """Serves clients; None on a node without clients."""
    gate: Gate | None
    """Access control; None where this process serves no clients."""

    log: LogWriter | None
    """The replication log; None when the configuration has none."""
    http: HttpServer | None
    """Serves HTTP; None when the configuration has no address for it."""
    pool: NodePool | None
    """The node as a member of a pool; None when the configuration has none."""
    reloads: Reloads
    """Reads the configuration again."""
    storage: DiskStore | None
    """Storage of retained values that outlive the process; None without."""

    def send_clients_away(self) -> None:
        """Begin to disconnect every client, at a pace; harmless while that goes on."""

    def keep_clients(self) -> None:
        """Stop to disconnect clients; harmless when nothing goes on."""


class NodeDocuments:
    """Builds each document from the state of the parts at the moment of the request."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._started_ns = node.clock.now_ns()
        self._started_s = node.clock.monotonic()
        self._digest = node.config.links, config_digest(node.config.links)
        """Links of a configuration, and their digest."""
        self._readiness_told: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {}
        """Link to why it is not ready, empty when it is, and the paths above it, as the newest notice has them."""

    @property
    def browser(self) -> Browser:
        """Reads topics and events of the node."""
        return self._node.browser

    @property
    def stale_s(self) -> float | None:
        """Age in seconds of stale values that are offered; None otherwise."""
        return self._judge().stale_s

    def readiness(self) -> Readiness:
        """Return whether the node may join a pool, and why not."""
        links = self._statuses()
        verdict = self._judge(links)
        return Readiness(
            ready=not verdict.reasons,
            state=verdict.state,
            reasons=verdict.reasons,
            stale_seconds=verdict.stale_s,
            node=self._node.config.node.id,
            role=self._node.role,
            links=tuple(map(_readiness, links)),
            held_since=self._held_since(),
        )

    async def count(self) -> None:
        """Count the load of the sessions, in slices of the event loop."""
        if self._node.server is not None:
            await self._node.browser.slices.run(self._node.server.registry.load.count())

    def status(self) -> NodeStatus:
        """Return everything about the node."""
        node, links = self._node, self._statuses()
        verdict = self._judge(links)
        return NodeStatus(
            node=node.config.node.id,
            version=__version__,
            build=build(),
            role=node.role,
            started=utc_from_ns(self._started_ns),
            uptime_seconds=node.clock.monotonic() - self._started_s,
            ready=not verdict.reasons,
            state=verdict.state,
            reasons=verdict.reasons,
            listeners=tuple(node.server.addresses) if node.server else (),
            links=tuple(map(_detail, links)),
            server=self._server(),
            config=self._config(),
            pid=os.getpid(),
            access=self._access(),
            log=self._log(),
            retained=self._retained(),
            http=node.http.status() if node.http is not None else None,
            pool=None if node.pool is None else node.pool.status(self.pool()),
            limits=self._limits(),
        )

    def lag(self) -> LagDocument:
        """Return how far each link is behind."""
        return LagDocument(
            node=self._node.config.node.id,
            role=self._node.role,
            at=utc_from_ns(self._node.clock.now_ns()),
            links=tuple(self._link_lags(self._statuses())),
        )

    def _link_lags(self, statuses: Sequence[LinkStatus]) -> list[LinkLag]:
        return [
            LinkLag.of(
                status,
                status.counters,
                state=status.shown_state,
                lag_seconds=None if status.lag_ns is None else status.lag_ns / _NS_PER_S,
                basis="unknown" if status.lag_ns is None else "heartbeat",
                detail=lag_detail(
                    lag_s=None if status.lag_ns is None else status.lag_ns / _NS_PER_S,
                    age_s=status.heartbeat_age_s,
                    interval_s=link.config.heartbeat_s,
                    refusal=status.heartbeat_refusal,
                ),
                heartbeat_age_seconds=status.heartbeat_age_s,
                heartbeat_interval_seconds=link.config.heartbeat_s or None,
            )
            for link, status in zip(self._node.links, statuses, strict=True)
        ]

    def pool(self) -> PoolDocument:
        """Return the members of the pool.

        Raises:
            RequestRefused: The node is in no pool.
        """
        if self._node.pool is None:
            node = self._node.config.node.id
            raise RequestRefused(f"{node} is in no pool", hint="Add [pool] to its configuration, and start it again")
        return self._node.pool.document(started_ns=self._started_ns)

    async def compare_pool(self, *, authorization: str) -> PoolComparisonDocument:
        """Return the topics that members of the pool hold differently.

        Args:
            authorization: Credentials for the other members; empty for none.

        Raises:
            RequestRefused: The node is in no pool.
        """
        from fanout.node.pool.comparison import compare_pool  # not needed to start a node

        pool, http, config = self.pool(), self._node.http, self._node.config.pool
        return await compare_pool(
            pool,
            self._node.browser,
            authorization=authorization,
            is_secure=http is not None and http.url.startswith("https:"),
            authorities=None if config is None else config.client_ca_file,
        )

    def _config_digest(self) -> str:
        links = self._node.config.links
        if links is not self._digest[0]:
            self._digest = links, config_digest(links)
        return self._digest[1]

    def member_facts(self, instance: str) -> MemberFacts:
        """Return what this node tells the other members of its pool; `instance` identifies its process."""
        node, links = self._node, self._statuses()
        copies = None if node.pool is None else node.pool.copy_figures()
        sessions = None if node.pool is None else node.pool.sessions
        lags_ns = [status.lag_ns for status in links]
        known_ns = [lag_ns for lag_ns in lags_ns if lag_ns is not None]
        return MemberFacts(
            node=node.config.node.id,
            instance=instance,
            version=__version__,
            config_digest=self._config_digest(),
            state=self._judge(links).state,
            topics=len(node.store),
            sessions=0 if node.server is None else node.server.session_count,
            lag_s=max(known_ns) / _NS_PER_S if known_ns and len(known_ns) == len(lags_ns) else None,
            moved_in=0 if sessions is None else sessions.figures.sessions_moved_in_total,
            moved_out=0 if sessions is None else sessions.figures.sessions_moved_out_total,
            client_address=None if node.config.pool is None else node.config.pool.client_address,
            http_port=None if node.http is None else node.http.port,
            http_tls=node.http is not None and node.http.url.startswith("https"),
            keeps_copies=copies is not None,
            sessions_copied=None if copies is None else copies.sessions_copied,
            copies_held=None if copies is None else copies.copies_held,
            copies_late_s=None if copies is None else copies.copies_oldest_unconfirmed_seconds,
            history_s=None if copies is None else copies.history_seconds,
            history_used=None if copies is None else copies.history_used_ratio,
            interruptions=0 if node.pool is None or node.pool.recent is None else node.pool.recent.interruptions,
        )

    async def explain(self, topic: str, *, at_primary: bool, client_id: str | None) -> TopicExplanation:
        """Return the explanation of a topic; see `TopicExplainer.explain`."""
        from fanout.node.explain.explainer import TopicExplainer  # its documents are not needed to start a node

        node = self._node
        explainer = TopicExplainer(
            node.config,
            links=node.link_replicas,
            own=node.own,
            server=node.server,
            clock=node.clock,
        )
        return await explainer.explain(topic, at_primary=at_primary, client_id=client_id)

    async def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
        """Audit one of the links now and return the result.

        Raises:
            AuditRefused: No audit can begin now.
        """
        audited = next(one for one in self._node.links if one.config.name == link)
        report = await audited.audit(confirmed=confirmed)
        return _audit_detail(report, ended_ns=self._node.clock.now_ns())

    async def unconfirmed(self, link: str, *, after: str) -> UnconfirmedDocument:
        """Return a page of the unconfirmed topics of one of the links, after the topic `after`."""
        shown = next(one for one in self._node.links if one.config.name == link)
        causes = causes_of_absence(shown.status().user)
        return await unconfirmed_page(link, shown.unconfirmed, causes=causes, after=after)

    def readiness_notice(self, changed: str | None = None) -> ReadinessNotice:
        """Return the readiness notice for the nodes below: it tells of this node's values, not of a drain.

        Args:
            changed: The only link whose notice may differ from the newest one; None for all. A status costs as
                much as some hundred reasons, and each link changes several times while all of them start.
        """
        told = self._readiness_told
        if changed is None:
            told.clear()
        for link in self._node.links:
            if changed is None or link.config.name == changed or link.config.name not in told:
                status = link.status()
                told[link.config.name] = "".join(link_reasons([status])), status.paths_above
        reasons = filter(None, (reason for reason, _ in told.values()))
        paths_above = [path for _, paths in told.values() for path in paths]
        return ReadinessNotice("; ".join(reasons), join(self._node.config.node.id, paths_above))

    def drain(self) -> Draining:
        """Begin to drain unless the node does already, and return how much time is left."""
        drain = self._node.drain
        drain.begin()
        return Draining(node=self._node.config.node.id, state=self._judge().state, left_seconds=drain.seconds_left)

    def hold(self, *, disconnect: bool) -> Held:
        """Hold the node out of its pool, and send its clients away where that is wanted.

        Raises:
            RequestRefused: The node drains or stops.
        """
        changed = self._node.drain.hold(now_ns=self._node.clock.now_ns())
        if disconnect:
            self._node.send_clients_away()
        return self._held(changed=changed)

    def undrain(self) -> Held:
        """End the hold, and the sending away of clients.

        Raises:
            RequestRefused: The node drains or stops.
        """
        changed = self._node.drain.release(now_ns=self._node.clock.now_ns())
        self._node.keep_clients()
        return self._held(changed=changed)

    async def reload(self, request: ReloadRequest) -> ReloadResult:
        """Read the configuration again, and apply what has changed; see `NodeView`."""
        try:
            reloaded = await self._node.reloads.reload(dry_run=request.dry_run, partial=request.partial)
        except ListenError as error:
            raise RequestRefused(f"nothing has changed: {error.message}", hint=error.hint) from error
        except ConfigError as error:
            raise RequestRefused(
                f"the configuration has faults, and nothing has changed:\n{error}", hint="Correct the file"
            ) from error
        return ReloadResult(
            node=self._node.config.node.id,
            applied=reloaded.is_applied,
            changes=tuple(
                ConfigChange(key=one.key, change=one.kind, cost=one.rule.cost.value, reason=one.rule.reason)
                for one in reloaded.changes
            ),
            digest=reloaded.digest,
        )

    async def clients(
        self, *, order: ClientOrder, after: str, limit: int, client_id: str | None, topic_filter: str | None
    ) -> ClientsDocument:
        """Return a page of the clients; see `NodeView`."""
        names = None if client_id is None else (client_id,)
        query = ClientQuery(order=order, after=after, limit=limit, client_ids=names)
        return await self._clients.list(query, topic_filter=topic_filter)

    async def kick(self, request: KickRequest) -> KickResult:
        """Send a client away; see `NodeView`."""
        return await self._clients.kick(request)

    def agent_line(self) -> str:
        """Return the line for HAProxy's agent check."""
        server = self._node.server
        return agent_line(
            self.readiness(),
            connections=server.connection_count if server else 0,
            connections_max=server.config.connections_max if server else 0,
        )

    def _held(self, *, changed: bool) -> Held:
        verdict, server = self._judge(), self._node.server
        return Held(
            node=self._node.config.node.id,
            state=verdict.state,
            reasons=verdict.reasons,
            held_since=self._held_since(),
            changed=changed,
            connections=server.connection_count if server else 0,
        )

    def _held_since(self) -> datetime | None:
        since_ns = self._node.drain.held_since_ns
        return None if since_ns is None else utc_from_ns(since_ns)

    @property
    def _clients(self) -> ClientsView:
        node = self._node
        return ClientsView(node.server, node=node.config.node.id, clock=node.clock, slices=node.browser.slices)

    def may_serve_new_clients(self) -> bool:
        """Return True while the node is ready, or offers its values as stale."""
        verdict = self._judge()
        return verdict.state == "ready" or verdict.stale_s is not None

    def _statuses(self) -> tuple[LinkStatus, ...]:
        return tuple(link.status() for link in self._node.links)

    def _judge(self, links: tuple[LinkStatus, ...] | None = None) -> NodeReadiness:
        unserved = (self._node.opening,) if self._node.opening else ()
        drain, names = self._node.drain, None if self._node.pool is None else self._node.pool.place_names
        links = self._statuses() if links is None else links
        if names is not None and all(link.ready for link in links) and not names.is_over():
            unserved = (*unserved, "members of the pool have not heard this one at the primary yet")
        return judge(drain.phase, links, held_since_ns=drain.held_since_ns, unserved=unserved)

    def _server(self) -> ServerStatus | None:
        server = self._node.server
        if server is None:
            return None
        figures = server.figures()
        own = self._node.own
        figures["limits_reached_total"] |= own.refused_by | self._node.owners.refused_by
        short_by = own.refused.limits(self._node.clock.now_ns())
        return ServerStatus(
            **figures, retained_topics=len(self._node.store), own_complete=not short_by, own_short_by=short_by
        )

    def _config(self) -> ConfigStatus:
        reloads = self._node.reloads
        return ConfigStatus(
            read=utc_from_ns(reloads.read_ns),
            digest=reloads.digest or None,
            pending=reloads.pending,
            reloads_total=dict(reloads.totals),
        )

    def _access(self) -> AccessStatus | None:
        gate = self._node.gate
        return AccessStatus(**gate.figures()) if gate is not None else None

    def _log(self) -> LogStatus | None:
        log, config = self._node.log, self._node.config.log
        if log is None or config is None:
            return None
        stats = log.stats()
        return LogStatus.of(
            stats,
            alarm=stats.alarm or None,
            directory=str(config.directory),
            ship_to=None if config.ship is None else config.ship.to,
            last_sync=utc_from_ns(stats.last_sync_ns) if stats.last_sync_ns else None,
            unsynced_rows=stats.log_pos - stats.synced_log_pos,
            archive=None if stats.archive is None else ArchiveStatus.of(stats.archive),
        )

    def _retained(self) -> RetainedStatus | None:
        if self._node.storage is None:
            return None
        stats = self._node.storage.stats()
        return RetainedStatus.of(stats, file=str(stats.path), alarm=stats.alarm or None)

    def _limits(self) -> dict[str, float]:
        config = self._node.config
        limits: dict[str, float] = {}
        if config.server is not None and self._node.server is not None:
            for key in _SERVER_LIMITS:
                limits[f"server.{key}"] = getattr(config.server, key)
        if self._node.gate is not None:
            limits["access.decisions_max"] = config.access.decisions_max
            limits["access.password_queue_max"] = config.access.password_queue_max
            if config.access.http is not None:
                limits["access.http.queue_max"] = config.access.http.queue_max
        if config.retained.max_payload:
            limits["retained.max_payload"] = config.retained.max_payload
        if config.pool is not None:
            limits["pool.members_max"] = config.pool.members_max
        if config.log is not None:
            limits["log.queue_rows_max"] = config.log.queue_rows_max
        for index, link in enumerate(config.links):
            limits[f"link[{index}].topics_max"] = link.topics_max
            limits[f"link[{index}].bytes_max"] = link.bytes_max
        return limits


def _utc_from_s(time_s: int | None) -> datetime | None:
    return None if time_s is None else utc_from_ns(time_s * _NS_PER_S)


def _detail(status: LinkStatus) -> LinkDetail:
    last = status.newest_audit
    return LinkDetail.of(
        status,
        status.counters,
        **_state(status),
        selectors=tuple(
            SelectorDetail.of(selector, digest=f"{selector.digest:016x}", unfit_total=dict(selector.rejected))
            for selector in status.selectors
        ),
        hint=None if status.last_error_over else status.last_error_hint,
        last_error_at=None if status.last_error_ns is None else utc_from_ns(status.last_error_ns),
        stale_left_seconds=status.stale_left_s,
        audit=None if last is None else _audit_detail(last, ended_ns=status.audit_ended_ns),
        client_certificate_expires=_utc_from_s(status.client_certificate_expires_s),
        primary_certificate_expires=_utc_from_s(status.primary_certificate_expires_s),
        audit_completed=utc_from_ns(status.audit_completed_ns) if status.audit_completed_ns else None,
        sampling=_sampling_detail(status.sampling),
        skipped_newest=tuple(SkippedDetail.of(one, at=utc_from_ns(one.at_ns)) for one in status.skipped_newest),
        paths_above=tuple(" > ".join(path) for path in status.paths_above),
        hops=max(map(len, status.paths_above), default=0),
    )


def _readiness(status: LinkStatus) -> LinkReadiness:
    return LinkReadiness.of(status, **_state(status), selectors=tuple(map(SelectorReadiness.of, status.selectors)))


def _state(status: LinkStatus) -> dict[str, Any]:
    """Return what each document about a link says of its state."""
    return {"state": status.shown_state, "since": utc_from_ns(status.since_ns), "stale_seconds": status.stale_s}


def _sampling_detail(totals: SamplingTotals) -> SamplingDetail:
    newest = utc_from_ns(totals.last_ns) if totals.last_ns else None
    return SamplingDetail.of(totals, newest=newest, off=totals.off or None)


def _audit_detail(report: AuditReport, *, ended_ns: int) -> AuditDetail:
    return AuditDetail(
        ended=utc_from_ns(ended_ns),
        confirmed=report.confirmed,
        checked_topics=report.checked,
        changed_topics=report.changed,
        removed_topics=report.removed,
        kept_topics=report.kept,
        took_seconds=report.seconds,
        failure=report.failure or None,
        reason=report.reason,
    )
