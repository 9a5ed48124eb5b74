"""Reports on synthetic logs with known faults: every number checked, time, memory and shuffle."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.arguments import numbers
from bench.report import Ask, Report, Row
from bench.report_run import SETTLE_S, Cost
from bench.synthetic_logs import make_logs, publish, write
from bench.synthetic_truth import differences, figures

__all__ = ["add_arguments", "run"]

_SETTLE_US = round(SETTLE_S * 1e6)
_REPORTS = ("completeness", "lag", "all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--rows", type=numbers(1), default="1000000,10000000", help="rows of all four logs (1000000,10000000)"
    )
    parser.add_argument(
        "--reports",
        type=_reports_named,
        default="completeness,lag",
        help=f"which, of {', '.join(_REPORTS)} (completeness,lag); of all, what completeness has is compared",
    )
    parser.add_argument("--scratch", type=Path, help="where logs are written; 15 bytes a row (the temporary directory)")
    parser.add_argument("--seed", type=int, default=1, help="of the random faults (1)")


def run(arguments: argparse.Namespace) -> Report:
    """Write logs of each size, report on them, and compare the reports with the truth."""
    results: list[Row] = []
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory(prefix="fanout-bench-", dir=arguments.scratch) as scratch:
            results += _reports(rows, arguments, Path(scratch))
    title = f"a primary and 3 secondaries, half of all updates on one topic; {arguments.runs} runs, the quickest"
    return Report("reports", title, tuple(results))


def _reports(rows: int, arguments: argparse.Namespace, scratch: Path) -> list[Row]:
    published = publish(rows // 4, seed=arguments.seed)
    logs = make_logs(published, seed=arguments.seed)
    begin = time.monotonic()
    for log in logs:
        write(scratch / log.node, published, log)
    written_s = time.monotonic() - begin
    truth = figures(published, logs, settle_us=_SETTLE_US)
    logged = sum(len(part.at) for log in logs for part in log.rows)
    directories = [scratch / log.node for log in logs]
    log_bytes = sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file())
    del published, logs
    print(f"{logged:,} rows, {log_bytes / logged:.1f} bytes each, written in {written_s:.1f} s", file=sys.stderr)
    found: list[Row] = []
    for name in arguments.reports:
        costs: list[Cost] = []
        wrong: list[str] = []
        for _ in range(arguments.runs):
            cost, document = _report(name, scratch, directories)
            costs.append(cost)
            compared, wrong = differences(_part(truth, name), document)
            for line in wrong[:20]:
                print(line, file=sys.stderr)
        best = min(costs, key=lambda cost: cost.seconds)
        figures_of = {
            "report": name,
            "rows": logged,
            "seconds": best.seconds,
            "rows/s": logged / best.seconds,
            "CPU s": best.cpu_s,
            "peak MiB": best.peak_bytes / 2**20,
            "shuffle MiB": best.shuffle_bytes / 2**20,
            "spilled MiB": best.spilled_bytes / 2**20,
            "tasks": best.tasks,
            "slowest task s": best.slowest_task_s,
            "numbers compared": compared,
        }
        print(", ".join(f"{what} {value}" for what, value in figures_of.items()), file=sys.stderr)
        found.append(Row(figures_of, (Ask("numbers that are not the injected truth", len(wrong), at_most=0),)))
    return found


def _reports_named(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(_REPORTS):
        raise argparse.ArgumentTypeError(f"{text!r} are not all of {', '.join(_REPORTS)}")
    return names


def _part(truth: dict[str, Any], name: str) -> dict[str, Any]:
    lag = ("logs", "propagation", "corrected", "over_time", "heartbeat", "clocks", "ready")
    return {part: truth[part] for part in lag} if name == "lag" else truth


def _report(name: str, scratch: Path, directories: list[Path]) -> tuple[Cost, dict[str, Any]]:
    out = scratch / "out"
    out.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "bench.report_run", name, str(out), *map(str, directories)], check=True)
    cost = Cost(**json.loads((out / "cost.json").read_text()))
    return cost, json.loads((out / "report.json").read_text())
