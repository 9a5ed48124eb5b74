"""What the oracle says of packets that are right by themselves and wrong behind those before them."""

from __future__ import annotations

import pytest

from tests.oracle.encoding import encode_ack, encode_connect, encode_publish, encode_subscribe
from tests.oracle.packets import Kind, Properties, Violation
from tests.oracle.streams import ClientStream, ServerStream

CONNACK = b"\x20\x03\x00\x00\x00"
RESUMED = b"\x20\x03\x01\x00\x00"


def connected(properties: Properties = (), *, earlier: ServerStream | None = None, clean: bool = True) -> ServerStream:
    """Return the stream of a server that has accepted a client."""
    stream = ServerStream(earlier=earlier)
    stream.note(encode_connect(b"c", version=5, properties=properties, clean_start=clean))
    stream.feed(CONNACK if clean else RESUMED)
    return stream


def linked(connack: bytes = CONNACK) -> ClientStream:
    """Return the stream of a client that was accepted."""
    stream = ClientStream()
    stream.feed(encode_connect(b"c", version=5))
    stream.note(connack)
    return stream


def publish(topic: bytes = b"t", payload: bytes = b"", *, qos: int = 0, packet_id: int = 0, dup: bool = False) -> bytes:
    """Return a PUBLISH without properties."""
    data = encode_publish(topic, payload, version=5, qos=qos, packet_id=packet_id)
    return bytes((data[0] | dup << 3,)) + data[1:]


def aliased(topic: bytes, alias: int) -> bytes:
    """Return a PUBLISH with a Topic Alias."""
    return encode_publish(topic, b"", version=5, properties=((0x23, alias),))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (CONNACK, "second CONNACK"),
        (b"\xe0\x00\xd0\x00", "nothing may follow"),
        (b"\xd0\x00", "answers nothing"),
        (encode_ack(Kind.PUBACK, 1), "next answer"),
        (encode_ack(Kind.PUBREC, 1), "next answer"),
        (encode_ack(Kind.PUBCOMP, 1), "no PUBREL"),
        (b"\x90\x04\x00\x01\x00\x00", "no request"),
        (b"\xb0\x04\x00\x01\x00\x00", "no request"),
        (publish(qos=1, packet_id=1) * 2, "in use"),
        (publish(qos=1, packet_id=1, dup=True), "not sent before"),
        (publish(qos=2, packet_id=1) + encode_ack(Kind.PUBREL, 1), "without a PUBREC"),
        (aliased(b"t", 3), "above the Topic Alias Maximum 2"),
        (aliased(b"", 2), "no Topic Name yet"),
        (encode_publish(b"t", b"", version=5, properties=((0x0B, 1),)), "were not given"),
        (publish(payload=b"x" * 60), "Maximum Packet Size"),
        (b"".join(publish(qos=1, packet_id=number) for number in (1, 2, 3)), "Receive Maximum is 2"),
    ],
)
def test_what_a_server_may_not_send(sent: bytes, reason: str) -> None:
    """Answers to nothing, identifiers in use, and more than the client takes; at the offset of the packet."""
    stream = connected(((0x22, 2), (0x27, 60), (0x21, 2)))
    with pytest.raises(Violation, match=reason) as caught:
        stream.feed(sent)
    assert caught.value.offset >= len(CONNACK)


def test_what_a_server_may_send() -> None:
    """Answers in their order, identifiers that are free again, aliases that were set."""
    stream = connected(((0x22, 2), (0x21, 2)))
    stream.note(encode_subscribe(5, [(b"#", 1), (b"t", 2)], version=5, properties=((0x0B, 9),)))
    stream.feed(b"\x90\x05\x00\x05\x00\x01\x87")
    stream.feed(encode_publish(b"t", b"", version=5, properties=((0x0B, 9),)))
    first, second = stream.feed(aliased(b"long", 2) + aliased(b"", 2))
    assert (first.topic, second.topic) == (b"long", b"long")
    for _ in range(3):
        stream.feed(publish(qos=1, packet_id=1) + publish(qos=2, packet_id=2))
        stream.note(encode_ack(Kind.PUBACK, 1) + encode_ack(Kind.PUBREC, 2))
        stream.feed(encode_ack(Kind.PUBREL, 2))
        stream.note(encode_ack(Kind.PUBCOMP, 2))
    stream.note(publish(qos=1, packet_id=7) + publish(qos=2, packet_id=8) + publish(qos=1, packet_id=9) + b"\xc0\x00")
    stream.feed(encode_ack(Kind.PUBREC, 8) + encode_ack(Kind.PUBACK, 7) + encode_ack(Kind.PUBACK, 9) + b"\xd0\x00")
    stream.note(encode_ack(Kind.PUBREL, 8))
    stream.feed(encode_ack(Kind.PUBCOMP, 8) + b"\xe0\x00")
    stream.end()


def test_order_of_answers_counts() -> None:
    """The PUBACK of the second PUBLISH before that of the first is none [MQTT-4.6.0-2]."""
    stream = connected()
    stream.note(publish(qos=1, packet_id=7) + publish(qos=1, packet_id=9))
    with pytest.raises(Violation, match="next answer"):
        stream.feed(encode_ack(Kind.PUBACK, 9))


def test_suback_fits_its_subscribe() -> None:
    """One code for each Topic Filter, and not more QoS than was asked for."""
    for answer, reason in (
        (b"\x90\x05\x00\x01\x00\x00\x00", "2 Reason Codes"),
        (b"\x90\x04\x00\x01\x00\x01", "more QoS"),
    ):
        stream = connected()
        stream.note(encode_subscribe(1, [(b"#", 0)], version=5))
        with pytest.raises(Violation, match=reason):
            stream.feed(answer)


def test_problem_information_that_is_not_wanted() -> None:
    """Only in PUBLISH, CONNACK and DISCONNECT [MQTT-3.1.2-29]."""
    stream = connected(((0x17, 0),))
    stream.note(publish(qos=1, packet_id=7))
    with pytest.raises(Violation, match="Problem Information"):
        stream.feed(b"\x40\x08\x00\x07\x00\x04\x1f\x00\x01r")


def test_connack_fits_its_connect() -> None:
    """It is the first packet, has an Assigned Client Identifier where one is due, and no session after Clean Start."""
    with pytest.raises(Violation, match="no CONNACK"):
        ServerStream().feed(publish())
    stream = ServerStream()
    stream.note(encode_connect(b"", version=5))
    with pytest.raises(Violation, match="no Assigned"):
        stream.feed(CONNACK)
    stream = ServerStream()
    stream.note(encode_connect(b"c", version=5))
    with pytest.raises(Violation, match="Session Present"):
        stream.feed(RESUMED)


def test_session_goes_on() -> None:
    """What was in flight comes again as it was, with DUP; its identifier is not free meanwhile."""
    first = connected()
    first.note(encode_subscribe(5, [(b"#", 1)], version=5, properties=((0x0B, 9),)))
    first.feed(publish(payload=b"1", qos=1, packet_id=1))
    for sent, reason in (
        (publish(payload=b"2", qos=1, packet_id=1), "in use"),
        (publish(payload=b"2", qos=1, packet_id=1, dup=True), "another message"),
    ):
        with pytest.raises(Violation, match=reason):
            connected(earlier=first, clean=False).feed(sent)
    stream = connected(earlier=first, clean=False)
    stream.feed(publish(payload=b"1", qos=1, packet_id=1, dup=True))
    stream.feed(encode_publish(b"t", b"", version=5, properties=((0x0B, 9),)))


def test_session_that_was_begun_elsewhere() -> None:
    """What depends on it is not judged; limits of this connection are."""
    stream = connected(((0x27, 60),), clean=False)
    stream.feed(publish(qos=1, packet_id=1, dup=True) + encode_ack(Kind.PUBREL, 7))
    with pytest.raises(Violation, match="Maximum Packet Size"):
        stream.feed(publish(payload=b"x" * 60))


def test_peer_that_writes_rubbish() -> None:
    """Packets are judged by themselves from then on."""
    stream = connected()
    stream.note(b"\xff\xff")
    stream.note(b"\x00\x00")
    stream.feed(encode_ack(Kind.PUBACK, 1))
    with pytest.raises(Violation, match="Packet Identifier is 0"):
        stream.feed(encode_ack(Kind.PUBACK, 0))


def test_what_came_before_rubbish_counts() -> None:
    """The limits of a CONNECT hold, though its client wrote rubbish behind it in the same piece."""
    stream = ServerStream()
    stream.note(encode_connect(b"c", version=5, properties=((0x22, 1),)) + b"\xff\xff")
    stream.feed(CONNACK + aliased(b"t", 1))
    with pytest.raises(Violation, match="Topic Alias Maximum 1"):
        stream.feed(aliased(b"u", 2))


def test_cuts() -> None:
    """Reads cut packets anywhere; the offset of a fault counts from the first byte; an end must not cut one off."""
    stream = connected()
    data = publish(payload=b"1") + b"\xd1\x00"
    for byte in data[:-3]:
        stream.feed(bytes((byte,)))
    with pytest.raises(Violation, match="the end cuts"):
        stream.end()
    with pytest.raises(Violation) as caught:
        stream.feed(data[-3:])
    assert caught.value.offset == len(CONNACK) + len(data) - 2


LIMITED = b"\x20\x13\x00\x00\x10\x27\x00\x00\x00\x1e\x21\x00\x02\x24\x01\x25\x00\x28\x00\x29\x00"
"""Maximum Packet Size 30, Receive Maximum 2, Maximum QoS 1, no RETAIN, no wildcards, no Subscription Identifiers."""


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (encode_connect(b"c", version=5), "comes once"),
        (b"\xe0\x00\xc0\x00", "nothing may follow"),
        (publish(qos=2, packet_id=1), "Maximum QoS"),
        (encode_publish(b"t", b"", version=5, retain=True), "RETAIN"),
        (publish(payload=b"x" * 30), "Maximum Packet Size"),
        (encode_subscribe(1, [(b"t" * 30, 0)], version=5), "Maximum Packet Size"),
        (encode_subscribe(1, [(b"#", 0)], version=5), "wildcards"),
        (encode_subscribe(1, [(b"t", 0)], version=5, properties=((0x0B, 1),)), "Subscription Identifier"),
        (encode_subscribe(1, [(b"t", 0)], version=5) * 2, "in use"),
        (publish(qos=1, packet_id=1) + encode_subscribe(1, [(b"t", 0)], version=5), "in use"),
        (encode_subscribe(1, [(b"t", 0)], version=5) + publish(qos=1, packet_id=1), "in use for a request"),
        (b"".join(publish(qos=1, packet_id=number) for number in (1, 2, 3)), "Receive Maximum is 2"),
        (aliased(b"t", 1), "above the Topic Alias Maximum 0"),
        (encode_ack(Kind.PUBACK, 1), "next answer"),
    ],
)
def test_what_a_client_may_not_send(sent: bytes, reason: str) -> None:
    """What CONNACK excludes, identifiers in use, and answers to nothing."""
    with pytest.raises(Violation, match=reason):
        linked(LIMITED).feed(sent)


def test_first_packet_of_a_client() -> None:
    """It is CONNECT, on each Network Connection."""
    stream = linked()
    stream.begin()
    with pytest.raises(Violation, match="CONNECT is the first"):
        stream.feed(b"\xc0\x00")


def test_session_of_a_client_goes_on() -> None:
    """With Session Present the message is sent again with DUP; without, it is a new one."""
    for present, dup in ((True, True), (False, False)):
        stream = linked()
        stream.feed(publish(qos=1, packet_id=1))
        stream.begin()
        stream.feed(encode_connect(b"c", version=5, clean_start=False))
        stream.note(RESUMED if present else CONNACK)
        stream.feed(publish(qos=1, packet_id=1, dup=dup))
        stream.note(encode_ack(Kind.PUBACK, 1))
        stream.feed(publish(qos=1, packet_id=1))
