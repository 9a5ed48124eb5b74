"""Markers of this member, which divide the streams of all members at one place for the sessions that it fetches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from fanout.durable.ownership.move_messages import SessionQuestion
from fanout.durable.ownership.ports import Markers
from fanout.runtime.system_clock import Clock

__all__ = ["MARKER_S", "OwnMarkers"]

MARKER_S: Final = 1.0
"""Time in which a marker comes through the primary to a member; then another one is tried."""
_PAUSE_S: Final = 0.05
_UNDER_WAY_MAX: Final = 256
"""Maximum number of markers under way; calls of some may have failed."""


class OwnMarkers:
    """Own markers under way, each with its sessions: messages after the marker are for this member."""

    def __init__(self, markers: Markers, *, clock: Clock) -> None:
        """Begin without any.

        Args:
            markers: Publishes them.
            clock: Gives the time.
        """
        self._markers = markers
        self._clock = clock
        self._under_way: dict[tuple[str, str], list[str]] = {}
        """By link and marker."""

    async def send(self, questions: Sequence[SessionQuestion]) -> Mapping[str, str]:
        """Send a marker on each link for the sessions of one call, as soon as that is possible.

        Returns:
            The markers by link; empty when one of the links could not in time.
        """
        until_s = self._clock.monotonic() + MARKER_S
        while not (markers := self._markers.send()):
            if not self._markers.come_back or self._clock.monotonic() >= until_s:
                break
            await asyncio.sleep(_PAUSE_S)
        ids = [client_id for client_id, _ in questions]
        for key in markers.items():
            self._under_way[key] = ids
        while len(self._under_way) > _UNDER_WAY_MAX:  # the primary dropped these
            del self._under_way[next(iter(self._under_way))]
        return markers

    def came_back(self, link: str, marker: str) -> Sequence[str]:
        """Return the Client Identifiers of the sessions that a marker was sent for; empty for one that is unknown."""
        return self._under_way.pop((link, marker), ())
