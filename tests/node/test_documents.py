"""The node's documents: what makes it ready, and that every figure of its parts is in the right place."""

from __future__ import annotations

import copy
import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI
from structlog.testing import CapturingLogger
from structlog.typing import FilteringBoundLogger

from fanout.access.gate import Gate
from fanout.api.http_server import HttpServer
from fanout.api.models import LinkDetail, LinkReadiness, utc_from_ns
from fanout.chain.readiness_notice import ReadinessNotice
from fanout.config import (
    Address,
    HttpConfig,
    IdentityConfig,
    LinkConfig,
    LogConfig,
    NodeConfig,
    RetainedConfig,
    ServerConfig,
    ShipConfig,
)
from fanout.config.access import AccessConfig, HookConfig
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.counters import LinkCounters
from fanout.link.model.evidence import Evidence
from fanout.link.model.sampling_totals import SamplingTotals
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkStatus, SelectorStatus
from fanout.node.documents import NodeDocuments
from fanout.node.drain import NodePhase
from fanout.node.node import Node
from fanout.replog.settings import ArchiveStats, LogStats
from fanout.selection import Selector
from fanout.storage.store import StoreStats
from tests.server.node_in_memory import NodeInMemory

NOW_NS = 1_700_000_000_000_000_000
PLANT = SelectorStatus(filter="plant/#", topics=2, digest=0xABC, evidence=Evidence.MARKER, complete=True)
LIVE = LinkStatus(
    name="plant",
    primary="mqtt://10.0.0.1:1883",
    state=LinkState.LIVE,
    since_ns=NOW_NS - 5_000_000_000,
    epoch=1_699_999_990_000_000,
    counters=LinkCounters(
        epochs_total=3,
        connections_total=5,
        heartbeats_lost_total=8,
        received_total=10,
        outside_total=1,
        overtaken_total=6,
        truncated_total=2,
    ),
    topics=2,
    selectors=(PLANT,),
    evidence=Evidence.MARKER,
    last_error=None,
    last_error_hint=None,
    lag_ns=1_500_000,
    items_behind=None,
    round_trip_ns=1_000_000,
    heartbeat_age_s=0.5,
    heartbeat_refusal="",
    refused_total=0,
    short_by=(),
    payload_bytes=99,
    snapshot_seconds=0.25,
    snapshot_topics=2,
    not_ready_reason=None,
    paths_above=(),
    stale_reason=None,
    stale_left_s=None,
    stale_s=None,
    serves_stale=False,
    newest_audit=None,
    audit_ended_ns=0,
    audit_completed_ns=0,
    unconfirmed=0,
    user="",
    counted_outside=None,
    sampling=SamplingTotals(),
    missing_pending=0,
    client_certificate_expires_s=None,
    primary_certificate_expires_s=None,
    count_difference=None,
    last_error_ns=None,
    last_error_over=False,
)
SERVER_FIGURES: dict[str, Any] = {
    "connections": 1,
    "sessions": 2,
    "subscriptions": 3,
    "audiences": 4,
    "queued_messages": 5,
    "queued_bytes": 6,
    "in_flight_messages": 7,
    "in_flight_bytes": 70,
    "deliveries_total": 8,
    "sent_bytes_total": 9,
    "received_total": 10,
    "received_bytes_total": 11,
    "connections_opened_total": 12,
    "connections_refused_total": 13,
    "takeovers_total": 14,
    "unknown_releases_total": 22,
    "keep_alive_timeouts_total": 15,
    "protocol_errors_total": 16,
    "wills_total": 17,
    "sessions_overflowed_total": 21,
    "conflated_topics": 19,
    "conflated_total": 20,
    "dropped_total": {"refused": 18},
    "limits_reached_total": {"sessions_max": 19},
    "entry_faults_total": {"tls": 20},
    "ended_total": {"protocol_error": 21},
}
LOG_STATS = LogStats(
    log_pos=100,
    written_log_pos=90,
    synced_log_pos=80,
    rows_total=1,
    events_total=2,
    lost_rows_total=3,
    lost_events_total=4,
    queued_rows=5,
    queued_bytes=6,
    written_bytes_total=7,
    disk_free_bytes=15,
    sealed_segments_total=8,
    unsealed_segments=9,
    last_sync_ns=0,
    duplicates_total=10,
    stale_total=11,
    recovered_segments=12,
    recovered_rows=13,
    recovered_torn_bytes=14,
    alarm="",
    archive=ArchiveStats(
        kept_files=20,
        kept_bytes=21,
        removed_files_total=22,
        shipped_files_total=23,
        shipped_bytes_total=24,
        waiting_files=25,
        oldest_waiting_seconds=26.5,
        failures_total=27,
    ),
)
LINK_CONFIG = LinkConfig(
    name="plant",
    primaries=(Address("mqtt", "10.0.0.1", 1883),),
    selectors=(Selector("plant/#"),),
    topics_max=1000,
    bytes_max=2000,
)
CONFIG = NodeConfig(
    node=IdentityConfig(id="edge-1"),
    server=ServerConfig(connections_max=70),
    http=HttpConfig(),
    log=LogConfig(directory=Path("var/log"), queue_rows_max=50),
    links=(LINK_CONFIG,),
)


class PartsOfNode(SimpleNamespace):
    """The attributes of a node that its documents read, each of which a test may exchange."""

    def __init__(self, *links: LinkStatus) -> None:
        super().__init__(
            config=CONFIG,
            role="secondary",
            clock=SimpleNamespace(now_ns=lambda: NOW_NS, monotonic=lambda: 1000.0),
            links=tuple(
                SimpleNamespace(status=lambda one=one: one, config=dataclasses.replace(LINK_CONFIG, name=one.name))
                for one in links
            ),
            gate=None,
            pool=None,
            server=SimpleNamespace(figures=lambda: copy.deepcopy(SERVER_FIGURES), addresses=["mqtt://127.0.0.1:1884"]),
            store=[b"a", b"b"],
            opening="",
            own=SimpleNamespace(
                refused_by={"retained_topics_max": 3},
                refused=SimpleNamespace(limits=lambda now_ns: ("retained_topics_max",) if now_ns == NOW_NS else ()),
            ),
            owners=SimpleNamespace(refused_by={"access.quota.retained_topics_max": 2}),
            log=SimpleNamespace(stats=lambda: LOG_STATS),
            storage=None,
            http=None,
            drain=SimpleNamespace(phase=NodePhase.SERVING, held_since_ns=None),
            reloads=SimpleNamespace(read_ns=NOW_NS, digest="ab", pending=("http.listen",), totals={"applied": 2}),
        )

    @property
    def documents(self) -> NodeDocuments:
        """The documents of this node."""
        return NodeDocuments(cast(Node, self))


def test_a_member_is_not_ready_before_its_places_have_names() -> None:
    """Nobody could go on with a session that began there; reasons of links come first."""
    parts, looks = PartsOfNode(LIVE), iter((False, True))
    parts.pool = SimpleNamespace(place_names=SimpleNamespace(is_over=lambda: next(looks)))
    assert parts.documents.readiness().reasons == ("members of the pool have not heard this one at the primary yet",)
    assert parts.documents.readiness().ready
    parts = PartsOfNode(dataclasses.replace(LIVE, state=LinkState.SNAPSHOT))
    parts.pool = SimpleNamespace(place_names=SimpleNamespace(is_over=lambda: next(looks)))
    assert len(parts.documents.readiness().reasons) == 1


def test_ready_when_every_link_is_live_and_complete() -> None:
    """With proof for every link there is no reason against it."""
    readiness = PartsOfNode(LIVE).documents.readiness()
    assert (readiness.ready, readiness.reasons) == (True, ())
    assert (readiness.node, readiness.role) == ("edge-1", "secondary")


def test_standing_is_what_the_links_say() -> None:
    """Nodes below are told what this one holds, whether or not it is stopping, and every way from the top."""
    node = PartsOfNode(
        dataclasses.replace(LIVE, paths_above=(("hub", "a"), ("b",))), dataclasses.replace(LIVE, name="other")
    )
    node.drain.phase = NodePhase.STOPPING
    assert node.documents.readiness_notice() == ReadinessNotice("", (("hub", "a", "edge-1"), ("b", "edge-1")))
    assert [(one.paths_above, one.hops) for one in node.documents.status().links] == [(("hub > a", "b"), 2), ((), 0)]
    waiting = PartsOfNode(dataclasses.replace(LIVE, state=LinkState.SNAPSHOT)).documents.readiness_notice()
    assert waiting == ReadinessNotice("link plant is snapshot, waits for the retained set", (("edge-1",),))


def test_a_notice_about_one_link_asks_no_other() -> None:
    """Each link changes several times while all of them start: their number does not count twice."""
    asked = list[str]()

    class Link:
        def __init__(self, name: str) -> None:
            self.config = dataclasses.replace(LINK_CONFIG, name=name)
            self.state = LinkState.SNAPSHOT

        def status(self) -> LinkStatus:
            asked.append(self.config.name)
            return dataclasses.replace(LIVE, name=self.config.name, state=self.state)

    node = PartsOfNode()
    node.links = links = tuple(Link(f"plant-{number}") for number in range(3))
    documents = node.documents
    assert "plant-1" in documents.readiness_notice("plant-0").reason, "the first one has all"
    asked.clear()
    for link in links:
        link.state = LinkState.LIVE
        notice = documents.readiness_notice(link.config.name)
        assert link.config.name not in notice.reason
    assert notice == ReadinessNotice("", (("edge-1",),))
    assert asked == ["plant-0", "plant-1", "plant-2"]


def test_newest_audit_is_in_the_status() -> None:
    """Its figures, and the alarm while topics were left in place."""
    report = AuditReport(False, checked=10, changed=1, removed=0, kept=4, seconds=0.5)
    told = dataclasses.replace(LIVE, newest_audit=report, audit_ended_ns=NOW_NS, unconfirmed=4, user="edge")
    (link,) = PartsOfNode(told).documents.status().links
    assert link.audit is not None
    assert link.audit.model_dump(mode="json") == {
        "ended": "2023-11-14T22:13:20Z",
        "confirmed": False,
        "checked_topics": 10,
        "changed_topics": 1,
        "removed_topics": 0,
        "kept_topics": 4,
        "took_seconds": 0.5,
        "failure": None,
        "reason": "",
    }
    assert link.alarm is not None
    assert "no longer readable by user edge" in link.alarm
    assert "fanout audit plant --confirm 4" in link.alarm
    assert link.unconfirmed == 4


def test_all_reasons_are_given() -> None:
    """One for each link that is not ready, and the node's own."""
    node = PartsOfNode(
        dataclasses.replace(LIVE, name="a", state=LinkState.SNAPSHOT),
        dataclasses.replace(LIVE, name="b"),
        dataclasses.replace(LIVE, name="c", state=LinkState.TEARING_DOWN),
    )
    node.drain.phase = NodePhase.STOPPING
    readiness = node.documents.readiness()
    assert readiness.state == "stopping"
    assert readiness.reasons == (
        "the node is stopping",
        "link a is snapshot, waits for the retained set",
        "link c is tearing down, waits for the end of the tear-down",
    )
    assert [link.reason for link in readiness.links] == [
        "snapshot, waits for the retained set",
        None,
        "tearing down, waits for the end of the tear-down",
    ]
    assert [link.ready for link in readiness.links] == [False, True, False]


def test_readiness_names_epoch_topics_and_evidence() -> None:
    """What `/readyz` shows of a link and of each of its selectors."""
    (link,) = PartsOfNode(LIVE).documents.readiness().links
    assert link.model_dump(mode="json") == {
        "name": "plant",
        "ready": True,
        "state": "live",
        "reason": None,
        "since": "2023-11-14T22:13:15Z",
        "epoch": 1_699_999_990_000_000,
        "topics": 2,
        "stale_seconds": None,
        "evidence": "marker",
        "not_held_topics": 0,
        "not_held_reason": None,
        "selectors": [
            {
                "filter": "plant/#",
                "topics": 2,
                "complete": True,
                "evidence": "marker",
                "joining": False,
                "maybe_unreadable": False,
            }
        ],
    }


def test_status_has_every_part() -> None:
    """Links in detail, server, log and limits."""
    changes = {
        "last_error": "lost",
        "last_error_hint": "look",
        "count_difference": "counts 3, and 2 are here",
        "client_certificate_expires_s": 86_400,
        "sampling": SamplingTotals(1, 2, 3, 4, 5, 6, 7_000_000_000, "sample_topics is 0"),
    }
    status = PartsOfNode(dataclasses.replace(LIVE, **changes)).documents.status()  # type: ignore[arg-type]
    assert (status.node, status.role, status.ready, status.reasons) == ("edge-1", "secondary", True, ())
    assert status.listeners == ("mqtt://127.0.0.1:1884",)
    assert status.uptime_seconds == 0
    (link,) = status.links
    assert [one.digest for one in link.selectors] == ["0000000000000abc"]
    assert (link.primary, link.last_error, link.hint) == ("mqtt://10.0.0.1:1883", "lost", "look")
    assert link.sampling.model_dump(mode="json") == {
        "samples_total": 1,
        "topics_total": 2,
        "missing_total": 3,
        "changed_total": 4,
        "failed_total": 5,
        "audits_total": 6,
        "newest": "1970-01-01T00:00:07Z",
        "off": "sample_topics is 0",
    }
    assert link.count_difference == "counts 3, and 2 are here"
    assert link.client_certificate_expires == datetime(1970, 1, 2, tzinfo=UTC)
    assert link.primary_certificate_expires is None
    assert status.limits == {
        "server.connections_max": 70,
        "server.connections_per_address_max": 8_000,
        "server.connection_rate_max": 1_000,
        "server.connection_burst_max": 10_000,
        "server.connect_timeout_s": 5.0,
        "server.unauthenticated_bytes_max": 32 * 2**20,
        "server.unauthenticated_bytes_per_address_max": 8 * 2**20,
        "server.sessions_max": 100_000,
        "server.subscriptions_max": 10_000,
        "server.filter_bytes_max": 262_144,
        "server.filter_levels_max": 128,
        "server.packet_bytes_max": 2**20,
        "server.user_properties_max": 1_000,
        "server.receive_maximum": 1_000,
        "server.inflight_max": 16_384,
        "server.queue_messages_max": 1_000_000,
        "server.queue_bytes_max": 64 * 2**20,
        "server.retained_topics_max": 1_000_000,
        "server.retained_bytes_max": 2**30,
        "log.queue_rows_max": 50,
        "link[0].topics_max": 1000,
        "link[0].bytes_max": 2000,
    }


OTHERWISE = {
    "alarm",
    "audit",
    "audit_completed",
    "client_certificate_expires",
    "hint",
    "hops",
    "last_error_at",
    "paths_above",
    "primary_certificate_expires",
    "sampling",
    "stale_left_seconds",
}
"""Fields of a link's document that are made of figures with another name; tests of their own look at them."""


def test_every_figure_of_a_link_is_in_its_document() -> None:
    """A field that nobody fills would be exported as its default for ever."""
    names = LinkDetail.model_fields.keys() - LinkReadiness.model_fields.keys() - OTHERWISE
    counted = {name for name in names if hasattr(LinkCounters, name)}
    assert names - counted <= {field.name for field in dataclasses.fields(LinkStatus)}
    figures = [name for name in sorted(names - counted) if type(getattr(LIVE, name)) is int]
    told = dataclasses.replace(
        LIVE,
        counters=LinkCounters(*range(200, 200 + len(dataclasses.fields(LinkCounters)))),
        **{name: 100 + number for number, name in enumerate(figures)},  # type: ignore[arg-type]
    )
    (link,) = PartsOfNode(told).documents.status().links
    assert {name: getattr(link, name) for name in names} == {
        name: getattr(told.counters if name in counted else told, name) for name in names
    }


def test_figures_of_the_server_are_all_there() -> None:
    """Every figure of a server, and the number of retained topics that clients can read."""
    assert SERVER_FIGURES.keys() == NodeInMemory().server.figures().keys()
    server = PartsOfNode(LIVE).documents.status().server
    assert server is not None
    assert server.model_dump() == SERVER_FIGURES | {
        "retained_topics": 2,
        "limits_reached_total": {"sessions_max": 19, "retained_topics_max": 3, "access.quota.retained_topics_max": 2},
        "own_complete": False,
        "own_short_by": ("retained_topics_max",),
    }


def test_figures_of_the_log() -> None:
    """No alarm and no sync are null; what is not on the disk is counted."""
    log = PartsOfNode(LIVE).documents.status().log
    assert log is not None
    figures = log.model_dump()
    assert (figures["directory"], figures["alarm"], figures["last_sync"]) == ("var/log", None, None)
    assert figures["unsynced_rows"] == 20
    known = dataclasses.asdict(LOG_STATS)
    assert figures["ship_to"] is None
    for name in set(figures) - {"directory", "alarm", "last_sync", "unsynced_rows", "ship_to"}:
        assert figures[name] == known[name], name


def test_the_place_that_a_log_is_shipped_to_is_shown() -> None:
    """As the configuration has it, which holds no credentials."""
    node = PartsOfNode(LIVE)
    log = LogConfig(directory=Path("var/log"), ship=ShipConfig(to="s3://bucket/logs"))
    node.config = dataclasses.replace(CONFIG, log=log)
    shown = node.documents.status().log
    assert shown is not None
    assert shown.ship_to == "s3://bucket/logs"


def test_alarm_of_the_log_is_told() -> None:
    """What is wrong with the log, and when it was last on the disk."""
    node = PartsOfNode(LIVE)
    stats = dataclasses.replace(LOG_STATS, alarm="disk full", last_sync_ns=NOW_NS)
    node.log = SimpleNamespace(stats=lambda: stats)
    log = node.documents.status().log
    assert log is not None
    assert log.model_dump(mode="json")["last_sync"] == "2023-11-14T22:13:20Z"
    assert log.alarm == "disk full"


def test_retained_values_on_disk_are_shown() -> None:
    """Where the file is, what waits for it, and the limit on payloads; no alarm is null."""
    node = PartsOfNode()
    assert node.documents.status().retained is None
    stats = StoreStats(
        Path("lib/r"), file_bytes=5, committed_total=4, transactions_total=3, waiting_rows=2, waiting_bytes=6, alarm=""
    )
    node.storage = SimpleNamespace(stats=lambda: stats)
    node.config = dataclasses.replace(CONFIG, retained=RetainedConfig(storage="disc", max_payload=9))
    status = node.documents.status()
    assert status.retained is not None
    assert status.retained.model_dump() == {
        "file": "lib/r",
        "alarm": None,
        "file_bytes": 5,
        "committed_total": 4,
        "transactions_total": 3,
        "waiting_rows": 2,
        "waiting_bytes": 6,
    }
    assert status.limits["retained.max_payload"] == 9
    node.storage = SimpleNamespace(stats=lambda: dataclasses.replace(stats, alarm="full"))
    status = node.documents.status()
    assert status.retained is not None
    assert status.retained.alarm == "full"


def test_parts_that_are_off_are_null() -> None:
    """A tap serves nobody, and a node may be without a log; their limits are then left out."""
    node = PartsOfNode(LIVE)
    node.server = node.log = None
    node.config = dataclasses.replace(CONFIG, log=None, http=None)
    status = node.documents.status()
    assert (status.server, status.log, status.listeners) == (None, None, ())
    assert status.limits == {"link[0].topics_max": 1000, "link[0].bytes_max": 2000}


def test_the_http_interface_tells_of_itself() -> None:
    """Its connections are shown as it counts them."""
    node = PartsOfNode(LIVE)
    http = HttpServer(FastAPI, host="127.0.0.1", port=0)
    node.http = http
    assert node.documents.status().http == http.status()


def test_uptime_counts_from_the_start() -> None:
    """By the clock that never goes back; the documents are made when the node is."""
    node = PartsOfNode()
    documents = node.documents
    node.clock.monotonic = lambda: 1002.5
    node.clock.now_ns = lambda: NOW_NS - 1
    status = documents.status()
    assert (status.uptime_seconds, status.started.isoformat()) == (2.5, "2023-11-14T22:13:20+00:00")


def test_lag_is_what_the_link_measured() -> None:
    """The lag in seconds, on the basis of a heartbeat."""
    (link,) = PartsOfNode(LIVE).documents.lag().links
    assert (link.name, link.state, link.basis, link.lag_seconds) == ("plant", "live", "heartbeat", 0.0015)
    assert (link.heartbeat_age_seconds, link.heartbeat_interval_seconds) == (0.5, 5.0)
    assert (link.received_total, link.topics) == (10, 2)


def test_lag_that_is_not_known_is_null() -> None:
    """Never zero for what nobody measured."""
    silent = dataclasses.replace(LIVE, lag_ns=None, round_trip_ns=None, heartbeat_age_s=None)
    (link,) = PartsOfNode(silent).documents.lag().links
    assert (link.basis, link.lag_seconds, link.heartbeat_age_seconds) == ("unknown", None, None)
    refused = dataclasses.replace(silent, heartbeat_age_s=9.0, heartbeat_refusal="the primary refused it")
    (link,) = PartsOfNode(refused).documents.lag().links
    assert (link.basis, link.detail) == ("unknown", "the primary refused it")


def test_access_is_shown_with_its_limits() -> None:
    """The gate's figures, and the bounds of what waits and what is remembered."""
    node = PartsOfNode()
    gate = Gate(
        AccessConfig(), passwords=None, monotonic=lambda: 0.0, logger=cast(FilteringBoundLogger, CapturingLogger())
    )
    node.gate = gate
    status = node.documents.status()
    assert status.access is not None
    assert status.access.admitted_total == dict.fromkeys(("anonymous", "password", "certificate", "hook"), 0)
    assert (status.access.rules, status.access.users) == (0, 0)
    bounds = {key: bound for key, bound in status.limits.items() if key.startswith("access.")}
    assert bounds == {"access.decisions_max": 65_536, "access.password_queue_max": 1000}
    http = HookConfig(url="http://127.0.0.1:1/", queue_max=7)
    node.config = dataclasses.replace(CONFIG, access=AccessConfig(http=http))
    assert node.documents.status().limits["access.http.queue_max"] == 7


def test_agent_check_adds_nothing_up() -> None:
    """It comes every second or two, and figures of a hundred thousand sessions would stop the event loop each time."""
    node = PartsOfNode(LIVE)
    node.server = SimpleNamespace(connection_count=30, config=SimpleNamespace(connections_max=40))
    assert node.documents.agent_line() == "ready up 25%\n"


def test_error_that_is_over_has_no_hint() -> None:
    """It is shown with its time."""
    past = dataclasses.replace(
        LIVE, last_error="connection refused", last_error_hint="Start it", last_error_ns=NOW_NS, last_error_over=True
    )
    (link,) = PartsOfNode(past).documents.status().links
    assert (link.last_error, link.hint, link.last_error_over) == ("connection refused", None, True)
    assert link.last_error_at == utc_from_ns(NOW_NS)


def test_time_of_the_newest_audit_that_did_not_fail() -> None:
    """An audit that failed proves nothing, and leaves the time of the one before."""
    told = dataclasses.replace(LIVE, audit_ended_ns=NOW_NS + 1_000_000_000, audit_completed_ns=NOW_NS)
    (link,) = PartsOfNode(told).documents.status().links
    assert link.audit_completed == utc_from_ns(NOW_NS)
    (link,) = PartsOfNode(LIVE).documents.status().links
    assert link.audit_completed is None
