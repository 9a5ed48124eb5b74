"""The job: read the logs, decide what is compared, make the sections, and put their figures into a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import closing
from typing import Any, Final

from pyspark.sql import SparkSession

from fanout.errors import ReportError
from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.reports.figures.material import Material, Part
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.figures.registry import REPORTS, ReportKind, Section
from fanout.reports.identify.planning import LOG_END_TOLERANCE_US
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import Tables, read_tables, take_survey, with_holes
from fanout.reports.read.recent_names import recent_by_name
from fanout.reports.read.scope import AskedWindow, Scope, Target
from fanout.reports.read.survey import LogCut, Survey
from fanout.reports.session.query_threads import query_threads
from fanout.reports.session.spark_errors import spark_errors
from fanout.reports.summary.judging import judge
from fanout.reports.summary.summarize import summarize
from fanout.reports.values.document import (
    Inputs,
    LogEnd,
    LogSummary,
    Parameters,
    ReferenceSequences,
    ReferenceSummary,
    Report,
    ReportName,
    TargetReport,
    WindowSummary,
)
from fanout.reports.values.figures import covered_from, time_of
from fanout.reports.values.history import PastReport

__all__ = ["make_report"]

Progress = Callable[[str], None]

_THREADS: Final = 2
_FEW_ROWS: Final = 4_000_000
"""With more rows the queries take longer than planning them."""


def make_report(
    spark: SparkSession,
    files: LogFiles,
    *,
    name: ReportName,
    parameters: Parameters,
    history: Sequence[PastReport] = (),
    cuts: Sequence[LogCut] = (),
    parquet: str | None = None,
    progress: Progress = lambda stage: None,
) -> Report:
    """Return a report, all of its sections from one look at the logs.

    Args:
        spark: The session.
        files: The logs.
        name: Name of the report.
        parameters: Parameters of the report.
        history: Earlier reports to compare with, as the file of the trend has them.
        cuts: Start of each log whose older files are skipped.
        parquet: The directory or URI for the tables as Parquet; None writes none.
        progress: Is told the name of each stage when it begins.

    Raises:
        ReportError: The logs cannot be read or compared.
    """
    kind = REPORTS[name]
    window = AskedWindow.between(parameters.since, parameters.until)
    out = ParquetTables(spark, parquet)
    with spark_errors():
        if not cuts:
            files, cuts = recent_by_name(spark, files, window=window)
        tables, survey, progress = _look(spark, files, window=window, cuts=cuts, progress=progress)
        material = Material(spark, tables, survey=survey, parameters=parameters, parquet=out, by_set=kind.converges)
        if kind.needs_reference:
            _scope(kind, material)  # refused before anything is compared
        with closing(material):
            parts = _build_all(kind.sections, material, progress=progress)
    fields: dict[str, Any] = {"inputs": _describe_inputs(files, survey=survey), "logs": _describe_logs(survey)}
    if kind.needs_reference:
        scope = _scope(kind, material)
        sequences = tuple(one for part in parts for one in part.sequences)
        fields |= {
            "reference": _describe_reference(scope, sequences),
            "window": _describe_window(survey, scope),
            "notices": scope.notices,
        }
        if kind.judges:
            fields["targets"] = tuple(
                _target_report(target, scope, parts, ends=_log_end(target, scope, survey, files))
                for target in material.counted().scope.targets
            )
            fields["verdict"] = judge(
                fields["targets"],
                fail_under_percent=parameters.fail_under_percent,
                left_out=scope.left_out,
                cut_off=scope.cut_off,
                is_union=scope.reference.kind == "union",
                accept_union=parameters.accept_union,
            )
    for part in parts:
        fields |= part.fields
    report = Report(report=name, parameters=parameters, basis=kind.basis(material), **fields)
    if not kind.judges:
        return report
    summary = summarize(report, cut_off=bool(material.scope.cut_off), history=history)
    return report.model_copy(update={"summary": summary})


def _build_all(sections: Sequence[Section], material: Material, *, progress: Progress) -> list[Part]:
    """Return the results of each section; no section needs those of another.

    Planning the queries of a section keeps one core busy. With many rows each query keeps all of them busy, and needs
    the memory.
    """

    def build(section: Section) -> Part:
        progress(section.name)
        return section.build(material)

    threads = _THREADS if material.survey.rows <= _FEW_ROWS else 1
    with query_threads(material.spark, threads, name="section") as pool:
        parts = [pool.submit(build, section) for section in sections]
        done, waiting = wait(parts, return_when=FIRST_EXCEPTION)
        return [part.result() for part in (done if waiting else parts)]


def _scope(kind: ReportKind, material: Material) -> Scope:
    return material.traffic_scope if kind is REPORTS["traffic"] else material.scope


def _look(
    spark: SparkSession,
    files: LogFiles,
    *,
    window: AskedWindow,
    cuts: Sequence[LogCut],
    progress: Progress,
) -> tuple[Tables, Survey, Progress]:
    """Return the tables, what they hold, and what tells of each further stage with the number of rows."""
    progress("first look at the logs")
    tables = read_tables(spark, files)
    survey = with_holes(take_survey(tables, window=window).begun_at(cuts), tables=tables)
    if not survey.roles:
        raise ReportError("the logs hold no row", hint="Give the directories that nodes wrote their logs to")
    spans = [survey.log_span_us(node) for node in survey.roles]
    begin_us, end_us = min(begin for begin, _ in spans), max(end for _, end in spans)
    if not window.meets(begin_us, end_us):
        raise ReportError(
            "the logs hold nothing of the window that was asked for",
            hint=f"They are of {time_of(begin_us):%F %T} to {time_of(end_us):%F %T} UTC: give other times with --since "
            f"and --until, or other logs",
        )
    return tables, survey, lambda stage: progress(f"{stage}, {survey.rows:,} rows")


def _log_end(target: Target, scope: Scope, survey: Survey, files: LogFiles) -> LogEnd | None:
    """Return why a node's log ends before the reference's; None when it does not."""
    early_us = max(scope.settle_us, LOG_END_TOLERANCE_US)
    if survey.stopped_us(target.node) is not None:
        end_us = min(scope.groups[target.group].end_us, scope.window.last_us)
        return "stopped" if end_us - target.covered_until_us > early_us else None
    if target.behind_us <= early_us:
        return None
    return "not_shipped" if files.sealed_only else "killed"


def _target_report(target: Target, scope: Scope, parts: Sequence[Part], *, ends: LogEnd | None) -> TargetReport:
    group = scope.groups[target.group]
    figures: dict[str, Any] = dict.fromkeys(("stamped", "unstamped", "final"))
    for part in parts:
        figures |= part.by_target.get(target.id, {})
    return TargetReport(
        node=target.node,
        link=target.link,
        filter=target.selection.filter,
        exclude=target.selection.exclude,
        basis=group.basis,
        # Without stamps it takes the secondaries to tell.
        exact=group.exact or (figures["unstamped"] is not None and figures["unstamped"].unseen == 0),
        stamped_by=group.stamped_by,
        complete_at=None if target.held_from_us is None else time_of(target.held_from_us),
        covered_from=covered_from(target.covered_from_us),
        covered_until=time_of(target.covered_until_us),
        judged_until=time_of(target.settled_until_us),
        log_ends=ends,
        **figures,
    )


def _describe_reference(scope: Scope, sequences: tuple[ReferenceSequences, ...]) -> ReferenceSummary:
    reference = scope.reference
    return ReferenceSummary(
        name=reference.name, kind=reference.kind, nodes=reference.nodes, chosen=reference.chosen, sequences=sequences
    )


def _describe_window(survey: Survey, scope: Scope) -> WindowSummary:
    begin_us = min(survey.log_span_us(node)[0] for node in scope.reference.nodes)
    end_us = max(group.end_us for group in scope.groups)
    until_us = min(end_us, scope.window.until_us)
    return WindowSummary(
        begin=time_of(min(max(begin_us, scope.window.since_us), until_us)),
        end=time_of(until_us),
        settle_horizon_s=scope.settle_us / 1e6,
        settled_until=time_of(min(end_us - scope.settle_us, until_us)),
    )


def _describe_inputs(files: LogFiles, *, survey: Survey) -> Inputs:
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


def _describe_logs(survey: Survey) -> tuple[LogSummary, ...]:
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
