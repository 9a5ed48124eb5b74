"""The lock of a node's part of a log directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanout.errors import LogError
from fanout.replog.files import node_lock
from fanout.replog.files.node_lock import LastRun, NodeLock, read_last_run


def make_lock(directory: Path, epoch: int = 1) -> NodeLock:
    """Return the lock of a node, not yet taken."""
    return NodeLock(directory / "open" / "lock", node="edge-1", node_epoch=epoch)


def test_only_one_holds_the_lock(tmp_path: Path) -> None:
    """A second holder is refused and told who has it; it is free after the first one ends."""
    first, second = make_lock(tmp_path, 1), make_lock(tmp_path, 2)
    first.acquire()
    with pytest.raises(LogError, match=f"'edge-1' in .* is in use by process {os.getpid()}.*node.id") as refused:
        second.acquire()
    assert refused.value.hint
    first.release(clean=True)
    second.acquire()
    second.release(clean=True)


@pytest.mark.parametrize("clean", [True, False])
def test_the_next_run_knows_how_the_last_one_ended(tmp_path: Path, clean: bool) -> None:
    """While it runs and after a crash the file says unclean; release says what is true."""
    path = tmp_path / "open" / "lock"
    assert read_last_run(path) is None
    first = make_lock(tmp_path)
    first.acquire()
    assert first.last_run is None
    assert read_last_run(path) == LastRun(1, os.getpid(), clean=False)
    first.release(clean=clean)
    second = make_lock(tmp_path, 2)
    second.acquire()
    assert second.last_run == LastRun(1, os.getpid(), clean=clean)
    second.release(clean=True)


def test_an_epoch_is_not_used_twice(tmp_path: Path) -> None:
    """The names of files come from the epoch, so a second run in the same microsecond is refused."""
    first = make_lock(tmp_path)
    first.acquire()
    first.release(clean=True)
    again = make_lock(tmp_path)
    with pytest.raises(LogError, match="already has the epoch 1"):
        again.acquire()
    other = make_lock(tmp_path, 2)
    other.acquire()
    other.release(clean=True)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"colour": 1}', b"\xff"])
def test_an_unreadable_lock_file_says_nothing(tmp_path: Path, text: bytes) -> None:
    """A lock file that a full disk emptied keeps no node from starting."""
    path = tmp_path / "open" / "lock"
    path.parent.mkdir()
    path.write_bytes(text)
    lock = make_lock(tmp_path)
    lock.acquire()
    assert lock.last_run is None
    lock.release(clean=True)


def test_an_unknown_holder_is_another_process(tmp_path: Path) -> None:
    """Without a readable content the error still tells what is wrong."""
    first = make_lock(tmp_path)
    first.acquire()
    (tmp_path / "open" / "lock").write_bytes(b"")
    with pytest.raises(LogError, match="in use by another process"):
        make_lock(tmp_path, 2).acquire()
    first.release(clean=True)


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """A file where the directory should be is named."""
    (tmp_path / "open").write_bytes(b"")
    with pytest.raises(LogError, match=r"cannot use .*open: .*log.directory"):
        make_lock(tmp_path).acquire()


def test_a_full_disk_does_not_keep_a_node_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held although its content could not be written."""

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = make_lock(tmp_path)
    lock.acquire()
    with pytest.raises(LogError, match="in use"):
        make_lock(tmp_path, 2).acquire()
    lock.release(clean=True)


@pytest.mark.parametrize(
    ("boots", "signs", "expected"),
    [
        (("one", "one"), (7_000_000_000, 9_000_000_123), 9_000_000_123),
        (("one", "one"), (), None),
        (("one", "one"), (7_000_000_000, 0), None),
        (("one", "two"), (7_000_000_000,), None),
        (("", ""), (7_000_000_000,), None),
    ],
    ids=["same start of the machine", "no sign", "taken back", "another start of the machine", "not known"],
)
def test_a_sign_of_life_outlives_the_process_and_not_the_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    boots: tuple[str, str],
    signs: tuple[int, ...],
    expected: int | None,
) -> None:
    """The next run reads the last sign, unless the machine was started again: then signed rows may lack."""
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr(node_lock, "_BOOT_ID", boot_id)
    boot_id.write_text(f"{boots[0]}\n")
    first = make_lock(tmp_path)
    first.acquire()
    for lost_until_ns in signs:
        first.sign(lost_until_ns)
    crashed = (tmp_path / "open" / "lock").read_bytes()
    times = (tmp_path / "open" / "lock").stat()
    first.release(clean=True)
    (tmp_path / "open" / "lock").write_bytes(crashed)
    os.utime(tmp_path / "open" / "lock", ns=(times.st_atime_ns, times.st_mtime_ns))
    boot_id.write_text(f"{boots[1]}\n")
    second = make_lock(tmp_path, 2)
    second.acquire()
    assert second.lost_until_ns == expected
    assert second.last_run == LastRun(1, os.getpid(), clean=False)
    second.release(clean=True)
