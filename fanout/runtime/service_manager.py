"""Messages to the service manager, as systemd: sd_notify(3) and sd_watchdog_enabled(3), without its library.

Each message is a datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

__all__ = ["ServiceManager"]

_EXTENSION_S: Final = 60.0
"""Time in which the manager expects the next sign of a start that goes on."""
_EXTEND_EVERY_S: Final = 10.0


class ServiceManager:
    """The service manager that started this process, if any."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take the variables out of the environment: processes that this one starts are not the service.

        Args:
            environment: Variables of the process.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # an abstract socket
        interval_us = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", str(os.getpid()))
        self._watchdog_s = int(interval_us) / 1e6 if interval_us.isdigit() and process == str(os.getpid()) else 0.0

    def tell(self, state: str) -> None:
        """Send a state such as `READY=1`; it is dropped if the manager does not take it now."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), self._address)

    async def extend_start(self) -> None:
        """Ask for more time until cancelled, from this event loop; a quick start asks for none."""
        while True:
            await asyncio.sleep(_EXTEND_EVERY_S)
            self.tell(f"EXTEND_TIMEOUT_USEC={_EXTENSION_S * 1e6:.0f}")

    async def keep_watchdog(self) -> None:
        """Send `WATCHDOG=1` from this event loop, twice in each interval; end at once if no watchdog is asked for."""
        while self._watchdog_s:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)
