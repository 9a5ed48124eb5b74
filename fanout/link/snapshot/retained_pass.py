"""One pass over the retained sets of all selectors, one after another: a snapshot, or a verification (core).

Owns the sequence of requests: for each selector a SUBSCRIBE at QoS 0, with the fence in the same packet and
PINGREQ and marker in the same write, and when its set is proved, SUBSCRIBE again at the selector's QoS without
retained messages. It must not know what follows from the outcome (`fanout.link.session.lifecycle`).

At a primary that is not known to answer in order a set is taken at least twice (`fanout.link.snapshot.two_pass`),
unless the pass is itself a comparison with what is held already. While the order is likely, a pass ends by its evidence
all the same, and a second one that brings the same confirms it; otherwise, and once two of them differ, a pass ends by
silence. Narrower Topic Filters are asked for between the first two (`fanout.link.snapshot.narrowing`): what they bring
and the wide one does not makes the passes differ. A comparison asks by name for topics that the set did not bring,
before they count as gone.

Why QoS 0: a primary with default settings silently drops what exceeds its queue of QoS 1 messages (Mosquitto:
1000 and the Receive Maximum), whereas at QoS 0 a quick reader gets everything (`docs/explanation/architecture.md`,
"Snapshots"). MQTT 3.1.1 has no way to subscribe again without the retained messages, so there the
subscription stays at QoS 0.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

from fanout.chain.manifest import ASK_FOR_MANIFEST, ManifestSum, decode_manifest
from fanout.errors import LinkLost, SnapshotUnproved
from fanout.link.ingest.convert import Converter
from fanout.link.model.evidence import Evidence, Order
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.handshake import refused_subscription
from fanout.link.protocol.sender import Message, PacketSender
from fanout.link.snapshot.capability_check import RETAINED_COUNT
from fanout.link.snapshot.hints import ALTERED_HINT, CHURN_HINT, LIMIT_HINT, TOO_LARGE_HINT, shortfall_hint
from fanout.link.snapshot.narrowing import SAMPLE_TOPICS, is_likely_limit, narrower_filters
from fanout.link.snapshot.set_proof import SetProof
from fanout.link.snapshot.stage import Stage
from fanout.link.snapshot.two_pass import PASSES_MAX, Comparison, SilentProof, Verdict
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.packets import Suback
from fanout.mqtt.topics import matches
from fanout.replica.store import Replica
from fanout.selection import Selector

__all__ = ["RetainedPass", "Step"]

REST_MIN_S = 0.1
REST_MAX_S = 10.0
"""Between two sets of an audit is a rest as long as the first one took, within these."""
AUDIT_QUIETS = 3
"""So many quiet times a primary may be silent in an audit: a link that is live takes no pause for a loss either."""
UNSEEN_ASKED = 16
"""So many topics that a set did not bring are asked for by name."""
_NEVER = float("inf")
_CAME_LATE = "topics of a retained set came behind the answers that should follow it"
_SEND_RETAINED = 0
_SEND_NO_RETAINED = 2


class Step(enum.Enum):
    """What happened, as far as a session must act on it."""

    BARRIER = "barrier"
    """SUBACK, PINGRESP and the fence came for the set under way."""
    PROVED = "proved"
    """The set under way is proved; the session looks at the pass and calls `begin_next`."""
    DONE = "done"
    """All sets are proved, and all subscriptions are at their own QoS."""


class RetainedPass(Stage):
    """One pass over the retained sets of a link.

    Attributes:
        index: The selector under way; the number of selectors when none is left.
        topics_total: Topics that the proved sets brought.
        evidence: What proves the set under way; None before `Step.PROVED`.
        order: Whether the primary answers in order, as far as these passes have shown.
        why: Why it is not known to, in words; empty when it is.
        started_s: When the first SUBSCRIBE was sent, monotonic seconds; None before.
        lowered: Positions of selectors whose own QoS was not granted, each with the QoS that was.
    """

    def __init__(
        self,
        *,
        selectors: Sequence[Selector],
        replica: Replica,
        converter: Converter,
        sender: PacketSender,
        control: ControlChannel,
        fence: bytes | None,
        order: Order,
        why: str,
        quiet_s: float,
        asks_manifest: bool,
        is_mosquitto: bool,
        compare: bool,
        paced: bool,
        retained_count: Callable[[], int | None],
    ) -> None:
        """Prepare; `begin` starts.

        Args:
            selectors: The link's selectors.
            replica: The link's replica, whose passes are begun here.
            converter: Told which QoS the updates of a selector have meanwhile.
            sender: Where requests go.
            control: For the markers.
            fence: Topic of the fence; None when the primary has none.
            order: See the class.
            why: See the class.
            quiet_s: After so many seconds without a byte a set counts as cut short.
            asks_manifest: Whether the primary is a fanout node, which can say what it sent.
            is_mosquitto: Whether it is a Mosquitto: for what an operator is told.
            retained_count: Tells how many retained messages the primary says it has in all; None for unknown.
            compare: Whether to note what the sets bring even for an empty replica: a verification.
            paced: Whether to rest between two sets, so that the primary and this node can do other things: an audit.
        """
        self.index = 0
        self.topics_total = 0
        self.started_s: float | None = None
        self.lowered: dict[int, int] = {}
        self.evidence: Evidence | None = None
        self.order = order
        self.why = why
        self._selectors = tuple(selectors)
        self._replica = replica
        self._converter = converter
        self._sender = sender
        self._control = control
        self._fence = fence
        self._quiet_s = quiet_s
        self._asks_manifest = asks_manifest
        self._hint = shortfall_hint(is_node=asks_manifest, is_mosquitto=is_mosquitto)
        """What to do about a set that is not whole, as far as is known."""
        self._manifest_sum: ManifestSum | None = None
        """What came since the primary began to send what its manifest is about; None while it does not."""
        self._compare = compare
        self._paced = paced
        self._set_started_s = 0.0
        self._next_at_s = _NEVER
        """When the next set is asked for, after a rest."""
        self._retained_count = retained_count
        self._proof: SetProof | None = None
        self._comparison = Comparison()
        self._asked_unseen: tuple[int, Evidence] | None = None
        """How many topics the set under way had not brought when some were asked for by name, and its evidence."""
        self._copies = 0
        """Retained messages of the first pass over the set under way, the fence not counted."""
        self._narrowed = False
        """Whether narrower Topic Filters were asked for beside the set under way."""
        self._barrier_told = False
        self._is_settled = False
        """Whether the own QoS was asked for of the set under way."""
        self._settling: dict[int, int] = {}
        """Packet Identifier of a SUBSCRIBE at a selector's own QoS to the selector's index."""
        self._settled_by_s = 0.0
        self._begin_by_s = _NEVER
        """Until when the PINGRESP for which `begin` waits may take."""

    def begin(self, now: float) -> None:
        """Start with the first selector, unless a PINGREQ is under way: then with its PINGRESP."""
        if self._sender.ping_sent_s is not None:
            self._begin_by_s = now + self._quiet_s
        elif self._proof is None:
            self.started_s = now
            self._subscribe(now)

    def begin_next(self, now: float) -> None:
        """Go on behind a proved set: its subscription gets its own QoS, the next selector follows."""
        self.topics_total += self._replica.count(self.index)
        self.settle(now)
        self.index += 1
        self._is_settled = False
        self._proof = None
        self.evidence = None
        self._comparison = Comparison()
        self._asked_unseen = None
        self._copies = 0
        if self.index == len(self._selectors):
            return
        if self._paced:
            self._next_at_s = now + min(max(now - self._set_started_s, REST_MIN_S), REST_MAX_S)
        else:
            self._subscribe(now)

    def settle(self, now: float) -> None:
        """Ask for the own QoS of the subscription whose set is proved; does nothing when that was done.

        What follows from a proof may take a while, before `begin_next`.
        """
        if self._is_settled:
            return
        self._is_settled = True
        selector = self._selectors[self.index]
        if selector.qos and self._sender.version == 5 and not selector.live_only:
            packet_id = self._sender.subscribe(
                selector.filter.encode(),
                qos=selector.qos,
                no_local=selector.writes == "reject",
                retain_handling=_SEND_NO_RETAINED,
                now=now,
            )
            self._settling[packet_id] = self.index
            self._settled_by_s = now + self._quiet_s

    def give_up(self, now: float) -> None:
        """Leave the set under way without its evidence; its subscription gets its own QoS again, with the SUBACK."""
        if self.index < len(self._selectors):
            self.settle(now)
        self._converter.settling = dict(self._settling)

    def advance(self, now: float) -> Step | None:
        """Return the next thing that happened; None when there is nothing new.

        Raises:
            SnapshotUnproved: Each pass over the set under way brought other topics.
        """
        proof = self._proof
        if proof is None:
            done = self.index == len(self._selectors) and not self._settling
            if done and self.order is Order.LIKELY and not self._compare:
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
        if verdict is Verdict.SAME:
            self.evidence = Evidence.TWO_PASS if silent else evidence
            if not silent and (count := self._likely_limit()):
                self.evidence, self.order = Evidence.TWO_PASS, Order.NONE
                self.why = (
                    f"the primary sent exactly {count} retained messages for {selector.filter}, twice, which may be a"
                    " limit of its own, as match_retained_limit of ejabberd's mod_mqtt is: raise it, or allow two-pass"
                    " where there is none"
                )
        elif verdict is Verdict.NOTHING and silent:
            self.evidence = Evidence.QUIET
            held = self._replica.view
            self._replica.begin_pass(self.index, seen=(topic for topic in self._comparison.seen if topic in held))
        else:
            comparison = self._comparison
            if not silent and comparison.passes > 1:
                self.order, self.why = Order.NONE, _CAME_LATE
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

    def _likely_limit(self) -> int:
        """Return how many topics or copies the set has, if limits are set to as many; else 0.

        Copies of topics that are not replicated count at the primary, too.
        """
        fenced = self._fence is not None and matches(self._selectors[self.index].filter.encode(), self._fence)
        return next(filter(is_likely_limit, (self._replica.seen_count, self._copies + fenced)), 0)

    def _judge_comparison(self, evidence: Evidence, now: float) -> None:
        """Take a set that is compared with what was held before; what it did not bring may have been cut off.

        At a primary whose kind is known it was not, with this evidence.
        """
        unseen = self._replica.unseen_count
        if self._asked_unseen is not None:
            unseen_before, self.evidence = self._asked_unseen
            if unseen < unseen_before:
                self.evidence = None
                self._proof = SetProof(0, fence=None, marker=None, now=now, quiet_s=self._quiet_s)
                self._proof.refute("it lacks topics that the primary sends when asked by name")
        elif unseen and (self.order is Order.NONE or self._fence == self._control.fence_topic):
            self._asked_unseen = unseen, evidence
            packet_id = self._ask(self._unseen(UNSEEN_ASKED), now)
            if self.order is Order.NONE:
                self._proof = SilentProof(packet_id, now=now, quiet_s=self._quiet_s)
            else:
                self._proof = SetProof(packet_id, fence=None, marker=None, now=now, quiet_s=self._quiet_s)
            self._sender.ping(now)
        else:
            self.evidence = evidence

    def _ask(self, topic_filters: Iterable[bytes], now: float) -> int:
        """Ask for retained messages besides those of the set; return the last Packet Identifier, 0 for none."""
        packet_id = 0
        no_local = self._selectors[self.index].writes == "reject"
        for topic_filter in topic_filters:
            packet_id = self._sender.subscribe(
                topic_filter, qos=0, no_local=no_local, retain_handling=_SEND_RETAINED, now=now
            )
            self._sender.unsubscribe(topic_filter, now=now)
        return packet_id

    def _newest(self, count: int) -> list[bytes]:
        """Return topics of the set under way at the primary, the newest in the replica first."""
        prefix = self._selectors[self.index].prefix.encode()
        return [topic.removeprefix(prefix) for topic in self._replica.newest_seen(count)]

    def _unseen(self, count: int) -> list[bytes]:
        """Return topics that the set under way did not bring, at the primary."""
        prefix = self._selectors[self.index].prefix.encode()
        return [topic.removeprefix(prefix) for topic in self._replica.some_unseen(count)]

    @property
    def _repeats(self) -> bool:
        """Whether two passes over the set under way must agree."""
        return self.order is not Order.KNOWN and not self._compare and not self._is_live_only

    @property
    def _is_live_only(self) -> bool:
        """Whether the selector under way needs no retained messages, and can leave them out."""
        return self._selectors[self.index].live_only and self._sender.version == 5

    @property
    def is_at_qos_0(self) -> bool:
        """Whether the subscription of the set under way has QoS 0, and had the selector's own QoS before."""
        return (
            self._proof is not None and self.evidence is None and self._converter.fixed_qos[self.index] not in (None, 0)
        )

    @property
    def only_trickled(self) -> bool:
        """Whether new topics alone keep the set under way from an end; everything that was asked for is answered."""
        return isinstance(self._proof, SilentProof) and self._proof.trickles

    @property
    def below_own_qos(self) -> tuple[int, ...]:
        """Positions of selectors whose subscriptions have QoS 0 in place of their own, or may still have it."""
        under_way = (self.index,) if self.is_at_qos_0 else ()
        return (*self._settling.values(), *under_way)

    @property
    def topics_now(self) -> int:
        """How many topics the set under way has brought, live updates included."""
        if self.index == len(self._selectors):
            return 0
        return self._replica.count(self.index) - self._replica.unseen_count

    @property
    def copies_over(self) -> bool:
        """Whether every copy of the set under way has come, so that what follows is live."""
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
            if self._asked_unseen is None:  # access rules may allow a selector, and not a topic in it by name
                self._check(self.index, packet)
                if self._is_live_only:
                    self._note_granted(self.index, packet)
            if self._asks_manifest and ASK_FOR_MANIFEST in packet.properties.user_property:
                self._proof.expect_manifest()
            self._proof.receive_suback(now)
        elif packet.packet_id in self._settling:
            index = self._settling.pop(packet.packet_id)
            self._check(index, packet)
            self._note_granted(index, packet)
            self._converter.fixed_qos[index] = None

    def receive_rows(self, rows: Sequence[PublishRow]) -> None:
        """Count the copies of the first pass, and add what is retained and has QoS 0 to what the manifest is about."""
        if self.order is Order.LIKELY and not self._comparison.passes:
            own = (self._fence, RETAINED_COUNT)
            self._copies += sum(1 for row in rows if row[2] & 7 == 1 and row[0] not in own)
        if self._manifest_sum is not None:
            for row in rows:
                if row[2] & 7 == 1:
                    self._manifest_sum.add(row[0], row[1])

    def receive_manifest(self, payload: bytes, now: float) -> None:
        """Take what the primary says of the set under way, in front of it and behind it."""
        manifest = decode_manifest(payload)
        if self._proof is None or manifest is None or manifest.topic_filter != self._selectors[self.index].filter:
            return
        if manifest.count is None:
            self._manifest_sum = ManifestSum()
        elif self._manifest_sum is not None:
            came, self._manifest_sum = self._manifest_sum, None
            difference = ""
            if came.count != manifest.count:
                difference = f"got {came.count} of {manifest.count} retained messages that the primary says it sent"
                self._hint = TOO_LARGE_HINT
            elif came.digest != manifest.digest:
                difference = f"got {came.count} retained messages, and not all are what the primary says it sent"
                self._hint = ALTERED_HINT
            self._proof.receive_manifest(difference, now)

    def receive_unsuback(self, packet_id: int) -> None:
        """Take the answer to a probe."""
        if self._proof is not None:
            self._proof.receive_probe_answer(packet_id, topics=self.topics_now)

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
            self._proof.receive_fence(topic, now)

    def postpone(self, pause_s: float) -> None:
        """Give the primary so much more time for what is awaited."""
        self._begin_by_s += pause_s
        self._settled_by_s += pause_s
        if self._proof is not None:
            self._proof.postpone(pause_s)

    def tick(self, now: float) -> None:
        """Do what is due.

        Raises:
            SnapshotUnproved: The set under way was cut short, or its evidence will not come.
            LinkLost: The primary does not answer the PINGREQ for which `begin` waits.
        """
        proof = self._proof
        if isinstance(proof, SilentProof):
            proof.end_if_due(now)
            if proof.trickles:
                # A comparison may end all the same when everything held has come, or is asked for by name.
                if not self._compare or self._replica.unseen_count > UNSEEN_ASKED:
                    raise SnapshotUnproved(self._trickle(), hint=CHURN_HINT)
                proof.ended = True
        if proof is None:
            if self.started_s is None and now >= self._begin_by_s:
                raise LinkLost("the primary does not answer PINGREQ")
            if self._settling and now >= self._settled_by_s:
                raise SnapshotUnproved("the primary does not answer SUBSCRIBE")
            if now >= self._next_at_s:
                self._next_at_s = _NEVER
                self._subscribe(now)
        elif proof.is_truncated(now):
            raise SnapshotUnproved(
                self._shortfall(proof), hint=self._hint if self._asked_unseen is None else LIMIT_HINT
            )
        elif proof.probe_due(now):
            probe_id = self._sender.unsubscribe(self._control.probe_filter, now=now)
            proof.add_probe(probe_id, now=now, topics=self.topics_now)

    @property
    def deadline(self) -> float:
        """When to call `tick` at the latest, monotonic seconds; infinity when nothing can become due."""
        if self._proof is not None:
            return self._proof.deadline
        if self.started_s is None:
            return self._begin_by_s
        return min(self._settled_by_s if self._settling else _NEVER, self._next_at_s)

    def _trickle(self) -> str:
        topic_filter, quiet_s = self._selectors[self.index].filter, self._quiet_s
        return (
            f"the retained set of {topic_filter} has no end that can be told: new topics, {self.topics_now} by now,"
            f" have come all the time, and never as long as {quiet_s:g} s none (snapshot_quiet_s)"
        )

    def _shortfall(self, proof: SetProof) -> str:
        topic_filter = self._selectors[self.index].filter
        if proof.refuted:
            return f"the retained set of {topic_filter} is not whole: {proof.refuted}"
        got = f"the retained set of {topic_filter} ended after {self.topics_now} topics without {proof.missing}"
        count = self._retained_count()
        if count is None or count <= self.topics_now:  # told some seconds ago, before there were so many
            return got
        return f"{got}: got {self.topics_now} of {count} retained messages that the primary says it has in all"

    def _subscribe(self, now: float) -> None:
        selector = self._selectors[self.index]
        live_only = self._is_live_only
        silent = self.order is Order.NONE and not live_only
        fence = None if silent else self._fence
        self._converter.fixed_qos[self.index] = None if live_only else selector.qos
        self._converter.settling.clear()
        if self._compare or self._repeats or self._replica.count(self.index):
            self._replica.begin_pass(self.index)
        packet_id = self._sender.subscribe(
            selector.filter.encode(),
            qos=selector.qos if live_only else 0,
            no_local=selector.writes == "reject",
            retain_handling=_SEND_NO_RETAINED if live_only else _SEND_RETAINED,
            fence=fence,
            manifest=self._asks_manifest and not live_only,
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
            self._sender.publish(Message(self._control.topic, marker), now=now)
        silence_s = AUDIT_QUIETS * self._quiet_s if self._paced else None
        self._proof = SetProof(
            packet_id, fence=fence, marker=marker, now=now, quiet_s=self._quiet_s, silence_s=silence_s
        )

    def _note_granted(self, index: int, packet: Suback) -> None:
        if packet.reason_codes[0] < self._selectors[index].qos:
            self.lowered[index] = packet.reason_codes[0]

    def _check(self, index: int, packet: Suback) -> None:
        if packet.reason_codes[0] >= 0x80:
            raise refused_subscription(self._selectors[index].filter, packet.reason_codes[0])
