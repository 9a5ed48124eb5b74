"""How often missing topics are announced."""

from __future__ import annotations

import json

from fanout.link.missing import BURST_MAX, FILTERS_MAX, REPEAT_S, MissingTopics


def test_an_announcement_names_filter_node_and_time() -> None:
    """As JSON, below the control topic."""
    missing = MissingTopics("fanout/control", node_id="edge-1")
    payload = missing.announcement("plant/+", now=5.0, now_ns=7_000_000)
    assert missing.topic == b"fanout/control/missing"
    assert payload is not None
    assert json.loads(payload) == {"filter": "plant/+", "node": "edge-1", "time_us": 7_000}


def test_a_filter_is_announced_once_in_a_while() -> None:
    """Many clients that ask for the same are one announcement, until some time has passed."""
    missing = MissingTopics("c", node_id="n")
    taken = [missing.announcement("plant/1", now=now, now_ns=1) is not None for now in (0, 1, REPEAT_S - 1, REPEAT_S)]
    assert taken == [True, False, False, True]
    assert (missing.announced_total, missing.suppressed_total) == (2, 2)


def test_only_so_many_are_announced_at_a_time() -> None:
    """A client that asks for a thousand topics does not flood the primary, and memory is bounded."""
    missing = MissingTopics("c", node_id="n")
    for number in range(1000):
        missing.announcement(f"plant/{number}", now=0.0, now_ns=1)
    assert missing.announced_total == BURST_MAX
    assert missing.announcement("plant/later", now=1.0, now_ns=1) is not None
    assert missing.announcement("plant/too soon", now=1.0, now_ns=1) is None
    for number in range(FILTERS_MAX + 1):
        missing.announcement(f"slow/{number}", now=10.0 + number, now_ns=1)
    assert missing.announced_total == BURST_MAX + 1 + FILTERS_MAX + 1
    assert len(missing._last) == FILTERS_MAX
