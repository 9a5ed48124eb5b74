"""Network addresses as an operator writes them: `mqtt://host:port` for MQTT, `host:port` for HTTP.

Owns their syntax and which schemes exist. It resolves no names and opens nothing.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from fanout.errors import AddressInvalid

__all__ = ["MQTT_PORT", "Address", "parse_http_listen", "parse_listen", "parse_primary"]

MQTT_PORT = 1883
"""The port of an `mqtt://` address that names none."""

_HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
_DIGITS_AND_DOTS = re.compile(r"[0-9.]+")
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to, or where to listen."""

    scheme: str
    """`mqtt` or `http`."""
    host: str
    """A host name in lower case or an IP address; an IPv6 address in its short form, without brackets."""
    port: int
    """1 to 65535; 0 where the system chooses the port of a listener."""

    @property
    def authority(self) -> str:
        """`host:port`, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_primary(text: str) -> Address:
    """Read the address of a primary, `mqtt://host` or `mqtt://host:port`.

    Raises:
        AddressInvalid: When it is not such an address.
    """
    address = _parse_mqtt(text)
    if address.port == 0:
        raise AddressInvalid(
            f'"{text}" has the port 0',
            hint=f"Write the port on which the primary listens, usually {MQTT_PORT}.",
        )
    return address


def parse_listen(text: str) -> Address:
    """Read the address of an MQTT listener, `mqtt://host:port`; with port 0 the system chooses.

    Raises:
        AddressInvalid: When it is not such an address.
    """
    return _parse_mqtt(text)


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


def _parse_mqtt(text: str) -> Address:
    _refuse_credentials(text)
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise AddressInvalid(f'"{text}" has no scheme', hint=f'Write "mqtt://{text or "127.0.0.1"}".')
    if scheme.lower() != "mqtt":
        raise AddressInvalid(
            f'the scheme "{scheme}" is not supported; only mqtt is (MQTT over TCP, without TLS)',
            hint='Write "mqtt://host:port", with the port of a listener that has no TLS.',
        )
    host, port = _parse_host_and_port(
        rest.removesuffix("/"), whole=text, port_default=MQTT_PORT, example=f"mqtt://127.0.0.1:{MQTT_PORT}"
    )
    return Address("mqtt", host, port)


def _refuse_credentials(text: str) -> None:
    if "@" in text:  # said first, and without the text: it may contain a password
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
    return _HOST_NAME.fullmatch(host) is not None
