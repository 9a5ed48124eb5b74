"""The end of a command by Ctrl-C while other threads, or the JVM of Spark, cannot be asked to stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fanout.cli.output.exit_codes import ExitCode

__all__ = ["STOPPED", "ended_by_ctrl_c"]

STOPPED: Final = "stopped by Ctrl-C"

_CLEAR_LINE_AND_SHOW_CURSOR: Final = "\r\x1b[2K\x1b[?25h"


@contextmanager
def ended_by_ctrl_c(scratch: Path) -> Iterator[None]:
    """Let Ctrl-C end this process at once inside the `with` block, with one line.

    An exception instead would be lost in a callback of Py4J, or wait for threads in the middle of a query. The JVM has
    a group of its own and is killed: one that has not told its port yet would live on.

    Args:
        scratch: A directory that is removed first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        del number, frame
        _kill_groups_of_children()
        shutil.rmtree(scratch, ignore_errors=True)
        clear = _CLEAR_LINE_AND_SHOW_CURSOR if sys.stderr.isatty() else ""
        os.write(2, f"{clear}{STOPPED}\n".encode())
        os._exit(ExitCode.INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _kill_groups_of_children() -> None:
    for listed in Path("/proc/self/task").glob("*/children"):  # where there is no /proc, the JVM ends with its input
        with contextlib.suppress(OSError):
            for child in listed.read_text().split():
                with contextlib.suppress(OSError):  # a child without a group of its own
                    os.killpg(int(child), signal.SIGKILL)
