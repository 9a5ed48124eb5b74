"""The retained set of one selector, from its first SUBSCRIBE to its proof or its failure.

It sends SUBSCRIBE at QoS 0, with the sentinel in the same packet, and PINGREQ and the marker in the same write.

At a primary that is not known to answer in order, the set is taken at least twice (`fanout.link.snapshot.two_pass`),
unless it is compared with the replica and nothing shows an order. While the order is likely, the set ends by its
evidence, and a second time that brings the same confirms it; an empty or suspiciously small set needs a third one,
which ends by silence. Otherwise, and once two of them differ, it ends by silence. Between the first two, narrower Topic
Filters are requested (`fanout.link.snapshot.narrowing`); topics that only these bring make them differ. A comparison
requests by name topics that the set did not bring, before they count as gone.

Why QoS 0: a primary with default settings silently drops messages that exceed its queue of QoS 1 messages (Mosquitto:
1000 and the Receive Maximum), whereas at QoS 0 a quick reader gets everything
(`docs/decisions/0003-snapshot-evidence.md`). But a session that is left while its subscription has QoS 0, as by a
process that is killed, collects nothing. So in a comparison with a set of moderate size only the copies have QoS 0: the
same packet asks for the selector's QoS again (`docs/decisions/0054-qos-of-a-comparison.md`). MQTT 3.1.1 cannot
subscribe again without the retained messages, so there the subscription stays at QoS 0.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from fanout.chain.manifest import ASK_FOR_MANIFEST, ManifestSum, decode_manifest
from fanout.errors import SnapshotUnproved
from fanout.link.model.evidence import Evidence, Order
from fanout.link.protocol.handshake import refused_subscription
from fanout.link.snapshot.capability_check import RETAINED_COUNT
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.hints import ALTERED_HINT, CHURN_HINT, LIMIT_HINT, shortfall_hint
from fanout.link.snapshot.narrowing import SAMPLE_TOPICS, is_likely_limit, narrower_filters
from fanout.link.snapshot.set_proof import SetProof
from fanout.link.snapshot.stage import send_marker
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
from fanout.replica.update import Update

__all__ = ["CAME_LATE", "RetainedSet", "Step"]

CAME_LATE = "topics of a retained set came after the answers that should follow it"
"""Reason that the sets themselves give against an order; a sentinel that comes in time does not refute it."""
AUDIT_QUIETS = 3
"""Number of quiet times that a primary may be silent in an audit, because a pause of a live link is no loss."""
UNSEEN_ASKED = 16
"""Number of topics that are requested by name when a set did not bring them."""
KEEPS_QOS_TOPICS = 10_000
"""Topics of a set up to which live updates keep the selector's QoS during a comparison.

Their copies take some 30 ms, in which the queue of 1,000 messages of a primary with default settings suffices for
30,000 updates/s.
"""
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


class RetainedSet:
    """Retained set of one selector in one pass.

    Attributes:
        index: Position of the selector.
        selector: The selector.
        evidence: Evidence for the set; None until it is proved.
        order: Order of the primary's answers, as far as the sets of the pass have shown.
        why: Why that is not known, in words; empty when it is.
        proof: Evidence that is awaited; None before the first SUBSCRIBE.
        refusal: Reason for which the primary refused the selector in a comparison; empty when it did not.
        granted: QoS granted by the SUBACK of the set if that asked for the selector's own; None otherwise.
        held_back: See `fanout.link.snapshot.stage.Stage`.
        started_s: When the newest SUBSCRIBE for it was sent, monotonic seconds.
    """

    def __init__(
        self, context: LinkContext, index: int, *, compare: bool, paced: bool, had: int, order: Order, why: str
    ) -> None:
        """Prepare; `subscribe` begins.

        Args:
            context: Collaborators of the link.
            index: See the class.
            compare: True if the set is compared with the replica, even with an empty one.
            paced: True for an audit of the live link.
            had: Number of topics of the selector in the epoch before; 0 for unknown.
            order: See the class.
            why: See the class.
        """
        config, peer = context.config, context.peer
        self.index = index
        self.selector = context.replica.selectors[index]
        self.evidence: Evidence | None = None
        self.order = order
        self.why = why
        self.proof: SetProof | None = None
        self.refusal = ""
        self.granted: int | None = None
        self.held_back: dict[bytes, Update] | None = None
        self.started_s = 0.0
        self._compare = compare
        self._paced = paced
        self._had = had
        self._config = config
        self._peer = peer
        self._replica = context.replica
        self._converter = context.pipeline.converter
        self._sender = context.sender
        self._control = context.control
        self._count = context.count
        self._is_live_only = self.selector.live_only and config.version == 5
        """True if the selector needs no retained messages, and MQTT 5 can omit them."""
        self._asks_manifest = peer.node is not None and config.version == 5
        self._keeps_qos = False
        """True if the subscription has the selector's own QoS, and only the copies QoS 0."""
        self._own_qos_requested = False
        self._barrier_told = False
        self._comparison = PassComparison()
        self._awaits_silence: Evidence | None = None
        """Evidence by answers for a set so small that silence must confirm it; None without need."""
        self._asked_unseen: tuple[int, Evidence] | None = None
        """Number of topics missing in the set when some were requested by name, and its evidence; None before."""
        self._narrowed = False
        """True if narrower Topic Filters were requested beside the set."""
        self._copies = 0
        """Number of retained messages that the first pass brought, without the sentinel."""
        self._skipped = 0
        """Number of retained messages skipped: progress, as topics are."""
        self._manifest_sum: ManifestSum | None = None
        """Sum over the messages since the manifest began; None outside a manifest."""
        self._skipped_in_manifest = False
        """True if some of these were skipped."""
        self._is_altered = False
        """True if messages differ from those that a fanout node says it sent."""

    # --- requests ---

    def subscribe(self, now: float) -> None:
        """Request the set, for the first time or again."""
        selector, live_only = self.selector, self._is_live_only
        silent = (self.order is Order.NONE or self._awaits_silence is not None) and not live_only
        sentinel = None if silent else self._peer.sentinel
        topics = self._replica.count(self.index)
        # Only these are known to send the copies for the first of two entries of a SUBSCRIBE at its QoS.
        may_keep_qos = self._compare and self._sender.version == 5 and (self._peer.is_mosquitto or self._peer.node)
        self._keeps_qos = bool(may_keep_qos) and selector.qos > 0 and not live_only and topics <= KEEPS_QOS_TOPICS
        self.held_back = {} if self._keeps_qos else None
        self._converter.fix_qos(self.index, None if live_only else selector.qos)
        if self._compare or self._paced or self._repeats or topics:
            self._replica.begin_pass(self.index, copies_newer=self._keeps_qos)
        packet_id = self._sender.subscribe(
            selector.filter.encode(),
            qos=selector.qos if live_only else 0,
            no_local=self._wants_no_local,
            retain_handling=_SEND_NO_RETAINED if live_only else _SEND_RETAINED,
            then_qos=selector.qos if self._keeps_qos else None,
            sentinel=sentinel,
            manifest=self._asks_manifest and not live_only,
            bounded=True,
            now=now,
        )
        self._manifest_sum = None
        self.started_s = now
        self._barrier_told = False
        self._sender.ping(now)
        quiet_s = self._config.snapshot_quiet_s
        if silent:
            self.proof = SilentProof(packet_id, now=now, quiet_s=quiet_s)
            return
        marker = send_marker(self._control, self._sender, now)
        silence_s = AUDIT_QUIETS * quiet_s if self._paced else None
        self.proof = SetProof(
            packet_id, sentinel=sentinel, marker=marker, now=now, quiet_s=quiet_s, silence_s=silence_s
        )

    def request_own_qos(self, now: float) -> int | None:
        """Request the selector's own QoS, unless that was done; return the Packet Identifier, None for no request."""
        if self._own_qos_requested:
            return None
        self._own_qos_requested = True
        selector = self.selector
        if self._keeps_qos:
            self._converter.fix_qos(self.index, None)
            return None
        if not selector.qos or self._sender.version != 5 or selector.live_only:
            return None
        return self._sender.subscribe(
            selector.filter.encode(),
            qos=selector.qos,
            no_local=self._wants_no_local,
            retain_handling=_SEND_NO_RETAINED,
            bounded=True,
            now=now,
        )

    def _ask(self, topic_filters: Iterable[bytes], now: float) -> int:
        """Request retained messages beside the set; return the last Packet Identifier, 0 for none.

        A Topic Filter that is too long for a packet of the primary is left out.
        """
        packet_id = 0
        for topic_filter in topic_filters:
            if not self._sender.takes_names([topic_filter], sentinel=None):
                continue
            packet_id = self._sender.subscribe(
                topic_filter,
                qos=0,
                no_local=self._wants_no_local,
                retain_handling=_SEND_RETAINED,
                bounded=True,
                now=now,
            )
            self._sender.unsubscribe(topic_filter, now=now)
        return packet_id

    @property
    def _wants_no_local(self) -> bool:
        """True to subscribe without own messages: copies of the own sentinel do not belong to the set of `#`.

        Without an order there is no sentinel, and No Local may hide the control topic.
        """
        return self.selector.writes == "reject" and self.order is not Order.NONE and not self._peer.merges_no_local

    def _at_primary(self, topics: Iterable[bytes]) -> list[bytes]:
        """Return local topics as they are named at the primary."""
        prefix = self.selector.prefix.encode()
        return [topic.removeprefix(prefix) for topic in topics]

    # --- progress ---

    @property
    def is_at_qos_0(self) -> bool:
        """True if the subscription has QoS 0 until the set is proved, and had the selector's own QoS before."""
        return (
            self.proof is not None
            and self.evidence is None
            and not self._keeps_qos
            and self._converter.fixed_qos[self.index] not in (None, 0)
        )

    @property
    def topics_now(self) -> int:
        """Number of topics that it has brought, live updates included."""
        return self._replica.count(self.index) - self._replica.unseen_count

    @property
    def copies_complete(self) -> bool:
        """True if every copy has come, so that further rows are live."""
        return self.evidence is not None or (self._barrier_told and self._replica.unseen_count == 0)

    @property
    def _repeats(self) -> bool:
        """True if two passes over the set must agree."""
        if self._is_live_only or self.order is Order.KNOWN:
            return False
        return self.order is Order.LIKELY or not self._compare

    def advance(self, now: float) -> Step | None:
        """Return the next step; None when there is none.

        Raises:
            SnapshotUnproved: Each pass over the set brought other topics.
        """
        proof = self.proof
        if proof is None:
            return None
        if isinstance(proof, SilentProof):
            proof.note_topics(self.topics_now if self._asked_unseen is None else self._replica.unseen_count, now)
        if proof.barrier and not self._barrier_told:
            self._barrier_told = True
            return Step.BARRIER
        if proof.evidence is not None and self.evidence is None:
            self._judge_pass(proof.evidence, now)
        return Step.PROVED if self.evidence is not None else None

    def tick(self, now: float) -> None:
        """Do the work that is due.

        Raises:
            SnapshotUnproved: The set was truncated, or its evidence will not come.
        """
        proof = self.proof
        if proof is None:
            return
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
        if proof.is_truncated(now):
            if not self._is_hidden_by_no_local(proof):
                raise SnapshotUnproved(self._shortfall(proof), hint=self._hint)
            self._peer.merges_no_local = True
            self.subscribe(now)
        elif proof.probe_due(now):
            probe_id = self._sender.unsubscribe(self._control.probe_filter, now=now)
            proof.add_probe(probe_id, now=now, topics=self.topics_now + self._skipped)

    # --- judgement ---

    def _judge_pass(self, evidence: Evidence, now: float) -> None:
        """Decide whether a pass that has ended proves the set, or begin another one."""
        silent = isinstance(self.proof, SilentProof)
        if not self._repeats:
            self._judge_comparison(Evidence.TWO_PASS if silent else evidence, now)
            return
        comparison, held = self._comparison, self._replica.view
        verdict = comparison.take(self._replica.seen_topics, held=held)
        if verdict is PassVerdict.SAME and not silent and self._is_suspicious():
            self._awaits_silence = evidence
            self.subscribe(now)
        elif verdict is PassVerdict.SAME:
            self.evidence = self._awaits_silence or (Evidence.TWO_PASS if silent else evidence)
            if not silent and (count := self._likely_limit()):
                self.evidence, self.order = Evidence.TWO_PASS, Order.NONE
                self.why = (
                    f"the primary sent exactly {count} retained messages for {self.selector.filter}, twice, which may"
                    " be a limit of its own, as match_retained_limit of ejabberd's mod_mqtt is: raise it, or allow"
                    " two-pass where there is none"
                )
        elif verdict is PassVerdict.NOTHING and silent and self._awaits_silence is None:
            self.evidence = Evidence.QUIET
            self._replica.begin_pass(self.index, seen=(topic for topic in comparison.seen if topic in held))
        else:
            self._awaits_silence = None  # what came late shows in the next pass, which ends by its evidence again
            if not silent and comparison.passes > 1:
                self.order, self.why = Order.NONE, CAME_LATE
            elif comparison.passes >= PASSES_MAX:
                raise SnapshotUnproved(
                    f"the retained set of {self.selector.filter} was taken {PASSES_MAX} times and never"
                    f" twice the same: the last pass missed {comparison.missing} topics of those before and brought"
                    f" {comparison.fresh} others",
                    hint=CHURN_HINT if not comparison.missing else LIMIT_HINT if self._narrowed else self._hint,
                )
            if comparison.passes == 1:
                newest = self._at_primary(self._replica.newest_seen(SAMPLE_TOPICS))
                self._narrowed = self._ask(narrower_filters(self.selector, newest), now) > 0
            self.subscribe(now)

    def _judge_comparison(self, evidence: Evidence, now: float) -> None:
        """Judge a set that is compared with the replica; topics that it did not bring may have been cut off.

        With this evidence they were not, if the kind of the primary is known.
        """
        unseen, quiet_s = self._replica.unseen_count, self._config.snapshot_quiet_s
        if self._asked_unseen is not None:
            unseen_before, self.evidence = self._asked_unseen
            if unseen < unseen_before:
                self.evidence = None
                self.proof = SetProof(0, sentinel=None, marker=None, now=now, quiet_s=quiet_s)
                self.proof.refute("it lacks topics that the primary sends when asked by name")
        elif unseen and (self.order is Order.NONE or self._peer.sentinel == self._control.sentinel_topic):
            packet_id = self._ask(self._at_primary(self._replica.some_unseen(UNSEEN_ASKED)), now)
            if not packet_id:  # the primary takes no SUBSCRIBE for so long a name
                self.evidence = evidence
                return
            self._asked_unseen = unseen, evidence
            if self.order is Order.NONE:
                self.proof = SilentProof(packet_id, now=now, quiet_s=quiet_s)
            else:
                self.proof = SetProof(packet_id, sentinel=None, marker=None, now=now, quiet_s=quiet_s)
            self._sender.ping(now)
        else:
            self.evidence = evidence

    def _is_suspicious(self) -> bool:
        """Say whether the set is so small that it may come after its evidence."""
        return is_suspiciously_small(
            self._replica.seen_count, had=self._had, max_removed_percent=self._config.max_removed_percent
        )

    def _likely_limit(self) -> int:
        """Return the number of topics or copies of the set if it is typical of a limit; else 0.

        At the primary, copies of topics that are not replicated count, too.
        """
        sentinel = self._peer.sentinel
        has_sentinel = sentinel is not None and matches(self.selector.filter.encode(), sentinel)
        return next(filter(is_likely_limit, (self._replica.seen_count, self._copies + has_sentinel)), 0)

    def _is_hidden_by_no_local(self, proof: SetProof) -> bool:
        """Say whether only the marker is missing, and No Local of the selector may be why."""
        return (
            proof.barrier
            and not proof.refuted
            and self._sender.version == 5
            and self._wants_no_local
            and matches(self.selector.filter.encode(), self._control.topic)
        )

    def _trickle(self) -> str:
        return (
            f"the retained set of {self.selector.filter} has no visible end: new topics, {self.topics_now} so far, keep"
            f" coming, and never pause for {self._config.snapshot_quiet_s:g} s (snapshot_quiet_s)"
        )

    def _shortfall(self, proof: SetProof) -> str:
        topic_filter = self.selector.filter
        if proof.refuted:
            return f"the retained set of {topic_filter} is not whole: {proof.refuted}"
        got = f"the retained set of {topic_filter} ended after {self.topics_now} topics without {proof.missing}"
        count = self._count.total
        if count is None or count <= self.topics_now:  # the count is some seconds old, from before there were so many
            return got
        return f"{got}: got {self.topics_now} of {count} retained messages that the primary says it has in all"

    @property
    def _hint(self) -> str:
        """Advice to an operator about a set that is not complete."""
        if self._asked_unseen is not None:
            return LIMIT_HINT
        if self._is_altered:
            return ALTERED_HINT
        return shortfall_hint(
            is_node=self._asks_manifest, is_mosquitto=self._peer.is_mosquitto, is_empty=not self.topics_now
        )

    # --- packets ---

    def receive_suback(self, packet: Suback, now: float) -> None:
        """Take the SUBACK of the set.

        Raises:
            PrimaryRefused: The primary refused the subscription.
        """
        assert self.proof is not None
        if self._asked_unseen is None:  # access rules may allow a selector but not a topic in it by name
            if packet.reason_codes[0] >= 0x80:
                refusal = refused_subscription(self.selector.filter, packet.reason_codes[0])
                if not (self._compare or self._paced):
                    raise refusal
                self.refusal = refusal.message  # the answers that follow end the set, which is empty
            elif self._is_live_only or self._keeps_qos:
                self.granted = packet.reason_codes[min(self._keeps_qos, len(packet.reason_codes) - 1)]
        if self._asks_manifest and ASK_FOR_MANIFEST in packet.properties.user_property:
            self.proof.expect_manifest()
        self.proof.receive_suback(now)

    def receive_rows(self, rows: Sequence[PublishRow]) -> None:
        """Count the copies of the first pass, and add retained messages at QoS 0 to the sum for the manifest."""
        # Numbers instead of the names of `fanout.link.model.rows`, which take a fifth more time in these loops.
        if self.order is Order.LIKELY and not self._comparison.passes:
            own = (self._peer.sentinel, RETAINED_COUNT)
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

    def receive_manifest(self, payload: bytes, now: float) -> None:
        """Take the manifest of the set: a message before it and one after it."""
        manifest = decode_manifest(payload)
        if self.proof is None or manifest is None or manifest.topic_filter != self.selector.filter:
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
                self._is_altered = True
            self.proof.receive_manifest(difference, now)

    def receive_unsuback(self, packet_id: int) -> None:
        """Take the answer to a probe."""
        if self.proof is not None:
            self.proof.receive_probe_answer(packet_id, topics=self.topics_now + self._skipped)
