"""The tables of lag, of time to ready, and of the logs themselves."""

from __future__ import annotations

from fanout.reports.render.table import PLACE, Cell, Column, Table, build, count_cell
from fanout.reports.render.wording import NBSP, NOTHING, count, duration, printable, seconds, timestamp
from fanout.reports.values.document import ClockDifference, CorrectedLag, Report
from fanout.reports.values.figures import Distribution

__all__ = ["attempts", "clocks", "heartbeat", "hops", "logs", "propagation", "ready", "slowest_prefixes"]


_TIMES = tuple(Column(name) for name in ("least", "p50", "p95", "p99", "most"))


_LATE = (
    Column("mean", optional=True),
    Column("half within"),
    Column("95 % within"),
    Column("99 % within"),
    Column("longest"),
    Column("right to ±"),
    Column("99 % as the clocks say"),
)


def propagation(report: Report) -> Table:
    """Return the table of the propagation times."""
    columns = (
        *PLACE,
        Column("stamped by", numeric=False),
        Column("updates"),
        *_LATE,
    )
    rows = [
        (
            Cell(printable(p.node)),
            Cell(printable(p.link)),
            Cell(printable(p.filter)),
            Cell(printable(p.stamped_by)),
            Cell(count(p.lag.rows)),
            *_late(p.lag, p.corrected),
        )
        for p in report.lag.propagation
    ]
    note = (
        "From an update's stamp to its logging at the node. The difference of the two clocks is taken out where it is "
        "known, and what is left is right to ±."
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
    return build("propagation", "Propagation time", columns, rows, note)


def hops(report: Report) -> Table:
    """Return the table of the hops of chains."""
    columns = (
        Column("from", numeric=False),
        Column("to", numeric=False),
        Column("stamped by", numeric=False),
        Column("updates at from", optional=True),
        Column("updates at to"),
        Column("mean time of the hop"),
        Column("right to ±"),
        Column("as the clocks say"),
    )
    rows = [
        (
            Cell(printable(hop.from_node)),
            Cell(printable(hop.to_node)),
            Cell(printable(hop.stamped_by)),
            Cell(count(hop.updates_before)),
            Cell(count(hop.updates), "fair" if hop.updates_before not in (None, hop.updates) else ""),
            Cell(duration(hop.mean_us if hop.corrected_mean_us is None else hop.corrected_mean_us)),
            _uncertain(hop.uncertain_us),
            Cell(duration(hop.mean_us), "dim"),
        )
        for hop in report.lag.hops
    ]
    note = (
        "The mean at the second node less the mean at the first, of the selectors that both have. It is the time of "
        "the hop as far as the same updates came to both."
    )
    return build("hop-times", "Where on the way", columns, rows, note)


def slowest_prefixes(report: Report) -> Table:
    """Return the list of the topic prefixes whose updates took longest."""
    columns = (
        *PLACE[:2],
        Column("stamped by", numeric=False),
        Column("prefix", numeric=False),
        Column("updates"),
        *_LATE,
    )
    found = report.lag.prefixes
    rows = [
        (
            Cell(printable(p.node)),
            Cell(printable(p.link)),
            Cell(printable(p.stamped_by)),
            Cell(printable(p.prefix)),
            Cell(count(p.lag.rows)),
            *_late(p.lag, p.corrected),
        )
        for p in (found.listed if found is not None else ())
    ]
    note = "By the first levels of the topic, over the selectors of a link; the slowest first."
    total = found.total if found is not None else 0
    return build("slowest-prefixes", "Propagation time by prefix", columns, rows, note, total=total)


def heartbeat(report: Report) -> Table:
    """Return the table of the heartbeats' round trips."""
    columns = (
        *PLACE[:2],
        Column("heartbeats"),
        *_TIMES,
    )
    rows = [
        (
            Cell(printable(h.node)),
            Cell(printable(h.link)),
            Cell(count(h.lag.rows)),
            *_times(h.lag),
        )
        for h in report.lag.heartbeat
    ]
    note = "The link's own message to the primary and back, by one clock."
    return build("heartbeat", "Heartbeat round trip", columns, rows, note)


def clocks(report: Report) -> Table:
    """Return the table of the differences between clocks."""
    columns = (
        *PLACE[:2],
        Column("its clock is", numeric=False),
        Column("right to ±"),
        Column("compared with", numeric=False),
    )
    rows = [
        (
            Cell(printable(c.node)),
            Cell(printable(c.link)),
            Cell(_clock(c)),
            Cell(NOTHING, "dim") if c.at_least_us is None else Cell(duration((c.at_most_us - c.at_least_us + 1) // 2)),
            Cell(printable(c.stamped_by)),
        )
        for c in report.lag.clocks
        if c.node != c.stamped_by
    ]
    note = (
        "The quickest update says how far ahead a clock is at most, since nothing arrives before it was stamped. The "
        "shortest heartbeats to the node that stamped and back say how far at least: the quickest update is taken to "
        "have been quicker."
    )
    return build("clocks", "Clock differences", columns, rows, note)


def ready(report: Report) -> Table:
    """Return the table of the times from connect to ready."""
    columns = (
        *PLACE[:2],
        Column("connects"),
        Column("became ready"),
        Column("first"),
        Column("latest"),
        Column("longest"),
        Column("topics"),
        Column("evidence", numeric=False),
        Column("tear-downs"),
    )
    rows = [
        (
            Cell(printable(r.node)),
            Cell(printable(r.link)),
            Cell(count(r.attempts)),
            Cell(count(r.ready), "" if r.ready else "bad"),
            Cell(seconds(r.first_ready_s)),
            Cell(seconds(r.last_ready_s)),
            Cell(seconds(r.most_ready_s)),
            Cell(count(r.topics)),
            Cell(printable(r.evidence) or NOTHING),
            count_cell(r.tear_downs),
        )
        for r in report.ready.links
    ]
    note = "From entering connecting to entering live; topics and evidence are those of the latest."
    return build("ready", "Time from connect to ready", columns, rows, note)


def attempts(report: Report) -> Table:
    """Return the table of each time a link became ready."""
    columns = (
        *PLACE[:2],
        Column("connecting (UTC)", numeric=False),
        Column("live (UTC)", numeric=False),
        Column("took"),
        Column("topics"),
        Column("evidence", numeric=False),
    )
    found = report.ready.attempts
    rows = [
        (
            Cell(printable(a.node)),
            Cell(printable(a.link)),
            Cell(timestamp(a.connecting)),
            Cell(timestamp(a.live)),
            Cell(seconds(a.ready_s)),
            Cell(count(a.topics)),
            Cell(printable(a.evidence) or NOTHING),
        )
        for a in found.listed
    ]
    # One line for each link says nothing that the table before does not, and epochs say more.
    if found.total <= len(report.ready.links) or report.snapshots is not None:
        rows = []
    return build("attempts", "Each time a link became ready", columns, rows, total=found.total)


def logs(report: Report) -> Table:
    """Return the table of the logs that were read."""
    columns = (
        Column("node", numeric=False),
        Column("role", numeric=False),
        Column("from (UTC)", numeric=False),
        Column("until (UTC)", numeric=False),
        Column("ended", numeric=False),
        Column("starts"),
        Column("updates"),
        Column("events"),
        Column("gaps"),
        Column("absent rows", optional=True),
    )
    rows = [
        (
            Cell(printable(log.node)),
            Cell(log.role),
            Cell(timestamp(log.begin, decimals=0)),
            Cell(timestamp(log.end, decimals=0)),
            Cell("stop" if log.stopped else "open"),
            Cell(count(log.processes)),
            Cell(count(log.updates)),
            Cell(count(log.events)),
            count_cell(log.gaps, "fair"),
            count_cell(log.absent_rows, "fair"),
        )
        for log in report.logs
    ]
    note = "By each node's own clock. Open: the log does not end with a stop in good order."
    return build("logs", "The logs", columns, rows, note)


def _times(lag: Distribution) -> tuple[Cell, ...]:
    """Return the cells of `_TIMES`."""
    times = (lag.least_us, lag.p50_us, lag.p95_us, lag.p99_us, lag.most_us)
    return tuple(Cell(duration(time_us)) for time_us in times)


def _late(raw: Distribution, corrected: CorrectedLag | None) -> tuple[Cell, ...]:
    """Return the cells of `_LATE`: the corrected times where they are known, and what the clocks say behind them."""
    lag = raw if corrected is None else corrected
    times = (lag.mean_us, lag.p50_us, lag.p95_us, lag.p99_us, lag.most_us)
    return (
        # A negative time is one of two clocks that differ.
        *(Cell(duration(time_us), "fair" if time_us is not None and time_us < 0 else "") for time_us in times),
        _uncertain(None if corrected is None else corrected.uncertain_us),
        Cell(duration(raw.p99_us), "dim"),
    )


def _uncertain(uncertain_us: int | None) -> Cell:
    """Return to how much a time is right; without the difference of the clocks nobody knows."""
    return Cell(f"clocks{NBSP}differ", "fair") if uncertain_us is None else Cell(duration(uncertain_us), "dim")


def _clock(clock: ClockDifference) -> str:
    """Return in words how far a clock is from the one that stamped, or how far at most or at least."""
    if clock.at_least_us is not None and clock.at_least_us <= 0 <= clock.at_most_us:
        return "no difference seen"
    known_us = clock.at_most_us if clock.estimate_us is None else clock.estimate_us
    how_far = f"{duration(abs(known_us))}{NBSP}{'behind' if known_us < 0 else 'ahead'}"
    if clock.estimate_us is not None:
        return how_far
    return f"at least {how_far}" if known_us < 0 else f"at most {how_far}"
