"""The map of prefixes by node."""

from __future__ import annotations

import re

from fanout.reports.document import PrefixFigures
from fanout.reports.figures import Listed, percent
from fanout.reports.render.heat_map import heat_map
from tests.reports.documents import HOSTILE


def figures(node: str, prefix: str, *, expected: int, missing: int = 0, unknown: int = 0) -> PrefixFigures:
    """Return an entry of the list of prefixes."""
    share = percent(expected - missing - unknown, expected)
    return PrefixFigures(
        node=node,
        link="up",
        filter="#",
        prefix=prefix,
        expected=expected,
        missing=missing,
        unknown=unknown,
        complete_percent_at_least=share,
    )


def listed(*entries: PrefixFigures, total: int | None = None) -> Listed[PrefixFigures]:
    """Return a list, cut when `total` says so."""
    return Listed[PrefixFigures](total=len(entries) if total is None else total, listed=entries)


def cells(page: str) -> dict[str, list[tuple[str, str]]]:
    """Return (class, text) of the cells of each prefix."""
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    return {prefix: re.findall(r'<td(?: class="number ?(heat-\d)?"[^>]*)?>(.*?)</td>', row) for prefix, row in rows}


def test_cells_add_up_selectors_and_the_worst_prefix_is_first() -> None:
    """Missing and unknown updates of a node's selectors are one share; what is not listed of a node stays empty."""
    page = heat_map(
        listed(
            figures("b", "good", expected=10),
            figures("a", "bad", expected=50, missing=4, unknown=1),
            figures("a", "bad", expected=50, missing=15),
            figures("b", "bad", expected=10_000, missing=1),
        )
    )
    assert list(cells(page)) == ["bad", "good"]
    assert cells(page)["bad"] == [("heat-5", "80.0\u00a0%"), ("heat-1", "99.99\u00a0%")]
    assert cells(page)["good"] == [("", ""), ("heat-0", "100\u00a0%")]
    assert 'title="20 of 100 lacking"' in page
    assert "Empty: nothing was expected there." in page


def test_what_is_not_proved_is_a_bound_and_not_green() -> None:
    """Where the reference need not have seen every update, all of what it saw is no reason for the colour of all."""
    some = figures("b", "x", expected=10, missing=5).model_copy(update={"complete_percent_at_least": None})
    every = figures("a", "x", expected=10).model_copy(update={"complete_percent_at_least": None})
    page = heat_map(listed(every, some))
    assert cells(page)["x"] == [("", "≤ 100\u00a0%"), ("heat-5", "≤ 50.0\u00a0%")]
    assert 'title="5 of 10 lacking, at least"' in page


def test_a_list_that_is_cut_is_told() -> None:
    """An empty cell may then be a good one."""
    page = heat_map(listed(figures("a", "x", expected=1), figures("b", "x", expected=1), total=7))
    assert "not among the 2 of 7 that lack most" in page


def test_one_node_has_no_map_and_names_are_text() -> None:
    """A table says as much of one node; what publishers name a topic is never markup."""
    assert heat_map(listed(figures("a", "x", expected=1))) == ""
    page = heat_map(listed(figures(HOSTILE, HOSTILE, expected=1), figures("b", HOSTILE, expected=1)))
    assert "<script" not in page
