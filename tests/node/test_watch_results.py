"""The last result of `fanout report watch` in a node's `/v1/lag`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fanout.node.watch_results import WatchResults
from fanout.reports.keep.headlines import headlines
from fanout.reports.keep.keeper import NODE_COMPLETENESS, NODE_LAG, _latest_lag
from fanout.reports.values.document import LagPoint, LagSection, LagSeries
from tests.reports.documents import BEGIN, END, report, stamped, target, unstamped


def published(*nodes: str) -> str:
    """Return what a keeper publishes of links of these nodes."""
    points = tuple(
        LagPoint(at=BEGIN.replace(minute=minute), rows=minute, p50_us=-500, p95_us=2000, p99_us=3000, most_us=9000)
        for minute in (41, 42)
    )
    series = tuple(LagSeries(node=node, link="up", stamped_by="hub", points=points) for node in nodes)
    made = report().model_copy(update={"lag": LagSection(over_time=series)})
    return json.dumps({"version": 1, "links": _latest_lag(made)})


def test_a_node_shows_the_latest_minute_of_its_own_links(tmp_path: Path) -> None:
    """What the keeper writes is what the node reads, in seconds, of its own links; a replaced file is read again."""
    results = WatchResults(tmp_path, node="edge")
    assert results.lag() is None, "nothing was published yet"
    (tmp_path / NODE_LAG).write_text(published("edge", "other"))
    found = results.lag()
    assert found is not None
    (one,) = found
    assert (one.link, one.stamped_by, one.updates, one.minute) == ("up", "hub", 42, BEGIN.replace(minute=42))
    assert (one.p50_seconds, one.most_seconds) == (-0.0005, 0.009)
    assert results.lag() is found, "an unchanged file is not read again"
    (tmp_path / NODE_LAG).unlink()
    assert results.lag() is None
    (tmp_path / NODE_LAG).write_text(published("other"))
    assert results.lag() == ()


def test_a_node_shows_the_completeness_of_its_own_links(tmp_path: Path) -> None:
    """Of the last minutes that the keeper was asked for, beside the lag and apart from it."""
    results = WatchResults(tmp_path, node="edge")
    assert results.completeness() is None, "nothing was published yet"
    made = report(target(figures=stamped(missing=1, pending=4)), target("other", figures=unstamped()))
    parameters = made.parameters.model_copy(update={"since": BEGIN, "until": END})
    text = headlines(made.model_copy(update={"parameters": parameters}), computed=END.replace(minute=59))
    (tmp_path / NODE_COMPLETENESS).write_text(text)
    (one,) = results.completeness() or ()
    assert (one.link, one.basis, one.exact) == ("up", "stamped", True)
    assert (one.expected, one.applied, one.missing, one.unknown, one.pending) == (100, 99, 1, 0, 4)
    assert (one.complete_percent_at_least, one.complete_percent_at_most) == (99, 99)
    assert (one.since, one.until, one.computed) == (BEGIN, END, END.replace(minute=59))
    (other,) = WatchResults(tmp_path, node="other").completeness() or ()
    assert (other.basis, other.applied, other.pending, other.complete_percent_at_least) == (
        "unstamped",
        None,
        None,
        None,
    )
    assert results.lag() is None
    (tmp_path / NODE_COMPLETENESS).write_text(text.replace('"since"', '"from"'))
    assert results.completeness() is None, "what is not of the shape is no result"


ONE_LINK = {
    "node": "edge",
    "link": "up",
    "stamped_by": "hub",
    "minute_us": 0,
    "updates": 1,
    "p50_us": 1,
    "p95_us": 1,
    "p99_us": 1,
    "most_us": 1,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"version": 2, "links": []}',
        '{"version": 1, "links": [{"node": "edge"}]}',
        json.dumps({"version": 1, "links": [ONE_LINK | {"minute_us": 10**18}]}),
        json.dumps({"version": 1, "links": [ONE_LINK | {"minute_us": 10**30}]}),
        json.dumps({"version": 1, "links": [ONE_LINK | {"updates": -1}]}),
    ],
)
def test_what_cannot_be_read_is_no_result(tmp_path: Path, text: str) -> None:
    """A broken file never harms the node; the next whole one is read."""
    results = WatchResults(tmp_path, node="edge")
    (tmp_path / NODE_LAG).write_text(text)
    assert results.lag() is None
    (tmp_path / NODE_LAG).write_text(json.dumps({"version": 1, "links": [ONE_LINK]}) + "  ")
    assert len(results.lag() or ()) == 1


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Reading holds the event loop, so it is bounded."""
    (tmp_path / NODE_LAG).write_text(published("edge") + " " * 1024 * 1024)
    assert WatchResults(tmp_path, node="edge").lag() is None


def test_without_a_directory_there_is_none() -> None:
    """The configuration decides."""
    assert WatchResults(None, node="edge").lag() is None
    assert WatchResults(None, node="edge").completeness() is None
