"""Large WebSocket frames in pieces: the same data, never held."""

from __future__ import annotations

import random

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from fanout.link.transport.frame_splitter import PIECE_BYTES_MAX, FrameSplitter

FRAMES = [
    Frame(Opcode.BINARY, b"small"),
    Frame(Opcode.PING, b"ping"),
    Frame(Opcode.BINARY, bytes(200)),
    Frame(Opcode.BINARY, random.Random(1).randbytes(5 * PIECE_BYTES_MAX + 1)),
    Frame(Opcode.BINARY, b"", fin=False),
    Frame(Opcode.CONT, random.Random(2).randbytes(PIECE_BYTES_MAX + 1), fin=False),
    Frame(Opcode.CONT, bytes(70_000)),
    Frame(Opcode.BINARY, b""),
    Frame(Opcode.BINARY, b"last"),
]


@pytest.mark.parametrize("piece", [7, 1000, 100_000, 10_000_000])
def test_the_data_is_the_same_however_it_is_read(piece: int) -> None:
    """A parser with a low limit gets all of it, and what is pending is at most a header."""
    stream = b"".join(frame.serialize(mask=False) for frame in FRAMES)
    parser = ClientProtocol(parse_uri("ws://h/"), state=State.OPEN, max_size=(None, PIECE_BYTES_MAX))
    splitter, data, pings = FrameSplitter(), b"", 0
    for at in range(0, len(stream), piece):
        parser.receive_data(splitter.feed(stream[at : at + piece]))
        for event in parser.events_received():
            assert isinstance(event, Frame)
            pings += event.opcode is Opcode.PING
            if event.opcode in (Opcode.BINARY, Opcode.CONT):
                data += bytes(event.data)
    assert parser.parser_exc is None
    assert pings == 1
    assert data == b"".join(bytes(frame.data) for frame in FRAMES if frame.opcode is not Opcode.PING)


@pytest.mark.parametrize(
    "frame", [b"\x81\x7f" + (1 << 20).to_bytes(8, "big"), b"\x82\xff" + (1 << 20).to_bytes(8, "big")]
)
def test_a_frame_that_is_not_allowed_is_left_to_the_parser(frame: bytes) -> None:
    """Text, and a frame that is masked."""
    assert FrameSplitter().feed(frame) == frame
