"""What the parts of one server share: configuration, time, counters, log, turns, and the buffer to read into."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.config import ServerConfig
from fanout.server.base.counters import Counters
from fanout.server.base.pacing import Pacer
from fanout.server.base.ports import Clock, Logger
from fanout.server.base.timer import Timer

__all__ = ["ServerContext"]


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What each part of a server may use."""

    config: ServerConfig
    """Addresses and limits."""
    clock: Clock
    """Gives the time."""
    counters: Counters
    """What is counted."""
    logger: Logger
    """Takes log lines."""
    timer: Timer
    """Does things when they are due."""
    pacer: Pacer
    """Gives turns to connections with much to send."""
    read_buffer: memoryview
    """What every connection reads into; it is emptied before the next read."""
