"""CONNACK, DISCONNECT and SUBACK as a link reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanout.errors import PrimaryRefused
from fanout.link.protocol.handshake import Handshake, disconnected, read_connack, refused_subscription
from fanout.link.protocol.sender import PrimaryLimits
from fanout.mqtt.packets import Connack, Disconnect
from fanout.mqtt.properties import Properties
from tests.link.fake_primary import make_config


def test_what_connack_does_not_say_is_as_configured() -> None:
    """The defaults are those of the specification and of the configuration."""
    handshake = read_connack(Connack(True, 0), make_config(keep_alive_s=20, session_expiry_s=100))
    assert handshake == Handshake(
        session_present=True,
        limits=PrimaryLimits(receive_maximum=65_535),
        keep_alive_s=20,
        session_expiry_s=100,
        primary_node=None,
        stamped=False,
    )


def test_what_connack_says_is_in_force() -> None:
    """What the primary takes, Server Keep Alive (0 too), Session Expiry and the User Properties of a fanout node."""
    properties = Properties(
        receive_maximum=20,
        maximum_qos=1,
        retain_available=0,
        maximum_packet_size=1000,
        server_keep_alive=0,
        session_expiry_interval=0,
        user_property=(("fanout-stamps", "1"), ("fanout-node", "root")),
    )
    handshake = read_connack(Connack(False, 0, properties), make_config())
    assert handshake == Handshake(
        session_present=False,
        limits=PrimaryLimits(receive_maximum=20, maximum_qos=1, retain_available=False, packet_bytes_max=1000),
        keep_alive_s=0,
        session_expiry_s=0,
        primary_node="root",
        stamped=True,
    )


@pytest.mark.parametrize(
    ("version", "code", "reason_code", "text", "hint"),
    [
        (5, 0x86, 0x86, "Bad user name or password (0x86)", "password_file"),
        (5, 0x85, 0x85, "Client identifier not valid (0x85)", "client_id"),
        (5, 0x84, 0x84, "Unsupported protocol version (0x84)", "version = 4"),
        (5, 0x99, 0x99, "Payload format invalid (0x99)", ""),
        (5, 0xEE, 0xEE, "unknown Reason Code (0xEE)", ""),
        (4, 1, 0x84, "Unsupported protocol version (0x84)", 'retain_policy = "keep"'),
        (4, 4, 0x86, "Bad user name or password (0x86)", "password_file"),
        (4, 5, 0x87, "Not authorized (0x87)", "username"),
        (4, 9, 0x80, "Unspecified error (0x80)", ""),
    ],
)
def test_a_refusal_says_why_and_what_to_do(version: int, code: int, reason_code: int, text: str, hint: str) -> None:
    """Reason Codes, and Connect Return Codes of MQTT 3.1.1, become one kind of error."""
    with pytest.raises(PrimaryRefused) as raised:
        read_connack(Connack(False, code), make_config(version=version))
    assert raised.value.reason_code == reason_code
    assert raised.value.message == f"the primary refused the connection: {text}"
    assert hint in raised.value.hint


def test_without_the_bridge_bit_it_is_not_the_reason() -> None:
    """A primary that refuses MQTT 3.1.1 as such is not helped by another policy."""
    with pytest.raises(PrimaryRefused) as raised:
        read_connack(Connack(False, 1), make_config(version=4, retain_policy="keep"))
    assert raised.value.hint
    assert "retain_policy" not in raised.value.hint


def test_the_primarys_own_words_are_kept() -> None:
    """A Reason String is part of the error."""
    properties = Properties(reason_string="maintenance")
    with pytest.raises(PrimaryRefused, match=r"Server busy \(0x89\) \(maintenance\)"):
        read_connack(Connack(False, 0x89, properties), make_config())
    assert "(maintenance)" in disconnected(Disconnect(0x8B, properties)).message


def test_the_primarys_own_words_are_short_and_printable() -> None:
    """MQTT allows control characters in them, and 65,535 bytes."""
    properties = Properties(reason_string="a\x1b[2J\nb" + "x" * 60_000)
    message = disconnected(Disconnect(0x8B, properties)).message
    assert message.startswith("the primary closed the connection: Server shutting down (0x8B) (a\ufffd[2J bxxx")
    assert message.endswith("x…)")
    assert len(message) < 600
    with pytest.raises(PrimaryRefused) as raised:
        read_connack(Connack(False, 0x89, properties), make_config())
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 600


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_another_server_is_shown_and_not_followed(code: int) -> None:
    """The operator reads which server the primary names, and what to do."""
    properties = Properties(reason_string="moving", server_reference="hub-2:1883\x1b[2J")
    with pytest.raises(PrimaryRefused) as refused:
        read_connack(Connack(False, code, properties), make_config())
    for error in (refused.value, disconnected(Disconnect(code, properties))):
        assert error.message.endswith(f"(0x{code:02X}) (moving; it names hub-2:1883\ufffd[2J)")
        assert "does not follow" in error.hint
    assert "names" not in disconnected(Disconnect(code)).message


@pytest.mark.parametrize("name", ["", "a b", "\x1b[2J", "x" * 65, "-x"])
def test_a_name_that_no_node_has_is_none(name: str) -> None:
    """Whoever calls itself that is no fanout node."""
    properties = Properties(user_property=(("fanout-stamps", "1"), ("fanout-node", name)))
    assert read_connack(Connack(False, 0, properties), make_config()).primary_node is None


def test_disconnect_becomes_a_lost_link() -> None:
    """The Reason Code is told, with a hint where there is one."""
    error = disconnected(Disconnect(0x8E))
    assert error.message == "the primary closed the connection: Session taken over (0x8E)"
    assert "Client Identifier" in error.hint
    assert disconnected(Disconnect(0x8B)).hint == ""


def test_a_refused_subscription_names_its_filter() -> None:
    """The operator reads which selector it was."""
    error = refused_subscription("plant/#", 0x87)
    assert error.message == "the primary refused the subscription plant/#: Not authorized (0x87)"
    assert error.reason_code == 0x87


@pytest.mark.parametrize(("version", "code"), [(5, 0x86), (5, 0x87), (4, 4), (4, 5)])
@pytest.mark.parametrize(
    ("keys", "causes"),
    [
        (
            {"username": "ed\x1bge", "password_file": Path("secrets/plant")},
            ("ed\ufffdge", "in secrets/plant, which is read"),
        ),
        ({"username": "edge", "password_env": "PLANT"}, ("user name edge", "variable PLANT, which only a restart")),
        ({"username": "edge"}, ("user name edge", "no password (password_file)")),
        ({"password_env": "PLANT"}, ("no user name", "variable PLANT")),
        ({}, ("no user name and no password", "set username and password_file")),
    ],
)
def test_a_refused_user_names_user_and_password(
    version: int, code: int, keys: dict[str, Any], causes: tuple[str, str]
) -> None:
    """Brokers do not tell which of them was wrong, and Mosquitto answers 0x87 to a wrong password."""
    with pytest.raises(PrimaryRefused) as caught:
        read_connack(Connack(False, code), make_config(version=version, **keys))
    for cause in causes:
        assert cause in caught.value.hint
    assert "\x1b" not in caught.value.hint
