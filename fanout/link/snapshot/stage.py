"""Interface of a stage that a session goes through before it is live, and the stage for pending messages.

The other stages are `fanout.link.snapshot.capability_check` and `fanout.link.snapshot.retained_pass`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanout.errors import LinkLost
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.sender import OutgoingMessage, PacketSender
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.set_proof import SetProof
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.packets import Suback
from fanout.replica.update import Update

__all__ = ["PendingStage", "Stage", "send_marker"]


def send_marker(control: ControlChannel, sender: PacketSender, now: float) -> bytes | None:
    """Send a marker and return its payload; None when none would come back, or the primary takes none now."""
    if not (control.is_open and sender.free):
        return None
    marker = control.send(now)
    sender.publish(OutgoingMessage(control.topic, marker), now=now)
    return marker


class Stage:
    """One stage; each method does nothing unless a stage needs it. All times are monotonic seconds."""

    @property
    def held_back(self) -> dict[bytes, Update] | None:
        """Copies that differ from the replica and wait for the end of their set (`IngestPipeline.take`), by topic.

        None when copies are applied at once.
        """
        return None

    def begin(self, now: float) -> None:
        """Send the first requests."""

    def receive_bytes(self, now: float) -> None:
        """Note that the primary sent something."""

    def receive_messages(self, count: int) -> None:
        """Note that `count` PUBLISH packets came."""

    def receive_skipped(self, flags: int) -> None:
        """Take a message with these flags that is skipped."""

    def receive_part(self, now: float) -> None:
        """Note that a part of a packet came that is too large to be read."""

    def receive_rows(self, rows: Sequence[PublishRow]) -> None:
        """Examine PUBLISH packets that come before or after a manifest."""

    def receive_manifest(self, payload: bytes, now: float) -> None:
        """Take a manifest of a fanout node."""

    def receive_suback(self, packet: Suback, now: float) -> None:
        """Take a SUBACK."""

    def receive_unsuback(self, packet_id: int) -> None:
        """Take an UNSUBACK."""

    def receive_puback(self, topic: bytes, reason_code: int, now: float) -> None:
        """Take the PUBACK of an own message; a refused control message goes to `ControlChannel` before."""

    def receive_pingresp(self, now: float) -> None:
        """Take PINGRESP."""

    def receive_control(self, payload: bytes, now: float) -> None:
        """Take a message of the control topic that came back."""

    def receive_retained(self, topic: bytes, payload: bytes, now: float) -> None:
        """Take a retained message outside the selectors."""

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause in which nothing was read."""

    def tick(self, now: float) -> None:
        """Do the work that is due.

        Raises:
            FanoutError: The stage has failed.
        """

    @property
    def copies_complete(self) -> bool:
        """True if every copy of the requested retained set has come, so that further rows are live."""
        return False

    @property
    def deadline(self) -> float:
        """When to call `tick`; infinity for never."""
        return float("inf")


class PendingStage(Stage):
    """Stage of a resumed session that waits until its pending messages have come.

    PINGRESP and the marker come after them, but this is no proof: messages that overflowed the primary's queue did
    not come, which only a comparison of the retained sets shows.
    """

    def __init__(self, context: LinkContext, *, now: float) -> None:
        """Send PINGREQ and a marker.

        Args:
            context: Collaborators of the link.
            now: Monotonic seconds.
        """
        self._sender = context.sender
        self._control = context.control
        self._gave_up_marker = False
        self._messages = 0
        """Number of messages that came: the progress by which a probe is judged."""
        self._sender.ping(now)
        marker = send_marker(self._control, self._sender, now)
        self._proof = SetProof(0, sentinel=None, marker=marker, now=now, quiet_s=context.config.snapshot_quiet_s)
        self._proof.receive_suback(now)  # nothing was subscribed

    @property
    def done(self) -> bool:
        """True if nothing more is known to be pending."""
        return self._gave_up_marker or self._proof.evidence is not None

    def receive_bytes(self, now: float) -> None:
        """Note that the primary sent something."""
        self._proof.receive_bytes(now)

    def receive_messages(self, count: int) -> None:
        """Note that `count` PUBLISH packets came."""
        self._messages += count

    def receive_unsuback(self, packet_id: int) -> None:
        """Take the answer to a probe."""
        self._proof.receive_probe_answer(packet_id, topics=self._messages)

    def receive_pingresp(self, now: float) -> None:
        """Take PINGRESP."""
        self._proof.receive_pingresp(now)

    def receive_control(self, payload: bytes, now: float) -> None:
        """Take the marker."""
        self._proof.receive_marker(payload)

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause."""
        self._proof.postpone(pause_s)

    def tick(self, now: float) -> None:
        """Do the work that is due.

        Raises:
            LinkLost: The primary does not answer.
        """
        proof = self._proof
        if proof.is_truncated(now):
            if not proof.barrier:
                raise LinkLost("the primary does not answer after the session was resumed")
            self._gave_up_marker = True
        elif proof.probe_due(now):
            probe_id = self._sender.unsubscribe(self._control.probe_filter, now=now)
            proof.add_probe(probe_id, now=now, topics=self._messages)

    @property
    def deadline(self) -> float:
        """When to call `tick`."""
        return self._proof.deadline
