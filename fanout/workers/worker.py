"""Worker process: serves its share of the clients, from values that the hub feeds it.

Owns its lifecycle: set-up, values until complete, then clients, until the hub stops it or ends. It has no links, log or
HTTP interface; the hub decides on published messages.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from fanout.access.gate import Gate
from fanout.access.passwords import load_passwords
from fanout.config import AccessConfig
from fanout.durable.form.session_format import decode_sessions, encode_sessions
from fanout.durable.hosting.session_restart import SessionRestart
from fanout.errors import ConfigError
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update
from fanout.runtime.gc_freeze import LongLived
from fanout.server.base.counters import DropReason
from fanout.server.base.ports import Clock
from fanout.server.client.connack import random_client_id
from fanout.server.client.server import Server
from fanout.workers.channel import Channel, open_channel
from fanout.workers.client_router import ClientRouter
from fanout.workers.feed_backlog import FeedBacklog, removals_per_turn
from fanout.workers.messages import (
    Alive,
    Answer,
    AskClients,
    AskSubscribed,
    ChannelMessage,
    Complete,
    Corrected,
    End,
    FeedBatch,
    Kick,
    PublishVerdicts,
    Reload,
    ReloadCertificates,
    Report,
    SendAway,
    SessionRecords,
    SessionsTakenOver,
    SetUp,
    SilentWorkers,
    Stop,
    Stopped,
    Subscribed,
    WorkerReady,
)
from fanout.workers.ownership import new_client_id, share_of
from fanout.workers.remote_ingress import RemoteIngress
from fanout.workers.worker_process import pieces_of

__all__ = ["ALIVE_S", "REPORT_S", "run_worker"]

ALIVE_S: Final = 1.0
"""Pause between messages that show the hub that the event loop runs."""
REPORT_S: Final = 1.0
"""Pause between reports to the hub."""
_REPORT_SHARE: Final = 20
"""The pause is at least this many times the processor time of a report, which takes some with many sessions."""
_FAILED: Final = 70


async def run_worker(end: socket.socket, *, clock: Clock) -> int:
    """Run a worker until the hub stops it, or ends.

    Args:
        end: The worker's end of the channel.
        clock: The clock.

    Returns:
        The exit code: 0 after a stop in good order or when the hub has ended, 70 after a failure.

    Raises:
        ConfigError: The password file cannot be used.
        ListenError: A certificate cannot be used.
    """
    worker = _Worker(clock)
    await open_channel(worker.channel, end)
    try:
        return await worker.run()
    finally:
        worker.channel.abort()


class _Worker:
    """Handles the messages from the hub, and runs the server."""

    def __init__(self, clock: Clock) -> None:
        self._wake = asyncio.Event()
        """Set when a condition that `run` waits for may have changed."""
        self.channel = Channel(
            on_messages=self._receive, on_closed=self._wake.set, on_backpressure=self._note_backpressure
        )
        self._clock = clock
        self._set_up: SetUp | None = None
        self._complete = False
        self._reload: AccessConfig | None = None
        self._send_away: deque[SendAway] = deque()
        self._questions: deque[AskClients | Kick] = deque()
        self._silent: frozenset[int] = frozenset()
        """Other workers that say nothing, as the hub last told."""
        self._alive: asyncio.TimerHandle | None = None
        self._stop: Stop | None = None
        self._end: End | None = None
        self._records: list[bytes] = []
        """Sessions that an earlier process of the node left, as far as the hub has sent them."""
        self._left_ns: int | None = None
        """When it left them, once the hub has sent all of them."""
        self._backlog = FeedBacklog()
        self._replica = Replica()  # values that the hub does not keep come without RETAIN
        self._server: Server | None = None
        self._logger: FilteringBoundLogger = structlog.get_logger("fanout.worker")
        self._ingress = RemoteIngress(
            send=self.channel.send, pause=self._pause_publishers, count_refused=self._count_refused
        )

    async def run(self) -> int:
        """Run the worker, and return the exit code."""
        await self._wait(lambda: self._set_up is not None)
        if self._set_up is not None:
            await self._work(self._set_up)
        self._ingress.give_up()
        if self.channel.crash is not None:
            self._logger.error("the worker failed", exc_info=self.channel.crash)
            return _FAILED
        if self._stop is None:
            self._logger.error("the hub is gone, the worker ends")
        return 0

    async def _work(self, set_up: SetUp) -> None:
        self._logger = self._logger.bind(node=set_up.config.node.id, worker=set_up.number + 1)
        config = share_of(set_up.config)
        assert config.server is not None
        workers = config.server.workers
        gate = Gate(
            config.access,
            passwords=await asyncio.to_thread(load_passwords, config.access.password_file),
            monotonic=self._clock.monotonic,
            logger=self._logger,
        )
        connection_router = ClientRouter(
            number=set_up.number,
            handovers=socket.socket(fileno=set_up.handovers),
            others=[socket.socket(fileno=one) for one in set_up.others],
        )
        server = self._server = connection_router.server = Server(
            config.server,
            node_id=config.node.id,
            store=self._replica,
            ingress=self._ingress,
            clock=self._clock,
            logger=self._logger,
            known_topics=self._replica.values,
            assign_client_id=lambda: new_client_id(random_client_id, number=set_up.number, workers=workers),
            gate=gate,
            connection_router=connection_router,
            subscribed=self._tell_subscribed if any(link.announce_missing for link in config.links) else None,
            retain_available=config.retained.available,
        )
        restart = SessionRestart(server, clock=self._clock, logger=self._logger)
        await self._wait(lambda: self._complete or self._left_ns is not None)
        if self._left_ns is not None:
            await restart.take_over(decode_sessions(self._records), left_ns=self._left_ns)
            self._records.clear()
            self.channel.send(SessionsTakenOver())
        if await self._wait(lambda: self._complete):
            await server.start([[socket.socket(fileno=one) for one in each] for each in set_up.sockets])
            connection_router.open()
            self.channel.send(WorkerReady())
            self._say_alive()
            self._logger.info("worker serves", topics=len(self._replica))
            await self._serve(server, gate, connection_router)
            connection_router.close()
            deadline_s = self._stop.deadline_s if self._stop is not None else 0.0
            await server.stop(deadline_s=deadline_s)
            self._report(server, gate)
            await connection_router.end()
        if self._stop is not None and self._stop.stays:
            await self._stay(restart)
        if self._alive is not None:
            self._alive.cancel()
        await gate.close()

    async def _stay(self, restart: SessionRestart) -> None:
        """Deliver to sessions what links still bring, until the hub ends that; send the sessions if it wants them."""
        self.channel.send(Stopped())
        while self._end is None and not self.channel.closed:
            self._wake.clear()
            await self._wake.wait()
        if self._end is not None and self._end.leaves_sessions:
            for piece in pieces_of(encode_sessions(restart.leave()), left_ns=self._clock.now_ns()):
                self.channel.send(piece)
                await self.channel.wait_almost_sent()

    async def _serve(self, server: Server, gate: Gate, connection_router: ClientRouter) -> None:
        """Report, and carry out the hub's requests, until the hub stops the worker or ends."""
        long_lived, long_waiting = LongLived(), LongLived()
        while True:
            began_s = time.thread_time()  # not of the clock, which goes on while this process is stopped
            long_lived.note(len(self._replica))
            long_waiting.note(server.conflated_topics_max)
            self._report(server, gate)
            report_at = self._clock.monotonic() + max(REPORT_S, _REPORT_SHARE * (time.thread_time() - began_s))
            while await self._wait(
                lambda: (
                    bool(self._reload or self._send_away or self._questions) or self._silent != connection_router.silent
                ),
                until=report_at,
            ):
                if self._silent != connection_router.silent:
                    was_silent, connection_router.silent = connection_router.silent, self._silent
                    if was_silent - self._silent:
                        ended = await server.end_clients(lambda client_id: not connection_router.serves(client_id))
                        self._logger.info("clients go back to their own worker", clients=ended)
                access, self._reload = self._reload, None
                if access is not None:
                    await self._replace(access, server, gate)
                while self._questions:
                    await self._answer(self._questions.popleft(), server)
                while self._send_away:
                    message = self._send_away.popleft()
                    self.channel.send(Answer(message.request, await server.send_away(message.concerns)))
            if self._is_ending:
                return

    async def _answer(self, question: AskClients | Kick, server: Server) -> None:
        if isinstance(question, AskClients):
            self.channel.send(Answer(question.request, await server.clients(question.query)))
            return
        kicked = await server.kick(question.client_id, clean=question.clean, reason_code=question.reason_code)
        self.channel.send(Answer(question.request, kicked))

    @property
    def _is_ending(self) -> bool:
        return self._stop is not None or self.channel.closed

    async def _wait(self, condition: Callable[[], bool], *, until: float | None = None) -> bool:
        """Wait until a condition holds, or until the time or the end of the worker; return whether it holds."""
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - self._clock.monotonic())):
                while not (condition() or self._is_ending):
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            pass
        return condition() and not self._is_ending

    async def _replace(self, access: AccessConfig, server: Server, gate: Gate) -> None:
        try:
            passwords = await asyncio.to_thread(load_passwords, access.password_file)
        except ConfigError as error:
            self._logger.error("reload failed, what was in force stays", faults=str(error).splitlines())
            return
        change = gate.replace(access, passwords=passwords)
        if change.sessions_to_check:
            await server.check_again()

    def _report(self, server: Server, gate: Gate) -> None:
        self.channel.send(
            Report(server=server.stats(), access=gate.stats(), topics=len(self._replica), cpu_s=time.process_time())
        )

    def _say_alive(self) -> None:
        self.channel.send(Alive())
        self._alive = asyncio.get_running_loop().call_later(ALIVE_S, self._say_alive)

    def _tell_subscribed(self, topic_filters: Sequence[bytes]) -> None:
        self.channel.send(Subscribed(tuple(topic_filters)))

    def _note_backpressure(self, is_full: bool) -> None:
        self._ingress.note_backpressure(is_full)

    def _pause_publishers(self, paused: bool) -> None:
        if self._server is not None:
            self._server.pause_publishers(paused)

    def _count_refused(self, messages: int) -> None:
        if self._server is not None:
            self._server.counters.dropped[DropReason.REFUSED] += messages

    # Messages from the hub.

    def _receive(self, messages: list[ChannelMessage]) -> None:
        """Process the messages of one read, as many as fit one turn; reading pauses until the rest is processed."""
        self._backlog.add(messages)
        clients = 0 if self._server is None else self._server.connection_count
        for message in self._backlog.take(removals=removals_per_turn(clients)):
            self._handle(message)
        self.channel.read(not self._backlog)
        if self._backlog:
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        try:
            self._receive([])
        except Exception as error:
            self.channel.fail(error)

    def _handle(self, message: ChannelMessage) -> None:
        match message:
            case FeedBatch(updates, origin):
                self._apply(updates, origin)
                return
            case Corrected(values):
                self._replica.correct(values)
                if self._complete and self._server is not None:
                    self._server.correct(values)
                return
            case PublishVerdicts():
                self._ingress.answer(message)
                return
            case AskClients() | Kick():
                self._questions.append(message)
            case AskSubscribed(request, topic_filter):
                index = self._server.registry.index if self._server is not None else None
                self.channel.send(Answer(request, index is not None and index.has(topic_filter)))
                return
            case SetUp():
                self._set_up = message
            case Complete():
                self._complete = True
            case Reload(access):
                self._reload = access
            case ReloadCertificates():
                if self._server is not None:
                    self._server.reload_certificates()
            case SendAway():
                self._send_away.append(message)
            case SilentWorkers(numbers):
                self._silent = numbers - {-1 if self._set_up is None else self._set_up.number}
            case SessionRecords(records, left_ns):
                self._records += records
                self._left_ns = left_ns
            case Stop():
                self._stop = message
            case End():
                self._end = message
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a worker")
        self._wake.set()

    def _apply(self, updates: list[Update], origin: str | None) -> None:
        self._replica.apply(updates, phase=Phase.LIVE)
        if self._complete and self._server is not None:  # there are no clients before
            self._server.dispatch(updates, origin=origin)
