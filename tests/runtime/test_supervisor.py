"""The supervisor keeps processes running, and ends them in bounded time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.runtime.supervisor import Supervisor
from tests.support.waiting import wait_until

STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def command(directory: Path, *statements: str) -> list[str]:
    """Return the command of a process that notes its number in a file of its own, then does as it is told."""
    lines = ["import os, pathlib, signal, sys, time", f"pathlib.Path({str(directory)!r}, str(os.getpid())).touch()"]
    return [sys.executable, "-c", "\n".join([*lines, *statements])]


def numbers(directory: Path) -> set[int]:
    """Return the numbers of the processes that have started so far."""
    return {int(path.name) for path in directory.iterdir()}


async def test_a_process_that_ends_is_started_again_and_all_end_at_a_signal(tmp_path: Path) -> None:
    """Those that it does not concern stay; a process that the signal ends has ended in good order."""
    supervisor = Supervisor([command(tmp_path, "time.sleep(60)")] * 2, stop_s=30, logger=structlog.get_logger())
    running = asyncio.create_task(supervisor.run())
    await wait_until(lambda: len(numbers(tmp_path)) == 2, what="two processes")
    first = numbers(tmp_path)
    os.kill(min(first), signal.SIGKILL)
    await wait_until(lambda: len(numbers(tmp_path)) == 3, what="a third process")
    os.kill(max(first), 0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    for number in numbers(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


async def test_a_process_that_cannot_start_ends_all(tmp_path: Path) -> None:
    """A taken port does not get free by trying again; the exit code is that of the process."""
    commands = [command(tmp_path, "time.sleep(60)"), command(tmp_path, "sys.exit(5)")]
    with capture_logs() as logs:
        assert await Supervisor(commands, stop_s=30, logger=structlog.get_logger()).run() == 5
    assert [line["member"] for line in logs if line["event"] == "member cannot start"] == [2]


async def test_a_process_that_the_system_does_not_start_is_tried_again(tmp_path: Path) -> None:
    """As while its program is replaced, or while no memory is left."""
    program, started = tmp_path / "python", tmp_path / "started"
    started.mkdir()
    program.symlink_to(sys.executable)
    commands = [[str(program), *command(started, "time.sleep(60)")[1:]]]
    with capture_logs() as logs:
        running = asyncio.create_task(Supervisor(commands, stop_s=30, logger=structlog.get_logger()).run())
        await wait_until(lambda: len(numbers(started)) == 1, what="a process")
        program.unlink()
        os.kill(min(numbers(started)), signal.SIGKILL)
        await wait_until(lambda: any(line["event"] == "member not started" for line in logs), what="a line in the log")
        program.symlink_to(sys.executable)
        await wait_until(lambda: len(numbers(started)) == 2, what="a second process")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0


@pytest.mark.parametrize("again", [False, True])
async def test_a_process_that_does_not_end_is_killed(tmp_path: Path, again: bool) -> None:
    """After the time for it, or with a second signal."""
    commands = [command(tmp_path, STUBBORN, f"pathlib.Path({str(tmp_path)!r}, '0').touch()", "time.sleep(60)")]
    supervisor = Supervisor(commands, stop_s=60 if again else 0.2, logger=structlog.get_logger())
    running = asyncio.create_task(supervisor.run())
    await wait_until(lambda: 0 in numbers(tmp_path), what="a process that ignores the signal")
    os.kill(os.getpid(), signal.SIGTERM)
    if again:
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 128 + signal.SIGKILL
