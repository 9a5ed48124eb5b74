"""The charts of the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import timedelta

import pytest

from fanout.reports.render.charts import cumulative_lines, lag_lines
from fanout.reports.values.document import LagPoint, LagSeries, Propagation
from tests.reports.documents import BEGIN, HOSTILE, lag_figures


def drawn(svg: str) -> ET.Element:
    """Return a chart as a tree: it is well-formed, and nothing in it is styled from inside."""
    assert "style=" not in svg
    return ET.fromstring(svg)


def series(*points: tuple[int, int]) -> LagSeries:
    """Return windows of ten seconds with (second, longest)."""
    return LagSeries(
        node="edge",
        link="up",
        stamped_by="hub",
        points=tuple(
            LagPoint(at=BEGIN + timedelta(seconds=s), rows=1, p50_us=most // 2, p95_us=most, p99_us=most, most_us=most)
            for s, most in points
        ),
    )


def test_lag_lines_break_where_windows_lack() -> None:
    """Windows without updates are not bridged, and a window alone is drawn as a dot."""
    svg = lag_lines(series((0, 2000), (10, 4000), (60, 8000)), window_s=10)
    path = next(p.attrib["d"] for p in drawn(svg).iter("path") if "p50" in p.attrib["class"])
    assert path.count("M") == 2
    assert path.endswith("h0.1")
    assert "10 ms" in svg


def test_lag_lines_over_days_name_the_days() -> None:
    """A time of day alone would be the same at both ends."""
    svg = lag_lines(series((0, 2000), (2 * 86_400, 4000)), window_s=86_400)
    assert f">{BEGIN:%m-%d %H:%M}<" in svg
    assert f">{BEGIN + timedelta(days=2):%m-%d %H:%M}<" in svg


def test_lag_lines_of_clocks_that_differ_are_linear() -> None:
    """Negative values stay visible; a single window is drawn too."""
    svg = lag_lines(series((0, -4_000_000), (10, 9_000_000)), window_s=10)
    assert "-5 s" in svg
    assert "10 s" in svg
    drawn(lag_lines(series((0, 0)), window_s=1))
    drawn(lag_lines(series((0, 1)), window_s=1))


@pytest.mark.parametrize("ahead_us", [3_000_000, -3_000_000])
def test_lag_lines_are_those_of_right_clocks(ahead_us: int) -> None:
    """Where the difference of the clocks is known it is not drawn."""
    right = series((0, 2000), (10, 4000), (60, 8000))
    points = tuple(
        point.model_copy(
            update={
                "p50_us": point.p50_us + ahead_us,
                "p99_us": point.p99_us + ahead_us,
                "most_us": point.most_us + ahead_us,
                "corrected_p50_us": point.p50_us,
                "corrected_p99_us": point.p99_us,
                "corrected_most_us": point.most_us,
            }
        )
        for point in right.points
    )
    assert lag_lines(right.model_copy(update={"points": points}), window_s=10) == lag_lines(right, window_s=10)


def test_cumulative_lines_end_at_the_whole() -> None:
    """Each line rises from nothing to all of its updates."""
    one = Propagation(node="edge", link="up", filter=HOSTILE, stamped_by="hub", lag=lag_figures())
    tree = drawn(cumulative_lines([one, one]))
    lines = [p for p in tree.iter("path") if "series-" in p.attrib["class"]]
    assert [line.attrib["class"] for line in lines] == ["line series-0", "line series-1"]
    assert lines[0].attrib["d"].startswith("M")
    assert lines[0].attrib["d"].endswith(" 8.0")
