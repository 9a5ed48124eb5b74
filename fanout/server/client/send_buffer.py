"""Send buffer of the system for one connection on a thin line: as large as the line drains within a share of an age.

Without a bound Linux holds some 256 KiB for a connection, which are 42 s of a line of 50 kbit/s. SO_SNDBUF also bounds
what is under way and not acknowledged, so it must not be smaller than the line's rate times its round trip. Neither is
known before, so the buffer begins small. Whenever it was full and has room again, the rate is what the peer has
acknowledged since, and the buffer is made to hold the rate times the round trip and a share of the age. Of that,
TCP_NOTSENT_LOWAT leaves a quarter to what is not under way.

The figures are of Linux (TCP_INFO, SIOCOUTQ). On other systems, and for Unix sockets, the buffer stays as it begins.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import Final, NamedTuple

from fanout.server.accept.listeners import NOTSENT_LOWAT

__all__ = ["BUFFER_BYTES_MAX", "BUFFER_BYTES_MIN", "SendBuffer"]

BUFFER_BYTES_MIN: Final = 2_304
"""Smallest SO_SNDBUF that Linux sets; it doubles the number, for its own records, and then holds some 4 KB."""
BUFFER_BYTES_MAX: Final = 256 * 1024
"""Largest SO_SNDBUF that is set, as of connections without a bound."""
_PIECES: Final = 4
"""Writes that fill a buffer."""
_SHARE: Final = 0.25
"""Share of the age that the buffer may hold; also for which acknowledged bytes are counted, at least."""
_ACKED_AT: Final = 120
_MIN_RTT_AT: Final = 148
_TCP_INFO_BYTES: Final = 152
"""Offsets of `tcpi_bytes_acked` (64 bits) and `tcpi_min_rtt` (32 bits, microseconds) in Linux' `struct tcp_info`."""


class _Flow(NamedTuple):
    acked_bytes: int
    round_trip_s: float
    held_bytes: int


class SendBuffer:
    """The send buffer of one socket."""

    def __init__(self, stream: socket.socket | None, *, max_age_s: float) -> None:
        """Make the buffer small.

        Args:
            stream: The connection's socket, as its transport has it; None for none.
            max_age_s: Greatest age of what waits in the buffer and before it.
        """
        self._stream = stream
        self.max_age_s = max_age_s
        self._full: tuple[float, _Flow] | None = None
        """Time and figures when the buffer was full first, since the last change of its size."""
        self.bytes = 0
        """Its size as it was set, SO_SNDBUF."""
        self._resize(BUFFER_BYTES_MIN)

    @property
    def piece_bytes(self) -> int:
        """Bytes of one write to it: what does not fit waits in the transport."""
        return self.bytes // _PIECES

    def note_full(self, now_s: float) -> None:
        """Note that it is full, monotonic seconds."""
        if self._full is None and (flow := self._flow()) is not None:
            self._full = now_s, flow

    def note_room(self, now_s: float) -> None:
        """Note that it has room again, and choose its size by the rate since it was full."""
        if self._full is None:
            return
        since_s, before = self._full
        elapsed_s = now_s - since_s
        if elapsed_s < _SHARE * self.max_age_s:
            return
        self._full = None
        flow = self._flow()
        if flow is None or elapsed_s > self.max_age_s + before.round_trip_s or not before.held_bytes:
            return  # it was idle meanwhile, or the line did not carry anything
        rate = (flow.acked_bytes - before.acked_bytes) / elapsed_s
        wanted = rate * (flow.round_trip_s + _SHARE * self.max_age_s)
        # The system counts its own records too, so the size is chosen by what a full buffer held.
        self._resize(int(self.bytes * min(2.0, wanted / before.held_bytes)))

    def _resize(self, size: int) -> None:
        size = min(max(size, BUFFER_BYTES_MIN), BUFFER_BYTES_MAX)
        if size == self.bytes:
            return
        self.bytes = size
        if self._stream is not None:
            with suppress(OSError):
                self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
                if NOTSENT_LOWAT is not None and self._stream.family != socket.AF_UNIX:
                    self._stream.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, self.piece_bytes)

    def _flow(self) -> _Flow | None:
        stream, option = self._stream, getattr(socket, "TCP_INFO", None)
        if option is None or stream is None or stream.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            info: bytes = stream.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO_BYTES)
            held = fcntl.ioctl(stream.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return None
        if len(info) < _TCP_INFO_BYTES:
            return None
        (acked_bytes,) = struct.unpack_from("=Q", info, _ACKED_AT)
        (round_trip_us,) = struct.unpack_from("=I", info, _MIN_RTT_AT)
        return _Flow(acked_bytes, round_trip_us / 1e6, *struct.unpack("=i", held))
