"""Objects that the parts of moving share at one member."""

from __future__ import annotations

from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from fanout.durable.moving.member_calls import AllMemberCalls
from fanout.durable.moving.passed_markers import PassedMarkers
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.ports import Others, SessionHost
from fanout.runtime.system_clock import Clock

__all__ = ["MoveContext"]


@dataclass(frozen=True, slots=True)
class MoveContext:
    """One member of a pool, as the parts of moving see it."""

    node: str
    """This member's `node.id`."""
    ledger: SessionLedger
    """Its knowledge of all sessions."""
    host: SessionHost
    """The sessions of its server."""
    others: Others
    """The other members."""
    calls: AllMemberCalls
    """Calls to them."""
    passed: PassedMarkers
    """Markers that have passed in the streams of its links."""
    clock: Clock
    """Gives the time."""
    logger: FilteringBoundLogger
    """Takes log lines."""
