"""Tests of `fanout.config.address`."""

from __future__ import annotations

import pytest

from fanout.config.address import Address, parse_http_listen, parse_listen, parse_listener, parse_primary
from fanout.errors import AddressInvalid

AS_IN_MQTT = 'Write it as in "mqtt://127.0.0.1:1883".'
AS_IN_IPV6 = 'Write it as in "mqtt://[::1]:1883".'
AS_IN_HTTP = 'Write it as in "127.0.0.1:8080".'
NO_CREDENTIALS = "Write only host and port; a link has the keys username and password_file or password_env."


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("mqtt://127.0.0.1:1884", "127.0.0.1", 1884),
        ("mqtt://broker", "broker", 1883),
        ("MQTT://Broker.Example.org/", "broker.example.org", 1883),
        ("mqtt://my_service-1:65535", "my_service-1", 65535),
        ("mqtt://bröker.example.org.", "bröker.example.org.", 1883),
        ("mqtt://[::1]", "::1", 1883),
        ("mqtt://[2001:DB8:0::1]:1", "2001:db8::1", 1),
        ("mqtt://[fe80::1%eth0]:1883", "fe80::1%eth0", 1883),
    ],
)
def test_an_mqtt_address_is_read(text: str, host: str, port: int) -> None:
    """Scheme, host and port are read, in one spelling; the port is 1883 unless given."""
    assert parse_primary(text) == parse_listen(text) == Address("mqtt", host, port)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("", '"" has no scheme', 'Write "mqtt://127.0.0.1".'),
        ("broker:1883", '"broker:1883" has no scheme', 'Write "mqtt://broker:1883".'),
        ("mqtt://", '"mqtt://" has no host', f"{AS_IN_MQTT} 0.0.0.0 means every IPv4 address."),
        ("mqtt://:1883", '"mqtt://:1883" has no host', f"{AS_IN_MQTT} 0.0.0.0 means every IPv4 address."),
        ("mqtt://a b", '"a b" is neither a host name nor an IP address', AS_IN_MQTT),
        ("mqtt://a/b", '"a/b" is neither a host name nor an IP address', AS_IN_MQTT),
        ("mqtt://" + "a" * 64, f'"{"a" * 64}" is neither a host name nor an IP address', AS_IN_MQTT),
        ("mqtt://1.2.3", '"1.2.3" is neither a host name nor an IP address', AS_IN_MQTT),
        ("mqtt://a:", '"mqtt://a:" has no port', f"A port is a number from 0 to 65535. {AS_IN_MQTT}"),
        ("mqtt://a:x", '"x" is not a port', f"A port is a number from 0 to 65535. {AS_IN_MQTT}"),
        ("mqtt://a:65536", '"65536" is not a port', f"A port is a number from 0 to 65535. {AS_IN_MQTT}"),
        ("mqtt://a:٣", '"٣" is not a port', f"A port is a number from 0 to 65535. {AS_IN_MQTT}"),
        ("mqtt://::1", '"mqtt://::1" is not an IPv6 address in brackets and a port', AS_IN_IPV6),
        ("mqtt://[::1", '"mqtt://[::1" is not an IPv6 address in brackets and a port', AS_IN_IPV6),
        ("mqtt://[host]", '"mqtt://[host]" is not an IPv6 address in brackets and a port', AS_IN_IPV6),
        ("mqtt://[::1]9", '"mqtt://[::1]9" is not an IPv6 address in brackets and a port', AS_IN_IPV6),
        ("mqtt://u:secret@a", "the address contains a user name or a password", NO_CREDENTIALS),
        ("u:secret@a:1883", "the address contains a user name or a password", NO_CREDENTIALS),
    ],
)
def test_what_is_not_an_mqtt_address_is_refused(text: str, problem: str, hint: str) -> None:
    """The reason is named without repeating a password, and the hint shows how to write it."""
    for parse in (parse_primary, parse_listen):
        with pytest.raises(AddressInvalid) as caught:
            parse(text)
        assert (caught.value.message, caught.value.hint) == (problem, hint)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("mqtts://broker", Address("mqtts", "broker", 8883)),
        ("MQTTS://[::1]:1/", Address("mqtts", "::1", 1)),
        ("ws://broker", Address("ws", "broker", 80)),
        ("ws://broker/", Address("ws", "broker", 80)),
        ("wss://Broker/mqtt", Address("wss", "broker", 443, "/mqtt")),
        ("wss://[::1]:9/a/B%20c/", Address("wss", "::1", 9, "/a/B%20c/")),
    ],
)
def test_a_primary_may_have_tls_and_websocket(text: str, address: Address) -> None:
    """Each scheme has its own port; WebSocket has a path, as it is written."""
    assert parse_primary(text) == parse_primary(str(address)) == address


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        (
            "tcp://broker",
            'the scheme "tcp" is not supported',
            "Use mqtt, mqtts (with TLS), ws (WebSocket) or wss (WebSocket with TLS).",
        ),
        (
            "wss://broker/mqtt?token=1",
            '"/mqtt?token=1" is not the path of a URL',
            'Write it as in "/mqtt", without a query ("?") and a fragment ("#"); other characters as %20.',
        ),
        (
            "ws://broker/a b\r\nX: y",
            '"/a b\r\nX: y" is not the path of a URL',
            'Write it as in "/mqtt", without a query ("?") and a fragment ("#"); other characters as %20.',
        ),
        (
            "mqtts://broker/mqtt",
            '"broker/mqtt" is neither a host name nor an IP address',
            'Write it as in "mqtts://127.0.0.1:8883".',
        ),
        ("wss://u:p@broker/mqtt", "the address contains a user name or a password", NO_CREDENTIALS),
        (
            "wss://broker:0/mqtt",
            '"wss://broker:0" has the port 0',
            "Write the port on which the primary listens, usually 443.",
        ),
    ],
)
def test_what_is_no_address_of_a_primary_is_refused(text: str, problem: str, hint: str) -> None:
    """Only WebSocket has a path, and nothing of it can end the line of a request."""
    with pytest.raises(AddressInvalid) as caught:
        parse_primary(text)
    assert (caught.value.message, caught.value.hint) == (problem, hint)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("mqtts://0.0.0.0", Address("mqtts", "0.0.0.0", 8883)),
        ("WSS://[::1]:1/", Address("wss", "::1", 1)),
        ("wss://broker", Address("wss", "broker", 443)),
        ("ws://broker", Address("ws", "broker", 80)),
        ("unix:///run/mqtt.sock", Address("unix", "/run/mqtt.sock", 0)),
    ],
)
def test_a_listener_has_more_schemes(text: str, address: Address) -> None:
    """Each has its own port, a Unix socket has a path; what needs a certificate is not for the plain list."""
    assert parse_listener(text) == address
    assert parse_listener(str(address)) == address
    if not address.has_tls:
        assert parse_listen(text) == address
        return
    with pytest.raises(AddressInvalid) as caught:
        parse_listen(text)
    assert caught.value.message == f"{address} needs a certificate, for which there is no place in this list"
    assert caught.value.hint == (
        f'Write [[server.listener]] with address = "{address}", certificate_file and key_file.'
    )


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        (
            "http://a",
            'the scheme "http" is not supported',
            "Use mqtt, mqtts (with TLS), ws (WebSocket), wss (WebSocket with TLS), amqp or amqps (JMS), or unix.",
        ),
        ("ws://", '"ws://" has no host', 'Write it as in "ws://127.0.0.1:80". 0.0.0.0 means every IPv4 address.'),
        (
            "unix://mqtt.sock",
            '"unix://mqtt.sock" has no absolute path of a socket',
            'Write it as in "unix:///run/fanout/mqtt.sock".',
        ),
        (
            "unix:///" + "x" * 107,
            "the path has more than 107 bytes, which the system does not allow for a socket",
            "Choose a shorter one.",
        ),
    ],
)
def test_what_is_no_address_of_a_listener_is_refused(text: str, problem: str, hint: str) -> None:
    """The hint shows how to write it."""
    with pytest.raises(AddressInvalid) as caught:
        parse_listener(text)
    assert (caught.value.message, caught.value.hint) == (problem, hint)


def test_port_0_is_for_listeners() -> None:
    """A listener may leave the port to the system; a primary has one."""
    assert parse_listen("mqtt://127.0.0.1:0").port == 0
    assert parse_http_listen("127.0.0.1:0").port == 0
    with pytest.raises(AddressInvalid) as caught:
        parse_primary("mqtt://127.0.0.1:0")
    assert caught.value.message == '"mqtt://127.0.0.1:0" has the port 0'
    assert caught.value.hint == "Write the port on which the primary listens, usually 1883."


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("[::]:80", "::", 80), ("a.b:1", "a.b", 1)],
)
def test_an_http_address_is_read(text: str, host: str, port: int) -> None:
    """Host and port are read."""
    assert parse_http_listen(text) == Address("http", host, port)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("8080", '"8080" is not a host and a port', AS_IN_HTTP),
        ("", '"" is not a host and a port', AS_IN_HTTP),
        (":8080", '":8080" has no host', f"{AS_IN_HTTP} 0.0.0.0 means every IPv4 address."),
        ("[::1]", '"[::1]" has no port', f"A port is a number from 0 to 65535. {AS_IN_HTTP}"),
        ("http://a:80", '"http://a:80" has a scheme; HTTP is the only one here', 'Write "a:80".'),
        ("http://u:secret@a:80", "the address contains a user name or a password", NO_CREDENTIALS),
    ],
)
def test_what_is_not_an_http_address_is_refused(text: str, problem: str, hint: str) -> None:
    """There is one form, and the hint shows it."""
    with pytest.raises(AddressInvalid) as caught:
        parse_http_listen(text)
    assert (caught.value.message, caught.value.hint) == (problem, hint)


def test_an_address_is_written_as_it_is_read() -> None:
    """An IPv6 address is in brackets wherever a port follows."""
    assert str(Address("mqtt", "::1", 1883)) == "mqtt://[::1]:1883"
    assert str(Address("http", "a", 80)) == "http://a:80"
    assert Address("mqtt", "::1", 1883).authority == "[::1]:1883"
