"""The fence of this member: it serves no durable session while others may take it for dead.

Owns when the fence goes up and comes down. It goes up when this member is isolated, or did not run for as long as that
takes. Others may have found it dead meanwhile, even if it hears them again. It comes down when every living member has
named its newer sessions. Sessions here that are older than those end.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fanout.durable.moving.context import MoveContext
from fanout.durable.moving.returned import ReturnedSessions

__all__ = ["Fence"]

_LOOK_S: Final = 0.1
"""Time between two looks."""


class Fence:
    """The fence in front of this member's durable sessions."""

    def __init__(self, context: MoveContext, *, returned: ReturnedSessions) -> None:
        """Begin without a fence.

        Args:
            context: Shared objects.
            returned: Asks the others whose the sessions are.
        """
        self._ledger = context.ledger
        self._host = context.host
        self._others = context.others
        self._returned = returned
        self._clock = context.clock
        self._logger = context.logger
        self._is_up = False
        self._raised_s = 0.0
        self._looked_s: float | None = None
        self._is_in_doubt = False
        """True if others may have taken this member for dead since they were asked last."""

    def look(self) -> bool:
        """Put the fence up if others may take this member for dead, and return whether it is up."""
        now_s = self._clock.monotonic()
        paused_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        self._host.serve_until(now_s + self._others.isolated_after_s)
        # A member that nobody has answered yet is not isolated, but others may hear it, and find it dead meanwhile.
        is_late = paused_s > self._others.isolated_after_s and bool(self._others.states())
        if is_late or self._others.is_isolated:
            self._is_in_doubt = True
            if not self._is_up:
                self._raise(f"it did not run for {paused_s:.1f} s" if is_late else "it hears nobody", now_s=now_s)
        return self._is_up

    async def run(self) -> None:
        """Look, and take the fence down once that is settled, until cancelled."""
        settling: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            while True:
                is_settling = settling is not None and not settling.done()
                if self.look() and not is_settling and not self._others.is_isolated:
                    settling = group.create_task(self._settle(), name="pool-fence")
                await asyncio.sleep(_LOOK_S)

    def _raise(self, reason: str, *, now_s: float) -> None:
        self._is_up = True
        self._raised_s = now_s
        self._ledger.figures.fences_total += 1
        connections = self._host.raise_fence()
        self._logger.warning(
            "durable sessions fenced",
            reason=reason,
            disconnected=connections,
            hint="Others may take this node for dead; check its network to the other members and to the primary",
        )

    async def _settle(self) -> None:
        """Ask the others which of them have newer sessions, and take the fence down unless a new doubt has come."""
        self._is_in_doubt = False
        epochs = {}
        for client_id, _, _ in self._host.absent():
            own = self._ledger.get(client_id)
            if own is not None:
                epochs[client_id] = own.epoch
        ended = await self._returned.settle_again(epochs)
        self.look()
        if self._is_in_doubt:
            return
        self._is_up = False
        self._host.lower_fence()
        self._logger.info(
            "durable sessions served again",
            seconds=round(self._clock.monotonic() - self._raised_s, 1),
            sessions=len(epochs) - ended,
            begun_anew_elsewhere=ended,
        )
