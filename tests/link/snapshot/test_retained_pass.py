"""One pass over the retained sets."""

from __future__ import annotations

import pytest

from fanout.errors import SnapshotUnproved
from fanout.link.model.evidence import Evidence, Order
from fanout.link.protocol.sender import OutgoingMessage, PrimaryLimits
from fanout.link.snapshot.retained_pass import RetainedPass, Step
from fanout.mqtt.decoder import Decoder, Item, PublishRun
from fanout.mqtt.packets import Suback, Subscribe, Unsubscribe
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import Selector
from tests.link.fake_primary import make_config, make_context

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
