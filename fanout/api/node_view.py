"""Interface of a node for its HTTP endpoints; `fanout.node.documents` implements it, tests use a stand-in."""

from __future__ import annotations

from typing import Protocol

from fanout.api.models import AuditDetail, Draining, LagDocument, NodeStatus, Readiness, UnconfirmedDocument

__all__ = ["NodeView"]


class NodeView(Protocol):
    """A node, as its HTTP endpoints see it.

    Every method is called on the node's event loop at each request and, unless it is a coroutine, must return at once:
    counters are read, not computed. Metrics are derived from these documents, so they cannot disagree.
    """

    def readiness(self) -> Readiness:
        """Return whether the node may join a pool, and why not."""

    def status(self) -> NodeStatus:
        """Return everything about the node."""

    def lag(self) -> LagDocument:
        """Return how far each link is behind."""

    def drain(self) -> Draining:
        """Begin to drain; harmless when the node drains already."""

    async def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
        """Audit one of the links now and return the result.

        Raises:
            AuditRefused: No audit can begin now, or another number of topics is unconfirmed.
        """

    async def unconfirmed(self, link: str, *, after: str) -> UnconfirmedDocument:
        """Return a page of the unconfirmed topics of one of the links, behind the topic `after`."""
