"""A browser over replicas, with messages that a test delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fanout.access.gate import Gate
from fanout.mqtt.topics import matches
from fanout.node.browse.browser import Browser
from fanout.node.browse.pages import Store
from fanout.node.combined_store import CombinedStore
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.runtime.system_clock import Clock, SystemClock

__all__ = ["Node", "value"]


def value(topic: str, payload: bytes = b"v", *, retain: bool = True) -> Update:
    """Return a message at QoS 1."""
    name = topic.encode()
    return (name, payload, 1, retain, b"", 1_700_000_000_000_000_000, 0, content_digest(name, payload), None)


class Node:
    """A node's replicas, observers and browser."""

    def __init__(
        self,
        *links: Iterable[str],
        own: Iterable[str] = (),
        serves: bool = True,
        gate: Gate | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Hold topics.

        Args:
            links: Topics of the links `link0`, `link1` and so on.
            own: Topics of the node's own namespace.
            serves: False for a tap.
            gate: Access control of clients; None for none.
            clock: The clock; None for that of the machine.
        """
        self.stores = [Store(f"link{number}", self._replica(topics)) for number, topics in enumerate(links)]
        self.stores.append(Store(None, self._replica(own)))
        self.observers: dict[object, tuple[bytes | None, Callable[[list[Update]], None]]] = {}
        self.stale_s: float | None = None
        self.loop: asyncio.AbstractEventLoop
        self.observed: Callable[[asyncio.AbstractEventLoop], object] = lambda loop: None
        """Called when an observation begins, with the event loop of the node."""
        self.browser = Browser(
            stores=lambda: self.stores,
            match=CombinedStore([store.replica for store in self.stores]).match,
            observe=self._observe if serves else None,
            stale_s=lambda: self.stale_s,
            clock=clock or SystemClock(),
            gate=gate,
        )

    def publish(self, *updates: Update) -> None:
        """Put messages into the first replica and deliver them, as a node does."""
        self.stores[0].replica.apply(list(updates), phase=Phase.LIVE)
        for topic_filter, take in list(self.observers.values()):
            if found := [one for one in updates if topic_filter is None or matches(topic_filter, one[0])]:
                take(found)

    def _observe(self, topic_filter: bytes | None, take: Callable[[list[Update]], None]) -> Callable[[], None]:
        key = object()
        self.observers[key] = topic_filter, take
        self.loop = asyncio.get_running_loop()
        self.observed(self.loop)
        return lambda: self.observers.pop(key, None) and None

    @staticmethod
    def _replica(topics: Iterable[str]) -> Replica:
        replica = Replica()
        replica.apply([value(topic) for topic in topics], phase=Phase.SNAPSHOT)
        return replica
