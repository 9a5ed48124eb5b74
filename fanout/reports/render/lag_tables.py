"""The tables of lag, of time to ready, and of the logs themselves."""

from __future__ import annotations

from fanout.reports.render.table import PLACE, Cell, Column, Table, build, count_cell
from fanout.reports.render.wording import NOTHING, count, duration, printable, seconds, timestamp
from fanout.reports.values.document import Report
from fanout.reports.values.figures import Distribution

__all__ = ["attempts", "clocks", "heartbeat", "logs", "propagation", "ready", "slowest_prefixes"]


_TIMES = tuple(Column(name) for name in ("least", "p50", "p95", "p99", "most"))


def propagation(report: Report) -> Table:
    """Return the table of the propagation times."""
    columns = (
        *PLACE,
        Column("stamped by", numeric=False),
        Column("updates"),
        *_TIMES,
    )
    rows = [
        (
            Cell(printable(p.node)),
            Cell(printable(p.link)),
            Cell(printable(p.filter)),
            Cell(printable(p.stamped_by)),
            Cell(count(p.lag.rows)),
            *_times(p.lag),
        )
        for p in report.lag.propagation
    ]
    note = "Applied (the node's clock) less stamped (the stamping node's clock), of updates with a stamp."
    if report.lag.others:
        note += f" The {count(report.lag.others)} that stamped the fewest updates are added up as (others)."
    apart: dict[tuple[str, str], int] = {}
    for p in report.lag.propagation:
        if p.lag.least_us < 0:
            pair = (printable(p.node), printable(p.stamped_by))
            apart[pair] = min(apart.get(pair, 0), p.lag.least_us)
    for (node, stamped_by), least_us in apart.items():
        note += (
            f" The clocks of {node} and {stamped_by} differ by at least {duration(-least_us)}: an update was "
            f"applied before it was stamped."
        )
    return build("propagation", "Propagation time", columns, rows, note)


def slowest_prefixes(report: Report) -> Table:
    """Return the list of the topic prefixes whose updates took longest."""
    columns = (
        *PLACE[:2],
        Column("stamped by", numeric=False),
        Column("prefix", numeric=False),
        Column("updates"),
        *_TIMES,
    )
    found = report.lag.prefixes
    rows = [
        (
            Cell(printable(p.node)),
            Cell(printable(p.link)),
            Cell(printable(p.stamped_by)),
            Cell(printable(p.prefix)),
            Cell(count(p.lag.rows)),
            *_times(p.lag),
        )
        for p in (found.listed if found is not None else ())
    ]
    note = "By the first levels of the topic, over the selectors of a link; the slowest first, by p99."
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
        Column("stamped by", numeric=False),
        Column("estimate"),
        Column("at least"),
        Column("at most"),
    )
    rows = [
        (
            Cell(printable(c.node)),
            Cell(printable(c.link)),
            Cell(printable(c.stamped_by)),
            *(Cell(duration(value)) for value in (c.estimate_us, c.at_least_us, c.at_most_us)),
        )
        for c in report.lag.clocks
    ]
    note = (
        "The node's clock less the stamping node's. At most: the least propagation time, since nothing arrives before "
        "it was stamped. At least: less the shortest heartbeat to that node and back, which the quickest update is "
        "taken to have undercut. Propagation times are not corrected by it."
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
    """Return the cells of `_TIMES`; a negative time is one of two clocks that differ."""
    rest = (lag.p50_us, lag.p95_us, lag.p99_us, lag.most_us)
    return Cell(duration(lag.least_us), "fair" if lag.least_us < 0 else ""), *(
        Cell(duration(time_us)) for time_us in rest
    )
