"""What the HTTP face asks of a node; `fanout.node` implements it, tests use a stand-in."""

from __future__ import annotations

from typing import Protocol

from fanout.api.models import AuditDetail, Draining, LagDocument, NodeStatus, Readiness

__all__ = ["NodeView"]


class NodeView(Protocol):
    """A node, seen by its HTTP face.

    Every method is called on the node's event loop, at each request, and, but for `audit`, must return at once:
    counters are read, not computed. The metrics are derived from these documents, so that they cannot disagree.
    """

    def readiness(self) -> Readiness:
        """Return whether the node may join a pool, and why not."""

    def status(self) -> NodeStatus:
        """Return everything about the node."""

    def lag(self) -> LagDocument:
        """Return how far each link is behind."""

    def drain(self) -> Draining:
        """Begin to leave the pool, and then end; harmless when that has begun."""

    async def audit(self, link: str, *, confirmed: bool) -> AuditDetail:
        """Audit one of the links that `readiness` has, now, and return what was found.

        Raises:
            AuditRefused: No audit can begin now.
        """
