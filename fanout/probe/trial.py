"""Trial of some settings: a link as a node runs it, with a replica of its own, until it has been ready once.

It makes the capability check, the passes, heartbeats, updates and an audit of a real link. Nothing else judges the
primary, so what is found holds for the settings that are printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from fanout.config import LinkConfig
from fanout.errors import FanoutError
from fanout.link.link import Link
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkStatus
from fanout.probe.publisher import Publisher
from fanout.probe.results import Outcome, Trial
from fanout.replica.store import Replica
from fanout.replica.update import PAYLOAD, TOPIC, Changes
from fanout.runtime.system_clock import SystemClock
from fanout.selection import Selector

__all__ = ["run_trial"]

_FAILURES_MAX = 4
"""Number of connections of the link that may fail: a primary that closes for `$SYS` is not asked there in the third."""
_HEARTBEATS = 3
"""Number of heartbeats that must come back while the link stays live."""
_UPDATE_S = 10.0
"""Seconds in which heartbeats, and updates, must come."""
_LOOK_S = 0.05


class _Sink:
    """Counts what the link hands over, and serves nobody."""

    def __init__(self) -> None:
        self.heartbeats = 0
        self.live_topics: set[bytes] = set()
        """Topics with updates that came."""
        self.why = ""
        """Why the evidence is what it is; empty for a proof."""

    def record(self, link: str, changes: Changes, *, epoch: int) -> None:
        pass

    def dispatch(self, link: str, changes: Changes) -> None:
        self.live_topics.update(update[TOPIC] for update in changes.dispatch)

    def marker_passed(self, link: str, node: str, marker: str) -> None:
        pass

    def readiness_changed(self, link: str) -> None:
        pass

    def client_count(self) -> int:
        return 0

    async def prepare_tear_down(self, link: str, selectors: Sequence[Selector] | None = None) -> int:
        return 0

    def event(self, link: str, event: str, **columns: Any) -> None:
        self.heartbeats += event == "heartbeat"
        if event == "complete" and columns["evidence"] in (Evidence.TWO_PASS, Evidence.QUIET):
            self.why = columns["detail"]


class _Running:
    """The link of a trial, while it runs."""

    def __init__(self, config: LinkConfig, *, node_id: str) -> None:
        quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
        self.replica = Replica(selectors=config.selectors)
        self.sink = _Sink()
        self.link = Link(
            config,
            node_id=node_id,
            replica=self.replica,
            sink=self.sink,
            clock=SystemClock(),
            logger=structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=quiet),
        )

    @property
    def status(self) -> LinkStatus:
        return self.link.status()

    async def until(self, condition: Callable[[], object], *, seconds: float) -> bool:
        """Wait until a condition holds; return whether it did in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - a status has no event
                    await asyncio.sleep(_LOOK_S)
        return bool(condition())

    def has(self, topic: str, payload: bytes | None) -> bool:
        """Say whether the replica has this value of a topic; None for no value."""
        value = next(iter(self.replica.get_many([topic.encode()])), None)
        return payload is None if value is None else value[PAYLOAD] == payload


async def run_trial(
    trial: Trial,
    link: LinkConfig,
    *,
    node_id: str,
    root: str,
    loaded: int,
    publisher: Publisher | None,
    on_check: Callable[[str], None],
) -> None:
    """Run a link with the settings of `trial`, and fill in what is seen.

    Args:
        trial: The trial.
        link: The link without these settings, whose selectors include the topics below `root`.
        node_id: Node identifier, from which Client Identifier and control topic are made.
        root: Beginning of the topics of the probe.
        loaded: Number of retained messages below `root`/set/.
        publisher: Publisher of further messages below `root`; None without one.
        on_check: Called with the name of each check before it begins.

    Raises:
        asyncio.CancelledError: Also when the time is up; `trial` has what is known then.
    """
    name = trial.settings.text
    async with _link(trial.settings.apply(link), node_id=node_id) as running:
        on_check(f"{name}: snapshot")
        try:
            if not await _take_snapshot(trial, running, root=root, loaded=loaded):
                trial.complete = True
                return
            on_check(f"{name}: heartbeats")
            await _watch_heartbeats(trial, running)
            if not trial.reason:
                on_check(f"{name}: updates")
                await _watch_updates(trial, running, root=root, loaded=loaded, publisher=publisher)
            if not trial.reason:
                on_check(f"{name}: audit")
                await _audit(trial, running)
            trial.complete = True
        except asyncio.CancelledError:
            status = running.status
            if trial.evidence is None:
                doing = f"the link was {status.state.value.replace('_', ' ')}, with {status.topics:,} topics"
                trial.reason = f"it was not live when the time was up: {doing}"
                trial.add("snapshot", Outcome.NOT_TESTED, f"the time was up: {doing}")
            raise


@asynccontextmanager
async def _link(config: LinkConfig, *, node_id: str) -> AsyncIterator[_Running]:
    running = _Running(config, node_id=node_id)
    task = asyncio.create_task(running.link.run(), name="probe: link")
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _take_snapshot(trial: Trial, running: _Running, *, root: str, loaded: int) -> bool:
    """Wait until the link is live, or its connections have failed too often; return whether it is live."""
    failures: set[int] = set()

    def is_over() -> bool:
        status = running.status
        if status.last_error_ns is not None:
            failures.add(status.last_error_ns)
        most = _FAILURES_MAX if status.counters.epochs_total else 2
        return status.state is LinkState.LIVE or len(failures) >= most

    while not is_over():  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    status = running.status
    trial.accepted = status.counters.epochs_total > 0
    if status.state is not LinkState.LIVE:
        trial.reason, trial.hint = status.last_error or "it is not live", status.last_error_hint or ""
        trial.add("snapshot", False, trial.reason)
        return False
    trial.evidence = status.evidence
    own = f"{root}/".encode()
    trial.topics = sum(1 for topic in running.replica.view if not topic.startswith(own))
    topics = sum(1 for topic in running.replica.view if topic.startswith(f"{root}/set/".encode()))
    seen = f"{status.topics:,} topics in {status.snapshot_seconds or 0.0:.1f} s"
    why = running.sink.why
    is_whole = topics >= loaded
    trial.add("snapshot", is_whole, seen + (f", {loaded:,} of them from here" if loaded and is_whole else ""))
    if not is_whole:
        trial.reason = f"{topics:,} of the {loaded:,} retained messages of this probe came"
    proved = status.evidence is not None and status.evidence.is_at_least(Evidence.BARRIER)
    trial.add("evidence", proved, f"{status.evidence}" + (f": {why}" if why and not proved else ""))
    if status.evidence is Evidence.QUIET:
        trial.reason = "it sends its retained messages once only, so that no set can be taken twice"
    return not trial.reason


async def _watch_heartbeats(trial: Trial, running: _Running) -> None:
    status = running.status
    if status.heartbeat_refusal:
        trial.add("heartbeats", False, status.heartbeat_refusal)
        return
    await running.until(lambda: running.sink.heartbeats >= _HEARTBEATS, seconds=_UPDATE_S)
    status = running.status
    is_steady = (
        running.sink.heartbeats >= _HEARTBEATS
        and not status.counters.stalls_total
        and not status.counters.reconnects_total
    )
    milliseconds = (status.round_trip_ns or 0) / 1e6
    trial.add("heartbeats", is_steady, f"{running.sink.heartbeats} came back, in {milliseconds:.1f} ms")
    if not is_steady:
        trial.reason = "heartbeats do not come back while the link is live" + (
            f": {status.last_error}" if status.last_error else ""
        )


async def _watch_updates(
    trial: Trial, running: _Running, *, root: str, loaded: int, publisher: Publisher | None
) -> None:
    if publisher is None or not loaded:
        trial.add("updates", Outcome.NOT_TESTED, "there are no messages of this probe")
        return
    changed, new, event = f"{root}/set/0", f"{root}/new", f"{root}/event"
    try:
        payload = trial.settings.text.encode()
        await publisher.publish([(changed, payload), (new, payload)])
        await publisher.publish([(event, b"1")], retain=False)
    except FanoutError as error:
        trial.add("updates", Outcome.NOT_TESTED, error.message)
        return
    live = running.sink.live_topics
    await running.until(lambda: event.encode() in live and running.has(changed, payload), seconds=_UPDATE_S)
    came = [running.has(changed, payload), running.has(new, payload)]
    trial.add("updates", all(came), "changed and new values come" if all(came) else "live values are not held as new")
    if not all(came):
        trial.reason = "live updates do not come, or without RETAIN"
        return
    is_held = not running.has(event, None)
    trial.add(
        "without RETAIN",
        event.encode() in live and is_held is trial.settings.keeps,
        "it is held until the next audit" if is_held else "it is passed on, and not held",
    )
    await publisher.clear([new])
    is_gone = await running.until(lambda: running.has(new, None), seconds=_UPDATE_S)
    trial.add("deleted topic", is_gone, "it is gone at once" if is_gone else "it stays until an audit")


async def _audit(trial: Trial, running: _Running) -> None:
    try:
        report = await running.link.audit()
    except FanoutError as error:
        trial.add("audit", False, error.message)
        return
    seen = f"{report.checked:,} topics in {report.seconds:.1f} s: {report.changed} changed, {report.kept} did not come"
    is_equal = not (report.failure or report.changed or report.kept)
    trial.add("audit", is_equal, report.failure or seen)
    if report.failure or report.kept:
        trial.reason = f"an audit finds another set than the snapshot ({report.failure or seen})"
