"""Whether a node is ready, and why not: one table over the states of a link, and the node's own phase (core).

Owns the verdict and its words; `docs/reference/readiness.md` shows the table. It must not know HTTP, nor how a link
comes by its state. Nothing is kept here: that readiness is latched for an epoch is the doing of `fanout.link`, whose
state `LIVE` is left by session loss, stall or a lost connection only, and whose evidence is of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fanout.api.models import NodeState
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkStatus
from fanout.node.drain import NodePhase

__all__ = ["WAITS_FOR", "Verdict", "judge", "link_reasons", "reason_against"]

WAITS_FOR: Final[Mapping[LinkState, str | None]] = MappingProxyType(
    {
        LinkState.DOWN: "a connection to the primary",
        LinkState.CONNECTING: "the primary's answer",
        LinkState.SNAPSHOT: "the retained set",
        LinkState.PROVING: "evidence that the retained set is complete",
        LinkState.LIVE: None,
        LinkState.RESUMING: "what was pending in the resumed session",
        LinkState.VERIFYING: "an audit of what the session may have lost",
        LinkState.STALLED: "a heartbeat",
        LinkState.TEARING_DOWN: "the end of the tear-down",
    }
)
"""What a link waits for in each state before it can be ready; None in the one state in which it may be."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a node is ready."""

    state: NodeState
    """In one word."""
    reasons: tuple[str, ...]
    """Everything that is against it; empty when it is ready."""


def reason_against(status: LinkStatus) -> str | None:
    """Return why a link is not ready, for a person; None when it is.

    It holds no figure that counts on by itself: nodes below are told of each other reason.
    """
    waits_for = WAITS_FOR[status.state]
    if waits_for is not None:
        error = f": {status.last_error}" if status.last_error else ""
        state = status.state.value.replace("_", " ")
        if status.stale_reason is not None:
            return f"stale ({status.stale_reason}), {state}{error}"
        return f"{state}, waits for {waits_for}{error}"
    if not all(selector.complete for selector in status.selectors):
        return f"incomplete: a limit kept values out ({', '.join(status.short_by)})"
    if status.withheld is not None:
        return f"live, but {status.withheld}"
    return None


def link_reasons(links: Iterable[LinkStatus]) -> tuple[str, ...]:
    """Return what is against the links of a node, each with its name; empty when all are ready."""
    reasons = ((status.name, reason_against(status)) for status in links)
    return tuple(f"link {name} is {reason}" for name, reason in reasons if reason is not None)


def judge(phase: NodePhase, links: Iterable[LinkStatus], *, unserved: tuple[str, ...] = ()) -> Verdict:
    """Return whether a node is ready.

    Args:
        phase: Where the node is in its life.
        links: Its links.
        unserved: Why clients cannot be served by it, or by its workers; empty when they can.
    """
    own = () if phase is NodePhase.SERVING else (f"the node is {phase.value}",)
    reasons = (*own, *link_reasons(links), *unserved)
    if phase is NodePhase.DRAINING:
        return Verdict("draining", reasons)
    if phase is NodePhase.STOPPING:
        return Verdict("stopping", reasons)
    return Verdict("not_ready" if reasons else "ready", reasons)
