"""A node that answers what a test sets, and a way to serve it over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastapi import FastAPI

from fanout.api.app import create_app
from fanout.api.browse.models import PoolComparisonDocument
from fanout.api.http_server import HttpServer
from fanout.api.lag import lag_detail
from fanout.api.models import (
    AccessStatus,
    ArchiveStatus,
    AuditDetail,
    BranchCount,
    ClientDetail,
    ClientsDocument,
    ConfigChange,
    ConfigStatus,
    Draining,
    Held,
    HttpStatus,
    KickRequest,
    KickResult,
    LagDocument,
    LinkDetail,
    LinkLag,
    LinkReadiness,
    LogStatus,
    NodeState,
    NodeStatus,
    PoolDocument,
    PoolMember,
    PoolStatus,
    Readiness,
    ReloadRequest,
    ReloadResult,
    RetainedStatus,
    Role,
    SamplingDetail,
    SelectorDetail,
    SelectorReadiness,
    ServerStatus,
    SkippedDetail,
    UnconfirmedDocument,
)
from fanout.api.node_view import ClientOrder
from fanout.api.operator_access import LOOPBACK, OperatorAccess
from fanout.api.topic_facts import (
    PrimaryAnswer,
    TopicClient,
    TopicExplanation,
    TopicFacts,
    TopicLink,
    TopicLog,
    TopicValue,
)
from fanout.api.topic_verdict import explain
from fanout.errors import AuditRefused, RequestRefused
from fanout.node.browse.browser import Browser
from fanout.runtime.system_clock import SystemClock

__all__ = ["SINCE", "StandInNode", "live_link", "pool_member", "ready_node", "serving", "snapshot_link", "syncing_node"]

SINCE = datetime(2025, 11, 21, 8, 0, 0, 250_000, tzinfo=UTC)


def live_link(name: str = "plant", *, topics: int = 200_000, last_error: str | None = None) -> LinkDetail:
    """Return a link that holds everything."""
    return LinkDetail(
        name=name,
        ready=True,
        state="live",
        since=SINCE,
        epoch=1_763_712_000_250_000,
        topics=topics,
        stale_seconds=0.0,
        evidence="marker",
        selectors=(
            SelectorDetail(
                filter=f"{name}/#",
                topics=topics,
                complete=True,
                evidence="marker",
                digest="00ff00ff00ff00ff",
                unfit_total={"content": 21},
            ),
        ),
        primary="mqtt://127.0.0.1:1883",
        last_error=last_error,
        last_error_at=None if last_error is None else SINCE,
        audit_completed=SINCE + timedelta(minutes=5),
        stalls_total=4,
        hint=None if last_error is None else "Start the primary",
        payload_bytes=64 * topics,
        refused_total=0,
        received_total=topics + 1234,
        outside_total=7,
        skipped_total={"packet_too_large": 6},
        skipped_newest=(
            SkippedDetail(at=SINCE, topic="plant/film", reason="packet_too_large", detail="17,000,000 bytes"),
        ),
        tolerated_total={"flags": 8},
        not_held_topics=1,
        not_held_reason="1 topic is not held: larger than packet_bytes_max",
        overtaken_total=9,
        unconfirmed=0,
        counted_outside=53,
        heartbeats_lost_total=5,
        sampling=SamplingDetail(samples_total=30, topics_total=480, missing_total=3, changed_total=4, newest=SINCE),
        epochs_total=2,
        reconnects_total=3,
        truncated_total=1,
        snapshot_seconds=1.875,
        snapshot_topics=topics,
        client_certificate_expires=SINCE + timedelta(days=40),
        primary_certificate_expires=SINCE + timedelta(days=90),
        paths_above=("hub > a",),
        hops=2,
    )


def snapshot_link(name: str = "plant", *, topics: int = 12_040) -> LinkDetail:
    """Return a link whose snapshot is arriving."""
    return live_link(name, topics=topics).model_copy(
        update={
            "ready": False,
            "state": "snapshot",
            "reason": "snapshot, waits for the retained set",
            "evidence": None,
            "snapshot_seconds": None,
            "selectors": (
                SelectorDetail(
                    filter=f"{name}/#",
                    topics=topics,
                    complete=False,
                    evidence=None,
                    digest="0000000000000001",
                ),
            ),
        }
    )


def pool_member(node: str | None = "edge-2", *, is_self: bool = False, **changes: object) -> PoolMember:
    """Return a member that is ready."""
    member = PoolMember(
        node=node,
        address=None if is_self else "127.0.0.1:9202",
        is_self=is_self,
        reachable=True,
        failure=None,
        state="ready",
        ready=True,
        topics=200_000,
        digest_equal=True,
        lag=0.0041,
        moved_in=2,
        moved_out=1,
        sessions=14,
        version="0.1.0",
        config_digest="00000000000000cc",
    )
    return member.model_copy(update=changes)


class StandInNode:
    """Implements `fanout.api.node_view.NodeView` with plain attributes."""

    def __init__(self, *links: LinkDetail, role: Role = "secondary") -> None:
        self.node = "edge-1"
        self.browser = Browser(
            stores=lambda: (), match=lambda _: iter(()), observe=None, stale_s=lambda: None, clock=SystemClock()
        )
        self.role: Role = role
        self.links = links
        self.reasons: tuple[str, ...] = ()
        self.not_held_reason: str | None = None
        self.unconfirmed_topics = 5
        self.digest = "00000000000000aa"
        self.answer: PrimaryAnswer | None = None
        self.primary = "mqtt://broker:1883"
        self.sessions_of: set[str] = set()
        self.topic_log: TopicLog | None = None
        self.may_explain = asyncio.Event()
        self.may_explain.set()
        self.explaining = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self.heartbeat: tuple[float | None, float | None, float] = (0.0041, 1.5, 5.0)
        self.server: ServerStatus | None = ServerStatus(
            connections=12,
            sessions=14,
            subscriptions=40,
            audiences=3,
            retained_topics=200_000,
            deliveries_total=12_345_678,
            sent_bytes_total=987_654_321,
            received_total=55,
            received_bytes_total=4_096,
            in_flight_messages=9,
            in_flight_bytes=900,
            connections_opened_total=31,
            connections_refused_total=2,
            takeovers_total=1,
            unknown_releases_total=4,
            keep_alive_timeouts_total=3,
            protocol_errors_total=0,
            wills_total=1,
            sessions_overflowed_total=5,
            conflated_topics=8,
            conflated_total=21,
            dropped_total={"queue_full": 4, "expired": 1},
            limits_reached_total={"connections_max": 5, "connect_timeout_s": 6},
            entry_faults_total={"tls": 7},
            ended_total={"malformed_packet": 8},
            queued_messages=6,
            queued_bytes=700,
        )
        self.access: AccessStatus | None = AccessStatus(
            admitted_total={"anonymous": 12, "password": 3},
            refused_total={"not_authorized": 2},
            password_checks_total=4,
            password_remembered_total=5,
            password_waiting=1,
            hook_asked_total=6,
            hook_remembered_total=7,
            hook_waiting=0,
            hook_failures_total={"timeout": 8},
            rules=9,
            users=10,
            decisions=11,
        )
        self.log: LogStatus | None = LogStatus(
            directory="var/replication-log",
            rows_total=201_234,
            events_total=23,
            lost_rows_total=0,
            lost_events_total=0,
            queued_rows=17,
            queued_bytes=1_088,
            unsynced_rows=19,
            written_bytes_total=23_456_789,
            disk_free_bytes=9_876_543_210,
            sealed_segments_total=4,
            unsealed_segments=1,
            duplicates_total=0,
            stale_total=0,
            recovered_segments=0,
            recovered_rows=0,
            recovered_torn_bytes=0,
            last_sync=SINCE,
            alarm=None,
            ship_to="s3://bucket/logs",
            archive=ArchiveStatus(
                kept_files=8,
                kept_bytes=1_234_567,
                removed_files_total=2,
                shipped_files_total=6,
                shipped_bytes_total=1_000_000,
                waiting_files=2,
                oldest_waiting_seconds=31.5,
                failures_total=1,
            ),
        )
        self.retained: RetainedStatus | None = RetainedStatus(
            file="var/lib/retained-edge-1.sqlite",
            alarm=None,
            file_bytes=200_000,
            committed_total=500,
            transactions_total=20,
            waiting_rows=7,
            waiting_bytes=70,
        )
        self.members: tuple[PoolMember, ...] = (pool_member("edge-1", is_self=True), pool_member())
        self.pool_reasons: tuple[str, ...] = ()
        self.stay_reasons: tuple[str, ...] | None = ()
        self.comparison = PoolComparisonDocument(
            node="edge-1",
            at=SINCE,
            members={"edge-1": None, "edge-2": "http://127.0.0.1:8081"},
            left_out=(),
            topics=200_000,
            changing=0,
            whole=True,
            differing=(),
        )
        self.compared_with: list[str] = []
        self.error: Exception | None = None
        self.draining = False
        self.held_since: datetime | None = None
        self.reasons_after: tuple[str, ...] = ()
        self.sent_away = False
        self.kicked: list[tuple[str, bool]] = []
        self.asked_clients: list[tuple[ClientOrder, str, int, str | None]] = []
        self.client_details: tuple[ClientDetail, ...] = (
            ClientDetail(
                client_id="app-1",
                address="192.0.2.7:50123",
                connected_since=SINCE,
                user="dashboard",
                version="5",
                queued_messages=4,
                queued_bytes=2_048,
                conflated_topics=1_234,
                in_flight_messages=2,
                unsent_bytes=1_024,
                slow_since=SINCE + timedelta(seconds=60),
                bytes_per_second=5_120.4,
                subscriptions=2,
                filters=("plant/#", "office/+/state"),
            ),
            ClientDetail(
                client_id="app-2",
                address=None,
                connected_since=None,
                user=None,
                version="3.1.1",
                queued_messages=0,
                queued_bytes=0,
                conflated_topics=0,
                in_flight_messages=0,
                unsent_bytes=0,
                slow_since=None,
                bytes_per_second=None,
                subscriptions=0,
                filters=(),
            ),
        )
        self.stale_seconds: float | None = None
        self.changes: tuple[ConfigChange, ...] = ()
        self.reload_asked: ReloadRequest | None = None

    @property
    def state(self) -> NodeState:
        if self.draining:
            return "draining"
        return "not_ready" if self.reasons else "ready"

    def pool(self) -> PoolDocument:
        if not self.members:
            raise RequestRefused("edge-1 is in no pool", hint="Add [pool] to its configuration")
        return PoolDocument(
            node=self.node,
            ready=not self.pool_reasons,
            reasons=self.pool_reasons,
            members=self.members,
            stay_reasons=self.stay_reasons,
        )

    async def compare_pool(self, *, authorization: str) -> PoolComparisonDocument:
        self.pool()
        self.compared_with.append(authorization)
        return self.comparison

    def drain(self) -> Draining:
        self.draining, self.reasons = True, ("the node is draining",)
        return Draining(node=self.node, state="draining", left_seconds=2.5)

    async def reload(self, request: ReloadRequest) -> ReloadResult:
        self.reload_asked = request
        if any(change.cost == "restart" for change in self.changes) and not (request.partial or request.dry_run):
            raise RequestRefused("a restart is needed for http.listen: nothing has changed", hint="Start it again")
        return ReloadResult(node=self.node, applied=not request.dry_run, changes=self.changes, digest="ab" * 32)

    def hold(self, *, disconnect: bool) -> Held:
        if self.draining:
            raise RequestRefused("the node is draining: holding it would change nothing", hint="Start it again")
        changed, self.held_since, self.sent_away = self.held_since is None, SINCE, disconnect
        self.reasons = ("held by operator since 2025-11-21 08:00:00 UTC",)
        return self._held(changed=changed)

    def undrain(self) -> Held:
        changed, self.held_since, self.reasons = self.held_since is not None, None, self.reasons_after
        return self._held(changed=changed)

    def _held(self, *, changed: bool) -> Held:
        return Held(
            node=self.node,
            state=self.state,
            reasons=self.reasons,
            held_since=self.held_since,
            changed=changed,
            connections=12,
        )

    async def clients(
        self, *, order: ClientOrder, after: str, limit: int, client_id: str | None, topic_filter: str | None
    ) -> ClientsDocument:
        self.asked_clients.append((order, after, limit, client_id))
        found = [one for one in self.client_details if client_id in (None, one.client_id)]
        if topic_filter is not None:
            matching = {"matching": (topic_filter,)}
            found = [one.model_copy(update=matching) for one in found if topic_filter in one.filters]
        if client_id is not None and not found:
            raise RequestRefused(f"no client {client_id!r} has a session at {self.node}", hint="See fanout clients")
        return ClientsDocument(
            node=self.node,
            at=SINCE + timedelta(seconds=90),
            sessions=14,
            clients=tuple(found[:limit]),
            next=found[limit - 1].client_id if len(found) > limit else None,
        )

    async def kick(self, request: KickRequest) -> KickResult:
        if all(one.client_id != request.client_id for one in self.client_details):
            raise RequestRefused(f"no client {request.client_id!r} has a session at {self.node}", hint="See clients")
        self.kicked.append((request.client_id, request.clean))
        return KickResult(
            node=self.node,
            client_id=request.client_id,
            was_connected=True,
            session="ended" if request.clean else "kept",
        )

    def readiness(self) -> Readiness:
        if self.error is not None:
            raise self.error
        return Readiness(
            ready=not self.reasons,
            state=self.state,
            reasons=self.reasons,
            stale_seconds=self.stale_seconds,
            node=self.node,
            role=self.role,
            held_since=self.held_since,
            links=tuple(
                LinkReadiness(
                    name=link.name,
                    ready=link.ready,
                    state=link.state,
                    reason=link.reason,
                    since=link.since,
                    epoch=link.epoch,
                    topics=link.topics,
                    stale_seconds=link.stale_seconds,
                    evidence=link.evidence,
                    not_held_reason=self.not_held_reason,
                    selectors=tuple(
                        SelectorReadiness(
                            filter=one.filter,
                            topics=one.topics,
                            complete=one.complete,
                            evidence=one.evidence,
                            maybe_unreadable=one.maybe_unreadable,
                        )
                        for one in link.selectors
                    ),
                )
                for link in self.links
            ),
        )

    async def count(self) -> None:
        """Do nothing."""

    def status(self) -> NodeStatus:
        return NodeStatus(
            node=self.node,
            version="0.1.0",
            role=self.role,
            started=SINCE,
            uptime_seconds=11_520.5,
            ready=not self.reasons,
            state=self.state,
            reasons=self.reasons,
            listeners=("mqtt://127.0.0.1:1884",),
            links=self.links,
            config=ConfigStatus(
                read=SINCE, digest="ab" * 32, pending=("http.listen",), reloads_total={"applied": 3, "failed": 1}
            ),
            pid=4711,
            server=self.server,
            access=self.access,
            log=self.log,
            retained=self.retained,
            http=HttpStatus(connections=2, closed_total={"room": 3}),
            pool=None
            if not self.members
            else PoolStatus(
                members=3,
                members_reachable=2,
                members_ready=1,
                asked_total=400,
                ask_failures_total={"timeout": 7},
                answered_total=390,
                refused_total={"token": 5},
                connections=2,
                closed_total={"malformed": 1},
                members_equal=2,
                cuts_compared_total=300,
                cuts_differed_total=11,
                repairs_total=3,
                sessions_moved_in_total=7,
                fenced=True,
                fences_total=2,
                session_calls_total={"take": 3},
            ),
            limits={"server.connections_max": 10_000},
        )

    def lag(self) -> LagDocument:
        seconds, age, interval = self.heartbeat
        return LagDocument(
            node=self.node,
            role=self.role,
            at=SINCE,
            links=tuple(self._lag_of(link, seconds, age, interval) for link in self.links),
        )

    async def unconfirmed(self, link: str, *, after: str) -> UnconfirmedDocument:
        topics = tuple(f"plant/cell-{number}/temp" for number in range(5))
        shown = [topic for topic in topics if topic > after][:2]
        return UnconfirmedDocument(
            link=link,
            unconfirmed=self.unconfirmed_topics,
            unnamed=0,
            causes="deleted there, no longer readable by user edge, or expired there",
            branches=() if after or not self.unconfirmed_topics else (BranchCount(branch="plant/\x1b[2J", topics=5),),
            topics=tuple(shown) if self.unconfirmed_topics else (),
            next=shown[-1] if self.unconfirmed_topics and shown[-1] != topics[-1] else None,
        )

    async def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
        found = next(one for one in self.links if one.name == link)
        if found.state != "live":
            raise AuditRefused(f"the link is {found.state}", hint="Try again later")
        if confirmed not in {None, 70_000}:
            raise AuditRefused(f"70000 topics are unconfirmed now, not {confirmed}", hint="See: fanout audit --list")
        return AuditDetail(
            ended=SINCE,
            confirmed=confirmed is not None,
            checked_topics=found.topics,
            changed_topics=3,
            removed_topics=70_000 if confirmed else 0,
            kept_topics=0 if confirmed else 70_000,
            took_seconds=1.5,
            failure=None,
        )

    def release(self) -> None:
        """Let questions that wait for `may_explain` go on, from another thread."""
        self._loop.call_soon_threadsafe(self.may_explain.set)

    async def explain(self, topic: str, *, at_primary: bool, client_id: str | None) -> TopicExplanation:
        self.explaining.set()
        self._loop = asyncio.get_running_loop()
        await self.may_explain.wait()
        value = TopicValue(digest=self.digest, payload_bytes=12, received=SINCE)
        client = None if client_id is None else TopicClient(client_id=client_id, session=False)
        if client_id is not None and client_id in self.sessions_of:
            client = TopicClient(
                client_id=client_id, session=True, connected=True, filters=("plant/#",), subscriptions=1
            )
        facts = TopicFacts(
            node=self.node,
            topic=topic,
            at=SINCE + timedelta(seconds=90),
            link=TopicLink(
                name="plant",
                selector="plant/#",
                topic=topic,
                primary=self.primary,
                username="edge",
                state="live",
                since=SINCE,
                reason=None,
            ),
            value=value,
            primary=self.answer or PrimaryAnswer(outcome="value", value=value),
            client=client,
            log=self.topic_log,
        )
        return explain(facts)

    @staticmethod
    def _lag_of(link: LinkDetail, seconds: float | None, age: float | None, interval: float) -> LinkLag:
        return LinkLag.of(
            link,
            lag_seconds=seconds,
            basis="unknown" if seconds is None else "heartbeat",
            detail=lag_detail(lag_s=seconds, age_s=age, interval_s=interval),
            items_behind=None if seconds is None else 0,
            heartbeat_age_seconds=age,
            heartbeat_interval_seconds=interval or None,
        )


def ready_node() -> StandInNode:
    """Return a secondary with one link that holds everything."""
    return StandInNode(live_link())


def syncing_node() -> StandInNode:
    """Return a secondary with two links, one of them in its snapshot."""
    node = StandInNode(live_link("office", topics=321), snapshot_link())
    node.reasons = ("link plant: snapshot, 12,040 topics so far",)
    return node


_MAKING = threading.Lock()
"""FastAPI hides warnings while it makes an app, for the whole process: beside another thread some would come out."""


def _make_app(node: StandInNode, access: OperatorAccess, report: Path | None) -> FastAPI:
    with _MAKING:
        return create_app(node, access=access, report=report)


@contextlib.contextmanager
def serving(node: StandInNode, *, access: OperatorAccess = LOOPBACK, report: Path | None = None) -> Iterator[str]:
    """Serve `node` from a thread of its own, for commands that block; yield the URL."""
    started = threading.Event()
    urls: list[str] = []
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        server = HttpServer(lambda: _make_app(node, access, report), host="127.0.0.1", port=0)
        stop = asyncio.Event()
        await server.start()
        urls.append(server.url)
        stops.append((asyncio.get_running_loop(), stop))
        started.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="stand-in-node")
    thread.start()
    assert started.wait(10)
    loop, stop = stops[0]
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
