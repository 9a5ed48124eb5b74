"""Equality of a pool's members: their links give each other common cuts, and audit when a difference stays.

Joins the links and `fanout.pool`; `fanout.pool.convergence` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from structlog.typing import FilteringBoundLogger

from fanout.chain.cut import Cut
from fanout.errors import AuditRefused
from fanout.pool.convergence import Repair
from fanout.pool.pool_members import PoolMembers
from fanout.runtime.system_clock import Clock

if TYPE_CHECKING:
    from fanout.link.link import Link

__all__ = ["LinkCuts", "keep_equal"]

_CUTS_IN_TIME: Final = 5
"""Cuts of each member in `converge_after_s`."""
_LOOK_S: Final = 0.05
"""Time between two looks at whether a link can give a cut again, and to whom."""
_HEARD_IN_TIME: Final = 3
"""Heartbeats of each member in `dead_after_s`."""


class LinkCuts:
    """Cuts of all links of a node."""

    def __init__(self, links: Iterable[Link]) -> None:
        """Prepare.

        Args:
            links: Every link.
        """
        self._links = tuple(links)

    def own(self) -> Mapping[str, Mapping[str, Cut]]:
        """Return the newest cuts at heartbeats of this node, by link and marker."""
        return {link.config.name: link.cuts.own for link in self._links}

    def at_heartbeats_of(self, node: str) -> Mapping[str, Cut]:
        """Return the cut at the newest heartbeat of another member, by link."""
        cuts = ((link.config.name, link.cuts.newest(node)) for link in self._links)
        return {name: cut for name, cut in cuts if cut is not None}


async def keep_equal(link: Link, *, members: PoolMembers, clock: Clock, logger: FilteringBoundLogger) -> None:
    """Let one link give the pool cuts, and audit it when members stay different, until cancelled.

    Args:
        link: The link.
        members: The members of the pool.
        clock: Clock of the node.
        logger: Takes log lines.
    """
    convergence, name = members.convergence, link.config.name
    # This node has to hear itself at the primary, and the others it, several times before either takes it for dead.
    longest_s = min(members.config.converge_after_s / _CUTS_IN_TIME, members.config.dead_after_s / _HEARD_IN_TIME)
    pause_s, could, heard = longest_s, link.may_cut, members.others_heard()
    while True:
        until_s = clock.monotonic() + pause_s
        pause_s = min(longest_s, 2 * pause_s)
        while clock.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)
            before, could, heard = (could, heard), link.may_cut, members.others_heard()
            if could and before != (could, heard):
                # Until its first cut, messages of the link have no place that others know. Members that do not listen
                # yet miss that cut, and hear the next.
                pause_s = min(longest_s, members.config.ping_interval_s)
                break
        link.cut(heard)
        repair = convergence.due(name, now_s=clock.monotonic())
        if repair is not None and await _audit(link, repair, logger=logger):
            convergence.note_repair(name, now_s=clock.monotonic())


async def _audit(link: Link, repair: Repair, *, logger: FilteringBoundLogger) -> bool:
    """Audit a link and log the result; return False if no audit can begin now."""
    try:
        report = await link.audit_for_pool(repair.selectors[0])
    except AuditRefused:
        return False
    filters = [link.config.selectors[index].filter for index in repair.selectors if index < len(link.config.selectors)]
    logger.warning(
        "pool members held different values, audited",
        link=link.config.name,
        members=list(repair.members),
        seconds=round(repair.seconds, 1),
        selectors=filters,
        changed=report.changed,
        removed=report.removed,
        unconfirmed=report.kept,
        failure=report.failure,
        hint="Values were lost on the way to this member, or to another if nothing changed here: fanout pool compare",
    )
    return True
