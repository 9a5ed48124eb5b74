"""Results of a probe: one for each check, with its meaning for a link."""

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
    "nothing_to_test",
    "passed",
]


class Outcome(enum.StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    """The primary has the feature."""
    FAILED = "failed"
    """The primary lacks the feature, or deviates from MQTT."""
    NOT_AVAILABLE = "not available"
    """The primary does not offer the feature."""
    NOT_PERMITTED = "not permitted"
    """Not tested: the user lacks a right that the check needs."""
    NOTHING_TO_TEST = "nothing to test"
    """Not tested: there is nothing at the primary with which the check could be made."""
    NOT_TESTED = "not tested"
    """Not tested: the time was up before the check."""

    @property
    def was_tested(self) -> bool:
        """Whether the check was made, so that its outcome says something about the primary."""
        return self in (Outcome.PASSED, Outcome.FAILED, Outcome.NOT_AVAILABLE)

    @property
    def shown(self) -> str:
        """The outcome for a person: every check that was not made is "not tested"; what was seen says why."""
        return self.value if self.was_tested else Outcome.NOT_TESTED.value


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one check."""

    outcome: Outcome
    """Outcome of the check."""
    seen: str
    """The observation, without a full stop."""
    figure: float | None = None
    """Its number on which advice depends; None for none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    check: str
    """The name of the check."""
    result: Result
    """Result of the check."""
    meaning: str
    """Its meaning for a link."""


@dataclass(frozen=True, slots=True)
class VersionReport:
    """Findings with one protocol version."""

    version: int
    """5 for MQTT 5, 4 for MQTT 3.1.1."""
    findings: tuple[Finding, ...]
    """In the order in which they were tested."""
    writable_prefix: str | None = None
    """A prefix below which the user may write and read, where it may not below the one of the probe; None for none."""

    def result(self, check: str) -> Result | None:
        """Return the result of a check; None when it does not exist for this version."""
        return next((one.result for one in self.findings if one.check == check), None)

    def has_passed(self, *checks: str) -> bool:
        """Tell whether all of these checks passed."""
        return all((result := self.result(one)) is not None and result.outcome is Outcome.PASSED for one in checks)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """A whole probe."""

    address: str
    """The probed address."""
    server: str
    """Name and version that the primary gives; empty for none."""
    versions: tuple[VersionReport, ...]
    """MQTT 5 first."""
    complete: bool
    """Whether all checks were made; else the time was up."""
    left_behind: str
    """Text of what could not be cleaned up; empty for nothing."""


def passed(seen: str, figure: float | None = None) -> Result:
    """Return the result of a check that passed."""
    return Result(Outcome.PASSED, seen, figure)


def failed(seen: str, figure: float | None = None) -> Result:
    """Return the result of a check that failed."""
    return Result(Outcome.FAILED, seen, figure)


def not_permitted(seen: str) -> Result:
    """Return the result of a check that the primary does not allow this user."""
    return Result(Outcome.NOT_PERMITTED, f"not permitted: {seen}")


def nothing_to_test(seen: str) -> Result:
    """Return the result of a check for which there is nothing at the primary."""
    return Result(Outcome.NOTHING_TO_TEST, f"nothing to test: {seen}")


def not_available(seen: str) -> Result:
    """Return the result of a check for something that the primary does not offer."""
    return Result(Outcome.NOT_AVAILABLE, seen)
