"""Path of a link's rows into its replica (a hot path): convert, filter, stamp, apply.

Owns the QoS 2 state of the session, and enforces Receive Maximum. Messages outside the selectors go back to
`fanout.link.session.packet_router`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from operator import itemgetter

from fanout.chain.stamp import StampCount, TrailerReader, split_publisher_stamp, split_trailer
from fanout.config import LinkConfig
from fanout.link.ingest.content_filter import ContentFilter
from fanout.link.ingest.convert import ConvertedRows, Converter
from fanout.link.ingest.redelivery import RedeliveryFilter
from fanout.link.liveness.member_cuts import MemberCuts
from fanout.link.model.counters import LinkCounters
from fanout.link.model.events import Applied, MarkerPassed
from fanout.link.model.rows import FLAGS, PACKET_ID, PROPERTIES, QOS, QOS_1, QOS_2, TOPIC, USER_AT
from fanout.mqtt.breaches import SkipReason
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.delivery import Inbound
from fanout.mqtt.packets import PacketType, encode_acks
from fanout.mqtt.runs import SkippedPublish
from fanout.replica.store import Replica
from fanout.replica.update import RETAIN, Changes, Phase, Stamp, Update, content_digest

_TOPIC = itemgetter(TOPIC)

__all__ = ["IngestPipeline", "SkippedFate", "encode_acknowledgement"]


class SkippedFate(enum.Enum):
    """Outcome for a message that cannot be replicated."""

    SKIPPED = "skipped"
    """It is skipped."""
    KNOWN = "known"
    """It was skipped before, and was sent again."""
    OUTSIDE = "outside"
    """It is outside all selectors."""
    UNFIT = "unfit"
    """Its selector does not take it."""


class IngestPipeline:
    """Pipeline of one link.

    Attributes:
        converter: Converter of rows into updates.
        content: Content filter; None when the selectors take everything.
        redelivery: Filter of messages that come again in a resumed session.
        open_max: Messages at QoS 1 and 2 that may be under way at a time; None for any number.
        primary_stamps: True if the primary is a fanout node that promised stamps, so that trailers are read.
        newest_stamp: Stamp of the newest live update; None when it had none, and before the first.
        cuts: Takes cuts of the replica; None for a link that has none.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        replica: Replica,
        control_prefix: bytes,
        stamps: StampCount | None,
        counters: LinkCounters,
    ) -> None:
        """Prepare for one link.

        Args:
            config: The link's configuration.
            replica: The link's replica, changed here.
            control_prefix: Prefix of control topics; nothing below it is replicated.
            stamps: The node's stamp counter, used with `stamp_updates`; None stamps nothing.
            counters: Counters of the link.
        """
        self._counters = counters
        self.primary_stamps = False
        self.newest_stamp: Stamp | None = None
        self.cuts: MemberCuts | None = None
        self._inbound = Inbound()
        self.converter = Converter(
            replica.selectors,
            replica=replica,
            control_prefix=control_prefix,
            inbound=self._inbound,
            retain_all=config.version == 4 and config.retain_policy == "keep",
        )
        self._copies_come = config.version == 4
        self._replica = replica
        self.content = self._make_content(None)
        self._stamps = stamps if config.stamp_updates else None
        self._publishers_stamp = config.publisher_stamps
        self._stamps_itself = False
        """True if live updates of the primary get stamps of this node."""
        self.redelivery = RedeliveryFilter(
            may_be_resumed=config.version == 5 and config.session_expiry_s > 0,
            counters=counters,
            held=self.converter.held,
        )
        # MQTT 3.1.1 has no Receive Maximum.
        self._receive_maximum = config.receive_maximum if config.version == 5 else None
        self.open_max = self._receive_maximum

    def _make_content(self, rejected: Sequence[dict[str, int]] | None) -> ContentFilter | None:
        selectors = self._replica.selectors
        if not any(selector.is_choosy for selector in selectors):
            return None
        return ContentFilter(selectors, replica=self._replica, copies_come=self._copies_come, rejected=rejected)

    def reselect(self, moves: Sequence[int | None]) -> None:
        """Go on with the selectors that the replica has now; `moves` has the former position of each."""
        rejected = None
        if (before := self.content) is not None:
            rejected = [{} if at is None else before.rejected[at] for at in moves]
        self.content = self._make_content(rejected)
        self.converter.reselect(self._replica.selectors, moves)

    @property
    def unreleased(self) -> frozenset[int]:
        """Packet Identifiers of QoS 2 messages that were applied and are not released."""
        return self._inbound.unreleased

    def restore(self, unreleased: Iterable[int]) -> None:
        """Take over `unreleased` of an earlier process, whose subscriptions had their own QoS."""
        self._inbound.restore(unreleased)
        self.redelivery.restore()
        for index in range(len(self.converter.fixed_qos)):
            self.converter.fix_qos(index, None)

    def begin_session(self) -> None:
        """Forget the messages of the former session."""
        self._inbound = Inbound()
        self.converter.begin_session(self._inbound)
        self.redelivery.begin_session()

    def begin_connection(self, *, stamped: bool, resumed: bool = False, counts_up: bool = False) -> None:
        """Note that the primary accepted a Network Connection.

        Args:
            stamped: True if it stamps its messages.
            resumed: True if the session continues, so that messages of the former connection may come again.
            counts_up: True if it is known to count Packet Identifiers up.
        """
        self._inbound.new_connection()
        self.redelivery.begin_connection(resumed=resumed, counts_up=counts_up)
        # Mosquitto 2.0.11 exceeds it in a resumed session; to refuse that would end every further connection, too.
        self.open_max = None if resumed else self._receive_maximum
        self.converter.await_own_qos({})
        self.primary_stamps = stamped
        self._replica.counts_down |= stamped  # only fanout nodes stamp
        if stamped:
            self.converter.split_stamp = TrailerReader().split
        else:
            self.converter.split_stamp = split_publisher_stamp if self._publishers_stamp else None
        self._stamps_itself = self._stamps is not None and not stamped

    def lift_receive_maximum(self) -> None:
        """Accept any number of unacknowledged messages on this Network Connection to a Mosquitto.

        Once messages wait, 2.0.11 sends as many as Receive Maximum with each PUBACK, whatever else is unacknowledged.
        A refusal would end the connection in each burst.
        """
        self.open_max = None

    def acknowledge(self, rows: Sequence[PublishRow], *, now_ns: int, epoch: int) -> Applied:
        """Acknowledge rows that were taken before, without applying them."""
        converted = self.converter.convert(rows, now_ns=now_ns)
        return Applied(self._apply([], phase=Phase.AUDIT), encode_acknowledgement(converted), epoch)

    def take(
        self,
        rows: Sequence[PublishRow],
        *,
        phase: Phase | None,
        now_ns: int,
        epoch: int,
        queued: bool = False,
        held_back: dict[bytes, Update] | None = None,
    ) -> tuple[list[Applied | MarkerPassed], list[PublishRow]]:
        """Apply the rows of one run, and return the changes, in order, and the rows outside the selectors.

        Args:
            rows: In the order of arrival.
            phase: Why they came; None when the replica must tell which are copies; these need no acknowledgement.
            now_ns: Unix time in nanoseconds of the read that brought them.
            epoch: Epoch of the rows.
            queued: True if they were queued before the request of the running pass, and may come after its copies.
            held_back: Takes copies that differ from the replica, by topic, until `apply_held_back`: what they bring may
                have been queued before the request, and come after them as messages. None applies them at once.
        """
        converted = self.converter.convert(rows, now_ns=now_ns)
        acknowledgement = b""
        if phase is None:
            applied: list[Applied | MarkerPassed] = []
            for each, part in self._replica.split_pass(converted.updates):  # applied before the next one is told apart
                some = part
                if held_back and each is Phase.LIVE:
                    self._explain(held_back, part)
                elif held_back is not None and each is not Phase.LIVE:
                    some = self._hold_back(part, held_back)
                applied.append(Applied(self._apply(some, phase=each), b"", epoch))
            return applied, converted.others
        if converted.to_puback or converted.to_pubrec:
            self.redelivery.note(rows, converted, now_ns=now_ns)
            acknowledgement = encode_acknowledgement(converted)
        updates = converted.updates
        if queued:
            updates = [update for update in updates if not self._replica.overtakes(update)]
            self._counters.overtaken_total += len(converted.updates) - len(updates)
        if updates and phase is Phase.LIVE:
            self.newest_stamp = updates[-1][8]
            if held_back:
                self._explain(held_back, updates)
        before: list[Applied | MarkerPassed] = []
        if converted.others and not queued:
            before, updates = self._take_cuts(converted, phase=phase, now_ns=now_ns, epoch=epoch)
        if held_back is not None and phase is not Phase.LIVE:
            updates = self._hold_back(updates, held_back)
        if self.content is not None or self._stamps_itself:
            updates = self._complete(updates, phase=phase)
        changes = self._replica.apply(updates, phase=phase, of_pass=not queued)
        if changes.updates or acknowledgement:
            return [*before, Applied(changes, acknowledgement, epoch)], converted.others
        return before, converted.others

    def _take_cuts(
        self, converted: ConvertedRows, *, phase: Phase, now_ns: int, epoch: int
    ) -> tuple[list[Applied | MarkerPassed], list[Update]]:
        """Take the cuts among converted rows, each once the updates before it are applied.

        Returns:
            Applied updates, without acknowledgements, with the places of the cuts; the updates after the last one.
        """
        cuts, updates, places = self.cuts, converted.updates, converted.others_at
        if cuts is None or places is None or cuts.topics.isdisjoint(map(_TOPIC, converted.others)):
            return [], updates
        applied: list[Applied | MarkerPassed] = []
        done = 0
        for row, place in zip(converted.others, places, strict=True):
            if row[TOPIC] in cuts.topics:
                if place > done:
                    applied.append(Applied(self._apply(updates[done:place], phase=phase), b"", epoch))
                    done = place
                passed = cuts.capture(row, now_ns=now_ns) if phase is Phase.LIVE else None
                if passed is not None:
                    applied.append(passed)
        return applied, updates[done:]

    def apply_held_back(self, held_back: dict[bytes, Update], *, epoch: int) -> Applied:
        """Apply copies that no message has explained, at the end of their set."""
        updates = list(held_back.values())
        held_back.clear()
        return Applied(self._apply(updates, phase=Phase.AUDIT), b"", epoch)

    def _explain(self, held_back: dict[bytes, Update], updates: Iterable[Update]) -> None:
        """Drop copies that are held back where messages for their topics come: those are as new, or newer."""
        for update in updates:
            if update[RETAIN] and held_back.pop(update[0], None) is not None:
                self._replica.expect_no_copy(update[0])

    def _hold_back(self, updates: list[Update], held_back: dict[bytes, Update]) -> list[Update]:
        """Hold copies back that differ from the replica; return the other updates.

        A message at QoS 0 looks like a copy. But a set brings one copy of each topic, so the second one is none.
        """
        held = {update[0]: update for update in self._replica.get_many([*dict.fromkeys(map(_TOPIC, updates))])}
        ready: list[Update] = []
        for update in updates:
            topic, payload, _, retain, properties, *_ = update
            value = held.get(topic)
            if topic in held_back:
                ready += (held_back.pop(topic), update)
            elif not (retain and payload) or (value is not None and (value[1], value[4]) == (payload, properties)):
                ready.append(update)
            else:
                held_back[topic] = update
        return ready

    def exceeds(self, rows: Sequence[PublishRow]) -> int:
        """Return how many messages are under way with these rows if they exceed Receive Maximum; else 0."""
        if self.open_max is None or len(rows) + self._inbound.open_count <= self.open_max:
            return 0
        at_qos_1 = sum(1 for row in rows if row[FLAGS] & QOS == QOS_1)
        at_qos_2 = self._inbound.unreleased.union(row[PACKET_ID] for row in rows if row[FLAGS] & QOS == QOS_2)
        open_count = at_qos_1 + len(at_qos_2)
        return open_count if open_count > self.open_max else 0

    def release(self, packet_id: int) -> bool:
        """Note PUBREL, and return whether its Packet Identifier is known."""
        return self._inbound.release(packet_id)

    def skip(self, item: SkippedPublish, *, phase: Phase, now_ns: int, epoch: int) -> tuple[SkippedFate, list[Applied]]:
        """Acknowledge a message that cannot be replicated, and remove the value that it would replace.

        Args:
            item: The message.
            phase: Why it came.
            now_ns: Unix time in nanoseconds of the read that brought it.
            epoch: Epoch of the message.
        """
        topic, flags = item.topic, item.flags
        converted, is_new = ConvertedRows(), True
        if item.packet_id:
            is_new = self.converter.acknowledge(converted, flags, item.packet_id)
            self.redelivery.note([(topic, b"", flags, item.packet_id, b"", None, 0)], converted, now_ns=now_ns)
        index, local = self.converter.local_name(topic)
        fate, removals = SkippedFate.SKIPPED, list[Update]()
        if not is_new:
            fate = SkippedFate.KNOWN
        elif topic and item.reason is not SkipReason.INVALID_TOPIC:  # an invalid one has no value here
            if index < 0:
                fate = SkippedFate.OUTSIDE
            elif self.converter.retains(flags) and local in self._replica.view:
                removals = [(local, b"", 0, True, b"", now_ns, 0, content_digest(topic, b""), None)]
        changes = self._apply(removals, phase=phase)
        if fate is SkippedFate.SKIPPED and index >= 0 and item.reason is not SkipReason.INVALID_TOPIC:
            most = self._replica.selectors[index].max_payload
            if self.content is not None and most and item.payload_bytes > most:
                self.content.reject(index, "payload_too_large")
                fate = SkippedFate.UNFIT
            else:
                self.keep_out(index, local, b"?", flags, reason=item.reason)
        acknowledgement = encode_acknowledgement(converted)
        return fate, [Applied(changes, acknowledgement, epoch)] if removals or acknowledgement else []

    def keep_out(self, index: int, topic: bytes, payload: bytes, flags: int, *, reason: SkipReason) -> None:
        """Note that a message of a selected topic, which is not held, is skipped: if retained, the topic is not held.

        Args:
            index: Position of its selector.
            topic: The local name.
            payload: Its payload; with RETAIN an empty one removes the topic.
            flags: Its flags.
            reason: Why it is skipped.
        """
        if not payload:
            self._replica.refused.discard(topic)
        elif self.converter.retains(flags) and not self._replica.selectors[index].live_only:
            self._replica.refused.skip(topic, reason=reason, index=index)

    def stamp_of(self, row: PublishRow) -> Stamp | None:
        """Return the primary's stamp on a row outside the selectors; None when it has none."""
        return split_trailer(row[PROPERTIES], row[USER_AT])[1] if self.primary_stamps else None

    def _apply(self, updates: list[Update], *, phase: Phase) -> Changes:
        return self._replica.apply(self._complete(updates, phase=phase), phase=phase)

    def _complete(self, updates: list[Update], *, phase: Phase) -> list[Update]:
        """Return the updates that the content filter admits, stamped if the primary does not stamp."""
        if self.content is not None:
            updates = self.content.admit(updates, phase=phase)
        if self._stamps_itself:
            assert self._stamps is not None
            updates = self._stamps.complete(updates, live=phase is Phase.LIVE)
        return updates


def encode_acknowledgement(converted: ConvertedRows) -> bytes:
    """Return the PUBACKs and PUBRECs for converted rows, in one piece; empty when they need none."""
    if not (converted.to_puback or converted.to_pubrec):
        return b""
    return encode_acks(PacketType.PUBACK, converted.to_puback) + encode_acks(PacketType.PUBREC, converted.to_pubrec)
