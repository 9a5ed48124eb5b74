"""Where logs lack rows of which no gap event tells, found from counts by block of positions."""

from __future__ import annotations

from fanout.reports.read.details import GapRecord
from tests.reports.logs import T0, NodeLog, at
from tests.reports.surveys import survey_of


def edge_log() -> NodeLog:
    """Return a log of 640 rows, one each second, the first five of which are events."""
    edge = NodeLog("edge")
    for number in range(5):
        edge.event("heartbeat", at(number))
    for number in range(5, 640):
        edge.update(at(number), "t", "x", link="up")
    return edge


def without(log: NodeLog, first: int, last: int) -> NodeLog:
    """Take the rows of these positions out of a log."""
    log.updates = [row for row in log.updates if not first <= row["log_pos"] <= last]
    log.events = [row for row in log.events if not first <= row["log_pos"] <= last]
    return log


def test_a_hole_lies_between_the_whole_blocks_around_it() -> None:
    """Positions and times are those of the neighbouring blocks of 64; a log without holes has none."""
    assert survey_of(edge_log()).holes == ()
    survey = survey_of(without(edge_log(), 200, 300))
    hole = GapRecord("edge", "", T0, at(190), at(319), 319, 101, first_pos=192)
    assert (survey.holes, survey.begins) == ((hole,), ())
    assert survey.gaps_of("edge", link="up") == [hole]
    assert survey.gap_pos("edge", link="up") == 319
    assert survey.unexplained_rows("edge") == 101
    survey = survey_of(without(edge_log(), 192, 319))
    assert [(hole.first_us, hole.last_us) for hole in survey.holes] == [(at(190), at(319))]


def test_several_holes_and_one_before_the_last_row_are_found() -> None:
    """A run of blocks ends before the next whole one, which may be the last."""
    survey = survey_of(without(without(edge_log(), 100, 110), 600, 620))
    assert [(hole.first_pos, hole.last_pos, hole.first_us, hole.last_us) for hole in survey.holes] == [
        (64, 127, at(62), at(127)),
        (576, 639, at(574), at(639)),
    ]


def test_what_a_gap_event_tells_of_is_no_hole() -> None:
    """Positions that were given to rows which could not be logged are missing for a reason; others are holes."""
    edge = without(edge_log(), 200, 300)
    edge.gap(at(640), link="up", rows=101, first_log_pos=200, last_log_pos=300, first_us=at(199), last_us=at(299))
    assert survey_of(edge).holes == ()
    assert [hole.first_pos for hole in survey_of(without(edge, 400, 410)).holes] == [384]


def test_a_hole_counts_no_position_that_a_gap_event_tells_of() -> None:
    """An update that both explain is lost once."""
    edge = without(edge_log(), 200, 300)
    edge.gap(at(640), link="up", rows=51, first_log_pos=200, last_log_pos=250, first_us=at(199), last_us=at(249))
    survey = survey_of(edge)
    assert [hole.lost_positions for hole in survey.holes] == [50]
    assert sum(gap.lost_positions for gap in survey.gaps_of("edge", link="up")) == 101


def test_a_log_whose_oldest_files_were_removed_begins_later() -> None:
    """With nothing but first events left of its beginning a log is whole from there on; with updates it has a hole."""
    survey = survey_of(without(edge_log(), 6, 200))
    assert survey.holes == ()
    assert [(hole.first_pos, hole.lost_positions) for hole in survey.begins] == [(1, 195)]
    assert survey.begins_us("edge") == at(255)
    assert (survey.unexplained_rows("edge"), survey.gap_pos("edge", link="up")) == (0, 255)
    assert survey_of(edge_log()).begins_us("edge") is None
    survey = survey_of(without(edge_log(), 80, 200))
    assert (survey.begins, [hole.first_pos for hole in survey.holes]) == ((), [64])


def test_of_a_process_before_that_nothing_has_to_be_left() -> None:
    """The `start` of an older process may still be there when the files of the next one are removed."""
    edge = NodeLog("edge")
    edge.start(at(-100))
    edge.restart(at(-50))
    for number in range(5):
        edge.event("heartbeat", at(number))
    for number in range(5, 640):
        edge.update(at(number), "t", "x", link="up")
    survey = survey_of(without(edge, 6, 200))
    assert (survey.holes, len(survey.begins)) == ((), 1)


def test_the_beginning_of_a_later_process_is_a_hole() -> None:
    """Each process logs from position 1, so what lacks there was lost, however little is left of it."""
    edge = edge_log()
    edge.restart(at(700))
    for number in range(700, 900):
        edge.event("heartbeat", at(number))
    edge.events = [row for row in edge.events if row["node_epoch"] == T0 or row["log_pos"] > 50]
    survey = survey_of(edge)
    assert [(h.lost_epoch, h.first_pos, h.first_us, h.last_us) for h in survey.holes] == [
        (at(700), 1, at(750), at(763)),
    ]
    assert survey.begins == ()
