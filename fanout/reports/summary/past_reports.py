"""Figures of a report that are kept for the trend of later ones. Pure functions of finished values."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from fanout.reports.values.document import Propagation, Report
from fanout.reports.values.history import PastLag, PastNode, PastReport

__all__ = ["ROWS_MIN", "past_report"]

ROWS_MIN: Final = 100
"""With fewer updates a p99 says nothing."""


def past_report(report: Report) -> PastReport:
    """Return the figures of a report on completeness that others are compared with."""
    assert report.window is not None
    expected: dict[str, int] = defaultdict(int)
    missing: dict[str, int] = defaultdict(int)
    unknown: dict[str, int] = defaultdict(int)
    for target in report.targets:
        if (figures := target.updates) is not None:
            expected[target.node] += figures.expected - figures.unknown
            missing[target.node] += figures.missing
            unknown[target.node] += figures.unknown
    shares = {
        one.node: (one.complete_percent_at_least, one.complete_percent_at_most)
        for one in (() if report.summary is None else report.summary.nodes)
    }
    nodes: list[PastNode] = []
    for node, count in expected.items():
        at_least, at_most = shares.get(node, (None, None))
        nodes.append(
            PastNode(
                node=node,
                expected=count,
                missing=missing[node],
                unknown=unknown[node],
                complete_percent_at_least=at_least,
                complete_percent_at_most=at_most,
                lag=_lag(node, report),
            )
        )
    begin, end = report.window.begin, report.window.settled_until
    return PastReport(begin=min(begin, end), end=end, nodes=tuple(nodes))


def _lag(node: str, report: Report) -> tuple[PastLag, ...]:
    """Return the lag of each link from each node that stamped: of its selector with the highest p99."""
    worst: dict[tuple[str, str], PastLag] = {}
    for one in report.lag.propagation:
        if one.node != node or (found := _past_lag(one)) is None:
            continue
        key = one.link, one.stamped_by
        if key not in worst or worst[key].p99_us < found.p99_us:
            worst[key] = found
    return tuple(worst.values())


def _past_lag(one: Propagation) -> PastLag | None:
    if (corrected := one.corrected) is None or one.lag.rows < ROWS_MIN:
        return None
    return PastLag.of(dict(one) | dict(corrected), updates=one.lag.rows)
