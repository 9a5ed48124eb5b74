"""Prometheus metrics of a node, read at each scrape from its documents.

Owns names, labels and meaning; `docs/reference/metrics.md` and `metrics-links.md` have the advice for each. Nothing is
counted here. Labels are bounded sets: links and selectors of the configuration, states, reasons; never a topic or a
client. A metric without a known value is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fanout.api.models import (
    LINK_STATES,
    AccessStatus,
    ArchiveStatus,
    ConfigStatus,
    HttpStatus,
    LinkDetail,
    LinkLag,
    LogStatus,
    NodeStatus,
    PoolStatus,
    RetainedStatus,
    ServerStatus,
)
from fanout.api.node_view import NodeView

__all__ = ["METRICS", "MetricSpec", "encode_metrics", "process_metrics"]

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


_LABELS = {
    "dropped_total": "reason",
    "limits_reached_total": "limit",
    "entry_faults_total": "layer",
    "ended_total": "reason",
    "admitted_total": "means",
    "refused_total": "reason",
    "hook_failures_total": "reason",
    "closed_total": "reason",
    "ask_failures_total": "reason",
    "session_calls_total": "kind",
    "skipped_total": "reason",
    "tolerated_total": "deviation",
    "reloads_total": "result",
}
"""The label of each field that has several figures, with a name for each."""
_NOT_FIGURES = frozenset({"epoch", "number"})
"""Numbers in the documents that are no figures."""


def _figures(document: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of a document that always have a number, or several: each is a metric under its own name."""
    for name, field in document.model_fields.items():
        if name not in _NOT_FIGURES and (field.annotation in {int, float} or name in _LABELS):
            yield name, field


def _specs(prefix: str, document: type[BaseModel], *labels: str) -> Iterator[MetricSpec]:
    """Yield the metrics of the figures in a document; their meaning is the description of the field."""
    for name, field in _figures(document):
        own_label = (_LABELS[name],) if name in _LABELS and field.annotation is not int else ()
        kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        yield MetricSpec(f"{prefix}_{name}", kind, field.description or "", (*labels, *own_label))


METRICS = (
    MetricSpec("fanout_node_info", "gauge", "Always 1; its labels say what runs.", ("node", "role", "version")),
    MetricSpec("fanout_node_start_time_seconds", "gauge", "Unix time at which the node started."),
    MetricSpec("fanout_node_ready", "gauge", "1 when the node is ready, as in /readyz, else 0."),
    MetricSpec("fanout_limit", "gauge", "A bound in force, by its key in the configuration.", ("key",)),
    MetricSpec("fanout_link_ready", "gauge", "1 when the link is ready: live, and no reason against it.", ("link",)),
    MetricSpec(
        "fanout_link_state", "gauge", "1 for the state that the link is in, 0 for the others.", ("link", "state")
    ),
    MetricSpec(
        "fanout_link_state_start_time_seconds", "gauge", "Unix time at which the link entered its state.", ("link",)
    ),
    *_specs("fanout_link", LinkDetail, "link"),
    MetricSpec(
        "fanout_link_snapshot_seconds", "gauge", "Duration of the newest complete snapshot; absent before.", ("link",)
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
    MetricSpec(
        "fanout_link_audit_end_time_seconds",
        "gauge",
        "Unix time at which the newest audit that did not fail ended; absent before one.",
        ("link",),
    ),
    MetricSpec("fanout_link_samples_total", "counter", "Samples of topics that the primary answered.", ("link",)),
    MetricSpec(
        "fanout_link_sample_differing_total",
        "counter",
        "Topics of samples that are missing or different there.",
        ("link",),
    ),
    MetricSpec("fanout_link_sampling_off", "gauge", "1 while no samples are taken, else 0.", ("link",)),
    MetricSpec(
        "fanout_link_counted_outside",
        "gauge",
        "Retained messages that the primary had beyond those here when both were counted; absent if unknown.",
        ("link",),
    ),
    MetricSpec("fanout_link_alarm", "gauge", "1 while a person must decide on unconfirmed topics, else 0.", ("link",)),
    MetricSpec("fanout_link_lag_seconds", "gauge", "Least lag of the link; absent when unknown.", ("link",)),
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
        "Messages that the selector does not take, by reason.",
        ("link", "selector", "reason"),
    ),
    *_specs("fanout_config", ConfigStatus),
    MetricSpec("fanout_config_read_time_seconds", "gauge", "Unix time at which the configuration in force was read."),
    *_specs("fanout_server", ServerStatus),
    MetricSpec("fanout_server_own_complete", "gauge", "0 while a limit keeps out retained messages published here."),
    *_specs("fanout_access", AccessStatus),
    *_specs("fanout_log", LogStatus),
    MetricSpec("fanout_log_last_sync_time_seconds", "gauge", "Unix time of the last write to disk; absent before."),
    MetricSpec(
        "fanout_log_disk_free_bytes",
        "gauge",
        "Bytes free on the disk of the replication log at the last write to disk; absent before.",
    ),
    MetricSpec("fanout_log_alarm", "gauge", "1 while something is wrong with the replication log, else 0."),
    *_specs("fanout_archive", ArchiveStatus),
    *_specs("fanout_retained", RetainedStatus),
    MetricSpec("fanout_retained_alarm", "gauge", "1 while retained values cannot be written, else 0."),
    *_specs("fanout_http", HttpStatus),
    *_specs("fanout_pool", PoolStatus),
    MetricSpec("fanout_pool_fenced", "gauge", "1 while no durable session is served here, else 0."),
)
"""Every metric of a node, without those of the process (`process_...`), which prometheus-client adds."""


_PROCESS: Final = ProcessCollector(registry=None)


class _Families(Collector):
    """Metric families as a collector, which the encoders of prometheus-client take."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


def process_metrics() -> list[Metric]:
    """Read the metrics of this process from the system; it lists all descriptors, so call it in a thread."""
    return list(_PROCESS.collect())


def encode_metrics(
    node: NodeView, process: Iterable[Metric], *, encode: Callable[[Collector], bytes]
) -> Generator[None, None, bytes]:
    """Make the text of all metrics that have a value now, in the order of `METRICS`; each step makes a family.

    Args:
        node: The node, whose documents are read in the first step.
        process: Metrics of its process, which come last.
        encode: Encoder of prometheus-client for the families of a collector.

    Returns:
        The text.
    """
    yield
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for name, labels, value in _samples(node.status(), node.lag().links):
        found.setdefault(name, []).append((labels, value))
    end = encode(_Families())  # of OpenMetrics
    parts: list[bytes] = []
    for spec in METRICS:
        if spec.name in found:
            yield
            family = spec.family()
            for labels, value in found[spec.name]:
                family.add_metric(labels, value)
            parts.append(encode(_Families(family)).removesuffix(end))
    yield
    return b"".join([*parts, encode(_Families(*process))])


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
    for prefix, document in (
        ("fanout_config", status.config),
        ("fanout_server", status.server),
        ("fanout_access", status.access),
        ("fanout_log", status.log),
        ("fanout_archive", None if status.log is None else status.log.archive),
        ("fanout_retained", status.retained),
        ("fanout_http", status.http),
        ("fanout_pool", status.pool),
    ):
        if document is not None:
            yield from _figure_samples(prefix, document)
    if status.config is not None:
        yield "fanout_config_read_time_seconds", (), status.config.read.timestamp()
    if status.server is not None:
        yield "fanout_server_own_complete", (), status.server.own_complete
    if status.log is not None:
        yield "fanout_log_alarm", (), status.log.alarm is not None
        if status.log.last_sync is not None:
            yield "fanout_log_last_sync_time_seconds", (), status.log.last_sync.timestamp()
        if status.log.disk_free_bytes is not None:
            yield "fanout_log_disk_free_bytes", (), status.log.disk_free_bytes
    if status.retained is not None:
        yield "fanout_retained_alarm", (), status.retained.alarm is not None
    if status.pool is not None:
        yield "fanout_pool_fenced", (), status.pool.fenced


def _figure_samples(prefix: str, document: BaseModel, *labels: str) -> Iterator[Sample]:
    for name, _ in _figures(type(document)):
        value = getattr(document, name)
        if isinstance(value, dict):
            for label, count in value.items():
                yield f"{prefix}_{name}", (*labels, label), count
        else:
            yield f"{prefix}_{name}", labels, value


def _link_samples(link: LinkDetail) -> Iterator[Sample]:
    label = (link.name,)
    yield "fanout_link_ready", label, link.ready
    for state in LINK_STATES:
        yield "fanout_link_state", (link.name, state), state == link.state
    yield "fanout_link_state_start_time_seconds", label, link.since.timestamp()
    yield from _figure_samples("fanout_link", link, link.name)
    if link.snapshot_seconds is not None:
        yield "fanout_link_snapshot_seconds", label, link.snapshot_seconds
    if link.stale_seconds is not None:
        yield "fanout_link_stale_seconds", label, link.stale_seconds
    for whose, expires in (("client", link.client_certificate_expires), ("primary", link.primary_certificate_expires)):
        if expires is not None:
            yield "fanout_link_certificate_expiry_time_seconds", (link.name, whose), expires.timestamp()
    if link.audit_completed is not None:
        yield "fanout_link_audit_end_time_seconds", label, link.audit_completed.timestamp()
    if link.counted_outside is not None:
        yield "fanout_link_counted_outside", label, link.counted_outside
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
