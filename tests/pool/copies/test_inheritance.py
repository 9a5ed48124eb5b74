"""Processes of one holder, in the eyes of a keeper: whose each copy is, and which of them may be outdated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fanout.pool.copies.copy_messages import (
    CopyRequest,
    CopyRow,
    PlacesRow,
    decode_copy_answer,
    encode_copy_request,
)
from fanout.pool.copies.copy_rules import CopyVersion, inherited_epoch
from fanout.pool.sessions.epochs import Epoch
from fanout.pool.sessions.move_messages import SessionQuestion
from fanout.pool.sessions.ownership import Ownership, Stage
from tests.pool.copies.test_pool_copies import Member, Network, change, looks, settled
from tests.support.waiting import wait_until


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Network, Member, Member]]:
    """Give members A and B; the session `c` of A has its copy at B."""
    network = Network()
    a, b = Member(network, "a"), Member(network, "b")
    try:
        a.begin("c")
        await settled(a)
        yield network, a, b
    finally:
        for member in network.members.values():
            member.task.cancel()
        await asyncio.gather(*(one.task for one in network.members.values()), return_exceptions=True)


def version_of(member: Member, client_id: str, *, later: int = 0) -> CopyVersion:
    """Return the version of the copy that a member keeps, or a later one."""
    copy = member.copies._held.get(client_id)
    assert copy is not None
    return copy.version._replace(number=copy.version.number + later)


async def test_a_copy_of_a_former_process_that_lived_alone_is_outdated() -> None:
    """The new process, which is heard well, does not hide that."""
    async with pair() as (network, a, b):
        change(network, "a", is_silent=True, keeps_copies=False, alone_s=1.3)
        await looks()
        a.sessions.clear()
        change(network, "a", is_silent=False, instance="a-2", alone_s=0.0)
        await wait_until(lambda: b.is_stale == [True])


async def test_a_new_process_that_lives_alone_outdates_nothing_of_the_former_one() -> None:
    """The former one was heard until its end, so that its copies are right."""
    async with pair() as (network, _, b):
        change(network, "a", instance="a-2", is_silent=True, keeps_copies=False, alone_s=1.3)
        await looks()
        assert b.is_stale == []
        change(network, "a", is_dead=True)
        await wait_until(lambda: b.is_stale == [False])


async def test_a_copy_that_was_made_anew_is_right() -> None:
    """The holder went on alone, came back, and has copied one of its sessions since; then it was killed."""
    async with pair() as (network, a, b):
        a.begin("d")
        await settled(a)
        change(network, "a", is_silent=True, keeps_copies=False, alone_s=1.3)
        await looks()
        network.clock.advance(0.1)
        change(network, "a", is_silent=False, keeps_copies=True, alone_s=0.0, went_without_copy=1)
        async with asyncio.timeout(10):
            await a.put(["d"]).wait()
        change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
        await wait_until(lambda: len(b.inherited) == 2)
        assert b.is_stale == [False, True]
        assert b.inherited == ["d", "c"]


async def test_copies_of_a_holder_that_is_heard_for_long_are_right() -> None:
    """It has copied all again that it changed meanwhile; what it did not change has no newer copy."""
    async with pair() as (network, _, b):
        change(network, "a", is_silent=True, alone_s=1.3)
        await looks()
        change(network, "a", is_silent=False, alone_s=0.0, went_without_copy=1)
        network.clock.advance(11.0)
        await looks()
        change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
        await wait_until(lambda: b.is_stale == [False])


@pytest.mark.parametrize("instance", ["a-0", "a-2"])
async def test_a_copy_of_another_process_than_the_one_that_is_heard_is_refused(instance: str) -> None:
    """It came late, from one that is over, or early, from one that nobody has heard yet: it is not the heard one's."""
    async with pair() as (_, _, b):
        row = CopyRow("c", version_of(b, "c", later=1), b"of another process")
        with pytest.raises(ValueError, match="another process"):
            await b.copies.answer_copy("a", encode_copy_request(CopyRequest(instance, [row])))
        assert version_of(b, "c") == row.version._replace(number=row.version.number - 1)


@pytest.mark.parametrize("later", [-1, 0])
async def test_places_that_come_late_do_not_replace_newer_ones(later: int) -> None:
    """Neither those of a newer row, nor those of a newer copy; the member is not asked for another copy."""
    async with pair() as (_, _, b):
        number = version_of(b, "c").number

        async def move(places: bytes, number: int) -> tuple[str, ...]:
            body = encode_copy_request(CopyRequest("a-1", [PlacesRow(places, ("c",), number)]))
            return decode_copy_answer(await b.copies.answer_copy("a", body)).missing

        def places() -> bytes | None:
            copy = b.copies._held.get("c")
            return None if copy is None else copy.places

        assert await move(b"of before the copy", number + later) == ()
        assert places() is None
        assert await move(b"newer", number + 5) == ()
        assert await move(b"late", number + 5 + later) == ()
        assert places() == b"newer"


async def test_an_older_session_elsewhere_does_not_hold_an_heir_up() -> None:
    """A member missed the claim of a holder that is dead now: it ends what it has when the heir claims."""
    async with pair() as (network, _, b):
        c = Member(network, "c")
        c.sessions.add("c")
        change(network, "c", keeps_copies=False)
        change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
        await wait_until(lambda: b.inherited == ["c"])
        assert c.sessions == set()


async def test_a_session_that_was_given_away_is_looked_for_after_a_while() -> None:
    """It goes on here when its next holder has not got it."""
    async with pair() as (network, a, b):
        epoch = a.ledger.next_epoch()
        a.ledger.yield_to(SessionQuestion("g", epoch))
        a.copies.keep_given("g", "b", epoch=epoch, value=b"given")
        await looks()
        assert a.inherited == []
        network.clock.advance(13.0)
        await wait_until(lambda: a.inherited == ["g"])
        assert b.inherited == []


async def give(network: Network, a: Member, b: Member) -> tuple[Epoch, Epoch]:
    """Let A give its session `c` to B, which never says so; return since when it was A's, and is B's then."""
    before, epoch = a.ledger.epoch_of("c"), b.ledger.next_epoch()
    a.ledger.put("c", Ownership(Stage.CEDED, epoch, given_since=before))
    a.sessions.clear()
    a.copies.sent.leave("c")
    a.copies.keep_given("c", "b", epoch=epoch, value=b"given")
    return before, epoch


async def test_a_session_that_was_given_away_in_vain_is_here_as_before() -> None:
    """An heir of this member that nobody has told of yet is later than that."""
    async with pair() as (network, a, b):
        before, _ = await give(network, a, b)
        network.clock.advance(13.0)
        await wait_until(lambda: a.inherited == ["c"])
        assert a.ledger.epoch_of("c") == before
        assert b.inherited == []


async def test_a_session_that_was_given_away_goes_on_at_an_heir() -> None:
    """The claim of the heir counts although it is earlier than the epoch at which the session was given away."""
    async with pair() as (network, a, b):
        _, epoch = await give(network, a, b)
        change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
        await wait_until(lambda: b.inherited == ["c"])
        assert b.ledger.epoch_of("c") < epoch
        assert a.held == 1
        change(network, "a", is_silent=False, is_dead=False, keeps_copies=True)
        async with asyncio.timeout(10):
            await b.put(["c"]).wait()
        await wait_until(lambda: a.held == 1)
        assert a.ledger.newest_of("c") == b.ledger.epoch_of("c")
        network.clock.advance(13.0)
        await looks()
        assert (a.inherited, b.sessions) == ([], {"c"})


async def test_an_heir_that_was_given_the_session_says_that_it_has_it() -> None:
    """The former holder asks it before it hears its claim."""
    async with pair() as (network, a, b):
        before, epoch = await give(network, a, b)
        b.sessions.add("c")
        b.ledger.begin("c", inherited_epoch(CopyVersion(before, 1), "b"))
        assert b.ledger.epoch_of("c") < epoch
        network.clock.advance(13.0)
        await wait_until(lambda: a.held == 0)
        assert a.inherited == []


async def test_a_member_that_agrees_to_an_heir_takes_nothing_from_the_holder() -> None:
    """What has arrived from it is thrown away, and nothing is fetched from it until the heir has decided."""
    async with pair() as (network, _, b):
        c = Member(network, "c")
        change(network, "c", keeps_copies=False)
        c.ledger.put("c", Ownership(Stage.ARRIVING, c.ledger.next_epoch(), before=b.ledger.newest_of("c")))
        assert not c.copies.has_agreed("a")
        change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
        await wait_until(lambda: b.inherited == ["c"])
        assert c.ledger.figures.lost_total == 1
        assert c.copies.has_agreed("a")
        network.clock.advance(5.0)
        assert not c.copies.has_agreed("a")
