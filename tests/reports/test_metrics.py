"""A report's answers as metrics of Prometheus."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fanout.errors import ReportError
from fanout.reports.metrics import REPORT_METRICS, render_metrics
from fanout.reports.render.wording import printable
from tests.reports.documents import HOSTILE, section_report
from tests.reports.render.test_answers import answered, node, outage


def test_metrics_have_the_answers() -> None:
    """Of each node; the name of a stranger stays a label, and brings no control character."""
    made = answered(outage(HOSTILE), node("edge"), answer="not_complete")
    hostile = printable(HOSTILE)
    assert hostile != HOSTILE
    samples = {
        (sample.name, *(sample.labels[label] for label in REPORT_METRICS[sample.name][1])): sample.value
        for family in text_string_to_metric_families(render_metrics(made))
        for sample in family.samples
    }
    assert made.window is not None
    assert samples == {
        ("fanout_report_answer", hostile, "not_complete"): 1,
        ("fanout_report_answer", "edge", "complete"): 1,
        ("fanout_report_missing_updates", hostile): 1648,
        ("fanout_report_missing_updates", "edge"): 0,
        ("fanout_report_unknown_updates", hostile): 7,
        ("fanout_report_unknown_updates", "edge"): 0,
        ("fanout_report_judged_until_time_seconds",): made.window.settled_until.timestamp(),
    }
    assert {name for name, *_ in samples} == set(REPORT_METRICS)


def test_what_was_not_judged_has_no_time() -> None:
    """An absent time is not 1970; and a report without answers has no metrics."""
    made = answered(node("edge", answer="nothing_judged"), answer="nothing_judged")
    assert "judged_until" not in render_metrics(made.model_copy(update={"window": None}))
    with pytest.raises(ReportError, match="traffic has no answers"):
        render_metrics(section_report("traffic"))
