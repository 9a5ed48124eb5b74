"""The workers of a node as the hub sees them, where the processes are not workers at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import CapturingLogger
from structlog.typing import FilteringBoundLogger

from fanout.affected_clients import Concerned
from fanout.config import Address, IdentityConfig, NodeConfig, ServerConfig, SessionsConfig
from fanout.config.settings import SessionStorage
from fanout.durable.hosting.session_restart import TakeOver
from fanout.errors import ListenError
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update
from fanout.server.base.ports import PublishVerdict
from fanout.server.client.client_list import ClientQuery
from fanout.workers.pool import WorkerPool
from fanout.workers.worker_process import WorkerState
from tests.support.waiting import wait_until

LISTEN = (Address("mqtt", "127.0.0.1", 0),)


class NoLogger(CapturingLogger):
    """Takes log lines, of whatever is bound."""

    def bind(self, **fields: object) -> NoLogger:
        """Return itself."""
        return self


class NoIngress:
    """Takes nothing."""

    def publish(self, client_id: str, rows: list[PublishRow], now_ns: int) -> list[PublishVerdict]:
        """Refuse everything."""
        return [ReasonCode.NOT_AUTHORIZED] * len(rows)


def make_pool(
    logger: NoLogger,
    *,
    listen: tuple[Address, ...] = LISTEN,
    replica: Replica | None = None,
    sessions: SessionStorage = "ram",
) -> WorkerPool:
    """Make a pool of two workers."""
    bound: FilteringBoundLogger = logger
    return WorkerPool(
        NodeConfig(
            node=IdentityConfig(id="n"),
            server=ServerConfig(listen=listen, workers=2),
            sessions=SessionsConfig(storage=sessions),
        ),
        ingress=NoIngress(),
        replicas=[replica or Replica()],
        subscribed=lambda topic_filters: None,
        pause=lambda paused: None,
        logger=bound,
    )


@pytest_asyncio.fixture(autouse=True)
async def _transports_closed() -> AsyncIterator[None]:
    """Give asyncio the turns in which it closes the transports of processes that have just ended."""
    yield
    for _ in range(5):
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkerPool]:
    """Return a pool whose workers end as soon as they are started."""
    program = shutil.which("false")
    assert program is not None
    monkeypatch.setattr("sys.executable", program)
    pool = make_pool(NoLogger())
    await pool.start()
    yield pool
    await pool.stop(deadline_s=0.1)


async def test_workers_that_end_are_started_again_and_again(pool: WorkerPool) -> None:
    """The node is not ready, and says for which of them it waits."""
    await wait_until(lambda: all(worker.restarts_total >= 2 for worker in pool.workers))
    assert pool.reasons() == ("worker 1 is starting", "worker 2 is starting")
    assert (pool.stats().connections, pool.access_stats().rules) == (0, 0)


async def test_one_worker_that_serves_is_enough_once_all_have_served(pool: WorkerPool) -> None:
    """Before that, and without any, the node is not ready."""
    await wait_until(lambda: all(worker.restarts_total for worker in pool.workers))
    first, second = pool.workers
    first.served_once = True
    assert pool.reasons() == ("worker 2 is starting",)
    second.served_once = True
    first.state = second.state = WorkerState.DOWN
    assert pool.reasons() == ("no worker serves clients",)
    second.state = WorkerState.SERVING
    assert pool.reasons() == ()


async def test_an_address_in_use_starts_no_worker(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the workers of a node that was killed had the time to let it go."""
    monkeypatch.setattr("fanout.workers.pool.LISTEN_PATIENCE_S", 0.3)
    port = int(pool.addresses[0].rpartition(":")[2])
    second = make_pool(NoLogger(), listen=(Address("mqtt", "127.0.0.1", port),))
    with pytest.raises(ListenError, match="in use"):
        await second.start()
    assert list(second.workers) == []


async def test_an_address_is_waited_for_that_the_workers_of_a_killed_node_still_have() -> None:
    """They see late that their node is gone; the one that follows it says that it waits, once, and serves then."""
    logger = NoLogger()
    with socket.socket() as of_worker:
        of_worker.bind(("127.0.0.1", 0))
        of_worker.listen()
        pool = make_pool(logger, listen=(Address("mqtt", "127.0.0.1", of_worker.getsockname()[1]),))
        starting = asyncio.create_task(pool.start())
        await wait_until(lambda: bool(logger.calls), what="a line that it waits")
        assert not starting.done()
    try:
        await asyncio.wait_for(starting, 10)
        assert pool.addresses
        waits = [call for call in logger.calls if call.args == ("address in use, waits for it",)]
        assert len(waits) == 1
    finally:
        await pool.stop(deadline_s=0.1)


async def test_the_end_closes_the_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while workers are being started."""
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    pool = make_pool(NoLogger())
    await pool.start()
    port = int(pool.addresses[0].rpartition(":")[2])
    await pool.stop(deadline_s=0.1)
    assert pool.addresses == []
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_nothing_is_started_while_the_pool_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It listens no more from the beginning of its end, and a worker that has ended before is not started again."""
    program, first, starts = tmp_path / "worker", tmp_path / "first", tmp_path / "starts"
    program.write_text(f"#!/bin/sh\nmkdir {first} 2>/dev/null && exec sleep 1\necho >> {starts}\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(program))
    pool = make_pool(NoLogger())
    await pool.start()
    await wait_until(lambda: any(worker.restarts_total for worker in pool.workers))
    begun = starts.read_bytes()
    stopping = asyncio.create_task(pool.stop(deadline_s=0.1))
    await wait_until(lambda: not pool.addresses)
    assert not stopping.done()
    await stopping
    assert starts.read_bytes() == begun


async def test_sessions_that_workers_do_not_take_over_hold_up_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that ends before it has them gets them once; the log says that they are gone."""
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    logger = NoLogger()
    pool = make_pool(logger, sessions="disc")

    async def restore(take_over: TakeOver) -> None:
        await take_over([], left_ns=0)

    await asyncio.wait_for(pool.start(restore=restore), 30)
    assert [call.args for call in logger.calls].count(("sessions of the worker not restored",)) == 2
    await wait_until(lambda: all(worker.restarts_total >= 2 for worker in pool.workers))
    await pool.stop(deadline_s=0.1)
    assert list(await pool.end(leaves_sessions=True)) == []
    assert [call.args for call in logger.calls].count(("sessions of the worker not restored",)) == 2
    assert [call.args for call in logger.calls].count(("sessions of the worker not stored",)) == 2


def pretend(monkeypatch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Let the processes of workers run a program, which has its end of the channel as `hub`."""
    program, worker = directory / "python", directory / "worker.py"
    worker.write_text(f"import socket, sys\nhub = socket.socket(fileno=int(sys.argv[-1]))\n{code}\n")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {worker} "$@"\n')
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(program))


READ_ALL = "while hub.recv(65536): pass"
TELL_SERVING = """
from fanout.workers.channel import encode
from fanout.workers.messages import WorkerReady
hub.sendall(encode(WorkerReady()))
"""


def values_of(count: int, *, payload: bytes = b"", properties: bytes = b"") -> Replica:
    """Return a replica with values."""
    replica = Replica()
    values: list[Update] = [
        (b"a/%d" % n, b"%d" % n + payload, 0, True, b"%d" % n + properties, 0, 0, n, None) for n in range(count)
    ]
    replica.apply(values, phase=Phase.LIVE)
    return replica


@pytest.mark.parametrize(("payload", "properties"), [(b"x" * 300_000, b""), (b"x", b"p" * 300_000)])
async def test_large_values_go_to_a_worker_in_small_pieces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, payload: bytes, properties: bytes
) -> None:
    """What is encoded at once is bounded in bytes; all of them arrive."""
    lengths = tmp_path / "lengths"
    pretend(
        monkeypatch,
        tmp_path,
        f"""
stream = hub.makefile("rb")
with open({str(lengths)!r}, "a", buffering=1) as file:
    while head := stream.read(4):
        length = int.from_bytes(head, "big")
        stream.read(length)
        print(length, file=file)
""",
    )
    pool = make_pool(NoLogger(), replica=values_of(20, payload=payload, properties=properties))
    await pool.start()
    try:
        await wait_until(lambda: lengths.exists() and sum(map(int, lengths.read_text().split())) > 2 * 20 * 300_000, 60)
        assert max(map(int, lengths.read_text().split())) < 1_500_000
    finally:
        for worker in pool.workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
        await pool.stop(deadline_s=0.1)


async def test_values_that_cannot_be_sent_end_the_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A defect is told; the worker would wait for the rest of its values for ever."""
    pretend(monkeypatch, tmp_path, READ_ALL)

    def failing(updates: list[Update]) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("fanout.workers.worker_process.FeedBatch", failing)
    pool = make_pool(NoLogger(), replica=values_of(1))
    await pool.start()
    try:
        async with asyncio.timeout(60):
            with pytest.raises(OverflowError, match="too large"):
                await pool.wait_failed()
        await wait_until(lambda: all(worker.pid is None for worker in pool.workers))
        await asyncio.gather(*pool._tasks[:2], return_exceptions=True)  # their processes are gone then
    finally:
        await pool.stop(deadline_s=0.1)


async def test_a_worker_that_starts_while_publishers_are_paused_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What its clients publish waits as that of the others does."""
    said = tmp_path / "said"
    pretend(monkeypatch, tmp_path, f"{TELL_SERVING}\nopen({str(said)!r} + sys.argv[-1], 'w')\n{READ_ALL}")
    pool = make_pool(NoLogger())
    await pool.start()
    try:
        for worker in pool.workers:
            worker.read(False)
        await wait_until(
            lambda: len(list(tmp_path.glob("said*"))) == 2 and all(worker.pid for worker in pool.workers), 60
        )
        for _ in range(10):
            await asyncio.sleep(0)
        assert [worker.state for worker in pool.workers] == [WorkerState.STARTING] * 2
        for worker in pool.workers:
            worker.read(True)
        await wait_until(lambda: all(worker.state is WorkerState.SERVING for worker in pool.workers), 60)
    finally:
        for worker in pool.workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
        await pool.stop(deadline_s=0.1)


async def test_workers_that_say_nothing_are_silent_and_in_the_end_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Readiness says so; while all of them are silent nobody can stand in, and the node goes on."""
    pretend(monkeypatch, tmp_path, f"{TELL_SERVING}\n{READ_ALL}")
    monkeypatch.setattr("fanout.workers.pool.TICK_S", 0.02)
    monkeypatch.setattr("fanout.workers.worker_process._SILENT_TICKS_MAX", 60)
    logger = NoLogger()
    pool = make_pool(logger)
    await pool.start()
    try:
        await wait_until(lambda: all(worker.state is WorkerState.SILENT for worker in pool.workers), 60)
        assert pool.reasons()[0] == "worker 1 says nothing, and its clients get nothing"
        assert all(worker.needs_stand_in for worker in pool.workers)
        await wait_until(lambda: all(worker.restarts_total for worker in pool.workers), 60)
    finally:
        for worker_process in pool.workers:
            if worker_process.pid is not None:
                with contextlib.suppress(ProcessLookupError):  # it was killed just now
                    os.kill(worker_process.pid, signal.SIGKILL)
        await pool.stop(deadline_s=0.1)
    told = [call.args[0] for call in logger.calls if call.method_name in ("warning", "error")]
    assert told[:2] == ["worker says nothing, others serve its new clients"] * 2
    assert "the worker says nothing, it is killed" in told


async def test_a_worker_that_hangs_does_not_hold_up_a_tear_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is counted; the tear-down goes on, with what the others say. That somebody is subscribed there may be."""
    pretend(monkeypatch, tmp_path, f"{TELL_SERVING}\n{READ_ALL}")
    monkeypatch.setattr("fanout.workers.worker_process._SEND_AWAY_S", 0.05)
    monkeypatch.setattr("fanout.workers.worker_process._SUBSCRIBED_S", 0.05)
    monkeypatch.setattr("fanout.workers.worker_process._CLIENTS_S", 0.05)
    logger = NoLogger()
    pool = make_pool(logger)
    await pool.start()
    await wait_until(lambda: all(worker.state is WorkerState.SERVING for worker in pool.workers), 60)
    async with asyncio.timeout(10):
        assert await pool.send_away(Concerned([])) == 0
        assert await pool.is_subscribed(b"plant/x")
        assert (await pool.clients(ClientQuery())).silent == (1, 2)
        with pytest.raises(TimeoutError):
            await pool.kick("app")
    assert [worker.late_total for worker in pool.workers] == [1, 1]
    await wait_until(lambda: all(worker.pid is not None for worker in pool.workers))
    for worker_process in pool.workers:
        assert worker_process.pid is not None
        os.kill(worker_process.pid, signal.SIGKILL)
    await pool.stop(deadline_s=0.1)
