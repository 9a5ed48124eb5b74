"""The MQTT session of a link as a machine: bytes and time in, bytes and events out (core).

Owns what the shell calls, and what is due when. It joins the parts that own the rest: what a packet is for
(`packet_router`), what follows from it (`life`), the way of rows (`pipeline`), what is known of the primary
(`primary`), the live link (`heartbeat`, `keep_alive`, `counting`, `forwarding`). It must not know about sockets, tasks
or clocks, and it never waits; `fanout.link.link` gives it the time and does what its events say.
"""

from __future__ import annotations

from collections.abc import Callable

from fanout.chain.stamp import StampCount
from fanout.config import LinkConfig
from fanout.errors import FanoutError, SnapshotUnproved
from fanout.link.ingest.pipeline import IngestPipeline
from fanout.link.liveness.heartbeat import Heartbeat
from fanout.link.liveness.item_lag import Backlog
from fanout.link.liveness.keep_alive import KeepAlive
from fanout.link.model.events import Event
from fanout.link.model.resumption import KeptSession, Resumption
from fanout.link.model.states import LinkState
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.forwarding import UNAVAILABLE, Forwarding
from fanout.link.protocol.peer import RemotePeer
from fanout.link.protocol.sender import Message, PacketSender
from fanout.link.session.lifecycle import SessionLifecycle
from fanout.link.session.packet_router import PacketRouter
from fanout.link.session.teardown import TOPICS_MAX
from fanout.link.snapshot.retained_pass import RetainedPass
from fanout.link.snapshot.sys_count import SysCount
from fanout.mqtt.decoder import Decoder
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica

__all__ = ["LinkSession"]

_CLOCK_STEP_S = 2.0
"""A difference between two clocks that is more than their drift between two ticks."""
_LATE_S = 1.0
"""A tick that is later than this comes from a process that did not run."""


class LinkSession:
    """The session machine of one link, over all its Network Connections.

    Every method that takes the time returns what happened, in order; `take_output` then gives the bytes to
    write.

    Attributes:
        life: The life of the session: its state, epoch and evidence.
        packet_router: What its packets are for, and the count of messages.
        control: The control channel, for the lag.
        count: The comparison with what the primary counts.
        primary: The server at the other end.
        pipeline: The way of its messages into the replica.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        node_id: str,
        replica: Replica,
        nonce: int,
        stamps: StampCount | None = None,
        piece_topics: Callable[[], int] = lambda: TOPICS_MAX,
    ) -> None:
        """Make a machine that is down.

        Args:
            config: The link's configuration.
            node_id: This node.
            replica: The link's replica; while the machine lives, nobody else changes it.
            nonce: Differs between processes (`ControlChannel`).
            stamps: The node's count, used with `stamp_updates`; None stamps nothing.
            piece_topics: Says how many topics to remove before other work gets its turn.
        """
        self.control = ControlChannel(
            config.control_topic,
            node_id=node_id,
            link=config.name,
            nonce=nonce,
            heartbeat_s=config.heartbeat_s,
        )
        self._config = config
        self._replica = replica
        self.pipeline = IngestPipeline(config, replica=replica, control_prefix=self.control.prefix, stamps=stamps)
        self._sender = PacketSender(config, node_id=node_id)
        self.count = SysCount(config.selectors, control_prefix=self.control.prefix, sender=self._sender)
        self.primary = RemotePeer(config, node_id=node_id, sender=self._sender)
        self.life = SessionLifecycle(
            config,
            replica=replica,
            pipeline=self.pipeline,
            sender=self._sender,
            control=self.control,
            primary=self.primary,
            count=self.count,
            seed=nonce,
            piece_topics=piece_topics,
        )
        self._forwards = any(selector.writes == "forward" for selector in config.selectors)
        self._forwarding = Forwarding(self._sender)
        self._keep_alive = KeepAlive(config, sender=self._sender, probe_filter=self.control.probe_filter)
        self._heartbeat = Heartbeat(self.control, sender=self._sender)
        self.backlog = Backlog(self.control)
        """What the primary has counted beyond what came."""
        self.packet_router = PacketRouter(
            config,
            replica=replica,
            life=self.life,
            pipeline=self.pipeline,
            sender=self._sender,
            forwarding=self._forwarding,
            control=self.control,
            primary=self.primary,
            count=self.count,
            keep_alive=self._keep_alive,
            backlog=self.backlog,
        )
        self._decoder: Decoder | None = None
        """Of the newest Network Connection; None before the first."""
        self._clock_s = 0.0
        """What the time of day is ahead of the monotonic clock, seconds, when it was looked at last."""
        self._held_since: float | None = None
        """Since when nothing is read, monotonic seconds; None while everything is."""

    # --- a session that outlives the process ---

    def restore(self, resumption: Resumption, *, now_ns: int, now: float) -> None:
        """Take over the session of an earlier process, whose values the replica has; to be called before anything else.

        Args:
            resumption: What is left of it.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
        """
        kept = resumption.session
        self.life.restore(epoch=kept.epoch, evidence=kept.evidence)
        self.life.remote_session.restore(resumption, now_ns=now_ns, now=now)
        self.primary.learn(kept.fence, kept.order, kept.why_unordered)
        self.primary.is_mosquitto = kept.is_mosquitto
        self.control.permitted = kept.control_permitted
        self.pipeline.restore(kept.unreleased)
        self._sender.restore(kept.unfinished)

    def kept(self) -> KeptSession | None:
        """Return what a later process needs to resume the session; None when there is none to resume."""
        life = self.life
        if not life.remote_session.exists:
            return None
        return KeptSession(
            epoch=life.epoch,
            evidence=tuple(life.evidence),
            fence=self.primary.fence,
            order=self.primary.order,
            why_unordered=self.primary.why_unordered,
            control_permitted=self.control.permitted,
            session_expiry_s=life.remote_session.expiry_s,
            unreleased=self.pipeline.unreleased,
            unfinished=self._sender.unfinished if self._forwards else frozenset(),
            surplus=life.remote_session.surplus,
            is_mosquitto=self.primary.is_mosquitto,
        )

    # --- what the shell calls ---

    def open(self, *, password: bytes | None, now_ns: int, now: float, address: str = "") -> list[Event]:
        """Begin a Network Connection to `address` that was just established; CONNECT is sent."""
        life = self.life
        life.at(now_ns, now)
        self._clock_s = now_ns / 1e9 - now
        self.primary.system_topics.use(address)
        self._decoder = Decoder(
            version=self._config.version,
            packet_bytes_max=self._config.packet_bytes_max,
            known_topics=self.pipeline.converter.known_topics,
            role="client",
        )
        life.open()
        if self._held_since is not None:
            self._held_since = now
        self._sender.begin_connection()
        # [MQTT-3.2.2-4]: without a state of ours, none is wanted.
        self._sender.connect(clean_start=not life.remote_session.exists, password=password, now=now)
        self._keep_alive.begin(now=now, timeout_s=self._config.connect_timeout_s)
        return life.take_events()

    def receive(self, data: bytes, *, now_ns: int, now: float) -> list[Event]:
        """Take bytes from the primary."""
        life, decoder = self.life, self._decoder
        life.at(now_ns, now)
        if decoder is None or not life.connected:
            return []
        self._keep_alive.receive(now)
        if life.stage is not None:
            life.stage.receive_bytes(now)
        try:
            for item in decoder.feed(data):
                self.packet_router.take(item)
                if not self.life.connected:
                    break
            else:
                if decoder.fault is not None:
                    raise decoder.fault
        except SnapshotUnproved as error:
            life.end_unproved(error)
        except FanoutError as error:
            life.fail(error)
        return life.take_events()

    def tick(self, *, now_ns: int, now: float) -> list[Event]:
        """Do what is due by time; to be called at `deadline`."""
        life = self.life
        life.at(now_ns, now)
        self._watch_clock(now_ns, now)
        if self._held_since is None:
            life.remove_expired()
        if now >= life.stale_policy.deadline and life.state is not LinkState.TEARING_DOWN:
            life.end_grace()
        elif now >= life.abandoned_at:
            life.abandon()
        elif life.connected:
            try:
                if self._held_since is None:
                    self._tick_connected(now)
                else:
                    self._tick_held(now)
            except SnapshotUnproved as error:
                life.end_unproved(error)
            except FanoutError as error:
                life.fail(error)
        return life.take_events()

    def deadline(self, *, now_ns: int, now: float) -> float:
        """Return when to call `tick`, monotonic seconds; infinity when only bytes change anything."""
        life = self.life
        deadline = life.abandoned_at
        if life.state is not LinkState.TEARING_DOWN:
            expiry_ns = self._replica.next_expiry_ns
            if expiry_ns is not None and self._held_since is None:
                deadline = min(deadline, now + max(0, expiry_ns - now_ns) / 1e9)
            deadline = min(deadline, life.stale_policy.deadline)
        if not life.connected:
            return deadline
        if self._held_since is not None:
            return min(deadline, self._held_deadline(now))
        if life.is_sweeping:
            return now
        deadline = min(deadline, self._answers_by())
        if life.state in (LinkState.LIVE, LinkState.STALLED) and not life.auditing:
            deadline = min(deadline, self.control.deadline(now))
        if life.state is LinkState.LIVE and life.stage is None:
            deadline = min(deadline, life.audits.due_s)
        return deadline

    def hold(self, held: bool, *, now: float) -> None:
        """Note that nothing is read any more, or that everything is again; `now` is monotonic seconds.

        Meanwhile nothing is swept and no expired value removed, which would be more for who has too much. The primary
        hears of the link, and a stall is noticed. But that it is silent is not its fault, so its answers may take as
        much longer.
        """
        if held:
            self._held_since = now if self._held_since is None else self._held_since
        elif self._held_since is not None:
            pause_s, self._held_since = now - self._held_since, None
            self.control.begin_listening(now)
            self._postpone(pause_s)

    def lost(self, *, now_ns: int, now: float) -> list[Event]:
        """Note that the Network Connection is gone."""
        self.life.at(now_ns, now)
        self.life.give_up(self._forwarding.drop_waiting())
        self.life.lose()
        return self.life.take_events()

    def torn_down(self, *, now_ns: int, now: float) -> list[Event]:
        """Note that the replica was removed, as `TearDown` asked."""
        self.life.at(now_ns, now)
        try:
            self.life.note_torn_down()
        except FanoutError as error:
            self.life.fail(error)
        return self.life.take_events()

    def forward(self, message: Message, *, now_ns: int, now: float) -> int | ReasonCode:
        """Publish a message of a local client at the primary.

        Args:
            message: Its topic, payload, QoS, flag, properties and expiry; its token is chosen here.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.

        Returns:
            The token by which a later `Forwarded` names it; or, when it is not taken, the Reason Code for its
            publisher: `UNAVAILABLE` while the link is not live or when the primary does not take such messages, Quota
            exceeded when too many wait.
        """
        self.life.at(now_ns, now)
        if self.life.state is not LinkState.LIVE:
            return UNAVAILABLE
        return self._forwarding.add(message, now=now)

    def audit(self, *, confirmed: bool, now_ns: int, now: float) -> list[Event] | str:
        """Begin an audit now; `AuditEnded` follows.

        Args:
            confirmed: Whether any number of topics may be removed.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.

        Returns:
            What happened, or why no audit can begin.
        """
        self.life.at(now_ns, now)
        return self.life.begin_audit(confirmed=confirmed) or self.life.take_events()

    def confirm_count(self, index: int) -> list[Event]:
        """Note that the primary counts as much as is held for a selector of the live link."""
        if self.life.state is LinkState.LIVE:
            self.life.confirm_count(index)
        return self.life.take_events()

    def close(self, *, end_session: bool, now: float) -> None:
        """Send DISCONNECT, for the node stops.

        Args:
            end_session: Whether the replica goes with the node, and the session with it.
            now: Monotonic seconds.
        """
        if self.life.connected and self.life.state is not LinkState.CONNECTING:
            if not end_session and self.life.remote_session.exists:
                self.leave(now=now)
                return
            if self.primary.fence == self.control.fence_topic and self._sender.free:
                self._sender.publish(Message(self.control.fence_topic, b"", retain=True), now=now)
            self._sender.disconnect(ReasonCode.SUCCESS, end_session=True, now=now)

    def leave(self, *, now: float) -> None:
        """Send DISCONNECT, which leaves the session to the next Network Connection, at the QoS of its selectors."""
        if isinstance(self.life.stage, RetainedPass):
            self.life.stage.give_up(now)
        self._sender.disconnect(ReasonCode.SUCCESS, end_session=False, now=now)

    @property
    def has_output(self) -> bool:
        """Whether `take_output` has something."""
        return self._sender.has_output

    def take_output(self) -> bytes:
        """Return the bytes to write; they are not returned again."""
        return self._sender.take()

    # --- time ---

    def _watch_clock(self, now_ns: int, now: float) -> None:
        """Have a live link audited when the time of day was set, by which values expired that the primary still has.

        Or they expire too late; their copies correct that.
        """
        clock_s = now_ns / 1e9 - now
        if abs(clock_s - self._clock_s) > _CLOCK_STEP_S and self._replica.next_expiry_ns is not None:
            self.life.audits.hasten(now)
        self._clock_s = clock_s

    def _postpone(self, pause_s: float) -> None:
        """Let what is awaited take longer by a pause, and by what reading may take that has come in it."""
        pause_s += self._config.snapshot_quiet_s
        self._keep_alive.postpone(pause_s)
        if self.life.stage is not None:
            self.life.stage.postpone(pause_s)

    def _tick_connected(self, now: float) -> None:
        life = self.life
        late_s = now - self._answers_by()
        if late_s > _LATE_S:  # stopped, suspended, or starved: what came meanwhile is not read yet
            self._postpone(late_s)
        if life.stage is None and life.state is LinkState.LIVE and now >= life.audits.due_s:
            life.begin_audit(confirmed=False)
        else:
            self._keep_alive.tick(now, staged=life.is_staged)
            if life.stage is not None:
                if life.is_sweeping:
                    life.sweep()
                else:
                    life.stage.tick(now)
                life.advance()
        # In an audit the control messages wait behind the retained set, and it has a limit for silence itself.
        if life.state in (LinkState.LIVE, LinkState.STALLED) and not life.auditing:
            self._tick_heartbeat(now)

    def _answers_by(self) -> float:
        """Return until when the primary may take for the next answer, or when it is to be asked."""
        by = self._keep_alive.deadline(staged=self.life.is_staged)
        return by if self.life.stage is None or self.life.is_sweeping else min(by, self.life.stage.deadline)

    def _tick_held(self, now: float) -> None:
        life = self.life
        if life.state is not LinkState.CONNECTING:
            self._keep_alive.tick(now, staged=True)
        if life.state is LinkState.LIVE and not life.auditing:
            self._tick_heartbeat(now)

    def _held_deadline(self, now: float) -> float:
        """Return when to call `tick` while nothing is read."""
        life = self.life
        deadline = float("inf")
        if life.state is not LinkState.CONNECTING:
            deadline = self._keep_alive.deadline(staged=True)
        if life.state is LinkState.LIVE and not life.auditing:
            deadline = min(deadline, self.control.deadline(now))
        return deadline

    def _tick_heartbeat(self, now: float) -> None:
        stall = self._heartbeat.tick(now, live=self.life.state is LinkState.LIVE)
        if stall:
            self.life.stall(stall)
