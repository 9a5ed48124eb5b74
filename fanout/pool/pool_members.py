"""Members of the pool, as one node sees them: the task that asks each of them, and looks up their addresses.

Owns the connections to the other members. Decisions about them are made in `fanout.pool.membership`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from structlog.typing import FilteringBoundLogger

from fanout.chain.cut import Cut
from fanout.config import PoolConfig
from fanout.errors import system_reason
from fanout.pool.addresses import MemberAddress, configured_addresses, host_addresses, resolve
from fanout.pool.convergence import Convergence, Verdict
from fanout.pool.member_facts import MemberAnswer, MemberFacts, encode_answer
from fanout.pool.membership import AskFailed, AskFailure, Membership, Peer
from fanout.pool.peer_listener import PeerListener
from fanout.pool.peer_tls import PeerTls
from fanout.runtime.system_clock import Clock

if TYPE_CHECKING:
    from fanout.pool.peer_client import PeerClient

__all__ = ["CommonClock", "CutsOfLinks", "OtherMember", "PoolMembers"]

_PROCESSES: Final = 4
"""Maximum number of remembered processes of a member whose copies were right."""
_OWN_INTERVAL_S: Final = 2.0
"""Pause between two questions to an address that leads to this process, before the kept connection is closed (3 s)."""


@dataclass(frozen=True, slots=True)
class OtherMember:
    """Another member, as this node sees it now."""

    peer: Peer
    """Its address, and what it said last."""
    reachable: bool
    """True if it may be waited for."""
    verdict: Verdict
    """True if it holds what this node holds."""


class CutsOfLinks(Protocol):
    """Values that the links of this node held at common cuts."""

    def own(self) -> Mapping[str, Mapping[str, Cut]]:
        """Return the newest cuts at heartbeats of this node, by link and marker."""

    def at_heartbeats_of(self, node: str) -> Mapping[str, Cut]:
        """Return the cut at the newest heartbeat of another member, by link."""


class CommonClock(Protocol):
    """A clock that the members set for each other."""

    @property
    def reading(self) -> int:
        """Its present time."""

    def hear(self, reading: int) -> None:
        """Set it to what another member's shows, unless it is ahead of that."""


class PoolMembers:
    """Asks the members of a pool all the time, and answers them."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        node: str,
        config_digest: str,
        token: str | None,
        tls: PeerTls | None,
        own_facts: Callable[[str], MemberFacts],
        cuts: CutsOfLinks,
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Prepare; nothing is asked before `run`.

        Args:
            config: The section `[pool]`.
            node: This node's `node.id`.
            config_digest: Digest of what this node replicates; members with another one are not compared.
            token: Credentials that members show each other; None for none.
            tls: TLS between members; None without it.
            own_facts: Returns what this node tells the others, given what identifies this process.
            cuts: Returns what the links of this node held at common cuts.
            clock: Gives the time.
            logger: Takes log lines.
        """
        self.config = config
        """The section `[pool]`; another object with other `peers` is taken at once."""
        self.membership = Membership(
            node=node,
            instance=secrets.token_hex(8),
            suspect_after_s=config.suspect_after_s,
            members_max=config.members_max,
        )
        """State of the members."""
        self.membership.set_addresses(address.authority for address in configured_addresses(config))
        self.convergence = Convergence(converge_after_s=config.converge_after_s)
        """Equality of the members."""
        self.listener = PeerListener(self._answer, token=token)
        """The application that answers the others."""
        self.config_digest = config_digest
        """Digest of what this node replicates."""
        self.copies_are_right_at: Callable[[str], bool] = _always
        """Returns whether no copy of this node's sessions is outdated that a member has."""
        self.epochs: CommonClock | None = None
        """Clock of epochs, which those of the other members set; None where no session moves."""
        self.asked_total = 0
        """Questions sent to members."""
        self.ask_failures_total = dict.fromkeys(map(str, AskFailure), 0)
        """Of these, the ones that brought nothing, by reason."""
        self._token = token
        self._tls = tls
        self._own_facts = own_facts
        self._cuts = cuts
        self._clock = clock
        self._monotonic = clock.monotonic
        self._logger = logger
        self._facts: MemberFacts | None = None
        """Answer of this node to the others, kept for some time (`_answer`)."""
        self._facts_s = float("-inf")
        """When that was so."""
        self._told_s: dict[str, float] = {}
        """Other member to when that was so which it was told last."""
        self._client: PeerClient | None = None
        self._begun_s: float | None = None
        self._watches: dict[MemberAddress, asyncio.Task[None]] = {}
        self._named_at: dict[tuple[str, str], str] = {}
        """Link and member that has heard a heartbeat of this process on it, to the member's process."""
        self._vouched: dict[str, float] = {}
        """Process to when it was asked last, and said then that its copies here are right; the oldest first."""
        self._told: dict[str, tuple[bool, AskFailure | None]] = {}
        self._told_of_dns = ""
        self._member_hosts: frozenset[str] = frozenset()
        """IP addresses of members."""
        self._find_hosts_at_s = float("-inf")
        self._left_out = 0
        """Addresses beyond `members_max`, as logged last."""

    def is_members_address(self, host: str) -> bool:
        """Return whether an IP address is one at which a member is asked."""
        return host in self._member_hosts

    def own_facts(self) -> MemberFacts:
        """Return what this node tells the others."""
        return self._own_facts(self.membership.instance)

    def others(self) -> tuple[OtherMember, ...]:
        """Return the other members, as this node sees them now."""
        now_s = self._monotonic()
        return tuple(
            OtherMember(
                peer,
                reachable=self.membership.is_reachable(peer, now_s=now_s),
                verdict=Verdict(None, None)
                if peer.facts is None
                else self.convergence.verdict(peer.facts.node, now_s=now_s),
            )
            for peer in self.membership.others()
        )

    def others_heard(self) -> tuple[str, ...]:
        """Return the `node.id` of every other member that has answered, in order."""
        return tuple(sorted({peer.facts.node for peer in self.membership.others() if peer.facts is not None}))

    def silent_since(self, peer: Peer) -> float:
        """Return when a member was heard last, or this node began to ask; monotonic seconds."""
        if peer.heard_s is not None:
            return peer.heard_s
        return self._monotonic() if self._begun_s is None else self._begun_s

    def vouched_s(self, instance: str) -> float:
        """Return when a process was asked last, and said that the copies of its sessions here are right.

        In monotonic seconds; long ago for never.
        """
        return self._vouched.get(instance, float("-inf"))

    def are_places_named(self, links: Collection[str]) -> bool:
        """Return whether all other members that answer have heard a heartbeat of this process on each of these links.

        A place in a stream is named by such a heartbeat. So a copy of a session that names none of this process is of
        no use to them.
        """
        peers = self.membership.others()
        if not self.are_known or any(peer.heard_s is None and peer.failure is None for peer in peers):
            return False  # the first answer is not due
        now_s = self._monotonic()
        alike = (
            peer.facts
            for peer in peers
            if peer.facts is not None
            and peer.facts.config_digest == self.config_digest
            and self.membership.is_reachable(peer, now_s=now_s)
        )
        return all(self._named_at.get((link, facts.node)) == facts.instance for facts in alike for link in links)

    def have_asked(self, *, since_s: float) -> bool:
        """Return whether every other member that answers was told facts of this node as of a time or later.

        Args:
            since_s: The time, monotonic seconds.
        """
        answer = (other.peer.name for other in self.others() if other.reachable)
        return all(self._told_s.get(name, float("-inf")) >= since_s for name in answer)

    @property
    def are_known(self) -> bool:
        """True if their addresses have been looked up, so that all are asked."""
        return self._begun_s is not None

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Send a request to a member, and return its answer.

        Args:
            name: The member's `node.id`, or its address.
            path: Path of the request.
            body: Its body.
            timeout_s: Time for the whole answer.
            answer_bytes_max: Longest answer that is read.

        Raises:
            AskFailed: It brought nothing.
        """
        client = self._client
        address = next((peer.address for peer in self.membership.others() if name in (peer.name, peer.address)), None)
        known = next((one for one in self._watches if one.authority == address), None)
        if client is None or known is None:
            raise AskFailed(AskFailure.UNREACHABLE)
        return await client.call(known, path, body, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max)

    async def run(self) -> None:
        """Ask the members until cancelled."""
        client = self._client = await asyncio.to_thread(self._make_client)
        resolve_at_s = self._monotonic()
        watched, resolved = self.config.peers, tuple[MemberAddress, ...]()
        finding: asyncio.Task[None] | None = None
        self._watch(client, configured_addresses(self.config))
        try:
            while True:
                if self.config.peers != watched:  # a reload has changed them
                    watched = self.config.peers
                    self._watch(client, (*configured_addresses(self.config), *resolved))
                if self.config.dns is not None and self._monotonic() >= resolve_at_s:
                    resolve_at_s = self._monotonic() + self.config.dns_interval_s
                    found = await self._resolve()
                    if found is not None:
                        resolved = found
                        self._watch(client, (*configured_addresses(self.config), *resolved))
                if self._monotonic() >= self._find_hosts_at_s and (finding is None or finding.done()):
                    self._find_hosts_at_s = self._monotonic() + self.config.dns_interval_s
                    finding = asyncio.create_task(self._find_hosts(), name="pool-hosts")
                if self._begun_s is None:
                    self._begun_s = self._monotonic()
                for watch in self._watches.values():
                    if watch.done():
                        watch.result()  # it ends by a bug only, which ends the node
                self.convergence.keep(self.others_heard())
                self._tell_changes()
                await asyncio.sleep(self.config.ping_interval_s)
        finally:
            watches = list(self._watches.values())
            if finding is not None:
                watches.append(finding)
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            self._client = None
            await client.close()

    def _make_client(self) -> PeerClient:
        from fanout.pool.peer_client import PeerClient  # httpx takes 0.1 s, in which the node listens already

        return PeerClient(
            node=self.membership.node,
            token=self._token,
            tls=None if self._tls is None else self._tls.asking,
            members_max=self.config.members_max,
        )

    async def _resolve(self) -> tuple[MemberAddress, ...] | None:
        """Return the addresses that the name has now; None when that is not known, and the former ones stay."""
        assert self.config.dns is not None
        try:
            found = await resolve(self.config.dns)
        except OSError as error:  # a time-out is one too
            reason = "no answer in time" if isinstance(error, TimeoutError) else system_reason(error)
            if reason != self._told_of_dns:
                self._logger.warning("pool addresses not found", name=self.config.dns.authority, reason=reason)
            self._told_of_dns = reason
            return None
        self._told_of_dns = ""
        return found

    async def _find_hosts(self) -> None:
        """Look up the IP addresses of members; a name that is not found now has none."""
        hosts = {address.authority.rpartition(":")[0].strip("[]") for address in self._watches}
        self._member_hosts = frozenset[str]().union(*await asyncio.gather(*map(host_addresses, hosts)))

    def _watch(self, client: PeerClient, addresses: tuple[MemberAddress, ...]) -> None:
        """Ask exactly the members at these addresses from now on."""
        by_authority = {address.authority: address for address in reversed(addresses)}
        left_out = self.membership.set_addresses(address.authority for address in addresses)
        if left_out > self._left_out:
            self._logger.warning("pool has more addresses than members_max", left_out=left_out)
        self._left_out = left_out
        wanted = dict.fromkeys(by_authority[authority] for authority in self.membership.addresses)
        if wanted.keys() != self._watches.keys():
            self._find_hosts_at_s = float("-inf")
        for address in [one for one in self._watches if one not in wanted]:
            self._watches.pop(address).cancel()
            self._told.pop(address.authority, None)
        for address in [one for one in wanted if one not in self._watches]:
            task = asyncio.create_task(self._ask_forever(client, address), name=f"pool-{address.authority}")
            self._watches[address] = task

    async def _ask_forever(self, client: PeerClient, address: MemberAddress) -> None:
        while True:
            asked_s = self._monotonic()
            await self._ask(client, address)
            peer = self.membership.get(address.authority)
            pause_s = _OWN_INTERVAL_S if peer is not None and peer.is_self else self.config.ping_interval_s
            await asyncio.sleep(max(0.0, asked_s + pause_s - self._monotonic()))

    async def _ask(self, client: PeerClient, address: MemberAddress) -> None:
        self.asked_total += 1
        asked_s = self._monotonic()
        failure: AskFailure | None
        try:
            answer = await client.ask(address)
        except AskFailed as error:
            failure = error.failure
            self.membership.note_failure(address.authority, failure)
        else:
            failure = self.membership.note_answer(
                address.authority, answer.facts, asked_s=asked_s, now_s=self._monotonic()
            )
            if answer.copies_are_right:
                self._note_right(answer.facts.instance, asked_s)
            if self.epochs is not None:
                self.epochs.hear(answer.epoch_counter)
            self._compare(answer)
        if failure is not None:
            self.ask_failures_total[failure] += 1

    def _note_right(self, instance: str, asked_s: float) -> None:
        self._vouched.pop(instance, None)
        self._vouched[instance] = asked_s
        if len(self._vouched) > _PROCESSES * self.config.members_max:
            del self._vouched[next(iter(self._vouched))]

    def _compare(self, answer: MemberAnswer) -> None:
        """Compare this node with a member that replicates the same, at the newest cut that it tells of each link."""
        facts = answer.facts
        if facts.node == self.membership.node or facts.config_digest != self.config_digest:
            return
        for link, own in self._cuts.own().items():
            theirs = answer.cuts.get(link)
            ours = None if theirs is None else own.get(theirs.marker)
            if ours is not None and theirs is not None:
                self._named_at[link, facts.node] = facts.instance
                self.convergence.compare(
                    link,
                    facts.node,
                    ours=ours,
                    theirs=theirs,
                    now_s=self._monotonic(),
                    now_ns=self._clock.now_ns(),
                )

    def _answer(self, asker: str) -> bytes:
        """Return the document for another member; its facts are gathered at most twice in a ping interval."""
        now_s = self._monotonic()
        if self._facts is None or now_s >= self._facts_s + self.config.ping_interval_s / 2:
            self._facts, self._facts_s = self.own_facts(), now_s
        if asker in self.others_heard():
            self._told_s[asker] = self._facts_s
        cuts, are_right = self._cuts.at_heartbeats_of(asker), self.copies_are_right_at(asker)
        counter = 0 if self.epochs is None else self.epochs.reading
        return encode_answer(MemberAnswer(self._facts, cuts, copies_are_right=are_right, epoch_counter=counter))

    def _tell_changes(self) -> None:
        """Log members that have become reachable or suspect since the last look."""
        now_s = self._monotonic()
        for peer in self.membership.others():
            reachable = self.membership.is_reachable(peer, now_s=now_s)
            if not reachable and peer.heard_s is None and peer.failure is None:
                continue  # its first answer is not due
            state = (reachable, None if reachable else peer.failure)
            if self._told.get(peer.address) == state:
                continue
            self._told[peer.address] = state
            name = None if peer.facts is None else peer.facts.node
            if reachable:
                self._logger.info("pool member reachable", member=name, address=peer.address)
            else:
                reason = str(peer.failure or "silent")
                self._logger.warning("pool member suspect", member=name, address=peer.address, reason=reason)


def _always(member: str) -> bool:
    return True
