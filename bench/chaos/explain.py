"""Check that the reports on the nodes' logs explain the events by the injected faults.

Owns the judgement of `fanout report completeness`, `snapshots` and `stalls`, which run as their users run them. It must
not know the nodes, only their log directories and the time line of faults. An epoch or a stalled topic needs a fault. A
lost update of a live link has no excuse, because the log must show why a link could lose any.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from bench.chaos.plan import ABOVE, LEAF, NARROW, PRIMARY, Setting

__all__ = ["Evidence", "Window", "explain", "judge"]

_LOCAL_KINDS = ("cut witness",)
"""Faults of a node's own clients, which no link sees."""
_LIVE = "live"
"""The cause of losses that nothing in the log explains."""
_SETTLE_S = 1.0
_REPORT_S = 900

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """When a fault was there."""

    target: str
    kind: str
    begin: datetime
    end: datetime

    def explains(self, node: str, at: datetime, *, horizon_s: float) -> bool:
        """Return True if this fault, at a node or above it, explains an effect at the node.

        Args:
            node: The node.
            at: When it began.
            horizon_s: Time after its end for the node to notice it, or to connect again.
        """
        touched = self.kind not in _LOCAL_KINDS and self.target in (PRIMARY, node, ABOVE.get(node))
        return touched and self.begin <= at <= self.end + timedelta(seconds=horizon_s)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of the reports on one run."""

    documents: Sequence[Mapping[str, Any]]
    """Those of `completeness`: one for each reference."""
    missing: Sequence[Row]
    """Rows of the table `missing`, of all of them."""
    snapshots: Sequence[Row]
    """Rows of the table `snapshots`, by node and time."""
    stalls: Sequence[Row]
    """Rows of the table `stalls`."""


def explain(
    directories: Mapping[str, Path], windows: Sequence[Window], *, setting: Setting, scratch: Path
) -> tuple[dict[str, Any], list[str]]:
    """Run the reports over the logs of stopped nodes, and judge them.

    If a secondary stamps, its log and that of the node below get a report of their own too: by identity.

    Args:
        directories: The log directory of each node, by its name.
        windows: The faults.
        setting: The configuration of the run.
        scratch: For what the reports write.

    Returns:
        Figures, and what no fault explains.
    """
    everything = list(directories.values())
    parts = {"": (everything, ["--reference", "tap"] if setting.stamped else [])}
    if setting.stamped:
        parts["tree-"] = ([directories[ABOVE[LEAF]], directories[LEAF]], [])
    documents, missing, stalls = [], [], []
    for part, (logs, options) in parts.items():
        documents.append(_report("completeness", logs, scratch / f"{part}completeness", options))
        missing += _rows(scratch / f"{part}completeness", "missing")
        _report("stalls", logs, scratch / f"{part}stalls", options)
        stalls += _rows(scratch / f"{part}stalls", "stalls")
    _report("snapshots", everything, scratch / "snapshots", [])
    evidence = Evidence(documents, missing, _rows(scratch / "snapshots", "snapshots"), stalls)
    targets = [target for document in documents for target in document["targets"]]
    causes: Counter[str] = Counter()
    for target in targets:
        causes.update((target["stamped"] or target["unstamped"])["causes"])
    figures = {
        "missing_by_cause": ", ".join(f"{cause} {number}" for cause, number in causes.items() if number),
        "epochs": len(evidence.snapshots),
        "tear_downs": sum(row["tear_downs"] for row in evidence.snapshots),
        "stalled_topics": len(stalls),
        "missing": sum((target["stamped"] or target["unstamped"])["missing"] for target in targets),
    }
    return figures, judge(evidence, windows, setting=setting)


def judge(evidence: Evidence, windows: Sequence[Window], *, setting: Setting) -> list[str]:
    """Return what no fault explains.

    Args:
        evidence: Results of the reports.
        windows: The faults.
        setting: The configuration of the run, which says how long a loss may go unnoticed, and who may drop silently.
    """

    def is_explained(node: str, at: datetime) -> bool:
        return any(window.explains(node, at, horizon_s=setting.horizon_of(node)) for window in windows)

    # A short queue drops while the link is live, and so do narrowed rights; no audit sees what was not retained, or was
    # replaced meanwhile.
    may_drop = setting.max_queued_messages > 0 or any(window.kind == NARROW for window in windows)
    found: list[str] = []
    kills = Counter(window.target for window in windows if window.kind == "kill")
    for document in evidence.documents:
        for log in document["logs"]:
            if log["absent_rows"]:
                found.append(f"the log of {log['node']} lacks {log['absent_rows']} rows without a gap that says why")
            if log["gaps"] > kills[log["node"]]:
                found.append(f"the log of {log['node']} has {log['gaps']} gaps after {kills[log['node']]} kills")
        for target in document["targets"]:
            found += _judge_target(target, may_drop=may_drop)
    for row in evidence.missing:
        if row["known"] and row["cause"] == _LIVE:
            found.append(
                f"{row['node']} lost an update of {row['topic']} at {row['origin']:%H:%M:%S.%f} while it was live"
            )
    for before, row in pairwise(evidence.snapshots):
        of_process = (before["node"], before["node_epoch"]) == (row["node"], row["node_epoch"])  # not its first
        if of_process and not is_explained(row["node"], row["begin"]):
            found.append(f"an epoch of {row['node']} began at {row['begin']:%H:%M:%S.%f} without a fault")
    for row in evidence.stalls:
        if not is_explained(row["node"], row["first_lacking"]):
            at = f"{row['first_lacking']:%H:%M:%S.%f}"
            found.append(f"{row['topic']} stalled at {row['node']} from {at} on without a fault")
    return list(dict.fromkeys(found))  # a log is in the document of each reference


def _judge_target(target: Mapping[str, Any], *, may_drop: bool) -> list[str]:
    """Return what is wrong with a target in the end, and that it lost updates while live, where no row says so."""
    found = []
    place = f"{target['node']} {target['filter']}"
    final = {name: target["final"][name] for name in ("different", "absent", "extra")}
    if any(final.values()):
        found.append(f"final values of {place}: {final}")
    if target["unstamped"] is not None and not may_drop:
        lost = target["unstamped"]["causes"][_LIVE]
        if lost:
            found.append(f"{place} lost {lost} updates while it was live")
    return found


def _report(name: str, directories: Sequence[Path], target: Path, options: Sequence[str]) -> Any:
    command = [sys.executable, "-m", "fanout", "report", name, *map(str, directories), "--master", "local[2]"]
    command += ["--settle", str(_SETTLE_S), "--json", str(target.with_suffix(".json")), "--parquet", str(target)]
    command += options
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
