"""The link: runs a session machine over real connections, with real time, for as long as the node lives.

Owns the task, the choice of address, the retries, tear-downs, and who waits for the primary's answers. It makes no
decision about MQTT: that is `fanout.link.session.machine`, which `fanout.link.driver` drives; `fanout.link.reporter`
tells of it.
"""

from __future__ import annotations

import asyncio
import ssl

from structlog.typing import FilteringBoundLogger

from fanout.chain.stamp import StampCount
from fanout.config import Address, LinkConfig, read_password
from fanout.errors import AuditRefused, FanoutError, LinkLost
from fanout.link import connack_probe as probe
from fanout.link.driver import Driver
from fanout.link.durability.commit_gate import CommitGate, ValueStore
from fanout.link.list_check import ListCheck
from fanout.link.missing_topics import MissingTopics
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import AuditEnded, Event, Failed, Forwarded, StateEntered, TearDown
from fanout.link.model.resumption import Resumption
from fanout.link.model.states import LinkState
from fanout.link.model.status import Clock, LinkSink, LinkStatus
from fanout.link.protocol.forwarding import UNAVAILABLE
from fanout.link.protocol.handshake import unanswered_hint
from fanout.link.protocol.sender import Message
from fanout.link.reporter import Reporter
from fanout.link.session.machine import LinkSession
from fanout.link.session.teardown import piece_topics
from fanout.link.transport.connection import READ_AHEAD_FACTOR, LinkConnection, connect
from fanout.link.transport.failover import AddressChoice
from fanout.link.transport.tls import LinkTls, load_tls_in_thread
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.runtime.backoff import Backoff

__all__ = ["Link"]

_NEVER = float("inf")
_WATCHES_END_S = 5.0
"""How long what went on beside a connection may take to end behind it: it must not keep the link from the next one."""


class Link:
    """A node's link to one primary; `run` keeps it going."""

    def __init__(
        self,
        config: LinkConfig,
        *,
        node_id: str,
        replica: Replica,
        sink: LinkSink,
        clock: Clock,
        logger: FilteringBoundLogger,
        store: ValueStore | None = None,
        stamps: StampCount | None = None,
    ) -> None:
        """Make a link that is down.

        Args:
            config: Its configuration.
            node_id: This node.
            replica: Its replica, made with its selectors; nobody else changes it.
            sink: Where batches and events go.
            clock: The time.
            logger: Where it tells what happens; its name is added to every line.
            store: Where its values outlive the process; None for nowhere.
            stamps: The node's count, used with `stamp_updates`; None stamps nothing.
        """
        self.config = config
        self._replica = replica
        self._sink = sink
        self._clock = clock
        self._logger = logger.bind(link=config.name)
        self._commit_gate = None if store is None else CommitGate(store, config, node_id=node_id)
        self._session = LinkSession(
            config,
            node_id=node_id,
            replica=replica,
            nonce=clock.now_ns(),
            stamps=stamps,
            piece_topics=lambda: piece_topics(sink.client_count()),
        )
        self.missing = MissingTopics(config.control_topic, node_id=node_id)
        """What it has to announce as missing; who knows what is missing uses it (`fanout.node.missing_topics`)."""
        self._became_live = asyncio.Event()
        """Set when the state is entered, for who waits for it."""
        self._comparison = (
            None
            if config.count_url is None
            else ListCheck(config, session=self._session, replica=replica, logger=self._logger)
        )
        self._reporter = Reporter(
            config,
            session=self._session,
            replica=replica,
            comparison=self._comparison,
            sink=sink,
            clock=clock,
            logger=self._logger,
        )
        self._audit_waiters: list[asyncio.Future[AuditReport]] = []
        self._node_id = node_id
        self._addresses = AddressChoice(len(config.primaries), min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._preferred: int | None = None
        """Position of a better address that has just answered: to be used in place of the one in use."""
        self._connection: LinkConnection | None = None
        self._tls: LinkTls | None = None
        """Of the newest connection; None without."""
        self._attempt: asyncio.Timeout | None = None
        """What ends an attempt to connect; None while none is made."""
        self._free = asyncio.Event()
        """Set unless the link is held."""
        self._free.set()
        self._attention = asyncio.Event()
        """Set when the task has something to do: a failure, a tear-down, a connection or a hold that is over."""
        self._failure: FanoutError | None = None
        self._tear_down_reason: str | None = None
        self._crash: BaseException | None = None
        self._was_live = False
        self._verdicts: dict[int, asyncio.Future[ReasonCode]] = {}
        """Token of a forwarded message to who waits for the primary's answer."""
        self._driver = Driver(
            config.name,
            session=self._session,
            replica=replica,
            sink=sink,
            commit_gate=self._commit_gate,
            clock=clock,
            on_event=self._on_event,
            on_full=self._reporter.note_refusals,
            on_crash=self._on_crash,
        )

    def restore(self, resumption: Resumption) -> None:
        """Take over the session of an earlier process, whose values the replica has; to be called before `run`."""
        self._session.restore(resumption, now_ns=self._clock.now_ns(), now=self._clock.monotonic())

    async def run(self) -> None:
        """Connect, replicate and connect again, until cancelled.

        Then the session at the primary is ended, unless its values outlive the process.
        """
        try:
            while True:
                failed = False
                try:
                    await self._serve()
                except FanoutError as error:
                    failed = True
                    self._reporter.note_failure(error, primary=self._address)
                was_live, self._was_live = self._was_live, False
                preferred, self._preferred = self._preferred, None
                now = self._clock.monotonic()
                if not failed and preferred is not None:
                    self._addresses.take(preferred, now)
                elif was_live:
                    self._addresses.lose(now)
                else:
                    self._addresses.fail(now)
                await self._rest(self._addresses.try_at_s)
        finally:
            self._driver.stop()
            for verdict in self._verdicts.values():
                if not verdict.done():
                    verdict.set_result(UNAVAILABLE)
            self._verdicts.clear()
            self._answer_audit(AuditReport(False, failure="the node is stopping"))

    def forward(self, row: PublishRow, *, prefix: bytes) -> ReasonCode | asyncio.Future[ReasonCode]:
        """Publish a local client's message at the primary; it comes back as an update like any other.

        Args:
            row: The PUBLISH, with a local Topic Name; sent at its QoS, at least 1.
            prefix: The selector's prefix, which the topic at the primary does not have.

        Returns:
            The primary's Reason Code, one that PUBACK may carry. At once when the message is not sent:
            `fanout.link.protocol.forwarding.UNAVAILABLE` unless the link is live, Quota exceeded when too many wait.
            When the session ends before the primary answers it is UNAVAILABLE, and the message may have arrived or not.
        """
        topic, payload, flags, _, properties, expiry_s, _ = row
        message = Message(
            topic.removeprefix(prefix),
            payload,
            qos=max(1, flags >> 1 & 3),
            retain=bool(flags & 1),
            properties=properties,
            expiry_s=expiry_s,
        )
        return self._publish(message)

    def announce_missing(self, payload: bytes) -> ReasonCode | asyncio.Future[ReasonCode]:
        """Publish an announcement of `missing` at the primary, and return its Reason Code as `forward` does."""
        return self._publish(Message(self.missing.topic, payload))

    def _publish(self, message: Message) -> ReasonCode | asyncio.Future[ReasonCode]:
        token = self._session.forward(message, now_ns=self._clock.now_ns(), now=self._clock.monotonic())
        if isinstance(token, ReasonCode):
            return token
        self._driver.write_and_plan()
        verdict = self._verdicts[token] = asyncio.get_running_loop().create_future()
        return verdict

    def hold(self, held: bool) -> None:
        """Read nothing from the primary while held, and remove nothing: who takes the batches has too many of them."""
        self._session.hold(held, now=self._clock.monotonic())
        if held:
            self._free.clear()
        else:
            self._free.set()
            self._attention.set()  # what was not done meanwhile may be due, without a connection too
        if self._connection is not None:
            self._connection.hold(held)
            if not held:
                self._driver.write_and_plan()

    async def wait_forwarded(self) -> None:
        """Wait until the primary has answered what was forwarded, or nobody can any more."""
        if self._verdicts:
            await asyncio.wait(self._verdicts.values())

    async def audit(self, *, confirmed: bool = False) -> AuditReport:
        """Compare the replica with the primary now, repair it, and return what was found.

        Cancelling does not stop the audit.

        Args:
            confirmed: Whether any number of topics may be removed.

        Raises:
            AuditRefused: None can begin now.
        """
        clock = self._clock
        begun = self._session.audit(confirmed=confirmed, now_ns=clock.now_ns(), now=clock.monotonic())
        if isinstance(begun, str):
            raise AuditRefused(f"no audit of link {self.config.name} can begin: {begun}", hint="Try again later")
        waiter: asyncio.Future[AuditReport] = asyncio.get_running_loop().create_future()
        self._audit_waiters.append(waiter)
        self._driver.act(begun)
        self._driver.write_and_plan()
        return await waiter

    @property
    def _address(self) -> Address:
        """The primary's address in use, or to be tried next."""
        return self.config.primaries[self._addresses.current]

    def status(self) -> LinkStatus:
        """Return how the link is at the moment."""
        return self._reporter.status(primary=self._address, missing=self.missing)

    # --- one connection ---

    async def _serve(self) -> None:
        """Use one Network Connection from its beginning to its end; return to use another address that answers.

        Raises:
            FanoutError: Why it ended.
        """
        clock, session = self._clock, self._session
        stopping = False
        self._failure = None
        self._reporter.begin_attempt()
        watches: list[asyncio.Task[None]] = []
        if self._addresses.current:
            watches.append(asyncio.create_task(self._watch_preferred(), name=f"link-{self.config.name}-preferred"))
        if self._comparison is not None:
            watching = self._watch_list(self._comparison)
            watches.append(asyncio.create_task(watching, name=f"link-{self.config.name}-list"))
        if self.config.heartbeat_s and self.config.version == 5:
            watches.append(asyncio.create_task(self._watch_backlog(), name=f"link-{self.config.name}-backlog"))
        for watch in watches:
            watch.add_done_callback(self._watch_ended)
        connection = LinkConnection(
            on_data=self._driver.receive,
            on_closed=self._attention.set,
            read_ahead_bytes_max=READ_AHEAD_FACTOR * self.config.receive_buffer_bytes,
            monotonic=clock.monotonic,
        )
        try:
            password = read_password(self.config)
            begun = session.open(
                password=password, now_ns=clock.now_ns(), now=clock.monotonic(), address=str(self._address)
            )
            self._driver.act(begun)
            await self._connect(connection)
            while not (self._failed() or connection.closed.is_set()):
                await self._wait_attention(_NEVER)
                if self._tear_down_reason is not None and not self._failed():
                    await self._tear_down(connection)
                if self._preferred is not None and self._reporter.state is LinkState.LIVE and not self._failed():
                    session.leave(now=clock.monotonic())
                    self._logger.info("preferred address answers", primary=str(self.config.primaries[self._preferred]))
                    return
            if self._failure is not None:
                raise self._failure
            raise self._lost(connection.error)
        except asyncio.CancelledError:
            stopping = True
            session.close(end_session=self._commit_gate is None, now=clock.monotonic())
            raise
        finally:
            for watch in watches:
                watch.cancel()
            self._driver.write_and_plan()
            await connection.close()
            self._connection = None
            self._driver.detach()
            self._driver.act(session.lost(now_ns=clock.now_ns(), now=clock.monotonic()))
            # Of a node that stops nobody reads any more, and what is on disk without a session is not taken up again.
            if self._tear_down_reason is not None and not stopping:
                await self._tear_down(None)
            if watches:
                await asyncio.wait(watches, timeout=_WATCHES_END_S)

    async def _connect(self, connection: LinkConnection) -> None:
        """Connect to the address in use, unless the attempt fails meanwhile: stale values have no time to wait for it.

        Raises:
            PrimaryUnreachable: Nothing accepted the connection in time, or what answers is no such primary.
        """
        try:
            async with asyncio.timeout(None) as self._attempt:
                self._tls = tls = await load_tls_in_thread(self.config, self._address)
                primary_expires_s = await connect(
                    connection,
                    self._address,
                    receive_buffer_bytes=self.config.receive_buffer_bytes,
                    timeout_s=self.config.connect_timeout_s,
                    tls=tls,
                    frame_bytes_max=self.config.packet_bytes_max,
                )
        except TimeoutError:
            return
        finally:
            self._attempt = None
        self._reporter.note_certificates(
            client_expires_s=None if tls is None else tls.client_expires_s, primary_expires_s=primary_expires_s
        )
        self._connection = connection
        self._driver.attach(connection)
        connection.hold(not self._free.is_set())
        self._driver.write_and_plan()

    def _lost(self, error: Exception | None) -> FanoutError:
        """Return the error for a connection that is gone.

        Args:
            error: What the system or OpenSSL said; None when the primary closed it.
        """
        if isinstance(error, FanoutError):
            return error
        if isinstance(error, ssl.SSLError) and self._tls is not None:  # an alert, behind the handshake with TLS 1.3
            return self._tls.failure(error, self._address)
        hint = "When this repeats, the primary's log says why; perhaps another client has the same client_id"
        if self._session.life.state is LinkState.CONNECTING:
            hint = unanswered_hint(self.config, address=self._address)
        return LinkLost(f"the connection was lost: {error or 'the primary closed it'}", hint=hint)

    def _failed(self) -> bool:
        return self._failure is not None

    async def _watch_preferred(self) -> None:
        """Ask the addresses in front of the one in use, on connections of their own, until one answers."""
        better = self.config.primaries[: self._addresses.current]
        while True:
            await asyncio.sleep(self.config.retry_max_s)
            if self._reporter.state is not LinkState.LIVE or self._session.life.auditing:
                continue
            for index, address in enumerate(better):
                allowed = self._addresses.may_return(index, self._clock.monotonic())
                if allowed and await probe.ask(address, self.config, node_id=self._node_id):
                    self._preferred = index
                    self._attention.set()
                    return

    async def _watch_backlog(self) -> None:
        """Ask the primary how far it has counted, on a connection of its own, while heartbeats are late."""
        while True:
            await asyncio.sleep(self.config.heartbeat_s)
            if self._session.backlog.is_wanted(self._clock.monotonic()):
                answer = await probe.ask(self._address, self.config, node_id=self._node_id)
                if answer is not None and answer.count is not None:
                    self._session.backlog.tell(answer.count)

    async def _watch_list(self, comparison: ListCheck) -> None:
        """Compare what is held with the primary's list of retained messages, each time the link has become live."""
        while True:
            await self._became_live.wait()
            self._became_live.clear()
            backoff = Backoff(min_s=self.config.retry_min_s, max_s=self.config.retry_max_s)
            while self._reporter.state is LinkState.LIVE and not await self._agrees(comparison):  # noqa: ASYNC110
                await asyncio.sleep(backoff.next_delay_s())  # there is no event for it

    async def _agrees(self, comparison: ListCheck) -> bool:
        """Note what agrees with the primary's list, and return whether everything does."""
        agrees = True
        async for index, agreed in comparison.compare():
            if agreed:
                self._driver.act(self._session.confirm_count(index))
            agrees &= agreed
        return agrees

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self._on_crash(error)

    async def _rest(self, until: float) -> None:
        """Wait before the next attempt; what is due meanwhile is done."""
        self._driver.write_and_plan()
        while self._clock.monotonic() < until:
            await self._wait_attention(until)
            self._driver.write_and_plan()
            if self._tear_down_reason is not None:
                await self._tear_down(None)

    async def _wait_attention(self, until: float) -> None:
        """Wait until there is something to do, or until a time.

        Raises:
            BaseException: What a callback raised.
        """
        try:
            async with asyncio.timeout(None if until == _NEVER else until - self._clock.monotonic()):
                await self._attention.wait()
        except TimeoutError:
            return
        self._attention.clear()
        if self._crash is not None:
            raise self._crash

    async def _tear_down(self, connection: LinkConnection | None) -> None:
        """Remove the replica in pieces, telling local clients, while other tasks have their turn; none while held."""
        clock = self._clock
        reason, self._tear_down_reason = self._tear_down_reason or "", None
        topics = len(self._replica)
        clients = await self._sink.prepare_tear_down(self.config.name)
        await self._free.wait()
        for changes in self._replica.tear_down(piece_topics(clients), now_ns=clock.now_ns()):
            if self._commit_gate is not None:
                self._commit_gate.remove(changes)
            self._sink.dispatch(changes)
            await asyncio.sleep(0)
            await self._free.wait()
        self._reporter.note_torn_down(reason, topics=topics)
        if connection is not None and connection.closed.is_set():
            self._driver.act(self._session.lost(now_ns=clock.now_ns(), now=clock.monotonic()))
        self._driver.act(self._session.torn_down(now_ns=clock.now_ns(), now=clock.monotonic()))
        self._driver.write_and_plan()

    # --- what happens on the event loop ---

    def _on_event(self, event: Event) -> None:
        match event:
            case Forwarded(token, reason_code):
                verdict = self._verdicts.pop(token, None)
                if verdict is not None and not verdict.done():
                    verdict.set_result(reason_code)
            case TearDown(reason):
                self._tear_down_reason = reason
                self._attention.set()
            case Failed(error):
                self._failure = error
                self._attention.set()
                if self._attempt is not None:
                    self._attempt.reschedule(asyncio.get_running_loop().time())
            case _:
                self._reporter.take(event)
                if isinstance(event, AuditEnded):
                    self._answer_audit(event.report)
                elif isinstance(event, StateEntered) and event.state is LinkState.LIVE:
                    self._was_live = True
                    self._became_live.set()
                    if self._preferred is not None:  # it answered while the link was stalled or verifying
                        self._attention.set()

    def _answer_audit(self, report: AuditReport) -> None:
        waiters, self._audit_waiters = self._audit_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(report)

    def _on_crash(self, error: BaseException) -> None:
        """Let `run` end with a bug."""
        self._crash = error
        self._attention.set()
