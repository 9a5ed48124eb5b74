"""One node: creates its parts, starts and stops them in order, runs its tasks.

A batch goes from the replica to the replication log, then to clients. No protocol decision is made here.

Parts that only some nodes have (links, the log, the HTTP application) are imported where they are made: all of these
modules would double the time until a node listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from structlog.typing import FilteringBoundLogger

from fanout import __version__
from fanout.access.gate import Gate
from fanout.access.passwords import load_passwords
from fanout.affected_clients import Concerned
from fanout.amqp.opening import LazyDoor, check_installed
from fanout.api.agent import AgentListener
from fanout.api.http_server import HttpServer
from fanout.api.operator_access import OperatorAccess
from fanout.chain.stamp import StampCount
from fanout.config import HttpConfig, LinkConfig, MemberNumber, NodeConfig, Role, ServerConfig, read_token
from fanout.errors import ListenError
from fanout.installation import build
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.browse.browser import Browser
from fanout.node.browse.pages import Store
from fanout.node.clients import send_all_away
from fanout.node.combined_store import CombinedStore
from fanout.node.config_warnings import find_config_warnings
from fanout.node.disk.restore import OWN_STORE, restore_replicas
from fanout.node.documents import NodeDocuments
from fanout.node.drain import Drain
from fanout.node.housekeeping import Housekeeping
from fanout.node.ingress import Forward, LocalIngress
from fanout.node.missing_topics import MissingAnnouncer
from fanout.node.pool.documents import config_digest
from fanout.node.pool.equality import keep_equal
from fanout.node.pool.parts import NodePool
from fanout.node.reload import Reloads
from fanout.node.replication_log import alarm_logger, describe, log_loaded, make_log
from fanout.node.shared_ports import keep_shared_ports
from fanout.node.sys_topics import SysTopics
from fanout.replica.history import Origin
from fanout.replica.owners import RetainedOwners
from fanout.replica.refused import LIMIT_KEYS, LimitKeys
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase
from fanout.replog.settings import LogSettings
from fanout.runtime.system_clock import SystemClock
from fanout.selection import Selector
from fanout.server.accept.peers import is_local
from fanout.server.accept.tls import ListenerTls
from fanout.server.base.ports import Accepted
from fanout.server.client.server import Server
from fanout.storage.direct import DirectStore
from fanout.storage.replica import DiscReplica
from fanout.storage.store import DiskStore, stored_rows
from fanout.storage.write_behind import WriteBehindStore

if TYPE_CHECKING:
    from fastapi import FastAPI

    from fanout.link.link import Link
    from fanout.link.model.status import EventColumns
    from fanout.node.disk.journaled_sessions import JournaledSessions
    from fanout.replog.files.columns import LogSource

__all__ = ["Node"]

_CLIENTS_LEAVE_S: Final = 5.0
"""Time at a stop for clients to read the last bytes."""
_FORWARDED_S: Final = 5.0
"""Time for the primary to answer forwarded messages of clients that have left, when the node stops."""
_KEPT_S: Final = 3.0
"""Time at a stop for other members and the disk to keep the last changes of sessions."""
_STORAGE_CLOSE_S: Final = 10.0
"""Time for writing retained values to their file, when the node stops."""
_LOG_CLOSE_S: Final = 30.0
"""Time for writing and sealing the replication log, when the node stops."""


class _LinkRecord:
    """One link with its configuration, replica and log source."""

    def __init__(self, config: LinkConfig, *, replica: Replica, source: LogSource | None) -> None:
        self.config = config
        self.replica = replica
        self.source = source
        self.announcing: asyncio.Task[None] | None = None
        """Announces missing topics of the link; None while none are announced."""

    def changes_to(self, config: LinkConfig, *, source: LogSource | None) -> None:
        """Take another configuration, with the source of its rows in the log."""
        self.config = config
        self.source = source


class Node:
    """The parts of one node, joined. `start` once, `stop` once."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        role: Role,
        logger: FilteringBoundLogger,
        path: Path | None = None,
        digest: str = "",
        member: MemberNumber | None = None,
    ) -> None:
        """Create every part. Nothing is opened before `start`, but the password file is read.

        Args:
            config: A validated configuration for this role.
            role: Role of the node.
            logger: Takes log lines.
            path: The file of the configuration, which a reload reads again; None for none.
            digest: Digest of that file when it was read; empty for unknown.
            member: The number of the node where several members share the file; None for a node alone.

        Raises:
            ConfigError: The password file, or the file of the token, cannot be used.
        """
        self.config = config
        self.role = role
        self.clock = SystemClock()
        self.epoch = self.clock.now_ns() // 1000
        """Unix time in microseconds at which this process started: the epoch of its log and its stamps."""
        self._logger = logger.bind(node=config.node.id)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._link_tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._failed: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        """Tasks that ended before the node."""
        self.reloads = Reloads(self, path=path, digest=digest, member=member, clock=self.clock, logger=self._logger)
        """Reads the configuration again."""
        self.stamps = StampCount(node=config.node.id, epoch=self.epoch)
        self.log = make_log(config, role=role, epoch=self.epoch, clock=self.clock, logger=self._logger)
        """The replication log; None when the configuration has none."""
        self.is_holding = False
        """True while the disk is full of work, so that links and publishers wait."""
        self.storage = self._make_storage()
        """Retained values on disk; None when they are in memory only."""
        self._links: dict[str, Link] = {}
        self._records: dict[str, _LinkRecord] = {}
        for link_config in config.links:
            self._add_link(link_config)
        server_config = config.server if role != "tap" else None
        self.own = self._make_replica(
            OWN_STORE,
            topics_max=server_config.retained_topics_max if server_config else 0,
            bytes_max=server_config.retained_bytes_max if server_config else 0,
            limit_keys=LimitKeys("retained_topics_max", "retained_bytes_max"),
        )
        self.sys_topics = SysTopics()
        """The `$SYS` topics."""
        self.store = CombinedStore(
            [*(record.replica for record in self._records.values()), self.own], uncounted=[self.sys_topics.replica]
        )
        self._own_source = self.log.source() if self.log else None
        self.owners = RetainedOwners(self._retained_quota, reached=self._warn_of_quota)
        """Users of the values of own topics."""
        self.ingress = LocalIngress(
            stamps=self.stamps,
            replica=self.own,
            selectors=self._selectors(config.links),
            control_prefixes=[f"{link.control_topic}/".encode() for link in config.links],
            accept=self._accept_own,
            expiry_s=config.retained.expiry_s,
            publisher_stamps=server_config is not None and server_config.publisher_stamps,
            owners=self.owners,
        )
        self._announcers: dict[str, MissingAnnouncer] = {}
        self.gate = self._make_gate() if server_config else None
        """Access control; None on a node without clients."""
        self.server = self._make_server(server_config, gate=self.gate) if server_config else None
        """Serves clients; None on a node without clients."""
        self.documents = NodeDocuments(self)
        self.browser = Browser(
            stores=self._stores,
            match=self.store.match,
            observe=None if self.server is None else self.server.observe,
            stale_s=lambda: self.documents.stale_s,
            clock=self.clock,
            gate=self.gate,
            readers=None if self.server is None else self.server.count_readers,
        )
        """Reads topics and events, for the HTTP interface."""
        tls_listener = None if config.http is None else config.http.tls_listener
        self._http_tls = None if tls_listener is None else ListenerTls(tls_listener, key="[http]")
        self.http = (
            HttpServer(
                functools.partial(_http_app, self.documents, _operator_access(config.http), config.http),
                host=config.http.listen.host,
                port=config.http.listen.port,
                tls=None if self._http_tls is None else self._http_tls.context,
            )
            if config.http
            else None
        )
        agent = config.http.agent_listen if config.http else None
        self.agent = AgentListener(self.documents.agent_line, host=agent.host, port=agent.port) if agent else None
        """Answers HAProxy's agent check; None when the configuration has no such port."""
        self.pool = (
            NodePool(
                config,
                config.pool,
                facts=self.documents.member_facts,
                links=self.links,
                server=self.server,
                clock=self.clock,
                logger=self._logger,
            )
            if config.pool
            else None
        )
        """The node as a member of a pool; None when the configuration has none."""
        self.opening = "the node is starting"
        """Step of the start that is under way; empty once the node serves."""
        self._journaled_sessions: JournaledSessions | None = None
        self.drain = Drain(seconds=config.node.drain_s if self.server is not None else 0.0, logger=self._logger)
        """Phase of the node: serving, draining or stopping."""
        self._sending_away: asyncio.Task[None] | None = None

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link, in the order of the configuration."""
        return tuple(self._links.values())

    @property
    def link_replicas(self) -> tuple[tuple[Link, Replica], ...]:
        """Every link with its replica, in the order of the configuration."""
        return tuple((link, self._records[name].replica) for name, link in self._links.items())

    def _stores(self) -> list[Store]:
        """Return every replica that a client can read, `$SYS` left out."""
        return [*(Store(name, record.replica) for name, record in self._records.items()), Store(None, self.own)]

    async def start(self) -> None:
        """Start every part: HTTP interface, retained values on disk, log, clients' listeners, links.

        The HTTP interface comes first: while values load from disk, maybe for a minute, it answers "alive, not ready".

        Raises:
            ListenError: An address cannot be bound.
            LogError: The replication log cannot be opened.
            StoreError: The file of retained values, or that of sessions, cannot be used.
        """
        if self.http is not None:
            await self.http.start()
        try:
            await self._open_files()
        except BaseException:
            if self.http is not None:
                await self.http.stop()
            raise
        try:
            self.opening = "the node is restoring sessions"
            await self._recover_sessions()
            if self.storage is not None:
                self.storage.start()
            self.readiness_changed()
            await self._start_server()
            self.opening = "the node is starting"
            if self.agent is not None:
                await self.agent.start()
            if self.pool is not None:
                await self.pool.listener.start()
            await self._begin_tasks()
        except BaseException:
            await self.stop()
            raise
        self.browser.note("start")
        self._logger.info(
            "node started",
            role=self.role,
            version=__version__,
            build=build(),
            listeners=self.server.addresses if self.server else [],
            http=self.http.url if self.http else "",
        )
        for warning in find_config_warnings(self.config):
            self._logger.warning(
                "configuration needs a look", key=warning.key, problem=warning.problem, hint=warning.hint
            )

    async def _begin_tasks(self) -> None:
        self.opening = ""
        self.spawn("housekeeping", Housekeeping(self).run)
        if self.http is not None:
            self.spawn("http", self.http.wait_failed)
        if self.pool is not None:
            for task, run in self.pool.tasks.items():
                self.spawn(task, run)
        if self.server is not None and self.server.shared_ports:
            may_serve = self.documents.may_serve_new_clients
            keep = functools.partial(keep_shared_ports, self.server, may_serve=may_serve, logger=self._logger)
            self.spawn("shared ports", keep)
        if self.storage is not None:
            self.spawn("retained values", self.storage.wait_failed)
        for name in self._links:
            self._start_link(name)
            await asyncio.sleep(0)  # all in one turn would take each further step in one turn, too: 0.8 ms a link

    def _start_link(self, name: str) -> None:
        link = self._links[name]
        tasks = self._link_tasks[name] = [self.spawn(f"link-{name}", link.run)]
        if self.pool is not None:
            keep = functools.partial(keep_equal, link, members=self.pool.members, clock=self.clock, logger=self._logger)
            tasks.append(self.spawn(f"pool equality {name}", keep))
        self._start_announcer(name)

    def _start_announcer(self, name: str) -> None:
        """Start to announce the missing topics of a link if that is configured, in place of an earlier start."""
        record = self._records[name]
        if record.announcing is not None:
            self._end_tasks([record.announcing])
            record.announcing = None
        self._announcers.pop(name, None)
        if self._links[name].config.announce_missing:
            announcer = self._announcers[name] = self._make_announcer(name)
            record.announcing = self.spawn(f"missing-{name}", announcer.run)

    def _end_tasks(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        for task in tasks:
            del self._tasks[task]
            task.cancel()

    async def _open_files(self) -> None:
        if self.storage is not None:
            self.opening = "the node is loading retained values from disk"
            await asyncio.to_thread(self._load_storage)
        self.opening = "the node is starting"
        if self.log is not None:
            try:
                await asyncio.to_thread(self.log.open)
            except BaseException:
                if self.storage is not None:  # its file and lock are open, and `stop` assumes an open log
                    await asyncio.to_thread(self.storage.close, timeout_s=_STORAGE_CLOSE_S)
                raise
            self.log.event("start", detail=describe(self.config))
            if self._own_source is not None:
                await log_loaded(self.log, self.own, source=self._own_source)

    async def stop(self) -> None:
        """Stop every part: clients leave first, while everything still works; the replication log stops last.

        Links stop after the primary has answered all forwarded messages of clients, unless that takes too long.
        """
        self.drain.end()
        self.keep_clients()
        if self._sending_away is not None:
            await asyncio.gather(self._sending_away, return_exceptions=True)
        if self.pool is not None and not self.opening:
            await self.pool.hand_over()
        if self.server is not None:
            await self.server.stop(deadline_s=_CLIENTS_LEAVE_S)
        try:
            async with asyncio.timeout(_FORWARDED_S):
                await asyncio.gather(*(link.wait_forwarded() for link in self._links.values()))
        except TimeoutError:
            self._logger.warning("messages of clients may not have reached the primary", deadline_s=_FORWARDED_S)
        if self.server is not None:
            with contextlib.suppress(TimeoutError):  # without its verdict, a heir would forward a message again
                async with asyncio.timeout(_KEPT_S):
                    await self.server.lifecycles.keepers.kept()
        if self.gate is not None:
            await self.gate.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.agent is not None:
            await self.agent.stop()
        if self.pool is not None:
            await self.pool.listener.stop()
        self.browser.close()
        if self.http is not None:
            await self.http.stop()
        if self._journaled_sessions is not None:
            self._journaled_sessions.leave()
        written = self.storage is None or await asyncio.to_thread(self.storage.close, timeout_s=_STORAGE_CLOSE_S)
        if not written:
            self._logger.warning("retained values not written in time", deadline_s=_STORAGE_CLOSE_S)
        if self.log is not None:
            self.log.event("stop")
            if not await asyncio.to_thread(self.log.close, timeout_s=_LOG_CLOSE_S):
                self._logger.warning("replication log not sealed in time", deadline_s=_LOG_CLOSE_S)
        self._logger.info("node stopped")

    async def apply(self, config: NodeConfig) -> None:
        """Put a configuration in force; connections stay.

        Args:
            config: Differs from the one in force only by what a running node can take (`fanout.config.changes`).

        Raises:
            ConfigError: The password file cannot be used; nothing has changed.
            ListenError: A listener cannot be opened; nothing has changed.
        """
        passwords = None
        if self.server is not None:
            passwords = await asyncio.to_thread(load_passwords, config.access.password_file)
        if isinstance(self.server, Server) and config.server is not None:
            check_installed(config.server.listeners)
            await self.server.change(config.server)
        former, self.config = self.config, config
        self._limit(config)
        if self.server is None:
            await self._change_links(former)
            return
        change = self.gate.replace(config.access, passwords=passwords) if self.gate is not None else None
        if change is not None and change.sessions_to_check:
            await self.server.lifecycles.check_again()
        users = len(passwords.users) if passwords is not None else 0
        self._logger.info("access reloaded", rules=len(config.access.rules), users=users)
        await self._change_links(former)

    def _limit(self, config: NodeConfig) -> None:
        """Take all that is read at each use, or is one figure of a part."""
        if self.server is not None:
            self.drain.seconds = config.node.drain_s
        if config.server is not None:
            self.own.topics_max, self.own.bytes_max = (
                config.server.retained_topics_max,
                config.server.retained_bytes_max,
            )
            self.ingress.publisher_stamps = config.server.publisher_stamps
        self.ingress.expiry_s = config.retained.expiry_s
        for replica in (self.own, *(record.replica for record in self._records.values())):
            replica.payload_max = config.retained.max_payload or None
        if self.log is not None and config.log is not None:
            self.log.change(LogSettings.of(config.log))
        if self.pool is not None and config.pool is not None:
            self.pool.members.config = config.pool

    async def _change_links(self, former: NodeConfig) -> None:
        """Change, remove and add links, after the configuration; all at the same time, each in its own task.

        A topic never belongs to this node and to a primary: it is the primary's as long as values of its selector may
        be here.
        """
        if former.links == self.config.links:
            return
        before = {link.name: link for link in former.links}
        now = {link.name: link for link in self.config.links}
        added = [link for name, link in now.items() if name not in before]
        changed = [link for name, link in now.items() if name in before and link != before[name]]
        removed = [name for name in before if name not in now]
        for link in added:
            self._add_link(link)
        self._share_topics([*former.links, *self.config.links])
        for link in changed:
            record = self._records[link.name]
            gone = [one for one in record.config.selectors if one not in link.selectors]  # removals are logged, too
            source = None
            if self.log is not None:
                source = self.log.source(link=link.name, selectors=[*link.selectors, *gone], former=record.source)
            record.changes_to(link, source=source)
            record.replica.topics_max, record.replica.bytes_max = link.topics_max, link.bytes_max
        ended = [self._links[name].remove() for name in removed]
        await asyncio.gather(*ended, *(self._links[link.name].change(link) for link in changed))
        for name in removed:
            record = self._records.pop(name)
            self._end_tasks([*self._link_tasks.pop(name), *([record.announcing] if record.announcing else [])])
            self._announcers.pop(name, None)
            del self._links[name]
        self._links = {name: self._links[name] for name in now}
        self._records = {name: self._records[name] for name in now}
        self._share_topics(self.config.links)
        if self.pool is not None:
            self.pool.members.config_digest = config_digest(self.config.links)
        if self.log is not None:
            self.log.event("start", detail=describe(self.config))
        for link in added:
            self._start_link(link.name)
        for link in changed:
            self._start_announcer(link.name)
        self.readiness_changed()

    def _share_topics(self, links: Sequence[LinkConfig]) -> None:
        """Let clients read the values of all present links, and leave the topics of some links to their primaries."""
        self.store.replace([*(record.replica for record in self._records.values()), self.own])
        self.ingress.guard(
            selectors=self._selectors(links),
            control_prefixes=[f"{link.control_topic}/".encode() for link in links],
            now_ns=self.clock.now_ns(),
        )

    def read_files_again(self) -> None:
        """Read certificates and keys of the listeners again; have links try again what failed, with their files.

        Connections stay. Links without a connection connect at once, with the passwords that their files have now.
        """
        if self.server is not None:
            self.server.reload_certificates()
        if self._http_tls is not None:
            try:
                self._http_tls.reload()
            except ListenError as error:
                self._logger.error("certificates_not_reloaded", reason=error.message, hint=error.hint)
        for link in self._links.values():
            link.retry()

    async def wait_failed(self) -> BaseException:
        """Wait until a task of the node ends, and return its error: a `StoreError` of the disk, or a bug."""
        task = await self._failed.get()
        return task.exception() or RuntimeError(f"the task {task.get_name()} ended")

    def spawn(self, name: str, run: Callable[[], Coroutine[None, None, None]]) -> asyncio.Task[None]:
        """Run a task for the life of the node; if it ends earlier, the node has failed."""
        task = asyncio.create_task(run(), name=name)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks and not task.cancelled():
            self._failed.put_nowait(task)

    # For the documents of the node (`fanout.node.documents.NodeParts`).

    def send_clients_away(self) -> None:
        """Begin to disconnect every client, at a pace; harmless while that goes on."""
        if self.server is not None and (self._sending_away is None or self._sending_away.done()):
            self._sending_away = asyncio.create_task(self._send_all_away(self.server), name="send clients away")

    def keep_clients(self) -> None:
        """Stop to disconnect clients; harmless when nothing goes on."""
        if self._sending_away is not None:
            self._sending_away.cancel()

    async def _send_all_away(self, server: Server) -> None:
        self._logger.info("clients sent away by an operator", clients=await send_all_away(server))

    # For links (`fanout.link.model.status.LinkSink`).

    def record(self, link: str, changes: Changes, *, epoch: int) -> None:
        """Log the changes of a batch in a link's replica."""
        source = self._records[link].source
        if link in self._announcers:
            self._announcers[link].note(changes.updates)
        if self.log is not None and source is not None:
            self.log.append(changes, source=source, link_epoch=epoch)

    def dispatch(self, link: str, changes: Changes) -> None:
        """Deliver the changes of a batch of a link to clients, and its corrected expiries to clients that are nodes."""
        if self.server is None:
            return
        if changes.dispatch:
            recent = None if self.pool is None else self.pool.recent
            if recent is not None and changes.phase is Phase.LIVE:
                recent.note(link, changes.dispatch, now_ns=self.clock.now_ns())
            elif recent is not None:
                recent.note_found()
            self.server.dispatch(changes.dispatch, position=changes.position)
        if changes.corrected:
            self.server.correct(changes.corrected)

    def marker_passed(self, link: str, node: str, marker: str) -> None:
        """Note the place of a member's heartbeat in the stream of a link."""
        if self.pool is not None:
            self.pool.marker_passed(link, node, marker)

    def client_count(self) -> int:
        """Return how many connections of clients there are."""
        return self.server.connection_count if self.server is not None else 0

    async def prepare_tear_down(self, link: str, selectors: Sequence[Selector] | None = None) -> int:
        """Disconnect clients of a link's topics where that is configured; return the number of connections."""
        if self.server is None:
            return 0
        record = self._records[link]
        selectors = record.config.selectors if selectors is None else selectors
        if record.config.disconnect_clients and selectors:
            gone = await self.server.lifecycles.send_away(Concerned(selectors))
            self._logger.warning("clients sent away before a tear-down", link=link, clients=gone)
        return self.client_count()

    def event(self, link: str, event: str, *, epoch: int, **columns: Unpack[EventColumns]) -> None:
        """Log an event of a link, and send the nodes below a new readiness notice."""
        if event == "state":
            self.readiness_changed(link)
            if self.pool is not None and self.pool.recent is not None:
                self.pool.recent.note_connection(link, epoch=epoch)
        self.browser.note(
            event,
            link=link,
            state=columns.get("state", ""),
            selector=columns.get("selector", ""),
            detail=columns.get("detail", ""),
        )
        if self.log is not None:
            self.log.event(event, link=link, link_epoch=epoch, **columns)

    def readiness_changed(self, link: str | None = None) -> None:
        """Send the nodes below a new readiness notice if it has changed.

        Args:
            link: The link whose readiness may have changed; None for all of them.
        """
        for announcer in self._announcers.values():
            announcer.wake()
        if self.server is not None:
            notice = self.documents.readiness_notice(link)
            updates = self.sys_topics.set_readiness_notice(notice, now_ns=self.clock.now_ns())
            if updates:
                self.server.dispatch(updates)

    # Internal.

    def _make_storage(self) -> DiskStore | None:
        retained = self.config.retained
        if retained.storage == "ram":
            return None
        path = self.config.node.data_directory / f"retained-{self.config.node.id}.sqlite"
        make: Callable[..., DiskStore] = WriteBehindStore
        if retained.storage == "disc_only":
            make = functools.partial(DirectStore, cache_bytes=retained.cache_bytes)
        return make(
            path,
            sync=retained.sync,
            sync_interval_s=retained.sync_interval_s,
            hold=self._hold,
            logger=self._logger,
        )

    async def _recover_sessions(self) -> None:
        """Restore the sessions that an earlier process has left in the file of retained values."""
        if self.storage is None or self.server is None:
            return
        if self.config.sessions.storage == "ram":
            if await asyncio.to_thread(self.storage.forget_clients):
                self._tell_sessions_removed()
            return
        from fanout.node.disk.journaled_sessions import JournaledSessions

        sessions = JournaledSessions(self.server, self.storage, clock=self.clock, logger=self._logger)
        self._journaled_sessions = sessions
        await sessions.recover()
        if self.pool is not None and self.pool.sessions is not None:
            from fanout.durable.ownership.epochs import decode_epochs

            epochs = {client_id: decode_epochs(written) for client_id, written in sessions.epochs.items()}
            self.pool.sessions.returned(epochs)

    async def _start_server(self) -> None:
        """Start to serve clients, after the restoration of their sessions."""
        if self._journaled_sessions is not None:
            self._journaled_sessions.begin()
        if self.server is not None:
            check_installed(self.server.config.listeners)
            await self.server.start()

    def _tell_sessions_removed(self) -> None:
        """Log that sessions were removed: they would be outdated when they are wanted again."""
        self._logger.warning(
            "sessions of an earlier process removed",
            reason='sessions.storage is "ram"',
            hint='Keep storage = "disc" in [sessions] if clients are to go on with their sessions after a restart',
        )

    def _make_replica(
        self,
        store: str,
        *,
        selectors: Sequence[Selector] = (),
        topics_max: int,
        bytes_max: int,
        limit_keys: LimitKeys = LIMIT_KEYS,
    ) -> Replica:
        make: Callable[..., Replica] = Replica
        if isinstance(self.storage, DirectStore):
            make = functools.partial(DiscReplica, self.storage.table(store))
        return make(
            selectors=selectors,
            topics_max=topics_max,
            bytes_max=bytes_max,
            payload_max=self.config.retained.max_payload or None,
            limit_keys=limit_keys,
        )

    def _load_storage(self) -> None:
        """Restore replicas and link sessions from an earlier process."""
        if self.storage is None:
            return
        resumptions = restore_replicas(
            self.storage,
            [(record.config, record.replica) for record in self._records.values()],
            own=self.own,
            node_id=self.config.node.id,
            now_ns=self.clock.now_ns(),
            logger=self._logger,
        )
        for name, resumption in resumptions.items():
            if self.storage.is_cut:  # a Packet Identifier that was released since would hide a later message
                session = dataclasses.replace(resumption.session, unreleased=frozenset())
                resumption = dataclasses.replace(resumption, session=session)
            self._links[name].restore(resumption)
            if resumption.session.at_qos_0 and self.storage.forget_clients():
                self._logger.error(
                    "sessions of clients ended",
                    reason="messages without RETAIN that they wait for may be lost",
                    link=name,
                    selectors=sorted(resumption.session.at_qos_0),
                    hint="The process was killed during a comparison with the primary. Clients get Session Present 0",
                )

    def _make_server(self, config: ServerConfig, *, gate: Gate | None) -> Server:
        return Server(
            config,
            node_id=self.config.node.id,
            store=self.store,
            ingress=self.ingress,
            clock=self.clock,
            logger=self._logger,
            known_topics=self.own.values,
            gate=gate,
            subscribed=self._note_subscribed if self.role == "secondary" else None,
            retain_available=self.config.retained.available,
            stamps=self.stamps if self.role == "primary" else None,
            pool=self.config.pool,
            amqp=LazyDoor(self.config.node.id),
        )

    def _hold(self, held: bool) -> None:
        """Apply backpressure: links stop reading, and publishers wait, while the disk is full of work."""
        self.is_holding = held
        for link in self._links.values():
            link.hold(held)
        if self.server is not None:
            self.server.pause_publishers(held)

    def _record_alarm(self, link: str, detail: str) -> None:
        """Log an alarm of a link, once the log is open."""
        if not self.opening:
            epoch = self._links[link].status().epoch
            replica = self._records[link].replica
            self.event(link, "alarm", epoch=epoch, topics=len(replica), digest=replica.digest(), detail=detail)

    def _make_gate(self) -> Gate:
        access = self.config.access
        passwords = load_passwords(access.password_file)
        return Gate(access, passwords=passwords, monotonic=self.clock.monotonic, logger=self._logger)

    def _add_link(self, config: LinkConfig) -> None:
        from fanout.link.link import Link

        replica = self._make_replica(
            config.name, selectors=config.selectors, topics_max=config.topics_max, bytes_max=config.bytes_max
        )
        source = self.log.source(link=config.name, selectors=config.selectors) if self.log else None
        self._records[config.name] = _LinkRecord(config, replica=replica, source=source)
        self._links[config.name] = Link(
            config,
            node_id=self.config.node.id,
            replica=replica,
            sink=self,
            clock=self.clock,
            logger=alarm_logger(
                self._logger.bind(link=config.name), record=functools.partial(self._record_alarm, config.name)
            ),
            store=self.storage,
            stamps=self.stamps,
        )

    def _selectors(self, links: Sequence[LinkConfig]) -> list[tuple[Selector, Forward]]:
        return [
            (selector, lambda row, *, prefix, link=self._links[config.name]: link.forward(row, prefix=prefix))
            for config in links
            for selector in config.selectors
        ]

    def _retained_quota(self, user: str) -> tuple[int, int] | None:
        """Return the most values of own topics that a user may have, and their bytes; None for no bound."""
        quota = None if self.server is None else self.server.quotas.of(user)
        return None if quota is None else (quota.retained_topics, quota.retained_bytes)

    def _warn_of_quota(self, user: str, key: str) -> None:
        self._logger.warning("quota_reached", quota=key, user=user)

    def _accept_own(self, changes: Changes, client_id: str | None, rows: Sequence[PublishRow]) -> Accepted | None:
        committed = self._keep_own(changes, client_id, rows)
        self._relay_missing(changes)
        if self.log is not None and self._own_source is not None:
            self.log.append(changes, source=self._own_source)
        if self.server is not None:
            self.server.dispatch(changes.dispatch, origin=client_id, position=changes.position)
        return committed

    def _keep_own(self, changes: Changes, client_id: str | None, rows: Sequence[PublishRow]) -> Accepted | None:
        """Write own values, and messages that sessions wait for, to disk.

        The Packet Identifiers of the messages at QoS 2 go with them: they are received from then on.

        Returns:
            A future that is set once they are there; None when nothing is written.
        """
        if self.storage is None or not (stored_rows(changes) or self.storage.history.takes(changes)):
            return None
        committed = Accepted(loop=asyncio.get_running_loop())
        packet_ids = tuple(row[3] for row in rows if row[2] & 4)
        origin = None if client_id is None else Origin(client_id, packet_ids)

        def done() -> None:
            if not committed.done():  # the waiter may be gone, and has cancelled it
                committed.set_result(ReasonCode.SUCCESS)

        self.storage.put(OWN_STORE, [changes], done=done, origin=origin)
        return committed

    def _make_announcer(self, name: str) -> MissingAnnouncer:
        return MissingAnnouncer(
            self._links[name],
            replica=self._records[name].replica,
            is_subscribed=self._is_subscribed,
            clock=self.clock,
            logger=self._logger.bind(link=name),
        )

    def _is_subscribed(self, topic_filter: bytes) -> bool:
        return self.server is not None and self.server.registry.index.has(topic_filter)

    def _note_subscribed(self, topic_filters: Sequence[bytes]) -> None:
        """Pass new subscriptions of clients to the links that announce missing topics."""
        for announcer in self._announcers.values():
            for topic_filter in topic_filters:
                announcer.add_subscribed(topic_filter)

    def _relay_missing(self, changes: Changes) -> None:
        """Pass announcements of nodes below to these links."""
        for announcer in self._announcers.values():
            for topic, payload, *_ in changes.updates:
                if topic == announcer.topic:
                    announcer.add_relayed(payload)


def _operator_access(http: HttpConfig) -> OperatorAccess:
    """Return who is an operator.

    Raises:
        ConfigError: The file of the token cannot be used.
    """
    token = None if http.token_file is None else read_token(http.token_file)
    hosts = frozenset(map(str.lower, http.hosts))
    return OperatorAccess(token=token, loopback=is_local(http.listen), hosts=hosts)


def _http_app(documents: NodeDocuments, access: OperatorAccess, http: HttpConfig) -> FastAPI:
    from fanout.api.app import create_app  # FastAPI takes a third of a node's start: links connect meanwhile

    return create_app(documents, access=access, streams_max=http.streams_max, report=http.report)
