"""The three answers of a report, from its own figures: complete or not, how late, getting worse or not.

Pure functions of finished values. Bounds stay bounds: a share that is proved from one side only has no other side here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from fanout.reports.summary.trend import find_trend
from fanout.reports.values.document import LagSection, Propagation, Report, TargetReport
from fanout.reports.values.figures import UpdateFigures, percent
from fanout.reports.values.history import PastReport
from fanout.reports.values.summary import (
    Answer,
    CauseCount,
    HopSummary,
    LagSummary,
    NodeSummary,
    PrefixMissing,
    Summary,
)

__all__ = ["summarize"]

_PREFIXES_MAX = 3
"""With more, none is named: those that are named have all that a node lacks."""
_STAMPERS_MAX = 3
"""Maximum number of stamping nodes of one node: those with the latest updates are kept."""
_UNKNOWN_LAG = dict.fromkeys(("p50_us", "p99_us", "uncertain_us"))
_WORST_FIRST: tuple[Answer, ...] = ("not_complete", "not_proved", "nothing_judged", "complete")


def summarize(report: Report, *, cut_off: bool = False, history: Sequence[PastReport] = ()) -> Summary:
    """Return the three answers of a report that compares nodes with a reference.

    Args:
        report: The report; its own `summary` is not looked at.
        cut_off: True if the reference's log does not show all of the window that was asked for.
        history: Earlier reports, for the trend; see `find_trend`.
    """
    targets: dict[str, list[TargetReport]] = defaultdict(list)
    for target in report.targets:
        targets[target.node].append(target)
    nodes = [_node(node, found, report, cut_off=cut_off) for node, found in targets.items()]
    nodes += [NodeSummary(node=node, answer="nothing_judged") for node in _not_compared(report)]
    nodes.sort(key=_badness)
    return Summary(
        answer=_of_all([node.answer for node in nodes]),
        nodes=tuple(nodes),
        lag=tuple(lag for node in nodes for lag in _lag(node.node, report.lag)),
        hops=tuple(
            HopSummary.of(
                dict(hop),
                mean_us=hop.mean_us if hop.corrected_mean_us is None else hop.corrected_mean_us,
                uncertain_us=None if hop.corrected_mean_us is None else hop.uncertain_us,
            )
            for hop in report.lag.hops
        ),
        trend=find_trend(report, history=history),
    )


def _badness(node: NodeSummary) -> tuple[int, int, int, str]:
    apart = (node.topics_behind or 0) + (node.topics_different or 0)
    return _WORST_FIRST.index(node.answer), -node.missing, -apart, node.node


def _of_all(answers: Sequence[Answer]) -> Answer:
    """Return the answer for all nodes: with a node of which nothing was judged, the answer is not proved for all."""
    if len(set(answers)) == 1:
        return answers[0]
    if not answers:
        return "nothing_judged"
    return "not_complete" if "not_complete" in answers else "not_proved"


def _not_compared(report: Report) -> list[str]:
    """Return the secondaries whose logs are there and that are compared with nothing."""
    known = {target.node for target in report.targets}
    if report.reference is not None:
        known.update(report.reference.nodes)
    return [log.node for log in report.logs if log.role == "secondary" and log.node not in known]


def _node(node: str, targets: Sequence[TargetReport], report: Report, *, cut_off: bool) -> NodeSummary:
    figures = [target.updates for target in targets if target.updates is not None]
    missing = sum(one.missing for one in figures)
    unknown = sum(one.unknown for one in figures)
    causes: Counter[str] = Counter()
    for one in figures:
        causes.update(one.causes.model_dump())
    never_held = tuple(target.filter for target in targets if target.complete_at is None)
    behind, different = _topics_behind(node, report), _topics_different(targets)
    first = [one.first_missing for one in figures if one.first_missing is not None]
    last = [one.last_missing for one in figures if one.last_missing is not None]
    # A union lacks what none of its nodes got, whatever the figures say.
    is_exact = not (cut_off or unknown or _is_union(report)) and all(_shows_all(target) for target in targets)
    judged = sum(one.expected + one.unidentified for one in figures) + sum(map(_judged_values, targets))
    answer: Answer
    if missing or behind or different or never_held:
        answer = "not_complete"
    elif not judged:
        answer = "nothing_judged"
    else:
        answer = "complete" if is_exact else "not_proved"
    at_least, at_most = _shares(targets)
    return NodeSummary(
        node=node,
        answer=answer,
        complete_percent_at_least=None if cut_off or _is_union(report) or never_held else at_least,
        complete_percent_at_most=at_most,
        missing=missing,
        missing_is_exact=is_exact and not never_held,
        unknown=unknown,
        first_missing=min(first, default=None),
        last_missing=max(last, default=None),
        # Of a branch that is not readable nothing came any more.
        going_on=any(branch.node == node for branch in report.hidden_branches) or _any_goes_on(figures),
        causes=tuple(
            CauseCount.model_validate({"cause": cause, "updates": updates})
            for cause, updates in sorted(causes.items(), key=lambda item: (-item[1], item[0]))
            if updates
        ),
        prefixes=_prefixes(node, report, missing=missing),
        topics_behind=behind,
        topics_different=different,
        never_held=never_held,
    )


def _any_goes_on(figures: Sequence[UpdateFigures]) -> bool | None:
    """Return whether any loss goes on; None where none is known to, and one may.

    If a link was away for all that it lacks, the loss ended when it was live again, though nothing judged came since.
    """
    known = [not _was_away(one) and one.going_on for one in figures if one.missing]
    return True if any(known) else None if None in known or not known else False


def _was_away(figures: UpdateFigures) -> bool:
    causes = figures.causes
    return figures.missing == causes.restart + causes.new_epoch + causes.resumed


def _is_union(report: Report) -> bool:
    return report.reference is not None and report.reference.kind == "union"


def _shows_all(target: TargetReport) -> bool:
    """Return whether all that a selector had to get is in the reference's log."""
    figures = target.updates
    return figures is not None and target.exact and figures.unseen == 0 and not figures.unidentified


def _judged_values(target: TargetReport) -> int:
    final = target.final
    return 0 if final is None else final.equal + final.unequal


def _shares(targets: Sequence[TargetReport]) -> tuple[float | None, float | None]:
    """Return the lowest share of the updates that a node can have, and the highest."""
    if len(targets) == 1 and (only := targets[0].updates) is not None:  # the very figures of the table
        return only.complete_percent_at_least, only.complete_percent_at_most
    there = sure = whole = at_most = at_most_whole = 0
    proves = True
    for target in targets:
        if (one := target.updates) is not None:
            proves = proves and one.unseen is not None
            there = one.expected - one.missing
            sure += there - one.unknown
            whole += one.expected + one.unidentified + (one.unseen or 0)
            # Of what the reference's log lacks, so much may be there: more than is counted where the node logged some.
            doubtful = one.unidentified + (one.unseen or 0) + (0 if target.exact else one.unreferenced)
            at_most += there + doubtful
            at_most_whole += one.expected + doubtful
    return percent(sure, whole) if proves else None, percent(at_most, at_most_whole)


def _prefixes(node: str, report: Report, *, missing: int) -> tuple[PrefixMissing, ...]:
    """Return the place of everything that a node lacks: prefixes, or topics if no prefixes were requested."""
    hidden: Counter[str] = Counter()
    for branch in report.hidden_branches:
        if branch.node == node:
            hidden[branch.branch] += branch.missing
    found: Counter[str] = Counter()
    if missing and hidden.total() == missing:
        found = hidden
    elif report.prefixes is not None:
        for prefix in report.prefixes.listed:
            if prefix.node == node:
                found[prefix.prefix] += prefix.missing
    elif report.missing_topics is not None:
        for topic in report.missing_topics.listed:
            if topic.node == node:
                found[topic.topic] += topic.missing
    worst = sorted(((name, lost) for name, lost in found.items() if lost), key=lambda item: (-item[1], item[0]))
    if len(worst) > _PREFIXES_MAX or found.total() < missing:
        return ()
    return tuple(PrefixMissing(prefix=name, missing=lost) for name, lost in worst)


def _topics_behind(node: str, report: Report) -> int | None:
    if report.stalls is None:
        return None
    return sum(target.stalled for target in report.stalls.targets if target.node == node)


def _topics_different(targets: Sequence[TargetReport]) -> int | None:
    finals = [target.final for target in targets if target.final is not None]
    return sum(one.unequal for one in finals) if finals else None


def _lag(node: str, lag: LagSection) -> tuple[LagSummary, ...]:
    """Return how late updates reached a node, of each that stamped them: those that were latest first."""
    by_stamper: dict[str, list[Propagation]] = defaultdict(list)
    for one in lag.propagation:
        if one.node == node:
            by_stamper[one.stamped_by].append(one)
    found: list[LagSummary] = []
    for stamped_by, selectors in by_stamper.items():
        worst = max(selectors, key=_p99_us)
        ahead = [
            clock.estimate_us
            for clock in lag.clocks
            if (clock.node, clock.link, clock.stamped_by) == (node, worst.link, stamped_by)
        ]
        found.append(
            LagSummary.of(
                _UNKNOWN_LAG if worst.corrected is None else dict(worst.corrected),
                node=node,
                stamped_by=stamped_by,
                updates=sum(one.lag.rows for one in selectors),
                raw_p99_us=worst.lag.p99_us,
                clock_ahead_us=ahead[0] if ahead else None,
            )
        )
    found.sort(key=lambda one: (-(one.raw_p99_us if one.p99_us is None else one.p99_us), one.stamped_by))
    return tuple(found[:_STAMPERS_MAX])


def _p99_us(one: Propagation) -> int:
    return one.lag.p99_us if one.corrected is None else one.corrected.p99_us
