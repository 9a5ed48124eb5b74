"""A report as one HTML page that works from a file, by e-mail and under a strict Content Security Policy.

It has no script, refers to nothing outside itself, and holds the whole JSON. Names and topics come from
whoever may publish, so every text is escaped where it enters the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Final

from fanout.reports.render import charts
from fanout.reports.render.heat_map import heat_map
from fanout.reports.render.lanes import ROWS_MAX
from fanout.reports.render.over_time import strips
from fanout.reports.render.style import STYLE
from fanout.reports.render.table import Cell, Column, Table
from fanout.reports.render.tables import tables_of
from fanout.reports.render.timeline import timeline
from fanout.reports.render.wording import blind_spot, count, counted, duration, facts, percentage, printable
from fanout.reports.values.document import Report

__all__ = ["render_page"]

_FOLDED = frozenset({"logs", "attempts", "repeated", "missing", "members"})
"""Tables that are closed until asked for."""
_ROWS_OPEN_MAX: Final = 60
"""Rows of a table that are shown below what is above it; of more the reader has to ask for them."""
_BEHIND_CHART = frozenset({"prefixes"})
"""Tables of which the chart says as much, where there is one."""
_CONTENTS_MIN: Final = 10
"""Parts of a page that has a list of them."""
_LISTED_OPEN_MAX: Final = 12
"""Rows of a list that are shown on such a page, where a long one would push what follows out of sight."""


def render_page(report: Report) -> str:
    """Return the page's HTML."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    tables = tables_of(report)
    body = [
        f"<h1>Replication report: {report.report}</h1>",
        _limit(report),
        _verdict(report),
        _facts(report),
        _notices(report),
        _cards(report),
        _contents(tables),
        *(_part(table, _chart(report, table.key), crowded=len(tables) >= _CONTENTS_MIN) for table in tables),
    ]
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(_title(report))}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + f'\n<script type="application/json" id="report">{_embedded(report)}</script>\n</body></html>\n'
    )


def _title(report: Report) -> str:
    name = "" if report.reference is None else f" relative to {printable(report.reference.name)}"
    return f"fanout {report.report}{name}"


def _embedded(report: Report) -> str:
    """Return the JSON in ASCII, such that nothing in it can end the script element or begin a comment in it."""
    text = json.dumps(report.model_dump(mode="json"), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _facts(report: Report) -> str:
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(report))
    return f"<dl>{entries}</dl>"


def _limit(report: Report) -> str:
    """Return what the report cannot know, above everything else."""
    limit = blind_spot(report)
    return f'<div class="notices" role="note"><p>{escape(limit[:1].upper() + limit[1:])}.</p></div>' if limit else ""


def _notices(report: Report) -> str:
    if not report.notices:
        return ""
    return (
        '<div class="notices" role="note">'
        + "".join(f"<p>{escape(printable(notice))}</p>" for notice in report.notices)
        + "</div>"
    )


def _verdict(report: Report) -> str:
    verdict = report.verdict
    if verdict is None:
        return ""
    text = (
        f"{'Passed' if verdict.passed else 'Failed'}: {printable(verdict.because)}: "
        f"{percentage(verdict.lowest_percent)}; asked for at least {verdict.fail_under_percent:g} %"
    )
    return f'<p class="verdict {"good" if verdict.passed else "bad"}">{escape(text)}</p>'


def _cards(report: Report) -> str:
    """Return the headline of each node: its lowest share of updates and of final values."""
    cards: list[str] = []
    for node in dict.fromkeys(target.node for target in report.targets):
        targets = [target for target in report.targets if target.node == node]
        least = [t.stamped.complete_percent_at_least for t in targets if t.stamped is not None]
        most = [
            t.stamped.complete_percent_at_most
            for t in targets
            if t.stamped is not None and t.stamped.complete_percent_at_least is None
        ]
        stamped = [share for share in (*least, *most) if share is not None]
        unstamped = [
            t.unstamped.complete_percent_at_most
            for t in targets
            if t.unstamped is not None and t.unstamped.complete_percent_at_most is not None
        ]
        finals = [
            t.final.equal_percent_at_least
            for t in targets
            if t.final is not None and t.final.equal_percent_at_least is not None
        ]
        lost = sum(t.stamped.missing for t in targets if t.stamped is not None)
        lost_at_least = sum(t.unstamped.missing_at_least for t in targets if t.unstamped is not None)
        never = sum(target.complete_at is None for target in targets)
        of = "of" if len(targets) == 1 else f"lowest of {count(len(targets))} selectors, of"
        in_all = "" if len(targets) == 1 else " in all"
        lines: list[str] = []
        if stamped:
            exact = all(t.exact for t in targets if t.stamped is not None)
            lines.append(f"{of} updates (stamped), {'' if exact else 'at least '}{count(lost)} missing{in_all}")
        if unstamped:
            lines.append(f"{of} updates at most (unstamped), at least {count(lost_at_least)} missing{in_all}")
        if finals:
            lines.append(f"{of} final values: {percentage(min(finals))}")
        if never:
            lines.append(f"{counted(never, 'selector')} never held whole")
        lines += _asides(report, node)
        shares = stamped + unstamped
        lowest = min(shares) if shares else None
        proved = bool(stamped) and not unstamped and all(target.exact for target in targets)
        lossy = never > 0 or (lowest is not None and lowest < 100)
        tone = "bad" if lossy else "good" if proved else ""
        at_least = not unstamped and not any(share is not None for share in most)
        sign = "" if proved or lowest is None else "≥ " if at_least else "≤ "
        cards.append(
            f'<div class="card"><h3>{escape(printable(node))}</h3>'
            f'<div class="big {tone}">{escape(sign + percentage(lowest))}</div>'
            + "".join(f"<p>{escape(line)}</p>" for line in lines)
            + "</div>"
        )
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _asides(report: Report, node: str) -> list[str]:
    """Return what else a node's headline says: its stalled topics and its slowest link."""
    lines: list[str] = []
    stalls = [] if report.stalls is None else [one for one in report.stalls.targets if one.node == node]
    if stalled := sum(one.stalled for one in stalls):
        alone = sum(one.alone for one in stalls)
        lines.append(f"{counted(stalled, 'topic')} stalled, {count(alone)} of them here alone")
    elif stalls:
        unknown = sum(one.unknown for one in stalls)
        lines.append("no topic stalled" + (f", {count(unknown)} unknown" if unknown else ""))
    if found := [one.lag for one in report.lag.propagation if one.node == node]:
        of = "" if len(found) == 1 else ", of the slowest selector"
        apart = " (clocks differ)" if min(lag.least_us for lag in found) < 0 else ""
        lines.append(f"p99 of the propagation time{of}: {duration(max(lag.p99_us for lag in found))}{apart}")
    return lines


def _contents(tables: list[Table]) -> str:
    """Return links to the parts of a page that has many."""
    if len(tables) < _CONTENTS_MIN:
        return ""
    entries = "".join(f'<li><a href="#{table.key}">{escape(table.title)}</a></li>' for table in tables)
    return f'<nav aria-label="Contents"><ul>{entries}</ul></nav>'


def _chart(report: Report, key: str) -> str:
    """Return what is drawn above a table; an empty string for most."""
    match key:
        case "updates-stamped":
            return _update_chart(report)
        case "over-time":
            return "" if report.over_time is None else _wide(strips(report.over_time))
        case "final-values":
            return _final_chart(report)
        case "prefixes":
            return "" if report.prefix_map is None else heat_map(report.prefix_map)
        case "propagation":
            return _lag_charts(report)
        case "snapshots":
            return _timeline(report)
    return ""


def _part(table: Table, chart: str, *, crowded: bool) -> str:
    note = table.note
    if table.total is not None and len(table.rows) < table.total:
        note = f"{len(table.rows)} of {table.total:,}. {note}".strip()
    rows = _table(table)
    folded = table.key in _FOLDED
    open_max = _LISTED_OPEN_MAX if crowded and table.total is not None else _ROWS_OPEN_MAX
    if (len(table.rows) > open_max or (chart and table.key in _BEHIND_CHART)) and not folded:
        rows = f'<details class="rows"><summary>{counted(len(table.rows), "row")}</summary>{rows}</details>'
    content = chart + rows + (f'<p class="note">{escape(note)}</p>' if note else "")
    heading = f"<h2>{escape(table.title)}</h2>"
    if folded:
        total = "" if table.total is None else f' <span class="dim">{count(table.total)}</span>'
        return f'<details id="{table.key}"><summary>{heading}{total}</summary>{content}</details>'
    return f'<section id="{table.key}">{heading}{content}</section>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_class(column)}>{escape(column.name)}</th>' for column in table.columns)
    rows = "".join("<tr>" + "".join(map(_cell, table.columns, row)) + "</tr>" for row in table.rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(column: Column, cell: Cell) -> str:
    return f"<td{_class(column, cell)}>{escape(cell.text)}</td>"


def _class(column: Column, cell: Cell | None = None) -> str:
    kind = "number" if column.numeric else "time" if column.name.endswith("(UTC)") else ""
    names = [name for name in (kind, cell.tone if cell else "") if name]
    return f' class="{" ".join(names)}"' if names else ""


def _legend(names: list[tuple[str, str]]) -> str:
    entries = "".join(
        f'<li><svg width="11" height="11" aria-hidden="true"><rect class="{kind}" width="11" height="11"/></svg>'
        f"{escape(name)}</li>"
        for kind, name in names
    )
    return f'<ul class="legend">{entries}</ul>'


def _line_legend(names: list[tuple[str, str]]) -> str:
    entries = "".join(
        f'<li><svg width="18" height="8" aria-hidden="true"><path class="line {kind}" d="M1 4h16"/></svg>'
        f"{escape(name)}</li>"
        for kind, name in names
    )
    return f'<ul class="legend">{entries}</ul>'


def _update_chart(report: Report) -> str:
    return _bar_chart(charts.update_bars(report.targets), "Shares of the expected updates", len(report.targets))


def _final_chart(report: Report) -> str:
    return _bar_chart(charts.final_bars(report.targets), "Shares of the final values", len(report.targets))


def _bar_chart(found: list[charts.Bar], title: str, targets: int) -> str:
    if not found:
        return ""
    present = {name for bar in found for name, number in bar.pieces if number}
    kinds = [name for name, _ in found[0].pieces if name in present]
    cut = f'<p class="note">The {len(found)} worst of {count(targets)}.</p>' if len(found) == charts.BARS_MAX else ""
    return _legend([(kind, kind) for kind in kinds]) + _wide(charts.bars(found, title=title)) + cut


def _wide(chart: str) -> str:
    """Return a chart that is moved sideways where it has no room, instead of shrinking its text."""
    return f'<div class="chart">{chart}</div>'


def _timeline(report: Report) -> str:
    if report.snapshots is None or not (drawn := timeline(report.snapshots)):
        return ""
    kinds = [("pending", "until ready"), ("applied", "held"), ("unknown", "never ready"), ("different", "torn down")]
    epochs = report.snapshots.epochs
    listed = {(epoch.node, epoch.link) for epoch in epochs.listed}
    said: list[str] = []
    if len(epochs.listed) < epochs.total:
        said.append(f"The latest {count(len(epochs.listed))} of {count(epochs.total)} epochs.")
    if len(listed) > ROWS_MAX:
        said.append(f"The first {ROWS_MAX} of {count(len(listed))} links.")
    return _legend(kinds) + _wide(drawn) + (f'<p class="note">{" ".join(said)}</p>' if said else "")


def _lag_charts(report: Report) -> str:
    parts: list[str] = []
    series = report.lag.over_time[: charts.CHARTS_MAX]
    if series:
        parts.append(_line_legend([("p50", "p50"), ("p99", "p99"), ("most", "longest")]))
        drawn = "".join(
            f"<div><h3>{escape(printable(f'{one.node}/{one.link}'))}</h3>"
            f"{charts.lag_lines(one, window_s=report.lag.window_s)}</div>"
            for one in series
        )
        parts.append(f'<div class="charts">{drawn}</div>')
        more = len(report.lag.over_time) - len(series)
        parts.append(
            f'<p class="note">By the time of stamping (UTC), in windows of {report.lag.window_s:g} s'
            + (f"; {more} more links are in the JSON" if more else "")
            + ".</p>"
        )
    lines = sorted(report.lag.propagation, key=lambda p: -p.lag.p99_us)[: charts.LINES_MAX]
    if lines:
        parts.append("<h3>Share of updates that took less than a time</h3>")
        parts.append(
            _line_legend([(f"series-{i}", printable(f"{p.node}/{p.link} {p.filter}")) for i, p in enumerate(lines)])
        )
        parts.append(_wide(charts.cumulative_lines(lines)))
        if len(lines) < len(report.lag.propagation):
            parts.append(f'<p class="note">The {len(lines)} slowest of {count(len(report.lag.propagation))}.</p>')
    return "".join(parts)
