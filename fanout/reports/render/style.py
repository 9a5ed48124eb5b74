"""The style sheet of the page, light and dark. Its hash stands in the page's Content Security Policy."""

from __future__ import annotations

from typing import Final

__all__ = ["STYLE"]

STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --text: #1c2430; --quiet: #5b6675; --line: #dfe4ea; --band: #f5f7f9;
  --good: #1a7f4b; --fair: #9a6700; --bad: #c62839; --notice: #fff6dd; --notice-line: #e0b84c;
  --applied: #4c9f70; --wait: #b9c2cc; --doubt: #e0a526; --lost: #d1344b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181d; --text: #e3e8ee; --quiet: #98a4b3; --line: #2c343d; --band: #1b2127;
    --good: #57c785; --fair: #e3b341; --bad: #ff7b86; --notice: #2c2611; --notice-line: #8a6d1f;
    --applied: #4fae7b; --wait: #55606c; --doubt: #d8a032; --lost: #ef5d70;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 75rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 .75rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: .9rem; margin: 0 0 .25rem; font-weight: 600; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 0 1rem; }
dt { color: var(--quiet); } dd { margin: 0; }
.answer { font-size: 1.3rem; margin: .25rem 0; } .answer strong { margin-right: .35rem; }
.notices { background: var(--notice); border-left: 4px solid var(--notice-line); padding: .5rem .9rem; margin: 1rem 0; }
.notices p { margin: .2rem 0; }
.verdict { font-weight: 600; padding: .5rem .9rem; border: 2px solid currentColor; border-radius: .5rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0; margin: 1.25rem 0 0;
  font-size: .85rem; } a { color: inherit; text-decoration-color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .28rem .8rem .28rem 0; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 500; vertical-align: bottom; }
td { overflow-wrap: break-word; min-width: 5.5rem; max-width: 32rem; }
td.number { min-width: 0; }
.number { text-align: right; white-space: nowrap; }
.time { white-space: nowrap; }
th.number { white-space: normal; }
.good { color: var(--good); } .fair { color: var(--fair); } .bad { color: var(--bad); font-weight: 600; }
.heat td { border: 2px solid var(--page); padding: .28rem .6rem; min-width: 5rem; } .heat th[scope="row"] {
  color: inherit; font-weight: 400; overflow-wrap: anywhere; min-width: 8rem; }
.heat .unknown { --heat: rgba(224, 165, 38, .3); }
.heat-0 { --heat: rgba(76, 159, 112, .22); } .heat-1 { --heat: rgba(209, 52, 75, .12); }
.heat-2 { --heat: rgba(209, 52, 75, .24); } .heat-3 { --heat: rgba(209, 52, 75, .38); }
.heat-4 { --heat: rgba(209, 52, 75, .55); } .heat-5 { --heat: rgba(209, 52, 75, .75); }
td[class*="heat-"], .heat td.unknown { background: var(--heat); } rect[class*="heat-"] { fill: var(--heat); }
.dim { color: var(--quiet); }
.note { color: var(--quiet); font-size: .85rem; margin: .35rem 0 0; max-width: 60rem; }
details { margin-top: 2.25rem; } details h2 { margin-top: 0; display: inline; } summary { cursor: pointer; }
svg { max-width: 100%; height: auto; display: block; }
.chart { overflow-x: auto; } .chart svg { min-width: 40rem; }
.lanes { display: grid; grid-template-columns: minmax(0, max-content) minmax(60%, 1fr); gap: .1rem .6rem;
  font-size: .8rem; }
.lanes span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.lanes svg { width: 100%; height: 18px; } .lanes rect { shape-rendering: crispEdges; }
.lanes p { grid-column: -2; display: flex; justify-content: space-between; margin: 0; color: var(--quiet); }
details.rows { margin: .6rem 0 0; }
svg text { fill: currentColor; font-size: 12px; font-family: inherit; }
svg .tick { fill: var(--quiet); font-size: 11px; }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.applied { fill: var(--applied); }
.pending { fill: var(--wait); } .unknown { fill: var(--doubt); } .different { fill: var(--lost); }
.outage { fill: var(--text); } .band { opacity: .13; }
.p50 { stroke: var(--applied); } .p99 { stroke: var(--doubt); } .most { stroke: var(--lost); }
.series-0 { stroke: #4c9f70; } .series-1 { stroke: #3f88c5; } .series-2 { stroke: #d9772b; } .series-3 {
stroke: #8e6cc0; } .series-4 { stroke: #d1344b; } .series-5 { stroke: #e0a526; } .series-6 { stroke: #1d9aa8;
} .series-7 { stroke: #8a939e; } .legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem
1.1rem; padding: 0; margin: .4rem 0; font-size: .85rem; } .legend svg { display: inline-block; vertical-align:
-1px; margin-right: .35rem; } .charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem,
1fr)); gap: 1rem; } @media print {
  body { max-width: none; } details[open] summary { display: none; } .wide, .chart { overflow: visible; }
}
@media (max-width: 40rem) {
  body { padding: 1rem .75rem 2rem; } dl { grid-template-columns: 1fr; } dt { margin-top: .35rem; }
  .lanes { grid-template-columns: 100%; } .lanes > span { margin-top: .2rem; }
  .chart svg { min-width: 32rem; } .cards table, .cards tbody { display: block; } .cards thead { display: none; }
  .cards tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line); }
  .cards td, .cards td.number { display: flex; justify-content: space-between; gap: 1rem; max-width: none;
    padding: .1rem 0; border: 0; text-align: right; white-space: normal; } .cards td:first-child { font-weight: 600; }
  .cards td[data-empty] { display: none; }
  .cards td::before { content: attr(data-name); color: var(--quiet); font-weight: 400; text-align: left; flex: none; }
}
"""
