"""Pass over the retained sets of all selectors, one after another: a snapshot, a verification, or an audit.

`fanout.link.snapshot.retained_set` takes and proves each set. After the proof the pass subscribes again at the
selector's QoS without retained messages, and begins with the next set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from fanout.errors import LinkLost, SnapshotUnproved
from fanout.link.model.evidence import Evidence, Order
from fanout.link.protocol.handshake import refused_subscription
from fanout.link.snapshot.capability_check import own_sentinel
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.retained_set import RetainedSet, Step
from fanout.link.snapshot.stage import Stage
from fanout.link.snapshot.two_pass import SilentProof
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.packets import Suback
from fanout.replica.update import Update

__all__ = ["RetainedPass"]

REST_MIN_S = 0.1
REST_MAX_S = 10.0
"""Bounds of the rest between two sets of an audit, which is as long as the first one took."""
_NEVER = float("inf")


class RetainedPass(Stage):
    """One pass over the retained sets of a link.

    Attributes:
        current: The set under way; the last one when none is left.
        topics_total: Number of topics that the proved sets brought.
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
        self._context = context
        self._compare = compare
        self._paced = paced
        self._had = tuple(had) or (0,) * len(context.replica.selectors)
        self._left = deque(positions)
        """Positions of the selectors whose sets are not under way yet."""
        self._is_over = False
        """True if no set is left."""
        self.current = self._next_set(peer.order, peer.why_unordered)
        self.topics_total = 0
        self.stamp_before = context.control.stamp
        self.started_s: float | None = None
        self.lowered: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self.copied: set[bytes] = set()
        self._notes_copies = config.version == 4 and config.retain_policy == "keep"
        self._quiet_s = config.snapshot_quiet_s
        self._sender = context.sender
        self._converter = context.pipeline.converter
        self._next_at_s = _NEVER
        """When the next set is requested, after a rest."""
        self._own_qos_pending: dict[int, int] = {}
        """Packet Identifier of a SUBSCRIBE at a selector's own QoS to the selector's index."""
        self._own_qos_by_s = 0.0
        self._begin_by_s = _NEVER
        """Deadline of the PINGRESP for which `begin` waits."""

    def _next_set(self, order: Order, why: str) -> RetainedSet:
        index = self._left.popleft()
        return RetainedSet(
            self._context,
            index,
            compare=self._compare,
            paced=self._paced,
            had=self._had[index],
            order=order,
            why=why,
        )

    def begin(self, now: float) -> None:
        """Start with the first selector; while a PINGREQ is under way, wait for its PINGRESP."""
        if self._begin_by_s == _NEVER:
            self._renew_own_sentinel(now)
        if self._sender.ping_sent_s is not None:
            self._begin_by_s = now + self._quiet_s
        elif self.current.proof is None:
            self.started_s = now
            self.current.subscribe(now)

    def _renew_own_sentinel(self, now: float) -> None:
        """Publish the link's own sentinel again for a comparison, because it may have expired since the snapshot.

        The message comes back without RETAIN, so it is no sentinel itself: the subscription to it, made with that of a
        selector, is without Retain As Published.
        """
        sender, control = self._sender, self._context.control
        sentinel, is_own = own_sentinel(control), self._context.peer.sentinel == control.sentinel_topic
        if self._compare and is_own and sender.version == 5 and sender.free and sender.takes(sentinel):
            sender.publish(sentinel, now=now)

    def begin_next(self, now: float) -> None:
        """Continue after a proved set: request the own QoS of its subscription, and the set of the next selector."""
        proved = self.current
        self.topics_total += self._context.replica.count(proved.index)
        self.request_own_qos(now)
        if not self._left:
            self._is_over = True
            return
        self.current = self._next_set(proved.order, proved.why)
        if self._paced:
            self._next_at_s = now + min(max(now - proved.started_s, REST_MIN_S), REST_MAX_S)
        else:
            self.current.subscribe(now)

    def request_own_qos(self, now: float) -> None:
        """Request the own QoS of the subscription whose set is proved, unless that was done.

        The steps that follow from a proof may take a while before `begin_next`.
        """
        packet_id = self.current.request_own_qos(now)
        if packet_id is not None:
            self._own_qos_pending[packet_id] = self.current.index
            self._own_qos_by_s = now + self._quiet_s

    def give_up(self, now: float) -> None:
        """Leave the set under way without evidence, and request the own QoS of its subscription."""
        self.request_own_qos(now)
        self._converter.await_own_qos(self._own_qos_pending)

    def advance(self, now: float) -> Step | None:
        """Return the next step; None when there is none.

        Raises:
            SnapshotUnproved: Each pass over the set under way brought other topics.
        """
        if not self._is_over:
            return self.current.advance(now)
        if self._own_qos_pending:
            return None
        if self.order is Order.LIKELY:
            self.current.order, self.current.why = Order.KNOWN, ""
        return Step.DONE

    def take_held_back(self) -> dict[bytes, Update]:
        """Return the copies that were held back, and apply further copies at once."""
        held_back, self.current.held_back = self.current.held_back, None
        return held_back or {}

    @property
    def held_back(self) -> dict[bytes, Update] | None:
        """See `Stage`."""
        return self.current.held_back

    @property
    def order(self) -> Order:
        """Order of the primary's answers, as far as the sets have shown."""
        return self.current.order

    @property
    def why(self) -> str:
        """Why that is not known, in words; empty when it is."""
        return self.current.why

    @property
    def evidence(self) -> Evidence | None:
        """Evidence for the set under way; None before `Step.PROVED`."""
        return None if self._is_over else self.current.evidence

    @property
    def is_over(self) -> bool:
        """True if all sets are proved."""
        return self._is_over

    @property
    def is_at_qos_0(self) -> bool:
        """True if the subscription of the set under way has QoS 0 and had the selector's own QoS before."""
        return not self._is_over and self.current.is_at_qos_0

    @property
    def only_trickled(self) -> bool:
        """True if only a trickle of new topics keeps the set under way from its end."""
        proof = self.current.proof
        return not self._is_over and isinstance(proof, SilentProof) and proof.trickles

    @property
    def below_own_qos(self) -> tuple[int, ...]:
        """Positions of selectors whose subscriptions have, or may still have, QoS 0 in place of their own."""
        under_way = (self.current.index,) if self.is_at_qos_0 else ()
        return (*self._own_qos_pending.values(), *under_way)

    @property
    def topics_now(self) -> int:
        """Number of topics that the set under way has brought, live updates included."""
        return 0 if self._is_over else self.current.topics_now

    @property
    def copies_complete(self) -> bool:
        """True if every copy of the set under way has come, so that further rows are live."""
        return self.current.copies_complete

    def receive_bytes(self, now: float) -> None:
        """Note that the primary sent something."""
        if self.current.proof is not None:
            self.current.proof.receive_bytes(now)

    def receive_suback(self, packet: Suback, now: float) -> None:
        """Take a SUBACK of this pass.

        Raises:
            PrimaryRefused: The primary refused the subscription.
        """
        current, selectors = self.current, self._context.replica.selectors
        if current.proof is not None and packet.packet_id == current.proof.suback_id:
            current.receive_suback(packet, now)
            if current.refusal:
                self.refused[current.index] = current.refusal
            if current.granted is not None and current.granted < current.selector.qos:
                self.lowered[current.index] = current.granted
        elif packet.packet_id in self._own_qos_pending:
            index, code = self._own_qos_pending.pop(packet.packet_id), packet.reason_codes[0]
            if index not in self.refused:
                if code >= 0x80:
                    raise refused_subscription(selectors[index].filter, code)
                if code < selectors[index].qos:
                    self.lowered[index] = code
            self._converter.fix_qos(index, None)

    def receive_rows(self, rows: Sequence[PublishRow]) -> None:
        """Examine PUBLISH packets."""
        if self._notes_copies:  # live messages have no RETAIN
            self.copied.update(row[0] for row in rows if row[2] & 1)
        self.current.receive_rows(rows)

    def receive_skipped(self, flags: int) -> None:
        """Count a skipped message as a copy."""
        self.current.receive_skipped(flags)

    def receive_part(self, now: float) -> None:
        """Note that a part of a packet came that is too large to be read, so the set goes on."""
        if isinstance(self.current.proof, SilentProof):
            self.current.proof.note_part(now)

    def receive_manifest(self, payload: bytes, now: float) -> None:
        """Take the manifest of the set under way: a message before it and one after it."""
        self.current.receive_manifest(payload, now)

    def receive_unsuback(self, packet_id: int) -> None:
        """Take the answer to a probe."""
        self.current.receive_unsuback(packet_id)

    def receive_pingresp(self, now: float) -> None:
        """Take the PINGRESP for the set under way, or the one for which `begin` waited."""
        if self.current.proof is not None:
            self.current.proof.receive_pingresp(now)
        elif self.started_s is None:
            self.begin(now)

    def receive_control(self, payload: bytes, now: float) -> None:
        """Take a message of the control topic."""
        if self.current.proof is not None:
            self.current.proof.receive_marker(payload)

    def receive_retained(self, topic: bytes, payload: bytes, now: float) -> None:
        """Take a retained message outside the selectors."""
        if self.current.proof is not None:
            self.current.proof.receive_sentinel(topic, now)

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause."""
        self._begin_by_s += pause_s
        self._own_qos_by_s += pause_s
        if self.current.proof is not None:
            self.current.proof.postpone(pause_s)

    def tick(self, now: float) -> None:
        """Do the work that is due.

        Raises:
            SnapshotUnproved: The set under way was truncated, or its evidence will not come.
            LinkLost: The primary does not answer the PINGREQ for which `begin` waits.
        """
        if self._is_under_way:
            self.current.tick(now)
            return
        if self.started_s is None and now >= self._begin_by_s:
            raise LinkLost("the primary does not answer PINGREQ")
        if self._own_qos_pending and now >= self._own_qos_by_s:
            raise SnapshotUnproved("the primary does not answer SUBSCRIBE")
        if now >= self._next_at_s:
            self._next_at_s = _NEVER
            self.current.subscribe(now)

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds; infinity for never."""
        if self._is_under_way:
            assert self.current.proof is not None
            return self.current.proof.deadline
        if self.started_s is None:
            return self._begin_by_s
        return min(self._own_qos_by_s if self._own_qos_pending else _NEVER, self._next_at_s)

    @property
    def _is_under_way(self) -> bool:
        return not self._is_over and self.current.proof is not None
