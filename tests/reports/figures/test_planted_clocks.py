"""Lag in logs with planted clocks and delays: what the report says contains what was injected."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from fanout.reports.figures.job import make_report
from fanout.reports.read.log_files import LogFiles
from fanout.reports.render.lag_tables import slowest_prefixes
from fanout.reports.values.document import LagSection, Parameters, Report
from tests.reports.logs import SECOND, NodeLog, at, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UPDATES = 600
CLOCKS = {"ahead": 3 * SECOND, "behind": -3 * SECOND, "edge": 3 * SECOND, "leaf": -3 * SECOND, "blind": 40}
"""How far the clock of each node is ahead of the hub's, in microseconds."""
ABOVE = {"ahead": "hub", "behind": "hub", "edge": "hub", "leaf": "edge"}
"""The node that each is connected to; `blind` is behind a broker that says nothing of itself."""
HOPS = {"ahead": 700, "behind": 900, "edge": 1_200, "leaf": 2_500, "blind": 600}
"""The least time of the way to each node from the one above it, in microseconds."""


@pytest.fixture(scope="module")
def delays() -> Mapping[str, list[int]]:
    """The time of each update on the hop to each node: some of them took up to a second."""
    rng = random.Random(11)
    return {
        node: [
            least_us + round(rng.expovariate(1 / least_us)) + (rng.randrange(SECOND) if rng.random() < 0.03 else 0)
            for _ in range(UPDATES)
        ]
        for node, least_us in HOPS.items()
    }


@pytest.fixture(scope="module")
def true_lag(delays: Mapping[str, list[int]]) -> Mapping[str, list[int]]:
    """The time of each update from the hub to each node, sorted."""
    through = {"leaf": [sum(both) for both in zip(delays["edge"], delays["leaf"], strict=True)]}
    return {node: sorted(through.get(node, times)) for node, times in delays.items()}


@pytest.fixture(scope="module")
def lag(spark: SparkSession, delays: Mapping[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> LagSection:
    """What a report says of logs in which these clocks and delays were planted."""
    hub = NodeLog("hub", "primary")
    nodes = {node: NodeLog(node) for node in CLOCKS}
    for name, node in nodes.items():
        node.event("state", at(0), link="up", state="snapshot", detail=json.dumps({"primary_node": ABOVE.get(name)}))
        for lag_us in (9 * HOPS[name], 2 * HOPS[name], 5 * HOPS[name]):
            node.event("heartbeat", at(1), link="up", lag_us=lag_us)
    for number in range(UPDATES):
        row = hub.publish(at(2 + number / 20), number + 1, f"plant/{'slow' if number % 10 else 'quick'}", f"{number}")
        for name, node in nodes.items():
            took_us = delays[name][number] + (delays["edge"][number] if name == "leaf" else 0)
            node.apply(row, link="up", selector="plant/#", delay_us=took_us + CLOCKS[name])
            if number % 9 == 0:  # a retained copy says nothing of lag
                node.apply(row, link="up", selector="plant/#", delay_us=60 * SECOND, phase=1)
    files = LogFiles.in_directories([write(tmp_path_factory.mktemp("planted"), [hub, *nodes.values()])])
    parameters = Parameters(reference=None, settle_s=0, depth=2, fail_under_percent=None, list_limit=9)
    return make_report(spark, files, name="lag", parameters=parameters, progress=lambda stage: None).lag


def percentile(values: list[int], percent: int) -> int:
    """Return the value of this rank among sorted ones."""
    return values[-(-len(values) * percent // 100) - 1]


@pytest.mark.parametrize("node", ABOVE)
def test_the_difference_of_two_clocks_lies_between_its_bounds(lag: LagSection, node: str) -> None:
    """So it does in a chain, where the round trips of all hops count."""
    (clock,) = (clock for clock in lag.clocks if clock.node == node)
    assert clock.at_least_us is not None
    assert clock.at_least_us <= CLOCKS[node] <= clock.at_most_us
    hops = 2 * HOPS[node] + (2 * HOPS["edge"] if node == "leaf" else 0)
    assert clock.at_most_us - clock.at_least_us == hops


@pytest.mark.parametrize("node", ABOVE)
def test_corrected_times_contain_the_true_ones(lag: LagSection, true_lag: Mapping[str, list[int]], node: str) -> None:
    """Right to what is said of the clocks, and percentiles to 2.2 per cent more, however far the clocks are apart."""
    (found,) = (one for one in lag.propagation if one.node == node)
    times = true_lag[node]
    assert found.lag.mean_us == (sum(times) + UPDATES * CLOCKS[node]) // UPDATES
    corrected = found.corrected
    assert corrected is not None
    assert corrected.mean_us is not None
    assert corrected.uncertain_us <= HOPS[node] + (HOPS["edge"] if node == "leaf" else 0) + 50
    for true_us, said_us in ((sum(times) / UPDATES, corrected.mean_us), (times[-1], corrected.most_us)):
        assert abs(said_us - true_us) <= corrected.uncertain_us + 1
    for percent, said_us in ((50, corrected.p50_us), (95, corrected.p95_us), (99, corrected.p99_us)):
        true_us = percentile(times, percent)
        assert abs(said_us - true_us) <= corrected.uncertain_us + 0.022 * true_us, percent
    (series,) = (one for one in lag.over_time if one.node == node)
    assert max(point.corrected_most_us or 0 for point in series.points) == corrected.most_us
    for point in series.points:
        assert point.corrected_p50_us is not None
        assert point.corrected_p99_us is not None
        assert point.corrected_most_us is not None
        assert 0 < point.corrected_p50_us <= point.corrected_p99_us <= 1.03 * corrected.most_us


def test_without_heartbeats_to_the_node_that_stamped_nothing_is_corrected(lag: LagSection) -> None:
    """Then the difference is bounded from one side only, and stays in what is said."""
    (found,) = (one for one in lag.propagation if one.node == "blind")
    assert found.corrected is None
    assert found.lag.mean_us is not None
    (clock,) = (clock for clock in lag.clocks if clock.node == "blind")
    assert (clock.at_least_us, clock.estimate_us) == (None, None)
    (series,) = (one for one in lag.over_time if one.node == "blind")
    times = {(point.corrected_p50_us, point.corrected_p99_us, point.corrected_most_us) for point in series.points}
    assert times == {(None, None, None)}


def test_the_hops_of_a_chain_are_those_that_were_planted(lag: LagSection, delays: Mapping[str, list[int]]) -> None:
    """Each in the order of the way, and as late as it was; nodes below the one that stamps alone are no chain."""
    assert [(hop.from_node, hop.to_node, hop.stamped_by) for hop in lag.hops] == [
        ("hub", "edge", "hub"),
        ("edge", "leaf", "hub"),
    ]
    for hop in lag.hops:
        true_us = sum(delays[hop.to_node]) / UPDATES
        apart_us = CLOCKS[hop.to_node] - CLOCKS.get(hop.from_node, 0)
        assert abs(hop.mean_us - apart_us - true_us) <= 1
        assert (hop.updates_before, hop.updates) == (None if hop.from_node == "hub" else UPDATES, UPDATES)
        assert hop.corrected_mean_us is not None
        assert hop.uncertain_us == HOPS[hop.to_node]
        assert abs(hop.corrected_mean_us - true_us) <= hop.uncertain_us + 1


def test_the_slowest_prefixes_are_those_of_the_slowest_updates(
    lag: LagSection, true_lag: Mapping[str, list[int]]
) -> None:
    """A clock that is ahead makes no prefix slow: the clocks are taken out before prefixes are put in order."""
    assert lag.prefixes is not None
    assert (lag.prefixes.total, len(lag.prefixes.listed)) == (2 * len(CLOCKS), 9)
    table = slowest_prefixes(Report.model_construct(lag=lag))
    assert (len(table.rows), table.total) == (9, 10)
    late = [one for one in lag.prefixes.listed if one.corrected is not None]
    assert len(late) >= 2 * len(ABOVE) - 1
    shown = [one.corrected.p99_us for one in late if one.corrected is not None]
    assert all(after <= before * 1.05 + 10_000 for before, after in pairwise(shown))
    for one in late:
        assert one.corrected is not None
        assert one.corrected.p99_us <= 1.022 * true_lag[one.node][-1] + one.corrected.uncertain_us
