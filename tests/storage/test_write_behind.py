"""What waits for the disk: order, what is told when, a disk that fails, and the marks."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Update
from fanout.storage import write_behind as module
from fanout.storage.file import RetainedFile, Sync
from fanout.storage.store import stored_rows
from fanout.storage.write_behind import WriteBehindStore
from tests.link.harness import logging_to
from tests.storage.pieces import FailingDisk, contents, opened
from tests.support.updates import update as value
from tests.support.waiting import wait_until


@asynccontextmanager
async def started(
    path: Path, *, sync: Sync = "interval", sync_interval_s: float = 0.01, held: list[bool] | None = None
) -> AsyncIterator[WriteBehindStore]:
    """Give a store that writes, and close it."""
    lines: list[dict[str, object]] = []
    storage = WriteBehindStore(
        path,
        sync=sync,
        sync_interval_s=sync_interval_s,
        hold=(held if held is not None else []).append,
        logger=logging_to(lines),
    )
    await asyncio.to_thread(storage.open, now_ns=1)
    storage.start()
    try:
        yield storage
    finally:
        await asyncio.to_thread(storage.close, timeout_s=30)


def changes_of(replica: Replica, *values: Any) -> Changes:
    """Return what values did to a replica."""
    return replica.apply(list(values), phase=Phase.LIVE)


def read(path: Path, store: str = "a") -> dict[bytes, bytes]:
    """Return what is in a file that nobody has open."""
    file = opened(path)
    found = contents(file, store)
    file.close()
    return found


async def committed(storage: WriteBehindStore) -> None:
    """Wait until everything that was handed over is committed."""
    done = asyncio.Event()
    storage.put("a", [], done=done.set)
    await asyncio.wait_for(done.wait(), 20)


async def test_the_newest_values_are_in_the_file(tmp_path: Path) -> None:
    """What several batches set, replaced and removed is there in its final state; messages are not."""
    replica = Replica(topics_max=2)
    async with started(tmp_path / "r") as storage:
        message = (b"m", b"x", 0, False, b"", 1, 0, 0, None)
        storage.put("a", [changes_of(replica, value(b"1"), value(b"2"), message)])
        storage.put("a", [changes_of(replica, value(b"1", b"new"), value(b"2", b"")), changes_of(replica, value(b"3"))])
        storage.put("a", [changes_of(replica, value(b"full"))], session=lambda: b"session")
        await committed(storage)
        assert storage.stats().committed_total == 6
        assert storage.stats().waiting_rows == 0
        assert storage.stats().alarm == ""
        assert storage.stats().file_bytes > 0
    assert read(tmp_path / "r") == {b"1": b"new", b"3": b"1"}
    file = opened(tmp_path / "r")
    assert file.sessions() == {"a": b"session"}
    file.close()


async def test_of_what_is_left_beside_the_values_only_the_newest_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each transaction, and not on the event loop: with many QoS 2 messages under way each takes a millisecond."""
    entered, go_on = threading.Event(), threading.Event()
    commit = RetainedFile.commit

    def slow(self: RetainedFile, writes: Any, sessions: Any, *, clients: Any, force: bool) -> None:
        entered.set()
        assert go_on.wait(30)
        commit(self, writes, sessions, clients=clients, force=force)

    monkeypatch.setattr(RetainedFile, "commit", slow)
    made: list[tuple[int, str]] = []

    def make(number: int) -> bytes:
        made.append((number, threading.current_thread().name))
        return b"%d" % number

    async with started(tmp_path / "r") as storage:
        storage.put("a", [], session=partial(make, 0))
        await wait_until(entered.is_set, what="the first transaction")
        for number in range(1, 10):
            storage.put("a", [], session=partial(make, number))
        go_on.set()
        await committed(storage)
    assert made == [(0, "fanout-storage-writer"), (9, "fanout-storage-writer")]
    file = opened(tmp_path / "r")
    assert file.sessions() == {"a": b"9"}
    file.close()


async def test_what_those_put_who_were_told_is_in_the_next_transaction(tmp_path: Path) -> None:
    """It does not begin without it, though something else waits already."""
    replica = Replica()
    async with started(tmp_path / "r", sync="off") as storage:  # no transaction by time
        entered, go_on = threading.Event(), threading.Event()
        all_done = asyncio.Event()

        def session() -> bytes:
            entered.set()
            assert go_on.wait(30)
            return b"first"

        def told() -> None:
            storage.put("a", [changes_of(replica, value(b"answer"))], done=all_done.set)

        storage.put("a", [], session=session, done=told)
        await wait_until(entered.is_set, what="the first transaction")
        before = storage.stats().transactions_total
        storage.put("a", [changes_of(replica, value(b"meanwhile"))])
        go_on.set()
        await asyncio.wait_for(all_done.wait(), 20)
        assert storage.stats().transactions_total - before == 2
    assert read(tmp_path / "r") == {b"meanwhile": b"1", b"answer": b"1"}


async def test_a_close_does_not_wait_until_somebody_is_told(tmp_path: Path) -> None:
    """The event loop may be what closes it: nobody is told of the last transactions then."""
    replica = Replica()
    async with started(tmp_path / "r", sync="always") as storage:

        def session() -> bytes:
            assert storage._closing.wait(10)
            storage.put("a", [changes_of(replica, value(b"2"))])
            return b"session"

        storage.put("a", [changes_of(replica, value(b"1"))], session=session, done=lambda: None)
        began_s = asyncio.get_running_loop().time()
        assert storage.close(timeout_s=20)
        assert asyncio.get_running_loop().time() - began_s < 10
    assert read(tmp_path / "r") == {b"1": b"1", b"2": b"1"}


def test_rows_that_are_not_written_are_not_counted() -> None:
    """A batch of messages and of copies that are held already has nothing for the disk."""
    replica = Replica()
    message = (b"m", b"x", 0, False, b"", 1, 0, 0, None)
    assert stored_rows(changes_of(replica, value(b"1"), message)) == 1
    assert stored_rows(replica.apply([value(b"1"), message], phase=Phase.AUDIT)) == 0


async def test_done_comes_in_order_and_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told before the transaction with the values is committed."""
    told: list[str] = []
    commit = RetainedFile.commit

    def watched(self: RetainedFile, writes: Any, sessions: Any, *, clients: Any, force: bool) -> None:
        commit(self, writes, sessions, clients=clients, force=force)
        told.extend(f"committed {topic.decode()}" for values in writes.values() for topic in values)

    monkeypatch.setattr(RetainedFile, "commit", watched)
    replica = Replica()
    async with started(tmp_path / "r") as storage:
        for number in range(5):
            topic = b"%d" % number
            storage.put("a", [changes_of(replica, value(topic))], done=partial(told.append, topic.decode()))
        await wait_until(lambda: len(told) == 10, what="everything")
    assert [each for each in told if len(each) == 1] == ["0", "1", "2", "3", "4"]
    assert all(told.index(f"committed {each}") < told.index(str(each)) for each in range(5))


async def test_a_disk_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told, links are held, and an alarm stands, until the disk is back; then nothing is missing."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "ROWS_HIGH", 3)
    monkeypatch.setattr(module, "ROWS_LOW", 1)
    disk = FailingDisk(monkeypatch, broken=True)
    replica = Replica()
    held: list[bool] = []
    done: list[int] = []
    async with started(tmp_path / "r", held=held) as storage:
        for number in range(5):
            storage.put("a", [changes_of(replica, value(b"%d" % number))], done=partial(done.append, number))
        await wait_until(lambda: "disk is full" in storage.stats().alarm, what="the alarm")
        assert held == [True]
        assert done == []
        assert storage.stats().waiting_rows == 5
        disk.broken = False
        await wait_until(lambda: held == [True, False], what="the end of the hold")
        assert done == [0, 1, 2, 3, 4]
        assert storage.stats().alarm == ""
    assert len(read(tmp_path / "r")) == 5


async def test_a_commit_before_the_hold_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread commits everything between the look at the limit and the hold: no later commit would end that."""

    class Limit(int):
        def __lt__(self, waiting: int) -> bool:
            answer = int(self) < waiting
            while storage.waiting:
                time.sleep(0.001)
            return answer

    held: list[bool] = []
    async with started(tmp_path / "r", held=held) as storage:
        monkeypatch.setattr(module, "ROWS_HIGH", Limit(0))
        storage.put("a", [changes_of(Replica(), value(b"1"))])
        assert held == [True, False]


async def test_messages_of_the_history_count_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold memory until they are committed, also those that are not retained and have no payload."""
    disk = FailingDisk(monkeypatch, broken=True)
    replica = Replica()
    async with started(tmp_path / "r") as storage:
        storage.keep_history(True)
        messages: list[Update] = [(b"m", b"", 1, False, b"", 1, 0, 0, None) for _ in range(7)]
        storage.put("a", [changes_of(replica, *messages, value(b"t"))])
        assert storage.waiting == 8
        disk.broken = False
        await committed(storage)
        assert storage.waiting == 0


async def test_transactions_are_cut_by_bytes_also_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much waited for the disk, and however large the payloads: no transaction has much more than its bound."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 100_000)
    monkeypatch.setattr(module, "BYTES_HIGH", 300_000)
    monkeypatch.setattr(module, "BYTES_LOW", 100_000)
    sizes: list[int] = []
    broken = True
    commit = RetainedFile.commit

    def watched(self: RetainedFile, writes: Any, sessions: Any, *, clients: Any, force: bool) -> None:
        sizes.append(sum(len(update[1]) for values in writes.values() for update in values.values()))
        if broken:
            raise sqlite3.OperationalError("disk I/O error")
        commit(self, writes, sessions, clients=clients, force=force)

    monkeypatch.setattr(RetainedFile, "commit", watched)
    replica = Replica()
    held: list[bool] = []
    async with started(tmp_path / "r", held=held) as storage:
        for number in range(50):
            storage.put("a", [changes_of(replica, value(b"%d" % number, bytes(10_000)))])
        assert held == [True], "by bytes, long before there are so many updates"
        assert storage.stats().waiting_bytes == 500_000
        await wait_until(lambda: len(sizes) > 2, what="the failing transactions")
        broken = False
        await wait_until(lambda: held == [True, False], what="the end of the hold")
        await committed(storage)
        assert storage.stats().waiting_bytes == 0
    assert max(sizes) <= 110_000
    assert len(read(tmp_path / "r")) == 50


async def test_a_corrected_expiry_is_written(tmp_path: Path) -> None:
    """A copy that changes nothing else; a value that was removed behind it in the same batch stays removed."""
    replica = Replica()
    both = [(topic, b"1", 1, True, b"", 1, 10**20, 7, None) for topic in (b"a", b"b")]
    async with started(tmp_path / "r") as storage:
        storage.put("a", [changes_of(replica, *both)])
        copies: list[Update] = [(*update[:6], 0, *update[7:]) for update in both]
        storage.put("a", [replica.apply([*copies, value(b"b", b"")], phase=Phase.AUDIT)])
        await committed(storage)
    file = opened(tmp_path / "r")
    assert [update[6] for piece in file.read("a") for update in piece] == [0]
    file.close()


async def test_a_writer_that_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends it: who waits for its failure is told, and the alarm stands."""

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(RetainedFile, "commit", failing)
    async with started(tmp_path / "r") as storage:
        storage.put("a", [changes_of(Replica(), value(b"1"))])
        with pytest.raises(RuntimeError, match=r"ended: RuntimeError.*report it with the log"):
            await asyncio.wait_for(storage.wait_failed(), 30)
        assert storage.stats().alarm == "the writer ended unexpectedly"
        assert not await asyncio.to_thread(storage.close, timeout_s=1)


async def test_a_disk_that_fails_is_not_tried_without_a_pause_while_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread would take a whole core otherwise, until the time is over."""
    monkeypatch.setattr(module, "RETRY_S", 0.1)
    tries = 0

    def failing(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(RetainedFile, "commit", failing)
    async with started(tmp_path / "r") as storage:
        storage.put("a", [changes_of(Replica(), value(b"1"))])
        await wait_until(lambda: tries)
        assert not await asyncio.to_thread(storage.close, timeout_s=0.5)
    assert tries < 12


@pytest.mark.parametrize(("sync", "forced"), [("interval", True), ("off", False)])
async def test_what_is_committed_is_forced_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync, forced: bool
) -> None:
    """With `interval` the disk has it soon even if nothing follows; with `off` that is left to the system."""
    forces: list[bool] = []
    commit = RetainedFile.commit

    def watched(self: RetainedFile, writes: Any, sessions: Any, *, clients: Any, force: bool) -> None:
        forces.append(force)
        commit(self, writes, sessions, clients=clients, force=force)

    monkeypatch.setattr(RetainedFile, "commit", watched)
    async with started(tmp_path / "r", sync=sync) as storage:
        storage.put("a", [changes_of(Replica(), value(b"1"))])
        await committed(storage)
        if forced:
            await wait_until(lambda: forces[-1], what="the forced transaction")
    assert any(forces) is forced


async def test_a_damaged_file_is_set_aside_when_it_is_opened(tmp_path: Path) -> None:
    """The log says so, and the store begins empty."""
    (tmp_path / "r").write_bytes(b"x" * 5000)
    lines: list[dict[str, object]] = []
    storage = WriteBehindStore(
        tmp_path / "r", sync="off", sync_interval_s=1, hold=lambda _: None, logger=logging_to(lines)
    )
    storage.open(now_ns=5_000_000)
    assert storage.file.sessions() == {}
    assert [line["event"] for line in lines] == ["file of retained values is damaged, set aside"]
    assert (tmp_path / "r.damaged-5").exists()
    assert storage.close(timeout_s=30)
