"""Which files a report on a window reads, and where each log begins in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from fanout.errors import ReportError
from fanout.reports import ReportOptions, run_report
from fanout.reports.read import gathering
from fanout.reports.read import recent_files as module
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.recent_files import MARGIN_US, recent_files
from fanout.reports.read.survey import LogCut
from tests.reports.logs import T0, NodeLog, at, selector, when
from tests.reports.segments import add_segment, sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE = 60
MARGIN_MIN = MARGIN_US // 60_000_000


def fill(log: Path, node: NodeLog, minutes: range, *, clock_s: float = 0, first: int = 0) -> None:
    """Seal a segment for each of these minutes, with an update and an event."""
    for number, minute in enumerate(minutes, first):
        node.updates.clear()
        node.events.clear()
        node.update(at(minute * MINUTE + clock_s), "t", "x")
        node.event("heartbeat", at(minute * MINUTE + clock_s + 30))
        add_segment(log, [node], number)


def add_events(log: Path, node: NodeLog, number: int, *events: str) -> None:
    """Seal a segment that has these events alone."""
    node.updates.clear()
    node.events.clear()
    for second, event in enumerate(events):
        node.event(event, at(number * MINUTE + second))
    add_segment(log, [node], number)


def recent(*logs: Path, since: int = 17, reference: str | None = None) -> tuple[LogFiles, tuple[LogCut, ...]]:
    """Return what a report on the time from half past a minute on reads of these logs."""
    return recent_files(LogFiles.in_directories(logs), since_us=at(since * MINUTE + 30), reference=reference)


def begins(*logs: Path, reference: str | None = None) -> dict[str, int]:
    """Return where what is read of each node begins."""
    return {cut.node: cut.at_us for cut in recent(*logs, reference=reference)[1]}


@pytest.mark.parametrize("problem", ["no column 'log_pos'", "does not say which values column 'log_pos' has"])
def test_a_file_that_no_node_wrote_is_told(tmp_path: Path, problem: str) -> None:
    """As one of another program in the place of a sealed one, or one that was written again without its statistics."""
    fill(tmp_path, NodeLog("hub", "primary"), range(3))
    path = next(tmp_path.rglob("updates/**/*.parquet"))
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.drop_columns(["log_pos"]) if "no column" in problem else table, path, write_statistics=False)
    with pytest.raises(ReportError, match=problem) as caught:
        recent(tmp_path, since=-20)
    assert str(path) in str(caught.value)
    assert "log verify" in (caught.value.hint or "")


def test_only_the_files_of_the_window_and_of_a_margin_are_taken(tmp_path: Path) -> None:
    """They begin with the newest segment that reaches back far enough; copies elsewhere count once."""
    hub = NodeLog("hub", "primary")
    fill(tmp_path / "a", hub, range(20))
    files, cuts = recent(tmp_path / "a")
    first = 17 - MARGIN_MIN
    numbers = range(first, 20)
    assert files.updates == tuple(sealed(tmp_path / "a", "hub", number, "updates") for number in numbers)
    # Of the time before the last heartbeat alone.
    assert files.events == tuple(sealed(tmp_path / "a", "hub", number, "events") for number in (first - 1, *numbers))
    assert (files.directories, files.sealed_only) == ((str(tmp_path / "a"),), True)
    assert cuts == (LogCut("hub", T0, 2 * first + 1, at(first * MINUTE), 0),)
    fill(tmp_path / "b", NodeLog("hub", "primary"), range(20))
    assert recent(tmp_path / "a", tmp_path / "b")[0].updates == files.updates


def test_of_the_time_before_all_is_read_that_events_say(tmp_path: Path) -> None:
    """A file of which one event is no heartbeat, and the last of each process: it says how far that went."""
    hub = NodeLog("hub", "primary")
    fill(tmp_path, hub, range(4))
    add_events(tmp_path, hub, 4, "state", "heartbeat")
    fill(tmp_path, hub, range(5, 8), first=5)
    hub.restart(at(8 * MINUTE))
    add_events(tmp_path, hub, 0, "start")
    fill(tmp_path, hub, range(9, 40), first=1)
    files, (cut,) = recent(tmp_path, since=37)
    assert (cut.node_epoch, cut.at_us) == (hub.node_epoch, at((37 - MARGIN_MIN) * MINUTE))
    read = [
        Path(path).stem
        for path in files.events
        if path < sealed(tmp_path, "hub", 24, "events", node_epoch=cut.node_epoch)
    ]
    assert read == [f"{T0}-000004", f"{T0}-000007", f"{cut.node_epoch}-000000", f"{cut.node_epoch}-000023"]


@pytest.mark.parametrize(
    ("role", "reference", "late_by"),
    [("primary", None, 0), ("tap", None, 0), ("secondary", None, 24 * MINUTE), ("secondary", "hub", 0)],
)
def test_how_late_a_log_is_goes_by_the_clock_of_the_reference(
    tmp_path: Path, role: str, reference: str | None, late_by: int
) -> None:
    """A secondary whose clock is a day ahead makes nobody late; where nobody is above the others, the newest counts."""
    fill(tmp_path, NodeLog("hub", role), range(20))
    fill(tmp_path, NodeLog("edge"), range(20), clock_s=24 * MINUTE * MINUTE)
    found = begins(tmp_path, reference=reference)
    assert found.get("hub") == (None if late_by else at((17 - MARGIN_MIN) * MINUTE))
    assert "edge" not in found, "all of it is later than the window"
    assert begins(tmp_path, reference="nobody") == begins(tmp_path), "the report tells that"


def test_a_log_that_is_behind_is_read_as_far_back_by_its_own_clock(tmp_path: Path) -> None:
    """Be its clock slow or its newest files late, the window is in what is read of it."""
    fill(tmp_path, NodeLog("hub", "primary"), range(20))
    fill(tmp_path, NodeLog("edge"), range(18))
    assert begins(tmp_path) == {"hub": at((17 - MARGIN_MIN) * MINUTE), "edge": at((15 - MARGIN_MIN) * MINUTE)}


def test_a_clock_that_was_behind_for_a_while_hides_nothing(tmp_path: Path) -> None:
    """A node that was started with the time of an hour ago has rows of the window in front of those too."""
    hub = NodeLog("hub", "primary")
    fill(tmp_path, hub, range(18))
    hub.restart(at(18 * MINUTE))
    fill(tmp_path, hub, range(18, 19), clock_s=-60 * MINUTE)
    fill(tmp_path, hub, range(19, 20), first=1)
    assert begins(tmp_path) == {"hub": at((17 - MARGIN_MIN) * MINUTE)}


def test_a_restart_and_lost_rows_in_what_is_taken_are_told(tmp_path: Path) -> None:
    """Positions of a later process are counted from its first; those that no row has are absent."""
    hub = NodeLog("hub", "primary")
    fill(tmp_path, hub, range(18))
    hub.restart(at(18 * MINUTE))
    hub.log_pos = 3
    fill(tmp_path, hub, range(18, 20))
    (cut,) = recent(tmp_path)[1]
    assert cut == LogCut("hub", T0, 2 * (17 - MARGIN_MIN) + 1, at((17 - MARGIN_MIN) * MINUTE), 3)
    Path(sealed(tmp_path, "hub", 15, "events")).unlink()
    assert recent(tmp_path)[1][0].absent == 4


def test_what_cannot_be_chosen_from_is_read_whole(tmp_path: Path) -> None:
    """A short log, no file at all, and what Spark reads by itself."""
    fill(tmp_path, NodeLog("hub", "primary"), range(20))
    whole = LogFiles.in_directories([tmp_path])
    assert recent(tmp_path, since=-60) == (whole, ())
    for other in (
        LogFiles((), (), ()),
        LogFiles((*whole.updates, "s3a://bucket/logs/v1/updates"), whole.events, ()),
    ):
        assert recent_files(other, since_us=at(17 * MINUTE), reference=None) == (other, ())


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A damaged file by its name, of the window or of the time before it."""
    fill(tmp_path, NodeLog("hub", "primary"), range(20))
    (tmp_path / "mute").mkdir()
    add_segment(tmp_path / "mute", [NodeLog("mute")], 0)
    with pytest.raises(ReportError, match=r"node=mute/.* holds no row"):
        recent(tmp_path / "mute")
    for number in (2, 19):
        path = Path(sealed(tmp_path, "hub", number, "events"))
        path.write_bytes(b"no Parquet")
        with pytest.raises(ReportError, match=f"{path} cannot be read"):
            recent(tmp_path)


EDGE_LINK = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]}


def grow(log: Path, segments: int) -> None:
    """Seal segments of 40 s, of five updates, the last late; two are lost by a restart, one at the end."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    for number in range(segments):
        begin = 40 * number
        for node in (hub, edge):
            node.updates.clear()
            node.events.clear()
        if number == 0:
            hub.start(at(0))
        if number in (0, segments - 4):
            if number:
                edge.restart(at(begin))
            edge.start(at(begin), EDGE_LINK)
            edge.ready(at(begin + (3.5 if number else 1)), "up", "#")
        lost = {segments - 4: 2, segments - 2: 1}.get(number, 0)
        for index in range(5):
            row = hub.publish(at(begin + 2 + index), 5 * number + index + 1, f"t/{index}", "x")
            if index >= lost:
                edge.apply(row, link="up", selector="#", delay_us=90_000 if index == 4 else 1_000)
        for second in (7, 8):
            edge.event("heartbeat", at(begin + second), link="up", lag_us=2_000)
        add_segment(log, [hub, edge], number)


@pytest.mark.spark
def test_the_report_is_that_of_the_whole_logs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the files of the window, and from one copy of them, though what was proved before it is needed too."""
    grow(tmp_path, 12)
    asked = ReportOptions(since=when(at(40 * 7 + 20)), until=when(at(40 * 11 + 20)), depth=1)
    whole = run_report("summary", [tmp_path], asked).report  # 5 minutes are more than there is
    monkeypatch.setattr(module, "MARGIN_US", 10_000_000)
    monkeypatch.setattr(gathering, "_FEW", 3)
    found = run_report("summary", [tmp_path], asked).report
    assert (whole.inputs.update_files, found.inputs.update_files, found.inputs.event_files) == (24, 10, 14)
    # What was read, and of which rows each log is made, is another thing.
    same = {"inputs": whole.inputs, "logs": whole.logs}
    assert found.model_copy(update=same).to_json() == whole.to_json()
    assert found.missing is not None
    assert [(one.topic, one.cause) for one in found.missing.listed] == [
        ("t/0", "restart"),
        ("t/1", "restart"),
        ("t/0", "live"),
    ]
