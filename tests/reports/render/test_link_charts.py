"""Completeness over time as a chart."""

from __future__ import annotations

import re
from datetime import timedelta

from fanout.reports.render.link_charts import ROWS_MAX, strips
from fanout.reports.values.document import CompletenessPoint, CompletenessSection, CompletenessSeries, Outage
from tests.reports.documents import BEGIN, HOSTILE


def series(node: str, *missing: int) -> CompletenessSeries:
    """Return windows of ten updates, of which so many are missing."""
    points = tuple(
        CompletenessPoint(at=BEGIN + timedelta(seconds=5 * number), expected=10, missing=lost, unknown=0)
        for number, lost in enumerate(missing)
    )
    return CompletenessSeries(node=node, link="up", points=points)


def test_each_window_has_a_box_in_the_colour_of_its_share() -> None:
    """And says its figures; names from logs are escaped."""
    away = Outage(node="edge", link="up", begin=BEGIN + timedelta(seconds=5), end=None)
    section = CompletenessSection(window_s=5, series=(series("edge", 0, 5, 0), series(HOSTILE, 1)))
    assert strips(section, outages=[away]).count('class="outage"') == 1
    assert "not back yet" in strips(section, outages=[away])
    drawn = strips(section)
    assert drawn.count("<rect") == 4
    assert [drawn.count(f'class="heat-{step}"') for step in (0, 4, 5)] == [2, 1, 1]
    assert "50.0 % of 10, 5 missing, 0 unknown" in drawn.replace("\u00a0", " ")
    assert "<script>" not in drawn


def test_what_nobody_knows_of_is_not_drawn_as_missing() -> None:
    """A window has the colour of what is missing for sure, and a box of its own for what is in doubt."""
    doubtful = series("edge", 0, 1, 5, 0)
    points = tuple(
        point.model_copy(update={"unknown": unknown})
        for point, unknown in zip(doubtful.points, (2, 8, 2, 10), strict=True)
    )
    drawn = strips(CompletenessSection(window_s=5, series=(doubtful.model_copy(update={"points": points}),)))
    assert [drawn.count(f'class="{kind}"') for kind in ("unknown", "heat-0", "heat-4", "heat-5")] == [4, 1, 1, 1]
    heights = [int(height) for height in re.findall(r'class="unknown".*? height="(\d+)"', drawn)]
    assert heights == [3, 11, 3, 14]
    assert "≥ 80.0 % of 10, 0 missing, 2 unknown" in drawn.replace("\u00a0", " ")


def test_of_many_links_those_that_lack_most_are_drawn() -> None:
    """Nothing to get draws nothing."""
    many = tuple(series(f"edge-{number:03}", number == 77) for number in range(ROWS_MAX + 60))
    drawn = strips(CompletenessSection(window_s=5, series=many))
    assert drawn.count("<rect") == ROWS_MAX
    assert "edge-077" in drawn
    assert strips(CompletenessSection(window_s=5, series=())) == ""
