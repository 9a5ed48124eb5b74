"""Readiness of a node: the reasons against its links, and the phase of the node itself (core).

`LinkStatus.reason` decides on a link. The functions are pure. `fanout.link` latches readiness for an epoch: it leaves
its state `LIVE` only on session loss, a stall or a lost connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fanout.api.models import NodeState, utc_from_ns
from fanout.link.model.status import LinkStatus
from fanout.node.drain import NodePhase

__all__ = ["NodeReadiness", "judge", "link_reasons"]


@dataclass(frozen=True, slots=True)
class NodeReadiness:
    """The readiness of a node, with its reasons."""

    state: NodeState
    """Readiness in one word."""
    reasons: tuple[str, ...]
    """Why the node is not ready, with the first reason of each link; empty when it is."""
    stale_s: float | None = None
    """Age of the oldest values, of a node that is not ready only because values are stale, and may offer them so."""


def link_reasons(links: Iterable[LinkStatus]) -> tuple[str, ...]:
    """Return why links are not ready, each with its name; empty when all are."""
    reasons = ((status.name, status.reason) for status in links)
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
        unserved: Reasons why the node cannot serve clients; empty when they can.
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
