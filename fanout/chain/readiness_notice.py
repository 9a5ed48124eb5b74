"""Readiness notice of a fanout node to the nodes below it: whether its replica is complete, and its paths from the top.

`fanout.node` publishes it, `fanout.link` subscribes to it. It is a retained message and comes in order with the data:
"not ready" before the removals that it announces, "ready" after the last value that was missing. So a replica with
evidence of its own is complete as seen from the top once the newest notice of its primary says "ready".
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
"""Topic of the notice."""

PATHS_MAX = 64
"""Largest number of paths in a notice; further ones are left out."""

PATH_NODES_MAX = 64
"""Largest number of nodes on a path: those nearest to the node itself."""

DOCUMENT_BYTES_MAX = 64 * 1024
"""Size of the largest notice; a longer one is invalid."""


@dataclass(frozen=True, slots=True)
class ReadinessNotice:
    """Readiness of a node, and the nodes above it."""

    reason: str
    """Why its replica is not complete; empty when it is."""
    paths: tuple[tuple[str, ...], ...]
    """Node identifiers from the top to this node, one path for each of its links. The top is a fanout node beside a
    foreign primary, or a `fanout primary`."""

    @property
    def hops(self) -> int:
        """Number of nodes on the longest path."""
        return max(map(len, self.paths), default=0)


UNTOLD = ReadinessNotice("it has not said yet whether it is ready", ())
"""Notice of a fanout node whose first notice is awaited."""
NO_NODE = ReadinessNotice("", ())
"""Notice of a primary that is no fanout node: there is nothing to wait for."""


def join(node_id: str, paths_above: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the paths of a node from those of its primaries; a single path with the node itself without any."""
    paths = dict.fromkeys((*path, node_id)[-PATH_NODES_MAX:] for path in paths_above)
    return tuple(paths)[:PATHS_MAX] or ((node_id,),)


def encode_readiness_notice(notice: ReadinessNotice) -> bytes:
    """Encode a notice; if it would be too large, later paths are left out."""
    reason, paths = clean_text(notice.reason), notice.paths
    while True:
        document = json.dumps({"ready": not reason, "reason": reason, "paths": paths}).encode()
        if len(document) <= DOCUMENT_BYTES_MAX:
            return document
        paths = paths[: len(paths) // 2]


def decode_readiness_notice(payload: bytes) -> ReadinessNotice | None:
    """Decode a notice, with its text cleaned; None when it is invalid.

    A path must be a list of valid node names.
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
