"""Supervisor: keeps several processes of one command running until it is told to stop.

Owns their start, their restarts with backoff, and the signals that they get. A process has a session of its own, so
that a terminal's Ctrl-C comes once, from the supervisor.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.runtime.backoff import Backoff
from fanout.runtime.service_manager import ServiceManager

__all__ = ["Supervisor", "end_with_supervisor"]

_PARENT: Final = "FANOUT_SUPERVISOR"
"""Environment variable with the process number of the supervisor."""
_PR_SET_PDEATHSIG: Final = 1
_RETRY_MIN_S: Final = 0.1
_RETRY_MAX_S: Final = 10.0
_CANNOT_START: Final = frozenset({2, 5})
"""Exit codes for a faulty configuration, and for a port or a file that cannot be used."""
_START_S: Final = 10.0
"""Time within which the first process of a command ends that cannot start."""


class Supervisor:
    """Several processes that run until a signal; `run` once."""

    def __init__(self, commands: Sequence[Sequence[str]], *, stop_s: float, logger: FilteringBoundLogger) -> None:
        """Prepare; nothing is started yet.

        Args:
            commands: Command line of each process.
            stop_s: Time for the processes to end after the first signal; then they are killed.
            logger: The log.
        """
        self._commands = commands
        self._stop_s = stop_s
        self._logger = logger
        self._processes: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._codes: list[int] = []

    async def run(self) -> int:
        """Run the processes. SIGTERM and SIGINT stop them, a second one kills them; SIGHUP is passed on.

        Returns:
            0 if all ended in good order; otherwise the exit code of the first that did not.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        manager = ServiceManager()  # before the processes start: they are not the service
        keepers = [
            asyncio.create_task(self._keep(number, command), name=f"process-{number}")
            for number, command in enumerate(self._commands, 1)
        ]
        manager.tell("READY=1")
        watchdog = asyncio.create_task(manager.keep_watchdog(), name="watchdog")
        await self._stopping.wait()
        manager.tell("STOPPING=1")
        watchdog.cancel()
        _, late = await asyncio.wait(keepers, timeout=self._stop_s)
        if late:
            self._logger.error("members killed", reason="they have not ended in time", after_s=self._stop_s)
            self._send(signal.SIGKILL)
        await asyncio.gather(*keepers)
        return next((code for code in self._codes if code), 0)

    async def _keep(self, number: int, command: Sequence[str]) -> None:
        """Start a process, and start it again when it ends, until it is told to stop."""
        backoff = Backoff(min_s=_RETRY_MIN_S, max_s=_RETRY_MAX_S)
        is_first = True
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            try:
                process = await self._start(number, command)
            except OSError as error:  # no memory or no process number is left, or the program is being replaced
                delay_s = backoff.next_delay_s()
                self._logger.error("member not started", member=number, reason=str(error), restart_s=round(delay_s, 1))
                await self._wait(delay_s)
                continue
            code = await process.wait()
            del self._processes[number]
            if self._stopping.is_set():
                self._codes.append(0 if code == -signal.SIGTERM else code if code >= 0 else 128 - code)
                return
            lived_s = time.monotonic() - begun_s
            if is_first and code in _CANNOT_START and lived_s < _START_S:
                self._logger.error("member cannot start", member=number, exit_code=code)
                self._codes.append(code)
                self._stop(signal.SIGTERM)
                return
            is_first = False
            backoff.note_success(lasted_s=lived_s)
            delay_s = backoff.next_delay_s()
            self._logger.warning("member ended", member=number, exit_code=code, restart_s=round(delay_s, 1))
            await self._wait(delay_s)

    async def _start(self, number: int, command: Sequence[str]) -> Process:
        """Start a process; it gets the signals from then on.

        Raises:
            OSError: The system cannot start it now.
        """
        environment = {**os.environ, _PARENT: str(os.getpid())}
        process = await asyncio.create_subprocess_exec(*command, env=environment, start_new_session=True)
        self._processes[number] = process
        if self._stopping.is_set():  # it got no signal, since it was not there yet
            process.terminate()
        return process

    async def _wait(self, delay_s: float) -> None:
        """Wait for a time, or until the supervisor is told to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._logger.warning("second signal, members are killed", signal=number.name)
            self._send(signal.SIGKILL)
            return
        self._stopping.set()
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        for process in list(self._processes.values()):
            with suppress(ProcessLookupError):
                process.send_signal(number)


def end_with_supervisor() -> None:
    """Let this process get SIGTERM when its supervisor ends in any way; does nothing without a supervisor."""
    parent = os.environ.pop(_PARENT, None)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it has ended before
        os.kill(os.getpid(), signal.SIGTERM)
