"""What was read: the files of a report, and what each node's log holds."""

from __future__ import annotations

from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.survey import Survey
from fanout.reports.values.document import Inputs, LogSummary
from fanout.reports.values.figures import time_of

__all__ = ["describe_inputs", "describe_logs"]


def describe_inputs(files: LogFiles, *, survey: Survey) -> Inputs:
    """Return what was read."""
    update_files, event_files = files.given
    return Inputs(
        directories=files.directories,
        update_files=update_files,
        event_files=event_files,
        updates=sum(row.rows for row in survey.updates),
        events=sum(row.rows for row in survey.events),
        log_schema=SCHEMA_VERSION,
    )


def describe_logs(survey: Survey) -> tuple[LogSummary, ...]:
    """Return what each node's log holds."""
    logs: list[LogSummary] = []
    for node, role in survey.roles.items():
        updates, events = survey.log_rows(node)
        begin_us, end_us = survey.log_span_us(node)
        logs.append(
            LogSummary(
                node=node,
                role=role,
                updates=updates,
                events=events,
                begin=time_of(begin_us),
                end=time_of(end_us),
                processes=len(survey.epochs(node)),
                stopped=survey.stopped_us(node) is not None,
                gaps=sum(gap.node == node for gap in survey.gaps),
                absent_rows=survey.unexplained_rows(node),
            )
        )
    return tuple(logs)
