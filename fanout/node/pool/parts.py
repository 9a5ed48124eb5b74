"""Parts of a node that make it a member of a pool: questions to the others, the listener for them, moving sessions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final

from structlog.typing import FilteringBoundLogger

from fanout.api.accepting import Places
from fanout.api.http_server import HttpServer
from fanout.api.models import PoolDocument, PoolStatus
from fanout.config import NodeConfig, PoolConfig, read_token
from fanout.node.pool.documents import config_digest, pool_document
from fanout.node.pool.equality import LinkCuts
from fanout.pool.member_facts import MemberFacts
from fanout.pool.peer_tls import load_peer_tls
from fanout.pool.pool_members import PoolMembers
from fanout.replica.recent import RecentUpdates
from fanout.runtime.system_clock import SystemClock
from fanout.server.client.server import Server

if TYPE_CHECKING:
    from fanout.durable.keeping.session_copies import SessionCopies
    from fanout.durable.moving.session_pool import SessionPool
    from fanout.durable.ownership.ports import CopyFigures
    from fanout.link.link import Link
    from fanout.node.pool.session_host import PlaceNames

__all__ = ["NodePool"]

_STRANGERS_MAX: Final = 64
"""Connections of addresses that are no member's; a member behind a translation of addresses has one."""


class NodePool:
    """A node as a member of a pool."""

    def __init__(
        self,
        config: NodeConfig,
        pool: PoolConfig,
        *,
        facts: Callable[[str], MemberFacts],
        links: Sequence[Link],
        server: Server | None,
        clock: SystemClock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Make the parts; nothing is opened before the listener starts and `tasks` run.

        Args:
            config: The configuration of the node.
            pool: Its pool.
            facts: Returns what the node tells the others, given what identifies its process.
            links: Every link.
            server: Serves the clients, whose sessions move; None for a node without clients.
            clock: Gives the time.
            logger: Takes log lines.

        Raises:
            ConfigError: The file of the token cannot be used.
            ListenError: A certificate or key cannot be used.
        """
        self._links = links
        self._clock = clock
        self._logger = logger
        tls = load_peer_tls(pool)
        self.members = PoolMembers(
            pool,
            node=config.node.id,
            config_digest=config_digest(config.links),
            token=None if pool.token_file is None else read_token(pool.token_file, key="pool.token_file"),
            tls=tls,
            own_facts=facts,
            cuts=LinkCuts(links),
            clock=clock,
            logger=logger,
        )
        """The other members."""
        self.listener = HttpServer(
            lambda: self.members.listener,
            host=pool.listen.host,
            port=pool.listen.port,
            key="pool.listen",
            tls=None if tls is None else tls.listening,
            places=Places(is_kept=self.members.is_members_address, others_max=_STRANGERS_MAX),
        )
        """Answers the other members."""
        self.sessions: SessionPool | None = None
        """Brings the sessions of clients here from other members; None for a node without clients."""
        self.recent: RecentUpdates | None = None
        """Recent updates, from which sessions of dead members go on; None where none do."""
        self.session_copies: SessionCopies | None = None
        """Makes copies of the sessions of clients for other members; None where none are made."""
        self.place_names: PlaceNames | None = None
        """Wait of a new member until its copies are of use to others; None where none are made."""
        if server is not None:
            self.sessions = self._move_sessions(server)
            if pool.session_copies:
                self._keep_copies(server, self.sessions)

    def _move_sessions(self, server: Server) -> SessionPool:
        """Let sessions move between this node and the other members, and return what moves them."""
        # Nodes that are in no pool do without these, and nodes without links without the links.
        from fanout.durable.hosting.server_sessions import ServerSessions
        from fanout.durable.moving.session_pool import SessionPool
        from fanout.durable.ownership.move_messages import REQUEST_BYTES_MAX
        from fanout.node.pool.session_host import LinkMarkers, PoolWitness, link_of

        members = self.members
        sessions = SessionPool(
            node=members.membership.node,
            host=ServerSessions(server, link_of=link_of(self._links)),
            markers=LinkMarkers(self._links),
            others=PoolWitness(members, links=self._links, clock=self._clock),
            clock=self._clock,
            logger=self._logger,
            dead_after_s=members.config.dead_after_s,
            has_access=server.gate is not None,
            begins_when_unknown=members.config.unknown_sessions == "begin",
        )
        for path, handler in sessions.handlers.items():
            members.listener.handle(path, handler, body_bytes_max=REQUEST_BYTES_MAX)
        members.epochs = sessions.ledger.epochs
        server.lifecycles.finder = sessions
        server.pauses.look = lambda: sessions.is_fenced
        return sessions

    def _keep_copies(self, server: Server, sessions: SessionPool) -> None:
        """Let other members keep copies of this node's sessions, and keep theirs."""
        from fanout.durable.copying.pool_copies import PoolCopies
        from fanout.durable.hosting.session_heirs import SessionHeirs
        from fanout.durable.keeping.session_copies import SessionCopies
        from fanout.durable.ownership import copy_messages
        from fanout.node.pool.session_host import PlaceNames

        config, listener = self.members.config, self.members.listener
        self.recent = RecentUpdates([link.config.name for link in self._links], bytes_max=config.history_bytes)
        kept = PoolCopies(
            sessions.ledger,
            node=self.members.membership.node,
            heirs=SessionHeirs(server, self.recent, clock=self._clock),
            others=sessions.others,
            claim=sessions.claim,
            claim_at=sessions.claim_at,
            bytes_max=config.copies_bytes,
            dead_after_s=config.dead_after_s,
            clock=self._clock,
            logger=self._logger,
        )
        self.session_copies = SessionCopies(server, kept.sent, recent=self.recent)
        kept.sent.copy_again = self.session_copies.copy_again
        kept.sent.look_anew = self.session_copies.look_anew
        self.members.copies_are_right_at = kept.sent.are_right_at
        server.lifecycles.keepers.join(self.session_copies)
        server.recent = self.recent
        sessions.copies = kept
        listener.handle(copy_messages.COPY_PATH, kept.answer_copy, body_bytes_max=copy_messages.COPY_BYTES_MAX)
        listener.handle(
            copy_messages.INHERIT_PATH, kept.answer_inherit, body_bytes_max=copy_messages.DOCUMENT_BYTES_MAX
        )
        self.place_names = PlaceNames(self.members, links=self._links, clock=self._clock)

    @property
    def tasks(self) -> dict[str, Callable[[], Coroutine[None, None, None]]]:
        """Tasks for the life of the node, by name."""
        tasks = {"pool listener": self.listener.wait_failed, "pool": self.members.run}
        return tasks if self.sessions is None else {**tasks, "pool sessions": self.sessions.run}

    async def hand_over(self) -> None:
        """Give all sessions to other members; ends when nothing moves any more."""
        if self.sessions is not None:
            await self.sessions.hand_over(clients_per_s=self.members.config.drain_clients_per_s)

    def marker_passed(self, link: str, node: str, marker: str) -> None:
        """Note the place of a member's heartbeat in the stream of a link."""
        if self.recent is not None:
            self.recent.mark(link, node, marker)
        if self.sessions is not None:
            self.sessions.marker_passed(link, node, marker)
        if self.session_copies is not None:
            self.session_copies.marker_passed()

    def copy_figures(self) -> CopyFigures | None:
        """Return the figures of copies, and of the history from which sessions go on; None where none are kept."""
        if self.sessions is None or self.recent is None or self.session_copies is None:
            return None
        figures, begun_ns = self.sessions.copy_figures(), self.recent.begun_ns()
        figures.history_bytes = self.recent.bytes
        figures.history_used_ratio = self.session_copies.history_used
        figures.history_seconds = None if begun_ns is None else max(0, self._clock.now_ns() - begun_ns) / 1e9
        return figures

    def document(self, *, started_ns: int) -> PoolDocument:
        """Return the members as this node sees them, which started at a time, Unix time in nanoseconds."""
        fenced = self.sessions is not None and self.sessions.is_fenced
        return pool_document(self.members.own_facts(), self.members.others(), started_ns=started_ns, fenced=fenced)

    def status(self, document: PoolDocument) -> PoolStatus | None:
        """Return the figures of the pool, given its members; None for a node without clients."""
        if self.sessions is None:
            return None
        members, copies = document.members, self.copy_figures()
        return PoolStatus.of(
            self.members,
            self.members.convergence,
            self.members.listener,
            self.listener.status(),
            self.sessions.figures,
            copies,
            members=len(members),
            members_reachable=sum(member.reachable for member in members),
            members_ready=sum(member.ready is True for member in members),
            members_equal=sum(member.digest_equal is True for member in members),
            history_seconds=0.0 if copies is None else copies.history_seconds or 0.0,
            fenced=document.fenced,
            session_calls_total=self.sessions.calls_total,
        )
