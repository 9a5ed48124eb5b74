"""Hypothesis strategies for every MQTT Control Packet, and the checks that all tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from hypothesis import strategies as st

from fanout.errors import ProtocolError
from fanout.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from fanout.mqtt.properties import NO_PROPERTIES, WILL, Properties, PropertyOwner
from fanout.mqtt.reason_codes import ReasonCode


@contextmanager
def refused(reason_code: ReasonCode) -> Iterator[None]:
    """Expect a `ProtocolError` with `reason_code`."""
    with pytest.raises(ProtocolError) as caught:
        yield
    assert caught.value.reason_code is reason_code


_SURROGATES: tuple[Literal["Cs"]] = ("Cs",)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=_SURROGATES), max_size=12)
blobs = st.binary(max_size=12)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
positive_u16 = st.integers(1, 0xFFFF)
positive_u32 = st.integers(1, 0xFFFF_FFFF)
packet_ids = positive_u16
qualities = st.integers(0, 2)
flags = st.integers(0, 1)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
subscription_identifiers = st.integers(1, 268_435_455)

levels = st.text(st.characters(exclude_characters="\0+#/", exclude_categories=_SURROGATES), max_size=4)
topic_texts = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
topic_names = topic_texts.map(str.encode)
topic_filters = (
    st.tuples(st.lists(levels | st.just("+"), min_size=1, max_size=5), st.booleans())
    .map(lambda parts: "/".join(parts[0]) + ("/#" if parts[1] else ""))
    .filter(bool)
    .map(str.encode)
    .filter(lambda topic_filter: not topic_filter.startswith(b"$share/"))
)

_REASON_OWNERS: tuple[PropertyOwner, ...] = (
    PacketType.CONNACK,
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.DISCONNECT,
    PacketType.AUTH,
)
_FIELDS: dict[PropertyOwner, dict[str, st.SearchStrategy[Any]]] = {
    PacketType.CONNECT: {
        "session_expiry_interval": u32,
        "receive_maximum": positive_u16,
        "maximum_packet_size": positive_u32,
        "topic_alias_maximum": u16,
        "request_response_information": flags,
        "request_problem_information": flags,
    },
    PacketType.CONNACK: {
        "session_expiry_interval": u32,
        "receive_maximum": positive_u16,
        "maximum_qos": flags,
        "retain_available": flags,
        "maximum_packet_size": positive_u32,
        "assigned_client_identifier": texts,
        "topic_alias_maximum": u16,
        "wildcard_subscription_available": flags,
        "subscription_identifier_available": flags,
        "shared_subscription_available": flags,
        "server_keep_alive": u16,
        "response_information": texts,
        "server_reference": texts,
    },
    PacketType.PUBLISH: {
        "payload_format_indicator": flags,
        "message_expiry_interval": u32,
        "content_type": texts,
        "response_topic": topic_texts,
        "correlation_data": blobs,
    },
    WILL: {
        "will_delay_interval": u32,
        "payload_format_indicator": flags,
        "message_expiry_interval": u32,
        "content_type": texts,
        "response_topic": topic_texts,
        "correlation_data": blobs,
    },
    PacketType.SUBSCRIBE: {"subscription_identifier": st.tuples(subscription_identifiers)},
    PacketType.UNSUBSCRIBE: {},
    PacketType.DISCONNECT: {"session_expiry_interval": u32, "server_reference": texts},
}
"""The properties that each packet may hold (MQTT 5, table 2-4), besides User Property and Reason String."""


@st.composite
def properties(draw: st.DrawFn, owner: PropertyOwner) -> Properties:
    """Draw properties that `owner` may hold."""
    fields = {**_FIELDS.get(owner, {}), "user_property": pairs}
    if owner in _REASON_OWNERS:
        fields["reason_string"] = texts
    chosen = draw(st.fixed_dictionaries({}, optional=fields))
    if owner in {PacketType.CONNECT, PacketType.CONNACK, PacketType.AUTH} and draw(st.booleans()):
        chosen["authentication_method"] = draw(texts)
        if draw(st.booleans()):
            chosen["authentication_data"] = draw(blobs)
    if owner is PacketType.AUTH:
        chosen.setdefault("authentication_method", "SCRAM-SHA-256")
    return Properties(**chosen)


def _block(owner: PropertyOwner, version: int) -> st.SearchStrategy[Properties]:
    return properties(owner) if version == 5 else st.just(NO_PROPERTIES)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    """Draw a CONNECT."""
    clean_start = draw(st.booleans())
    username = draw(st.none() | texts)
    will = st.builds(Will, topic_names, blobs, qualities, st.booleans(), _block(WILL, version))
    return Connect(
        client_id=draw(texts if version == 5 or clean_start else texts.filter(bool)),
        version=version,
        clean_start=clean_start,
        keep_alive=draw(u16),
        username=username,
        password=draw(st.none() | blobs) if version == 5 or username is not None else None,
        will=draw(st.none() | will),
        properties=draw(_block(PacketType.CONNECT, version)),
        bridge=version == 4 and draw(st.booleans()),
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    """Draw a PUBLISH without Topic Alias and Subscription Identifier."""
    qos = draw(qualities)
    return Publish(
        topic=draw(topic_names),
        payload=draw(st.binary(max_size=40) | st.binary(min_size=120, max_size=140)),
        qos=qos,
        retain=draw(st.booleans()),
        dup=qos > 0 and draw(st.booleans()),
        packet_id=draw(packet_ids) if qos else None,
        properties=draw(_block(PacketType.PUBLISH, version)),
    )


_ACK_CODES = {
    PacketType.PUBACK: [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    PacketType.PUBREC: [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    PacketType.PUBREL: [0x00, 0x92],
    PacketType.PUBCOMP: [0x00, 0x92],
}


@st.composite
def acks(draw: st.DrawFn, version: int) -> Ack:
    """Draw a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    ack_type = draw(st.sampled_from(sorted(_ACK_CODES)))
    code = draw(st.sampled_from(_ACK_CODES[ack_type])) if version == 5 else 0
    return Ack(ack_type, draw(packet_ids), code, draw(_block(ack_type, version)))


def subscriptions(version: int) -> st.SearchStrategy[Subscription]:
    """Return the subscriptions of a SUBSCRIBE."""
    if version == 4:
        return st.builds(Subscription, topic_filters, qualities)
    return st.builds(Subscription, topic_filters, qualities, st.booleans(), st.booleans(), st.integers(0, 2))


def packets_from_client(version: int) -> st.SearchStrategy[Packet]:
    """Return what a client may send after CONNECT."""
    strategies: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        acks(version),
        st.builds(
            Subscribe,
            packet_ids,
            st.lists(subscriptions(version), min_size=1, max_size=3).map(tuple),
            _block(PacketType.SUBSCRIBE, version),
        ),
        st.builds(
            Unsubscribe,
            packet_ids,
            st.lists(topic_filters, min_size=1, max_size=3).map(tuple),
            _block(PacketType.UNSUBSCRIBE, version),
        ),
        st.just(Pingreq()),
    ]
    if version == 4:
        return st.one_of(*strategies, st.just(Disconnect()))
    return st.one_of(
        *strategies,
        st.builds(Disconnect, st.sampled_from([0x00, 0x04, 0x80, 0x93]), properties(PacketType.DISCONNECT)),
        st.builds(Auth, st.sampled_from([0x00, 0x18, 0x19]), properties(PacketType.AUTH)) | st.just(Auth()),
    )


def packets_from_server(version: int) -> st.SearchStrategy[Packet]:
    """Return what a server may send."""
    suback_codes = [0, 1, 2, 0x80] if version == 4 else [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x97, 0x9E, 0xA1]
    refusals = st.builds(
        Connack,
        st.just(False),
        st.integers(1, 5) if version == 4 else st.sampled_from([0x80, 0x84, 0x87, 0x9C]),
        _block(PacketType.CONNACK, version),
    )
    strategies: list[st.SearchStrategy[Packet]] = [
        st.builds(Connack, st.booleans(), st.just(0), _block(PacketType.CONNACK, version)) | refusals,
        publishes(version),
        acks(version),
        st.builds(
            Suback,
            packet_ids,
            st.lists(st.sampled_from(suback_codes), min_size=1, max_size=4).map(tuple),
            _block(PacketType.SUBACK, version),
        ),
        st.just(Pingresp()),
    ]
    if version == 4:
        return st.one_of(*strategies, st.builds(Unsuback, packet_ids))
    return st.one_of(
        *strategies,
        st.builds(
            Unsuback,
            packet_ids,
            st.lists(st.sampled_from([0x00, 0x11, 0x80, 0x8F]), min_size=1, max_size=4).map(tuple),
            properties(PacketType.UNSUBACK),
        ),
        st.builds(
            Disconnect,
            st.sampled_from([0x00, 0x81, 0x8B, 0x8E, 0x9C]),
            st.builds(Properties, reason_string=st.none() | texts, user_property=pairs),
        ),
        st.builds(Auth, st.sampled_from([0x00, 0x18]), properties(PacketType.AUTH)),
    )
