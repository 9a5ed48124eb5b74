"""A report on a terminal."""

from __future__ import annotations

from io import StringIO
from typing import Literal

import pytest
from rich.console import Console

from fanout.reports.render.terminal import print_report
from fanout.reports.values.document import Report
from tests.reports.documents import report, stamped, target, unstamped


def printed(made: Report, *, width: int) -> str:
    """Return what is printed on a terminal of this width, without colours."""
    out = StringIO()
    print_report(made, console=Console(file=out, width=width))
    return out.getvalue().replace("\u00a0", " ")


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    """However narrow, every figure of a selector is there whole, and no line is longer than the terminal."""
    figures = stamped(
        expected=12_345_678, missing=1_234, reobtained=2_345, pending=34_567, duplicated=4_567, stale=55_555
    )
    text = printed(report(target("a-rather-long-node-name", figures=figures)), width=width)
    for number in ("99.99 %", "12,345,678", "1,234", "2,345", "34,567", "4,567", "55,555"):
        assert number in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_narrow_terminals_join_node_and_link() -> None:
    """Below 120 columns one column names both."""
    assert "edge/up" in printed(report(), width=100)
    assert "edge/up" not in printed(report(), width=160)


def test_lists_are_cut_and_say_so() -> None:
    """A dozen entries are enough on a terminal; the note says of how many."""
    text = printed(report(), width=160)
    assert "12 of 1,234." in text


def test_of_a_thousand_selectors_the_worst_are_shown() -> None:
    """In their order, with the note where the others are; sixty are shown whole."""
    lacking = {4: 90, 700: 10, 999: 5}
    targets = [
        target(topic_filter=f"plant/{number:03}/#", figures=stamped(missing=lacking.get(number, 0)))
        for number in range(1000)
    ]
    text = printed(report(*targets), width=160)
    updates = text[text.index("Updates, one by one") : text.index("--json and --html have all")]
    shown = [line.split()[2] for line in updates.splitlines() if "plant/" in line]
    assert len(shown) == 60
    assert shown == sorted(shown)
    assert {"plant/004/#", "plant/700/#", "plant/999/#", "plant/000/#"} <= set(shown)
    assert "The worst 60 of 1,000;" in updates
    assert "--json and --html" not in printed(report(*targets[:60]), width=160)


def test_what_a_reader_must_know_stands_first() -> None:
    """Reference, basis and notices come before the first table, the verdict last."""
    text = printed(report(target(), fail_under=99), width=160)
    order = [
        text.index(part)
        for part in ("the only primary", "Stamped: exact", "! edge was looked at", "Updates, one by one")
    ]
    assert order == sorted(order)
    assert text.rstrip().endswith("FAILED: lowest: edge: 98.7 %; asked for at least 99 %")


@pytest.mark.parametrize(
    ("reference", "limit"),
    [
        ("union", "(the secondaries are compared with one another only: what none of them got cannot be seen)"),
        ("secondary", "(compared with hub, itself a secondary: what hub did not get cannot be seen)"),
        ("tap", ""),
        ("primary", ""),
    ],
)
def test_the_first_line_says_what_cannot_be_known(
    reference: Literal["primary", "tap", "secondary", "union"], limit: str
) -> None:
    """Without an independent reference; nothing stands before it."""
    first = printed(report(reference=reference), width=160).splitlines()[0]
    assert first == f"fanout report: completeness {limit}".rstrip()


def test_untrusted_names_cannot_control_the_terminal() -> None:
    """Escapes, markup and direction marks in topics are printed, not obeyed."""
    text = printed(report(target("[red]edge"), target(figures=unstamped()), hostile=True), width=160)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]edge" in text


def test_colours_are_used_only_on_a_terminal_that_has_them() -> None:
    """The same text is printed plain into a file."""
    out = StringIO()
    print_report(report(), console=Console(file=out, width=120, force_terminal=True, color_system="standard"))
    assert "\x1b[" in out.getvalue()
