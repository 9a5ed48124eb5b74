"""A report as one HTML page that works from a file, by e-mail and under a strict Content Security Policy.

It has no script, refers to nothing outside itself, and holds the whole JSON. Names and topics come from
whoever may publish, so every text is escaped where it enters the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Final

from fanout.reports.render import answers, charts
from fanout.reports.render.heat_map import heat_map
from fanout.reports.render.link_charts import ROWS_MAX, strips, timeline
from fanout.reports.render.table import Cell, Head, Table
from fanout.reports.render.tables import tables_of
from fanout.reports.render.wording import (
    NOTHING,
    blind_spot,
    count,
    counted,
    facts,
    printable,
    reference_name,
    threshold,
)
from fanout.reports.values.document import Report
from fanout.reports.values.summary import Summary

__all__ = ["STYLE", "render_page"]

STYLE: Final = files("fanout.reports.render").joinpath("page.css").read_text(encoding="utf-8")
"""The style sheet, light and dark. Its hash stands in the page's Content Security Policy."""

_FOLDED = frozenset({"logs", "attempts", "missing", "members"})
"""Tables that are closed until asked for."""
_ROWS_OPEN_MAX: Final = 60
"""Maximum rows of an open table; a longer one is closed until the reader opens it."""
_BEHIND_CHART = frozenset({"prefixes"})
"""Tables that say no more than their chart, if there is one."""
_CONTENTS_MIN: Final = 10
"""Parts of a page that has a list of them."""
_LISTED_OPEN_MAX: Final = 12
"""Number of rows of a list that such a page shows; a longer one would push the next tables out of sight."""


def render_page(report: Report) -> str:
    """Return the page's HTML."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    tables = tables_of(report)
    crowded = len(tables) >= _CONTENTS_MIN
    if report.summary is None:
        head = [_limit(report), _verdict(report), _facts(report), _notices(report)]
        parts = [_part(table, _chart(report, table.key), crowded=crowded) for table in tables]
    else:
        head = [
            *_answers(report, report.summary),
            _verdict(report),
            _notices(report),
            "<h2>All figures</h2>",
            _facts(report),
        ]
        parts = [_part(table, _folded_chart(report, table.key), crowded=crowded, folded=True) for table in tables]
    body = [f"<h1>Replication report: {report.report}</h1>", *head, _contents(tables), *parts]
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
    name = "" if report.reference is None else f" compared with {reference_name(report.reference)}"
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
    text = f"{'Passed' if verdict.passed else 'Failed'}: {threshold(verdict)}"
    return f'<p class="verdict {"good" if verdict.passed else "bad"}">{escape(text)}</p>'


def _answers(report: Report, summary: Summary) -> list[str]:
    """Return the verdict, the pictures of time, the tables of the answers, the trend, what to do, and the topics."""
    head, sentence = answers.headline(report, summary)
    trend = answers.trend_line(summary)
    steps = "".join(f"<li>{escape(step)}</li>" for step in answers.next_steps(report, summary))
    topics = [replace(one, rows=one.rows[:_LISTED_OPEN_MAX]) for one in answers.topic_tables(report)]
    return [
        f'<p class="answer"><strong class="{head.tone}">{escape(head.text)}</strong> {escape(sentence)}</p>',
        f'<p class="dim">{escape(answers.relative_to(report))}</p>',
        *_over_time(report),
        *(_part(table, "", crowded=False, cards=True) for table in answers.answer_tables(report, summary)),
        f'<p class="{trend.tone or "plain"}">{escape(trend.text)}</p>',
        f"<h2>What to do</h2><ul>{steps}</ul>" if steps else "",
        *(_part(one, "", crowded=True) for one in topics),
    ]


def _over_time(report: Report) -> list[str]:
    """Return the pictures of time: what was missing in each window, and how late updates were."""
    pictures = (("Complete over time", _chart(report, "over-time")), ("Lag over time", _lag_over_time(report)))
    return [f"<h2>{title}</h2>{drawn}" for title, drawn in pictures if drawn]


def _contents(tables: list[Table]) -> str:
    """Return links to the parts of a page that has many."""
    if len(tables) < _CONTENTS_MIN:
        return ""
    entries = "".join(f'<li><a href="#{table.key}">{escape(table.title)}</a></li>' for table in tables)
    return f'<nav aria-label="Contents"><ul>{entries}</ul></nav>'


def _folded_chart(report: Report, key: str) -> str:
    """Return the chart above a table, on a page with the pictures of time above all tables."""
    match key:
        case "over-time":
            return ""
        case "propagation":
            return _lag_shares(report)
    return _chart(report, key)


def _chart(report: Report, key: str) -> str:
    """Return the chart above a table; an empty string for most."""
    match key:
        case "over-time":
            return _complete_over_time(report)
        case "prefixes":
            return "" if report.prefix_map is None else heat_map(report.prefix_map)
        case "propagation":
            return _lag_over_time(report) + _lag_shares(report)
        case "snapshots":
            return _timeline(report)
    return ""


def _part(table: Table, chart: str, *, crowded: bool, folded: bool = False, cards: bool = False) -> str:
    note = table.note
    if table.total is not None and len(table.rows) < table.total:
        note = f"{len(table.rows)} of {table.total:,}. {note}".strip()
    rows = _table(table, cards=cards)
    folded = folded or table.key in _FOLDED
    open_max = _LISTED_OPEN_MAX if crowded and table.total is not None else _ROWS_OPEN_MAX
    if (len(table.rows) > open_max or (chart and table.key in _BEHIND_CHART)) and not folded:
        rows = f'<details class="rows"><summary>{counted(len(table.rows), "row")}</summary>{rows}</details>'
    content = chart + rows + (f'<p class="note">{escape(note)}</p>' if note else "")
    heading = f"<h2>{escape(table.title)}</h2>"
    if folded:
        total = "" if table.total is None else f' <span class="dim">{count(table.total)}</span>'
        return f'<details id="{table.key}"><summary>{heading}{total}</summary>{content}</details>'
    return f'<section id="{table.key}">{heading}{content}</section>'


def _table(table: Table, *, cards: bool) -> str:
    """Return a table; one of `cards` shows each row as lines of name and value where the screen is narrow."""
    head = "".join(f'<th scope="col"{_class(column)}>{escape(column.name)}</th>' for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(_cell(*each, named=cards) for each in zip(table.columns, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    kind = "wide cards" if cards else "wide"
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(column: Head, cell: Cell, *, named: bool) -> str:
    name = f' data-name="{escape(column.name)}"' if named else ""
    empty = " data-empty" if named and cell.text == NOTHING else ""
    return f"<td{_class(column, cell)}{name}{empty}>{escape(cell.text)}</td>"


def _class(column: Head, cell: Cell | None = None) -> str:
    kind = "number" if column.numeric else "time" if column.name.endswith("(UTC)") else ""
    names = [name for name in (kind, cell.tone if cell else "") if name]
    return f' class="{" ".join(names)}"' if names else ""


def _legend(names: list[tuple[str, str]], *, lines: bool = False) -> str:
    """Return the legend of a chart: each colour with a piece of its bars or lines."""
    width, height = (18, 8) if lines else (11, 11)
    mark = '<path class="line {}" d="M1 4h16"/>' if lines else '<rect class="{}" width="11" height="11"/>'
    entries = "".join(
        f'<li><svg width="{width}" height="{height}" aria-hidden="true">{mark.format(kind)}</svg>{escape(name)}</li>'
        for kind, name in names
    )
    return f'<ul class="legend">{entries}</ul>'


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
    return _legend(kinds) + drawn + (f'<p class="note">{" ".join(said)}</p>' if said else "")


def _complete_over_time(report: Report) -> str:
    """Return the strip of each link, green where nothing is missing, with a line below it where the link was away."""
    if report.over_time is None or not (drawn := strips(report.over_time, outages=report.outages)):
        return ""
    kinds = [("heat-0", "all there"), ("heat-3", "some missing"), ("heat-5", "most missing"), ("unknown", "unknown")]
    return _legend([*kinds, ("outage", "link away")]) + drawn


def _lag_over_time(report: Report) -> str:
    """Return a chart of percentiles for each of the first links, the difference of the clocks taken out."""
    series = report.lag.over_time[: charts.CHARTS_MAX]
    if not series:
        return ""
    drawn = "".join(
        f"<div><h3>{escape(printable(f'{one.node}/{one.link}'))}</h3>"
        f"{charts.lag_lines(one, window_s=report.lag.window_s, outages=report.outages)}</div>"
        for one in series
    )
    more = len(report.lag.over_time) - len(series)
    left = f"; {more} more links are in the JSON" if more else ""
    return (
        _legend([("p50", "half within"), ("p99", "99 % within"), ("most", "longest")], lines=True)
        + f'<div class="charts">{drawn}</div>'
        + f'<p class="note">By the time of publishing (UTC), in windows of {report.lag.window_s:g} s{left}.</p>'
    )


def _lag_shares(report: Report) -> str:
    """Return the chart of whole distributions, which have the difference of the clocks in them."""
    lines = sorted(report.lag.propagation, key=lambda p: -p.lag.p99_us)[: charts.LINES_MAX]
    if not lines:
        return ""
    names = [(f"series-{i}", printable(f"{p.node}/{p.link} {p.filter}")) for i, p in enumerate(lines)]
    left = len(lines) < len(report.lag.propagation)
    cut = f'<p class="note">The {len(lines)} slowest of {count(len(report.lag.propagation))}.</p>' if left else ""
    title = "<h3>Share of updates that took less than a time, as the clocks say</h3>"
    return title + _legend(names, lines=True) + _wide(charts.cumulative_lines(lines)) + cut
