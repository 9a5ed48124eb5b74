"""Combined store: the retained values that clients read, of every link and of the node's own namespace, as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fanout.replica.store import Replica
from fanout.replica.update import Update

__all__ = ["CombinedStore"]


class CombinedStore:
    """Several replicas whose topics never overlap; configuration and ingress ensure that."""

    def __init__(self, replicas: Sequence[Replica], *, uncounted: Sequence[Replica] = ()) -> None:
        """Join replicas.

        Args:
            replicas: Replicas that `len` counts.
            uncounted: Replicas that can be read and are not counted: the node's `$SYS` topics.
        """
        self._uncounted = tuple(uncounted)
        self.replace(replicas)

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Join other replicas from now on; searches that run go on with those before."""
        self._replicas = tuple(replicas)
        self._readable = (*replicas, *self._uncounted)

    def __len__(self) -> int:
        """Return the number of topics with a retained value."""
        return sum(len(replica) for replica in self._replicas)

    def match(self, topic_filter: bytes) -> Iterator[list[Update]]:
        """Yield the retained values whose topics a Topic Filter matches, in pieces, replica by replica."""
        for replica in self._readable:
            yield from replica.match(topic_filter)

    def get_many(self, topics: Sequence[bytes]) -> list[Update]:
        """Return the retained values of those of some topics that have one, replica by replica."""
        found: list[Update] = []
        for replica in self._readable:
            found += replica.get_many(topics)
            if len(found) == len(topics):
                break
        return found
