"""What can be read off the summary of the logs."""

from __future__ import annotations

import json

import pytest

from fanout.reports.survey import LinkConfig, NodeConfig, Selection, parse_gap_detail, parse_start_detail
from tests.reports.logs import NodeLog, at, selector
from tests.reports.surveys import survey_of

LINK = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("b/#"), selector("a/#", "a/y", "a/x")]}
CONFIG = LinkConfig("up", ("mqtt://hub",), (Selection("a/#", ("a/x", "a/y")), Selection("b/#")))


def test_start_detail_is_read_as_documented() -> None:
    """Selectors and excludes come in order; an address alone is a list of one; unknown keys are ignored."""
    detail = {"format": 1, "version": "0.1.0", "links": [LINK | {"new": 1}], "more": {}}
    assert parse_start_detail(json.dumps(detail)) == (CONFIG,)
    detail["links"] = [LINK | {"primary": "mqtt://hub"}]
    assert parse_start_detail(json.dumps(detail)) == (CONFIG,)
    assert parse_start_detail('{"format": 1, "links": []}') == ()


@pytest.mark.parametrize(
    "detail",
    [
        "",
        "text",
        "[]",
        "{}",
        "null",
        '{"format": 2, "links": []}',
        '{"format": 1, "links": [{"name": "x"}]}',
        '{"format": 1, "links": [{"name": "x", "primary": 5, "selectors": []}]}',
    ],
)
def test_start_detail_of_another_shape_is_not_guessed_at(detail: str) -> None:
    """What is not of the documented shape says nothing."""
    assert parse_start_detail(detail) is None


def test_gap_detail_is_read_as_documented() -> None:
    """Unknown times and counts of a crash stay unknown."""
    detail = {
        "reason": "crash",
        "rows": None,
        "events": 0,
        "node_epoch": 5,
        "first_log_pos": 8,
        "last_log_pos": None,
        "first_us": None,
        "last_us": 70,
    }
    gap = parse_gap_detail(json.dumps(detail), node="n", link="", node_epoch=6, at_us=71)
    assert (gap.lost_epoch, gap.first_us, gap.last_us, gap.last_pos, gap.lost_positions) == (5, None, 70, 0, 0)
    detail |= {"rows": 3, "events": 1, "last_log_pos": 11, "first_us": 60, "last_us": None}
    gap = parse_gap_detail(json.dumps(detail), node="n", link="", node_epoch=6, at_us=71)
    assert (gap.first_us, gap.last_us, gap.last_pos, gap.lost_positions) == (60, 71, 11, 4)


@pytest.mark.parametrize("detail", ["", "{}", "[1]", '{"first_us": "x"}'])
def test_gap_detail_of_another_shape_may_mean_anything_before(detail: str) -> None:
    """A gap that does not say what was lost makes everything up to it doubtful."""
    gap = parse_gap_detail(detail, node="n", link="up", node_epoch=6, at_us=71)
    assert (gap.lost_epoch, gap.first_us, gap.last_us, gap.last_pos) == (6, None, 71, 2**62)


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
    assert survey.delay_us_min("edge", link="up", stamped_by=hubs, link_epoch=1) == 50
    assert survey.delay_us_min("edge", link="up", stamped_by=hubs, link_epoch=None) == 20
    assert survey.delay_us_min("edge", link="up", stamped_by=frozenset(), link_epoch=None) is None
    assert survey.origins_us("edge", link="up") == (at(1), at(2))
    assert survey.origins_us("edge", link="other") is None
    assert survey.first_live("edge", link="up", since_epoch=0) == (at(1) + 50, 1)
    assert survey.selectors_seen("edge", link="up", since_epoch=0) == {"#", "+"}
    assert survey.log_rows("edge") == (4, 1)
    assert survey.log_span_us("hub") == (at(1), at(2))
