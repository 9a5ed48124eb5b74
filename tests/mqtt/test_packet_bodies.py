"""Chapter 3 of MQTT 5 and 3.1.1: what each packet's body must be, filed by section."""

from __future__ import annotations

import contextlib

import pytest

from fanout.errors import ProtocolError, UnsupportedProtocolVersion
from fanout.mqtt.packet_bodies import decode_body, decode_connect, decode_protocol
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.mqtt.strategies import refused

C = PacketType
MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL = ReasonCode.PROTOCOL_ERROR
FILTER = ReasonCode.TOPIC_FILTER_INVALID
WHY = b"\x05\x1f\x00\x02no"
HEAD_5 = b"\x00\x04MQTT\x05"
HEAD_4 = b"\x00\x04MQTT\x04"


def connect(body: bytes) -> Connect:
    """Decode a whole CONNECT body."""
    return decode_connect(body, protocol=decode_protocol(body))


# Section 3.1, CONNECT


@pytest.mark.parametrize(
    ("body", "level"),
    [
        (b"\x00\x06MQIsdp\x03", 3),  # MQTT 3.1
        (b"\x00\x04MQTT\x03", 3),
        (b"\x00\x04MQTT\x06", 6),  # [MQTT-3.1.2-2]
        (b"\x00\x04MQTT\x00", 0),
        (b"\x00\x04MQTT\x85", 0x85),  # the bridge bit belongs to 3.1.1; MQTT 5 has Retain As Published
        (b"\x00\x04mqtt\x05", 5),  # [MQTT-3.1.2-1]
        (b"\x00\x00\x05", 5),
    ],
)
def test_protocol_not_supported(body: bytes, level: int) -> None:
    """Another name or level is told as 0x84, with the level that decides the form of the answer."""
    with pytest.raises(UnsupportedProtocolVersion) as caught:
        decode_protocol(body)
    assert caught.value.reason_code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert caught.value.level == level
    assert "level" in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x04MQT", b"\x00\x04MQTT", b"\x00\x01\xff\x05"])
def test_protocol_malformed(body: bytes) -> None:
    """A protocol name that is cut off or ill-formed is malformed."""
    with refused(MALFORMED):
        decode_protocol(body)


def test_connect_with_everything() -> None:
    """All fields of a CONNECT are in the order of section 3.1.3 [MQTT-3.1.3-1]."""
    body = (
        HEAD_5
        + b"\xee\x00\x3c\x03\x21\x00\x0a\x00\x02id"
        + b"\x05\x18\x00\x00\x00\x07\x00\x01w\x00\x02\x00\xff"
        + b"\x00\x01u\x00\x01\xff"
    )
    assert connect(body) == Connect(
        client_id="id",
        version=5,
        clean_start=True,
        keep_alive=60,
        username="u",
        password=b"\xff",
        will=Will(b"w", b"\x00\xff", 1, retain=True, properties=Properties(will_delay_interval=7)),
        properties=Properties(receive_maximum=10),
    )


@pytest.mark.parametrize(
    "body",
    [
        HEAD_5 + b"\x02\x00\x00\x00\x00\x00",  # MQTT 5: the server assigns a Client Identifier [MQTT-3.1.3-6]
        HEAD_5 + b"\x00\x00\x00\x00\x00\x00",
        HEAD_4 + b"\x02\x00\x00\x00\x00",
    ],
)
def test_connect_with_an_empty_client_identifier(body: bytes) -> None:
    """An empty Client Identifier is legal in MQTT 5, and in 3.1.1 with Clean Session [MQTT-3.1.3-7]."""
    assert connect(body).client_id == ""


@pytest.mark.parametrize(
    ("body", "reason_code"),
    [
        (HEAD_5, MALFORMED),  # no Connect Flags
        (HEAD_5 + b"\x02\x00", MALFORMED),  # no Keep Alive
        (HEAD_5 + b"\x02\x00\x00", MALFORMED),  # no Property Length
        (HEAD_5 + b"\x02\x00\x00\x00", MALFORMED),  # no Client Identifier
        (HEAD_5 + b"\x03\x00\x00\x00\x00\x00", MALFORMED),  # reserved flag [MQTT-3.1.2-3]
        (HEAD_4 + b"\x03\x00\x00\x00\x00", MALFORMED),
        (HEAD_5 + b"\x0a\x00\x00\x00\x00\x00", MALFORMED),  # Will QoS without Will Flag [MQTT-3.1.2-11]
        (HEAD_4 + b"\x12\x00\x00\x00\x00", MALFORMED),
        (HEAD_5 + b"\x22\x00\x00\x00\x00\x00", MALFORMED),  # Will Retain without Will Flag [MQTT-3.1.2-13]
        (HEAD_5 + b"\x1e\x00\x00\x00\x00\x00\x00\x00\x01w\x00\x00", MALFORMED),  # Will QoS 3 [MQTT-3.1.2-12]
        (HEAD_4 + b"\x1e\x00\x00\x00\x00\x00\x01w\x00\x00", MALFORMED),
        (HEAD_4 + b"\x42\x00\x00\x00\x00\x00\x01p", MALFORMED),  # Password without User Name, 3.1.1
        (HEAD_4 + b"\x00\x00\x00\x00\x00", ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),  # [MQTT-3.1.3-8] of 3.1.1
        (HEAD_5 + b"\x02\x00\x00\x00\x00\x01\x00", MALFORMED),  # U+0000 in the Client Identifier
        (HEAD_5 + b"\x02\x00\x00\x00\x00\x01\xff", MALFORMED),
        (HEAD_5 + b"\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", ReasonCode.TOPIC_NAME_INVALID),  # empty
        (HEAD_5 + b"\x06\x00\x00\x00\x00\x00\x00\x00\x01#\x00\x00", ReasonCode.TOPIC_NAME_INVALID),
        (HEAD_5 + b"\x06\x00\x00\x00\x00\x00\x00\x00\x01\xff\x00\x00", MALFORMED),  # [MQTT-3.1.3-11]
        (HEAD_5 + b"\x06\x00\x00\x00\x00\x00\x00\x00\x01w", MALFORMED),  # no Will Payload
        (
            HEAD_5 + b"\x06\x00\x00\x00\x00\x00\x03\x21\x00\x01\x00\x01w\x00\x00",
            MALFORMED,
        ),  # not a Will Property
        (HEAD_5 + b"\x82\x00\x00\x00\x00\x00", MALFORMED),  # no User Name
        (HEAD_5 + b"\x82\x00\x00\x00\x00\x00\x00\x01\xff", MALFORMED),  # [MQTT-3.1.3-12]
        (HEAD_5 + b"\x42\x00\x00\x00\x00\x00", MALFORMED),  # no Password
        (HEAD_5 + b"\x02\x00\x00\x03\x21\x00\x00\x00\x00", PROTOCOL),  # Receive Maximum 0
        (HEAD_5 + b"\x02\x00\x00\x03\x23\x00\x01\x00\x00", MALFORMED),  # Topic Alias in CONNECT
        (HEAD_5 + b"\x02\x00\x00\x00\x00\x00?", MALFORMED),  # trailing bytes
        (HEAD_4 + b"\x02\x00\x00\x00\x00?", MALFORMED),
    ],
)
def test_connect_refused(body: bytes, reason_code: ReasonCode) -> None:
    """A CONNECT that breaks a rule is refused with the code that fits."""
    with refused(reason_code):
        connect(body)


# Sections 3.2 to 3.15: legal forms


LEGAL: list[tuple[PacketType, int, bytes, Packet]] = [
    (C.CONNACK, 5, b"\x01\x00\x00", Connack(session_present=True, reason_code=0)),
    (C.CONNACK, 5, b"\x00\x00\x03\x22\x00\x0a", Connack(False, 0, Properties(topic_alias_maximum=10))),
    (C.CONNACK, 5, b"\x00\xff\x00", Connack(session_present=False, reason_code=0xFF)),
    (C.CONNACK, 4, b"\x00\x05", Connack(session_present=False, reason_code=5)),
    (C.CONNACK, 4, b"\x00\x01", Connack(session_present=False, reason_code=1)),
    # A server of MQTT 3.1.1 refuses MQTT 5 in its own format ([MQTT-3.1.2-2] of 3.1.1).
    (C.CONNACK, 5, b"\x00\x01", Connack(session_present=False, reason_code=0x84)),
    # The short forms: Remaining Length 2, 3, and with properties (sections 3.4.2.1 to 3.7.2.1)
    (C.PUBACK, 5, b"\x00\x01", Ack(C.PUBACK, 1)),
    (C.PUBACK, 5, b"\x00\x01\x10", Ack(C.PUBACK, 1, 0x10)),
    (C.PUBREC, 5, b"\x00\x01\x00\x00", Ack(C.PUBREC, 1)),
    (C.PUBACK, 5, b"\x00\x01\x95", Ack(C.PUBACK, 1, 0x95)),  # no code of its table, a refusal all the same
    (C.PUBREC, 5, b"\x00\x01\xff", Ack(C.PUBREC, 1, 0xFF)),
    (C.PUBREL, 5, b"\x00\x01\x92" + WHY, Ack(C.PUBREL, 1, 0x92, Properties(reason_string="no"))),
    (C.PUBCOMP, 5, b"\xff\xff\x92", Ack(C.PUBCOMP, 65_535, 0x92)),
    (C.PUBCOMP, 4, b"\xff\xff", Ack(C.PUBCOMP, 65_535)),
    (
        C.SUBSCRIBE,
        5,
        b"\x00\x0a\x02\x0b\x07\x00\x03a/b\x2e\x00\x0a$share/g/#\x19",
        Subscribe(
            10,
            (
                Subscription(b"a/b", 2, no_local=True, retain_as_published=True, retain_handling=2),
                Subscription(b"$share/g/#", 1, retain_as_published=True, retain_handling=1),
            ),
            Properties(subscription_identifier=(7,)),
        ),
    ),
    (C.SUBSCRIBE, 4, b"\x00\x0a\x00\x01#\x02", Subscribe(10, (Subscription(b"#", 2),))),
    # MQTT 3.1.1 has no shared subscriptions: `$share` is a level like any other
    (C.SUBSCRIBE, 4, b"\x00\x0a\x00\x08$share//\x00", Subscribe(10, (Subscription(b"$share//"),))),
    (C.SUBACK, 5, b"\x00\x0a\x00\x00\x01\x02\x80\xa2", Suback(10, (0, 1, 2, 0x80, 0xA2))),
    (C.SUBACK, 4, b"\x00\x0a\x80\x02", Suback(10, (0x80, 2))),
    (C.UNSUBSCRIBE, 5, b"\x00\x0a\x00\x00\x03a/b\x00\x01#", Unsubscribe(10, (b"a/b", b"#"))),
    (C.UNSUBSCRIBE, 4, b"\x00\x0a\x00\x03a/b", Unsubscribe(10, (b"a/b",))),
    (C.UNSUBACK, 5, b"\x00\x0a\x00\x00\x11\x87", Unsuback(10, (0, 0x11, 0x87))),
    (C.UNSUBACK, 4, b"\x00\x0a", Unsuback(10)),
    (C.PINGREQ, 5, b"", Pingreq()),
    (C.PINGRESP, 4, b"", Pingresp()),
    # Remaining Length 0, 1, and 2 and more (section 3.14.2)
    (C.DISCONNECT, 4, b"", Disconnect()),
    (C.DISCONNECT, 5, b"", Disconnect()),
    (C.DISCONNECT, 5, b"\x04", Disconnect(4)),
    (C.DISCONNECT, 5, b"\x00\x00", Disconnect()),
    (C.DISCONNECT, 5, b"\x8b" + WHY, Disconnect(0x8B, Properties(reason_string="no"))),
    (C.AUTH, 5, b"", Auth()),
    (C.AUTH, 5, b"\x18\x04\x15\x00\x01m", Auth(0x18, Properties(authentication_method="m"))),
]


@pytest.mark.parametrize(("packet_type", "version", "body", "packet"), LEGAL)
def test_legal_forms(packet_type: PacketType, version: int, body: bytes, packet: Packet) -> None:
    """Each legal form of a body gives its packet."""
    assert decode_body(packet_type, body, version=version) == packet


ILLEGAL: list[tuple[PacketType, int, bytes, ReasonCode]] = [
    # 3.2 CONNACK
    (C.CONNACK, 5, b"", MALFORMED),
    (C.CONNACK, 5, b"\x00", MALFORMED),
    (C.CONNACK, 5, b"\x00\x00", MALFORMED),  # no Property Length
    (C.CONNACK, 5, b"\x02\x00\x00", MALFORMED),  # [MQTT-3.2.2-1]
    (C.CONNACK, 4, b"\x80\x00", MALFORMED),
    (C.CONNACK, 5, b"\x01\x87\x00", PROTOCOL),  # [MQTT-3.2.2-6]
    (C.CONNACK, 4, b"\x01\x02", PROTOCOL),  # [MQTT-3.2.2-4] of 3.1.1
    (C.CONNACK, 5, b"\x00\x02\x00", PROTOCOL),  # not a Connect Reason Code [MQTT-3.2.2-8]
    (C.CONNACK, 4, b"\x00\x06", PROTOCOL),  # reserved return code
    (C.CONNACK, 4, b"\x00\x00\x00", MALFORMED),
    (C.CONNACK, 5, b"\x00\x00\x00\x00", MALFORMED),
    # 3.4 to 3.7 PUBACK, PUBREC, PUBREL, PUBCOMP
    (C.PUBACK, 5, b"", MALFORMED),
    (C.PUBACK, 5, b"\x00", MALFORMED),
    (C.PUBREC, 5, b"\x00\x00", PROTOCOL),  # Packet Identifier 0 [MQTT-2.2.1-3]
    (C.PUBREC, 4, b"\x00\x00", PROTOCOL),
    (C.PUBACK, 5, b"\x00\x01\x01", PROTOCOL),  # [MQTT-3.4.2-1]
    (C.PUBREC, 5, b"\x00\x01\x7f", PROTOCOL),  # [MQTT-3.5.2-1]
    (C.PUBREL, 5, b"\x00\x01\x10", PROTOCOL),  # [MQTT-3.6.2-1]
    (C.PUBCOMP, 5, b"\x00\x01\x80", PROTOCOL),  # [MQTT-3.7.2-1]
    (C.PUBACK, 5, b"\x00\x01\x00\x01", MALFORMED),
    (C.PUBACK, 5, b"\x00\x01\x00\x00\x00", MALFORMED),
    (C.PUBACK, 5, b"\x00\x01\x00\x05\x11\x00\x00\x00\x00", MALFORMED),  # Session Expiry Interval in PUBACK
    (C.PUBACK, 4, b"\x00\x01\x00", MALFORMED),  # 3.1.1 has no Reason Code
    # 3.8 SUBSCRIBE
    (C.SUBSCRIBE, 5, b"\x00", MALFORMED),
    (C.SUBSCRIBE, 5, b"\x00\x0a", MALFORMED),
    (C.SUBSCRIBE, 5, b"\x00\x00\x00\x00\x01a\x00", PROTOCOL),  # [MQTT-2.2.1-3]
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00", PROTOCOL),  # no Topic Filter [MQTT-3.8.3-2]
    (C.SUBSCRIBE, 4, b"\x00\x0a", PROTOCOL),  # [MQTT-3.8.3-3] of 3.1.1
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x01a", MALFORMED),  # no Subscription Options
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x05a\x00", MALFORMED),
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x01a\x40", MALFORMED),  # [MQTT-3.8.3-5]
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x01a\x80", MALFORMED),
    (C.SUBSCRIBE, 4, b"\x00\x0a\x00\x01a\x04", MALFORMED),  # [MQTT-3-8.3-4] of 3.1.1
    (C.SUBSCRIBE, 4, b"\x00\x0a\x00\x01a\x03", MALFORMED),
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x01a\x03", PROTOCOL),  # QoS 3
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x01a\x30", PROTOCOL),  # Retain Handling 3
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x0a$share/g/a\x04", PROTOCOL),  # [MQTT-3.8.3-4]
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x00\x00", FILTER),  # [MQTT-4.7.3-1]
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x02a#\x00", FILTER),  # [MQTT-4.7.1-1]
    (C.SUBSCRIBE, 4, b"\x00\x0a\x00\x02+a\x00", FILTER),  # [MQTT-4.7.1-2]
    (C.SUBSCRIBE, 5, b"\x00\x0a\x00\x00\x01\xff\x00", MALFORMED),  # [MQTT-3.8.3-1]
    (C.SUBSCRIBE, 5, b"\x00\x0a\x02\x0b\x00\x00\x01a\x00", PROTOCOL),  # Subscription Identifier 0
    # 3.9 SUBACK
    (C.SUBACK, 5, b"\x00\x0a", MALFORMED),
    (C.SUBACK, 5, b"\x00\x0a\x00", PROTOCOL),
    (C.SUBACK, 5, b"\x00\x0a\x00\x03", PROTOCOL),  # [MQTT-3.9.3-2]
    (C.SUBACK, 4, b"\x00\x0a\x03", PROTOCOL),
    (C.SUBACK, 4, b"\x00\x0a\x87", PROTOCOL),
    (C.SUBACK, 5, b"\x00\x00\x00\x00", PROTOCOL),
    # 3.10 UNSUBSCRIBE
    (C.UNSUBSCRIBE, 5, b"\x00\x0a\x00", PROTOCOL),  # [MQTT-3.10.3-2]
    (C.UNSUBSCRIBE, 4, b"\x00\x0a", PROTOCOL),
    (C.UNSUBSCRIBE, 4, b"\x00\x00\x00\x01a", PROTOCOL),
    (C.UNSUBSCRIBE, 5, b"\x00\x0a\x00\x00\x02a", MALFORMED),
    (C.UNSUBSCRIBE, 5, b"\x00\x0a\x00\x00\x03a/\xff", MALFORMED),  # [MQTT-3.10.3-1]
    (C.UNSUBSCRIBE, 5, b"\x00\x0a\x00\x00\x00", FILTER),
    # 3.11 UNSUBACK
    (C.UNSUBACK, 5, b"\x00\x0a\x00", PROTOCOL),
    (C.UNSUBACK, 5, b"\x00\x0a\x00\x01", PROTOCOL),
    (C.UNSUBACK, 5, b"\x00\x0a", MALFORMED),
    (C.UNSUBACK, 4, b"\x00\x0a\x00", MALFORMED),
    # 3.12 and 3.13 PINGREQ and PINGRESP
    (C.PINGREQ, 5, b"\x00", MALFORMED),
    (C.PINGRESP, 4, b"\x00", MALFORMED),
    # 3.14 DISCONNECT
    (C.DISCONNECT, 4, b"\x00", MALFORMED),
    (C.DISCONNECT, 5, b"\x01", PROTOCOL),  # [MQTT-3.14.2-1]
    (C.DISCONNECT, 5, b"\x00\x01", MALFORMED),
    (C.DISCONNECT, 5, b"\x00\x00\x00", MALFORMED),
    (C.DISCONNECT, 5, b"\x00\x03\x21\x00\x01", MALFORMED),
    # 3.15 AUTH
    (C.AUTH, 5, b"\x18", MALFORMED),
    (C.AUTH, 5, b"\x18\x00", PROTOCOL),  # no Authentication Method
    (C.AUTH, 5, b"\x01\x04\x15\x00\x01m", PROTOCOL),  # [MQTT-3.15.2-1]
    (C.AUTH, 5, b"\x18\x04\x15\x00\x01m?", MALFORMED),
]


@pytest.mark.parametrize(("packet_type", "version", "body", "reason_code"), ILLEGAL)
def test_illegal_forms(packet_type: PacketType, version: int, body: bytes, reason_code: ReasonCode) -> None:
    """Each body that breaks a rule is refused with the code that the specification gives it."""
    with refused(reason_code):
        decode_body(packet_type, body, version=version)


@pytest.mark.parametrize(("packet_type", "version", "body", "packet"), LEGAL)
def test_every_cut_and_every_tail(packet_type: PacketType, version: int, body: bytes, packet: Packet) -> None:
    """A legal body that is cut anywhere or has a byte more is refused or legal too: no crash."""
    for candidate in [*(body[:length] for length in range(len(body))), body + b"\x00"]:
        with contextlib.suppress(ProtocolError):
            assert type(decode_body(packet_type, candidate, version=version)) is type(packet)
