"""Figures of the sampling of a link, as the status, the metrics and the HTTP interface show them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SamplingTotals"]


@dataclass(frozen=True, slots=True)
class SamplingTotals:
    """Totals over the samples of a link since it was started."""

    samples_total: int = 0
    """Samples that the primary answered."""
    topics_total: int = 0
    """Topics requested in them."""
    missing_total: int = 0
    """Topics among these that the primary did not send, or refused, and that the replica still had afterwards."""
    changed_total: int = 0
    """Topics among these for whose value from the primary the replica still differed afterwards."""
    failed_total: int = 0
    """Samples that failed: the connection was refused or lost, or the primary did not answer in time."""
    audits_total: int = 0
    """Audits that samples called for."""
    last_ns: int = 0
    """When the primary answered the newest sample, Unix time in nanoseconds; 0 before the first."""
    off: str = ""
    """Why no samples are taken at present, in words; empty while they are."""
