"""Cuts of one link: what its replica held when a heartbeat of a member of its pool came, its own heartbeats included.

Owns the subscriptions to the control topics of the other members, and the newest cuts. The heartbeats of all members
come through the primary, each to all members, so each is a place that their streams have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from fanout.chain.cut import MARKER_CHARACTERS_MAX, Cut, RetainedSet
from fanout.config import LinkConfig
from fanout.errors import PrimaryRefused
from fanout.link.model.events import MarkerPassed
from fanout.link.model.rows import DUP, FLAGS, PAYLOAD, TOPIC
from fanout.link.protocol.control_channel import MARKER, link_control_topic
from fanout.link.protocol.sender import PacketSender
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.packets import Suback
from fanout.replica.store import Replica

__all__ = ["OWN_CUTS_MAX", "MemberCuts", "alone_payload"]

OWN_CUTS_MAX: Final = 64
"""Cuts at own heartbeats that are kept: a member that is further behind is not compared."""
_EXPIRY_SKEW_NS: Final = 2_000_000_000
"""Members remove an expired value within this time of each other: they count in whole seconds from when it came."""
_ALONE: Final = re.compile(rb"alone ([0-9a-f]{16,32})")
_ALONE_MAX: Final = 256
"""Number of processes remembered as having gone on alone."""


def alone_payload(instance: str) -> bytes:
    """Return what a process publishes on its control topic before sessions go on there without copies."""
    return f"alone {instance}".encode()


class MemberCuts:
    """Cuts of one link, over all its Network Connections.

    Attributes:
        topics: Topics whose messages are cuts, this link's own control topic included; empty for a link in no pool.
        captured_total: Cuts captured.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        node_id: str,
        replica: Replica,
        sender: PacketSender,
        is_live: Callable[[], bool],
        is_in_order: Callable[[], bool],
        expired_ns: Callable[[], int],
    ) -> None:
        """Begin without members.

        Args:
            config: The link's configuration.
            node_id: This node.
            replica: The link's replica, read only.
            sender: Sender of packets.
            is_live: Returns whether the link is live, and no pass is under way.
            is_in_order: Returns whether live updates come in the order of the primary's stream, with none left out.
            expired_ns: Returns when the newest expired value was removed, Unix time in nanoseconds; 0 for never.
        """
        self.topics: frozenset[bytes] = frozenset()
        self.captured_total = 0
        self._config = config
        self._node_id = node_id
        self._replica = replica
        self._sender = sender
        self._is_live = is_live
        self._is_in_order = is_in_order
        self._expired_ns = expired_ns
        self._node_of: dict[bytes, str] = {}
        """Control topic to the member that publishes there."""
        self._own: dict[str, Cut] = {}
        """Marker to the cut at an own heartbeat, oldest first."""
        self._newest: dict[str, Cut] = {}
        """Other member to the cut at its newest heartbeat."""
        self._passed: dict[bytes, tuple[bytes, int]] = {}
        """Control topic to the process that its newest heartbeat is from, and the number of that heartbeat."""
        self._heard: dict[str, float] = {}
        """Member, this node too, to when its newest heartbeat came, monotonic seconds."""
        self._alone: dict[str, float] = {}
        """Process of a member to when it said that it goes on alone, monotonic seconds; oldest first."""
        self._connection = 0
        """Number of the Network Connection on which the members' topics were subscribed; 0 for none."""
        self._subscribed: set[bytes] = set()
        self._pending: dict[int, bytes] = {}
        """Packet Identifier of a SUBSCRIBE without SUBACK, to its topic."""
        self._compares = config.version == 5 or config.retain_policy == "bridge"

    def reselect(self) -> None:
        """Forget the cuts: the replica has other selectors now."""
        self._own.clear()
        self._newest.clear()

    @property
    def own(self) -> Mapping[str, Cut]:
        """The newest cuts at own heartbeats, by marker."""
        return MappingProxyType(self._own)

    def newest(self, node: str) -> Cut | None:
        """Return the cut at the newest heartbeat of another member; None before one came."""
        return self._newest.get(node)

    def listen_to(self, nodes: Iterable[str], *, connection: int, now: float) -> tuple[str, ...]:
        """Subscribe to the heartbeats of exactly these members; to be called while the link is live.

        Args:
            nodes: The other members.
            connection: Number of the Network Connection: on another one all are subscribed again.
            now: Monotonic seconds.

        Returns:
            Topics that are too long for the primary.
        """
        # The own control topic must come back, so it is never subscribed with No Local.
        node_of = {self._topic_of(node): node for node in nodes if node != self._node_id}
        if connection == self._connection and node_of == self._node_of:
            return ()
        if connection != self._connection:
            self._connection = connection
            self._pending.clear()
            known: set[bytes] = set()
        else:
            known = self._subscribed & node_of.keys()
        unfit = []
        for topic in sorted(self._subscribed - node_of.keys()):
            self._sender.unsubscribe(topic, now=now)
        for topic in sorted(node_of.keys() - known):
            try:
                packet_id = self._sender.subscribe(topic, qos=1, no_local=True, retain_handling=2, now=now)
            except PrimaryRefused:
                unfit.append(topic.decode())
            else:
                self._pending[packet_id] = topic
        self._subscribed = node_of.keys() - {topic.encode() for topic in unfit}
        self._node_of = node_of
        self._newest = {node: cut for node, cut in self._newest.items() if node in node_of.values()}
        known_nodes = {self._node_id, *node_of.values()}
        self._heard = {node: heard for node, heard in self._heard.items() if node in known_nodes}
        self.topics = frozenset((self._topic_of(self._node_id), *node_of)) if node_of else frozenset()
        self._passed = {topic: newest for topic, newest in self._passed.items() if topic in self.topics}
        return tuple(unfit)

    def receive_suback(self, packet: Suback) -> str | None:
        """Take a SUBACK; return the topic when it refuses the heartbeats of a member."""
        topic = self._pending.pop(packet.packet_id, None)
        return None if topic is None or packet.reason_codes[0] < 0x80 else topic.decode()

    def heard_s(self, node: str) -> float | None:
        """Return when the newest heartbeat of a member came through the primary, monotonic seconds; None for never."""
        return self._heard.get(node)

    def said_alone_s(self, instance: str) -> float | None:
        """Return when a process of a member said last that it goes on alone, monotonic seconds; None for never."""
        return self._alone.get(instance)

    def hear(self, row: PublishRow, *, now: float) -> None:
        """Note that a row with one of `topics` came: its member lives, and so does the primary.

        Call it for each, after `capture` if the place of the row is known.
        """
        self._is_first(row)
        # A message that is sent again may be old.
        if not row[FLAGS] & DUP:
            self._heard[self._node_of.get(row[TOPIC], self._node_id)] = now
        if found := _ALONE.fullmatch(row[PAYLOAD]) if len(row[PAYLOAD]) <= MARKER_CHARACTERS_MAX else None:
            instance = found[1].decode()
            self._alone.pop(instance, None)
            self._alone[instance] = now
            if len(self._alone) > _ALONE_MAX:
                del self._alone[next(iter(self._alone))]

    def capture(self, row: PublishRow, *, now_ns: int) -> MarkerPassed | None:
        """Note what the replica of a live link holds at the place of a row with one of `topics`.

        A link that resumes its session gives the places of what waited for it too: copies of sessions name them.

        Args:
            row: The row.
            now_ns: Unix time in nanoseconds.

        Returns:
            The place; None when the row is no heartbeat, or may have had its place before.
        """
        # A message that is sent again may have had its place before.
        if not self._is_first(row) or row[FLAGS] & DUP or not self._is_in_order():
            return None
        marker, node = row[PAYLOAD].decode(), self._node_of.get(row[TOPIC])
        if not self._is_live():
            return MarkerPassed(node or self._node_id, marker)
        self.captured_total += 1
        compares = self._compares and not self._is_expiring(now_ns)
        # A member that has been live for longer holds messages that were never retained, or were retained before.
        sets = (
            self._set(index) if compares and not one.live_only else None
            for index, one in enumerate(self._replica.selectors)
        )
        cut = Cut(marker, tuple(sets))
        if node is not None:
            self._newest[node] = cut
            return MarkerPassed(node, marker)
        self._own[marker] = cut
        if len(self._own) > OWN_CUTS_MAX:
            del self._own[next(iter(self._own))]
        return MarkerPassed(self._node_id, marker)

    def _is_first(self, row: PublishRow) -> bool:
        """Note a row; return whether it is a heartbeat newer than all before it: a member numbers them as it sends."""
        topic, payload = row[TOPIC], row[PAYLOAD]
        found = MARKER.fullmatch(payload) if len(payload) <= MARKER_CHARACTERS_MAX else None
        if found is None:
            return False
        process, number = found[1], int(found[2])
        newest = self._passed.get(topic)
        if newest is not None and newest[0] == process and number <= newest[1]:
            return False
        self._passed[topic] = (process, number)
        return True

    def _is_expiring(self, now_ns: int) -> bool:
        """Return whether values expire just now, which some members have removed and others not."""
        next_ns = self._replica.next_expiry_ns
        return now_ns - self._expired_ns() < _EXPIRY_SKEW_NS or (
            next_ns is not None and next_ns - now_ns < _EXPIRY_SKEW_NS
        )

    def _set(self, index: int) -> RetainedSet:
        return RetainedSet(self._replica.count(index), self._replica.digest(index))

    def _topic_of(self, node: str) -> bytes:
        return link_control_topic(self._config.control_topic, node_id=node, link=self._config.name).encode()
