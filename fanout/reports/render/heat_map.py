"""Prefixes by node as a table of coloured cells: where updates are lacking, at a glance.

Every text is escaped here; colours come from the page's classes, and each cell says its share, so that nobody has to
tell colours apart.
"""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import Final

from fanout.reports.document import PrefixFigures
from fanout.reports.figures import Listed, percent
from fanout.reports.render.wording import count, percentage, printable

__all__ = ["heat_map", "heat_step"]

_STEPS: Final = (100.0, 99.99, 99.9, 99.0, 90.0)
"""The least shares of the classes `heat-0` to `heat-4`; what is below has `heat-5`."""


def heat_map(prefixes: Listed[PrefixFigures]) -> str:
    """Return the map of the listed prefixes, those that lack the largest share first; nothing for one node alone."""
    expected: defaultdict[tuple[str, str], int] = defaultdict(int)
    lacking: defaultdict[tuple[str, str], int] = defaultdict(int)
    unproved: set[tuple[str, str]] = set()
    for one in prefixes.listed:
        if one.expected and one.complete_percent_at_least is None:
            unproved.add((one.prefix, one.node))
        expected[one.prefix, one.node] += one.expected
        lacking[one.prefix, one.node] += one.missing + one.unknown
    nodes = sorted({node for _, node in expected})
    if len(nodes) < 2:
        return ""
    worst: dict[str, float] = {}
    for (prefix, node), number in expected.items():
        share = percent(number - lacking[prefix, node], number)
        worst[prefix] = min(worst.get(prefix, 100.0), 100.0 if share is None else share)
    head = "".join(f'<th scope="col" class="number">{escape(printable(node))}</th>' for node in nodes)
    rows = "".join(
        f'<tr><th scope="row">{escape(printable(prefix))}</th>'
        + "".join(
            _cell(expected.get((prefix, node)), lacking[prefix, node], proved=(prefix, node) not in unproved)
            for node in nodes
        )
        + "</tr>"
        for prefix in sorted(worst, key=lambda prefix: (worst[prefix], prefix))
    )
    empty = "Empty: nothing was expected there"
    if len(prefixes.listed) < prefixes.total:
        empty += f", or it is not among the {count(len(prefixes.listed))} of {count(prefixes.total)} that lack most"
    return (
        f'<div class="wide"><table class="heat"><thead><tr><th scope="col">prefix</th>{head}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><p class="note">Share of the expected updates that each node has, over '
        f"its selectors; what is unknown counts as lacking. ≤: the reference need not have seen all. {empty}.</p>"
    )


def heat_step(share: float | None) -> int:
    """Return the number of the class that colours a share in per cent; None, of nothing, is as good as all."""
    return next((step for step, least in enumerate(_STEPS) if share is None or share >= least), len(_STEPS))


def _cell(expected: int | None, lacking: int, *, proved: bool) -> str:
    if expected is None:
        return "<td></td>"
    share = percent(expected - lacking, expected)
    step = heat_step(share)
    said = f"{count(lacking)} of {count(expected)} lacking"
    if not proved:
        # Nothing shows that this is all, so the colour of all does not either.
        kind = f"number heat-{step}" if step else "number"
        return f'<td class="{kind}" title="{said}, at least">≤ {escape(percentage(share))}</td>'
    return f'<td class="number heat-{step}" title="{said}">{escape(percentage(share))}</td>'
