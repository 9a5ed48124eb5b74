"""Links and members of this node, as the sessions of the pool need them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from fanout.durable.ownership.ports import OtherMemberState
from fanout.link.link import Link
from fanout.pool.failure_detection import FailureDetector, LifeSigns
from fanout.pool.member_facts import MemberFacts
from fanout.pool.pool_members import PoolMembers
from fanout.runtime.system_clock import Clock

__all__ = ["LinkMarkers", "PlaceNames", "PoolWitness", "link_of"]

_NEVER: Final = float("-inf")


def link_of(links: Sequence[Link]) -> Callable[[bytes], str]:
    """Return a function from a local topic to the name of its link, or to an empty text without one."""
    if len(links) == 1:
        name = links[0].config.name
        return lambda topic: name

    def find(topic: bytes) -> str:
        of_topic = (one for one in links if any(each.covers_local(topic) for each in one.config.selectors))
        return next((one.config.name for one in of_topic), "")

    return find


class LinkMarkers:
    """Markers of all links of a node, as `fanout.durable.ownership.ports.Markers`."""

    def __init__(self, links: Iterable[Link]) -> None:
        """Prepare.

        Args:
            links: Every link.
        """
        self._links = tuple(links)

    @property
    def come_back(self) -> bool:
        """True if markers of all links come back, though none may be sent at the moment."""
        return all(link.control.is_open for link in self._links)

    def send(self) -> Mapping[str, str]:
        """Publish one on each link, and return them by link; empty when one of the links cannot now."""
        if not all(link.may_send_marker for link in self._links):
            return {}
        return {link.config.name: link.send_marker() for link in self._links}


class PlaceNames:
    """Wait of a new member until the others know the names of places in its streams.

    Until then its copies are of no use to them: sessions that began here would be lost with this member.
    """

    def __init__(self, members: PoolMembers, *, links: Iterable[Link], clock: Clock) -> None:
        """Prepare.

        Args:
            members: The members.
            links: Every link.
            clock: Gives the time.
        """
        self._members = members
        self._links = tuple(links)
        self._clock = clock
        self._until_s: float | None = None
        self._is_over = False

    def is_over(self) -> bool:
        """Return whether this member may be ready; to be called once its links are.

        It is over for good when all members that answer have heard this one on each link. It lasts at most
        `dead_after_s` from the first call, because a member without its link hears nobody.
        """
        if not self._is_over:
            now_s = self._clock.monotonic()
            if self._until_s is None:
                self._until_s = now_s + self._members.config.dead_after_s
            links = [link.config.name for link in self._links if link.control.may_be_open]
            self._is_over = now_s >= self._until_s or self._members.are_places_named(links)
        return self._is_over


class PoolWitness:
    """The other members, as `fanout.durable.ownership.ports.Others`: who lives, by their answers and heartbeats."""

    def __init__(self, members: PoolMembers, *, links: Iterable[Link], clock: Clock) -> None:
        """Prepare.

        Args:
            members: The members.
            links: Every link.
            clock: Gives the time.
        """
        self._members = members
        self._links = tuple(links)
        self._clock = clock
        self._detector = FailureDetector(dead_after_s=members.config.dead_after_s)

    @property
    def instance(self) -> str:
        """The process of this node, as the others hear it."""
        return self._members.membership.instance

    @property
    def are_known(self) -> bool:
        """True if all members are asked, however they are; False while the node starts."""
        return self._members.are_known

    def states(self) -> Sequence[OtherMemberState]:
        """Return every other member as it is now."""
        dead, membership, now_s = self._look().dead, self._members.membership, self._clock.monotonic()
        states = []
        for peer in membership.others():
            facts, reachable = peer.facts, membership.is_reachable(peer, now_s=now_s)
            said = "" if facts is None else facts.state
            states.append(
                OtherMemberState(
                    peer.name,
                    is_silent=not reachable,
                    is_dead=not reachable and peer.name in dead,
                    is_ready=reachable and said == "ready",
                    is_empty=facts is not None and said == "stopping" and not facts.sessions,
                    client_address=None if facts is None else facts.client_address,
                    instance="" if facts is None else facts.instance,
                    keeps_copies=reachable and facts is not None and self._keeps_copies(facts),
                    interruptions=0 if facts is None else facts.interruptions,
                )
            )
        return states

    def _keeps_copies(self, facts: MemberFacts) -> bool:
        is_alike = facts.config_digest == self._members.config_digest
        return facts.keeps_copies and is_alike and facts.state in ("ready", "not_ready")

    def have_asked(self, *, since_s: float) -> bool:
        """Return whether every other member that answers was told how this one is, as of a time or later."""
        return self._members.have_asked(since_s=since_s)

    @property
    def is_isolated(self) -> bool:
        """True while this node hears neither another member nor itself at a primary."""
        return self._look().is_isolated

    @property
    def isolated_after_s(self) -> float:
        """Time after which this node is isolated when it hears nobody."""
        return self._detector.isolated_after_s

    def is_current(self, since_s: float) -> bool:
        """Return True if all messages that the primaries had at a time have come: later heartbeats came back."""
        return all(sent_s is not None and sent_s >= since_s for sent_s in self._own_sent_s())

    @property
    def has_witness(self) -> bool:
        """True if what this node publishes for the others may come back from a primary."""
        return any(link.control.may_be_open for link in self._links)

    def tell_alone(self) -> bool:
        """Tell the others, at the primaries, that sessions go on without copies here; return whether one takes it."""
        told = [link.tell_alone(self.instance) for link in self._links]
        return any(told)

    def said_alone_s(self, instance: str) -> float:
        """Return when a process, this one too, was heard last to say so, monotonic seconds; long ago for never."""
        return max((link.cuts.said_alone_s(instance) or _NEVER for link in self._links), default=_NEVER)

    def went_alone(self, instance: str) -> bool:
        """Return whether a process has said so, and not since that all its copies here are right."""
        return self.said_alone_s(instance) > self._members.vouched_s(instance)

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Send a request to a member.

        Raises:
            AskFailed: It brought nothing.
        """
        return await self._members.call(name, path, body, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max)

    def _look(self) -> FailureDetector:
        """Judge who is dead now, and whether this node is isolated."""
        self._detector.look(
            [
                LifeSigns(peer.name, max(self._members.silent_since(peer), self._heard_s(peer.name)), peer.asked_s)
                for peer in self._members.membership.others()
            ],
            own_sent_s=self._own_sent_s(),
            now_s=self._clock.monotonic(),
        )
        return self._detector

    def _own_sent_s(self) -> list[float | None]:
        """Return, for each link that may publish heartbeats, when the newest one that came back was sent."""
        return [link.control.returned_sent_s for link in self._links if link.control.may_be_open]

    def _heard_s(self, node: str) -> float:
        """Return when the newest heartbeat of a member came through a primary; long ago for never."""
        return max((link.cuts.heard_s(node) or _NEVER for link in self._links), default=_NEVER)
