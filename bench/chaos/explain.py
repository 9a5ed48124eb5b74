"""Whether the reports on the nodes' logs explain what happened by the faults that were injected.

Owns the judgement of `fanout report completeness`, `snapshots` and `stalls`, which run as their users run them. It must
not know the nodes, only their log directories and the time line of faults.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from bench.chaos.plan import ABOVE, PRIMARY

__all__ = ["Window", "explain"]

_AFTER = timedelta(seconds=20)
"""How long after the end of a fault its consequences may begin: retries, silence that counts as a loss, an audit."""
_SETTLE_S = 1.0
_REPORT_S = 900


@dataclass(frozen=True, slots=True)
class Window:
    """When a fault was there."""

    target: str
    kind: str
    begin: datetime
    end: datetime

    def explains(self, node: str, at: datetime) -> bool:
        """Say whether something at a node may be its consequence; a fault of what is above touches it, too."""
        return self.target in (PRIMARY, node, ABOVE.get(node)) and self.begin <= at <= self.end + _AFTER


def explain(
    directories: Sequence[Path], windows: Sequence[Window], *, scratch: Path
) -> tuple[dict[str, Any], list[str]]:
    """Run the reports over the logs of stopped nodes.

    Args:
        directories: The log directory of each node.
        windows: The faults.
        scratch: For what the reports write.

    Returns:
        Figures, and what no fault explains.
    """
    completeness = _report("completeness", directories, scratch)
    snapshots = _report("snapshots", directories, scratch)
    stalls = _report("stalls", directories, scratch)
    unexplained: list[str] = []
    kills = Counter(window.target for window in windows if window.kind == "kill")
    for log in completeness["logs"]:
        if log["absent_rows"]:
            unexplained.append(f"the log of {log['node']} lacks {log['absent_rows']} rows without a gap that says why")
        if log["gaps"] > kills[log["node"]]:
            unexplained.append(f"the log of {log['node']} has {log['gaps']} gaps after {kills[log['node']]} kills")
    for target in completeness["targets"]:
        final = {name: target["final"][name] for name in ("different", "absent", "extra")}
        if any(final.values()):
            unexplained.append(f"final values of {target['node']} {target['filter']}: {final}")
    for row in _rows(scratch / "completeness", "missing"):
        at = row["origin"]
        if row["known"] and row["cause"] == "live" and not any(window.explains(row["node"], at) for window in windows):
            unexplained.append(f"{row['node']} lost an update of {row['topic']} at {at:%H:%M:%S.%f} while it was live")
    epochs = _rows(scratch / "snapshots", "snapshots")
    for number, row in enumerate(epochs):
        first = not number or (row["node"], row["node_epoch"]) != tuple(
            epochs[number - 1][name] for name in ("node", "node_epoch")
        )
        if first or any(window.explains(row["node"], row["begin"]) for window in windows):
            continue
        unexplained.append(f"an epoch of {row['node']} began at {row['begin']:%H:%M:%S.%f} without a fault")
    stalled = _rows(scratch / "stalls", "stalls")
    for row in stalled:
        if not any(window.explains(row["node"], row["first_lacking"]) for window in windows):
            at = f"{row['first_lacking']:%H:%M:%S.%f}"
            unexplained.append(f"{row['topic']} stalled at {row['node']} from {at} on without a fault")
    causes: Counter[str] = Counter()
    for target in completeness["targets"]:
        causes.update((target["stamped"] or target["unstamped"])["causes"])
    figures = {
        "missing_by_cause": ", ".join(f"{cause} {number}" for cause, number in causes.items() if number),
        "epochs": len(epochs),
        "tear_downs": sum(row["tear_downs"] for row in epochs),
        "stalled_topics": len(stalled),
        "missing_at_least": sum(
            (each["unstamped"] or {}).get("missing_at_least", 0) for each in completeness["targets"]
        ),
    }
    assert snapshots["report"] == "snapshots"
    assert stalls["report"] == "stalls"
    return figures, unexplained


def _report(name: str, directories: Sequence[Path], scratch: Path) -> Any:
    target = scratch / name
    command = [sys.executable, "-m", "fanout", "report", name, *map(str, directories), "--master", "local[2]"]
    command += ["--settle", str(_SETTLE_S), "--json", str(target.with_suffix(".json")), "--parquet", str(target)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_REPORT_S, check=False)
    if answer.returncode:
        raise RuntimeError(f"fanout report {name} ended with {answer.returncode}: {answer.stderr[-2000:]}")
    return json.loads(target.with_suffix(".json").read_text())


def _rows(directory: Path, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(directory / table, format="parquet").to_table().to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, datetime) and value.tzinfo is None:
                row[name] = value.replace(tzinfo=UTC)
    times = ("begin", "first_lacking", "origin")
    return sorted(rows, key=lambda row: (row["node"], str(next(row[name] for name in times if name in row))))
