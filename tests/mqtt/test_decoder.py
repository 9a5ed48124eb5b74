"""The stream decoder: fixed header (MQTT 5, section 2.1), splits, runs, faults, Topic Alias and PUBLISH."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.errors import UnsupportedProtocolVersion
from fanout.mqtt.data_representation import encode_binary, encode_varint
from fanout.mqtt.decoder import CONNECT_BYTES_MAX, AckRun, Decoder, Item, PublishRow, PublishRun
from fanout.mqtt.packet_bodies import TOPIC_FILTERS_MAX
from fanout.mqtt.packet_types import PacketType, Role
from fanout.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
    encode_acks,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.publish import encode_publish
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.runs import SkippedPublish, ToleratedBreach
from tests.mqtt.strategies import connects, packets_from_client, packets_from_server, refused
from tests.support.examples import examples

C = PacketType
MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL = ReasonCode.PROTOCOL_ERROR
TOO_LARGE = ReasonCode.PACKET_TOO_LARGE
ALIAS = ReasonCode.TOPIC_ALIAS_INVALID
MAX = 1 << 20


def server(version: int | None = 5, *, packet_bytes_max: int = MAX, topic_alias_max: int = 0) -> Decoder:
    """Return a server's decoder."""
    return Decoder(version=version, packet_bytes_max=packet_bytes_max, topic_alias_max=topic_alias_max, role="server")


def client(version: int = 5, *, topic_alias_max: int = 0) -> Decoder:
    """Return a client's decoder."""
    return Decoder(version=version, packet_bytes_max=MAX, topic_alias_max=topic_alias_max, role="client")


def flat(items: list[Item]) -> list[object]:
    """Return one entry per packet, however they were cut into runs."""
    entries: list[object] = []
    for item in items:
        match item:
            case PublishRun(rows):
                entries += rows
            case AckRun(kind, packet_ids, codes):
                entries += [
                    (kind, packet_id, codes[index] if codes is not None else 0)
                    for index, packet_id in enumerate(packet_ids)
                ]
            case _:
                entries.append(item)
    return entries


def expect_fault(decoder: Decoder, data: bytes, reason_code: ReasonCode) -> list[Item]:
    """Feed `data`, check that it ends in a fault that later feeds raise, and return what came before."""
    items = decoder.feed(data)
    assert decoder.fault is not None
    assert decoder.fault.reason_code is reason_code
    assert decoder.buffered_bytes == 0
    for _ in range(2):
        with refused(reason_code):
            decoder.feed(b"\xc0\x00")
    return items


# Which packets may come


@pytest.mark.parametrize("version", [None, 3, 6])
def test_version_that_cannot_be_decoded(version: int | None) -> None:
    """A client knows its version; there are two of them."""
    with pytest.raises(ValueError, match="cannot decode version"):
        Decoder(version=version, packet_bytes_max=MAX, role="client")


@pytest.mark.parametrize(("level", "version", "bridge"), [(b"\x04", 4, False), (b"\x05", 5, False), (b"\x84", 4, True)])
def test_connect_sets_the_version(level: bytes, version: int, bridge: bool) -> None:
    """A server's decoder takes its version from CONNECT."""
    decoder = server(None)
    body = b"\x00\x04MQTT" + level + b"\x02\x00\x00" + (b"\x00" if version == 5 else b"") + b"\x00\x01c"
    items = decoder.feed(b"\x10" + encode_varint(len(body)) + body + b"\xc0\x00")
    assert items == [Connect("c", version, clean_start=True, keep_alive=0, bridge=bridge), Pingreq()]
    assert decoder.version == version


def test_connect_at_fault_still_tells_its_version() -> None:
    """A CONNECT that is malformed behind its level can be answered in its version."""
    decoder = server(None)
    expect_fault(decoder, b"\x10\x0a\x00\x04MQTT\x05\x01\x00\x00", MALFORMED)
    assert decoder.version == 5


def test_connect_of_an_unknown_level() -> None:
    """An unknown level is a fault of its own type, and no version is set [MQTT-3.1.2-2]."""
    decoder = server(None)
    expect_fault(decoder, b"\x10\x07\x00\x04MQTT\x07", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    assert isinstance(decoder.fault, UnsupportedProtocolVersion)
    assert decoder.fault.level == 7
    assert decoder.version is None


WRONG_WAY: list[tuple[Role, int, int]] = [
    *(("server", version, first) for version in (4, 5) for first in (0x20, 0x90, 0xB0, 0xD0)),
]


@pytest.mark.parametrize(("role", "version", "first"), WRONG_WAY)
def test_packet_in_the_wrong_direction(role: Role, version: int, first: int) -> None:
    """A packet that the peer may not send is refused at its first byte (section 2.1.2)."""
    decoder = Decoder(version=version, packet_bytes_max=MAX, role=role)
    expect_fault(decoder, bytes((first,)), PROTOCOL)


@pytest.mark.parametrize(("version", "first"), [(4, 0x00), (5, 0x0F), (4, 0xF0)])
def test_reserved_packet_type(version: int, first: int) -> None:
    """Type 0 is forbidden, type 15 is in MQTT 3.1.1 (section 2.1.2)."""
    expect_fault(server(version), bytes((first,)), MALFORMED)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("role", "kind", "legal"),
    [
        ("server", C.PUBACK, 0),
        ("server", C.PUBREC, 0),
        ("server", C.PUBREL, 2),
        ("server", C.PUBCOMP, 0),
        ("server", C.SUBSCRIBE, 2),
        ("server", C.UNSUBSCRIBE, 2),
        ("server", C.PINGREQ, 0),
        ("server", C.DISCONNECT, 0),
    ],
)
def test_reserved_flags(role: Role, kind: PacketType, legal: int, version: int) -> None:
    """Any other value of the reserved flags is malformed [MQTT-2.1.3-1] ([MQTT-2.2.2-2] of 3.1.1)."""
    for flags in range(16):
        decoder = Decoder(version=version, packet_bytes_max=MAX, role=role)
        if flags == legal:
            assert decoder.feed(bytes((kind << 4 | flags,))) == []
            assert decoder.fault is None
        else:
            expect_fault(decoder, bytes((kind << 4 | flags,)), MALFORMED)


def test_disconnect_of_a_server_with_a_session_expiry_interval() -> None:
    """Only a client may change the Session Expiry Interval at the end [MQTT-3.14.2-2]; the rest counts."""
    packet = Disconnect(0, Properties(session_expiry_interval=1))
    breach, found = client().feed(encode(packet, version=5))
    assert isinstance(breach, ToleratedBreach)
    assert found == packet


# Remaining Length


@pytest.mark.parametrize("data", [b"\xc0\x80\x00", b"\xc0\x80\x80\x00", b"\xc0\x80\x80\x80\x00"])
def test_remaining_length_that_is_not_the_shortest(data: bytes) -> None:
    """MQTT 5 wants the shortest form [MQTT-1.5.5-1]; MQTT 3.1.1 does not ask for it (section 2.2.3)."""
    expect_fault(server(5), data, MALFORMED)
    assert server(4).feed(data) == [Pingreq()]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("head", [b"\xc0\x80\x80\x80\x80", b"\x30\xff\xff\xff\xff", b"\x40\x80\x80\x80\x80"])
def test_remaining_length_of_five_bytes(version: int, head: bytes) -> None:
    """More than four bytes are malformed, whatever follows."""
    expect_fault(server(version), head, MALFORMED)
    good = encode_publish(b"a", b"", version=version)
    assert expect_fault(server(version), good + head, MALFORMED) == [PublishRun([(b"a", b"", 0, 0, b"", None, 0)])]


def test_remaining_length_of_connect() -> None:
    """Whether the shortest form is wanted is known only when the version is."""
    for level, illegal in ((b"\x04", False), (b"\x05", True)):
        body = b"\x00\x04MQTT" + level + b"\x02\x00\x00" + (b"\x00" if illegal else b"") + b"\x00\x01c"
        data = b"\x10" + bytes((len(body) | 0x80, 0)) + body
        if illegal:
            expect_fault(server(None), data, MALFORMED)
        else:
            assert len(server(None).feed(data)) == 1


def test_publish_with_a_longer_remaining_length_in_mqtt_3() -> None:
    """Longer forms of the Remaining Length are read in a run of PUBLISH too."""
    data = b"".join(b"\x30" + length + b"\x00\x01ax" for length in (b"\x04", b"\x84\x00", b"\x84\x80\x80\x00"))
    assert server(4).feed(data) == [PublishRun([(b"a", b"x", 0, 0, b"", None, 0)] * 3)]
    expect_fault(server(4), data + b"\x30\x81\x00\x00", MALFORMED)
    expect_fault(server(5), b"\x30\x04\x00\x01a\x00" + b"\x30\x84\x00\x00\x01a\x00", MALFORMED)


@pytest.mark.parametrize("limit", [8, 60, 129, 130, 20_000])
def test_packet_too_large(limit: int) -> None:
    """A packet over the Maximum Packet Size is refused when its Remaining Length is known [MQTT-3.1.2-24]."""
    fits = encode_publish(b"a", b"", version=5)
    sizes = [len(encode_publish(b"a", bytes(count), version=5)) for count in range(limit)]
    payload_bytes = sum(size <= limit for size in sizes) - 1
    largest = encode_publish(b"a", bytes(payload_bytes), version=5)
    over = encode_publish(b"a", bytes(payload_bytes + 1), version=5)
    assert len(largest) <= limit < len(over)
    assert len(flat(server(packet_bytes_max=limit).feed(fits + largest + fits))) == 3
    for data in (over, over[:5]):
        decoder = server(packet_bytes_max=limit)
        assert len(flat(expect_fault(decoder, fits + data, TOO_LARGE))) == 1
        expect_fault(server(packet_bytes_max=limit), data, TOO_LARGE)


def test_other_packets_too_large() -> None:
    """The limit holds for CONNECT and acknowledgements as well."""
    expect_fault(server(None, packet_bytes_max=100), b"\x10\xff\x7f", TOO_LARGE)
    run = expect_fault(server(packet_bytes_max=10), b"\x40\x02\x00\x01" + b"\x40\x20", TOO_LARGE)
    assert run == [AckRun(C.PUBACK, [1], None)]


def test_connect_has_a_limit_of_its_own() -> None:
    """It is a fault by its fixed header, before any of it is kept; five fields of the largest size are within it."""
    for size, fits in ((CONNECT_BYTES_MAX, True), (CONNECT_BYTES_MAX + 1, False)):
        decoder = server(None, packet_bytes_max=2 * CONNECT_BYTES_MAX)
        header = b"\x10" + encode_varint(size - 4)
        assert decoder.feed(header) == []
        assert (decoder.fault is None) == fits
    assert CONNECT_BYTES_MAX > 5 * 65_537
    largest = "c" * 65_535
    connect = Connect(largest, username=largest, password=bytes(65_535), will=Will(largest.encode(), bytes(65_535)))
    assert server(None, packet_bytes_max=2 * CONNECT_BYTES_MAX).feed(encode(connect, version=5)) == [connect]


# Splits, buffers and faults

STREAM = b"".join(
    [
        encode_publish(b"a/b", b"one", version=5),
        encode_publish(b"a/b", bytes(200), version=5, qos=1, packet_id=7, expiry_s=9, retain=True),
        encode_acks(C.PUBACK, [1, 2, 3]),
        encode(Ack(C.PUBACK, 4, 0x10), version=5),
        encode_acks(C.PUBREC, [5]),
        encode(Pingreq(), version=5),
        encode_publish(b"c", b"x", version=5, properties=b"\x01\x01"),
    ]
)


def test_runs() -> None:
    """Consecutive PUBLISH and consecutive acknowledgements of one type come as one item each."""
    assert server().feed(STREAM) == [
        PublishRun([(b"a/b", b"one", 0, 0, b"", None, 0), (b"a/b", bytes(200), 3, 7, b"", 9, 0)]),
        AckRun(C.PUBACK, [1, 2, 3, 4], [0, 0, 0, 0x10]),
        AckRun(C.PUBREC, [5], None),
        Pingreq(),
        PublishRun([(b"c", b"x", 0, 0, b"\x01\x01", None, 2)]),
    ]


@given(st.data(), st.sampled_from([4, 5]), st.sampled_from(["client", "server"]))
@settings(max_examples=examples(200))
def test_arbitrary_splits_equal_the_whole(data: st.DataObject, version: int, role: Role) -> None:
    """Any packets, cut anywhere, give the same as all at once, and the same as one at a time."""
    packets = packets_from_client(version) if role == "server" else packets_from_server(version)
    encoded = [encode(packet, version=version) for packet in data.draw(st.lists(packets, max_size=12))]
    start: int | None = version
    if role == "server" and data.draw(st.booleans()):
        start = None
        encoded.insert(0, encode(data.draw(connects(version)), version=version))
    stream = b"".join(encoded)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    def decode(parts: list[bytes]) -> list[object]:
        decoder = Decoder(version=start, packet_bytes_max=MAX, role=role)
        items = [item for part in parts for item in decoder.feed(part)]
        assert decoder.fault is None
        assert decoder.buffered_bytes == 0
        return flat(items)

    whole = decode([stream])
    assert len(whole) == len(encoded)
    assert decode(pieces) == whole
    assert decode(encoded) == whole


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer(kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    """Rows hold `bytes` of their own, so the caller may use its buffer again."""
    decoder = server()
    expected = server().feed(STREAM)
    buffer = bytearray(STREAM)
    first, second = kind(buffer[:100]), kind(buffer[100:])
    items = decoder.feed(first) + decoder.feed(second)
    assert flat(items) == flat(expected)
    assert all(
        type(field) is bytes
        for item in items
        if isinstance(item, PublishRun)
        for row in item.rows
        for field in (row[0], row[1], row[4])
    )


def test_large_packet_in_small_reads() -> None:
    """A packet of a megabyte in reads of a kilobyte is kept in pieces and joined once."""
    data = encode_publish(b"a", bytes(1_000_000), version=5)
    decoder = server()
    for start in range(0, len(data) - 1, 1000):
        assert decoder.feed(data[start : start + 1000]) == [] or start + 1000 >= len(data)
    assert decoder.fault is None
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 6, 7, 100])
def test_publish_run_that_is_cut(cut: int) -> None:
    """A run ends before a packet that is not whole, though only its Remaining Length is cut off."""
    short = encode_publish(b"a", b"x", version=5)
    for payload_bytes in (130, 20_000, 2_100_000):
        long = encode_publish(b"b", bytes(payload_bytes), version=5)
        decoder = server(packet_bytes_max=1 << 22)
        assert flat(decoder.feed(short + long[:cut])) == [(b"a", b"x", 0, 0, b"", None, 0)]
        assert decoder.buffered_bytes == cut
        assert flat(decoder.feed(long[cut:])) == [(b"b", bytes(payload_bytes), 0, 0, b"", None, 0)]


def test_items_before_a_fault() -> None:
    """What came before a fault is returned, runs that the fault ended included."""
    good = encode_publish(b"a", b"x", version=5)
    items = expect_fault(server(), good + good + b"\x36\x00", MALFORMED)
    assert flat(items) == [(b"a", b"x", 0, 0, b"", None, 0)] * 2
    acks = encode(Ack(C.PUBACK, 1, 0x10), version=5) + encode_acks(C.PUBACK, [2])
    assert expect_fault(server(), acks + b"\x40\x02\x00\x00", PROTOCOL) == [AckRun(C.PUBACK, [1, 2], [0x10, 0])]
    assert expect_fault(server(), b"\x40\x02\x00\x00", PROTOCOL) == []
    assert expect_fault(server(), b"\xc0\x00\xc0\x01\x00", MALFORMED) == [Pingreq()]


@given(st.binary(max_size=80), st.sampled_from([None, 4, 5]))
@settings(max_examples=500)
def test_random_bytes_never_crash(data: bytes, version: int | None) -> None:
    """Noise ends in packets, a tail or a fault, and in the same however it is cut."""
    whole = server(version)
    items = whole.feed(data)
    pieces = server(version)
    entries: list[object] = []
    for byte in data:
        entries += flat(pieces.feed(bytes((byte,))))
        if pieces.fault is not None:
            break
    assert entries == flat(items)
    assert (pieces.fault is None) == (whole.fault is None)
    if whole.fault is not None and pieces.fault is not None:
        assert pieces.fault.reason_code is whole.fault.reason_code


# Section 3.3, PUBLISH


def v5(topic: bytes, block: bytes = b"", payload: bytes = b"", *, flags: int = 0, packet_id: bytes = b"") -> bytes:
    """Return a PUBLISH of MQTT 5 with a property block as it is."""
    body = encode_binary(topic) + packet_id + encode_varint(len(block)) + block + payload
    return bytes((0x30 | flags,)) + encode_varint(len(body)) + body


@pytest.mark.parametrize("version", [4, 5])
def test_publish_flags(version: int) -> None:
    """QoS 3 [MQTT-3.3.1-4] and DUP at QoS 0 [MQTT-3.3.1-2] are malformed, first in a read or in a run."""
    good = encode_publish(b"a", b"", version=version)
    for flags in range(16):
        body = b"\x00\x01a" + (b"\x00\x07" if flags & 0x06 else b"") + (b"\x00" if version == 5 else b"")
        data = bytes((0x30 | flags, len(body))) + body
        if flags & 0x06 == 0x06 or flags in (8, 9):
            expect_fault(server(version), data, MALFORMED)
            assert len(flat(expect_fault(server(version), good + data, MALFORMED))) == 1
        else:
            row: PublishRow = (b"a", b"", flags, 7 if flags & 0x06 else 0, b"", None, 0)
            assert flat(server(version).feed(good + data))[1] == row


PUBLISH_REFUSED: list[tuple[int, bytes, ReasonCode]] = [
    (4, b"\x30\x00", MALFORMED),
    (4, b"\x30\x01\x00", MALFORMED),
    (5, b"\x30\x00", MALFORMED),
    (4, b"\x30\x02\x00\x00", ReasonCode.TOPIC_NAME_INVALID),  # [MQTT-4.7.3-1]
    (4, b"\x30\x03\x00\x02a", MALFORMED),  # the topic reaches out of the packet
    (5, b"\x30\x03\x00\x01a", MALFORMED),  # no Property Length
    (5, b"\x30\x03\x00\x02a", MALFORMED),
    (5, b"\x30\x03\xff\xffa", MALFORMED),
    (4, b"\x32\x03\x00\x01a", MALFORMED),  # no Packet Identifier
    (4, b"\x32\x04\x00\x01a\x01", MALFORMED),
    (5, b"\x32\x05\x00\x01a\x00\x01", MALFORMED),
    (4, b"\x32\x05\x00\x01a\x00\x00", PROTOCOL),  # [MQTT-2.2.1-3]
    (5, b"\x34\x06\x00\x01a\x00\x00\x00", PROTOCOL),
    (4, b"\x30\x03\x00\x01#", ReasonCode.TOPIC_NAME_INVALID),  # [MQTT-3.3.2-2]
    (5, v5(b"a/+"), ReasonCode.TOPIC_NAME_INVALID),
    (5, v5(b"a/+", b"\x01\x00"), ReasonCode.TOPIC_NAME_INVALID),
    (4, b"\x30\x03\x00\x01\x00", MALFORMED),  # [MQTT-1.5.4-2]
    (4, b"\x30\x05\x00\x03\xed\xa0\x80", MALFORMED),  # [MQTT-3.3.2-1] [MQTT-1.5.4-1]
    (5, v5(b""), PROTOCOL),  # neither Topic Name nor Topic Alias (section 3.3.2.1)
    (5, v5(b"", b"\x01\x00"), PROTOCOL),
    (5, b"\x30\x05\x00\x01a\x05\x01", MALFORMED),  # the Property Length is beyond the packet
    (5, b"\x30\x06\x00\x01a\x80\x00x", MALFORMED),  # the Property Length is not in its shortest form
    (5, b"\x30\x04\x00\x01a\x80", MALFORMED),  # or cut off
    (5, b"\x30\x07\x00\x01a\x80\x80\x80\x80", MALFORMED),  # or too long
    (5, v5(b"a", b"\x11\x00\x00\x00\x00"), MALFORMED),  # not a property of PUBLISH
    (5, v5(b"a", b"\x01\x00\x01\x00"), PROTOCOL),
    (5, v5(b"a", b"\x0b\x05"), PROTOCOL),  # a client sends no Subscription Identifier [MQTT-3.3.4-6]
    (5, v5(b"a", b"\x23\x00\x00"), ALIAS),  # [MQTT-3.3.2-8]
    (5, v5(b"a", b"\x23\x00\x01"), ALIAS),  # the Topic Alias Maximum is 0 [MQTT-3.3.2-9]
]


@pytest.mark.parametrize("tail", [b"", b"\xc0\x00\xc0\x00\xc0\x00"])
@pytest.mark.parametrize(("version", "data", "reason_code"), PUBLISH_REFUSED)
def test_publish_refused(version: int, data: bytes, reason_code: ReasonCode, tail: bytes) -> None:
    """A PUBLISH that breaks a rule is refused, first in a read or in a run, whatever follows it."""
    expect_fault(server(version), data + tail, reason_code)
    good = encode_publish(b"ok", b"x", version=version)
    assert len(flat(expect_fault(server(version), good + data + tail, reason_code))) == 1


def test_publish_with_long_properties() -> None:
    """A Property Length of more than one byte is read, again too."""
    block = b"\x03" + encode_binary(b"t" * 300)
    short = b"\x03" + encode_binary(b"t" * 150)
    decoder = server()
    rows: list[object] = [(b"a", b"p", 0, 0, block, None, 303), (b"a", b"p", 0, 0, short, None, 153)]
    assert flat(decoder.feed(v5(b"a", block, b"p") + v5(b"a", short, b"p"))) == rows
    assert flat(decoder.feed(v5(b"a", block, b"p") + v5(b"a", short, b"p"))) == rows


def test_known_topics_are_not_validated() -> None:
    """Membership stands for validation; a topic that is not known is validated."""

    class Everything:
        def __contains__(self, topic: object) -> bool:
            return topic != b"b/#"

    decoder = Decoder(version=5, packet_bytes_max=MAX, known_topics=Everything(), role="client")
    assert flat(decoder.feed(v5(b"a/#") + v5(b"a/#", b"\x01\x00"))) == [
        (b"a/#", b"", 0, 0, b"", None, 0),
        (b"a/#", b"", 0, 0, b"\x01\x00", None, 2),
    ]
    (skipped,) = decoder.feed(v5(b"b/#"))
    assert isinstance(skipped, SkippedPublish)


@pytest.mark.parametrize("role", ["client", "server"])
def test_any_number_of_topics_that_come_again(role: Role) -> None:
    """Topic Names are remembered in bounded number, and each is told apart from one that is not valid."""
    topics = [b"t/%d" % number for number in range(70_000)] + [b"long/" + b"x" * 1000]
    decoder = Decoder(version=5, packet_bytes_max=MAX, role=role)
    data = b"".join(encode_publish(topic, b"1", version=5) for topic in topics)
    for _ in range(2):
        (run,) = decoder.feed(data)
        assert isinstance(run, PublishRun)
        assert [each[0] for each in run.rows] == topics
    if role == "server":
        expect_fault(decoder, encode_publish(b"t/#", b"1", version=5), ReasonCode.TOPIC_NAME_INVALID)
    else:
        (skipped,) = decoder.feed(encode_publish(b"t/#", b"1", version=5))
        assert isinstance(skipped, SkippedPublish)


@pytest.mark.parametrize("after", [b"", v5(b"c"), b"\x36\x00", v5(b"c", b"\x23\x00\x09")])
def test_rows_before_a_bad_topic(after: bytes) -> None:
    """The first fault counts: what follows the bad name, be it at fault as well, changes nothing."""
    good = v5(b"a") + v5(b"b/\xc3\xa9")
    for bad, reason_code in ((b"c/+", ReasonCode.TOPIC_NAME_INVALID), (b"c\xff", MALFORMED), (b"c\0", MALFORMED)):
        items = expect_fault(server(), good + v5(bad) + after, reason_code)
        assert [row[0] for row in flat(items)] == [b"a", b"b/\xc3\xa9"]  # type: ignore[index]


def test_a_character_in_two_topics() -> None:
    """Two names that are no UTF-8 are not well-formed because together they would be."""
    for cut in (b"\xe2", b"\xe2\x82"):
        rest = b"\xe2\x82\xac"[len(cut) :]
        assert expect_fault(server(), v5(b"a" + cut) + v5(rest + b"b"), MALFORMED) == []


def test_known_topics_may_be_replaced() -> None:
    """The decoder asks the container that it has now."""
    decoder = client()
    decoder.known_topics = {b"+": None}
    assert flat(decoder.feed(v5(b"+"))) == [(b"+", b"", 0, 0, b"", None, 0)]


def test_subscription_identifiers_from_a_server() -> None:
    """A server may send several; they do not travel on (section 3.3.2.3.8)."""
    assert flat(client().feed(v5(b"a", b"\x0b\x05\x0b\x80\x01\x01\x00"))) == [(b"a", b"", 0, 0, b"\x01\x00", None, 2)]


# Section 3.3.2.3.4, Topic Alias


def test_topic_alias_is_resolved() -> None:
    """A Topic Alias with a topic is set, without one it is used, and it may be set again."""
    decoder = server(topic_alias_max=2)
    data = (
        v5(b"a/b", b"\x23\x00\x01", b"1")
        + v5(b"", b"\x23\x00\x01", b"2")
        + v5(b"c", b"\x23\x00\x02")
        + v5(b"", b"\x01\x00\x23\x00\x02", flags=2, packet_id=b"\x00\x05")
        + v5(b"d", b"\x23\x00\x01")
        + v5(b"", b"\x23\x00\x01")
    )
    expected = [
        (b"a/b", b"1", 0, 0, b"", None, 0),
        (b"a/b", b"2", 0, 0, b"", None, 0),
        (b"c", b"", 0, 0, b"", None, 0),
        (b"c", b"", 2, 5, b"\x01\x00", None, 2),
        (b"d", b"", 0, 0, b"", None, 0),
        (b"d", b"", 0, 0, b"", None, 0),
    ]
    assert flat(decoder.feed(data)) == expected
    # it belongs to the Network Connection, not to one read [MQTT-3.3.2-7]
    assert flat(decoder.feed(v5(b"", b"\x23\x00\x02"))) == [(b"c", b"", 0, 0, b"", None, 0)]


@pytest.mark.parametrize(
    ("data", "reason_code"),
    [
        (v5(b"a", b"\x23\x00\x03"), ALIAS),  # over the Topic Alias Maximum [MQTT-3.3.2-9]
        (v5(b"", b"\x23\x00\x03"), ALIAS),
        (v5(b"", b"\x23\x00\x00"), ALIAS),  # [MQTT-3.3.2-8]
        (v5(b"", b"\x23\x00\x01"), PROTOCOL),  # never set
        (v5(b"a/#", b"\x23\x00\x01"), ReasonCode.TOPIC_NAME_INVALID),
        (v5(b"a", b"\x23\x00\x01\x23\x00\x01"), PROTOCOL),  # twice
    ],
)
def test_topic_alias_refused(data: bytes, reason_code: ReasonCode) -> None:
    """An alias of 0, over the maximum, or without a topic is refused."""
    expect_fault(server(topic_alias_max=2), data, reason_code)


# Sections 3.4 to 3.7, acknowledgements


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 5000, 20_000])
def test_long_runs_of_acks(count: int, byteorder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of plain acknowledgements are one item, with each identifier in its place."""
    ids = [index % 65_535 + 1 for index in range(count)]
    data = encode_acks(C.PUBREL, ids)
    monkeypatch.setattr("sys.byteorder", byteorder)
    assert server(4).feed(data) == [AckRun(C.PUBREL, ids, None)]


@given(
    st.lists(
        st.tuples(st.sampled_from([C.PUBACK, C.PUBACK, C.PUBACK, C.PUBCOMP]), st.integers(1, 65_535)),
        max_size=10,
    ),
    st.integers(0, 150),
    st.integers(0, 150),
)
def test_mixed_runs_of_acks(middle: list[tuple[PacketType, int]], before: int, behind: int) -> None:
    """Where the pieces of the fast way end makes no difference."""
    run = [(C.PUBACK, index + 1) for index in range(before)]
    tail = [(C.PUBACK, index + 1) for index in range(behind)]
    packets = [*run, *middle, *tail]
    data = b"".join(encode(Ack(kind, packet_id), version=5) for kind, packet_id in packets)
    assert flat(server().feed(data)) == [(kind, packet_id, 0) for kind, packet_id in packets]


def test_reason_codes_in_a_long_run() -> None:
    """Reason Codes are there for all packets of a run as soon as one is not 0."""
    data = encode_acks(C.PUBACK, [1] * 100) + encode(
        Ack(C.PUBACK, 2, 0x97, Properties(reason_string="full")), version=5
    )
    assert server().feed(data + encode_acks(C.PUBACK, [3])) == [
        AckRun(C.PUBACK, [1] * 100 + [2, 3], [0] * 100 + [0x97, 0])
    ]


def test_packet_identifier_0_in_a_long_run() -> None:
    """A Packet Identifier of 0 is refused in the fast way too, and what came before it is kept."""
    data = encode_acks(C.PUBACK, [1] * 100 + [0] + [1] * 100)
    assert expect_fault(server(), data, PROTOCOL) == [AckRun(C.PUBACK, [1] * 100, None)]


@given(packets=st.lists(packets_from_client(5), max_size=60), work_max=st.integers(1, 2000))
@settings(max_examples=examples(100))
def test_much_work_comes_in_pieces(packets: list[Packet], work_max: int) -> None:
    """What one `feed` leaves, the next ones give: together what a decoder without the bound gives at once."""
    data = b"".join(encode(packet, version=5) for packet in packets)
    whole = server(topic_alias_max=0xFFFF)
    pieces = Decoder(version=5, packet_bytes_max=MAX, topic_alias_max=0xFFFF, work_max=work_max, role="server")
    expected = whole.feed(data)
    found: list[Item] = []
    piece = pieces.feed(data)
    while pieces.has_more:
        assert 1 <= len(piece) <= work_max // 64 + 1
        found += piece
        piece = pieces.feed(b"")
    found += piece
    assert str(pieces.fault) == str(whole.fault)
    assert flat(found) == flat(expected)
    assert pieces.buffered_bytes == 0


def test_a_flood_of_pingreqs_comes_in_pieces() -> None:
    """Each piece has as many as the work allows; what is cut off at the end waits for the rest of it."""
    decoder = Decoder(version=5, packet_bytes_max=1024, work_max=64 * 10, role="server")
    assert decoder.feed(b"\xc0\x00" * 25 + b"\xc0") == [Pingreq()] * 10
    assert decoder.has_more
    assert decoder.feed(b"") == [Pingreq()] * 10
    assert decoder.feed(b"\x00") == [Pingreq()] * 6
    assert (decoder.has_more, decoder.buffered_bytes) == (False, 0)


@pytest.mark.parametrize(
    "many", [Subscribe(1, (Subscription(b"a"),) * TOPIC_FILTERS_MAX), Unsubscribe(1, (b"a",) * TOPIC_FILTERS_MAX)]
)
def test_topic_filters_of_one_packet_are_bounded(many: Subscribe | Unsubscribe) -> None:
    """With one more than a packet may have it is a fault: so many would hold up everybody else."""
    data = encode(many, version=4)
    assert server(4).feed(data) == [many]
    body = data[4:] + data[-4 if isinstance(many, Subscribe) else -3 :]
    expect_fault(server(4), data[:1] + encode_varint(len(body)) + body, ReasonCode.QUOTA_EXCEEDED)


@given(
    messages=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.sampled_from([0, 1])), max_size=8),
    sizes=st.lists(st.integers(1, 150), min_size=1, max_size=8),
)
def test_large_messages_are_skipped_wherever_reads_end(messages: list[tuple[int, int, int]], sizes: list[int]) -> None:
    """Each message comes, or is skipped, as soon as its last byte is there; nothing is held of one that passes."""
    packet_bytes_max = 50
    packets = [
        encode_publish(
            b"%d" % number + b"t" * topic_bytes, bytes(payload_bytes), version=5, qos=qos, packet_id=1 if qos else 0
        )
        for number, (topic_bytes, payload_bytes, qos) in enumerate(messages)
    ]
    data, ends = b"".join(packets), [sum(map(len, packets[: count + 1])) for count in range(len(packets))]
    decoder = Decoder(version=5, packet_bytes_max=packet_bytes_max, topic_alias_max=0, role="client")
    seen: list[tuple[bool, int]] = []
    at = 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        for item in decoder.feed(data[at : at + size]):
            if isinstance(item, SkippedPublish):
                seen.append((True, int(item.topic.rstrip(b"t"))))
            else:
                assert isinstance(item, PublishRun)
                seen += [(False, int(row[0].rstrip(b"t"))) for row in item.rows]
        at += size
        whole = sum(end <= at for end in ends)
        assert [number for _, number in seen] == list(range(whole))
        assert decoder.buffered_bytes <= max(packet_bytes_max, 1 + 4 + 2 + 60 + 2 + 4 + 2)
    assert [is_skipped for is_skipped, _ in seen] == [len(packet) > packet_bytes_max for packet in packets]


def test_work_of_many_small_publishes_is_bounded() -> None:
    """One call decodes some thousands of them, and the rest follows; larger ones come in one run."""
    small, large = encode(Publish(b"t", b""), version=4), encode(Publish(b"t", b"x" * 100), version=4)
    for packet, count, rows_max in ((small, 50_000, 8_000), (large, 2_000, 2_000)):
        decoder = Decoder(version=4, packet_bytes_max=1 << 20, work_max=16 * 1024, role="server")
        runs = [len(item.rows) for item in decoder.feed(packet * count) if isinstance(item, PublishRun)]
        assert len(runs) == 1
        while decoder.has_more:
            runs += [len(item.rows) for item in decoder.feed(b"") if isinstance(item, PublishRun)]
        assert sum(runs) == count
        assert max(runs) <= rows_max
    decoder = Decoder(version=4, packet_bytes_max=1 << 20, role="server")
    (run,) = decoder.feed(small * 50_000)
    assert isinstance(run, PublishRun)
    assert len(run.rows) == 50_000


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Connack(session_present=True, reason_code=0), 5),
        (Suback(1, (0x80,)), 4),
        (Unsuback(1), 4),
        (Pingresp(), 5),
        (Disconnect(0x8B), 5),
    ],
)
def test_packets_for_a_client(packet: Packet, version: int) -> None:
    """The same for what a server sends."""
    assert client(version).feed(encode(packet, version=version)) == [packet]


def test_a_fault_holds_nothing() -> None:
    """Its traceback would hold the packet, up to 1 MiB, and the decoder, until a full garbage collection."""
    decoder = server()
    decoder.feed(b"\x00\x00")
    assert decoder.fault is not None
    assert decoder.fault.__traceback__ is None
