"""One report in a process of its own, as `fanout report` makes it, and what Spark says that it cost.

`python -m bench.report_run summary|completeness|lag|all OUT_DIR LOG_DIR...` writes `report.json` and `cost.json`
in `OUT_DIR`. Memory is the highest resident set of this process and of the JVM together.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fanout.replog.read.reading import stage
from fanout.reports.entry import ReportOptions, is_short_run, run_report
from fanout.reports.read.log_files import LogFiles
from fanout.reports.spark import LOCAL_MASTER, spark_session

if TYPE_CHECKING:
    from fanout.reports.values.document import ReportName

__all__ = ["DEPTH", "SETTLE_S", "Cost", "make_report"]

SETTLE_S = 2.0
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one report."""

    seconds: float
    """From reading the logs to the report, without the start of Spark."""
    cpu_s: float
    """CPU time of Spark's tasks."""
    peak_bytes: int
    shuffle_bytes: int
    """Written for shuffles."""
    spilled_bytes: int
    """Written to the disk because memory did not do."""
    tasks: int
    slowest_task_s: float


def make_report(name: ReportName, out: Path, directories: list[Path]) -> Cost:
    """Make a report of logs, write its JSON to `out/report.json`, and return what it cost."""
    with tempfile.TemporaryDirectory(prefix="fanout-bench-report-") as scratch:
        events, target = Path(scratch) / "events", Path(scratch) / "staged"
        events.mkdir()
        target.mkdir()
        begin = time.monotonic()
        staged = stage(directories, target=target)
        files = LogFiles.of_files(updates=staged.updates, events=staged.events, directories=directories)
        read_s = time.monotonic() - begin
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        with spark_session(settings=settings, short=is_short_run(files, LOCAL_MASTER)) as spark:
            begin = time.monotonic()
            # The lag has no settle horizon, and by prefix it is looked at with the rest only.
            asked = ReportOptions() if name == "lag" else ReportOptions(settle_s=SETTLE_S, depth=DEPTH)
            run_report(name, files, replace(asked, json_path=out / "report.json"))
            seconds = read_s + time.monotonic() - begin
            jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
            peak_bytes = _peak_bytes("self") + _peak_bytes(str(jvm))
        return _cost(seconds, peak_bytes, events)


def _peak_bytes(process: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {process} has no resident set")


def _cost(seconds: float, peak_bytes: int, events: Path) -> Cost:
    totals: Counter[str] = Counter()
    slowest_ms = 0
    (log,) = events.iterdir()
    with log.open() as lines:
        for line in lines:
            event: dict[str, Any] = json.loads(line)
            if event["Event"] != "SparkListenerTaskEnd" or "Task Metrics" not in event:
                continue
            metrics = event["Task Metrics"]
            totals["cpu_ns"] += metrics["Executor CPU Time"]
            totals["shuffle"] += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            totals["spilled"] += metrics["Disk Bytes Spilled"]
            totals["tasks"] += 1
            slowest_ms = max(slowest_ms, metrics["Executor Run Time"])
    return Cost(
        seconds=seconds,
        cpu_s=totals["cpu_ns"] / 1e9,
        peak_bytes=peak_bytes,
        shuffle_bytes=totals["shuffle"],
        spilled_bytes=totals["spilled"],
        tasks=totals["tasks"],
        slowest_task_s=slowest_ms / 1e3,
    )


if __name__ == "__main__":
    name, out, *directories = sys.argv[1:]
    cost = make_report(cast("ReportName", name), Path(out), [Path(one) for one in directories])
    (Path(out) / "cost.json").write_text(json.dumps(asdict(cost)))
