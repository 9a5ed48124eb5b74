"""What a fanout node tells the nodes below it: whether it holds everything itself, and which nodes are above it.

Owns the topic and its document, and nothing else; `fanout.node` publishes it, `fanout.link` waits for it. It is a
retained message like any other and comes in order with the data: "not ready" in front of the removals that it is
about, "ready" behind the last value that was missing. So a replica that is complete by its own evidence is complete
as seen from the top once its primary's newest document says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["NO_NODE", "PATHS_MAX", "STANDING_TOPIC", "UNTOLD", "Standing", "decode_standing", "encode_standing", "join"]

STANDING_TOPIC = b"$SYS/fanout/standing"
"""Where a node keeps its document."""

PATHS_MAX = 64
"""Paths that a document tells of; further ones, of a node with more links than that, are left out."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a node stands to those above it."""

    reason: str
    """Why it does not hold everything; empty when it does."""
    paths: tuple[tuple[str, ...], ...]
    """Node identifiers from the top to this node itself, a path for each of its links; the top is a fanout node beside
    a foreign primary, or a `fanout primary`."""

    @property
    def hops(self) -> int:
        """How many nodes are on the longest path."""
        return max(map(len, self.paths), default=0)


UNTOLD = Standing("it has not said yet whether it is ready", ())
"""Of a fanout node whose document is awaited."""
NO_NODE = Standing("", ())
"""Of a primary that is no fanout node: there is nothing to wait for."""


def join(node_id: str, paths_above: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the paths that end with a node, from those that end with its primaries; one with itself when none does."""
    return tuple(dict.fromkeys((*path, node_id) for path in paths_above))[:PATHS_MAX] or ((node_id,),)


def encode_standing(standing: Standing) -> bytes:
    """Return the document."""
    return json.dumps({"ready": not standing.reason, "reason": standing.reason, "paths": standing.paths}).encode()


def decode_standing(payload: bytes) -> Standing | None:
    """Return what a document says; None when it is not one."""
    try:
        document = json.loads(payload)
        ready, reason, paths = document["ready"], document["reason"], document["paths"]
        path_names = tuple(tuple(str(name) for name in path) for path in paths)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if ready is True:
        return Standing("", path_names)
    return Standing(str(reason) or "it does not say why", path_names)
