"""The file that replicas work on: who is told when, the disk, other processes, and a write-ahead log that grows."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest

from fanout.errors import StoreError
from fanout.replica.update import Phase
from fanout.storage import direct as module
from fanout.storage.direct import DirectStore
from fanout.storage.file import RetainedFile, Sync
from fanout.storage.replica import DiscReplica
from tests.replica.passes import end_pass
from tests.storage.pieces import contents, opened
from tests.storage.replicas import direct_store
from tests.support.updates import update as value
from tests.support.waiting import wait_until


@asynccontextmanager
async def started(
    path: Path, *, sync: Sync = "off", held: list[bool] | None = None
) -> AsyncIterator[tuple[DirectStore, DiscReplica]]:
    """Give a store that commits, with a replica on it, and close it."""
    storage = direct_store(path, sync=sync, held=held)
    await asyncio.to_thread(storage.open, now_ns=1)
    replica = DiscReplica(storage.table("a"))
    storage.start()
    try:
        yield storage, replica
    finally:
        await asyncio.to_thread(storage.close, timeout_s=30)


async def test_sessions_that_are_marked_while_the_store_closes_do_no_harm(tmp_path: Path) -> None:
    """Another thread closes the connection while the event loop uses it, of which SQLite dies; later ones are left."""
    for number in range(100):
        storage = direct_store(tmp_path / f"r{number}", sync="off")
        await asyncio.to_thread(storage.open, now_ns=1)
        storage.start()
        closing = asyncio.ensure_future(asyncio.to_thread(storage.close, timeout_s=30))
        marked = 0
        while not closing.done():
            marked += 1
            storage.put_sessions({str(marked): b"x" * 100}, history_from=0, done=lambda: None)
            await asyncio.sleep(0)
        assert await closing, "everything is written, and nothing has failed"
        storage.put_sessions({"late": b"x"}, history_from=0, done=lambda: None)


async def test_a_reader_that_closes_the_file_meanwhile_does_no_harm(tmp_path: Path) -> None:
    """SQLite locks new connections of the same process out for a moment; the thread that starts then waits."""
    for number in range(200):
        storage = direct_store(tmp_path / f"r{number}", sync="off")
        await asyncio.to_thread(storage.open, now_ns=1)
        reading = [asyncio.ensure_future(asyncio.to_thread(read_often, storage.path)) for _ in range(2)]
        await asyncio.sleep(0)
        storage.start()
        await asyncio.gather(*reading)
        alarm = storage.stats().alarm
        assert await asyncio.to_thread(storage.close, timeout_s=30)
        assert alarm == ""


def read_often(path: Path) -> None:
    """Open, read and close the file some times."""
    for _ in range(8):
        seen_by_others(path)


def seen_by_others(path: Path) -> int:
    """Return how many values are committed, as another connection sees them."""
    database = sqlite3.connect(path)
    try:
        return int(database.execute("SELECT count(*) FROM retained").fetchone()[0])
    finally:
        database.close()


@pytest.mark.parametrize("sync", ["off", "interval", "always"])
async def test_who_waits_is_told_in_order_and_after_the_commit(tmp_path: Path, sync: Sync) -> None:
    """What one turn of the event loop did is committed together, and nobody is told before."""
    path = tmp_path / "r"
    done: list[tuple[int, int]] = []

    def tell(number: int) -> None:
        done.append((number, seen_by_others(path)))

    async with started(path, sync=sync) as (storage, replica):
        for number in range(5):
            changes = replica.apply([value(b"%d" % number)], phase=Phase.LIVE)
            storage.put("a", [changes], session=partial(bytes, b"%d" % number), done=partial(tell, number))
        assert seen_by_others(path) == 0
        assert storage.stats().waiting_rows == 5
        assert sum(map(len, replica.match(b"#"))) == 5, "what is not committed is found all the same"
        await wait_until(lambda: len(done) == 5, what="the commit")
        assert done == [(number, 5) for number in range(5)]
        assert (storage.stats().committed_total, storage.stats().waiting_rows, storage.stats().alarm) == (5, 0, "")
    file = opened(path)
    assert file.sessions() == {"a": b"4"}
    assert len(contents(file, "a")) == 5
    file.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["r", "r.lock"]


@pytest.mark.parametrize(("sync", "forced"), [("off", 0), ("interval", 1), ("always", 3)])
async def test_the_disk_is_waited_for_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync, forced: int
) -> None:
    """With `always` it has each transaction before anybody is told; with `interval` soon; with `off` when it likes."""
    forces: list[int] = []
    monkeypatch.setattr(os, "fsync", forces.append)
    done: list[int] = []
    async with started(tmp_path / "r", sync=sync) as (storage, replica):
        for number in range(3):
            changes = replica.apply([value(b"%d" % number)], phase=Phase.LIVE)
            storage.put("a", [changes], done=lambda: done.append(len(forces)))
            await wait_until(partial(_is_longer, done, number), what="the commit")
        await wait_until(lambda: len(forces) >= forced, what="the disk")
        if sync == "always":
            assert done == [1, 2, 3]
    assert bool(forces) is bool(forced)


async def test_a_disk_that_is_full_ends_the_node(tmp_path: Path) -> None:
    """Nobody is told of what is not committed; the reason is told, and a next process has all that was."""
    path = tmp_path / "r"
    done: list[int] = []
    async with started(path) as (storage, replica):
        storage.put("a", [replica.apply([value(b"1")], phase=Phase.LIVE)], done=partial(done.append, 1))
        await wait_until(lambda: done == [1], what="the commit")
        storage.database.execute("PRAGMA max_page_count = 1")
        storage.put("a", [], done=partial(done.append, 2))
        with pytest.raises(StoreError, match="cannot be read from or written"):
            replica.apply([value(b"%d" % number, bytes(9000)) for number in range(100)], phase=Phase.LIVE)
        with pytest.raises(StoreError, match="full"):
            await asyncio.wait_for(storage.wait_failed(), 30)
        storage.put("a", [], session=bytes, done=partial(done.append, 3))
        assert "full" in storage.stats().alarm
        assert not await asyncio.to_thread(storage.close, timeout_s=5)
    assert done == [1]
    file = opened(path)
    assert contents(file, "a") == {b"1": b"1"}
    file.close()


async def test_clients_that_take_all_descriptors_do_not_end_the_node(tmp_path: Path) -> None:
    """What the store needs is open since its start: an attacker could end the node else."""
    done: list[int] = []

    async def put(number: int) -> None:
        changes = replica.apply([value(b"%d" % number)], phase=Phase.LIVE)
        storage.put("a", [changes], done=partial(done.append, number))
        await wait_until(lambda: number in done or storage.stats().alarm != "", what="the commit")

    async with started(tmp_path / "r", sync="always") as (storage, replica):
        await put(0)
        with ExitStack() as taken:
            limits = getrlimit(RLIMIT_NOFILE)
            taken.callback(setrlimit, RLIMIT_NOFILE, limits)
            setrlimit(RLIMIT_NOFILE, (256, limits[1]))
            with suppress(OSError):
                while True:
                    taken.callback(os.close, os.dup(1))
            for number in range(1, 4):
                await put(number)
        assert (storage.stats().alarm, done) == ("", [0, 1, 2, 3])


async def test_a_write_ahead_log_that_grows_holds_links_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While what is in it cannot all be copied into the file nobody reads more; then it begins anew."""
    monkeypatch.setattr(module, "CHECKPOINT_ROWS", 1)
    monkeypatch.setattr(module, "LOG_PAGES_MAX", 5)
    held: list[bool] = []
    path = tmp_path / "r"
    async with started(path, held=held) as (_, replica):
        replica.apply([value(b"first")], phase=Phase.LIVE)
        await wait_until(lambda: seen_by_others(path) == 1, what="the first commit")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM retained").fetchone()  # from now on it needs the log as it is
        for number in range(5):
            replica.apply([value(b"%d" % number, bytes(9000))], phase=Phase.LIVE)
            await asyncio.sleep(0)
        await wait_until(lambda: held == [True], what="the hold")
        reader.close()
        await wait_until(lambda: held == [True, False], what="its end")
    file = opened(path)
    assert len(contents(file, "a")) == 6
    file.close()


async def test_a_writer_that_never_pauses_is_held_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it adds while the log is copied keeps the log from beginning anew, until it has to pause."""
    monkeypatch.setattr(module, "CHECKPOINT_ROWS", 1)
    monkeypatch.setattr(module, "LOG_PAGES_MAX", 50)
    held: list[bool] = []
    async with started(tmp_path / "r", held=held) as (_, replica), asyncio.timeout(60):
        while not held:
            replica.apply([value(b"%d" % number, os.urandom(5000)) for number in range(20)], phase=Phase.LIVE)
            await asyncio.sleep(0)
        await wait_until(lambda: held[-1] is False, what="its end")
    assert held[:2] == [True, False]


async def test_marks_of_passes_that_are_over_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are removed in pieces, beside everything else."""
    monkeypatch.setattr(module, "FORGOTTEN_AT_ONCE", 10)
    async with started(tmp_path / "r") as (storage, replica):
        values = [value(b"%d" % number) for number in range(35)]
        replica.apply(values, phase=Phase.LIVE)
        for _ in range(2):
            replica.begin_pass()
            replica.apply(values, phase=Phase.AUDIT)
            assert replica.seen_count == 35
            assert end_pass(replica).unseen == ()

        def marks() -> int:
            return int(storage.database.execute("SELECT count(*) FROM scratch.mark").fetchone()[0])

        assert marks() == 70
        await wait_until(lambda: marks() == 0, what="their removal")


async def test_a_piece_of_many_marks_costs_what_one_of_few_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop waits for it: with ten million marks, too."""
    monkeypatch.setattr(module, "FORGOTTEN_AT_ONCE", 100)
    async with started(tmp_path / "r") as (storage, replica):
        costs = [await _cost_of_a_piece(storage, replica, marks) for marks in (500, 3_000)]
    assert costs[1] < 1.5 * costs[0], costs


def test_another_process_is_kept_away(tmp_path: Path) -> None:
    """Whichever storage it has: the lock is that of the file, and goes with its holder."""
    first = direct_store(tmp_path / "r")
    first.open(now_ns=1)
    with pytest.raises(StoreError, match="is in use by another process"):
        direct_store(tmp_path / "r").open(now_ns=1)
    with pytest.raises(StoreError, match="is in use by another process"):
        RetainedFile(tmp_path / "r", sync="off")
    assert first.close(timeout_s=30)
    file = RetainedFile(tmp_path / "r", sync="off")
    with pytest.raises(StoreError, match="is in use by another process"):
        direct_store(tmp_path / "r").open(now_ns=1)
    file.close()


async def test_an_expiry_is_changed_at_the_same_cost_however_many_values_expire_with_it(tmp_path: Path) -> None:
    """All values of one read have the same time; each of them may get another one, in any order."""
    async with started(tmp_path / "r") as (storage, replica):
        costs = []
        for total in (500, 5_000):
            topics = [b"%d/%d" % (total, number) for number in range(total)]
            replica.apply([value(topic, expires_ns=total) for topic in topics], phase=Phase.LIVE)
            later = [value(topic, b"2", expires_ns=10**6) for topic in topics[::50][:10]]
            costs.append(_hundreds_of_steps(storage, partial(replica.apply, later, phase=Phase.LIVE)))
    assert costs[1] <= 1.5 * costs[0] + 5, costs


def _hundreds_of_steps(storage: DirectStore, work: Callable[[], object]) -> int:
    """Return how many times a hundred steps SQLite takes for `work`."""
    hundreds = 0

    def count() -> int:
        nonlocal hundreds
        hundreds += 1
        return 0

    storage.database.set_progress_handler(count, 100)
    try:
        work()
    finally:
        storage.database.set_progress_handler(None, 0)
    return hundreds


async def _cost_of_a_piece(storage: DirectStore, replica: DiscReplica, marks: int) -> int:
    """Return how many times a hundred steps SQLite takes to forget the first of the marks of a pass."""
    values = [value(b"%d" % number) for number in range(marks)]
    replica.apply(values, phase=Phase.LIVE)
    replica.begin_pass()
    replica.apply(values, phase=Phase.AUDIT)
    storage.commit()
    replica.drop_pass()
    hundreds = _hundreds_of_steps(storage, storage.commit)
    left = storage.database.execute("SELECT count(*) FROM scratch.mark").fetchone()[0]
    assert left == marks - 100
    await wait_until(lambda: not storage.database.execute("SELECT 1 FROM scratch.mark").fetchall(), what="the rest")
    return hundreds


def _is_longer(done: list[int], number: int) -> bool:
    return len(done) > number
