"""Verdict of a report against a threshold: the lowest share of any selector decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fanout.reports.values.document import TargetReport, Verdict
from fanout.reports.values.figures import percent

__all__ = ["judge", "shares"]

_UNION_REFUSED: Final = (
    "the secondaries are compared with one another only, and what none of them may read is missing at none of them: "
    "give the log of a tap with a user of its own, or of the primary; --accept-union judges without"
)


def judge(
    targets: Sequence[TargetReport],
    *,
    fail_under_percent: float | None,
    left_out: Sequence[str] = (),
    cut_off: str = "",
    is_union: bool = False,
    accept_union: bool = False,
) -> Verdict | None:
    """Return whether every selector's shares of updates and of final values reach a threshold.

    Unknown updates count against a share, since nothing proves them. So do updates that the reference's log is known to
    lack, or has without a stamp. A selector that never held everything fails. Secondaries that are compared only with
    one another fail, because a topic that none of them may read is missing at none of them.

    Args:
        targets: The selectors.
        fail_under_percent: The threshold; None asks for no verdict.
        left_out: Links that are compared with nothing: the verdict says that it is not about them.
        cut_off: Why the reference does not show all of the window that was asked for; then nothing is proved of it.
        is_union: True if the secondaries are compared with one another.
        accept_union: True if they may pass then.
    """
    if fail_under_percent is None:
        return None
    refused = f"; {_UNION_REFUSED}" if is_union and not accept_union else ""
    lowest: tuple[float, str] | None = None
    for target in targets:
        place = f"{target.node}/{target.link} {target.filter}"
        for share, what in shares(target):
            if lowest is None or share < lowest[0]:
                lowest = (share, f"{what} of {place}")
    if lowest is None:
        return Verdict(
            fail_under_percent=fail_under_percent,
            lowest_percent=None,
            passed=False,
            because=f"nothing was old enough to be judged{refused}",
        )
    because = f"lowest: {lowest[1]}"
    if any(target.updates is not None and target.updates.unseen is None for target in targets):
        because += " (the reference need not have seen every update: more may be missing)"
    if left_out:
        because += f"; not compared, so not judged: {', '.join(left_out)}"
    if cut_off:
        because += f"; {cut_off}, so nothing is proved of that part of the window"
    return Verdict(
        fail_under_percent=fail_under_percent,
        lowest_percent=lowest[0],
        passed=lowest[0] >= fail_under_percent and not (cut_off or refused),
        because=because + refused,
    )


def shares(target: TargetReport) -> list[tuple[float, str]]:
    """Return the shares in per cent that a selector is judged by, each with what it is a share of."""
    if target.complete_at is None:
        return [(0.0, "never complete: the updates")]
    found: list[tuple[float, str]] = []
    if (exactly := target.updates) is not None:
        seen = exactly.expected - exactly.missing - exactly.unknown
        share, what = exactly.complete_percent_at_least, "the updates"
        if exactly.unseen is None:
            share, what = percent(seen, exactly.expected + exactly.unidentified), "the updates that the reference saw"
        if share is not None:
            found.append((share, what))
    if target.final is not None and target.final.equal_percent_at_least is not None:
        found.append((target.final.equal_percent_at_least, "the final values"))
    return found
