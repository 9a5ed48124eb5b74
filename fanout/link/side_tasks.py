"""Tasks beside a link's Network Connection, which ask the primary on connections of their own.

They try a better address, sample topics, and seek evidence: the primary's list, topics that are deleted, the QoS of
values that came without a message, and the count of its stamps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fanout.config import Address, LinkConfig
from fanout.errors import FanoutError
from fanout.link import connack_probe
from fanout.link.absence_evidence import AbsenceEvidence, AskByName
from fanout.link.driver import Driver
from fanout.link.exact_names import NAMES_MAX, NamedAnswer
from fanout.link.list_check import ListCheck
from fanout.link.model.events import AbsenceAsked, Event, PromisesAsked, SelectorComplete, StateEntered
from fanout.link.model.states import LinkState
from fanout.link.model.status import Clock
from fanout.link.reporter import Reporter
from fanout.link.sample_watch import SampleWatch
from fanout.link.session.machine import LinkSession
from fanout.link.transport.failover import AddressChoice
from fanout.runtime.backoff import Backoff

__all__ = ["SideTasks"]

END_S = 5.0
"""Seconds in which the tasks must end, so that they do not delay the next connection."""


class SideTasks:
    """Tasks beside one Network Connection at a time.

    Attributes:
        preferred: Position of a preferred address that has just answered and is to be used next; None for none.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        node_id: str,
        session: LinkSession,
        driver: Driver,
        reporter: Reporter,
        addresses: AddressChoice,
        samples: SampleWatch,
        list_check: ListCheck | None,
        absence_evidence: AbsenceEvidence,
        ask_by_name: AskByName,
        clock: Clock,
        on_preferred: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Prepare; no task runs.

        Args:
            config: The link's configuration.
            node_id: This node.
            session: The link's session.
            driver: Its driver.
            reporter: Its reporter.
            addresses: Its addresses.
            samples: Its samples.
            list_check: Comparison with the primary's list; None without one.
            absence_evidence: Evidence about missing topics.
            ask_by_name: Request to the primary.
            clock: Clock of the node.
            on_preferred: Called when a preferred address has answered.
            on_crash: Called for a bug in a task.
        """
        self.preferred: int | None = None
        self._config = config
        self._node_id = node_id
        self._session = session
        self._driver = driver
        self._reporter = reporter
        self._addresses = addresses
        self._samples = samples
        self._list_check = list_check
        self._absence_evidence = absence_evidence
        self._ask_by_name = ask_by_name
        self._clock = clock
        self._on_preferred = on_preferred
        self._on_crash = on_crash
        self._became_live = asyncio.Event()
        """Set when the link enters `LIVE`, or a selector is proved."""
        self._absence_asked = asyncio.Event()
        """Set when evidence about unconfirmed topics is wanted."""
        self._promises_asked = asyncio.Event()
        """Set when it is wanted at which QoS values were published."""
        self._tasks: list[asyncio.Task[None]] = []

    def take(self, event: Event) -> None:
        """Note an event of the session that a task waits for."""
        match event:
            case AbsenceAsked():
                self._absence_asked.set()
            case PromisesAsked():
                self._promises_asked.set()
            case SelectorComplete() | StateEntered(state=LinkState.LIVE):
                self._became_live.set()

    def start(self) -> None:
        """Start the tasks that the configuration, and the address in use, have work for."""
        config = self._config
        work: list[tuple[str, Coroutine[Any, Any, None]]] = [("samples", self._samples.run())]
        if self._addresses.current:
            work.append(("preferred", self._watch_preferred()))
        if self._list_check is not None:
            work.append(("list", self._watch_list(self._list_check)))
        if config.proves_absence:
            work.append(("absence", self._watch_absence()))
        if config.version == 5:
            work.append(("promises", self._watch_promises()))
            if config.heartbeat_s:
                work.append(("backlog", self._watch_item_lag()))
        for name, one in work:
            task = asyncio.create_task(one, name=f"link-{config.name}-{name}")
            task.add_done_callback(self._note_end)
            self._tasks.append(task)

    def cancel(self) -> None:
        """Cancel the tasks."""
        for task in self._tasks:
            task.cancel()

    async def wait_ended(self) -> None:
        """Wait until the tasks have ended, which is after `cancel`, but not for ever."""
        tasks, self._tasks = self._tasks, []
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)

    @property
    def _address(self) -> Address:
        return self._config.primaries[self._addresses.current]

    async def _watch_preferred(self) -> None:
        """Probe the addresses preferred to the one in use until one answers."""
        better = self._config.primaries[: self._addresses.current]
        while True:
            await asyncio.sleep(self._config.retry_max_s)
            if self._reporter.state is not LinkState.LIVE or self._session.lifecycle.auditing:
                continue
            for index, address in enumerate(better):
                allowed = self._addresses.may_return(index, self._clock.monotonic())
                if allowed and await connack_probe.ask(address, self._config, node_id=self._node_id):
                    self.preferred = index
                    self._on_preferred()
                    return

    async def _watch_item_lag(self) -> None:
        """Request the primary's stamp count while heartbeats are late."""
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            if self._session.item_lag.is_wanted(self._clock.monotonic()):
                answer = await connack_probe.ask(self._address, self._config, node_id=self._node_id)
                if answer is not None and answer.count is not None:
                    self._session.item_lag.note_count(answer.count)

    async def _watch_list(self, list_check: ListCheck) -> None:
        """Compare the replica with the primary's list of retained messages, each time the link has become live."""
        while True:
            await self._became_live.wait()
            self._became_live.clear()
            backoff = Backoff(min_s=self._config.retry_min_s, max_s=self._config.retry_max_s)
            while self._reporter.state is LinkState.LIVE and not await self._agrees(list_check):  # noqa: ASYNC110
                await asyncio.sleep(backoff.next_delay_s())  # there is no event for it

    async def _agrees(self, list_check: ListCheck) -> bool:
        """Confirm the selectors that agree with the primary's list; return whether all do."""
        agrees = True
        async for index, agreed in list_check.compare():
            if agreed:
                self._driver.do(self._session.lifecycle.confirm_count, index)
            agrees &= agreed
        return agrees

    async def _watch_absence(self) -> None:
        """Seek evidence that unconfirmed topics are deleted at the primary, each time an audit asks for it."""
        while True:
            await self._absence_asked.wait()
            self._absence_asked.clear()
            async for topics in self._absence_evidence.absent():
                self._driver.do(self._session.lifecycle.take_absent, topics)
            self._driver.do(self._session.lifecycle.end_absent)

    async def _watch_promises(self) -> None:
        """Ask at which QoS values were published that a verification brought and no message did, whenever it asks."""
        while True:
            await self._promises_asked.wait()
            self._promises_asked.clear()
            while names := self._session.names_in_doubt(NAMES_MAX):
                answer: NamedAnswer | str
                try:
                    answer = await self._ask_by_name(names, qos=1)
                except FanoutError as error:
                    answer = error.message
                self._driver.do(self._session.lifecycle.take_promises, answer)
