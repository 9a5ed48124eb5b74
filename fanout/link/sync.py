"""One pass over the retained sets of all selectors, one after another: a snapshot, or a verification (core).

Owns the sequence of requests: for each selector a SUBSCRIBE at QoS 0, with the fence in the same packet and
PINGREQ and marker in the same write, and when its set is proved, SUBSCRIBE again at the selector's QoS without
retained messages. It must not know what follows from the outcome (`fanout.link.session`).

Why QoS 0: a primary with default settings silently drops what exceeds its queue of QoS 1 messages (Mosquitto:
1000 and the Receive Maximum), whereas at QoS 0 a quick reader gets everything (`docs/architecture.md`,
"Snapshots"). MQTT 3.1.1 has no way to subscribe again without the retained messages, so there the
subscription stays at QoS 0.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from fanout.errors import LinkLost, SnapshotUnproved
from fanout.link.control import ControlChannel
from fanout.link.handshake import refused_subscription
from fanout.link.intake import Intake
from fanout.link.outgoing import Message, Outgoing
from fanout.link.proof import Evidence, SnapshotProof
from fanout.link.stage import Stage
from fanout.mqtt.packets import Suback
from fanout.replica.store import Replica
from fanout.selection import Selector

__all__ = ["RetainedSync", "Step"]

_NEVER = float("inf")
_SEND_RETAINED = 0
_SEND_NO_RETAINED = 2
_HINT = (
    "The primary drops what a slow reader leaves in its queue: raise max_queued_messages (Mosquitto), or use narrower"
    " selectors"
)


class Step(enum.Enum):
    """What happened, as far as a session must act on it."""

    BARRIER = "barrier"
    """SUBACK, PINGRESP and the fence came for the set under way."""
    PROVED = "proved"
    """The set under way is proved; the session looks at the pass and calls `begin_next`."""
    DONE = "done"
    """All sets are proved, and all subscriptions are at their own QoS."""


class RetainedSync(Stage):
    """One pass over the retained sets of a link.

    Attributes:
        index: The selector under way; the number of selectors when none is left.
        topics_total: Topics that the proved sets brought.
        started_s: When the first SUBSCRIBE was sent, monotonic seconds; None before.
    """

    def __init__(
        self,
        *,
        selectors: Sequence[Selector],
        replica: Replica,
        intake: Intake,
        outgoing: Outgoing,
        control: ControlChannel,
        fence: bytes | None,
        quiet_s: float,
        compare: bool,
        retained_count: Callable[[], int | None],
    ) -> None:
        """Prepare; `begin` starts.

        Args:
            selectors: The link's selectors.
            replica: The link's replica, whose passes are begun here.
            intake: Told which QoS the updates of a selector have meanwhile.
            outgoing: Where requests go.
            control: For the markers.
            fence: Topic of the fence; None when the primary has none.
            quiet_s: After so many seconds without a byte a set counts as cut short.
            retained_count: Tells how many retained messages the primary says it has in all; None for unknown.
            compare: Whether to note what the sets bring even for an empty replica: a verification.
        """
        self.index = 0
        self.topics_total = 0
        self.started_s: float | None = None
        self._selectors = tuple(selectors)
        self._replica = replica
        self._intake = intake
        self._outgoing = outgoing
        self._control = control
        self._fence = fence
        self._quiet_s = quiet_s
        self._compare = compare
        self._retained_count = retained_count
        self._proof: SnapshotProof | None = None
        self._barrier_told = False
        self._settling: dict[int, int] = {}
        """Packet Identifier of a SUBSCRIBE at a selector's own QoS to the selector's index."""
        self._settled_by_s = 0.0
        self._begin_by_s = _NEVER
        """Until when the PINGRESP for which `begin` waits may take."""

    def begin(self, now: float) -> None:
        """Start with the first selector, unless a PINGREQ is under way: then with its PINGRESP."""
        if self._outgoing.ping_sent_s is not None:
            self._begin_by_s = now + self._quiet_s
        elif self._proof is None:
            self.started_s = now
            self._subscribe(now)

    def begin_next(self, now: float) -> None:
        """Go on behind a proved set: its subscription gets its own QoS, the next selector follows."""
        self.topics_total += self._replica.count(self.index)
        self._settle(now)
        self.index += 1
        self._proof = None
        if self.index < len(self._selectors):
            self._subscribe(now)

    def _settle(self, now: float) -> None:
        selector = self._selectors[self.index]
        if selector.qos and self._outgoing.version == 5:
            packet_id = self._outgoing.subscribe(
                selector.filter.encode(),
                qos=selector.qos,
                no_local=selector.writes == "reject",
                retain_handling=_SEND_NO_RETAINED,
                now=now,
            )
            self._settling[packet_id] = self.index
            self._settled_by_s = now + self._quiet_s

    def give_up(self, now: float) -> None:
        """Leave the set under way without its evidence; its subscription gets its own QoS again."""
        if self.index < len(self._selectors):
            self._settle(now)
        self._intake.fixed_qos[:] = [None if self._outgoing.version == 5 else each for each in self._intake.fixed_qos]

    def advance(self) -> Step | None:
        """Return the next thing that happened; None when there is nothing new."""
        proof = self._proof
        if proof is None:
            done = self.index == len(self._selectors) and not self._settling
            return Step.DONE if done else None
        if proof.barrier and not self._barrier_told:
            self._barrier_told = True
            return Step.BARRIER
        return Step.PROVED if proof.evidence is not None else None

    @property
    def evidence(self) -> Evidence | None:
        """What proves the set under way."""
        return None if self._proof is None else self._proof.evidence

    @property
    def topics_now(self) -> int:
        """How many topics the set under way has brought, live updates included."""
        if self.index == len(self._selectors):
            return 0
        return self._replica.count(self.index) - self._replica.unseen_count

    @property
    def copies_over(self) -> bool:
        """Whether every copy of the set under way has come, so that what follows is live."""
        return self._barrier_told and self._replica.unseen_count == 0

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
            self._check(self.index, packet)
            self._proof.receive_suback(now)
        elif packet.packet_id in self._settling:
            index = self._settling.pop(packet.packet_id)
            self._check(index, packet)
            self._intake.fixed_qos[index] = None

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

    def receive_retained(self, topic: bytes, now: float) -> None:
        """Take a retained message outside the selectors."""
        if self._proof is not None:
            self._proof.receive_fence(topic, now)

    def tick(self, now: float) -> None:
        """Do what is due.

        Raises:
            SnapshotUnproved: The set under way was cut short, or its evidence will not come.
            LinkLost: The primary does not answer the PINGREQ for which `begin` waits.
        """
        proof = self._proof
        if proof is None:
            if self.started_s is None and now >= self._begin_by_s:
                raise LinkLost("the primary does not answer PINGREQ")
            if self._settling and now >= self._settled_by_s:
                raise SnapshotUnproved("the primary does not answer SUBSCRIBE")
        elif proof.is_truncated(now):
            raise SnapshotUnproved(self._shortfall(proof), hint=_HINT)
        elif proof.probe_due(now):
            probe_id = self._outgoing.unsubscribe(self._control.probe_filter, now=now)
            proof.add_probe(probe_id, now=now, topics=self.topics_now)

    @property
    def deadline(self) -> float:
        """When to call `tick` at the latest, monotonic seconds; infinity when nothing can become due."""
        if self._proof is not None:
            return self._proof.deadline
        if self.started_s is None:
            return self._begin_by_s
        return self._settled_by_s if self._settling else _NEVER

    def _shortfall(self, proof: SnapshotProof) -> str:
        topic_filter = self._selectors[self.index].filter
        got = f"the retained set of {topic_filter} ended after {self.topics_now} topics without {proof.missing}"
        count = self._retained_count()
        return got if count is None else f"{got}; the primary says that it has {count} retained messages in all"

    def _subscribe(self, now: float) -> None:
        selector = self._selectors[self.index]
        self._intake.fixed_qos[self.index] = selector.qos
        if self._compare or self._replica.count(self.index):
            self._replica.begin_pass(self.index)
        packet_id = self._outgoing.subscribe(
            selector.filter.encode(),
            qos=0,
            no_local=selector.writes == "reject",
            retain_handling=_SEND_RETAINED,
            fence=self._fence,
            now=now,
        )
        self._outgoing.ping(now)
        marker: bytes | None = None
        if self._control.permitted and self._outgoing.free:
            marker = self._control.send(now)
            self._outgoing.publish(Message(self._control.topic, marker), now=now)
        self._proof = SnapshotProof(packet_id, fence=self._fence, marker=marker, now=now, quiet_s=self._quiet_s)
        self._barrier_told = False

    def _check(self, index: int, packet: Suback) -> None:
        if packet.reason_codes[0] >= 0x80:
            raise refused_subscription(self._selectors[index].filter, packet.reason_codes[0])
