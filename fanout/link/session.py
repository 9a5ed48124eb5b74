"""The MQTT session of a link as a machine: bytes and time in, bytes and events out (core).

Owns the state of the link (`fanout.link.states` is its table), its epoch, and every decision: what is sent
next, what an answer means, when a snapshot is complete, when messages were lost. It must not know about
sockets, tasks or clocks, and it never waits; `fanout.link.link` gives it the time and does what its events
say.

One life of a session (an *epoch*): CONNECT, a rehearsal of the evidence, a snapshot of each selector, live. After
 a lost Network Connection the session is resumed, what was pending in it is applied, and the retained
sets are compared with the replica, for a resumed session may have overflowed at the primary. A difference
means loss; loss means tear-down and a new session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from fanout.config import LinkConfig
from fanout.errors import FanoutError, LinkLost, ProtocolError, SnapshotUnproved
from fanout.link.audit import Audit, AuditSchedule
from fanout.link.content import ContentFilter
from fanout.link.control import STALL_INTERVALS, ControlChannel
from fanout.link.counting import SYSTEM_TOPICS, UPTIME, CountState, RetainedCount
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
from fanout.link.handshake import check_cycle, disconnected, read_connack, refused_subscription, unanswered_hint
from fanout.link.intake import Intake
from fanout.link.kept_session import KeptSession, Resumption
from fanout.link.outgoing import Message, Outgoing, encode_acknowledgement
from fanout.link.proof import Evidence
from fanout.link.rehearsal import SERVER_FENCE, Order, Rehearsal, own_fence
from fanout.link.stage import PendingStage, Stage
from fanout.link.staleness import Staleness
from fanout.link.states import LinkState, Trigger, next_state
from fanout.link.sync import RetainedSync, Step
from fanout.link.system_topics import SystemTopics
from fanout.link.verification import find_losses
from fanout.manifest import MANIFEST_TOPIC
from fanout.mqtt.decoder import AckRun, Decoder, Item, PublishRow, PublishRun
from fanout.mqtt.delivery import Inbound
from fanout.mqtt.packets import Connack, Disconnect, PacketType, Pingresp, Suback, Unsuback
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Stamp, Update
from fanout.stamp import StampCount, split_stamp
from fanout.standing import NO_NODE, STANDING_TOPIC, UNTOLD, decode_standing

__all__ = ["PING_SHARE", "LinkSession"]

PING_SHARE = 0.75
"""Share of the Keep Alive after which PINGREQ is sent, and after which its answer is missing."""
_SESSION_NEVER_EXPIRES = 0xFFFFFFFF
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
        fence: Topic of the fence that snapshots of this epoch use; None for none.
        order: Whether the primary answers in order, as far as this epoch has shown.
        why_unordered: Why it is not known to, in words; empty when it is.
        content: What is not replicated of what the selectors cover; None when they take everything.
        staleness: Whether the replica is that of a lost session, served on.
        count: The comparison with what the primary counts.
        primary_node: Node identifier of the primary, when the newest CONNACK told that it is a fanout node.
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
        self.fence: bytes | None = None
        self.order = Order.NONE
        self.why_unordered = ""
        self.primary_node: str | None = None
        self._is_mosquitto = False
        """Whether the primary is one of which it is known what it counts."""
        self.staleness = Staleness(config)
        self.count = RetainedCount(config.selectors, control_prefix=self.control.prefix)
        self.content = (
            ContentFilter(config.selectors, replica=replica, copies_come=config.version == 4)
            if any(selector.is_choosy for selector in config.selectors)
            else None
        )
        self._config = config
        self._node_id = node_id
        self._replica = replica
        self._inbound = Inbound()
        self._intake = Intake(
            config.selectors, replica=replica, control_prefix=self.control.prefix, inbound=self._inbound
        )
        self._intake.retain_all = config.version == 4 and config.retain_policy == "keep"
        self._outgoing = Outgoing(config, node_id=node_id)
        self._system_topics = SystemTopics()
        self._forwards = any(selector.writes == "forward" for selector in config.selectors)
        self._forwarding = Forwarding(self._outgoing)
        self._token = 0
        self._audit: Audit | None = None
        """The audit of the live link that is under way."""
        self._schedule = AuditSchedule(config.audit_interval_s, seed=nonce)
        self._standing_id = 0
        """Packet Identifier of the SUBSCRIBE for the standing of a fanout primary while it awaits SUBACK, else 0."""
        self._copies_late = False
        """Whether copies for an audit that was given up may still come: until the PINGRESP behind them."""
        self._surplus: dict[str, int] = {}
        """Topic Filters of an earlier configuration that are subscribed still; the Packet Identifier of UNSUBSCRIBE."""
        self._decoder: Decoder | None = None
        """None without a Network Connection, and from `Failed` on."""
        self._has_session = False
        """Whether the primary may have a session that matches the replica."""
        self._clean_start = True
        self._keep_alive_s = config.keep_alive_s
        self._session_expiry_s = config.session_expiry_s
        self._offline_since = 0.0
        self._connack_by = _NEVER
        self._stage: Stage | None = None
        """What must end before the link is live; None while nothing must."""
        self._snapshot_topics = 0
        self._refused_before = 0
        self._stamp_before: Stamp | None = None
        """Stamp of the newest control message that came back before the pass under way."""
        self._stamps = stamps if config.stamp_updates else None
        self._stamps_itself = False
        """Whether live updates of the primary get this node's stamps."""
        self._last_received = 0.0
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
        self._learn_order(kept.fence, kept.order, kept.why_unordered)
        self.control.permitted = kept.control_permitted
        self._refused_before = -kept.refused
        self._session_expiry_s = kept.session_expiry_s
        self._inbound.restore(kept.unreleased)
        self._outgoing.restore(kept.unfinished)
        self._surplus = dict.fromkeys(kept.surplus, 0)
        self._intake.fixed_qos = [None] * len(self.evidence)
        self._has_session = True
        self._offline_since = now - max(0.0, (now_ns - resumption.seen_ns) / 1e9)

    def kept(self) -> KeptSession | None:
        """Return what a later process needs to resume the session; None when there is none to resume."""
        if not self._has_session:
            return None
        return KeptSession(
            epoch=self.epoch,
            evidence=tuple(self.evidence),
            fence=self.fence,
            order=self.order,
            why_unordered=self.why_unordered,
            control_permitted=self.control.permitted,
            refused=self.refused_in_epoch,
            session_expiry_s=self._session_expiry_s,
            unreleased=self._inbound.unreleased,
            unfinished=self._outgoing.unfinished if self._forwards else frozenset(),
            surplus=frozenset(self._surplus),
        )

    # --- what the shell calls ---

    def open(self, *, password: bytes | None, now_ns: int, now: float, address: str = "") -> list[Event]:
        """Begin a Network Connection to `address` that was just established; CONNECT is sent."""
        self._at(now_ns, now)
        self._system_topics.use(address)
        self._trigger(Trigger.OPEN)
        self._decoder = Decoder(
            version=self._config.version,
            packet_bytes_max=self._config.packet_bytes_max,
            known_topics=self._intake.known_topics,
            role="client",
        )
        self._last_received = now
        self._copies_late = False
        self._clean_start = not self._has_session  # [MQTT-3.2.2-4]: without a state of ours, none is wanted
        self._outgoing.begin_connection()
        self._outgoing.connect(clean_start=self._clean_start, password=password, now=now)
        self._connack_by = now + self._config.connect_timeout_s
        return self._take_events()

    def receive(self, data: bytes, *, now_ns: int, now: float) -> list[Event]:
        """Take bytes from the primary."""
        self._at(now_ns, now)
        decoder = self._decoder
        if decoder is None:
            return []
        self._last_received = now
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
        deadline = min(deadline, self._connack_by, self._ping_deadline())
        if self._stage is not None:
            deadline = min(deadline, self._stage.deadline)
        if self.state in (LinkState.LIVE, LinkState.STALLED) and self._audit is None:
            deadline = min(deadline, self.control.deadline(now))
        if self.state is LinkState.LIVE and self._stage is None:
            deadline = min(deadline, self._schedule.due_s)
        return deadline

    def lost(self, *, now_ns: int, now: float) -> list[Event]:
        """Note that the Network Connection is gone."""
        self._at(now_ns, now)
        if isinstance(self._stage, Rehearsal):
            if self._stage.answered:
                self._system_topics.note_answer()
            elif self._decoder is not None and self._system_topics.note_closed():
                self._events.append(SystemTopicsShunned())
        self._decoder = None
        self._end_audit("the connection was lost")
        self._stage = None
        self._connack_by = _NEVER
        self._replica.drop_pass()
        if self.state not in (LinkState.DOWN, LinkState.CONNECTING):
            self._offline_since = now
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
        if self._forwarding.is_full:
            return ReasonCode.QUOTA_EXCEEDED
        self._token += 1
        self._forwarding.add(replace(message, token=self._token), now=now)
        return self._token

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
            if not end_session and self._has_session:
                self.leave(now=now)
                return
            if self.fence == self.control.fence_topic and self._outgoing.free:
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
        return self._audit is not None

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
        if handshake.session_present and self._clean_start:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "Session Present after Clean Start")  # [MQTT-3.2.2-2]
        self.connections_total += 1
        self._connack_by = _NEVER
        self._keep_alive_s = handshake.keep_alive_s
        self._session_expiry_s = min(handshake.session_expiry_s, self._config.session_expiry_s)
        self._intake.stamped = handshake.stamped or self._stamps is not None
        self._stamps_itself = self._stamps is not None and not handshake.stamped
        self.primary_node = handshake.primary_node
        self._outgoing.allow_in_flight(handshake.receive_maximum)
        self._ask_standing()
        if handshake.session_present:
            self._inbound.new_connection()
            self._outgoing.publish_again(self._now)
            for topic_filter in self._surplus:
                self._surplus[topic_filter] = self._outgoing.unsubscribe(topic_filter.encode(), now=self._now)
            if all(self.evidence):
                self._trigger(Trigger.SESSION_RESUMED)
                self._begin_pending()
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
        landmarks = self._landmarks
        if landmarks and any(row[0] in landmarks for row in rows):
            # What is told of the data has its place among it.
            for _, part in groupby(rows, lambda row: row[0] in landmarks):
                self._take_rows(list(part))
        else:
            self._take_rows(rows)

    @property
    def _landmarks(self) -> tuple[bytes, ...]:
        """Topics whose messages say something about the data in front of them."""
        told = (STANDING_TOPIC, MANIFEST_TOPIC) if self._hears_standing else ()
        return told if self.count.state is CountState.OFF else (*told, UPTIME)

    @property
    def _hears_standing(self) -> bool:
        """Whether the primary is a fanout node, or may be one: over MQTT 3.1.1 it cannot say so."""
        return self.primary_node is not None or self._config.version == 4

    def _take_rows(self, rows: list[PublishRow]) -> None:
        if self._stage is not None:
            self._stage.receive_rows(rows)
        for phase, part in self._phases(rows):
            batch = self._intake.convert(part, now_ns=self._now_ns)
            if self._audit is not None and not part[0][2] & 6:
                for each, updates in self._replica.split_pass(batch.updates):
                    self._events.append(Applied(self._apply(updates, phase=each), b"", self.epoch))
                batch.updates = []
            open_count = len(batch.to_puback) + self._inbound.open_count
            if open_count > self._config.receive_maximum and self._config.version == 5:
                raise ProtocolError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, f"{open_count} messages at a time")
            changes = self._apply(batch.updates, phase=phase)
            acknowledgement = encode_acknowledgement(batch)
            if changes.updates or acknowledgement:
                self._events.append(Applied(changes, acknowledgement, self.epoch))
            for row in batch.others:
                self._on_other(row)

    def _apply(self, updates: list[Update], *, phase: Phase) -> Changes:
        """Apply what the selectors accept, stamped if the primary does not stamp."""
        if self.content is not None:
            updates = self.content.admit(updates, phase=phase)
        if self._stamps_itself:
            assert self._stamps is not None
            updates = self._stamps.complete(updates, live=phase is Phase.LIVE)
        return self._replica.apply(updates, phase=phase)

    def _phases(self, rows: list[PublishRow]) -> Iterator[tuple[Phase, Sequence[PublishRow]]]:
        """Split rows, in order, by why they came."""
        if self._audit is not None:
            # The copies come at QoS 0; which of these rows they are is for the replica to say.
            for _, part in groupby(rows, lambda row: row[2] & 6):
                yield Phase.LIVE, list(part)
        elif self.state in (LinkState.LIVE, LinkState.STALLED):
            if not self._copies_late:
                yield Phase.LIVE, rows
                return
            for copy, part in groupby(rows, _may_be_copy):
                yield Phase.AUDIT if copy else Phase.LIVE, list(part)
        elif self.state is LinkState.RESUMING:
            # What is sent again may have been applied before the connection was lost: not delivered twice. Nor are
            # copies that a SUBSCRIBE of the former connection asked for; Mosquitto keeps them in the session.
            for again, part in groupby(rows, lambda row: row[2] & 8 > 0 or _may_be_copy(row)):
                yield Phase.AUDIT if again else Phase.LIVE, list(part)
        elif self.state is LinkState.VERIFYING:
            # The copies come at QoS 0; what has a higher QoS, or comes behind the last copy, is live.
            for qos, part in groupby(rows, lambda row: row[2] & 6):
                live = qos or (isinstance(self._stage, RetainedSync) and self._stage.copies_over)
                yield Phase.LIVE if live else Phase.AUDIT, list(part)
        else:
            yield Phase.SNAPSHOT, rows

    def _on_other(self, row: PublishRow) -> None:
        """Take a message outside the selectors: our own, the fence, or nobody's."""
        topic, payload, flags, _, properties, _ = row
        system = self.count.receive(topic, payload, retain=bool(flags & 1), held=self._replica.count(0))
        if topic == self.control.topic:
            stamp = split_stamp(properties)[1] if self._intake.stamped and not self._stamps_itself else None
            round_trip_ns = self.control.receive(payload, now=self._now, stamp=stamp)
            if round_trip_ns is not None:
                self._events.append(HeartbeatReturned(round_trip_ns))
                self._on_control_returned(payload)
        elif flags & 1 and topic in (SERVER_FENCE, self.control.fence_topic):
            if self._stage is not None:
                self._stage.receive_retained(topic, payload, self._now)
        elif topic == self.control.fence_topic:
            pass  # the fence was made anew
        elif topic == STANDING_TOPIC and self._hears_standing:
            self._on_standing(payload)
        elif topic == MANIFEST_TOPIC and self.primary_node is not None:
            if self._stage is not None:
                self._stage.receive_manifest(payload, self._now)
        elif system:
            idle = self._stage is None and self._outgoing.ping_sent_s is None
            if self.count.state is CountState.TAKEN and self.state is LinkState.LIVE and idle:
                self._outgoing.ping(self._now)
        else:
            self.outside_total += 1

    def _ask_standing(self) -> None:
        """Ask a fanout node how it stands; what it says comes in order with the data (`fanout.standing`)."""
        self._standing_id = 0
        if self.primary_node is not None or (self._hears_standing and self._system_topics.asked):
            asked = self._outgoing.subscribe(STANDING_TOPIC, qos=1, no_local=False, retain_handling=0, now=self._now)
            self._standing_id = 0 if self.primary_node is None else asked
        self._events.append(StandingTold(NO_NODE if self.primary_node is None else UNTOLD))

    def _on_standing(self, payload: bytes) -> None:
        standing = decode_standing(payload) or (NO_NODE if self.primary_node is None else UNTOLD)
        check_cycle(standing, self._node_id)
        self._events.append(StandingTold(standing))

    def _on_control_returned(self, payload: bytes) -> None:
        if self._stage is not None:
            self._stage.receive_control(payload, self._now)
        elif self.state is LinkState.STALLED:
            self._trigger(Trigger.REVIVED)
            self._begin_sync(compare=True)

    def _on_acks(self, run: AckRun) -> None:
        if run.type is PacketType.PUBREL:
            for packet_id in run.packet_ids:
                self._outgoing.complete(packet_id, known=self._inbound.release(packet_id), now=self._now)
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
        if packet.packet_id == self._standing_id:
            self._standing_id = 0
            if packet.reason_codes[0] >= 0x80:
                raise refused_subscription(STANDING_TOPIC.decode(), packet.reason_codes[0])
        if self._stage is not None:
            self._stage.receive_suback(packet, self._now)

    def _on_unsuback(self, packet: Unsuback) -> None:
        self._outgoing.answered(packet.packet_id)
        self._surplus = {each: packet_id for each, packet_id in self._surplus.items() if packet_id != packet.packet_id}
        if self._stage is not None:
            self._stage.receive_unsuback(packet.packet_id)

    def _on_pingresp(self) -> None:
        self._outgoing.ping_sent_s = None
        self._copies_late = False
        if self._stage is not None:
            self._stage.receive_pingresp(self._now)
        elif self.count.state is CountState.TAKEN and self.state is LinkState.LIVE:
            outcome = self.count.compare()
            if outcome is CountState.EQUAL:
                self._confirm_count(0)
            if outcome is not CountState.WAITING:
                self._outgoing.unsubscribe(SYSTEM_TOPICS, now=self._now)

    def _begin_count(self) -> None:
        """Compare with what the primary counts, where that says anything about the selectors."""
        if not self._is_mosquitto or self._outgoing.ping_sent_s is not None:
            return
        if self.count.begin():
            # The PINGREQ keeps an audit waiting, for which a copy of the fence that comes now would be none.
            self._outgoing.subscribe(SYSTEM_TOPICS, qos=0, no_local=False, retain_handling=0, now=self._now)
            self._outgoing.ping(self._now)

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
        self._learn_order(None, Order.NONE, "")
        self._is_mosquitto = False
        self.count.begin_epoch()
        self._surplus.clear()
        self._inbound = Inbound()
        self._intake.inbound = self._inbound
        self._give_up(self._outgoing.begin_session())
        self._refused_before = self._replica.refused_total
        # MQTT 3.1.1 without Clean Session could meet a session of a former process, and no answer tells
        # which.
        self._has_session = self._config.version == 5 and self._session_expiry_s > 0

    def _begin_snapshot(self) -> None:
        if self.control.permitted is not None and (self.fence is not None or self.primary_node is not None):
            self._begin_sync(compare=False)  # a session that was resumed before its snapshot was complete
            return
        self._begin_stage(
            Rehearsal(
                outgoing=self._outgoing,
                control=self.control,
                wants_fence=self.primary_node is None,
                asks_system=self._system_topics.asked,
                timeout_s=self._config.connect_timeout_s,
                selectors=self._config.selectors,
            )
        )

    def _begin_pending(self) -> None:
        quiet_s = self._config.snapshot_quiet_s
        self._begin_stage(PendingStage(outgoing=self._outgoing, control=self.control, quiet_s=quiet_s))

    def _begin_sync(self, *, compare: bool) -> None:
        if not compare:
            self.evidence = [None] * len(self.evidence)  # of an attempt that was cut off, if there was one
        elif self.fence == self.control.fence_topic and self._config.version == 5 and self._outgoing.free:
            # The session may be older than the life of its fence. The message comes back without RETAIN, so it is no
            # fence itself: the subscription to it, made with that of a selector, is without Retain As Published.
            self._outgoing.publish(own_fence(self.control), now=self._now)
        self._stamp_before = self.control.stamp
        self._begin_stage(
            RetainedSync(
                selectors=self._config.selectors,
                replica=self._replica,
                intake=self._intake,
                outgoing=self._outgoing,
                control=self.control,
                fence=self.fence,
                order=self.order,
                why=self.why_unordered,
                quiet_s=self._config.snapshot_quiet_s,
                asks_manifest=self.primary_node is not None and self._config.version == 5,
                compare=compare,
                paced=self._audit is not None,
                retained_count=lambda: self.count.total,
            )
        )

    def _begin_audit(self, *, confirmed: bool) -> None:
        self._audit = Audit(confirmed=confirmed, removed_percent_max=self._config.max_removed_percent, now=self._now)
        self._begin_sync(compare=True)

    def _end_audit(self, failure: str = "") -> None:
        """Tell how the audit ended, if one is under way."""
        audit, self._audit = self._audit, None
        if audit is None:
            return
        if failure:
            self._schedule.plan_retry(self._now)
        else:
            self._schedule.plan(self._now)
        self._stage = None
        self._replica.drop_pass()
        self.control.begin_heartbeats(self._now)
        self._events.append(AuditEnded(audit.end(now=self._now, failure=failure)))

    def _learn_order(self, fence: bytes | None, order: Order, why: str) -> None:
        self.fence, self.order, self.why_unordered = fence, order, why

    def _begin_stage(self, stage: Stage) -> None:
        self._stage = stage
        stage.begin(self._now)

    def _advance(self) -> None:
        """Act on what the newest packet, or the time, has completed."""
        stage = self._stage
        if isinstance(stage, Rehearsal) and stage.done:
            self._system_topics.note_answer()
            self._learn_order(stage.fence, stage.order, stage.why)
            self._is_mosquitto = stage.order is Order.KNOWN and self.primary_node is None
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
            losses = find_losses(result, self._replica.values, before=self._stamp_before, now_ns=self._now_ns)
            if losses:
                self._end_session(Trigger.LOSS, str(losses), LinkLost(str(losses)))
                return
            self.evidence[index] = evidence
            self._sweep(result.unseen)
        elif self._audit is not None:
            vanished = self._audit.judge(
                result,
                self._replica.values,
                topics=self._replica.count(index),
                proves_absence=self.order is Order.KNOWN,
                before=self._stamp_before,
                now_ns=self._now_ns,
            )
            self._sweep(vanished)
        else:
            self.evidence[index] = evidence
            self._events.append(SelectorComplete(index, evidence))
            self._sweep(result.unseen)
        if sync.order is not self.order:
            self._learn_order(self.fence if sync.order is Order.KNOWN else None, sync.order, sync.why)
        if all(self.evidence):
            self.staleness.end()
        sync.begin_next(self._now)
        if self.state is LinkState.PROVING and sync.index < len(self._config.selectors):
            self._trigger(Trigger.PROVED)

    def _finish(self, sync: RetainedSync) -> None:
        self._stage = None
        self.order = sync.order
        if self._audit is not None:
            self._end_audit()
            return
        self._schedule.plan(self._now)
        self.control.begin_heartbeats(self._now)
        if self.state is LinkState.VERIFYING:
            self._trigger(Trigger.VERIFIED)
            self._begin_count()
            return
        assert sync.started_s is not None
        self.snapshot_seconds = self._now - sync.started_s
        self._snapshot_topics = sync.topics_total
        self._trigger(Trigger.COMPLETED)
        self._begin_count()

    def _end_session(self, trigger: Trigger, reason: str, error: FanoutError) -> None:
        self._lose_session(trigger, reason)
        self._fail(error)

    def _lose_session(self, trigger: Trigger, reason: str) -> None:
        """Give the session up; its replica is torn down, or served on as the policy says."""
        if self._keep_stale(reason):
            self._stage = None
            self._has_session = False
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
        self._has_session = False
        self._trigger(trigger, reason)
        self._events.append(TearDown(reason))

    def _fail(self, error: FanoutError) -> None:
        if self.state is not LinkState.CONNECTING:
            reason_code = error.reason_code if isinstance(error, ProtocolError) else ReasonCode.SUCCESS
            self._outgoing.disconnect(reason_code, end_session=not self._has_session, now=self._now)
        self._decoder = None
        self._events.append(Failed(error))

    # --- time ---

    def _tick_connected(self) -> None:
        now = self._now
        try:
            if now >= self._connack_by:
                raise LinkLost("the primary does not answer CONNECT", hint=unanswered_hint(self._config))
            if self._stage is not None:
                if now >= self._ping_deadline():
                    # Not PINGREQ, whose answer means something to the stage.
                    self._outgoing.unsubscribe(self.control.probe_filter, now=now)
                self._stage.tick(now)
                self._advance()
            elif self.state is LinkState.LIVE and now >= self._schedule.due_s:
                self._begin_audit(confirmed=False)
            elif now >= self._ping_deadline():
                if self._outgoing.ping_sent_s is not None:
                    raise LinkLost("the primary does not answer PINGREQ")
                self._outgoing.ping(now)
            if self.state in (LinkState.LIVE, LinkState.STALLED):
                self._tick_heartbeat()
        except SnapshotUnproved as error:
            self.truncated_total += 1
            if self._audit is not None:
                assert isinstance(self._stage, RetainedSync)
                self._stage.give_up(now)
                self._copies_late = self._outgoing.ping_sent_s is not None
                self._end_audit(str(error))
                return
            self._end_session(Trigger.UNPROVED, error.message, error)
        except FanoutError as error:
            self._fail(error)

    def _tick_heartbeat(self) -> None:
        if self._audit is not None:
            return  # the control messages wait behind the retained set, and the audit has a limit for silence itself
        if self.control.is_stalled(self._now, intervals=2 * STALL_INTERVALS):
            raise LinkLost("heartbeats do not come back")
        if self.control.is_stalled(self._now) and self.state is LinkState.LIVE:
            self._trigger(Trigger.STALL, "heartbeats do not come back")
        elif self.control.heartbeat_due(self._now):
            if self.control.has_slept(self._now) and self.state is LinkState.LIVE:
                # Stopped, suspended, or starved: the primary may have dropped what was not read in time.
                self._trigger(Trigger.STALL, "the node itself did not run")
            if self._outgoing.free:
                self._outgoing.publish(Message(self.control.topic, self.control.send(self._now)), now=self._now)
            else:
                self.control.skip_heartbeat(self._now)

    def _ping_deadline(self) -> float:
        if self.state is LinkState.CONNECTING or not self._keep_alive_s:
            return _NEVER  # CONNACK has a deadline of its own
        if self._stage is not None:
            return self._outgoing.last_sent_s + PING_SHARE * self._keep_alive_s
        since = self._outgoing.ping_sent_s
        if since is None:
            since = min(self._outgoing.last_sent_s, self._last_received)
        return since + PING_SHARE * self._keep_alive_s

    def _abandoned_at(self) -> float:
        if self._session_expiry_s == _SESSION_NEVER_EXPIRES or self.staleness.reason is not None:
            return _NEVER
        return self._offline_since + self._session_expiry_s

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


def _may_be_copy(row: PublishRow) -> bool:
    """Say whether a row has the marks of a retained copy: QoS 0 and RETAIN; a live update may have them too."""
    return row[2] & 7 == 1
