"""Markers that have passed in the streams of this node's links, and who waits for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

__all__ = ["PassedMarkers"]

_REMEMBERED_MAX: Final = 256
"""Markers that are remembered: some minutes of heartbeats, or some hundred calls."""


class PassedMarkers:
    """The newest markers of all members."""

    def __init__(self) -> None:
        """Begin without any."""
        self._passed: deque[tuple[str, str, str]] = deque(maxlen=_REMEMBERED_MAX)
        self._waiting: dict[asyncio.Event, None] = {}

    def note(self, link: str, node: str, marker: str) -> None:
        """Note that a member's marker has passed in the stream of a link; members may number theirs alike."""
        self._passed.append((link, node, marker))
        for waiter in self._waiting:
            waiter.set()

    async def wait(self, node: str, markers: Mapping[str, str], *, timeout_s: float) -> bool:
        """Wait until markers of one member have passed.

        Args:
            node: The member.
            markers: Link to marker.
            timeout_s: Longest time to wait, in seconds.

        Returns:
            True if all of them have; False for none at all.
        """
        changed = asyncio.Event()
        self._waiting[changed] = None
        try:
            async with asyncio.timeout(timeout_s):
                while not all((link, node, marker) in self._passed for link, marker in markers.items()):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(changed, None)
        return bool(markers)
