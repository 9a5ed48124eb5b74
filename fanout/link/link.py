"""The link to one primary: it runs a session machine over real connections, with real time, while the node runs.

Owns the task, the choice of address, retries, tear-downs, and the futures of callers that wait for the primary.
`fanout.link.driver` drives the machine of `fanout.link.session.machine`; `fanout.link.reporter` reports its status.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence

from structlog.typing import FilteringBoundLogger

from fanout.chain.stamp import StampCount
from fanout.config import Address, LinkConfig, read_password
from fanout.config.changes import takes_selectors_alone
from fanout.errors import AuditRefused, FanoutError, LinkLost, TlsFailed
from fanout.link.absence_evidence import AbsenceEvidence
from fanout.link.driver import Driver
from fanout.link.durability.commit_gate import CommitGate, ValueStore
from fanout.link.durability.session_codec import encode_session, find_resumption
from fanout.link.exact_names import NamedAnswer, ask_by_name
from fanout.link.list_check import ListCheck
from fanout.link.liveness.member_cuts import MemberCuts
from fanout.link.missing_topics import MissingTopics
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.counters import LinkCounters
from fanout.link.model.events import (
    AuditEnded,
    Event,
    Failed,
    Forwarded,
    HeartbeatReturned,
    MarkerPassed,
    StateEntered,
    TearDown,
)
from fanout.link.model.resumption import Resumption
from fanout.link.model.states import LinkState
from fanout.link.model.status import Clock, LinkSink, LinkStatus
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.forwarding import NOT_TAKEN, UNAVAILABLE
from fanout.link.protocol.handshake import unanswered_hint
from fanout.link.protocol.name_request import CHUNK_NAMES
from fanout.link.protocol.sender import OutgoingMessage
from fanout.link.publisher import Publisher
from fanout.link.reporter import Reporter
from fanout.link.sample_watch import SampleWatch
from fanout.link.session.machine import LinkSession
from fanout.link.session.teardown import piece_topics
from fanout.link.side_tasks import SideTasks
from fanout.link.snapshot.sampling import Sampling
from fanout.link.transport.connection import READ_AHEAD_FACTOR, LinkConnection, connect, is_close
from fanout.link.transport.failover import AddressChoice
from fanout.link.transport.tls import LinkTls, load_tls_in_thread
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.unconfirmed import UnconfirmedTopics
from fanout.replica.update import Changes
from fanout.selection import Selector

__all__ = ["Link"]

_NEVER = float("inf")
_PUBLISHING_END_S = 5.0
"""Seconds in which the task that publishes over MQTT 3.1.1 must end."""
_ACCEPTED_BEFORE = (
    "It accepted this link before, so its address is right: see whether the primary is frozen, overloaded or starting"
)


class Link:
    """Link of a node to one primary; `run` connects it and keeps it connected."""

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
        """Begin in the state `DOWN`.

        Args:
            config: Its configuration.
            node_id: This node.
            replica: Its replica, made with its selectors; only the link changes it.
            sink: Receiver of batches and events.
            clock: Clock of the node.
            logger: Logger; the name of the link is added to every line.
            store: Store in which values survive the process; None for none.
            stamps: The node's stamp counter, used with `stamp_updates`; None stamps nothing.
        """
        self._node_id = node_id
        self._replica = replica
        self._sink = sink
        self._clock = clock
        self._logger = logger.bind(link=config.name)
        self._store = store
        self._stamps = stamps
        self._free = asyncio.Event()
        """Set unless the link is held by backpressure."""
        self._free.set()
        self._is_reselecting = False
        """True while values move to other selectors, so that nothing is read."""
        self._attention = asyncio.Event()
        """Set when the task has something to do: a failure, a tear-down, the end of a connection or of backpressure."""
        self._forward_answers: dict[int, asyncio.Future[ReasonCode]] = {}
        """Token of a forwarded message to the future for the primary's answer."""
        self._audit_waiters: list[asyncio.Future[AuditReport]] = []
        self._change: tuple[LinkConfig | None, asyncio.Future[None]] | None = None
        """Another configuration to take, None for the end of the link, and what waits for that; None for no change."""
        self._begin(config, counters=None)

    def _begin(self, config: LinkConfig, *, counters: LinkCounters | None) -> None:
        """Make everything that depends on the configuration: the machine is down, and has no session.

        Args:
            config: The configuration.
            counters: Counters to go on with; None for new ones.
        """
        clock, node_id, replica, sink = self._clock, self._node_id, self._replica, self._sink
        self.config = config
        """Its configuration."""
        self._commit_gate = None if self._store is None else CommitGate(self._store, config, node_id=node_id)
        self._session = LinkSession(
            config,
            node_id=node_id,
            replica=replica,
            nonce=clock.now_ns(),
            stamps=self._stamps,
            counters=counters,
            piece_topics=lambda: piece_topics(sink.client_count()),
        )
        self.missing = MissingTopics(config.control_topic, node_id=node_id, counters=self._session.counters)
        """Missing topics to announce at the primary; `fanout.node.missing_topics` fills it."""
        list_check = (
            None
            if config.count_url is None
            else ListCheck(config, session=self._session, replica=replica, logger=self._logger)
        )
        sampling = Sampling(config, replica=replica, pipeline=self._session.pipeline, seed=clock.now_ns())
        self._reporter = Reporter(
            config,
            session=self._session,
            replica=replica,
            list_check=list_check,
            sampling=sampling,
            sink=sink,
            clock=clock,
            logger=self._logger,
        )
        self._addresses = AddressChoice(len(config.primaries), min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._asking = asyncio.Lock()
        """Held during a request by name: all have one Client Identifier, so a second would take over the first."""
        self._chunk_names = CHUNK_NAMES
        """Number of names in a SUBSCRIBE that the primary is known to take."""
        self._is_apart = False
        """True if a connection with another Client Identifier is known to get no session of the link."""
        self._connection: LinkConnection | None = None
        self._tls: LinkTls | None = None
        """TLS of the newest connection; None without TLS."""
        self._attempt: asyncio.Timeout | None = None
        """Timeout of the attempt to connect under way; None for none."""
        self._retry_now = False
        """True if the next attempt to connect was asked for, so that no pause goes before it."""
        self._failure: FanoutError | None = None
        self._tear_down_reason: str | None = None
        self._crash: BaseException | None = None
        self._live_since_s: float | None = None
        """When the link became live, monotonic seconds; None while it is not."""
        self._live_s: float | None = None
        """Seconds for which it was live on the newest connection; None for never."""
        self._driver = Driver(
            config.name,
            session=self._session,
            replica=replica,
            sink=sink,
            commit_gate=self._commit_gate,
            clock=clock,
            on_event=self._on_event,
            on_full=self._reporter.note_refusals,
            on_unconfirmed=self._reporter.note_unconfirmed,
            on_crash=self._on_crash,
        )
        self._publisher: Publisher | None = None
        """Publisher of messages of clients over MQTT 3.1.1; None over MQTT 5, where the link's own session does it."""
        if config.version == 4:
            self._publisher = Publisher(
                config,
                node_id=node_id,
                address=lambda: self._address,
                skipped=self._session.skipped,
                clock=clock,
                logger=self._logger,
                on_event=self._on_event,
            )
        self._samples = SampleWatch(
            config,
            sampling=sampling,
            session=self._session,
            clock=clock,
            logger=self._logger,
            ask=self.ask_by_name,
            audit=self._audit_for_sample,
            write=self._driver.write_and_plan,
        )
        self._side_tasks = SideTasks(
            config,
            node_id=node_id,
            session=self._session,
            driver=self._driver,
            reporter=self._reporter,
            addresses=self._addresses,
            samples=self._samples,
            list_check=list_check,
            absence_evidence=AbsenceEvidence(
                config,
                replica=replica,
                list_check=list_check,
                ask_by_name=self.ask_by_name,
                logger=self._logger,
            ),
            ask_by_name=self.ask_by_name,
            clock=clock,
            on_preferred=self._attention.set,
            on_crash=self._on_crash,
        )

    def restore(self, resumption: Resumption) -> None:
        """Take over the session of an earlier process, whose values the replica has; to be called before `run`."""
        self._session.restore(resumption, now_ns=self._clock.now_ns(), now=self._clock.monotonic())

    async def run(self) -> None:
        """Connect, replicate and connect again, until cancelled.

        At the end the session at the primary is ended, unless its values survive the process.
        """
        publishing = self._begin_publishing()
        try:
            while True:
                if self._change is not None:
                    await self._end_publishing(publishing)
                    publishing = None
                    await self._take_change(*self._change)
                    publishing = self._begin_publishing()
                failed = False
                try:
                    await self._serve()
                except FanoutError as error:
                    failed = True
                    self._reporter.note_failure(error, primary=self._address)
                if self._change is not None:
                    continue
                live_s, self._live_s = self._live_s, None
                preferred, self._side_tasks.preferred = self._side_tasks.preferred, None
                now = self._clock.monotonic()
                if not failed and preferred is not None:
                    self._addresses.take(preferred, now, live_s=live_s or 0.0)
                elif live_s is not None:
                    # Not a primary that closes each connection soon: it closes those with a certain message.
                    self._addresses.lose(now, live_s=_NEVER if self._session.was_lost_at_message else live_s)
                else:
                    self._addresses.fail(now)
                await self._wait_retry(self._addresses.try_at_s)
        finally:
            self._driver.stop()
            await self._end_publishing(publishing)
            self._answer_audit(AuditReport(False, failure="the node is stopping"))
            if self._change is not None:
                self._change[1].cancel()

    def _begin_publishing(self) -> asyncio.Task[None] | None:
        if self._publisher is None:
            return None
        publishing = asyncio.create_task(self._publisher.run(), name=f"link-{self.config.name}-publish")
        publishing.add_done_callback(self._note_publishing_end)
        return publishing

    async def _end_publishing(self, publishing: asyncio.Task[None] | None) -> None:
        """End the task of `_begin_publishing`; unanswered messages may have arrived or not."""
        if publishing is not None:
            publishing.cancel()
            await asyncio.wait([publishing], timeout=_PUBLISHING_END_S)
        for answer in self._forward_answers.values():
            if not answer.done():
                answer.set_result(UNAVAILABLE)
        self._forward_answers.clear()

    async def change(self, config: LinkConfig) -> None:
        """Take another configuration of the same name while `run` runs; return once it is in force.

        If only the selectors differ, a live link keeps its connection. Else it connects anew. It goes on with its
        session where the session may have the new selectors (MQTT 5, the same identity, an address in common); then
        values of selectors that stay are kept and verified. In both cases only the values of others are removed, or
        proved once the link is live. Without the session all values are removed first. Subscribers are told of each
        removal. Cancelling does not stop it.
        """
        await self._ask_for_change(config)

    async def remove(self) -> None:
        """End the session at the primary, and remove all values, while `run` runs; it does nothing from then on."""
        await self._ask_for_change(None)

    async def _ask_for_change(self, config: LinkConfig | None) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._change = config, done
        self._attention.set()
        if self._attempt is not None:
            self._attempt.reschedule(asyncio.get_running_loop().time())
        await asyncio.shield(done)

    async def _take_change(self, config: LinkConfig | None, done: asyncio.Future[None]) -> None:
        """Remove the values that do not stay, and begin with another configuration, or wait to be cancelled."""
        now_ns, node_id = self._clock.now_ns(), self._node_id
        resumption: Resumption | None = None
        session, former = self._session.stored_session(), self.config
        if config is not None and session is not None:
            stored = encode_session(session, former, node_id=node_id, seen_ns=now_ns)
            resumption = find_resumption(stored, config, node_id=node_id)
        if config is None or resumption is None:
            topics = len(self._replica)
            clients = await self._sink.prepare_tear_down(former.name, former.selectors)
            await self._remove(self._replica.tear_down, clients=clients)
            self._reporter.note_torn_down("the configuration has changed", topics=topics)
        else:
            clients = await self._sink.prepare_tear_down(former.name, self._gone(config))
            await self._remove(self._outside(config), clients=clients)
        self._driver.stop()
        if config is not None:
            for _ in self._replica.select(config.selectors):
                await asyncio.sleep(0)
            joined = self._session.lifecycle.joining
            proved = {one for index, one in enumerate(former.selectors) if index not in joined}
            self._begin(config, counters=self._session.counters)
            if not self._free.is_set():
                self._session.hold(True, now=self._clock.monotonic())
            if resumption is not None:
                joining = (index for index, one in enumerate(config.selectors) if one not in proved)
                self.restore(dataclasses.replace(resumption, joining=frozenset(joining)))
            self._reporter.note_changed()
        elif self._commit_gate is not None:
            self._commit_gate.forget()
        self._change = None
        done.set_result(None)
        if config is None:
            await asyncio.Event().wait()

    async def _reselect(self, config: LinkConfig, done: asyncio.Future[None]) -> None:
        """Take other selectors on the connection of the live link, which reads nothing while values are removed.

        Nothing has changed if the link is not live any more once the clients are disconnected that are to be.
        """
        clock, session, former = self._clock, self._session, self.config.selectors
        clients = await self._sink.prepare_tear_down(config.name, self._gone(config))
        if not session.may_reselect:
            return
        self._is_reselecting = True
        self._adjust_reading()
        try:
            self._driver.do(session.lifecycle.give_up_comparison)
            await self._remove(self._outside(config), clients=clients)
            for _ in self._replica.select(config.selectors):
                await asyncio.sleep(0)
        finally:
            self._is_reselecting = False
        self.config = config
        if self._commit_gate is not None:
            self._commit_gate.reselect(config)
        self._samples.sampling.reselect()
        self._reporter.note_changed()
        if self._free.is_set():
            session.hold(False, now=clock.monotonic())
        self._driver.do(session.reselect, former)
        self._adjust_reading()
        self._change = None
        done.set_result(None)

    def _gone(self, config: LinkConfig) -> list[Selector]:
        """Return the selectors that another configuration does not have."""
        return [one for one in self.config.selectors if one not in config.selectors]

    def _outside(self, config: LinkConfig) -> Callable[..., Iterator[Changes]]:
        """Return what removes the values that another configuration does not cover."""
        return functools.partial(self._replica.drop_outside, [one for one in config.selectors if not one.live_only])

    async def _remove(self, pieces: Callable[..., Iterator[Changes]], *, clients: int) -> None:
        """Remove values in pieces, and dispatch the removals; other tasks get turns, and it pauses while held.

        Args:
            pieces: Removes the values; its first argument is the number of topics in a piece.
            clients: Number of clients that are told of each removal.
        """
        await self._free.wait()
        for changes in pieces(piece_topics(clients), now_ns=self._clock.now_ns()):
            if self._commit_gate is not None:
                self._commit_gate.remove(changes)
            self._sink.dispatch(self.config.name, changes)
            await asyncio.sleep(0)
            await self._free.wait()

    def forward(self, row: PublishRow, *, prefix: bytes) -> ReasonCode | asyncio.Future[ReasonCode]:
        """Publish a local client's message at the primary, from where it comes back as an update.

        Args:
            row: The PUBLISH, with a local Topic Name; it is sent at its QoS, at least 1.
            prefix: Prefix of the selector, which is removed from the topic.

        Returns:
            The primary's Reason Code, or the nearest that PUBACK may carry; at once when the message is not sent
            (`LinkSession.forward`). It is `fanout.link.protocol.forwarding.UNAVAILABLE` when the session ends before
            the primary answers; the message may have arrived or not.
        """
        topic, payload, flags, _, properties, expiry_s, _ = row
        message = OutgoingMessage(
            topic.removeprefix(prefix),
            payload,
            qos=max(1, flags >> 1 & 3),
            retain=bool(flags & 1),
            properties=properties,
            expiry_s=expiry_s,
        )
        return self._publish(message)

    def announce_missing(self, payload: bytes) -> ReasonCode | asyncio.Future[ReasonCode]:
        """Publish an announcement of `missing` at the primary; return as `forward` does."""
        return self._publish(OutgoingMessage(self.missing.topic, payload))

    def _publish(self, message: OutgoingMessage) -> ReasonCode | asyncio.Future[ReasonCode]:
        if self._publisher is None:
            token = self._session.forward(message, now_ns=self._clock.now_ns(), now=self._clock.monotonic())
        elif self._session.lifecycle.state is not LinkState.LIVE:
            token = UNAVAILABLE
        elif not self._session.peer.system_topics.may_publish:
            token = NOT_TAKEN
        else:
            token = self._publisher.forward(message)
        if isinstance(token, ReasonCode):
            return token
        self._driver.write_and_plan()
        answer = self._forward_answers[token] = asyncio.get_running_loop().create_future()
        return answer

    def retry(self) -> None:
        """Try again at once what failed: something may have changed here or at the primary.

        Without a connection, connect without the rest of the pause. While live, request again what the primary refused.
        """
        if self._connection is None:
            self._retry_now = True
            self._attention.set()
        else:
            self._driver.do(self._session.lifecycle.recheck)

    def hold(self, held: bool) -> None:
        """Apply backpressure: stop reading and removing while a consumer is full."""
        if held:
            self._free.clear()
        else:
            self._free.set()
            self._attention.set()  # work put off meanwhile may be due, also without a connection
        self._adjust_reading()

    def _adjust_reading(self) -> None:
        """Stop to read, or read again, as backpressure and a change of selectors allow."""
        held = self._is_reselecting or not self._free.is_set()
        self._session.hold(held, now=self._clock.monotonic())
        if self._connection is not None:
            self._connection.hold(held)
            if not held:
                self._driver.write_and_plan()

    async def wait_forwarded(self) -> None:
        """Wait until every forwarded message is answered, or its session has ended."""
        if self._forward_answers:
            await asyncio.wait(self._forward_answers.values())

    async def audit(self, *, confirmed: int | None = None) -> AuditReport:
        """Compare the replica with the primary now, repair it, and return the report.

        The link first requests again what the primary has refused, or not shown. Cancelling does not stop the audit.

        Args:
            confirmed: Number of unconfirmed topics that an operator confirmed as deleted at the primary; None for no
                confirmation.

        Raises:
            AuditRefused: No audit can begin now, or another number of topics is unconfirmed.
        """
        return await self._audit(confirmed=confirmed, recheck=True)

    async def _audit_for_sample(self, first: int) -> AuditReport:
        """Audit the link because a sample differs, beginning with the selector at a position."""
        return await self._audit(reason="sample", first=first)

    async def audit_for_pool(self, first: int) -> AuditReport:
        """Audit the link because members of its pool hold different values; this one may be right.

        Args:
            first: Position of the selector whose set is taken first.

        Raises:
            AuditRefused: No audit can begin now.
        """
        return await self._audit(reason="pool", first=first)

    def cut(self, nodes: Iterable[str]) -> None:
        """Give the members of a pool one more place at which they compare what they hold: a heartbeat, while live.

        Args:
            nodes: The other members, whose heartbeats this link listens to from now on.
        """
        self._driver.do(self._session.cut, nodes)

    @property
    def control(self) -> ControlChannel:
        """Control channel: whether markers come back, and when; another object after a reload."""
        return self._session.control

    @property
    def cuts(self) -> MemberCuts:
        """Heartbeats and cuts of the members of the pool, as far as they come here; another object after a reload."""
        return self._session.cuts

    @property
    def may_cut(self) -> bool:
        """True if `cut` would give a place now: the link is live, audits nothing, and its heartbeats come back."""
        return self._session.may_send_heartbeat

    @property
    def may_send_marker(self) -> bool:
        """True if `send_marker` would send one now: it may cut, and listens to other members."""
        return bool(self._session.cuts.topics) and self.may_cut

    def send_marker(self) -> str:
        """Send a heartbeat now, as a place that the streams of all members have in common, and return its marker.

        Raises:
            ValueError: None can be sent now (`may_send_marker`).
        """
        payload = self._session.send_heartbeat(now=self._clock.monotonic()) if self.may_send_marker else None
        if payload is None:
            raise ValueError(f"link {self.config.name!r} can send no marker now")
        self._driver.write_and_plan()
        return payload.decode()

    def tell_alone(self, instance: str) -> bool:
        """Tell the members of a pool, at the primary, that sessions go on without copies here.

        Args:
            instance: Identifier of this process for them.

        Returns:
            True if that could be sent; it comes back as the heartbeats do (`MemberCuts.said_alone_s`).
        """
        is_told = self._session.tell_alone(instance, now=self._clock.monotonic())
        self._driver.write_and_plan()
        return is_told

    async def _audit(
        self, *, confirmed: int | None = None, reason: str = "", first: int = 0, recheck: bool = False
    ) -> AuditReport:
        clock = self._clock
        begun = self._session.audit(
            confirmed=confirmed,
            now_ns=clock.now_ns(),
            now=clock.monotonic(),
            reason=reason,
            first=first,
            recheck=recheck,
        )
        if isinstance(begun, str):
            hint = "Try again later" if confirmed is None else f"See: fanout audit {self.config.name} --list"
            raise AuditRefused(f"no audit of link {self.config.name} can begin: {begun}", hint=hint)
        waiter: asyncio.Future[AuditReport] = asyncio.get_running_loop().create_future()
        self._audit_waiters.append(waiter)
        self._driver.act(begun)
        self._driver.write_and_plan()
        return await waiter

    async def ask_by_name(
        self,
        topics: Sequence[str],
        *,
        username: str | None = None,
        password: bytes | None = None,
        deadline_s: float | None = None,
        qos: int = 0,
    ) -> NamedAnswer:
        """Return the retained messages that the primary sends for exact Topic Names, on a connection of its own.

        The link need not be live. One request waits for another, which has a deadline of its own. See
        `fanout.link.exact_names.ask_by_name` for errors and more.

        Args:
            topics: Topic Names at the primary.
            username: User Name in place of the link's; None for the link's, with its password.
            password: Password of `username`; None for none.
            deadline_s: Seconds that it may take; None for twice `connect_timeout_s`.
            qos: QoS of the request, 0 or 1.
        """
        async with self._asking:
            peer = self._session.peer
            answer = await ask_by_name(
                self._address,
                self.config,
                topics,
                node_id=self._node_id,
                sentinel=peer.sentinel if username is None and not qos else None,  # another user may not read it
                order=peer.order,
                username=username,
                password=password,
                clean_start=self._is_apart,
                chunk_names=self._chunk_names,
                deadline_s=2 * self.config.connect_timeout_s if deadline_s is None else deadline_s,
                qos=qos,
            )
            self._is_apart = True
            self._chunk_names = answer.chunk_names
        return answer

    @property
    def unconfirmed(self) -> UnconfirmedTopics:
        """Topics that the newest comparison with the primary did not bring; read only."""
        return self._replica.unconfirmed

    @property
    def _address(self) -> Address:
        """Address of the primary in use, or to be tried next."""
        return self.config.primaries[self._addresses.current]

    def status(self) -> LinkStatus:
        """Return the present status."""
        connection = self._connection
        lost = connection is not None and (self._failed() or connection.closed.is_set())
        return self._reporter.status(primary=self._address, missing=self.missing, lost=lost)

    # --- one connection ---

    async def _serve(self) -> None:
        """Use one Network Connection until it ends; return when a preferred address is to be used instead.

        Raises:
            FanoutError: The connection ended.
        """
        clock, session = self._clock, self._session
        stopping = by_peer = False
        self._failure = None
        self._reporter.begin_attempt(self._address)
        self._side_tasks.start()
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
                if self._change is not None:
                    config, done = self._change
                    if config is None or not (session.may_reselect and takes_selectors_alone(self.config, config)):
                        session.close(end_session=config is None, now=clock.monotonic())
                        return
                    await self._reselect(config, done)
                    continue
                await self._wait_attention(_NEVER)
                if self._tear_down_reason is not None and not self._failed():
                    await self._tear_down(connection)
                preferred = self._side_tasks.preferred
                if preferred is not None and self._reporter.state is LinkState.LIVE and not self._failed():
                    session.leave(now=clock.monotonic())
                    self._logger.info("preferred address answers", primary=str(self.config.primaries[preferred]))
                    return
            self._samples.note_connection_lost()
            if self._failure is not None:
                raise self._failure
            by_peer = is_close(connection.error)
            raise self._lost(connection.error)
        except asyncio.CancelledError:
            stopping = True
            session.close(end_session=self._commit_gate is None, now=clock.monotonic())
            raise
        finally:
            self._side_tasks.cancel()
            self._driver.write_and_plan()
            await connection.close(after_disconnect=not self._failed())
            self._connection = None
            self._driver.detach()
            self._driver.do(session.lose, by_peer)
            # Skipped when the node stops: it has no clients left, and values without a session are not restored.
            if self._tear_down_reason is not None and not stopping:
                await self._tear_down(None)
            await self._side_tasks.wait_ended()

    async def _connect(self, connection: LinkConnection) -> None:
        """Connect to the address in use; return early when the session fails meanwhile (the grace period is over).

        Raises:
            PrimaryUnreachable: Nothing accepted the connection in time, or the server is no such primary.
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
        except TlsFailed as error:
            if self._was_accepted and isinstance(error.__cause__, TimeoutError | ssl.SSLEOFError | ConnectionError):
                raise TlsFailed(address=error.address, problem=error.problem, hint=_ACCEPTED_BEFORE) from error
            raise
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
            error: Error of the system or of OpenSSL; None when the primary closed the connection.
        """
        if isinstance(error, FanoutError):
            return error
        # With TLS 1.3 an alert may come after the handshake.
        if isinstance(error, ssl.SSLError) and self._tls is not None:
            return self._tls.failure(error, self._address)
        hint = (
            "If this repeats, see the primary's log; perhaps its access rules deny something (fanout check --acl prints"
            " what the link needs), or another client has the same client_id"
        )
        if self._session.lifecycle.state is LinkState.CONNECTING:
            hint = _ACCEPTED_BEFORE if self._was_accepted else unanswered_hint(self.config, address=self._address)
        return LinkLost(f"the connection was lost: {error or 'the primary closed it'}", hint=hint)

    @property
    def _was_accepted(self) -> bool:
        """True if the primary has accepted a connection of this link at its only address."""
        return len(self.config.primaries) == 1 and self._session.counters.epochs_total > 0

    def _failed(self) -> bool:
        return self._failure is not None

    def _note_publishing_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)

    async def _wait_retry(self, until: float) -> None:
        """Wait before the next attempt, and do work that becomes due."""
        self._driver.write_and_plan()
        while self._clock.monotonic() < until and not self._retry_now and self._change is None:
            await self._wait_attention(until)
            self._driver.write_and_plan()
            if self._tear_down_reason is not None:
                await self._tear_down(None)
        self._retry_now = False

    async def _wait_attention(self, until: float) -> None:
        """Wait until there is something to do, or until a time.

        Raises:
            BaseException: A callback raised it.
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
        """Remove the replica in pieces, and dispatch the removals; other tasks get turns, and it pauses while held."""
        reason, self._tear_down_reason = self._tear_down_reason or "", None
        topics = len(self._replica)
        clients = await self._sink.prepare_tear_down(self.config.name, self.config.selectors)
        await self._remove(self._replica.tear_down, clients=clients)
        self._reporter.note_torn_down(reason, topics=topics)
        if connection is not None and connection.closed.is_set():
            self._driver.do(self._session.lose)
        self._driver.do(self._session.lifecycle.note_torn_down)

    # --- callbacks on the event loop ---

    def _on_event(self, event: Event) -> None:
        match event:
            case Forwarded(token, reason_code):
                answer = self._forward_answers.pop(token, None)
                if answer is not None and not answer.done():
                    answer.set_result(reason_code)
            case MarkerPassed(node, marker):
                self._sink.marker_passed(self.config.name, node, marker)
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
                self._side_tasks.take(event)
                if isinstance(event, HeartbeatReturned):
                    self._samples.note_heartbeat()
                elif isinstance(event, AuditEnded):
                    self._answer_audit(event.report)
                elif isinstance(event, StateEntered):
                    self._count_live_time(event.state)

    def _count_live_time(self, state: LinkState) -> None:
        now = self._clock.monotonic()
        if self._live_since_s is not None:
            self._live_s = (self._live_s or 0.0) + now - self._live_since_s
            self._live_since_s = None
        if state is LinkState.LIVE:
            self._live_since_s = now
            if self._side_tasks.preferred is not None:  # that address answered while the link was not live
                self._attention.set()

    def _answer_audit(self, report: AuditReport) -> None:
        waiters, self._audit_waiters = self._audit_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(report)

    def _on_crash(self, error: BaseException) -> None:
        """Let `run` raise an error that is a bug."""
        self._crash = error
        self._attention.set()
