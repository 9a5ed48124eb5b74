"""The tables of what was expected, applied, missing, and equal in the end."""

from __future__ import annotations

from typing import Final

from fanout.reports.render.table import (
    PLACE,
    Cell,
    Column,
    Table,
    build,
    count_cell,
    place_cells,
    share_at_most_cell,
    share_cell,
)
from fanout.reports.render.wording import NBSP, NOTHING, count, counted, percentage, printable, timestamp
from fanout.reports.values.document import CompletenessPoint, Report
from fanout.reports.values.figures import MissingCauses

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


def by_identity(report: Report) -> Table:
    """Return the table of what each selector got of the updates that carry a stamp."""
    columns = (
        *PLACE,
        Column("complete"),
        Column("expected"),
        Column("applied"),
        Column("missing"),
        Column("re-obtained", optional=True),
        Column("conflated", optional=True),
        Column("superseded", optional=True),
        Column("unknown", optional=True),
        Column("not seen", optional=True),
        Column("no stamp", optional=True),
        Column("pending", optional=True),
        Column("duplicated"),
        Column("stale, at least", optional=True),
        Column("refused", optional=True),
        Column("not in reference", optional=True),
    )
    rows: list[tuple[Cell, ...]] = []
    for target in report.targets:
        figures = target.stamped
        if figures is None:
            continue
        missing = count(figures.missing) if target.exact else f"≥{NBSP}{count(figures.missing)}"
        if target.complete_at is None:
            complete = Cell(f"never{NBSP}held", "bad")
        elif figures.unseen is not None and (figures.unknown or figures.unseen or figures.unidentified):
            complete = Cell(f"≥{NBSP}{percentage(figures.complete_percent_at_least)}", "fair")
        elif target.exact:
            complete = share_cell(figures.complete_percent)
        else:
            complete = share_at_most_cell(figures.complete_percent_at_most)
        rows.append(
            (
                *place_cells(target),
                complete,
                Cell(count(figures.expected)),
                Cell(count(figures.applied)),
                Cell(missing, "bad" if figures.missing else ""),
                count_cell(figures.reobtained),
                count_cell(figures.conflated),
                count_cell(figures.superseded),
                count_cell(figures.unknown, "fair"),
                count_cell(figures.unseen or 0, "fair"),
                count_cell(figures.unidentified, "fair"),
                count_cell(figures.pending),
                count_cell(figures.duplicated),
                count_cell(figures.stale),
                count_cell(figures.refused, "bad"),
                count_cell(figures.unreferenced, "fair"),
            )
        )
    note = (
        "expected = applied + re-obtained + conflated + missing + unknown. Re-obtained: the very value came back in "
        "a later snapshot or audit. Superseded: of the missing, a later value of the topic did. Unknown: absent from "
        "the node's log in a gap of that log. Not seen: the reference's log lacks so many, of any topic. No stamp: "
        "seen by the reference without an identity. Pending: too young to be judged."
    )
    return build("updates-stamped", "Updates, by identity (stamped)", columns, rows, note)


def by_value(report: Report) -> Table:
    """Return the table of the bounds of each selector whose updates carry no stamp."""
    columns = (
        *PLACE,
        Column("complete, at most"),
        Column("reference saw"),
        Column("node saw"),
        Column("missing, at least"),
        Column("extra, at least"),
        Column("unknown", optional=True),
        Column("topics"),
        Column("repeating"),
    )
    rows: list[tuple[Cell, ...]] = []
    for target in report.targets:
        figures = target.unstamped
        if figures is None:
            continue
        never = target.complete_at is None
        rows.append(
            (
                *place_cells(target),
                Cell(f"never{NBSP}held", "bad") if never else share_at_most_cell(figures.complete_percent_at_most),
                Cell(count(figures.reference_updates)),
                Cell(count(figures.node_updates)),
                Cell(f"≥{NBSP}{count(figures.missing_at_least)}", "bad" if figures.missing_at_least else ""),
                Cell(NOTHING if figures.extra_at_least is None else f"≥{NBSP}{count(figures.extra_at_least)}"),
                count_cell(figures.unknown, "fair"),
                Cell(count(figures.topics)),
                Cell(count(figures.repeated_topics), "fair" if figures.repeated_topics else ""),
            )
        )
    note = (
        "Lower bounds from how often each (topic, value) was seen by whom. Repeating: topics with a value that came "
        "more than once; a loss and a copy can cancel there, so more may be missing than is shown."
    )
    return build("updates-unstamped", "Updates, by value (unstamped: at least)", columns, rows, note)


def causes(report: Report) -> Table:
    """Return the table of what links were doing when they lost updates, for the selectors that lost any."""
    columns = (*PLACE, Column("missing"), *(Column(head, optional=name != "live") for name, head in _CAUSES.items()))
    rows: list[tuple[Cell, ...]] = []
    for target in report.targets:
        if target.stamped is not None:
            lost, found, most, least = target.stamped.missing, target.stamped.causes, "", ""
        elif target.unstamped is not None:
            lost, found = target.unstamped.missing_at_least, target.unstamped.causes
            most, least = f"≤{NBSP}", f"≥{NBSP}"
        else:
            continue
        if not lost:
            continue
        explained = [Cell(f"{most}{count(n)}" if n else count(n), "" if n else "dim") for n in _explained(found)]
        left = Cell(f"{least}{count(found.live)}", "bad" if found.live else "good")
        rows.append((*place_cells(target), Cell(f"{least}{count(lost)}"), *explained, left))
    note = (
        "What the link was doing when they were published, by its own log. Node down: or not holding everything again "
        "yet. New epoch: away, and the session was gone. Session resumed: away or stalled, and the primary had not "
        "kept everything. Still away: at the end of the log. Found by audit: the primary had dropped something. "
        "Node above: one of these holds for a node that it is fed by. Unexplained: live, and nothing says why."
    )
    return build("causes", "Missing updates, by what the link was doing", columns, rows, note)


def over_time(report: Report) -> Table:
    """Return the table of the windows of each link in which updates are lacking."""
    columns = (
        *PLACE[:2],
        Column("windows"),
        Column("lacking"),
        Column("worst at (UTC)", numeric=False),
        Column("complete there"),
        Column("expected there"),
        Column("missing there"),
        Column("unknown there", optional=True),
    )
    section = report.over_time
    rows: list[tuple[Cell, ...]] = []
    for series in () if section is None else section.series:
        lacking = [point for point in series.points if point.missing + point.unknown]
        worst = min(lacking, key=_share, default=None)
        rows.append(
            (
                Cell(printable(series.node)),
                Cell(printable(series.link)),
                Cell(count(len(series.points))),
                count_cell(len(lacking), "bad"),
                Cell(timestamp(None if worst is None else worst.at, decimals=0)),
                Cell(NOTHING, "dim") if worst is None else share_cell(100 * _share(worst)),
                Cell(count(None if worst is None else worst.expected)),
                Cell(NOTHING, "dim") if worst is None else count_cell(worst.missing, "bad"),
                Cell("0", "dim") if worst is None else count_cell(worst.unknown, "fair"),
            )
        )
    width = 0 if section is None else section.window_s
    note = f"In windows of {width:g} s by the time of stamping; what is unknown counts as lacking."
    return build("over-time", "Updates over time (stamped)", columns, rows, note)


def final_values(report: Report) -> Table:
    """Return the table of how the final values of each selector compare."""
    columns = (
        *PLACE,
        Column("same values"),
        Column("basis", numeric=False),
        Column("equal"),
        Column("different"),
        Column("absent"),
        Column("extra"),
        Column("pending", optional=True),
        Column("unknown", optional=True),
    )
    rows: list[tuple[Cell, ...]] = []
    for target in report.targets:
        final = target.final
        if final is None:
            continue
        same = (
            Cell(f"≥{NBSP}{percentage(final.equal_percent_at_least)}", "fair")
            if final.unknown
            else share_cell(final.equal_percent)
        )
        rows.append(
            (
                *place_cells(target),
                same,
                Cell(target.basis),
                Cell(count(final.equal)),
                count_cell(final.different, "bad"),
                count_cell(final.absent, "bad"),
                count_cell(final.extra, "bad"),
                count_cell(final.pending),
                count_cell(final.unknown, "fair"),
            )
        )
    note = (
        "Retained values at the end of the logs, topic by topic. Absent: only the reference has one. Extra: only the "
        "node has one. Pending: not equal, but changed within the settle horizon."
    )
    return build("final-values", "Final values (exact on either basis)", columns, rows, note)


def prefixes(report: Report) -> Table:
    """Return the table of the updates by topic prefix."""
    columns = (
        *PLACE,
        Column("prefix", numeric=False),
        Column("complete"),
        Column("expected"),
        Column("missing"),
        Column("unknown", optional=True),
    )
    found = report.prefixes
    rows = [
        (
            Cell(printable(p.node)),
            Cell(printable(p.link)),
            Cell(printable(p.filter)),
            Cell(printable(p.prefix)),
            share_at_most_cell(p.complete_percent_at_most)
            if p.complete_percent_at_least is None
            else share_cell(p.complete_percent_at_least),
            Cell(count(p.expected)),
            count_cell(p.missing, "bad"),
            count_cell(p.unknown, "fair"),
        )
        for p in (found.listed if found else ())
    ]
    title = f"Updates by topic prefix, {counted(report.parameters.depth, 'level')} (stamped)"
    return build("prefixes", title, columns, rows, total=found.total if found else 0)


def missing(report: Report) -> Table:
    """Return the table of the first missing updates."""
    columns = (
        *PLACE,
        Column("topic", numeric=False),
        Column("stamped by", numeric=False),
        Column("sequence"),
        Column("at (UTC)", numeric=False),
        Column("superseded", numeric=False),
        Column("link was", numeric=False),
    )
    found = report.missing
    rows = [
        (
            Cell(printable(m.node)),
            Cell(printable(m.link)),
            Cell(printable(m.filter)),
            Cell(printable(m.topic)),
            Cell(printable(m.primary)),
            Cell(str(m.sequence)),
            Cell(timestamp(m.origin)),
            Cell("yes" if m.superseded else "no", "" if m.superseded else "bad"),
            Cell(_CAUSES[m.cause], "bad" if m.cause == "live" else ""),
        )
        for m in (found.listed if found else ())
    ]
    return build("missing", "Missing updates", columns, rows, total=found.total if found else 0)


def differing(report: Report) -> Table:
    """Return the table of the first topics whose final values differ."""
    columns = (*PLACE, Column("topic", numeric=False), Column("final value", numeric=False))
    found = report.differing
    rows = [
        (
            Cell(printable(d.node)),
            Cell(printable(d.link)),
            Cell(printable(d.filter)),
            Cell(printable(d.topic)),
            Cell(d.verdict, "bad"),
        )
        for d in (found.listed if found else ())
    ]
    title = "Topics whose final value is not the reference's"
    return build("differing", title, columns, rows, total=found.total if found else 0)


def repeated(report: Report) -> Table:
    """Return the table of the first topics on which a loss can stay unseen."""
    columns = (*PLACE, Column("topic", numeric=False), Column("reference saw"))
    found = report.repeated
    rows = [
        (
            Cell(printable(r.node)),
            Cell(printable(r.link)),
            Cell(printable(r.filter)),
            Cell(printable(r.topic)),
            Cell(count(r.reference_updates)),
        )
        for r in (found.listed if found else ())
    ]
    title = "Topics with repeating values, on which a loss can stay unseen (unstamped)"
    return build("repeated", title, columns, rows, total=found.total if found else 0)


def _explained(found: MissingCauses) -> list[int]:
    return [getattr(found, name) for name in _CAUSES if name != "live"]


def _share(point: CompletenessPoint) -> float:
    return (point.expected - point.missing - point.unknown) / point.expected if point.expected else 1.0
