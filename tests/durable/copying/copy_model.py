"""Model of sessions and their copies at three members of a pool, for an exhaustive search.

One Client Identifier has a session at member A, of which B keeps the copy. The client connects a few more times at
any member. Members move sessions, copy them, find each other dead, and go on with the sessions of the dead. Calls
between members are delivered at any time and in any order, and may be lost. A member may crash for good, or pause for
so long that others may find it dead, and then go on with its old state. It is heard again sooner than another one
could be found dead.

The rules are those of the product (`fanout.durable.ownership.ownership`, `fanout.durable.ownership.copy_rules` and
`fanout.durable.ownership.placement`). The model does with them what the ledger, the arrivals, the sent copies, the held
copies and the inheritance do. A value of the session has a branch, which grows when another member goes on with it from
a copy: so a former holder that goes on as well can be told from its heir.

Not in the model:

- a member that dies before the first copy of a session with which it went on: that is lost (the client is told);
- a member that dies after it has given the value of a session to another one, whose client had come back to it just
  before, so that there is no copy since then: that is lost as well, since the older copy counts as outdated;
- a CONNECT at a member which the claim of a later session has not reached, or never will because it was dead for the
  claimant, as in the model of ownership;
- one at a member that takes another one for dead which has the session, and has just gone on after a pause: the first
  answer of that one, within a fraction of a second, ends this;
- a session that is moved inexactly, of which the former holder keeps nothing;
- a copy that replaces one that is still on its way;
- a member that none can keep copies for: it tells the others at the primary before it goes on, and they use no copy of
  it at QoS 2; here it is never killed then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from fanout.durable.ownership.copy_rules import (
    GIVEN,
    CopyVersion,
    Right,
    answer_inherit,
    answer_take,
    inherited_epoch,
    is_kept,
    is_outdated,
    may_inherit,
)
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch
from fanout.durable.ownership.ownership import (
    Answer,
    Choice,
    Ownership,
    Reply,
    Stage,
    abandon,
    arrive,
    ask,
    begin,
    choose,
    claim,
    commit,
    fetch,
    finish,
    give_up,
    take,
    take_back,
)
from fanout.durable.ownership.placement import keeper_of
from tests.durable.search import Broken
from tests.durable.three_members import HELD, MEMBERS, WAITING, others

CLIENT: Final = next(name for name in map(str, range(100)) if keeper_of(name, ("b", "c")) == "b")
"""A Client Identifier whose copy B keeps for A."""
NONE: Final[frozenset[str]] = frozenset()
_PLACES: Final = {name: place for place, name in enumerate(MEMBERS)}


class Value(NamedTuple):
    """The session, as a member or its client has it."""

    lineage: int
    """Number of the CONNECT with which it began."""
    branch: int
    """How often another member went on with it from a copy."""
    version: int
    """How often it changed."""


class Kept(NamedTuple):
    """A copy that a member keeps."""

    holder: str
    version: CopyVersion
    value: Value


class Pending(NamedTuple):
    """A copy on its way from its holder."""

    value: Value | None
    """None for a session that has ended here."""
    version: CopyVersion
    target: str
    """Member that it was sent to; empty for none."""
    connect: int = 0
    """Number of the CONNECT that is answered when the copy is kept; 0 for none."""
    is_present: bool = False
    """Session Present in that answer."""


class Asking(NamedTuple):
    """INHERIT, on its way or answered."""

    copy: Kept
    asked: frozenset[str]
    rights: tuple[Right, ...] = ()
    asks_holder: bool = False
    """Whether the holder is asked, to which the session was given away and may never have come."""


class Member(NamedTuple):
    """One member."""

    own: Ownership | None = None
    value: Value | None = None
    """The session itself, or the value that is frozen or has arrived."""
    asked: frozenset[str] = NONE
    """Members that were asked with TAKE."""
    answers: tuple[tuple[str, Answer | None], ...] = ()
    """Answers to TAKE."""
    holder: str = ""
    """Member that it fetches from."""
    since: Epoch = NO_EPOCH
    """Epoch of what it fetches."""
    waits: int = 0
    """Number of the CONNECT that waits here for the session; 0 for none."""
    connect: int = 0
    """Number of the CONNECT whose answer waits for a copy that is not under way yet; 0 for none."""
    is_present: bool = False
    """Session Present in that answer."""
    is_new: bool = False
    """Whether the session goes on here from a copy, and was not copied since."""
    is_dirty: bool = False
    """Whether the session has changed, or ended, since the copy that is under way was made."""
    pending: Pending | None = None
    keeper: str = ""
    """Member that keeps its copy; empty for none."""
    outdated: frozenset[str] = NONE
    """Members that were away when the session ended, and have a copy of it."""
    unclaimed: Epoch = NO_EPOCH
    """Epoch of the session that the others are told of once it is copied."""
    number: int = 0
    """Newest number of a copy."""
    kept: Kept | None = None
    asking: Asking | None = None
    taken: tuple[tuple[str, Epoch], ...] = ()
    """Holders that are to be told since when their session is here."""
    agreed: tuple[str, str] = ("", "")
    """Member that may go on with a session as far as this one is concerned, and the holder, whose copies wait then."""
    dead: frozenset[str] = NONE
    """Members that are dead for this one."""
    away: frozenset[str] = NONE
    """Members that this one does not reach for a while."""
    down: str = ""
    """Whether it is `paused` or `crashed`."""


class Call(NamedTuple):
    """A request, or its answer, on the way."""

    kind: str
    source: str
    target: str
    epoch: Epoch = NO_EPOCH
    version: CopyVersion | None = None
    holder: str = ""
    """Holder of the session, with INHERIT."""
    value: Value | None = None
    """Value in COPY, and in the answer to FETCH."""
    answer: object = None
    """None for a request."""


class World(NamedTuple):
    """A state of everything."""

    members: tuple[Member, Member, Member]
    calls: frozenset[Call]
    truth: Value
    """The session as its client knows it from what was confirmed to it."""
    is_alive: bool
    """Whether the client may expect that its session is somewhere."""
    place: str
    """Member that answered the newest CONNECT."""
    connects: int
    served: int
    """Newest CONNECT that was answered with success."""
    branches: tuple[tuple[int, int], ...]
    """For each lineage its newest branch, and the version with which that began."""
    deaf: frozenset[str] = NONE
    """Members that a claim never reached, because the member that sent it crashed, or found them dead."""
    connects_left: int = 0
    cleans_left: int = 0
    """How many of them may have Clean Start 1; below 0 for all."""
    losses_left: int = 0
    crashes_left: int = 0
    pauses_left: int = 0
    changes_left: int = 0
    partings_left: int = 0
    ends_left: int = 0

    def at(self, name: str) -> Member:
        return self.members[_PLACES[name]]

    def put(self, name: str, member: Member) -> World:
        members = list(self.members)
        members[_PLACES[name]] = member
        first, second, third = members
        return self._replace(members=(first, second, third))

    def send(self, *calls: Call) -> World:
        return self._replace(calls=self.calls.union(calls))

    def branch(self, lineage: int) -> tuple[int, int]:
        return self.branches[lineage] if lineage < len(self.branches) else (0, 0)


Step: TypeAlias = Callable[[], World]


class Outside(Exception):
    """What happens is outside of the model."""


def start(
    *,
    connects: int = 0,
    cleans: int = -1,
    losses: int = 0,
    crashes: int = 0,
    pauses: int = 0,
    changes: int = 0,
    partings: int = 0,
    ends: int = 0,
) -> World:
    """Return a session at A, which its client uses, and whose copy B keeps; the bounds are as in `World`."""
    value, epoch = Value(0, 0, 1), Epoch(1, "a")
    # Numbers of different members do not compare: those of the first holder are the highest.
    first = Member(begin(epoch), value, keeper="b", number=200)
    second = Member(kept=Kept("a", CopyVersion(epoch, 200), value), number=100)
    return World(
        (first, second, Member()),
        frozenset(),
        value,
        is_alive=True,
        place="a",
        connects=0,
        served=0,
        branches=((0, 0),) * (connects + 1),
        connects_left=connects,
        cleans_left=cleans,
        losses_left=losses,
        crashes_left=crashes,
        pauses_left=pauses,
        changes_left=changes,
        partings_left=partings,
        ends_left=ends,
    )


# What one member does.


def is_here(member: Member) -> bool:
    """Return whether the session is at a member, whatever it was promised."""
    return member.own is not None and member.own.stage in HELD and member.value is not None


def newest_of(member: Member) -> Epoch:
    """Return the newest epoch of a session that a member knows of (`SessionLedger.newest_of`)."""
    return NO_EPOCH if member.own is None else member.own.settled


def answer_from_copy(member: Member) -> Answer | None:
    """Return what the copy that a member keeps says to TAKE (`SessionLedger.answer_from_copy`)."""
    kept = member.kept
    if kept is None:
        return None
    return answer_take(kept.version, newest=newest_of(member), is_gone=kept.holder in member.dead)


def without(member: Member, own: Ownership | None) -> Member:
    """Return a member at which the session is not, or not any more (`SessionLedger.forget`)."""
    was_here = is_here(member)
    return member._replace(
        own=own,
        value=None,
        asked=NONE,
        answers=(),
        holder="",
        since=NO_EPOCH,
        waits=0,
        connect=0,
        is_present=False,
        is_new=False,
        is_dirty=member.is_dirty or was_here,
    )


def given(member: Member, own: Ownership | None, call: Call) -> Member:
    """Return a member that has given its session away, and keeps it until the next holder has a copy of its own.

    The copy that another member has of it stays (`SentCopies.leave`, `SessionLedger.keep_given`).
    """
    assert member.value is not None
    kept = Kept(call.source, CopyVersion(call.epoch, GIVEN), member.value)
    member = without(member, own)
    return member._replace(kept=kept, is_dirty=False, pending=None, keeper="", unclaimed=NO_EPOCH)


def yielded(member: Member, epoch: Epoch) -> tuple[Member, Epoch | None]:
    """Return a member that has taken a claim, and the newer epoch that it has (`SessionLedger.yield_to`)."""
    own, newer = claim(member.own, epoch)
    if own is member.own:
        return member, newer
    return (member._replace(own=own) if own.stage is Stage.ASKING else without(member, own)), newer


def claims(world: World, name: str, epoch: Epoch) -> World:
    """Tell the members that are not dead that the session is here (`SessionPool.claim`)."""
    dead = world.at(name).dead
    world = world._replace(deaf=world.deaf | dead)
    return world.send(*(Call("claim", name, other, epoch) for other in others(name) if other not in dead))


def began(world: World, name: str, epoch: Epoch, value: Value, *, number: int, is_present: bool) -> World:
    """A session begins or goes on at a member for a CONNECT, which is answered when it is copied."""
    member = without(claimed(world.at(name), epoch), None)
    member = member._replace(
        own=begin(epoch), value=value, connect=number, is_present=is_present, is_dirty=True, unclaimed=epoch
    )
    return world.put(name, member)


def connect(world: World, name: str, *, is_clean: bool) -> World:
    """The client connects to a member, as a new one for all the others."""
    number = world.connects + 1
    world = world._replace(connects=number, connects_left=world.connects_left - 1)
    member, epoch = world.at(name), Epoch(10 * number, name)
    if is_clean:  # the client gives its session up
        world = world._replace(is_alive=False, cleans_left=world.cleans_left - (world.cleans_left > 0))
        return began(world, name, epoch, Value(number, 0, 1), number=number, is_present=False)
    if is_here(member):
        assert member.value is not None
        value = member.value._replace(version=member.value.version + 1)
        if world.is_alive and is_old(value, world.truth) and misses_claim(world, name):
            raise Outside
        return began(world, name, epoch, value, number=number, is_present=True)
    asking = ask(member.own, epoch)
    if asking is None:  # it has all but arrived: the client is refused, and comes again
        return world
    asked = frozenset(others(name)) - member.dead
    member = without(member, asking)._replace(asked=asked, waits=number)
    world = world.put(name, member).send(*(Call("take", name, other, epoch) for other in asked))
    return world if asked else chosen(world, name, epoch)


def chosen(world: World, name: str, epoch: Epoch) -> World:
    """Decide what follows from all answers to TAKE (`Move.run`)."""
    member = world.at(name)
    answers = dict(member.answers)
    for other in others(name):
        if other not in answers and other not in member.dead:  # it was dead when the others were asked
            answers[other] = None
    kept = answer_from_copy(member)
    if kept is not None:
        answers[name] = kept
    decision = choose(member.own, answers.items())
    if decision.choice is Choice.FETCH:
        member = member._replace(asked=NONE, answers=(), holder=decision.holder, since=decision.epoch)
        return world.put(name, member).send(Call("fetch", name, decision.holder, epoch))
    if decision.choice is not Choice.BEGIN:
        return world.put(name, without(member, give_up(member.own, epoch)))
    if member.waits != world.connects:  # the client has left
        return world.put(name, without(member, Ownership(Stage.CEDED, epoch)))
    if world.is_alive:
        if any(other in member.dead and not world.at(other).down for other in others(name)):
            raise Outside
        raise Broken(f"{name} begins a session, and the client has one")
    return began(world, name, epoch, Value(member.waits, 0, 1), number=member.waits, is_present=False)


def finished(world: World, name: str, own: Ownership | None) -> World:
    """A session has come from its holder (`Move._bring`)."""
    member = world.at(name)
    assert own is not None
    assert member.value is not None
    number = member.waits if member.waits == world.connects else 0
    value = member.value._replace(version=member.value.version + 1)
    keeper = member.holder  # it keeps the session as it gave it away (`SentCopies.came_from`)
    member = member._replace(own=own, value=value, keeper=keeper, is_dirty=True)
    member = member._replace(holder="", since=NO_EPOCH, waits=0)
    return world.put(name, member._replace(connect=number, is_present=True, unclaimed=own.epoch))


def inherited(world: World, name: str) -> World:
    """Decide whether a session goes on here from its copy (`Inheritance._inherit`)."""
    member = world.at(name)
    asking = member.asking
    assert asking is not None
    copy = asking.copy
    member = member._replace(asking=None)
    if Right.LIVES in asking.rights or member.kept != copy:
        return world.put(name, member)
    member = member._replace(kept=None)
    if not may_inherit(copy.version, newest=newest_of(member), answers=asking.rights):
        return world.put(name, member)
    if is_here(member):  # `SessionValues.import_session` refuses it
        if world.is_alive:
            raise Broken("there is a session already")
        return world.put(name, member)
    given_since = NO_EPOCH if member.own is None or not asking.asks_holder else member.own.given_since
    epoch = inherited_epoch(copy.version, name, given_since=given_since)
    if epoch < copy.version.epoch:  # it is here as it was before, like that of a holder that has paused
        member = without(member, begin(epoch))._replace(value=copy.value, is_dirty=True)
        return claims(world.put(name, member), name, epoch)
    branch, _ = world.branch(copy.value.lineage)
    for other in others(name):
        its, own = world.at(other).value, world.at(other).own
        is_heir = its is not None and its.lineage == copy.value.lineage and its.branch > copy.value.branch
        if is_heir and is_here(world.at(other)) and own is not None and own.epoch > epoch:  # an older one ends
            raise Broken(f"two members go on with one session: {name} and {other}")
    if world.is_alive and copy.value.lineage != world.truth.lineage:
        values = [world.at(other).value for other in others(name) if is_here(world.at(other))]
        if not any(value is not None and value.lineage == world.truth.lineage for value in values):
            raise Broken("an old session goes on in place of the client's")
    elif world.is_alive and copy.value < world.truth:
        raise Broken("an old copy goes on")
    value = copy.value._replace(branch=branch + 1)
    branches = list(world.branches)
    branches[value.lineage] = (value.branch, value.version)
    member = without(member, begin(epoch))
    taken = (*(one for one in member.taken if one[0] != copy.holder), (copy.holder, epoch))
    member = member._replace(value=value, taken=taken, is_new=True, is_dirty=True)
    return claims(world.put(name, member)._replace(branches=tuple(branches)), name, epoch)


# Calls.


def deliver(world: World, call: Call) -> World:
    """Deliver a request, and put its answer on the way."""
    world = world._replace(calls=world.calls - {call})
    member, target = world.at(call.target), call.target
    answer: object = None
    if call.kind == "take":
        answer = kept = answer_from_copy(member)
        if kept is None or kept.reply is not Reply.BUSY:
            own, answer = take(member.own, call.epoch)
            if kept is not None and answer.reply is Reply.NONE:
                answer = kept
            if own is not member.own:
                is_kept_here = own is not None and own.stage in HELD
                member = member._replace(own=own) if is_kept_here else without(member, own)
        call = call._replace(answer=answer)
    elif call.kind == "fetch":
        own, is_given = fetch(member.own, call.epoch)
        if is_given:
            member = member._replace(own=own)
        call = call._replace(answer=is_given, value=member.value if is_given else None)
    elif call.kind == "commit":
        own, is_committed = commit(member.own, call.epoch)
        if own is not member.own:
            member = given(member, own, call)
        call = call._replace(answer=is_committed)
    elif call.kind == "claim":
        member = claimed(member, call.epoch)
        member, newer = yielded(member, call.epoch)
        world = world._replace(deaf=world.deaf - {target})
        if call.kind == "claim" and newer is None:
            return world.put(target, member)
        call = call._replace(answer=newer or NO_EPOCH)
    elif call.kind == "copy":
        member, newer = copied(member, call)
        if call.version is None:
            return world.put(target, member)
        call = call._replace(answer=newer or NO_EPOCH, value=None)
    else:
        assert call.version is not None
        right = answer_inherit(
            call.version,
            kept=None if member.kept is None else member.kept.version,
            newest=newest_of(member),
            holder_lives=call.holder != target and call.holder not in member.dead,
            is_here=is_here(member) and (call.holder == target or newest_of(member) >= call.version.epoch),
            is_copied=member.pending is None and not member.is_dirty,
            is_holder=call.holder == target,
        )
        if right is Right.YES:
            if member.own is not None and member.own.stage is Stage.ARRIVING:  # `SessionLedger.stop_arriving`
                member = without(member, abandon(member.own))
            agreed = member.agreed if call.holder == target else (call.source, call.holder)
            member = member._replace(kept=None, agreed=agreed)
        call = call._replace(answer=right)
    return world.put(target, member).send(call)


def claimed(member: Member, epoch: Epoch) -> Member:
    """Return a member without a copy that is of no use, as a session is somewhere since then (`PoolCopies.claimed`)."""
    kept = member.kept
    is_of_heir = member.own is not None and member.own.is_of_heir(epoch)
    if kept is None or not is_outdated(kept.version, epoch=epoch, is_of_heir=is_of_heir):
        return member
    return member._replace(kept=None)


def copied(member: Member, call: Call) -> tuple[Member, Epoch | None]:
    """Return a member that has taken a COPY, and the newer epoch that it knows of (`PoolCopies.answer_copy`)."""
    version, kept = call.version, member.kept
    assert version is not None
    if call.value is None:
        is_older = kept is not None and kept.holder == call.source and kept.version < version
        return (member._replace(kept=None) if is_older else member), None
    member = claimed(member, version.epoch)
    member, _ = yielded(member, version.epoch)
    kept, newest = member.kept, newest_of(member)
    if newest > version.epoch:
        return member, newest
    if not is_kept(version, kept=None if kept is None else kept.version, newest=newest):
        return member, None
    return member._replace(kept=Kept(call.source, version, call.value)), None


def answered(world: World, call: Call, answer: object) -> World:
    """Take the answer to a call; None when none came."""
    name = call.source
    member, own, epoch = world.at(name), world.at(name).own, call.epoch
    if call.kind == "take":
        if own is None or own.stage is not Stage.ASKING or own.epoch != epoch or call.target not in member.asked:
            return world
        assert answer is None or isinstance(answer, Answer)
        answers = (*member.answers, (call.target, answer))
        asked = member.asked - {call.target}
        world = world.put(name, member._replace(asked=asked, answers=tuple(sorted(answers, key=str))))
        return world if asked else chosen(world, name, epoch)
    if call.kind == "fetch":
        is_found = call.value is not None and answer is True and call.target != member.agreed[1]
        own, is_arriving = arrive(own, epoch, found=is_found, since=member.since)
        if is_arriving:
            member = member._replace(own=own, value=call.value)
            return world.put(name, member).send(Call("commit", name, call.target, epoch))
        return world if own is member.own else world.put(name, without(member, own))
    if call.kind == "commit":
        own, is_finished = finish(own, epoch, committed=answer is True)
        if is_finished:
            return finished(world, name, own)
        return world if own is member.own else world.put(name, without(member, own))
    if call.kind == "copy":
        return copy_answered(world, call, answer)
    if call.kind == "inherit":
        asking = member.asking
        if asking is None or asking.copy.version != call.version or call.target not in asking.asked:
            return world
        if answer is None:  # it asks again
            return world.put(name, member._replace(asking=None))
        assert isinstance(answer, Right)
        rights = tuple(sorted((*asking.rights, answer)))
        asking = asking._replace(asked=asking.asked - {call.target}, rights=rights)
        world = world.put(name, member._replace(asking=asking))
        return world if asking.asked else inherited(world, name)
    assert isinstance(answer, Epoch)  # a later session is elsewhere, or none
    if answer != NO_EPOCH:
        member, _ = yielded(member, answer)
    return world.put(name, member)


def copy_answered(world: World, call: Call, answer: object) -> World:
    """Take the answer to COPY; None when none came (`SentCopies._note`)."""
    name = call.source
    member = world.at(name)
    pending = member.pending
    is_newest = pending is not None and pending.version == call.version and pending.target == call.target
    if answer is None:
        if is_newest and pending is not None:  # it goes to the next member, or once more to this one
            return world.put(name, member._replace(pending=pending._replace(target="")))
        return world
    assert isinstance(answer, Epoch)
    if answer != NO_EPOCH:
        member, _ = yielded(member, answer)
    world = world.put(name, member)
    if not is_newest:
        return world
    return settled(world, name, keeper="" if answer != NO_EPOCH else call.target)


def settled(world: World, name: str, *, keeper: str) -> World:
    """The newest copy is kept, or will not be (`SentCopies._settle`): what waits for it is said."""
    member = world.at(name)
    pending = member.pending
    assert pending is not None
    if member.unclaimed != NO_EPOCH and pending.version.epoch >= member.unclaimed:
        world = claims(world, name, member.unclaimed)
        member = member._replace(unclaimed=NO_EPOCH)
    if pending.value is None:
        return world.put(name, member._replace(pending=None, keeper=""))
    former = member.keeper
    member = member._replace(pending=None, keeper=keeper)
    if former and keeper and former != keeper and former in reached(world, name):
        member, row = forgetting(member, name, former)
        world = world.send(row)
    world = world.put(name, member)
    value, own = member.value, member.own
    if value is None or not is_here(member) or own is None or value[:2] != pending.value[:2]:
        return world  # it has ended here meanwhile, and its connection with it
    if pending.version.epoch == own.epoch:
        world = world.put(name, member._replace(is_new=False))
    return spoken(world, name, pending)


def spoken(world: World, name: str, pending: Pending) -> World:
    """A member says to the client what has waited for a copy."""
    value, own = pending.value, world.at(name).own
    assert value is not None
    assert own is not None
    for other in others(name):
        its, newer = world.at(other).value, world.at(other).own
        if its is None or newer is None or not is_here(world.at(other)) or newer.epoch < own.epoch:
            continue  # the client has come back to this member, and the claim of that ends what the heir has
        is_heir = its.lineage == value.lineage and its.branch > value.branch
        if is_heir and value.version > world.branches[value.lineage][1]:
            raise Broken(f"{name} says what its heir {other} does not know")
    if not pending.connect:
        return world._replace(truth=value) if world.place == name and world.served == world.connects else world
    if pending.connect != world.connects:  # the client has gone: nobody reads the answer
        return world
    truth = world.truth
    if pending.is_present and world.is_alive and is_old(value, truth):
        raise Broken(f"{name} goes on with {value}, and the client knows {truth}")
    return world._replace(truth=value, is_alive=True, place=name, served=pending.connect)


def is_old(value: Value, truth: Value) -> bool:
    """Return whether a session is not the one that its client knows, or was."""
    return value.lineage != truth.lineage or value.branch < truth.branch or value.version < truth.version


def misses_claim(world: World, name: str) -> bool:
    """Return whether a claim did not reach a member yet, or never will."""
    return name in world.deaf or any(call.kind == "claim" and call.target == name for call in world.calls)


def forgetting(member: Member, name: str, keeper: str) -> tuple[Member, Call]:
    """Return the row that lets a member forget a copy (`SentCopies._forget_at`)."""
    epoch = NO_EPOCH if member.own is None else member.own.epoch
    member = member._replace(number=member.number + 1)
    return member, Call("copy", name, keeper, version=CopyVersion(epoch, member.number))


def reached(world: World, name: str) -> tuple[str, ...]:
    """Return the members that can keep copies for one."""
    member = world.at(name)
    return tuple(
        other
        for other in others(name)
        if other not in member.away and other not in member.dead and not world.at(other).down
    )


def kept_house(world: World, names: tuple[str, ...] = MEMBERS) -> World:
    """Members make the copies that they have to, and send them where they are to be (`SentCopies`)."""
    for name in names:
        while not world.at(name).down:
            after = _housed(world, name)
            if after is world:
                break
            world = after
    return world


def _housed(world: World, name: str) -> World:
    member = world.at(name)
    near = reached(world, name)
    wanted = keeper_of(CLIENT, near)
    if member.own is not None and member.own.stage in HELD and member.value is None:  # `SessionLedger.get`
        return world.put(name, member._replace(own=Ownership(Stage.CEDED, member.own.epoch)))
    for back in sorted(member.outdated & set(near)):
        member, row = forgetting(member._replace(outdated=member.outdated - {back}), name, back)
        return world.put(name, member).send(row)
    if member.pending is None:
        is_misplaced = is_here(member) and wanted is not None and member.keeper != wanted
        if not member.is_dirty and not is_misplaced:
            return world
        pending = Pending(
            member.value if is_here(member) else None,
            CopyVersion(NO_EPOCH if member.own is None else member.own.epoch, 0),
            "",
            connect=member.connect,
            is_present=member.is_present,
        )
        member = member._replace(pending=pending, is_dirty=False, connect=0, is_present=False)
        return world.put(name, member)
    pending = member.pending
    if pending.target:
        return world
    if pending.value is None:
        target = member.keeper
        if target not in near:
            member = member._replace(outdated=member.outdated | ({target} if target else NONE))
            return settled(world.put(name, member), name, keeper="")
    elif wanted is None:  # it goes on alone
        return settled(world, name, keeper="")
    else:
        target = wanted
    version = CopyVersion(pending.version.epoch, member.number + 1)
    member = member._replace(number=version.number, pending=pending._replace(target=target, version=version))
    return world.put(name, member).send(Call("copy", name, target, version=version, value=pending.value))


# What happens.


def steps(world: World) -> Iterator[World]:
    """Yield every state that may follow."""
    for step in _steps(world):
        try:
            yield tidied(kept_house(step()))
        except Outside:
            continue


def _steps(world: World) -> Iterator[Step]:
    for name in MEMBERS:
        yield from steps_of_member(world, name)
        yield from steps_of_process(world, name)
        yield from steps_of_crash(world, name)
    for call in world.calls:
        yield from _steps_of_call(world, call)


def steps_of_process(world: World, name: str) -> Iterator[Step]:
    """Yield what stops a member, or lets it go on; the others are of no interest."""
    if world.at(name).down:
        if world.at(name).down == "paused":
            yield partial(resumed, world, name)
        return
    if world.pauses_left:
        yield partial(paused, world, name)


def steps_of_crash(world: World, name: str) -> Iterator[Step]:
    """Yield how a member may end."""
    if world.crashes_left and not world.at(name).down:
        yield partial(crashed, world, name, keeps_calls=False)
        yield partial(crashed, world, name, keeps_calls=True)


def steps_of_member(world: World, name: str) -> Iterator[Step]:
    """Yield what a member does by itself, or its client.

    Of calls it is of interest only whether a claim is on its way to the member; of other members, what `seen` says.
    """
    if not world.at(name).down:
        if world.connects_left:
            yield partial(connect, world, name, is_clean=False)
            if world.cleans_left:
                yield partial(connect, world, name, is_clean=True)
        yield from _steps_of(world, name)


def _steps_of(world: World, name: str) -> Iterator[Step]:
    member = world.at(name)
    own, value = member.own, member.value
    if own is not None and own.stage in (Stage.PROMISED, Stage.FROZEN):
        yield lambda: world.put(name, member._replace(own=take_back(own)))
    if is_here(member) and own is not None and own.is_here and value is not None:
        is_used = world.place == name and world.served == world.connects
        if world.changes_left and is_used:
            changed = member._replace(value=value._replace(version=value.version + 1), is_dirty=True)
            yield lambda: world.put(name, changed)._replace(changes_left=world.changes_left - 1)
        if world.ends_left and is_used:
            ended = world.put(name, without(member, own))
            yield lambda: ended._replace(ends_left=world.ends_left - 1, is_alive=False)
    for other in others(name):
        its = world.at(other)
        hears_all = not any(one in member.dead and not world.at(one).down for one in others(name))
        if its.down and other not in member.dead and hears_all:
            found = member._replace(dead=member.dead | {other})
            yield partial(world.put, name, found)
        elif not its.down and other in member.dead:
            yield partial(heard, world, name, other)
        if world.partings_left and other not in member.away and is_here(member):
            parted = world.put(name, member._replace(away=member.away | {other}))
            yield partial(parted._replace, partings_left=world.partings_left - 1)
        elif other in member.away:
            yield partial(world.put, name, member._replace(away=member.away - {other}))
    kept = member.kept
    if kept is not None and member.asking is None and (kept.holder in member.dead or is_sought(world, kept)):
        asks_holder = kept.holder not in member.dead
        asked = frozenset((kept.holder,)) if asks_holder else frozenset(others(name)) - member.dead
        asks = world.put(name, member._replace(asking=Asking(kept, asked, asks_holder=asks_holder)))
        calls = [Call("inherit", name, other, version=kept.version, holder=kept.holder) for other in asked]
        yield lambda: asks.send(*calls) if calls else inherited(asks, name)


def is_sought(world: World, kept: Kept) -> bool:
    """Return whether a session is looked for at its holder, to which it was given away (`Inheritance._given`).

    That is done late: the holder does not wait for the answer to its COMMIT any more.
    """
    holder = world.at(kept.holder)
    waits = holder.own is not None and holder.own.stage is Stage.ARRIVING and holder.own.epoch == kept.version.epoch
    return kept.version.number == GIVEN and not holder.down and not waits


def _steps_of_call(world: World, call: Call) -> Iterator[Step]:
    yield from steps_at_target(world, call)
    yield from steps_at_source(world, call)


def waits_for_heir(world: World, call: Call) -> bool:
    """Return whether a copy waits because its target has agreed that another member goes on with the session."""
    return call.kind == "copy" and call.answer is None and call.source == world.at(call.target).agreed[1]


def steps_at_target(world: World, call: Call) -> Iterator[Step]:
    """Yield what a call does at its target; of the others, `seen` says what is of interest."""
    if call.answer is not None or world.at(call.target).down or waits_for_heir(world, call):
        return
    yield lambda: deliver(world, call)
    if world.losses_left and call.kind in ("take", "fetch", "commit"):
        fewer = world._replace(losses_left=world.losses_left - 1)
        yield lambda: deliver(fewer, call).send(call)  # twice


def steps_at_source(world: World, call: Call) -> Iterator[Step]:
    """Yield how a call ends at its source; of the others, `seen` says what is of interest."""
    source, target = world.at(call.source), world.at(call.target)
    if source.down == "paused" or waits_for_heir(world, call):
        return
    rest = world._replace(calls=world.calls - {call})
    fewer = world._replace(losses_left=world.losses_left - 1)
    if source.down:
        yield lambda: rest._replace(deaf=rest.deaf | {call.target}) if call.kind == "claim" else rest
    elif call.answer is not None:
        yield lambda: answered(rest, call, call.answer)
        if world.losses_left and call.kind in ("take", "fetch", "commit", "copy", "inherit"):
            lost = rest._replace(losses_left=world.losses_left - 1)
            if call.kind == "commit":  # it is asked again
                yield lambda: lost.send(call._replace(answer=None))
            else:
                yield lambda: answered(lost, call, None)
    elif target.down:
        # A COMMIT that was given up comes too late: the holder has taken the session back (`SessionLedger.commit`).
        gone = rest if target.down == "crashed" or call.kind == "commit" else world
        if call.kind in ("take", "fetch", "copy", "inherit") or (call.kind == "commit" and call.target in source.dead):
            yield lambda: answered(gone, call, None)
    elif world.losses_left and call.kind in ("take", "fetch", "copy", "inherit"):
        yield lambda: answered(fewer, call, None)  # it took too long, and is still on the way


# States that are the same.


def seen(member: Member) -> Member:
    """Return what others know of a member when they take a step, in the form of a member."""
    own = None
    if member.own is not None and is_here(member):
        own = Ownership(Stage.OWNED if member.own.is_here else Stage.FROZEN, member.own.epoch)
    elif member.own is not None and member.own.stage is Stage.ARRIVING:
        own = Ownership(Stage.ARRIVING, member.own.epoch)
    return Member(
        own=own,
        value=member.value if is_here(member) else None,
        agreed=("", member.agreed[1]),
        down=member.down,
    )


def tidied(world: World) -> World:
    """Return the one of several states that stands for them all, since nothing but an effectless step divides them.

    - A call goes that is over (`is_over`): its step is always possible, has no effect whenever it comes, and the
      states without it are checked for more.
    - What a member would tell one that has crashed goes, as that never hears it.
    - A member that has agreed to an heir takes copies of the holder again as soon as the heir has decided: it may do
      so then, and can only do more afterwards.
    """
    world = forgotten_crashed(world)
    over = [call for call in world.calls if is_over(call, world.at(call.source), world.at(call.target).down)]
    if over:
        world = world._replace(calls=world.calls.difference(over))
    for name in MEMBERS:
        heir = world.at(name).agreed[0]
        if heir and is_decided(world, name, heir):
            world = world.put(name, world.at(name)._replace(agreed=("", "")))
    return world


def forgotten_crashed(world: World, names: tuple[str, ...] = MEMBERS) -> World:
    """Return a state in which members have forgotten what they would tell those that have crashed."""
    gone = frozenset(name for name in MEMBERS if world.at(name).down == "crashed")
    if not gone:
        return world
    for name in names:
        member = world.at(name)
        if member.outdated & gone or any(one in gone for one, _ in member.taken):
            taken = tuple(one for one in member.taken if one[0] not in gone)
            world = world.put(name, member._replace(outdated=member.outdated - gone, taken=taken))
    return world._replace(deaf=world.deaf - gone)


def is_over(call: Call, source: Member, target_down: str) -> bool:
    """Return whether a call has no effect any more, whatever happens.

    Its request has been taken, or never will be; and its source does not wait for the answer, and never will again: the
    epoch of a request and the version of a copy are used once, and the newest epoch that a member knows of only grows.
    """
    own, pending = source.own, source.pending
    if call.kind == "copy" and pending is not None and (pending.version, pending.target) == (call.version, call.target):
        return False
    if call.answer is None:
        return target_down == "crashed" and call.kind in ("claim", "copy")
    if call.kind == "take":
        asks = own is not None and own.stage is Stage.ASKING and own.epoch == call.epoch
        return not asks or call.target not in source.asked
    if call.kind == "fetch":
        return own is None or own.stage is not Stage.ASKING or own.epoch != call.epoch
    if call.kind == "commit":
        return own is None or own.stage is not Stage.ARRIVING or own.epoch != call.epoch
    if call.kind == "inherit":
        versions = [
            None if source.kept is None else source.kept.version,
            None if source.asking is None else source.asking.copy.version,
        ]
        return call.version not in versions
    assert isinstance(call.answer, Epoch)
    return call.answer <= newest_of(source)


def is_decided(world: World, name: str, heir: str) -> bool:
    """Return whether an heir has decided, and told a member what; a member waits long enough for that."""
    its = world.at(heir)
    calls = (call for call in world.calls if call.source == heir and call.target == name)
    return bool(its.down) or (its.asking is None and not any(call.kind in ("inherit", "claim") for call in calls))


def heard(world: World, name: str, other: str) -> World:
    """A member hears one that it took for dead, and tells it whose its session is (`Inheritance._look`)."""
    member = world.at(name)
    calls = [Call("claim", name, other, epoch) for holder, epoch in member.taken if holder == other]
    taken = tuple(one for one in member.taken if one[0] != other)
    return world.put(name, member._replace(dead=member.dead - {other}, taken=taken)).send(*calls)


def paused(world: World, name: str) -> World:
    """A member stops for so long that others may find it dead."""
    member = world.at(name)._replace(down="paused")
    return world.put(name, member)._replace(pauses_left=world.pauses_left - 1)


def resumed(world: World, name: str) -> World:
    """A member goes on after a pause, as if nothing had happened."""
    return world.put(name, world.at(name)._replace(down=""))


def is_known_without_copy(world: World, name: str) -> bool:
    """Return whether another member knows since when a member has its session, and has no copy since then."""
    member = world.at(name)
    if member.own is None or member.unclaimed == NO_EPOCH:
        return False
    epoch, its = member.own.epoch, [world.at(other) for other in others(name)]
    is_given = any(call.kind == "fetch" and call.target == name and call.value is not None for call in world.calls)
    is_kept_there = any(one.kept is not None and one.kept.version.epoch >= epoch for one in its)
    return not is_kept_there and (is_given or any(newest_of(one) >= epoch for one in its))


def crashed(world: World, name: str, *, keeps_calls: bool) -> World:
    """A member is gone for good; what it has sent may arrive, or not."""
    member = world.at(name)
    is_lost = is_here(member) and (member.is_new or is_known_without_copy(world, name))
    calls = {call for call in world.calls if call.source != name}
    deaf = world.deaf
    for call in world.calls - calls:
        if call.answer is None and call.kind in ("copy", "claim") and keeps_calls:
            calls.add(call)
        elif call.answer is None and call.kind == "claim":
            deaf |= {call.target}
    return world.put(name, Member(down="crashed"))._replace(
        calls=frozenset(calls),
        crashes_left=world.crashes_left - 1,
        is_alive=world.is_alive and not is_lost,
        deaf=deaf,
    )


def serving_in(world: World) -> list[tuple[str, Value]]:
    """Return the members that serve a session, each with its value."""
    return [
        (name, member.value)
        for name, member in zip(MEMBERS, world.members, strict=True)
        if not member.down and member.own is not None and member.own.is_here and member.value is not None
    ]


def check(world: World) -> None:
    """Check what holds in every state."""
    check_serving(world)
    if not world.calls and is_quiet(world):
        check_quiet(world)


def check_serving(world: World) -> None:
    """Check who serves sessions; of the members, what is `seen` is of interest."""
    branches = [value[:2] for _, value in serving_in(world)]
    if len(branches) != len(set(branches)):
        raise Broken("two members serve one session")


def check_quiet(world: World) -> None:
    """Check what is left when nothing is going to happen by itself."""
    serving = serving_in(world)
    waiting = [member.own for member in world.members if member.own is not None and member.own.stage in WAITING]
    if waiting:
        raise Broken(f"a client waits for ever: {waiting}")
    if world.deaf:
        return
    if len(serving) > 1:
        raise Broken("two sessions are left, and nothing ends one of them")
    if world.is_alive:
        truth = world.truth
        if not serving:
            raise Broken("nobody has the session of the client")
        value = serving[0][1]
        if is_old(value, truth):
            raise Broken(f"{value} is left, and the client knows {truth}")
    for name, _ in serving:
        member = world.at(name)
        if member.keeper:
            kept = world.at(member.keeper).kept
            if kept is None or kept.holder != name or kept.value != member.value:
                raise Broken("a copy that is kept is not there")


def is_quiet(world: World) -> bool:
    """Return whether nothing is going to happen by itself."""
    for name in MEMBERS:
        member = world.at(name)
        if member.down == "paused" or member.pending is not None or member.away:
            return False
        if member.down:
            continue
        kept = member.kept
        if kept is not None and (world.at(kept.holder).down or kept.version.number == GIVEN):
            return False
        if member.agreed[0]:
            return False
        if member.own is not None and member.own.stage in (Stage.PROMISED, Stage.FROZEN):
            return False
        if any(bool(world.at(other).down) != (other in member.dead) for other in others(name)):
            return False
    return True
