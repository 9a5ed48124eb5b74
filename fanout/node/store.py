"""The retained values that clients read: those of every link and the node's own, seen as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fanout.replica.store import Replica
from fanout.replica.update import Update

__all__ = ["JoinedStore"]


class JoinedStore:
    """Several replicas whose topics never overlap, which configuration and ingress see to."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = tuple(replicas)

    def __len__(self) -> int:
        """Return the number of topics with a retained value."""
        return sum(len(replica) for replica in self._replicas)

    def match(self, topic_filter: bytes) -> Iterator[Update]:
        """Yield the retained values whose topics a Topic Filter matches, replica by replica."""
        for replica in self._replicas:
            yield from replica.match(topic_filter)
