"""Reports at sizes that break plans: ten million missing updates, and two nodes of 500 selectors each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic_logs import HUB, SECOND, T0, Ints, Log, Published, publish, write
from bench.synthetic_truth import differences, figures

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
SETTLE_US = 2 * SECOND
"""As `bench.report_run` has it."""


def primary(published: Published) -> Log:
    """Return the log of the node that published everything."""
    log = Log(HUB, "primary", 0, ())
    log.begin(T0)
    log.link_epoch = T0
    log.add(published, np.arange(len(published)), published.origin)
    log.event("stop", int(published.origin[-1]) + SECOND, link="")
    return log


def secondary(published: Published, node: str, filters: Sequence[str], *, got: Ints) -> Log:
    """Return the log of a node that got the updates at these positions, each a millisecond after it was published."""
    log = Log(node, "secondary", 0, tuple(filters))
    log.begin(T0 + 1000)
    log.connect(T0 + 100_000)
    log.complete(T0 + 500_000)
    log.add(published, got, published.origin[got] + 1000)
    log.event("heartbeat", int(published.origin[-1]) + SECOND, lag_us=1_500)
    log.stopped_us = int(published.origin[-1]) + 3 * SECOND
    log.event("stop", log.stopped_us, link="")
    return log


def make_report(published: Published, logs: Sequence[Log], place: Path) -> dict[str, Any]:
    """Return the JSON of the report on completeness; its JVM has the heap that a command gives it."""
    for log in logs:
        write(place / log.node, published, log)
    out = place / "out"
    out.mkdir()
    directories = [str(place / log.node) for log in logs]
    command = [sys.executable, "-m", "bench.report_run", "completeness", str(out), *directories]
    subprocess.run(command, cwd=ROOT, check=True, timeout=3000)
    document: dict[str, Any] = json.loads((out / "report.json").read_text())
    return document


def test_ten_million_missing_updates_are_counted(tmp_path: Path) -> None:
    """Of twelve million a node got each sixth: each figure is the truth, in a heap of a gigabyte."""
    published = publish(12_100_000, seed=5)
    logs = [primary(published)]
    logs.append(secondary(published, "starved", ["plant/#"], got=np.arange(0, len(published), 6)))
    document = make_report(published, logs, tmp_path)
    truth = figures(published, logs, settle_us=SETTLE_US)
    assert truth["missing"] > 10_000_000
    compared, wrong = differences(truth, document)
    assert wrong == []
    assert compared > 500


def test_five_hundred_selectors_are_told_apart(tmp_path: Path) -> None:
    """Each of two nodes takes the same 500 topics by a selector each, and lacks other updates of them."""
    published = publish(200_000, seed=6)
    filters = published.names[:500]
    wanted = published.topic < len(filters)
    position = np.arange(len(published))
    lost: dict[str, npt.NDArray[np.bool_]] = {"one": position % 7 == 0, "other": position % 11 == 0}
    logs = [primary(published)]
    logs += [secondary(published, node, filters, got=np.flatnonzero(wanted & ~lost[node])) for node in lost]
    document = make_report(published, logs, tmp_path)
    settled = wanted & (published.origin <= int(published.origin[-1]) + SECOND - SETTLE_US)
    said = {(one["node"], one["filter"]): one["stamped"] for one in document["targets"]}
    assert len(said) == 2 * len(filters)
    for node, missing in lost.items():
        expected = np.bincount(published.topic[settled], minlength=len(filters)).tolist()
        lacking = np.bincount(published.topic[settled & missing], minlength=len(filters)).tolist()
        assert [said[node, one]["expected"] for one in filters] == expected
        assert [said[node, one]["missing"] for one in filters] == lacking
        (summary,) = (one for one in document["summary"]["nodes"] if one["node"] == node)
        assert (summary["missing"], summary["unknown"]) == (sum(lacking), 0)
