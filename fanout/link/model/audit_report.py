"""What an audit of a live link found and did, as status, log and HTTP interface tell it (core)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AuditReport"]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found and did."""

    confirmed: bool
    """Whether somebody asked for it who accepts any number of removals."""
    checked: int = 0
    """Topics compared."""
    changed: int = 0
    """Topics that had another value at the primary, or were missing here, without a message to us; repaired."""
    removed: int = 0
    """Topics that the primary did not have any more; removed."""
    kept: int = 0
    """Such topics that were left in place: they are more than an audit may remove, or their absence is not proved."""
    seconds: float = 0.0
    """How long it took."""
    failure: str = ""
    """Why it did not come to its end; empty when it did. What it found until then is repaired."""
    loss: bool = False
    """Whether that shows that the primary may have dropped what it had to send, updates among it."""
