"""The map of prefixes by node."""

from __future__ import annotations

import re

from fanout.reports.render.heat_map import heat_map
from fanout.reports.values.document import PrefixAtNode, PrefixNodes
from fanout.reports.values.figures import Listed, percent
from tests.reports.documents import HOSTILE


def figures(node: str, *, expected: int, missing: int = 0, unknown: int = 0, proved: bool = True) -> PrefixAtNode:
    """Return what a node has under a prefix."""
    return PrefixAtNode(
        node=node,
        expected=expected,
        missing=missing,
        unknown=unknown,
        complete_percent_at_least=percent(expected - missing - unknown, expected) if proved else None,
        complete_percent_at_most=percent(expected - missing, expected),
    )


def listed(prefixes: dict[str, list[PrefixAtNode]], *, total: int | None = None) -> Listed[PrefixNodes]:
    """Return a list, cut when `total` says so."""
    rows = tuple(PrefixNodes(prefix=prefix, nodes=tuple(nodes)) for prefix, nodes in prefixes.items())
    return Listed[PrefixNodes](total=len(rows) if total is None else total, listed=rows)


def cells(page: str) -> dict[str, list[tuple[str, str]]]:
    """Return (class, text) of the cells of each prefix."""
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    return {prefix: re.findall(r'<td(?: class="number ?(heat-\d)?"[^>]*)?>(.*?)</td>', row) for prefix, row in rows}


def test_the_worst_prefix_is_first() -> None:
    """Most missing, then most unknown, each with its figure; where nothing was expected of a node the cell is empty."""
    page = heat_map(
        listed(
            {
                "good": [figures("b", expected=10)],
                "doubt": [figures("a", expected=10, unknown=9), figures("b", expected=10)],
                "bad": [figures("a", expected=100, missing=19, unknown=1), figures("b", expected=10_000, missing=1)],
                "none": [figures("a", expected=0)],
            }
        )
    )
    assert list(cells(page)) == ["bad", "doubt", "good", "none"]
    assert cells(page)["bad"] == [("heat-5", "≥ 80.0\u00a0%, 1 unknown"), ("heat-1", "99.99\u00a0%")]
    assert cells(page)["good"] == [("", ""), ("heat-0", "100\u00a0%")]
    assert 'title="19 of 100 missing, 1 unknown"' in page
    assert '<td class="number unknown" title="0 of 10 missing, 9 unknown">≥ 10.0\u00a0%, 9 unknown</td>' in page
    assert "prefixes that miss most" not in page


def test_what_is_not_proved_is_a_bound_and_not_green() -> None:
    """Where the reference need not have seen every update, all of what it saw is no reason for the colour of all."""
    some, every = figures("b", expected=10, missing=5, proved=False), figures("a", expected=10, proved=False)
    page = heat_map(listed({"x": [every, some]}))
    assert cells(page)["x"] == [("", "≤ 100\u00a0%"), ("heat-5", "≤ 50.0\u00a0%")]
    assert 'title="5 of 10 missing, at least"' in page


def test_a_list_that_is_cut_is_told() -> None:
    """Prefixes are cut, never a node of one."""
    page = heat_map(listed({"x": [figures("a", expected=1), figures("b", expected=1)]}, total=1234))
    assert "The 1 of 1,234 prefixes that miss most updates." in page


def test_one_node_has_no_map_and_names_are_text() -> None:
    """A table says as much of one node; what publishers name a topic is never markup."""
    assert heat_map(listed({"x": [figures("a", expected=1)]})) == ""
    page = heat_map(listed({HOSTILE: [figures(HOSTILE, expected=1), figures("b", expected=1)]}))
    assert "<script" not in page
