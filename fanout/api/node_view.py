"""Interface of a node for its HTTP endpoints; `fanout.node.documents` implements it, tests use a stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from fanout.api.models import (
    AuditDetail,
    ClientsDocument,
    Draining,
    Held,
    KickRequest,
    KickResult,
    LagDocument,
    NodeStatus,
    PoolDocument,
    Readiness,
    ReloadRequest,
    ReloadResult,
    UnconfirmedDocument,
)

if TYPE_CHECKING:
    from fanout.api.browse.models import PoolComparisonDocument
    from fanout.api.browse.view import NodeBrowser
    from fanout.api.topic_facts import TopicExplanation

__all__ = ["ClientOrder", "NodeView"]

ClientOrder: TypeAlias = Literal["id", "slowest"]
"""Order of the clients of a page."""


class NodeView(Protocol):
    """A node, as its HTTP endpoints see it.

    Every method is called on the node's event loop at each request and, unless it is a coroutine, must return at once:
    counters are read, not computed. Metrics are derived from these documents, so they cannot disagree.
    """

    @property
    def browser(self) -> NodeBrowser:
        """Reads topics and events of the node."""

    def readiness(self) -> Readiness:
        """Return whether the node may join a pool, and why not."""

    async def count(self) -> None:
        """Count what `status` only reads, in slices of the event loop: the load of many sessions."""

    def status(self) -> NodeStatus:
        """Return everything about the node."""

    def lag(self) -> LagDocument:
        """Return how far each link is behind."""

    def pool(self) -> PoolDocument:
        """Return the members of the pool.

        Raises:
            RequestRefused: The node is in no pool.
        """

    async def compare_pool(self, *, authorization: str) -> PoolComparisonDocument:
        """Return the topics that members of the pool hold differently; this takes seconds.

        Args:
            authorization: The header field of the operator who asks, which the other members get; empty for none.

        Raises:
            RequestRefused: The node is in no pool.
        """

    def drain(self) -> Draining:
        """Begin to drain; harmless when the node drains already."""

    def hold(self, *, disconnect: bool) -> Held:
        """Hold the node out of its pool until `undrain`; harmless when it is held already.

        Args:
            disconnect: True to send its clients away, at a pace.

        Raises:
            RequestRefused: The node drains or stops, which cannot be held.
        """

    def undrain(self) -> Held:
        """End the hold; harmless when there is none.

        Raises:
            RequestRefused: The node drains or stops, which has no way back.
        """

    async def reload(self, request: ReloadRequest) -> ReloadResult:
        """Read the configuration again, and apply what has changed.

        Raises:
            RequestRefused: The file has faults, or changes need a restart; nothing has changed.
        """

    async def clients(
        self, *, order: ClientOrder, after: str, limit: int, client_id: str | None, topic_filter: str | None
    ) -> ClientsDocument:
        """Return a page of the clients.

        Args:
            order: By Client Identifier, or the slowest first.
            after: Client Identifier after which the page begins, with the order "id"; empty for the first one.
            limit: Limit of clients on the page.
            client_id: The only client that is asked for; None for all.
            topic_filter: Valid Topic Filter; only clients that may read one of its topics. None for all.

        Raises:
            RequestRefused: The client that is asked for has no session here.
        """

    async def kick(self, request: KickRequest) -> KickResult:
        """Send a client away.

        Raises:
            RequestRefused: The client has no session here.
        """

    async def explain(self, topic: str, *, at_primary: bool, client_id: str | None) -> TopicExplanation:
        """Return the explanation of a topic.

        Args:
            topic: A legal Topic Name.
            at_primary: True if it is the topic's name at the primary, not at this node.
            client_id: The client that does not get it; None for none.
        """

    async def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
        """Audit one of the links now and return the result.

        Raises:
            AuditRefused: No audit can begin now, or another number of topics is unconfirmed.
        """

    async def unconfirmed(self, link: str, *, after: str) -> UnconfirmedDocument:
        """Return a page of the unconfirmed topics of one of the links, after the topic `after`."""
