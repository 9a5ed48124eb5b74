"""Every table of a report, in reading order, for a terminal and for a page alike."""

from __future__ import annotations

from fanout.reports.render import completeness_tables, finding_tables, lag_tables
from fanout.reports.render.table import Table
from fanout.reports.values.document import Report

__all__ = ["tables_of"]


def tables_of(report: Report) -> list[Table]:
    """Return the tables of a report that have rows, in reading order."""
    tables = [
        completeness_tables.by_identity(report),
        completeness_tables.causes(report),
        completeness_tables.over_time(report),
        completeness_tables.final_values(report),
        completeness_tables.prefixes(report),
        completeness_tables.missing(report),
        completeness_tables.differing(report),
        *finding_tables.stalls(report.stalls),
        *finding_tables.convergence(report.convergence),
        *finding_tables.snapshots(report.snapshots),
        lag_tables.propagation(report),
        lag_tables.hops(report),
        lag_tables.slowest_prefixes(report),
        lag_tables.heartbeat(report),
        lag_tables.clocks(report),
        lag_tables.ready(report),
        lag_tables.attempts(report),
        *finding_tables.traffic(report.traffic),
        lag_tables.logs(report),
    ]
    return [table for table in tables if table.rows]
