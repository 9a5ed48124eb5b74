"""A report's answers as metrics of Prometheus, for alerts; the scraper reads them from a file."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from fanout.errors import ReportError
from fanout.reports.render.wording import printable
from fanout.reports.values.document import Report

__all__ = ["REPORT_METRICS", "render_metrics"]

REPORT_METRICS: Final = {
    "fanout_report_answer": ("1 for the answer that the report gives of a node.", ("node", "answer")),
    "fanout_report_missing_updates": ("Updates that the node is known to lack.", ("node",)),
    "fanout_report_unknown_updates": ("Updates of which nothing shows whether the node has them.", ("node",)),
    "fanout_report_judged_until_time_seconds": ("Unix time of the youngest update that was old enough to judge.", ()),
}
"""Meaning and labels of each metric."""


def render_metrics(report: Report) -> str:
    """Return the answers of a report in the text format of Prometheus.

    Raises:
        ReportError: The report has no answers.
    """
    summary = report.summary
    if summary is None:
        raise ReportError(
            f"the report on {report.report} has no answers to write as metrics",
            hint="Make `fanout report summary`, `completeness` or `all`",
        )
    registry = CollectorRegistry()
    answer, missing, unknown, until = (
        Gauge(name, meaning, labels, registry=registry) for name, (meaning, labels) in REPORT_METRICS.items()
    )
    for node in summary.nodes:
        name = printable(node.node)
        answer.labels(name, node.answer).set(1)
        missing.labels(name).set(node.missing)
        unknown.labels(name).set(node.unknown)
    if report.window is not None:
        until.set(report.window.settled_until.timestamp())
    else:
        registry.unregister(until)
    return generate_latest(registry).decode()
