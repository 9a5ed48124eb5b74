"""Factory of the stages of a session, with the collaborators and the settings of each."""

from __future__ import annotations

from fanout.config import LinkConfig
from fanout.link.ingest.convert import Converter
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.peer import RemotePeer
from fanout.link.protocol.sender import PacketSender
from fanout.link.snapshot.capability_check import CapabilityCheck, own_fence
from fanout.link.snapshot.retained_pass import RetainedPass
from fanout.link.snapshot.stage import PendingStage
from fanout.link.snapshot.sys_count import SysCount
from fanout.replica.store import Replica
from fanout.replica.update import Stamp

__all__ = ["StageFactory"]


class StageFactory:
    """Factory of one link; the session begins the stages.

    Attributes:
        stamp_before: Stamp of the newest control message that had come back when the newest pass was made; None
            without stamps.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        replica: Replica,
        converter: Converter,
        sender: PacketSender,
        control: ControlChannel,
        primary: RemotePeer,
        count: SysCount,
    ) -> None:
        """Prepare for one link.

        Args:
            config: The link's configuration.
            replica: The link's replica.
            converter: Converter of rows, told by a pass which QoS the updates of a selector have.
            sender: Sender of packets.
            control: The control channel.
            primary: The primary, as far as it is known.
            count: Comparison with the primary's count of retained messages.
        """
        self.stamp_before: Stamp | None = None
        self._config = config
        self._replica = replica
        self._converter = converter
        self._sender = sender
        self._control = control
        self._primary = primary
        self._count = count

    @property
    def is_checked(self) -> bool:
        """Whether the capability check of this epoch is complete."""
        primary = self._primary
        return self._control.permitted is not None and (primary.fence is not None or primary.node is not None)

    def capability_check(self) -> CapabilityCheck:
        """Return the capability check for the beginning of an epoch."""
        return CapabilityCheck(
            sender=self._sender,
            control=self._control,
            wants_fence=self._primary.node is None,
            asks_system=self._primary.system_topics.asked,
            selectors=self._config.selectors,
            timeout_s=self._config.connect_timeout_s,
        )

    def pending(self) -> PendingStage:
        """Return the stage that waits for the pending messages of a resumed session."""
        return PendingStage(sender=self._sender, control=self._control, quiet_s=self._config.snapshot_quiet_s)

    def retained_pass(self, *, compare: bool, paced: bool, now: float) -> RetainedPass:
        """Return a pass over the retained sets; for a comparison the link's own fence is published again.

        Args:
            compare: Whether it compares with the replica, instead of taking a snapshot.
            paced: Whether to rest between two sets, for an audit.
            now: Monotonic seconds.
        """
        own, fence = self._primary.fence == self._control.fence_topic, own_fence(self._control)
        if compare and own and self._config.version == 5 and self._sender.free and self._sender.takes(fence):
            # The fence may have expired since. The message comes back without RETAIN, so it is no fence itself: the
            # subscription to it, made with that of a selector, is without Retain As Published.
            self._sender.publish(fence, now=now)
        self.stamp_before = self._control.stamp
        return RetainedPass(
            selectors=self._config.selectors,
            replica=self._replica,
            converter=self._converter,
            sender=self._sender,
            control=self._control,
            fence=self._primary.fence,
            order=self._primary.order,
            why=self._primary.why_unordered,
            quiet_s=self._config.snapshot_quiet_s,
            asks_manifest=self._primary.node is not None and self._config.version == 5,
            is_mosquitto=self._primary.is_mosquitto,
            compare=compare,
            paced=paced,
            retained_count=lambda: self._count.total,
        )
