"""The answers that stand first, in words and small tables, before a terminal, a page or Markdown draws them.

Did every secondary get everything; if not, what, since when, and why? How late was it, and where on the way? Is it
getting worse?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from fanout.reports.render.completeness_tables import differing
from fanout.reports.render.finding_tables import lacking_said
from fanout.reports.render.table import (
    Cell,
    Column,
    Table,
    accuracy_cell,
    bounds_cell,
    build,
    build_list,
    cause_cell,
    delay,
    number,
    text,
)
from fanout.reports.render.wording import (
    CAUSES,
    NBSP,
    NOTHING,
    blind_spot,
    count,
    counted,
    duration,
    percentage,
    printable,
    reference_name,
    seconds,
    span,
    timestamp,
)
from fanout.reports.values.document import LogEnd, MissingTopic, ReferenceSummary, Report, WindowSummary
from fanout.reports.values.findings import StalledTopic
from fanout.reports.values.summary import (
    Answer,
    CauseCount,
    Direction,
    HopSummary,
    LagSummary,
    MissingCause,
    NodeSummary,
    NodeTrend,
    Summary,
)

__all__ = [
    "answer_tables",
    "headline",
    "missing_by_topic",
    "next_steps",
    "relative_to",
    "topic_tables",
    "trend_line",
]

_NEXT_STEPS: Final[dict[MissingCause, str]] = {
    "restart": "the node was down, or had not caught up yet. Nothing to do if you stopped it; otherwise its own log "
    "says why it ended",
    "new_epoch": "the primary forgot the session while the link was away. Raise session_expiry_s, and the primary's "
    "own limit, or give it persistence",
    "resumed": "the primary kept only part of what came while the link was away. Raise its queue limit "
    "(max_queued_messages in Mosquitto)",
    "away": "the link is not back yet. Run `fanout status` at the node",
    "audit": "the primary dropped messages for a connected link, and an audit found it. Raise its queue limit, or see "
    "why the link reads slowly",
    "upstream": "a node that feeds this one lost them first. See its line",
    "skipped": "messages that the link cannot replicate; those of other topics flow on. Raise packet_bytes_max of the "
    "link for large ones, or exclude their topics",
    "selector": "the selector does not take such messages (content, retained_only, max_payload). Nothing to do if that "
    "is meant",
    "max_age": "the link asks its primary for the newest of each topic in place of values older than max_age_s. "
    "Nothing to do if that is meant; a faster line, or a greater max_age_s, lets more through",
    "hidden": "nothing of whole branches came, while others came: at the primary they are not readable by this user, "
    "or kept out. Grant the right to read them, or exclude them here",
    "live": "nothing in the logs says why: the link was there, and skipped nothing. The primary may have dropped them "
    "from a full queue, which audits see of retained values only: look into its own log. Run `fanout explain TOPIC` at "
    "the node, with a topic from below",
}

_HEADS: Final[dict[Answer, Cell]] = {
    "complete": Cell("COMPLETE", "good"),
    "not_complete": Cell("NOT COMPLETE", "bad"),
    "not_proved": Cell("NOT PROVED", "fair"),
    "nothing_judged": Cell("NOTHING TO CHECK", "fair"),
}
_DIRECTIONS: Final[dict[Direction, Cell]] = {
    "better": Cell("better", "good"),
    "same": Cell("no change"),
    "worse": Cell("worse", "bad"),
}
_CAUSES_SHOWN: Final = 3
_BRANCHES_SHOWN: Final = 6
_NODES_SHOWN: Final = 3
_ALARMS_SHOWN: Final = 2

_NO_LAG: Final = (
    "A node without figures got no update that another log has a time for. Give the log of a tap or of the primary, or "
    "let updates be stamped (stamp_updates, publisher_stamps)."
)
_NO_CLOCKS: Final = (
    "Where no time is shown, nothing tells how far the two clocks are apart: it takes heartbeats of both links "
    "(heartbeat_s, and the right to publish below the control topic), in the logs that were given."
)


_LOG_ENDS: Final[dict[LogEnd | None, str]] = {
    "stopped": "stopped in good order",
    "killed": "its log ends without a stop, so the node was killed or hangs",
    "not_shipped": "its log ends without a stop, so the node was killed, or the rest is not shipped yet",
    None: "",
}
"""Why a log ends before the reference's."""


class _Late(NamedTuple):
    """Lag of updates at a node; unknown without `lag`."""

    node: str
    lag: LagSummary | None


def headline(report: Report, summary: Summary) -> tuple[Cell, str]:
    """Return the verdict in one or two words, and in a sentence."""
    nodes = summary.nodes
    lacking = [node for node in nodes if node.answer == "not_complete"]
    match summary.answer:
        case "complete":
            sentence = f"{len(nodes)} secondaries" if len(nodes) > 1 else "the one secondary"
            sentence += " got everything"
        case "not_complete":
            verb = "lacks" if len(lacking) == 1 else "lack"
            whom = f"{len(lacking)} of {len(nodes)} secondaries {verb}" if len(nodes) > 1 else "the one secondary lacks"
            sentence = f"{whom} updates or values: {_named(lacking)}"
        case "not_proved":
            sentence = f"nothing is known to be missing; {_why_not_proved(report, summary)}"
        case "nothing_judged":
            young = "" if report.window is None else f" of the last {report.window.settle_horizon_s:g}{NBSP}s"
            sentence = f"there is no update that is old enough; those{young} are too young"
    if summary.answer != "not_proved" and (limit := blind_spot(report)):
        sentence += f"; {limit}"
    head = _HEADS[summary.answer]
    for log_ends, early in _early(report).items():
        sentence += f"; {_ends_early(report, early, log_ends)}"
        if summary.answer == "complete" and log_ends != "stopped":
            head = Cell("COMPLETE SO FAR", "fair")
    return head, sentence


def _named(nodes: Sequence[NodeSummary]) -> str:
    """Return the first of some nodes, each with the cause of most that it lacks."""
    return _first([printable(one.node) + (f" ({CAUSES[one.causes[0].cause]})" if one.causes else "") for one in nodes])


def _early(report: Report) -> dict[LogEnd | None, dict[str, datetime]]:
    """Return the nodes that are checked up to an earlier time than the others, and that time, by the end of the log."""
    window = report.window
    ends: dict[LogEnd | None, dict[str, datetime]] = {}
    if window is None:
        return ends
    bound = _early_bound(window)
    for target in report.targets:
        if (until := target.judged_until) is not None and until < bound:
            of_kind = ends.setdefault(target.log_ends, {})
            of_kind[target.node] = min(until, of_kind.get(target.node, until))
    return ends


def _early_bound(window: WindowSummary) -> datetime:
    """Return the time before which a node counts as early: logs of nodes that run end at different moments."""
    return window.settled_until - timedelta(seconds=max(window.settle_horizon_s, 1))


def _not_checked_s(report: Report, window: WindowSummary) -> float:
    """Return how much of the end is not checked at some node that is not early, in seconds."""
    ends = [target.judged_until for target in report.targets if target.judged_until is not None]
    bound = _early_bound(window)
    until = min([window.settled_until, *(one for one in ends if one >= bound)])
    return (window.end - until).total_seconds()


def _ends_early(report: Report, ends: Mapping[str, datetime], log_ends: LogEnd | None) -> str:
    """Return in words up to which time these nodes are checked, and why."""
    node = min(ends, key=lambda name: ends[name])
    others = f" and {counted(len(ends) - 1, 'other')}" if len(ends) > 1 else ""
    verb = "were" if others else "was"
    until, why = _time(report, ends[node]), _LOG_ENDS[log_ends]
    if log_ends == "stopped":
        return f"{printable(node)}{others} {verb} {why}, and checked up to {until}"
    said = f"{printable(node)}{others} {verb} checked up to {until} only"
    return f"{said}: {why}" if why else said


def relative_to(report: Report) -> str:
    """Return in one line the reference of the answers, their time, and the number of rows read."""
    parts: list[str] = []
    if report.reference is not None:
        parts.append(_compared_with(report, report.reference))
    if report.window is not None:
        parts.append(span(report.window.begin, report.window.end))
        if young_s := _not_checked_s(report, report.window):
            parts.append(f"the last {seconds(young_s)} not checked yet")
    parts.append(f"{counted(report.inputs.updates, 'log row')} of {counted(len(report.logs), 'node')}")
    return ", ".join(parts)


def _compared_with(report: Report, reference: ReferenceSummary) -> str:
    counted_in_order = any(target.unstamped is not None for target in report.targets)
    name = reference_name(reference)
    if not counted_in_order:
        return f"compared with {name}"
    return f"compared with {name}, counted in order"


def answer_tables(report: Report, summary: Summary) -> list[Table]:
    """Return the tables of nodes, of lag, of the hops of chains, and of the trend; those without a row are left out."""
    tables = [_nodes(report, summary), _lag(summary), _hops(summary), _trend(summary)]
    return [table for table in tables if table.rows]


def missing_by_topic(report: Report) -> Table:
    """Return the table of the topics that lack most updates, the worst first."""
    ended = {one.node for one in report.summary.nodes if one.going_on is False} if report.summary else set()
    columns: tuple[Column[MissingTopic], ...] = (
        text("node", lambda one: one.node),
        text("topic", lambda one: one.topic),
        number("missing", lambda one: one.missing, "bad"),
        number("unknown", lambda one: one.unknown, "fair", optional=True),
        Column("since", lambda one: Cell(_time(report, one.first_missing)), numeric=False),
        Column(
            "until",
            lambda one: _until(report, one.last_missing, goes_on=one.going_on and one.node not in ended),
            numeric=False,
        ),
        Column("why, mostly", lambda one: cause_cell(one.cause), numeric=False),
    )
    found = report.missing_topics
    return build_list("missing-topics", "Missing updates by topic, worst first", columns, found)


def topic_tables(report: Report) -> list[Table]:
    """Return the topics behind the answers: those that lack updates, that stopped, and whose final value differs."""
    stopped: tuple[Column[StalledTopic], ...] = (
        text("node", lambda one: one.node),
        text("topic", lambda one: one.topic),
        Column("last one here", lambda one: Cell(_time(report, one.newest) if one.newest else "never came")),
        Column("last one published", lambda one: Cell(_time(report, one.reference_newest))),
        Column("missed", lambda one: Cell(lacking_said(one), "bad")),
    )
    stalls = None if report.stalls is None else report.stalls.topics
    tables = [
        missing_by_topic(report),
        build_list("topics-behind", "Topics that stopped", stopped, stalls, "Missed: updates after the last one here."),
        differing(report),
    ]
    return [table for table in tables if table.rows]


def trend_line(summary: Summary) -> Cell:
    """Return whether it is getting worse, and against what."""
    trend = summary.trend
    if trend is None:
        return Cell("Trend: not known, too little can be compared", "dim")
    against = {
        "first_half": "second half of the time against the first",
        "history": f"against earlier reports, {span(trend.before_begin, trend.before_end)}",
    }[trend.against]
    words = _DIRECTIONS[trend.direction]
    return Cell(f"Trend: {words.text} ({against})", words.tone)


def next_steps(report: Report, summary: Summary) -> list[str]:
    """Return what to do about each cause, the most frequent first."""
    totals: dict[MissingCause, int] = {}
    for node in summary.nodes:
        for each in node.causes:
            totals[each.cause] = totals.get(each.cause, 0) + each.updates
    causes = sorted(totals, key=lambda cause: -totals[cause])
    steps = [f"{CAUSES[cause].capitalize()} ({count(totals[cause])}): {_NEXT_STEPS[cause]}." for cause in causes]
    skipped: dict[str, int] = {}
    for alarm in report.alarms:
        if alarm.kind == "skipped":
            skipped[alarm.message] = skipped.get(alarm.message, 0) + alarm.times
    if skipped and "skipped" in causes:
        reasons = ", ".join(f"{printable(one).replace('_', ' ')} {count(skipped[one])}" for one in sorted(skipped))
        steps.append(f"Skipped in all, as the logs say: {reasons}.")
    if report.hidden_branches:
        named = [f"{printable(one.branch)} at {printable(one.node)}" for one in report.hidden_branches]
        steps.append(f"Not readable: {_first(named, most=_BRANCHES_SHOWN)}.")
    if any(node.never_held for node in summary.nodes):
        steps.append(
            "Never held: the link never proved that it holds everything. `fanout ready` at the node says what it "
            "waits for."
        )
    steps += [f"{why.capitalize()}: {step}." for why, step in _why_unknown(report, summary).items()]
    steps += _said_by_nodes(report, summary)
    if not causes and any((node.topics_behind or 0) + (node.topics_different or 0) for node in summary.nodes):
        steps.append("Values differ: run `fanout audit` at the node, which gets them from the primary again.")
    return steps


def _why_unknown(report: Report, summary: Summary) -> dict[str, str]:
    """Return the reasons for unknown updates, and what to do about each."""
    unknown = {node.node for node in summary.nodes if node.unknown}
    logs = {log.node: log for log in report.logs if log.node in unknown}
    found: dict[str, list[str]] = {"end": [], "gap": [], "equal": []}
    for node in unknown:
        ends = {one.log_ends for one in report.targets if one.node == node} & {"killed", "not_shipped"}
        is_torn = node in logs and (logs[node].gaps or logs[node].absent_rows)
        found["end" if ends else "gap" if is_torn else "equal"].append(printable(node))
    steps = {
        "end": ("the log of {} ends without a stop", "see whether the node runs, and give the rest of its log"),
        "gap": (
            "the log of {} has a gap",
            "a node that was killed leaves one; otherwise see its disk and log.queue_rows_max",
        ),
        "equal": (
            "equal values at {} cannot be told apart",
            "let updates be stamped (stamp_updates, publisher_stamps), and nothing is unknown",
        ),
    }
    return {why.format(_first(sorted(found[kind]))): step for kind, (why, step) in steps.items() if found[kind]}


def _said_by_nodes(report: Report, summary: Summary) -> list[str]:
    """Return what the logs of nodes that lack something say with a hint, the latest of each first."""
    found: list[str] = []
    for node in summary.nodes:
        own = [one for one in report.alarms if one.node == node.node and one.hint]
        for one in own[:_ALARMS_SHOWN] if node.answer == "not_complete" else ():
            when = f"at {_time(report, one.last)}" + (f", {count(one.times)} times" if one.times > 1 else "")
            why = f": {printable(one.reason)}" if one.reason else ""
            found.append(
                f"The log of {printable(one.node)} says {when}: {printable(one.message)}{why}. {printable(one.hint)}."
            )
    return found[:_BRANCHES_SHOWN]


def _first(names: Sequence[str], *, most: int = _NODES_SHOWN) -> str:
    """Return the first of some names, and how many others there are."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {counted(left, 'other')}" if left > 0 else "")


def _nodes(report: Report, summary: Summary) -> Table:
    columns: tuple[Column[NodeSummary], ...] = (
        text("node", lambda one: one.node),
        Column("complete", _share),
        Column("missing", _missing),
        number("unknown", lambda one: one.unknown, "fair", optional=True),
        Column("since", lambda one: _maybe(_time(report, one.first_missing)), numeric=False, optional=True),
        Column(
            "until",
            lambda one: _until(report, one.last_missing, goes_on=one.going_on),
            numeric=False,
            optional=True,
        ),
        Column("why", lambda one: _maybe(_why(one.causes)), numeric=False, optional=True),
        Column("which topics", lambda one: _maybe(_worst_prefixes(one)), numeric=False, optional=True),
        number("topics stopped", lambda one: one.topics_behind or 0, "bad", optional=True),
        number("values differ", lambda one: one.topics_different or 0, "bad", optional=True),
    )
    return build("nodes", "Did every secondary get everything?", columns, summary.nodes)


def _missing(node: NodeSummary) -> Cell:
    bound = f"≥{NBSP}" if node.missing and not node.missing_is_exact else ""  # of none, unknown ones say it
    return Cell(bound + count(node.missing), "bad" if node.missing else "")


def _worst_prefixes(node: NodeSummary) -> str:
    return ", ".join(f"{printable(one.prefix)}{NBSP}{count(one.missing)}" for one in node.prefixes)


def _share(node: NodeSummary) -> Cell:
    if node.never_held:
        return Cell(f"never{NBSP}held", "bad")
    return bounds_cell(node.complete_percent_at_least, node.complete_percent_at_most)


def _lag(summary: Summary) -> Table:
    known = {one.node for one in summary.lag}
    unknown = [node.node for node in summary.nodes if node.node not in known]
    rows: list[_Late] = [_Late(one.node, one) for one in summary.lag] + [_Late(node, None) for node in unknown]
    columns: tuple[Column[_Late], ...] = (
        text("node", lambda one: one.node),
        text("measured from", lambda one: one.lag.stamped_by if one.lag else NOTHING),
        number("updates", lambda one: one.lag.updates if one.lag else None),
        Column("half within", lambda one: _late(one.lag.p50_us if one.lag else None)),
        Column("99 % within", lambda one: _late(one.lag.p99_us if one.lag else None)),
        Column("accurate to", lambda one: accuracy_cell(one.lag.uncertain_us) if one.lag else Cell(NOTHING)),
        Column("its clock", _clock_of, numeric=False),
    )
    notes = [_NO_LAG] if unknown else []
    notes += [_NO_CLOCKS] if any(one.p99_us is None for one in summary.lag) else []
    return build("late", "How late was it?", columns, rows, " ".join(notes))


def _late(time_us: int | None) -> Cell:
    """Return a corrected time; one that is less than nothing is so by its uncertainty."""
    return Cell(f"about{NBSP}0") if time_us is not None and time_us < 0 else Cell(duration(time_us))


def _clock_of(one: _Late) -> Cell:
    if one.lag is None:
        return Cell("not known", "dim")
    return _clock(one.lag.clock_ahead_us, uncertain_us=one.lag.uncertain_us)


def _hops(summary: Summary) -> Table:
    columns: tuple[Column[HopSummary], ...] = (
        text("from", lambda one: one.from_node),
        text("to", lambda one: one.to_node),
        delay("in the mean", lambda one: one.mean_us),
        Column("accurate to", lambda one: accuracy_cell(one.uncertain_us)),
    )
    return build("hops", "Where on the way?", columns, summary.hops)


def _trend(summary: Summary) -> Table:
    trend = summary.trend
    shares = trend is not None and trend.against == "history"  # those times are of very different length
    columns: tuple[Column[NodeTrend], ...] = (
        text("node", lambda one: one.node),
        Column("trend", lambda one: _DIRECTIONS[one.direction], numeric=False),
        Column(
            f"{'complete' if shares else 'missing'} before",
            lambda one: Cell(percentage(one.complete_percent_before) if shares else count(one.missing_before)),
        ),
        Column(
            f"{'complete' if shares else 'missing'} now",
            lambda one: Cell(percentage(one.complete_percent) if shares else count(one.missing)),
        ),
        Column("99 % within before", lambda one: _late(one.p99_us_before), optional=True),
        Column("99 % within now", lambda one: _late(one.p99_us), optional=True),
    )
    changed = [node for node in (() if trend is None else trend.nodes) if node.direction != "same"]
    return build("trend", "Is it getting worse?", columns, changed)


def _clock(ahead_us: int | None, *, uncertain_us: int | None) -> Cell:
    if ahead_us is None:
        return Cell("not known", "dim")
    if abs(ahead_us) < max(1_000, uncertain_us or 0):
        return Cell("right", "dim")
    return Cell(f"{duration(abs(ahead_us))} {'ahead' if ahead_us > 0 else 'behind'}", "fair")


def _why(causes: Sequence[CauseCount]) -> str:
    named = [f"{CAUSES[one.cause]}{NBSP}{count(one.updates)}" for one in causes[:_CAUSES_SHOWN]]
    left = sum(one.updates for one in causes[_CAUSES_SHOWN:])
    return ", ".join([*named, f"other{NBSP}{count(left)}"] if left else named)


def _maybe(words: str) -> Cell:
    return Cell(words) if words and words != NOTHING else Cell(NOTHING, "dim")


def _until(report: Report, last: datetime | None, *, goes_on: bool | None) -> Cell:
    if goes_on:
        return Cell("still going on", "bad")
    if last is not None and goes_on is None:
        return Cell(f"{_time(report, last)} or later", "fair")
    return _maybe(_time(report, last))


def _time(report: Report, time: datetime | None) -> str:
    """Return a time, without the date where the report is about one day."""
    window = report.window
    if time is not None and window is not None and window.begin.date() == window.end.date() == time.date():
        return f"{time:%H:%M:%S}"
    return timestamp(time, decimals=0)


def _why_not_proved(report: Report, summary: Summary) -> str:
    if limit := blind_spot(report):
        return limit
    if unknown := sum(node.unknown for node in summary.nodes):
        return f"of {counted(unknown, 'update')} nobody can tell: {'; '.join(_why_unknown(report, summary))}"
    extra = sum(target.unstamped.unreferenced for target in report.targets if target.unstamped is not None)
    if extra and report.reference is not None:
        name = printable(report.reference.name)
        return f"{name} itself lacks {counted(extra, 'update')} that secondaries have, so it may lack others"
    return "the reference's log does not show every update"
