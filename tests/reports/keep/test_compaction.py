"""Compacted logs: every row once in few files, whatever is killed, and the same report as from the sealed files."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import ReportError
from fanout.replog.files.schema import EVENTS, UPDATES
from fanout.reports import run_report, run_watch
from fanout.reports.keep import compaction
from fanout.reports.keep.compaction import compact
from fanout.reports.read.compacted import MANIFEST, Compacted, read_compacted
from fanout.reports.read.log_files import LogFiles
from tests.reports.logs import T0, NodeLog, Row, at, stamp
from tests.reports.random_logs import random_hub, random_secondary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMAS = {"updates": UPDATES, "events": EVENTS}


def seal(log: Path, table: str, rows: Sequence[Row], *, number: int, date: str = "2026-02-02") -> None:
    """Seal rows of one node as a file."""
    place = log / "v1" / table / f"node={quote(rows[0]['node'], safe='')}" / f"date={date}" / "hour=02"
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMAS[table]), place / f"{T0}-{number:06}.parquet")


def seal_in_pieces(log: Path, nodes: Iterable[NodeLog], *, rows: int) -> Path:
    """Seal logs as files of a few rows each."""
    for node in nodes:
        for table, all_rows in (("updates", node.updates), ("events", node.events)):
            for number, first in enumerate(range(0, len(all_rows), rows)):
                seal(log, table, all_rows[first : first + rows], number=number)
    return log


def rows_of(paths: Iterable[str], table: str) -> list[dict[str, Any]]:
    """Return the rows of files in one order."""
    rows = [row for path in paths for row in pq.ParquetFile(path).read().cast(SCHEMAS[table]).to_pylist()]
    return sorted(rows, key=lambda row: (row["node"], row["node_epoch"], row["log_pos"]))


def two_nodes() -> list[NodeLog]:
    """Return logs of a primary with an odd name, and of a secondary with stamped updates and others."""
    hub, edge = NodeLog("hub/ä 1", "primary"), NodeLog("edge")
    for number in range(20):
        row = hub.publish(at(number), number + 1, f"t/{number % 3}", str(number))
        edge.apply(row, link="up", selector="#")
        edge.update(at(number), "own", str(number))
        edge.event("heartbeat", at(number))
    return [hub, edge]


def test_every_row_is_once_in_a_file_of_its_date_primary_and_node(tmp_path: Path) -> None:
    """Twenty files of each table become one for each partition; what is read from them is what was sealed."""
    log = seal_in_pieces(tmp_path / "log", two_nodes(), rows=2)
    sealed = LogFiles.in_directories([log])
    result = compact([log, log], into=tmp_path / "large")
    assert (result.sealed_files, result.files) == (len(sealed.updates) + len(sealed.events), 4)
    large = LogFiles.in_directories([tmp_path / "large"])
    assert [str(Path(path).relative_to(tmp_path / "large")) for path in (*large.updates, *large.events)] == [
        "updates/date=2026-02-02/primary=__HIVE_DEFAULT_PARTITION__/node=edge/000001.parquet",
        "updates/date=2026-02-02/primary=hub%2F%C3%A4%201/node=edge/000001.parquet",
        "updates/date=2026-02-02/primary=hub%2F%C3%A4%201/node=hub%2F%C3%A4%201/000001.parquet",
        "events/date=2026-02-02/node=edge/000001.parquet",
    ]
    assert rows_of(large.updates, "updates") == rows_of(sealed.updates, "updates")
    assert rows_of(large.events, "events") == rows_of(sealed.events, "events")
    assert {row["stamp_primary"] for row in rows_of(large.updates[:1], "updates")} == {None}
    assert pq.ParquetFile(large.updates[0]).schema_arrow.equals(UPDATES)


def test_rows_are_written_in_pieces_that_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a day has, few are held; dictionaries of the pieces may differ."""
    monkeypatch.setattr(compaction, "_PENDING_ROWS_MAX", 3)
    monkeypatch.setattr(compaction, "_READ_ROWS", 2)
    log = seal_in_pieces(tmp_path / "log", two_nodes(), rows=5)
    compact([log], into=tmp_path / "large")
    large = LogFiles.in_directories([tmp_path / "large"]).updates
    assert pq.ParquetFile(large[0]).num_row_groups > 2
    assert rows_of(large, "updates") == rows_of(LogFiles.in_directories([log]).updates, "updates")


def test_primaries_beyond_a_bound_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand publishers that stamp must not be as many open files; every row is there, also after more come."""
    monkeypatch.setattr(compaction, "_PRIMARIES_MAX", 3)
    hub = NodeLog("hub", "primary")
    for number in range(12):
        hub.update(at(number), "t", "v", **stamp(f"machine-{number % 6}", 1, number, at(number)))
    log = seal_in_pieces(tmp_path / "log", [hub], rows=4)
    for more in range(2):
        compact([log], into=tmp_path / "large")
        large = LogFiles.in_directories([tmp_path / "large"]).updates
        assert {Path(path).parts[-3] for path in large} == {
            *(f"primary=machine-{number}" for number in range(3)),
            "primary=__OTHERS__",
        }
        assert rows_of(large, "updates") == rows_of(LogFiles.in_directories([log]).updates, "updates")
        seal(log, "updates", [hub.update(at(50), "t", "v", **stamp("machine-9", 1, 50, at(50)))], number=90 + more)


def test_running_again_changes_nothing_and_new_files_are_added(tmp_path: Path) -> None:
    """A second run writes nothing; a third rewrites only the partitions of new rows, and leaves the former for once."""
    hub, edge = two_nodes()
    log, large = seal_in_pieces(tmp_path / "log", [hub, edge], rows=4), tmp_path / "large"
    compact([log], into=large)
    state = {path: path.stat().st_mtime_ns for path in large.rglob("*.*")}
    assert compact([log], into=large).sealed_files == 0
    assert {path: path.stat().st_mtime_ns for path in large.rglob("*.*")} == state
    former = set(LogFiles.in_directories([large]).updates)
    seal(log, "updates", [hub.publish(at(50), 21, "t", "new")], number=90)
    seal(log, "updates", [hub.publish(at(90_000), 22, "t", "new")], number=91, date="2026-02-03")
    assert compact([log], into=large).sealed_files == 2
    now = set(LogFiles.in_directories([large]).updates)
    assert (len(now), len(now & former)) == (4, 2), "another date, one partition made anew, two as they were"
    assert all(Path(path).exists() for path in former), "a report may be reading them"
    assert rows_of(now, "updates") == rows_of(LogFiles.in_directories([log]).updates, "updates")
    compact([log], into=large)
    assert all(Path(path).exists() for path in former), "nothing was superseded since"
    seal(log, "updates", [hub.publish(at(51), 23, "t", "newer")], number=92)
    compact([log], into=large)
    assert not any(Path(path).exists() for path in former - now)
    assert len(rows_of(LogFiles.in_directories([large]).updates, "updates")) == 63


def test_a_killed_run_leaves_what_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the manifest is there nothing has changed; afterwards everything has, and the leftovers go."""
    hub, edge = two_nodes()
    log, large = seal_in_pieces(tmp_path / "log", [hub], rows=4), tmp_path / "large"
    compact([log], into=large)
    before = LogFiles.in_directories([large])
    seal_in_pieces(log, [edge], rows=4)

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killing:
        killing.setattr(Compacted, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            compact([log], into=large)
    assert len(list(large.rglob("*.parquet"))) == 4, "they were written"
    assert LogFiles.in_directories([large]) == before, "and do not count"
    (orphan := large / "updates" / "date=2020-01-01" / "node=x" / "000002.parquet").parent.mkdir(parents=True)
    orphan.touch()
    compact([log], into=large)
    now = LogFiles.in_directories([large])
    assert rows_of(now.updates, "updates") == rows_of(LogFiles.in_directories([log]).updates, "updates")
    assert {str(path) for path in large.rglob("*.parquet")} == {*now.updates, *now.events}
    assert not orphan.parent.parent.exists()


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    """The error says so, and the run can be made again."""
    log, large = seal_in_pieces(tmp_path / "log", two_nodes(), rows=4), tmp_path / "large"
    compact([log], into=large)
    before = LogFiles.in_directories([large])
    broken = Path(LogFiles.in_directories([log]).updates[0]).with_name(f"{T0}-000099.parquet")
    broken.write_bytes(b"no Parquet")
    with pytest.raises(ReportError, match=f"^{broken} cannot be read") as caught:
        compact([log], into=large)
    assert "fanout log verify" in caught.value.hint
    assert LogFiles.in_directories([large]) == before
    broken.unlink()
    assert compact([log], into=large).sealed_files == 0


def test_a_manifest_with_other_digits_is_told(tmp_path: Path) -> None:
    """It is JSON as before, and not what was written: nothing is read by it."""
    log, large = seal_in_pieces(tmp_path / "log", two_nodes(), rows=4), tmp_path / "large"
    compact([log], into=large)
    manifest = large / MANIFEST
    manifest.write_text(manifest.read_text().replace('"generation": 1', '"generation": 2'))
    with pytest.raises(ReportError, match=f"^{manifest} cannot be read: it is not what was written"):
        LogFiles.in_directories([large])


def test_rows_that_are_compacted_and_sealed_count_once(tmp_path: Path) -> None:
    """History and the logs of today are given together; the same rows compacted twice are refused."""
    hub, edge = two_nodes()
    log, large = seal_in_pieces(tmp_path / "log", [hub, edge], rows=4), tmp_path / "large"
    compact([log], into=large)
    seal(log, "updates", [hub.publish(at(50), 21, "t", "new")], number=90)
    both = LogFiles.in_directories([log, large, "s3a://bucket/logs"])
    assert len(rows_of(both.updates[:1], "updates")) == 1, "of the log the new file alone"
    assert both.updates[1] == "s3a://bucket/logs/v1/updates"
    assert both.updates[2:] == LogFiles.in_directories([large]).updates
    compact([log], into=tmp_path / "other")
    with pytest.raises(ReportError, match="hold the same rows"):
        LogFiles.in_directories([large, tmp_path / "other"])


def test_what_is_not_what_nodes_write_to_is_refused(tmp_path: Path) -> None:
    """Compacted logs are neither compacted again nor watched; two runs at a time and other versions are refused."""
    log, large = seal_in_pieces(tmp_path / "log", two_nodes(), rows=4), tmp_path / "large"
    compact([log], into=large)
    for wrong in (large, "s3a://bucket/logs"):
        with pytest.raises(ReportError, match="is no local log directory"):
            compact([wrong], into=tmp_path / "other")
    with pytest.raises(ReportError, match="is not the directory of a replication log"):
        compact([tmp_path], into=tmp_path / "other")
    with pytest.raises(ReportError, match="is compacted"):
        run_watch([large], into=tmp_path / "k", every_s=None, keep_days=1, stop=threading.Event(), tell=print)
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="file is not a directory"):
        compact([log], into=tmp_path / "file")
    with compaction._locked(large), pytest.raises(ReportError, match="another process"):
        compact([log], into=large)
    manifest = large / MANIFEST
    text = manifest.read_text()
    for broken in (text.replace('"format": 1', '"format": 2'), "{", "[]", '{"format": 1, "log_schema": 1}'):
        manifest.write_text(broken)
        with pytest.raises(ReportError, match=MANIFEST):
            read_compacted(large)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_reports_say_the_same_of_compacted_logs(spark: SparkSession, tmp_path: Path) -> None:
    """The JSON has the same bytes, apart from which directories and how many files were read."""
    rng = random.Random(5)
    hub = random_hub(rng, updates=40)
    log = seal_in_pieces(tmp_path / "log", [hub, *(random_secondary(rng, number, hub) for number in range(2))], rows=15)
    compact([log], into=tmp_path / "large")
    of_sealed, of_compacted = (run_report("completeness", [place]).report for place in (log, tmp_path / "large"))
    assert of_compacted.inputs.update_files < of_sealed.inputs.update_files
    assert of_compacted.inputs.updates == of_sealed.inputs.updates
    assert of_compacted.model_copy(update={"inputs": of_sealed.inputs}).to_json() == of_sealed.to_json()
