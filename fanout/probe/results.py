"""Results of a probe: what a link did at the primary with each set of settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fanout.link.model.evidence import Evidence
from fanout.probe.settings import Settings

__all__ = ["Finding", "Outcome", "ProbeReport", "Trial"]


class Outcome(enum.StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    """It was as a link needs it."""
    FAILED = "failed"
    """It was not."""
    NOT_TESTED = "not tested"
    """The check was not made; what was seen says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    check: str
    """Name of the check."""
    outcome: Outcome
    """Outcome of the check."""
    seen: str
    """The observation, without a full stop."""


@dataclass(slots=True)
class Trial:
    """Results of a link with some settings; filled in while it runs, so that they can be read when the time is up."""

    settings: Settings
    """Its settings."""
    findings: list[Finding] = field(default_factory=list)
    """Checks in their order."""
    evidence: Evidence | None = None
    """Evidence for the weakest of its retained sets; None when it was never live."""
    topics: int = 0
    """Number of topics with a value in the first set, without those of the probe."""
    reason: str = ""
    """Why it is of no use as it is; empty when it is of use."""
    hint: str = ""
    """Remedy for that; empty for none."""
    accepted: bool = False
    """True if the primary accepted a connection of the link."""
    complete: bool = False
    """True if every check was made, or none that is left can change the result; else the time was up."""

    @property
    def is_usable(self) -> bool:
        """True if a node with these settings becomes ready, if its `min_evidence` allows the evidence."""
        return not self.reason and self.evidence is not None and self.evidence.is_at_least(Evidence.TWO_PASS)

    @property
    def is_proved(self) -> bool:
        """True if it becomes ready by proof."""
        return self.is_usable and self.evidence is not None and self.evidence.is_at_least(Evidence.BARRIER)

    @property
    def has_heartbeats(self) -> bool:
        """True if heartbeats came back, so that lag is known and a stall is noticed."""
        return any(one.check == "heartbeats" and one.outcome is Outcome.PASSED for one in self.findings)

    def add(self, check: str, outcome: Outcome | bool, seen: str) -> None:
        """Add a finding; True stands for `passed`, False for `failed`."""
        if isinstance(outcome, bool):
            outcome = Outcome.PASSED if outcome else Outcome.FAILED
        self.findings.append(Finding(check, outcome, seen))


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """A whole probe."""

    address: str
    """The probed address."""
    server: str
    """Name and version that the primary gives; empty for none."""
    trials: tuple[Trial, ...]
    """In the order in which they were made; at least one."""
    complete: bool
    """True if the time was enough."""
    left_behind: str
    """Text of what could not be cleaned up; empty for nothing."""

    @property
    def best(self) -> Trial:
        """The first trial with proof; else one that is usable, first with heartbeats; else one that was accepted."""
        return max(self.trials, key=lambda one: (one.is_proved, one.is_usable, one.has_heartbeats, one.accepted))
