"""The jobs: read the logs, decide what is compared, compare, and put the figures into a report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal

from pyspark.sql import SparkSession

from fanout.errors import ReportError
from fanout.reports.figures.by_identity import IdentityComparison
from fanout.reports.figures.by_value import describe_by_value
from fanout.reports.figures.convergence import describe_convergence
from fanout.reports.figures.final_values import describe_finals
from fanout.reports.figures.judging import judge
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.figures.sections import describe_inputs, describe_lag, describe_logs
from fanout.reports.figures.snapshots import LinkSections, describe_links
from fanout.reports.figures.stalls import describe_stalls
from fanout.reports.figures.topic_states import TopicStates
from fanout.reports.figures.traffic import basis_statement, describe_traffic, traffic_scope
from fanout.reports.identify.planning import basis_statements, decide_scope
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import Earlier, Tables, read_tables, spark_errors, take_survey, with_holes
from fanout.reports.read.scope import AskedWindow, Scope, Target
from fanout.reports.read.survey import Survey
from fanout.reports.values.document import (
    Parameters,
    ReferenceSequences,
    ReferenceSummary,
    Report,
    ReportName,
    TargetReport,
    WindowSummary,
)
from fanout.reports.values.figures import (
    FinalFigures,
    StampedFigures,
    UnstampedFigures,
    covered_from,
    time_of,
)

__all__ = ["make_completeness_report", "make_lag_report", "make_section_report"]

Progress = Callable[[str], None]

_SNAPSHOTS_BASIS: Final = "The links' own events, each by its node's clock; no reference is needed."
_LAG_BASIS: Final = (
    "Propagation times run from an update's stamp to its logging at the node, by two clocks whose difference is in "
    "them; updates without a stamp have none. Round trips are those of the links' heartbeats, by one clock. No "
    "reference is needed."
)
_UNION_REFUSED: Final = (
    "the secondaries are compared with one another only, and what none of them may read is missing at none of them: "
    "give the log of a tap with a user of its own, or of the primary; --accept-union judges without"
)


def make_section_report(
    spark: SparkSession,
    files: LogFiles,
    *,
    name: ReportName,
    parameters: Parameters,
    parquet: str | None = None,
    progress: Progress,
) -> Report:
    """Return the report on snapshots, convergence, stalls or traffic.

    Args:
        spark: The session.
        files: The logs.
        name: Which of the four.
        parameters: What was asked for.
        parquet: The directory or URI for the tables as Parquet; None writes none.
        progress: Is told the name of each stage when it begins.
    """
    settle_us = round(parameters.settle_s * 1_000_000)
    window = _asked(parameters)
    out = ParquetTables(spark, parquet)
    limit = parameters.list_limit
    with spark_errors():
        tables, survey, progress = _look(spark, files, window=window, progress=progress)
        progress(name)
        common: dict[str, Any] = {
            "report": name,
            "parameters": parameters,
            "inputs": describe_inputs(files, survey=survey),
            "logs": describe_logs(survey),
        }
        if name == "snapshots":
            links = describe_links(
                spark, tables, survey=survey, settle_us=settle_us, window=window, list_limit=limit, parquet=out
            )
            return Report(**common, basis=(_SNAPSHOTS_BASIS,), snapshots=links.snapshots)
        if name == "traffic":
            scope = traffic_scope(survey, requested=parameters.reference, settle_us=settle_us, window=window)
            counted = describe_traffic(
                spark, tables, survey=survey, scope=scope, depth=parameters.depth, list_limit=limit, parquet=out
            )
            basis: tuple[str, ...] = (basis_statement(scope.reference),)
        else:
            scope = _scope(survey, parameters)
            basis = basis_statements(scope)
        common |= {
            "reference": _describe_reference(scope, ()),
            "basis": basis,
            "window": _describe_window(survey, scope),
            "notices": scope.notices,
        }
        if name == "traffic":
            return Report(**common, traffic=counted)
        with TopicStates(spark, tables, survey=survey, scope=scope) as states:
            if name == "stalls":
                return Report(**common, stalls=describe_stalls(states, list_limit=limit, parquet=out))
            return Report(**common, convergence=describe_convergence(states, list_limit=limit, parquet=out))


def make_lag_report(
    spark: SparkSession,
    files: LogFiles,
    *,
    depth: int = 0,
    list_limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    parquet: str | None = None,
    progress: Progress,
) -> Report:
    """Return the report on lag and readiness alone, with a depth above 0 by topic prefix too."""
    parameters = Parameters(
        reference=None,
        settle_s=0,
        depth=depth,
        fail_under_percent=None,
        list_limit=list_limit,
        since=since,
        until=until,
    )
    window = _asked(parameters)
    with spark_errors():
        tables, survey, progress = _look(spark, files, window=window, progress=progress)
        progress("lag")
        out = ParquetTables(spark, parquet)
        return Report(
            report="lag",
            parameters=parameters,
            basis=(_LAG_BASIS,),
            inputs=describe_inputs(files, survey=survey),
            logs=describe_logs(survey),
            lag=describe_lag(
                tables,
                survey=survey,
                window=window,
                depth=depth,
                list_limit=list_limit,
                parquet=out,
            ),
            ready=describe_links(
                spark, tables, survey=survey, settle_us=0, window=window, list_limit=list_limit, parquet=None
            ).ready,
        )


def make_completeness_report(
    spark: SparkSession,
    files: LogFiles,
    *,
    name: Literal["completeness", "all"] = "completeness",
    parameters: Parameters,
    earlier: Earlier | None = None,
    parquet: str | None = None,
    progress: Progress,
) -> Report:
    """Return the report on completeness and lag, or with the name `all` on everything, from one look at the logs.

    Args:
        spark: The session.
        files: The logs.
        name: Which of the two.
        parameters: What was asked for.
        earlier: What is known of the time before the files, where these are not whole logs; None where they are.
        parquet: The directory or URI for the tables as Parquet; None writes none.
        progress: Is told the name of each stage when it begins.
    """
    out = ParquetTables(spark, parquet)
    with spark_errors():
        tables, survey, progress = _look(spark, files, window=_asked(parameters), earlier=earlier, progress=progress)
        scope = _scope(survey, parameters)
        compared: dict[str, Any] = {"survey": survey, "scope": scope, "parameters": parameters, "parquet": out}
        identities = IdentityComparison(spark, tables, **compared)
        progress("updates by identity")
        sequences = identities.reference_sequences()
        by_identity = identities.stamped(sequences)
        progress("updates by value")
        unstamped, repeated = describe_by_value(
            spark, tables, survey=survey, scope=scope, list_limit=parameters.list_limit
        )
        progress("final values")
        states = TopicStates(spark, tables, survey=survey, scope=scope)
        finals, differing = describe_finals(states, list_limit=parameters.list_limit, parquet=out)
        targets = tuple(
            _target_report(
                target, scope, by_identity.figures.get(target.id), unstamped.get(target.id), finals.get(target.id)
            )
            for target in scope.targets
        )
        progress("lag")
        links = describe_links(
            spark,
            tables,
            survey=survey,
            settle_us=scope.settle_us,
            window=scope.window,
            list_limit=parameters.list_limit,
            parquet=out if name == "all" else None,
        )
        report = Report(
            report=name,
            parameters=parameters,
            inputs=describe_inputs(files, survey=survey),
            logs=describe_logs(survey),
            reference=_describe_reference(scope, sequences),
            basis=basis_statements(scope),
            window=_describe_window(survey, scope),
            notices=scope.notices,
            targets=targets,
            prefixes=by_identity.prefixes,
            prefix_map=by_identity.prefix_map,
            over_time=by_identity.over_time,
            missing_topics=by_identity.topics,
            missing=by_identity.missing,
            differing=differing,
            repeated=repeated,
            lag=describe_lag(
                tables,
                survey=survey,
                window=scope.window,
                depth=parameters.depth,
                list_limit=parameters.list_limit,
                parquet=out,
            ),
            ready=links.ready,
            verdict=judge(
                targets,
                fail_under_percent=parameters.fail_under_percent,
                left_out=scope.left_out,
                cut_off=scope.cut_off,
                refused_reference=_UNION_REFUSED
                if scope.reference.kind == "union" and not parameters.accept_union
                else "",
            ),
        )
        with states:
            if name == "completeness":
                return report
            return _with_sections(
                report, spark, tables, links, states=states, parameters=parameters, parquet=out, progress=progress
            )


def _with_sections(
    report: Report,
    spark: SparkSession,
    tables: Tables,
    links: LinkSections,
    *,
    states: TopicStates,
    parameters: Parameters,
    parquet: ParquetTables,
    progress: Progress,
) -> Report:
    """Return a completeness report with the sections of all other reports, relative to the same reference."""
    survey, scope = states.survey, states.scope
    settle_us, limit = scope.settle_us, parameters.list_limit
    progress("stalls")
    stalled = describe_stalls(states, list_limit=limit, parquet=parquet)
    progress("convergence")
    held = describe_convergence(states, list_limit=limit, parquet=parquet)
    progress("traffic")
    # By the same rule it has the same reference. Its groups are not those of the comparison, where a primary that
    # links over MQTT 3.1.1 are compared with stands twice, by identity and by value: its updates would count twice.
    seen = traffic_scope(survey, requested=parameters.reference, settle_us=settle_us, window=scope.window)
    counted = describe_traffic(
        spark, tables, survey=survey, scope=seen, depth=parameters.depth, list_limit=limit, parquet=parquet
    )
    return report.model_copy(
        update={
            "basis": (
                *report.basis,
                f"Traffic: {basis_statement(seen.reference)}",
                f"Epochs: {_SNAPSHOTS_BASIS}",
            ),
            "stalls": stalled,
            "convergence": held,
            "snapshots": links.snapshots,
            "traffic": counted,
        }
    )


def _look(
    spark: SparkSession,
    files: LogFiles,
    *,
    window: AskedWindow,
    earlier: Earlier | None = None,
    progress: Progress,
) -> tuple[Tables, Survey, Progress]:
    """Return the tables, what they hold, and what tells of each further stage with the number of rows."""
    progress("first look at the logs")
    tables = read_tables(spark, files, earlier=earlier)
    survey = take_survey(tables, window=window).begun_at(() if earlier is None else earlier.cuts)
    survey = with_holes(survey, tables=tables)
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
    rows = sum(each.rows for each in survey.updates)
    return tables, survey, lambda stage: progress(f"{stage}, {rows:,} rows")


def _scope(survey: Survey, parameters: Parameters) -> Scope:
    return decide_scope(
        survey,
        requested=parameters.reference,
        settle_us=round(parameters.settle_s * 1_000_000),
        behind_max_us=round(parameters.behind_max_s * 1_000_000),
        window=_asked(parameters),
    )


def _asked(parameters: Parameters) -> AskedWindow:
    return AskedWindow.between(parameters.since, parameters.until)


def _target_report(
    target: Target,
    scope: Scope,
    stamped: StampedFigures | None,
    unstamped: UnstampedFigures | None,
    final: FinalFigures | None,
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
    until_us = min(end_us, scope.window.until_us)
    return WindowSummary(
        begin=time_of(min(max(begin_us, scope.window.since_us), until_us)),
        end=time_of(until_us),
        settle_horizon_s=scope.settle_us / 1e6,
        settled_until=time_of(min(end_us - scope.settle_us, until_us)),
    )
