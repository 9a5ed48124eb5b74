"""Router of the primary's packets to the part they are for: the stage under way, the session, or the live link.

Enforces the order of packets that MQTT demands, and counts messages. `fanout.link.session.lifecycle` decides what
follows from a packet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from fanout.chain.manifest import MANIFEST_TOPIC
from fanout.chain.readiness_notice import READINESS_TOPIC
from fanout.chain.stamp import has_copies, is_copy
from fanout.errors import LinkLost, PrimaryRefused, ProtocolError
from fanout.link.ingest.pipeline import SkippedFate
from fanout.link.liveness.item_lag import ItemLag
from fanout.link.liveness.keep_alive import KeepAlive
from fanout.link.liveness.member_cuts import MemberCuts
from fanout.link.model.events import (
    ControlRefused,
    CountDiffers,
    Forwarded,
    HeartbeatReturned,
    HeartbeatsLost,
    MemberUnheard,
    SessionSeen,
    StandingTold,
)
from fanout.link.model.rows import COPY_MASK, DUP, FLAGS, QOS, RETAIN, TOPIC
from fanout.link.model.states import LinkState
from fanout.link.protocol.forwarding import Forwarding, puback_reason_code
from fanout.link.protocol.handshake import disconnected, read_connack, reason_text
from fanout.link.session.lifecycle import SessionLifecycle
from fanout.link.session.twin import FOREIGN_HEARTBEAT, UNMARKED
from fanout.link.snapshot.capability_check import SERVER_SENTINEL
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.retained_pass import RetainedPass
from fanout.link.snapshot.sys_count import ORDERED_TOPICS, CountState
from fanout.mqtt.breaches import Deviation, SkipReason
from fanout.mqtt.decoder import AckRun, Item, PublishRow, PublishRun
from fanout.mqtt.packets import Connack, Disconnect, PacketType, Pingresp, Suback, Unsuback
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.runs import SkippedPublish, ToleratedBreach
from fanout.replica.update import Phase

__all__ = ["PacketRouter"]

_TOPIC = itemgetter(0)
_OF_NO_MESSAGE = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.SESSION_TAKEN_OVER,
        ReasonCode.ADMINISTRATIVE_ACTION,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.SERVER_MOVED,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
        ReasonCode.MAXIMUM_CONNECT_TIME,
    }
)
"""Reason Codes of DISCONNECT that say nothing of a message of the link."""


class PacketRouter:
    """Router of one link, over all its Network Connections.

    Attributes:
        was_disconnected: True if the primary ended the newest Network Connection with a DISCONNECT that may concern a
            message of the link.
    """

    def __init__(
        self,
        context: LinkContext,
        *,
        lifecycle: SessionLifecycle,
        forwarding: Forwarding,
        keep_alive: KeepAlive,
        item_lag: ItemLag,
        cuts: MemberCuts,
    ) -> None:
        """Prepare for one link.

        Args:
            context: Collaborators of the link.
            lifecycle: The lifecycle of the session, told what the packets mean for it.
            forwarding: Queue of forwarded messages, which sends more at each acknowledgement.
            keep_alive: Keep Alive of the connection.
            item_lag: Lag in items.
            cuts: Cuts at the heartbeats of the members of a pool.
        """
        config = context.config
        self.was_disconnected = False
        self._config = config
        self._replica = context.replica
        self._pipeline = context.pipeline
        self._sender = context.sender
        self._control = context.control
        self._peer = context.peer
        self._count = context.count
        self._skipped = context.skipped
        self._counters = context.counters
        self._lifecycle = lifecycle
        self._forwarding = forwarding
        self._keep_alive = keep_alive
        self._item_lag = item_lag
        self._cuts = cuts

    def take(self, item: Item) -> None:
        """Route one decoded item; to be called in the order of arrival, and `SessionLifecycle.advance` afterwards.

        Raises:
            FanoutError: The Network Connection must end.
        """
        if self._lifecycle.state is LinkState.CONNECTING:
            self._take_first(item)
        elif isinstance(item, PublishRun):
            self._take_rows(item.rows)
        elif isinstance(item, AckRun):
            self._on_acks(item)
        elif isinstance(item, Suback):
            self._on_suback(item)
        elif isinstance(item, Unsuback):
            self._on_unsuback(item)
        elif isinstance(item, Pingresp):
            self._on_pingresp()
        elif isinstance(item, SkippedPublish):
            self._on_skipped(item)
        elif isinstance(item, ToleratedBreach):
            self._tolerate(item.deviation, item.detail)
        elif isinstance(item, Disconnect):
            self._on_disconnect(item)
        else:  # a second CONNACK too [MQTT-3.2.0-2]
            self._tolerate(Deviation.PACKET, f"{type(item).__name__} was not asked for")

    def _take_first(self, item: Item) -> None:
        """Take what the primary sends until the link is connected."""
        if isinstance(item, Connack):
            self._on_connack(item)
        elif isinstance(item, ToleratedBreach):
            self._tolerate(item.deviation, item.detail)
        elif isinstance(item, Disconnect):
            self._on_disconnect(item)
        else:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a packet came before CONNACK")  # [MQTT-3.2.0-1]

    def _on_disconnect(self, packet: Disconnect) -> None:
        self.was_disconnected = packet.reason_code not in _OF_NO_MESSAGE
        if packet.reason_code != ReasonCode.SESSION_TAKEN_OVER:
            raise disconnected(packet)
        self._lifecycle.end_taken_over(disconnected(packet))

    def _on_connack(self, packet: Connack) -> None:
        lifecycle = self._lifecycle
        handshake = read_connack(packet, self._config)
        if handshake.session_present and not lifecycle.remote_session.exists:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "Session Present after Clean Start")  # [MQTT-3.2.2-2]
        limits = handshake.limits
        if not self._peer.system_topics.may_publish:
            limits = replace(limits, maximum_qos=0, closes_at_messages=True)
        self._sender.accept(limits)
        self._sender.check(self._replica.selectors)
        self.was_disconnected = False
        self._counters.connections_total += 1
        self._keep_alive.accept(handshake.keep_alive_s)
        self._item_lag.note_count(handshake.count)
        lifecycle.remote_session.grant(handshake.session_expiry_s)
        self._pipeline.begin_connection(
            stamped=handshake.stamped,
            resumed=handshake.session_present,
            counts_up=self._peer.is_mosquitto,
        )
        lifecycle.emit(StandingTold(self._peer.begin_connection(handshake.primary_node, now=lifecycle.now)))
        lifecycle.accept(session_present=handshake.session_present)

    def _tolerate(self, deviation: Deviation, detail: str) -> None:
        self._lifecycle.emit(self._skipped.tolerate(deviation, detail))

    def _on_skipped(self, item: SkippedPublish) -> None:
        """Acknowledge a message that cannot be replicated; the value that it would replace is not served either."""
        lifecycle = self._lifecycle
        self._counters.received_total += 1
        if lifecycle.state is LinkState.TEARING_DOWN:
            self._counters.outside_total += 1
            return
        if lifecycle.stage is not None:
            lifecycle.stage.receive_messages(1)
            lifecycle.stage.receive_skipped(item.flags)
        in_pass = lifecycle.state in (LinkState.SNAPSHOT, LinkState.PROVING)
        fate, applied = self._pipeline.skip(
            item,
            phase=Phase.SNAPSHOT if in_pass else Phase.AUDIT,  # a removal that is no update of the primary
            now_ns=lifecycle.now_ns,
            epoch=lifecycle.epoch,
        )
        lifecycle.emit(*applied)
        if fate is SkippedFate.SKIPPED:
            self._skip(item.reason, item.topic, item.detail)
        elif fate is SkippedFate.OUTSIDE:
            self._counters.outside_total += 1

    def _take_rows(self, rows: list[PublishRow]) -> None:
        lifecycle, pipeline, stage = self._lifecycle, self._pipeline, self._lifecycle.stage
        self._counters.received_total += len(rows)
        parts: Iterable[tuple[Sequence[PublishRow], Phase | None, bool]] = ((rows, Phase.LIVE, False),)
        if (
            stage is not None
            or lifecycle.state is not LinkState.LIVE
            or lifecycle.audits.current is not None
            or lifecycle.audits.copies_late
            or pipeline.primary_stamps
            or self._peer.ordered_topics
            or self._count.state is not CountState.OFF
        ):  # seldom: else all rows are alike
            parts = self._split(rows)
        for part, phase, queued in parts:
            if pipeline.open_max is not None and (count := pipeline.exceeds(part)) > 0:
                self._tolerate(Deviation.RECEIVE_MAXIMUM, f"{count} messages at a time")  # [MQTT-3.3.4-9]
            applied, others = pipeline.take(
                part,
                phase=phase,
                now_ns=lifecycle.now_ns,
                epoch=lifecycle.epoch,
                queued=queued,
                held_back=None if lifecycle.stage is None else lifecycle.stage.held_back,
            )
            lifecycle.events += applied
            for row in others:
                self._on_other(row)

    def _split(self, rows: list[PublishRow]) -> Iterator[tuple[Sequence[PublishRow], Phase | None, bool]]:
        """Split rows, in order, into parts that are alike; each must be taken before the next one is asked for.

        Yields:
            Rows; why they came (`_phase_of`); True if the primary queued them before the request for the set under
            way.
        """
        lifecycle, pipeline, stage = self._lifecycle, self._pipeline, self._lifecycle.stage
        if stage is not None:
            stage.receive_messages(len(rows))
        if lifecycle.state is LinkState.TEARING_DOWN:
            # A new session has no subscriptions to the selectors yet: other messages are not for this link.
            ours = [row for row in rows if row[TOPIC] == READINESS_TOPIC]
            self._counters.outside_total += len(rows) - len(ours)
            rows = ours
        for part in self._split_ordered(rows):
            for known, some in self._split_known(part):
                if known:
                    lifecycle.emit(pipeline.acknowledge(some, now_ns=lifecycle.now_ns, epoch=lifecycle.epoch))
                    continue
                # Measured (2 shared cores): 17 ns a row, 42 with stamps.
                if not pipeline.primary_stamps or not has_copies(some):
                    yield from self._split_new(some, copies=False)
                    continue
                for copies, new in groupby(some, is_copy):  # those that a fanout node marks as copies
                    yield from self._split_new(list(new), copies=copies)

    def _split_ordered(self, rows: list[PublishRow]) -> Iterator[list[PublishRow]]:
        """Split rows so that a message about the data is handled at its place among it."""
        ordered_topics = self._peer.ordered_topics
        if self._count.state is not CountState.OFF:
            ordered_topics |= ORDERED_TOPICS
        # Rarely true. Measured (2 shared cores): 25 ns a row; 200 to 350 with a loop.
        if ordered_topics and not ordered_topics.isdisjoint(map(_TOPIC, rows)):
            yield from (list(part) for _, part in groupby(rows, lambda row: row[TOPIC] in ordered_topics))
        else:
            yield rows

    def _split_known(self, rows: list[PublishRow]) -> Iterable[tuple[bool, Sequence[PublishRow]]]:
        """Split rows by whether they came on a former connection; a live link has had all of these."""
        if self._lifecycle.state in (LinkState.LIVE, LinkState.STALLED):
            return ((False, rows),)
        return self._pipeline.redelivery.split_known(rows)

    def _split_new(
        self, rows: Sequence[PublishRow], *, copies: bool
    ) -> Iterator[tuple[Sequence[PublishRow], Phase | None, bool]]:
        lifecycle, stage = self._lifecycle, self._lifecycle.stage
        if stage is not None:
            stage.receive_rows(rows)
        if lifecycle.state in (LinkState.SNAPSHOT, LinkState.PROVING, LinkState.TEARING_DOWN):
            phases: Iterable[tuple[Phase | None, Iterable[PublishRow]]] = ((Phase.SNAPSHOT, rows),)
        else:
            phases = groupby(rows, self._phase_of)
        for phase, part in phases:
            phase = Phase.AUDIT if copies and phase is not Phase.SNAPSHOT else phase
            if self._peer.is_mosquitto and isinstance(stage, RetainedPass) and stage.is_at_qos_0:
                # From its request on the subscription has QoS 0, and Mosquitto does not queue messages at QoS 0.
                for queued, some in groupby(part, lambda row: row[FLAGS] & QOS > 0):
                    yield list(some), phase, queued
            else:
                yield list(part), phase, False

    def _phase_of(self, row: PublishRow) -> Phase | None:
        """Return why a row came after the snapshot; None if only the replica can tell it from a copy.

        It follows from the flags of a PUBLISH and from the state of the session, which rows before may have changed.
        """
        lifecycle, flags = self._lifecycle, row[FLAGS]
        may_be_copy = flags & COPY_MASK == RETAIN  # a live update may look so, too
        if lifecycle.auditing and not lifecycle.audits.copies_late:
            # Copies come at QoS 0; the replica tells which of these rows they are.
            return Phase.LIVE if flags & QOS else None
        if lifecycle.state is LinkState.RESUMING:
            # Messages sent again may have been applied before the connection was lost; they are not delivered twice.
            # Nor are copies that the former connection requested; Mosquitto keeps them in the session. And a primary
            # that began with an older store may have queued messages that came since in another session; likewise this
            # process may not know which messages an earlier one took.
            again = not self._pipeline.redelivery.continues(row) or flags & DUP or may_be_copy
        elif lifecycle.state is LinkState.VERIFYING:
            # Copies come at QoS 0; rows at a higher QoS, or after the last copy, are live.
            stage = lifecycle.stage
            again = not (flags & QOS or (stage is not None and stage.copies_complete))
        else:  # live; copies for an audit that was given up may still come, and then the next one has not begun
            again = lifecycle.audits.copies_late and may_be_copy
        return Phase.AUDIT if again else Phase.LIVE

    def _on_other(self, row: PublishRow) -> None:
        """Take a message outside the selectors: an own message, the sentinel, or an unknown one."""
        lifecycle = self._lifecycle
        topic, payload, flags, *_ = row
        replica = self._replica
        system = self._count.receive(
            topic,
            payload,
            retain=bool(flags & RETAIN),
            held=len(replica) + len(replica.refused),  # the primary counts topics that are kept out here, too
            unconfirmed=len(replica.unconfirmed),
        )
        if topic in self._cuts.topics:
            self._cuts.hear(row, now=lifecycle.now)
        if topic == self._control.topic:
            round_trip_ns = self._control.receive(payload, now=lifecycle.now, stamp=self._pipeline.stamp_of(row))
            if round_trip_ns is not None:
                lifecycle.emit(HeartbeatReturned(round_trip_ns))
                self._on_control_returned(payload, qos=flags >> 1 & 3)
            elif self._control.hears_twin(payload):
                lifecycle.note_twin(FOREIGN_HEARTBEAT, taken=False)
        elif flags & RETAIN and topic in (SERVER_SENTINEL, self._control.sentinel_topic):
            if lifecycle.stage is not None:
                lifecycle.stage.receive_retained(topic, payload, lifecycle.now)
        elif topic == self._control.sentinel_topic:
            pass  # the copy of a sentinel that was published again
        elif topic == READINESS_TOPIC and self._peer.hears_readiness:
            lifecycle.emit(StandingTold(self._peer.receive_readiness(payload)))
        elif topic == MANIFEST_TOPIC and self._peer.node is not None:
            if lifecycle.stage is not None:
                lifecycle.stage.receive_manifest(payload, lifecycle.now)
        elif system:
            if lifecycle.stage is None and lifecycle.state is LinkState.LIVE:
                self._count.ask(lifecycle.now)
        elif topic in self._cuts.topics:
            pass  # a heartbeat of another member, whose place was taken already
        else:
            index, local = self._pipeline.converter.local_name(topic)
            if index < 0:
                self._counters.outside_total += 1
            else:
                self._pipeline.keep_out(index, local, payload, flags, reason=SkipReason.TOPIC_TOO_LONG)
                self._skip(SkipReason.TOPIC_TOO_LONG, local)

    def _skip(self, reason: SkipReason, topic: bytes, detail: str = "") -> None:
        lifecycle = self._lifecycle
        lifecycle.emit(self._skipped.note(reason, topic, now_ns=lifecycle.now_ns, detail=detail))

    def _on_control_returned(self, payload: bytes, *, qos: int) -> None:
        lifecycle, lost = self._lifecycle, self._control.dropped
        if lifecycle.stage is not None:
            lifecycle.stage.receive_control(payload, lifecycle.now)
            return
        # A primary may drop messages at QoS 0 only: that says nothing of updates that all have a higher QoS.
        if lost and (qos or self._takes_qos_0()):
            self._counters.heartbeats_lost_total += lost
            lifecycle.emit(HeartbeatsLost(lost))
            lifecycle.audits.call("the primary dropped heartbeats", lifecycle.now)
        if lifecycle.state is LinkState.STALLED:
            lifecycle.revive()

    def _on_acks(self, run: AckRun) -> None:
        lifecycle = self._lifecycle
        if run.type is PacketType.PUBREL:
            for packet_id in run.packet_ids:
                self._sender.complete(packet_id, known=self._pipeline.release(packet_id), now=lifecycle.now)
            return
        for message, reason_code in self._sender.acknowledged(run, now=lifecycle.now):
            if message.token:
                lifecycle.emit(Forwarded(message.token, puback_reason_code(reason_code)))
                continue
            if reason_code >= 0x80 and message.topic == self._control.topic:
                self._refuse_control(message.payload, reason_code)
            if lifecycle.stage is not None:
                lifecycle.stage.receive_puback(message.topic, reason_code, lifecycle.now)
        self._forwarding.send(lifecycle.now, live=lifecycle.state is LinkState.LIVE)

    def _takes_qos_0(self) -> bool:
        # MQTT 3.1.1 leaves every selector at QoS 0.
        return self._config.version == 4 or any(selector.qos == 0 for selector in self._replica.selectors)

    def _refuse_control(self, payload: bytes, reason_code: int) -> None:
        """Note that the primary refused a message to the control topic: for good, or this one only.

        Raises:
            LinkLost: The link is stalled, and no heartbeat can end that.
        """
        why = reason_text(reason_code)
        if reason_code == ReasonCode.NOT_AUTHORIZED:
            was_live = self._control.is_open and self._lifecycle.state is LinkState.LIVE
            self._peer.system_topics.note_refused()
            self._control.refuse(f"the primary does not let the link publish to its control topic: {why}")
            if was_live:  # access rules have changed: rights to read may be gone too, which no message tells
                self._lifecycle.note_right_lost()
        else:
            self._control.refuse_message(payload, f"the primary refused the newest heartbeat: {why}")
        self._lifecycle.emit(ControlRefused(self._control.refusal))
        if not self._control.permitted and self._lifecycle.state is LinkState.STALLED:
            raise LinkLost(f"the link is stalled, and {self._control.refusal}")

    def _on_suback(self, packet: Suback) -> None:
        asked = self._sender.answered(packet.packet_id)
        if not asked:
            self._tolerate(Deviation.PACKET, "SUBACK was not asked for")
            return
        if len(packet.reason_codes) != asked:  # [MQTT-3.8.4-6]; nothing shows that what is not answered is subscribed
            self._tolerate(Deviation.FIELD, f"SUBACK has {len(packet.reason_codes)} Reason Codes for {asked} filters")
            refused = (int(ReasonCode.UNSPECIFIED_ERROR),) * asked
            packet = replace(packet, reason_codes=(*packet.reason_codes, *refused)[:asked])
        self._peer.receive_suback(packet)
        self._pipeline.converter.receive_suback(packet.packet_id)
        self._lifecycle.mark.receive_suback(packet)
        unheard = self._cuts.receive_suback(packet)
        if unheard is not None:
            self._lifecycle.emit(MemberUnheard(unheard, reason_text(packet.reason_codes[0])))
        if self._lifecycle.stage is not None:
            try:
                self._lifecycle.stage.receive_suback(packet, self._lifecycle.now)
            except PrimaryRefused as error:
                self._lifecycle.end_refused(error)

    def _on_unsuback(self, packet: Unsuback) -> None:
        lifecycle = self._lifecycle
        self._sender.answered(packet.packet_id)
        lifecycle.remote_session.receive_unsuback(packet.packet_id)
        if lifecycle.mark.receive_unsuback(packet):
            lifecycle.note_twin(UNMARKED, taken=True)
            return
        if lifecycle.stage is not None:
            lifecycle.stage.receive_unsuback(packet.packet_id)

    def _on_pingresp(self) -> None:
        lifecycle = self._lifecycle
        if self._sender.ping_sent_s is None:
            self._tolerate(Deviation.PACKET, "PINGRESP was not asked for")
            return
        self._sender.receive_pingresp()
        lifecycle.audits.end_late_copies()
        if lifecycle.stage is not None:
            lifecycle.stage.receive_pingresp(lifecycle.now)
        elif lifecycle.state is LinkState.LIVE:
            lifecycle.emit(SessionSeen())
            self._compare_count()

    def _compare_count(self) -> None:
        lifecycle, count = self._lifecycle, self._count
        compares = count.state is CountState.TAKEN
        if count.receive_pingresp(lifecycle.now):
            lifecycle.confirm_count(0)
        elif compares and count.state is CountState.OFF and count.difference:
            lifecycle.emit(CountDiffers(count.difference))
        if compares:
            lifecycle.take_count()
