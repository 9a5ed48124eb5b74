"""Parts of a node that make it a member of a pool: what asks the others, the listener for them, sessions that move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from structlog.typing import FilteringBoundLogger

from fanout.api.accepting import Places
from fanout.api.http_server import HttpServer
from fanout.config import NodeConfig, read_token
from fanout.node.pool.documents import config_digest
from fanout.pool.member_facts import MemberFacts
from fanout.pool.peer_tls import load_peer_tls
from fanout.pool.pool_members import CutsOfLinks, PoolMembers
from fanout.replica.recent import RecentUpdates
from fanout.runtime.system_clock import SystemClock
from fanout.server.client.server import Server

if TYPE_CHECKING:
    from fanout.durable.keeping.session_copies import SessionCopies
    from fanout.durable.moving.session_pool import SessionPool
    from fanout.link.link import Link
    from fanout.node.pool.session_host import PlaceNames

__all__ = ["make_pool_members", "make_session_pool"]

_STRANGERS_MAX: Final = 64
"""Connections of addresses that are no member's; a member behind a translation of addresses has one."""


def make_pool_members(
    config: NodeConfig,
    *,
    facts: Callable[[str], MemberFacts],
    cuts: CutsOfLinks,
    clock: SystemClock,
    logger: FilteringBoundLogger,
) -> tuple[PoolMembers, HttpServer] | tuple[None, None]:
    """Return the parts of a member; two times None for a node that is in no pool.

    Args:
        config: The configuration of the node.
        facts: Returns what the node tells the others, given what identifies its process.
        cuts: Returns what the links held at common cuts.
        clock: Gives the time.
        logger: Takes log lines.

    Raises:
        ConfigError: The file of the token cannot be used.
        ListenError: A certificate or key cannot be used.
    """
    pool = config.pool
    if pool is None:
        return None, None
    token = None if pool.token_file is None else read_token(pool.token_file, key="pool.token_file")
    tls = load_peer_tls(pool)
    members = PoolMembers(
        pool,
        node=config.node.id,
        config_digest=config_digest(config.links),
        token=token,
        tls=tls,
        own_facts=facts,
        cuts=cuts,
        clock=clock,
        logger=logger,
    )
    listener = HttpServer(
        lambda: members.listener,
        host=pool.listen.host,
        port=pool.listen.port,
        key="pool.listen",
        tls=None if tls is None else tls.listening,
        places=Places(is_kept=members.is_members_address, others_max=_STRANGERS_MAX),
    )
    return members, listener


def make_session_pool(
    server: Server,
    *,
    members: PoolMembers,
    links: Sequence[Link],
    has_access: bool,
    clock: SystemClock,
    logger: FilteringBoundLogger,
) -> SessionPool:
    """Let sessions move between this node and the other members, and return what moves them.

    Args:
        server: Serves the clients; it asks for sessions that it has not from now on.
        members: The members of the pool.
        links: Every link.
        has_access: True if the node has access control.
        clock: Gives the time.
        logger: Takes log lines.
    """
    # Nodes that are in no pool do without these, and nodes without links without the links.
    from fanout.durable.hosting.server_sessions import ServerSessions
    from fanout.durable.moving.session_pool import SessionPool
    from fanout.durable.ownership.move_messages import REQUEST_BYTES_MAX
    from fanout.node.pool.session_host import LinkMarkers, PoolWitness, link_of

    node = members.membership.node
    sessions = SessionPool(
        node=node,
        host=ServerSessions(server, link_of=link_of(links)),
        markers=LinkMarkers(links),
        others=PoolWitness(members, links=links, clock=clock),
        clock=clock,
        logger=logger,
        dead_after_s=members.config.dead_after_s,
        has_access=has_access,
        begins_when_unknown=members.config.unknown_sessions == "begin",
    )
    for path, handler in sessions.handlers.items():
        members.listener.handle(path, handler, body_bytes_max=REQUEST_BYTES_MAX)
    members.epochs = sessions.ledger.epochs
    server.lifecycles.finder = sessions
    server.pauses.look = lambda: sessions.is_fenced
    return sessions


def keep_copies(
    sessions: SessionPool,
    server: Server,
    members: PoolMembers,
    *,
    links: Sequence[Link],
    clock: SystemClock,
    logger: FilteringBoundLogger,
) -> tuple[RecentUpdates, SessionCopies, PlaceNames]:
    """Let other members keep copies of this node's sessions, and keep theirs.

    Args:
        sessions: The sessions of the pool.
        server: Serves the clients.
        members: The members of the pool.
        links: Every link.
        clock: Gives the time.
        logger: Takes log lines.

    Returns:
        The recent updates, to be told of what the links bring; what makes copies; and the wait until they are of use.
    """
    from fanout.durable.copying.pool_copies import PoolCopies
    from fanout.durable.hosting.session_heirs import SessionHeirs
    from fanout.durable.keeping.session_copies import SessionCopies
    from fanout.durable.ownership import copy_messages
    from fanout.node.pool.session_host import PlaceNames

    config = members.config
    recent = RecentUpdates([link.config.name for link in links], bytes_max=config.history_bytes)
    kept = PoolCopies(
        sessions.ledger,
        node=members.membership.node,
        heirs=SessionHeirs(server, recent, clock=clock),
        others=sessions.others,
        claim=sessions.claim,
        claim_at=sessions.claim_at,
        bytes_max=config.copies_bytes,
        dead_after_s=config.dead_after_s,
        clock=clock,
        logger=logger,
    )
    made = SessionCopies(server, kept.sent, recent=recent)
    kept.sent.copy_again = made.copy_again
    members.copies_are_right_at = kept.sent.are_right_at
    server.lifecycles.keepers.join(made)
    server.recent = recent
    sessions.copies = kept
    listener = members.listener
    listener.handle(copy_messages.COPY_PATH, kept.answer_copy, body_bytes_max=copy_messages.COPY_BYTES_MAX)
    listener.handle(copy_messages.INHERIT_PATH, kept.answer_inherit, body_bytes_max=copy_messages.DOCUMENT_BYTES_MAX)
    return recent, made, PlaceNames(members, links=links, clock=clock)
