"""Processes of one holder, in the eyes of a keeper: whose each copy is, and which of them may be outdated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from fanout.durable.ownership.copy_messages import (
    CopyRequest,
    CopyRow,
    InheritRequest,
    PlacesRow,
    decode_copy_answer,
    decode_inherit_answer,
    encode_copy_request,
    encode_inherit_request,
)
from fanout.durable.ownership.copy_rules import GIVEN, CopyVersion, Right, inherited_epoch
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import SessionQuestion
from fanout.durable.ownership.ownership import Ownership, Stage
from tests.durable.copying.test_pool_copies import Member, Network, change, looks, settled
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
    copy = member.ledger.held.get(client_id)
    assert copy is not None
    return copy.version._replace(number=copy.version.number + later)


@pytest.mark.parametrize("instance", ["a-1", "a-2"])
async def test_a_copy_is_outdated_if_its_own_process_went_on_alone(instance: str) -> None:
    """Neither does a new process, which is heard well, hide that, nor what it says of itself."""
    async with pair() as (network, a, b):
        network.notices.tell(instance)
        a.sessions.clear()
        change(network, "a", instance="a-2")
        await wait_until(lambda: b.is_stale == [instance == "a-1"])


async def test_copies_are_right_once_the_holder_has_said_so() -> None:
    """Though it went on alone before."""
    async with pair() as (network, _, b):
        network.notices.tell("a-1")
        network.clock.advance(0.1)
        network.notices.vouch("a-1")
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


@pytest.mark.parametrize("instance", ["a-0", "a-1", "a-2"])
async def test_a_request_to_inherit_drops_no_copy_of_a_process_that_is_heard(instance: str) -> None:
    """Whatever process it names: another member may be wrong, or lie."""
    async with pair() as (_, _, b):
        forged = version_of(b, "c", later=1000)
        request = encode_inherit_request(InheritRequest("a", instance, (("c", forged),)))
        assert Right.YES not in decode_inherit_answer(await b.copies.answer_inherit("liar", request))
        assert b.ledger.held.get("c") is not None
        late = CopyVersion(Epoch((1 << 62) - 1, "a"), 1)
        with pytest.raises(ValueError, match="too far ahead"):
            await b.copies.answer_inherit("liar", encode_inherit_request(InheritRequest("a", "a-0", (("c", late),))))


@pytest.mark.parametrize("later", [-1, 0])
async def test_places_that_come_late_do_not_replace_newer_ones(later: int) -> None:
    """Neither those of a newer row, nor those of a newer copy; the member is not asked for another copy."""
    async with pair() as (_, _, b):
        number = version_of(b, "c").number

        async def move(places: bytes, number: int) -> tuple[str, ...]:
            body = encode_copy_request(CopyRequest("a-1", [PlacesRow(places, ("c",), number)]))
            return decode_copy_answer(await b.copies.answer_copy("a", body)).missing

        def places() -> bytes | None:
            copy = b.ledger.held.get("c")
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
        a.ledger.keep_given("g", "b", epoch=epoch, value=b"given")
        await looks()
        assert a.inherited == []
        network.clock.advance(13.0)
        await wait_until(lambda: a.inherited == ["g"])
        assert b.inherited == []


async def test_a_session_that_was_given_to_a_former_holder_is_kept() -> None:
    """That one has to have its former copies forgotten, from before it gave the session away."""
    async with pair() as (network, a, b):
        change(network, "b", is_silent=True, keeps_copies=False)
        await looks()
        a.sessions.discard("c")
        a.copies.sent.put({"c": None}, done=lambda: None)  # B has a copy still
        epoch = b.ledger.next_epoch()
        b.ledger.keep_given("c", "a", epoch=epoch, value=b"given")
        a.ledger.begin("c", epoch)
        a.sessions.add("c")
        change(network, "b", is_silent=False, keeps_copies=True)
        await wait_until(lambda: a.copies.sent.are_right_at("b"))
        assert version_of(b, "c") == CopyVersion(epoch, GIVEN)


async def give(network: Network, a: Member, b: Member) -> tuple[Epoch, Epoch]:
    """Let A give its session `c` to B, which never says so; return since when it was A's, and is B's then."""
    before, epoch = a.ledger.epoch_of("c"), b.ledger.next_epoch()
    a.ledger.put("c", Ownership(Stage.CEDED, epoch, given_since=before))
    a.sessions.clear()
    a.copies.sent.leave("c")
    a.ledger.keep_given("c", "b", epoch=epoch, value=b"given")
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
    """What has arrived from it is thrown away, nothing is fetched, and no copy kept, until the heir has decided."""
    async with pair() as (network, _, b):
        c = Member(network, "c")
        change(network, "c", keeps_copies=False)
        asking = Ownership(Stage.ASKING, c.ledger.next_epoch(), before=b.ledger.newest_of("c"))
        c.ledger.put("c", asking)
        c.ledger.put("c", replace(asking, stage=Stage.ARRIVING))
        version = version_of(b, "c")
        assert not c.ledger.has_agreed("c", "a")
        b.refuses["c"] = "its messages are not held"
        change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
        await wait_until(lambda: b.copies.figures().sessions_not_inherited_total == 1)
        assert c.ledger.figures.sessions_lost_total == 1
        assert c.ledger.has_agreed("c", "a")

        async def copy(client_id: str) -> None:
            row = CopyRow(client_id, version._replace(number=version.number + 1), b"newer")
            await c.copies.answer_copy("a", encode_copy_request(CopyRequest("a-1", [row])))

        await copy("d")
        with pytest.raises(ValueError, match="may go on"):
            await copy("c")
        assert c.held == 1
        network.clock.advance(5.0)
        assert not c.ledger.has_agreed("c", "a")
        await copy("c")
        assert c.held == 2


async def test_an_heir_that_says_so_has_decided() -> None:
    """A copy of the former holder is answered with that, and not refused."""
    async with pair() as (network, _, b):
        c = Member(network, "c")
        change(network, "c", keeps_copies=False)
        change(network, "a", is_silent=True, is_dead=True, keeps_copies=False)
        await wait_until(lambda: b.inherited == ["c"])
        assert not c.ledger.has_agreed("c", "a")
