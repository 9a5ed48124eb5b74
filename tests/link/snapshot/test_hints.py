"""What an operator is told to do about a set that is not proved, by who the primary is."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.errors import SnapshotUnproved
from fanout.link.model.events import Failed
from fanout.mqtt.packets import Connack
from tests.link.fake_primary import STAMPING, FakePrimary, Pair

VALUES = {b"plant/%d" % number: b"old" for number in range(40)}


def error_of(primary: FakePrimary, *, cut: bool = False) -> SnapshotUnproved:
    """Return what a link to a primary says, which may drop everything behind the first copies of the set."""
    pair = Pair(primary=primary)
    data = pair.connect_until(b"plant/#")
    if cut:
        primary.truncate_after = 5
    primary.receive(data)
    pair.feed(primary.take())
    pair.pump()
    pair.wait(120)
    (failed,) = pair.of(Failed)
    assert isinstance(failed.error, SnapshotUnproved)
    return failed.error


def node(**knobs: Any) -> FakePrimary:
    """Return a fanout node."""
    return FakePrimary(retained=dict(VALUES), connack=Connack(False, 0, STAMPING), manifest=True, **knobs)


@pytest.mark.parametrize(
    ("primary", "told", "not_told"),
    [
        (FakePrimary(retained=dict(VALUES)), "max_queued_messages of Mosquitto", "EMQX"),
        (FakePrimary(retained=dict(VALUES), version_text=b"other 1.0"), "max_mqueue_len at EMQX", "Mosquitto"),
        (node(), "raise snapshot_quiet_s", "Mosquitto"),
    ],
)
def test_a_set_that_is_cut_short_behind_a_slow_line(primary: FakePrimary, told: str, not_told: str) -> None:
    """What can be done on this side comes first; behind it what limits this kind of primary."""
    hint = error_of(primary, cut=True).hint
    assert hint.startswith("On a slow line use narrower selectors")
    assert told in hint
    assert not_told not in hint


def test_what_a_fanout_node_counts_and_does_not_send_was_lost_on_the_way() -> None:
    """It drops nothing by itself."""
    error = error_of(node(lose=lambda number, topic: topic == b"plant/7"))
    assert "got 39 of 40" in error.message
    assert "Mosquitto" not in error.hint


def test_what_is_not_what_a_fanout_node_sent_was_changed_on_the_way() -> None:
    """There are as many, of which one is another."""
    error = error_of(node(alters=b"plant/7"))
    assert "differ from those that the primary says it sent" in error.message
    assert "changes messages on the way" in error.hint


def test_passes_that_lack_nothing_and_bring_others_show_topics_that_are_created() -> None:
    """One in each pass, often enough to be in the next one, and too seldom to keep any from ending."""
    primary = FakePrimary(retained=dict(VALUES), system_topics=False, allow_control=False)
    pair = Pair(primary=primary)
    pair.connect()
    for number in range(20):
        pair.wait(4)
        primary.publish(b"plant/new/%d" % number, b"x", qos=0)
        pair.pump()
        pair.wait(4)
    error = pair.of(Failed)[0].error
    assert isinstance(error, SnapshotUnproved)
    assert "never twice the same: the last pass missed 0 topics" in error.message
    assert "Exclude the branch in which topics are created" in error.hint
