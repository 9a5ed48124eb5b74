"""The JSON in the details of events."""

from __future__ import annotations

import json

import pytest

from fanout.reports.read.details import (
    Limits,
    LinkConfig,
    Selection,
    parse_alarm_detail,
    parse_gap_detail,
    parse_start_detail,
)
from tests.reports.logs import selector

LINK = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("b/#"), selector("a/#", "a/y", "a/x")]}
CONFIG = LinkConfig("up", ("mqtt://hub",), (Selection("a/#", ("a/x", "a/y")), Selection("b/#")))


def test_start_detail_is_read_as_documented() -> None:
    """Selectors and excludes come in order; an address alone is a list of one; unknown keys are ignored."""
    detail = {"format": 1, "version": "0.1.0", "links": [LINK | {"new": 1}], "more": {}}
    assert parse_start_detail(json.dumps(detail)) == (CONFIG,)
    detail["links"] = [LINK | {"primary": "mqtt://hub"}]
    assert parse_start_detail(json.dumps(detail)) == (CONFIG,)
    assert parse_start_detail('{"format": 1, "links": []}') == ()
    detail["links"] = [LINK | {"control_topic": "own"}]
    links = parse_start_detail(json.dumps(detail))
    assert links is not None
    assert {selection.control_topic for selection in links[0].selections} == {"own"}
    narrow = {"retained_only": True, "max_payload": 9, "content": ["json"], "live_only": True}
    aged = LINK | {"max_age_s": 0.5, "max_age_qos": 2, "selectors": [selector("a/#") | narrow, selector("b/#")]}
    links = parse_start_detail(json.dumps({"format": 1, "links": [aged]}))
    assert links is not None
    first, second = (selection.limits for selection in links[0].selections)
    assert first == Limits(9, retained_only=True, live_only=True, content=True, max_age_s=0.5, max_age_qos=1)
    assert (first.keeps_values_out, second.keeps_values_out) == (True, False)
    assert second == Limits(max_age_s=0.5, max_age_qos=1), "of messages at QoS 1 at most, as it is subscribed"


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
        "[" * 100_000,
        '{"format": 1, "links": [{"name": "\\ud800", "primary": "a", "selectors": []}]}',
        *(
            '{"format": 1, "links": [{"name": "x", "primary": "a", "selectors": [{"filter": "#"'
            f"{selector}}}]{link}}}]}}"
            for selector, link in (
                (', "max_payload": 1e999', ""),
                (', "max_payload": 1e300', ""),
                (', "max_payload": -1', ""),
                (', "qos": Infinity', ""),
                ("", ', "max_age_s": NaN'),
                ("", ', "max_age_s": 1e999'),
                ("", ', "max_age_s": 1, "max_age_qos": 1e999'),
            )
        ),
    ],
)
def test_start_detail_of_another_shape_is_not_guessed_at(detail: str) -> None:
    """What is not of the documented shape says nothing."""
    assert parse_start_detail(detail) is None


@pytest.mark.parametrize(
    ("topic_filter", "reaches"),
    [
        ("#", True),
        ("+/#", True),
        ("+/+/x", True),
        ("fanout/#", True),
        ("fanout/control/+", True),
        ("fanout/control", False),
        ("fanout/+", False),
        ("plant/#", False),
        ("+/plant/#", False),
    ],
)
def test_selections_know_whether_they_reach_the_control_topic(topic_filter: str, reaches: bool) -> None:
    """Only a filter that can match below the control topic has to leave it out."""
    assert Selection(topic_filter).reaches_control is reaches
    assert not Selection("#", (), "$control").reaches_control


def test_gap_detail_is_read_as_documented() -> None:
    """Unknown counts of a crash stay unknown; an unknown begin is that of the process whose rows were lost."""
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
    assert (gap.lost_epoch, gap.first_us, gap.last_us, gap.last_pos, gap.lost_positions) == (5, 5, 70, 0, 0)
    detail |= {"rows": 3, "events": 1, "last_log_pos": 11, "first_us": 60, "last_us": None}
    gap = parse_gap_detail(json.dumps(detail), node="n", link="", node_epoch=6, at_us=71)
    assert (gap.first_us, gap.last_us, gap.last_pos, gap.lost_positions) == (60, 71, 11, 4)


WHOLE_GAP = (
    '{"node_epoch": 5, "first_us": 1, "last_us": 2, "last_log_pos": 3, "rows": 1, "events": 1, "first_log_pos": 1}'
)


@pytest.mark.parametrize(
    "detail",
    [
        "",
        "{}",
        "[1]",
        '{"first_us": "x"}',
        "[" * 100_000,
        *(WHOLE_GAP.replace(old, new) for old in (": 5", ": 2", ": 3") for new in (": 1e999", ": 1e300", ": -1")),
    ],
)
def test_gap_detail_of_another_shape_may_mean_anything_before(detail: str) -> None:
    """A gap that does not say what was lost makes everything up to it doubtful."""
    gap = parse_gap_detail(detail, node="n", link="up", node_epoch=6, at_us=71)
    assert (gap.lost_epoch, gap.first_us, gap.last_us, gap.last_pos) == (6, None, 71, 2**62)


def test_alarm_detail_is_what_a_person_should_read() -> None:
    """The message, what it is about and why, and the hint; of skipped messages the reason; never more than a bound."""
    line = {"level": "warning", "message": "link is down", "error": "Not authorized (0x87)", "hint": "Grant it"}
    assert parse_alarm_detail(json.dumps(line)) == ("link is down", "Not authorized (0x87)", "Grant it")
    missing = {"message": "topics did not come", "selector": "a/#", "branch": "", "causes": "deleted", "hint": None}
    assert parse_alarm_detail(json.dumps(missing)) == ("topics did not come", "a/#, deleted", "")
    skipped = {"reason": "packet_too_large", "messages": 5, "topics": ["a"]}
    assert parse_alarm_detail(json.dumps(skipped)) == ("packet_too_large", "", "")
    assert max(map(len, parse_alarm_detail(json.dumps({"message": "x" * 9_000, "error": "y" * 9_000})))) == 512
    assert parse_alarm_detail('{"message": "a\\ud800"}') == ("a?", "", "")
    for detail in ("", "[]", "7", "null", "{}", '{"messages": 1}', "[" * 100_000):
        assert parse_alarm_detail(detail) == ("", "", "")
