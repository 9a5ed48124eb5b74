"""Which files the last minutes of the logs are read from, and where each log begins in them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from fanout.errors import ReportError
from fanout.reports.keep.recent import MARGIN_US, Recent, recent_files, recent_names
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.survey import LogCut
from tests.reports.logs import T0, NodeLog, at, when
from tests.reports.segments import add_segment, sealed

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


def recent(*logs: Path, minutes: float = 2, reference: str | None = None) -> Recent:
    """Return the last minutes of these logs."""
    listed = LogFiles.in_directories(logs)
    return recent_files(listed, minutes=minutes, reference=reference, directories=["given"])


def end(minute: float, second: float = 30) -> datetime:
    """Return the end of a window behind the last row of a minute."""
    return when(at(minute * MINUTE + second)) + timedelta(microseconds=1)


def test_only_the_files_of_the_window_and_of_a_margin_are_taken(tmp_path: Path) -> None:
    """They begin with the newest segment that reaches back far enough; copies elsewhere count once."""
    hub = NodeLog("hub", "primary")
    fill(tmp_path / "a", hub, range(20))
    found = recent(tmp_path / "a")
    assert (found.since, found.until) == (when(at(17 * MINUTE + 30)), end(19))
    first = 17 - MARGIN_MIN
    numbers = range(first, 20)
    assert found.files.updates == tuple(sealed(tmp_path / "a", "hub", number, "updates") for number in numbers)
    assert found.files.events == tuple(sealed(tmp_path / "a", "hub", number, "events") for number in numbers)
    assert (found.files.directories, found.files.sealed_only) == (("given",), True)
    assert found.cuts == (LogCut("hub", T0, 2 * first + 1, at(first * MINUTE), 0),)
    fill(tmp_path / "b", NodeLog("hub", "primary"), range(20))
    assert recent(tmp_path / "a", tmp_path / "b").files.updates == found.files.updates


@pytest.mark.parametrize(
    ("role", "reference", "ends"),
    [("primary", None, 19), ("tap", None, 19), ("secondary", None, 19 + 24 * MINUTE), ("secondary", "hub", 19)],
)
def test_the_window_ends_by_the_clock_of_the_reference(
    tmp_path: Path, role: str, reference: str | None, ends: int
) -> None:
    """A secondary whose clock is a day ahead does not move it; where nobody is above the others, the newest counts."""
    fill(tmp_path, NodeLog("hub", role), range(20))
    fill(tmp_path, NodeLog("edge"), range(20), clock_s=24 * MINUTE * MINUTE)
    assert recent(tmp_path, reference=reference).until == end(ends)
    assert recent(tmp_path, reference="nobody").until == recent(tmp_path).until, "the report tells that"


def test_a_log_that_is_behind_is_read_as_far_back_by_its_own_clock(tmp_path: Path) -> None:
    """Be its clock slow or its newest files late, the window is in what is read of it."""
    fill(tmp_path, NodeLog("hub", "primary"), range(40))
    fill(tmp_path, NodeLog("edge"), range(30))
    cuts = {cut.node: cut.at_us for cut in recent(tmp_path).cuts}
    assert cuts == {"hub": at((37 - MARGIN_MIN) * MINUTE), "edge": at((27 - MARGIN_MIN) * MINUTE)}


def test_a_clock_that_was_behind_for_a_while_hides_nothing(tmp_path: Path) -> None:
    """A node that was started with the time of an hour ago has rows of the window in front of those too."""
    hub = NodeLog("hub", "primary")
    fill(tmp_path, hub, range(18))
    hub.restart(at(18 * MINUTE))
    fill(tmp_path, hub, range(18, 19), clock_s=-60 * MINUTE)
    fill(tmp_path, hub, range(19, 20), first=1)
    assert recent(tmp_path).cuts[0].at_us == at((17 - MARGIN_MIN) * MINUTE)


def test_a_restart_and_lost_rows_in_what_is_taken_are_told(tmp_path: Path) -> None:
    """Positions of a later process are counted from its first; those that no row has are absent."""
    hub = NodeLog("hub", "primary")
    fill(tmp_path, hub, range(18))
    hub.restart(at(18 * MINUTE))
    hub.log_pos = 3
    fill(tmp_path, hub, range(18, 20))
    found = recent(tmp_path)
    assert found.cuts == (LogCut("hub", T0, 2 * (17 - MARGIN_MIN) + 1, at((17 - MARGIN_MIN) * MINUTE), 3),)
    Path(sealed(tmp_path, "hub", 15, "events")).unlink()
    assert recent(tmp_path).cuts[0].absent == 4


def test_a_short_log_is_taken_whole(tmp_path: Path) -> None:
    """Then nothing is left out."""
    fill(tmp_path, NodeLog("hub", "primary"), range(3))
    found = recent(tmp_path, minutes=60)
    assert (len(found.files.updates), found.cuts[0].pos) == (3, 1)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A damaged file by its name; logs in which nothing is sealed are no log of nothing."""
    (tmp_path / "open").mkdir()
    with pytest.raises(ReportError, match="nothing is sealed yet"):
        recent(tmp_path)
    fill(tmp_path, NodeLog("hub", "primary"), range(2))
    path = Path(sealed(tmp_path, "hub", 1))
    fill(tmp_path, NodeLog("edge"), range(1))
    node = NodeLog("mute")
    add_segment(tmp_path, [node], 0)
    with pytest.raises(ReportError, match=r"node=mute/.* holds no row"):
        recent(tmp_path)
    path.write_bytes(b"no Parquet")
    with pytest.raises(ReportError, match=f"{path} cannot be read"):
        recent(tmp_path)


def test_names_alone_tell_which_files_of_a_store_may_be_needed() -> None:
    """By the hours of their directories, of each node back from its own newest, with an hour for what is late."""

    def name(node: str, hour: int, number: int, table: str = "updates") -> str:
        return f"v1/{table}/node={node}/date=2026-02-02/hour={hour:02}/{T0}-{number:06}.parquet"

    hub = [name("hub", hour, number) for number, hour in enumerate((5, 6, 7, 8, 9, 10))]
    dead = [name("dead", hour, number, "events") for number, hour in enumerate((1, 2))]
    assert recent_names([*hub, *dead], minutes=60) == {*hub[1:], *dead}, "10:00 less 2 h 5 min lies in the hour of 07"
    assert recent_names([], minutes=60) == frozenset()
