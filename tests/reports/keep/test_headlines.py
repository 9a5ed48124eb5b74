"""What nodes and the page of `fanout report watch` show of the completeness of the last minutes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanout.reports.keep.headlines import headlines, with_completeness
from fanout.reports.values.document import Report, TargetReport
from tests.reports.documents import BEGIN, END, report, section_report, stamped, target, unstamped


def found(*targets: TargetReport) -> Report:
    """Return a report over these selectors in a window."""
    made = report(*targets)
    window = {"since": BEGIN, "until": END}
    return made.model_copy(update={"parameters": made.parameters.model_copy(update=window)})


def headline(*targets: TargetReport) -> dict[str, Any]:
    """Return the only link's headline."""
    (link,) = json.loads(headlines(found(*targets), computed=END))["links"]
    return dict(link)


def test_a_link_has_the_sums_of_its_selectors_and_their_lowest_share() -> None:
    """Each link is there once, with the window and when it was computed."""
    few, many = stamped(expected=10, missing=1, pending=2), stamped(expected=90, missing=1, unknown=1, reobtained=3)
    document = json.loads(headlines(found(target(figures=few), target(figures=many), target("other")), computed=END))
    edge, other = document.pop("links")
    assert document == {
        "version": 1,
        "computed": "2026-02-02T02:45:00+00:00",
        "since": "2026-02-02T02:40:00+00:00",
        "until": "2026-02-02T02:45:00+00:00",
    }
    assert edge == {
        "node": "edge",
        "link": "up",
        "basis": "stamped",
        "exact": True,
        "expected": 100,
        "applied": 9 + 85,
        "missing": 2,
        "unknown": 1,
        "pending": 2,
        "complete_percent_at_least": 90.0,
        "complete_percent_at_most": 90.0,
    }
    assert (other["node"], other["complete_percent_at_least"]) == ("other", 100.0)


@pytest.mark.parametrize(
    ("targets", "least", "most"),
    [
        ([target(figures=stamped(expected=100, missing=2, unknown=3))], 95, 98),
        ([target(figures=stamped(expected=100, missing=2)), target(figures=stamped(expected=0))], 98, 98),
        ([target(figures=stamped(expected=0))], None, None),
        ([target(figures=stamped(missing=2, unseen=None)), target(figures=stamped(missing=1))], None, 98),
        ([target(figures=stamped(), held=False), target(figures=stamped())], 0, 0),
    ],
    ids=["unknown", "nothing expected of one", "nothing expected", "reference without a count", "never held"],
)
def test_a_share_is_never_more_than_what_is_proved(
    targets: list[TargetReport], least: float | None, most: float | None
) -> None:
    """What nobody knows is null, and a selector that never held everything is none of it."""
    one = headline(*targets)
    assert (one["complete_percent_at_least"], one["complete_percent_at_most"]) == (least, most)


def test_without_stamps_only_losses_are_counted() -> None:
    """Nothing says which updates came, so nothing is applied, pending or at least complete."""
    assert headline(target(figures=unstamped(seen=50, missing=5), exact=False)) == {
        "node": "edge",
        "link": "up",
        "basis": "unstamped",
        "exact": False,
        "expected": 50,
        "applied": None,
        "missing": 5,
        "unknown": 0,
        "pending": None,
        "complete_percent_at_least": None,
        "complete_percent_at_most": 90.0,
    }


def test_the_last_result_has_the_figures_of_the_window_too() -> None:
    """Its own sections stay; without the figures it is as it was."""
    latest, last = section_report("snapshots"), found(target())
    assert with_completeness(latest, found=None) is latest
    both = with_completeness(latest, found=last)
    assert (both.targets, both.missing, both.window) == (last.targets, last.missing, last.window)
    assert (both.report, both.snapshots, both.inputs) == (latest.report, latest.snapshots, latest.inputs)
    assert both.basis[: len(latest.basis)] == latest.basis
    assert both.basis[len(latest.basis)].startswith("Completeness, of the window: ")
