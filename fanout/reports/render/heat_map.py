"""Prefixes by node as a table of coloured cells: where updates are lacking, at a glance.

Every text is escaped here; colours come from the page's classes, and each cell says its share, so that nobody has to
tell colours apart.
"""

from __future__ import annotations

from html import escape
from typing import Final

from fanout.reports.render.wording import count, percentage, printable
from fanout.reports.values.document import CompletenessPoint, PrefixAtNode, PrefixNodes
from fanout.reports.values.figures import Listed, percent

__all__ = ["heat_map", "heat_step", "share_without"]

_STEPS: Final = (100.0, 99.99, 99.9, 99.0, 90.0)
"""The least shares of the classes `heat-0` to `heat-4`; what is below has `heat-5`."""


def heat_map(prefixes: Listed[PrefixNodes]) -> str:
    """Return the map of the listed prefixes, those that miss the largest share first; nothing for one node alone."""
    nodes = sorted({one.node for row in prefixes.listed for one in row.nodes})
    if len(nodes) < 2:
        return ""
    head = "".join(f'<th scope="col" class="number">{escape(printable(node))}</th>' for node in nodes)
    rows: list[tuple[float, float, str, str]] = []
    for row in prefixes.listed:
        by_node = {one.node: one for one in row.nodes}
        worst = min(share_without(one, one.missing) for one in row.nodes)
        least = min(share_without(one, one.missing + one.unknown) for one in row.nodes)
        cells = "".join(_cell(by_node[node]) if node in by_node else "<td></td>" for node in nodes)
        name = escape(printable(row.prefix))
        rows.append((worst, least, row.prefix, f'<tr><th scope="row">{name}</th>{cells}</tr>'))
    shown = "".join(row for *_, row in sorted(rows))
    cut = ""
    if len(rows) < prefixes.total:
        cut = f"The {count(len(rows))} of {count(prefixes.total)} prefixes that miss most updates. "
    return (
        f'<div class="wide"><table class="heat"><thead><tr><th scope="col">prefix</th>{head}</tr></thead>'
        f'<tbody>{shown}</tbody></table></div><p class="note">{cut}Share of the expected updates that each node has, '
        f"over its selectors. ≥: the cell says how many more are unknown, and has the colour of the missing ones. "
        f"≤: the reference need not have seen all. Empty: nothing was expected there.</p>"
    )


def heat_step(share: float) -> int:
    """Return the number of the class that colours a share in per cent."""
    return next((step for step, least in enumerate(_STEPS) if share >= least), len(_STEPS))


def share_without(one: PrefixAtNode | CompletenessPoint, lacking: int) -> float:
    """Return the share of the reference's updates without the lacking ones, in per cent; 100 if there are none."""
    share = percent(one.expected - lacking, one.expected)
    return 100.0 if share is None else share


def _cell(one: PrefixAtNode) -> str:
    at_most = share_without(one, one.missing)
    step = heat_step(at_most)
    is_bound = one.expected > 0 and one.complete_percent_at_least is None
    missing = f"{count(one.missing)} of {count(one.expected)} missing{', at least' if is_bound else ''}"
    unknown = f", {count(one.unknown)} unknown" if one.unknown else ""
    # Nothing shows that a bound, or what nobody knows of, is all: so the colour of all does not either.
    kind = f" heat-{step}" if step else "" if is_bound else " unknown" if unknown else " heat-0"
    share = f"≤ {percentage(at_most)}" if is_bound else percentage(at_most)
    if unknown and not is_bound:
        share = f"≥ {percentage(share_without(one, one.missing + one.unknown))}"
    return f'<td class="number{kind}" title="{missing}{unknown}">{escape(share + unknown)}</td>'
