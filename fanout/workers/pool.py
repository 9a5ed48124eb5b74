"""Pool of worker processes, with the interface of a server to the hub.

Owns the listening sockets and the workers' processes, and feeds them: each batch is encoded once and written to every
worker.

A worker that reads too slowly applies backpressure to links and to publishers at other workers. While a worker is
silent the others serve its new clients; one that is silent for too long is killed. A worker that ends is started again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypeAlias, cast

from structlog.typing import FilteringBoundLogger

from fanout.access.gate import AccessStats
from fanout.affected_clients import Concerned
from fanout.config import NodeConfig, ServerConfig
from fanout.durable.hosting.session_restart import TakeOver
from fanout.errors import ListenError
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.update import Update
from fanout.server.accept.listeners import Listeners
from fanout.server.base.counters import ServerStats
from fanout.server.base.ports import Ingress
from fanout.server.client.client_list import ClientPage, ClientQuery, Kicked, join
from fanout.server.session.exported_session import ExportedSession
from fanout.workers.channel import encode
from fanout.workers.client_router import new_handover_sockets, redirect_handovers
from fanout.workers.figures import add_up
from fanout.workers.messages import (
    ChannelMessage,
    Corrected,
    FeedBatch,
    Published,
    PublishVerdicts,
    Reload,
    ReloadCertificates,
    SetUp,
    SilentWorkers,
    Stop,
)
from fanout.workers.ownership import owner_of, share_of
from fanout.workers.worker_process import TICK_S, WorkerProcess, WorkerState

__all__ = ["LISTEN_PATIENCE_S", "WorkerPool"]

Restore: TypeAlias = Callable[[TakeOver], Awaitable[None]]
"""Reads the sessions that an earlier process left, and hands them on."""

_STOP_MARGIN_S: Final = 5.0
"""Time that a worker has to end, beyond the time of its clients."""
_LEAVE_S: Final = 60.0
"""Time that a worker has to send the sessions that it leaves."""
_AGAIN_S: Final = 0.1
LISTEN_PATIENCE_S = 15.0
"""Time to wait for an address in use: the workers of a killed node keep it until they notice that the hub has ended,
which takes seconds on a busy machine."""


class WorkerPool:
    """The workers of a node. `start` once, `stop` once."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        ingress: Ingress,
        replicas: Sequence[Replica],
        subscribed: Callable[[Sequence[bytes]], None],
        pause: Callable[[bool], None],
        logger: FilteringBoundLogger,
    ) -> None:
        """Make a pool; `start` starts the workers.

        Args:
            config: Configuration of the node; its server has several workers.
            ingress: Decides on published messages.
            replicas: All values that clients read.
            subscribed: Called with the Topic Filters of new subscriptions, if a link needs them.
            pause: Called with True to pause the sources of batches, and with False to resume them.
            logger: The log.
        """
        assert config.server is not None
        self.config: ServerConfig = config.server
        """`[server]`."""
        self._node_config = config
        self._ingress = ingress
        self._replicas = tuple(replicas)
        self._subscribed = subscribed
        self._pause = pause
        self._logger = logger
        self._listeners = Listeners()
        self._handovers: list[tuple[socket.socket, socket.socket]] = []
        self._workers: list[WorkerProcess] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_paused = False
        self._keeps_sessions = config.sessions.storage == "disc"

    async def start(self, *, restore: Restore | None = None) -> None:
        """Open the listeners and start the workers, which take some time until they serve.

        Args:
            restore: Called with a function that gives the workers the sessions of an earlier process, before one of
                them serves clients; None when there are none.

        Raises:
            ListenError: An address cannot be bound, for `LISTEN_PATIENCE_S` where it is in use, or a certificate cannot
                be used; nothing is open then.
        """
        bound = await self._bind()
        self._handovers = [new_handover_sockets() for _ in range(self.config.workers)]
        sockets = tuple(tuple(one.fileno() for one in each) for each in bound)
        others = tuple(sending.fileno() for _, sending in self._handovers)
        self._workers = [
            WorkerProcess(
                SetUp(self._node_config, number, sockets, taking.fileno(), others),
                replicas=self._replicas,
                on_published=self._publish,
                on_subscribed=self._subscribed,
                on_backpressure=self._balance,
                on_silence=self._tell_silent,
                logger=self._logger,
            )
            for number, (taking, _) in enumerate(self._handovers)
        ]
        for worker in self._workers:
            self._tasks.append(asyncio.create_task(worker.run(), name=f"worker-{worker.number + 1}"))
        self._tasks.append(asyncio.create_task(self._watch(), name="workers-watch"))
        if restore is not None:
            await restore(self._take_over)
        for worker in self._workers:
            worker.serve()

    async def _take_over(self, sessions: Sequence[ExportedSession], *, left_ns: int) -> None:
        """Give each worker the sessions of its clients, and wait until they have them."""
        shares: list[list[ExportedSession]] = [[] for _ in self._workers]
        for session in sessions:
            shares[owner_of(session.client_id, len(shares))].append(session)
        await asyncio.gather(
            *(worker.take_over(share, left_ns=left_ns) for worker, share in zip(self._workers, shares, strict=True))
        )

    async def _bind(self) -> list[list[socket.socket]]:
        patience_ends = time.monotonic() + LISTEN_PATIENCE_S
        told = False
        while True:
            try:
                return await self._listeners.bind(self.config.listeners)
            except ListenError as error:
                in_use = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
                if not in_use or time.monotonic() >= patience_ends:
                    raise
                if not told:
                    told = True
                    self._logger.warning("address in use, waits for it", error=error.message, wait_s=LISTEN_PATIENCE_S)
            await asyncio.sleep(_AGAIN_S)

    async def stop(self, *, deadline_s: float = 5.0) -> None:
        """Stop the workers, which disconnect their clients; kill those that do not end in time.

        Where sessions are kept on disk, the workers stay until `end`, and their sessions get what links still bring.

        Args:
            deadline_s: As in `Server.stop`.
        """
        self._listeners.close()  # first, because no worker accepts new connections any more
        timeout_s = 2 * deadline_s + _STOP_MARGIN_S
        stop = Stop(deadline_s, stays=self._keeps_sessions)
        await asyncio.gather(*(worker.stop(stop, timeout_s=timeout_s) for worker in self._workers))
        if not self._keeps_sessions:
            await self._end_tasks()

    async def end(self, *, leaves_sessions: bool) -> Iterator[ExportedSession]:
        """End the workers behind `stop`, where sessions are kept on disk.

        Args:
            leaves_sessions: Whether their sessions are wanted.

        Returns:
            The sessions, those of each worker behind those of the one before.
        """
        ending = (worker.end(leaves_sessions=leaves_sessions, timeout_s=_LEAVE_S) for worker in self._workers)
        sessions = await asyncio.gather(*ending)
        await self._end_tasks()
        return chain.from_iterable(sessions)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pair in self._handovers:
            for one in pair:
                one.close()
        self._handovers.clear()

    async def wait_failed(self) -> None:
        """Wait until a task of the pool ends, which is a bug, and raise its exception."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    @property
    def addresses(self) -> list[str]:
        """Addresses on which the workers listen, with the real ports."""
        return self._listeners.addresses

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        """The workers; none before `start`."""
        return self._workers

    def reasons(self) -> tuple[str, ...]:
        """Return the reasons why the node cannot serve clients; empty when it can.

        A worker that restarts is no reason while another one serves: only its own clients wait or are refused. One that
        is silent is, because its clients do not know that they get nothing.
        """
        reasons = [f"worker {worker.number + 1} is starting" for worker in self._workers if not worker.served_once]
        reasons += [
            f"worker {worker.number + 1} says nothing, and its clients get nothing"
            for worker in self._workers
            if worker.state is WorkerState.SILENT
        ]
        if not reasons and not any(worker.state is WorkerState.SERVING for worker in self._workers):
            reasons.append("no worker serves clients")
        return tuple(reasons)

    def reload_certificates(self) -> None:
        """Read the certificates again in every worker."""
        for error in self._listeners.reload():
            self._logger.error("certificates_not_reloaded", reason=error.message, hint=error.hint)
        self._send(encode(ReloadCertificates()))

    def reload(self, config: NodeConfig) -> None:
        """Apply `[access]` of a new configuration in every worker, also in those that start later."""
        self._node_config = config
        for worker in self._workers:
            worker.set_up = replace(worker.set_up, config=config)
        self._send(encode(Reload(share_of(config).access)))

    def dispatch(self, updates: list[Update], *, origin: str | None = None, position: int = 0) -> None:
        """Feed a batch to every worker.

        Args:
            updates: The updates in order; retained ones are in the replicas already.
            origin: Client Identifier of the client that published all of them, for No Local; None for others.
            position: Not used: the sessions of workers are written when they stop.
        """
        if not self._workers:
            return  # workers start with the values of the replicas
        self._send(encode(FeedBatch(updates, origin)))

    def correct(self, values: Sequence[Update]) -> None:
        """Send values whose expiry was corrected to every worker."""
        if self._workers:
            self._send(encode(Corrected(tuple(values))))

    async def send_away(self, concerns: Concerned) -> int:
        """Disconnect clients with an affected subscription, as `Server.send_away`; return their number."""
        return sum(await asyncio.gather(*(worker.send_away(concerns) for worker in self._workers)))

    async def is_subscribed(self, topic_filter: bytes) -> bool:
        """Return whether a client of a worker has a subscription, not shared, to exactly this Topic Filter."""
        return any(await asyncio.gather(*(worker.is_subscribed(topic_filter) for worker in self._workers)))

    async def clients(self, query: ClientQuery) -> ClientPage:
        """Return the figures of single clients of all workers; workers that do not answer are named."""
        pages = await asyncio.gather(*(worker.clients(query) for worker in self._workers))
        silent = tuple(number for number, page in enumerate(pages, 1) if page is None)
        return join(query, (page for page in pages if page is not None), silent=silent)

    async def kick(
        self, client_id: str, *, clean: bool = False, reason_code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION
    ) -> Kicked | None:
        """Send a client away, whichever worker has it; see `Server.kick`.

        Raises:
            TimeoutError: No worker has the client, but for one that does not answer in time.
        """
        asked = (worker.kick(client_id, clean=clean, reason_code=reason_code) for worker in self._workers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for kicked in answers:
            if isinstance(kicked, Kicked):
                return kicked
        for failure in answers:
            if isinstance(failure, BaseException):
                raise failure
        return None

    @property
    def conflated_topics_max(self) -> int:
        """Number of newest values that wait for a client in this process: none."""
        return 0

    @property
    def connection_count(self) -> int:
        """Number of Network Connections, as the workers last reported."""
        reports = (worker.last_report for worker in self._workers)
        return sum(report.server.connections for report in reports if report is not None)

    @property
    def session_count(self) -> int:
        """Number of sessions, as the workers last reported."""
        reports = (worker.last_report for worker in self._workers)
        return sum(report.server.sessions for report in reports if report is not None)

    def stats(self) -> ServerStats:
        """Return the last reported figures of all workers, including those that have ended."""
        return add_up(ServerStats, (stats for worker in self._workers for stats in worker.server_stats))

    def access_stats(self) -> AccessStats:
        """Return the last reported figures of all gates."""
        return add_up(AccessStats, (stats for worker in self._workers for stats in worker.access_stats))

    # Its own.

    def _send(self, data: bytes) -> None:
        for worker in self._workers:
            worker.write(data)

    def _publish(self, message: Published, reply: Callable[[ChannelMessage], None]) -> None:
        """Pass messages of a worker's client to the ingress, and send the verdicts to the worker."""
        verdicts = self._ingress.publish(message.client_id, list(message.rows), message.now_ns)
        late = [verdict for verdict in verdicts if not isinstance(verdict, ReasonCode)]
        if not late:
            reply(
                PublishVerdicts(
                    message.request, tuple(verdict for verdict in verdicts if isinstance(verdict, ReasonCode))
                )
            )
            return
        left = len(late)

        def one_came(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                codes = tuple(one if isinstance(one, ReasonCode) else one.result() for one in verdicts)
                reply(PublishVerdicts(message.request, codes))

        for verdict in late:
            cast("asyncio.Future[ReasonCode]", verdict).add_done_callback(one_came)

    def _balance(self) -> None:
        """Apply backpressure: pause the sources and read no other workers while a worker has too much unread."""
        paused = any(worker.is_full for worker in self._workers)
        for worker in self._workers:
            worker.read(not paused or worker.is_full)
        if paused is not self._is_paused:
            self._is_paused = paused
            self._pause(paused)

    @property
    def _silent(self) -> frozenset[int]:
        return frozenset(worker.number for worker in self._workers if worker.needs_stand_in)

    def _tell_silent(self) -> None:
        """Tell all workers whose new clients they serve."""
        self._send(encode(SilentWorkers(self._silent)))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for worker in self._workers:
                worker.tick()
            silent = self._silent
            for number in silent if len(silent) < len(self._workers) else ():
                taking, _ = self._handovers[number]
                redirect_handovers(taking, [sending for _, sending in self._handovers], silent=silent)
