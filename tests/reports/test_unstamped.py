"""Random logs without stamps of several primaries: no claim beyond the truth, and final values as in an oracle."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.figures.job import make_report
from fanout.reports.read.log_files import LogFiles
from fanout.reports.values.document import Parameters, Report, ReportName
from fanout.reports.values.figures import percent, time_of
from tests.reports.logs import SECOND, NodeLog, at, when, write
from tests.reports.oracle import NEVER
from tests.reports.unstamped_logs import Observed, random_cluster
from tests.reports.unstamped_oracle import Bounds, Members, Place, UnstampedOracle
from tests.support.examples import source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SETTLE_US = 2_500_000
VERDICTS = ("equal", "different", "absent", "extra", "pending", "unknown")


def check_truth(drawn: Drawn, report: Report) -> None:
    """Assert that no update is said to be missing that really came, or that came before the node held everything.

    Of each value so many were lost, at least. But for what waited on its way and lies in a gap of the node's log, where
    the reference is not one tap. On its way to the reference: when that logged it, the node had no gap any more. On
    its way to the node: when it was published, that had none yet.
    """
    assert report.missing is not None
    assert report.reference is not None
    sources = {
        (it.log.node, row["node_epoch"], row["log_pos"]): row for it in drawn.reference for row in it.log.updates
    }
    accused: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    for one in report.missing.listed:
        row = sources[one.primary, one.epoch, one.sequence]
        accused[one.node][row["topic"], row["digest"]] += 1
    for seen in drawn.observed:
        name = seen.link["name"]
        reference = [it for it in drawn.reference if it.link.get("name", name) == name]
        rows = [row for it in reference for row in it.log.updates if row["link"] == it.link.get("name", "")]
        live = {row["published"] for row in rows if row["phase"] == 0}
        values = {row["published"]: (row["topic"], row["digest"]) for row in (*rows, *seen.log.updates)}
        waited = {row["published"] for row in rows if row["waited_us"]}
        waited |= {row["published"] for row in rows if row["phase"] == 0 and was_away(seen, row["applied"])}
        waited -= {row["published"] for row in seen.log.updates if row["phase"] == 0}
        if report.reference.kind == "tap":
            waited.clear()
        lost = Counter(values[number] for number in (live - seen.came) | waited if number >= seen.first)
        assert accused[seen.log.node] <= lost, seen.log.node


def was_away(seen: Observed, at: datetime) -> bool:
    """Return whether a node's link was away when something was published, as far as clocks and delays tell."""
    spread, left, beat = timedelta(microseconds=SETTLE_US), None, None
    for row in seen.log.events:
        if row["link"] != seen.link["name"]:
            continue
        if row["event"] == "heartbeat":
            beat = row["at"]
        elif row["event"] == "state" and row["state"] == "down":
            left = beat or row["at"]
        elif row["event"] == "state" and row["state"] == "live" and left is not None:
            if left - spread <= at <= row["at"] + spread:
                return True
            left = None
    return left is not None and left - spread <= at  # that it came back may lie in the gap, too


def check_updates(report: Report, bounds: dict[Place, Bounds]) -> None:
    """Assert that every selector is there, with figures that add up."""
    targets = {(one.node, one.link, one.filter): one for one in report.targets}
    assert targets.keys() == bounds.keys()
    for place, expected in bounds.items():
        target = targets[place]
        assert (target.basis, target.stamped) == ("unstamped", None), place
        assert (target.complete_at is not None) is expected.held, place
        figures = target.unstamped
        assert figures is not None
        parts = (figures.applied, figures.reobtained, figures.conflated, figures.missing, figures.unknown)
        assert figures.expected == sum(parts), place
        assert sum(figures.causes.model_dump().values()) == figures.missing, place


def check_finals(report: Report, bounds: dict[Place, Bounds]) -> None:
    """Assert that each topic's final value is judged as the oracle does."""
    for target in report.targets:
        place = (target.node, target.link, target.filter)
        counts = Counter(bounds[place].finals.values())
        judged = counts["equal"] + counts["different"] + counts["absent"] + counts["extra"]
        assert target.final is not None
        assert target.final.model_dump() == {name: counts[name] for name in VERDICTS} | {
            "equal_percent": None if counts["unknown"] else percent(counts["equal"], judged),
            "equal_percent_at_least": percent(counts["equal"], judged + counts["unknown"]),
        }, place
    assert report.differing is not None
    assert {((d.node, d.link, d.filter), d.topic): d.verdict for d in report.differing.listed} == {
        (place, topic): verdict
        for place, one in bounds.items()
        for topic, verdict in one.finals.items()
        if verdict in ("different", "absent", "extra")
    }


def check_convergence(report: Report, expected: dict[Any, Members], *, whole: bool) -> None:
    """Assert that every number of the sets is the oracle's."""
    assert report.convergence is not None
    assert report.convergence.window_s == 1
    apart: dict[Any, dict[str, int | None]] = {}
    assert len(report.convergence.sets) == len(expected)
    for one in report.convergence.sets:
        # The nodes of a set tell of which primary it is.
        (key,) = [
            key
            for key, members in expected.items()
            if key[:2] == (one.filter, one.exclude) and members.held.keys() == {member.node for member in one.members}
        ]
        members = expected[key]
        last_equal = None if members.last_equal_us is None else time_of(members.last_equal_us)
        assert (one.windows_compared, one.windows_equal, one.last_equal) == (
            members.compared,
            members.equal,
            last_equal,
        ), key
        counts = (one.equal, one.apart, one.pending, one.unknown)
        if not whole:
            assert counts == (None,) * 4
            continue
        assert counts == tuple(members.verdicts[name] for name in ("equal", "apart", "pending", "unknown")), key
        assert {m.node: (m.topics, int(m.digest or "", 16)) for m in one.members} == members.held, key
        apart |= {(one.filter, topic, frozenset(digests)): digests for topic, digests in members.apart.items()}
    if whole:
        assert report.convergence.apart is not None
        assert {
            (topic.filter, topic.topic, frozenset(value.node for value in topic.values)): {
                value.node: None if value.digest is None else int(value.digest, 16) for value in topic.values
            }
            for topic in report.convergence.apart.listed
        } == {
            key: {node: None if digest is None else digest % 2**64 for node, digest in digests.items()}
            for key, digests in apart.items()
        }


@dataclass
class Drawn:
    """Random logs, and what the oracle says of them."""

    seed: int
    reference: list[Observed]
    observed: list[Observed]
    logs: list[NodeLog]
    since_us: int = -NEVER
    until_us: int = NEVER
    bounds: dict[Place, Bounds] = field(default_factory=dict)
    sets: dict[Any, Members] = field(default_factory=dict)
    """By filter, excludes and primary."""

    @property
    def kinds(self) -> set[str]:
        """What there is of figures, causes and verdicts."""
        counted = Counter[str]()
        for one in self.bounds.values():
            counted += Counter(one.finals.values())
        for members in self.sets.values():
            counted += members.verdicts
        return set(counted)


def draw(kind: str, *, asked: bool, wanted: set[str]) -> Drawn:
    """Return random logs in which there is all that is wanted: others would prove little."""
    source = source_of(f"without stamps, {kind}")
    while True:
        seed = source.randrange(2**32)
        rng = random.Random(seed)
        drawn = Drawn(seed, *random_cluster(rng, kind=kind, nodes=18))
        if asked:
            drawn.since_us, drawn.until_us = sorted(rng.sample([at(second) for second in range(3, 57)], 2))
        for name in {seen.link["name"] for seen in drawn.observed}:
            sources = [seen for seen in drawn.reference if seen.link.get("name", name) == name]
            nodes = [seen for seen in drawn.observed if seen.link["name"] == name]
            oracle = UnstampedOracle(
                [(seen.log, seen.link or None) for seen in sources],
                [(seen.log, seen.link) for seen in nodes],
                union=kind == "union",
                settle_us=SETTLE_US,
                behind_max_us=4 * SECOND,
                since_us=drawn.since_us,
                until_us=drawn.until_us,
            )
            drawn.bounds |= oracle.bounds()
            drawn.sets |= {(*key, name): members for key, members in oracle.members(window_us=SECOND).items()}
        if drawn.kinds >= wanted:
            return drawn


def check_stalls(report: Report, drawn: Drawn) -> None:
    """Assert that no topic is called stalled whose newest settled update really came, early or late."""
    assert report.stalls is not None
    (hub,) = drawn.reference
    published = {(row["topic"], row["applied"]): row["published"] for row in hub.log.updates}
    came = {seen.log.node: seen.came for seen in drawn.observed}
    for one in report.stalls.topics.listed:
        assert published[one.topic, one.reference_newest] not in came[one.node], (one.node, one.topic)


JUDGED = {"equal", "different", "absent", "pending", "apart"}


@pytest.mark.parametrize(
    ("kind", "asked", "wanted"),
    [
        ("tap", False, JUDGED | {"extra"}),
        pytest.param("union", False, JUDGED, marks=pytest.mark.long),
        pytest.param("primary", True, set[str](), marks=pytest.mark.long),
    ],
)
def test_random_logs_without_stamps_give_what_the_oracle_says(
    engine: SparkSession, tmp_path: Path, kind: str, asked: bool, wanted: set[str]
) -> None:
    """Final values, sets and digests are the oracle's, and no update is missing that came.

    Each long run has other logs, of two primaries in one report, or with another window; a failure names the seed.
    """
    drawn = draw(kind, asked=asked, wanted=wanted)
    files = LogFiles.in_directories([write(tmp_path, drawn.logs)])
    parameters = Parameters(
        reference=None,
        settle_s=2.5,
        behind_max_s=4,
        depth=1,
        fail_under_percent=None,
        list_limit=100_000,
        since=when(drawn.since_us) if asked else None,
        until=when(drawn.until_us) if asked else None,
    )

    def section(name: ReportName) -> Report:
        return make_report(engine, files, name=name, parameters=parameters, progress=lambda stage: None)

    report = make_report(engine, files, name="completeness", parameters=parameters, progress=lambda stage: None)
    try:
        check_updates(report, drawn.bounds)
        check_truth(drawn, report)
        if asked:
            assert report.differing is None
            assert {target.final for target in report.targets} == {None}
        else:
            check_finals(report, drawn.bounds)
        check_convergence(section("convergence"), drawn.sets, whole=not asked)
        if kind == "primary":
            check_stalls(section("stalls"), drawn)
    except AssertionError as error:
        error.add_note(f"seed {drawn.seed}")
        raise
