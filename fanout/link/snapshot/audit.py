"""Schedule of the audits of a live link, their limit on removals, and their reports.

`fanout.link.snapshot.retained_pass` makes the passes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fanout.config import LinkConfig
from fanout.link.model.audit_report import AuditReport
from fanout.link.snapshot.diff import Losses

__all__ = [
    "CALL_PAUSE_MIN_S",
    "COST_FACTOR",
    "INTERVAL_MAX_S",
    "INTERVAL_MIN_S",
    "RETRY_S",
    "Audit",
    "LiveAudits",
]

RETRY_S = 30.0
"""Shortest pause between audits after one that failed, or while topics are unconfirmed."""
CALL_PAUSE_MIN_S = 1.0
"""First pause after an audit before one that is called for; it doubles with each call in a row, up to `RETRY_S`."""
INTERVAL_MIN_S = 300.0
INTERVAL_MAX_S = 3_600.0
COST_FACTOR = 100
"""Ratio of the interval between audits to their duration: without `audit_interval_s`, or for unconfirmed topics."""
_JITTER = 0.1
_NEVER = float("inf")


class Audit:
    """One audit under way.

    Attributes:
        report: Result so far.
        passed_s: When its pass was over, monotonic seconds; None before.
        first: Position of the selector whose set is taken first.
    """

    def __init__(self, *, confirmed: int | None, now: float, reason: str = "", first: int = 0) -> None:
        """Begin.

        Args:
            confirmed: Number of topics that an operator confirmed as deleted; None for no confirmation.
            now: Monotonic seconds.
            reason: Cause of the audit.
            first: See the class.
        """
        self.report = AuditReport(confirmed is not None, reason=reason)
        self.passed_s: float | None = None
        self.first = first
        self._confirmed = confirmed
        self._started_s = now

    def judge(self, found: Losses, *, topics: int, is_few: bool, exact: bool) -> bool:
        """Take the losses in one selector's set, and return whether to remove missing topics at once.

        Args:
            found: Losses that the proved pass shows.
            topics: Number of topics of the selector in the replica.
            is_few: True if the missing ones are not too many to be removed without confirmation.
            exact: True if the evidence of the pass proves that missing topics are deleted.
        """
        report = self.report
        self.report = replace(report, checked=report.checked + topics, changed=report.changed + found.changed)
        if self._confirmed is not None:
            return report.removed + found.removed <= self._confirmed
        return exact and is_few

    def note_repaired(self, topics: int) -> None:
        """Note that topics were repaired in the verification that precedes it."""
        self.report = replace(self.report, changed=self.report.changed + topics)

    def note_removed(self, topics: int) -> None:
        """Note that topics were removed."""
        self.report = replace(self.report, removed=self.report.removed + topics)

    @property
    def pass_seconds(self) -> float:
        """Duration of its pass in seconds; 0 when it had none, or did not complete it."""
        return 0.0 if self.passed_s is None else self.passed_s - self._started_s

    def end(self, *, now: float, kept: int, failure: str = "", loss: bool = False) -> AuditReport:
        """Return the complete report; `kept` is the number of topics that are unconfirmed now."""
        return replace(self.report, kept=kept, seconds=now - self._started_s, failure=failure, loss=loss)


class LiveAudits:
    """Audits of one live link, one after another.

    Attributes:
        current: Audit under way; None for none.
        due_s: When the next audit is due, monotonic seconds; infinity for never.
        copies_late: True if copies for an audit that was given up may still come.
        called: Why an audit was called for, and none has begun since; empty for no call.
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
        self.called = ""
        self._ended_s = -_NEVER
        self._call_pause_s = 0.0
        """Pause after the newest audit before one that is called for."""
        self._interval_s = config.audit_interval_s
        self._spread = 1 + _JITTER * (seed % 2001 - 1000) / 1000
        self._removed_percent_max = config.max_removed_percent

    def is_few(self, missing: int, topics: int) -> bool:
        """Say whether this number of missing topics of a selector may be removed without confirmation.

        Args:
            missing: Number of missing topics.
            topics: Number of all topics of the selector.
        """
        return missing <= math.ceil(topics * self._removed_percent_max / 100)

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
        """Schedule the next audit no later than `due_s`, monotonic seconds, if the link has time then."""
        self.due_s = min(self.due_s, due_s)

    def call(self, reason: str, now: float) -> None:
        """Schedule an audit now, because something may be wrong until it has ended.

        There is a short pause after the former one, longer with each call in a row, because calls may come all the
        time. A call during an audit is for another one after it.

        Args:
            reason: Why something may be wrong, for an operator.
            now: Monotonic seconds.
        """
        if not self.called and self.current is None:
            rested = now - self._ended_s > 2 * RETRY_S
            self._call_pause_s = 0.0 if rested else min(RETRY_S, max(CALL_PAUSE_MIN_S, 2 * self._call_pause_s))
        self.called = reason
        self.hasten(max(now, self._ended_s + self._call_pause_s))

    def note_pass(self) -> None:
        """Note that a pass over all selectors begins, which answers the calls that came before."""
        self.called = ""

    def expect_late_copies(self) -> None:
        """Note that copies for an audit that was given up may come until the PINGRESP under way."""
        self.copies_late = True

    def end_late_copies(self) -> None:
        """Note that no copies of an audit that was given up can come any more."""
        self.copies_late = False

    def begin(self, *, confirmed: int | None, now: float, reason: str = "", first: int = 0) -> Audit:
        """Begin an audit and return it; see `Audit` for `confirmed`, `reason` and `first`."""
        self.current = Audit(confirmed=confirmed, now=now, reason=reason, first=first)
        return self.current

    def end(self, *, now: float, unconfirmed: int, failure: str = "", loss: bool = False) -> AuditReport | None:
        """End the audit under way and schedule the next; return the report, or None when none is under way.

        Args:
            now: Monotonic seconds.
            unconfirmed: Number of topics that are unconfirmed now; while there are any, the next one is due soon.
            failure: Why it failed, or empty; after a failure the next one is due soon, whatever the interval.
            loss: See `AuditReport`.
        """
        audit, self.current = self.current, None
        if audit is None:
            return None
        self._ended_s = now
        if failure:
            self.due_s = now + RETRY_S
            self._call_pause_s = RETRY_S
        else:
            self.plan(now, took_s=audit.pass_seconds)
        if unconfirmed:
            self.hasten(now + max(RETRY_S, COST_FACTOR * audit.pass_seconds))
        if self.called:
            reason, self.called = self.called, ""
            self.call(reason, now)
        return audit.end(now=now, kept=unconfirmed, failure=failure, loss=loss)
