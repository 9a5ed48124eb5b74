"""What of a session on disk holds under the configuration of the next process, and how a session takes it over."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fanout.config import Address, LinkConfig
from fanout.link.durability.session_codec import encode_session, find_resumption
from fanout.link.model.events import Applied, TearDown
from fanout.link.model.evidence import Evidence, Order
from fanout.link.model.resumption import StoredSession
from fanout.link.model.states import LinkState
from fanout.link.protocol.sender import OutgoingMessage
from fanout.mqtt.packets import Ack, PacketType
from fanout.replica.update import Phase
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config

PLANT = Selector("plant/#", exclude=("plant/debug/#",), content=("json",))
OFFICE = Selector("office/+", qos=2, prefix="hq/")
CONFIG = make_config(PLANT, OFFICE)
SESSION = StoredSession(
    epoch=7,
    evidence=(Evidence.MARKER, None),
    sentinel=b"$SYS/broker/version",
    order=Order.LIKELY,
    why_unordered="nothing shows it",
    control_permitted=True,
    session_expiry_s=300,
    unreleased=frozenset({5, 9}),
    unfinished=frozenset({11}),
    stale_filters=frozenset({"old/#"}),
)


def stored(session: StoredSession = SESSION, config: LinkConfig = CONFIG) -> bytes:
    """Return the session as the file has it."""
    return encode_session(session, config, node_id="edge-1", seen_ns=99)


def test_the_same_configuration_gets_the_whole_session() -> None:
    """Everything comes back, and every value is good."""
    resumption = find_resumption(stored(), CONFIG, node_id="edge-1")
    assert resumption is not None
    assert resumption.session == SESSION
    assert resumption.selectors == (PLANT, OFFICE)
    assert resumption.seen_ns == 99


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 4},
        {"session_expiry_s": 0},
        {"client_id": "other"},
        {"control_topic": "other/control"},
        {"primaries": (Address("mqtt", "other", 1883),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_session_is_not_resumed(changes: dict[str, object]) -> None:
    """A link that has, or may have, another session at its primary begins anew."""
    assert find_resumption(stored(), replace(CONFIG, **changes), node_id="edge-1") is None  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [None, b"", b"not JSON", b"[]", b"{}", b'{"format": 2}'])
def test_what_is_no_session_is_not_resumed(data: bytes | None) -> None:
    """Nothing, or what nobody wrote, is no session."""
    assert find_resumption(data, CONFIG, node_id="edge-1") is None


def test_a_further_address_of_the_same_primary_changes_nothing() -> None:
    """One address in common is enough."""
    config = replace(CONFIG, primaries=(Address("mqtt", "second", 1883), *CONFIG.primaries))
    assert find_resumption(stored(), config, node_id="edge-1") is not None


def test_selectors_that_changed_begin_anew() -> None:
    """A selector is the same only as a whole; one that is gone leaves its filter to be unsubscribed."""
    narrower = replace(PLANT, exclude=("plant/debug/#", "plant/test/#"))
    resumption = find_resumption(stored(), make_config(Selector("yard/#"), narrower), node_id="edge-1")
    assert resumption is not None
    assert resumption.selectors == ()
    assert resumption.session.evidence == (None, None)
    assert resumption.session.stale_filters == {"old/#", "office/+"}
    resumption = find_resumption(stored(), make_config(Selector("old/#"), PLANT), node_id="edge-1")
    assert resumption is not None
    assert resumption.selectors == (PLANT,)
    assert resumption.session.evidence == (None, Evidence.MARKER)
    assert resumption.session.stale_filters == {"office/+"}, "what is selected again is not unsubscribed"


def test_evidence_of_another_version_is_none() -> None:
    """A kind of evidence that this version does not know proves nothing."""
    document = json.loads(stored())
    document["evidence"][0] = "oracle"
    resumption = find_resumption(json.dumps(document).encode(), CONFIG, node_id="edge-1")
    assert resumption is not None
    assert resumption.session.evidence == (None, None)


# The session machine.


def next_process(pair: Pair, config: LinkConfig | None = None, *, away_s: float = 1.0) -> Pair:
    """Return a machine with what the one of `pair` left on disk, at the same primary."""
    session = pair.session.stored_session()
    data = b"" if session is None else encode_session(session, pair.config, node_id="edge-1", seen_ns=pair.now_ns)
    again = Pair(config or pair.config, pair.primary, topics_max=pair.replica.topics_max)
    again.now = pair.now + away_s
    resumption = find_resumption(data, again.config, node_id="edge-1")
    if resumption is not None:
        for update in pair.replica.values.values():
            if any(selector.covers_local(update[0]) for selector in resumption.selectors):
                again.replica.apply([update], phase=Phase.SNAPSHOT)
        again.session.restore(resumption, now_ns=again.now_ns, now=again.now)
    return again


def live(config: LinkConfig | None = None) -> Pair:
    """Return a machine that is live, with two values."""
    pair = Pair(config, FakePrimary(retained={b"plant/a": b"1", b"office/b": b"2"}))
    pair.go_live()
    return pair


def test_the_next_process_resumes_and_verifies() -> None:
    """Clean Start 0, the same epoch, no value dispatched again; live only when verified."""
    pair = live()
    again = next_process(pair)
    again.connect()
    assert not again.primary.connects[-1].clean_start
    assert again.states() == [
        LinkState.CONNECTING,
        LinkState.RESUMING,
        LinkState.VERIFYING,
        LinkState.LIVE,
    ]
    assert again.session.lifecycle.epoch == pair.session.lifecycle.epoch
    assert again.dispatched() == []
    assert again.values() == {b"plant/a": b"1"}


def test_a_replica_older_than_the_session_is_given_up_offline() -> None:
    """The time in which nobody ran counts towards the life of the session."""
    again = next_process(live(), away_s=290.0)
    again.wait(9.0)
    assert again.of(TearDown) == []
    again.wait(2.0)
    assert "has expired" in again.reason()


def test_stale_filters_are_unsubscribed_until_it_is_answered() -> None:
    """UNSUBSCRIBE is sent for what is not selected any more, and again by the next process if nobody answered."""
    pair = live(make_config(Selector("plant/#"), Selector("office/#")))
    config = make_config(Selector("plant/#"))
    again = next_process(pair, config)
    again.connect(pump=False)
    assert again.stored().stale_filters == {"office/#"}
    again = next_process(again, config)
    again.connect()
    sent = [packet.topic_filters for packet in again.primary.unsubscribes]
    assert [filters for filters in sent if not filters[0].startswith((b"$SYS/", b"fanout/"))] == [(b"office/#",)]
    assert again.is_in(LinkState.LIVE)
    assert again.stored().stale_filters == frozenset()
    assert again.values() == {b"plant/a": b"1"}


def test_a_selector_that_has_wildcards_now_asks_whether_they_are_answered() -> None:
    """The capability check of the epoch had no reason to ask; without it an empty set would look whole."""
    primary = FakePrimary(retained={b"plant/a": b"1", b"plant/b": b"2"}, system_topics=False, wildcards=False)
    pair = Pair(make_config(Selector("plant/a")), primary)
    pair.go_live()
    again = next_process(pair, make_config(Selector("plant/+")))
    again.connect()
    again.wait(2.0)
    assert LinkState.LIVE not in again.states()
    assert "sends no retained messages for Topic Filters with wildcards" in again.reason()


def test_a_qos_2_message_that_was_applied_is_not_applied_again() -> None:
    """The next process answers PUBREC for it, and knows nothing of it after PUBREL."""
    pair = live(make_config(Selector("plant/#", qos=2)))
    pair.primary.deliver(b"plant/x", b"once", qos=2, packet_id=77)
    pair.feed(pair.primary.take())
    assert pair.stored().unreleased == {77}
    again = next_process(pair)
    again.connect(pump=False)
    again.pump()
    again.events.clear()
    again.primary.deliver(b"plant/x", b"once", qos=2, packet_id=77, dup=True)
    again.feed(again.primary.take())
    assert again.dispatched() == []
    (applied,) = again.of(Applied)
    assert applied.acknowledgement
    again.primary.send(Ack(PacketType.PUBREL, 77))
    again.pump()
    assert again.stored().unreleased == frozenset()


def test_a_value_that_an_earlier_process_took_is_not_sent_to_clients_again() -> None:
    """The primary may send it again, and not know that it does; its clients have read it. A newer one is sent."""
    pair = live()
    pair.primary.deliver(b"plant/a", b"2", qos=1, retain=True, packet_id=5)
    pair.feed(pair.primary.take())
    again = next_process(pair)
    again.connect(pump=False)
    again.primary.receive(again.session.take_output())
    again.primary.deliver(b"plant/a", b"2", qos=1, retain=True, packet_id=5)
    again.primary.deliver(b"plant/a", b"3", qos=1, retain=True, packet_id=6)
    again.primary.retained[b"plant/a"] = b"3"
    again.pump()
    assert again.session.lifecycle.state is LinkState.LIVE
    assert again.dispatched() == [(b"plant/a", b"3")]
    again.primary.deliver(b"plant/a", b"3", qos=1, retain=True, packet_id=7)
    again.pump()
    assert again.dispatched() == [(b"plant/a", b"3"), (b"plant/a", b"3")]


def test_a_qos_2_message_to_the_primary_is_released_and_not_sent_again() -> None:
    """Its publisher was not answered, and sends it again if it wants; the Packet Identifier becomes free."""
    config = make_config(Selector("plant/#", writes="forward"))
    pair = live(config)
    pair.session.forward(OutgoingMessage(b"plant/x", b"1", qos=2), now_ns=pair.now_ns, now=pair.now)
    pair.primary.receive(pair.session.take_output())
    pair.feed(pair.primary.take())
    pair.primary.swallow = (Ack,)
    pair.pump()
    (packet_id,) = pair.stored().unfinished
    pair.primary.swallow = ()
    again = next_process(pair)
    again.connect()
    assert (PacketType.PUBREL, packet_id) in again.primary.acks
    assert [topic for topic, *_ in again.primary.published].count(b"plant/x") == 1
    assert again.stored().unfinished == frozenset()


def test_what_a_limit_kept_out_is_found_again() -> None:
    """Completeness does not come back by a restart: the comparison before the link is live brings it again."""
    pair = Pair(None, FakePrimary(retained={b"plant/a": b"1", b"plant/b": b"2"}), topics_max=1)
    pair.go_live()
    assert pair.replica.refused.limits(pair.now_ns) == ("topics_max",)
    again = next_process(pair)
    again.connect()
    again.pump()
    assert again.states()[-1] is LinkState.LIVE
    assert again.session.lifecycle.epoch == pair.session.lifecycle.epoch
    assert again.replica.refused.limits(again.now_ns) == ("topics_max",)
