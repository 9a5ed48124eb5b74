"""Files in a log that no node wrote: every reader names the file, and none waits or breaks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import FanoutError
from fanout.replica.update import Phase
from fanout.replog.files.schema import EVENTS, UPDATES
from fanout.replog.read.inspection import stat, verify
from fanout.replog.read.reading import stage
from fanout.replog.read.showing import name_of_code, newest_rows
from fanout.replog.read.topic_history import topic_history
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.recent_files import recent_files
from tests.replog.read.test_inspection import write_log
from tests.replog.rows import sealed_paths

OTHER_TYPES = (pa.string(), pa.int64(), pa.binary(), pa.list_(pa.int8()))
VALUES: dict[pa.DataType, object] = {
    pa.string(): "strange",
    pa.int64(): 2**62,
    pa.binary(): b"\xff",
    pa.list_(pa.int8()): [1],
}


def _show_updates(log: Path, scratch: Path) -> None:
    del scratch
    newest_rows(log, "updates", count=1000, wanted_topic=lambda topic: topic != "")


def _show_events(log: Path, scratch: Path) -> None:
    del scratch
    newest_rows(log, "events", count=1000, kinds=["heartbeat"])


def _explain(log: Path, scratch: Path) -> None:
    del scratch
    topic_history(log, node="edge-1", link="plant", topic="t/1")


def _stat(log: Path, scratch: Path) -> None:
    del scratch
    stat(log)


def _stage(log: Path, scratch: Path) -> None:
    stage([log], target=scratch)


def _recent(log: Path, scratch: Path) -> None:
    del scratch
    recent_files(LogFiles.in_directories([log]), since_us=2**60, reference=None)


READERS: dict[str, Callable[[Path, Path], None]] = {
    "show": _show_updates,
    "show --events": _show_events,
    "explain": _explain,
    "stat": _stat,
    "stage": _stage,
    "recent files": _recent,
}


def _refused(read: Callable[[Path, Path], None], log: Path, scratch: Path) -> FanoutError | None:
    try:
        read(log, scratch)
    except FanoutError as error:
        return error
    return None


def _sealed(log: Path, table: str) -> Path:
    return sealed_paths(log, table)[0]


@pytest.mark.parametrize("table", ["updates", "events"])
def test_columns_of_other_types_are_a_fault_of_that_file(tmp_path: Path, table: str) -> None:
    """Each column with each other type, away, or null: a reader gives rows, or an error that names the file."""
    log = tmp_path / "log"
    write_log(log)
    path = _sealed(log, table)
    whole = pq.read_table(path, partitioning=None)
    refused = set()
    for field in UPDATES if table == "updates" else EVENTS:
        others = [pa.array([VALUES[kind]] * len(whole), kind) for kind in OTHER_TYPES if kind != field.type]
        if not field.nullable:
            others.append(pa.array([None] * len(whole), field.type))
        index = whole.schema.get_field_index(field.name)
        variants = [whole.set_column(index, field.name, values) for values in others]
        for variant in (*variants, whole.drop_columns([field.name])):
            pq.write_table(variant, path)
            for name, read in READERS.items():
                error = _refused(read, log, tmp_path / "staged")
                if error is not None:
                    refused.add(name)
                    assert str(path) in str(error), (field.name, name)
                    assert error.hint
            assert [str(problem.path) for problem in verify(log)[0].problems] == [str(path)]
    assert refused >= {"stat", "explain", *(["show"] if table == "updates" else ["show --events", "recent files"])}


def test_rows_of_another_writer_with_the_same_values_are_shown(tmp_path: Path) -> None:
    """A file that was written again without dictionaries, with its columns in another order, has the same rows."""
    write_log(tmp_path)
    before = newest_rows(tmp_path, "updates", count=1000)
    path = _sealed(tmp_path, "updates")
    whole = pq.read_table(path, partitioning=None)
    plain = [
        whole[name].cast(pa.string()) if pa.types.is_dictionary(whole[name].type) else whole[name]
        for name in whole.column_names
    ]
    pq.write_table(pa.table(dict(reversed(list(zip(whole.column_names, plain, strict=True))))), path)
    assert newest_rows(tmp_path, "updates", count=1000) == before
    assert (name_of_code(Phase, 0), name_of_code(Phase, 99)) == ("live", "99")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("table", ["updates", "events"])
def test_nobody_waits_at_a_named_pipe(tmp_path: Path, table: str) -> None:
    """In the place of a sealed file, a segment, the lock or the record of the runs."""
    log = tmp_path / "log"
    write_log(log)
    path = _sealed(log, table)
    path.unlink()
    os.mkfifo(path)
    for name, read in READERS.items():
        if name.startswith("show") and ("events" in name) != (table == "events"):
            continue
        with pytest.raises(FanoutError, match="named pipe") as caught:
            read(log, tmp_path / "staged")
        assert str(path) in str(caught.value)
    assert [(problem.path, "named pipe" in problem.text) for problem in verify(log)[0].problems][:1] == [(path, True)]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["lock", "runs.json", "1700000000000000-000009.seg"])
def test_nobody_waits_at_a_named_pipe_beside_the_segments(tmp_path: Path, name: str) -> None:
    """It is named, or passed over where nothing depends on it."""
    write_log(tmp_path)
    place = tmp_path / "open" / "node=edge-1"
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    for read in (_show_updates, _stat, _stage):
        error = _refused(read, tmp_path, tmp_path / "staged")
        assert error is None or ("named pipe" in str(error) and name in str(error))


def test_a_circle_of_links_is_walked_once(tmp_path: Path) -> None:
    """No file counts twice."""
    write_log(tmp_path)
    files = LogFiles.in_directories([tmp_path])
    (tmp_path / "v1" / "updates" / "node=edge-1" / "again").symlink_to(tmp_path / "v1" / "updates")
    assert LogFiles.in_directories([tmp_path]).given == files.given
    assert len(newest_rows(tmp_path, "updates", count=1000)) == 30


def test_a_small_file_with_millions_of_rows_is_not_read(tmp_path: Path) -> None:
    """It would take gigabytes; no node writes so many rows into so few bytes."""
    write_log(tmp_path, batches=1)
    [path] = sealed_paths(tmp_path, "updates")
    pq.write_table(pq.ParquetFile(path).read().take(pa.repeat(0, 1_500_000)), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(FanoutError, match=r"expand to 1,500,000 rows"):
        newest_rows(tmp_path, "updates", count=1)
    [problem] = verify(tmp_path)[0].problems
    assert "expand to 1,500,000 rows" in problem.text


def test_a_file_with_gaps_everywhere_is_told_in_few_words(tmp_path: Path) -> None:
    """Each gap between the first thousand runs has its line, and one line counts the others."""
    write_log(tmp_path, batches=1)
    [path] = sealed_paths(tmp_path, "updates")
    rows = pq.ParquetFile(path).read().take(pa.repeat(0, 100_000))
    positions = pa.array(range(1, 200_001, 2))
    pq.write_table(rows.set_column(rows.schema.get_field_index("log_pos"), rows.field("log_pos"), positions), path)
    [check] = verify(tmp_path)
    assert len(check.gaps) == 999
    assert [problem.text.partition(" places")[0] for problem in check.problems][-1:] == ["99,000 more"]
    assert len(check.problems) < 10
