"""Many small files are read as few large ones, and no row changes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import ReportError
from fanout.replog.files.schema import EVENTS, UPDATES
from fanout.reports.read import gathering
from fanout.reports.read.gathering import gather_files
from fanout.reports.read.log_files import LogFiles
from tests.reports.logs import NodeLog, at
from tests.reports.segments import add_segment, sealed

SCHEMAS = {"updates": UPDATES, "events": EVENTS}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of 20 segments, which are more than a few."""
    monkeypatch.setattr(gathering, "_FEW", 5)
    monkeypatch.setattr(gathering, "_AT_ONCE_BYTES", 10_000)
    directory, hub = tmp_path / "log", NodeLog("hub", "primary")
    for number in range(20):
        hub.updates.clear()
        hub.events.clear()
        for index in range(number % 4):  # of some segments none
            hub.update(at(number), f"{number}/{index}", "x")
        hub.event("heartbeat", at(number))
        add_segment(directory, [hub], number)
    (tmp_path / "scratch").mkdir()
    return directory


def rows(paths: tuple[str, ...], table: str) -> list[dict[str, object]]:
    """Return the rows of some files in the order of their log."""
    found = pa.concat_tables(pq.ParquetFile(path).read().cast(SCHEMAS[table]) for path in paths)
    return sorted(found.to_pylist(), key=lambda row: int(row["log_pos"]))


@pytest.mark.parametrize("rows_max", [4, 500_000])
def test_every_row_is_once_in_one_file(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """As it was; how many files there were is known, and what the user calls them."""
    monkeypatch.setattr(gathering, "_ROWS_MAX", rows_max)
    files = LogFiles.in_directories([log])
    joined = gather_files(files, scratch=tmp_path / "scratch", every=False)
    assert (len(joined.updates), len(joined.events)) == (1, 1)
    assert (joined.given, joined.directories, joined.sealed_only) == ((20, 20), (str(log),), True)
    assert rows(joined.updates, "updates") == rows(files.updates, "updates")
    assert rows(joined.events, "events") == rows(files.events, "events")
    assert pa.types.is_string(pq.ParquetFile(joined.updates[0]).schema_arrow.field("node").type), "no dictionary"


def test_what_is_large_or_elsewhere_or_empty_stays_where_it_is(log: Path, tmp_path: Path) -> None:
    """Few small files do too, and so does a file that went: who reads it tells."""
    large, empty, gone = (Path(sealed(log, "hub", number, "events")) for number in (3, 4, 5))
    with large.open("ab") as file:
        file.truncate(2 * 1024 * 1024)
    empty.write_bytes(b"")
    files = LogFiles.in_directories([log])
    gone.unlink()
    files = LogFiles(files.updates[:5], ("s3a://bucket/logs", *files.events), files.directories)
    joined = gather_files(files, scratch=tmp_path / "scratch", every=False)
    assert joined.updates == files.updates
    assert joined.events[:-1] == ("s3a://bucket/logs", str(large), str(empty), str(gone))
    assert len(rows(joined.events[-1:], "events")) == 17
    assert joined.given == (5, 21)


def test_what_cannot_be_read_or_written_is_told(log: Path, tmp_path: Path) -> None:
    """The file by its name, and that room is missing for the copy."""
    with pytest.raises(ReportError, match="nowhere cannot be written"):
        gather_files(LogFiles.in_directories([log]), scratch=tmp_path / "nowhere", every=False)
    path = Path(sealed(log, "hub", 7))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    for damaged in (b"no Parquet", bytes(content)):
        path.write_bytes(damaged)
        with pytest.raises(ReportError, match=f"{path} cannot be read") as raised:
            gather_files(LogFiles.in_directories([log]), scratch=tmp_path / "scratch", every=False)
        assert "fanout log verify" in (raised.value.hint or "")


def test_a_small_file_with_millions_of_rows_is_not_joined(log: Path, tmp_path: Path) -> None:
    """The driver would hold all of them."""
    path = Path(sealed(log, "hub", 7))
    pq.write_table(pq.ParquetFile(path).read().take(pa.repeat(0, 1_500_000)), path)
    with pytest.raises(ReportError, match=f"{path} cannot be read: .+ expand to 1,500,000 rows"):
        gather_files(LogFiles.in_directories([log]), scratch=tmp_path / "scratch", every=False)


def test_every_file_is_gathered_for_sail(log: Path, tmp_path: Path) -> None:
    """Few large ones too; one that is empty, or that retention took meanwhile, is named."""
    files = LogFiles.in_directories([log])
    few = LogFiles(files.updates[:2], files.events[:1], files.directories)
    joined = gather_files(few, scratch=tmp_path / "scratch", every=True)
    assert (len(joined.updates), len(joined.events), joined.given) == (1, 1, (2, 1))
    assert rows(joined.updates, "updates") == rows(few.updates, "updates")
    empty, gone = map(Path, few.updates)
    empty.write_bytes(b"")
    with pytest.raises(ReportError, match=f"{empty} cannot be read"):
        gather_files(few, scratch=tmp_path / "scratch", every=True)
    gone.unlink()
    with pytest.raises(ReportError, match=f"{gone} was removed while the report was made"):
        gather_files(LogFiles((str(gone),), (), ()), scratch=tmp_path / "scratch", every=True)
