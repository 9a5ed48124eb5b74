"""Drain: the way of a node from serving to stopping.

Owns the phases and their order, and the time that a load balancer has to notice that the node is not ready before
clients are disconnected. Signals and HTTP ask for a drain; `fanout.node.node` does the stopping.
"""

from __future__ import annotations

import asyncio
import enum

from structlog.typing import FilteringBoundLogger

__all__ = ["Drain", "NodePhase"]


class NodePhase(enum.Enum):
    """Phase of a node's life; it only moves forward."""

    SERVING = "serving"
    """The node is ready when its links are."""
    DRAINING = "draining"
    """The node is not ready, so load balancers send it no more clients. It still serves all clients that connect."""
    STOPPING = "stopping"
    """Clients are disconnected, and the parts stop."""


class Drain:
    """The phase of one node, and the timer of its drain.

    Attributes:
        phase: The current phase.
        seconds: How long draining takes.
    """

    def __init__(self, *, seconds: float, logger: FilteringBoundLogger) -> None:
        """Begin in the phase `SERVING`.

        Args:
            seconds: How long draining takes; 0 goes from serving to stopping at once.
            logger: Takes log lines.
        """
        self.phase = NodePhase.SERVING
        self.seconds = seconds
        self._logger = logger
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Drain, then stop; does nothing after the first call."""
        if self.phase is not NodePhase.SERVING:
            return
        if not self.seconds:
            self.end()
            return
        self.phase = NodePhase.DRAINING
        self._logger.info("draining", seconds=self.seconds)
        self._timer = asyncio.get_running_loop().call_later(self.seconds, self.end)

    def end(self) -> None:
        """Stop now, even if time for draining is left."""
        self.phase = NodePhase.STOPPING
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
