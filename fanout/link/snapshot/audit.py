"""Schedule of the audits of a live link, their limit on removals, and their reports.

`fanout.link.snapshot.retained_pass` makes the passes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fanout.config import LinkConfig
from fanout.link.model.audit_report import AuditReport
from fanout.link.snapshot.diff import Losses

__all__ = ["COST_FACTOR", "INTERVAL_MAX_S", "INTERVAL_MIN_S", "RETRY_S", "Audit", "LiveAudits"]

RETRY_S = 30.0
"""Shortest pause between audits after one that failed, or while something keeps requesting them."""
INTERVAL_MIN_S = 300.0
INTERVAL_MAX_S = 3_600.0
COST_FACTOR = 100
"""Without `audit_interval_s`, audits are so many times as far apart as one takes, within the bounds above."""
_JITTER = 0.1
_NEVER = float("inf")


class Audit:
    """One audit under way.

    Attributes:
        report: Result so far.
    """

    def __init__(self, *, confirmed: bool, removed_percent_max: int, now: float, reason: str = "") -> None:
        """Begin.

        Args:
            confirmed: See `AuditReport`, as for `reason`.
            removed_percent_max: Share of a selector's topics that may be removed without confirmation.
            now: Monotonic seconds.
            reason: What called for it.
        """
        self.report = AuditReport(confirmed, reason=reason)
        self._removed_percent_max = removed_percent_max
        self._started_s = now

    def judge(self, found: Losses, *, topics: int, proves_absence: bool) -> bool:
        """Take the losses in one selector's set, and return whether to remove topics that are gone.

        Args:
            found: Losses that the proved pass shows.
            topics: Number of topics of the selector in the replica.
            proves_absence: Whether the evidence proves that missing topics are gone.
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
        """Return the complete report."""
        return replace(self.report, seconds=now - self._started_s, failure=failure, loss=loss)


class LiveAudits:
    """Audits of one live link, one after another.

    Attributes:
        current: Audit under way; None for none.
        due_s: When the next audit is due, monotonic seconds; infinity for never.
        copies_late: Whether copies for an audit that was given up may still come.
    """

    def __init__(self, config: LinkConfig, *, seed: int) -> None:
        """Begin with no audit due.

        Args:
            config: The link's configuration.
            seed: A number that differs between processes, so that the nodes of a pool spread their audits.
        """
        self.current: Audit | None = None
        self.due_s = _NEVER
        self.copies_late = False
        self._rests_until_s = -_NEVER
        self._interval_s = config.audit_interval_s
        self._spread = 1 + _JITTER * (seed % 2001 - 1000) / 1000
        self._removed_percent_max = config.max_removed_percent

    def plan(self, now: float, *, took_s: float) -> None:
        """Schedule the next audit one interval from now.

        Args:
            now: Monotonic seconds.
            took_s: Duration of the newest pass over all retained sets.
        """
        interval_s = self._interval_s
        if interval_s is None:
            interval_s = min(max(COST_FACTOR * took_s, INTERVAL_MIN_S), INTERVAL_MAX_S)
        self.due_s = now + interval_s * self._spread if interval_s else _NEVER

    def hasten(self, due_s: float) -> None:
        """Schedule the next audit no later than `due_s`, monotonic seconds, if the link has time then.

        There is a pause of at least `RETRY_S` behind the former one, because requests may come all the time.
        """
        self.due_s = min(self.due_s, max(due_s, self._rests_until_s))

    def expect_late_copies(self) -> None:
        """Note that copies for an audit that was given up may come until the PINGRESP under way."""
        self.copies_late = True

    def end_late_copies(self) -> None:
        """Note that no copies of an audit that was given up can come any more."""
        self.copies_late = False

    def begin(self, *, confirmed: bool, now: float, reason: str = "") -> None:
        """Begin an audit; see `AuditReport` for `confirmed` and `reason`."""
        self.current = Audit(confirmed=confirmed, removed_percent_max=self._removed_percent_max, now=now, reason=reason)

    def end(self, *, now: float, failure: str = "", loss: bool = False) -> AuditReport | None:
        """End the audit under way and schedule the next; return the report, or None when none is under way.

        Args:
            now: Monotonic seconds.
            failure: Why it failed, or empty; after a failure the next one is due soon, whatever the interval.
            loss: See `AuditReport`.
        """
        audit, self.current = self.current, None
        if audit is None:
            return None
        report = audit.end(now=now, failure=failure, loss=loss)
        self._rests_until_s = now + RETRY_S
        if failure:
            self.due_s = self._rests_until_s
        else:
            self.plan(now, took_s=report.seconds)
        return report
