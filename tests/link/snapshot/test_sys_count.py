"""The rung `count`: what the primary counts, and what is held."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.link.model.events import SelectorComplete
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.link.protocol.sender import PacketSender
from fanout.link.snapshot.sys_count import CountState, SysCount
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import Running, config_for, logging_to, running
from tests.support.mosquitto import Mosquitto, load_retained

EVERYTHING = Selector("#")
FIGURE = b"$SYS/broker/retained messages/count"
UPTIME = b"$SYS/broker/uptime"
OWN = {b"$SYS/broker/clients": b"1", UPTIME: b"1 seconds", FIGURE: b"0"}
VALUES = {b"plant/%d" % number: b"x" for number in range(20)}


def counting_pair(**more: bytes) -> Pair:
    """Return a live link that replicates everything from a primary that counts its retained messages."""
    primary = FakePrimary(retained=VALUES | OWN)
    primary.retained[b"$SYS/broker/version"] = primary.version_text
    primary.system_topics = False
    pair = Pair(make_config(EVERYTHING, audit_interval_s=0.0, **more), primary)
    pair.go_live_with_events()
    return pair


def tick(pair: Pair, *, more: int = 0) -> None:
    """Let the primary tell its uptime, then how many retained messages it has: by `more` too many."""
    primary = pair.primary
    count = len(primary.retained) + more
    primary.deliver(UPTIME, b"later", retain=True)
    primary.deliver(FIGURE, b"%d" % count, retain=True)
    pair.pump()


def evidence(pair: Pair) -> Evidence | None:
    """Return the evidence for the one selector."""
    return pair.session.lifecycle.evidence[0]


def test_the_primarys_own_topics_are_part_of_its_count() -> None:
    """With them, and with control topics, as many are held as it counts; then they are not asked for any more."""
    pair = counting_pair()
    pair.primary.publish(b"fanout/control/edge-2/plant/fence", b"fence")
    pair.pump()
    assert evidence(pair) is Evidence.MARKER
    tick(pair)
    assert evidence(pair) is Evidence.COUNT
    assert pair.of(SelectorComplete) == [SelectorComplete(0, Evidence.MARKER), SelectorComplete(0, Evidence.COUNT)]
    assert pair.primary.unsubscribes[-1].topic_filters == (b"$SYS/#",)
    assert pair.session.counters.outside_total == 1, "another node's sentinel"
    tick(pair, more=1)
    assert evidence(pair) is Evidence.COUNT, "it is a matter of the moment at which it was compared"


def test_a_name_that_is_too_long_is_not_remembered() -> None:
    """Ten thousand of them would take 650 MB; then nothing is claimed."""
    pair = counting_pair()
    pair.primary.deliver(b"$SYS/" + b"x" * 2_000, b"1", retain=True)
    pair.pump()
    tick(pair, more=1)
    assert evidence(pair) is Evidence.MARKER


def test_a_figure_is_about_its_moment() -> None:
    """What comes behind the uptime is not part of the figure that follows it, even in the same read."""
    pair = counting_pair()
    primary = pair.primary
    count = len(primary.retained)
    primary.publish(b"plant/before", b"x", qos=0)
    primary.deliver(UPTIME, b"later", retain=True)
    primary.deliver(FIGURE, b"%d" % (count + 1), retain=True)
    primary.publish(b"plant/behind", b"x", qos=0)
    pair.pump()
    assert evidence(pair) is Evidence.COUNT
    other = counting_pair()
    other.primary.deliver(UPTIME, b"later", retain=True)
    other.primary.deliver(FIGURE, b"%d" % (count + 1), retain=True)
    other.primary.publish(b"plant/behind", b"x", qos=0)
    other.pump()
    assert evidence(other) is Evidence.MARKER


def test_only_mosquitto_is_known_to_count_its_own_topics() -> None:
    """Elsewhere sums may be equal although topics are missing: nothing is compared, even where the order was shown."""
    primary = FakePrimary(retained=VALUES | OWN, version_text=b"other 1.0")
    pair = Pair(make_config(EVERYTHING, audit_interval_s=0.0), primary)
    pair.go_live()
    assert evidence(pair) is Evidence.MARKER
    tick(pair)
    assert evidence(pair) is Evidence.MARKER
    assert pair.primary.asked(b"$SYS/#") == 0


@pytest.mark.parametrize("short", [1, -1])
def test_a_count_that_does_not_agree_proves_nothing(short: int) -> None:
    """Others may be there that cannot be read; after some figures the comparison ends, and says what it found."""
    pair = counting_pair()
    for _ in range(6):
        tick(pair, more=short)
        pair.now += 10
    assert evidence(pair) is Evidence.MARKER
    assert f"the primary counts {24 + short}, and 24 are here, 4 of its own topics among them" in pair.session.count.why
    asked = pair.primary.asked(b"$SYS/#")
    tick(pair)
    assert evidence(pair) is Evidence.MARKER
    assert pair.primary.asked(b"$SYS/#") == asked


def difference_of(link: Running) -> str | None:
    """Return what the status of a link says of the primary's count."""
    return link.status.count_difference


async def test_a_shortfall_shows_in_the_status_and_once_in_the_log() -> None:
    """Whatever `min_evidence` is: the node is ready with what proved the set, and says that the primary counts more."""
    primary = FakePrimary(retained=VALUES | OWN)
    primary.retained[b"$SYS/broker/version"] = primary.version_text
    primary.system_topics = False
    lines: list[dict[str, object]] = []
    async with FakeServer(primary) as server:
        config = config_for(server.port, EVERYTHING, audit_interval_s=0.0, heartbeat_s=0.0)
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait_state(LinkState.LIVE)
            assert difference_of(link) is None

            def told_once_it_counted() -> bool:
                primary.deliver(UPTIME, b"later", retain=True)
                primary.deliver(FIGURE, b"30", retain=True)
                server.push()
                return any("counts other" in str(line["event"]) for line in lines)

            await link.wait(told_once_it_counted)
            assert link.status.ready
            told = "the primary counts 30, and 24 are here, 4 of its own topics among them"
            assert difference_of(link) == told
    assert [line["difference"] for line in lines if "counts other" in str(line["event"])] == [told]


def test_an_agreement_leaves_no_difference() -> None:
    """Nor does a comparison that has not been made in this session, or one that says nothing."""
    pair = counting_pair()
    tick(pair, more=1)
    assert "counts 25" in pair.session.count.difference
    tick(pair)
    assert pair.session.count.difference == ""
    other = Pair(make_config(), FakePrimary(retained=dict(VALUES)))
    other.go_live()
    assert other.session.count.difference == ""
    again = counting_pair()
    tick(again, more=1)
    again.lose()
    again.primary.has_session = False
    again.connect()
    again.tear_down()
    assert again.session.count.difference == ""


def test_the_system_topics_do_not_bring_the_sentinel_of_an_audit() -> None:
    """An audit that begins while they are on their way waits until they are there."""
    pair = counting_pair()
    pair.lose()
    pair.connect_to(LinkState.LIVE)
    pair.audit(pump=False)
    asked = pair.primary.asked(b"#")
    pair.primary.receive(pair.session.take_output())
    assert pair.primary.asked(b"$SYS/#") == 2
    assert pair.primary.asked(b"#") == asked
    pair.pump()
    assert pair.primary.asked(b"#") == asked + 1
    assert not pair.session.lifecycle.auditing


@pytest.mark.parametrize(
    "selectors",
    [
        (Selector("plant/#"),),
        (Selector("#", exclude=("office/#",)),),
        (Selector("#", retained_only=True),),
        (Selector("plant/#"), Selector("office/#")),
    ],
)
def test_only_a_count_of_what_is_selected_confirms_a_set(selectors: tuple[Selector, ...]) -> None:
    """With any exception the figure is of something else: it only measures what is there beside the replica."""
    sender = PacketSender(make_config(), node_id="edge-1")
    count = SysCount(selectors, control_prefix=b"fanout/control/", sender=sender)
    count.begin(1.0)
    assert "covers other topics than the selectors" in count.why
    for topic, payload in ((UPTIME, b"1 seconds"), (FIGURE, b"60"), (UPTIME, b"2 seconds"), (FIGURE, b"70")):
        count.receive(topic, payload, retain=True, held=21, unconfirmed=1)
    assert not count.receive_pingresp(2.0)
    assert (count.outside, count.state, count.difference) == (50, CountState.OFF, "")


async def test_mosquitto_counts_what_cannot_be_read(tmp_path: Path) -> None:
    """Topics that `#` does not match are in its figure: more than is held, so the node is not ready."""
    server = Mosquitto(tmp_path, settings=["sys_interval 1"])
    server.start()
    try:
        assert load_retained(server.port, [("plant/1", b"x"), ("$hidden/1", b"x")]) == 2
        async with running(config_for(server.port, EVERYTHING, min_evidence="count")) as link:
            await link.wait(lambda: "the primary counts" in (link.status.not_ready_reason or ""), 60)
            assert not link.status.ready
            assert "is marker, weaker than min_evidence = count" in (link.status.not_ready_reason or "")
    finally:
        server.stop()


async def test_a_link_that_selects_a_part_is_not_counted() -> None:
    """Not ready with `count` alone, and says why."""
    primary = FakePrimary(retained=dict(VALUES))
    async with (
        FakeServer(primary) as server,
        running(config_for(server.port, Selector("plant/#"), min_evidence="count")) as link,
    ):
        await link.wait_state(LinkState.LIVE)
        assert not link.status.ready
        assert "the primary's count covers other topics than the selectors" in (link.status.not_ready_reason or "")
