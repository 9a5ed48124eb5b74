"""Parser for the header of the PROXY protocol, versions 1 and 2, in which a load balancer states the client's address.

It takes bytes in pieces of any size, and never a byte after the header: those belong to TLS or MQTT. It follows "The
PROXY protocol" by HAProxy Technologies (2020/03/05).
"""

from __future__ import annotations

import ipaddress
import struct

__all__ = ["ProxyHeader", "ProxyHeaderInvalid"]

_V1 = b"PROXY "
_V1_BYTES_MAX = 107  # section 2.1
_V2 = b"\r\n\r\n\0\r\nQUIT\n"
_V2_FIXED_BYTES = 16
_V2_REST_BYTES_MAX = 4096
"""Limit for addresses and the data after them; more than any load balancer is known to send."""
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21
_DATAGRAM = 2
_FAMILY_MAX = 3


class ProxyHeaderInvalid(Exception):
    """The bytes are not a valid header of the PROXY protocol."""


class ProxyHeader:
    """Incremental parser of one header.

    Attributes:
        client: Host and port of the client; None for a connection of the load balancer itself, such as a health
            check, and for clients without an IP address.
    """

    def __init__(self) -> None:
        self.client: tuple[str, int] | None = None
        self._data = b""

    @property
    def wanted(self) -> int:
        """Number of bytes that may be fed next; 0 when the header is complete."""
        data = self._data
        if len(data) < len(_V2):
            return len(_V2) - len(data)  # the shortest header of version 1 is longer
        if data.startswith(_V2):
            if len(data) < _V2_FIXED_BYTES:
                return _V2_FIXED_BYTES - len(data)
            return _V2_FIXED_BYTES + _v2_rest_bytes(data) - len(data)
        return 0 if data.endswith(b"\r\n") else 1  # the length of the line is not known before its end

    def feed(self, data: bytes) -> bool:
        """Take bytes, at most `wanted`; return whether the header is complete.

        Raises:
            ProxyHeaderInvalid: The header is invalid; nothing more may be read from the connection.
        """
        assert 0 < len(data) <= self.wanted, "bytes behind the header are not ours"
        self._data += data
        start = self._data[: len(_V2)]
        if not _V2.startswith(start) and not _V1.startswith(start[: len(_V1)]):
            raise ProxyHeaderInvalid("it begins otherwise")
        if self._data.startswith(_V2):
            self._check_v2()
        elif len(self._data) > _V1_BYTES_MAX:
            raise ProxyHeaderInvalid("the line is too long")
        if self.wanted:
            return False
        self.client = _read_v2(self._data) if self._data.startswith(_V2) else _read_v1(self._data)
        return True

    def _check_v2(self) -> None:
        if len(self._data) < _V2_FIXED_BYTES:
            return
        if self._data[12] not in (_LOCAL, _PROXY):
            raise ProxyHeaderInvalid("neither LOCAL nor PROXY of version 2")
        if _v2_rest_bytes(self._data) > _V2_REST_BYTES_MAX:
            raise ProxyHeaderInvalid("it is too long")


def _v2_rest_bytes(data: bytes) -> int:
    return int.from_bytes(data[14:16], "big")


def _read_v1(line: bytes) -> tuple[str, int] | None:
    try:
        words = line[:-2].decode("ascii").split(" ")
    except UnicodeDecodeError as error:
        raise ProxyHeaderInvalid("it is not ASCII") from error
    if words[1] == "UNKNOWN":
        return None  # the rest of the line is ignored
    try:
        _, family, source, destination, source_port, destination_port = words
        read = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}[family]
        hosts = read(source), read(destination)
        ports = _port(source_port), _port(destination_port)
    except (ValueError, KeyError) as error:
        raise ProxyHeaderInvalid("the addresses are not understood") from error
    return str(hosts[0]), ports[0]


def _port(text: str) -> int:
    if not text.isdecimal() or (text.startswith("0") and text != "0") or not text.isascii() or int(text) > 0xFFFF:
        raise ValueError(text)
    return int(text)


def _read_v2(data: bytes) -> tuple[str, int] | None:
    kind, rest = data[13], data[_V2_FIXED_BYTES:]
    if data[12] == _LOCAL:
        return None
    if kind == _TCP4 and len(rest) >= 12:
        return str(ipaddress.IPv4Address(rest[:4])), struct.unpack_from("!H", rest, 8)[0]
    if kind == _TCP6 and len(rest) >= 36:
        return str(ipaddress.IPv6Address(rest[:16])), struct.unpack_from("!H", rest, 32)[0]
    if kind in (_TCP4, _TCP6):
        raise ProxyHeaderInvalid("the addresses are cut off")
    if kind >> 4 > _FAMILY_MAX or kind & 0x0F >= _DATAGRAM:
        raise ProxyHeaderInvalid("neither TCP nor a Unix socket")
    return None  # a Unix socket, or unspecified
