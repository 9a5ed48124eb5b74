"""How a node goes: from serving, over draining, to stopping.

Owns the phases, their order, and how long a load balancer has to notice that the node is not ready before clients
are told to leave. It must not know signals or HTTP, which ask for it, nor what stopping does.
"""

from __future__ import annotations

import asyncio
import enum

from structlog.typing import FilteringBoundLogger

__all__ = ["Drain", "NodePhase"]


class NodePhase(enum.Enum):
    """Where a node is in its life; it only goes forward."""

    SERVING = "serving"
    """It is ready when its links are."""
    DRAINING = "draining"
    """It is not ready, so that no more clients are sent to it; those that it has, or gets all the same, are served."""
    STOPPING = "stopping"
    """Its clients are told to leave, and its parts stop."""


class Drain:
    """The end of one node's service.

    Attributes:
        phase: Where the node is.
        seconds: How long draining takes.
    """

    def __init__(self, *, seconds: float, logger: FilteringBoundLogger) -> None:
        """Make one that was not asked for.

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
        """Drain, then stop; does nothing when that was asked for before."""
        if self.phase is not NodePhase.SERVING:
            return
        if not self.seconds:
            self.end()
            return
        self.phase = NodePhase.DRAINING
        self._logger.info("draining", seconds=self.seconds)
        self._timer = asyncio.get_running_loop().call_later(self.seconds, self.end)

    def end(self) -> None:
        """Stop, whether the time for draining is over or not."""
        self.phase = NodePhase.STOPPING
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()

    @property
    def seconds_left(self) -> float:
        """How long it is until the node stops, while it drains; 0 when it stops."""
        if self.phase is NodePhase.STOPPING or self._timer is None:
            return 0.0
        return max(0.0, self._timer.when() - asyncio.get_running_loop().time())

    async def wait_over(self) -> None:
        """Wait until the node is to stop."""
        await self._over.wait()
