"""A link that stamps what a foreign primary sends, for the nodes below this one."""

from __future__ import annotations

from fanout.chain.stamp import StampCount, encode_stamp
from fanout.link.model.events import Applied
from fanout.link.model.states import LinkState
from fanout.mqtt.packets import Connack
from fanout.replica.update import Phase, Stamp
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config

EPOCH = 1_600_000_000_000_000
FOREIGN = Stamp("machine-7", 3, 5, 1_600_000_000_000_001)


def pair_of(primary: FakePrimary | None = None, *, on: bool = True, publisher_stamps: bool = False) -> Pair:
    """Return the node `edge-1`, live, at a primary with one retained value."""
    pair = Pair(
        make_config(stamp_updates=on, publisher_stamps=publisher_stamps),
        primary or FakePrimary(retained={b"plant/1": b"old"}),
        stamps=StampCount(node="edge-1", epoch=EPOCH),
    )
    pair.go_live_with_events()
    return pair


def stamps(pair: Pair) -> list[tuple[Phase, bytes, Stamp | None]]:
    """Return phase, payload and stamp of all updates, in order, and forget them."""
    found = [
        (event.changes.phase, update[1], update[8]) for event in pair.of(Applied) for update in event.changes.updates
    ]
    pair.events.clear()
    return found


def test_live_updates_are_stamped_and_copies_are_not() -> None:
    """One count from 1, with the time of the read; which updates a snapshot's copies are of is not known."""
    pair = pair_of()
    assert stamps(pair) == [(Phase.SNAPSHOT, b"old", None)]
    for payload in (b"a", b"b"):
        pair.primary.publish(b"plant/1", payload)
    pair.pump()
    now_us = pair.now_ns // 1000
    assert stamps(pair) == [
        (Phase.LIVE, b"a", Stamp("edge-1", EPOCH, 1, now_us)),
        (Phase.LIVE, b"b", Stamp("edge-1", EPOCH, 2, now_us)),
    ]
    assert pair.replica.values[b"plant/1"][8] == Stamp("edge-1", EPOCH, 2, now_us)


def test_live_updates_during_an_audit_are_stamped_too() -> None:
    """An audit tells copies from live updates by itself; only the latter are counted."""
    pair = pair_of()
    pair.events.clear()
    pair.audit(pump=False)
    pair.primary.publish(b"plant/2", b"live")
    pair.pump()
    assert not pair.session.lifecycle.auditing
    assert pair.is_in(LinkState.LIVE)
    found = stamps(pair)
    live = [(payload, stamp and stamp.sequence) for phase, payload, stamp in found if phase is Phase.LIVE]
    assert live == [(b"live", 1)]
    assert {stamp for phase, _, stamp in found if phase is Phase.AUDIT} == {None}


def test_a_publishers_stamp_is_kept_unless_it_claims_to_be_this_nodes() -> None:
    """It leaves the properties; a claim to this node's count is passed over, and the update gets a stamp of its own."""
    pair = pair_of(publisher_stamps=True)
    pair.events.clear()
    claimed = FOREIGN._replace(primary="edge-1")
    for payload, stamp in ((b"theirs", FOREIGN), (b"claimed", claimed)):
        pair.primary.publish(b"plant/1", payload, properties=b"\x01\x01" + encode_stamp(stamp))
    pair.pump()
    assert [(payload, stamp and stamp[:3]) for _, payload, stamp in stamps(pair)] == [
        (b"theirs", FOREIGN[:3]),
        (b"claimed", ("edge-1", EPOCH, 1)),
    ]
    assert pair.replica.values[b"plant/1"][4] == b"\x01\x01"


def test_a_publishers_stamp_is_plain_data_unless_publishers_stamp() -> None:
    """Its property stays, and the update gets a stamp of this node."""
    pair = pair_of()
    pair.events.clear()
    pair.primary.publish(b"plant/1", b"x", properties=encode_stamp(FOREIGN))
    pair.pump()
    assert [stamp and stamp[:3] for *_, stamp in stamps(pair)] == [("edge-1", EPOCH, 1)]
    assert pair.replica.values[b"plant/1"][4] == encode_stamp(FOREIGN)


def test_nothing_is_stamped_when_it_is_off_or_the_primary_does_it() -> None:
    """Off, a publisher's property is one like others; what a fanout node left without a stamp stays without."""
    off = pair_of(on=False)
    off.events.clear()
    off.primary.publish(b"plant/1", b"x", properties=encode_stamp(FOREIGN))
    off.pump()
    assert stamps(off) == [(Phase.LIVE, b"x", None)]
    assert off.replica.values[b"plant/1"][4] == encode_stamp(FOREIGN)
    below = pair_of(FakePrimary(connack=Connack(False, 0, STAMPING)))
    below.events.clear()
    below.primary.publish(b"plant/1", b"x")
    below.primary.publish(b"plant/1", b"y", properties=encode_stamp(FOREIGN))
    below.pump()
    assert stamps(below) == [(Phase.LIVE, b"x", None), (Phase.LIVE, b"y", FOREIGN)]
