"""Membership: who is known in a pool, who answers, who is suspect, and which address is this node's own (core).

A member is known by the address at which it is asked. Time comes in as seconds of a monotonic clock. A member is
reachable as long as its newest answer is young enough. Answers from before it became suspect are kept for people only.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fanout.pool.member_facts import MemberFacts

__all__ = ["AskFailed", "AskFailure", "Membership", "Peer", "is_reachable"]


class AskFailure(enum.StrEnum):
    """Why a question to a member brought nothing."""

    UNREACHABLE = "unreachable"
    """No connection, or TLS does not accept the other side."""
    TIMEOUT = "timeout"
    """No whole answer in time."""
    REFUSED = "refused"
    """The member does not accept this one's token."""
    PROTOCOL = "protocol"
    """The member speaks another version of the pool's protocol."""
    ANSWER = "answer"
    """The connection ended before a whole answer; or the answer is too long, or no member's."""
    IDENTITY = "identity"
    """The member has this node's `node.id`, and is another process."""


class AskFailed(Exception):
    """A question to a member brought nothing."""

    def __init__(self, failure: AskFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure
        """The reason."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One address of the pool, and the knowledge of the member there."""

    address: str
    """`host:port`."""
    facts: MemberFacts | None = None
    """Its newest answer; None before it said anything."""
    heard_s: float | None = None
    """When it said so."""
    asked_s: float | None = None
    """When it was asked for that: it was heard then or later."""
    failure: AskFailure | None = None
    """Why the newest question brought nothing; None when it brought an answer, or before one was asked."""
    is_self: bool = False
    """True if the newest answer came from this process, whatever failed since."""

    @property
    def name(self) -> str:
        """Its `node.id`; its address before it said one."""
        return self.address if self.facts is None else self.facts.node


def is_reachable(peer: Peer, *, now_s: float, suspect_after_s: float) -> bool:
    """Return whether a member may be waited for: its newest answer is not older than `suspect_after_s`."""
    return peer.heard_s is not None and now_s - peer.heard_s <= suspect_after_s


class Membership:
    """The addresses of a pool, and what is known of the member at each."""

    def __init__(self, *, node: str, instance: str, suspect_after_s: float, members_max: int) -> None:
        """Begin without any address.

        Args:
            node: This node's `node.id`.
            instance: Identity of this process.
            suspect_after_s: Silence after which a member is suspect.
            members_max: Bound of the addresses.
        """
        self.node = node
        """This node's `node.id`."""
        self.instance = instance
        """Identity of this process."""
        self.suspect_after_s = suspect_after_s
        """Silence after which a member is suspect."""
        self.members_max = members_max
        """Bound of the addresses."""
        self._peers: dict[str, Peer] = {}
        self._others: tuple[Peer, ...] | None = None
        """What `others` returns; None after a change."""

    def set_addresses(self, addresses: Iterable[str]) -> int:
        """Know exactly these addresses from now on, the first `members_max` of them.

        Returns:
            Number of those that were left out.
        """
        wanted = list(dict.fromkeys(addresses))
        kept = wanted[: self.members_max]
        self._peers = {address: self._peers.get(address) or Peer(address) for address in kept}
        self._others = None
        return len(wanted) - len(kept)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address, in the order in which they were given."""
        return tuple(self._peers)

    def get(self, address: str) -> Peer | None:
        """Return what is known of an address; None for one that is not of the pool any more."""
        return self._peers.get(address)

    def note_answer(self, address: str, facts: MemberFacts, *, asked_s: float, now_s: float) -> AskFailure | None:
        """Note an answer; return `IDENTITY` when it comes from another process with this node's identifier."""
        peer = self._peers.get(address)
        if peer is None:
            return None
        self._others = None
        if facts.node == self.node and facts.instance != self.instance:
            self._peers[address] = Peer(address, failure=AskFailure.IDENTITY)
            return AskFailure.IDENTITY
        self._peers[address] = Peer(address, facts, now_s, asked_s, is_self=facts.instance == self.instance)
        return None

    def note_failure(self, address: str, failure: AskFailure) -> None:
        """Note that a question brought nothing; an address that led to this process is taken to do so still."""
        peer = self._peers.get(address)
        if peer is not None:
            self._peers[address] = replace(peer, failure=failure)
            self._others = None

    def others(self) -> tuple[Peer, ...]:
        """Return the other members, one entry for each process: an address that leads to this process is none.

        A member with several addresses is listed once, with the address that was heard last.
        """
        if self._others is not None:
            return self._others
        newest: dict[str, Peer] = {}
        for peer in self._peers.values():
            if peer.is_self:
                continue
            key = peer.address if peer.facts is None else peer.facts.instance
            other = newest.get(key)
            if other is None or (other.heard_s or 0.0) < (peer.heard_s or 0.0):
                newest[key] = peer
        self._others = tuple(newest.values())
        return self._others

    def is_reachable(self, peer: Peer, *, now_s: float) -> bool:
        """Return whether a member may be waited for."""
        return is_reachable(peer, now_s=now_s, suspect_after_s=self.suspect_after_s)
