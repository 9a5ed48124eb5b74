"""Context shared by the parts of one server: configuration, clock, counters, log, refusals, timer, pacer and more."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.config import ServerConfig
from fanout.runtime.turnstile import Turnstile
from fanout.server.base.counters import Counters
from fanout.server.base.pacing import Pacer
from fanout.server.base.pauses import Pauses
from fanout.server.base.ports import Clock, Logger
from fanout.server.base.refusals import Refusals
from fanout.server.base.timer import Timer

__all__ = ["ServerContext"]


@dataclass(slots=True)
class ServerContext:
    """Objects that every part of a server may use."""

    config: ServerConfig
    """Addresses and limits; another object when they are changed."""
    clock: Clock
    """The clock."""
    counters: Counters
    """Totals of this server."""
    logger: Logger
    """The log."""
    refusals: Refusals
    """Counts and logs refused messages of clients."""
    timer: Timer
    """Runs actions when they are due."""
    pacer: Pacer
    """Gives turns to connections with much to send."""
    pauses: Pauses
    """Tells of times in which the process did not run."""
    turnstile: Turnstile
    """Bounds the work of clients that are not admitted in each turn of the event loop."""
    read_buffer: memoryview
    """Buffer that all connections read into; each read is processed before the next one."""
