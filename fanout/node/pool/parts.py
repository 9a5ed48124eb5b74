"""Parts of a node that make it a member of a pool: what asks the other members, and the listener that answers them."""

from __future__ import annotations

from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from fanout.api.http_server import HttpServer
from fanout.config import NodeConfig, read_token
from fanout.node.pool.documents import config_digest
from fanout.pool.member_facts import MemberFacts
from fanout.pool.peer_tls import load_peer_tls
from fanout.pool.pool_members import CutsOfLinks, PoolMembers
from fanout.runtime.system_clock import SystemClock

__all__ = ["make_pool_members"]


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
    )
    return members, listener
