"""A report's answers as Markdown, for a ticket or a chat."""

from __future__ import annotations

import re
from html import escape
from typing import Final

from fanout.errors import ReportError
from fanout.reports.render import answers
from fanout.reports.render.table import Table
from fanout.reports.render.wording import count, printable, threshold
from fanout.reports.values.document import Report

__all__ = ["render_markdown"]

_SPECIAL: Final = re.compile(r"([\\`*_\[\]|~@]|(?<=:)//)")
_ROWS_MAX: Final = 12
"""Rows of the list of topics."""


def render_markdown(report: Report) -> str:
    """Return the answers of a report, and what is missing by topic, as text that ends with a line feed.

    Raises:
        ReportError: The report has no answers.
    """
    summary = report.summary
    if summary is None:
        raise ReportError(
            f"the report on {report.report} has no answers to write as Markdown",
            hint="Make `fanout report summary`, `completeness` or `all`",
        )
    head, sentence = answers.headline(report, summary)
    parts = [f"**{head.text}** {_text(sentence)}", _text(answers.relative_to(report))]
    if report.notices:
        parts.append("\n".join(f"- {_text(printable(notice))}" for notice in report.notices))
    parts += [_table(table) for table in answers.answer_tables(report, summary)]
    parts.append(_text(answers.trend_line(summary).text))
    if report.verdict is not None:
        parts.append(f"**{'Passed' if report.verdict.passed else 'Failed'}**: {_text(threshold(report.verdict))}")
    if steps := answers.next_steps(report, summary):
        parts.append("What to do:\n\n" + "\n".join(f"- {_step(step)}" for step in steps))
    parts += [_table(topics) for topics in answers.topic_tables(report)]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rows = table.rows if table.total is None else table.rows[:_ROWS_MAX]
    lines = [
        _row([column.name for column in table.columns]),
        "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|",
        *(_row([cell.text for cell in row]) for row in rows),
    ]
    cut = table.total is not None and len(rows) < table.total
    note = f"\n\n{len(rows)} of {count(table.total)}" if cut else ""
    return f"**{_text(table.title)}**\n\n" + "\n".join(lines) + note


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(map(_text, texts)) + " |"


def _step(text: str) -> str:
    """Return a step, in which commands are code: in a piece of code nothing is taken for more than text either."""
    return _text(text).replace("\\`", "`")


def _text(text: str) -> str:
    """Return text of strangers with nothing in it that Markdown, or HTML in it, would take for more than text.

    At signs and the slashes of addresses too: a bare address becomes a link, and a bare name a mention.
    """
    return escape(_SPECIAL.sub(r"\\\1", " ".join(text.split())), quote=False)
