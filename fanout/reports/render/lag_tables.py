"""The tables of lag, of time to ready, and of the logs themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fanout.reports.render.table import (
    LINK,
    PLACE,
    Cell,
    Column,
    Table,
    accuracy_cell,
    build,
    build_list,
    delay,
    length,
    moment,
    number,
    text,
)
from fanout.reports.render.wording import NBSP, count, duration, printable
from fanout.reports.values import document
from fanout.reports.values.figures import Distribution

__all__ = ["attempts", "clocks", "heartbeat", "hops", "logs", "propagation", "ready", "slowest_prefixes"]


def _clock(clock: document.ClockDifference) -> str:
    """Return in words the difference of a clock from the stamping one, or its bound."""
    if clock.at_least_us is not None and clock.at_least_us <= 0 <= clock.at_most_us:
        return "no difference seen"
    known_us = clock.at_most_us if clock.estimate_us is None else clock.estimate_us
    how_far = f"{duration(abs(known_us))}{NBSP}{'behind' if known_us < 0 else 'ahead'}"
    if clock.estimate_us is not None:
        return how_far
    return f"at least {how_far}" if known_us < 0 else f"at most {how_far}"


def _shown(one: document.Propagation | document.PrefixLag) -> Distribution | document.CorrectedLag:
    """Return the times with the difference of the clocks taken out, where it is known."""
    return one.lag if one.corrected is None else one.corrected


def _late(
    name: str, get: Callable[[Distribution | document.CorrectedLag], int | None], *, optional: bool = False
) -> Column[document.Propagation | document.PrefixLag]:
    def cell(one: document.Propagation | document.PrefixLag) -> Cell:
        time_us = get(_shown(one))
        # A negative time is one of two clocks that differ.
        return Cell(duration(time_us), "fair" if time_us is not None and time_us < 0 else "")

    return Column(name, cell, optional=optional)


def _hop_updates(hop: document.HopLag) -> Cell:
    return Cell(count(hop.updates), "fair" if hop.updates_before not in (None, hop.updates) else "")


def _clock_precision(clock: document.ClockDifference) -> Cell:
    return accuracy_cell(None if clock.at_least_us is None else (clock.at_most_us - clock.at_least_us + 1) // 2)


_LATE: Final[tuple[Column[document.Propagation | document.PrefixLag], ...]] = (
    number("updates", lambda one: one.lag.rows),
    _late("mean", lambda lag: lag.mean_us, optional=True),
    _late("half within", lambda lag: lag.p50_us),
    _late("95 % within", lambda lag: lag.p95_us),
    _late("99 % within", lambda lag: lag.p99_us),
    _late("longest", lambda lag: lag.most_us),
    Column("accurate to", lambda one: accuracy_cell(one.corrected.uncertain_us if one.corrected else None)),
    delay("99 % as the clocks say", lambda one: one.lag.p99_us, "dim"),
)

_PROPAGATION: Final[tuple[Column[document.Propagation], ...]] = (
    *PLACE,
    text("stamped by", lambda one: one.stamped_by),
    *_LATE,
)

_SLOWEST: Final[tuple[Column[document.PrefixLag], ...]] = (
    *LINK,
    text("stamped by", lambda one: one.stamped_by),
    text("prefix", lambda one: one.prefix),
    *_LATE,
)

_HOPS: Final[tuple[Column[document.HopLag], ...]] = (
    text("from", lambda one: one.from_node),
    text("to", lambda one: one.to_node),
    text("stamped by", lambda one: one.stamped_by),
    number("updates at from", lambda one: one.updates_before, optional=True),
    Column("updates at to", _hop_updates),
    delay("mean time of the hop", lambda one: one.mean_us if one.corrected_mean_us is None else one.corrected_mean_us),
    Column("accurate to", lambda one: accuracy_cell(one.uncertain_us)),
    delay("as the clocks say", lambda one: one.mean_us, "dim"),
)

_HEARTBEAT: Final[tuple[Column[document.RoundTrip], ...]] = (
    *LINK,
    number("heartbeats", lambda one: one.lag.rows),
    delay("least", lambda one: one.lag.least_us),
    delay("p50", lambda one: one.lag.p50_us),
    delay("p95", lambda one: one.lag.p95_us),
    delay("p99", lambda one: one.lag.p99_us),
    delay("most", lambda one: one.lag.most_us),
)

_CLOCKS: Final[tuple[Column[document.ClockDifference], ...]] = (
    *LINK,
    Column("its clock is", lambda one: Cell(_clock(one)), numeric=False),
    Column("accurate to", _clock_precision),
    text("compared with", lambda one: one.stamped_by),
)

_READY: Final[tuple[Column[document.ReadySummary], ...]] = (
    *LINK,
    number("connects", lambda one: one.attempts),
    Column("became ready", lambda one: Cell(count(one.ready), "" if one.ready else "bad")),
    length("first", lambda one: one.first_ready_s),
    length("latest", lambda one: one.last_ready_s),
    length("longest", lambda one: one.most_ready_s),
    number("topics", lambda one: one.topics),
    text("evidence", lambda one: one.evidence),
    number("tear-downs", lambda one: one.tear_downs, ""),
)

_ATTEMPTS: Final[tuple[Column[document.Attempt], ...]] = (
    *LINK,
    moment("connecting", lambda one: one.connecting),
    moment("live", lambda one: one.live),
    length("took", lambda one: one.ready_s),
    number("topics", lambda one: one.topics),
    text("evidence", lambda one: one.evidence),
)

_LOGS: Final[tuple[Column[document.LogSummary], ...]] = (
    text("node", lambda one: one.node),
    text("role", lambda one: one.role),
    moment("from", lambda one: one.begin, decimals=0),
    moment("until", lambda one: one.end, decimals=0),
    Column("ended", lambda one: Cell("stop" if one.stopped else "open"), numeric=False),
    number("starts", lambda one: one.processes),
    number("updates", lambda one: one.updates),
    number("events", lambda one: one.events),
    number("gaps", lambda one: one.gaps, "fair"),
    number("absent rows", lambda one: one.absent_rows, "fair", optional=True),
)


def propagation(report: document.Report) -> Table:
    """Return the table of the propagation times."""
    note = (
        "From an update's stamp to its logging at the node. The difference of the two clocks is taken out where it is "
        "known, and what is left is accurate to the ± beside it."
    )
    if report.lag.others:
        note += f" The {count(report.lag.others)} that stamped the fewest updates are added up as (others)."
    apart: dict[tuple[str, str], int] = {}
    for p in report.lag.propagation:
        if p.lag.least_us < 0 and p.corrected is None:
            pair = (printable(p.node), printable(p.stamped_by))
            apart[pair] = min(apart.get(pair, 0), p.lag.least_us)
    for (node, stamped_by), least_us in apart.items():
        note += (
            f" The clocks of {node} and {stamped_by} differ by at least {duration(-least_us)}: an update was "
            f"applied before it was stamped."
        )
    return build("propagation", "Propagation time", _PROPAGATION, report.lag.propagation, note)


def hops(report: document.Report) -> Table:
    """Return the table of the hops of chains."""
    note = (
        "The mean at the second node less the mean at the first, of the selectors that both have. It is the time of "
        "the hop as far as the same updates came to both."
    )
    return build("hop-times", "Where on the way", _HOPS, report.lag.hops, note)


def slowest_prefixes(report: document.Report) -> Table:
    """Return the list of the topic prefixes whose updates took longest."""
    note = "By the first levels of the topic, over the selectors of a link; the slowest first."
    return build_list("slowest-prefixes", "Propagation time by prefix", _SLOWEST, report.lag.prefixes, note)


def heartbeat(report: document.Report) -> Table:
    """Return the table of the heartbeats' round trips."""
    note = "The link's own message to the primary and back, by one clock."
    return build("heartbeat", "Heartbeat round trip", _HEARTBEAT, report.lag.heartbeat, note)


def clocks(report: document.Report) -> Table:
    """Return the table of the differences between clocks."""
    note = (
        "The quickest update gives the greatest lead of a clock, because nothing arrives before it was stamped. The "
        "shortest heartbeats to the stamping node and back give the least, if the quickest update was quicker."
    )
    differences = [clock for clock in report.lag.clocks if clock.node != clock.stamped_by]
    return build("clocks", "Clock differences", _CLOCKS, differences, note)


def ready(report: document.Report) -> Table:
    """Return the table of the times from connect to ready."""
    note = "From entering connecting to entering live; topics and evidence are those of the latest."
    return build("ready", "Time from connect to ready", _READY, report.ready.links, note)


def attempts(report: document.Report) -> Table:
    """Return the table of each time a link became ready."""
    found = report.ready.attempts
    # One line for each link says nothing that the table before does not, and epochs say more.
    told = found.total <= len(report.ready.links) or report.snapshots is not None
    return build_list("attempts", "Each time a link became ready", _ATTEMPTS, None if told else found)


def logs(report: document.Report) -> Table:
    """Return the table of the logs that were read."""
    note = "By each node's own clock. Open: the log does not end with a stop in good order."
    return build("logs", "The logs", _LOGS, report.logs, note)
