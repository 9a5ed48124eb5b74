"""The `fanout` command as a process: in a pipe, or on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from fcntl import ioctl

__all__ = ["TerminalRun", "run_fanout", "run_on_terminal"]

DEADLINE_S = 540
"""How long a command may take: a report starts a JVM, which takes its time on a busy machine."""
COMMAND = [sys.executable, "-m", "fanout"]
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_fanout(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `fanout` with its output in pipes."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, **environment},
    )


@dataclass(frozen=True, slots=True)
class TerminalRun:
    """What a command did on a terminal."""

    exit_code: int
    raw: str
    """Everything it wrote, with control sequences."""

    @property
    def text(self) -> str:
        """What it wrote, without control sequences."""
        return _CONTROL.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """Every line it ever showed, redrawn ones too."""
        return re.split(r"[\r\n]+", self.text)


def run_on_terminal(*arguments: str, columns: int = 80, stdout: int | None = None) -> TerminalRun:
    """Run `fanout` on a pseudo-terminal.

    Args:
        arguments: Of the command.
        columns: Width of the terminal.
        stdout: A file descriptor for standard output; None puts it on the terminal too.
    """
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(slave)
    pieces = []
    while True:
        try:
            piece = os.read(master, 65_536)
        except OSError:  # Linux: the last process closed the terminal
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(master)
    return TerminalRun(process.wait(timeout=60), b"".join(pieces).decode())
