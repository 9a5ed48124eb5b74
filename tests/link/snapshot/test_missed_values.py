"""Values that changed while a link was away: taken over if nobody promised their messages, else a loss."""

from __future__ import annotations

import pytest

from fanout.link.model.events import AuditEnded, QosLowered, TopicsMissing, ValuesReobtained
from fanout.link.model.states import LinkState
from fanout.link.protocol.name_request import NamedAnswer
from fanout.link.snapshot.missed_values import ASK_S, MISSED_MAX, MissedValues
from fanout.mqtt.packets import Connack
from fanout.replica.store import Replica
from fanout.selection import Selector
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config

S = LinkState
VALUES = {b"plant/%d" % number: b"%d" % number for number in range(50)}
QOS_0 = Selector("plant/#", qos=0)


def live(*selectors: Selector, **changes: object) -> Pair:
    """Return a live link to a primary whose values were published at QoS 0."""
    primary = FakePrimary(retained=dict(VALUES), published_qos=0)
    for name, value in changes.items():
        setattr(primary, name, value)
    pair = Pair(make_config(*selectors), primary)
    pair.go_live()
    return pair


def resume_with(pair: Pair, **changed: bytes) -> None:
    """Lose the connection, change values without a message, and connect again."""
    pair.lose()
    for topic, payload in changed.items():
        pair.primary.retained[b"plant/" + topic.encode()] = payload
    pair.connect()


def assert_repaired(pair: Pair, *, epoch: int, changed: dict[bytes, bytes]) -> None:
    """Assert that the link is live in the same epoch, and dispatched each value once."""
    assert pair.is_in(S.LIVE)
    assert S.TEARING_DOWN not in pair.states()
    assert pair.session.lifecycle.epoch == epoch
    assert dict(pair.dispatched()) == changed
    assert len(pair.dispatched()) == len(changed)
    assert pair.of(ValuesReobtained) == [ValuesReobtained(len(changed))]
    (ended,) = pair.of(AuditEnded)
    assert (ended.report.changed, ended.report.reason, ended.report.failure) == (len(changed), "resumed", "")
    assert pair.values() == pair.primary.retained


def test_what_was_published_at_qos_0_is_taken_over() -> None:
    """Changed or new: the epoch goes on, and each value is dispatched once."""
    pair = live()
    epoch = pair.session.lifecycle.epoch
    resume_with(pair, **{"0": b"x", "new": b"y"})
    assert_repaired(pair, epoch=epoch, changed={b"plant/0": b"x", b"plant/new": b"y"})
    pair.events.clear()
    pair.lose()
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert not pair.of(ValuesReobtained), "it is told once"


@pytest.mark.parametrize("qos", [1, 2])
def test_one_promised_message_among_many_is_a_loss(qos: int) -> None:
    """The link does not go live before it knows, and then tears down."""
    pair = live()
    pair.tells_promises = False
    resume_with(pair, **{str(number): b"x" for number in range(30)})
    assert pair.is_in(S.VERIFYING)
    names = pair.session.names_in_doubt(1000)
    assert sorted(names) == sorted(f"plant/{number}" for number in range(30))
    rows = {name: (name.encode(), b"x", 1, 0, b"", None, 0) for name in names[:20]}
    pair.take_promises(NamedAnswer(rows, frozenset(), {}))
    assert pair.is_in(S.VERIFYING)
    rest = {
        name: (name.encode(), b"x", 1 | (qos << 1 if name == names[25] else 0), 0, b"", None, 0) for name in names[20:]
    }
    pair.take_promises(NamedAnswer(rest, frozenset(), {}))
    assert pair.is_in(S.TEARING_DOWN)
    assert "messages were lost: 1 of 10 topics" in pair.reason()
    assert not pair.of(ValuesReobtained)


@pytest.mark.parametrize("case", ["selector", "granted", "3.1.1"])
def test_where_the_session_has_qos_0_nothing_was_promised(case: str) -> None:
    """The primary is not even asked, whatever the QoS of its values."""
    primary = FakePrimary(retained=dict(VALUES), version=4 if case == "3.1.1" else 5)
    config = make_config(*((QOS_0,) if case == "selector" else ()), version=primary.version)
    if case == "granted":
        primary.maximum_qos = 0
    pair = Pair(config, primary)
    pair.go_live_with_events()
    assert bool(pair.of(QosLowered)) == (case == "granted")
    pair.tells_promises = False
    pair.events.clear()
    epoch = pair.session.lifecycle.epoch
    if case == "3.1.1":  # no session is resumed there, but a stall is verified
        pair.wait(10)
        pair.primary.retained[b"plant/0"] = b"x"
        pair.now += 20
        pair.tick()
        assert pair.states() == [S.STALLED, S.VERIFYING, S.LIVE]
    else:
        resume_with(pair, **{"0": b"x"})
    assert_repaired(pair, epoch=epoch, changed={b"plant/0": b"x"})


@pytest.mark.usefixtures("large")
def test_a_session_that_was_left_in_an_audit_was_promised_nothing() -> None:
    """Its subscription had QoS 0; once it is live again it has its own QoS, and the rule is the ordinary one."""
    pair = live(published_qos=1)
    epoch = pair.session.lifecycle.epoch
    pair.audit(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.lose()
    pair.events.clear()
    resume_with(pair, **{"0": b"x"})
    assert_repaired(pair, epoch=epoch, changed={b"plant/0": b"x"})
    pair.primary.retained[b"plant/1"] = b"lost"
    pair.now += 20
    pair.tick()
    assert pair.is_in(S.TEARING_DOWN)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("the primary is away", "the primary is away"),
        (NamedAnswer({}, frozenset(), {"plant/0": 0x87}), "by name at QoS 1"),
        (NamedAnswer({}, frozenset(), {"plant/0": 0}), "by name at QoS 1"),
        (NamedAnswer({}, frozenset({"plant/0"}), {}), "by name at QoS 1"),
    ],
)
def test_a_qos_that_cannot_be_learned_is_a_loss(answer: NamedAnswer | str, why: str) -> None:
    """Nothing shows that the message was not promised; the reason says what is known."""
    pair = live()
    pair.tells_promises = False
    resume_with(pair, **{"0": b"x"})
    pair.take_promises(answer)
    assert pair.is_in(S.TEARING_DOWN)
    assert "1 topics changed without a message" in pair.reason()
    assert why in pair.reason()


def test_requests_that_take_too_long_are_given_up() -> None:
    """The node would not be ready all the time."""
    pair = live()
    pair.tells_promises = False
    resume_with(pair, **{"0": b"x"})
    pair.wait(ASK_S - 0.1)
    assert pair.is_in(S.VERIFYING)
    pair.wait(0.2)
    assert pair.is_in(S.TEARING_DOWN)
    assert "more than 30 s" in pair.reason()


def test_a_topic_without_a_value_by_now_leaves_nothing_to_ask() -> None:
    """It was cleared meanwhile, and that message came."""
    pair = live()
    pair.tells_promises = False
    resume_with(pair, **{"0": b"x"})
    pair.primary.publish(b"plant/0", b"", qos=1)
    pair.pump()
    pair.take_promises(NamedAnswer({}, frozenset({"plant/0"}), {}))
    assert pair.is_in(S.LIVE)
    assert pair.dispatched() == [(b"plant/0", b"x"), (b"plant/0", b"")]


def test_messages_that_come_while_the_primary_is_asked_are_live() -> None:
    """They are dispatched at whatever QoS, also with the value that is held."""
    pair = live()
    pair.tells_promises = False
    resume_with(pair, **{"0": b"x"})
    pair.primary.publish(b"plant/1", b"1", qos=0)
    pair.pump()
    assert pair.dispatched() == [(b"plant/0", b"x"), (b"plant/1", b"1")]


def test_a_doubt_outlives_the_connection() -> None:
    """The next verification finds no difference, because the value was taken over; it is asked about all the same."""
    pair = live(published_qos=1)
    pair.tells_promises = False
    resume_with(pair, **{"0": b"x"})
    assert pair.is_in(S.VERIFYING)
    pair.lose()
    pair.connect()
    assert pair.session.names_in_doubt(10) == ["plant/0"]
    pair.tells_promises = True
    pair.pump()
    assert pair.is_in(S.TEARING_DOWN)


def test_a_connection_that_is_lost_with_each_request_ends_the_doubt() -> None:
    """A primary that takes one connection of a user ends the link's for each request; that does not go on for ever."""
    pair = live()
    pair.tells_promises = False
    resume_with(pair, **{"0": b"x"})
    for _ in range(2):
        assert pair.is_in(S.VERIFYING)
        pair.lose()
        pair.connect()
    assert pair.is_in(S.TEARING_DOWN)
    assert "lost each time" in pair.reason()


@pytest.mark.parametrize(("vanished", "removed"), [(2, True), (20, False)])
def test_what_vanished_at_a_fanout_primary_is_treated_as_in_an_audit(vanished: int, removed: bool) -> None:
    """A clear leaves nothing to ask: few are removed by the manifest, many are kept, and neither ends the session."""
    primary = FakePrimary(retained=dict(VALUES), manifest=True, connack=Connack(False, 0, STAMPING))
    pair = Pair(make_config(Selector("plant/#"), max_removed_percent=5.0), primary)
    pair.go_live()
    epoch = pair.session.lifecycle.epoch
    pair.lose()
    for number in range(vanished):
        del primary.retained[b"plant/%d" % number]
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.epoch == epoch
    assert (pair.values() == primary.retained) == removed
    assert len(pair.dispatched()) == (vanished if removed else 0)
    assert [each.topics for each in pair.of(TopicsMissing)] == ([] if removed else [vanished])


def test_more_than_can_be_asked_is_a_loss() -> None:
    """So many requests take longer than a new snapshot."""
    missed = MissedValues(Replica(selectors=(Selector("plant/#"),)))
    missed.note(MISSED_MAX, (b"plant/%d" % number for number in range(MISSED_MAX)), prefix="", promised=True)
    assert missed.begin_try()
    missed.note(1, [b"plant/more"], prefix="", promised=True)
    assert "more than 100,000 topics changed" in missed.lost
    assert not missed.begin_try()
    assert missed.names(10) == []


def test_selectors_are_judged_together() -> None:
    """One at QoS 0 beside one at QoS 1; names are those at the primary."""
    pair = Pair(
        make_config(Selector("plant/#", prefix="local/"), Selector("weather/#", qos=0)),
        FakePrimary(retained={**VALUES, b"weather/a": b"1"}, published_qos=0),
    )
    pair.go_live()
    epoch = pair.session.lifecycle.epoch
    pair.lose()
    pair.tells_promises = False
    pair.primary.retained |= {b"plant/0": b"x", b"weather/a": b"2"}
    pair.connect()
    assert pair.session.names_in_doubt(10) == ["plant/0"]
    pair.tells_promises = True
    pair.pump()
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.epoch == epoch
    assert pair.of(ValuesReobtained) == [ValuesReobtained(2)]
