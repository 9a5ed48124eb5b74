"""A primary that breaks MQTT, field by field: each breach costs one message or nothing, never the link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fanout.link.model.events import Applied, Failed
from fanout.link.model.evidence import Evidence
from fanout.link.model.skipped import DeviationTolerated, MessageSkipped
from fanout.link.model.states import LinkState
from fanout.mqtt.breaches import Deviation, SkipReason
from fanout.mqtt.data_representation import encode_varint
from fanout.mqtt.decoder import Decoder
from fanout.mqtt.packets import Connack, PacketType, Suback
from fanout.mqtt.publish import encode_publish
from fanout.mqtt.runs import PublishRun
from fanout.mqtt.topics import MAX
from fanout.replica.update import PROPERTIES
from fanout.selection import Selector
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config
from tests.oracle.packets import decode_packets

LIMIT = 4096
"""`packet_bytes_max` of the links here."""


def publish(
    topic: bytes = b"plant/odd",
    payload: bytes = b"odd",
    *,
    flags: int = 0b0011,
    packet_id: bytes = b"\x00\x07",
    block: bytes | None = b"",
    length: bytes | None = None,
) -> bytes:
    """Return a PUBLISH of MQTT 5 with these fields, be they legal or not.

    Args:
        topic: Topic Name.
        payload: Application Message.
        flags: Flags of the fixed header.
        packet_id: Packet Identifier, encoded.
        block: Properties, encoded, without their length; None for a packet of MQTT 3.1.1.
        length: Property Length, encoded; None for the right one.
    """
    body = len(topic).to_bytes(2, "big") + topic + packet_id
    if block is not None:
        body += (encode_varint(len(block)) if length is None else length) + block
    body += payload
    return bytes((0x30 | flags,)) + encode_varint(len(body)) + body


def text(identifier: int, value: bytes) -> bytes:
    """Return a property with a text."""
    return bytes((identifier,)) + len(value).to_bytes(2, "big") + value


def pair_of(version: int, *, prefix: str = "") -> Pair:
    """Return a live link whose primary has two topics."""
    config = make_config(Selector("plant/#", qos=2, prefix=prefix), packet_bytes_max=LIMIT, version=version)
    pair = Pair(config, primary=FakePrimary(version=version, retained={b"plant/a": b"1", b"plant/b": b"2"}))
    pair.go_live()
    return pair


def check_lives(pair: Pair, *, version: int) -> None:
    """Check that a message behind a breach arrives, within the epoch and without a new connection."""
    epoch = pair.session.lifecycle.epoch
    pair.feed(encode_publish(b"plant/behind", b"here", version=version, qos=1, packet_id=99, retain=True))
    pair.pump()
    assert pair.of(Failed) == []
    assert pair.is_in(LinkState.LIVE)
    assert pair.session.lifecycle.epoch == epoch
    assert pair.values()[b"plant/behind"] == b"here"
    pair.wait(5)
    assert pair.of(Failed) == []
    assert pair.is_in(LinkState.LIVE)


def acknowledged(pair: Pair) -> list[tuple[int, int]]:
    """Return type and Packet Identifier of the acknowledgements for the primary."""
    sent = b"".join(each.acknowledgement for each in pair.of(Applied))
    return [(sent[at] >> 4, sent[at + 3]) for at in range(0, len(sent), 4)]


R, U = SkipReason, b"\x26\x00\x01k\x00\x01v"
FITS = LIMIT - len(publish(payload=b"")) - 1
"""Bytes of the largest payload that is read."""

SKIPPED: dict[str, tuple[bytes, SkipReason, bool]] = {
    # PUBLISH, reason, whether it can be acknowledged
    "topic with a wildcard": (publish(b"plant/#"), R.INVALID_TOPIC, True),
    "topic with U+0000": (publish(b"plant/\0"), R.INVALID_TOPIC, True),
    "topic not UTF-8": (publish(b"plant/\xff"), R.INVALID_TOPIC, True),
    "topic with a surrogate": (publish(b"plant/\xed\xa0\x80"), R.INVALID_TOPIC, True),
    "no topic": (publish(b""), R.INVALID_TOPIC, True),
    "no topic, unknown alias": (publish(b"", block=b"\x23\x00\x01"), R.INVALID_TOPIC, True),
    "no topic, alias 0": (publish(b"", block=b"\x23\x00\x00"), R.INVALID_TOPIC, True),
    "QoS 3": (publish(flags=0b0111), R.MALFORMED, False),
    "Packet Identifier 0": (publish(packet_id=b"\0\0"), R.MALFORMED, False),
    "cut off in the topic": (b"\x33\x04\x00\x09pl", R.MALFORMED, False),
    "cut off in the Packet Identifier": (b"\x33\x0c\x00\x09plant/odd\x00", R.MALFORMED, False),
    "cut off before the topic": (b"\x33\x01\x00", R.MALFORMED, False),
    "nothing": (b"\x33\x00", R.MALFORMED, False),
    "no Property Length": (publish(payload=b"", block=None), R.MALFORMED, True),
    "Property Length beyond the packet": (publish(length=b"\x7f"), R.MALFORMED, True),
    "Property Length of five bytes": (publish(length=b"\xff\xff\xff\xff"), R.MALFORMED, True),
    "Property Length not the shortest": (publish(length=b"\x80\x00"), R.MALFORMED, True),
    "a little too large": (publish(payload=bytes(FITS + 3)), R.PACKET_TOO_LARGE, True),
    "much too large": (publish(payload=bytes(100 * LIMIT)), R.PACKET_TOO_LARGE, True),
    "too large by its topic": (publish(b"plant/" + b"x" * (MAX - 6)), R.PACKET_TOO_LARGE, True),
    "too large by its properties": (publish(block=text(0x09, bytes(5000))), R.PACKET_TOO_LARGE, True),
}


CASES = [(name, qos) for name, (_, _, has_id) in SKIPPED.items() for qos in ((0, 1, 2) if has_id else (1,))]
"""Each of these PUBLISH, with each QoS where that is not what is wrong."""


@pytest.mark.parametrize(("name", "qos"), CASES)
@pytest.mark.parametrize("piece", [0, 1, 700])
def test_a_message_that_cannot_be_read_is_skipped(name: str, qos: int, piece: int) -> None:
    """It is acknowledged if it can be, counted and named; the link is live, and what is behind it arrives."""
    data, reason, has_id = SKIPPED[name]
    if qos != 1:
        data = with_qos(data, qos)
    if piece == 1 and len(data) > 10_000:
        piece = 1013
    pair = pair_of(5)
    pair.events.clear()
    for at in range(0, len(data), piece or len(data)):
        pair.feed(data[at : at + (piece or len(data))])
    (skipped,) = pair.of(MessageSkipped)
    assert skipped.reason is reason
    assert pair.session.skipped.totals[reason] == 1
    if name not in ("no topic", "nothing") and "alias" not in name and "cut off" not in name:
        assert skipped.topic.startswith("plant/")
    ack = {0: [], 1: [(PacketType.PUBACK, 7)], 2: [(PacketType.PUBREC, 7)]}[qos]
    assert acknowledged(pair) == (ack if has_id else [])
    assert len(pair.values()) == 2
    check_lives(pair, version=5)


def with_qos(data: bytes, qos: int) -> bytes:
    """Return a PUBLISH at QoS 1 with another QoS, as long as before where it has a Packet Identifier."""
    if qos:
        return bytes((data[0] & 0xF9 | qos << 1,)) + data[1:]
    start = next(at for at in range(1, 5) if data[at] < 0x80) + 1
    body = data[start:]
    stop = 2 + int.from_bytes(body[:2], "big")
    body = body[:stop] + body[stop + 2 :]
    return bytes((data[0] & 0xF9,)) + encode_varint(len(body)) + body


DELIVERED: dict[str, tuple[bytes, bytes]] = {
    # PUBLISH, the properties that clients get
    "Response Topic with a wildcard": (publish(block=U + text(0x08, b"k/#") + U), U + U),
    "Response Topic empty": (publish(block=text(0x08, b"") + U), U),
    "Response Topic not UTF-8": (publish(block=text(0x08, b"\xff") + U), U),
    "Content Type with U+0000": (publish(block=text(0x03, b"a\0") + U), U),
    "Content Type twice": (publish(block=text(0x03, b"a") + text(0x03, b"b") + U), text(0x03, b"a") + U),
    "Payload Format Indicator 2": (publish(block=b"\x01\x02" + U), U),
    "User Property not UTF-8": (publish(block=b"\x26\x00\x01k\x00\x01\xff" + U), U),
    "User Property with U+0000": (publish(block=b"\x26\x00\x01\0\x00\x01v" + U), U),
    "unknown property": (publish(block=U + b"\x7e\x01" + U), U),
    "property of another packet": (publish(block=b"\x21\x00\x05" + U), U),
    "property cut off": (publish(block=U + b"\x02\x00"), U),
    "Subscription Identifier 0": (publish(block=b"\x0b\x00" + U), U),
    "Topic Alias beside a topic": (publish(block=b"\x23\x00\x01" + U), U),
    "Topic Alias 0 beside a topic": (publish(block=b"\x23\x00\x00" + U), U),
    "DUP at QoS 0": (publish(flags=0b1001, packet_id=b"", block=U), U),
    "Remaining Length not the shortest": (b"\x33\x93\x00" + publish(block=U)[2:-1], U),
}


@pytest.mark.parametrize("name", DELIVERED)
def test_a_message_with_a_breach_is_delivered_without_it(name: str) -> None:
    """Clients get a legal message; the breach is counted, but for a form of the length that changes nothing."""
    data, properties = DELIVERED[name]
    if name.startswith("Remaining"):
        body = publish(block=U)[2:]
        data = b"\x33" + bytes((len(body) | 0x80, 0)) + body
    pair = pair_of(5)
    pair.feed(data)
    assert pair.of(MessageSkipped) == []
    assert len(pair.of(DeviationTolerated)) == (not name.startswith("Remaining"))
    held = pair.replica.view[b"plant/odd"]
    assert held[1] == b"odd"
    assert held[PROPERTIES] == properties
    legal = encode_publish(held[0], held[1], version=5, properties=held[PROPERTIES], retain=True)
    assert len(decode_packets(legal, version=5, sender="server")) == 1
    check_lives(pair, version=5)


ELSEWHERE: dict[str, tuple[bytes, Deviation]] = {
    "second CONNACK": (b"\x20\x03\x00\x00\x00", Deviation.PACKET),
    "CONNACK of one byte": (b"\x20\x01\x00", Deviation.FIELD),
    "PUBACK with a User Property that is cut off": (b"\x40\x06\x00\x05\x00\x02\x26\x00", Deviation.FIELD),
    "PUBACK with an unknown code": (b"\x40\x03\x00\x05\x33", Deviation.FIELD),
    "PUBACK without an identifier": (b"\x40\x01\x00", Deviation.FIELD),
    "PUBACK with the identifier 0": (b"\x40\x02\x00\x00", Deviation.FIELD),
    "PUBACK with flags": (b"\x42\x02\x00\x05", Deviation.FLAGS),
    "PUBREL without its flags": (b"\x60\x02\x00\x05", Deviation.FLAGS),
    "PUBREC with bytes behind it": (b"\x50\x06\x00\x05\x00\x00xx", Deviation.FIELD),
    "PUBCOMP with an unknown code": (b"\x70\x03\x00\x05\x33", Deviation.FIELD),
    "SUBACK without a code": (b"\x90\x03\x00\x05\x00", Deviation.FIELD),
    "SUBACK that was not asked for": (b"\x90\x04\x00\x05\x00\x00", Deviation.PACKET),
    "SUBACK cut off": (b"\x90\x01\x00", Deviation.FIELD),
    "UNSUBACK without a code": (b"\xb0\x03\x00\x05\x00", Deviation.FIELD),
    "PINGRESP with a body": (b"\xd0\x01x", Deviation.FIELD),
    "PINGRESP that was not asked for": (b"\xd0\x00", Deviation.PACKET),
    "AUTH": (b"\xf0\x00", Deviation.PACKET),
    "AUTH that is malformed": (b"\xf0\x01\x18", Deviation.FIELD),
    "CONNECT": (b"\x10\x0d\x00\x04MQTT\x05\x00\x00\x00\x00\x00\x00", Deviation.PACKET),
    "SUBSCRIBE": (b"\x82\x07\x00\x05\x00\x00\x01a\x00", Deviation.PACKET),
    "PINGREQ": (b"\xc0\x00", Deviation.PACKET),
    "SUBACK too large": (b"\x90" + encode_varint(LIMIT) + bytes(LIMIT), Deviation.PACKET),
}


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("piece", [0, 1])
def test_another_packet_that_breaks_mqtt_is_ignored(name: str, piece: int) -> None:
    """What can be read of it counts; the breach is counted by its kind."""
    data, deviation = ELSEWHERE[name]
    pair = pair_of(5)
    before = dict(pair.session.skipped.tolerated)
    for at in range(0, len(data), piece or len(data)):
        pair.feed(data[at : at + (piece or len(data))])
    assert pair.session.skipped.tolerated[deviation] == before[deviation] + 1
    check_lives(pair, version=5)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (publish(b"plant/+", block=None), R.INVALID_TOPIC),
        (publish(b"", block=None), R.INVALID_TOPIC),
        (publish(payload=bytes(LIMIT), block=None), R.PACKET_TOO_LARGE),
        (b"\x33\x02\x00\x09", R.MALFORMED),
    ],
)
def test_the_same_over_mqtt_3_1_1(data: bytes, reason: SkipReason) -> None:
    """Without properties."""
    pair = pair_of(4)
    pair.feed(data)
    (skipped,) = pair.of(MessageSkipped)
    assert skipped.reason is reason
    check_lives(pair, version=4)


def test_only_what_has_no_boundary_ends_the_connection() -> None:
    """A reserved packet type, and a Remaining Length of five bytes."""
    for data in (b"\x00\x00", b"\x0f\x01x", b"\x30\xff\xff\xff\xff\x7f"):
        pair = pair_of(5)
        pair.feed(encode_publish(b"plant/before", b"here", version=5, retain=True) + data)
        assert len(pair.of(Failed)) == 1
        assert pair.values()[b"plant/before"] == b"here"


def test_suback_with_another_number_of_codes_refuses_what_it_does_not_answer() -> None:
    """Nothing shows that a Topic Filter without an answer is subscribed; superfluous codes are ignored."""
    primary = FakePrimary(retained={b"plant/a": b"1"})
    send = primary.send
    primary.send = lambda packet: send(  # type: ignore[method-assign]
        replace(packet, reason_codes=(*packet.reason_codes, 0, 0)) if isinstance(packet, Suback) else packet
    )
    pair = Pair(make_config(), primary=primary)
    pair.go_live()
    assert pair.values() == {b"plant/a": b"1"}
    assert pair.session.skipped.tolerated[Deviation.FIELD] > 0


# --- large messages ---


def large(topic: bytes = b"plant/large", *, size: int = 3 * LIMIT) -> dict[bytes, bytes]:
    """Return one retained value that is larger than a packet may be."""
    return {topic: bytes(size)}


@pytest.mark.parametrize(
    "primary",
    [
        lambda retained: FakePrimary(retained=retained),
        lambda retained: FakePrimary(retained=retained, version=4),
        lambda retained: FakePrimary(retained=retained, system_topics=False, asynchronous=True),
    ],
    ids=["marker", "MQTT 3.1.1", "two-pass"],
)
def test_a_retained_message_that_is_too_large_leaves_the_others(
    primary: Callable[[dict[bytes, bytes]], FakePrimary],
) -> None:
    """The link is live with them, whatever the evidence, and tells what is not held; audits change nothing."""
    values = {b"plant/%d" % number: b"%d" % number for number in range(30)}
    fake = primary({**values, **large()})
    pair = Pair(make_config(packet_bytes_max=LIMIT, version=fake.version), primary=fake)
    pair.connect()
    pair.wait(60)
    assert pair.is_in(LinkState.LIVE)
    assert pair.values() == values
    assert pair.replica.refused.skipped(pair.now_ns) == {"packet_too_large": (1, False)}
    assert pair.replica.refused.limits(pair.now_ns) == ()
    epoch = pair.session.lifecycle.epoch
    for _ in range(3):
        pair.audit()
        pair.wait(60)
    assert pair.session.lifecycle.epoch == epoch
    assert pair.values() == values
    assert len(pair.replica.refused) == 1


def test_a_manifest_counts_what_was_skipped() -> None:
    """A fanout node sends all that it counts; the link is live by its manifest."""
    fake = FakePrimary(retained={b"plant/a": b"1", **large()}, manifest=True, connack=Connack(False, 0, STAMPING))
    pair = Pair(make_config(packet_bytes_max=LIMIT), primary=fake)
    pair.go_live()
    assert pair.session.lifecycle.evidence == [Evidence.MANIFEST]
    assert pair.values() == {b"plant/a": b"1"}


def test_an_older_value_is_removed_and_a_later_one_held_again() -> None:
    """A value that the primary does not have any more is not served; the count follows."""
    pair = Pair(make_config(packet_bytes_max=LIMIT), primary=FakePrimary(retained={b"plant/a": b"1", b"plant/b": b"2"}))
    pair.go_live()
    pair.events.clear()
    pair.primary.publish(b"plant/a", bytes(2 * LIMIT))
    pair.pump()
    assert pair.values() == {b"plant/b": b"2"}
    assert pair.dispatched() == [(b"plant/a", b"")]
    assert len(pair.replica.refused) == 1
    pair.primary.publish(b"plant/a", b"3")
    pair.pump()
    assert pair.values() == {b"plant/a": b"3", b"plant/b": b"2"}
    assert len(pair.replica.refused) == 0
    pair.primary.publish(b"plant/a", bytes(2 * LIMIT))
    pair.primary.publish(b"plant/a", b"")
    pair.pump()
    assert len(pair.replica.refused) == 0


def test_a_resumed_session_takes_a_large_message_for_no_loss() -> None:
    """It replaced a value while the link was away: the verification removes that, and the epoch goes on."""
    pair = Pair(make_config(packet_bytes_max=LIMIT), primary=FakePrimary(retained={b"plant/a": b"1", b"plant/b": b"2"}))
    pair.go_live()
    epoch = pair.session.lifecycle.epoch
    pair.lose()
    pair.primary.retained[b"plant/a"] = bytes(2 * LIMIT)
    pair.go_live()
    assert pair.session.lifecycle.epoch == epoch
    assert pair.values() == {b"plant/b": b"2"}
    assert len(pair.replica.refused) == 1


def test_a_limit_of_the_selector_counts_there() -> None:
    """What `max_payload` keeps out anyway is not known as skipped, nor as not held."""
    config = make_config(Selector("plant/#", max_payload=1000), packet_bytes_max=LIMIT)
    pair = Pair(config, primary=FakePrimary(retained={b"plant/a": b"1", **large()}))
    pair.go_live()
    content = pair.session.pipeline.content
    assert content is not None
    assert content.rejected[0] == {"payload_too_large": 1}
    assert len(pair.replica.refused) == 0
    assert pair.session.skipped.totals[SkipReason.PACKET_TOO_LARGE] == 0


def test_memory_is_bounded_while_a_large_packet_passes() -> None:
    """A packet of 200 MB leaves nothing behind but its topic."""
    decoder = Decoder(version=5, packet_bytes_max=LIMIT, role="client")
    size = 200_000_000
    head = b"\x31" + encode_varint(2 + 5 + 1 + size) + b"\x00\x05plant\x00"
    assert decoder.feed(head) == []
    piece, left = bytes(1_000_000), size
    while left > len(piece):
        assert decoder.feed(piece) == []
        assert decoder.buffered_bytes == 0
        left -= len(piece)
    skipped, run = decoder.feed(bytes(left) + encode_publish(b"a", b"b", version=5))
    assert skipped.payload_bytes == size  # type: ignore[union-attr]
    assert isinstance(run, PublishRun)


def test_a_message_at_each_limit_is_delivered() -> None:
    """The largest packet, and the longest topic that a prefix leaves room for."""
    pair = pair_of(5)
    pair.feed(publish(payload=bytes(FITS)))
    assert len(pair.values()[b"plant/odd"]) == FITS
    assert pair.of(MessageSkipped) == []
    selector = Selector("plant/#", prefix="site1/")
    for bytes_over, held in ((0, True), (1, False)):
        topic = b"plant/" + b"x" * (MAX - 6 - len("site1/") + bytes_over)
        longest = Pair(make_config(selector), primary=FakePrimary(retained={b"plant/a": b"1", topic: b"2"}))
        longest.go_live()
        assert (b"site1/" + topic in longest.values()) == held
        assert longest.session.skipped.totals[SkipReason.TOPIC_TOO_LONG] == (not held)
        for name, value in longest.values().items():
            encode_publish(name, value, version=5, qos=1, packet_id=1)
