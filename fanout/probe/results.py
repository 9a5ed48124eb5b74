"""What a probe found: one result for each check, and what it means for a link.

Owns the words. It must not know how anything is tested.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = [
    "Finding",
    "Outcome",
    "ProbeReport",
    "Result",
    "VersionReport",
    "failed",
    "not_available",
    "not_permitted",
    "passed",
]


class Outcome(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    """The primary does it."""
    FAILED = "failed"
    """The primary does not do it, or not as MQTT has it."""
    NOT_PERMITTED = "not permitted"
    """The user may not do what the check needs."""
    NOT_AVAILABLE = "not available"
    """The primary does not offer it, or what the check needs."""
    NOT_TESTED = "not tested"
    """The time was up before."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one check."""

    outcome: Outcome
    """How it ended."""
    seen: str
    """What was seen, without a full stop."""
    figure: float | None = None
    """The number in it on which advice depends; None where there is none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    check: str
    """The name of the check."""
    result: Result
    """How it ended."""
    meaning: str
    """What that means for a link."""


@dataclass(frozen=True, slots=True)
class VersionReport:
    """What was found with one protocol version."""

    version: int
    """5 for MQTT 5, 4 for MQTT 3.1.1."""
    findings: tuple[Finding, ...]
    """In the order in which they were tested."""

    def result(self, check: str) -> Result | None:
        """Return the result of a check; None when it does not exist for this version."""
        return next((one.result for one in self.findings if one.check == check), None)

    def has_passed(self, *checks: str) -> bool:
        """Say whether all of these checks passed."""
        return all((result := self.result(one)) is not None and result.outcome is Outcome.PASSED for one in checks)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """A whole probe."""

    address: str
    """What was probed."""
    server: str
    """What the primary says that it is; empty when it says nothing."""
    versions: tuple[VersionReport, ...]
    """MQTT 5 first."""
    complete: bool
    """Whether all checks were made; else the time was up."""
    left_behind: str
    """What could not be cleaned up; empty when nothing is left."""


def passed(seen: str, figure: float | None = None) -> Result:
    """Return the result of a check that passed."""
    return Result(Outcome.PASSED, seen, figure)


def failed(seen: str, figure: float | None = None) -> Result:
    """Return the result of a check that failed."""
    return Result(Outcome.FAILED, seen, figure)


def not_permitted(seen: str) -> Result:
    """Return the result of a check that the primary does not allow this user."""
    return Result(Outcome.NOT_PERMITTED, seen)


def not_available(seen: str) -> Result:
    """Return the result of a check for something that the primary does not offer."""
    return Result(Outcome.NOT_AVAILABLE, seen)
