"""The workers of a node, which look like its server to the hub.

Owns the listening sockets, the workers' processes, and what all of them are fed: each batch is encoded once and written
to every worker. It must not know links, nor how the hub decides on what clients publish.

A worker that reads too slowly makes the others' sources wait (links, and what clients publish at other workers), as a
slow socket would; one that says nothing for long is killed. A worker that ends is started again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

from structlog.typing import FilteringBoundLogger

from fanout.access.gate import AccessStats
from fanout.affected_clients import Concerned
from fanout.config import NodeConfig, ServerConfig
from fanout.errors import ListenError
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.update import Update
from fanout.server.accept.listeners import Listeners
from fanout.server.base.counters import ServerStats
from fanout.server.base.ports import Ingress
from fanout.workers.channel import encode
from fanout.workers.client_router import new_handover_sockets
from fanout.workers.figures import add_up
from fanout.workers.messages import (
    ChannelMessage,
    Corrected,
    FeedBatch,
    Published,
    PublishVerdicts,
    Reload,
    ReloadCertificates,
    Stop,
)
from fanout.workers.ownership import share_of
from fanout.workers.worker_process import WorkerProcess, WorkerState

__all__ = ["LISTEN_PATIENCE_S", "WorkerPool"]

_TICK_S: Final = 1.0
_STOP_MARGIN_S: Final = 5.0
"""How much longer than its clients may take a worker may take to end."""
_AGAIN_S: Final = 0.1
LISTEN_PATIENCE_S = 15.0
"""How long to wait for an address in use: the workers of a node that was killed keep it until they see that it is gone,
which takes a busy machine seconds."""


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
            config: The node's; its server has several workers.
            ingress: Decides on what clients publish.
            replicas: All values that clients read.
            subscribed: Told of the Topic Filters that clients have subscribed to, if a link wants to know them.
            pause: Told True when no more batches are wanted for now, and False when they are again.
            logger: Takes log lines.
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

    async def start(self) -> None:
        """Open the listeners and start the workers, which take some time until they serve.

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
                self._node_config,
                number=number,
                sockets=sockets,
                handovers=taking.fileno(),
                others=others,
                replicas=self._replicas,
                on_published=self._publish,
                on_subscribed=self._subscribed,
                on_backpressure=self._balance,
                logger=self._logger,
            )
            for number, (taking, _) in enumerate(self._handovers)
        ]
        for worker in self._workers:
            self._tasks.append(asyncio.create_task(worker.run(), name=f"worker-{worker.number + 1}"))
        self._tasks.append(asyncio.create_task(self._watch(), name="workers-watch"))

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
        """Let the workers send their clients away, and end; those that do not are killed.

        Args:
            deadline_s: How long clients may take to read what was written to them, in seconds.
        """
        self._listeners.close()  # first: nobody would take what still came
        timeout_s = 2 * deadline_s + _STOP_MARGIN_S
        await asyncio.gather(*(worker.stop(Stop(deadline_s), timeout_s=timeout_s) for worker in self._workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pair in self._handovers:
            for one in pair:
                one.close()
        self._handovers.clear()

    async def wait_failed(self) -> None:
        """Wait until a task of the pool ends, which only a bug makes it do, and raise why."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    @property
    def addresses(self) -> list[str]:
        """Where the workers listen, with the real ports."""
        return self._listeners.addresses

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        """The workers; none before `start`."""
        return self._workers

    def reasons(self) -> tuple[str, ...]:
        """Return why the node cannot serve clients; empty when it can.

        A worker that is started again does not count while another one serves: its clients wait, or are told to come
        again, and all others are served.
        """
        reasons = [f"worker {worker.number + 1} is starting" for worker in self._workers if not worker.served_once]
        if not reasons and not any(worker.state is WorkerState.SERVING for worker in self._workers):
            reasons.append("no worker serves clients")
        return tuple(reasons)

    def reload_certificates(self) -> None:
        """Let every worker read the certificates again."""
        for error in self._listeners.reload():
            self._logger.error("certificates_not_reloaded", reason=error.message, hint=error.hint)
        self._send(encode(ReloadCertificates()))

    def reload(self, config: NodeConfig) -> None:
        """Let `[access]` of another configuration decide in every worker, also in those that start later."""
        self._node_config = config
        for worker in self._workers:
            worker.config = config
        self._send(encode(Reload(share_of(config).access)))

    def dispatch(self, updates: list[Update], *, origin: str | None = None) -> None:
        """Feed a batch to every worker.

        Args:
            updates: In order; what is retained of them is in the replicas already.
            origin: Client Identifier of the client that published all of them, for No Local; None for others.
        """
        if not self._workers:
            return  # each of them begins with what the replicas hold
        self._send(encode(FeedBatch(updates, origin)))

    def correct(self, values: Sequence[Update]) -> None:
        """Tell every worker when values that it has expire, which was not known when they were fed."""
        if self._workers:
            self._send(encode(Corrected(tuple(values))))

    async def send_away(self, concerns: Concerned) -> int:
        """Disconnect clients that have a subscription of a kind, as a server does; return how many."""
        return sum(await asyncio.gather(*(worker.send_away(concerns) for worker in self._workers)))

    async def is_subscribed(self, topic_filter: bytes) -> bool:
        """Say whether a client of any worker is subscribed to this very Topic Filter, shared subscriptions left out."""
        return any(await asyncio.gather(*(worker.is_subscribed(topic_filter) for worker in self._workers)))

    @property
    def conflated_topics_max(self) -> int:
        """How many newest values wait for a client in this process: none."""
        return 0

    @property
    def connection_count(self) -> int:
        """How many Network Connections there are, as the workers last reported."""
        reports = (worker.last_report for worker in self._workers)
        return sum(report.server.connections for report in reports if report is not None)

    def stats(self) -> ServerStats:
        """Return the figures of all workers, those that have ended included, as they last reported them."""
        return add_up(ServerStats, (stats for worker in self._workers for stats in worker.server_stats))

    def access_stats(self) -> AccessStats:
        """Return the figures of all gates, as they were last reported."""
        return add_up(AccessStats, (stats for worker in self._workers for stats in worker.access_stats))

    # Its own.

    def _send(self, data: bytes) -> None:
        for worker in self._workers:
            worker.write(data)

    def _publish(self, message: Published, reply: Callable[[ChannelMessage], None]) -> None:
        """Let the node decide on what a worker's client published, and tell the worker."""
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
        """Let sources wait while a worker has too much unread, but for what that worker itself has to say."""
        paused = any(worker.is_full for worker in self._workers)
        for worker in self._workers:
            worker.read(not paused or worker.is_full)
        if paused is not self._is_paused:
            self._is_paused = paused
            self._pause(paused)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            for worker in self._workers:
                worker.tick()
