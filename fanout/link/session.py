"""The MQTT session of a link as a machine: bytes and time in, bytes and events out (core).

Owns the state of the link (`fanout.link.states` is its table), its epoch, the evidence, and the decisions: what a
packet is for, what follows from a stage that has come to its end, when messages were lost. What it joins owns the
rest: the way of rows (`reception`, `phases`), what is known of the primary (`primary`, `tenure`), the stages
(`course`), the live link (`audit`, `heartbeat`, `keep_alive`, `counting`, `forwarding`). It must not know about
sockets, tasks or clocks, and it never waits; `fanout.link.link` gives it the time and does what its events say.

One life of a session (an *epoch*): CONNECT, a rehearsal of the evidence, a snapshot of each selector, live. After
a lost Network Connection the session is resumed, what was pending in it is applied, and the retained sets are
compared with the replica, for a resumed session may have overflowed at the primary. A difference means loss; loss
means tear-down and a new session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from fanout.config import LinkConfig
from fanout.errors import FanoutError, LinkLost, ProtocolError, SnapshotUnproved
from fanout.link.audit import LiveAudits
from fanout.link.control import ControlChannel
from fanout.link.counting import RetainedCount
from fanout.link.course import Course
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
from fanout.link.forwarding import UNAVAILABLE, Forwarding, verdict
from fanout.link.handshake import disconnected, read_connack
from fanout.link.heartbeat import Heartbeat
from fanout.link.keep_alive import KeepAlive
from fanout.link.kept_session import KeptSession, Resumption
from fanout.link.outgoing import Message, Outgoing
from fanout.link.phases import split_phases
from fanout.link.primary import Primary
from fanout.link.proof import Evidence
from fanout.link.reception import Reception
from fanout.link.rehearsal import SERVER_FENCE, Order, Rehearsal
from fanout.link.stage import PendingStage, Stage
from fanout.link.staleness import Staleness
from fanout.link.states import LinkState, Trigger, next_state
from fanout.link.sync import RetainedSync, Step
from fanout.link.tenure import Tenure
from fanout.link.verification import find_losses
from fanout.manifest import MANIFEST_TOPIC
from fanout.mqtt.decoder import AckRun, Decoder, Item, PublishRow, PublishRun
from fanout.mqtt.packets import Connack, Disconnect, PacketType, Pingresp, Suback, Unsuback
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.stamp import StampCount
from fanout.standing import STANDING_TOPIC

__all__ = ["LinkSession"]

_NEVER = float("inf")


class LinkSession:
    """The session machine of one link, over all its Network Connections.

    Every method that takes the time returns what happened, in order; `take_output` then gives the bytes to
    write.

    Attributes:
        state: Where the link is.
        epoch: Identity of the session, Unix time in microseconds at which it began; 0 before the first.
        epochs_total: Sessions begun.
        connections_total: Network Connections that the primary accepted.
        received_total: PUBLISH packets received.
        outside_total: Those that no selector covers, own control messages not counted.
        truncated_total: Snapshots that were cut short.
        evidence: For each selector what proves its snapshot of this epoch; None while nothing does.
        snapshot_seconds: How long the newest complete snapshot took; None before the first.
        control: The control channel, for the lag.
        staleness: Whether the replica is that of a lost session, served on.
        count: The comparison with what the primary counts.
        primary: The server at the other end.
        reception: The way of its messages into the replica.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        node_id: str,
        replica: Replica,
        nonce: int,
        stamps: StampCount | None = None,
    ) -> None:
        """Make a machine that is down.

        Args:
            config: The link's configuration.
            node_id: This node.
            replica: The link's replica; while the machine lives, nobody else changes it.
            nonce: Differs between processes (`ControlChannel`).
            stamps: The node's count, used with `stamp_updates`; None stamps nothing.
        """
        self.state = LinkState.DOWN
        self.epoch = 0
        self.epochs_total = 0
        self.connections_total = 0
        self.received_total = 0
        self.outside_total = 0
        self.truncated_total = 0
        self.evidence: list[Evidence | None] = [None] * len(config.selectors)
        self.snapshot_seconds: float | None = None
        self.control = ControlChannel(
            config.control_topic,
            node_id=node_id,
            link=config.name,
            nonce=nonce,
            heartbeat_s=config.heartbeat_s,
        )
        self.staleness = Staleness(config)
        self._config = config
        self._replica = replica
        self.reception = Reception(config, replica=replica, control_prefix=self.control.prefix, stamps=stamps)
        self._outgoing = Outgoing(config, node_id=node_id)
        self.count = RetainedCount(config.selectors, control_prefix=self.control.prefix, outgoing=self._outgoing)
        self.primary = Primary(config, node_id=node_id, outgoing=self._outgoing)
        self._forwards = any(selector.writes == "forward" for selector in config.selectors)
        self._forwarding = Forwarding(self._outgoing)
        self._keep_alive = KeepAlive(config, outgoing=self._outgoing, probe_filter=self.control.probe_filter)
        self._heartbeat = Heartbeat(self.control, outgoing=self._outgoing)
        self._audits = LiveAudits(config, seed=nonce)
        self._course = Course(
            config,
            replica=replica,
            intake=self.reception.intake,
            outgoing=self._outgoing,
            control=self.control,
            primary=self.primary,
            count=self.count,
        )
        self._tenure = Tenure(config, outgoing=self._outgoing)
        self._decoder: Decoder | None = None
        """None without a Network Connection, and from `Failed` on."""
        self._stage: Stage | None = None
        """What must end before the link is live; None while nothing must."""
        self._snapshot_topics = 0
        self._refused_before = 0
        self._now = 0.0
        self._now_ns = 0
        self._events: list[Event] = []

    # --- a session that outlives the process ---

    def restore(self, resumption: Resumption, *, now_ns: int, now: float) -> None:
        """Take over the session of an earlier process, whose values the replica has; to be called before anything else.

        Args:
            resumption: What is left of it.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
        """
        kept = resumption.session
        self.epoch = kept.epoch
        self.evidence = list(kept.evidence)
        self.primary.learn(kept.fence, kept.order, kept.why_unordered)
        self.primary.is_mosquitto = kept.is_mosquitto
        self.control.permitted = kept.control_permitted
        self._refused_before = -kept.refused
        self.reception.restore(kept.unreleased)
        self._outgoing.restore(kept.unfinished)
        self._tenure.restore(resumption, now_ns=now_ns, now=now)

    def kept(self) -> KeptSession | None:
        """Return what a later process needs to resume the session; None when there is none to resume."""
        if not self._tenure.exists:
            return None
        return KeptSession(
            epoch=self.epoch,
            evidence=tuple(self.evidence),
            fence=self.primary.fence,
            order=self.primary.order,
            why_unordered=self.primary.why_unordered,
            control_permitted=self.control.permitted,
            refused=self.refused_in_epoch,
            session_expiry_s=self._tenure.expiry_s,
            unreleased=self.reception.unreleased,
            unfinished=self._outgoing.unfinished if self._forwards else frozenset(),
            surplus=self._tenure.surplus,
            is_mosquitto=self.primary.is_mosquitto,
        )

    # --- what the shell calls ---

    def open(self, *, password: bytes | None, now_ns: int, now: float, address: str = "") -> list[Event]:
        """Begin a Network Connection to `address` that was just established; CONNECT is sent."""
        self._at(now_ns, now)
        self.primary.system_topics.use(address)
        self._trigger(Trigger.OPEN)
        self._decoder = Decoder(
            version=self._config.version,
            packet_bytes_max=self._config.packet_bytes_max,
            known_topics=self.reception.intake.known_topics,
            role="client",
        )
        self._audits.copies_late = False
        self._outgoing.begin_connection()
        # [MQTT-3.2.2-4]: without a state of ours, none is wanted.
        self._outgoing.connect(clean_start=not self._tenure.exists, password=password, now=now)
        self._keep_alive.begin(now=now, timeout_s=self._config.connect_timeout_s)
        return self._take_events()

    def receive(self, data: bytes, *, now_ns: int, now: float) -> list[Event]:
        """Take bytes from the primary."""
        self._at(now_ns, now)
        decoder = self._decoder
        if decoder is None:
            return []
        self._keep_alive.receive(now)
        if self._stage is not None:
            self._stage.receive_bytes(now)
        try:
            for item in decoder.feed(data):
                self._on_item(item)
                if self._decoder is None:
                    break
            else:
                if decoder.fault is not None:
                    raise decoder.fault
        except FanoutError as error:
            self._fail(error)
        return self._take_events()

    def tick(self, *, now_ns: int, now: float) -> list[Event]:
        """Do what is due by time; to be called at `deadline`."""
        self._at(now_ns, now)
        self._remove_expired()
        if now >= self.staleness.deadline and self.state is not LinkState.TEARING_DOWN:
            self._end_grace()
        elif self.state is LinkState.DOWN:
            if len(self._replica) and now >= self._abandoned_at():
                self._lose_session(Trigger.ABANDONED, "the session at the primary has expired by now")
        elif self._decoder is not None:
            self._tick_connected()
        return self._take_events()

    def deadline(self, *, now_ns: int, now: float) -> float:
        """Return when to call `tick`, monotonic seconds; infinity when only bytes change anything."""
        expiry_ns = None if self.state is LinkState.TEARING_DOWN else self._replica.next_expiry_ns
        deadline = _NEVER if expiry_ns is None else now + max(0, expiry_ns - now_ns) / 1e9
        if self.state is not LinkState.TEARING_DOWN:
            deadline = min(deadline, self.staleness.deadline)
        if self.state is LinkState.DOWN:
            return min(deadline, self._abandoned_at() if len(self._replica) else _NEVER)
        if self._decoder is None:
            return deadline
        deadline = min(deadline, self._keep_alive.deadline(staged=self._stage is not None))
        if self._stage is not None:
            deadline = min(deadline, self._stage.deadline)
        if self.state in (LinkState.LIVE, LinkState.STALLED) and not self.auditing:
            deadline = min(deadline, self.control.deadline(now))
        if self.state is LinkState.LIVE and self._stage is None:
            deadline = min(deadline, self._audits.due_s)
        return deadline

    def lost(self, *, now_ns: int, now: float) -> list[Event]:
        """Note that the Network Connection is gone."""
        self._at(now_ns, now)
        if isinstance(self._stage, Rehearsal):
            if self._stage.answered:
                self.primary.system_topics.note_answer()
            elif self._decoder is not None and self.primary.system_topics.note_closed():
                self._events.append(SystemTopicsShunned())
        self._decoder = None
        self._end_audit("the connection was lost")
        self._stage = None
        self._replica.drop_pass()
        if self.state not in (LinkState.DOWN, LinkState.CONNECTING):
            self._tenure.go_offline(now)
        self._give_up(self._forwarding.drop_waiting())
        if self.state is not LinkState.DOWN:
            self._trigger(Trigger.LOST)
        return self._take_events()

    def torn_down(self, *, now_ns: int, now: float) -> list[Event]:
        """Note that the replica was removed, as `TearDown` asked."""
        self._at(now_ns, now)
        assert not len(self._replica)
        self.staleness.end()
        self.evidence = [None] * len(self.evidence)
        if self._decoder is None:
            self._trigger(Trigger.TORN_DOWN_OFFLINE)
        else:
            self._begin_epoch()
            self._trigger(Trigger.TORN_DOWN)
            self._begin_snapshot()
        return self._take_events()

    def forward(self, message: Message, *, now_ns: int, now: float) -> int | ReasonCode:
        """Publish a message of a local client at the primary.

        Args:
            message: Its topic, payload, QoS, flag, properties and expiry; its token is chosen here.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.

        Returns:
            The token by which a later `Forwarded` names it; or, when it is not taken, the Reason Code for its
            publisher: `UNAVAILABLE` while the link is not live, Quota exceeded when too many wait.
        """
        self._at(now_ns, now)
        if self.state is not LinkState.LIVE:
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
        self._at(now_ns, now)
        if self.state is not LinkState.LIVE:
            return f"the link is {self.state.value.replace('_', ' ')}"
        if self._stage is not None:
            return "an audit is under way"
        self._begin_audit(confirmed=confirmed)
        return self._take_events()

    def confirm_count(self, index: int) -> list[Event]:
        """Note that the primary counts as much as is held for a selector of the live link."""
        if self.state is LinkState.LIVE:
            self._confirm_count(index)
        return self._take_events()

    def close(self, *, end_session: bool, now: float) -> None:
        """Send DISCONNECT, for the node stops.

        Args:
            end_session: Whether the replica goes with the node, and the session with it.
            now: Monotonic seconds.
        """
        if self._decoder is not None and self.state is not LinkState.CONNECTING:
            if not end_session and self._tenure.exists:
                self.leave(now=now)
                return
            if self.primary.fence == self.control.fence_topic and self._outgoing.free:
                self._outgoing.publish(Message(self.control.fence_topic, b"", retain=True), now=now)
            self._outgoing.disconnect(ReasonCode.SUCCESS, end_session=True, now=now)

    @property
    def has_output(self) -> bool:
        """Whether `take_output` has something."""
        return self._outgoing.has_output

    def leave(self, *, now: float) -> None:
        """Send DISCONNECT, which leaves the session to the next Network Connection."""
        self._outgoing.disconnect(ReasonCode.SUCCESS, end_session=False, now=now)

    def take_output(self) -> bytes:
        """Return the bytes to write; they are not returned again."""
        return self._outgoing.take()

    # --- what the status needs ---

    @property
    def snapshot_topics(self) -> int:
        """Topics that the newest snapshot brought so far."""
        if isinstance(self._stage, RetainedSync) and self.state in (LinkState.SNAPSHOT, LinkState.PROVING):
            return self._stage.topics_total + self._stage.topics_now
        return self._snapshot_topics

    @property
    def auditing(self) -> bool:
        """Whether an audit of the live link is under way."""
        return self._audits.current is not None

    @property
    def refused_in_epoch(self) -> int:
        """Retained values of this epoch that a limit of the replica kept out."""
        return self._replica.refused_total - self._refused_before

    # --- packets ---

    def _on_item(self, item: Item) -> None:
        if isinstance(item, Connack):
            self._on_connack(item)
        elif isinstance(item, Disconnect):
            raise disconnected(item)
        elif self.state is LinkState.CONNECTING:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a packet came before CONNACK")  # [MQTT-3.2.0-1]
        elif isinstance(item, PublishRun):
            self._on_publish(item.rows)
        elif isinstance(item, AckRun):
            self._on_acks(item)
        elif isinstance(item, Suback):
            self._on_suback(item)
        elif isinstance(item, Unsuback):
            self._on_unsuback(item)
        elif isinstance(item, Pingresp):
            self._on_pingresp()
        else:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{type(item).__name__} was not asked for")
        self._advance()

    def _on_connack(self, packet: Connack) -> None:
        if self.state is not LinkState.CONNECTING:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a second CONNACK")  # [MQTT-3.2.0-2]
        handshake = read_connack(packet, self._config)
        if handshake.session_present and not self._tenure.exists:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "Session Present after Clean Start")  # [MQTT-3.2.2-2]
        self.connections_total += 1
        self._keep_alive.accept(handshake.keep_alive_s)
        self._tenure.grant(handshake.session_expiry_s)
        self.reception.begin_connection(stamped=handshake.stamped, resumed=handshake.session_present)
        self._outgoing.allow_in_flight(handshake.receive_maximum)
        self._events.append(StandingTold(self.primary.begin_connection(handshake.primary_node, now=self._now)))
        if handshake.session_present:
            self._outgoing.publish_again(self._now)
            self._tenure.unsubscribe_surplus(self._now)
            if all(self.evidence):
                self._trigger(Trigger.SESSION_RESUMED)
                self._begin_stage(self._course.pending())
            else:
                self._trigger(Trigger.SESSION_UNFINISHED)
                self._begin_snapshot()
        elif len(self._replica) and not self._keep_stale("the primary has no session for this link any more"):
            self._tear_down(Trigger.SESSION_LOST, "the primary has no session for this link any more")
        else:
            self._begin_epoch()
            self._trigger(Trigger.SESSION_NEW)
            self._begin_snapshot()

    def _on_publish(self, rows: list[PublishRow]) -> None:
        self.received_total += len(rows)
        if self._stage is not None:
            self._stage.receive_messages(len(rows))
        if self.state is LinkState.TEARING_DOWN:
            # A new session has no subscriptions to the selectors yet: nothing else is ours.
            ours = [row for row in rows if row[0] == STANDING_TOPIC]
            self.outside_total += len(rows) - len(ours)
            rows = ours
        landmarks = self.primary.landmarks + self.count.landmarks
        if landmarks and any(row[0] in landmarks for row in rows):
            # What is told of the data has its place among it.
            for _, part in groupby(rows, lambda row: row[0] in landmarks):
                self._take_rows(list(part))
        else:
            self._take_rows(rows)

    def _take_rows(self, rows: list[PublishRow]) -> None:
        if self.state in (LinkState.LIVE, LinkState.STALLED):
            self._take_new_rows(rows)
            return
        for known, part in self.reception.recollection.split_known(rows, counts_up=self.primary.is_mosquitto):
            if known:
                self._events.append(self.reception.acknowledge(part, now_ns=self._now_ns, epoch=self.epoch))
            else:
                self._take_new_rows(part)

    def _take_new_rows(self, rows: Sequence[PublishRow]) -> None:
        if self._stage is not None:
            self._stage.receive_rows(rows)
        parts = split_phases(
            rows,
            state=self.state,
            stage=self._stage,
            auditing=self.auditing,
            copies_late=self._audits.copies_late,
            goes_on=self.reception.recollection.goes_on if self.primary.is_mosquitto else _goes_on,
        )
        for phase, part in parts:
            for queued, some in self._split_queued(part):
                applied, others = self.reception.take(
                    some, phase=phase, now_ns=self._now_ns, epoch=self.epoch, queued=queued
                )
                self._events += applied
                for row in others:
                    self._on_other(row)

    def _split_queued(self, rows: Sequence[PublishRow]) -> Iterable[tuple[bool, Sequence[PublishRow]]]:
        """Split rows by whether the primary queued them before it saw the request for the set under way.

        From that request on the subscription has QoS 0, and a Mosquitto does not queue what it sends at QoS 0.
        """
        if not (self.primary.is_mosquitto and isinstance(self._stage, RetainedSync) and self._stage.is_at_qos_0):
            return ((False, rows),)
        return ((queued, list(part)) for queued, part in groupby(rows, lambda row: row[2] & 6 > 0))

    def _on_other(self, row: PublishRow) -> None:
        """Take a message outside the selectors: our own, the fence, or nobody's."""
        topic, payload, flags, *_ = row
        system = self.count.receive(topic, payload, retain=bool(flags & 1), held=self._replica.count(0))
        if topic == self.control.topic:
            round_trip_ns = self.control.receive(payload, now=self._now, stamp=self.reception.stamp_of(row))
            if round_trip_ns is not None:
                self._events.append(HeartbeatReturned(round_trip_ns))
                self._on_control_returned(payload)
        elif flags & 1 and topic in (SERVER_FENCE, self.control.fence_topic):
            if self._stage is not None:
                self._stage.receive_retained(topic, payload, self._now)
        elif topic == self.control.fence_topic:
            pass  # the fence was made anew
        elif topic == STANDING_TOPIC and self.primary.hears_standing:
            self._events.append(StandingTold(self.primary.receive_standing(payload)))
        elif topic == MANIFEST_TOPIC and self.primary.node is not None:
            if self._stage is not None:
                self._stage.receive_manifest(payload, self._now)
        elif system:
            if self._stage is None and self.state is LinkState.LIVE:
                self.count.ask(self._now)
        else:
            self.outside_total += 1

    def _on_control_returned(self, payload: bytes) -> None:
        if self._stage is not None:
            self._stage.receive_control(payload, self._now)
        elif self.state is LinkState.STALLED:
            self._trigger(Trigger.REVIVED)
            self._begin_sync(compare=True)

    def _on_acks(self, run: AckRun) -> None:
        if run.type is PacketType.PUBREL:
            for packet_id in run.packet_ids:
                self._outgoing.complete(packet_id, known=self.reception.release(packet_id), now=self._now)
            return
        for message, reason_code in self._outgoing.acknowledged(run, now=self._now):
            if message.token:
                self._events.append(Forwarded(message.token, verdict(reason_code)))
                continue
            if reason_code >= 0x80 and message.topic == self.control.topic:
                self.control.refuse()
            if self._stage is not None:
                self._stage.receive_puback(self._now)
        self._forwarding.send(self._now)

    def _on_suback(self, packet: Suback) -> None:
        if not self._outgoing.answered(packet.packet_id):
            return
        self.primary.receive_suback(packet)
        self.reception.intake.receive_suback(packet.packet_id)
        if self._stage is not None:
            self._stage.receive_suback(packet, self._now)

    def _on_unsuback(self, packet: Unsuback) -> None:
        self._outgoing.answered(packet.packet_id)
        self._tenure.receive_unsuback(packet.packet_id)
        if self._stage is not None:
            self._stage.receive_unsuback(packet.packet_id)

    def _on_pingresp(self) -> None:
        self._outgoing.ping_sent_s = None
        self._audits.copies_late = False
        if self._stage is not None:
            self._stage.receive_pingresp(self._now)
        elif self.state is LinkState.LIVE and self.count.receive_pingresp(self._now):
            self._confirm_count(0)

    def _confirm_count(self, index: int) -> None:
        evidence = self.evidence[index]
        if evidence is not None and not evidence.is_at_least(Evidence.COUNT):
            self.evidence[index] = Evidence.COUNT
            self._events.append(SelectorComplete(index, Evidence.COUNT))

    # --- the life of a session ---

    def _begin_epoch(self) -> None:
        self.epoch = max(self._now_ns // 1000, self.epoch + 1)
        self.epochs_total += 1
        self.evidence = [None] * len(self.evidence)
        self.control.begin_epoch()
        self.primary.begin_epoch()
        self.count.begin_epoch()
        self.reception.begin_session()
        self._give_up(self._outgoing.begin_session())
        self._refused_before = self._replica.refused_total
        self._tenure.begin()

    def _begin_snapshot(self) -> None:
        if self._course.is_rehearsed:
            self._begin_sync(compare=False)  # a session that was resumed before its snapshot was complete
        else:
            self._begin_stage(self._course.rehearsal())

    def _begin_sync(self, *, compare: bool) -> None:
        if not compare:
            self.evidence = [None] * len(self.evidence)  # of an attempt that was cut off, if there was one
        self._begin_stage(self._course.sync(compare=compare, paced=self.auditing, now=self._now))

    def _begin_audit(self, *, confirmed: bool) -> None:
        self._audits.begin(confirmed=confirmed, now=self._now)
        self._begin_sync(compare=True)

    def _end_audit(self, failure: str = "") -> None:
        """Tell how the audit ended, if one is under way."""
        report = self._audits.end(now=self._now, failure=failure)
        if report is None:
            return
        self._stage = None
        self._replica.drop_pass()
        self.control.begin_heartbeats(self._now)
        self._events.append(AuditEnded(report))

    def _begin_stage(self, stage: Stage) -> None:
        self._stage = stage
        stage.begin(self._now)

    def _advance(self) -> None:
        """Act on what the newest packet, or the time, has completed."""
        stage = self._stage
        if isinstance(stage, Rehearsal) and stage.done:
            self.primary.system_topics.note_answer()
            self.primary.learn(stage.fence, stage.order, stage.why)
            self.primary.is_mosquitto = stage.order is Order.KNOWN and self.primary.node is None
            self._begin_sync(compare=False)
        elif isinstance(stage, PendingStage) and stage.done:
            self._trigger(Trigger.PENDING_APPLIED)
            self._begin_sync(compare=True)
        elif isinstance(stage, RetainedSync):
            while self._stage is stage and (step := stage.advance(self._now)) is not None:
                if step is Step.PROVED:
                    self._prove(stage)
                elif step is Step.DONE:
                    self._finish(stage)
                elif self.state is LinkState.SNAPSHOT:
                    self._trigger(Trigger.BARRIER)

    def _prove(self, sync: RetainedSync) -> None:
        """Take a proved set: sweep what it did not bring, or find what was lost."""
        index, evidence = sync.index, sync.evidence
        assert evidence is not None
        self._remove_expired()
        result = self._replica.end_pass()
        if self.state is LinkState.VERIFYING:
            losses = find_losses(result, self._replica.values, before=self._course.stamp_before, now_ns=self._now_ns)
            if losses:
                self._end_session(Trigger.LOSS, str(losses), LinkLost(str(losses)))
                return
            self.evidence[index] = evidence
            self._sweep(result.unseen)
        elif self._audits.current is not None:
            vanished = self._audits.current.judge(
                result,
                self._replica.values,
                topics=self._replica.count(index),
                proves_absence=self.primary.order is Order.KNOWN,
                before=self._course.stamp_before,
                now_ns=self._now_ns,
            )
            self._sweep(vanished)
        else:
            self.evidence[index] = evidence
            self._events.append(SelectorComplete(index, evidence))
            self._sweep(result.unseen)
        if sync.order is not self.primary.order:
            self.primary.learn(self.primary.fence if sync.order is Order.KNOWN else None, sync.order, sync.why)
        if all(self.evidence):
            self.staleness.end()
        sync.begin_next(self._now)
        if self.state is LinkState.PROVING and sync.index < len(self._config.selectors):
            self._trigger(Trigger.PROVED)

    def _finish(self, sync: RetainedSync) -> None:
        self._stage = None
        self.primary.order = sync.order
        if self.auditing:
            self._end_audit()
            return
        self._audits.plan(self._now)
        self.control.begin_heartbeats(self._now)
        if self.state is LinkState.VERIFYING:
            self._trigger(Trigger.VERIFIED)
        else:
            assert sync.started_s is not None
            self.snapshot_seconds = self._now - sync.started_s
            self._snapshot_topics = sync.topics_total
            self._trigger(Trigger.COMPLETED)
        if self.primary.is_mosquitto:
            self.count.begin(self._now)

    def _end_session(self, trigger: Trigger, reason: str, error: FanoutError) -> None:
        self._lose_session(trigger, reason)
        self._fail(error)

    def _lose_session(self, trigger: Trigger, reason: str) -> None:
        """Give the session up; its replica is torn down, or served on as the policy says."""
        if self._keep_stale(reason):
            self._stage = None
            self._tenure.exists = False
        else:
            self._tear_down(trigger, reason)

    def _keep_stale(self, reason: str) -> bool:
        """Say whether the replica of a lost session is served on."""
        was_stale = self.staleness.reason is not None
        if not self.staleness.begin(reason, complete=all(self.evidence), now=self._now):
            return False
        if not was_stale:
            self.evidence = [None] * len(self.evidence)
            self._events.append(WentStale(reason))
        return True

    def _end_grace(self) -> None:
        """Tear the stale replica down, and give up the snapshot that would have replaced it, if one is under way."""
        reason = f"{self.staleness.reason}; the grace of {self._config.grace_s:g} s is over"
        self.staleness.end()
        self._tear_down(Trigger.GRACE_OVER, reason)
        if self._decoder is not None:
            self._fail(LinkLost(reason))

    def _tear_down(self, trigger: Trigger, reason: str) -> None:
        self._stage = None
        self._tenure.exists = False
        self._trigger(trigger, reason)
        self._events.append(TearDown(reason))

    def _fail(self, error: FanoutError) -> None:
        if self.state is not LinkState.CONNECTING:
            reason_code = error.reason_code if isinstance(error, ProtocolError) else ReasonCode.SUCCESS
            self._outgoing.disconnect(reason_code, end_session=not self._tenure.exists, now=self._now)
        self._decoder = None
        self._events.append(Failed(error))

    # --- time ---

    def _tick_connected(self) -> None:
        now = self._now
        try:
            if self._stage is None and self.state is LinkState.LIVE and now >= self._audits.due_s:
                self._begin_audit(confirmed=False)
            else:
                self._keep_alive.tick(now, staged=self._stage is not None)
                if self._stage is not None:
                    self._stage.tick(now)
                    self._advance()
            # In an audit the control messages wait behind the retained set, and it has a limit for silence itself.
            if self.state in (LinkState.LIVE, LinkState.STALLED) and not self.auditing:
                stall = self._heartbeat.tick(now, live=self.state is LinkState.LIVE)
                if stall:
                    self._trigger(Trigger.STALL, stall)
        except SnapshotUnproved as error:
            self.truncated_total += 1
            if self._audits.current is not None:
                assert isinstance(self._stage, RetainedSync)
                self._stage.give_up(now)
                self._audits.copies_late = self._outgoing.ping_sent_s is not None
                self._end_audit(str(error))
                return
            self._end_session(Trigger.UNPROVED, error.message, error)
        except FanoutError as error:
            self._fail(error)

    def _abandoned_at(self) -> float:
        return _NEVER if self.staleness.reason is not None else self._tenure.expires_at

    # --- small things ---

    def _at(self, now_ns: int, now: float) -> None:
        self._now_ns = now_ns
        self._now = now

    def _trigger(self, trigger: Trigger, detail: str = "") -> None:
        before, self.state = self.state, next_state(self.state, trigger)
        if self.state is not before:
            self._events.append(StateEntered(self.state, detail))

    def _remove_expired(self) -> None:
        expiry_ns = self._replica.next_expiry_ns
        if expiry_ns is not None and expiry_ns <= self._now_ns and self.state is not LinkState.TEARING_DOWN:
            changes = self._replica.remove_expired(self._now_ns)
            if changes.updates:
                self._events.append(Applied(changes, b"", self.epoch))

    def _give_up(self, messages: Iterable[Message]) -> None:
        """Tell that nobody will say what became of `messages`."""
        for message in messages:
            if message.token:
                self._events.append(Forwarded(message.token, UNAVAILABLE))

    def _sweep(self, topics: Sequence[bytes]) -> None:
        if topics:
            changes = self._replica.sweep(topics, now_ns=self._now_ns)
            self._events.append(Applied(changes, b"", self.epoch))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _goes_on(_: PublishRow) -> bool:
    """Say yes: nothing tells of a session whether it is the one that was left."""
    return True
