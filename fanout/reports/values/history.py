"""One report in a few figures, as the file of the trend keeps it.

The file is somebody's: every figure has bounds, so that what is read from it can be compared and printed.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field, model_validator

from fanout.reports.values.figures import Value

__all__ = ["FORMAT", "VERSION", "PastLag", "PastNode", "PastReport"]

FORMAT: Final = "fanout-trend"
VERSION: Final = 1

Count = Annotated[int, Field(ge=0, lt=2**63)]
Percent = Annotated[float, Field(ge=0, le=100)]
Microseconds = Annotated[int, Field(gt=-(2**70), lt=2**70)]


class PastLag(Value):
    """Lag of the updates of one link that one node stamped, the difference of the clocks taken out."""

    link: str
    stamped_by: str
    updates: Count
    p50_us: Microseconds
    p99_us: Microseconds
    uncertain_us: Microseconds


class PastNode(Value):
    """Updates that one node had to get, over all of its selectors, and their lag."""

    node: str
    expected: Count
    """Unknown ones are not among them."""
    missing: Count
    unknown: Count
    complete_percent_at_least: Percent | None = None
    """Null when nothing can be proved."""
    complete_percent_at_most: Percent | None = None
    lag: tuple[PastLag, ...]
    """Lag of links with enough updates for a p99, and clocks that can be compared."""

    @model_validator(mode="after")
    def _possible(self) -> PastNode:
        if self.missing > self.expected:
            raise ValueError("more is missing than was expected")
        return self


class PastReport(Value):
    """One report: its window and its nodes."""

    format: Literal["fanout-trend"] = FORMAT
    version: Literal[1] = VERSION
    begin: AwareDatetime
    end: AwareDatetime
    """The end of what was old enough to be judged."""
    nodes: tuple[PastNode, ...]

    @model_validator(mode="after")
    def _in_order(self) -> PastReport:
        if self.begin > self.end:
            raise ValueError("it ends before it begins")
        return self
