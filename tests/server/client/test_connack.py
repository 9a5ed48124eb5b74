"""Tests of CONNECT and CONNACK: the terms on which clients are accepted."""

from __future__ import annotations

from fanout.chain.stamp import StampCount
from fanout.config import ServerConfig
from fanout.errors import UnsupportedProtocolVersion
from fanout.mqtt.packets import Connect, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.client.connack import Terms, encode_refusal, terms_for


def ask(connect: Connect, **settings: object) -> Terms | ReasonCode:
    """Return what a server with some settings answers."""
    config = ServerConfig(**settings)  # type: ignore[arg-type]  # tests know the keys
    return terms_for(connect, config=config, node_id="n", assign_client_id=lambda: "assigned")


def accepted(connect: Connect, **settings: object) -> Terms:
    """Return the terms that it grants."""
    terms = ask(connect, **settings)
    assert isinstance(terms, Terms)
    return terms


def test_limits_at_the_defaults_are_not_said() -> None:
    """A Receive Maximum of 65,535, QoS 2 and no Topic Aliases need no property."""
    terms = accepted(Connect("c"), receive_maximum=65_535, topic_alias_max=0, packet_bytes_max=5000)
    assert terms.properties == Properties(maximum_packet_size=5000)


def test_keep_alive_is_limited_where_the_client_can_be_told() -> None:
    """MQTT 5 gets Server Keep Alive [MQTT-3.2.2-21]; an MQTT 3.1.1 client keeps its own."""
    for asked, granted, told in ((0, 60, 60), (30, 30, None), (60, 60, None), (61, 60, 60)):
        terms = accepted(Connect("c", keep_alive=asked), keep_alive_max_s=60)
        assert (terms.keep_alive_s, terms.properties.server_keep_alive) == (granted, told)
    assert accepted(Connect("c", version=4, keep_alive=90), keep_alive_max_s=60).keep_alive_s == 90
    assert accepted(Connect("c")).keep_alive_s == 0


def test_link_that_asks_for_stamps_is_told_how_many_there_are() -> None:
    """Where the node stamps all that it serves; other clients are not told."""
    stamps = StampCount(node="n", epoch=7)
    stamps.sequence = 42
    asks = Properties(user_property=(("fanout-stamps", "1"), ("fanout-node", "m")))
    for properties, told in ((asks, ["n:7:42"]), (Properties(), [])):
        terms = terms_for(
            Connect("m", properties=properties),
            config=ServerConfig(),
            node_id="n",
            assign_client_id=lambda: "x",
            stamps=stamps,
        )
        assert isinstance(terms, Terms)
        assert [value for name, value in terms.properties.user_property if name == "fanout-count"] == told


def test_authentication_method_is_refused() -> None:
    """No enhanced authentication is supported: 0x8C [MQTT-4.12.0-1]."""
    connect = Connect("c", properties=Properties(authentication_method="SCRAM"))
    assert ask(connect) is ReasonCode.BAD_AUTHENTICATION_METHOD


def test_unknown_version_is_told_in_a_form_it_may_know() -> None:
    """0x84 for later versions, return code 1 for earlier ones [MQTT-3.1.2-2]."""
    code = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    later = UnsupportedProtocolVersion("MQTT", 6)
    assert encode_refusal(code, version=None, fault=later) == b"\x20\x03\x00\x84\x00"
    earlier = UnsupportedProtocolVersion("MQIsdp", 3)
    assert encode_refusal(code, version=None, fault=earlier) == b"\x20\x02\x00\x01"


def test_retained_messages_that_are_not_available() -> None:
    """CONNACK says so, and a retained Will Message is refused [MQTT-3.2.2-13]."""

    def ask_without(connect: Connect) -> Terms | ReasonCode:
        config = ServerConfig()
        return terms_for(connect, config=config, node_id="n", assign_client_id=lambda: "a", retain_available=False)

    terms = ask_without(Connect("c", will=Will(b"t", b"x")))
    assert isinstance(terms, Terms)
    assert terms.properties.retain_available == 0
    assert ask_without(Connect("c", will=Will(b"t", b"x", retain=True))) is ReasonCode.RETAIN_NOT_SUPPORTED
    assert accepted(Connect("c", will=Will(b"t", b"x", retain=True))).properties.retain_available is None
