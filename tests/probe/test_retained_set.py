"""What the order of packets around a retained set proves."""

from __future__ import annotations

from paho.mqtt.client import MQTTMessage

from fanout.probe.client import Arrival
from fanout.probe.retained_set import RetainedSet

FENCE, CONTROL = "probe/fence", "probe/control"


def message(topic: str, *, at: float = 0.0) -> Arrival:
    """Return a retained message as it arrives."""
    return Arrival("PUBLISH", at, MQTTMessage(topic=topic.encode()))


def taken(*arrivals: Arrival, expected: int | None = 3) -> RetainedSet:
    """Return a set that took these packets."""
    result = RetainedSet("probe/large/", expected, FENCE, CONTROL)
    for arrival in arrivals:
        result.take(arrival)
    return result


SUBACK, PINGRESP = Arrival("SUBACK", 0.0, codes=(0, 0)), Arrival("PINGRESP", 0.0)
SET = [message(f"probe/large/{index}", at=index * 2.0) for index in range(3)]


def test_everything_behind_a_whole_set_proves_it() -> None:
    """SUBACK first, then the set, then the fence, PINGRESP and the marker."""
    result = taken(SUBACK, *SET, message(FENCE), PINGRESP, message(CONTROL))
    assert result.places == {"SUBACK": 0, "fence": 3, "PINGRESP": 3, "marker": 3}
    assert all(result.is_behind(what) for what in ("fence", "PINGRESP", "marker"))
    assert not result.is_behind("SUBACK")
    assert (result.codes, result.pause_s, result.describe("marker")) == ((0, 0), 2.0, "behind all 3")


def test_what_comes_within_the_set_proves_nothing() -> None:
    """A PINGRESP before the last topic has overtaken it; the first place counts, even if another one follows."""
    result = taken(SUBACK, *SET[:2], PINGRESP, SET[2], PINGRESP)
    assert not result.is_behind("PINGRESP")
    assert result.describe("PINGRESP") == "behind 2 of 3"


def test_what_comes_behind_a_short_set_proves_nothing() -> None:
    """A PINGRESP that comes although the set was cut short would be a wrong proof."""
    result = taken(SUBACK, *SET[:2], PINGRESP)
    assert not result.is_whole
    assert not result.is_behind("PINGRESP")
    assert result.describe("PINGRESP") == "behind all 2, of 3 that there are"


def test_what_does_not_come_proves_nothing() -> None:
    """A marker that was dropped."""
    result = taken(SUBACK, *SET)
    assert not result.is_behind("marker")
    assert result.describe("marker") == "it does not come"


def test_topics_of_others_are_no_part_of_the_set() -> None:
    """A second copy of a topic, and topics outside, do not count; a set of unknown size is whole."""
    result = taken(*SET, SET[0], message("probe/other"), PINGRESP, expected=None)
    assert len(result.topics) == 3
    assert result.is_behind("PINGRESP")
