"""Sessions that move between members in one process: calls, time and memory do not depend on single clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import structlog
from xxhash import xxh3_64_intdigest

from fanout.durable.moving import arrivals, hand_over, move, own_markers
from fanout.durable.moving.session_pool import ANSWER_S, SessionPool
from fanout.durable.ownership import ledger
from fanout.durable.ownership.copy_messages import InheritRequest
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, RecordedEpochs
from fanout.durable.ownership.move_messages import (
    CLAIM,
    COMMIT,
    FETCH,
    OFFER,
    PIECE,
    TAKE,
    ClaimQuestion,
    Fetched,
    Holding,
    Piece,
    SessionQuestion,
    TakeQuestion,
)
from fanout.durable.ownership.ownership import Answer, Owner, Reply
from fanout.durable.ownership.ports import OtherMemberState
from fanout.pool.call_batches import ITEMS_MAX
from fanout.pool.membership import AskFailed, AskFailure
from fanout.server.base.ports import SessionFound
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.exported_session import ExportedSubscription
from tests.durable.alone import WithoutNotices
from tests.support.waiting import wait_until

DEAD_AFTER_S = 0.5
VERDICT_S = 0.5
"""Time after which a silent member has answered or is dead, in addition."""
NOBODY = Owner("", superuser=False, anyone=True, since=0)


def now_s() -> float:
    """Return the virtual time."""
    return asyncio.get_running_loop().time()


class LoopClock:
    """The virtual time of the event loop."""

    monotonic = staticmethod(now_s)

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return int(now_s() * 1e9)


class Member(WithoutNotices):
    """A member whose sessions are texts, and whose links are a list of markers."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.sessions: dict[str, bytes] = {}
        self.owners: dict[str, Owner] = {}
        """Of the sessions whose owner matters."""
        self.read_values: dict[str, bytes] = {}
        self.asked_early = 0
        self.subscriptions = 1
        self.undecided: set[str] = set()
        self.connected: set[str] = set()
        self.rounds = 0
        self.collecting: set[str] = set()
        self.refuses: set[str] = set()
        self.ends = b""
        """Names of the places at which its streams end."""
        self.known: set[bytes] = set()
        """Places of other members after which it holds everything."""
        self.to_come: set[bytes] = set()
        """Places that its streams have not passed yet."""
        self.is_isolated = False
        self.is_fenced = False
        self.network = network
        self.markers = 0
        self.busy_with_markers: int | None = 0
        """How often no marker can be sent; None for never."""
        self.pool = SessionPool(
            node=name,
            host=self,
            markers=self,
            others=self,
            clock=LoopClock(),
            logger=structlog.get_logger(),
            has_access=True,
            dead_after_s=network.dead_after_s,
        )

    # SessionHost.

    def owner_of(self, client_id: str) -> Owner | None:
        """Return the owner of a session, nobody for most."""
        return self.owners.get(client_id, NOBODY) if client_id in self.sessions else None

    def own(self, client_id: str, *, since: int) -> None:
        """Note since when an owner has a session."""
        owner = self.owners.get(client_id)
        if owner is not None and not owner.since:
            self.owners[client_id] = owner._replace(since=since)

    def may_end(self, client: Owner, owner: Owner) -> bool:
        """Let a user end its own sessions, and those of nobody."""
        return owner.user in ("", client.user)

    def copy_again(self, client_id: str) -> bool:
        """There are no copies."""
        return False

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self.sessions)

    def has(self, client_id: str) -> bool:
        """Return whether a session is here."""
        return client_id in self.sessions

    def promise(self, question: TakeQuestion) -> tuple[ExportedSubscription, ...] | Reply:
        """Promise every session but to user `other`."""
        if question.user == "other":
            return Reply.REFUSED
        options = SubscriptionOptions(1)
        return tuple(ExportedSubscription(b"t/%d/#" % number, options) for number in range(self.subscriptions))

    def note_place(self, client_ids: Sequence[str], link: str, marker: str) -> None:
        """Do without places."""

    def export(self, client_id: str, markers: Mapping[str, str]) -> Fetched:
        """Return the text."""
        if client_id in self.undecided:
            return Fetched("later")
        value = self.sessions[client_id]
        # Markers that have passed here.
        places = b"" if markers else self.ends
        return Fetched("exact" if markers else "inexact", b"" if len(value) > 10_000 else value, places)

    def piece(self, client_id: str, offset: int, *, bytes_max: int) -> Piece:
        """Return a piece of a long text; the first ones are not there yet."""
        self.asked_early += 1
        if self.asked_early < 3:
            return Piece(is_there=True)
        value = self.sessions[client_id]
        return Piece(True, len(value), xxh3_64_intdigest(value), value[offset : offset + min(bytes_max, 100_000)])

    def take_back(self, client_id: str) -> None:
        """Do nothing: sessions are never away."""

    def copy_of_given(self, client_id: str, *, to: str) -> bytes:
        """There are no copies."""
        return b""

    def release(self, client_id: str) -> None:
        """Remove a session."""
        del self.sessions[client_id]

    def let_go(self, client_id: str) -> None:
        """Do nothing: there is no disk."""

    async def on_disk(self) -> None:
        """Do nothing: there is no disk."""

    def end(self, client_id: str) -> None:
        """Remove a session."""
        del self.sessions[client_id]

    def absent(self) -> Sequence[tuple[str, str, bool]]:
        """Return the sessions without a connection."""
        return [(client_id, "", False) for client_id in self.sessions if client_id not in self.connected]

    def send_away(self, count: int, *, to: Sequence[str]) -> int:
        """Disconnect some clients."""
        self.rounds += 1
        for client_id in list(self.connected)[:count]:
            self.connected.discard(client_id)
        return len(self.connected)

    async def collect(self, client_id: str, subscriptions: Sequence[ExportedSubscription]) -> None:
        """Note that messages are collected."""
        assert subscriptions
        self.collecting.add(client_id)

    def note_collected(self, client_ids: Sequence[str], link: str) -> None:
        """Do without places."""

    async def read(self, client_id: str, value: bytes) -> None:
        """Note the text."""
        assert client_id in self.collecting
        self.read_values[client_id] = value

    def follows(self, places: bytes) -> bool:
        """Hold what follows some places."""
        return places in self.known

    def awaits(self, places: bytes) -> bool:
        """Be behind some places."""
        return places in self.to_come

    async def follow(self, client_id: str, places: bytes) -> bool:
        """Collect nothing."""
        return self.follows(places)

    def may_adopt(self, client_id: str, question: TakeQuestion, *, is_offered: bool = False) -> bool:
        """Take every session but some, unless it is offered."""
        return is_offered or client_id not in self.refuses

    def adopt(self, client_id: str, *, exact: bool) -> bool:
        """Take a session."""
        self.sessions[client_id] = self.read_values[client_id]
        return True

    def stop_collecting(self, client_id: str) -> None:
        """Note that nothing more is collected."""
        self.collecting.discard(client_id)

    def serve_until(self, until_s: float) -> None:
        """Do nothing: nobody is served here."""

    def raise_fence(self) -> int:
        """End all connections."""
        self.is_fenced = True
        ended, self.connected = len(self.connected), set()
        return ended

    def lower_fence(self) -> None:
        """Note that sessions are served."""
        self.is_fenced = False

    # Markers.

    @property
    def come_back(self) -> bool:
        """Say so where they do."""
        return self.busy_with_markers is not None

    def send(self) -> Mapping[str, str]:
        """Send a marker, which passes at all members at once."""
        if self.busy_with_markers is None:
            return {}
        if self.busy_with_markers:
            self.busy_with_markers -= 1
            return {}
        self.markers += 1
        marker = f"{self.name} {self.markers}"
        for member in self.network.members.values():
            if self.network.dropped[member.name]:
                self.network.dropped[member.name] -= 1
                continue
            asyncio.get_running_loop().call_soon(member.pool.marker_passed, "plant", self.name, marker)
        return {"plant": marker}

    # Others.

    isolated_after_s = 60.0
    instance = "process"

    @property
    def are_known(self) -> bool:
        """Say so always."""
        return True

    def states(self) -> Sequence[OtherMemberState]:
        """Return the others."""
        return [
            OtherMemberState(
                name,
                is_silent=name in self.network.silent,
                is_dead=name in self.network.dead,
                is_ready=name not in self.network.silent | self.network.dead,
                is_empty=name in self.network.empty,
            )
            for name in self.network.members
            if name != self.name
        ]

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Call another member of the process."""
        return await self.network.call(self.name, name, path, body)

    def find(self, client_id: str, user: str = "", *, clean: bool = False) -> asyncio.Future[SessionFound]:
        """Find the session of a client."""
        return self.pool.find(client_id, user=user, superuser=False, clean=clean)


class Network:
    """Members that call each other, and what is wrong with the calls."""

    def __init__(self, *, dead_after_s: float) -> None:
        self.dead_after_s = dead_after_s
        self.members: dict[str, Member] = {}
        self.silent: set[str] = set()
        self.dead: set[str] = set()
        self.empty: set[str] = set()
        self.calls: list[tuple[str, int]] = []
        self.answers: list[tuple[str, int]] = []
        self.broken: Callable[[str, str], bool] = lambda name, path: False
        """Whether a call to a member brings nothing."""
        self.lost: Callable[[str, str], bool] = lambda name, path: False
        """Whether the answer of a member is lost."""
        self.hangs: set[str] = set()
        self.forged: dict[str, bytes] = {}
        """Path to the answer in place of the member's own."""
        self.dropped: Counter[str] = Counter()
        """Member to how many of the next markers do not come to it."""

    async def call(self, source: str, target: str, path: str, body: bytes) -> bytes:
        """Carry a call."""
        self.calls.append((path, len(body)))
        if target in self.hangs:
            await asyncio.sleep(60)
        await asyncio.sleep(0)
        if self.broken(target, path):
            raise AskFailed(AskFailure.UNREACHABLE)
        pool = self.members[target].pool
        handler = pool.handlers[path]
        answer = self.forged.get(path) or await handler(source, body)
        self.answers.append((path, len(answer)))
        if self.lost(target, path):
            raise AskFailed(AskFailure.TIMEOUT)
        return answer


@asynccontextmanager
async def members(*names: str, dead_after_s: float = DEAD_AFTER_S) -> AsyncIterator[tuple[Network, list[Member]]]:
    """Give members that know each other."""
    network = Network(dead_after_s=dead_after_s)
    network.members = {name: Member(name, network) for name in names}
    clocks = [member.pool.ledger.epochs for member in network.members.values()]
    for clock in clocks:  # as members do when they answer each other; else one may be a millisecond behind
        clock.hear(max(other.reading for other in clocks))
    running = [asyncio.create_task(member.pool.run()) for member in network.members.values()]
    try:
        yield network, list(network.members.values())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def come_until_served(member: Member, client_id: str) -> None:
    """Let a client connect, some time after each refusal, until it gets its session."""
    while client_id not in member.sessions and await member.find(client_id) is not SessionFound.HERE:
        await asyncio.sleep(0.5)


@pytest.mark.parametrize(
    ("count", "moves_max"), [(700, 600), pytest.param(100_000, 3_000, marks=pytest.mark.long)], ids=["few", "many"]
)
async def test_many_sessions_move_in_few_calls(monkeypatch: pytest.MonkeyPatch, count: int, moves_max: int) -> None:
    """All at once, more than may: calls depend on their sizes, and each session is at one place."""
    monkeypatch.setattr(arrivals, "_MOVES_MAX", moves_max)
    async with members("a", "b", "c", dead_after_s=60.0) as (_, (a, b, c)):
        a.sessions = {f"client-{number}": b"value" for number in range(count)}
        async with asyncio.timeout(200):
            await asyncio.gather(*[come_until_served(b, client_id) for client_id in list(a.sessions)])
        assert (len(a.sessions), len(b.sessions), len(c.sessions)) == (0, count, 0)
        assert b.pool.figures.sessions_moved_in_total == count
        assert (b.pool.figures.sessions_inexact_total, b.pool.figures.sessions_lost_total) == (0, 0)
        kinds = b.pool.calls_total
        assert kinds["take"] <= 6 * (count // ITEMS_MAX + 10)
        assert kinds["fetch"] <= 4 * (count // ITEMS_MAX + 10)
        assert kinds["commit"] <= 4 * (count // ITEMS_MAX + 10)


@pytest.mark.parametrize(
    ("name", "dropped", "inexact"), [("a", 2, 0), ("a", 1000, 1), ("b", 1000, 1)], ids=["some", "all", "here"]
)
async def test_a_marker_that_is_late_is_waited_for(
    name: str, dropped: int, inexact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are sent meanwhile: a busy holder, or one whose primary dropped some, still gives the session exactly.

    When none comes to the holder or to the member that takes the session, it moves all the same.
    """
    for module in (own_markers, move):
        monkeypatch.setattr(module, "MARKER_S", 0.1)
    monkeypatch.setattr(move, "_EXACT_S", 0.6)
    async with members("a", "b") as (network, (a, b)):
        a.sessions["c"] = b"1"
        network.dropped[name] = dropped
        b.find("c")
        await wait_until(lambda: "c" in b.sessions)
        assert "c" not in a.sessions
        assert b.pool.figures.sessions_inexact_total == inexact


@pytest.mark.parametrize(("busy", "inexact"), [(3, 0), (None, 1)])
async def test_a_marker_is_sent_as_soon_as_that_is_possible(busy: int | None, inexact: int) -> None:
    """As when many are under way, or a link compares its replica; nobody waits where none can ever be sent."""
    async with members("a", "b") as (_, (a, b)):
        a.sessions["c"] = b"1"
        b.busy_with_markers = busy
        assert await b.find("c") is SessionFound.HERE
        assert b.pool.figures.sessions_inexact_total == inexact


@pytest.mark.parametrize("comes", ["at once", "later", "never", "is to come"])
async def test_a_session_without_a_marker_goes_on_after_the_place_of_its_holder(
    comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is exact as soon as the member that takes it holds what follows; it moves inexactly if that never comes.

    While the streams there are behind the place, it stays: what they bring would come twice.
    """
    monkeypatch.setattr(move, "_EXACT_S", 0.6)
    async with members("a", "b") as (_, (a, b)):
        a.sessions["c"], a.ends, b.busy_with_markers = b"1", b"place", None
        if comes == "at once":
            b.known.add(b"place")
        elif comes == "later":
            asyncio.get_running_loop().call_later(0.3, b.known.add, b"place")
        elif comes == "is to come":
            b.to_come.add(b"place")
            assert await b.find("c") is SessionFound.UNKNOWN
            await wait_until(lambda: not b.collecting)
            assert (list(a.sessions), list(b.sessions)) == (["c"], [])
            b.to_come.clear()
            b.known.add(b"place")
        await wait_until(lambda: b.find("c").done() and "c" in b.sessions)
        assert b.pool.figures.sessions_inexact_total == (comes == "never")


async def test_a_client_that_nobody_knows_begins() -> None:
    """At once, when all members that live have answered."""
    async with members("a", "b", "c") as (network, (a, _, _)):
        assert await a.find("new") is SessionFound.NONE
        network.silent.add("b")
        assert await a.find("new2") is SessionFound.UNKNOWN
        network.dead.add("b")
        assert await a.find("new3") is SessionFound.NONE


async def test_nobody_waits_for_a_member_that_has_given_its_sessions_away() -> None:
    """It says so before it stops; one that is only silent, or broken, may have some still."""
    async with members("a", "b") as (network, (a, b)):
        b.sessions["x"] = b"1"
        network.silent.add("b")
        assert await a.find("x") is SessionFound.UNKNOWN
        network.silent.clear()
        network.broken = lambda name, _: name == "b"
        assert await a.find("x") is SessionFound.UNKNOWN
        network.empty.add("b")
        assert await a.find("y") is SessionFound.NONE
        network.silent.add("b")
        assert await a.find("z") is SessionFound.NONE


async def test_a_session_is_taken_though_another_member_is_silent() -> None:
    """Who has it says so."""
    async with members("a", "b", "c") as (network, (a, b, _)):
        b.sessions["x"] = b"1"
        network.silent.add("c")
        assert await a.find("x") is SessionFound.HERE
        assert (a.sessions, b.sessions) == ({"x": b"1"}, {})
        assert a.collecting == set()


async def test_a_client_waits_for_a_silent_member() -> None:
    """Until it answers or is dead, and then gets what follows; others are not kept waiting."""
    async with members("a", "b", "c") as (network, (a, b, c)):
        b.sessions |= {"x": b"1"}
        c.sessions["z"] = b"1"
        network.silent.add("b")
        waiting = a.find("x"), a.find("new")
        assert await a.find("z") is SessionFound.HERE
        await asyncio.sleep(ANSWER_S + 0.1)
        assert not any(one.done() for one in waiting)
        network.silent.clear()
        assert [await one for one in waiting] == [SessionFound.HERE, SessionFound.NONE]
        network.silent.add("b")
        waiting = a.find("y"), a.find("newer")
        await asyncio.sleep(ANSWER_S + 0.1)
        network.dead.add("b")
        assert [await one for one in waiting] == [SessionFound.NONE, SessionFound.NONE]
        assert a.pool.figures.clients_later_total == 0


async def test_a_member_that_is_heard_again_while_the_others_answer_is_asked_too() -> None:
    """It was dead when they were asked, and may have the session."""
    async with members("a", "b", "c") as (network, (a, b, _)):
        b.sessions["x"] = b"1"
        network.dead.add("b")
        finding = a.find("x")
        await asyncio.sleep(0)
        network.dead.clear()
        assert await finding is SessionFound.HERE
        assert a.sessions == {"x": b"1"}


async def test_nothing_is_fetched_from_a_member_whose_sessions_may_go_on_elsewhere() -> None:
    """The client comes again, and gets its session from the heir, or from the holder once there is none."""
    async with members("a", "b") as (_, (a, b)):
        b.sessions["x"] = b"1"
        a.pool.ledger.agree("x", InheritRequest("b", "", ()), NO_EPOCH, for_s=10.0)
        assert await a.find("x") is SessionFound.UNKNOWN
        assert (a.sessions, b.sessions) == ({}, {"x": b"1"})


async def test_a_client_waits_for_a_silent_member_no_longer_than_a_verdict_takes() -> None:
    """A member that is never heard, nor found dead, may have its session still."""
    async with members("a", "b") as (network, (a, _)):
        network.silent.add("b")
        begun_s = now_s()
        assert await a.find("x") is SessionFound.UNKNOWN
        assert now_s() - begun_s == pytest.approx(DEAD_AFTER_S + VERDICT_S)
        assert a.pool.figures.clients_later_total == 1


async def test_a_client_waits_for_a_member_at_which_nothing_listens() -> None:
    """It was killed just now, and is not silent yet; a client that comes once more waits instead of the former one."""
    async with members("a", "b") as (network, (a, _)):
        network.broken = lambda name, _: name == "b"
        former = a.find("x")
        await asyncio.sleep(ANSWER_S + 0.1)
        assert not former.done()
        waiting = a.find("x")
        assert await former is SessionFound.UNKNOWN
        network.silent.add("b")
        await asyncio.sleep(ANSWER_S + 0.1)
        network.dead.add("b")
        assert await waiting is SessionFound.NONE


async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    """So is one that connects elsewhere meanwhile: its newer session stays there."""
    async with members("a", "b", "c") as (network, (a, _, c)):
        network.silent.add("b")
        left, elsewhere = a.find("x"), a.find("y")
        await wait_until(lambda: {"x", "y"} <= a.pool.ledger.moves.keys())
        left.cancel()
        c.sessions["y"] = b"new"
        c.pool.began("y")
        assert await elsewhere is SessionFound.UNKNOWN
        network.silent.clear()
        assert (a.sessions, c.sessions) == ({}, {"y": b"new"})
        assert await a.find("x") is SessionFound.NONE


async def test_clients_that_wait_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are; when the member is dead they go on a few at a time."""
    monkeypatch.setattr(arrivals, "_MOVES_MAX", 10)
    async with members("a", "b", "c", dead_after_s=60.0) as (network, (a, _, c)):
        c.sessions["z"] = b"1"
        network.silent.add("b")

        async def come(client_id: str) -> SessionFound:
            while (choice := await a.find(client_id)) is SessionFound.UNKNOWN:  # too many that do not wait yet
                await asyncio.sleep(0.01)
            return choice

        waiting = [asyncio.create_task(come(f"client-{number}")) for number in range(50)]
        async with asyncio.timeout(60):
            await wait_until(lambda: len(a.pool.ledger.moves) >= 10)
            assert await come("z") is SessionFound.HERE
            assert not any(one.done() for one in waiting)
            network.dead.add("b")
            assert {*await asyncio.gather(*waiting)} == {SessionFound.NONE}


async def test_another_users_session_stays() -> None:
    """And the client is told so."""
    async with members("a", "b") as (_, (a, b)):
        b.sessions["x"] = b"1"
        assert await a.find("x", user="other") is SessionFound.OF_ANOTHER_USER
        assert b.sessions == {"x": b"1"}
        assert await a.find("x") is SessionFound.HERE


async def test_nobody_waits_longer_than_that() -> None:
    """Whatever a member does that is not known to be silent: a client waits 300 ms."""
    async with members("a", "b") as (network, (a, _)):
        network.hangs.add("b")
        begun_s = now_s()
        assert await a.find("x") is SessionFound.UNKNOWN
        assert now_s() - begun_s == pytest.approx(ANSWER_S)
        assert a.pool.figures.clients_later_total == 1


async def test_a_session_with_messages_under_way_comes_later() -> None:
    """The client is refused in time, and finds its session when the primary has answered them."""
    async with members("a", "b") as (_, (a, b)):
        b.sessions["x"] = b"1"
        b.undecided.add("x")
        assert await a.find("x") is SessionFound.UNKNOWN
        b.undecided.clear()
        await wait_until(lambda: a.sessions == {"x": b"1"})
        assert b.sessions == {}


async def test_an_answer_to_commit_that_is_lost_is_asked_for_again() -> None:
    """The session is nowhere else by then."""
    async with members("a", "b") as (network, (a, b)):
        b.sessions["x"] = b"1"
        lost = 2

        def is_lost(_: str, path: str) -> bool:
            nonlocal lost
            lost -= path == COMMIT.path
            return path == COMMIT.path and lost >= 0

        network.lost = is_lost
        a.find("x")
        await wait_until(lambda: a.sessions == {"x": b"1"})
        assert b.sessions == {}
        assert a.pool.figures.sessions_lost_total == 0


AT_A, AT_B, AT_C = Epoch(1, "a"), Epoch(2, "b"), Epoch(3, "c")


@pytest.mark.parametrize(
    ("of_b", "of_c", "dead", "is_at"),
    [
        (None, None, "", "a"),
        (RecordedEpochs(AT_B), None, "", "b"),
        (RecordedEpochs(AT_B, AT_C), RecordedEpochs(AT_C), "", "c"),
        (RecordedEpochs(AT_B, AT_C), None, "", "b"),
        (None, None, "b", None),
        (None, None, "c", "a"),
        (None, RecordedEpochs(Epoch(2, "!c")), "", "c"),
        (None, RecordedEpochs(Epoch(4, "c")), "", "c"),
    ],
    ids=["nowhere", "came", "went on", "came, and went nowhere", "taker dead", "third dead", "inherited", "anew"],
)
async def test_a_session_that_was_given_away_goes_on_after_a_restart_if_it_is_nowhere(
    of_b: RecordedEpochs | None, of_c: RecordedEpochs | None, dead: str, is_at: str | None
) -> None:
    """All members were killed while it went from A to B. If B does not come back, nobody knows what it did with it."""
    async with members("a", "b", "c", dead_after_s=60.0) as (network, everybody):
        network.silent |= {"b"} | ({dead} if dead else set())
        records = dict(zip("abc", (RecordedEpochs(AT_A, AT_B), of_b, of_c), strict=True))
        for member in everybody:
            record = records[member.name]
            if record is not None:
                member.sessions["x"] = member.name.encode()
                member.pool.returned({"x": record})
        a, _, c = everybody
        await asyncio.sleep(1.0)
        assert not a.pool.may_resume
        assert dead == "c" or await c.find("y") is SessionFound.UNKNOWN
        if of_c is None and dead != "c":
            assert await c.find("x") is SessionFound.UNKNOWN
        network.silent.clear()
        if dead:
            network.silent.add(dead)
            network.dead.add(dead)
        await wait_until(lambda: all(one.pool.may_resume for one in everybody if one.name != dead))
        assert [one.name for one in everybody if "x" in one.sessions] == ([] if is_at is None else [is_at])
        assert [one.name for one in everybody if one.pool.ledger.is_here("x")] == ([] if is_at is None else [is_at])
        if is_at is not None:
            finder = next(one for one in everybody if one.name not in (is_at, dead))
            await come_until_served(finder, "x")
            assert finder.sessions["x"] == is_at.encode()


async def test_a_session_that_is_to_come_does_not_once_its_former_holder_has_asked_for_it() -> None:
    """A was killed when it had given it to B, which has not heard of that, and asks again and again."""
    async with members("a", "b") as (network, (a, b)):
        a.sessions["x"] = b"1"
        network.lost = lambda name, path: path == COMMIT.path
        found = b.find("x")
        await wait_until(lambda: "x" not in a.sessions)
        since, given = a.pool.ledger.recorded_epochs("x")
        assert (since, given.member) == (NO_EPOCH, "b")
        again = network.members["a"] = Member("a", network)
        again.sessions["x"] = b"1"
        again.pool.returned({"x": RecordedEpochs(Epoch(1, "a"), given)})
        network.lost = lambda name, path: False
        running = asyncio.create_task(again.pool.run())
        await wait_until(lambda: again.pool.may_resume)
        assert again.pool.ledger.is_here("x")
        assert await found is SessionFound.UNKNOWN
        assert "x" not in b.sessions
        await come_until_served(b, "x")
        assert "x" not in again.sessions
        running.cancel()


async def test_what_nobody_commits_goes_on_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that fetched and fell silent does not keep it; the holder's own client need not even wait for that."""
    for module in (move, ledger):
        monkeypatch.setattr(module, "PROMISE_S", 0.5)
    async with members("a", "b", "c") as (network, (a, b, c)):
        b.sessions["x"] = b"1"
        network.broken = lambda _, path: path == COMMIT.path
        assert await a.find("x") is SessionFound.UNKNOWN
        b.pool.began("x")  # its client is back
        network.broken = lambda _, path: False
        await wait_until(lambda: not a.collecting)
        assert (a.sessions, b.sessions) == ({}, {"x": b"1"})
        assert await c.find("x") is SessionFound.HERE
        assert (b.sessions, c.sessions) == ({}, {"x": b"1"})


async def test_a_session_that_may_not_come_stays() -> None:
    """As one over the limits of the member; the holder takes it back, or gives it to another one."""
    async with members("a", "b", "c") as (_, (a, b, c)):
        b.sessions["x"] = b"1"
        a.refuses.add("x")
        assert await a.find("x") is SessionFound.UNKNOWN
        assert b.sessions == {"x": b"1"}
        assert await c.find("x") is SessionFound.HERE


async def test_a_claim_ends_older_sessions() -> None:
    """Once the member is heard that was away; a session that is newer ends the claimant's instead."""
    async with members("a", "b") as (network, (a, b)):
        b.sessions["x"] = b"old"
        network.broken = lambda name, _: name == "b"
        a.sessions["x"] = b"new"
        a.pool.began("x")
        await wait_until(lambda: CLAIM.path in [path for path, _ in network.calls])
        assert b.sessions == {"x": b"old"}
        network.broken = lambda name, _: False
        await wait_until(lambda: b.sessions == {})
        assert b.pool.figures.sessions_ended_total == 1
        assert a.sessions == {"x": b"new"}


async def test_a_member_that_claims_at_the_last_epoch_there_is_breaks_nothing() -> None:
    """Its claim is refused, and so is its answer: sessions move between the others as before."""
    last, owner = Epoch((1 << 62) - 1, "liar"), Owner("", superuser=False, anyone=True, since=1)
    async with members("a", "b", "c") as (network, (a, b, c)):
        a.sessions["x"] = b"1"
        claim = CLAIM.encode([ClaimQuestion("x", last, owner)])
        take = TAKE.encode([TakeQuestion("x", last, "", superuser=False, anyone=True)])
        for path, body in ((CLAIM.path, claim), (TAKE.path, take), (OFFER.path, take)):
            with pytest.raises(ValueError, match="too far ahead"):
                await network.call("liar", "a", path, body)
        assert a.sessions == {"x": b"1"}
        assert await b.find("x") is SessionFound.HERE
        assert await a.find("x") is SessionFound.HERE
        network.forged[TAKE.path] = TAKE.encode_answers([Holding(Answer(Reply.NONE, last), ())])
        assert await c.find("y") is SessionFound.UNKNOWN
        network.forged.clear()
        assert await c.find("x") is SessionFound.HERE
        assert c.sessions == {"x": b"1"}


async def test_a_request_with_more_questions_than_members_ask_is_refused() -> None:
    """Before anything is done; a megabyte holds some twenty thousand."""
    async with members("a", "b") as (network, (a, _)):
        body = COMMIT.encode([SessionQuestion("x", Epoch(1, "b"))] * (ITEMS_MAX + 1))
        with pytest.raises(ValueError, match="too many"):
            await network.call("b", "a", COMMIT.path, body)
        assert a.sessions == {}


async def test_a_member_that_leaves_gives_its_sessions_away() -> None:
    """To the ready ones in turn, at the pace at which its clients go; it takes nobody any more."""
    async with members("a", "b", "c", "d") as (network, (a, b, c, d)):
        network.silent.add("d")
        a.sessions = {f"client-{number}": b"value" for number in range(300)}
        a.connected = {f"client-{number}" for number in range(100)}
        leaving = asyncio.create_task(a.pool.hand_over(clients_per_s=50))
        await wait_until(lambda: len(a.sessions) <= 100)
        assert a.pool.is_leaving
        assert len(a.connected) > 20
        await leaving
        assert (a.sessions, a.connected, d.sessions) == ({}, set(), {})
        assert len(b.sessions) + len(c.sessions) == 300
        assert min(len(b.sessions), len(c.sessions)) > 100


async def test_quotas_do_not_hold_for_what_a_member_that_leaves_offers() -> None:
    """Its sessions would be lost; the same session does not come for a client."""
    async with members("a", "b") as (_, (a, b)):
        a.sessions["x"] = b"1"
        b.refuses.add("x")
        assert await b.find("x") is SessionFound.UNKNOWN
        async with asyncio.timeout(60):
            await a.pool.hand_over(clients_per_s=100)
        assert (a.sessions, b.sessions) == ({}, {"x": b"1"})


async def test_a_session_is_offered_again_though_it_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member that asked for it has given up when the answer comes too late, as on a busy machine."""
    monkeypatch.setattr(hand_over, "_OFFERED_S", 0.2)
    async with members("a", "b", "c") as (network, (a, b, c)):
        a.sessions["x"] = b"1"
        lost = Counter[str]()

        def is_lost(name: str, path: str) -> bool:
            lost[path] += path == TAKE.path and name == "a"
            return path == TAKE.path and name == "a" and lost[path] < 3

        network.lost = is_lost
        async with asyncio.timeout(60):
            await a.pool.hand_over(clients_per_s=100)
        assert (a.sessions, b.sessions, c.sessions) == ({}, {"x": b"1"}, {})


async def test_a_member_that_leaves_stays_until_all_have_asked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they hear is that it has no session any more; who has not asked since it gave the last one away waits."""
    monkeypatch.setattr(hand_over, "_ROUND_S", 0.0)
    monkeypatch.setattr(hand_over, "_GOODBYE_S", 3600.0)
    async with members("a", "b") as (_, (a, _)):
        a.sessions["x"] = b"1"
        looks: list[float] = []

        def have_asked(*, since_s: float) -> bool:
            looks.append(since_s)
            return len(looks) == 5

        monkeypatch.setattr(a, "have_asked", have_asked)
        await a.pool.hand_over(clients_per_s=100)
        assert (len(looks), len({*looks})) == (5, 1)


async def test_a_member_that_leaves_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody who could take anything."""
    monkeypatch.setattr(hand_over, "_STUCK_S", 3600.0)
    async with members("a", "b") as (network, (a, _)):
        network.dead.add("b")
        a.sessions["x"] = b"1"
        async with asyncio.timeout(60):
            await a.pool.hand_over(clients_per_s=100)
        assert a.sessions == {"x": b"1"}


async def test_a_member_that_leaves_waits_for_one_that_is_silent_for_a_moment() -> None:
    """A busy one is, now and then: the sessions would be lost."""
    async with members("a", "b") as (network, (a, b)):
        network.silent.add("b")
        a.sessions["x"] = b"1"
        a.connected.add("y")
        leaving = asyncio.create_task(a.pool.hand_over(clients_per_s=100))
        rounds = a.rounds
        await wait_until(lambda: leaving.done() or a.rounds > rounds + 3)
        assert not leaving.done()
        assert a.connected == {"y"}  # there is nobody yet to whom it could be sent
        network.silent.clear()
        async with asyncio.timeout(10):
            await leaving
        assert (a.sessions, b.sessions) == ({}, {"x": b"1"})


async def test_an_isolated_member_serves_no_durable_session() -> None:
    """The others may take it for dead; it yields what they began meanwhile, and serves the rest when they answer."""
    async with members("a", "b") as (network, (a, b)):
        for client_id in ("x", "y"):
            a.sessions[client_id] = b"old"
            a.pool.began(client_id)
        a.connected = {"x"}
        assert (a.pool.may_resume, a.pool.is_fenced) == (True, False)
        network.silent.add("b")
        a.is_isolated = True
        assert (a.pool.may_resume, a.pool.is_fenced, a.is_fenced, a.connected) == (False, True, True, set())
        network.broken = lambda name, _: name == "a"
        b.sessions["x"] = b"new"
        b.pool.began("x")
        a.is_isolated = False
        await asyncio.sleep(0.3)
        assert (a.is_fenced, a.pool.may_resume) == (True, False)
        network.silent.clear()
        await wait_until(lambda: not a.is_fenced)
        assert (a.sessions, b.sessions) == ({"y": b"old"}, {"x": b"new"})
        await wait_until(lambda: a.pool.may_resume)
        assert a.pool.figures.fences_total == 1


async def test_a_long_session_comes_in_pieces() -> None:
    """A client that comes again waits for the same; pieces whose call brings nothing are asked for again."""
    async with members("a", "b") as (network, (a, b)):
        value = a.sessions["x"] = bytes(range(256)) * 8_000
        failed = Counter[str]()

        def is_lost(name: str, path: str) -> bool:
            failed[path] += 1
            return path == PIECE.path and failed[path] % 3 == 1

        network.lost = is_lost
        first = b.find("x")
        assert await first is SessionFound.UNKNOWN
        assert [*await asyncio.gather(b.find("x"), b.find("x"))] == [SessionFound.UNKNOWN] * 2
        await wait_until(lambda: "x" in b.sessions)
        assert (a.sessions, b.sessions) == ({}, {"x": value})
        kinds = Counter(path for path, _ in network.calls)
        assert kinds[FETCH.path] == kinds[COMMIT.path] == 1
        assert kinds[PIECE.path] > 20
        assert b.pool.figures.sessions_moved_in_total == 1


@pytest.mark.parametrize("becomes", [b"", b"another text" * 9_000])
async def test_a_long_session_that_changes_while_it_comes_is_not_taken(becomes: bytes) -> None:
    """Its client is at its holder again; the pieces are of no use."""
    async with members("a", "b") as (network, (a, b)):
        a.sessions["x"] = bytes(range(256)) * 8_000
        b.find("x")
        await wait_until(lambda: Counter(path for path, _ in network.calls)[PIECE.path] > 5)
        if becomes:
            a.sessions["x"] = becomes
        else:
            a.pool.began("x")
        await wait_until(lambda: not b.pool.ledger.moves)
        assert "x" in a.sessions
        assert b.sessions == {}


async def test_sessions_with_many_subscriptions_come_in_several_calls() -> None:
    """One answer has some thousand at most; nobody is refused for that."""
    async with members("a", "b") as (network, (a, b)):
        a.subscriptions = 1_000
        a.sessions = {f"client-{number}": b"value" for number in range(50)}

        async def come(client_id: str) -> None:
            while client_id not in b.sessions and await b.find(client_id) is not SessionFound.HERE:
                await asyncio.sleep(0.1)

        async with asyncio.timeout(30):
            await asyncio.gather(*[come(client_id) for client_id in a.sessions])
        assert max(size for path, size in network.answers if path == TAKE.path) < 400_000


def of_user(user: str, *, since: int = 0) -> Owner:
    """Return a user that owns a session, or wants to."""
    return Owner(user, superuser=False, anyone=False, since=since)


def begin_at(member: Member, client_id: str, user: str, value: bytes = b"1") -> None:
    """Begin a session of a user."""
    member.owners[client_id] = of_user(user)
    member.sessions[client_id] = value
    member.pool.began(client_id)


async def test_a_stranger_does_not_end_a_session_elsewhere() -> None:
    """Neither with a new one nor by asking for it; its owner does, when it begins one, and not by asking."""
    async with members("a", "b", "c") as (network, (a, b, c)):
        begin_at(a, "x", "victim")
        await wait_until(lambda: all(one.pool.ledger.newest_of("x") == a.pool.ledger.epoch_of("x") for one in (b, c)))
        for member in (b, c):
            assert await member.find("x", "stranger", clean=True) is SessionFound.OF_ANOTHER_USER
        assert await b.find("x", "victim", clean=True) is SessionFound.NONE
        assert a.sessions == {"x": b"1"}
        begin_at(b, "x", "victim", b"2")
        await wait_until(lambda: not a.sessions)
        await wait_until(lambda: Counter(path for path, _ in network.calls)[CLAIM.path] >= 4)
        assert await c.find("x", "stranger", clean=True) is SessionFound.OF_ANOTHER_USER
        assert b.sessions == {"x": b"2"}
        assert b.owners["x"].since == a.owners["x"].since  # it has the Client Identifier for as long


async def test_a_stranger_waits_while_a_member_is_silent() -> None:
    """It may have a session with that Client Identifier; once it is heard it says so, and nothing has happened."""
    async with members("a", "b") as (network, (a, b)):
        begin_at(a, "x", "victim")
        await wait_until(lambda: b.pool.ledger.newest_of("x") == a.pool.ledger.epoch_of("x"))
        network.silent.add("a")
        begun_s = now_s()
        assert await b.find("x", "stranger", clean=True) is SessionFound.UNKNOWN
        assert now_s() - begun_s == pytest.approx(DEAD_AFTER_S + VERDICT_S)
        coming = b.find("x", "stranger", clean=True)
        await wait_until(lambda: "x" in b.pool.ledger.moves)
        assert not coming.done()
        network.silent.clear()
        assert await coming is SessionFound.OF_ANOTHER_USER
        assert a.sessions == {"x": b"1"}


@pytest.mark.parametrize("who_claims", ["a", "b"])
@pytest.mark.parametrize("is_again", [False, True])
async def test_a_stranger_never_wins_when_members_hear_each_other_again(who_claims: str, is_again: bool) -> None:
    """Though its session is the newer one: the owner has had the Client Identifier for longer, wherever it comes next.

    Every member knows of no later session than the owner's then.
    """
    async with members("a", "b", "c") as (network, (a, b, c)):
        begin_at(a, "x", "victim")
        await wait_until(lambda: len(network.calls) == 2)
        network.broken = lambda name, _: name == "a"
        begin_at(b, "x", "stranger", b"2")
        if is_again:
            network.broken = lambda _, __: True
            a.pool.began("x")
        claimant = {"a": a, "b": b}[who_claims]
        network.broken = lambda name, _: name == ("b" if claimant is b else "a")
        claimant.pool.claim({"x": claimant.pool.ledger.epoch_of("x")})
        await wait_until(lambda: not b.sessions)
        network.broken = lambda _, __: False
        assert a.sessions == {"x": b"1"}
        await wait_until(lambda: c.pool.ledger.newest_of("x") == a.pool.ledger.epoch_of("x"))
        await wait_until(lambda: b.pool.ledger.newest_of("x") == a.pool.ledger.epoch_of("x"))
        assert await c.find("x", "victim") is SessionFound.HERE
        assert c.sessions == {"x": b"1"}


@pytest.mark.parametrize("path", [TAKE.path, FETCH.path, PIECE.path, COMMIT.path, CLAIM.path])
@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[1]", b'[["x"]]', b'[["",1,"a"]]', b'[["x",-1,"a"]]', b'[["x",1,"a b"]]', b'[["\\ud800",1,"a"]]'],
)
async def test_garbage_is_refused(path: str, body: bytes) -> None:
    """Before anything is done."""
    async with members("a", "b") as (network, (a, _)):
        a.sessions["x"] = b"1"
        with pytest.raises(ValueError):  # noqa: PT011  # whatever it says goes nowhere
            await network.call("b", "a", path, body)
        assert a.sessions == {"x": b"1"}
