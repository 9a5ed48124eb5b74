"""Form of a report's numbers, times and names for people; the same on a terminal and on a page."""

from __future__ import annotations

import math
from datetime import datetime
from functools import partial
from typing import Final

from fanout import escaping
from fanout.reports.values.document import Outage, ReferenceSummary, Report, Verdict
from fanout.reports.values.summary import MissingCause

__all__ = [
    "CAUSES",
    "NBSP",
    "NOTHING",
    "away_said",
    "blind_spot",
    "count",
    "counted",
    "duration",
    "facts",
    "percentage",
    "printable",
    "reference_name",
    "seconds",
    "span",
    "threshold",
    "timestamp",
]

NOTHING: Final = "–"
"""Stands for nothing, or for an unknown value."""

NBSP: Final = "\u00a0"
"""Between a number and its unit, so that no line ends there."""

CAUSES: Final[dict[MissingCause, str]] = {
    "restart": "node was down",
    "new_epoch": "session lost",
    "resumed": "queue cut while away",
    "away": "still away",
    "audit": "dropped while connected",
    "upstream": "lost by a node above",
    "skipped": "skipped by the node",
    "selector": "left out by the selector",
    "max_age": "left out for newer values",
    "hidden": "not readable by this user",
    "live": "unexplained",
}
"""Why updates are missing, in a few words."""

printable: Final = partial(escaping.printable, length_max=400)
"""Makes text of strangers fit for a cell, not longer than a line or two; the JSON has all of it."""


def count(number: int | None) -> str:
    """Return a count with its thousands apart."""
    return NOTHING if number is None else f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def percentage(share: float | None) -> str:
    """Return a share rounded down, with as many decimals as it takes to tell it from all: 100 % means all of it."""
    if share is None:
        return NOTHING
    if share in (0, 100):
        return f"{share:.0f}{NBSP}%"
    decimals = sum(share >= bound for bound in (99, 99.9, 99.99)) + 1
    # What is lost by computing the share must not cost a digit.
    scaled = min(math.floor(share * 10**decimals + 1e-9), 100 * 10**decimals - 1) / 10**decimals
    digits = f"{scaled:.{decimals}f}"
    while digits.endswith("0") and digits[-2] != ".":
        digits = digits[:-1]
    return f"{digits}{NBSP}%"


def duration(microseconds: int | None) -> str:
    """Return a length of time with three significant digits and its unit."""
    if microseconds is None:
        return NOTHING
    sign, size = ("-" if microseconds < 0 else ""), abs(microseconds)
    if size < 1_000:
        return f"{sign}{size}{NBSP}µs"
    if size < 999_500:
        return f"{sign}{_digits(size / 1_000)}{NBSP}ms"
    return f"{sign}{seconds(size / 1_000_000)}"


def seconds(length_s: float | None) -> str:
    """Return a length of time given in seconds."""
    if length_s is None:
        return NOTHING
    if length_s < 0.9995:
        return duration(round(length_s * 1_000_000))
    if length_s < 119.5:
        return f"{_digits(length_s)}{NBSP}s"
    whole = round(length_s)
    if whole < 7200:
        return f"{whole // 60}{NBSP}min{NBSP}{whole % 60}{NBSP}s"
    return f"{whole // 3600}{NBSP}h{NBSP}{whole % 3600 // 60}{NBSP}min"


def timestamp(time: datetime | None, *, decimals: int = 3) -> str:
    """Return a time in UTC, without naming the zone."""
    if time is None:
        return NOTHING
    fraction = f"{time.microsecond:06}"[:decimals]
    return f"{time:%Y-%m-%d}{NBSP}{time:%H:%M:%S}" + (f".{fraction}" if fraction else "")


def span(begin: datetime, end: datetime) -> str:
    """Return the two ends of a span in UTC, the second without a date when it is on the same day."""
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else timestamp(end, decimals=0)
    return f"{timestamp(begin, decimals=0)} to {until} UTC"


def away_said(outage: Outage) -> str:
    """Return in words when a link was away."""
    until = "not back yet" if outage.end is None else f"until {outage.end:%H:%M:%S}"
    return f"away from {timestamp(outage.begin, decimals=0)}, {until}"


def blind_spot(report: Report) -> str:
    """Return what a report cannot know since its reference is no independent one; empty when it is."""
    reference = report.reference
    if reference is None or reference.kind not in ("union", "secondary"):
        return ""
    if reference.kind == "union":
        return "the secondaries are compared with one another only: what none of them got cannot be seen"
    name = printable(reference.name)
    return f"compared with {name}, itself a secondary: what {name} did not get cannot be seen"


def reference_name(reference: ReferenceSummary) -> str:
    """Return what the secondaries are compared with."""
    return "all secondaries together" if reference.kind == "union" else printable(reference.name)


def threshold(verdict: Verdict) -> str:
    """Return why `--fail-under` was met or not."""
    return (
        f"{printable(verdict.because)}: {percentage(verdict.lowest_percent)}; asked for at least "
        f"{verdict.fail_under_percent:g}{NBSP}%"
    )


def facts(report: Report) -> list[tuple[str, str]]:
    """Return the head of a report as (name, text): reference and basis, time, input, lost rows."""
    found: list[tuple[str, str]] = []
    reference, window, inputs = report.reference, report.window, report.inputs
    if reference is not None:
        found.append(("compared with", f"{reference_name(reference)} ({reference.chosen})"))
    found.extend(("how", printable(statement)) for statement in report.basis)
    if (asked := _asked(report)) is not None:
        found.append(("asked for", asked))
    if window is not None:
        length_s = (window.end - window.begin).total_seconds()
        text = f"{span(window.begin, window.end)} ({seconds(length_s)})."
        if window.settled_until < window.end:
            text += f" Updates of the last {window.settle_horizon_s:g}{NBSP}s are too young to be judged."
        found.append(("time", text))
    files, directories = inputs.update_files + inputs.event_files, len(inputs.directories)
    found.append(
        (
            "read",
            f"{counted(inputs.updates, 'update')} and {counted(inputs.events, 'event')} of "
            f"{counted(len(report.logs), 'node')}, "
            f"in {counted(files, 'file')} of {directories} {'directory' if directories == 1 else 'directories'}",
        )
    )
    found.extend(
        (
            "lost",
            f"the reference's log lacks {count(held.absent)} of the sequences {held.first} to {held.last} of "
            f"{printable(held.primary)}, epoch {held.epoch}: nothing is known of them",
        )
        for held in (() if reference is None else reference.sequences)
        if held.absent
    )
    return found


def _asked(report: Report) -> str | None:
    """Return the window that a report was asked for, and what follows from that; None when it was for all."""
    since, until = report.parameters.since, report.parameters.until
    if since is None and until is None:
        return None
    text = "from the beginning" if since is None else f"from {timestamp(since, decimals=0)}"
    text += " UTC to the end" if until is None else f" until {timestamp(until, decimals=0)} UTC"
    text += ": what lies outside is in no figure."
    if until is not None and report.report in ("summary", "completeness", "all", "convergence"):
        text += " Final values are of the end of the logs, not of that time, and left out."
    return text


def _digits(number: float) -> str:
    return f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
