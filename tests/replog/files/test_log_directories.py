"""The search for logs below a directory, and its bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanout.errors import LogError
from fanout.replog.files import log_directories
from fanout.replog.files.log_directories import DEPTH_MAX, find_logs, shared_nodes
from tests.support.unreadable import forbid


def make_log(directory: Path, *nodes: str, part: str = "open") -> Path:
    """Make a log directory and return it."""
    for node in nodes:
        (directory / part / f"node={node}").mkdir(parents=True)
    (directory / part).mkdir(parents=True, exist_ok=True)
    return directory


def test_a_log_is_found_by_any_of_its_parts(tmp_path: Path) -> None:
    """A live one, a copy with one table, and one that has just begun; a directory `open` of other things is none."""
    logs = [
        make_log(tmp_path / "a/log", "a"),
        make_log(tmp_path / "b/c/d", "b", part="v1/updates"),
        make_log(tmp_path / "e", "b", part="v1/events"),
        make_log(tmp_path / "f"),
    ]
    (tmp_path / "g/open/letters").mkdir(parents=True)
    make_log(tmp_path / ".hidden", "a")
    (tmp_path / "open").touch()
    assert find_logs(tmp_path) == tuple(logs)
    assert [find_logs(log) for log in logs] == [(log,) for log in logs]
    assert shared_nodes(logs) == {"node=b": logs[1:3]}


def test_a_log_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """Alone, beside tables that this one reads, and below: a part of a log would be taken for all of it."""
    make_log(tmp_path / "v2" / "log", "a")  # a directory of that name, which is no table
    assert find_logs(tmp_path) == (tmp_path / "v2" / "log",)
    for name in ("alone", "beside"):
        make_log(tmp_path / name, "a", part="v2/events")
    make_log(tmp_path / "beside", "a", part="v1/updates")
    for given in (tmp_path, tmp_path / "alone", tmp_path / "beside"):
        with pytest.raises(LogError, match="version 2 of the replication log, and this fanout reads 1") as refused:
            find_logs(given)
        assert refused.value.hint == "Read it with the version of fanout that wrote it, or a later one"


def test_the_search_ends_at_a_log(tmp_path: Path) -> None:
    """A directory given as a log stays one, whatever else is below it."""
    log = make_log(tmp_path / "log", "a")
    make_log(log / "backup", "a")
    assert find_logs(log) == find_logs(tmp_path) == (log,)


def test_symbolic_links_are_followed_once(tmp_path: Path) -> None:
    """A log has one name, and neither a link that leads back nor one that leads nowhere is in the way."""
    log = make_log(tmp_path / "elsewhere/log", "a")
    given = tmp_path / "given"
    given.mkdir()
    (given / "back").symlink_to(given)
    (given / "itself").symlink_to(given / "itself")
    (given / "nothing").symlink_to(tmp_path / "nothing")
    (given / "one").symlink_to(log)
    (given / "two").symlink_to(log)
    assert find_logs(given) == (given / "one",)


def test_named_pipes_are_not_opened(tmp_path: Path) -> None:
    """Neither given nor found."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LogError, match="none is below it"):
        find_logs(tmp_path)
    with pytest.raises(LogError, match="pipe is a file, and not a directory"):
        find_logs(tmp_path / "pipe")


def test_the_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By depth, and by the number of directories, which is told."""
    levels = Path(*(str(level) for level in range(1, DEPTH_MAX)))
    log = make_log(tmp_path / levels / "log", "a")
    make_log(tmp_path / levels / "deeper/log", "a")
    assert find_logs(tmp_path) == (log,)
    monkeypatch.setattr(log_directories, "DIRECTORIES_MAX", DEPTH_MAX + 2)
    assert find_logs(tmp_path) == (log,)
    monkeypatch.setattr(log_directories, "DIRECTORIES_MAX", DEPTH_MAX + 1)
    with pytest.raises(LogError, match=r"has more than 9 directories below it\. Give the log directories"):
        find_logs(tmp_path)


def test_a_directory_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log below it would be missing from the answer without a word."""
    make_log(tmp_path / "a", "a")
    (tmp_path / "b").mkdir()
    forbid(tmp_path / "b", monkeypatch)
    with pytest.raises(LogError, match=f"{tmp_path}/b cannot be read: permission denied. Give the log directories"):
        find_logs(tmp_path)
