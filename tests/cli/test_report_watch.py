"""`fanout report watch` as a process: it follows a growing log, ends when it is told to, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.processes import COMMAND, DEADLINE_S, run_fanout
from tests.cli.real_logs import write_primary_log, write_secondary_log
from tests.support.waiting import wait_until_blocking


class Watching:
    """A running `fanout report watch`."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process = process
        self._said = said

    @property
    def lines(self) -> list[str]:
        """What it said so far on standard error."""
        return self._said.read_text().splitlines()

    def wait_for(self, line: str) -> None:
        """Wait until it said this."""
        wait_until_blocking(
            lambda: line in self.lines or self.process.poll() is not None, DEADLINE_S, what=lambda: str(self.lines)
        )
        assert line in self.lines, self.lines

    def jvm(self) -> int:
        """Return the process identifier of its JVM."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def wait_ended(self) -> int:
        """Return its exit code."""
        return self.process.wait(timeout=DEADLINE_S)


@contextmanager
def watching(log: Path, *, into: Path, said: Path) -> Iterator[Watching]:
    """Run it in a process group of its own, as a shell and a service manager do."""
    command = [*COMMAND, "report", "watch", str(log), "--into", str(into), "--every", "1", "--master", "local[2]"]
    with said.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield Watching(process, said)
    finally:
        process.kill()
        process.communicate()


def update_counts(into: Path) -> tuple[int, int]:
    """Return how many updates, and files of them, are in the last result."""
    inputs = json.loads((into / "latest.json").read_text())["inputs"]
    return inputs["updates"], inputs["update_files"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_follows_a_log_ends_cleanly_and_continues(tmp_path: Path) -> None:
    """New files are taken in; SIGTERM ends it with 0 and no error, whoever gets it first; each file counts once."""
    log, into = tmp_path / "log", tmp_path / "kept"
    write_primary_log(log, updates=20)
    with watching(log, into=into, said=tmp_path / "first") as first:
        first.wait_for("2 new files")
        assert update_counts(into) == (20, 1)
        write_secondary_log(log, updates=20, without=frozenset({3, 4}))
        wait_until_blocking(lambda: update_counts(into)[0] > 20, DEADLINE_S, what=lambda: str(first.lines))
        os.killpg(first.process.pid, signal.SIGTERM)
        assert first.wait_ended() == 0, first.lines
        assert {line.partition(" ")[2] for line in first.lines} == {"new files"}, first.lines
    assert update_counts(into) == (38, 2)
    with watching(log, into=into, said=tmp_path / "second") as second:
        second.wait_for("0 new files")
        # What ends all processes of a service, one after the other, may come to the JVM first.
        os.kill(second.jvm(), signal.SIGTERM)
        second.process.terminate()
        assert second.wait_ended() == 0, second.lines
        assert not [line for line in second.lines if "error" in line or "written" in line], second.lines
    assert update_counts(into) == (38, 2)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_what_is_no_log_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Like the other reports: exit code 5, the reason, and no directory of tables."""
    (tmp_path / "empty").mkdir()
    answer = run_fanout("report", "watch", str(tmp_path / name), "--into", str(tmp_path / "kept"))
    assert answer.returncode == 5
    assert "is not the directory of a replication log" in answer.stderr.replace("\n", " ")
    assert not (tmp_path / "kept").exists()
