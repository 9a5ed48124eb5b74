"""A node as a process: its signal handlers, the reload of its configuration, and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from fanout.config import MemberNumber, NodeConfig, Role
from fanout.errors import ConfigError, ListenError, RequestRefused, StoreError
from fanout.node.node import Node
from fanout.node.reload import Reloads
from fanout.runtime.gc_freeze import collect_little_at_a_time
from fanout.runtime.service_manager import ServiceManager

__all__ = ["run_node"]

_OTHERS: Final = 0o027
"""Rights that files and directories of a node never give: write to its group, and any to others."""
_FAILED: Final = 70
"""Exit code when a part of the node failed: `BUG` of `fanout.cli`."""
_STORE_FAILED: Final = 5
"""Exit code when the disk with the retained values failed: `FAILED` of `fanout.cli`."""


async def run_node(
    config: NodeConfig,
    *,
    role: Role,
    path: Path | None = None,
    digest: str = "",
    member: MemberNumber | None = None,
) -> int:
    """Run a node until it is told to stop: SIGTERM and HTTP drain it first, SIGINT does not.

    A second signal ends the process at once. SIGHUP reloads. Files that the process makes are for its user and group.
    A service manager is told when the node listens and when it stops, and gets a watchdog's signs of life between. It
    is asked for more time while the node starts, which values on disk may make long.

    Args:
        config: A validated configuration for this role.
        role: Role of the node.
        path: The file of the configuration, which a reload reads again; None leaves SIGHUP alone.
        digest: Digest of that file when it was read; empty for unknown.
        member: The number of the node where several members share the file; None for a node alone.

    Returns:
        The exit code: 0 after an orderly stop; 5 if the disk of `disc_only` values failed; 70 if another part failed,
        which is a bug.

    Raises:
        ConfigError: The password file cannot be used.
        ListenError: An address cannot be bound.
        LogError: The replication log cannot be opened.
        StoreError: The file of retained values cannot be used.
    """
    os.umask(os.umask(_OTHERS) | _OTHERS)
    collect_little_at_a_time()
    logger: FilteringBoundLogger = structlog.get_logger("fanout.node")
    node = Node(config, role=role, logger=logger, path=path, digest=digest, member=member)
    loop = asyncio.get_running_loop()
    signals: list[signal.Signals] = []

    def stop_asked(number: signal.Signals) -> None:
        if signals:
            logger.warning("second signal, ending at once", signal=number.name)
            os._exit(128 + number)
        signals.append(number)
        logger.info("stopping", signal=number.name)
        if number is signal.SIGINT:  # a person waits at a terminal
            node.drain.end()
        else:
            node.drain.begin()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked, number)
    reloads = _ReloadsOnSignal(node.reloads) if path is not None else None
    if reloads is not None:  # before the start too, else the signal would end the process
        loop.add_signal_handler(signal.SIGHUP, reloads.ask)
    manager = ServiceManager()
    starting = asyncio.create_task(manager.extend_start(), name="starting")
    try:
        await node.start()
    finally:
        starting.cancel()
    manager.tell("READY=1")
    watchdog = asyncio.create_task(manager.keep_watchdog(), name="watchdog")
    if reloads is not None:
        node.spawn("reloads", reloads.run)
    failure = asyncio.create_task(node.wait_failed(), name="failure")
    waiter = asyncio.create_task(node.drain.wait_over(), name="drain")
    await asyncio.wait({failure, waiter}, return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if failure.done():
        error = failure.result()
        if isinstance(error, StoreError):
            logger.error("a part of the node failed", error=error.message, hint=error.hint)
            code = _STORE_FAILED
        else:
            logger.error("a part of the node failed", exc_info=error)
            code = _FAILED
    failure.cancel()
    waiter.cancel()
    manager.tell("STOPPING=1")
    await node.stop()
    watchdog.cancel()
    return code


class _ReloadsOnSignal:
    """Reloads the configuration on request, one reload at a time."""

    def __init__(self, reloads: Reloads) -> None:
        self._reloads = reloads
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Request a reload; a running reload is finished first."""
        self._asked.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            with contextlib.suppress(ConfigError, ListenError, RequestRefused):  # the log has them
                await self._reloads.reload()
