"""Exhaustive search of the rules by which a session moves between three members.

The model has one Client Identifier with a session at member A, a client that connects a few more times at any member,
and calls between members that are delivered at any time, in any order, twice, or whose answer is lost. A member may
crash, with its session on disk or not, and a holder may take back what it has promised at any time. The rules are those
of the product (`fanout.durable.ownership.ownership`); the model only carries their messages. Its values are tuples,
which are copied, hashed and compared faster than dataclasses.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import pytest

from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, RecordedEpochs
from fanout.durable.ownership.ownership import (
    Answer,
    Choice,
    IllegalTransitionError,
    Ownership,
    Stage,
    abandon,
    answer_giver,
    arrive,
    ask,
    become,
    begin,
    choose,
    claim,
    commit,
    fetch,
    finish,
    give_up,
    keep_given,
    take,
    take_back,
)

MEMBERS: Final = ("a", "b", "c")
HELD: Final = (Stage.OWNED, Stage.PROMISED, Stage.FROZEN)
"""Stages of a session that is at a member, whatever it was promised."""
WAITING: Final = (Stage.ASKING, Stage.ARRIVING)
"""Stages of a session that is to come to a member."""
OTHERS: Final = {name: tuple(other for other in MEMBERS if other != name) for name in MEMBERS}


class Broken(AssertionError):
    """An invariant does not hold."""


class Copy(NamedTuple):
    """A session, as one member has it."""

    lineage: int
    """Which session it is: a new one for every Session Present 0."""
    version: int
    """How often it was used."""


class Member(NamedTuple):
    """One member."""

    own: Ownership | None = None
    copy: Copy | None = None
    """The session itself, or the value that is frozen or has arrived."""
    answers: tuple[tuple[str, Answer | None], ...] = ()
    """Answers to its TAKE."""
    holder: str = ""
    """Whom it fetches from."""
    since: Epoch = NO_EPOCH
    """Epoch of what it fetches."""
    waits: int = 0
    """Number of the CONNECT that waits here; 0 for none."""
    unsettled: frozenset[str] = frozenset()
    """After a restart with its session: the members that have not said yet whether they have a newer one."""


class Call(NamedTuple):
    """A request, or its answer, on the way."""

    kind: str
    source: str
    target: str
    epoch: Epoch
    number: int = 0
    """Number of the CONNECT for which it was sent."""
    answer: object = None
    """None for a request."""
    copy: Copy | None = None
    """Value in the answer to FETCH."""


class Given(NamedTuple):
    """Record on the disk of a member of a session that it gave away."""

    name: str
    copy: Copy
    epochs: RecordedEpochs


class World(NamedTuple):
    """A state of everything."""

    members: tuple[Member, Member, Member]
    calls: frozenset[Call]
    truth: Copy
    """The session as its client knows it."""
    connects: int
    """CONNECTs that came so far; the client is at the newest one only."""
    connects_left: int
    losses_left: int
    crashes_left: int
    crashed: bool
    """Whether anything may have been lost by a crash."""
    on_disk: bool = False
    """Whether members have their sessions on disk."""
    served: int = 0
    """Newest CONNECT that was answered with success."""
    given: frozenset[Given] = frozenset()
    """What is on disk beside the sessions that are at their members."""

    def at(self, name: str) -> Member:
        return self.members[MEMBERS.index(name)]

    def with_member(self, name: str, member: Member) -> World:
        members = list(self.members)
        members[MEMBERS.index(name)] = member
        first, second, third = members
        world = self._replace(members=(first, second, third))
        is_here = member.own is not None and member.own.stage in HELD
        return world.without_given(name) if is_here and world.given else world

    def without_given(self, name: str) -> World:
        return self._replace(given=frozenset(one for one in self.given if one.name != name))


def epoch_of(number: int, name: str) -> Epoch:
    """Return the epoch of a CONNECT."""
    return Epoch(number, name)


def accept(world: World, name: str, *, present: bool, number: int) -> World:
    """Answer a CONNECT; the client uses its session if it is still there."""
    member = world.at(name)
    if number != world.connects:  # the client has gone: nobody reads the answer
        return world.with_member(name, member._replace(waits=0))
    if present:
        copy = member.copy
        on_the_way = any(
            call.kind in ("claim", "settle") and call.source != name and call.epoch.counter >= world.served
            for call in world.calls
        )
        if copy != world.truth and not on_the_way and not world.crashed:
            raise Broken(f"Session Present 1 with {copy}, and the client knows {world.truth}")
        assert copy is not None
        used = Copy(copy.lineage, copy.version + 1)
    else:
        used = Copy(number, 1)
    world = world.with_member(name, member._replace(copy=used, waits=0))
    return world._replace(truth=used, served=number)


def connect(world: World, name: str, *, clean: bool) -> World:
    """The client connects to a member, as a new one for all the others."""
    number = world.connects + 1
    world = world._replace(connects=number, connects_left=world.connects_left - 1)
    member = world.at(name)
    epoch = epoch_of(number, name)
    if clean:
        return began(world, name, epoch, number)
    if member.unsettled:  # the client is refused, and comes again
        return world
    if member.own is not None and member.own.stage in (Stage.OWNED, Stage.PROMISED, Stage.FROZEN):
        world = accept(world.with_member(name, member._replace(own=begin(epoch))), name, present=True, number=number)
        return claimed(world, name, epoch)
    asking = ask(member.own, epoch)
    if asking is None:  # it has all but arrived: the client is refused, and comes again
        return world
    world = world.with_member(name, Member(asking, waits=number))
    calls = {Call("take", name, other, epoch, number) for other in OTHERS[name]}
    return world._replace(calls=world.calls | calls)


def began(world: World, name: str, epoch: Epoch, number: int) -> World:
    """A session begins at a member, and its client is told so."""
    world = world.with_member(name, Member(begin(epoch)))
    return accept(claimed(world, name, epoch), name, present=False, number=number)


def claimed(world: World, name: str, epoch: Epoch) -> World:
    """A member tells the others that a session is there."""
    return world._replace(calls=world.calls | {Call("claim", name, other, epoch) for other in OTHERS[name]})


def deliver(world: World, call: Call) -> World:
    """Deliver a request, and put its answer on the way."""
    member = world.at(call.target)
    answer: object
    copy: Copy | None = None
    if call.kind == "take":
        own, answer = take(member.own, call.epoch)
        member = member._replace(own=own, copy=member.copy if own is not None else None)
        if own is None or own.stage is Stage.CEDED:
            member = Member(own)
    elif call.kind == "fetch":
        own, answer = fetch(member.own, call.epoch)
        member = member._replace(own=own)
        copy = member.copy if answer else None
    elif call.kind == "commit":
        own, answer = commit(member.own, call.epoch)
        if own is not member.own and own is not None and world.on_disk:
            assert member.copy is not None
            record = Given(call.target, member.copy, RecordedEpochs(own.given_since, own.epoch))
            world = world._replace(given=world.given | {record})
        member = Member(own) if own is not None and own.stage is Stage.CEDED else member._replace(own=own)
    elif call.kind == "settle" and call.epoch.member == call.target:
        answer = answer_giver(member.own, call.epoch) or NO_EPOCH
        if answer == NO_EPOCH and member.own is not None and member.own.stage is Stage.ARRIVING:
            member = Member(abandon(member.own))
    elif call.kind == "settle":
        own, newer = claim(member.own, call.epoch)
        answer = newer or NO_EPOCH
        member = after_claim(member, own)
    else:
        own, newer = claim(member.own, call.epoch)
        world = world.with_member(call.target, after_claim(member, own))
        if newer is None and own.settled == call.epoch:
            world = world.without_given(call.target)
        on_the_way = {call._replace(answer=newer)} if newer is not None else set()
        return world._replace(calls=world.calls - {call} | on_the_way)
    world = world.with_member(call.target, member)
    return world._replace(calls=world.calls - {call} | {call._replace(answer=answer, copy=copy)})


def after_claim(member: Member, own: Ownership) -> Member:
    """Return a member that has taken a claim: what it asks for is asked for still."""
    return member._replace(own=own) if own is member.own or own.stage is Stage.ASKING else Member(own)


def answered(world: World, call: Call, answer: object) -> World:
    """Take the answer to a call, or None when none came."""
    member = world.at(call.source)
    own, epoch, name = member.own, call.epoch, call.source
    if call.kind == "take":
        if own is None or own.stage is not Stage.ASKING or own.epoch != epoch:
            return world
        assert answer is None or isinstance(answer, Answer)
        answers = (*(one for one in member.answers if one[0] != call.target), (call.target, answer))
        world = world.with_member(name, member._replace(answers=answers))
        if len(answers) < len(MEMBERS) - 1:
            return world
        decision = choose(own, answers)
        if decision.choice is Choice.FETCH:
            fetching = Call("fetch", name, decision.holder, epoch, call.number)
            world = world.with_member(name, member._replace(answers=(), holder=decision.holder, since=decision.epoch))
            return world._replace(calls=world.calls | {fetching})
        if decision.choice is Choice.BEGIN:
            return began(world, name, epoch, member.waits)
        return world.with_member(name, Member(give_up(own, epoch)))
    if call.kind == "fetch":
        own, arrived = arrive(own, epoch, found=call.copy is not None, since=member.since)
        if arrived:
            world = world.with_member(name, member._replace(own=own, copy=call.copy))
            return world._replace(calls=world.calls | {call._replace(kind="commit", answer=None, copy=None)})
        return world if own is member.own else world.with_member(name, Member(own))
    if call.kind == "commit":
        own, finished = finish(own, epoch, committed=answer is True)
        if finished:
            world = world.with_member(name, member._replace(own=own))
            return claimed(accept(world, name, present=True, number=member.waits), name, epoch)
        if own is not member.own:
            return world.with_member(name, Member(own))
        return world
    assert isinstance(answer, Epoch)  # a later session is elsewhere, or none
    if call.kind == "settle":
        member = member._replace(unsettled=member.unsettled - {call.target})
        world = world.with_member(name, member)
    ceded, _ = (own, None) if answer == NO_EPOCH else claim(own, answer)
    if ceded is not own and ceded is not None:
        return world.with_member(name, after_claim(member, ceded))
    if own is not None and own.stage is Stage.GIVEN and not member.unsettled:
        return world.with_member(name, member._replace(own=begin(own.epoch)))
    return world


def steps(world: World) -> Iterator[World]:
    """Yield every state that may follow."""
    if world.connects_left:
        for name in MEMBERS:
            for clean in (False, True):
                yield connect(world, name, clean=clean)
    for call in world.calls:
        if call.answer is None:
            yield deliver(world, call)
            if world.losses_left:
                fewer = world._replace(losses_left=world.losses_left - 1)
                if call.kind in ("take", "fetch"):
                    yield answered(fewer, call, None)  # it took too long, and is still on the way
                if call.kind not in ("claim", "settle"):
                    delivered = deliver(fewer, call)
                    yield delivered._replace(calls=delivered.calls | {call})  # twice
        else:
            without = world._replace(calls=world.calls - {call})
            yield answered(without, call, call.answer)
            if world.losses_left and call.kind in ("take", "fetch", "commit"):
                fewer = without._replace(losses_left=world.losses_left - 1)
                lost = call._replace(answer=None, copy=None)
                # An answer to COMMIT that is lost is asked for again.
                yield (
                    fewer._replace(calls=fewer.calls | {lost}) if call.kind == "commit" else answered(fewer, lost, None)
                )
    for name, member in zip(MEMBERS, world.members, strict=True):
        if member.own is not None and member.own.stage in (Stage.PROMISED, Stage.FROZEN):
            yield world.with_member(name, member._replace(own=take_back(member.own)))
        # With sessions on disk the crash of a holder is what is searched; what others have heard is lost as above.
        has_record = any(one.name == name for one in world.given)
        is_held = member.own is not None and member.own.stage in HELD
        if world.crashes_left and (not world.on_disk or is_held or has_record):
            yield crash(world, name)


def crash(world: World, name: str) -> World:
    """A member loses everything, or all but the session that is there, and starts again.

    Calls to it bring nothing, but for COMMIT, which is asked again. Its own answers are read by nobody, but for that to
    COMMIT, which may have come before. What is lost with a session on disk: one that has all but arrived, as there are
    no copies here.
    """
    own, copy = world.at(name).own, world.at(name).copy
    is_here = own is not None and own.stage in HELD
    moves = any(call.kind == "commit" and name == call.source for call in world.calls)
    gone = world.with_member(name, Member())._replace(
        crashes_left=world.crashes_left - 1,
        crashed=world.crashed or not world.on_disk or moves,
    )
    for call in world.calls:
        if call.kind == "settle" and call.target == name and call.source != name:
            gone = gone._replace(calls=gone.calls - {call} | {call._replace(answer=None)})  # it is asked again
            continue
        if call.kind == "commit" and call.target == name and (call.answer is not None or world.on_disk):
            continue
        if call.source == name:
            gone = gone._replace(calls=gone.calls - {call})
        elif call.target == name:
            gone = gone._replace(calls=gone.calls - {call})
            if call.kind == "commit":  # the value that arrived may be old by now
                member = gone.at(call.source)
                given_up = give_up(member.own, call.epoch)
                if given_up is not member.own:
                    gone = gone.with_member(call.source, Member(given_up))
            elif call.kind != "claim":
                gone = answered(gone, call._replace(answer=None, copy=None), None)
    if world.on_disk and is_here and own is not None:
        back = Member(begin(own.epoch), copy, unsettled=frozenset(OTHERS[name]))
        settling = {Call("settle", name, other, own.epoch) for other in OTHERS[name]}
        gone = gone.with_member(name, back)._replace(calls=gone.calls | settling)
    for one in world.given:
        if one.name == name and not is_here:
            back = Member(keep_given(one.epochs), one.copy, unsettled=frozenset(OTHERS[name]))
            since, given = one.epochs
            settling = {
                Call("settle", name, other, given if other == given.member else since) for other in OTHERS[name]
            }
            gone = gone.with_member(name, back)._replace(calls=gone.calls | settling)
    return gone


def check(world: World) -> None:
    """What holds in every state."""
    serving = [
        member.copy
        for member in world.members
        if member.own is not None and member.own.is_here and member.copy is not None
    ]
    lineages = [copy.lineage for copy in serving]
    if len(lineages) != len(set(lineages)):
        raise Broken("two members serve one session")
    if not world.calls:
        asking = [member.own for member in world.members if member.own is not None and member.own.stage in WAITING]
        if asking:
            raise Broken(f"a client waits for ever: {asking}")
        if not world.crashed and len(serving) > 1:
            raise Broken("two sessions are left, and nothing ends one of them")
        newest = [member for member in world.members if member.copy is not None and member.copy == world.truth]
        if not world.crashed and not newest:
            raise Broken("nobody has the session of the client")


def legal_steps(world: World) -> Iterator[World]:
    """Yield every state that may follow one; each member goes on as the table of transitions has it, or is killed."""
    for following in steps(world):
        if following.crashes_left == world.crashes_left:
            for before, after in zip(world.members, following.members, strict=True):
                become(before.own, after.own)
        yield following


def search(start: World) -> int:
    """Visit every state, breadth first, and return their number; the way to a fault is a shortest one."""
    before: dict[World, World | None] = {start: None}
    queue = deque([start])
    gc.disable()  # states have no cycles, and looking for some among hundreds of thousands is half of the time
    try:
        while queue:
            state = queue.popleft()
            try:
                check(state)
                following = list(legal_steps(state))
            except Broken as broken:
                way, at = [str(broken)], state
                while (former := before[at]) is not None:
                    way.insert(1, str(at))
                    at = former
                raise AssertionError("\n".join(way)) from broken
            for one in following:
                if one not in before:
                    before[one] = state
                    queue.append(one)
    finally:
        gc.enable()
    return len(before)


def start(*, connects: int, losses: int, crashes: int, on_disk: bool = False) -> World:
    """A session at A, which its client has used once."""
    copy = Copy(0, 1)
    first = Member(begin(epoch_of(0, "a")), copy)
    return World(
        (first, Member(), Member()), frozenset(), copy, 0, connects, losses, crashes, crashed=False, on_disk=on_disk
    )


def test_what_no_rule_does_is_illegal() -> None:
    """A session that is not here can be given to nobody, and none is forgotten while it is here."""
    owned, ceded = begin(epoch_of(1, "a")), Ownership(Stage.CEDED, epoch_of(1, "a"))
    for before, after in (
        (ceded, Stage.PROMISED),
        (ceded, Stage.ARRIVING),
        (owned, Stage.FROZEN),
        (owned, Stage.ASKING),
    ):
        with pytest.raises(IllegalTransitionError):
            become(before, replace(before, stage=after))
    with pytest.raises(IllegalTransitionError):
        become(owned, None)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("connects", "losses", "crashes", "on_disk"),
    [
        (2, 0, 0, False),
        (1, 2, 1, False),
        (1, 1, 1, True),
        (1, 0, 2, True),
        pytest.param(2, 1, 0, False, marks=LONG),
        pytest.param(2, 0, 1, False, marks=LONG),
        pytest.param(2, 0, 1, True, marks=LONG),
    ],
)
def test_every_order(connects: int, losses: int, crashes: int, *, on_disk: bool) -> None:
    """Whatever the order: one owner, never an old session as if it were the newest, and nobody waits for ever.

    With sessions on disk a member that was killed has its session again, which ends where its client has begun anew.
    """
    assert search(start(connects=connects, losses=losses, crashes=crashes, on_disk=on_disk)) > 500
