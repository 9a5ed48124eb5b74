"""The sections of a report that one job each makes: snapshots, convergence, stalls, traffic.

Owns their shape in the JSON (`fanout.reports.values.document.Report` holds them). Knows neither Spark nor any
rendering.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime

from fanout.reports.read.scope import Basis
from fanout.reports.values.figures import AtLink, AtSelector, Listed, Value

__all__ = [
    "ApartTopic",
    "ConvergenceSection",
    "ConvergenceSet",
    "HeldValue",
    "LinkEpoch",
    "LinkSnapshots",
    "Member",
    "PrefixTraffic",
    "Publisher",
    "SnapshotSection",
    "SourceTraffic",
    "StallFigures",
    "StallSection",
    "StalledTopic",
    "TrafficSection",
]


class LinkEpoch(AtLink):
    """One epoch of a link: the life of one MQTT session, as far as one process of its node saw it."""

    process: int
    """The node epoch: which process of the node logged it."""
    epoch: int
    """The link's epoch."""
    begin: AwareDatetime
    """The later of the last `connecting` and the last tear-down before it; by the node's clock."""
    verdict: Literal["ready", "never", "pending"]
    """`pending`: not ready, but too young at the end of the node's log to be judged."""
    ready: AwareDatetime | None
    ready_s: float | None
    """From `begin` to the first `live`; null when it was never live."""
    entered_live: int
    """Number of times that it became live; more than 1 after a resumed session or a stall."""
    selectors: int
    """Number of selectors that were proved complete."""
    topics: int | None
    """Topics held when it first became live."""
    evidence: str
    """Evidence for its selectors, joined by a comma."""
    tear_downs: int
    last: AwareDatetime
    """The last event of it in the log, a heartbeat of the link included."""


class LinkSnapshots(AtLink):
    """The epochs of one link in numbers."""

    epochs: int
    ready: int
    never: int
    pending: int
    tear_downs: int
    least_ready_s: float | None
    most_ready_s: float | None
    last_ready_s: float | None
    topics: int | None
    """Topics held when it last became ready."""
    evidence: str
    """Evidence for its latest ready epoch."""


class SnapshotSection(Value):
    """Every epoch of every link: how long to ready, with what evidence, and what was torn down."""

    links: tuple[LinkSnapshots, ...]
    epochs: Listed[LinkEpoch]
    """The latest first."""


class Member(AtLink):
    """Values of one selector at one node at the end of its log; without a link, those that were published at it."""

    topics: int | None
    """Null with `until`, like everything that is said of the end of the logs."""
    digest: str | None
    """Sum of the content digests modulo 2**64, 16 hexadecimal digits: equal sets have equal digests."""


class ConvergenceSet(Value):
    """Nodes that replicate the same selector from the same primary, and how their values compare."""

    filter: str
    exclude: tuple[str, ...]
    basis: Basis
    settled_until: AwareDatetime | None
    """Topics that changed later are pending; by the clock of the group."""
    members: tuple[Member, ...]
    """The nodes, and the reference unless it is a union."""
    equal: int | None
    """Topics of which every member holds the same value. This and the next three are null with `until`, because they
    belong to the end of the logs, not of the window.
    """
    apart: int | None
    """Topics of which two members hold different values, or one holds none."""
    pending: int | None
    """Not equal, but changed too recently to be judged."""
    unknown: int | None
    """Not logged since a gap in the log of a member."""
    windows_compared: int
    """Time windows in which at least two nodes logged their own digest of this selector."""
    windows_equal: int
    """Those in which all of these digests were the same. A window in which they differ proves nothing while
    values change."""
    last_equal: AwareDatetime | None
    """The begin of the latest window in which all were the same."""


class HeldValue(AtLink):
    """Value of one topic at one member."""

    digest: str | None
    """Null when it holds no value."""


class ApartTopic(Value):
    """One topic on which the members of a set differ."""

    filter: str
    topic: str
    values: tuple[HeldValue, ...]


class ConvergenceSection(Value):
    """True if the nodes hold the same final values."""

    sets: tuple[ConvergenceSet, ...]
    apart: Listed[ApartTopic] | None
    """Null with `until`."""
    window_s: int
    """The width of the windows over time."""


class StallFigures(AtSelector):
    """Topics of one selector of one link, by whether the newest settled update came."""

    basis: Basis
    current: int
    """The node has the reference's newest settled update of the topic, or a newer one."""
    stalled: int
    """It has not, though it could log."""
    alone: int
    """Stalled topics that another node with the same selection has current."""
    pending: int
    """Not current, but every update that it lacks is too young to be judged."""
    unknown: int
    """Not current, but what it lacks may have come in a gap of the node's log."""
    most_behind_s: float | None
    """The longest time by which a stalled topic is behind; null when none is, or none of them ever came."""


class StalledTopic(AtSelector):
    """One topic that stopped at a node."""

    topic: str
    basis: Basis
    newest: AwareDatetime | None
    """The newest that the node has; null when it never got any."""
    first_lacking: AwareDatetime
    """The first settled update of the reference after that; without stamps, after that and the settle horizon."""
    reference_newest: AwareDatetime
    """The newest settled update of the reference."""
    lacking: int
    """Settled rows of the reference from `first_lacking` on; without stamps it may lack more, just before."""
    stalled_links: int
    """Links that select the topic and stalled on it, this one included."""
    current_links: int
    """Links that select the topic and have its newest settled update."""


class StallSection(Value):
    """Topics that stopped at one node, and whether they stopped at others."""

    targets: tuple[StallFigures, ...]
    topics: Listed[StalledTopic]
    """Those that stopped at one node and not at another come first."""


class SourceTraffic(Value):
    """Updates of one primary that the reference saw."""

    source: str
    """The links of the reference that saw it; `published` for what was published at the reference itself."""
    basis: Basis
    exact: bool
    """True if the log holds every update there was; else the counts are `at least`."""
    updates: int
    payload_bytes: int
    topics: int
    prefixes: int
    pending: int
    """Updates of the last settle horizon: not counted anywhere else, since more of them may come."""


class Publisher(Value):
    """Number of updates stamped, hence published, at one node."""

    node: str | None
    """Null for updates without a stamp: where they were published is not known."""
    updates: int


class PrefixTraffic(Value):
    """The updates under one topic prefix."""

    source: str
    prefix: str
    updates: int
    updates_percent: float
    payload_bytes: int
    bytes_percent: float | None
    """Null when no update had a payload."""
    topics: int
    retained: int
    """Updates with RETAIN set."""
    publishers: tuple[Publisher, ...]
    """The nodes at which most of them were published, at most three."""


class TrafficSection(Value):
    """Traffic by publisher and topic prefix."""

    depth: int
    sources: tuple[SourceTraffic, ...]
    prefixes: Listed[PrefixTraffic]
    """The busiest first."""
