"""Check that a secondary is what it says it is: `/readyz`, compared with the values that a new client reads.

Owns the comparison of a served replica with the truth. *Ready while not equal* is judged while values change. If
`/readyz` is true before and after, in the same epochs, a client that joins in between must get each topic with a value
that has been certain for the *horizon*, with its properties. It must get no topic that has been absent as long. The
horizon is the time that a lost connection, or a loss at the primary, may stay undetected by configuration. A ready node
may lack no value for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.chaos.client import Message, read_retained
from bench.chaos.truth import EXPIRY_SLACK_S, Truth, Value
from bench.processes import Node

__all__ = ["Edge", "Prober", "describe", "differences", "plain"]

_EVERY_S = 0.4
_HTTP_S = 3.0
_SHOWN = 3


@dataclass(slots=True)
class Edge:
    """A secondary under test, and how its replica relates to the primary."""

    node: Node
    prefixes: Mapping[str, str]
    """First level of the topics that it replicates, to what it puts before them."""
    horizon_s: float
    """Longest time for which it may call itself ready without a value."""
    unqueued: frozenset[str] = frozenset()
    """First levels at QoS 0, which nobody keeps for a session without a connection."""
    resident_bytes_max: int = 0
    """The most memory that it was seen to use."""
    filters: tuple[str, ...] = field(init=False)
    """Topic Filter with which a local client gets all of it."""
    queued_filters: tuple[str, ...] = field(init=False)
    """Topics that a durable session gets completely, cut off or not."""

    def __post_init__(self) -> None:
        self.filters = tuple(f"{prefix}{root}/#" for root, prefix in self.prefixes.items())
        self.queued_filters = tuple(
            f"{prefix}{root}/#" for root, prefix in self.prefixes.items() if root not in self.unqueued
        )

    @property
    def name(self) -> str:
        """The node's identifier."""
        return self.node.name

    def local(self, topic: str) -> str | None:
        """Return the local name of a topic of the primary; None when it is not replicated."""
        prefix = self.prefixes.get(topic.partition("/")[0])
        return None if prefix is None else prefix + topic

    def at_primary(self, local: str) -> str:
        """Return the primary's name of a local topic."""
        for root, prefix in self.prefixes.items():
            if local.startswith(f"{prefix}{root}/"):
                return local.removeprefix(prefix)
        raise ValueError(f"{local} is outside the selectors of {self.name}")


class Prober:
    """Asks one secondary again and again.

    Attributes:
        ready_total: Answers that said ready.
        checked_total: Joins that were compared with the truth.
    """

    def __init__(self, edge: Edge, *, truth: Truth, violated: Callable[[str], None]) -> None:
        self.ready_total = 0
        self.checked_total = 0
        self._edge = edge
        self._truth = truth
        self._violated = violated

    async def run(self) -> None:
        """Ask until cancelled."""
        async with httpx.AsyncClient(
            base_url=self._edge.node.url, verify=False, trust_env=False, timeout=_HTTP_S
        ) as http:
            while True:
                with contextlib.suppress(httpx.HTTPError, OSError, TimeoutError):
                    await self._join(http)
                await asyncio.sleep(_EVERY_S)

    async def _join(self, http: httpx.AsyncClient) -> None:
        began = time.monotonic()
        before = await _ready_epochs(http)
        if before is None:
            return
        self.ready_total += 1
        held = await read_retained(self._edge.node.port, "chaos-joiner", self._edge.filters)
        if await _ready_epochs(http) != before:
            return  # it stopped being ready meanwhile: what was read then proves nothing
        self.checked_total += 1
        wrong = differences(self._edge, held, self._truth, since=began - self._edge.horizon_s)
        if wrong:
            self._violated(
                f"{self._edge.name} was ready while not equal: {len(wrong)} topics, {'; '.join(wrong[:_SHOWN])}"
            )


async def _ready_epochs(http: httpx.AsyncClient) -> tuple[int, ...] | None:
    """Return the epochs of a node that says it is ready; None while it is not."""
    answer = await http.get("/readyz")
    document: dict[str, Any] = answer.json()
    return tuple(link["epoch"] for link in document["links"]) if answer.status_code == 200 else None


def differences(edge: Edge, held: Mapping[str, Message], truth: Truth, *, since: float) -> list[str]:
    """Return what is wrong with a served replica, of all that has been certain since then."""
    wrong = []
    for topic in {*truth.topics, *map(edge.at_primary, held)}:
        local = edge.local(topic)
        if local is not None and truth.is_stable(topic, since=since) and _differs(held.get(local), truth.held(topic)):
            wrong.append(f"{local} has {describe(held.get(local))}, not {describe(truth.held(topic))}")
    return sorted(wrong)


def _differs(message: Message | None, value: Value | None) -> bool:
    """Say whether what was read is not the value."""
    if message is None or value is None:
        return (message is None) != (value is None)
    if message.payload != value.payload or plain(message.properties) != plain(value.properties):
        return True
    if (message.expiry_s is None) != (value.expires is None):
        return True
    if message.expiry_s is None or value.expires is None:
        return False
    return abs(value.expires - time.monotonic() - message.expiry_s) > EXPIRY_SLACK_S


def plain(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties so that they can be compared: User Properties as a list of tuples."""
    return {
        name: [tuple(pair) for pair in value] if name == "UserProperty" else value for name, value in properties.items()
    }


def describe(one: Message | Value | None) -> str:
    """Return a value for a person."""
    return "no value" if one is None else f"{one.payload[:12]!r} {plain(one.properties) or ''}".rstrip()
