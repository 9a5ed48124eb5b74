"""State of one selector in the session of a link."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.link.model.evidence import Evidence

__all__ = ["SelectorState"]


@dataclass(slots=True)
class SelectorState:
    """State of one selector; it moves with the selector when the others change, and ends with the session."""

    topics_had: int = 0
    """Topics that it had when its newest session was lost: a much smaller set is suspicious."""
    evidence: Evidence | None = None
    """Evidence for its snapshot in this epoch; None while there is none."""
    joins: bool = False
    """True if it was added to the session of a link with others, and is not proved yet."""
    was_empty: bool = False
    """True if its first proved set of this epoch was empty."""
    below_qos: bool = False
    """True if its subscription had, or may have had, QoS 0 when the connection was lost."""
    granted: int | None = None
    """QoS granted in this session if that is not the selector's own; None otherwise."""
