"""Ingress of local clients: the decision on each PUBLISH, its stamp, and the replica of the node's own namespace.

The own namespace is every topic outside the selectors. A topic inside a selector belongs to the primary: a PUBLISH to
it is refused, or forwarded when the selector says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fanout.chain.stamp import StampCount, split_publisher_stamp
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.owners import RetainedOwners
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Stamp, Update, content_digest
from fanout.selection import Selector
from fanout.server.base.ports import PendingVerdict, PublishVerdict

__all__ = ["Forward", "LocalIngress"]

_SYS = b"$SYS"
_LEVEL_ENDS = (b"", b"/")


class Forward(Protocol):
    """Forwards a local client's PUBLISH to a primary."""

    def __call__(self, row: PublishRow, *, prefix: bytes) -> PublishVerdict:
        """Send `row`, with `prefix` taken off its topic, and return the primary's answer, now or later."""


class LocalIngress:
    """Takes what local clients publish, and holds the node's own namespace.

    Attributes:
        replica: The retained values of the topics that clients publish at this node.
    """

    def __init__(
        self,
        *,
        stamps: StampCount,
        replica: Replica,
        selectors: Sequence[tuple[Selector, Forward]],
        control_prefixes: Sequence[bytes],
        accept: Callable[[Changes, str | None, Sequence[PublishRow]], PendingVerdict | None],
        expiry_s: int = 0,
        publisher_stamps: bool = False,
        owners: RetainedOwners | None = None,
    ) -> None:
        """Join the ingress with the rest of the node.

        Args:
            stamps: Stamps accepted messages, except those that carry a publisher's stamp that is read.
            replica: The store of the node's own namespace.
            selectors: Every selector of every link, with the function that forwards to its primary.
            control_prefixes: Prefixes of the links' control topics. Topics below are never replicated, whatever the
                selectors say, so that a next node can publish its own control messages here. Below them at a primary,
                after the prefix of a selector, nobody but links may publish.
            accept: Logs and dispatches the changes of a batch; gets the publisher's Client Identifier, or None, and its
                packets. Returns a verdict to await before these are acknowledged; None to acknowledge at once.
            expiry_s: Expiry in seconds of retained values without a Message Expiry Interval; 0: never.
            publisher_stamps: True if stamps of publishers are read; else they are ordinary properties.
            owners: Bounds the retained values of each user; None for no bound. A value beyond is delivered as a message
                without RETAIN, after the removal of the topic's old value, as beyond a limit of the replica.
        """
        self.replica = replica
        self._stamps = stamps
        self._selectors = tuple(selectors)
        self._control_prefixes = tuple(control_prefixes)
        self._accept_changes = accept
        self._owners = owners
        self.expiry_s = expiry_s
        self.publisher_stamps = publisher_stamps

    def guard(
        self, *, selectors: Sequence[tuple[Selector, Forward]], control_prefixes: Sequence[bytes], now_ns: int
    ) -> None:
        """Leave the topics of other selectors to their primaries from now on; values of these topics are removed.

        Args:
            selectors: As for the constructor.
            control_prefixes: As for the constructor.
            now_ns: Unix time in nanoseconds, the time of the removals.
        """
        known = {selector for selector, _ in self._selectors}
        self._selectors = tuple(selectors)
        self._control_prefixes = tuple(control_prefixes)
        for selector in dict.fromkeys(selector for selector, _ in selectors if selector not in known):
            for topics in list(self.replica.match_topics(selector.local_filter.encode())):
                taken = [topic for topic in topics if self._owner(topic) is not None]
                changes = self.replica.sweep(taken, now_ns=now_ns)
                if changes.updates:
                    self._accept(changes, None, ())

    def publish(
        self, client_id: str, rows: list[PublishRow], now_ns: int, *, user: str = ""
    ) -> Sequence[PublishVerdict]:
        """Take a run of PUBLISH packets; the contract is `fanout.server.base.ports.Ingress.publish`."""
        verdicts: list[PublishVerdict] = []
        updates: list[Update] = []
        success = ReasonCode.SUCCESS
        guarded = bool(self._selectors)
        owners = self._owners
        quota = None if owners is None else owners.quota_of(user)
        reads_stamps = self.publisher_stamps
        own_expires_ns = now_ns + self.expiry_s * 1_000_000_000 if self.expiry_s else 0
        stamps = self._stamps
        node_id, epoch, sequence, origin_us = stamps.node, stamps.epoch, stamps.sequence, now_ns // 1000
        removals = 0
        for row in rows:
            topic, payload, flags, _, properties, expiry_s, user_at = row
            if (topic[:4] == _SYS and topic[4:5] in _LEVEL_ENDS) or (guarded and self._owner(topic) is not None):
                verdicts.append(self._of_replica(row))
                continue
            retain = flags & 1 == 1
            if quota is not None and retain and owners is not None:
                size = len(topic) + len(payload) + len(properties)
                retain = not payload or owners.take(user, topic, size=size, quota=quota)
                if not payload or not retain:  # what comes later in this run may have the place
                    had_value = owners.forget(topic) or topic in self.replica.view
                    if had_value and not retain:
                        removals += 1
                        sequence += 1
                        own = Stamp(node_id, epoch, sequence, origin_us)
                        digest = content_digest(topic, b"")
                        updates.append((topic, b"", flags >> 1 & 3, True, b"", now_ns, 0, digest, own))
            stamp = None
            if reads_stamps and properties:
                properties, stamp = split_publisher_stamp(properties, user_at)
            if stamp is None or stamp.primary == node_id:  # as `StampCount.complete` does
                sequence += 1
                stamp = Stamp(node_id, epoch, sequence, origin_us)
            updates.append(
                (
                    topic,
                    payload,
                    flags >> 1 & 3,
                    retain,
                    properties,
                    now_ns,
                    (own_expires_ns if retain else 0) if expiry_s is None else now_ns + expiry_s * 1_000_000_000,
                    content_digest(topic, payload),
                    stamp,
                )
            )
            verdicts.append(success)
        stamps.sequence = sequence
        if updates:
            changes = self.replica.apply(updates, phase=Phase.LIVE)
            accepted = rows
            if len(updates) - removals < len(rows):
                accepted = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict is success]
            committed = self._accept(changes, client_id, accepted)
            if committed is not None:
                return [committed if verdict is success else verdict for verdict in verdicts]
        return verdicts

    def remove_expired(self, now_ns: int, *, piece: int) -> bool:
        """Remove expired values of the node's own namespace, and tell subscribers.

        Args:
            now_ns: Unix time in nanoseconds.
            piece: Greatest number to remove.

        Returns:
            True if there are more.
        """
        changes = self.replica.remove_expired(now_ns, piece)
        if changes.updates:
            self._accept(changes, None, ())
        expiry_ns = self.replica.next_expiry_ns
        return expiry_ns is not None and expiry_ns <= now_ns

    def _accept(self, changes: Changes, client_id: str | None, rows: Sequence[PublishRow]) -> PendingVerdict | None:
        if self._owners is not None:
            self._owners.note(changes)
        return self._accept_changes(changes, client_id, rows)

    def _owner(self, topic: bytes) -> tuple[Selector, Forward] | None:
        if not topic.startswith(self._control_prefixes):
            for selector, forward in self._selectors:
                if selector.covers_local(topic):
                    return selector, forward
        return None

    def _of_replica(self, row: PublishRow) -> PublishVerdict:
        """Decide on a topic that is not this node's: replicas are read-only unless writes are forwarded."""
        owner = self._owner(row[0])
        if owner is None or owner[0].writes == "reject":
            return ReasonCode.NOT_AUTHORIZED
        selector, forward = owner
        prefix = selector.prefix.encode()
        if row[0].startswith(self._control_prefixes, len(prefix)):
            return ReasonCode.NOT_AUTHORIZED
        return forward(row, prefix=prefix)
