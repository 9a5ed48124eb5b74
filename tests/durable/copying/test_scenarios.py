"""The nastiest cases of sessions that move, are copied and go on elsewhere, each as one way through the model."""

from __future__ import annotations

import pytest

from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.ownership import Answer, Choice, Decision, Ownership, Reply, Stage, begin, choose
from tests.durable.copying import copy_model as model
from tests.durable.copying.copy_model import Call, Member, Value, World
from tests.durable.three_members import MEMBERS, others


class Story:
    """One way through the model."""

    def __init__(self, world: World) -> None:
        """Begin with a session at A, of which B keeps the copy."""
        self.world = world

    def at(self, name: str) -> Member:
        """Return a member."""
        return self.world.at(name)

    def go(self, world: World) -> None:
        """Take a step; every invariant holds behind it."""
        self.world = model.kept_house(world)
        model.check(self.world)

    def connect(self, name: str, *, is_clean: bool = False) -> None:
        """The client connects."""
        self.go(model.connect(self.world, name, is_clean=is_clean))

    def call(self, kind: str, source: str, target: str) -> Call:
        """Return the call that is on its way."""
        (found,) = (one for one in self.world.calls if one[:3] == (kind, source, target))
        return found

    def deliver(self, kind: str, source: str, target: str) -> None:
        """Deliver a request."""
        self.go(model.deliver(self.world, self.call(kind, source, target)))

    def answer(self, kind: str, source: str, target: str) -> None:
        """Deliver an answer."""
        call = self.call(kind, source, target)
        self.go(model.answered(self.world._replace(calls=self.world.calls - {call}), call, call.answer))

    def ask(self, kind: str, source: str, target: str) -> None:
        """Deliver a request and its answer."""
        self.deliver(kind, source, target)
        self.answer(kind, source, target)

    def crash(self, name: str) -> None:
        """A member is gone for good, and what it has sent with it."""
        self.go(model.crashed(self.world, name, keeps_calls=False))

    def set(self, name: str, **fields: object) -> None:
        """Change what a member knows."""
        self.go(self.world.put(name, self.at(name)._replace(**fields)))  # type: ignore[arg-type]

    def pause(self, name: str) -> None:
        """A member is stopped."""
        self.go(model.paused(self.world, name))

    def find_dead(self, name: str, *finders: str) -> None:
        """Members find one dead."""
        for finder in finders:
            self.set(finder, dead=frozenset({name}))

    def inherit(self, name: str, *, holder: str = "") -> None:
        """A member asks whether it may go on with the session of which it keeps the copy: the others, or the holder."""
        kept, asked = self.at(name).kept, frozenset(holder or others(name)) - self.at(name).dead
        assert kept is not None
        self.set(name, asking=model.Asking(kept, asked, asks_holder=bool(holder)))
        calls = [Call("inherit", name, other, version=kept.version, holder=kept.holder) for other in asked]
        self.go(self.world.send(*calls))

    def finish(self) -> None:
        """Deliver everything that is on its way, again and again."""
        while calls := sorted((one for one in self.world.calls if not self.at(one.target).down), key=str):
            call = calls[0]
            self.go(
                model.deliver(self.world, call)
                if call.answer is None
                else model.answered(self.world._replace(calls=self.world.calls - {call}), call, call.answer)
            )

    def owners(self) -> list[str]:
        """Return the members that serve the session."""
        running = [name for name in MEMBERS if not self.at(name).down and self.at(name).value is not None]
        return [name for name in running if (own := self.at(name).own) is not None and own.is_here]


def bring(it: Story, name: str, *, giver: str = "a") -> None:
    """The client comes to a member, to which another one gives the session; the answer to its COMMIT does not come."""
    it.connect(name)
    for other in others(name):
        it.ask("take", name, other)
    it.ask("fetch", name, giver)
    it.deliver("commit", name, giver)


def story(**bounds: int) -> Story:
    """Return the beginning of a way."""
    return Story(model.start(connects=3, **bounds))


def test_the_client_returns_to_the_holder_while_its_session_is_frozen_for_another() -> None:
    """The holder takes the session back at once, the COMMIT of the other member is denied, and the copy is renewed."""
    it = story()
    it.connect("c")
    it.ask("take", "c", "a")
    it.ask("take", "c", "b")
    it.ask("fetch", "c", "a")
    it.connect("a")
    it.finish()
    assert it.owners() == ["a"]
    assert it.world.truth == it.at("a").value == Value(0, 0, 2)
    kept = it.at("b").kept
    assert kept is not None
    assert kept.value == it.world.truth


def test_the_taker_is_killed_between_commit_and_answer() -> None:
    """The holder has kept what it gave away, and goes on with that."""
    it = story(crashes=1)
    bring(it, "c")
    it.crash("c")
    it.find_dead("c", "a", "b")
    it.inherit("a")
    it.ask("inherit", "a", "b")
    it.finish()
    assert it.owners() == ["a"]
    it.connect("b")
    it.finish()
    assert it.owners() == ["b"]
    assert it.world.truth.lineage == 0


def test_a_late_answer_to_a_copy_does_not_end_the_arrival_that_it_tells_of() -> None:
    """The member that has just given the session away knows of a newer one than that of the copy: this one's."""
    it = story(changes=1)
    value = it.at("a").value
    assert value is not None
    it.set("a", value=value._replace(version=2), is_dirty=True)
    old = it.call("copy", "a", "b")
    it.set("b", kept=None, own=begin(Epoch(2, "!b")), value=Value(0, 1, 1), number=101)
    it.set("a", own=Ownership(Stage.CEDED, Epoch(2, "!b")), value=None, is_dirty=False)
    bring(it, "a", giver="b")
    assert it.call("copy", "a", "b") == old
    it.ask("copy", "a", "b")
    it.answer("commit", "a", "b")
    assert it.owners() == ["a"]


def test_a_member_that_goes_on_with_a_newer_session_since_it_answered_is_asked_again() -> None:
    """Another member knows of that already: nobody has the session that the answer was of."""
    heir, newer = Epoch(2, "!b"), Epoch(11, "!b")
    answers = [("b", Answer(Reply.HELD, heir)), ("a", Answer(Reply.NONE, newer))]
    for given in (answers, answers[::-1]):
        assert choose(Ownership(Stage.ASKING, Epoch(20, "c")), given) == Decision(Choice.LATER, is_coming=True)


@pytest.mark.parametrize("taker", ["b", "c"])
def test_the_holder_pauses_between_commit_and_answer(taker: str) -> None:
    """The keeper goes on from its copy; once the holder is back, its heir outdates what it gave away."""
    it = story(pauses=1)
    bring(it, taker)
    it.pause("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.ask("inherit", "b", "c")
    assert it.owners() == ["b"]
    it.ask("copy", "b", "c")
    it.go(model.resumed(it.world, "a"))
    if taker == "c":
        assert it.at("c").own == Ownership(Stage.CEDED, it.at("b").own.epoch)  # type: ignore[union-attr]  # it owns it
    it.inherit("a", holder=taker)
    it.deliver("inherit", "a", taker)
    for name in "bc":
        it.go(model.heard(it.world, name, "a"))
    it.deliver("claim", "b", "a")
    assert it.at("a").kept is None
    it.finish()
    assert it.owners() == ["b"]
    it.set("b", value=Value(0, 1, 5), is_dirty=True)
    it.finish()
    assert it.owners() == ["b"]


def test_what_never_came_to_its_next_holder_is_taken_back() -> None:
    """Here the holder asks before it hears the claim of the heir, and then ends what it has, as after any pause."""
    it = story(pauses=1)
    bring(it, "c")
    it.pause("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.ask("inherit", "b", "c")
    it.go(model.resumed(it.world, "a"))
    it.inherit("a", holder="c")
    it.ask("inherit", "a", "c")
    assert it.owners() == ["a", "b"]
    for name in "bc":
        it.go(model.heard(it.world, name, "a"))
    it.finish()
    assert it.owners() == ["b"]


def test_a_holder_that_is_heard_again_is_asked_before_a_session_begins() -> None:
    """It was dead when the others were asked, and they say that it had a newer session than theirs."""
    it = story(pauses=1)
    it.connect("a")
    it.pause("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.connect("c")
    it.ask("inherit", "b", "c")
    it.go(model.resumed(it.world, "a"))
    it.go(model.heard(it.world, "b", "a"))
    it.ask("claim", "b", "a")
    it.go(model.heard(it.world, "c", "a"))
    it.ask("take", "c", "b")
    assert it.owners() == ["a"]
    assert it.at("c").value is None


def test_a_paused_holder_is_taken_over_and_goes_on() -> None:
    """What the holder would say next is never confirmed to it, and its session ends in favour of the heir's."""
    it = story(pauses=1, changes=1)
    it.pause("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.ask("inherit", "b", "c")
    it.go(model.resumed(it.world, "a"))
    assert it.owners() == ["a", "b"]
    value = it.at("a").value
    assert value is not None
    it.set("a", value=value._replace(version=2), is_dirty=True)
    it.ask("copy", "a", "b")
    assert it.owners() == ["b"]
    assert it.world.truth == Value(0, 0, 1)


def test_a_clean_start_elsewhere_in_a_partition_beats_the_copy() -> None:
    """The copy of the former session is of no use then, and its holder, once back, yields with its next copy."""
    it = story(pauses=1)
    it.pause("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.connect("c", is_clean=True)
    it.ask("inherit", "b", "c")
    it.finish()
    assert it.owners() == ["c"]
    assert it.world.truth == Value(1, 0, 1)
    it.go(model.resumed(it.world, "a"))
    it.go(model.heard(it.world, "c", "a"))
    value = it.at("a").value
    assert value is not None
    it.set("a", is_dirty=True)
    it.finish()
    assert it.owners() == ["c"]


def test_the_holder_is_killed_between_connect_and_the_copy() -> None:
    """No claim ends the former copy before the new one is kept, so the keeper goes on from it."""
    it = story(crashes=1)
    it.connect("a")
    it.crash("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.ask("inherit", "b", "c")
    it.finish()
    assert it.owners() == ["b"]


def test_a_third_member_asks_while_the_session_is_about_to_go_on() -> None:
    """Its client comes again, before and after the keeper has found the holder dead, and then gets its session."""
    it = story(crashes=1)
    it.crash("a")
    it.find_dead("a", "c")
    it.connect("c")
    it.ask("take", "c", "b")
    assert it.at("c").own is None
    it.find_dead("a", "b")
    it.connect("c")
    it.ask("take", "c", "b")
    assert it.at("c").own is None
    it.inherit("b")
    it.ask("inherit", "b", "c")
    it.connect("c")
    it.finish()
    assert it.owners() in ([], ["b"], ["c"])
    assert it.world.truth.lineage == 0


def test_the_client_comes_to_the_keeper_before_that_has_found_the_holder_dead() -> None:
    """The keeper does not begin a session over the copy that it keeps itself."""
    it = story(crashes=1)
    it.crash("a")
    it.connect("b")
    it.go(model.answered(it.world, it.call("take", "b", "a"), None))
    it.ask("take", "b", "c")
    assert it.owners() == []
    assert it.at("b").kept is not None


def test_a_copy_moves_while_its_holder_is_killed() -> None:
    """Of two members with copies the one with the older is refused, and the newer goes on."""
    it = story(crashes=1, changes=1)
    it.set("a", away=frozenset({"b"}))
    it.deliver("copy", "a", "c")
    it.crash("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.ask("inherit", "b", "c")
    assert it.owners() == []
    it.inherit("c")
    it.ask("inherit", "c", "b")
    assert it.owners() == ["c"]


def test_a_copy_of_a_returned_holder_reaches_who_agreed_to_its_heir() -> None:
    """It waits until the heir has decided: the holder says nothing that the heir does not know."""
    it = story(pauses=1)
    it.pause("a")
    it.find_dead("a", "b", "c")
    it.inherit("b")
    it.deliver("inherit", "b", "c")
    it.go(model.resumed(it.world, "a"))
    it.set("a", away=frozenset({"b"}))
    call = it.call("copy", "a", "c")
    assert it.at("c").agreed == ("b", "a")
    assert not list(model._steps_of_call(it.world, call))
    it.answer("inherit", "b", "c")
    it.deliver("claim", "b", "c")
    it.set("c", agreed=("", ""))
    it.ask("copy", "a", "c")
    assert it.owners() == ["b"]


def test_a_session_that_ended_does_not_come_back() -> None:
    """The keeper forgets the copy of a session that ended, and has nothing to go on with when its holder dies."""
    it = story(crashes=1, ends=1)
    own = it.at("a").own
    it.go(it.world.put("a", model.without(it.at("a"), own))._replace(is_alive=False))
    it.finish()
    it.crash("a")
    assert it.at("b").kept is None
    left = it.at("a").own
    assert left is None or left.stage is Stage.CEDED
