"""Hub's side of one worker: its process, its channel, and its last report.

Owns the lifecycle of the process over all restarts, and sends it the current values at each start.

The values are sent in pieces, each when the one before is almost sent, with batches in between. A piece is read from
the replica and written in one step, so that the last message for a topic has its newest value.

Where sessions are kept on disk, those that an earlier process of the node left follow the values, and a worker that
stops stays until links have stopped too, and sends the sessions that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.access.gate import AccessStats
from fanout.affected_clients import Concerned
from fanout.durable.form.session_format import decode_sessions, encode_sessions
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.update import Update
from fanout.runtime.backoff import Backoff
from fanout.server.base.counters import ServerStats
from fanout.server.client.client_list import ClientPage, ClientQuery, Kicked
from fanout.server.session.exported_session import ExportedSession
from fanout.workers.channel import Channel, open_channel
from fanout.workers.figures import add_up, totals_of
from fanout.workers.messages import (
    Alive,
    Answer,
    AnswerValue,
    AskClients,
    AskSubscribed,
    ChannelMessage,
    Complete,
    End,
    FeedBatch,
    Kick,
    Published,
    Report,
    SendAway,
    SessionRecords,
    SessionsTakenOver,
    SetUp,
    Stop,
    Stopped,
    Subscribed,
    WorkerReady,
)

__all__ = ["TICK_S", "WorkerProcess", "WorkerState", "pieces_of"]

TICK_S: Final = 0.5
"""Pause between calls of `WorkerProcess.tick`."""

_PIECE: Final = 1_000
"""Limit of values sent in one step: about a millisecond."""
_PIECE_BYTES: Final = 1024 * 1024
"""Bytes of values, or of sessions, at which a step ends: a step is several times in memory while it is encoded."""
_RESTART_MIN_S: Final = 0.1
_RESTART_MAX_S: Final = 10.0
_SETTLED_S: Final = 30.0
"""The restart delay starts again from its minimum after a worker has served for this time at least."""
_SILENT_TICKS: Final = 5
"""Ticks without a message after which a serving worker is silent: 2.5 s; it says each second that it runs."""
_SILENT_TICKS_MAX: Final = 60
"""Ticks without a message after which a worker that served is killed: 30 s."""
_SILENT_FULL_TICKS_MAX: Final = 20
"""The same while it applies backpressure, 10 s: less than the time a link waits for its heartbeats."""
_STARTING_TICKS_MAX: Final = 600
"""The same until it serves: 5 minutes."""
_LAST_WORDS_S: Final = 1.0
_SUBSCRIBED_S: Final = 5.0
"""Limit for a worker's answer about a subscription."""
_CLIENTS_S: Final = 2.0
"""Limit for a worker's answer about its clients: less than the time that commands wait for a node."""
_SEND_AWAY_S: Final = 5.0
"""Limit for a worker to disconnect clients in a tear-down, so that a hanging worker does not delay it."""


class WorkerState(enum.Enum):
    """State of a worker."""

    DOWN = "down"
    """It has ended, or was never started."""
    STARTING = "starting"
    """It starts, or receives the values."""
    SERVING = "serving"
    """It serves clients."""
    SILENT = "silent"
    """It served clients and says nothing: it was stopped, or hangs."""


class WorkerProcess:
    """One worker, over all its restarts.

    Attributes:
        number: Number of the worker, from 0.
        set_up: First message at the next start.
        state: Its state.
        served_once: True once it has served clients.
        needs_stand_in: True from when it is silent until it serves again: other workers serve its new clients.
        is_full: True while it applies backpressure, because too many bytes to it are unread.
        pid: Process ID; None without a process.
        restarts_total: Number of restarts.
        late_total: Number of times that it did not disconnect clients in time.
        last_report: Its last report; None before the first, and when it has ended.
    """

    def __init__(
        self,
        set_up: SetUp,
        *,
        replicas: Sequence[Replica],
        on_published: Callable[[Published, Callable[[ChannelMessage], None]], None],
        on_subscribed: Callable[[tuple[bytes, ...]], None],
        on_backpressure: Callable[[], None],
        on_silence: Callable[[], None],
        logger: FilteringBoundLogger,
    ) -> None:
        """Make a worker that is down; `run` starts it.

        Args:
            set_up: Its first message at each start.
            replicas: The values that it starts with.
            on_published: Called with messages of its clients, and a function that sends the answer.
            on_subscribed: Called with the Topic Filters of new subscriptions.
            on_backpressure: Called when `is_full` has changed.
            on_silence: Called when `needs_stand_in` has changed, and when the worker serves.
            logger: The log.
        """
        self.set_up = set_up
        self.number = set_up.number
        self.state = WorkerState.DOWN
        self.served_once = False
        self.needs_stand_in = False
        self.is_full = False
        self.pid: int | None = None
        self.restarts_total = 0
        self.late_total = 0
        self.last_report: Report | None = None
        self._replicas = replicas
        self._on_published = on_published
        self._on_subscribed = on_subscribed
        self._on_backpressure = on_backpressure
        self._on_silence = on_silence
        self._last_request = 0
        self._requests: dict[int, asyncio.Future[AnswerValue]] = {}
        self._logger = logger.bind(worker=set_up.number + 1)
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._stopping = False
        self._ended = asyncio.Event()
        self._ended.set()
        self._stopped = asyncio.Event()
        """Set when its clients are gone after `stop`, or the process has ended."""
        self._may_restore = asyncio.Event()
        """Set when it is known which sessions its process takes over."""
        self._may_serve = asyncio.Event()
        """Set when every worker may serve clients."""
        self._left: tuple[Iterable[ExportedSession], int] | None = None
        """Sessions for its process, and when they were left; None when there are none."""
        self._gives_sessions = False
        """True once a process has got sessions, or a part of them."""
        self._taken_over = asyncio.Event()
        """Set when a process has them, or has ended before."""
        self._records: list[bytes] = []
        """Sessions that its process leaves."""
        self._has_all_records = False
        self._silent_ticks = 0
        self._heard_s = 0.0
        self._reads = True
        self._served_since = 0.0
        self._backoff = Backoff(min_s=_RESTART_MIN_S, max_s=_RESTART_MAX_S)
        self._past_server = add_up(ServerStats, ())
        self._past_access = add_up(AccessStats, ())

    async def run(self) -> None:
        """Start the process, and restart it whenever it ends, until stopped or cancelled."""
        while not self._stopping:
            self.state = WorkerState.STARTING
            try:
                code: int | str = await self._run_process()
            except OSError as error:
                code = str(error)
            served_s = asyncio.get_running_loop().time() - self._served_since
            if self._has_started and served_s >= _SETTLED_S:
                self._backoff.note_success(lasted_s=served_s)
            self.state = WorkerState.DOWN
            await self._pause(code)

    async def stop(self, message: Stop, *, timeout_s: float) -> None:
        """Stop the worker without a restart, and kill it when it does not stop in time.

        A worker that stays (`Stop.stays`) applies and delivers what comes, to sessions without clients, until `end`.
        """
        self._stopping = True
        if self._channel is not None:
            self._stopped.clear()
            self._channel.send(message)
            await self._in_time(self._stopped if message.stays else self._ended, timeout_s=timeout_s)

    async def end(self, *, leaves_sessions: bool, timeout_s: float) -> Iterator[ExportedSession]:
        """End a worker that has stayed, and kill it when it does not end in time.

        Returns:
            The sessions that it leaves; none when it has not sent all of them, which is logged.
        """
        was_there = self._channel is not None
        if self._channel is not None:
            self._channel.send(End(leaves_sessions))
            await self._in_time(self._ended, timeout_s=timeout_s)
        if leaves_sessions and not (was_there and self._has_all_records):
            self._logger.error("sessions of the worker not stored", reason="it ended before it had sent them")
            return iter(())
        return decode_sessions(self._records)

    async def _in_time(self, happened: asyncio.Event, *, timeout_s: float) -> None:
        """Wait for a step of its stop; kill the process when that takes too long."""
        process = self._process
        try:
            async with asyncio.timeout(timeout_s):
                await happened.wait()
        except TimeoutError:
            self._logger.error("the worker does not end, it is killed", timeout_s=timeout_s)
            if process is not None:
                _kill(process)
            await self._ended.wait()  # its last report may still be read

    async def take_over(self, sessions: Iterable[ExportedSession], *, left_ns: int) -> None:
        """Give the process sessions before it serves, and wait until it has them; when it ends before, they are gone.

        Args:
            sessions: Sessions of clients that this worker serves.
            left_ns: Unix time in nanoseconds at which an earlier process left them.
        """
        self._left = (sessions, left_ns)
        self._may_restore.set()
        await self._taken_over.wait()
        self._left = None

    def serve(self) -> None:
        """Let its process, and each later one, serve clients."""
        self._may_restore.set()
        self._may_serve.set()

    async def send_away(self, concerns: Concerned) -> int:
        """Disconnect its clients with an affected subscription, and return their number.

        Returns:
            The number; 0 when the worker ends before, or does not answer in time (it still disconnects them later).
        """
        try:
            sent = await self._ask(lambda request: SendAway(request, concerns), timeout_s=_SEND_AWAY_S)
        except TimeoutError:
            self.late_total += 1
            self._logger.warning("the worker sends clients away too slowly", timeout_s=_SEND_AWAY_S)
            return 0
        return sent if isinstance(sent, int) else 0

    async def is_subscribed(self, topic_filter: bytes) -> bool:
        """Return whether one of its clients has a subscription to exactly this Topic Filter; True without an answer."""
        try:
            return bool(await self._ask(lambda request: AskSubscribed(request, topic_filter), timeout_s=_SUBSCRIBED_S))
        except TimeoutError:
            return True

    async def clients(self, query: ClientQuery) -> ClientPage | None:
        """Return the figures of its clients; None when it does not serve, or does not answer in time."""
        try:
            answer = await self._ask(lambda request: AskClients(request, query), timeout_s=_CLIENTS_S)
        except TimeoutError:
            return None
        return answer if isinstance(answer, ClientPage) else None

    async def kick(self, client_id: str, *, clean: bool, reason_code: ReasonCode) -> Kicked | None:
        """Send a client away; return None when the worker does not serve, or does not have it.

        Raises:
            TimeoutError: The worker does not answer in time; it may still send the client away.
        """
        answer = await self._ask(lambda request: Kick(request, client_id, clean, reason_code), timeout_s=_CLIENTS_S)
        return answer if isinstance(answer, Kicked) else None

    async def _ask(self, message: Callable[[int], ChannelMessage], *, timeout_s: float) -> AnswerValue:
        """Send a request and return its answer; 0 when the worker does not serve, or ends before.

        Raises:
            TimeoutError: The worker does not answer in time.
        """
        if self._channel is None or not self._has_started:
            return 0
        self._last_request = request = self._last_request + 1
        answer: asyncio.Future[AnswerValue] = asyncio.get_running_loop().create_future()
        self._requests[request] = answer
        self._channel.send(message(request))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._requests[request]

    def _answer(self, request: int, value: AnswerValue) -> None:
        answer = self._requests.get(request)
        if answer is not None and not answer.done():
            answer.set_result(value)

    def write(self, data: bytes) -> None:
        """Write an encoded message, if there is a process."""
        if self._channel is not None:
            self._channel.write(data)

    def read(self, wanted: bool) -> None:
        """Resume or pause reading from the worker."""
        self._reads = wanted
        if self._channel is not None:
            self._channel.read(wanted)

    def tick(self) -> None:
        """Count a tick without a message: note that the worker is silent, and kill it after too many.

        Ticks are counted, and not seconds: while this process does not run either, nothing is missing.
        """
        if self._process is None or not self._reads or self._stopping:
            return
        self._silent_ticks += 1
        if self._silent_ticks >= _SILENT_TICKS and self.state is WorkerState.SERVING:
            self.state = WorkerState.SILENT
            self.needs_stand_in = True
            self._logger.warning(
                "worker says nothing, others serve its new clients",
                pid=self.pid,
                silent_s=round(asyncio.get_running_loop().time() - self._heard_s, 1),
                hint="Find out whether it was stopped (SIGSTOP, a debugger), or waits for memory or a disk;"
                f" it is killed after {_SILENT_TICKS_MAX * TICK_S:.0f} s",
            )
            self._on_silence()
        limit = _SILENT_TICKS_MAX if self._has_started else _STARTING_TICKS_MAX
        if self.is_full:
            limit = _SILENT_FULL_TICKS_MAX
        if self._silent_ticks > limit:
            self._silent_ticks = 0
            self._logger.error("the worker says nothing, it is killed", state=self.state.value)
            _kill(self._process)

    @property
    def _has_started(self) -> bool:
        """Whether its process has served clients."""
        return self.state in (WorkerState.SERVING, WorkerState.SILENT)

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that it has not read."""
        return self._channel.unsent_bytes if self._channel is not None else 0

    @property
    def server_stats(self) -> tuple[ServerStats, ...]:
        """Figures of its server: totals of ended processes, and the last report."""
        report = self.last_report
        return (self._past_server,) if report is None else (self._past_server, report.server)

    @property
    def access_stats(self) -> tuple[AccessStats, ...]:
        """Figures of its gate: totals of ended processes, and the last report."""
        report = self.last_report
        return (self._past_access,) if report is None else (self._past_access, report.access)

    async def _pause(self, code: int | str) -> None:
        """Wait before the process is restarted, unless the worker is stopped."""
        if self._stopping:
            return
        delay_s = self._backoff.next_delay_s()
        self._logger.error("worker ended, it is started again", code=code, delay_s=round(delay_s, 2))
        self.restarts_total += 1
        await asyncio.sleep(delay_s)

    async def _run_process(self) -> int:
        """Run one process until it ends, and return its exit code."""
        near, far = socket.socketpair()
        with near, far:
            to_worker = self.set_up
            listening = (one for each in to_worker.sockets for one in each)
            inherited = {far.fileno(), to_worker.handovers, *to_worker.others, *listening}
            command = [sys.executable, "-m", "fanout", "worker", "--feed", str(far.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=tuple(inherited)
            )
            far.close()
            closed = asyncio.Event()
            channel = Channel(on_messages=self._receive, on_closed=closed.set, on_backpressure=self._note_backpressure)
            feeding: asyncio.Task[None] | None = None
            try:
                await open_channel(channel, near.dup())
                # Set with the channel, and not before: `stop` sends a message to the process and waits for it.
                self._process, self.pid, self._channel = process, process.pid, channel
                self._ended.clear()
                self._silent_ticks = 0
                channel.read(self._reads)  # publishers may be paused now
                channel.send(self.set_up)
                feeding = asyncio.create_task(self._feed(channel), name=f"feed-{self.number + 1}")
                near.close()
                code = await self._wait_ended(process, feeding)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_S):
                        await closed.wait()
                if channel.crash is not None:
                    raise channel.crash
                return code
            finally:
                killed = process.returncode is None
                if killed:
                    _kill(process)
                if feeding is not None:
                    feeding.cancel()
                    channel.abort()
                self._forget()
                if killed:
                    await process.wait()

    async def _wait_ended(self, process: asyncio.subprocess.Process, feeding: asyncio.Task[None]) -> int:
        """Wait until the process has ended, and return its exit code; raise an exception of the feeding task."""
        ended = asyncio.create_task(process.wait(), name=f"worker-{self.number + 1}-end")
        try:
            await asyncio.wait({ended, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                feeding.result()
            return await ended
        finally:
            ended.cancel()

    def _forget(self) -> None:
        self._channel = self._process = self.pid = None
        self._ended.set()
        self._stopped.set()
        if self._gives_sessions and not self._taken_over.is_set():
            self._logger.error("sessions of the worker not restored", reason="it ended before it had taken them over")
            self._taken_over.set()
        for request in self._requests:
            self._answer(request, 0)
        report, self.last_report = self.last_report, None
        if report is not None:
            self._past_server = add_up(ServerStats, (self._past_server, totals_of(report.server)))
            self._past_access = add_up(AccessStats, (self._past_access, totals_of(report.access)))
        self._note_backpressure(False)

    async def _feed(self, channel: Channel) -> None:
        """Send all values of the replicas."""
        for replica in self._replicas:
            topics = list(replica.values)
            start = 0
            while start < len(topics):
                piece: list[Update] = []
                size = 0
                for topic in topics[start : start + _PIECE]:
                    start += 1
                    value = replica.values.get(topic)
                    if value is not None:
                        piece.append(value)
                        size += len(topic) + len(value[1]) + len(value[4])
                        if size >= _PIECE_BYTES:
                            break
                if piece:
                    channel.send(FeedBatch(piece))
                await channel.wait_almost_sent()
        await self._may_restore.wait()
        if self._left is not None and not self._gives_sessions:
            self._gives_sessions = True  # once: they may be what a process ends by
            sessions, left_ns = self._left
            for records in pieces_of(encode_sessions(sessions), left_ns=left_ns):
                channel.send(records)
                await channel.wait_almost_sent()
        await self._may_serve.wait()
        channel.send(Complete())

    def _note_backpressure(self, is_full: bool) -> None:
        if is_full is not self.is_full:
            self.is_full = is_full
            self._on_backpressure()

    def _receive(self, messages: list[ChannelMessage]) -> None:
        self._note_heard()
        channel = self._channel
        assert channel is not None
        for message in messages:
            match message:
                case Published():
                    self._on_published(message, channel.send)
                case Report():
                    self.last_report = message
                case Subscribed(topic_filters):
                    self._on_subscribed(topic_filters)
                case Answer(request, value):
                    self._answer(request, value)
                case SessionsTakenOver():
                    self._taken_over.set()
                case SessionRecords(records, left_ns):
                    self._records += records
                    self._has_all_records = left_ns is not None
                case Stopped():
                    self._stopped.set()
                case WorkerReady():
                    self.state = WorkerState.SERVING
                    self.served_once = True
                    self._served_since = self._heard_s
                    self.needs_stand_in = False
                    self._on_silence()
                case Alive():
                    pass
                case _:
                    raise AssertionError(f"{type(message).__name__} is not for the hub")

    def _note_heard(self) -> None:
        """Note a message: a silent worker runs again."""
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        self._heard_s += silent_s
        self._silent_ticks = 0
        if self.state is WorkerState.SILENT:
            self.state = WorkerState.SERVING
            self.needs_stand_in = False
            self._logger.warning("worker runs again", silent_s=round(silent_s, 1))
            self._on_silence()


def pieces_of(records: Iterable[bytes], *, left_ns: int) -> Iterator[SessionRecords]:
    """Yield messages with the records of sessions, of about a megabyte each.

    Args:
        records: The records.
        left_ns: Unix time in nanoseconds at which the sessions were left.
    """
    piece: list[bytes] = []
    size = 0
    for record in records:
        piece.append(record)
        size += len(record)
        if size >= _PIECE_BYTES:
            yield SessionRecords(tuple(piece))
            piece, size = [], 0
    yield SessionRecords(tuple(piece), left_ns)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
