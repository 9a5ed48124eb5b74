"""What nodes and the page of `fanout report watch` show of a report on completeness: a headline for each link.

Works on finished figures alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime
from typing import Any

from fanout.reports.values.document import Report, TargetReport

__all__ = ["headlines", "with_completeness"]


def headlines(report: Report, *, computed: datetime) -> str:
    """Return what nodes show in `/v1/lag`, as JSON; `fanout.node.watch_results` reads it.

    Args:
        report: A report on completeness of a window.
        computed: When it was made.
    """
    by_link: dict[tuple[str, str], list[TargetReport]] = defaultdict(list)
    for target in report.targets:
        by_link[target.node, target.link].append(target)
    since, until = report.parameters.since, report.parameters.until
    assert since is not None
    assert until is not None
    document = {
        "version": 1,
        "computed": computed.isoformat(),
        "since": since.isoformat(),
        "until": until.isoformat(),
        "links": [
            {"node": node, "link": link, **_headline(targets)} for (node, link), targets in sorted(by_link.items())
        ],
    }
    return json.dumps(document)


def with_completeness(latest: Report, *, found: Report | None) -> Report:
    """Return the last result of the kept tables with what is missing of the last minutes; None leaves it as it is."""
    if found is None:
        return latest
    sections = ("reference", "window", "notices", "targets", "over_time", "missing", "repeated")
    return latest.model_copy(
        update={name: getattr(found, name) for name in sections}
        | {"basis": (*latest.basis, *(f"Completeness, of the window: {statement}" for statement in found.basis))}
    )


def _headline(targets: list[TargetReport]) -> dict[str, Any]:
    """Return the figures of a link, over its selectors; the shares are those of the lowest."""
    exactly = [target.stamped for target in targets if target.stamped is not None]
    bounds = [target.unstamped for target in targets if target.unstamped is not None]
    least = [one.complete_percent_at_least for one in exactly if one.expected or one.unseen]
    least += [None for _ in bounds]  # nothing is proved without stamps
    most = [one.complete_percent_at_most for one in exactly] + [one.complete_percent_at_most for one in bounds]
    if any(target.complete_at is None for target in targets):  # nothing is expected of it, and yet it has nothing
        least = most = [0.0]
    known = [share for share in least if share is not None]
    return {
        "basis": targets[0].basis,
        "exact": all(target.exact for target in targets),
        "expected": sum(one.expected for one in exactly) + sum(one.reference_updates for one in bounds),
        "applied": None if bounds else sum(one.applied for one in exactly),
        "missing": sum(one.missing for one in exactly) + sum(one.missing_at_least for one in bounds),
        "unknown": sum(one.unknown for one in exactly) + sum(one.unknown for one in bounds),
        "pending": None if bounds else sum(one.pending for one in exactly),
        "complete_percent_at_least": min(known, default=None) if len(known) == len(least) else None,
        "complete_percent_at_most": min((share for share in most if share is not None), default=None),
    }
