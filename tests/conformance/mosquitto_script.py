"""Runs one script of Mosquitto's own broker tests (test/broker/*.py of its source) against a node.

`python -m tests.conformance.mosquitto_script SCRIPT PORT`, in the script's directory; the exit code is the script's.
Replaced are the start of the broker, and the comparison of two packets: they must be equal byte by byte, but for what
a Server may choose, which is Receive Maximum, Topic Alias Maximum and further properties of CONNACK, and whether PUBACK
and PUBREC tell that there were no matching subscribers (0x10).
"""

from __future__ import annotations

import importlib
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conformance.broker import start, translate

__all__ = ["main"]

_CHOSEN = {0x21, 0x22}
"""Receive Maximum and Topic Alias Maximum."""
_WIDTHS = {0x11: 4, 0x13: 2, 0x21: 2, 0x22: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}
"""Bytes of the properties of CONNACK that have a fixed length; the others have a length in front."""
_CONNACK, _PUBACK, _PUBREC = 0x20, 0x40, 0x50


def main() -> None:
    """Run the script that the command line names."""
    script, *ports = sys.argv[1:]
    library = Path(script).resolve().parent.parent
    sys.path[:0] = [str(library), str(library / "broker")]
    suite: Any = importlib.import_module("mosq_test")
    suite.start_broker = _start_broker
    suite.expect_packet = lambda sock, name, expected: _expect(suite, sock, name, expected)
    matches = suite.packet_matches
    suite.packet_matches = lambda name, received, expected: (
        _same(received, expected) or matches(name, received, expected)
    )
    subprocess.Popen = _Popen  # type: ignore[misc,assignment]  # the scripts' own helpers need the same
    sys.argv = [script, *ports]
    runpy.run_path(script, run_name="__main__")


class _Popen(subprocess.Popen[bytes]):
    """A process; a script of the suite is run as this one is."""

    def __init__(self, command: list[str], **more: Any) -> None:
        if command[0].startswith("./") and command[0].endswith(".py"):
            command = [sys.executable, "-m", "tests.conformance.mosquitto_script", *command]
        super().__init__(command, **more)


def _start_broker(
    filename: str, cmd: object = None, port: int = 0, use_conf: bool = False, **_more: object
) -> subprocess.Popen[bytes]:
    directory = Path(tempfile.mkdtemp(prefix="fanout-conformance-"))
    if not use_conf:
        return start(port, directory=directory)
    lines = Path(filename).with_suffix(".conf").read_text().splitlines()
    server, access = translate(lines, directory)
    return start(port or 1888, server=server, access=access, directory=directory)


def _expect(suite: Any, sock: socket.socket, name: str, expected: bytes) -> bool:
    received = _read_packet(sock)
    if suite.packet_matches(name, received, expected):
        return True
    raise suite.TestError


def _read_packet(sock: socket.socket) -> bytes:
    head = _exactly(sock, 2)
    while 1 < len(head) < 5 and head[-1] & 0x80 and (byte := _exactly(sock, 1)):
        head += byte
    length = sum((digit & 0x7F) << (7 * place) for place, digit in enumerate(head[1:]))
    return head + _exactly(sock, length)


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := sock.recv(length - len(data))):
        data += piece
    return data


def _same(received: bytes, expected: bytes) -> bool:
    if received == expected:
        return True
    if len(received) < 4 or len(expected) < 4 or received[0] != expected[0]:
        return False
    if expected[0] in (_PUBACK, _PUBREC):
        return _reason(received) == _reason(expected) and received[2:4] == expected[2:4]
    if expected[0] == _CONNACK and received[2:4] == expected[2:4]:
        found, wanted = _properties(received[5:]), _properties(expected[5:])
        return all(found.get(key) == value for key, value in wanted.items() if key not in _CHOSEN)
    return False


def _reason(ack: bytes) -> int:
    code = ack[4] if len(ack) > 4 else 0
    return 0 if code == 0x10 else code


def _properties(data: bytes) -> dict[int, bytes]:
    found = {}
    while data:
        key, data = data[0], data[1:]
        width = _WIDTHS.get(key) or 2 + int.from_bytes(data[:2], "big")
        found[key], data = data[:width], data[width:]
    return found


if __name__ == "__main__":
    main()
