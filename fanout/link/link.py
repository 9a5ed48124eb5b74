"""The link: runs a session machine over real connections, with real time, for as long as the node lives.

Owns the task, the timer, the choice of address, the retries, and the order record, acknowledge, dispatch. It makes
no decision about MQTT: that is `fanout.link.session`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from structlog.typing import FilteringBoundLogger

from fanout.config import Address, LinkConfig, read_password
from fanout.errors import AuditRefused, FanoutError, LinkLost
from fanout.link import probe
from fanout.link.addresses import AddressChoice
from fanout.link.audit import AuditReport
from fanout.link.backoff import Backoff
from fanout.link.connection import READ_AHEAD_FACTOR, LinkConnection, connect
from fanout.link.events import (
    Applied,
    AuditEnded,
    Event,
    Failed,
    Forwarded,
    HeartbeatReturned,
    SelectorComplete,
    StandingTold,
    StateEntered,
    SystemTopicsShunned,
    TearDown,
    WentStale,
)
from fanout.link.forwarding import UNAVAILABLE
from fanout.link.handshake import unanswered_hint
from fanout.link.keeping import Keeping, ValueStore
from fanout.link.kept_session import Resumption
from fanout.link.list_comparison import ListComparison
from fanout.link.missing import MissingTopics
from fanout.link.outgoing import Message
from fanout.link.proof import Evidence
from fanout.link.session import LinkSession
from fanout.link.states import LinkState
from fanout.link.status import STALE, AuditTotals, Clock, LinkSink, LinkStatus, SelectorStatus
from fanout.link.teardown import piece_topics
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.stamp import StampCount
from fanout.standing import NO_NODE, UNTOLD, Standing

__all__ = ["Link"]

_READ_AHEAD_STATES = (LinkState.SNAPSHOT, LinkState.PROVING, LinkState.RESUMING, LinkState.VERIFYING)
_NEVER = float("inf")


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
        self._keeping = None if store is None else Keeping(store, config, node_id=node_id)
        self._session = LinkSession(config, node_id=node_id, replica=replica, nonce=clock.now_ns(), stamps=stamps)
        # What the status shows is what was acted on, in order: the session may be ahead by the rest of a read.
        self._state = LinkState.DOWN
        self._standing = NO_NODE
        self._audits = AuditTotals()
        self._missing = MissingTopics(config.control_topic, node_id=node_id)
        self._announced: dict[int, str] = {}
        """Token of an announcement under way to its filter."""
        self._became_live = asyncio.Event()
        """Set when the state is entered, for who waits for it."""
        self._comparison = (
            None
            if config.count_url is None
            else ListComparison(config, session=self._session, replica=replica, logger=self._logger)
        )
        self._audit_waiters: list[asyncio.Future[AuditReport]] = []
        self._doubt = ""
        """Why updates may be missing; empty when nothing says so."""
        self._since_ns = clock.now_ns()
        self._node_id = node_id
        self._addresses = AddressChoice(len(config.primaries), min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._preferred: int | None = None
        """Position of a better address that has just answered: to be used in place of the one in use."""
        self._connection: LinkConnection | None = None
        self._held = False
        self._attention = asyncio.Event()
        """Set when the task has something to do: a failure, a tear-down, or a connection that is gone."""
        self._failure: FanoutError | None = None
        self._tear_down_reason: str | None = None
        self._crash: BaseException | None = None
        self._was_live = False
        self._unanswered = 0
        """Connections begun since the primary answered one; the first tells its states, the others are repeats."""
        self._last_error: FanoutError | None = None
        self._refusals_told = 0
        self._verdicts: dict[int, asyncio.Future[ReasonCode]] = {}
        """Token of a forwarded message to who waits for the primary's answer."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._planned_expiry_ns: int | None = None
        """The replica's next expiry when the timer was last planned."""

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
                    self._note_failure(error)
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
            if self._timer is not None:
                self._timer.cancel()
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
            `fanout.link.forwarding.UNAVAILABLE` unless the link is live, Quota exceeded when too many wait. When the
            session ends before the primary answers it is UNAVAILABLE, and the message may have arrived or not.
        """
        topic, payload, flags, _, properties, expiry_s = row
        message = Message(
            topic.removeprefix(prefix),
            payload,
            qos=max(1, flags >> 1 & 3),
            retain=bool(flags & 1),
            properties=properties,
            expiry_s=expiry_s,
        )
        token = self._session.forward(message, now_ns=self._clock.now_ns(), now=self._clock.monotonic())
        if isinstance(token, ReasonCode):
            return token
        self._write_and_plan()
        verdict = self._verdicts[token] = asyncio.get_running_loop().create_future()
        return verdict

    def hold(self, held: bool) -> None:
        """Read nothing from the primary while held: who takes the batches has too many of them."""
        self._held = held
        if self._connection is not None:
            self._connection.hold(held)

    async def wait_forwarded(self) -> None:
        """Wait until the primary has answered what was forwarded, or nobody can any more."""
        if self._verdicts:
            await asyncio.wait(self._verdicts.values())

    def announce_missing(self, topic_filter: str) -> None:
        """Tell the primary that somebody waits for topics which are not there, unless the link is not live.

        Args:
            topic_filter: At the primary.
        """
        now_ns, now = self._clock.now_ns(), self._clock.monotonic()
        if self._state is not LinkState.LIVE:
            return
        payload = self._missing.announcement(topic_filter, now=now, now_ns=now_ns)
        if payload is not None:
            token = self._session.forward(Message(self._missing.topic, payload), now_ns=now_ns, now=now)
            if not isinstance(token, ReasonCode):
                self._announced[token] = topic_filter
                self._write_and_plan()

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
        self._act(begun)
        self._write_and_plan()
        return await waiter

    @property
    def _address(self) -> Address:
        """The primary's address in use, or to be tried next."""
        return self.config.primaries[self._addresses.current]

    def status(self) -> LinkStatus:
        """Return how the link is at the moment."""
        session, replica = self._session, self._replica
        content = session.reception.content
        now = self._clock.monotonic()
        selectors = tuple(
            SelectorStatus(
                filter=selector.filter,
                topics=replica.count(index),
                digest=replica.digest(index),
                evidence=evidence,
                complete=evidence is not None and not session.life.refused_in_epoch,
                unfit=dict(content.unfit[index]) if content is not None else {},
            )
            for index, (selector, evidence) in enumerate(zip(self.config.selectors, session.life.evidence, strict=True))
        )
        return LinkStatus(
            name=self.config.name,
            primary=str(self._address),
            state=self._state,
            since_ns=self._since_ns,
            epoch=session.life.epoch,
            epochs_total=session.life.epochs_total,
            topics=len(replica),
            selectors=selectors,
            evidence=_weakest(session.life.evidence) if all(each.complete for each in selectors) else None,
            last_error=None if self._last_error is None else self._last_error.message,
            last_error_hint=None if self._last_error is None else self._last_error.hint or None,
            lag_ns=session.control.lag_ns(now),
            round_trip_ns=session.control.round_trip_ns(),
            heartbeat_age_s=session.control.age_s(now),
            received_total=session.inbox.received_total,
            outside_total=session.inbox.outside_total,
            overtaken_total=session.reception.overtaken_total,
            truncated_total=session.life.truncated_total,
            refused_total=replica.refused_total,
            payload_bytes=replica.payload_bytes,
            reconnects_total=max(0, session.inbox.connections_total - 1),
            snapshot_seconds=session.life.snapshot_seconds,
            snapshot_topics=session.life.snapshot_topics,
            withheld=self._withheld(),
            paths_above=self._standing.paths,
            stale_reason=session.life.staleness.reason,
            stale_left_s=session.life.staleness.left_s(now),
            audits=self._audits,
            missing_announced_total=self._missing.announced_total,
            missing_suppressed_total=self._missing.suppressed_total,
        )

    # --- one connection ---

    async def _serve(self) -> None:
        """Use one Network Connection from its beginning to its end; return to use another address that answers.

        Raises:
            FanoutError: Why it ended.
        """
        clock, session = self._clock, self._session
        self._failure = None
        self._unanswered += 1
        watches: list[asyncio.Task[None]] = []
        if self._addresses.current:
            watches.append(asyncio.create_task(self._watch_preferred(), name=f"link-{self.config.name}-preferred"))
        if self._comparison is not None:
            watching = self._watch_list(self._comparison)
            watches.append(asyncio.create_task(watching, name=f"link-{self.config.name}-list"))
        for watch in watches:
            watch.add_done_callback(self._watch_ended)
        connection = LinkConnection(
            on_data=self._on_data,
            on_closed=self._attention.set,
            read_ahead_bytes_max=READ_AHEAD_FACTOR * self.config.receive_buffer_bytes,
            monotonic=clock.monotonic,
        )
        try:
            password = read_password(self.config)
            begun = session.open(
                password=password, now_ns=clock.now_ns(), now=clock.monotonic(), address=str(self._address)
            )
            self._act(begun)
            await connect(
                connection,
                self._address,
                receive_buffer_bytes=self.config.receive_buffer_bytes,
                timeout_s=self.config.connect_timeout_s,
            )
            self._connection = connection
            if self._keeping is not None:
                self._keeping.connected(connection.write)
            connection.hold(self._held)
            self._write_and_plan()
            while not (self._failed() or connection.closed.is_set()):
                await self._wait_attention(_NEVER)
                if self._tear_down_reason is not None and not self._failed():
                    await self._tear_down(connection)
                if self._preferred is not None and self._state is LinkState.LIVE and not self._failed():
                    session.leave(now=clock.monotonic())
                    self._logger.info("preferred address answers", primary=str(self.config.primaries[self._preferred]))
                    return
            if self._failure is not None:
                raise self._failure
            raise LinkLost(
                f"the connection was lost: {connection.error or 'the primary closed it'}",
                hint=unanswered_hint(self.config)
                if session.life.state is LinkState.CONNECTING
                else "When this repeats, the primary's log says why; perhaps another client has the same client_id",
            )
        except asyncio.CancelledError:
            session.close(end_session=self._keeping is None, now=clock.monotonic())
            raise
        finally:
            for watch in watches:
                watch.cancel()
            if watches:
                await asyncio.wait(watches)
            self._write_and_plan()
            await connection.close()
            self._connection = None
            if self._keeping is not None:
                self._keeping.disconnected()
            self._act(session.lost(now_ns=clock.now_ns(), now=clock.monotonic()))
            if self._tear_down_reason is not None:
                await self._tear_down(None)

    def _failed(self) -> bool:
        return self._failure is not None

    async def _watch_preferred(self) -> None:
        """Ask the addresses in front of the one in use, on connections of their own, until one answers."""
        better = self.config.primaries[: self._addresses.current]
        while True:
            await asyncio.sleep(self.config.retry_max_s)
            if self._state is not LinkState.LIVE or self._session.life.auditing:
                continue
            for index, address in enumerate(better):
                if await probe.answers(address, self.config, node_id=self._node_id):
                    self._preferred = index
                    self._attention.set()
                    return

    async def _watch_list(self, comparison: ListComparison) -> None:
        """Compare what is held with the primary's list of retained messages, each time the link has become live."""
        while True:
            await self._became_live.wait()
            self._became_live.clear()
            backoff = Backoff(min_s=self.config.retry_min_s, max_s=self.config.retry_max_s)
            while self._state is LinkState.LIVE and not await self._agrees(comparison):  # noqa: ASYNC110  # no event
                await asyncio.sleep(backoff.next_delay_s())

    async def _agrees(self, comparison: ListComparison) -> bool:
        """Note what agrees with the primary's list, and return whether everything does."""
        agrees = True
        async for index, agreed in comparison.compare():
            if agreed:
                self._act(self._session.confirm_count(index))
            agrees &= agreed
        return agrees

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and watch.exception() is not None:  # a bug: `run` ends with it
            self._crash = watch.exception()
            self._attention.set()

    async def _rest(self, until: float) -> None:
        """Wait before the next attempt; what is due meanwhile is done."""
        self._write_and_plan()
        while self._clock.monotonic() < until:
            await self._wait_attention(until)
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
        """Remove the replica in pieces, telling local clients, while other tasks have their turn."""
        clock = self._clock
        reason, self._tear_down_reason = self._tear_down_reason or "", None
        topics = len(self._replica)
        clients = await self._sink.prepare_tear_down(self.config.name)
        for changes in self._replica.tear_down(piece_topics(clients), now_ns=clock.now_ns()):
            if self._keeping is not None:
                self._keeping.remove(changes)
            self._sink.dispatch(changes)
            await asyncio.sleep(0)
        epoch = self._session.life.epoch
        self._sink.event(self.config.name, "tear_down", detail=f"{reason}; {topics} topics were removed", epoch=epoch)
        self._logger.warning("replica torn down", reason=reason, topics=topics, epoch=epoch)
        if connection is not None and connection.closed.is_set():
            self._act(self._session.lost(now_ns=clock.now_ns(), now=clock.monotonic()))
        self._act(self._session.torn_down(now_ns=clock.now_ns(), now=clock.monotonic()))
        self._write_and_plan()

    # --- what happens on the event loop ---

    def _on_data(self, data: bytes) -> None:
        clock = self._clock
        try:
            events = self._session.receive(data, now_ns=clock.now_ns(), now=clock.monotonic())
            self._act(events)
            if not self._plan_stands(events):
                self._write_and_plan()
        except Exception as error:  # a bug, here or in the sink: `run` ends with it
            self._crash = error
            self._attention.set()

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        clock = self._clock
        try:
            self._act(self._session.tick(now_ns=clock.now_ns(), now=clock.monotonic()))
            self._write_and_plan()
        except Exception as error:
            self._crash = error
            self._attention.set()

    def _plan_stands(self, events: list[Event]) -> bool:
        """Return whether a read changed values only, as nearly all do: nothing is then due any sooner than before."""
        return (
            self._timer is not None
            and not self._session.has_output
            and len(events) == 1
            and type(events[0]) is Applied
            and self._replica.next_expiry_ns == self._planned_expiry_ns
        )

    def _write_and_plan(self) -> None:
        """Write what the session wants to send, and set the timer for what it waits for."""
        output = self._session.take_output() if self._connection is not None else b""
        if output:
            self._keep(())
            self._write(output)
        if self._connection is not None:
            self._connection.read_ahead = self._state in _READ_AHEAD_STATES or self._session.life.auditing
        now = self._clock.monotonic()
        self._planned_expiry_ns = self._replica.next_expiry_ns
        deadline = self._session.deadline(now_ns=self._clock.now_ns(), now=now)
        if deadline < self._timer_at:
            # A timer that is too early does no harm, so it is moved only when it is too late.
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - now), self._on_timer)

    def _write(self, data: bytes) -> None:
        if self._keeping is not None:
            self._keeping.write(data)
        elif self._connection is not None:
            self._connection.write(data)

    def _acknowledge(self, data: bytes) -> None:
        if self._keeping is not None:
            self._keeping.acknowledge(data)
        elif self._connection is not None:
            self._connection.write(data)

    def _keep(self, events: Sequence[Event]) -> None:
        if self._keeping is not None:
            self._keeping.keep(events, self._session.kept(), now_ns=self._clock.now_ns())

    def _act(self, events: Sequence[Event]) -> None:
        self._keep(events)
        for event in events:
            match event:
                case Applied(changes, acknowledgement, epoch):
                    if changes.updates:
                        self._sink.record(self.config.name, changes, epoch=epoch)
                    if acknowledgement:
                        self._acknowledge(acknowledgement)
                    if changes.dispatch:
                        self._sink.dispatch(changes)
                case StateEntered(state, detail):
                    self._enter(state, detail)
                case SelectorComplete(index, evidence):
                    self._tell_complete(index, evidence)
                case AuditEnded(report):
                    self._take_audit(report)
                case StandingTold(standing):
                    self._take_standing(standing)
                case HeartbeatReturned(round_trip_ns):
                    lag_us = round_trip_ns // 1000
                    self._tell("heartbeat", lag_us=lag_us)
                case Forwarded(token, reason_code):
                    announced = self._announced.pop(token, None)
                    if announced is not None and reason_code.is_failure:
                        self._logger.warning(
                            "missing topic not announced", filter=announced, reason_code=reason_code.text
                        )
                    verdict = self._verdicts.pop(token, None)
                    if verdict is not None and not verdict.done():
                        verdict.set_result(reason_code)
                case SystemTopicsShunned():
                    self._logger.warning("primary closes the connection at $SYS, not asked there any more")
                case TearDown(reason):
                    self._tear_down_reason = reason
                    self._attention.set()
                case WentStale(reason):
                    self._tell("state", state=STALE, detail=reason)
                    self._logger.warning(
                        "session lost, serving stale values", reason=reason, grace_s=self.config.grace_s
                    )
                case Failed(error):
                    self._failure = error
                    self._attention.set()
        if self._session.life.refused_in_epoch and self._refusals_told != self._session.life.epoch:
            self._refusals_told = self._session.life.epoch
            self._last_error = FanoutError(
                "the replica is full: retained values are delivered but not held",
                hint="Raise topics_max or bytes_max of the link",
            )
            self._logger.error("replica is full", topics=len(self._replica))

    def _take_standing(self, standing: Standing) -> None:
        if standing is UNTOLD:  # until the document comes, the paths stay as they were: a cycle is still one
            standing = replace(standing, paths=self._standing.paths)
        changed, self._standing = standing != self._standing, standing
        if changed:
            self._sink.standing_changed()
            self._logger.info("primary told how it stands", reason=standing.reason, hops=standing.hops)

    def _withheld(self) -> str | None:
        if self._standing.reason:
            return f"its primary is not ready: {self._standing.reason}"
        return self._doubt or self._too_weak()

    def _too_weak(self) -> str | None:
        """Return which selector's evidence is weaker than the configuration asks for."""
        wanted = Evidence(self.config.min_evidence)
        for selector, evidence in zip(self.config.selectors, self._session.life.evidence, strict=True):
            if evidence is None or evidence.is_at_least(wanted) or selector.live_only:
                continue  # with live_only there is no retained set to prove
            why = self._session.primary.why_unordered
            if wanted is Evidence.COUNT:
                why = self._session.count.why if self._comparison is None else self._comparison.why
                why = why or "the primary's figure is awaited"
            if not why and evidence is Evidence.BARRIER:
                why = f"the primary does not let the link publish below {self.config.control_topic}"
            text = f"the evidence for {selector.filter} is {evidence}, weaker than min_evidence = {wanted}"
            return f"{text}: {why}" if why else text
        return None

    def _take_audit(self, report: AuditReport) -> None:
        self._audits = self._audits.with_report(report, now_ns=self._clock.now_ns())
        # While it ran, updates came at QoS 0, which a primary drops when it is cut short, as it does with copies.
        self._doubt = f"updates may be missing since an audit failed: {report.failure}" if report.failure else ""
        self._tell("audit", detail=json.dumps(asdict(report)))
        log = self._logger.warning if report.failure or report.kept or report.changed else self._logger.info
        log("audit ended", **asdict(report))
        self._answer_audit(report)
        self._sink.standing_changed()

    def _answer_audit(self, report: AuditReport) -> None:
        waiters, self._audit_waiters = self._audit_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(report)

    def _enter(self, state: LinkState, detail: str) -> None:
        self._state = state
        self._since_ns = self._clock.now_ns()
        if state is LinkState.LIVE:
            self._was_live = True
            self._became_live.set()
            self._doubt = ""
            if self._too_weak() is not None:
                self._logger.warning("evidence is too weak to be ready", reason=self._too_weak())
        if state in (LinkState.CONNECTING, LinkState.DOWN):
            if self._unanswered > 1:
                return  # a repeated attempt is no change of state
        else:
            if self._unanswered > 1:
                self._logger.info("primary answers again", attempts=self._unanswered)
            self._unanswered = 0
        told = detail
        if state in (LinkState.SNAPSHOT, LinkState.RESUMING) and self._session.primary.node is not None:
            told = json.dumps({"primary_node": self._session.primary.node})  # reports pair the logs of both by it
        self._tell("state", state=state.value, detail=told)
        self._logger.info(
            "link state", state=state.value, detail=detail, epoch=self._session.life.epoch, topics=len(self._replica)
        )

    def _tell_complete(self, index: int, evidence: Evidence) -> None:
        selector = self.config.selectors[index]
        fence = self._session.primary.fence
        topics = self._replica.count(index)
        self._sink.event(
            self.config.name,
            "complete",
            evidence=evidence.value,
            selector=selector.filter,
            topics=topics,
            digest=self._replica.digest(index),
            detail=self._session.primary.why_unordered if fence is None else f"fence {fence.decode()}",
            epoch=self._session.life.epoch,
        )
        log = self._logger.info if evidence.is_at_least(Evidence.BARRIER) else self._logger.warning
        log(
            "snapshot complete",
            selector=selector.filter,
            evidence=evidence.value,
            topics=topics,
            detail=self._session.primary.why_unordered,
        )

    def _tell(self, event: str, *, state: str = "", lag_us: int | None = None, detail: str = "") -> None:
        self._sink.event(
            self.config.name,
            event,
            state=state,
            topics=len(self._replica),
            digest=self._replica.digest(),
            lag_us=lag_us,
            detail=detail,
            epoch=self._session.life.epoch,
        )

    def _note_failure(self, error: FanoutError) -> None:
        """Remember why a connection ended, and log it unless the attempt before ended with the same."""
        repeated = self._last_error is not None and self._last_error.message == error.message
        self._last_error = error
        if not (repeated and self._unanswered > 1):
            self._logger.warning(
                "link is down",
                error=error.message,
                hint=error.hint,
                primary=str(self._address),
            )


def _weakest(evidence: list[Evidence | None]) -> Evidence | None:
    known = [each for each in evidence if each is not None]
    if len(known) < len(evidence):
        return None
    return next(each for each in reversed(Evidence) if each in known)
