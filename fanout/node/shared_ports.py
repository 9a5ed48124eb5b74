"""Shared ports: a member of a pool listens there only while a client may be sent to it.

The kernel spreads new connections over all members that listen. It asks nobody for readiness, so a member that is not
ready leaves the ports to the others. A connection that is open already stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.errors import ListenError
from fanout.server.client.server import Server

__all__ = ["keep_shared_ports"]

_LOOK_S: Final = 0.1
_AGAIN_S: Final = 1.0
"""Pause after a port could not be opened."""


async def keep_shared_ports(server: Server, *, may_serve: Callable[[], bool], logger: FilteringBoundLogger) -> None:
    """Listen at the shared ports while the node may serve new clients, until cancelled.

    Args:
        server: The server that has shared ports.
        may_serve: Returns True while the node is ready, or offers its values as stale.
        logger: The log.
    """
    is_open = has_failed = False
    while True:
        if may_serve() is not is_open:
            if is_open:
                server.leave_shared_ports()
                logger.warning("shared ports left", reason="not ready")
                is_open = False
            else:
                try:
                    await server.share_ports()
                except ListenError as error:
                    if not has_failed:
                        logger.error("shared ports not opened", reason=error.message, hint=error.hint)
                    has_failed = True
                else:
                    is_open, has_failed = True, False
                    logger.info("shared ports opened", listeners=[str(one.address) for one in server.shared_ports])
        await asyncio.sleep(_AGAIN_S if has_failed else _LOOK_S)
