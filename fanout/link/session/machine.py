"""The MQTT session of a link as a machine: bytes and time in, bytes and events out.

Joins the parts and asks each what is due by time: `packet_router` takes packets, `lifecycle` decides what follows,
`pipeline` applies rows to the replica. `fanout.link.driver` gives it the time and acts on its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fanout.chain.stamp import StampCount
from fanout.config import LinkConfig
from fanout.errors import FanoutError, SnapshotUnproved
from fanout.link.liveness.heartbeat import Heartbeat
from fanout.link.liveness.item_lag import ItemLag
from fanout.link.liveness.keep_alive import KeepAlive
from fanout.link.liveness.member_cuts import MemberCuts, alone_payload
from fanout.link.model.counters import LinkCounters
from fanout.link.model.events import Event, Forwarded, MemberUnheard
from fanout.link.model.resumption import Resumption, StoredSession
from fanout.link.model.states import LinkState
from fanout.link.protocol.forwarding import NOT_TAKEN, UNAVAILABLE, Forwarding
from fanout.link.protocol.sender import OutgoingMessage
from fanout.link.session.lifecycle import SessionLifecycle
from fanout.link.session.packet_router import PacketRouter
from fanout.link.session.teardown import TOPICS_MAX
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.missed_values import PromiseCheck
from fanout.link.snapshot.retained_pass import RetainedPass
from fanout.mqtt.breaches import SkipReason
from fanout.mqtt.decoder import Decoder
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.selection import Selector, find_moves

__all__ = ["LinkSession"]

_IN_ORDER = (LinkState.RESUMING, LinkState.VERIFYING, LinkState.LIVE)
"""States in which updates at QoS 1 and 2 that are no copies come as the primary had them; a snapshot mixes them."""
_LATE_S = 1.0
"""A tick later than this shows that the process did not run."""


class LinkSession:
    """The session machine of one link, over all its Network Connections.

    Every method that takes the time returns events, in order; `take_output` then gives the bytes to write.

    Attributes:
        lifecycle: State, epoch and evidence of the session.
        output: Packets that `take_output` returns.
        packet_router: Router of packets.
        counters: Counters of the link.
        control: The control channel, for the lag.
        count: Comparison with the primary's count of retained messages.
        peer: The primary at the other end.
        pipeline: Path of its messages into the replica.
        skipped: Messages that cannot be replicated.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        node_id: str,
        replica: Replica,
        nonce: int,
        stamps: StampCount | None = None,
        counters: LinkCounters | None = None,
        piece_topics: Callable[[], int] = lambda: TOPICS_MAX,
    ) -> None:
        """Begin in the state `DOWN`.

        Args:
            config: The link's configuration.
            node_id: This node.
            replica: The link's replica; only this machine changes it.
            nonce: A number that differs between processes (`ControlChannel`).
            stamps: The node's stamp counter, used with `stamp_updates`; None stamps nothing.
            counters: Counters of the link, to go on with; None for new ones.
            piece_topics: Returns how many topics to remove before other work gets its turn.
        """
        context = LinkContext.make(
            config, node_id=node_id, replica=replica, nonce=nonce, stamps=stamps, counters=counters
        )
        self._config = config
        self._replica = replica
        self._sender = context.sender
        self.output = self._sender.output
        self.control = context.control
        self.count = context.count
        self.peer = context.peer
        self.pipeline = context.pipeline
        self.skipped = context.skipped
        self.counters = context.counters
        self._forwarding = Forwarding(self._sender)
        self.lifecycle = SessionLifecycle(context, forwarding=self._forwarding, seed=nonce, piece_topics=piece_topics)
        self._keep_alive = KeepAlive(config, sender=self._sender, probe_filter=self.control.probe_filter)
        self._heartbeat = Heartbeat(self.control, sender=self._sender)
        self.item_lag = ItemLag(self.control)
        """Lag in items: the updates that the primary stamped and that have not come."""
        self.cuts = MemberCuts(
            config,
            node_id=node_id,
            replica=replica,
            sender=self._sender,
            is_live=lambda: self.lifecycle.state is LinkState.LIVE and self.lifecycle.stage is None,
            is_in_order=lambda: self.lifecycle.state in _IN_ORDER,
            expired_ns=lambda: self.lifecycle.expiry.expired_ns,
        )
        """Cuts at the heartbeats of the members of a pool."""
        self.pipeline.cuts = self.cuts
        self.packet_router = PacketRouter(
            context,
            lifecycle=self.lifecycle,
            forwarding=self._forwarding,
            keep_alive=self._keep_alive,
            item_lag=self.item_lag,
            cuts=self.cuts,
        )
        self._decoder: Decoder | None = None
        """Decoder of the newest Network Connection; None before the first."""
        self._held_since: float | None = None
        """When reading was stopped, monotonic seconds; None while the link reads."""

    # --- a session that survives the process ---

    def restore(self, resumption: Resumption, *, now_ns: int, now: float) -> None:
        """Take over the session of an earlier process, whose values the replica has; to be called first.

        Args:
            resumption: The stored session.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
        """
        stored = resumption.session
        self.lifecycle.restore(
            epoch=stored.epoch, evidence=stored.evidence, at_qos_0=stored.at_qos_0, joining=resumption.joining
        )
        self.lifecycle.remote_session.restore(resumption, now_ns=now_ns, now=now)
        self.peer.learn(stored.sentinel, stored.order, stored.why_unordered, is_mosquitto=stored.is_mosquitto)
        self.control.restore(permitted=stored.control_permitted)
        self.pipeline.restore(stored.unreleased)
        self._sender.restore(stored.unfinished)

    def stored_session(self) -> StoredSession | None:
        """Return the state that a later process needs to resume the session; None without a resumable session."""
        lifecycle = self.lifecycle
        if not lifecycle.remote_session.exists:
            return None
        selectors = self._replica.selectors
        forwards = any(selector.writes == "forward" for selector in selectors)
        return StoredSession(
            epoch=lifecycle.epoch,
            evidence=tuple(lifecycle.evidence),
            sentinel=self.peer.sentinel,
            order=self.peer.order,
            why_unordered=self.peer.why_unordered,
            control_permitted=self.control.permitted,
            session_expiry_s=lifecycle.remote_session.expiry_s,
            unreleased=self.pipeline.unreleased,
            unfinished=self._sender.unfinished if forwards else frozenset(),
            stale_filters=lifecycle.remote_session.stale_filters,
            is_mosquitto=self.peer.is_mosquitto,
            at_qos_0=frozenset(selectors[index].filter for index in lifecycle.below_own_qos),
        )

    # --- what the shell calls ---

    def open(self, *, password: bytes | None, now_ns: int, now: float, address: str = "") -> list[Event]:
        """Begin a Network Connection to `address` that was just established; CONNECT is sent."""
        lifecycle = self.lifecycle
        lifecycle.at(now_ns, now)
        lifecycle.watch_clock()
        self.peer.system_topics.use(address)
        self._decoder = Decoder(
            version=self._config.version,
            packet_bytes_max=self._config.packet_bytes_max,
            known_topics=self.pipeline.converter.known_topics,
            role="client",
        )
        lifecycle.open()
        if self._held_since is not None:
            self._held_since = now
        self._sender.begin_connection()
        # [MQTT-3.2.2-4]: without own session state, the primary's is of no use.
        self._sender.connect(clean_start=not lifecycle.remote_session.exists, password=password, now=now)
        self._keep_alive.begin(now=now, timeout_s=self._config.connect_timeout_s)
        return lifecycle.take_events()

    def receive(self, data: bytes, *, now_ns: int, now: float) -> list[Event]:
        """Take bytes from the primary."""
        lifecycle, decoder = self.lifecycle, self._decoder
        lifecycle.now_ns, lifecycle.now = now_ns, now
        if decoder is None or not lifecycle.connected:
            return []
        self._keep_alive.received_s = now
        if lifecycle.stage is not None:
            lifecycle.stage.receive_bytes(now)
        try:
            for item in decoder.feed(data):
                self.packet_router.take(item)
                if lifecycle.stage is not None:
                    lifecycle.advance()
                if not self.lifecycle.connected:
                    break
            else:
                if lifecycle.stage is not None and decoder.is_passing:
                    lifecycle.stage.receive_part(now)
                if decoder.fault is not None:
                    raise decoder.fault
        except SnapshotUnproved as error:
            lifecycle.end_unproved(error)
        except FanoutError as error:
            lifecycle.fail(error)
        events, lifecycle.events = lifecycle.events, []
        return events

    def tick(self, *, now_ns: int, now: float) -> list[Event]:
        """Do the work that is due; to be called at `deadline`."""
        lifecycle = self.lifecycle
        lifecycle.at(now_ns, now)
        lifecycle.watch_clock()
        if self._held_since is None:
            lifecycle.remove_expired()
        if now >= lifecycle.stale_policy.deadline and lifecycle.state is not LinkState.TEARING_DOWN:
            lifecycle.end_grace()
        elif now >= lifecycle.abandoned_at:
            lifecycle.abandon()
        elif lifecycle.connected:
            try:
                if self._held_since is None:
                    self._tick_connected(now)
                else:
                    self._tick_held(now)
            except SnapshotUnproved as error:
                lifecycle.end_unproved(error)
            except FanoutError as error:
                lifecycle.fail(error)
        return lifecycle.take_events()

    def deadline(self, *, now_ns: int, now: float) -> float:
        """Return when to call `tick`, monotonic seconds; infinity when only bytes change anything."""
        lifecycle = self.lifecycle
        deadline = lifecycle.abandoned_at
        expiry_ns = lifecycle.next_expiry_ns
        if expiry_ns is not None and self._held_since is None:
            deadline = min(deadline, now + max(0, expiry_ns - now_ns) / 1e9)
        if lifecycle.state is not LinkState.TEARING_DOWN:
            deadline = min(deadline, lifecycle.stale_policy.deadline)
        if not lifecycle.connected:
            return deadline
        if self._held_since is not None:
            return min(deadline, self._held_deadline(now))
        if lifecycle.is_sweeping:
            return now
        deadline = min(deadline, self._answers_by())
        if lifecycle.state in (LinkState.LIVE, LinkState.STALLED) and not lifecycle.auditing:
            deadline = min(deadline, self.control.deadline(now))
        return min(deadline, lifecycle.comparison_due_s, lifecycle.absent.check_due_s, lifecycle.twin.over_s)

    def hold(self, held: bool, *, now: float) -> None:
        """Note that backpressure begins or ends: while held, the link reads nothing; `now` is monotonic seconds.

        Meanwhile nothing is swept and no expired value is removed, which would add to the load. Heartbeats and the
        Keep Alive go on. The primary's answers cannot be read, so their deadlines move by the length of the pause.
        """
        if held:
            self._held_since = now if self._held_since is None else self._held_since
        elif self._held_since is not None:
            pause_s, self._held_since = now - self._held_since, None
            self.control.begin_listening(now)
            self._postpone(pause_s)

    def run(self, step: Callable[..., None], *values: object, now_ns: int, now: float) -> list[Event]:
        """Call a step of this session, or of one of its parts.

        Args:
            step: A method that takes no time.
            values: Its arguments.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
        """
        self.lifecycle.at(now_ns, now)
        try:
            step(*values)
        except FanoutError as error:
            self.lifecycle.fail(error)
        return self.lifecycle.take_events()

    def lose(self, by_peer: bool = False) -> None:
        """Note that the Network Connection is gone, as a step of `run`.

        Args:
            by_peer: True if the other end closed it, without a word in MQTT and without a fault.
        """
        lifecycle, now_ns = self.lifecycle, self.lifecycle.now_ns
        by_primary = self.packet_router.was_disconnected or (by_peer and lifecycle.connected)
        given_up, waiting = self._forwarding.note_lost(by_primary=by_primary)
        if given_up is not None:
            lifecycle.emit(Forwarded(given_up.token, NOT_TAKEN))
            lifecycle.emit(self.skipped.note(SkipReason.CLOSES_CONNECTION, given_up.topic, now_ns=now_ns))
        lifecycle.give_up(waiting)
        lifecycle.lose()

    def forward(self, message: OutgoingMessage, *, now_ns: int, now: float) -> int | ReasonCode:
        """Publish a message of a local client at the primary.

        Args:
            message: The message; its token is assigned here.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.

        Returns:
            The token of its later `Forwarded` event; or, when the message is not accepted, the Reason Code for its
            publisher: `UNAVAILABLE` while the link is not live, unless it comes back in a moment because the primary
            closed the connection at a message; `NOT_TAKEN` when the primary does not take such a message, `BUSY` when
            too many wait.
        """
        self.lifecycle.at(now_ns, now)
        live = self.lifecycle.state is LinkState.LIVE
        if not (live or self._forwarding.is_to_blame):
            return UNAVAILABLE
        return self._forwarding.add(message, now=now, live=live)

    def audit(
        self,
        *,
        confirmed: int | None,
        now_ns: int,
        now: float,
        reason: str = "",
        first: int = 0,
        recheck: bool = False,
    ) -> list[Event] | str:
        """Begin an audit now; `AuditEnded` follows.

        Args:
            confirmed: Number of unconfirmed topics that an operator confirmed as deleted at the primary; None for no
                confirmation.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
            reason: Cause of the audit (`AuditReport`).
            first: Position of the selector whose set is taken first.
            recheck: True to request first what the primary has refused, or not shown.

        Returns:
            The events, or the reason for which no audit can begin.
        """
        self.lifecycle.at(now_ns, now)
        refused = self.lifecycle.begin_audit(confirmed=confirmed, reason=reason, first=first, recheck=recheck)
        return refused or self.lifecycle.take_events()

    @property
    def may_reselect(self) -> bool:
        """True if `reselect` can be called: the link is live, so that its selectors are subscribed and proved."""
        return self.lifecycle.connected and self.lifecycle.state is LinkState.LIVE

    def reselect(self, before: Sequence[Selector]) -> None:
        """Go on with the selectors that the replica has now, on the Network Connection that there is; a step of `run`.

        Args:
            before: The former selectors.

        Raises:
            PrimaryRefused: A selector exceeds a limit of the primary.
        """
        lifecycle, selectors = self.lifecycle, self._replica.selectors
        lifecycle.give_up_comparison()  # what began meanwhile
        moves = find_moves(before, selectors)
        self.pipeline.reselect(moves)
        self.count.reselect(selectors, lifecycle.now)
        self.cuts.reselect()
        lifecycle.reselect(before, moves)

    @property
    def was_lost_at_message(self) -> bool:
        """True if the newest connection may have been closed at a message of a client, by a primary that is well."""
        return self._forwarding.is_to_blame

    @property
    def may_send_heartbeat(self) -> bool:
        """True if `send_heartbeat` would send one now."""
        lifecycle, control = self.lifecycle, self.control
        is_current = lifecycle.state is LinkState.LIVE and lifecycle.stage is None
        return is_current and control.is_open and control.has_room_to_spare and self._heartbeat.may_send

    def send_heartbeat(self, *, now: float) -> bytes | None:
        """Send a heartbeat before it is due, and return its payload.

        None when the link is not live, its heartbeats do not come back, or the next one that is due needs the room.
        """
        return self._heartbeat.send(now) if self.may_send_heartbeat else None

    def tell_alone(self, instance: str, *, now: float) -> bool:
        """Publish on the control topic that a process goes on alone; return False when nothing can be published."""
        control = self.control
        if self.lifecycle.state is not LinkState.LIVE or not control.is_open or not self._sender.free:
            return False
        self._sender.publish(OutgoingMessage(control.topic, alone_payload(instance)), now=now)
        return True

    def cut(self, nodes: Iterable[str]) -> None:
        """Listen to the heartbeats of the other members of the pool, and send one before it is due; a step of `run`.

        Args:
            nodes: The other members.
        """
        lifecycle, now = self.lifecycle, self.lifecycle.now
        if lifecycle.state is LinkState.LIVE and lifecycle.stage is None:
            connection = self.counters.connections_total
            for topic in self.cuts.listen_to(nodes, connection=connection, now=now):
                lifecycle.emit(MemberUnheard(topic, "the primary does not accept so long a SUBSCRIBE"))
            if self.control.may_send_early(now):
                self.send_heartbeat(now=now)

    def names_in_doubt(self, count: int) -> list[str]:
        """Return Topic Names to request at QoS 1, as a `PromisesAsked` event asked; none once the answer is known."""
        return self.lifecycle.missed.names(count) if isinstance(self.lifecycle.stage, PromiseCheck) else []

    def close(self, *, end_session: bool, now: float) -> None:
        """Send DISCONNECT because the node stops.

        Args:
            end_session: True to end the session: the replica does not survive the process.
            now: Monotonic seconds.
        """
        if self.lifecycle.connected and self.lifecycle.state is not LinkState.CONNECTING:
            if not end_session and self.lifecycle.remote_session.exists:
                self.leave(now=now)
                return
            if self.peer.sentinel == self.control.sentinel_topic and self._sender.free:
                self._sender.publish(OutgoingMessage(self.control.sentinel_topic, b"", retain=True), now=now)
            self._sender.disconnect(ReasonCode.SUCCESS, end_session=True, now=now)

    def leave(self, *, now: float) -> None:
        """Send DISCONNECT and leave the session, at the QoS of its selectors, to the next Network Connection."""
        if isinstance(self.lifecycle.stage, RetainedPass):
            self.lifecycle.stage.give_up(now)
        self._sender.disconnect(ReasonCode.SUCCESS, end_session=False, now=now)

    def take_output(self) -> bytes:
        """Return the bytes to write; they are not returned again."""
        return self._sender.take()

    # --- time ---

    def _postpone(self, pause_s: float) -> None:
        """Move all deadlines of answers by a pause, and by the time to read what came meanwhile."""
        pause_s += self._config.snapshot_quiet_s
        self._keep_alive.postpone(pause_s)
        if self.lifecycle.stage is not None:
            self.lifecycle.stage.postpone(pause_s)

    def _tick_connected(self, now: float) -> None:
        lifecycle = self.lifecycle
        late_s = now - self._answers_by()
        if late_s > _LATE_S:  # stopped, suspended, or starved: answers that came meanwhile are not read yet
            self._postpone(late_s)
        if now >= lifecycle.twin.over_s:
            lifecycle.end_twin_alarm()
        if now >= lifecycle.comparison_due_s:
            lifecycle.compare_or_seek()
        else:
            self._keep_alive.tick(now, staged=lifecycle.is_staged)
            if lifecycle.is_sweeping:
                lifecycle.sweep()
            elif lifecycle.stage is not None:
                lifecycle.stage.tick(now)
            elif now >= lifecycle.absent.check_due_s:
                lifecycle.absent.end_waiting()
                lifecycle.go_on_removing()
            lifecycle.advance()
        # In an audit control messages wait after the retained set, which has its own limit for silence.
        if lifecycle.state in (LinkState.LIVE, LinkState.STALLED) and not lifecycle.auditing:
            self._tick_heartbeat(now)

    def _answers_by(self) -> float:
        """Return when the next answer of the primary, or the next request to it, is due."""
        by = self._keep_alive.deadline(staged=self.lifecycle.is_staged)
        return (
            by if self.lifecycle.stage is None or self.lifecycle.is_sweeping else min(by, self.lifecycle.stage.deadline)
        )

    def _tick_held(self, now: float) -> None:
        lifecycle = self.lifecycle
        if lifecycle.state is not LinkState.CONNECTING:
            self._keep_alive.tick(now, staged=True)
        if lifecycle.state is LinkState.LIVE and not lifecycle.auditing:
            self._tick_heartbeat(now)

    def _held_deadline(self, now: float) -> float:
        """Return when to call `tick` while held."""
        lifecycle = self.lifecycle
        deadline = float("inf")
        if lifecycle.state is not LinkState.CONNECTING:
            deadline = self._keep_alive.deadline(staged=True)
        if lifecycle.state is LinkState.LIVE and not lifecycle.auditing:
            deadline = min(deadline, self.control.deadline(now))
        return deadline

    def _tick_heartbeat(self, now: float) -> None:
        stall = self._heartbeat.tick(now, live=self.lifecycle.state is LinkState.LIVE)
        if stall:
            self.lifecycle.stall(stall)
