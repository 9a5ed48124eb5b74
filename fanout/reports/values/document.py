"""A finished report as values: what every rendering shows and what the JSON file holds.

Owns the shape of `report.json`, version 3, and its published schema (`docs/reference/report.schema.json`). Nothing here
depends on when, where or by how many machines the report was computed, so that two runs over the same logs give the
same bytes. Knows neither Spark nor any rendering.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import AwareDatetime

from fanout.escaping import printable_json
from fanout.reports.read.scope import Basis, ReferenceKind
from fanout.reports.values.figures import (
    AtLink,
    AtSelector,
    Distribution,
    FinalFigures,
    LagFigures,
    Listed,
    UpdateFigures,
    Value,
)
from fanout.reports.values.findings import ConvergenceSection, SnapshotSection, StallSection, TrafficSection
from fanout.reports.values.summary import MissingCause, Summary

__all__ = [
    "Alarm",
    "Attempt",
    "ClockDifference",
    "CompletenessPoint",
    "CompletenessSection",
    "CompletenessSeries",
    "CorrectedLag",
    "DifferingTopic",
    "HiddenBranch",
    "HopLag",
    "Inputs",
    "LagPoint",
    "LagSection",
    "LagSeries",
    "LogEnd",
    "LogSummary",
    "MissingTopic",
    "MissingUpdate",
    "Outage",
    "Parameters",
    "PrefixAtNode",
    "PrefixFigures",
    "PrefixNodes",
    "Propagation",
    "ReadySection",
    "ReadySummary",
    "ReferenceSequences",
    "ReferenceSummary",
    "Report",
    "ReportName",
    "RoundTrip",
    "TargetReport",
    "Verdict",
    "WindowSummary",
    "schema_text",
]


ReportName = Literal["summary", "completeness", "lag", "snapshots", "convergence", "stalls", "traffic", "all"]
"""Names of reports; each is a command, and `all` is every other in one."""


LogEnd = Literal["stopped", "killed", "not_shipped"]
"""`stopped`: in good order. `killed`: without a stop, so the node was killed or hangs. `not_shipped`: the same, or the
rest is not shipped yet, since only sealed files were given."""


class Parameters(Value):
    """Parameters of the report."""

    reference: str | None
    """The node that was asked for as the reference; null lets the report choose."""
    settle_s: float
    """The settle horizon in seconds."""
    depth: int
    """Number of levels in a topic prefix; 0 for no figures by prefix."""
    fail_under_percent: float | None
    list_limit: int
    """The most entries of a list; the total stands beside."""
    behind_max_s: float = 0
    """Time before the end of the reference's log at which a log may end without a stop: later updates are pending, not
    unknown.
    """
    since: AwareDatetime | None = None
    """Begin of the window: nothing earlier is in any figure; null for no such bound."""
    until: AwareDatetime | None = None
    """End of the window: nothing at this moment or later is in any figure; null for no such bound."""
    accept_union: bool = False
    """True if `fail_under_percent` may be met where the union of the secondaries is the reference."""


class Inputs(Value):
    """Input of the report."""

    directories: tuple[str, ...]
    update_files: int
    event_files: int
    updates: int
    """Rows of the table `updates`."""
    events: int
    """Rows of the table `events`."""
    log_schema: int
    """The version of the replication log's schema."""


class ReferenceSequences(Value):
    """Part of the reference's log from one primary's epoch."""

    primary: str
    epoch: int
    first: int
    last: int
    present: int
    absent: int
    """Sequences between the first and the last that the log lacks: nothing is known of them."""


class ReferenceSummary(Value):
    """Reference: the node whose log says what there was to be replicated."""

    name: str
    kind: ReferenceKind
    nodes: tuple[str, ...]
    chosen: str
    """Why it was taken."""
    sequences: tuple[ReferenceSequences, ...]
    """Only for a node that stamps: one entry for each of its epochs."""


class WindowSummary(Value):
    """The time that the report is about, by the reference's clock: what its log holds of what was asked for."""

    begin: AwareDatetime
    end: AwareDatetime
    settle_horizon_s: float
    settled_until: AwareDatetime
    """Updates after this are pending: too young to be judged."""


class LogSummary(Value):
    """One node's log."""

    node: str
    role: str
    updates: int
    events: int
    begin: AwareDatetime
    end: AwareDatetime
    processes: int
    """Number of starts of the node."""
    stopped: bool
    """True if its last process stopped in good order."""
    gaps: int
    """Number of times that it could not log, or crashed."""
    absent_rows: int
    """Rows inside the log that are not there without a gap that says why."""


class TargetReport(AtSelector):
    """One selector of one link."""

    exclude: tuple[str, ...]
    basis: Basis
    """`stamped`: by the identity that updates carry. `unstamped`: counted in order, from the reference's log."""
    exact: bool
    """True if the reference saw everything, so that nothing can be missing beside what is counted."""
    stamped_by: tuple[str, ...]
    complete_at: AwareDatetime | None
    """When the link first held everything, by the node's clock; null when it never did, or not before `until`."""
    covered_from: AwareDatetime | None
    """By the reference's clock; null when the link never held everything, so that nothing was expected."""
    covered_until: AwareDatetime
    judged_until: AwareDatetime | None = None
    """By the reference's clock; what was published later is pending: too young, or the node's log ends before it came.
    Null in reports of earlier versions."""
    log_ends: LogEnd | None = None
    """Why the node's log ends before the reference's; null when it does not."""
    stamped: UpdateFigures | None
    unstamped: UpdateFigures | None
    final: FinalFigures | None
    """Null with `until`: they are of the end of the logs, which is not the end of the window."""

    @property
    def updates(self) -> UpdateFigures | None:
        """Outcome of its updates, on any basis."""
        return self.unstamped if self.stamped is None else self.stamped


class PrefixFigures(AtSelector):
    """Updates by identity under one topic prefix."""

    prefix: str
    expected: int
    missing: int
    unknown: int
    complete_percent_at_least: float | None
    """Null, too, where the reference's log does not show every update."""
    complete_percent_at_most: float | None = None
    """Share of the updates that the reference saw, with unknown ones counted as there."""
    first_missing: AwareDatetime | None = None
    """When the first update that is missing was published; null when none is."""
    last_missing: AwareDatetime | None = None
    going_on: bool | None = None
    """True if the loss had not ended by the end of the judged time; null without a loss, or if nothing shows it."""


class CompletenessPoint(Value):
    """The updates by identity that were stamped in one window."""

    at: AwareDatetime
    """The window's begin."""
    expected: int
    missing: int
    unknown: int


class CompletenessSeries(AtLink):
    """Updates that one link had to get over time, over all of its selectors; windows without any are left out."""

    points: tuple[CompletenessPoint, ...]


class CompletenessSection(Value):
    """Updates by identity over time."""

    window_s: int
    """The width of the windows."""
    series: tuple[CompletenessSeries, ...]


class PrefixAtNode(Value):
    """Updates by identity under one topic prefix at one node, over its selectors."""

    node: str
    expected: int
    missing: int
    unknown: int
    complete_percent_at_least: float | None
    """Null where nothing was expected, and where the reference's log does not show every update."""
    complete_percent_at_most: float | None


class PrefixNodes(Value):
    """One topic prefix at every node of which something was expected under it."""

    prefix: str
    nodes: tuple[PrefixAtNode, ...]


class MissingUpdate(AtSelector):
    """One update that a node lacks."""

    topic: str
    primary: str
    epoch: int
    sequence: int
    origin: AwareDatetime
    superseded: bool
    """True if a later value of the topic came in a snapshot or audit."""
    cause: MissingCause


class Outage(AtLink):
    """A span in which a link was away, by its node's clock; from the last heartbeat that came back."""

    begin: AwareDatetime
    end: AwareDatetime | None
    """Null when it was not back before the end of its log."""


class Alarm(AtLink):
    """Notices of one kind in a link's log for a person, by its node's clock."""

    kind: Literal["alarm", "skipped"]
    """`alarm`: warnings and errors. `skipped`: messages that could not be replicated."""
    message: str
    """The line of the log; of `skipped`, why."""
    reason: str
    """Subject and reason of the newest; empty when it does not say."""
    hint: str
    """Remedy for the newest; empty when it does not say."""
    times: int
    """Number of its events; for `skipped`, the number of messages."""
    first: AwareDatetime
    last: AwareDatetime


class HiddenBranch(AtSelector):
    """A branch of topics without any further update, while others came: not readable by its user, or kept out."""

    branch: str
    """As a Topic Filter."""
    missing: int


class MissingTopic(AtSelector):
    """One topic of which a node lacks updates."""

    topic: str
    missing: int
    unknown: int
    superseded: int
    """Missing updates after which a later value of the topic came in a snapshot or audit."""
    first_missing: AwareDatetime
    """When the first update that is missing was published."""
    last_missing: AwareDatetime
    going_on: bool | None
    """True if the loss had not ended by the end of the judged time."""
    cause: MissingCause
    """Cause of most of the missing updates."""


class DifferingTopic(AtSelector):
    """One topic whose final value is not the reference's."""

    topic: str
    verdict: Literal["different", "absent", "extra"]


class CorrectedLag(Value):
    """Propagation time with the difference of the two clocks taken out."""

    p50_us: int
    p95_us: int
    p99_us: int
    most_us: int
    mean_us: int | None = None
    """Null where it was not computed."""
    uncertain_us: int
    """Uncertainty of each of these in either direction (percentiles: 2.2 per cent more): half the distance of the
    bounds of the difference, and the error of wide buckets of times far from zero.
    """


class Propagation(AtSelector):
    """Propagation time: applied by the node's clock less stamped by the stamping node's. Never clamped."""

    stamped_by: str
    lag: LagFigures
    """As the two clocks say it."""
    corrected: CorrectedLag | None = None
    """Null when the difference of the clocks is not known from both sides."""


class RoundTrip(AtLink):
    """Round trip of a link's heartbeat through the primary: one clock."""

    lag: LagFigures


class ClockDifference(AtLink):
    """Lead of a node's clock over the clock that stamped its updates; negative when it is behind.

    No update arrives before it was stamped, so the least propagation time is more than the difference. The lower bound
    assumes, without proof, that the quickest update took less time than the quickest heartbeat to the same node and
    back. In a chain a heartbeat goes to the next node only, so the quickest of all hops from the stamping node on are
    added up. Clocks that were set meanwhile have no one difference.
    """

    stamped_by: str
    at_most_us: int
    """The least propagation time."""
    at_least_us: int | None
    """Null when the round trip of heartbeats is not known of every hop from the stamping node."""
    estimate_us: int | None
    """The middle of both; 0, as both are, where the node stamped itself."""


class LagPoint(Value):
    """The propagation times of the updates stamped in one window."""

    at: AwareDatetime
    rows: int
    p50_us: int
    p95_us: int
    p99_us: int
    most_us: int
    corrected_p50_us: int | None = None
    """With the difference of the clocks taken out; right to as much as those of the whole time. Null when it is not
    known."""
    corrected_p99_us: int | None = None
    corrected_most_us: int | None = None


class LagSeries(AtLink):
    """Propagation time of one link over time."""

    stamped_by: str
    points: tuple[LagPoint, ...]


class PrefixLag(AtLink):
    """Propagation time of the updates under one topic prefix at one link, over its selectors."""

    stamped_by: str
    prefix: str
    lag: Distribution
    """As the two clocks say it."""
    corrected: CorrectedLag | None = None
    """Null when the difference of the clocks is not known from both sides."""


class HopLag(Value):
    """Mean lag that updates gained on the way from one node of a chain to the next.

    Of the selectors that both nodes have. The means of a chain add up as far as the same updates came to both.
    """

    from_node: str
    to_node: str
    stamped_by: str
    updates_before: int | None = None
    """Number of updates in the mean at the first node; null when that node stamped them."""
    updates: int | None = None
    """Number of updates in the mean at the second node."""
    mean_us: int
    """The difference of the mean propagation times at both; the difference of their clocks is in it."""
    corrected_mean_us: int | None
    """With that taken out; null when it is not known."""
    uncertain_us: int | None
    """The corrected mean is right to so much in either direction."""


class LagSection(Value):
    """Lag of updates."""

    propagation: tuple[Propagation, ...] = ()
    heartbeat: tuple[RoundTrip, ...] = ()
    clocks: tuple[ClockDifference, ...] = ()
    """One entry for each link and stamping node."""
    window_s: int = 0
    """The width of the windows of `over_time`; 0 when nothing was measured over time."""
    over_time: tuple[LagSeries, ...] = ()
    hops: tuple[HopLag, ...] = ()
    """Hops of every chain of nodes, in the order of the way; empty if updates take one hop."""
    prefixes: Listed[PrefixLag] | None = None
    """The slowest first, by p99 less the least time of the link; null when prefixes were not asked for."""
    others: int = 0
    """Number of stamping nodes without figures of their own: too many, they are added up as `(others)`."""


class ReadySummary(AtLink):
    """Number of connections of a link, and the time that it took to hold everything."""

    attempts: int
    ready: int
    first_live: AwareDatetime | None
    first_ready_s: float | None
    last_ready_s: float | None
    most_ready_s: float | None
    topics: int | None
    """Topics held when it last became ready."""
    evidence: str
    tear_downs: int


class Attempt(AtLink):
    """One time that a link became ready."""

    connecting: AwareDatetime
    live: AwareDatetime
    ready_s: float
    topics: int | None
    evidence: str


class ReadySection(Value):
    """From connect to ready."""

    links: tuple[ReadySummary, ...] = ()
    attempts: Listed[Attempt] = Listed[Attempt](total=0, listed=())
    """Those that ended ready, the latest first."""


class Verdict(Value):
    """True if the report meets `fail_under_percent`."""

    fail_under_percent: float
    lowest_percent: float | None
    """The lowest share of updates or of final values of any selector, what is unknown counted against it."""
    passed: bool
    because: str


class Report(Value):
    """A whole report; a section that it does not make is null or empty."""

    format: Literal["fanout-report"] = "fanout-report"
    version: Literal[3] = 3
    report: ReportName
    summary: Summary | None = None
    """The three answers; null in a report that has no figures for them."""
    parameters: Parameters
    inputs: Inputs
    logs: tuple[LogSummary, ...]
    reference: ReferenceSummary | None = None
    basis: tuple[str, ...] = ()
    """Reference of the figures and trust in them, one statement for each basis in use."""
    window: WindowSummary | None = None
    notices: tuple[str, ...] = ()
    """Notices that a reader needs to read the figures right."""
    targets: tuple[TargetReport, ...] = ()
    prefixes: Listed[PrefixFigures] | None = None
    """By selector, those that lack most updates first."""
    prefix_map: Listed[PrefixNodes] | None = None
    """By node, the prefixes that lack most updates, in the order of their names."""
    over_time: CompletenessSection | None = None
    """Null in a report that compares no updates."""
    outages: tuple[Outage, ...] = ()
    """When links were away, the latest first; at most `parameters.list_limit` of them."""
    hidden_branches: tuple[HiddenBranch, ...] = ()
    """The widest of these branches."""
    alarms: tuple[Alarm, ...] = ()
    """The latest first; at most `parameters.list_limit` of them."""
    missing_topics: Listed[MissingTopic] | None = None
    """By topic, those that lack most first; null when no target has stamps."""
    missing: Listed[MissingUpdate] | None = None
    """Null when no target has stamps."""
    differing: Listed[DifferingTopic] | None = None
    """Null with `until`."""
    lag: LagSection = LagSection()
    ready: ReadySection = ReadySection()
    snapshots: SnapshotSection | None = None
    convergence: ConvergenceSection | None = None
    stalls: StallSection | None = None
    traffic: TrafficSection | None = None
    verdict: Verdict | None = None

    def to_json(self) -> str:
        """Return the report as JSON text that ends with a line feed."""
        return printable_json(self.model_dump_json(indent=2)) + "\n"


def schema_text() -> str:
    """Return the JSON schema of a report as text that ends with a line feed; every key is in every report."""
    schema = Report.model_json_schema(mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema, indent=2) + "\n"
