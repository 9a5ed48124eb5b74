"""Messages that cannot be replicated: each costs itself only, is counted and named."""

from __future__ import annotations

from fanout.link.model.events import Applied
from fanout.link.model.skipped import MessageSkipped
from fanout.link.model.states import LinkState
from fanout.mqtt.breaches import SkipReason
from fanout.mqtt.packets import PacketType
from fanout.mqtt.topics import MAX
from fanout.replica.refused import REFUSED_TOPICS_MAX
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config

PREFIX = Selector("plant/#", prefix="site1/", qos=2)
LONG = b"plant/" + b"x" * (MAX - 6)
"""A Topic Name of the greatest length: no local name with a prefix exists for it."""


def acknowledged(pair: Pair) -> list[int]:
    """Return the types of the acknowledgements for the primary."""
    sent = b"".join(each.acknowledgement for each in pair.of(Applied))
    return [sent[at] >> 4 for at in range(0, len(sent), 4)]


def not_held(pair: Pair) -> dict[str, int]:
    """Return the number of topics that are not held, by reason."""
    return {reason: count for reason, (count, _) in pair.replica.refused.skipped(pair.now_ns).items()}


def test_a_retained_topic_too_long_with_its_prefix_is_skipped() -> None:
    """The link is live with all other topics; the skipped one is counted, named, and known not to be held."""
    pair = Pair(make_config(PREFIX), primary=FakePrimary(retained={b"plant/a": b"1", LONG: b"2", b"plant/b": b"3"}))
    pair.go_live_with_events()
    assert pair.values() == {b"site1/plant/a": b"1", b"site1/plant/b": b"3"}
    assert pair.session.skipped.totals[SkipReason.TOPIC_TOO_LONG] == 1
    (skipped,) = pair.of(MessageSkipped)
    assert skipped.topic.startswith("site1/plant/xxx")
    assert len(skipped.topic) < 300
    assert not_held(pair) == {"topic_too_long": 1}


def test_a_live_topic_too_long_with_its_prefix_is_acknowledged_and_skipped() -> None:
    """The primary gets its PUBACK; what comes behind it arrives; nothing ends."""
    pair = Pair(make_config(PREFIX), primary=FakePrimary(retained={b"plant/a": b"1"}))
    pair.go_live()
    epoch = pair.session.lifecycle.epoch
    pair.events.clear()
    pair.primary.publish(LONG, b"1", qos=1)
    pair.primary.publish(LONG, b"2", qos=2, retain=False)
    pair.primary.publish(b"plant/a", b"2", qos=1)
    pair.pump()
    assert pair.values() == {b"site1/plant/a": b"2"}
    assert acknowledged(pair) == [PacketType.PUBACK, PacketType.PUBACK, PacketType.PUBREC]
    assert pair.is_in(LinkState.LIVE)
    assert pair.session.lifecycle.epoch == epoch
    assert pair.session.skipped.totals[SkipReason.TOPIC_TOO_LONG] == 2
    assert not_held(pair) == {"topic_too_long": 1}


def test_a_topic_leaves_the_count_when_it_is_cleared() -> None:
    """A removal at the primary, or an audit that does not bring the topic, ends that it is not held."""
    pair = Pair(make_config(PREFIX), primary=FakePrimary(retained={b"plant/a": b"1", LONG: b"2"}))
    pair.go_live()
    pair.primary.publish(LONG, b"")
    pair.pump()
    assert not_held(pair) == {}
    pair.primary.publish(LONG, b"3")
    pair.pump()
    assert not_held(pair) == {"topic_too_long": 1}
    del pair.primary.retained[LONG]  # without a message, as when it expires
    pair.audit()
    pair.wait(30)
    assert not_held(pair) == {}


def test_the_names_of_topics_that_are_not_held_are_bounded() -> None:
    """Beyond the bound only the reason is known, until a pass brings fewer."""
    pair = Pair(make_config(PREFIX), primary=FakePrimary())
    pair.go_live()
    for number in range(40):
        pair.primary.publish(b"plant/%04d" % number + LONG[10:], b"1")
    pair.pump()
    count, more = pair.replica.refused.skipped(pair.now_ns)["topic_too_long"]
    assert more
    assert 0 < count < 40 < REFUSED_TOPICS_MAX
    assert pair.session.skipped.totals[SkipReason.TOPIC_TOO_LONG] == 40
    assert len(pair.session.skipped.newest) == 16
