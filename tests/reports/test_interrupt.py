"""Ctrl-C in the middle of a report ends it at once."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reports.logs import write
from tests.reports.random_logs import random_hub, random_secondary
from tests.support.waiting import wait_until_blocking

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

STAGES = (
    ("sail", "starting Sail"),
    ("local[*]", "starting Spark"),
    pytest.param("local[*]", "first look at the logs", marks=pytest.mark.long),
    ("local[*]", " rows"),
)
"""What the line of progress says when Ctrl-C comes: an engine starts, reads, and runs one query beside another.

Each section of the report is told with the number of rows; the line may not be drawn while a certain one runs.
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of a primary and two secondaries."""
    rng = random.Random(5)
    hub = random_hub(rng, updates=400)
    nodes = [random_secondary(rng, number, hub) for number in range(2)]
    return write(tmp_path_factory.mktemp("log"), [hub, *nodes])


class Report:
    """A running `fanout report summary` with its progress on a terminal of its own."""

    def __init__(self, log: Path, scratch: Path, *, master: str) -> None:
        terminal, slave = pty.openpty()
        command = [sys.executable, "-m", "fanout", "report", "summary", str(log), "--master", master]
        environment = os.environ | {"TMPDIR": str(scratch), "TERM": "xterm-256color", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            command, env=environment, stdin=slave, stdout=subprocess.DEVNULL, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._terminal = terminal
        os.set_blocking(terminal, False)
        self.shown = ""

    def shows(self, text: str) -> bool:
        """Return whether the terminal has shown a text."""
        try:
            while read := os.read(self._terminal, 65536):
                self.shown += read.decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        return text in self.shown

    def close(self) -> None:
        """End the process if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


def processes_with(variable: str) -> list[str]:
    """Return the processes that run with a variable in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


@pytest.mark.parametrize(("master", "stage"), STAGES)
def test_ctrl_c_ends_a_report_at_once(log: Path, tmp_path: Path, master: str, stage: str) -> None:
    """Within three seconds, with one line, exit code 130, and nothing left on the disk of what it had copied."""
    report = Report(log, tmp_path, master=master)
    try:
        wait_until_blocking(lambda: report.shows(stage), what=stage, deadline_s=400)
        sent = time.monotonic()
        report.process.send_signal(signal.SIGINT)
        assert report.process.wait(60) == 130
        took_s = time.monotonic() - sent
        report.shows("")
    finally:
        report.close()
    said = report.shown.rpartition("\x1b[2K")[2].replace("\x1b[?25h", "").replace("\r\n", "\n")
    assert said == "stopped by Ctrl-C\n"
    assert took_s < 3
    assert list(tmp_path.glob("fanout-report-*")) == []
    wait_until_blocking(lambda: not processes_with(f"TMPDIR={tmp_path}"), what="the end of the JVM", deadline_s=10)
