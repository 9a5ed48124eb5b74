"""Copies between members without sockets: who keeps them, what becomes of silence, and who goes on with a session."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

import pytest
import structlog

from fanout.durable.copying.copy_keepers import ALONE_S
from fanout.durable.copying.pool_copies import PoolCopies
from fanout.durable.ownership.copy_messages import (
    COPY_PATH,
    INHERIT_PATH,
    CopyRequest,
    CopyRow,
    InheritRequest,
    decode_copy_answer,
    decode_inherit_answer,
    encode_copy_request,
    encode_inherit_request,
)
from fanout.durable.ownership.copy_rules import CopyVersion, Right
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.held_copies import HeldCopy
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.move_messages import ClaimQuestion, SessionQuestion
from fanout.durable.ownership.ownership import Owner
from fanout.durable.ownership.ports import HERE, OtherMemberState
from fanout.pool.membership import AskFailed, AskFailure
from tests.durable.alone import Notices
from tests.server.node_in_memory import ManualClock
from tests.support.waiting import wait_until

NOBODY = Owner("", superuser=False, anyone=True, since=0)
DEAD_AFTER_S = 3.0
_LOOKS = 50


class Network:
    """Carries calls between members."""

    def __init__(self) -> None:
        """Begin without members."""
        self.members: dict[str, Member] = {}
        self.states: dict[str, OtherMemberState] = {}
        """What every member sees of a member."""
        self.clock = ManualClock()
        self.notices = Notices(self.clock.monotonic)
        self.current_s = math.inf
        """Time up to which all has come from the primary."""
        self.calls: list[tuple[str, str]] = []
        """Member and path of every call."""


class Others:
    """The other members, as one of them sees them."""

    are_known = True
    has_witness = True
    is_isolated = False
    isolated_after_s = 2.0

    def __init__(self, network: Network, node: str) -> None:
        """See them from a member."""
        self._network = network
        self._node = node

    @property
    def instance(self) -> str:
        """Process of the member itself."""
        return self._network.states[self._node].instance

    def states(self) -> Sequence[OtherMemberState]:
        """Return every other member as it is now."""
        return [state for name, state in self._network.states.items() if name != self._node]

    def have_asked(self, *, since_s: float) -> bool:
        """Return that all have."""
        return True

    def is_current(self, since_s: float) -> bool:
        """Return whether all has come that the primary had at a time."""
        return self._network.current_s >= since_s

    def tell_alone(self) -> bool:
        """Say so at the primary."""
        return self._network.notices.tell(self.instance)

    def said_alone_s(self, instance: str) -> float:
        """Return when a process said so last."""
        return self._network.notices.said_s(instance)

    def went_alone(self, instance: str) -> bool:
        """Return whether a process has said so and not vouched since."""
        return self._network.notices.went_alone(instance)

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Send a request to a member that lives."""
        self._network.calls.append((name, path))
        await asyncio.sleep(0)
        if self._network.states[name].is_silent:
            raise AskFailed(AskFailure.TIMEOUT)
        copies = self._network.members[name].copies
        try:
            return await (copies.answer_copy if path == COPY_PATH else copies.answer_inherit)(self._node, body)
        except ValueError as error:
            raise AskFailed(AskFailure.ANSWER) from error


class Member:
    """A member whose sessions are names."""

    def __init__(self, network: Network, node: str, *, bytes_max: int = 1 << 20) -> None:
        """Make it, without sessions."""
        self.network, self.node = network, node
        self.sessions: set[str] = set()
        self.owners: dict[str, Owner] = {}
        """Of the sessions whose owner matters."""
        self.inherited: list[str] = []
        self.refuses: dict[str, str] = {}
        """Client Identifier to why its session does not go on."""
        self.lacks_history = False
        self.claims: list[tuple[str, Epoch]] = []
        self.is_stale: list[bool] = []
        self.takes_s = 0.0
        """Seconds that a session takes to go on."""
        self.turns: list[int] = []
        """Number of sessions that have gone on together, each time."""
        others = Others(network, node)
        self.ledger = SessionLedger(
            node=node,
            host=self,  # type: ignore[arg-type]  # what is used
            others=others,
            clock=network.clock,
        )
        self.copies = PoolCopies(
            self.ledger,
            node=node,
            heirs=self,
            others=others,
            claim=self._claim,
            claim_at=self._claim_at,
            bytes_max=bytes_max,
            dead_after_s=DEAD_AFTER_S,
            clock=network.clock,
            logger=structlog.get_logger(),
        )
        self.copies.sent.copy_again = self._copy_again
        network.members[node] = self
        network.states[node] = OtherMemberState(
            node, is_silent=False, is_dead=False, instance=f"{node}-1", keeps_copies=True
        )
        self.task = asyncio.create_task(self.copies.run())

    # As the ledger and the copies need a host.

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self.sessions)

    def has(self, client_id: str) -> bool:
        """Return whether a client has a session here."""
        return client_id in self.sessions

    def owner_of(self, client_id: str) -> Owner | None:
        """Return the owner of a session here, nobody for most."""
        return self.owners.get(client_id, NOBODY) if client_id in self.sessions else None

    def may_end(self, client: Owner, owner: Owner) -> bool:
        """Let a user end its own sessions, and those of nobody."""
        return owner.user in ("", client.user)

    def end(self, client_id: str) -> None:
        """End a session."""
        self.sessions.discard(client_id)

    def owner_of_copy(self, value: bytes) -> Owner | None:
        """Return the owner that a value names; nobody for most."""
        user = value.decode().partition("@")[2]
        return Owner(user, superuser=False, anyone=False, since=1 + (user != "victim")) if user else NOBODY

    def could_inherit(self, client_id: str, value: bytes) -> bool:
        """Return whether it holds what a copy needs."""
        return not self.lacks_history

    def inherit(self, copies: Sequence[HeldCopy], *, away_s: float, is_stale: bool) -> Sequence[str]:
        """Go on with sessions, each of which takes some time."""
        self.network.clock.advance(self.takes_s * len(copies))
        self.turns.append(len(copies))
        self.is_stale.append(is_stale)
        self.inherited += [copy.client_id for copy in copies if copy.client_id not in self.refuses]
        self.sessions |= {*self.inherited}
        return [self.refuses.get(copy.client_id, HERE) for copy in copies]

    # What tests do.

    def begin(self, *client_ids: str) -> None:
        """Begin sessions, and copy them."""
        for client_id in client_ids:
            self.sessions.add(client_id)
            self.ledger.begin(client_id, self.ledger.next_epoch())
        self.put(client_ids)

    def put(self, client_ids: Iterable[str], value: bytes = b"value") -> asyncio.Event:
        """Copy sessions; the event is set when they are kept."""
        done = asyncio.Event()
        self.copies.sent.put(dict.fromkeys(client_ids, value), done=done.set)
        return done

    def _copy_again(self, client_ids: Iterable[str]) -> None:
        if names := [one for one in client_ids if one in self.sessions]:
            self.put(names)

    def _claim(self, epochs: Mapping[str, Epoch]) -> None:
        for client_id, epoch in epochs.items():
            self.claims.append((client_id, epoch))
            for member in self.network.members.values():
                if member is not self and not self.network.states[member.node].is_silent:
                    member.ledger.forget_older(client_id, epoch)
                    member.ledger.yield_to(SessionQuestion(client_id, epoch))

    def _claim_at(self, name: str, epochs: Mapping[str, Epoch]) -> None:
        for client_id, epoch in epochs.items():
            self.network.members[name].ledger.forget_older(client_id, epoch)
            self.network.members[name].ledger.yield_to(SessionQuestion(client_id, epoch))

    @property
    def held(self) -> int:
        """Number of copies that it keeps."""
        return self.copies.figures().copies_held


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    """Give a network; its members end with it."""
    network = Network()
    yield network
    for member in network.members.values():
        member.task.cancel()
    await asyncio.gather(*(member.task for member in network.members.values()), return_exceptions=True)


def change(network: Network, node: str, **changes: object) -> None:
    """Let a member be seen in another way."""
    network.states[node] = network.states[node]._replace(**changes)  # type: ignore[arg-type]  # tests know the fields


async def looks() -> None:
    """Let every member look some times, and do what follows from that at once."""
    for _ in range(_LOOKS):
        await asyncio.sleep(0)


async def pass_time(network: Network, seconds: float) -> None:
    """Let time pass in which every member runs."""
    for _ in range(math.ceil(seconds / 0.2)):
        network.clock.advance(0.2)
        await looks()


async def settled(*members: Member) -> None:
    """Wait until every session of these members has a copy."""

    def is_settled() -> bool:
        return all(one.copies.figures().sessions_copied == len(one.sessions) for one in members) and not any(
            one.copies.figures().copies_oldest_unconfirmed_seconds for one in members
        )

    await wait_until(is_settled, what="a copy of each session")


async def test_each_session_has_one_keeper(network: Network) -> None:
    """About half of them at each of the other two members; what waits for a copy goes on when it is kept."""
    a, b, c = (Member(network, name) for name in "abc")
    a.begin(*(f"c-{number}" for number in range(100)))
    await settled(a)
    assert b.held + c.held == 100
    assert 30 < b.held < 70
    assert (a.held, a.copies.figures().copies_alone_total) == (0, 0)
    async with asyncio.timeout(10):
        await a.put(["c-0"]).wait()


async def test_a_silent_keeper_is_replaced_and_gets_its_copies_back(network: Network) -> None:
    """While it is silent the other one keeps all; then each session has the keeper that it had, and one copy."""
    a, b, c = (Member(network, name) for name in "abc")
    a.begin(*(f"c-{number}" for number in range(40)))
    await settled(a)
    before = (b.held, c.held)
    change(network, "b", is_silent=True, keeps_copies=False)
    await looks()
    network.clock.advance(1.1)
    await wait_until(lambda: c.held == 40)
    change(network, "b", is_silent=False, keeps_copies=True)
    await looks()
    network.clock.advance(2.1)
    await wait_until(lambda: (b.held, c.held) == before, what="the former keepers")


async def test_a_session_goes_on_alone_after_a_while(network: Network) -> None:
    """Without another member what waits for a copy is let go, counted; when one comes it is copied."""
    a, b = Member(network, "a"), Member(network, "b")
    change(network, "b", is_silent=True, keeps_copies=False)
    a.sessions.add("c")
    a.ledger.begin("c", a.ledger.next_epoch())
    done = a.put(["c"])
    await looks()
    assert not done.is_set()
    await pass_time(network, ALONE_S)
    async with asyncio.timeout(10):
        await done.wait()
    assert a.copies.figures().copies_alone_total == 1
    async with asyncio.timeout(10):
        await a.put(["c"]).wait()  # not once more for each change
    assert a.copies.figures().copies_alone_total == 2
    change(network, "b", is_silent=False, keeps_copies=True)
    await wait_until(lambda: b.held == 1)


async def test_a_keeper_must_hold_what_a_copy_needs(network: Network) -> None:
    """Else the next one is asked; where nobody does the session goes on without, and is copied once somebody can."""
    a, b, c = (Member(network, name) for name in "abc")
    b.lacks_history = True
    a.begin(*(f"c-{number}" for number in range(20)))
    await settled(a)
    assert (b.held, c.held) == (0, 20)
    c.lacks_history = True
    async with asyncio.timeout(10):
        await a.put(["c-0"]).wait()
    assert a.copies.figures().copies_refused_total == 1
    b.lacks_history = c.lacks_history = False
    network.clock.advance(2.0)
    await settled(a)


async def test_a_full_keeper_refuses(network: Network) -> None:
    """What it keeps is bounded by bytes, and the session goes on without a copy."""
    a, b = Member(network, "a"), Member(network, "b", bytes_max=2_000)
    a.begin(*(f"c-{number}" for number in range(10)))
    await wait_until(lambda: a.copies.figures().copies_refused_total >= 6)
    assert 0 < b.held <= 4
    assert b.copies.figures().copies_held_bytes <= 2_000


async def test_sessions_of_a_dead_member_go_on_at_their_keepers(network: Network) -> None:
    """Each at one of them, with an epoch above the holder's; when that comes back it ends its own."""
    a, b, c = (Member(network, name) for name in "abc")
    names = {f"c-{number}" for number in range(40)}
    a.begin(*names)
    await settled(a)
    epochs = {name: a.ledger.epoch_of(name) for name in names}
    change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
    await wait_until(lambda: len(b.inherited) + len(c.inherited) == 40, what="all sessions")
    assert b.sessions | c.sessions == names
    assert not b.sessions & c.sessions
    for name in names:
        heir = b if name in b.sessions else c
        assert epochs[name] < heir.ledger.epoch_of(name) < Epoch(epochs[name].counter + 1, "a")
    assert a.sessions == names
    change(network, "a", is_silent=False, is_dead=False)
    await wait_until(lambda: not a.sessions, what="the holder ends its sessions")


@pytest.mark.parametrize(("takes_s", "turns"), [(0.0, [25, 50, 100, 200, 25]), (0.005, [25] + [10] * 37 + [5])])
async def test_as_many_sessions_go_on_in_a_turn_as_it_has_time_for(
    network: Network, takes_s: float, turns: list[int]
) -> None:
    """A member that is busy for long would be taken for silent: a turn of the event loop has 50 ms for them."""
    a, b = Member(network, "a"), Member(network, "b", bytes_max=1 << 20)
    a.begin(*(f"c-{number}" for number in range(400)))
    await settled(a)
    b.takes_s = takes_s
    change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
    await wait_until(lambda: len(b.inherited) == 400, what="all sessions")
    assert b.turns == turns


async def test_nobody_goes_on_while_another_member_hears_the_holder(network: Network) -> None:
    """The verdict of one member alone is not enough, and one that is silent may hear it."""
    a, b, c = (Member(network, name) for name in "abc")
    a.begin("c-1", "c-2", "c-3")
    await settled(a)
    for member in (b, c):
        member.copies.inheritance.holder_lives = lambda holder, instance: True  # type: ignore[method-assign]
    change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
    await wait_until(lambda: sum(path == INHERIT_PATH for _, path in network.calls) > 3)
    assert b.inherited == c.inherited == []
    del b.copies.inheritance.holder_lives
    del c.copies.inheritance.holder_lives
    await wait_until(lambda: len(b.inherited) + len(c.inherited) == 3)


async def test_a_new_process_of_a_member_is_the_end_of_the_former_one(network: Network) -> None:
    """Its sessions go on at once, but for those that the new one has from its disk: their copies are of no use."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c-1", "c-2", "c-3")
    await settled(a)
    a.sessions.discard("c-2")
    network.members["b"].lacks_history = True
    a.put(["c-3"])
    change(network, "a", instance="a-2")
    await wait_until(lambda: b.inherited == ["c-2"], what="the session that the new process has not")
    await wait_until(lambda: b.held == 0)
    assert b.inherited == ["c-2"]


@pytest.mark.parametrize("holder", ["ghost", "a"])
async def test_a_made_up_holder_takes_no_copy(network: Network, holder: str) -> None:
    """Who asks to go on with a session of nobody, or of a wrong process, costs no copy of a member that is heard."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c")
    await settled(a)
    version = CopyVersion(b.ledger.next_epoch(), 9)
    request = encode_inherit_request(InheritRequest(holder, "made up", (("c", version),)))
    assert decode_inherit_answer(await b.copies.answer_inherit("liar", request)) != [Right.YES]
    assert b.held == 1
    change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
    await wait_until(lambda: b.inherited == ["c"], what="the session of the member that has died")


async def test_an_heir_waits_for_what_the_primary_has_sent_already(network: Network) -> None:
    """A new process is heard in a moment, in which updates that the former one had may be on their way here still."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c")
    await settled(a)
    a.sessions.clear()
    network.current_s = network.clock.monotonic() - 1.0
    change(network, "a", instance="a-2")
    await looks()
    assert b.inherited == []
    network.current_s = math.inf
    await wait_until(lambda: b.inherited == ["c"])


async def test_a_session_that_cannot_go_on_is_told(network: Network) -> None:
    """Until its client has another one; the others are told of it, too, when they ask."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c")
    await settled(a)
    b.refuses["c"] = "its messages are not held"
    change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
    await wait_until(lambda: b.copies.figures().sessions_not_inherited_total == 1)
    assert b.ledger.was_lost("c")
    b.ledger.forget_older("c", b.ledger.next_epoch())
    assert not b.ledger.was_lost("c")


async def test_a_holder_that_went_on_alone_leaves_outdated_copies(network: Network) -> None:
    """It has said so at the primary before anybody was told what the keeper does not know."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c")
    await settled(a)
    change(network, "b", is_silent=True, keeps_copies=False)  # as A sees it
    await looks()
    network.notices.is_slow = True
    await pass_time(network, ALONE_S)
    done = a.put(["c"])
    await wait_until(lambda: network.notices.told == ["a-1"])
    await looks()
    assert not done.is_set()
    network.notices.give_back()
    async with asyncio.timeout(10):
        await done.wait()
    assert not a.copies.sent.are_right_at("b")
    change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
    await wait_until(lambda: b.is_stale == [True])


async def test_a_member_that_stood_still_is_not_alone(network: Network) -> None:
    """It could hear nobody; the copies that waited meanwhile go to the others when it runs again."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c")
    await settled(a)
    change(network, "b", is_silent=True, keeps_copies=False)
    await looks()
    done = a.put(["c"])
    network.clock.advance(10.0)
    await looks()
    assert not done.is_set()
    change(network, "b", is_silent=False, keeps_copies=True)
    async with asyncio.timeout(10):
        await done.wait()
    assert (b.held, network.notices.told) == (1, [])


async def test_a_session_that_nobody_had_goes_on_alone_without_a_notice(network: Network) -> None:
    """There is no copy that could be outdated."""
    a, _ = Member(network, "a"), Member(network, "b")
    change(network, "b", is_silent=True, keeps_copies=False)
    await looks()
    await pass_time(network, ALONE_S)
    async with asyncio.timeout(10):
        await a.put(["c"]).wait()
    assert network.notices.told == []


async def test_the_last_member_goes_on_without_a_primary(network: Network) -> None:
    """The others are dead: who serves goes on, and tells them when the primary is back."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c")
    await settled(a)
    b.task.cancel()
    change(network, "b", is_silent=True, keeps_copies=False)
    network.notices.is_there = False
    await looks()
    await pass_time(network, ALONE_S)
    done = a.put(["c"])
    await looks()
    assert not done.is_set()
    change(network, "b", is_dead=True)
    async with asyncio.timeout(10):
        await done.wait()
    assert network.notices.told == []
    network.notices.is_there = True
    await wait_until(lambda: network.notices.told == ["a-1"])


async def test_a_holder_that_is_back_vouches_for_its_copies(network: Network) -> None:
    """Once a member has the copies anew, or none any more, those of other sessions are as right as before."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c", "d")
    await settled(a)
    assert a.copies.sent.are_right_at("b")
    change(network, "b", is_silent=True, keeps_copies=False)
    await looks()
    await pass_time(network, ALONE_S)
    async with asyncio.timeout(10):
        await a.put(["c"]).wait()
    assert network.notices.told == ["a-1"]
    assert not a.copies.sent.are_right_at("b")
    change(network, "b", is_silent=False, keeps_copies=True)
    await wait_until(lambda: a.copies.sent.are_right_at("b"))
    assert b.held == 2
    network.notices.vouch("a-1")
    network.clock.advance(0.1)
    change(network, "b", is_silent=True, keeps_copies=False)
    await looks()
    await pass_time(network, ALONE_S)
    async with asyncio.timeout(10):
        await a.put(["d"]).wait()
    assert network.notices.told == ["a-1", "a-1"]


@pytest.mark.parametrize("reason", ["history", "room"])
async def test_a_member_that_cannot_keep_a_copy_has_the_older_one(network: Network, reason: str) -> None:
    """Until the session goes on without, of which all are told before: nobody has been told of anything newer."""
    a, b = Member(network, "a"), Member(network, "b", bytes_max=1_000)
    a.begin("c")
    await settled(a)
    b.lacks_history = reason == "history"
    network.notices.is_slow = True
    done = a.put(["c"], bytes(600))
    await wait_until(lambda: network.notices.told == ["a-1"])
    await looks()
    assert (b.held, done.is_set()) == (1, False)
    network.notices.give_back()
    async with asyncio.timeout(10):
        await done.wait()
    await wait_until(lambda: b.held == 0)
    await wait_until(lambda: a.copies.sent.are_right_at("b"))


async def test_the_copy_of_a_session_that_ended_goes(network: Network) -> None:
    """At once, or when the keeper is back."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c", "d")
    await settled(a)
    ended = asyncio.Event()
    a.sessions.discard("c")
    a.copies.sent.put({"c": None}, done=ended.set)
    async with asyncio.timeout(10):
        await ended.wait()
    assert b.held == 1
    change(network, "b", is_silent=True, keeps_copies=False)
    await looks()
    a.sessions.discard("d")
    gone = asyncio.Event()
    a.copies.sent.put({"d": None}, done=gone.set)
    async with asyncio.timeout(10):
        await gone.wait()
    change(network, "b", is_silent=False, keeps_copies=True)
    await wait_until(lambda: b.held == 0)


async def test_places_go_with_the_next_copy_where_one_is_on_its_way(network: Network) -> None:
    """A copy that is not kept yet could not be moved on; nothing of it is lost."""
    a, b = Member(network, "a"), Member(network, "b")
    again: list[str] = []
    a.begin("c")
    a.copies.sent.copy_again = again.extend
    a.copies.sent.put_places(b"places", ["c", "unknown"])
    await wait_until(lambda: again == ["c"])
    await settled(a)
    a.copies.sent.put_places(b"places", ["c"])

    def places() -> bytes | None:
        copy = b.ledger.held.get("c")
        return None if copy is None else copy.places

    await wait_until(lambda: places() == b"places")


async def test_a_holder_that_was_taken_over_ends_its_session(network: Network) -> None:
    """The answer to its next copy says whose the session is: what waits for that copy is never said."""
    a, b = Member(network, "a"), Member(network, "b")
    a.begin("c")
    await settled(a)
    newest = b.ledger.next_epoch()
    b.ledger.yield_to(SessionQuestion("c", newest))
    a.put(["c"])
    await wait_until(lambda: not a.sessions)


async def test_a_copy_ends_no_strangers_session() -> None:
    """Neither a session nor a copy of one: the member that has it copied is told, and ends its own."""
    network = Network()
    a, b, c = (Member(network, name) for name in "abc")
    try:
        a.sessions.add("x")
        a.owners["x"] = Owner("victim", superuser=False, anyone=False, since=1)
        a.ledger.go_on = lambda _: a.ledger.next_epoch()
        a.ledger.begin("x", a.ledger.next_epoch())
        a.put(["x"], b"value@victim")
        await wait_until(lambda: b.held + c.held == 1)
        keeper = b if b.held else c
        epoch = a.ledger.next_epoch()
        row = CopyRow("x", CopyVersion(epoch, 1), b"value@stranger")
        for member in (a, keeper):
            other = c if member is b else b
            data = await member.copies.answer_copy(
                other.node, encode_copy_request(CopyRequest(f"{other.node}-1", [row]))
            )
            assert decode_copy_answer(data).newer["x"] > epoch
        claim = ClaimQuestion("x", epoch, Owner("stranger", superuser=False, anyone=False, since=2))
        refused = keeper.ledger.refuse_claim(claim)
        assert refused is not None
        assert refused.prevails
        assert keeper.ledger.refuse_claim(claim._replace(owner=a.owners["x"])) is None
        assert (a.sessions, keeper.held) == ({"x"}, 1)
    finally:
        for member in network.members.values():
            member.task.cancel()
        await asyncio.gather(*(one.task for one in network.members.values()), return_exceptions=True)
