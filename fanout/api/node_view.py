"""Interface of a node for its HTTP endpoints; `fanout.node.documents` implements it, tests use a stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fanout.api.models import AuditDetail, Draining, LagDocument, NodeStatus, Readiness

if TYPE_CHECKING:
    from fanout.api.topic_facts import TopicExplanation

__all__ = ["NodeView"]


class NodeView(Protocol):
    """A node, as its HTTP endpoints see it.

    Every method is called on the node's event loop at each request and, except `audit` and `explain`, must return at
    once: counters are read, not computed. Metrics are derived from these documents, so they cannot disagree.
    """

    def readiness(self) -> Readiness:
        """Return whether the node may join a pool, and why not."""

    def status(self) -> NodeStatus:
        """Return everything about the node."""

    def lag(self) -> LagDocument:
        """Return how far each link is behind."""

    def drain(self) -> Draining:
        """Begin to drain; harmless when the node drains already."""

    async def audit(self, link: str, *, confirmed: bool) -> AuditDetail:
        """Audit one of the links now and return the result.

        Raises:
            AuditRefused: No audit can begin now.
        """

    async def explain(self, topic: str, *, at_primary: bool, client_id: str | None) -> TopicExplanation:
        """Return what is the matter with a topic.

        Args:
            topic: A legal Topic Name.
            at_primary: Whether it is the topic's name at the primary, not at this node.
            client_id: The client that does not get it; None for none.
        """
