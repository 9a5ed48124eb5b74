"""Result of an audit of a live link, as the status, the log and the HTTP interface show it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AuditReport"]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Result of one audit."""

    confirmed: bool
    """True if an operator confirmed that unconfirmed topics are deleted at the primary."""
    checked: int = 0
    """Topics compared."""
    changed: int = 0
    """Topics repaired: the primary had another value, or had one where the replica had none."""
    removed: int = 0
    """Topics removed because the primary did not have them any more."""
    kept: int = 0
    """Such topics left in place, unconfirmed: nothing shows that they are deleted there, or they are too many."""
    seconds: float = 0.0
    """Duration in seconds."""
    failure: str = ""
    """Why it failed; empty when it did not. Repairs made before the failure stay."""
    reason: str = ""
    """Its cause: "sample" for a sample of topics that differed, "pool" for members of a pool that hold
    different values, "evidence" for better evidence that can be had now, "resumed" for the verification of a resumed
    session, whose result it has; empty for the schedule or a person."""
    loss: bool = False
    """True if the failure shows that the primary may have dropped messages, updates among them."""
