"""The writer of a node's log, from append to Parquet."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fanout.errors import LogError
from fanout.replica.update import ChangeKind, Phase, Stamp
from fanout.replog.files.columns import RowEncoder, UpdateRows, signed
from fanout.replog.files.schema import FLAG_DUPLICATE
from fanout.replog.files.sealing import Sealed, open_directory, seal
from fanout.replog.files.segments import SegmentFile
from fanout.replog.read import inspection
from fanout.replog.write.segment_log import SegmentLog
from fanout.replog.write.write_queue import PendingRows
from fanout.replog.write.writer import LogSettings, LogWriter
from tests.replog.rows import (
    EPOCH,
    NOW_NS,
    ManualClock,
    PlainSelector,
    make_changes,
    make_update,
    make_updates,
    sealed_paths,
    sealed_rows,
)
from tests.support.waiting import wait_until_blocking

ROOT = Path(__file__).parent.parent.parent


def make_writer(directory: Path, *, epoch: int = EPOCH, clock: ManualClock | None = None, **settings: Any) -> LogWriter:
    """Return an open writer of node edge-1."""
    writer = LogWriter(
        directory,
        node="edge-1",
        role="secondary",
        node_epoch=epoch,
        clock=clock or ManualClock(),
        settings=LogSettings(**{"flush_interval_s": 0.005, "retry_interval_s": 0.01} | settings),
    )
    writer.open()
    return writer


def gap_details(directory: Path) -> list[dict[str, Any]]:
    """Return what the gap events of a closed log say."""
    return [json.loads(row["detail"]) for row in sealed_rows(directory, "events") if row["event"] == "gap"]


def test_everything_appended_is_sealed_exactly(tmp_path: Path) -> None:
    """Rows of several sources and events come out once each, in order, with what was appended."""
    writer = make_writer(tmp_path, frame_rows=64)
    sources = [
        writer.source(),
        writer.source(link="plant", selectors=[PlainSelector("plant/#")]),
        writer.source(link="office", selectors=[PlainSelector("a/#"), PlainSelector("b/#", prefix="p/")]),
    ]
    chosen = random.Random(1)
    expected: list[tuple[object, ...]] = []
    log_pos = 0
    for number in range(300):
        if number % 50 == 0:
            writer.event("state", link="plant", state="live", link_epoch=7)
            log_pos += 1
        source = chosen.choice(sources)
        updates = make_updates(chosen.randrange(1, 60), start=number * 100)
        phase = chosen.choice(list(Phase))
        writer.append(
            make_changes(updates, kind=ChangeKind.REPLACED, phase=phase),
            source=source,
            link_epoch=9 if source.link else None,
        )
        for update in updates:
            log_pos += 1
            epoch = 9 if source.link else EPOCH
            expected.append((log_pos, source.link, epoch, update[0].decode(), signed(update[7]), phase))
    assert writer.close(timeout_s=60)
    found = [
        (row["log_pos"], row["link"], row["link_epoch"], row["topic"], row["digest"], row["phase"])
        for row in sealed_rows(tmp_path, "updates")
    ]
    assert found == expected
    assert [row["state"] for row in sealed_rows(tmp_path, "events")] == ["live"] * 6
    stats = writer.stats()
    assert (stats.rows_total, stats.events_total, stats.log_pos) == (len(expected), 6, log_pos)
    assert (stats.written_log_pos, stats.synced_log_pos) == (log_pos, log_pos)
    assert (stats.queued_rows, stats.queued_bytes, stats.lost_rows_total, stats.unsealed_segments) == (0, 0, 0, 0)
    assert (stats.sealed_segments_total, stats.alarm) == (1, "")
    assert stats.written_bytes_total > 0
    assert 0 < (stats.disk_free_bytes or 0) <= shutil.disk_usage(tmp_path).total
    assert [check.sound for check in inspection.verify(tmp_path)] == [True]
    assert {path.name for path in open_directory(tmp_path, "edge-1").iterdir()} == {"lock", "runs.json"}


def test_an_event_has_what_it_was_given(tmp_path: Path) -> None:
    """All columns of an event are written."""
    writer = make_writer(tmp_path)
    writer.event(
        "complete",
        link="plant",
        link_epoch=7,
        selector="a/#",
        state="live",
        evidence="barrier",
        topics=5,
        digest=2**64 - 2,
        lag_us=3,
        detail="ö",
    )
    writer.event("stop")
    writer.close()
    complete, stop = sealed_rows(tmp_path, "events")
    assert [complete[name] for name in ("link", "link_epoch", "selector", "state", "evidence", "topics")] == [
        "plant",
        7,
        "a/#",
        "live",
        "barrier",
        5,
    ]
    assert [complete[name] for name in ("digest", "lag_us", "detail", "role")] == [-2, 3, "ö", "secondary"]
    assert (stop["link"], stop["link_epoch"], stop["event"]) == ("", EPOCH, "stop")
    with pytest.raises(AssertionError):
        writer.event("no such event")


def test_rows_are_written_and_synced_without_being_asked(tmp_path: Path) -> None:
    """A few rows are in the segment after the flush interval, and on the disk after the sync interval."""
    clock = ManualClock()
    writer = make_writer(tmp_path, clock=clock)
    writer.append(make_changes(make_updates(3)), source=writer.source(link="plant"), link_epoch=7)
    wait_until_blocking(lambda: writer.stats().written_log_pos == 3)
    assert writer.stats().synced_log_pos == 0
    clock.advance(1)
    wait_until_blocking(lambda: writer.stats().synced_log_pos == 3)
    assert writer.stats().last_sync_ns == clock.ns
    writer.close()


def test_rows_are_written_without_the_functions_of_arrow(tmp_path: Path) -> None:
    """To import them takes a tenth of a second, in which the writer's thread would hold up the event loop."""
    code = """
        import sys
        from pathlib import Path
        from tests.replog.rows import make_changes, make_updates
        from tests.replog.write.test_writer import make_writer
        sys.modules.pop("pyarrow.compute", None)  # the test modules may have it
        writer = make_writer(Path(sys.argv[1]))
        writer.event("start")
        writer.append(make_changes(make_updates(100)), source=writer.source(link="berlin"))
        print(writer.flush(), writer.close(), "pyarrow.compute" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "True", "False"]


def test_flush_waits_until_the_rows_are_on_the_disk(tmp_path: Path) -> None:
    """After flush everything appended before it is synced; with nothing appended it returns at once."""
    writer = make_writer(tmp_path, flush_interval_s=60.0, fsync_interval_s=60.0)
    assert writer.flush()
    source = writer.source(link="plant")
    for count in (1, 5):
        writer.append(make_changes(make_updates(count)), source=source, link_epoch=7)
        assert writer.flush()
        assert writer.stats().synced_log_pos == writer.stats().log_pos
    writer.close()


def test_a_full_frame_is_written_at_once(tmp_path: Path) -> None:
    """Under load the writer does not wait for its interval."""
    writer = make_writer(tmp_path, flush_interval_s=60.0, frame_rows=10)
    source = writer.source(link="plant")
    writer.append(make_changes(make_updates(9)), source=source, link_epoch=7)
    writer.append(make_changes(make_updates(5)), source=source, link_epoch=7)
    wait_until_blocking(lambda: writer.stats().rows_total == 14)
    writer.close()


def test_segments_are_sealed_while_the_node_runs(tmp_path: Path) -> None:
    """Size and age bound a segment; nothing is lost where one ends and the next begins."""
    clock = ManualClock()
    writer = make_writer(tmp_path, clock=clock, segment_bytes_max=20_000)
    source = writer.source(link="plant")
    for number in range(20):
        writer.append(make_changes(make_updates(100, start=number * 100)), source=source, link_epoch=7)
        assert writer.flush()
    wait_until_blocking(lambda: writer.stats().sealed_segments_total >= 3)
    clock.advance(61)
    wait_until_blocking(lambda: not list(open_directory(tmp_path, "edge-1").glob("*.seg")))
    assert len(sealed_rows(tmp_path, "updates")) == 2000
    writer.close()
    assert [row["log_pos"] for row in sealed_rows(tmp_path, "updates")] == list(range(1, 2001))
    assert len(sealed_paths(tmp_path, "updates")) == writer.stats().sealed_segments_total


def test_flags_of_stamps_are_counted(tmp_path: Path) -> None:
    """Duplicates are flagged in the log and counted in the figures."""
    writer = make_writer(tmp_path)
    update = make_update(b"a", stamp=Stamp("p", EPOCH, 5, EPOCH))
    writer.append(make_changes([update, update]), source=writer.source(link="plant"), link_epoch=7)
    writer.close()
    assert [row["flags"] for row in sealed_rows(tmp_path, "updates")] == [0, FLAG_DUPLICATE]
    assert (writer.stats().duplicates_total, writer.stats().stale_total) == (1, 0)


async def test_it_serves_an_event_loop(tmp_path: Path) -> None:
    """Open and close run in a thread; appending is a plain call."""
    writer = LogWriter(tmp_path, node="edge-1", role="tap", node_epoch=EPOCH, clock=ManualClock())
    await asyncio.to_thread(writer.open)
    writer.append(make_changes(make_updates(3)), source=writer.source(link="plant"), link_epoch=7)
    assert await asyncio.to_thread(writer.close)
    assert len(sealed_rows(tmp_path, "updates")) == 3


def test_a_log_that_is_not_open_takes_nothing(tmp_path: Path) -> None:
    """Appending before open or after close is a mistake that is told; closing twice is none."""
    writer = LogWriter(tmp_path, node="edge-1", role="tap", node_epoch=EPOCH, clock=ManualClock())
    source = writer.source()
    assert writer.close()
    closed = make_writer(tmp_path, epoch=EPOCH + 1)
    assert closed.close()
    assert closed.close()
    for shut in (writer, closed):
        with pytest.raises(LogError, match="not open"):
            shut.append(make_changes(make_updates(1)), source=source)
        with pytest.raises(LogError, match="not open"):
            shut.event("stop")


def test_two_writers_do_not_share_a_node(tmp_path: Path) -> None:
    """A second writer of the same node is refused, one of another node is not."""
    writer = make_writer(tmp_path)
    with pytest.raises(LogError, match="in use"):
        make_writer(tmp_path, epoch=EPOCH + 1)
    other = LogWriter(tmp_path, node="edge-2", role="tap", node_epoch=EPOCH, clock=ManualClock())
    other.open()
    other.close()
    writer.close()


def test_left_over_segments_that_cannot_be_read_stop_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where, and the lock is free again."""

    def fail(directory: Path) -> Iterator[object]:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("fanout.replog.write.writer.left_over_segments", fail)
        with pytest.raises(LogError, match="cannot be read"):
            make_writer(tmp_path)
    make_writer(tmp_path, epoch=EPOCH + 1).close()


class Gate:
    """Holds the writer's thread before it encodes, so that the queue fills up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        real = RowEncoder.updates

        def updates(encoder: RowEncoder, rows: list[UpdateRows]) -> list[pa.RecordBatch]:
            self.entered.set()
            assert self.open.wait(30)
            return real(encoder, rows)

        monkeypatch.setattr(RowEncoder, "updates", updates)


def test_an_overflow_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is missing from the log, and a gap event says how much, of what, and where."""
    gate = Gate(monkeypatch)
    writer = make_writer(tmp_path, queue_rows_max=100)
    source = writer.source(link="plant")
    writer.append(make_changes(make_updates(60)), source=source, link_epoch=7)
    assert gate.entered.wait(30)
    writer.append(make_changes(make_updates(30, start=60)), source=source, link_epoch=7)
    for _ in range(5):
        writer.append(make_changes(make_updates(20, start=200)), source=source, link_epoch=7)
    writer.event("heartbeat", link="plant", link_epoch=7)
    assert (writer.stats().lost_rows_total, writer.stats().queued_rows) == (100, 90)
    gate.open.set()
    assert writer.flush()
    writer.append(make_changes(make_updates(10, start=90)), source=source, link_epoch=7)
    writer.close()
    assert [row["topic"] for row in sealed_rows(tmp_path, "updates")] == [
        update[0].decode() for update in make_updates(100)
    ]
    [gap] = gap_details(tmp_path)
    assert (gap["reason"], gap["rows"], gap["first_log_pos"], gap["last_log_pos"]) == ("queue", 100, 91, 190)
    [check] = inspection.verify(tmp_path)
    assert check.sound
    assert [(one.first, one.last) for one in check.gaps] == [(91, 190)]


def test_a_filling_queue_lets_the_writer_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above an eighth of the queue an append pauses for a moment, once per interval, and not below."""
    gate = Gate(monkeypatch)
    writer = make_writer(tmp_path, queue_rows_max=800)
    source = writer.source(link="plant")
    pauses: list[float] = []
    now = [1000.0]
    monkeypatch.setattr(
        "fanout.replog.write.writer.time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: now[0])
    )

    def append(count: int) -> None:
        writer.append(make_changes(make_updates(count)), source=source, link_epoch=7)

    append(99)
    assert not pauses
    append(1)
    append(50)
    assert len(pauses) == 1
    now[0] += 0.003
    append(50)
    assert len(pauses) == 2
    assert max(pauses) < 0.001
    gate.open.set()
    writer.close()
    assert len(sealed_rows(tmp_path, "updates")) == 200


def test_a_batch_that_cannot_be_encoded_does_not_end_the_log(tmp_path: Path) -> None:
    """A value that its column cannot hold costs its batch, which is counted and told."""
    writer = make_writer(tmp_path)
    source = writer.source(link="plant")
    bad = (*make_update(b"a")[:7], -1, None)
    writer.append(make_changes([bad, bad]), source=source, link_epoch=7)
    assert writer.flush()
    writer.append(make_changes(make_updates(3)), source=source, link_epoch=7)
    writer.close()
    assert len(sealed_rows(tmp_path, "updates")) == 3
    [gap] = gap_details(tmp_path)
    assert (gap["reason"], gap["rows"]) == ("encoding", 2)
    assert (writer.stats().lost_rows_total, writer.stats().alarm) == (2, "")
    assert inspection.verify(tmp_path)[0].sound


def test_rows_that_a_disk_swallowed_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When less can be read back than was written, the difference is a gap."""

    def swallow(path: Path, *, directory: Path) -> Sealed:
        if "-000001-" in path.name:
            path.write_bytes(path.read_bytes()[:-200])
        return seal(path, directory=directory)

    writer = make_writer(tmp_path, segment_bytes_max=1)
    monkeypatch.setattr("fanout.replog.write.sealer.seal", swallow)
    writer.append(make_changes(make_updates(4)), source=writer.source(link="plant"), link_epoch=7)
    wait_until_blocking(lambda: writer.stats().lost_rows_total == 4)
    writer.close()
    assert not sealed_rows(tmp_path, "updates")
    gaps = gap_details(tmp_path)
    assert [(gap["reason"], gap["rows"], gap["first_log_pos"], gap["last_log_pos"]) for gap in gaps] == [
        ("disk", 4, 1, 4)
    ]
    assert (gaps[0]["first_us"], gaps[0]["last_us"]) == (EPOCH, NOW_NS // 1000)


def test_closing_with_a_dead_disk_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written by the deadline is counted as lost, and the next start says that the end was unclean."""
    writer = make_writer(tmp_path)
    source = writer.source(link="plant")
    writer.append(make_changes(make_updates(2)), source=source, link_epoch=7)
    assert writer.flush()

    def fail(log: SegmentLog, frame: bytes, pending: PendingRows) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(SegmentLog, "write", fail)
        writer.append(make_changes(make_updates(3)), source=source, link_epoch=7)
        writer.event("stop")
        assert not writer.close(timeout_s=2.0)
    stats = writer.stats()
    assert (stats.lost_rows_total, stats.lost_events_total, stats.queued_rows) == (3, 1, 0)
    make_writer(tmp_path, epoch=EPOCH + 1).close()
    assert len(sealed_rows(tmp_path, "updates")) == 2
    assert [(gap["reason"], gap["node_epoch"]) for gap in gap_details(tmp_path)] == [("crash", EPOCH)]


def test_closing_ends_in_time_although_the_disk_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that hangs keeps its lock, so that no other process writes beside it, and loses nothing if it wakes."""
    gate = Gate(monkeypatch)
    writer = make_writer(tmp_path)
    writer.append(make_changes(make_updates(2)), source=writer.source(link="plant"), link_epoch=7)
    assert gate.entered.wait(30)
    assert not writer.close(timeout_s=0.05)
    with pytest.raises(LogError, match="in use"):
        make_writer(tmp_path, epoch=EPOCH + 1)
    gate.open.set()
    wait_until_blocking(lambda: writer.stats().synced_log_pos == 2)


def test_a_directory_that_is_away_for_a_while_does_not_end_the_log(tmp_path: Path) -> None:
    """As while a file system is mounted anew: the log goes on when it is back, and everything is in it."""
    directory, away = tmp_path / "log", tmp_path / "away"
    writer = make_writer(directory, fsync_interval_s=0.005)
    source = writer.source(link="plant")
    writer.append(make_changes(make_updates(1)), source=source, link_epoch=7)
    assert writer.flush()
    directory.rename(away)
    writer.append(make_changes(make_updates(1, start=1)), source=source, link_epoch=7)
    writer.flush(timeout_s=0.2)
    away.rename(directory)
    writer.append(make_changes(make_updates(1, start=2)), source=source, link_epoch=7)
    assert writer.flush()
    assert writer.stats().alarm == ""
    assert writer.close()
    assert len(sealed_rows(directory, "updates")) == 3


def test_what_was_not_sealed_in_time_is_sealed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that could not be sealed at the end is no loss and no unclean end."""

    def fail(path: Path, *, directory: Path) -> Sealed:
        raise OSError(28, "No space left on device")

    writer = make_writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("fanout.replog.write.sealer.seal", fail)
        writer.append(make_changes(make_updates(5)), source=writer.source(link="plant"), link_epoch=7)
        assert writer.flush()
        assert not writer.close(timeout_s=1.0)
    assert not sealed_rows(tmp_path, "updates")
    again = make_writer(tmp_path, epoch=EPOCH + 1)
    stats = again.stats()
    assert (stats.recovered_segments, stats.recovered_rows, stats.recovered_torn_bytes) == (1, 5, 0)
    assert again.close()
    assert [row["node_epoch"] for row in sealed_rows(tmp_path, "updates")] == [EPOCH] * 5
    assert not sealed_rows(tmp_path, "events")


def test_an_alarm_stands_when_the_writer_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that ends the thread does not go unnoticed."""
    hooked: list[object] = []
    monkeypatch.setattr(threading, "excepthook", hooked.append)

    def fail(log: SegmentLog, *, sync_now: bool) -> None:
        raise RuntimeError("a bug")

    writer = make_writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentLog, "tend", fail)
        wait_until_blocking(lambda: writer.stats().alarm == "the writer ended unexpectedly")
    assert hooked
    writer.close()


def run_child(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python process with the helpers of these tests."""
    head = """
        import resource, signal, sys, time
        from pathlib import Path
        from fanout.replog.write.writer import LogSettings, LogWriter
        from tests.replog.rows import EPOCH, make_changes, make_updates

        class Clock:
            now_ns = staticmethod(time.time_ns)
            monotonic = staticmethod(time.monotonic)

        def open_writer(**settings):
            writer = LogWriter(
                Path(sys.argv[1]), node="edge-1", role="secondary", node_epoch=EPOCH, clock=Clock(),
                settings=LogSettings(**settings),
            )
            writer.open()
            return writer
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_kill_loses_only_what_was_not_written_yet(tmp_path: Path) -> None:
    """After kill -9 the log has an exact prefix, with all that was synced, and the next start tells of the rest."""
    child = run_child(
        """
        writer = open_writer(flush_interval_s=0.01, segment_bytes_max=60_000)
        source = writer.source(link="plant")
        count = 0
        while True:
            for _ in range(20):
                writer.append(make_changes(make_updates(50, start=count)), source=source, link_epoch=7)
                count += 50
            assert writer.flush()
            print(writer.stats().synced_log_pos, flush=True)
        """,
        str(tmp_path),
    )
    assert child.stdout is not None
    synced = [int(child.stdout.readline()) for _ in range(30)][-1]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    writer = make_writer(tmp_path, epoch=EPOCH + 1)
    stats = writer.stats()
    assert stats.recovered_segments >= 1
    writer.close()
    rows = sealed_rows(tmp_path, "updates")
    assert len(rows) >= synced
    assert [row["log_pos"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["digest"] for row in rows] == [signed(update[7]) for update in make_updates(len(rows))]
    [gap] = gap_details(tmp_path)
    assert (gap["reason"], gap["rows"], gap["node_epoch"]) == ("crash", None, EPOCH)
    assert gap["first_log_pos"] == len(rows) + 1
    [check] = inspection.verify(tmp_path)
    assert check.sound


def test_a_kill_between_two_segments_tells_since_when_rows_may_lack(tmp_path: Path) -> None:
    """When all that was written is sealed, the gap begins at the last sealed row, not at the beginning of time."""
    child = run_child(
        """
        writer = open_writer(segment_bytes_max=1)
        source = writer.source(link="plant")
        for start in (0, 50):
            writer.append(make_changes(make_updates(50, start=start)), source=source, link_epoch=7)
            assert writer.flush()
        while writer.stats().sealed_segments_total < 2 or writer.stats().unsealed_segments:
            time.sleep(0.01)
        print("sealed", flush=True)
        signal.pause()
        """,
        str(tmp_path),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "sealed\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    make_writer(tmp_path, epoch=EPOCH + 1).close()
    newest = max(row["applied"] for row in sealed_rows(tmp_path, "updates")).timestamp()
    [gap] = gap_details(tmp_path)
    assert (gap["reason"], gap["first_log_pos"], gap["first_us"]) == ("crash", 101, round(newest * 1_000_000))


@pytest.mark.parametrize("disk", ["sound", "full"])
def test_a_kill_tells_until_when_rows_may_lack(tmp_path: Path, disk: str) -> None:
    """An idle node gives signs of life without rows, so little is unknown; on a disk that fails nobody can tell."""
    child = run_child(
        """
        writer = open_writer(flush_interval_s=0.01, retry_interval_s=0.01)
        source = writer.source(link="plant")
        writer.event("heartbeat")
        assert writer.flush()
        if sys.argv[2] == "full":
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
            writer.append(make_changes(make_updates(50)), source=source, link_epoch=7)
        print(time.time_ns(), flush=True)
        signal.pause()
        """,
        str(tmp_path),
        disk,
    )
    assert child.stdout is not None
    last_row_ns = int(child.stdout.readline())
    lock = open_directory(tmp_path, "edge-1") / "lock"
    # A sign holds for a second, so this one was given more than half a second behind the last row.
    wait_until_blocking(
        lambda: (
            lock.stat().st_mtime_ns == 0 if disk == "full" else lock.stat().st_mtime_ns > last_row_ns + 1_600_000_000
        ),
        what="the sign of life",
    )
    signed_ns = lock.stat().st_mtime_ns
    child.send_signal(signal.SIGKILL)
    child.communicate()
    killed_ns = time.time_ns()
    start_ns = killed_ns + 60_000_000_000
    make_writer(tmp_path, epoch=EPOCH + 1, clock=ManualClock(ns=start_ns)).close()
    [heartbeat] = [row for row in sealed_rows(tmp_path, "events") if row["event"] == "heartbeat"]
    [gap] = gap_details(tmp_path)
    assert (gap["reason"], gap["rows"]) == ("crash", None)
    assert gap["first_us"] == round(heartbeat["at"].timestamp() * 1_000_000)
    if disk == "full":
        assert gap["last_us"] == start_ns // 1000
    else:
        assert signed_ns // 1000 <= gap["last_us"] <= killed_ns // 1000 + 1_100_000


def test_a_full_disk_stops_neither_the_node_nor_the_log(tmp_path: Path) -> None:
    """While nothing can be written rows are dropped and an alarm stands; afterwards the log goes on and tells of it.

    The kernel's limit of the size of a file takes the place of a full disk: a write is cut short, then refused.
    """
    child = run_child(
        """
        writer = open_writer(flush_interval_s=0.005, retry_interval_s=0.01, queue_rows_max=3000)
        source = writer.source(link="plant")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        count = 0
        while writer.stats().lost_rows_total < 500:
            writer.append(make_changes(make_updates(50, start=count)), source=source, link_epoch=7)
            count += 50
            time.sleep(0.001)
        alarm = writer.stats().alarm
        assert "cannot be written" in alarm, alarm
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        while writer.stats().alarm or writer.stats().queued_rows:
            time.sleep(0.01)
        writer.append(make_changes(make_updates(50, start=count)), source=source, link_epoch=7)
        count += 50
        assert writer.close(timeout_s=30)
        stats = writer.stats()
        print(count, stats.rows_total, stats.lost_rows_total)
        """,
        str(tmp_path),
    )
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    offered, written, lost = map(int, output.splitlines()[-1].split())
    rows = sealed_rows(tmp_path, "updates")
    assert (len(rows), written + lost) == (written, offered)
    assert len({row["log_pos"] for row in rows}) == written
    gaps = gap_details(tmp_path)
    assert {gap["reason"] for gap in gaps} == {"disk"}
    assert sum(gap["rows"] for gap in gaps) == lost
    [check] = inspection.verify(tmp_path)
    assert check.sound
    assert sum(gap.last - gap.first + 1 for gap in check.gaps) == lost


def test_a_segment_whose_sync_fails_loses_nothing_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync the rows are sealed from what can be read, and the log goes on in a new segment."""
    writer = make_writer(tmp_path)
    source = writer.source(link="plant")

    def fail(segment: SegmentFile) -> None:
        segment.damaged = True
        raise OSError(5, "Input/output error")

    writer.append(make_changes(make_updates(5)), source=source, link_epoch=7)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentFile, "sync", fail)
        assert not writer.flush(timeout_s=0.1)
        wait_until_blocking(lambda: writer.stats().sealed_segments_total == 1)
        assert "cannot be synced" in writer.stats().alarm
    writer.append(make_changes(make_updates(5, start=5)), source=source, link_epoch=7)
    assert writer.flush()
    assert writer.stats().alarm == ""
    writer.close()
    assert [row["log_pos"] for row in sealed_rows(tmp_path, "updates")] == list(range(1, 11))
    assert not sealed_rows(tmp_path, "events")
