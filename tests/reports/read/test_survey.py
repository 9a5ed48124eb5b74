"""What can be read off the summary of the logs."""

from __future__ import annotations

from fanout.reports.read.details import LinkConfig, Selection
from fanout.reports.read.lost_positions import block_bits
from fanout.reports.read.survey import LogCut, NodeConfig
from tests.reports.logs import T0, NodeLog, at, selector
from tests.reports.surveys import survey_of

LINK = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("b/#"), selector("a/#", "a/y", "a/x")]}
CONFIG = LinkConfig("up", ("mqtt://hub",), (Selection("a/#", ("a/x", "a/y")), Selection("b/#")))


def test_config_is_the_latest_and_says_since_when() -> None:
    """Processes with the same links belong together; an earlier one with others marks a change."""
    edge = NodeLog("edge")
    edge.start(at(0))
    edge.restart(at(10))
    edge.start(at(10), LINK)
    edge.restart(at(20))
    edge.start(at(20), LINK)
    assert survey_of(edge).config("edge") == NodeConfig(at(10), (CONFIG,), changed=True, stated=True)
    del edge.events[0]
    assert survey_of(edge).config("edge") == NodeConfig(at(10), (CONFIG,), changed=False, stated=True)


def test_config_without_a_usable_start_is_taken_from_rows() -> None:
    """Links and selectors that rows and proofs name are used, without excludes; rows of the node itself are none."""
    edge = NodeLog("edge")
    edge.start(at(0), detail="later format")
    edge.update(at(1), "own", "x")
    edge.update(at(1), "a/1", "x", link="up", selector="a/#")
    edge.event("complete", at(2), link="up", selector="b/#")
    config = survey_of(edge).config("edge")
    assert config == NodeConfig(0, (LinkConfig("up", (), (Selection("a/#"), Selection("b/#"))),), False, False)


def test_held_from_is_when_the_last_selector_was_proved() -> None:
    """The first proof of each selector counts, the latest of them decides, and a missing one means never."""
    edge = NodeLog("edge")
    edge.event("complete", at(5), link="up", selector="a/#")
    edge.event("complete", at(1), link="other", selector="b/#")
    survey = survey_of(edge)
    assert survey.held_from("edge", link=CONFIG, since_epoch=0) is None
    edge.link_epoch = 2
    edge.event("complete", at(7), link="up", selector="b/#")
    edge.event("complete", at(8), link="up", selector="a/#")
    survey = survey_of(edge)
    assert survey.held_from("edge", link=CONFIG, since_epoch=0) == (at(7), 2)
    assert survey.held_from("edge", link=CONFIG, since_epoch=edge.node_epoch + 1) is None
    assert survey.held_from("edge", link=LinkConfig("up", (), ()), since_epoch=0) is None


def test_floor_is_the_last_process_and_its_last_tear_down() -> None:
    """A tear-down of an earlier process, or of another link, does not count."""
    edge = NodeLog("edge")
    edge.event("tear_down", at(1), link="up")
    edge.restart(at(10))
    edge.start(at(10))
    assert survey_of(edge).floor("edge", link="up") == (at(10), 0)
    edge.event("tear_down", at(11), link="other")
    edge.event("tear_down", at(12), link="up")
    survey = survey_of(edge)
    assert survey.floor("edge", link="up") == (at(10), 3)
    assert survey.tear_downs("edge", link="up") == 2


def test_absent_rows_are_found_by_their_positions() -> None:
    """Holes are counted in each process, gaps explain some, and rows given twice show as too many."""
    edge = NodeLog("edge")
    for number in range(6):
        edge.update(at(number), "t", "x", link="up")
    assert survey_of(edge).absent_rows("edge") == 0
    del edge.updates[2:4]
    edge.restart(at(10))
    edge.start(at(10))
    edge.log_pos += 3
    edge.gap(at(11), link="up", rows=2, events=1, last_log_pos=4)
    survey = survey_of(edge)
    assert (survey.absent_rows("edge"), survey.unexplained_rows("edge")) == (5, 2)
    assert (survey.gap_pos("edge", link="up"), survey.gap_pos("edge", link="other")) == (4, 0)
    edge.updates += edge.updates
    assert survey_of(edge).absent_rows("edge") == -2


def test_rows_that_were_left_out_in_front_of_a_cut_are_not_lost() -> None:
    """They are the log's beginning; what a gap in front of it tells of explains nothing behind it."""
    edge = NodeLog("edge")
    edge.start(at(0))
    edge.log_pos += 5
    edge.gap(at(1), link="up", rows=5, first_log_pos=2, last_log_pos=6)
    for number in range(2, 12):
        edge.update(at(number), "t", "x", link="up")
    del edge.updates[:6]  # left out
    del edge.updates[1]  # lost
    cut = LogCut("edge", T0, pos=14, at_us=at(8), absent=1)
    survey = survey_of(edge, holes=False)
    assert (survey.absent_rows("edge"), survey.unexplained_rows("edge")) == (12, 7)
    begun = survey.begun_at([cut])
    assert (begun.begins_us("edge"), begun.unexplained_rows("edge")) == (at(8), 1)
    (begin,) = begun.begins
    assert (begin.last_pos, begin.lost_positions) == (13, 6)
    assert block_bits(begun) <= block_bits(survey)
    whole = NodeLog("edge")
    whole.update(at(1), "t", "x", link="up")
    assert survey_of(whole).begun_at([LogCut("edge", T0, pos=1, at_us=at(1), absent=0)]).begins == ()


def test_stopped_means_the_last_process() -> None:
    """A stop that was followed by another start is not the end."""
    edge = NodeLog("edge")
    edge.event("stop", at(1))
    assert survey_of(edge).stopped_us("edge") == at(1)
    edge.restart(at(2))
    edge.start(at(2))
    assert survey_of(edge).stopped_us("edge") is None


def test_roles_are_those_of_the_last_process() -> None:
    """A node that became a tap is a tap; nodes come in the order of their names."""
    late, node = NodeLog("b"), NodeLog("a")
    late.start(at(0))
    node.start(at(0))
    node.role = "tap"
    node.restart(at(5))
    node.start(at(5))
    assert list(survey_of(late, node).roles.items()) == [("a", "tap"), ("b", "secondary")]


def test_numbers_of_a_link() -> None:
    """Rows, delays and origins are those of the link's updates; copies of retained values do not count."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    row = hub.publish(at(1), 1, "t", "x")
    edge.apply(row, link="up", selector="#", delay_us=-5, phase=1)
    edge.apply(row, link="up", selector="#", delay_us=50)
    edge.link_epoch = 2
    edge.apply(hub.publish(at(2), 2, "t", "x"), link="up", selector="#", delay_us=20)
    edge.update(at(3), "t", "x", link="up", selector="+")
    edge.event("state", at(1), link="up", state="snapshot", detail='{"primary_node": "hub"}')
    survey = survey_of(hub, edge)
    hubs = frozenset({"hub"})
    assert survey.live_rows("edge", link="up") == 3
    assert survey.live_rows("edge", link="up", stamped=False) == 1
    assert survey.stamps("edge", link="up") == survey.upstreams("edge", link="up") == hubs
    assert survey.delay_us_min("edge", link="up", stamped_by="hub", link_epoch=1) == 50
    assert survey.delay_us_min("edge", link="up", stamped_by="hub", link_epoch=None) == 20
    assert survey.delay_us_min("edge", link="up", stamped_by="other", link_epoch=None) is None
    assert survey.origins_us("edge", link="up") == (at(1), at(2))
    assert survey.origins_us("edge", link="other") is None
    assert survey.first_live("edge", link="up", since_epoch=0) == (at(1) + 50, 1)
    assert survey.selectors_seen("edge", link="up", since_epoch=0) == {"#", "+"}
    assert survey.log_rows("edge") == (4, 1)
    assert survey.log_span_us("hub") == (at(1), at(2))
