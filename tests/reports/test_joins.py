"""No join multiplies rows: whatever a join of a report takes to have one row for each key has one.

Every join that the source of the reports has is made here, over logs with something for each, and looked at as it is
made. One that is written anew and not reached fails as one does whose other side has a key twice.
"""

from __future__ import annotations

import ast
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fanout.reports
from fanout.reports.compare import convergence as convergence_transforms
from fanout.reports.compare import stalls as stalls_transforms
from fanout.reports.compare import traffic as traffic_transforms
from fanout.reports.figures import snapshots, topic_states
from fanout.reports.figures.job import make_report
from fanout.reports.read import rows
from fanout.reports.read.log_files import LogFiles
from fanout.reports.values.document import Parameters
from tests.reports.frames import assert_unique
from tests.reports.logs import NodeLog, at, selector, when, write
from tests.reports.random_logs import random_hub, random_secondary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SOURCES = Path(fanout.reports.__file__).parent
Site = tuple[str, int]
"""A join of the source: its file and line."""

KEYS: dict[tuple[str, ...], tuple[str, ...]] = {
    # Each of these gives a row to several: a row of a log to every group or target that it is of.
    ("source_rows", "node", "link"): ("node", "link", "group"),
    ("reference_topics", "node", "link"): ("node", "link", "group", "span"),
    ("count_topics", "node", "link"): ("node", "link", "group"),
    ("lacking_updates", "group", "topic"): ("group", "topic", "target"),
    ("skips_of_targets", "node", "link"): ("node", "link", "target"),
    ("digest_points", "node", "link"): ("node", "link", "selector"),
}
"""By function and key of a join, what tells the rows of its other side apart where the key alone does not."""


def joins() -> Iterator[Site]:
    """Yield every join of data frames in the source of the reports; those of texts are methods of literals."""
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            of_text = isinstance(node.func.value, ast.Constant)
            if node.func.attr == "crossJoin" or (node.func.attr == "join" and not of_text):
                assert node.func.end_lineno is not None
                yield str(path.relative_to(SOURCES)), node.func.end_lineno


@pytest.fixture
def made(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> dict[Site, int]:
    """The joins that were made, each with how many rows its other side had; all were found to multiply none."""
    found: dict[Site, int] = {}
    frames = type(spark.range(0))
    join, cross_join = frames.join, frames.crossJoin

    def look(other: DataFrame, key: tuple[str, ...], *, how: str) -> None:
        caller = sys._getframe(2)
        file = Path(caller.f_code.co_filename)
        if SOURCES not in file.parents:
            return
        site = (str(file.relative_to(SOURCES)), caller.f_lineno)
        if found.get(site):  # each look runs the plan of the frame: once for each join, with rows in it
            return
        if how == "left_semi":  # adds no row, however often a key is there
            found[site] = other.count()
        else:
            found[site] = assert_unique(other, *KEYS.get((caller.f_code.co_name, *key), key))

    def joining(self: DataFrame, other: DataFrame, on: Any = None, how: Any = None) -> DataFrame:
        look(other, (on,) if isinstance(on, str) else tuple(on), how=how)
        return join(self, other, on=on, how=how)

    def crossing(self: DataFrame, other: DataFrame) -> DataFrame:
        look(other, (), how="cross")
        return cross_join(self, other)

    monkeypatch.setattr(frames, "join", joining)
    monkeypatch.setattr(frames, "crossJoin", crossing)
    return found


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """Frames that no join takes as its other side, by function: each is looked at for the key that it promises."""
    keys: dict[str, tuple[str, ...]] = {}

    def watch(module: Any, name: str, *key: str) -> None:
        original = getattr(module, name)

        def checking(*arguments: Any, **keywords: Any) -> DataFrame:
            frame: DataFrame = original(*arguments, **keywords)
            if assert_unique(frame, *key):
                keys[name] = key
            return frame

        monkeypatch.setattr(module, name, checking)

    watch(snapshots, "link_periods", "node", "link", "node_epoch", "kind", "number")
    watch(topic_states, "reference_topics", "target", "topic")
    watch(topic_states, "node_topics", "target", "topic")
    watch(topic_states, "topic_states", "target", "topic")
    watch(convergence_transforms, "digest_points", "member", "window_us")
    watch(stalls_transforms, "lacking_updates", "target", "topic")
    watch(traffic_transforms, "count_topics", "group", "topic", "publisher")
    watch(traffic_transforms, "count_by_source", "group")
    watch(traffic_transforms, "count_by_prefix", "group", "prefix")
    return keys


def logs() -> list[NodeLog]:
    """Return a primary, secondaries with faults of which one brought no stamps, and one below the first."""
    rng = random.Random(23)
    hub = random_hub(rng, updates=150)
    nodes = [random_secondary(rng, number, hub) for number in (2, 3, 4)]
    for row in nodes[2].updates:
        row.update(stamp_primary=None, stamp_epoch=None, sequence=None, origin=None)
    below = NodeLog("below")
    below.start(at(0), {"name": "up", "primary": ["mqtt://edge"], "selectors": [selector("#")]})
    below.event("state", at(1), link="up", state="snapshot", detail=f'{{"primary_node": "{nodes[0].node}"}}')
    below.ready(at(2), "up", "#")
    for row in nodes[0].updates[::2]:
        below.apply(row, link="up", selector="#")
    told = {"reason": "packet_too_large", "messages": 1, "topics": ["a"], "first_us": at(30), "last_us": at(31)}
    for node in (*nodes, below):
        node.event("skipped", at(31), link="up", detail=json.dumps(told))
        node.event("heartbeat", at(59), link="up", topics=1, digest=7, lag_us=1000)
        node.event("heartbeat", at(60), link="up", topics=1, digest=8, lag_us=1000)
    return [hub, *nodes, below]


def test_no_join_multiplies_rows(
    spark: SparkSession,
    tmp_path: Path,
    made: dict[Site, int],
    grouped: dict[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keys of all joins are unique where they have to be, and every join that the source has was made."""
    monkeypatch.setattr(rows, "LOOKED_UP_MIN", 1)  # fewer are no join
    files = LogFiles.in_directories([write(tmp_path, logs())])
    asked = {"reference": None, "settle_s": 1.0, "depth": 2, "fail_under_percent": None, "list_limit": 50}
    make_report(spark, files, name="all", parameters=Parameters.model_validate(asked), progress=lambda stage: None)
    window = Parameters.model_validate(asked | {"until": when(at(40))})
    make_report(spark, files, name="stalls", parameters=window, progress=lambda stage: None)

    assert made.keys() == set(joins())
    assert [site for site, count in made.items() if not count] == []
    assert len(grouped) == 9
