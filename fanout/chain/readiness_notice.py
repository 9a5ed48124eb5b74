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

from fanout.peer_text import clean_text, is_node_name, read_document

__all__ = [
    "DOCUMENT_BYTES_MAX",
    "NO_NODE",
    "PATHS_MAX",
    "PATH_NODES_MAX",
    "READINESS_TOPIC",
    "UNTOLD",
    "ReadinessNotice",
    "decode_readiness_notice",
    "encode_readiness_notice",
    "join",
]

READINESS_TOPIC = b"$SYS/fanout/standing"
"""Where a node keeps its document."""

PATHS_MAX = 64
"""Paths that a document tells of; further ones, of a node with more links than that, are left out."""

PATH_NODES_MAX = 64
"""Nodes of a path that a document tells of: those nearest to the node itself."""

DOCUMENT_BYTES_MAX = 64 * 1024
"""Size of the largest document; a longer one is none."""


@dataclass(frozen=True, slots=True)
class ReadinessNotice:
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


UNTOLD = ReadinessNotice("it has not said yet whether it is ready", ())
"""Of a fanout node whose document is awaited."""
NO_NODE = ReadinessNotice("", ())
"""Of a primary that is no fanout node: there is nothing to wait for."""


def join(node_id: str, paths_above: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the paths that end with a node, from those that end with its primaries; one with itself when none does."""
    paths = dict.fromkeys((*path, node_id)[-PATH_NODES_MAX:] for path in paths_above)
    return tuple(paths)[:PATHS_MAX] or ((node_id,),)


def encode_readiness_notice(standing: ReadinessNotice) -> bytes:
    """Return the document; of so many and so long paths that it would be too large, the first ones are told."""
    reason, paths = clean_text(standing.reason), standing.paths
    while True:
        document = json.dumps({"ready": not reason, "reason": reason, "paths": paths}).encode()
        if len(document) <= DOCUMENT_BYTES_MAX:
            return document
        paths = paths[: len(paths) // 2]


def decode_readiness_notice(payload: bytes) -> ReadinessNotice | None:
    """Return what a document says, as far as it is for people cleaned; None when it is not one.

    No node writes paths that are none: lists of names that nodes may have.
    """
    try:
        document = read_document(payload, bytes_max=DOCUMENT_BYTES_MAX)
        ready, reason, paths = document["ready"], document["reason"], document["paths"]
        path_names = tuple(tuple(path[-PATH_NODES_MAX:]) for path in paths[:PATHS_MAX])
    except (ValueError, KeyError, TypeError):
        return None
    if not all(is_node_name(name) for path in path_names for name in path):
        return None
    if ready is True:
        return ReadinessNotice("", path_names)
    told = clean_text(reason) if isinstance(reason, str) else ""
    return ReadinessNotice(told or "it does not say why", path_names)
