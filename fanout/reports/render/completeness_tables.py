"""The tables of updates (expected, applied, missing) and of final values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fanout.reports.render.table import (
    LINK,
    PLACE,
    TARGET,
    Cell,
    Column,
    Table,
    bounds_cell,
    build,
    build_list,
    cause_cell,
    count_cell,
    moment,
    number,
    of_part,
    share_cell,
    text,
)
from fanout.reports.render.wording import CAUSES, NBSP, count, counted, timestamp
from fanout.reports.values.document import (
    CompletenessPoint,
    CompletenessSeries,
    DifferingTopic,
    MissingUpdate,
    PrefixFigures,
    Report,
    TargetReport,
)
from fanout.reports.values.figures import FinalFigures, UpdateFigures, percent

__all__ = [
    "by_identity",
    "causes",
    "differing",
    "final_values",
    "missing",
    "over_time",
    "prefixes",
]

_NEVER_HELD: Final = Cell(f"never{NBSP}held", "bad")


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a link, how many have missing and how many unknown updates, and the worst of these."""

    series: CompletenessSeries
    missing: int
    unknown: int
    worst: CompletenessPoint | None


def _updates_of(target: TargetReport) -> UpdateFigures:
    assert target.updates is not None, "targets without any are left out"
    return target.updates


def _final_of(target: TargetReport) -> FinalFigures:
    assert target.final is not None, "targets without any are left out"
    return target.final


def _series_of(one: _Windows) -> CompletenessSeries:
    return one.series


def _complete(target: TargetReport) -> Cell:
    figures = _updates_of(target)
    if target.complete_at is None:
        return _NEVER_HELD
    return bounds_cell(figures.complete_percent_at_least, figures.complete_percent_at_most)


def _missing(target: TargetReport) -> Cell:
    """Return a count that is a lower bound unless the reference saw everything."""
    missing = _updates_of(target).missing
    return Cell(count(missing) if target.exact else f"≥{NBSP}{count(missing)}", "bad" if missing else "")


def _share_there(point: CompletenessPoint | None) -> Cell:
    if point is None:
        return share_cell(None)
    there = point.expected - point.missing
    return bounds_cell(percent(there - point.unknown, point.expected), percent(there, point.expected))


def _badness(point: CompletenessPoint) -> tuple[float, float]:
    """Return the share that is missing, and the share that is unknown."""
    return (point.missing / point.expected, point.unknown / point.expected) if point.expected else (0.0, 0.0)


def _cause_column(cause: str, head: str) -> Column[UpdateFigures]:
    if cause == "live":
        return Column(head, lambda one: Cell(count(one.causes.live), "bad" if one.causes.live else "good"))
    return Column(head, lambda one: count_cell(getattr(one.causes, cause)), optional=True)


_UPDATES: Final[tuple[Column[TargetReport], ...]] = (
    *TARGET,
    text("basis", lambda one: one.basis),
    Column("complete", _complete),
    *of_part(
        _updates_of,
        (number("expected", lambda one: one.expected), number("applied", lambda one: one.applied)),
    ),
    Column("missing", _missing),
    *of_part(
        _updates_of,
        (
            number("re-obtained", lambda one: one.reobtained, "", optional=True),
            number("conflated", lambda one: one.conflated, "", optional=True),
            number("superseded", lambda one: one.superseded, "", optional=True),
            number("unknown", lambda one: one.unknown, "fair", optional=True),
            number("not seen", lambda one: one.unseen or 0, "fair", optional=True),
            number("no stamp", lambda one: one.unidentified, "fair", optional=True),
            number("pending", lambda one: one.pending, "", optional=True),
            number("duplicated", lambda one: one.duplicated, ""),
            number("stale, at least", lambda one: one.stale, "", optional=True),
            number("refused", lambda one: one.refused, "bad", optional=True),
            number("not in reference", lambda one: one.unreferenced, "fair", optional=True),
        ),
    ),
)

_CAUSE_COLUMNS: Final[tuple[Column[TargetReport], ...]] = (
    *TARGET,
    *of_part(
        _updates_of,
        (number("missing", lambda one: one.missing), *(_cause_column(cause, head) for cause, head in CAUSES.items())),
    ),
)

_WINDOWS: Final[tuple[Column[_Windows], ...]] = (
    *of_part(_series_of, LINK),
    number("windows", lambda one: len(one.series.points)),
    number("with missing", lambda one: one.missing, "bad"),
    number("with unknown", lambda one: one.unknown, "fair", optional=True),
    Column(
        "worst at (UTC)", lambda one: Cell(timestamp(one.worst.at if one.worst else None, decimals=0)), numeric=False
    ),
    Column("complete there", lambda one: _share_there(one.worst)),
    number("expected there", lambda one: one.worst.expected if one.worst else None),
    Column("missing there", lambda one: count_cell(one.worst.missing if one.worst else None, "bad")),
    Column("unknown there", lambda one: count_cell(one.worst.unknown if one.worst else 0, "fair"), optional=True),
)

_FINAL: Final[tuple[Column[TargetReport], ...]] = (
    *TARGET,
    Column("same values", lambda one: bounds_cell(_final_of(one).equal_percent_at_least, _final_of(one).equal_percent)),
    text("basis", lambda one: one.basis),
    *of_part(
        _final_of,
        (
            number("equal", lambda one: one.equal),
            number("different", lambda one: one.different, "bad"),
            number("absent", lambda one: one.absent, "bad"),
            number("extra", lambda one: one.extra, "bad"),
            number("pending", lambda one: one.pending, "", optional=True),
            number("unknown", lambda one: one.unknown, "fair", optional=True),
        ),
    ),
)

_PREFIXES: Final[tuple[Column[PrefixFigures], ...]] = (
    *PLACE,
    text("prefix", lambda one: one.prefix),
    Column("complete", lambda one: bounds_cell(one.complete_percent_at_least, one.complete_percent_at_most)),
    number("expected", lambda one: one.expected),
    number("missing", lambda one: one.missing, "bad"),
    number("unknown", lambda one: one.unknown, "fair", optional=True),
)

_MISSING: Final[tuple[Column[MissingUpdate], ...]] = (
    *PLACE,
    text("topic", lambda one: one.topic),
    text("stamped by", lambda one: one.primary),
    Column("sequence", lambda one: Cell(str(one.sequence))),
    moment("at", lambda one: one.origin),
    Column("superseded", lambda one: Cell("yes") if one.superseded else Cell("no", "bad"), numeric=False),
    Column("why", lambda one: cause_cell(one.cause), numeric=False),
)

_DIFFERING: Final[tuple[Column[DifferingTopic], ...]] = (
    *PLACE,
    text("topic", lambda one: one.topic),
    Column("final value", lambda one: Cell(one.verdict, "bad"), numeric=False),
)


def by_identity(report: Report) -> Table:
    """Return the table of what each selector got."""
    note = (
        "expected = applied + re-obtained + conflated + missing + unknown. Re-obtained: the very value came back in "
        "a later snapshot or audit. Superseded: of the missing, a later value of the topic did. Unknown: absent from "
        "the node's log in a gap of that log. Not seen: the reference's log lacks so many, of any topic. No stamp: "
        "seen by the reference without an identity. Pending: too young to be judged."
    )
    compared = [target for target in report.targets if target.updates is not None]
    return build("updates", "Updates, one by one", _UPDATES, compared, note)


def causes(report: Report) -> Table:
    """Return the table of what links were doing when they lost updates, for the selectors that lost any."""
    note = (
        "What the link was doing when they were published, by its own log. Node was down: or not holding everything "
        "again yet. Queue cut while away: away or stalled, and the primary had not kept everything. Still away: at the "
        "end of the log. Dropped while connected: an audit found it. Lost by a node above: one of these holds for a "
        "node that it is fed by. Unexplained: live, and nothing says why."
    )
    lossy = [target for target in report.targets if target.updates is not None and target.updates.missing]
    return build("causes", "Missing updates, by what the link was doing", _CAUSE_COLUMNS, lossy, note)


def over_time(report: Report) -> Table:
    """Return the table of the windows of each link in which updates are missing or unknown."""
    section = report.over_time
    width = 0 if section is None else section.window_s
    note = f"In windows of {width:g} s by the time of stamping. Worst: most missing, then most unknown."
    series = () if section is None else section.series
    return build("over-time", "Updates over time", _WINDOWS, map(_windows, series), note)


def final_values(report: Report) -> Table:
    """Return the table of how the final values of each selector compare."""
    note = (
        "Retained values at the end of the logs, topic by topic. Absent: only the reference has one. Extra: only the "
        "node has one. Pending: not equal, but changed within the settle horizon."
    )
    compared = [target for target in report.targets if target.final is not None]
    return build("final-values", "Final values (exact on either basis)", _FINAL, compared, note)


def prefixes(report: Report) -> Table:
    """Return the table of the updates by topic prefix."""
    title = f"Updates by topic prefix, {counted(report.parameters.depth, 'level')}"
    return build_list("prefixes", title, _PREFIXES, report.prefixes)


def missing(report: Report) -> Table:
    """Return the table of the first missing updates."""
    return build_list("missing", "Missing updates", _MISSING, report.missing)


def differing(report: Report) -> Table:
    """Return the table of the first topics whose final values differ."""
    title = "Topics whose final value is not the reference's"
    return build_list("differing", title, _DIFFERING, report.differing)


def _windows(series: CompletenessSeries) -> _Windows:
    lacking = [point for point in series.points if point.missing + point.unknown]
    missing, unknown = (sum(getattr(point, name) > 0 for point in lacking) for name in ("missing", "unknown"))
    return _Windows(series, missing, unknown, max(lacking, key=_badness, default=None))
