"""The tables of what was expected, applied, missing, and equal in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from fanout.reports.render.table import (
    LINK,
    PLACE,
    TARGET,
    Cell,
    Column,
    Table,
    Tone,
    build,
    build_list,
    cause_cell,
    count_cell,
    moment,
    number,
    of_part,
    share_at_most_cell,
    share_cell,
    text,
)
from fanout.reports.render.wording import CAUSES, NBSP, NOTHING, count, counted, percentage, timestamp
from fanout.reports.values.document import (
    CompletenessPoint,
    CompletenessSeries,
    DifferingTopic,
    MissingUpdate,
    PrefixFigures,
    Report,
    TargetReport,
)
from fanout.reports.values.figures import FinalFigures, MissingCauses, UpdateFigures, percent

__all__ = [
    "by_identity",
    "causes",
    "differing",
    "final_values",
    "missing",
    "over_time",
    "prefixes",
]

Figures = TypeVar("Figures")

_NEVER_HELD: Final = Cell(f"never{NBSP}held", "bad")


@dataclass(frozen=True, slots=True)
class _Compared(Generic[Figures]):
    """A selector with one kind of its figures."""

    target: TargetReport
    figures: Figures


@dataclass(frozen=True, slots=True)
class _Lost:
    """A selector that lost updates: how many, and why."""

    target: TargetReport
    updates: int
    causes: MissingCauses


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a link, how many have missing and how many unknown updates, and the worst of these."""

    series: CompletenessSeries
    missing: int
    unknown: int
    worst: CompletenessPoint | None


def _target_of(one: _Compared[Any] | _Lost) -> TargetReport:
    return one.target


def _series_of(one: _Windows) -> CompletenessSeries:
    return one.series


def _complete(one: _Compared[UpdateFigures]) -> Cell:
    figures = one.figures
    if one.target.complete_at is None:
        return _NEVER_HELD
    if figures.unseen is not None and (figures.unknown or figures.unseen or figures.unidentified):
        return Cell(f"≥{NBSP}{percentage(figures.complete_percent_at_least)}", "fair")
    if one.target.exact:
        return share_cell(figures.complete_percent)
    return share_at_most_cell(figures.complete_percent_at_most)


def _at_least(updates: int | None, tone: Tone = "", *, exact: bool) -> Cell:
    """Return a count that is a lower bound unless it is exact."""
    if updates is None:
        return Cell(NOTHING)
    return Cell(count(updates) if exact else f"≥{NBSP}{count(updates)}", tone if updates else "")


def _same(final: FinalFigures) -> Cell:
    if final.unknown:
        return Cell(f"≥{NBSP}{percentage(final.equal_percent_at_least)}", "fair")
    return share_cell(final.equal_percent)


def _share_of_prefix(prefix: PrefixFigures) -> Cell:
    if prefix.complete_percent_at_least is None:
        return share_at_most_cell(prefix.complete_percent_at_most)
    return _share_known(prefix.complete_percent_at_least, prefix.unknown)


def _share_there(point: CompletenessPoint | None) -> Cell:
    if point is None:
        return share_cell(None)
    return _share_known(percent(point.expected - point.missing - point.unknown, point.expected), point.unknown)


def _share_known(share: float | None, unknown: int) -> Cell:
    """Return a share, which is a lower bound if anything is unknown."""
    return Cell(f"≥{NBSP}{percentage(share)}", "fair") if unknown else share_cell(share)


def _badness(point: CompletenessPoint) -> tuple[float, float]:
    """Return the share that is missing, and the share that is unknown."""
    return (point.missing / point.expected, point.unknown / point.expected) if point.expected else (0.0, 0.0)


def _cause_column(cause: str, head: str) -> Column[_Lost]:
    if cause == "live":
        return Column(head, lambda one: Cell(count(one.causes.live), "bad" if one.causes.live else "good"))
    return Column(head, lambda one: count_cell(getattr(one.causes, cause)), optional=True)


_UPDATES: Final[tuple[Column[_Compared[UpdateFigures]], ...]] = (
    *of_part(_target_of, TARGET),
    text("basis", lambda one: one.target.basis),
    Column("complete", _complete),
    number("expected", lambda one: one.figures.expected),
    number("applied", lambda one: one.figures.applied),
    Column("missing", lambda one: _at_least(one.figures.missing, "bad", exact=one.target.exact)),
    number("re-obtained", lambda one: one.figures.reobtained, "", optional=True),
    number("conflated", lambda one: one.figures.conflated, "", optional=True),
    number("superseded", lambda one: one.figures.superseded, "", optional=True),
    number("unknown", lambda one: one.figures.unknown, "fair", optional=True),
    number("not seen", lambda one: one.figures.unseen or 0, "fair", optional=True),
    number("no stamp", lambda one: one.figures.unidentified, "fair", optional=True),
    number("pending", lambda one: one.figures.pending, "", optional=True),
    number("duplicated", lambda one: one.figures.duplicated, ""),
    number("stale, at least", lambda one: one.figures.stale, "", optional=True),
    number("refused", lambda one: one.figures.refused, "bad", optional=True),
    number("not in reference", lambda one: one.figures.unreferenced, "fair", optional=True),
)


_CAUSE_COLUMNS: Final[tuple[Column[_Lost], ...]] = (
    *of_part(_target_of, TARGET),
    number("missing", lambda one: one.updates),
    *(_cause_column(cause, head) for cause, head in CAUSES.items()),
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

_FINAL: Final[tuple[Column[_Compared[FinalFigures]], ...]] = (
    *of_part(_target_of, TARGET),
    Column("same values", lambda one: _same(one.figures)),
    text("basis", lambda one: one.target.basis),
    number("equal", lambda one: one.figures.equal),
    number("different", lambda one: one.figures.different, "bad"),
    number("absent", lambda one: one.figures.absent, "bad"),
    number("extra", lambda one: one.figures.extra, "bad"),
    number("pending", lambda one: one.figures.pending, "", optional=True),
    number("unknown", lambda one: one.figures.unknown, "fair", optional=True),
)

_PREFIXES: Final[tuple[Column[PrefixFigures], ...]] = (
    *PLACE,
    text("prefix", lambda one: one.prefix),
    Column("complete", _share_of_prefix),
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
    compared = _compared(report, lambda target: target.updates)
    return build("updates", "Updates, one by one", _UPDATES, compared, note)


def causes(report: Report) -> Table:
    """Return the table of what links were doing when they lost updates, for the selectors that lost any."""
    note = (
        "What the link was doing when they were published, by its own log. Node was down: or not holding everything "
        "again yet. Queue cut while away: away or stalled, and the primary had not kept everything. Still away: at the "
        "end of the log. Dropped while connected: an audit found it. Lost by a node above: one of these holds for a "
        "node that it is fed by. Unexplained: live, and nothing says why."
    )
    return build("causes", "Missing updates, by what the link was doing", _CAUSE_COLUMNS, _lost(report), note)


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
    compared = _compared(report, lambda target: target.final)
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


def _compared(report: Report, get: Callable[[TargetReport], Figures | None]) -> Iterator[_Compared[Figures]]:
    for target in report.targets:
        if (figures := get(target)) is not None:
            yield _Compared(target, figures)


def _lost(report: Report) -> Iterator[_Lost]:
    for target in report.targets:
        if (figures := target.updates) is not None and figures.missing:
            yield _Lost(target, figures.missing, figures.causes)


def _windows(series: CompletenessSeries) -> _Windows:
    lacking = [point for point in series.points if point.missing + point.unknown]
    missing, unknown = (sum(getattr(point, name) > 0 for point in lacking) for name in ("missing", "unknown"))
    return _Windows(series, missing, unknown, max(lacking, key=_badness, default=None))
