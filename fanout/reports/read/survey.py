"""Result of the first look at the logs: a few rows for each node, link and session, as plain values.

Owns the shapes of that summary, and facts that need no rule of a report: roles, configurations, the time at which a
link first held everything, holes in a log. Does not know Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fanout.reports.read.absences import Absence
from fanout.reports.read.details import GapRecord, LinkConfig, Selection, parse_start_detail
from fanout.reports.read.scope import AskedWindow

__all__ = [
    "AlarmSummary",
    "CompleteSummary",
    "EventSummary",
    "LogCut",
    "NodeConfig",
    "StartRecord",
    "Survey",
    "UpdateSummary",
    "stated_config",
]


@dataclass(frozen=True, slots=True)
class UpdateSummary:
    """The rows of `updates` of one link in one session, with stamps of one node."""

    node: str
    role: str
    node_epoch: int
    link: str
    link_epoch: int
    """The earliest of their sessions; those in which nothing was proved complete are not told apart."""
    live: bool
    """True if they are updates; False for snapshot and audit copies."""
    stamp_primary: str | None
    selectors: frozenset[str]
    rows: int
    first_pos: int
    last_pos: int
    first_us: int
    """When the first was applied, by the node's clock, Unix time in microseconds."""
    last_us: int
    first_origin_us: int | None
    """When the first was stamped, by the stamping node's clock; None without stamps."""
    last_origin_us: int | None
    delay_us_min: int | None
    """The least (applied - origin): the clocks' difference plus the shortest way."""


@dataclass(frozen=True, slots=True)
class EventSummary:
    """The rows of `events` of one node process and link (link "" is the node itself)."""

    node: str
    role: str
    node_epoch: int
    link: str
    rows: int
    first_pos: int
    last_pos: int
    first_us: int
    last_us: int
    tear_downs: int
    tear_down_pos: int | None
    """The position of the last tear-down; None without one."""
    stop_us: int | None
    """When the node stopped in good order; None when it did not, or for a link."""
    upstreams: tuple[str, ...]
    """The fanout nodes that this link was connected to, and "" for primaries that were none for certain."""


@dataclass(frozen=True, slots=True)
class CompleteSummary:
    """The first time that a selector was proved complete since its node has been configured as it is."""

    node: str
    node_epoch: int
    link: str
    link_epoch: int
    selector: str
    first_us: int


@dataclass(frozen=True, slots=True)
class StartRecord:
    """One `start` event."""

    node: str
    node_epoch: int
    at_us: int
    detail: str


@dataclass(frozen=True, slots=True)
class AlarmSummary:
    """The `alarm` events of one message, or the `skipped` events of one reason, of one link in one process."""

    node: str
    link: str
    event: str
    first_us: int
    last_us: int
    times: int
    """Number of its events; for `skipped`, the number of messages."""
    detail: str
    """Of the newest."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """Start of a node's log whose older files are skipped on purpose."""

    node: str
    node_epoch: int
    pos: int
    """The first position in them."""
    at_us: int
    """The first time in them, by the node's clock."""
    absent: int
    """Number of positions after it that no row has."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The links that a node has now, and since which of its processes."""

    since_epoch: int
    """First node epoch with the present configuration."""
    links: tuple[LinkConfig, ...]
    changed: bool
    """True if an earlier process of the same log had another configuration."""
    stated: bool
    """True if a `start` event said so; False when it was guessed from the rows, without excludes."""


def stated_config(starts: Iterable[StartRecord]) -> NodeConfig | None:
    """Return the links that a node's latest `start` event states, or None when none does."""
    found = sorted(
        ((start.node_epoch, start.at_us, parse_start_detail(start.detail)) for start in starts),
        key=lambda start: start[:2],
    )
    since, _, links = found[-1] if found else (0, 0, None)
    if links is None:
        return None
    for epoch, _, earlier in reversed(found):
        if earlier != links:
            return NodeConfig(since, links, changed=True, stated=True)
        since = epoch
    return NodeConfig(since, links, changed=False, stated=True)


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything that the first look found."""

    updates: tuple[UpdateSummary, ...]
    events: tuple[EventSummary, ...]
    completes: tuple[CompleteSummary, ...]
    starts: tuple[StartRecord, ...]
    gaps: tuple[GapRecord, ...]
    """Contents of gap events."""
    holes: tuple[GapRecord, ...] = ()
    """Rows that were logged, and are not there though no gap event says why."""
    begins: tuple[GapRecord, ...] = ()
    """Those of them with which a log begins."""
    alarms: tuple[AlarmSummary, ...] = ()
    absences: tuple[Absence, ...] = ()
    roles: dict[str, str] = field(init=False)
    """The role of each node, by its latest process, in the order of the nodes' names."""
    _by_node: dict[str, list[UpdateSummary | EventSummary]] = field(init=False)
    _by_link: dict[tuple[str, str], list[UpdateSummary]] = field(init=False)

    def __post_init__(self) -> None:
        by_node: dict[str, list[UpdateSummary | EventSummary]] = defaultdict(list)
        by_link: dict[tuple[str, str], list[UpdateSummary]] = defaultdict(list)
        rows: tuple[UpdateSummary | EventSummary, ...] = (*self.updates, *self.events)
        for row in rows:
            by_node[row.node].append(row)
        for update in self.updates:
            by_link[update.node, update.link].append(update)
        roles = {node: max((r.node_epoch, r.role) for r in by_node[node])[1] for node in sorted(by_node)}
        object.__setattr__(self, "_by_node", dict(by_node))
        object.__setattr__(self, "_by_link", dict(by_link))
        object.__setattr__(self, "roles", roles)

    def epochs(self, node: str) -> list[int]:
        """Return the epochs of a node's processes, oldest first."""
        return sorted({row.node_epoch for row in self._by_node[node]})

    def log_rows(self, node: str) -> tuple[int, int]:
        """Return how many updates and how many events a node logged."""
        rows = self._by_node[node]
        updates = sum(row.rows for row in rows if isinstance(row, UpdateSummary))
        return updates, sum(row.rows for row in rows) - updates

    def log_span_us(self, node: str) -> tuple[int, int]:
        """Return the first and last time in a node's log, by its clock."""
        rows = self._by_node[node]
        return min(row.first_us for row in rows), max(row.last_us for row in rows)

    def span_us(self, window: AskedWindow) -> tuple[int, int]:
        """Return the first and last time of a window that is in any log."""
        spans = [self.log_span_us(node) for node in self.roles]
        begin_us = max(min((begin for begin, _ in spans), default=0), window.since_us)
        end_us = min(max((end for _, end in spans), default=0), window.until_us)
        return begin_us, max(begin_us, end_us)

    def absent_rows(self, node: str) -> int:
        """Return how many rows between the first and the last position of each process are not there.

        A negative number proves that some rows were given twice.
        """
        absent: list[int] = []
        for epoch in self.epochs(node):
            first_pos, last_pos = self.positions(node, node_epoch=epoch)
            rows = sum(row.rows for row in self._by_node[node] if row.node_epoch == epoch)
            absent.append(last_pos - first_pos + 1 - rows)
        return min(absent) if min(absent) < 0 else sum(absent)

    def positions(self, node: str, *, node_epoch: int) -> tuple[int, int]:
        """Return between which positions the rows of a process should be.

        Positions before the first row of the first process are not given; later processes begin at 1.
        """
        rows = [row for row in self._by_node[node] if row.node_epoch == node_epoch]
        first = min(row.first_pos for row in rows) if node_epoch == self.epochs(node)[0] else 1
        return first, max(row.last_pos for row in rows)

    @property
    def rows(self) -> int:
        """Number of rows of updates."""
        return sum(each.rows for each in self.updates)

    @property
    def first_updates(self) -> dict[str, tuple[int, int]]:
        """By node the (node epoch, position) of its first row of `updates`; beyond all when it has none."""
        found = dict.fromkeys(self.roles, (2**62, 0))
        for row in self.updates:
            found[row.node] = min(found[row.node], (row.node_epoch, row.first_pos))
        return found

    def begins_us(self, node: str) -> int | None:
        """Return the first time in a log without its beginning, by its clock; None for a whole log."""
        return max((hole.last_us for hole in self.begins if hole.node == node), default=None)

    def stopped_us(self, node: str) -> int | None:
        """Return when a node's last process stopped in good order, or None when it did not."""
        last = self.epochs(node)[-1]
        return max(
            (row.stop_us for row in self._events_of(node) if row.node_epoch == last and row.stop_us is not None),
            default=None,
        )

    def gaps_of(self, node: str, *, link: str) -> list[GapRecord]:
        """Return the gaps in which rows of a link may be missing, told of or not; the beginning of a log is none."""
        return [gap for gap in (*self.gaps, *self.holes) if gap.node == node and gap.link in ("", link)]

    def with_gaps_of(self, window: AskedWindow, *, margin_us: int) -> Survey:
        """Return the survey with those gaps and holes alone that may have cost updates of a window."""
        gaps = tuple(gap for gap in self.gaps if window.meets_gap(gap, margin_us=margin_us))
        holes = tuple(gap for gap in self.holes if window.meets_gap(gap, margin_us=margin_us))
        return replace(self, gaps=gaps, holes=holes)

    def begun_at(self, cuts: Iterable[LogCut]) -> Survey:
        """Return the survey of logs that begin there, though events from before are in it."""
        begins: list[GapRecord] = []
        for cut in cuts:
            told = sum(
                gap.lost_positions
                for gap in self.gaps
                if gap.node == cut.node and (gap.lost_epoch, gap.last_pos) < (cut.node_epoch, cut.pos)
            )
            if (left_out := self.absent_rows(cut.node) - cut.absent - told) > 0:
                begins.append(
                    GapRecord(
                        node=cut.node,
                        link="",
                        lost_epoch=cut.node_epoch,
                        first_us=None,
                        last_us=cut.at_us,
                        last_pos=cut.pos - 1,
                        lost_positions=left_out,
                    )
                )
        return replace(self, begins=tuple(begins))

    def unexplained_rows(self, node: str) -> int:
        """Return how many rows inside a node's log are absent without a gap event that accounts for them."""
        explained = sum(gap.lost_positions for gap in (*self.gaps, *self.begins) if gap.node == node)
        return max(0, self.absent_rows(node) - explained)

    def gap_pos(self, node: str, *, link: str) -> int:
        """Return the last position in a node's last process at which a row of a link may be missing, or 0."""
        last = self.epochs(node)[-1]
        gaps = [*self.gaps_of(node, link=link), *(hole for hole in self.begins if hole.node == node)]
        return max((gap.last_pos for gap in gaps if gap.lost_epoch == last), default=0)

    def tear_downs(self, node: str, *, link: str) -> int:
        """Return how many times a link's replica was removed."""
        return sum(row.tear_downs for row in self._events_of(node) if row.link == link)

    def floor(self, node: str, *, link: str) -> tuple[int, int]:
        """Return (node epoch, position) after which a link's rows hold: its last process and tear-down."""
        epoch = self.epochs(node)[-1]
        torn = [
            row.tear_down_pos
            for row in self._events_of(node)
            if row.node_epoch == epoch and row.link == link and row.tear_down_pos is not None
        ]
        return epoch, max(torn, default=0)

    def stamps(self, node: str, *, link: str) -> frozenset[str]:
        """Return who stamped the rows of a link."""
        return frozenset(r.stamp_primary for r in self._updates_of(node, link) if r.stamp_primary is not None)

    @property
    def first_tier(self) -> tuple[str, ...]:
        """The secondaries that stamped what a link brought them, in order."""
        found = {row.node for row in self.updates if row.link and row.stamp_primary == row.node}
        return tuple(sorted(node for node in found if self.roles[node] == "secondary"))

    def upstreams(self, node: str, *, link: str) -> frozenset[str]:
        """Return the fanout nodes that a link was connected to."""
        return frozenset(name for name in self._named(node, link=link) if name)

    def is_beside_nodes(self, node: str, *, link: str) -> bool:
        """Return whether a link was connected to no fanout node for certain."""
        return self._named(node, link=link) == {""}

    def _named(self, node: str, *, link: str) -> set[str]:
        return {name for row in self._events_of(node) if row.link == link for name in row.upstreams}

    def nodes_above(self, node: str, *, link: str) -> frozenset[str]:
        """Return the fanout nodes between a link and the top: those that it was connected to, and those above them."""
        found: set[str] = set()
        left = set(self.upstreams(node, link=link))
        while left:
            found |= left
            left = {
                above
                for one in left
                for row in self._events_of(one)
                for above in row.upstreams
                if above not in found and above in self.roles
            }
        return frozenset(found)

    def live_rows(self, node: str, *, link: str, stamped: bool | None = None) -> int:
        """Return how many updates a link brought; with `stamped`, only those with, or without, a stamp."""
        return sum(
            row.rows
            for row in self._updates_of(node, link)
            if row.live and (stamped is None or (row.stamp_primary is not None) == stamped)
        )

    def origins_us(self, node: str, *, link: str) -> tuple[int, int] | None:
        """Return the first and last time at which an update of a link was stamped, or None without stamps."""
        rows = [row for row in self._updates_of(node, link) if row.live]
        firsts = [row.first_origin_us for row in rows if row.first_origin_us is not None]
        lasts = [row.last_origin_us for row in rows if row.last_origin_us is not None]
        return (min(firsts), max(lasts)) if firsts else None

    def delay_us_min(self, node: str, *, link: str, stamped_by: str, link_epoch: int | None) -> int | None:
        """Return the least (applied - origin) of what one node stamped, in one session of a link or (None) in all."""
        return min(
            (
                row.delay_us_min
                for row in self._updates_of(node, link)
                if row.live
                and row.stamp_primary == stamped_by
                and row.delay_us_min is not None
                and link_epoch in (None, row.link_epoch)
            ),
            default=None,
        )

    def held_from(self, node: str, *, link: LinkConfig, since_epoch: int) -> tuple[int, int] | None:
        """Return when (and in which session) a link first held all of its selectors; None if it never did.

        A link is complete when the last of its selectors is; only then do its rows count as updates.
        """
        firsts: dict[str, tuple[int, int]] = {}
        for row in self.completes:
            if row.node == node and row.link == link.name and row.node_epoch >= since_epoch:
                time = (row.first_us, row.link_epoch)
                firsts[row.selector] = min(firsts.get(row.selector, time), time)
        times = [firsts.get(selection.filter) for selection in link.selections]
        proved = [time for time in times if time is not None]
        return max(proved) if proved and len(proved) == len(times) else None

    def first_live(self, node: str, *, link: str, since_epoch: int) -> tuple[int, int] | None:
        """Return the time and session of the first update that a link brought, or None without one."""
        return min(
            (
                (row.first_us, row.link_epoch)
                for row in self._updates_of(node, link)
                if row.live and row.node_epoch >= since_epoch
            ),
            default=None,
        )

    def selectors_seen(self, node: str, *, link: str, since_epoch: int) -> frozenset[str]:
        """Return the selectors that a link's rows name, from a node epoch on."""
        rows = [row for row in self._updates_of(node, link) if row.node_epoch >= since_epoch]
        return frozenset(selector for row in rows for selector in row.selectors)

    def config(self, node: str) -> NodeConfig:
        """Return a node's links: as its latest `start` event says, or as its rows suggest when none does."""
        stated = stated_config(start for start in self.starts if start.node == node)
        return stated or NodeConfig(0, self._guessed_links(node), changed=False, stated=False)

    def _guessed_links(self, node: str) -> tuple[LinkConfig, ...]:
        seen: dict[str, set[Selection]] = defaultdict(set)
        for row in self.updates:
            if row.node == node and row.link:
                seen[row.link] |= set(map(Selection, row.selectors))
        for proof in self.completes:
            if proof.node == node:
                seen[proof.link].add(Selection(proof.selector))
        return tuple(LinkConfig(name, (), tuple(sorted(seen[name]))) for name in sorted(seen))

    def _events_of(self, node: str) -> list[EventSummary]:
        return [row for row in self._by_node.get(node, ()) if isinstance(row, EventSummary)]

    def _updates_of(self, node: str, link: str) -> list[UpdateSummary]:
        return self._by_link.get((node, link), [])
