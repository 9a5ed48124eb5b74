"""A link that runs, with a sink that remembers everything."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

from fanout.config import Address, LinkConfig
from fanout.link.durability.commit_gate import ValueStore
from fanout.link.link import Link
from fanout.link.model.resumption import Resumption
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkStatus
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Update
from fanout.selection import Selector
from tests.support.waiting import wait_until

__all__ = [
    "RecordingSink",
    "Running",
    "SystemClock",
    "config_for",
    "logging_to",
    "removals_by_turn",
    "running",
    "silent_logger",
]


class SystemClock:
    """The machine's time."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


@dataclass
class RecordingSink:
    """Remembers what a link hands over, in order."""

    steps: list[tuple[str, Changes]] = field(default_factory=list)
    """("record" | "dispatch", changes)."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Events with their fields, and "name"."""
    clients: int = 0
    """How many clients are told of each removal."""
    may_tear_down: asyncio.Event | None = None
    """What a tear-down waits for before it begins; None for nothing."""

    def record(self, link: str, changes: Changes, *, epoch: int) -> None:
        """Remember a batch for the log."""
        assert epoch > 0
        assert link
        self.steps.append(("record", changes))

    def dispatch(self, link: str, changes: Changes) -> None:
        """Remember a batch for local clients."""
        self.steps.append(("dispatch", changes))

    def marker_passed(self, link: str, node: str, marker: str) -> None:
        """Remember the place of a heartbeat."""
        self.events.append({"name": "marker", "node": node, "marker": marker, "step": len(self.steps)})

    def client_count(self) -> int:
        """Claim to have `clients`."""
        return self.clients

    async def prepare_tear_down(self, link: str, selectors: Sequence[Selector] | None = None) -> int:
        """Remember that a tear-down is about to begin, and claim to have `clients`."""
        self.events.append({"name": "prepare_tear_down"})
        if self.may_tear_down is not None:
            await self.may_tear_down.wait()
        return self.clients

    def event(self, link: str, event: str, **fields: Any) -> None:
        """Remember an event."""
        self.events.append({"name": event, **fields})

    def readiness_changed(self, link: str) -> None:
        """Remember that readiness may have changed."""
        self.events.append({"name": "readiness"})

    def dispatched(self) -> list[Update]:
        """Return every update dispatched, in order."""
        return [update for step, changes in self.steps if step == "dispatch" for update in changes.dispatch]

    def recorded(self) -> list[Update]:
        """Return every update recorded, in order."""
        return [update for step, changes in self.steps if step == "record" for update in changes.updates]

    def payloads(self, topic: bytes) -> list[bytes]:
        """Return the payloads dispatched on a topic, in order."""
        return [update[1] for update in self.dispatched() if update[0] == topic]

    def states(self) -> list[str]:
        """Return the states entered, in order."""
        return [event["state"] for event in self.events if event["name"] == "state"]

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the events of one name."""
        return [event for event in self.events if event["name"] == name]

    def clear(self) -> None:
        """Forget what came so far."""
        self.steps.clear()
        self.events.clear()


@dataclass
class Running:
    """A link under test."""

    link: Link
    replica: Replica
    sink: RecordingSink
    task: asyncio.Task[None]

    @property
    def status(self) -> LinkStatus:
        """Its status now."""
        return self.link.status()

    async def wait_state(self, state: LinkState, deadline_s: float = 30) -> None:
        """Wait until the link is in a state."""
        await self.wait(lambda: self.status.state is state, deadline_s)

    async def wait(self, condition: Any, deadline_s: float = 30) -> None:
        """Wait for a condition, as long as the link's task lives."""
        await wait_until(
            lambda: self.task.done() or condition(),
            deadline_s,
            what=lambda: f"the condition, with {self.status} after {self.sink.states()}",
        )
        if self.task.done():
            self.task.result()
            raise AssertionError("the link ended")

    def values(self) -> dict[str, bytes]:
        """Return the replica's topics and payloads."""
        return {topic.decode(): update[1] for topic, update in self.replica.values.items()}


async def removals_by_turn(link: Running, *, until: str) -> list[int]:
    """Return how many topics the link removed in each turn of the event loop that removed any, until a state."""
    turn, removed = 0, Counter[int]()
    dispatch = link.sink.dispatch

    def count(link: str, changes: Changes) -> None:
        removed[turn] += sum(not update[1] for update in changes.dispatch)
        dispatch(link, changes)

    link.sink.dispatch = count  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        while link.sink.states()[-1:] != [until]:
            turn += 1
            await asyncio.sleep(0)
    return list((+removed).values())


def config_for(port: int, *selectors: Selector, **changes: Any) -> LinkConfig:
    """Return a link's configuration for a primary on this machine, quick to notice and to retry."""
    config = LinkConfig(
        name="plant",
        primaries=(Address("mqtt", "127.0.0.1", port),),
        selectors=selectors or (Selector("plant/#"),),
        retry_min_s=0.05,
        retry_max_s=0.2,
        snapshot_quiet_s=10.0,
        heartbeat_s=0.5,
        connect_timeout_s=30.0,
        sample_topics=0,
    )
    return replace(config, **changes)


def silent_logger() -> FilteringBoundLogger:
    """Return a logger that drops everything."""
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    logger: FilteringBoundLogger = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=quiet)
    return logger


def logging_to(lines: list[dict[str, object]]) -> FilteringBoundLogger:
    """Return a logger that appends every line to `lines`."""

    def keep(_: object, __: str, event: EventDict) -> EventDict:
        lines.append(dict(event))
        raise structlog.DropEvent

    logger: FilteringBoundLogger = structlog.wrap_logger(structlog.ReturnLogger(), processors=[keep])
    return logger


@asynccontextmanager
async def running(
    config: LinkConfig,
    *,
    node_id: str = "edge-1",
    topics_max: int | None = None,
    logger: FilteringBoundLogger | None = None,
    may_fail: bool = False,
    store: ValueStore | None = None,
    replica: Replica | None = None,
    resumption: Resumption | None = None,
) -> AsyncIterator[Running]:
    """Run a link until the block ends; unless it may fail, an error of its task is raised then.

    Args:
        config: Its configuration.
        node_id: Its node.
        topics_max: Limit of its replica.
        logger: Where it logs; None for nowhere.
        may_fail: See above.
        store: Where its values outlive the process.
        replica: The values that an earlier process left; None for none.
        resumption: The session that it left.
    """
    replica = replica or Replica(selectors=config.selectors, topics_max=topics_max)
    sink = RecordingSink()
    link = Link(
        config,
        node_id=node_id,
        replica=replica,
        sink=sink,
        clock=SystemClock(),
        logger=logger or silent_logger(),
        store=store,
    )
    if resumption is not None:
        link.restore(resumption)
    task = asyncio.create_task(link.run(), name="link under test")
    try:
        yield Running(link, replica, sink, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not (task.cancelled() or may_fail):
            task.result()
