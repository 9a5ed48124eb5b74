"""Reports on Sail and on Spark beside a bare PySpark script on Spark, on the same logs, by turns, from their start."""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.arguments import numbers
from bench.report import Ask, Report, Row, alternate, medians, ratio, rows
from bench.report_run import SETTLE_S
from bench.synthetic_logs import make_logs, publish, write
from fanout.reports.spark import LOCAL_MASTER

__all__ = ["add_arguments", "run"]

_SCRIPT: Final = "script"
_ASKED: Final = {"summary": 1.3, "all": 2.0}
"""Greatest cost of a report on the engine that it takes by itself, in costs of the script."""
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Used:
    """Resources of a command and all processes that it started."""

    seconds: float
    cpu_s: float

    def figures(self) -> Mapping[str, float | int | str]:
        """Return what a table shows of it, by column."""
        return {"seconds": self.seconds, "CPU s": self.cpu_s}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rows", type=numbers(1), default="200000,1000000", help="of all four logs (200000,1000000)")
    parser.add_argument("--seed", type=int, default=1, help="of the random faults (1)")
    parser.add_argument("--scratch", type=Path, help="where logs are written (the temporary directory)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure the reports and the script on logs of each size, with stamps and without."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl: JVMs that outlive their commands cannot be waited for")
    found: list[Row] = []
    for count in arguments.rows:
        for kind in ("stamped", "counted"):
            with tempfile.TemporaryDirectory(prefix="fanout-bench-", dir=arguments.scratch) as scratch:
                found += _measure(Path(scratch), kind=kind, count=count, arguments=arguments)
    return Report("report-cost", f"a primary or tap and 3 secondaries; {arguments.runs} runs, by turns", tuple(found))


def _measure(scratch: Path, *, kind: str, count: int, arguments: argparse.Namespace) -> list[Row]:
    published = publish(count // 4, seed=arguments.seed)
    logs = make_logs(published, seed=arguments.seed, stamped=kind == "stamped")
    for log in logs:
        write(scratch / log.node, published, log)
    directories = [str(scratch / log.node) for log in logs]
    logged = sum(len(part.at) for log in logs for part in log.rows)
    commands = {_SCRIPT: [sys.executable, "-m", "bench.bare_script", kind, *directories]}
    for name in _ASKED:
        command = [sys.executable, "-m", "fanout", "report", name, *directories, "--settle", str(SETTLE_S)]
        commands |= {name: command, f"{name} on Spark": [*command, "--master", LOCAL_MASTER]}
    results = alternate(arguments.runs, {name: partial(_used, command) for name, command in commands.items()})
    script = medians(results[_SCRIPT])
    asked: dict[str, tuple[Ask, ...]] = {}
    for name, at_most in _ASKED.items():
        used = medians(results[name])
        asked[name] = (
            Ask("CPU s by the script's", ratio(used.cpu_s, script.cpu_s), at_most=at_most),
            Ask("seconds by the script's", ratio(used.seconds, script.seconds), at_most=at_most),
        )
    return rows({"logs": kind, "rows": logged}, results, labels={name: name for name in commands}, asked=asked)


def _used(command: list[str]) -> Used:
    """Run a command to its end and that of its JVM, which may outlive it."""
    cpu_s = 0.0
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    seconds = time.monotonic() - begin
    while True:
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu_s += usage.ru_utime + usage.ru_stime
        if pid == process.pid:
            seconds = time.monotonic() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command[:5]} ended with {process.returncode}: {said[-2000:]}")
    return Used(seconds, cpu_s)
