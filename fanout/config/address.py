"""Network addresses as an operator writes them: `mqtt://host:port` and its kin, `amqp://` for JMS, and `host:port`.

Owns their syntax and the known schemes; no name is resolved.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from fanout.errors import AddressInvalid

__all__ = ["MQTT_PORT", "Address", "parse_http_listen", "parse_listen", "parse_listener", "parse_peer", "parse_primary"]

MQTT_PORT = 1883
"""The port of an `mqtt://` address that names none."""

_PORTS = {"mqtt": MQTT_PORT, "mqtts": 8883, "ws": 80, "wss": 443}
"""The schemes of MQTT over a network, and the port of an address that names none."""
_LISTENER_PORTS = {**_PORTS, "amqp": 5672, "amqps": 5671}
"""The same of listeners, which serve AMQP 1.0 too."""
_TLS = frozenset({"mqtts", "wss", "amqps"})
_WEBSOCKET = frozenset({"ws", "wss"})
_HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
_DIGITS_AND_DOTS = re.compile(r"[0-9.]+")
_URL_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*)+")
"""An absolute path of a URL (RFC 3986, section 3.3); "@" is left out, which stands for credentials here."""
_PORT_MAX = 65_535
_UNIX_PATH_BYTES_MAX = 107
"""Longest path of a Unix socket on Linux, without its zero byte."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address to connect to or to listen on."""

    scheme: str
    """`mqtt`, `mqtts`, `ws`, `wss`, `amqp`, `amqps`, `unix` or `http`."""
    host: str
    """A host name in lower case or an IP address; an IPv6 address in its short form, without brackets.
    For `unix` the path of the socket."""
    port: int
    """1 to 65535; 0 where the system chooses the port of a listener, and for `unix`."""
    path: str = ""
    """Path of a WebSocket request, beginning with "/"; empty for "/", and without WebSocket or for a listener."""

    @property
    def authority(self) -> str:
        """`host:port`, with an IPv6 address in brackets; for `unix` the path."""
        if self.scheme == "unix":
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def has_tls(self) -> bool:
        """True if the scheme uses TLS."""
        return self.scheme in _TLS

    @property
    def has_websocket(self) -> bool:
        """True if the scheme uses MQTT over WebSocket."""
        return self.scheme in _WEBSOCKET

    @property
    def has_amqp(self) -> bool:
        """True if the scheme uses AMQP 1.0, for JMS applications."""
        return self.scheme in ("amqp", "amqps")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_primary(text: str) -> Address:
    """Read the address of a primary: `mqtt://host:port`, `mqtts://host:port`, `ws://host:port/path` or `wss://...`.

    Port and path may be left out.

    Raises:
        AddressInvalid: When it is not such an address.
    """
    _refuse_credentials(text)
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() not in _PORTS:
        raise AddressInvalid(
            f'the scheme "{scheme.lower()}" is not supported',
            hint="Use mqtt, mqtts (with TLS), ws (WebSocket) or wss (WebSocket with TLS).",
        )
    path = ""
    if separator and scheme.lower() in _WEBSOCKET and "/" in rest.removesuffix("/"):
        host, _, path = rest.partition("/")
        path = f"/{path}"
        if not _URL_PATH.fullmatch(path):
            raise AddressInvalid(
                f'"{path}" is not the path of a URL',
                hint='Write it as in "/mqtt", without a query ("?") and a fragment ("#"); other characters as %20.',
            )
        text = f"{scheme}://{host}"
    address = replace(_parse_mqtt(text), path=path)
    if address.port == 0:
        raise AddressInvalid(
            f'"{text}" has the port 0',
            hint=f"Write the port on which the primary listens, usually {_PORTS[address.scheme]}.",
        )
    return address


def parse_listen(text: str) -> Address:
    """Read the address of a listener without other keys; with port 0 the system chooses.

    These are `mqtt://host:port`, `ws://host:port`, `amqp://host:port` and `unix:///path`.

    Raises:
        AddressInvalid: When it is not such an address.
    """
    address = parse_listener(text)
    if address.has_tls:
        raise AddressInvalid(
            f"{address} needs a certificate, for which there is no place in this list",
            hint=f'Write [[server.listener]] with address = "{address}", certificate_file and key_file.',
        )
    return address


def parse_listener(text: str) -> Address:
    """Read the address of any listener; with port 0 the system chooses.

    Besides those of `parse_listen` these are `mqtts://host:port`, `wss://host:port` and `amqps://host:port`.

    Raises:
        AddressInvalid: When it is not such an address.
    """
    _refuse_credentials(text)
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if separator and scheme == "unix":
        return _parse_unix(text, rest)
    if separator and scheme not in _LISTENER_PORTS:
        raise AddressInvalid(
            f'the scheme "{scheme}" is not supported',
            hint="Use mqtt, mqtts (with TLS), ws (WebSocket), wss (WebSocket with TLS), amqp or amqps (JMS), or unix.",
        )
    return _parse_mqtt(text)


def _parse_unix(text: str, path: str) -> Address:
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise AddressInvalid(
            f'"{text}" has no absolute path of a socket', hint='Write it as in "unix:///run/fanout/mqtt.sock".'
        )
    if len(path.encode()) > _UNIX_PATH_BYTES_MAX:
        raise AddressInvalid(
            f"the path has more than {_UNIX_PATH_BYTES_MAX} bytes, which the system does not allow for a socket",
            hint="Choose a shorter one.",
        )
    return Address("unix", path, 0)


def parse_http_listen(text: str) -> Address:
    """Read the address of the HTTP listener, `host:port`; port 0 lets the system choose.

    Raises:
        AddressInvalid: When it is not such an address.
    """
    _refuse_credentials(text)
    _, separator, rest = text.partition("://")
    if separator:
        raise AddressInvalid(f'"{text}" has a scheme; HTTP is the only one here', hint=f'Write "{rest}".')
    host, port = _parse_host_and_port(text, whole=text, port_default=None, example="127.0.0.1:8080")
    return Address("http", host, port)


def parse_peer(text: str) -> Address:
    """Read the address of a member of a pool, `host:port`.

    Raises:
        AddressInvalid: When it is not such an address.
    """
    address = parse_http_listen(text)
    if address.port == 0:
        raise AddressInvalid(f'"{text}" has the port 0', hint="Write the port of the member's pool.listen.")
    return address


def _parse_mqtt(text: str) -> Address:
    """Read an address without credentials, whose scheme is known if there is any."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise AddressInvalid(f'"{text}" has no scheme', hint=f'Write "mqtt://{text or "127.0.0.1"}".')
    scheme = scheme.lower()
    port_default = _LISTENER_PORTS[scheme]
    host, port = _parse_host_and_port(
        rest.removesuffix("/"), whole=text, port_default=port_default, example=f"{scheme}://127.0.0.1:{port_default}"
    )
    return Address(scheme, host, port)


def _refuse_credentials(text: str) -> None:
    if "@" in text:  # checked first, and without the text, which may contain a password
        raise AddressInvalid(
            "the address contains a user name or a password",
            hint="Write only host and port; a link has the keys username and password_file or password_env.",
        )


def _parse_host_and_port(text: str, *, whole: str, port_default: int | None, example: str) -> tuple[str, int]:
    as_in = f'Write it as in "{example}".'
    if text.startswith("[") or text.count(":") > 1:
        host, separator, port_text = _split_ipv6(text, whole=whole, example=example.replace("127.0.0.1", "[::1]"))
    else:
        host, separator, port_text = text.partition(":")
        if not separator and port_default is None:
            raise AddressInvalid(f'"{whole}" is not a host and a port', hint=as_in)
        if not host:
            raise AddressInvalid(f'"{whole}" has no host', hint=f"{as_in} 0.0.0.0 means every IPv4 address.")
        if not _is_host(host):
            raise AddressInvalid(f'"{host}" is neither a host name nor an IP address', hint=as_in)
    if not separator and port_default is not None:
        return host.lower(), port_default
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or int(port_text) > _PORT_MAX:
        problem = f'"{port_text}" is not a port' if port_text else f'"{whole}" has no port'
        raise AddressInvalid(problem, hint=f"A port is a number from 0 to {_PORT_MAX}. {as_in}")
    return host.lower(), int(port_text)


def _split_ipv6(text: str, *, whole: str, example: str) -> tuple[str, str, str]:
    host, bracket, tail = text.removeprefix("[").partition("]")
    try:
        host = str(ipaddress.IPv6Address(host))
    except ValueError:
        bracket = ""
    if not text.startswith("[") or not bracket or tail[:1] not in ("", ":"):
        raise AddressInvalid(
            f'"{whole}" is not an IPv6 address in brackets and a port', hint=f'Write it as in "{example}".'
        )
    return host, tail[:1], tail[1:]


def _is_host(host: str) -> bool:
    if _DIGITS_AND_DOTS.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return False
        return True
    try:
        host.encode("idna")  # as the resolver does, which fails alike for a label that is too long
    except UnicodeError:
        return False
    return _HOST_NAME.fullmatch(host) is not None
