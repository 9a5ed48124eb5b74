"""An audit of a live link: when one is due, and what its passes over the retained sets add up to (core).

Owns the schedule, the cap on removals, and the report. It must not know how a pass is made
(`fanout.link.snapshot.retained_pass`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from fanout.config import LinkConfig
from fanout.link.model.audit_report import AuditReport
from fanout.link.snapshot.diff import Losses

__all__ = ["RETRY_S", "Audit", "LiveAudits"]

RETRY_S = 30.0
"""Pause before the next audit when one could not be proved complete, or when something calls for one all the time."""
_JITTER = 0.1
_NEVER = float("inf")


class Audit:
    """One audit under way.

    Attributes:
        report: What it found so far.
    """

    def __init__(self, *, confirmed: bool, removed_percent_max: int, now: float) -> None:
        """Begin.

        Args:
            confirmed: See `AuditReport`.
            removed_percent_max: Share of a selector's topics that may be removed without confirmation.
            now: Monotonic seconds.
        """
        self.report = AuditReport(confirmed)
        self._removed_percent_max = removed_percent_max
        self._started_s = now

    def judge(self, found: Losses, *, topics: int, proves_absence: bool) -> bool:
        """Take what a proved pass over one selector's set shows, and return whether to remove what is gone.

        Args:
            found: What it shows.
            topics: How many topics the selector has here.
            proves_absence: Whether the evidence is good enough to remove what did not come.
        """
        report = self.report
        allowed = math.ceil(topics * self._removed_percent_max / 100)
        removes = report.confirmed or (found.removed <= allowed and proves_absence)
        self.report = replace(
            report,
            checked=report.checked + topics,
            changed=report.changed + found.changed,
            kept=report.kept + (0 if removes else found.removed),
        )
        return removes

    def note_removed(self, topics: int) -> None:
        """Note that topics were removed."""
        self.report = replace(self.report, removed=self.report.removed + topics)

    def end(self, *, now: float, failure: str = "", loss: bool = False) -> AuditReport:
        """Return the whole report."""
        return replace(self.report, seconds=now - self._started_s, failure=failure, loss=loss)


class LiveAudits:
    """The audits of one live link, one after another.

    Attributes:
        current: The one under way; None while none is.
        due_s: When the next one is due, monotonic seconds; infinity for never.
        copies_late: Whether copies for an audit that was given up may still come: until the PINGRESP behind them.
    """

    def __init__(self, config: LinkConfig, *, seed: int) -> None:
        """Prepare; none is due.

        Args:
            config: The link's configuration.
            seed: Differs between processes, so that the nodes of a pool do not ask all at once.
        """
        self.current: Audit | None = None
        self.due_s = _NEVER
        self.copies_late = False
        self._rests_until_s = -_NEVER
        self._interval_s = config.audit_interval_s * (1 + _JITTER * (seed % 2001 - 1000) / 1000)
        self._removed_percent_max = config.max_removed_percent

    def plan(self, now: float) -> None:
        """Count the interval to the next one from now."""
        self.due_s = now + self._interval_s if self._interval_s else _NEVER

    def hasten(self, due_s: float) -> None:
        """Have the next one at that time, monotonic seconds, or as soon afterwards as the link has time for it.

        Not before a pause of `RETRY_S` behind the one before: whatever calls for audits may go on doing so.
        """
        self.due_s = min(self.due_s, max(due_s, self._rests_until_s))

    def begin(self, *, confirmed: bool, now: float) -> None:
        """Begin one; see `AuditReport` for `confirmed`."""
        self.current = Audit(confirmed=confirmed, removed_percent_max=self._removed_percent_max, now=now)

    def end(self, *, now: float, failure: str = "", loss: bool = False) -> AuditReport | None:
        """End the one under way and plan the next; return what it found, None when none is under way.

        Args:
            now: Monotonic seconds.
            failure: Why it did not come to its end, and then the next one is due soon, whatever the interval.
            loss: See `AuditReport`.
        """
        audit, self.current = self.current, None
        if audit is None:
            return None
        self._rests_until_s = now + RETRY_S
        if failure:
            self.due_s = self._rests_until_s
        else:
            self.plan(now)
        return audit.end(now=now, failure=failure, loss=loss)
