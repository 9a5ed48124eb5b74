"""Collaborators that the stages, the lifecycle and the packet router of one link share."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.chain.stamp import StampCount
from fanout.config import LinkConfig
from fanout.link.ingest.pipeline import IngestPipeline
from fanout.link.model.counters import LinkCounters
from fanout.link.model.skipped import SkippedMessages
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.peer import RemotePeer
from fanout.link.protocol.sender import PacketSender
from fanout.link.snapshot.sys_count import SysCount
from fanout.replica.store import Replica

__all__ = ["LinkContext"]


@dataclass(frozen=True, slots=True)
class LinkContext:
    """Shared collaborators of one link, for as long as the link lives."""

    config: LinkConfig
    """Configuration of the link."""
    node_id: str
    """This node."""
    replica: Replica
    """Replica of the link."""
    pipeline: IngestPipeline
    """Path of the primary's messages into the replica."""
    sender: PacketSender
    """Sender of packets."""
    control: ControlChannel
    """Control channel: markers and heartbeats."""
    peer: RemotePeer
    """The primary, as far as it is known."""
    count: SysCount
    """Comparison with the primary's count of retained messages."""
    skipped: SkippedMessages
    """Messages that cannot be replicated."""
    counters: LinkCounters
    """Counters that the parts of the link add to."""

    @classmethod
    def make(
        cls,
        config: LinkConfig,
        *,
        node_id: str,
        replica: Replica,
        nonce: int,
        stamps: StampCount | None = None,
        counters: LinkCounters | None = None,
    ) -> LinkContext:
        """Return the context of a link that is down.

        Args:
            config: The link's configuration.
            node_id: This node.
            replica: The link's replica.
            nonce: A number that differs between processes (`ControlChannel`).
            stamps: The node's stamp counter, used with `stamp_updates`; None stamps nothing.
            counters: Counters of the link, to go on with; None for new ones.
        """
        counters = counters or LinkCounters()
        sender = PacketSender(config, node_id=node_id)
        control = ControlChannel(
            config.control_topic, node_id=node_id, link=config.name, nonce=nonce, heartbeat_s=config.heartbeat_s
        )
        return cls(
            config=config,
            node_id=node_id,
            replica=replica,
            pipeline=IngestPipeline(
                config, replica=replica, control_prefix=control.prefix, stamps=stamps, counters=counters
            ),
            sender=sender,
            control=control,
            peer=RemotePeer(config, node_id=node_id, sender=sender),
            count=SysCount(replica.selectors, control_prefix=control.prefix, sender=sender),
            skipped=SkippedMessages(),
            counters=counters,
        )
