"""Periodic work of a node: expired values, garbage collections, figures for the log, `$SYS` and the page, alarms."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Final, Protocol

from fanout.link.session.teardown import piece_topics
from fanout.node.browse.lags import INTERVAL_S
from fanout.node.documents import NodeDocuments, NodeParts
from fanout.node.ingress import LocalIngress
from fanout.node.sys_topics import LinkFigures, SysTopics
from fanout.runtime.gc_freeze import LongLived
from fanout.server.client.server import Server

__all__ = ["Housekeeping"]

_LOOK_S: Final = 0.25
"""Pause between checks for expired values of the own namespace; links check theirs themselves."""
_ALIVE_S: Final = 10.0
"""Pause between the node's own heartbeat events in the log, which tell an idle node from a dead one."""
_VALUES_OF_SESSION: Final = 25
"""Values that a session counts for, among those that are kept out of garbage collections."""


class KeptNode(NodeParts, Protocol):
    """The part of a node that its housekeeping needs; `fanout.node.node.Node` has it."""

    epoch: int
    """Unix time in microseconds at which the process started."""
    documents: NodeDocuments
    """Documents of the HTTP interface."""
    ingress: LocalIngress
    """Retained values of the topics that clients publish at this node."""
    sys_topics: SysTopics
    """The `$SYS` topics."""
    is_holding: bool
    """True while the disk is full of work, so that links and publishers wait."""

    def client_count(self) -> int:
        """Return the number of connections of clients."""

    def readiness_changed(self, link: str | None = None) -> None:
        """Send the nodes below a new readiness notice if it has changed."""


class Housekeeping:
    """Periodic work of one node, in `run`."""

    def __init__(self, node: KeptNode) -> None:
        self._node = node
        self._long_lived, self._long_waiting, self._long_sessions = LongLived(), LongLived(), LongLived()
        self._moves = (0, 0)
        """Sessions that came and went, as the newest event has them."""
        self._alarms: dict[str, str] = {}
        """Faults of disks, as the newest events have them."""
        self._pool_reasons: frozenset[str] = frozenset()
        """Faults of the other members of the pool, as the newest events have them."""

    async def run(self) -> None:
        """Work until cancelled."""
        node, monotonic = self._node, self._node.clock.monotonic
        look_at = alive_at = sys_at = lags_at = monotonic()
        while True:
            sys_interval_s = node.server.config.sys_interval_s if node.server is not None else 0.0
            more = node.ingress.remove_expired(node.clock.now_ns(), piece=piece_topics(node.client_count()))
            if monotonic() >= look_at:  # not after each piece that expires
                look_at = monotonic() + _LOOK_S
                self._look()
            if node.log is not None and monotonic() >= alive_at:
                alive_at = monotonic() + _ALIVE_S
                node.log.event("heartbeat", topics=len(node.store))
            if monotonic() >= lags_at:
                lags_at = monotonic() + INTERVAL_S
                self._note_alarms()
                self._note_pool()
                self._note_slow_clients()
                node.browser.lags.note({one.name: one.lag_seconds for one in node.documents.lag().links})
            if node.server is not None and sys_interval_s and monotonic() >= sys_at:
                sys_at = monotonic() + sys_interval_s
                await node.documents.count()
                self._tell_sys_topics(node.server)
            # While a disk is full, pause even if there is more.
            await asyncio.sleep(0 if more and not node.is_holding else _LOOK_S)

    def _look(self) -> None:
        """Keep long-lived values out of garbage collections, note moves of sessions, and tell a new readiness."""
        node = self._node
        self._long_lived.note(len(node.store))
        if node.server is not None:  # removals for slow clients are in no store
            self._long_waiting.note(node.server.conflated_topics_max)
            self._long_sessions.note(node.server.session_count * _VALUES_OF_SESSION)
        if node.pool is not None and node.pool.sessions is not None:
            figures, (came, went) = node.pool.sessions.figures, self._moves
            self._moves = figures.sessions_moved_in_total, figures.sessions_moved_out_total
            if self._moves != (came, went):
                detail = {"came": self._moves[0] - came, "went": self._moves[1] - went}
                node.browser.note("moved", detail=json.dumps(detail))
        node.readiness_changed()  # a replica limit changes it without an event of the link

    def _note_slow_clients(self) -> None:
        """Note clients that read slowly, and those that do not any more: two events for all of an interval."""
        node = self._node
        if node.server is not None:
            for kind, news in zip(("clients_slow", "clients_caught_up"), node.server.slow_clients.news(), strict=True):
                if news.clients:
                    node.browser.note(kind, detail=json.dumps({"clients": news.clients, "names": news.names}))

    def _note_alarms(self) -> None:
        """Note a disk that began to fail or works again."""
        node = self._node
        found = {
            "log_alarm": node.log.stats().alarm if node.log is not None else "",
            "retained_alarm": node.storage.stats().alarm if node.storage is not None else "",
        }
        for kind, text in found.items():
            if text != self._alarms.get(kind, ""):
                node.browser.note(kind, detail=text)
        self._alarms = found

    def _note_pool(self) -> None:
        """Note new faults of other members of the pool, and the end of old ones."""
        node = self._node
        if node.pool is not None:
            found = node.documents.pool()
            # Right after the start nobody was asked yet, and this node does not know which of the addresses is its own.
            unheard = tuple(f"{one.address} " for one in found.members if one.node is None and one.failure is None)
            reasons = frozenset(one for one in found.stay_reasons or () if not one.startswith(unheard))
            for reason in sorted(reasons - self._pool_reasons):
                node.browser.note("pool_alarm", detail=reason)
            for reason in sorted(self._pool_reasons - reasons):
                node.browser.note("pool_over", detail=reason)
            self._pool_reasons = reasons

    def _tell_sys_topics(self, server: Server) -> None:
        node, now_ns = self._node, self._node.clock.now_ns()
        updates = node.sys_topics.update(
            server.figures(),
            retained_topics=len(node.store),
            links={
                name: LinkFigures(
                    status.shown_state, status.ready, None if status.stale_s is None else math.ceil(status.stale_s)
                )
                for name, status in ((link.config.name, link.status()) for link in node.links)
            },
            uptime_s=max(0, now_ns // 1000 - node.epoch) // 1_000_000,
            now_ns=now_ns,
        )
        server.dispatch(updates)
