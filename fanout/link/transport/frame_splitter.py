"""Splitter of large WebSocket frames into small ones (RFC 6455, section 5.2), before they are parsed.

The parser holds a frame until it is whole, and refuses one above its limit. A primary may send a packet in one frame,
and a link reads past a packet that is too large (`fanout.mqtt.decoder`). So a large frame with data becomes one frame
for each read, which means the same (section 5.4).
"""

from __future__ import annotations

from typing import Final

__all__ = ["PIECE_BYTES_MAX", "FrameSplitter"]

PIECE_BYTES_MAX: Final = 64 * 1024
"""Payload of the largest frame that is not split, and of the largest piece."""
_FIN: Final = 0x80
_OPCODE: Final = 0x0F
_CONTINUATION: Final = 0x0
_BINARY: Final = 0x2
_LENGTH_BYTES: Final = {126: 2, 127: 8}


class FrameSplitter:
    """Splitter of the frames of one server, which are not masked."""

    def __init__(self) -> None:
        """Begin in front of a frame."""
        self._header = b""
        """Incomplete header of the next frame."""
        self._left = 0
        """Bytes of the payload of the present frame that have not come."""
        self._first: int | None = None
        """First byte of the present frame when it is split; None when it is not."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of a read, with large frames split."""
        pieces: list[bytes] = []
        data, pos = self._header + data, 0
        self._header = b""
        while pos < len(data):
            if self._left:
                taken = min(self._left, len(data) - pos, PIECE_BYTES_MAX)
                self._left -= taken
                if self._first is not None:
                    pieces.append(self._piece_header(taken))
                pieces.append(data[pos : pos + taken])
                pos += taken
                continue
            more = _LENGTH_BYTES.get(data[pos + 1] & 0x7F, 0) if len(data) > pos + 1 else 0
            stop = pos + 2 + more
            if stop > len(data):
                self._header = data[pos:]
                break
            first, second = data[pos], data[pos + 1]
            length = int.from_bytes(data[pos + 2 : stop], "big") if more else second & 0x7F
            is_split = length > PIECE_BYTES_MAX and first & _OPCODE in (_BINARY, _CONTINUATION) and second < 0x80
            self._left, self._first = length, first if is_split else None
            if not is_split:
                pieces.append(data[pos:stop])
            pos = stop
        return b"".join(pieces)

    def _piece_header(self, length: int) -> bytes:
        """Return the header of a piece; only the last one has FIN, and only the first one the opcode."""
        assert self._first is not None
        first = self._first if not self._left else self._first & ~_FIN
        self._first &= ~_OPCODE
        return bytes((first, 127)) + length.to_bytes(8, "big")
