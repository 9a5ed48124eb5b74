"""The `fanout` command as a process: in a pipe, or on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import ioctl
from typing import IO

from bench.processes import Process
from tests.support.fork_server import may_fork, start_fanout

__all__ = ["COMMAND", "TerminalRun", "run_fanout", "run_on_terminal"]

DEADLINE_S = 540
"""How long a command may take: a report starts a JVM, which takes its time on a busy machine."""
COMMAND = [sys.executable, "-m", "fanout"]
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_fanout(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `fanout` with its output in pipes."""
    whole = {**os.environ, **environment}
    if not may_fork(whole):
        command = [*COMMAND, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=whole)
    # Files take any length without anybody who reads.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_fanout(arguments, environment=whole, streams=(0, output.fileno(), errors.fileno()))
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        texts = [_text(file) for file in (output, errors)]
    return subprocess.CompletedProcess(process.args, code, *texts)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


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


def run_on_terminal(
    *arguments: str, columns: int = 80, stdout: int | None = None, answers: Sequence[tuple[str, str]] = ()
) -> TerminalRun:
    """Run `fanout` on a pseudo-terminal.

    Args:
        arguments: Of the command.
        columns: Width of the terminal.
        stdout: A file descriptor for standard output; None puts it on the terminal too.
        answers: Questions in their order, each with the line that is typed once it is shown.
    """
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    streams = (slave, slave if stdout is None else stdout, slave)
    process: Process
    if may_fork(environment):
        process = start_fanout(arguments, environment=environment, streams=streams, new_session=True)
    else:
        command = [*COMMAND, *arguments]
        process = subprocess.Popen(command, env=environment, stdin=streams[0], stdout=streams[1], stderr=streams[2])
    os.close(slave)
    pieces, left = [], list(answers)
    while True:
        try:
            piece = os.read(master, 65_536)
        except OSError:  # Linux: the last process closed the terminal
            break
        if not piece:
            break
        pieces.append(piece)
        if left and left[0][0].encode() in b"".join(pieces):
            os.write(master, f"{left.pop(0)[1]}\n".encode())
    os.close(master)
    return TerminalRun(process.wait(timeout=60), b"".join(pieces).decode())
