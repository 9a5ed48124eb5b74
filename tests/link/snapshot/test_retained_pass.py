"""One pass over the retained sets."""

from __future__ import annotations

import pytest

from fanout.errors import LinkLost, PrimaryRefused, SnapshotUnproved
from fanout.link.model.evidence import Evidence, Order
from fanout.link.protocol.sender import OutgoingMessage, PrimaryLimits
from fanout.link.snapshot.retained_pass import RetainedPass, Step
from fanout.mqtt.decoder import Decoder, Item, PublishRun
from fanout.mqtt.packets import Pingreq, Suback, Subscribe, Unsubscribe
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import Selector
from tests.link.fake_primary import make_config, make_context
from tests.replica.passes import end_pass

SENTINEL = b"$SYS/broker/version"
OWN_SENTINEL = b"fanout/control/edge-1/plant/fence"
TWO = (Selector("plant/#"), Selector("office/#", qos=2))


class Case:
    """A pass with everything it needs; it has not begun."""

    def __init__(
        self,
        selectors: tuple[Selector, ...] = (Selector("plant/#"),),
        *,
        version: int = 5,
        permitted: bool = False,
        compare: bool = False,
        paced: bool = False,
        sentinel: bytes = SENTINEL,
        order: Order = Order.KNOWN,
    ) -> None:
        """Prepare a pass without a marker, unless it is permitted."""
        context = make_context(make_config(*selectors, version=version))
        context.control.restore(permitted=permitted)
        context.peer.learn(sentinel, order, "", is_mosquitto=True)
        self.context = context
        self.sender = context.sender
        self.control = context.control
        self.replica = context.replica
        self.converter = context.pipeline.converter
        self.retained_pass = RetainedPass(context, compare=compare, paced=paced, positions=range(len(selectors)))
        self._decoder = Decoder(version=None, packet_bytes_max=1 << 20, role="server")
        self.sender.connect(clean_start=True, password=None, now=0.0)
        self.read()

    def read(self) -> list[Item]:
        """Return what was sent since the last call."""
        return self._decoder.feed(self.sender.take())

    def prove(self) -> None:
        """Bring the evidence for the set under way."""
        packet_id = next(item.packet_id for item in self.read()[::-1] if isinstance(item, Subscribe))
        self.retained_pass.receive_suback(Suback(packet_id, (0, 0)), 1.0)
        self.retained_pass.receive_retained(SENTINEL, b"mosquitto", 1.0)
        self.sender.receive_pingresp()
        self.retained_pass.receive_pingresp(1.0)
        assert self.retained_pass.advance(1.0) is Step.BARRIER
        assert self.retained_pass.advance(1.0) is Step.PROVED

    def hold(self, topic: bytes) -> None:
        """Let the replica hold a topic."""
        update: Update = (topic, b"1", 1, True, b"", 0, 0, content_digest(topic, b"1"), None)
        self.replica.apply([update], phase=Phase.SNAPSHOT)


def test_selectors_follow_one_another() -> None:
    """Behind a proved set come its own QoS, without retained messages, and the next selector, in one write."""
    case = Case(TWO)
    case.retained_pass.begin(0.5)
    assert case.retained_pass.started_s == 0.5
    assert case.retained_pass.advance(1.0) is None
    case.prove()
    case.hold(b"plant/1")
    case.retained_pass.begin_next(1.0)
    own, following, ping = case.read()
    assert isinstance(own, Subscribe)
    assert isinstance(following, Subscribe)
    assert ping == Pingreq()
    assert (own.subscriptions[0].topic_filter, own.subscriptions[0].qos) == (b"plant/#", 1)
    assert own.subscriptions[0].retain_handling == 2
    assert (following.subscriptions[0].topic_filter, following.subscriptions[0].qos) == (b"office/#", 0)
    assert following.subscriptions[1].topic_filter == SENTINEL
    assert case.retained_pass.topics_total == 1
    assert case.converter.fixed_qos == [1, 2]
    case.retained_pass.receive_suback(Suback(own.packet_id, (1,)), 1.1)
    assert case.converter.fixed_qos == [None, 2]
    assert case.retained_pass.index == 1


def test_an_audit_rests_between_two_sets() -> None:
    """As long as the set took, so that half of the time is for others; the next one begins at a tick."""
    case = Case(TWO, paced=True)
    case.retained_pass.begin(0.0)
    case.prove()
    case.retained_pass.begin_next(3.0)
    (own,) = case.read()
    assert isinstance(own, Subscribe)
    case.retained_pass.receive_suback(Suback(own.packet_id, (1,)), 3.0)
    assert case.retained_pass.deadline == 6.0
    case.retained_pass.tick(5.9)
    assert case.read() == []
    assert case.retained_pass.advance(5.9) is None
    case.retained_pass.tick(6.0)
    (following, _) = case.read()
    assert isinstance(following, Subscribe)
    assert following.subscriptions[0].topic_filter == b"office/#"


def test_the_pass_is_done_when_all_subscriptions_have_their_own_qos() -> None:
    """The last answer ends it."""
    case = Case()
    case.retained_pass.begin(0.0)
    case.prove()
    evidence = case.retained_pass.evidence
    assert evidence is Evidence.BARRIER
    case.retained_pass.begin_next(1.0)
    (own,) = case.read()
    assert isinstance(own, Subscribe)
    assert case.retained_pass.advance(1.0) is None
    assert case.retained_pass.evidence is None
    assert case.retained_pass.topics_now == 0
    assert case.retained_pass.deadline == 6.0
    case.retained_pass.tick(5.9)
    case.retained_pass.receive_suback(Suback(77, (1,)), 2.0)
    case.retained_pass.receive_suback(Suback(own.packet_id, (1,)), 2.0)
    assert case.retained_pass.advance(1.0) is Step.DONE
    assert case.retained_pass.deadline == float("inf")


@pytest.mark.parametrize(("version", "qos"), [(5, 0), (4, 1)])
def test_no_own_qos_is_requested_at_qos_0_and_in_mqtt_3_1_1(version: int, qos: int) -> None:
    """Where a second SUBSCRIBE makes no sense, or would bring everything again, there is none."""
    case = Case((Selector("plant/#", qos=qos),), version=version)
    case.retained_pass.begin(0.0)
    case.prove()
    case.retained_pass.begin_next(1.0)
    assert case.read() == []
    assert case.retained_pass.advance(1.0) is Step.DONE
    assert case.converter.fixed_qos == [qos]


def test_a_marker_is_sent_where_it_may_and_there_is_room() -> None:
    """The marker follows PINGREQ; without room in flight there is none."""
    case = Case(permitted=True)
    case.retained_pass.begin(0.0)
    assert len(case.read()) == 3
    full = Case(permitted=True)
    full.sender.accept(PrimaryLimits(receive_maximum=1))
    full.sender.publish(OutgoingMessage(b"t", b"1"), now=0.0)
    full.retained_pass.begin(0.0)
    full.prove()


def test_the_marker_is_part_of_the_evidence() -> None:
    """With the marker back, the evidence is the stronger one."""
    case = Case(permitted=True)
    case.retained_pass.begin(0.0)
    packet_id = next(item.packet_id for item in case.read() if isinstance(item, Subscribe))
    case.retained_pass.receive_suback(Suback(packet_id, (0, 0)), 1.0)
    case.retained_pass.receive_retained(SENTINEL, b"mosquitto", 1.0)
    case.retained_pass.receive_pingresp(1.0)
    assert case.retained_pass.advance(1.0) is Step.BARRIER
    assert case.retained_pass.advance(1.0) is None
    case.retained_pass.receive_control(b"7 1", 1.0)
    assert case.retained_pass.advance(1.0) is Step.PROVED
    assert case.retained_pass.evidence is Evidence.MARKER


def test_a_ping_under_way_delays_the_beginning() -> None:
    """Only the next PINGRESP starts the pass, so that it cannot be taken for the barrier."""
    case = Case()
    case.sender.ping(0.0)
    case.read()
    case.retained_pass.begin(0.0)
    assert case.read() == []
    started_s = case.retained_pass.started_s
    assert started_s is None
    case.sender.receive_pingresp()
    case.retained_pass.receive_pingresp(3.0)
    assert case.retained_pass.started_s == 3.0
    assert len(case.read()) == 2


def test_a_pass_that_has_not_begun_ignores_everything() -> None:
    """Before the first SUBSCRIBE nothing can be meant for it."""
    case = Case()
    case.sender.ping(0.0)
    case.retained_pass.begin(0.0)
    case.retained_pass.receive_bytes(1.0)
    case.retained_pass.receive_suback(Suback(9, (0x80,)), 1.0)
    case.retained_pass.receive_unsuback(9)
    case.retained_pass.receive_control(b"x", 1.0)
    case.retained_pass.receive_retained(SENTINEL, b"mosquitto", 1.0)
    case.retained_pass.tick(4.9)
    assert case.retained_pass.advance(1.0) is None
    assert case.retained_pass.deadline == 5.0
    with pytest.raises(LinkLost, match="PINGREQ"):
        case.retained_pass.tick(5.0)


def test_a_pass_at_its_own_qos_ignores_a_pingresp() -> None:
    """Behind the last set a PINGRESP starts nothing again."""
    case = Case()
    case.retained_pass.begin(0.0)
    case.prove()
    case.retained_pass.begin_next(1.0)
    case.read()
    case.retained_pass.receive_pingresp(2.0)
    assert case.read() == []


def test_refusals_name_the_selector() -> None:
    """Either SUBSCRIBE may be refused."""
    case = Case(TWO)
    case.retained_pass.begin(0.0)
    case.prove()
    case.retained_pass.begin_next(1.0)
    own, following, _ = case.read()
    assert isinstance(own, Subscribe)
    assert isinstance(following, Subscribe)
    with pytest.raises(PrimaryRefused, match="office/#"):
        case.retained_pass.receive_suback(Suback(following.packet_id, (0x87, 0)), 1.0)
    with pytest.raises(PrimaryRefused, match="plant/#"):
        case.retained_pass.receive_suback(Suback(own.packet_id, (0x87,)), 1.0)


def test_silence_is_a_snapshot_that_was_cut_short() -> None:
    """The error says how much came, what is missing, and what to do."""
    case = Case()
    case.retained_pass.begin(0.0)
    case.hold(b"plant/1")
    case.retained_pass.receive_bytes(3.0)
    assert case.retained_pass.deadline == 5.0
    case.retained_pass.tick(5.0)
    probe = case.read()[-1]
    assert isinstance(probe, Unsubscribe)
    assert probe.topic_filters == (b"fanout/control/edge-1/plant/probe",)
    case.retained_pass.receive_bytes(5.5)
    case.retained_pass.tick(6.0)
    assert case.read() == []
    with pytest.raises(SnapshotUnproved) as raised:
        case.retained_pass.tick(10.5)
    expected = "the retained set of plant/# ended after 1 topics without SUBACK and the sentinel and PINGRESP"
    assert raised.value.message == expected
    assert "max_queued_messages" in raised.value.hint


def test_an_answered_probe_shows_the_cut_at_once() -> None:
    """A probe that is answered before SUBACK means that SUBACK was dropped."""
    case = Case()
    case.retained_pass.begin(0.0)
    case.read()
    case.retained_pass.receive_bytes(4.0)
    case.retained_pass.tick(5.0)
    probe = case.read()[0]
    assert isinstance(probe, Unsubscribe)
    case.retained_pass.receive_unsuback(probe.packet_id)
    with pytest.raises(SnapshotUnproved):
        case.retained_pass.tick(5.1)


def test_a_subscription_that_is_not_answered_is_unproved() -> None:
    """The subscription at its own QoS must be answered within the quiet time."""
    case = Case()
    case.retained_pass.begin(0.0)
    case.prove()
    case.retained_pass.begin_next(1.0)
    with pytest.raises(SnapshotUnproved, match="does not answer SUBSCRIBE"):
        case.retained_pass.tick(6.0)


def test_a_comparing_pass_notes_what_comes() -> None:
    """A verification notes the topics even of an empty replica; a first snapshot does not need to."""
    comparing = Case(compare=True)
    comparing.retained_pass.begin(0.0)
    comparing.hold(b"plant/1")
    assert end_pass(comparing.replica).changed == (b"plant/1",)
    first = Case()
    first.retained_pass.begin(0.0)
    first.hold(b"plant/1")
    assert end_pass(first.replica).changed == ()
    again = Case()
    again.hold(b"plant/1")
    again.retained_pass.begin(0.0)
    assert end_pass(again.replica).unseen == (b"plant/1",)


def test_copies_are_over_when_every_topic_came_and_the_barrier_too() -> None:
    """Then what follows is live."""
    case = Case(compare=True)
    case.hold(b"plant/1")
    case.retained_pass.begin(0.0)
    assert not case.retained_pass.copies_complete
    assert case.retained_pass.topics_now == 0
    case.hold(b"plant/1")
    assert case.retained_pass.topics_now == 1
    assert not case.retained_pass.copies_complete
    case.prove()
    assert case.retained_pass.copies_complete


@pytest.mark.parametrize(
    ("compare", "version", "sentinel", "limits", "renewed"),
    [
        (True, 5, OWN_SENTINEL, PrimaryLimits(), True),
        (False, 5, OWN_SENTINEL, PrimaryLimits(), False),
        (True, 5, SENTINEL, PrimaryLimits(), False),
        (True, 4, OWN_SENTINEL, PrimaryLimits(), False),
        (True, 5, OWN_SENTINEL, PrimaryLimits(receive_maximum=1), False),
        (True, 5, OWN_SENTINEL, PrimaryLimits(retain_available=False), False),
    ],
)
def test_a_comparison_publishes_the_links_own_sentinel_again(
    compare: bool, version: int, sentinel: bytes, limits: PrimaryLimits, renewed: bool
) -> None:
    """A snapshot has one that is new, MQTT 3.1.1 one that does not expire; and the primary must take it."""
    case = Case(version=version, compare=compare, sentinel=sentinel, order=Order.LIKELY)
    case.sender.accept(limits)
    if limits.receive_maximum == 1:
        case.sender.publish(OutgoingMessage(b"t", b"1"), now=0.0)
    case.sender.ping(0.0)
    case.read()
    case.retained_pass.begin(0.0)
    published = [row[0] for item in case.read() if isinstance(item, PublishRun) for row in item.rows]
    assert published == ([OWN_SENTINEL] if renewed else [])
    case.sender.receive_pingresp()
    case.retained_pass.receive_pingresp(1.0)
    assert not any(isinstance(item, PublishRun) for item in case.read()), "once is enough"
