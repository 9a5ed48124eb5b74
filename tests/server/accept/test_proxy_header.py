"""Tests of reading the header of the PROXY protocol."""

from __future__ import annotations

import random
import socket
import struct

import pytest

from fanout.server.accept.proxy_header import ProxyHeader, ProxyHeaderInvalid

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def v2(command: int, kind: int, rest: bytes, *, length: int | None = None) -> bytes:
    """Make a header of version 2."""
    return SIGNATURE + struct.pack("!BBH", command, kind, len(rest) if length is None else length) + rest


def tcp4(client: str, port: int, extra: bytes = b"") -> bytes:
    """Make a header of version 2 for an IPv4 client."""
    addresses = socket.inet_aton(client) + socket.inet_aton("10.0.0.1") + struct.pack("!HH", port, 1883)
    return v2(0x21, 0x11, addresses + extra)


TCP6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + struct.pack("!HH", 7, 1883)

VALID = [
    (b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 1883\r\n", ("192.0.2.7", 56324)),
    (b"PROXY TCP6 2001:db8::7 ::1 0 65535\r\n", ("2001:db8::7", 0)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 whatever 1 2\r\n", None),
    (tcp4("192.0.2.7", 56324), ("192.0.2.7", 56324)),
    (tcp4("192.0.2.7", 1, b"\x04\x00\x05hello"), ("192.0.2.7", 1)),
    (v2(0x21, 0x21, TCP6), ("2001:db8::7", 7)),
    (v2(0x20, 0x00, b""), None),
    (v2(0x20, 0x11, b"x"), None),
    (v2(0x21, 0x00, b""), None),
    (v2(0x21, 0x31, bytes(216)), None),
]

INVALID = [
    b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00",
    b"GET / HTTP/1.1\r\n",
    b"PROXX",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 56324\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 1883 7\r\n",
    b"PROXY TCP4 192.0.2.7  10.0.0.1 56324 1883\r\n",
    b"PROXY TCP4 192.0.2.300 10.0.0.1 56324 1883\r\n",
    b"PROXY TCP4 ::1 ::1 56324 1883\r\n",
    b"PROXY TCP5 192.0.2.7 10.0.0.1 56324 1883\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 65536 1883\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 0056 1883\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 +1 1883\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 \xff 1883\r\n",
    b"PROXY UNKNOWN " + b"x" * 100,
    v2(0x11, 0x11, bytes(12)),
    v2(0x22, 0x11, bytes(12)),
    v2(0x21, 0x11, bytes(11)),
    v2(0x21, 0x21, bytes(35)),
    v2(0x21, 0x12, bytes(12)),
    v2(0x21, 0x41, bytes(12)),
    v2(0x21, 0x11, b"", length=4097),
    SIGNATURE[:11] + b"X",
]


def feed(data: bytes, *, piece: int) -> tuple[ProxyHeader, bytes]:
    """Feed a header in pieces of at most some bytes, and return what it did not take."""
    header, pos = ProxyHeader(), 0
    while header.wanted and pos < len(data):
        count = min(piece, header.wanted, len(data) - pos)
        complete = header.feed(data[pos : pos + count])
        pos += count
        assert complete is (header.wanted == 0)
    return header, data[pos:]


@pytest.mark.parametrize("piece", [1, 2, 7, 10_000])
@pytest.mark.parametrize(("data", "client"), VALID)
def test_header_is_read_in_any_pieces(data: bytes, client: tuple[str, int] | None, piece: int) -> None:
    """The client is found, and what follows is not touched."""
    header, rest = feed(data + b"\x10rest", piece=piece)
    assert (header.wanted, header.client, rest) == (0, client, b"\x10rest")


@pytest.mark.parametrize("piece", [1, 10_000])
@pytest.mark.parametrize("data", INVALID)
def test_anything_else_is_refused(data: bytes, piece: int) -> None:
    """What is no header is refused as soon as that is known."""
    with pytest.raises(ProxyHeaderInvalid):
        feed(data, piece=piece)


def test_rubbish_never_does_anything_else() -> None:
    """Whatever comes is refused, read, or waits for more; it never takes more than the longest header."""
    chance = random.Random(1)
    starts = [b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\x00"]
    for _ in range(20_000):
        data = chance.choice(starts) + chance.randbytes(chance.randrange(200))
        try:
            header, _ = feed(data, piece=chance.randrange(1, 50))
        except ProxyHeaderInvalid:
            continue
        assert header.wanted <= 4096
