"""Readiness of a node: one table over the states of its links, and the phase of the node itself (core).

`docs/reference/readiness.md` shows the table. The reason against a live link comes with its status, from
`fanout.link.reporter`. The functions are pure: latching readiness for an epoch is done by `fanout.link`, which leaves
its state `LIVE` only on session loss, a stall or a lost connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fanout.api.models import NodeState, utc_from_ns
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkStatus
from fanout.node.drain import NodePhase

__all__ = ["WAITS_FOR", "NodeReadiness", "judge", "link_reasons", "reason_against"]

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
"""For each state of a link, the step that it must complete to be ready; None in `LIVE`."""


@dataclass(frozen=True, slots=True)
class NodeReadiness:
    """The readiness of a node, with its reasons."""

    state: NodeState
    """Readiness in one word."""
    reasons: tuple[str, ...]
    """Why the node is not ready, with the first reason of each link; empty when it is."""
    stale_s: float | None = None
    """Age of the oldest values, of a node that is not ready only because values are stale, and may offer them so."""


def reason_against(status: LinkStatus) -> str | None:
    """Return why a link is not ready, for a person; None when it is.

    The text holds no running counter, because every change of it is sent to the nodes below.
    """
    waits_for = WAITS_FOR[status.state]
    if waits_for is not None:
        error = f": {status.last_error}" if status.last_error and not status.last_error_over else ""
        state = status.state.value.replace("_", " ")
        if status.stale_reason is not None:
            return f"stale ({status.stale_reason}), {state}{error}"
        return f"{state}, waits for {waits_for}{error}"
    if not all(selector.complete for selector in status.selectors):
        return f"incomplete: a limit kept values out ({', '.join(status.short_by)})"
    if status.not_ready_reason is not None:
        return f"live, but {status.not_ready_reason}"
    return None


def link_reasons(links: Iterable[LinkStatus]) -> tuple[str, ...]:
    """Return why links are not ready, each with its name; empty when all are."""
    reasons = ((status.name, reason_against(status)) for status in links)
    return tuple(f"link {name} is {reason}" for name, reason in reasons if reason is not None)


def judge(
    phase: NodePhase,
    links: Iterable[LinkStatus],
    *,
    held_since_ns: int | None = None,
    unserved: tuple[str, ...] = (),
) -> NodeReadiness:
    """Return whether a node is ready.

    Args:
        phase: Phase of the node.
        links: Its links.
        held_since_ns: When an operator's hold began, Unix time in nanoseconds; None without one.
        unserved: Reasons why the node or its workers cannot serve clients; empty when they can.
    """
    own = () if phase is NodePhase.SERVING else (f"the node is {phase.value}",)
    if held_since_ns is not None:
        own = (f"held by operator since {utc_from_ns(held_since_ns):%Y-%m-%d %H:%M:%S} UTC",)
    links = tuple(links)
    reasons = (*own, *link_reasons(links), *unserved)
    if phase is NodePhase.DRAINING:
        return NodeReadiness("draining", reasons)
    if phase is NodePhase.STOPPING:
        return NodeReadiness("stopping", reasons)
    if not reasons:
        return NodeReadiness("ready", ())
    stale_s = None
    if not (own or unserved) and all(link.ready or link.serves_stale for link in links):
        stale_s = max((link.stale_s or 0.0 for link in links), default=None)
    return NodeReadiness("not_ready", reasons, stale_s)
