"""Pass over the retained sets of all selectors, one after another: a snapshot, a verification, or an audit.

For each selector it sends SUBSCRIBE at QoS 0, with the sentinel in the same packet, and PINGREQ and the marker in the
same write. After the proof it subscribes again at the selector's QoS without retained messages.

At a primary that is not known to answer in order, a set is taken at least twice (`fanout.link.snapshot.two_pass`),
unless the pass is a comparison with the replica and nothing shows an order. While the order is likely, a pass ends by
its evidence, and a second one that brings the same confirms it; an empty or suspiciously small set needs a third one,
which ends by silence. Otherwise, and once two passes differ, a pass ends by silence. Between the first two, narrower
Topic Filters are requested (`fanout.link.snapshot.narrowing`); topics that only these bring make the passes differ. A
comparison requests by name topics that the set did not bring, before they count as gone.

Why QoS 0: a primary with default settings silently drops messages that exceed its queue of QoS 1 messages (Mosquitto:
1000 and the Receive Maximum), whereas at QoS 0 a quick reader gets everything
(`docs/decisions/0003-snapshot-evidence.md`). But a session that is left while its subscription has QoS 0, as by a
process that is killed, collects nothing. So in a comparison with a set of moderate size only the copies have QoS 0: the
same packet asks for the selector's QoS again (`docs/decisions/0054-qos-of-a-comparison.md`). MQTT 3.1.1 cannot
subscribe again without the retained messages, so there the subscription stays at QoS 0.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence

from fanout.chain.manifest import ASK_FOR_MANIFEST, ManifestSum, decode_manifest
from fanout.errors import LinkLost, SnapshotUnproved
from fanout.link.model.evidence import Evidence, Order
from fanout.link.protocol.handshake import refused_subscription
from fanout.link.protocol.sender import OutgoingMessage
from fanout.link.snapshot.capability_check import RETAINED_COUNT, own_sentinel
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.hints import ALTERED_HINT, CHURN_HINT, LIMIT_HINT, shortfall_hint
from fanout.link.snapshot.narrowing import SAMPLE_TOPICS, is_likely_limit, narrower_filters
from fanout.link.snapshot.set_proof import SetProof
from fanout.link.snapshot.stage import Stage
from fanout.link.snapshot.two_pass import (
    PASSES_MAX,
    PassComparison,
    PassVerdict,
    SilentProof,
    is_suspiciously_small,
)
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.packets import Suback
from fanout.mqtt.topics import matches
from fanout.selection import Selector

__all__ = ["CAME_LATE", "RetainedPass", "Step"]

CAME_LATE = "topics of a retained set came after the answers that should follow it"
"""Reason that the sets themselves give against an order; a sentinel that comes in time does not refute it."""
REST_MIN_S = 0.1
REST_MAX_S = 10.0
"""Bounds of the rest between two sets of an audit, which is as long as the first one took."""
AUDIT_QUIETS = 3
"""Number of quiet times that a primary may be silent in an audit, because a pause of a live link is no loss."""
UNSEEN_ASKED = 16
"""Number of topics that are requested by name when a set did not bring them."""
KEEPS_QOS_TOPICS = 10_000
"""Topics of a set up to which live updates keep the selector's QoS during a comparison.

Their copies take some 30 ms, in which the queue of 1,000 messages of a primary with default settings suffices for
30,000 updates/s.
"""
_NEVER = float("inf")
_SEND_RETAINED = 0
_SEND_NO_RETAINED = 2


class Step(enum.Enum):
    """Progress of a pass on which the session acts."""

    BARRIER = "barrier"
    """SUBACK, PINGRESP and the sentinel came for the set under way."""
    PROVED = "proved"
    """The set under way is proved; the session compares it and calls `begin_next`."""
    DONE = "done"
    """All sets are proved, and all subscriptions are at their own QoS."""


class RetainedPass(Stage):
    """One pass over the retained sets of a link.

    Attributes:
        index: Index of the selector under way; the number of selectors when none is left.
        topics_total: Number of topics that the proved sets brought.
        evidence: Evidence for the set under way; None before `Step.PROVED`.
        order: Order of the primary's answers, as far as these passes have shown.
        why: Why that is not known, in words; empty when it is.
        stamp_before: Stamp of the newest control message that had come back before the pass; None without stamps.
        started_s: When the first SUBSCRIBE was sent, monotonic seconds; None before.
        lowered: Positions of selectors whose own QoS was not granted, each with the QoS granted.
        refused: Positions of selectors that the primary refused in a comparison, each with how it did.
        copied: Topics, as named at the primary, whose copies came, if live messages count as retained (`keep`).
    """

    def __init__(
        self, context: LinkContext, *, compare: bool, paced: bool, positions: Iterable[int], had: Sequence[int] = ()
    ) -> None:
        """Prepare; `begin` starts.

        Args:
            context: Collaborators of the link.
            compare: True if the pass is a verification or an audit, which compares even an empty replica.
            paced: True to rest between two sets, for an audit.
            had: Number of topics of each selector in the epoch before; empty for unknown.
            positions: Positions of the selectors whose sets are taken, in this order; at least one.
        """
        config, peer = context.config, context.peer
        self._left = deque(positions)
        """Positions of the selectors whose sets are not under way yet."""
        self.index = self._left.popleft()
        self.topics_total = 0
        self.started_s: float | None = None
        self.lowered: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self.copied: set[bytes] = set()
        self._notes_copies = config.version == 4 and config.retain_policy == "keep"
        self.evidence: Evidence | None = None
        self.order = peer.order
        self.why = peer.why_unordered
        self.stamp_before = context.control.stamp
        self._may_keep_qos = compare and config.version == 5 and (peer.is_mosquitto or peer.node is not None)
        """True if the primary is known to send the copies for the first of two entries of a SUBSCRIBE at its QoS."""
        self._keeps_qos = False
        """True if the subscription of the set under way has the selector's own QoS."""
        self._selectors = context.replica.selectors
        self._replica = context.replica
        self._converter = context.pipeline.converter
        self._sender = context.sender
        self._control = context.control
        self._count = context.count
        self._peer = peer
        self._sentinel = peer.sentinel
        self._quiet_s = config.snapshot_quiet_s
        self._asks_manifest = peer.node is not None and config.version == 5
        self._hint = shortfall_hint(is_node=self._asks_manifest, is_mosquitto=peer.is_mosquitto)
        """Advice to an operator about a set that is not complete."""
        self._manifest_sum: ManifestSum | None = None
        """Sum over the messages since the manifest began; None outside a manifest."""
        self._skipped_in_manifest = False
        """True if some of these were skipped."""
        self._skipped = 0
        """Number of retained messages skipped in this pass: progress, as topics are."""
        self._compare = compare
        self._paced = paced
        self._set_started_s = 0.0
        self._next_at_s = _NEVER
        """When the next set is requested, after a rest."""
        self._proof: SetProof | None = None
        self._comparison = PassComparison()
        self._had = tuple(had) or (0,) * len(self._selectors)
        self._max_removed_percent = config.max_removed_percent
        self._awaits_silence: Evidence | None = None
        """Evidence by answers for a set so small that silence must confirm it; None without need."""
        self._asked_unseen: tuple[int, Evidence] | None = None
        """Number of topics missing in the set when some were requested by name, and its evidence; None before."""
        self._copies = 0
        """Number of retained messages in the first pass over the set under way, without the sentinel."""
        self._narrowed = False
        """True if narrower Topic Filters were requested beside the set under way."""
        self._barrier_told = False
        self._own_qos_requested = False
        """True if the own QoS of the selector under way was requested."""
        self._own_qos_pending: dict[int, int] = {}
        """Packet Identifier of a SUBSCRIBE at a selector's own QoS to the selector's index."""
        self._own_qos_by_s = 0.0
        self._begin_by_s = _NEVER
        """Deadline of the PINGRESP for which `begin` waits."""

    def begin(self, now: float) -> None:
        """Start with the first selector; while a PINGREQ is under way, wait for its PINGRESP."""
        if self._begin_by_s == _NEVER:
            self._renew_own_sentinel(now)
        if self._sender.ping_sent_s is not None:
            self._begin_by_s = now + self._quiet_s
        elif self._proof is None:
            self.started_s = now
            self._subscribe(now)

    def _renew_own_sentinel(self, now: float) -> None:
        """Publish the link's own sentinel again for a comparison, because it may have expired since the snapshot.

        The message comes back without RETAIN, so it is no sentinel itself: the subscription to it, made with that of a
        selector, is without Retain As Published.
        """
        sender, sentinel = self._sender, own_sentinel(self._control)
        is_own = self._sentinel == self._control.sentinel_topic
        if self._compare and is_own and sender.version == 5 and sender.free and sender.takes(sentinel):
            sender.publish(sentinel, now=now)

    def begin_next(self, now: float) -> None:
        """Continue after a proved set: request the own QoS of its subscription, and the set of the next selector."""
        self.topics_total += self._replica.count(self.index)
        self.request_own_qos(now)
        self.index = self._left.popleft() if self._left else len(self._selectors)
        self._own_qos_requested = False
        self._proof = None
        self.evidence = None
        self._comparison = PassComparison()
        self._asked_unseen = None
        self._awaits_silence = None
        self._copies = 0
        if self.index == len(self._selectors):
            return
        if self._paced:
            self._next_at_s = now + min(max(now - self._set_started_s, REST_MIN_S), REST_MAX_S)
        else:
            self._subscribe(now)

    def request_own_qos(self, now: float) -> None:
        """Request the own QoS of the subscription whose set is proved, unless that was done.

        The steps that follow from a proof may take a while before `begin_next`.
        """
        if self._own_qos_requested:
            return
        self._own_qos_requested = True
        selector = self._selectors[self.index]
        if self._keeps_qos:
            self._converter.fix_qos(self.index, None)
        elif selector.qos and self._sender.version == 5 and not selector.live_only:
            packet_id = self._sender.subscribe(
                selector.filter.encode(),
                qos=selector.qos,
                no_local=self._wants_no_local(selector),
                retain_handling=_SEND_NO_RETAINED,
                bounded=True,
                now=now,
            )
            self._own_qos_pending[packet_id] = self.index
            self._own_qos_by_s = now + self._quiet_s

    def give_up(self, now: float) -> None:
        """Leave the set under way without evidence, and request the own QoS of its subscription."""
        if self.index < len(self._selectors):
            self.request_own_qos(now)
        self._converter.await_own_qos(self._own_qos_pending)

    def advance(self, now: float) -> Step | None:
        """Return the next step; None when there is none.

        Raises:
            SnapshotUnproved: Each pass over the set under way brought other topics.
        """
        proof = self._proof
        if proof is None:
            done = self.index == len(self._selectors) and not self._own_qos_pending
            if done and self.order is Order.LIKELY:
                self.order, self.why = Order.KNOWN, ""
            return Step.DONE if done else None
        if isinstance(proof, SilentProof):
            proof.note_topics(self.topics_now if self._asked_unseen is None else self._replica.unseen_count, now)
        if proof.barrier and not self._barrier_told:
            self._barrier_told = True
            return Step.BARRIER
        if proof.evidence is not None and self.evidence is None:
            self._judge_pass(proof.evidence, now)
        return Step.PROVED if self.evidence is not None else None

    def _judge_pass(self, evidence: Evidence, now: float) -> None:
        """Decide whether a pass that has ended proves the set, or begin another one."""
        silent = isinstance(self._proof, SilentProof)
        if not self._repeats:
            self._judge_comparison(Evidence.TWO_PASS if silent else evidence, now)
            return
        selector = self._selectors[self.index]
        verdict = self._comparison.take(self._replica.seen_topics, held=self._replica.view)
        if verdict is PassVerdict.SAME and not silent and self._is_suspicious():
            self._awaits_silence = evidence
            self._subscribe(now)
        elif verdict is PassVerdict.SAME:
            self.evidence = self._awaits_silence or (Evidence.TWO_PASS if silent else evidence)
            if not silent and (count := self._likely_limit()):
                self.evidence, self.order = Evidence.TWO_PASS, Order.NONE
                self.why = (
                    f"the primary sent exactly {count} retained messages for {selector.filter}, twice, which may be a"
                    " limit of its own, as match_retained_limit of ejabberd's mod_mqtt is: raise it, or allow two-pass"
                    " where there is none"
                )
        elif verdict is PassVerdict.NOTHING and silent and self._awaits_silence is None:
            self.evidence = Evidence.QUIET
            held = self._replica.view
            self._replica.begin_pass(self.index, seen=(topic for topic in self._comparison.seen if topic in held))
        else:
            comparison = self._comparison
            self._awaits_silence = None  # what came late shows in the next pass, which ends by its evidence again
            if not silent and comparison.passes > 1:
                self.order, self.why = Order.NONE, CAME_LATE
            elif comparison.passes >= PASSES_MAX:
                raise SnapshotUnproved(
                    f"the retained set of {selector.filter} was taken {PASSES_MAX} times and never"
                    f" twice the same: the last pass missed {comparison.missing} topics of those before and brought"
                    f" {comparison.fresh} others",
                    hint=CHURN_HINT if not comparison.missing else LIMIT_HINT if self._narrowed else self._hint,
                )
            if comparison.passes == 1:
                self._narrowed = self._ask(narrower_filters(selector, self._newest(SAMPLE_TOPICS)), now) > 0
            self._subscribe(now)

    def _is_suspicious(self) -> bool:
        """Say whether the set under way is so small that it may come after its evidence."""
        return is_suspiciously_small(
            self._replica.seen_count, had=self._had[self.index], max_removed_percent=self._max_removed_percent
        )

    def _likely_limit(self) -> int:
        """Return the number of topics or copies of the set if it is typical of a limit; else 0.

        At the primary, copies of topics that are not replicated count, too.
        """
        topic_filter = self._selectors[self.index].filter.encode()
        has_sentinel = self._sentinel is not None and matches(topic_filter, self._sentinel)
        return next(filter(is_likely_limit, (self._replica.seen_count, self._copies + has_sentinel)), 0)

    def _judge_comparison(self, evidence: Evidence, now: float) -> None:
        """Judge a set that is compared with the replica; topics that it did not bring may have been cut off.

        With this evidence they were not, if the kind of the primary is known.
        """
        unseen = self._replica.unseen_count
        if self._asked_unseen is not None:
            unseen_before, self.evidence = self._asked_unseen
            if unseen < unseen_before:
                self.evidence = None
                self._proof = SetProof(0, sentinel=None, marker=None, now=now, quiet_s=self._quiet_s)
                self._proof.refute("it lacks topics that the primary sends when asked by name")
        elif unseen and (self.order is Order.NONE or self._sentinel == self._control.sentinel_topic):
            packet_id = self._ask(self._unseen(UNSEEN_ASKED), now)
            if not packet_id:  # the primary takes no SUBSCRIBE for so long a name
                self.evidence = evidence
                return
            self._asked_unseen = unseen, evidence
            if self.order is Order.NONE:
                self._proof = SilentProof(packet_id, now=now, quiet_s=self._quiet_s)
            else:
                self._proof = SetProof(packet_id, sentinel=None, marker=None, now=now, quiet_s=self._quiet_s)
            self._sender.ping(now)
        else:
            self.evidence = evidence

    def _ask(self, topic_filters: Iterable[bytes], now: float) -> int:
        """Request retained messages beside the set; return the last Packet Identifier, 0 for none.

        A Topic Filter that is too long for a packet of the primary is left out.
        """
        packet_id = 0
        no_local = self._wants_no_local(self._selectors[self.index])
        for topic_filter in topic_filters:
            if not self._sender.takes_names([topic_filter], sentinel=None):
                continue
            packet_id = self._sender.subscribe(
                topic_filter, qos=0, no_local=no_local, retain_handling=_SEND_RETAINED, bounded=True, now=now
            )
            self._sender.unsubscribe(topic_filter, now=now)
        return packet_id

    def _newest(self, count: int) -> list[bytes]:
        """Return topics of the set under way, as named at the primary, the newest in the replica first."""
        prefix = self._selectors[self.index].prefix.encode()
        return [topic.removeprefix(prefix) for topic in self._replica.newest_seen(count)]

    def _unseen(self, count: int) -> list[bytes]:
        """Return topics that the set under way did not bring, as named at the primary."""
        prefix = self._selectors[self.index].prefix.encode()
        return [topic.removeprefix(prefix) for topic in self._replica.some_unseen(count)]

    @property
    def _repeats(self) -> bool:
        """True if two passes over the set under way must agree."""
        if self._is_live_only or self.order is Order.KNOWN:
            return False
        return self.order is Order.LIKELY or not self._compare

    @property
    def _is_live_only(self) -> bool:
        """True if the selector under way needs no retained messages, and MQTT 5 can omit them."""
        return self._selectors[self.index].live_only and self._sender.version == 5

    @property
    def is_at_qos_0(self) -> bool:
        """True if the subscription of the set under way has QoS 0 and had the selector's own QoS before."""
        return (
            self._proof is not None
            and self.evidence is None
            and not self._keeps_qos
            and self._converter.fixed_qos[self.index] not in (None, 0)
        )

    @property
    def only_trickled(self) -> bool:
        """True if only a trickle of new topics keeps the set under way from its end."""
        return isinstance(self._proof, SilentProof) and self._proof.trickles

    @property
    def below_own_qos(self) -> tuple[int, ...]:
        """Positions of selectors whose subscriptions have, or may still have, QoS 0 in place of their own."""
        under_way = (self.index,) if self.is_at_qos_0 else ()
        return (*self._own_qos_pending.values(), *under_way)

    @property
    def topics_now(self) -> int:
        """Number of topics that the set under way has brought, live updates included."""
        if self.index == len(self._selectors):
            return 0
        return self._replica.count(self.index) - self._replica.unseen_count

    @property
    def copies_complete(self) -> bool:
        """True if every copy of the set under way has come, so that further rows are live."""
        return self.evidence is not None or (self._barrier_told and self._replica.unseen_count == 0)

    def receive_bytes(self, now: float) -> None:
        """Note that the primary sent something."""
        if self._proof is not None:
            self._proof.receive_bytes(now)

    def receive_suback(self, packet: Suback, now: float) -> None:
        """Take a SUBACK of this pass.

        Raises:
            PrimaryRefused: The primary refused the subscription.
        """
        if self._proof is not None and packet.packet_id == self._proof.suback_id:
            if self._asked_unseen is None:  # access rules may allow a selector but not a topic in it by name
                if (self._compare or self._paced) and packet.reason_codes[0] >= 0x80:
                    # The answers that follow end the set, which is empty: its topics are missing.
                    refusal = refused_subscription(self._selectors[self.index].filter, packet.reason_codes[0])
                    self.refused[self.index] = refusal.message
                else:
                    self._check(self.index, packet)
                    if self._is_live_only or self._keeps_qos:
                        self._note_granted(self.index, packet, at=min(self._keeps_qos, len(packet.reason_codes) - 1))
            if self._asks_manifest and ASK_FOR_MANIFEST in packet.properties.user_property:
                self._proof.expect_manifest()
            self._proof.receive_suback(now)
        elif packet.packet_id in self._own_qos_pending:
            index = self._own_qos_pending.pop(packet.packet_id)
            if index not in self.refused:
                self._check(index, packet)
                self._note_granted(index, packet)
            self._converter.fix_qos(index, None)

    def receive_rows(self, rows: Sequence[PublishRow]) -> None:
        """Count the copies of the first pass, and add retained messages at QoS 0 to the sum for the manifest."""
        if self._notes_copies:  # live messages have no RETAIN
            self.copied.update(row[0] for row in rows if row[2] & 1)
        # Numbers instead of the names of `fanout.link.ingest.rows`, which take a fifth more time in these loops.
        if self.order is Order.LIKELY and not self._comparison.passes:
            own = (self._sentinel, RETAINED_COUNT)
            self._copies += sum(1 for row in rows if row[2] & 7 == 1 and row[0] not in own)
        if self._manifest_sum is not None:
            for row in rows:
                if row[2] & 7 == 1:
                    self._manifest_sum.add(row[0], row[1])

    def receive_skipped(self, flags: int) -> None:
        """Count a skipped message as a copy."""
        if flags & 7 != 1:
            return
        self._skipped += 1
        if self.order is Order.LIKELY and not self._comparison.passes:
            self._copies += 1
        if self._manifest_sum is not None:
            self._manifest_sum.count += 1
            self._skipped_in_manifest = True

    def receive_part(self, now: float) -> None:
        """Note that a part of a packet came that is too large to be read, so the set goes on."""
        if isinstance(self._proof, SilentProof):
            self._proof.note_part(now)

    def receive_manifest(self, payload: bytes, now: float) -> None:
        """Take the manifest of the set under way: a message before it and one after it."""
        manifest = decode_manifest(payload)
        if self._proof is None or manifest is None or manifest.topic_filter != self._selectors[self.index].filter:
            return
        if manifest.count is None:
            self._manifest_sum = ManifestSum()
            self._skipped_in_manifest = False
        elif self._manifest_sum is not None:
            came, self._manifest_sum = self._manifest_sum, None
            difference = ""
            if came.count != manifest.count:
                difference = f"got {came.count} of {manifest.count} retained messages that the primary says it sent"
            elif came.digest != manifest.digest and not self._skipped_in_manifest:  # these were not read whole
                difference = (
                    f"got {came.count} retained messages, which differ from those that the primary says it sent"
                )
                self._hint = ALTERED_HINT
            self._proof.receive_manifest(difference, now)

    def receive_unsuback(self, packet_id: int) -> None:
        """Take the answer to a probe."""
        if self._proof is not None:
            self._proof.receive_probe_answer(packet_id, topics=self.topics_now + self._skipped)

    def receive_pingresp(self, now: float) -> None:
        """Take the PINGRESP for the set under way, or the one for which `begin` waited."""
        if self._proof is None:
            if self.started_s is None:
                self.begin(now)
        else:
            self._proof.receive_pingresp(now)

    def receive_control(self, payload: bytes, now: float) -> None:
        """Take a message of the control topic."""
        if self._proof is not None:
            self._proof.receive_marker(payload)

    def receive_retained(self, topic: bytes, payload: bytes, now: float) -> None:
        """Take a retained message outside the selectors."""
        if self._proof is not None:
            self._proof.receive_sentinel(topic, now)

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause."""
        self._begin_by_s += pause_s
        self._own_qos_by_s += pause_s
        if self._proof is not None:
            self._proof.postpone(pause_s)

    def tick(self, now: float) -> None:
        """Do the work that is due.

        Raises:
            SnapshotUnproved: The set under way was truncated, or its evidence will not come.
            LinkLost: The primary does not answer the PINGREQ for which `begin` waits.
        """
        proof = self._proof
        if isinstance(proof, SilentProof):
            proof.end_if_due(now)
            if proof.trickles:
                # A comparison may end all the same when all topics of the replica have come, or are requested by name;
                # so may a pass after evidence by answers, since a further one follows.
                compares = self._compare and not self._repeats
                may_end = compares and self._replica.unseen_count <= UNSEEN_ASKED
                if not may_end and self._awaits_silence is None:
                    raise SnapshotUnproved(self._trickle(), hint=CHURN_HINT)
                proof.ended = True
        if proof is None:
            if self.started_s is None and now >= self._begin_by_s:
                raise LinkLost("the primary does not answer PINGREQ")
            if self._own_qos_pending and now >= self._own_qos_by_s:
                raise SnapshotUnproved("the primary does not answer SUBSCRIBE")
            if now >= self._next_at_s:
                self._next_at_s = _NEVER
                self._subscribe(now)
        elif proof.is_truncated(now) and self._is_hidden_by_no_local(proof):
            self._peer.merges_no_local = True
            self._subscribe(now)
        elif proof.is_truncated(now):
            raise SnapshotUnproved(
                self._shortfall(proof), hint=self._hint if self._asked_unseen is None else LIMIT_HINT
            )
        elif proof.probe_due(now):
            probe_id = self._sender.unsubscribe(self._control.probe_filter, now=now)
            proof.add_probe(probe_id, now=now, topics=self.topics_now + self._skipped)

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds; infinity for never."""
        if self._proof is not None:
            return self._proof.deadline
        if self.started_s is None:
            return self._begin_by_s
        return min(self._own_qos_by_s if self._own_qos_pending else _NEVER, self._next_at_s)

    def _trickle(self) -> str:
        topic_filter, quiet_s = self._selectors[self.index].filter, self._quiet_s
        return (
            f"the retained set of {topic_filter} has no visible end: new topics, {self.topics_now} so far, keep"
            f" coming, and never pause for {quiet_s:g} s (snapshot_quiet_s)"
        )

    def _shortfall(self, proof: SetProof) -> str:
        topic_filter = self._selectors[self.index].filter
        if proof.refuted:
            return f"the retained set of {topic_filter} is not whole: {proof.refuted}"
        got = f"the retained set of {topic_filter} ended after {self.topics_now} topics without {proof.missing}"
        count = self._count.total
        if count is None or count <= self.topics_now:  # the count is some seconds old, from before there were so many
            return got
        return f"{got}: got {self.topics_now} of {count} retained messages that the primary says it has in all"

    def _subscribe(self, now: float) -> None:
        selector = self._selectors[self.index]
        live_only = self._is_live_only
        silent = (self.order is Order.NONE or self._awaits_silence is not None) and not live_only
        sentinel = None if silent else self._sentinel
        topics = self._replica.count(self.index)
        self._keeps_qos = self._may_keep_qos and selector.qos > 0 and not live_only and topics <= KEEPS_QOS_TOPICS
        self.held_back = {} if self._keeps_qos else None
        self._converter.fix_qos(self.index, None if live_only else selector.qos)
        if self._compare or self._paced or self._repeats or topics:
            self._replica.begin_pass(self.index, copies_newer=self._keeps_qos)
        packet_id = self._sender.subscribe(
            selector.filter.encode(),
            qos=selector.qos if live_only else 0,
            no_local=self._wants_no_local(selector),
            retain_handling=_SEND_NO_RETAINED if live_only else _SEND_RETAINED,
            then_qos=selector.qos if self._keeps_qos else None,
            sentinel=sentinel,
            manifest=self._asks_manifest and not live_only,
            bounded=True,
            now=now,
        )
        self._manifest_sum = None
        self._set_started_s = now
        self._barrier_told = False
        self._sender.ping(now)
        if silent:
            self._proof = SilentProof(packet_id, now=now, quiet_s=self._quiet_s)
            return
        marker: bytes | None = None
        if self._control.is_open and self._sender.free:
            marker = self._control.send(now)
            self._sender.publish(OutgoingMessage(self._control.topic, marker), now=now)
        silence_s = AUDIT_QUIETS * self._quiet_s if self._paced else None
        self._proof = SetProof(
            packet_id, sentinel=sentinel, marker=marker, now=now, quiet_s=self._quiet_s, silence_s=silence_s
        )

    def _wants_no_local(self, selector: Selector) -> bool:
        """Say whether to subscribe without own messages: copies of the own sentinel do not belong to the set of `#`.

        Without an order there is no sentinel, and No Local may hide the control topic.
        """
        return selector.writes == "reject" and self.order is not Order.NONE and not self._peer.merges_no_local

    def _is_hidden_by_no_local(self, proof: SetProof) -> bool:
        """Say whether only the marker is missing, and No Local of the selector may be why."""
        selector = self._selectors[self.index]
        return (
            proof.barrier
            and not proof.refuted
            and self._sender.version == 5
            and self._wants_no_local(selector)
            and matches(selector.filter.encode(), self._control.topic)
        )

    def _note_granted(self, index: int, packet: Suback, *, at: int = 0) -> None:
        if packet.reason_codes[at] < self._selectors[index].qos:
            self.lowered[index] = packet.reason_codes[at]

    def _check(self, index: int, packet: Suback) -> None:
        if packet.reason_codes[0] >= 0x80:
            raise refused_subscription(self._selectors[index].filter, packet.reason_codes[0])
