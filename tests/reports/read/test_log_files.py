"""The input of a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.errors import ReportError
from fanout.reports.read.log_files import LogFiles
from tests.support.unreadable import forbid


def touch(path: Path, content: str = "x") -> str:
    """Make a file and return its path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return str(path)


def test_in_directories_lists_visible_files_of_both_tables(tmp_path: Path) -> None:
    """Unfinished files are left out, and a directory given twice counts once."""
    update = touch(tmp_path / "v1/updates/node=a/date=1/hour=2/1-1.parquet")
    event = touch(tmp_path / "v1/events/node=a/date=1/hour=2/1-1.parquet")
    touch(tmp_path / "v1/updates/node=a/date=1/hour=2/.1-2.parquet")
    touch(tmp_path / "open/node=a/1-3.seg")
    files = LogFiles.in_directories([tmp_path, str(tmp_path)])
    assert files == LogFiles((update,), (event,), (str(tmp_path),))


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    """A wrong path is an error that names it, not an empty report; one where nothing is sealed yet is a log."""
    for place, problem in ((tmp_path, "is empty"), (tmp_path / "nowhere", "does not exist")):
        with pytest.raises(ReportError, match=f"{place} {problem}"):
            LogFiles.in_directories([place])
    (tmp_path / "open").mkdir()
    assert LogFiles.in_directories([tmp_path]) == LogFiles((), (), (str(tmp_path),))


def test_logs_below_a_directory_are_found(tmp_path: Path) -> None:
    """Each is named as an input; a file that a copy has too counts once."""
    name = "v1/updates/node=a/date=1/hour=2/1-1.parquet"
    files = [touch(tmp_path / log / name.replace("1-1", number)) for log, number in (("a", "1-1"), ("b/c", "1-2"))]
    touch(tmp_path / "copy" / name)
    found = LogFiles.in_directories([tmp_path, tmp_path / "a"])
    assert found == LogFiles(tuple(files), (), tuple(str(tmp_path / log) for log in ("a", "b/c", "copy")))


def test_a_directory_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and not taken for an empty one."""
    touch(tmp_path / "v1/updates/node=a/date=1/hour=2/1-1.parquet")
    forbid(tmp_path / "v1/updates/node=a", monkeypatch)
    with pytest.raises(ReportError, match="v1/updates/node=a cannot be read: Permission denied"):
        LogFiles.in_directories([tmp_path])


def test_uris_are_left_to_spark() -> None:
    """An object store is not looked into from here."""
    files = LogFiles.in_directories(["s3a://bucket/logs/"])
    assert files.updates == ("s3a://bucket/logs/v1/updates",)
    assert not files.bytes_at_most(10**12)


def test_size_is_that_of_all_files(tmp_path: Path) -> None:
    """Both tables count; a directory among the files has no size that is known."""
    files = LogFiles.of_files(
        updates=[Path(touch(tmp_path / "u", "12345"))], events=[touch(tmp_path / "e", "123")], directories=["logs"]
    )
    assert files.directories == ("logs",)
    assert files.bytes_at_most(8)
    assert not files.bytes_at_most(7)
    assert not LogFiles.of_files(updates=[tmp_path], events=[], directories=[]).bytes_at_most(10**9)
