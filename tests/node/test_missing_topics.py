"""When topics that clients wait for are announced as missing at a link's primary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from fanout.config import LinkConfig
from fanout.link.link import Link
from fanout.link.missing_topics import BURST_MAX, MissingTopics
from fanout.link.model.counters import LinkCounters
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkStatus
from fanout.link.protocol.forwarding import UNAVAILABLE
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.missing_topics import MissingAnnouncer
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import Selector
from tests.link.harness import SystemClock, config_for, logging_to
from tests.node.test_documents import LIVE
from tests.support.waiting import wait_until

BELOW = b'{"filter": "plant/far", "node": "b", "time_us": 5, "path": ["c", "b"]}'


def update(topic: bytes, payload: bytes = b"x") -> Update:
    """Return a retained update."""
    return (topic, payload, 0, True, b"", 1, 0, content_digest(topic, payload), None)


class StillClock(SystemClock):
    """A clock for which nothing takes any time: no search is interrupted, and announcements are the first of all."""

    def monotonic(self) -> float:
        """Return always the same."""
        return 100.0


class FakeLink:
    """A link whose primary answers as the test says."""

    def __init__(self, config: LinkConfig) -> None:
        self.config = config
        self.missing = MissingTopics(config.control_topic, node_id="edge-1", counters=LinkCounters())
        self.is_ready = True
        self.answer: ReasonCode | None = ReasonCode.SUCCESS
        """At once; None lets everything wait in `unanswered`."""
        self.unanswered: list[asyncio.Future[ReasonCode]] = []
        self.told: list[dict[str, Any]] = []

    def announce_missing(self, payload: bytes) -> ReasonCode | asyncio.Future[ReasonCode]:
        """Remember it."""
        self.told.append(json.loads(payload))
        if self.answer is not None:
            return self.answer
        self.unanswered.append(asyncio.get_running_loop().create_future())
        return self.unanswered[-1]

    def status(self) -> LinkStatus:
        """Return one that is ready, or not."""
        return LIVE if self.is_ready else replace(LIVE, state=LinkState.VERIFYING)

    @property
    def filters(self) -> list[str]:
        """The filters announced so far."""
        return [one["filter"] for one in self.told]


class Scene:
    """An announcer at work."""

    def __init__(self, *selectors: Selector, replica: Replica | None = None, clock: SystemClock | None = None) -> None:
        config = config_for(1883, *selectors)
        self.link = FakeLink(config)
        self.replica = Replica(selectors=config.selectors) if replica is None else replica
        self.gone: set[bytes] = set()
        self.lines: list[dict[str, object]] = []
        self.announcer = MissingAnnouncer(
            cast(Link, self.link),
            replica=self.replica,
            is_subscribed=self._is_subscribed,
            clock=clock or StillClock(),
            logger=logging_to(self.lines),
        )

    def _is_subscribed(self, topic_filter: bytes) -> bool:
        return topic_filter not in self.gone

    def ask(self, *topic_filters: str) -> None:
        """Let a client subscribe."""
        for topic_filter in topic_filters:
            self.announcer.add_subscribed(topic_filter.encode())

    def hold(self, *topics: bytes) -> None:
        """Let the replica have topics, as a batch of the link brings them."""
        updates = [update(topic) for topic in topics]
        self.replica.apply(updates, phase=Phase.LIVE)
        self.announcer.note(updates)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it."""
        task = asyncio.create_task(self.announcer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def settle(self) -> None:
        """Wait until everything that was asked has been looked after, which takes one turn where nothing is awaited."""
        await wait_until(lambda: not len(self.link.missing))


@pytest.mark.parametrize(
    ("asked", "selector", "missing"),
    [
        ("plant/new", Selector("plant/#"), "plant/new"),
        ("plant/1", Selector("plant/#"), None),
        ("#", Selector("plant/#"), None),
        ("+/new/#", Selector("plant/#"), "plant/new/#"),
        ("office/x", Selector("plant/#"), None),
        ("hq/+/state", Selector("office/#", prefix="hq/"), "office/state"),
        ("hq/office/+", Selector("office/#", prefix="hq/"), "office/+"),
        ("#", Selector("office/#", prefix="hq/"), "office/#"),
        ("hq/#", Selector("+/#", prefix="hq/"), "+/#"),
        ("plant/debug/x", Selector("plant/#", exclude=("plant/debug/#",)), None),
        ("plant/+/x", Selector("plant/#", exclude=("plant/debug/#",)), "plant/+/x"),
        ("fanout/control/b/primary/+", Selector("#"), None),
        ("plant/" + "x/" * 250, Selector("plant/#"), None),
        ("plant/new", Selector("plant/#", retained_only=True), "plant/new"),
        ("plant/new", Selector("plant/#", live_only=True), None),
        ("plant/new", Selector("plant/#", max_payload=10), None),
        ("plant/new", Selector("plant/#", content=("json",)), None),
    ],
)
async def test_only_what_a_selector_would_bring_is_missing(asked: str, selector: Selector, missing: str | None) -> None:
    """It fits a selector that holds every retained value, without its excludes, and matches nothing that is there.

    It is told with the primary's names. What is not held because the selector does not take it may well be there.
    """
    scene = Scene(selector)
    if selector.filter == "plant/#":
        scene.hold(b"plant/1")
    async with scene.running():
        scene.ask(asked)
        await scene.settle()
        assert scene.link.filters == ([] if missing is None else [missing])


async def test_everything_has_its_turn() -> None:
    """More than may be announced at a time: the others follow, and none is lost."""
    scene = Scene(clock=SystemClock())
    wanted = [f"plant/{number}" for number in range(BURST_MAX + 5)]
    async with scene.running():
        scene.ask(*wanted)
        await wait_until(lambda: len(scene.link.told) == len(wanted))
    assert scene.link.filters == wanted
    assert (scene.link.missing.counters.missing_announced_total, len(scene.link.missing)) == (len(wanted), 0)


async def test_what_is_asked_before_the_link_is_ready_waits() -> None:
    """What the snapshot brings is not announced then, what it does not bring is; with the time of the SUBSCRIBE."""
    scene = Scene()
    scene.link.is_ready = False
    async with scene.running():
        scene.ask("plant/there", "plant/+/there", "plant/new")
        await asyncio.sleep(0)
        assert len(scene.link.missing) == 3
        asked_us = SystemClock().now_ns() // 1000
        scene.hold(b"plant/there", b"plant/1/there")
        scene.link.is_ready = True
        scene.announcer.wake()
        await scene.settle()
    assert scene.link.filters == ["plant/new"]
    assert scene.link.told[0]["time_us"] <= asked_us


async def test_who_has_gone_waits_for_nothing() -> None:
    """A filter to which nobody is subscribed any more is not announced; who is at a node below is not known here."""
    scene = Scene()
    scene.gone = {b"plant/left", b"plant/far"}
    async with scene.running():
        scene.ask("plant/left")
        scene.announcer.add_relayed(BELOW)
        await scene.settle()
    assert scene.link.told == [{"filter": "plant/far", "node": "c", "time_us": 5, "path": ["c", "b", "edge-1"]}]


async def test_what_the_primary_did_not_get_is_announced_again() -> None:
    """The connection is lost before the answer, or the primary has no room: then it waits on and counts later."""
    scene = Scene()
    scene.link.answer = None
    missing = scene.link.missing
    async with scene.running():
        scene.ask("plant/new")
        await wait_until(lambda: scene.link.unanswered)
        assert missing.counters.missing_announced_total == 0
        scene.link.is_ready = False
        scene.link.unanswered.pop().set_result(UNAVAILABLE)
        await wait_until(lambda: len(missing) == 1)
        scene.link.is_ready = True
        scene.announcer.wake()
        await wait_until(lambda: scene.link.unanswered)
        scene.link.unanswered.pop().set_result(ReasonCode.QUOTA_EXCEEDED)
        await wait_until(lambda: scene.link.unanswered)
        scene.link.unanswered.pop().set_result(ReasonCode.NO_MATCHING_SUBSCRIBERS)
        await wait_until(lambda: missing.counters.missing_announced_total)
    assert scene.link.filters == ["plant/new"] * 3
    assert (
        missing.counters.missing_announced_total,
        missing.counters.missing_dropped_total,
        missing.counters.missing_suppressed_total,
    ) == (1, 0, 0)
    assert scene.lines == []


async def test_what_the_primary_refuses_is_told_once() -> None:
    """A warning for the first of several refusals; each is counted, and none is tried again."""
    scene = Scene()
    scene.link.answer = ReasonCode.NOT_AUTHORIZED
    async with scene.running():
        scene.ask("plant/1", "plant/2")
        await wait_until(lambda: scene.link.missing.counters.missing_dropped_total == 2)
        scene.link.answer = ReasonCode.SUCCESS
        scene.ask("plant/3")
        await scene.settle()
        scene.link.answer = ReasonCode.NOT_AUTHORIZED
        scene.ask("plant/4")
        await scene.settle()
    line, again = scene.lines = scene.lines
    assert (line["event"], line["filter"], line["reason_code"]) == (
        "missing topic not announced",
        "plant/1",
        "Not authorized",
    )
    assert again["filter"] == "plant/4"


class SlowReplica(Replica):
    """Whose search takes long: each step of it waits for nothing, and lets the test do something."""

    steps = 0

    def match_topics(self, topic_filter: bytes) -> Iterator[list[bytes]]:
        """Search without end as long as `steps` are left, and find nothing."""
        while self.steps:
            self.steps -= 1
            yield []


async def test_a_topic_that_comes_during_the_search_is_there() -> None:
    """Even where the search was before; and the event loop turns while a search goes on."""
    replica = SlowReplica(selectors=(Selector("plant/#"),))
    scene = Scene(replica=replica, clock=SystemClock())
    replica.steps = 10**9
    async with scene.running():
        scene.ask("plant/+/new")
        await wait_until(lambda: replica.steps < 10**9)  # which is a turn of the loop in the middle of it
        assert replica.steps > 0
        scene.hold(b"plant/1/other")
        scene.announcer.note([(b"plant/1/new", b"x", 0, False, b"", 1, 0, 0, None)])
        left = replica.steps
        await wait_until(lambda: replica.steps < left)
        scene.hold(b"plant/1/new")
        await wait_until(lambda: scene.announcer._searched is None)
    assert scene.link.told == []


async def test_a_link_that_is_not_ready_any_more_after_the_search() -> None:
    """Then nothing is known, and the filter waits."""
    replica = SlowReplica(selectors=(Selector("plant/#"),))
    scene = Scene(replica=replica, clock=SystemClock())
    replica.steps = 10**9
    async with scene.running():
        scene.ask("plant/+/new")
        await wait_until(lambda: replica.steps < 10**9)
        scene.link.is_ready = False
        replica.steps = 0
        await wait_until(lambda: len(scene.link.missing) == 1)
    assert scene.link.told == []
