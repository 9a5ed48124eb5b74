"""Prometheus metrics of a node, read at each scrape from its documents.

Owns names, labels and meaning; `docs/reference/metrics.md` has the advice for each. Nothing is counted here. Labels are
bounded sets: links and selectors of the configuration, states, reasons; never a topic or a client. A metric without a
known value is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fanout.api.models import (
    LINK_STATES,
    AccessStatus,
    LinkDetail,
    LinkLag,
    LogStatus,
    NodeStatus,
    RetainedStatus,
    ServerStatus,
    WorkerStatus,
)
from fanout.api.node_view import NodeView

__all__ = ["METRICS", "MetricSpec", "NodeCollector", "node_registry"]

Sample: TypeAlias = tuple[str, tuple[str, ...], float]
"""(name of the metric, label values in the order of its labels, value)."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Name, kind and meaning of one metric."""

    name: str
    """Name in the exposition; a counter's ends in `_total`."""
    kind: Literal["counter", "gauge"]
    """`counter` only grows while the process lives; `gauge` moves both ways."""
    meaning: str
    """One sentence, the metric's HELP line."""
    labels: tuple[str, ...] = ()
    """Names of its labels."""

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """Return an empty family to add samples to."""
        if self.kind == "counter":
            return CounterMetricFamily(self.name.removesuffix("_total"), self.meaning, labels=self.labels)
        return GaugeMetricFamily(self.name, self.meaning, labels=self.labels)


METRICS = (
    MetricSpec("fanout_node_info", "gauge", "Always 1; its labels say what runs.", ("node", "role", "version")),
    MetricSpec("fanout_node_start_time_seconds", "gauge", "Unix time at which the node started."),
    MetricSpec("fanout_node_ready", "gauge", "1 when the node is ready, as in /readyz, else 0."),
    MetricSpec("fanout_limit", "gauge", "A bound in force, by its key in the configuration.", ("key",)),
    MetricSpec(
        "fanout_link_ready",
        "gauge",
        "1 when the link's replica is proved complete and its session is up.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_state",
        "gauge",
        "1 for the state that the link is in, 0 for the others.",
        ("link", "state"),
    ),
    MetricSpec(
        "fanout_link_state_start_time_seconds",
        "gauge",
        "Unix time at which the link entered its state.",
        ("link",),
    ),
    MetricSpec("fanout_link_topics", "gauge", "Retained topics held by the link's replica.", ("link",)),
    MetricSpec("fanout_link_payload_bytes", "gauge", "Bytes of payloads and properties held for the link.", ("link",)),
    MetricSpec("fanout_link_received_total", "counter", "PUBLISH packets received from the primary.", ("link",)),
    MetricSpec("fanout_link_outside_total", "counter", "Messages dropped because no selector covers them.", ("link",)),
    MetricSpec(
        "fanout_link_overtaken_total", "counter", "Messages left out because a newer one came first.", ("link",)
    ),
    MetricSpec(
        "fanout_link_heartbeats_lost_total", "counter", "Heartbeats that the primary dropped while live.", ("link",)
    ),
    MetricSpec("fanout_link_refused_total", "counter", "Retained values not stored because of a limit.", ("link",)),
    MetricSpec(
        "fanout_link_truncated_total", "counter", "Snapshots and verifications whose set did not come whole.", ("link",)
    ),
    MetricSpec("fanout_link_epochs_total", "counter", "MQTT sessions begun.", ("link",)),
    MetricSpec("fanout_link_reconnects_total", "counter", "Network Connections begun after the first.", ("link",)),
    MetricSpec(
        "fanout_link_snapshot_seconds",
        "gauge",
        "What the newest complete snapshot took; absent before.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_stale_seconds",
        "gauge",
        "Time since the values were last known to be current, 0 while they are; absent without any.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_certificate_expiry_time_seconds",
        "gauge",
        "Unix time at which a certificate of the newest connection expires; absent without one.",
        ("link", "certificate"),
    ),
    MetricSpec("fanout_link_snapshot_topics", "gauge", "Topics that the newest snapshot brought so far.", ("link",)),
    MetricSpec("fanout_link_stalls_total", "counter", "Stalls of the live link.", ("link",)),
    MetricSpec(
        "fanout_link_audit_end_time_seconds",
        "gauge",
        "Unix time at which the newest audit that did not fail ended; absent before one.",
        ("link",),
    ),
    MetricSpec("fanout_link_audits_total", "counter", "Audits that have ended.", ("link",)),
    MetricSpec("fanout_link_audits_failed_total", "counter", "Audits that were broken off.", ("link",)),
    MetricSpec("fanout_link_audit_changed_total", "counter", "Topics that audits repaired.", ("link",)),
    MetricSpec("fanout_link_audit_removed_total", "counter", "Topics that audits removed.", ("link",)),
    MetricSpec("fanout_link_samples_total", "counter", "Samples of topics that the primary answered.", ("link",)),
    MetricSpec(
        "fanout_link_sample_differing_total", "counter", "Topics of samples that are missing or other there.", ("link",)
    ),
    MetricSpec("fanout_link_sampling_off", "gauge", "1 while no samples are taken, else 0.", ("link",)),
    MetricSpec(
        "fanout_link_missing_announced_total",
        "counter",
        "Filters of clients without a topic, announced at the primary.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_missing_suppressed_total",
        "counter",
        "Filters of clients without a topic, not announced again so soon.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_missing_dropped_total",
        "counter",
        "Filters of clients given up: too many waited, or the primary refused the announcement.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_missing_pending",
        "gauge",
        "Filters of clients that wait to be looked for, and announced if nothing matches them.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_unconfirmed",
        "gauge",
        "Topics that the newest comparison with the primary did not bring, kept all the same.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_counted_outside",
        "gauge",
        "Retained messages that the primary had beyond those here when both were counted; absent if unknown.",
        ("link",),
    ),
    MetricSpec("fanout_link_alarm", "gauge", "1 while a person must decide on unconfirmed topics, else 0.", ("link",)),
    MetricSpec(
        "fanout_link_hops", "gauge", "Fanout nodes above this one on the longest way; 0 at another primary.", ("link",)
    ),
    MetricSpec(
        "fanout_link_lag_seconds",
        "gauge",
        "How far behind the link is, at least; absent when unknown.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_items_behind",
        "gauge",
        "Updates that a fanout primary had stamped and that had not come; absent when unknown.",
        ("link",),
    ),
    MetricSpec(
        "fanout_link_heartbeat_age_seconds",
        "gauge",
        "Time since a heartbeat came back; absent before one did.",
        ("link",),
    ),
    MetricSpec("fanout_selector_topics", "gauge", "Retained topics held for the selector.", ("link", "selector")),
    MetricSpec(
        "fanout_selector_maybe_unreadable",
        "gauge",
        "1 while the selector is empty, or not readable at the primary, else 0.",
        ("link", "selector"),
    ),
    MetricSpec(
        "fanout_selector_complete",
        "gauge",
        "1 when the selector's snapshot is proved complete; the label names the evidence, empty before.",
        ("link", "selector", "evidence"),
    ),
    MetricSpec(
        "fanout_selector_unfit_total",
        "counter",
        "Messages not replicated because they are not what the selector takes, by reason.",
        ("link", "selector", "reason"),
    ),
    MetricSpec("fanout_server_connections", "gauge", "Network Connections of clients."),
    MetricSpec("fanout_server_sessions", "gauge", "Sessions of clients, those without a connection included."),
    MetricSpec("fanout_server_subscriptions", "gauge", "Subscriptions of all sessions."),
    MetricSpec("fanout_server_audiences", "gauge", "Groups of sessions with identical subscriptions."),
    MetricSpec("fanout_server_retained_topics", "gauge", "Topics with a retained value that a client can read."),
    MetricSpec("fanout_server_own_complete", "gauge", "0 while a limit keeps out retained messages published here."),
    MetricSpec("fanout_server_deliveries_total", "counter", "PUBLISH packets handed to clients."),
    MetricSpec("fanout_server_sent_bytes_total", "counter", "Bytes written to clients."),
    MetricSpec("fanout_server_received_total", "counter", "PUBLISH packets received from clients."),
    MetricSpec("fanout_server_received_bytes_total", "counter", "Bytes received from clients."),
    MetricSpec("fanout_server_dropped_total", "counter", "Messages dropped, by reason.", ("reason",)),
    MetricSpec("fanout_server_queued_messages", "gauge", "Messages queued for sessions."),
    MetricSpec("fanout_server_queued_bytes", "gauge", "Bytes queued for sessions."),
    MetricSpec("fanout_server_conflated_topics", "gauge", "Newest values that wait for slow QoS 0 readers."),
    MetricSpec(
        "fanout_server_conflated_total", "counter", "Messages in whose place a slow QoS 0 reader got a newer one."
    ),
    MetricSpec("fanout_server_in_flight_messages", "gauge", "QoS 1 and 2 messages sent and not completed."),
    MetricSpec(
        "fanout_server_in_flight_bytes",
        "gauge",
        "Bytes of QoS 1 and 2 messages sent and not completed, shared ones once.",
    ),
    MetricSpec("fanout_server_connections_opened_total", "counter", "Network Connections accepted."),
    MetricSpec(
        "fanout_server_connections_refused_total", "counter", "Network Connections ended before a successful CONNACK."
    ),
    MetricSpec("fanout_server_takeovers_total", "counter", "Sessions taken over while their connection was open."),
    MetricSpec("fanout_server_keep_alive_timeouts_total", "counter", "Network Connections ended for silence."),
    MetricSpec("fanout_server_protocol_errors_total", "counter", "Network Connections ended because of broken MQTT."),
    MetricSpec(
        "fanout_server_sessions_overflowed_total", "counter", "Sessions ended because too much waited for them."
    ),
    MetricSpec("fanout_server_wills_total", "counter", "Will Messages published."),
    MetricSpec(
        "fanout_server_limits_reached_total",
        "counter",
        "How often clients reached a limit, by its key in the configuration.",
        ("limit",),
    ),
    MetricSpec(
        "fanout_server_entry_faults_total",
        "counter",
        "Network Connections that broke what MQTT is wrapped in.",
        ("layer",),
    ),
    MetricSpec(
        "fanout_server_ended_total",
        "counter",
        "Network Connections that the server ended, by Reason Code.",
        ("reason",),
    ),
    MetricSpec("fanout_worker_serving", "gauge", "1 while the worker serves clients, else 0.", ("worker",)),
    MetricSpec("fanout_worker_restarts_total", "counter", "How often the worker was started again.", ("worker",)),
    MetricSpec("fanout_worker_late_total", "counter", "Tear-downs that went on without the worker.", ("worker",)),
    MetricSpec("fanout_worker_connections", "gauge", "Network Connections that the worker serves.", ("worker",)),
    MetricSpec("fanout_worker_sessions", "gauge", "Sessions that the worker holds.", ("worker",)),
    MetricSpec("fanout_worker_topics", "gauge", "Retained topics that the worker holds.", ("worker",)),
    MetricSpec("fanout_worker_unread_bytes", "gauge", "Bytes of batches that the worker has not read.", ("worker",)),
    MetricSpec("fanout_worker_cpu_seconds_total", "counter", "Processor time of the worker's process.", ("worker",)),
    MetricSpec("fanout_access_admitted_total", "counter", "Clients let in, by what they showed.", ("means",)),
    MetricSpec("fanout_access_refused_total", "counter", "Clients refused, by Reason Code.", ("reason",)),
    MetricSpec("fanout_access_password_checks_total", "counter", "Passwords checked."),
    MetricSpec("fanout_access_password_remembered_total", "counter", "Password checks that were not necessary."),
    MetricSpec("fanout_access_password_waiting", "gauge", "Password checks that run or wait."),
    MetricSpec("fanout_access_hook_asked_total", "counter", "Questions sent to the HTTP hook."),
    MetricSpec("fanout_access_hook_remembered_total", "counter", "Questions to the HTTP hook that were not necessary."),
    MetricSpec("fanout_access_hook_waiting", "gauge", "Questions to the HTTP hook that are asked or wait."),
    MetricSpec(
        "fanout_access_hook_failures_total",
        "counter",
        "Questions to the HTTP hook without an answer, by reason.",
        ("reason",),
    ),
    MetricSpec("fanout_access_rules", "gauge", "Access rules in force."),
    MetricSpec("fanout_access_users", "gauge", "Users of the password file."),
    MetricSpec("fanout_access_decisions", "gauge", "Decisions on topics that are remembered."),
    MetricSpec("fanout_log_rows_total", "counter", "Updates written to the replication log."),
    MetricSpec("fanout_log_events_total", "counter", "Events written to the replication log."),
    MetricSpec("fanout_log_lost_rows_total", "counter", "Updates not logged: full queue or failed disk."),
    MetricSpec("fanout_log_lost_events_total", "counter", "Events not written to the replication log."),
    MetricSpec("fanout_log_queued_rows", "gauge", "Updates waiting to be written."),
    MetricSpec("fanout_log_queued_bytes", "gauge", "What the waiting updates hold, about."),
    MetricSpec("fanout_log_unsynced_rows", "gauge", "Updates and events that are not on the disk yet."),
    MetricSpec("fanout_log_last_sync_time_seconds", "gauge", "Unix time of the last write to disk; absent before."),
    MetricSpec("fanout_log_written_bytes_total", "counter", "Bytes of segments written."),
    MetricSpec("fanout_log_sealed_segments_total", "counter", "Segments that became Parquet."),
    MetricSpec("fanout_log_unsealed_segments", "gauge", "Segments waiting to become Parquet."),
    MetricSpec("fanout_log_duplicates_total", "counter", "Updates whose stamp was applied before."),
    MetricSpec("fanout_log_stale_total", "counter", "Updates older than the value already applied."),
    MetricSpec("fanout_log_recovered_segments", "gauge", "Segments that the last run left open."),
    MetricSpec("fanout_log_recovered_rows", "gauge", "Updates recovered from segments that the last run left open."),
    MetricSpec(
        "fanout_log_recovered_torn_bytes",
        "gauge",
        "Bytes in the segments that the last run left open that were no whole frame.",
    ),
    MetricSpec("fanout_archive_kept_files", "gauge", "Sealed files of the replication log that are here."),
    MetricSpec("fanout_archive_kept_bytes", "gauge", "Bytes of the sealed files that are here."),
    MetricSpec("fanout_archive_removed_files_total", "counter", "Sealed files removed for their age or size."),
    MetricSpec("fanout_archive_shipped_files_total", "counter", "Sealed files copied to the store."),
    MetricSpec("fanout_archive_shipped_bytes_total", "counter", "Bytes of sealed files copied to the store."),
    MetricSpec("fanout_archive_waiting_files", "gauge", "Sealed files that the store has not confirmed."),
    MetricSpec(
        "fanout_archive_oldest_waiting_seconds",
        "gauge",
        "How long the oldest file that the store has not confirmed has been sealed.",
    ),
    MetricSpec("fanout_archive_failures_total", "counter", "Attempts to use the store that failed."),
    MetricSpec("fanout_log_alarm", "gauge", "1 while something is wrong with the replication log, else 0."),
    MetricSpec("fanout_retained_file_bytes", "gauge", "Size of the file of retained values."),
    MetricSpec("fanout_retained_committed_total", "counter", "Updates committed to the file of retained values."),
    MetricSpec("fanout_retained_transactions_total", "counter", "Transactions that committed retained values."),
    MetricSpec("fanout_retained_waiting_rows", "gauge", "Updates not committed to the file of retained values yet."),
    MetricSpec("fanout_retained_waiting_bytes", "gauge", "Bytes of payloads and properties that wait with them."),
    MetricSpec("fanout_retained_alarm", "gauge", "1 while retained values cannot be written, else 0."),
    MetricSpec("fanout_http_connections", "gauge", "Connections of the HTTP interface."),
    MetricSpec(
        "fanout_http_closed_total",
        "counter",
        "Connections of the HTTP interface that the node closed, by reason.",
        ("reason",),
    ),
)
"""Every metric of a node, without those of the process (`process_...`), which prometheus-client adds."""


class NodeCollector(Collector):
    """Turns a node's documents into metric families at each scrape."""

    def __init__(self, node: NodeView) -> None:
        self._node = node

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Return the families that have a value now, in the order of `METRICS`."""
        families = {spec.name: spec.family() for spec in METRICS}
        status = self._node.status()
        for name, labels, value in _samples(status, self._node.lag().links):
            families[name].add_metric(labels, value)
        return [family for family in families.values() if family.samples]


def node_registry(node: NodeView) -> CollectorRegistry:
    """Return a new registry with the metrics of `node` and of this process."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    ProcessCollector(registry=registry)
    return registry


def _samples(status: NodeStatus, lags: Iterable[LinkLag]) -> Iterator[Sample]:
    yield "fanout_node_info", (status.node, status.role, status.version), 1
    yield "fanout_node_start_time_seconds", (), status.started.timestamp()
    yield "fanout_node_ready", (), status.ready
    for key, bound in status.limits.items():
        yield "fanout_limit", (key,), bound
    for link in status.links:
        yield from _link_samples(link)
    for lag in lags:
        if lag.lag_seconds is not None:
            yield "fanout_link_lag_seconds", (lag.name,), lag.lag_seconds
        if lag.items_behind is not None:
            yield "fanout_link_items_behind", (lag.name,), lag.items_behind
        if lag.heartbeat_age_seconds is not None:
            yield "fanout_link_heartbeat_age_seconds", (lag.name,), lag.heartbeat_age_seconds
    if status.server is not None:
        yield from _server_samples(status.server)
    for worker in status.workers:
        yield from _worker_samples(worker)
    if status.access is not None:
        yield from _access_samples(status.access)
    if status.log is not None:
        yield from _log_samples(status.log)
    if status.retained is not None:
        yield from _retained_samples(status.retained)
    if status.http is not None:
        yield "fanout_http_connections", (), status.http.connections
        for reason, count in status.http.closed_total.items():
            yield "fanout_http_closed_total", (reason,), count


def _link_samples(link: LinkDetail) -> Iterator[Sample]:
    label = (link.name,)
    yield "fanout_link_ready", label, link.ready
    for state in LINK_STATES:
        yield "fanout_link_state", (link.name, state), state == link.state
    yield "fanout_link_state_start_time_seconds", label, link.since.timestamp()
    for name, value in link:
        if type(value) is int and name != "epoch":  # `ready` is a bool
            yield f"fanout_link_{name}", label, value
    if link.snapshot_seconds is not None:
        yield "fanout_link_snapshot_seconds", label, link.snapshot_seconds
    if link.stale_seconds is not None:
        yield "fanout_link_stale_seconds", label, link.stale_seconds
    for whose, expires in (("client", link.client_certificate_expires), ("primary", link.primary_certificate_expires)):
        if expires is not None:
            yield "fanout_link_certificate_expiry_time_seconds", (link.name, whose), expires.timestamp()
    if link.audit_completed is not None:
        yield "fanout_link_audit_end_time_seconds", label, link.audit_completed.timestamp()
    sampling = link.sampling
    yield "fanout_link_samples_total", label, sampling.samples_total
    yield "fanout_link_sample_differing_total", label, sampling.missing_total + sampling.changed_total
    yield "fanout_link_sampling_off", label, sampling.off is not None
    yield "fanout_link_alarm", label, link.alarm is not None
    for selector in link.selectors:
        yield "fanout_selector_topics", (link.name, selector.filter), selector.topics
        yield "fanout_selector_maybe_unreadable", (link.name, selector.filter), selector.maybe_unreadable
        complete = (link.name, selector.filter, selector.evidence or "")
        yield "fanout_selector_complete", complete, selector.complete
        for reason, count in selector.unfit_total.items():
            yield "fanout_selector_unfit_total", (link.name, selector.filter, reason), count


def _server_samples(server: ServerStatus) -> Iterator[Sample]:
    for name, value in server:
        if isinstance(value, dict):
            for label, count in value.items():
                yield f"fanout_server_{name}", (label,), count
        elif not isinstance(value, tuple):
            yield f"fanout_server_{name}", (), value


def _worker_samples(worker: WorkerStatus) -> Iterator[Sample]:
    label = (str(worker.number),)
    yield "fanout_worker_serving", label, worker.state == "serving"
    totals = ("restarts_total", "late_total", "cpu_seconds_total")
    for name in (*totals, "connections", "sessions", "topics", "unread_bytes"):
        yield f"fanout_worker_{name}", label, getattr(worker, name)


def _access_samples(access: AccessStatus) -> Iterator[Sample]:
    for name, value in access:
        if isinstance(value, dict):
            for label, count in value.items():
                yield f"fanout_access_{name}", (label,), count
        else:
            yield f"fanout_access_{name}", (), value


def _retained_samples(retained: RetainedStatus) -> Iterator[Sample]:
    for name, value in retained:
        if isinstance(value, int):
            yield f"fanout_retained_{name}", (), value
    yield "fanout_retained_alarm", (), retained.alarm is not None


def _log_samples(log: LogStatus) -> Iterator[Sample]:
    for name, value in log:
        if isinstance(value, int):
            yield f"fanout_log_{name}", (), value
    if log.last_sync is not None:
        yield "fanout_log_last_sync_time_seconds", (), log.last_sync.timestamp()
    yield "fanout_log_alarm", (), log.alarm is not None
    if log.archive is not None:
        for name, value in log.archive:
            yield f"fanout_archive_{name}", (), value
