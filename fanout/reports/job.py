"""The jobs: read the logs, decide what is compared, compare, and put the figures into a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fanout.errors import ReportError
from fanout.reports.comparison import Comparison
from fanout.reports.document import (
    Parameters,
    ReferenceSequences,
    ReferenceSummary,
    Report,
    TargetReport,
    WindowSummary,
)
from fanout.reports.figures import (
    FinalFigures,
    StampedFigures,
    UnstampedFigures,
    covered_from,
    time_of,
)
from fanout.reports.judging import judge
from fanout.reports.log_files import LogFiles
from fanout.reports.planning import basis_statements, decide_scope
from fanout.reports.reading import read_tables, take_survey
from fanout.reports.scope import Scope, Target
from fanout.reports.sections import describe_inputs, describe_lag, describe_logs, describe_ready
from fanout.reports.survey import Survey

__all__ = ["make_completeness_report", "make_lag_report"]

Progress = Callable[[str], None]


def make_lag_report(spark: SparkSession, files: LogFiles, *, list_limit: int, progress: Progress) -> Report:
    """Return the report on lag and readiness alone."""
    with _spark_errors():
        progress("first look at the logs")
        tables = read_tables(spark, files)
        survey = take_survey(tables)
        if not survey.roles:
            raise ReportError("the logs hold no row", hint="Give the directories that nodes wrote their logs to")
        progress("lag")
        return Report(
            report="lag",
            parameters=Parameters(reference=None, settle_s=0, depth=0, fail_under_percent=None, list_limit=list_limit),
            inputs=describe_inputs(files, survey=survey),
            logs=describe_logs(survey),
            lag=describe_lag(tables, survey=survey),
            ready=describe_ready(tables, survey=survey, list_limit=list_limit),
        )


def make_completeness_report(
    spark: SparkSession, files: LogFiles, *, parameters: Parameters, progress: Progress
) -> Report:
    """Return the report on completeness and lag."""
    with _spark_errors():
        progress("first look at the logs")
        tables = read_tables(spark, files)
        survey = take_survey(tables)
        scope = decide_scope(survey, requested=parameters.reference, settle_us=round(parameters.settle_s * 1_000_000))
        comparison = Comparison(spark, tables, survey=survey, scope=scope, parameters=parameters)
        progress("updates by identity")
        stamped, prefixes, missing = comparison.stamped()
        progress("updates by value")
        unstamped, repeated = comparison.unstamped()
        progress("final values")
        finals, differing = comparison.finals()
        targets = tuple(
            _target_report(target, scope, stamped.get(target.id), unstamped.get(target.id), finals[target.id])
            for target in scope.targets
        )
        progress("lag")
        return Report(
            report="completeness",
            parameters=parameters,
            inputs=describe_inputs(files, survey=survey),
            logs=describe_logs(survey),
            reference=_describe_reference(scope, comparison.reference_sequences()),
            basis=basis_statements(scope),
            window=_describe_window(survey, scope),
            notices=scope.notices,
            targets=targets,
            prefixes=prefixes,
            missing=missing,
            differing=differing,
            repeated=repeated,
            lag=describe_lag(tables, survey=survey),
            ready=describe_ready(tables, survey=survey, list_limit=parameters.list_limit),
            verdict=judge(targets, fail_under_percent=parameters.fail_under_percent),
        )


def _target_report(
    target: Target,
    scope: Scope,
    stamped: StampedFigures | None,
    unstamped: UnstampedFigures | None,
    final: FinalFigures,
) -> TargetReport:
    group = scope.groups[target.group]
    return TargetReport(
        node=target.node,
        link=target.link,
        filter=target.selection.filter,
        exclude=target.selection.exclude,
        basis=group.basis,
        exact=group.exact,
        stamped_by=group.stamped_by,
        complete_at=None if target.held_from_us is None else time_of(target.held_from_us),
        covered_from=covered_from(target.covered_from_us),
        covered_until=time_of(target.covered_until_us),
        stamped=stamped,
        unstamped=unstamped,
        final=final,
    )


def _describe_reference(scope: Scope, sequences: tuple[ReferenceSequences, ...]) -> ReferenceSummary:
    return ReferenceSummary(
        name=scope.reference.name,
        kind=scope.reference.kind,
        nodes=scope.reference.nodes,
        chosen=scope.reference.chosen,
        sequences=sequences,
    )


def _describe_window(survey: Survey, scope: Scope) -> WindowSummary:
    begin_us = min(survey.log_span_us(node)[0] for node in scope.reference.nodes)
    end_us = max(group.end_us for group in scope.groups)
    return WindowSummary(
        begin=time_of(begin_us),
        end=time_of(end_us),
        settle_horizon_s=scope.settle_us / 1e6,
        settled_until=time_of(end_us - scope.settle_us),
    )


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Turn what Spark says of unreadable input into an error of ours."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ReportError(
            f"Spark could not run the report: {lines[0]}", hint="Check the log files with `fanout log verify`"
        ) from error
