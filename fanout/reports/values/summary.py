"""The answers that stand in front of every report.

Did every secondary get everything; if not, what, since when, and why? How late was it, and where on the way? Is it
getting worse? Computed from the figures of the report itself, so that no rendering has to judge anything.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime

from fanout.reports.values.figures import Value

__all__ = [
    "Answer",
    "CauseCount",
    "Direction",
    "HopSummary",
    "LagSummary",
    "MissingCause",
    "NodeSummary",
    "NodeTrend",
    "PrefixMissing",
    "Summary",
    "Trend",
]

Answer = Literal["complete", "not_complete", "not_proved", "nothing_judged"]
"""`complete`: nothing is missing, and that is proved. `not_complete`: something is missing or was never held, or a
value is not the reference's. `not_proved`: nothing is known to be missing, and nobody can know that nothing is.
`nothing_judged`: nothing was old enough to be judged, or there is nothing to compare the node with."""

MissingCause = Literal[
    "restart", "new_epoch", "resumed", "away", "audit", "upstream", "skipped", "selector", "max_age", "hidden", "live"
]
"""State of the link; see `MissingCauses`."""

Direction = Literal["better", "same", "worse"]


class CauseCount(Value):
    """Number of a node's missing updates with one cause."""

    cause: MissingCause
    updates: int


class PrefixMissing(Value):
    """Number of updates that a node lacks under one topic prefix."""

    prefix: str
    missing: int


class NodeSummary(Value):
    """True if one node got everything, over all of its selectors."""

    node: str
    answer: Answer
    complete_percent_at_least: float | None = None
    """Null when nothing can be proved."""
    complete_percent_at_most: float | None = None
    """Null when nothing was expected. Equal to the other one when the share is exact."""
    missing: int = 0
    missing_is_exact: bool = False
    """False when more may be missing than could be counted."""
    unknown: int = 0
    first_missing: AwareDatetime | None = None
    """When the first update that is missing was published; null when none is."""
    last_missing: AwareDatetime | None = None
    going_on: bool | None = None
    """True if the loss had not ended by the end of the judged time; null without a loss, or if nothing shows it."""
    causes: tuple[CauseCount, ...] = ()
    """Causes of the missing updates, the most frequent first, without causes that do not occur."""
    prefixes: tuple[PrefixMissing, ...] = ()
    """The topic prefixes that lack anything, most first; branches that are not readable, or topics where prefixes were
    not asked for. Empty where they are more than three."""
    topics_behind: int | None = None
    """Topics of which the newest update never came; null when the report does not look for them."""
    topics_different: int | None = None
    """Topics whose final value is not the reference's; null when the report does not compare them."""
    never_held: tuple[str, ...] = ()
    """Selectors of which the node never held everything."""


class LagSummary(Value):
    """Lag of updates at one node from where they were stamped: of its selector with the highest p99."""

    node: str
    stamped_by: str
    updates: int
    """Of all of its selectors."""
    p50_us: int | None
    """With the difference of the clocks taken out; null when nothing is known of it."""
    p99_us: int | None
    uncertain_us: int | None
    """The corrected values are right to so much in either direction."""
    raw_p99_us: int
    """As the two clocks say it."""
    clock_ahead_us: int | None
    """Estimated lead of the node's clock over the one that stamped; negative when it is behind."""


class HopSummary(Value):
    """Mean lag that updates gained on one hop of a chain of nodes."""

    from_node: str
    to_node: str
    stamped_by: str
    mean_us: int
    uncertain_us: int | None
    """Null when the difference of the two clocks is not known: it is in the mean."""


class NodeTrend(Value):
    """One node now and before.

    A share differs by more than three standard errors and a fifth of the missing. A p99 differs by more than its
    uncertainty and a fifth; between the halves of a window also by more than its points of time differ by chance.
    """

    node: str
    missing_before: int
    missing: int
    complete_percent_before: float | None
    """Of what is known: neither part of it has the unknown. Null when nothing was expected."""
    complete_percent: float | None
    p99_us_before: int | None
    """Corrected, of the link that is latest now; null when that is not known at both times. For the halves of a window
    the median of its points of time, for several reports the mean over them, weighted by their updates."""
    p99_us: int | None
    direction: Direction
    """`worse` when either of the two is."""


class Trend(Value):
    """True if it is getting worse."""

    against: Literal["first_half", "history"]
    """Base of the comparison: the first half of the window (`now` is the second half), or all reports of the last 30
    days in the file of the trend, together.
    """
    before_begin: AwareDatetime
    before_end: AwareDatetime
    begin: AwareDatetime
    end: AwareDatetime
    direction: Direction
    """`worse` when any node is, else `better` when any is."""
    nodes: tuple[NodeTrend, ...]
    """The worst first; only nodes with figures at both times."""


class Summary(Value):
    """The three answers."""

    answer: Answer
    """`not_complete` when any node is, `complete` when all are. `not_proved`, too, when nothing was judged of some."""
    nodes: tuple[NodeSummary, ...]
    """Those that are not complete first, and of them those that lack most."""
    lag: tuple[LagSummary, ...]
    """In the order of `nodes`; a node that never got a stamped update has none. At most three for each node, of the
    stamping nodes with the highest p99.
    """
    hops: tuple[HopSummary, ...]
    """Along the chains of nodes; empty when every node is fed by the one that stamps."""
    trend: Trend | None
    """Null when the window is too short to be halved and there is no earlier report."""
