"""Drain: the way of a node from serving to stopping; and hold: out of the pool for a while, without stopping.

Owns the phases, their order, and the time for a load balancer to notice, before clients are disconnected, that the node
is not ready. Signals and HTTP ask for a drain; `fanout.node.node` does the stopping. A hold is in memory: a restart
ends it.
"""

from __future__ import annotations

import asyncio
import enum

from structlog.typing import FilteringBoundLogger

from fanout.errors import RequestRefused

__all__ = ["Drain", "NodePhase"]


class NodePhase(enum.Enum):
    """Phase of a node's life; it only moves forward, but for a hold, which ends in `SERVING` again."""

    SERVING = "serving"
    """The node is ready when its links are."""
    HELD = "held"
    """An operator holds the node out of its pool: as `DRAINING`, without an end."""
    DRAINING = "draining"
    """The node is not ready, so load balancers send it no more clients. It still serves all clients that connect."""
    STOPPING = "stopping"
    """Clients are disconnected, and the parts stop."""


class Drain:
    """The phase of one node, and the timer of its drain.

    Attributes:
        phase: The current phase.
        seconds: Duration of draining.
        held_since_ns: When the hold began, Unix time in nanoseconds; None without one.
    """

    def __init__(self, *, seconds: float, logger: FilteringBoundLogger) -> None:
        """Begin in the phase `SERVING`.

        Args:
            seconds: Duration of draining; 0 goes from serving to stopping at once.
            logger: Takes log lines.
        """
        self.phase = NodePhase.SERVING
        self.seconds = seconds
        self.held_since_ns: int | None = None
        self._logger = logger
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, *, now_ns: int) -> bool:
        """Hold the node out of its pool; return whether that is new.

        Args:
            now_ns: Unix time in nanoseconds.

        Raises:
            RequestRefused: The node drains or stops.
        """
        self._refuse_while_leaving("holding it would change nothing")
        if self.phase is NodePhase.HELD:
            return False
        self.phase, self.held_since_ns = NodePhase.HELD, now_ns
        self._logger.info("held out of the pool by an operator")
        return True

    def release(self, *, now_ns: int) -> bool:
        """End the hold; return whether there was one.

        Args:
            now_ns: Unix time in nanoseconds.

        Raises:
            RequestRefused: The node drains or stops.
        """
        self._refuse_while_leaving("there is no way back")
        if self.held_since_ns is None:
            return False
        held_s = max(0, now_ns - self.held_since_ns) / 1e9
        self.phase, self.held_since_ns = NodePhase.SERVING, None
        self._logger.info("no longer held", held_s=round(held_s, 1))
        return True

    def _refuse_while_leaving(self, so: str) -> None:
        if self.phase in (NodePhase.DRAINING, NodePhase.STOPPING):
            raise RequestRefused(
                f"the node is {self.phase.value}: {so}", hint="Start it again when it has ended; nothing else is needed"
            )

    def begin(self) -> None:
        """Drain, then stop; does nothing after the first call."""
        if self.phase not in (NodePhase.SERVING, NodePhase.HELD):
            return
        self.held_since_ns = None
        if not self.seconds:
            self.end()
            return
        self.phase = NodePhase.DRAINING
        self._logger.info("draining", seconds=self.seconds)
        self._timer = asyncio.get_running_loop().call_later(self.seconds, self.end)

    def end(self) -> None:
        """Stop now, even if time for draining is left."""
        self.phase, self.held_since_ns = NodePhase.STOPPING, None
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()

    @property
    def seconds_left(self) -> float:
        """Seconds until the node stops, while it drains; 0 once it stops."""
        if self.phase is NodePhase.STOPPING or self._timer is None:
            return 0.0
        return max(0.0, self._timer.when() - asyncio.get_running_loop().time())

    async def wait_over(self) -> None:
        """Wait until the node is to stop."""
        await self._over.wait()
