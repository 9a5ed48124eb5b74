"""The way of rows into the replica."""

from __future__ import annotations

from typing import Any

from fanout.chain.stamp import StampCount, encode_stamp
from fanout.link.ingest.convert import ConvertedRows
from fanout.link.ingest.pipeline import IngestPipeline, encode_acknowledgement
from fanout.link.model.counters import LinkCounters
from fanout.link.model.events import Applied
from fanout.mqtt.decoder import PublishRow
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Stamp
from fanout.selection import Selector
from tests.link.fake_primary import make_config

NOW = 1_700_000_000_000_000_000
STAMP = Stamp("root", 3, 4, 5)


def pipeline(*selectors: Selector, stamps: StampCount | None = None, **changes: Any) -> tuple[IngestPipeline, Replica]:
    """Return the reception of a link, and its replica."""
    config = make_config(*selectors, **changes)
    replica = Replica(selectors=config.selectors)
    return IngestPipeline(
        config, replica=replica, control_prefix=b"fanout/control/", stamps=stamps, counters=LinkCounters()
    ), replica


def row(topic: bytes, payload: bytes = b"1", *, flags: int = 1, packet_id: int = 0, stamp: bool = False) -> PublishRow:
    """Return a row."""
    return (topic, payload, flags, packet_id, encode_stamp(STAMP) if stamp else b"", None, 0)


def take(one: IngestPipeline, rows: list[PublishRow], *, phase: Phase | None = Phase.LIVE) -> list[Applied]:
    """Let a pipeline take rows among which is no marker; return what was applied."""
    applied, _ = one.take(rows, phase=phase, now_ns=NOW, epoch=9)
    return [each for each in applied if isinstance(each, Applied)]


def test_rows_change_the_replica_and_are_acknowledged() -> None:
    """In one piece; what is outside the selectors is returned, and acknowledged with the others."""
    one, replica = pipeline()
    rows = [row(b"plant/1", flags=3, packet_id=1), row(b"other", flags=2, packet_id=2)]
    applied, others = one.take(rows, phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert [
        (each.changes.phase, each.acknowledgement, each.epoch) for each in applied if isinstance(each, Applied)
    ] == [(Phase.LIVE, bytes.fromhex("40020001 40020002"), 9)]
    assert others == rows[1:]
    assert list(replica.values) == [b"plant/1"]


def test_rows_that_change_nothing_are_not_told() -> None:
    """Unless they need an acknowledgement."""
    one, _ = pipeline()
    assert one.take([row(b"other", flags=0)], phase=Phase.LIVE, now_ns=NOW, epoch=9)[0] == []
    assert len(one.take([row(b"other", flags=2, packet_id=1)], phase=Phase.LIVE, now_ns=NOW, epoch=9)[0]) == 1


def test_the_replica_tells_copies_from_live_updates() -> None:
    """During a pass the first value of a topic is its copy; each part is applied before the next one is looked at."""
    one, replica = pipeline()
    one.take([row(b"plant/1", b"a"), row(b"plant/2", b"a")], phase=Phase.SNAPSHOT, now_ns=NOW, epoch=9)
    replica.begin_pass(0)
    rows = [row(b"plant/1", b"a"), row(b"plant/2", b"a"), row(b"plant/1", b"b")]
    applied = take(one, rows, phase=None)
    assert [each.changes.phase for each in applied] == [Phase.AUDIT, Phase.LIVE]
    assert replica.values[b"plant/1"][1] == b"b"


def test_messages_beyond_the_receive_maximum_are_counted() -> None:
    """QoS 1 messages that come in one read, with the QoS 2 messages that are not completed; all are taken."""
    one, replica = pipeline(receive_maximum=2)
    one.begin_connection(stamped=False)
    one.take([row(b"plant/1", flags=5, packet_id=1)], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    two = [row(b"plant/2", flags=3, packet_id=2), row(b"plant/3", flags=3, packet_id=3)]
    assert one.exceeds(two) == 3
    assert one.exceeds(two[:1]) == 0
    one.take(two, phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert list(replica.values) == [b"plant/1", b"plant/2", b"plant/3"]


def test_a_resumed_session_and_a_mosquitto_may_bring_more_than_the_receive_maximum() -> None:
    """As Mosquitto 2.0.11 does; the next session, or another primary, may not."""
    one, _ = pipeline(receive_maximum=1)
    two = [row(b"plant/2", flags=3, packet_id=2), row(b"plant/3", flags=3, packet_id=3)]
    one.begin_connection(stamped=False, resumed=True)
    assert one.exceeds(two) == 0
    one.begin_connection(stamped=False)
    assert one.exceeds(two) == 2
    one.lift_receive_maximum()
    assert one.exceeds(two) == 0


def test_mqtt_3_1_1_has_no_receive_maximum() -> None:
    """So it cannot be exceeded."""
    one, replica = pipeline(receive_maximum=1, version=4)
    two = [row(b"plant/2", flags=3, packet_id=2), row(b"plant/3", flags=3, packet_id=3)]
    one.take(two, phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert len(replica) == 2


def test_a_new_connection_counts_anew() -> None:
    """What was under way on the former one does not count; that it was applied is still known."""
    one, _ = pipeline(receive_maximum=1)
    one.take([row(b"plant/1", flags=5, packet_id=1)], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    one.begin_connection(stamped=False)
    assert one.unreleased == {1}
    one.take([row(b"plant/2", flags=3, packet_id=2)], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert one.release(1)
    assert not one.release(1)


def test_a_new_session_has_no_messages_of_the_former_one() -> None:
    """Their Packet Identifiers mean others there."""
    one, replica = pipeline()
    one.restore({1})
    assert one.take([row(b"plant/1", flags=5, packet_id=1)], phase=Phase.LIVE, now_ns=NOW, epoch=9)[1] == []
    assert len(replica) == 0
    one.begin_session()
    one.take([row(b"plant/1", flags=5, packet_id=1)], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert len(replica) == 1


def test_a_stamp_of_the_primary_is_taken_when_it_stamps() -> None:
    """Otherwise the property is the publisher's."""
    one, replica = pipeline()
    one.begin_connection(stamped=False)
    assert one.stamp_of(row(b"other", stamp=True)) is None
    one.begin_connection(stamped=True)
    assert one.stamp_of(row(b"other", stamp=True)) == STAMP
    one.take([row(b"plant/1", stamp=True)], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert replica.values[b"plant/1"][8] == STAMP


def test_publishers_stamps_are_read_where_it_is_asked_for() -> None:
    """Of live updates and of copies, without stamping what has none; the primary itself is not taken to stamp."""
    one, replica = pipeline(publisher_stamps=True)
    one.begin_connection(stamped=False)
    one.take([row(b"plant/1", stamp=True)], phase=Phase.SNAPSHOT, now_ns=NOW, epoch=9)
    one.take([row(b"plant/2", stamp=True), row(b"plant/3")], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert [replica.values[b"plant/%d" % number][8] for number in (1, 2, 3)] == [STAMP, STAMP, None]
    assert one.stamp_of(row(b"other", stamp=True)) is None


def test_the_node_stamps_what_the_primary_does_not() -> None:
    """Live updates only; what comes back of the link's own messages has no stamp of the primary."""
    stamps = StampCount(node="edge-1", epoch=7)
    one, replica = pipeline(stamps=stamps, stamp_updates=True)
    one.begin_connection(stamped=False)
    assert one.stamp_of(row(b"other", stamp=True)) is None
    one.take([row(b"plant/1")], phase=Phase.SNAPSHOT, now_ns=NOW, epoch=9)
    one.take([row(b"plant/2")], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert replica.values[b"plant/1"][8] is None
    assert replica.values[b"plant/2"][8] == Stamp("edge-1", 7, 1, NOW // 1000)
    one.take([row(b"plant/3", stamp=True)], phase=Phase.LIVE, now_ns=NOW, epoch=9)
    assert replica.values[b"plant/3"][4] == encode_stamp(STAMP)  # a publisher's, which nobody is told to believe
    assert replica.values[b"plant/3"][8] == Stamp("edge-1", 7, 2, NOW // 1000)


def test_what_does_not_fit_a_selector_is_left_out() -> None:
    """It is counted, and acknowledged like any other."""
    one, replica = pipeline(Selector("plant/#", max_payload=3))
    assert one.content is not None
    applied = take(one, [row(b"plant/1", b"long", flags=3, packet_id=1)])
    assert [each.acknowledgement for each in applied] == [bytes.fromhex("40020001")]
    assert one.content.rejected == [{"payload_too_large": 1}]
    assert len(replica) == 0


def test_a_batch_is_acknowledged_in_one_piece() -> None:
    """All PUBACKs and PUBRECs of a batch are one string of bytes, in the order of arrival."""
    assert encode_acknowledgement(ConvertedRows()) == b""
    converted = ConvertedRows(to_puback=[7, 6], to_pubrec=[5])
    assert encode_acknowledgement(converted) == b"\x40\x02\x00\x07\x40\x02\x00\x06\x50\x02\x00\x05"
