"""Spark jobs over the replication logs: what was complete, late, missing or duplicated.

Importing this package does not import pyspark; running a report does.
"""

from fanout.reports.entry import LIST_LIMIT, SETTLE_S, ReportOptions, ReportResult, run_report
from fanout.reports.library import Logs, completeness, lag, missing_topics, read_logs
from fanout.reports.read.log_files import LogFiles
from fanout.reports.spark import LOCAL_MASTER

__all__ = [
    "LIST_LIMIT",
    "LOCAL_MASTER",
    "SETTLE_S",
    "LogFiles",
    "Logs",
    "ReportOptions",
    "ReportResult",
    "completeness",
    "lag",
    "missing_topics",
    "read_logs",
    "run_report",
]
