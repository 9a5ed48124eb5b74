"""Decide the scope of a completeness report from the survey of the logs.

Owns the span in which each selector had to apply every update, and the sentences that a reader needs to read
the figures right. Does not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from fanout.errors import ReportError
from fanout.reports.identify.pairing import ObservedLink, Pairing, choose_reference, names, observed_links
from fanout.reports.read.scope import NEVER_US, WHOLE, AskedWindow, Group, Reference, Scope, Target
from fanout.reports.read.survey import Survey
from fanout.reports.values.figures import time_of

__all__ = ["LOG_END_TOLERANCE_US", "basis_statements", "decide_scope", "decide_traffic_scope"]

LOG_END_TOLERANCE_US: Final = 1_000_000
"""Nodes flush and beat at different moments, so the ends of logs copied together differ by this much."""


class MeasuredClock(Protocol):
    """Difference of a link's clock, and of the way of its updates, from the reference's."""

    @property
    def later_us(self) -> int:
        """By how much later it logs an update, about."""

    @property
    def least_us(self) -> int:
        """The same, at least."""

    @property
    def apart_us(self) -> int:
        """By how much one update may be logged earlier or later than that, mostly."""

    def later_between(self, first_us: int, last_us: int) -> tuple[int, int] | None:
        """Return the same, at least and at most, in a span of its time; None where nothing is measured."""


def decide_scope(
    survey: Survey,
    *,
    requested: str | None,
    settle_us: int,
    behind_max_us: int = 0,
    window: AskedWindow = WHOLE,
    clocks: Mapping[tuple[str, str], MeasuredClock] = MappingProxyType({}),
) -> Scope:
    """Return what a completeness report compares with what.

    Args:
        survey: Result of the first look at the logs.
        requested: The node to take as the reference; None takes the only primary, else the only first-tier node, else
            the only tap, else the union of the secondaries.
        settle_us: The settle horizon: updates younger than this at the end are pending.
        behind_max_us: Time before the end of the reference's log at which a log may end without a stop and count as
            late only; never less than the settle horizon.
        window: Window of the report.
        clocks: Delays of links without stamps, by node and link, if they are known.

    Raises:
        ReportError: The reference is not in the logs or cannot be chosen, there is nothing to compare with
            it, or
            the same rows were given twice.
    """
    reference = choose_reference(survey.roles, requested=requested, first_tier=survey.first_tier)
    links = observed_links(survey)
    in_window = survey.with_gaps_of(window, margin_us=0 if reference.stamps else settle_us)
    pairing = Pairing(in_window, reference=reference, links=links)
    groups, notices = pairing.groups, pairing.notices
    targets: list[Target] = []
    left_out: list[str] = []
    for link in links:
        if reference.kind != "union" and link.node in reference.nodes:
            continue
        group = pairing.pair(link)
        if group is None:
            left_out.append(link.title)
        else:
            targets.extend(
                _targets(
                    link,
                    group=group,
                    # None of stamps, nor of a union, whose logs share values.
                    above=() if reference.kind == "union" or group.basis == "stamped" else group.sources,
                    delays=_delays_at_reference(survey, reference=reference, group=group),
                    settle_us=settle_us,
                    behind_max_us=max(behind_max_us, settle_us, LOG_END_TOLERANCE_US),
                    window=window,
                    clock=clocks.get((link.node, link.name)),
                    first_id=len(targets),
                    notices=notices,
                )
            )
    if not targets:
        raise ReportError(
            f"no link in the logs of {names(survey.roles)} is fed by the reference {reference.name}",
            hint="Give the logs of the secondaries too, or another --reference",
        )
    log_notices = [
        *_window_notices(survey, reference=reference, groups=groups, window=window),
        *_file_notices(survey, reference, window=window),
        *_config_notices(survey),
        *_end_notices(targets, settle_us=settle_us),
        *_stamp_notices(survey, reference=reference, groups=groups),
    ]
    return Scope(
        reference,
        settle_us,
        tuple(groups),
        tuple(targets),
        (*log_notices, *notices),
        tuple(left_out),
        window,
        _cut_off(survey, reference=reference, window=window),
    )


def decide_traffic_scope(
    survey: Survey, *, requested: str | None, settle_us: int, window: AskedWindow = WHOLE
) -> Scope:
    """Return the sources whose rows are counted as traffic; nothing is compared, so there are no targets.

    Args:
        survey: Result of the first look.
        requested: The node whose log to count; None takes the only primary, else the only tap, else all
            secondaries together.
        settle_us: The settle horizon.
        window: Window of the report.

    Raises:
        ReportError: The reference is not in the logs or cannot be chosen, or it saw nothing.
    """
    only = next(iter(survey.roles)) if len(survey.roles) == 1 else None
    reference = choose_reference(survey.roles, requested=requested or only, first_tier=survey.first_tier)
    in_window = survey.with_gaps_of(window, margin_us=0 if reference.stamps else settle_us)
    pairing = Pairing(in_window, reference=reference, links=observed_links(survey))
    if not pairing.groups:
        raise ReportError(f"{reference.name} has no link in its log", hint="Name another node with --reference")
    return Scope(reference, settle_us, tuple(pairing.groups), (), (), window=window)


def basis_statements(scope: Scope) -> tuple[str, ...]:
    """Return the base and the certainty of the figures, one statement for each basis."""
    name = "all secondaries together" if scope.reference.kind == "union" else scope.reference.name
    used = [scope.groups[index] for index in sorted({target.group for target in scope.targets})]
    stamped = [group for group in used if group.basis == "stamped"]
    statements: list[str] = []
    if stamped and all(group.exact for group in stamped):
        statements.append(
            f"Stamped: every update carries an identity, so the figures are exact relative to the log of {name}, which "
            f"stamped them."
        )
    elif stamped:
        statements.append(
            f"Stamped: every update carries an identity, so the figures are exact relative to the log of {name}. "
            f"Updates that this log lacks cannot be found, so at least as many were lost as are shown."
        )
    if len(stamped) < len(used):
        statements.append(
            f"Counted in order, from {name}: these updates carry no identity. A value that came once is known by "
            f"itself. Equal values of a topic are counted between times at which none was under way; where a second "
            f"copy may be among them, some are unknown. It is assumed that the primary sends nothing twice within a "
            f"connection."
        )
    if scope.reference.kind == "union":
        statements.append("The secondaries are compared with one another: what none of them got cannot be seen.")
    return tuple(statements)


def _held_from(link: ObservedLink, notices: list[str]) -> tuple[int, int] | None:
    """Return since when a link is judged, and in which link epoch; None for never."""
    if link.held_from is not None:
        return link.held_from
    held = link.survey.first_live(link.node, link=link.name, since_epoch=link.since_epoch)
    if held is not None:
        notices.append(
            f"{link.title} has updates but no proof of completeness in its log: it is judged from the first of them."
        )
    return held


def _targets(
    link: ObservedLink,
    *,
    group: Group,
    above: Sequence[tuple[str, str]],
    delays: Mapping[str, int],
    settle_us: int,
    behind_max_us: int,
    window: AskedWindow,
    clock: MeasuredClock | None,
    first_id: int,
    notices: list[str],
) -> list[Target]:
    survey = link.survey
    held = _held_from(link, notices)
    offset_us = _clock_offset_us(link, delays=delays, link_epoch=None if held is None else held[1])
    least_us = offset_us
    if clock is not None:
        offset_us, least_us = clock.later_us, clock.least_us
    stopped_us = survey.stopped_us(link.node)
    ends_us = survey.log_span_us(link.node)[1] if stopped_us is None else stopped_us
    until_us = group.end_us if stopped_us is None else min(group.end_us, ends_us - offset_us)
    # What it had to log before its log ends. By the delays measured there, too: see `_gaps_us`.
    measured = None if clock is None else clock.later_between(ends_us, ends_us)
    logged_us = ends_us - max(offset_us + settle_us, -NEVER_US if measured is None else measured[1] + 1)
    settled_us = until_us - settle_us
    # Without stamps either of two nodes may be the later one to log an update, each by its clock.
    late_us = settle_us if group.basis == "unstamped" else 0
    later = _Later(link, above, clock, least_us=offset_us - late_us, most_us=offset_us + settle_us)
    gaps_us = _gaps_us(link, later)
    # Without a stop the node may have gone on where its log ends, in what is not sealed or shipped yet; or it is dead.
    behind_us = max(0, until_us - ends_us + offset_us) if stopped_us is None and window.last_us > logged_us else 0
    silent_after_us = NEVER_US
    if behind_us > behind_max_us:
        silent_after_us = logged_us
        gaps_us = (*gaps_us, (silent_after_us, NEVER_US))
    else:
        settled_us = min(settled_us, logged_us)
    from_us = NEVER_US
    if held is not None:
        begins_us = survey.begins_us(link.node)
        start_us = max(held[0], begins_us or held[0])
        from_us = start_us - least_us
        if begins_us is not None and window.asks_before(begins_us - offset_us):
            # Who asks for a time is told what the log does not reach back to, not given less of it.
            gaps_us = ((-NEVER_US, from_us), *gaps_us)
            from_us = -NEVER_US
        elif window.has_end and from_us >= window.last_us:
            held, from_us = None, NEVER_US
        if group.basis == "unstamped" and held is not None:
            from_us = max(from_us, group.from_us)
            doubtful_us = from_us if clock is not None else start_us - later.between(start_us, start_us)[0]
            # The reference may log later what was published before: a gap, with the same care.
            if doubtful_us > from_us:
                gaps_us = (*gaps_us, (from_us, doubtful_us))
        if stopped_us is not None and stopped_us - offset_us < window.since_us:
            notices.append(f"{link.title} was stopped in good order before the window: nothing was expected of it.")
    known = {selection.filter for selection in link.config.selections} | {""}
    strange = survey.selectors_seen(link.node, link=link.name, since_epoch=link.since_epoch) - known
    if strange:
        notices.append(f"{link.title} logged rows of selectors that its configuration lacks: {names(strange)}.")
    return [
        Target(
            id=first_id + index,
            node=link.node,
            link=link.name,
            selection=selection,
            group=group.id,
            held_from_us=None if held is None else held[0],
            covered_from_us=max(from_us, window.since_us - 1),
            covered_until_us=min(until_us, window.last_us),
            settled_until_us=min(settled_us, window.last_us),
            gaps_us=gaps_us,
            offset_us=offset_us,
            behind_us=behind_us,
            silent_after_us=silent_after_us,
            apart_us=late_us if clock is None else min(late_us, clock.apart_us),
        )
        for index, selection in enumerate(link.config.selections)
    ]


def _delays_at_reference(survey: Survey, *, reference: Reference, group: Group) -> dict[str, int]:
    """Return the stamping nodes that relate a node's clock to its group's, and the delay of each at the reference.

    A reference that stamps is compared by its own, which have no delay there. Publishers' stamps are by their clocks,
    which may be far off; both sides saw the same ones, so that cancels.
    """
    if group.basis == "unstamped":
        return {}
    if not reference.stamps:
        return dict.fromkeys(group.stamped_by, 0)  # the group's clock is that of the node that stamped
    if reference.nodes[0] in group.stamped_by:
        return {reference.nodes[0]: 0}
    delays: dict[str, int] = {}
    for node, link in group.sources:
        for stamped_by in group.stamped_by:
            delay_us = survey.delay_us_min(node, link=link, stamped_by=stamped_by, link_epoch=None)
            if delay_us is not None:
                delays[stamped_by] = min(delays.get(stamped_by, delay_us), delay_us)
    return delays


def _clock_offset_us(link: ObservedLink, *, delays: Mapping[str, int], link_epoch: int | None) -> int:
    """Return what to subtract from a node's time to get its group's.

    The least (applied - origin) is the clocks' difference plus the shortest way. One session keeps the order. So an
    update stamped after (complete - that) was sent after the proof of completeness, however long its way took. It had
    to arrive as an update; nothing older is expected. Without stamps the difference is unknown, and the settle horizon
    has to cover it.
    """
    delay_of = partial(link.survey.delay_us_min, link.node, link=link.name)
    for epoch in (link_epoch, None):
        offsets_us = [
            delay_us - at_reference_us
            for stamped_by, at_reference_us in delays.items()
            if (delay_us := delay_of(stamped_by=stamped_by, link_epoch=epoch)) is not None
        ]
        if offsets_us:
            return min(offsets_us)
    return 0


def _gaps_us(link: ObservedLink, later: _Later) -> tuple[tuple[int, int], ...]:
    """Return the spans of origin whose updates may have come while the node could not log."""
    found: list[tuple[int, int]] = []
    for gap in link.survey.gaps_of(link.node, link=link.name):
        least_us, most_us = later.between(gap.first_us, gap.last_us)
        found.append((-NEVER_US if gap.first_us is None else gap.first_us - most_us, gap.last_us - least_us))
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class _Later:
    """By how much later a link logs an update than the reference."""

    link: ObservedLink
    above: Sequence[tuple[str, str]]
    """Nodes and links whose rows are the reference's."""
    clock: MeasuredClock | None
    least_us: int
    """The same, at least, where nothing is measured."""
    most_us: int
    """The same, at most: an update is taken to arrive within the settle horizon."""

    def between(self, first_us: int | None, last_us: int) -> tuple[int, int]:
        """Return the same, at least and at most, in a span of the node's time; None for a span without begin.

        A measured delay takes the place of the horizon, because the median of a log's delays may come from updates that
        waited.
        """
        measured = None if self.clock is None or first_us is None else self.clock.later_between(first_us, last_us)
        if measured is not None:
            return measured[0], measured[1] + 1
        return self.least_us - self._waited_us(last_us), self.most_us

    def _waited_us(self, at_us: int) -> int:
        """Return the longest wait of updates near a time for the reference, whose link was away."""
        near_us = max(abs(self.least_us), abs(self.most_us))
        waits_us = [
            one.until_us - one.after_us
            for one in self.link.survey.absences
            if (one.node, one.link) in self.above
            and one.cause != "audit"
            and one.after_us - near_us <= at_us <= one.until_us + near_us < NEVER_US
        ]
        return max(waits_us, default=0)


def _window_notices(survey: Survey, *, reference: Reference, groups: list[Group], window: AskedWindow) -> Iterator[str]:
    begin_us = min(survey.log_span_us(node)[0] for node in reference.nodes)
    end_us = max(group.end_us for group in groups)
    if window.has_begin and window.since_us < begin_us - LOG_END_TOLERANCE_US:
        yield (
            f"The requested window begins before the reference's log, which begins at "
            f"{time_of(begin_us):%F %T} UTC: earlier updates are in no figure."
        )
    if window.has_end and window.until_us > end_us + LOG_END_TOLERANCE_US:
        yield (
            f"The requested window ends after the reference's log, which ends at "
            f"{time_of(end_us):%F %T} UTC: later updates are in no figure."
        )


def _cut_off(survey: Survey, *, reference: Reference, window: AskedWindow) -> str:
    """Return since when the log of a reference goes that had rows of the window and has them no more."""
    begins_us = None if reference.kind == "union" else survey.begins_us(reference.nodes[0])
    if begins_us is None or not window.asks_before(begins_us):
        return ""
    return f"what was before {time_of(begins_us):%F %T} UTC is not in the reference's log any more"


def _file_notices(survey: Survey, reference: Reference, *, window: AskedWindow) -> Iterator[str]:
    for node in survey.roles:
        log = "the reference's log" if node in reference.nodes else "its log"
        absent = survey.absent_rows(node)
        if absent < 0:
            raise ReportError(
                f"the log of {node} holds {-absent} or more rows twice", hint="Give each log directory once"
            )
        if lost := survey.unexplained_rows(node):
            yield (
                f"{node}: {lost} rows inside {log} are absent, and no gap event says why: updates that it lacks of "
                f"that time are unknown, not missing."
            )
        begins_us = survey.begins_us(node)
        if begins_us is None:
            pass
        elif window.asks_before(begins_us):
            yield (
                f"{node}: the beginning of {log} is gone: nothing is known from before {time_of(begins_us):%F %T} UTC."
            )
        elif window.is_whole or begins_us >= window.since_us:
            yield (
                f"{node}: the beginning of {log} is gone; it is judged from {time_of(begins_us):%F %T} UTC on, and "
                f"older values are unknown."
            )
        if gaps := sum(gap.node == node for gap in survey.gaps):
            yield (
                f"{node} reported {gaps} gap{'s' if gaps > 1 else ''} in {log}: updates that it lacks of "
                f"that time are unknown, not missing."
            )


def _config_notices(survey: Survey) -> Iterator[str]:
    for node, role in survey.roles.items():
        if role == "primary":
            continue
        config = survey.config(node)
        if not config.stated:
            yield (
                f"{node}: no start event says what it selects; its selectors are taken from its rows, without excludes."
            )
        if config.changed:
            yield f"{node} was configured differently before: only its latest configuration counts."


def _end_notices(targets: list[Target], *, settle_us: int) -> Iterator[str]:
    behind: dict[str, Target] = {}
    for target in targets:
        if target.node not in behind or target.behind_us > behind[target.node].behind_us:
            behind[target.node] = target
    for node, target in behind.items():
        ends = f"{node}: its log ends {target.behind_us / 1e6:.1f} s before the reference's without a stop"
        if target.silent_after_us < NEVER_US:
            yield f"{ends}: whether it got what came later is unknown."
        elif target.behind_us > max(settle_us, LOG_END_TOLERANCE_US):
            yield f"{ends}; what came later is not judged."


def _stamp_notices(survey: Survey, *, reference: Reference, groups: list[Group]) -> Iterator[str]:
    for group in groups:
        if group.basis == "unstamped":
            continue
        unstamped = sum(survey.live_rows(node, link=link, stamped=False) for node, link in group.sources)
        if unstamped:
            yield (
                f"{reference.name}: {unstamped} of its rows carry no stamp, so nothing tells whether a node got them: "
                f"they count against its share, and for the final values."
            )
