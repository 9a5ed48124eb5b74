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
    count_cell,
    moment,
    number,
    of_part,
    share_at_most_cell,
    share_cell,
    text,
)
from fanout.reports.render.wording import NBSP, NOTHING, count, counted, percentage, timestamp
from fanout.reports.values.document import (
    CompletenessPoint,
    CompletenessSeries,
    DifferingTopic,
    MissingUpdate,
    PrefixFigures,
    RepeatedTopic,
    Report,
    TargetReport,
)
from fanout.reports.values.figures import FinalFigures, MissingCauses, StampedFigures, UnstampedFigures

__all__ = [
    "by_identity",
    "by_value",
    "causes",
    "differing",
    "final_values",
    "missing",
    "over_time",
    "prefixes",
    "repeated",
]

Figures = TypeVar("Figures")

_CAUSES: Final = {
    "restart": "node down",
    "new_epoch": "new epoch",
    "resumed": "session resumed",
    "away": "still away",
    "audit": "found by audit",
    "upstream": "node above",
    "live": "unexplained",
}
"""The heads of the columns for `MissingCauses`."""


_NEVER_HELD: Final = Cell(f"never{NBSP}held", "bad")


@dataclass(frozen=True, slots=True)
class _Compared(Generic[Figures]):
    """A selector with one kind of its figures."""

    target: TargetReport
    figures: Figures


@dataclass(frozen=True, slots=True)
class _Lost:
    """A selector that lost updates: how many, why, and how sure that is."""

    target: TargetReport
    updates: int
    causes: MissingCauses
    exact: bool


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a link, and the worst of those in which updates are lacking."""

    series: CompletenessSeries
    lacking: int
    worst: CompletenessPoint | None


def _target_of(one: _Compared[Any] | _Lost) -> TargetReport:
    return one.target


def _series_of(one: _Windows) -> CompletenessSeries:
    return one.series


def _complete(one: _Compared[StampedFigures]) -> Cell:
    figures = one.figures
    if one.target.complete_at is None:
        return _NEVER_HELD
    if figures.unseen is not None and (figures.unknown or figures.unseen or figures.unidentified):
        return Cell(f"≥{NBSP}{percentage(figures.complete_percent_at_least)}", "fair")
    if one.target.exact:
        return share_cell(figures.complete_percent)
    return share_at_most_cell(figures.complete_percent_at_most)


def _complete_by_value(one: _Compared[UnstampedFigures]) -> Cell:
    never = one.target.complete_at is None
    return _NEVER_HELD if never else share_at_most_cell(one.figures.complete_percent_at_most)


def _at_least(updates: int | None, tone: Tone = "", *, exact: bool = False) -> Cell:
    """Return a count that is a lower bound unless it is exact."""
    if updates is None:
        return Cell(NOTHING)
    return Cell(count(updates) if exact else f"≥{NBSP}{count(updates)}", tone if updates else "")


def _explained(one: _Lost, cause: str) -> Cell:
    """Return how many updates a cause explains: at most so many, where the number of the lost is at least so many."""
    updates = getattr(one.causes, cause)
    return count_cell(updates) if one.exact or not updates else Cell(f"≤{NBSP}{count(updates)}")


def _unexplained(one: _Lost) -> Cell:
    updates = one.causes.live
    return Cell(_at_least(updates, exact=one.exact).text, "bad" if updates else "good")


def _same(final: FinalFigures) -> Cell:
    if final.unknown:
        return Cell(f"≥{NBSP}{percentage(final.equal_percent_at_least)}", "fair")
    return share_cell(final.equal_percent)


def _share_of_prefix(prefix: PrefixFigures) -> Cell:
    if prefix.complete_percent_at_least is None:
        return share_at_most_cell(prefix.complete_percent_at_most)
    return share_cell(prefix.complete_percent_at_least)


def _share(point: CompletenessPoint) -> float:
    return (point.expected - point.missing - point.unknown) / point.expected if point.expected else 1.0


def _cause_column(cause: str, head: str) -> Column[_Lost]:
    if cause == "live":
        return Column(head, _unexplained)
    return Column(head, lambda one: _explained(one, cause), optional=True)


_STAMPED: Final[tuple[Column[_Compared[StampedFigures]], ...]] = (
    *of_part(_target_of, TARGET),
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

_UNSTAMPED: Final[tuple[Column[_Compared[UnstampedFigures]], ...]] = (
    *of_part(_target_of, TARGET),
    Column("complete, at most", _complete_by_value),
    number("reference saw", lambda one: one.figures.reference_updates),
    number("node saw", lambda one: one.figures.node_updates),
    Column("missing, at least", lambda one: _at_least(one.figures.missing_at_least, "bad")),
    Column("extra, at least", lambda one: _at_least(one.figures.extra_at_least)),
    number("unknown", lambda one: one.figures.unknown, "fair", optional=True),
    number("topics", lambda one: one.figures.topics),
    Column("repeating", lambda one: _at_least(one.figures.repeated_topics, "fair", exact=True)),
)


_CAUSE_COLUMNS: Final[tuple[Column[_Lost], ...]] = (
    *of_part(_target_of, TARGET),
    Column("missing", lambda one: _at_least(one.updates, exact=one.exact)),
    *(_cause_column(cause, head) for cause, head in _CAUSES.items()),
)

_WINDOWS: Final[tuple[Column[_Windows], ...]] = (
    *of_part(_series_of, LINK),
    number("windows", lambda one: len(one.series.points)),
    number("lacking", lambda one: one.lacking, "bad"),
    Column(
        "worst at (UTC)", lambda one: Cell(timestamp(one.worst.at if one.worst else None, decimals=0)), numeric=False
    ),
    Column("complete there", lambda one: share_cell(100 * _share(one.worst) if one.worst else None)),
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
    Column("link was", lambda one: Cell(_CAUSES[one.cause], "bad" if one.cause == "live" else ""), numeric=False),
)

_DIFFERING: Final[tuple[Column[DifferingTopic], ...]] = (
    *PLACE,
    text("topic", lambda one: one.topic),
    Column("final value", lambda one: Cell(one.verdict, "bad"), numeric=False),
)

_REPEATED: Final[tuple[Column[RepeatedTopic], ...]] = (
    *PLACE,
    text("topic", lambda one: one.topic),
    number("reference saw", lambda one: one.reference_updates),
)


def by_identity(report: Report) -> Table:
    """Return the table of what each selector got of the updates that carry a stamp."""
    note = (
        "expected = applied + re-obtained + conflated + missing + unknown. Re-obtained: the very value came back in "
        "a later snapshot or audit. Superseded: of the missing, a later value of the topic did. Unknown: absent from "
        "the node's log in a gap of that log. Not seen: the reference's log lacks so many, of any topic. No stamp: "
        "seen by the reference without an identity. Pending: too young to be judged."
    )
    compared = _compared(report, lambda target: target.stamped)
    return build("updates-stamped", "Updates, by identity (stamped)", _STAMPED, compared, note)


def by_value(report: Report) -> Table:
    """Return the table of the bounds of each selector whose updates carry no stamp."""
    note = (
        "Lower bounds from how often each (topic, value) was seen by whom. Repeating: topics with a value that came "
        "more than once; a loss and a copy can cancel there, so more may be missing than is shown."
    )
    compared = _compared(report, lambda target: target.unstamped)
    return build("updates-unstamped", "Updates, by value (unstamped: at least)", _UNSTAMPED, compared, note)


def causes(report: Report) -> Table:
    """Return the table of what links were doing when they lost updates, for the selectors that lost any."""
    note = (
        "What the link was doing when they were published, by its own log. Node down: or not holding everything again "
        "yet. New epoch: away, and the session was gone. Session resumed: away or stalled, and the primary had not "
        "kept everything. Still away: at the end of the log. Found by audit: the primary had dropped something. "
        "Node above: one of these holds for a node that it is fed by. Unexplained: live, and nothing says why."
    )
    return build("causes", "Missing updates, by what the link was doing", _CAUSE_COLUMNS, _lost(report), note)


def over_time(report: Report) -> Table:
    """Return the table of the windows of each link in which updates are lacking."""
    section = report.over_time
    width = 0 if section is None else section.window_s
    note = f"In windows of {width:g} s by the time of stamping; what is unknown counts as lacking."
    series = () if section is None else section.series
    return build("over-time", "Updates over time (stamped)", _WINDOWS, map(_windows, series), note)


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
    title = f"Updates by topic prefix, {counted(report.parameters.depth, 'level')} (stamped)"
    return build_list("prefixes", title, _PREFIXES, report.prefixes)


def missing(report: Report) -> Table:
    """Return the table of the first missing updates."""
    return build_list("missing", "Missing updates", _MISSING, report.missing)


def differing(report: Report) -> Table:
    """Return the table of the first topics whose final values differ."""
    title = "Topics whose final value is not the reference's"
    return build_list("differing", title, _DIFFERING, report.differing)


def repeated(report: Report) -> Table:
    """Return the table of the first topics on which a loss can stay unseen."""
    title = "Topics with repeating values, on which a loss can stay unseen (unstamped)"
    return build_list("repeated", title, _REPEATED, report.repeated)


def _compared(report: Report, get: Callable[[TargetReport], Figures | None]) -> Iterator[_Compared[Figures]]:
    for target in report.targets:
        if (figures := get(target)) is not None:
            yield _Compared(target, figures)


def _lost(report: Report) -> Iterator[_Lost]:
    for target in report.targets:
        if target.stamped is not None:
            lost = _Lost(target, target.stamped.missing, target.stamped.causes, exact=True)
        elif target.unstamped is not None:
            lost = _Lost(target, target.unstamped.missing_at_least, target.unstamped.causes, exact=False)
        else:
            continue
        if lost.updates:
            yield lost


def _windows(series: CompletenessSeries) -> _Windows:
    lacking = [point for point in series.points if point.missing + point.unknown]
    return _Windows(series, len(lacking), min(lacking, key=_share, default=None))
