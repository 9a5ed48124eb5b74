"""Prometheus metrics of a node, read at each scrape from its documents.

Owns names, labels and meaning; `docs/reference/metrics.md` and `metrics-links.md` have the advice for each. Nothing is
counted here. Labels are bounded sets: links and selectors of the configuration, states, reasons; never a topic or a
client. A metric without a known value is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, get_args, get_origin

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
    SelectorDetail,
    ServerStatus,
)
from fanout.api.node_view import NodeView
from fanout.api.schema.described import Described

__all__ = ["METRICS", "MetricSpec", "encode_metrics", "process_metrics"]

Sample: TypeAlias = tuple[tuple[str, ...], float]
"""(label values in the order of the metric's labels, value)."""
Kind: TypeAlias = Literal["counter", "gauge"]


class _Seen(NamedTuple):
    """Documents of one scrape."""

    status: NodeStatus
    lags: tuple[LinkLag, ...]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Name, kind and meaning of one metric, and where its values are."""

    name: str
    """Name in the exposition; a counter's ends in `_total`."""
    kind: Kind
    """`counter` only grows while the process lives; `gauge` moves both ways."""
    meaning: str
    """One sentence, the metric's HELP line."""
    labels: tuple[str, ...]
    """Names of its labels."""
    read: Callable[[_Seen], Iterable[Sample]]
    """Returns its samples; none for a value that is not known."""

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
    "unfit_total": "reason",
}
"""The label of each field that has several figures, with a name for each."""
_NOT_FIGURES = frozenset(
    {
        "epoch",
        "heartbeat_interval_seconds",  # a setting
        "joining",
        "last_error_over",
        "stale_left_seconds",
        "complete",  # has the evidence as a label
    }
)
"""Numbers and flags in the documents that are no figures, or have a metric of their own below."""


def _is_figure(name: str, field: FieldInfo) -> bool:
    """Return True for a number, a flag, or several numbers by name; a number may be null."""
    kinds = set(get_args(field.annotation)) - {type(None)} or {field.annotation}
    plain = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds}
    return name not in _NOT_FIGURES and (name in _LABELS or plain < {int, float, bool})


def _figures(
    prefix: str,
    document: type[Described],
    each: Callable[[_Seen], Iterable[tuple[tuple[str, ...], BaseModel | None]]],
    *labels: str,
    but: Collection[str] = (),
) -> Iterator[MetricSpec]:
    """Yield the metrics of the figures in a document: each has the name and the description of its field.

    Args:
        prefix: Beginning of each name, before the name of the field.
        document: The model.
        each: Returns the documents of that model, each with the values of `labels`; None for one that is not there.
        labels: Labels of all these metrics.
        but: Fields that another document has too.
    """

    def samples_of(name: str) -> Callable[[_Seen], Iterator[Sample]]:
        def samples(seen: _Seen) -> Iterator[Sample]:
            for values, one in each(seen):
                figure = getattr(one, name, None)
                if isinstance(figure, dict):
                    for label, count in figure.items():
                        yield (*values, label), count
                elif figure is not None:
                    yield values, figure

        return samples

    descriptions = document.descriptions()
    for name, field in document.model_fields.items():
        if name not in but and _is_figure(name, field):
            own_label = (_LABELS[name],) if name in _LABELS and field.annotation is not int else ()
            kind: Kind = "counter" if name.endswith("_total") else "gauge"
            meaning = " ".join((field.description or descriptions.get(name, "")).split())
            yield MetricSpec(f"{prefix}_{name}", kind, meaning, (*labels, *own_label), samples_of(name))


def _of_node(name: str, meaning: str, read: Callable[[NodeStatus], float | None]) -> MetricSpec:
    """Return a gauge of the node; `read` returns None while its value is not known."""

    def samples(seen: _Seen) -> Iterator[Sample]:
        value = read(seen.status)
        if value is not None:
            yield (), value

    return MetricSpec(name, "gauge", meaning, (), samples)


def _of_links(
    name: str, meaning: str, *labels: str, read: Callable[[LinkDetail], Iterable[Sample]], kind: Kind = "gauge"
) -> MetricSpec:
    """Return a metric of each link; `read` returns its samples, without the label of the link."""

    def samples(seen: _Seen) -> Iterator[Sample]:
        for link in seen.status.links:
            for values, value in read(link):
                yield (link.name, *values), value

    return MetricSpec(name, kind, meaning, ("link", *labels), samples)


def _one(value: float) -> Iterable[Sample]:
    return (((), value),)


def _time(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


METRICS = (
    MetricSpec(
        "fanout_node_info",
        "gauge",
        "Always 1; its labels say what runs.",
        ("node", "role", "version"),
        lambda seen: [((seen.status.node, seen.status.role, seen.status.version), 1)],
    ),
    _of_node(
        "fanout_node_start_time_seconds", "Unix time at which the node started.", lambda node: _time(node.started)
    ),
    _of_node("fanout_node_ready", "1 when the node is ready, as in /readyz, else 0.", lambda node: node.ready),
    MetricSpec(
        "fanout_limit",
        "gauge",
        "A bound in force, by its key in the configuration.",
        ("key",),
        lambda seen: [((key,), bound) for key, bound in seen.status.limits.items()],
    ),
    _of_links(
        "fanout_link_state",
        "1 for the state that the link is in, 0 for the others.",
        "state",
        read=lambda link: [((state,), state == link.state) for state in LINK_STATES],
    ),
    _of_links(
        "fanout_link_state_start_time_seconds",
        "Unix time at which the link entered its state.",
        read=lambda link: _one(link.since.timestamp()),
    ),
    *_figures("fanout_link", LinkDetail, lambda seen: [((link.name,), link) for link in seen.status.links], "link"),
    _of_links(
        "fanout_link_certificate_expiry_time_seconds",
        "Unix time at which a certificate of the newest connection expires; absent without one.",
        "certificate",
        read=lambda link: [
            ((whose,), expires.timestamp())
            for whose, expires in (
                ("client", link.client_certificate_expires),
                ("primary", link.primary_certificate_expires),
            )
            if expires is not None
        ],
    ),
    _of_links(
        "fanout_link_audit_end_time_seconds",
        "Unix time at which the newest audit that did not fail ended; absent before one.",
        read=lambda link: () if link.audit_completed is None else _one(link.audit_completed.timestamp()),
    ),
    _of_links(
        "fanout_link_samples_total",
        "Samples of topics that the primary answered.",
        read=lambda link: _one(link.sampling.samples_total),
        kind="counter",
    ),
    _of_links(
        "fanout_link_sample_differing_total",
        "Topics of samples that are missing or different there.",
        read=lambda link: _one(link.sampling.missing_total + link.sampling.changed_total),
        kind="counter",
    ),
    _of_links(
        "fanout_link_sampling_off",
        "1 while no samples are taken, else 0.",
        read=lambda link: _one(link.sampling.off is not None),
    ),
    _of_links(
        "fanout_link_alarm",
        "1 while a person must decide on unconfirmed topics, else 0.",
        read=lambda link: _one(link.alarm is not None),
    ),
    *_figures(
        "fanout_link",
        LinkLag,
        lambda seen: [((lag.name,), lag) for lag in seen.lags],
        "link",
        but=LinkDetail.model_fields,
    ),
    _of_links(
        "fanout_selector_complete",
        "1 when the selector's snapshot is proved complete; the label names the evidence, empty before.",
        "selector",
        "evidence",
        read=lambda link: [((one.filter, one.evidence or ""), one.complete) for one in link.selectors],
    ),
    *_figures(
        "fanout_selector",
        SelectorDetail,
        lambda seen: [((link.name, one.filter), one) for link in seen.status.links for one in link.selectors],
        "link",
        "selector",
    ),
    *_figures("fanout_config", ConfigStatus, lambda seen: [((), seen.status.config)]),
    _of_node(
        "fanout_config_read_time_seconds",
        "Unix time at which the configuration in force was read.",
        lambda node: None if node.config is None else _time(node.config.read),
    ),
    *_figures("fanout_server", ServerStatus, lambda seen: [((), seen.status.server)]),
    *_figures("fanout_access", AccessStatus, lambda seen: [((), seen.status.access)]),
    *_figures("fanout_log", LogStatus, lambda seen: [((), seen.status.log)]),
    _of_node(
        "fanout_log_last_sync_time_seconds",
        "Unix time of the last write to disk; absent before.",
        lambda node: None if node.log is None else _time(node.log.last_sync),
    ),
    _of_node(
        "fanout_log_alarm",
        "1 while something is wrong with the replication log, else 0.",
        lambda node: None if node.log is None else node.log.alarm is not None,
    ),
    *_figures(
        "fanout_archive",
        ArchiveStatus,
        lambda seen: [((), None if seen.status.log is None else seen.status.log.archive)],
    ),
    *_figures("fanout_retained", RetainedStatus, lambda seen: [((), seen.status.retained)]),
    _of_node(
        "fanout_retained_alarm",
        "1 while retained values cannot be written, else 0.",
        lambda node: None if node.retained is None else node.retained.alarm is not None,
    ),
    *_figures("fanout_http", HttpStatus, lambda seen: [((), seen.status.http)]),
    *_figures("fanout_pool", PoolStatus, lambda seen: [((), seen.status.pool)]),
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
    seen = _Seen(node.status(), node.lag().links)
    end = encode(_Families())  # of OpenMetrics
    parts: list[bytes] = []
    for spec in METRICS:
        family, samples = spec.family(), list(spec.read(seen))
        if samples:
            yield
            for labels, value in samples:
                family.add_metric(labels, value)
            parts.append(encode(_Families(family)).removesuffix(end))
    yield
    return b"".join([*parts, encode(_Families(*process))])
