"""Search of every state of the model of copies, fast and in little memory.

It visits the states that `search_all` would, and takes the steps of `copy_model`. But a state is five numbers in one:
of its three members, its calls, and the rest, each of which is kept once. And a step is computed once for all states
that do not differ in what it reads: the member that takes it, what the others let it see (`copy_model.seen`), the
rest, and the call. What it brings is remembered as what it changes.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from tests.durable.copying.copy_model import (
    Call,
    Member,
    Outside,
    Step,
    World,
    check_quiet,
    check_serving,
    forgotten_crashed,
    is_decided,
    is_over,
    is_quiet,
    kept_house,
    seen,
    steps_at_source,
    steps_at_target,
    steps_of_crash,
    steps_of_member,
    steps_of_process,
    tidied,
)
from tests.durable.search import Broken, Found
from tests.durable.three_members import MEMBERS

__all__ = ["search_copies"]

T = TypeVar("T", bound=Hashable)
_BITS: Final = 24
"""Bits of a number of a part in that of a state."""
_REMEMBERED_MAX: Final = 2_000_000
"""Steps of one kind that are remembered; beyond that they are computed anew."""
_MASK: Final = (1 << _BITS) - 1
_PLACES: Final = {name: place for place, name in enumerate(MEMBERS)}
_NO_MEMBERS: Final = (Member(), Member(), Member())
_NO_CALLS: Final[frozenset[Call]] = frozenset()


class _Parts(Generic[T]):
    """Parts of states, each with a number."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, part: T) -> int:
        found = self._numbers.get(part)
        if found is None:
            found = self._numbers[part] = len(self.all)
            assert found <= _MASK
            self.all.append(part)
        return found


class _Change(NamedTuple):
    """What a step of one member changes."""

    member: int
    """Number of the member behind it."""
    rest: int
    """Number of the rest behind it."""
    calls: int
    """Number of the change of calls: the calls that go, and those that are added."""
    places: tuple[int, ...]
    """Members of which a call may be over now."""


_State = tuple[int, int, int, int, int]


def search_copies(start: World, *, states_max: int = 3_000_000) -> int:
    """Visit every state, and return their number; raise `Found` with a shortest way to a fault.

    Args:
        start: The first state.
        states_max: Bound of the number of states.
    """
    collects = gc.isenabled()
    gc.disable()  # as in `search_all`
    try:
        return _Search().run(start, states_max)
    finally:
        if collects:
            gc.enable()


class _Search:
    """One search."""

    def __init__(self) -> None:
        self._members = _Parts[Member]()
        self._seen: list[int] = []
        """For the number of each member, that of what the others see of it."""
        self._is_crashed: list[bool] = []
        """For the number of each member, whether it has crashed."""
        self._heirs: list[int] = []
        """For the number of each member, the place of the member that it has agreed to; below 0 for none."""
        self._calls = _Parts[Call]()
        self._sources: list[int] = []
        """For the number of each call, the place of its source."""
        self._targets: list[int] = []
        """For the number of each call, the place of its target."""
        self._sets = _Parts[tuple[int, ...]]()
        """Numbers of calls that are on their way, ascending."""
        self._rests = _Parts[World]()
        """States without members and calls."""
        self._crashes_left: list[int] = []
        """For the number of each rest, how many members may crash."""
        self._changes = _Parts[tuple[frozenset[int], frozenset[int]]]()
        self._by_member: dict[tuple[int, ...], list[_Change]] = {}
        self._by_process: dict[tuple[int, ...], list[_Change]] = {}
        self._houses: dict[tuple[int, ...], _Change] = {}
        self._decided: dict[tuple[int, int, int, int], int] = {}
        self._by_call: dict[tuple[int, ...], list[_Change]] = {}
        self._changed: dict[tuple[int, int], int] = {}
        self._left: dict[tuple[int, int, int, int], int] = {}
        self._claims_to: dict[tuple[int, int], int] = {}
        self._served: set[tuple[int, int, int]] = set()
        """What is seen of all members where that was found right."""

    def run(self, start: World, states_max: int) -> int:
        first = self._pack(start)
        self._nobody = self._number_of_member(Member())
        before = {first: first}
        states = [first]
        while states:
            following: list[int] = []
            for state in states:
                try:
                    self._check(state)
                    for one in self._steps(state):
                        if one not in before:
                            before[one] = state
                            following.append(one)
                except Broken as broken:
                    way = [state]
                    while way[-1] != first:
                        way.append(before[way[-1]])
                    raise Found(str(broken), [self._world(one) for one in reversed(way)]) from broken
            assert len(before) <= states_max, "the model is larger than this test may search"
            states = following
            for memory in (self._left, self._changed, self._claims_to, self._by_call, self._by_member, self._decided):
                if len(memory) > _REMEMBERED_MAX:
                    memory.clear()
        return len(before)

    # A state as a number.

    def _pack(self, world: World) -> int:
        state = 0
        for member in world.members:
            state = state << _BITS | self._number_of_member(member)
        calls = self._number_of_set(map(self._number_of_call, world.calls))
        return (state << _BITS | calls) << _BITS | self._number_of_rest(world)

    def _world(self, state: int) -> World:
        a, b, c, calls, rest = _unpacked(state)
        members = self._members.all
        return self._rests.all[rest]._replace(members=(members[a], members[b], members[c]), calls=self._set_of(calls))

    def _number_of_member(self, member: Member) -> int:
        number = self._members.number(member)
        if number == len(self._seen):
            self._seen.append(-1)
            self._is_crashed.append(member.down == "crashed")
            self._heirs.append(_PLACES.get(member.agreed[0], -1))
            self._seen[number] = self._number_of_member(seen(member))
        return number

    def _number_of_call(self, call: Call) -> int:
        number = self._calls.number(call)
        if number == len(self._sources):
            self._sources.append(_PLACES[call.source])
            self._targets.append(_PLACES[call.target])
        return number

    def _number_of_set(self, calls: Iterable[int]) -> int:
        return self._sets.number(tuple(sorted(calls)))

    def _set_of(self, number: int) -> frozenset[Call]:
        return frozenset(self._calls.all[call] for call in self._sets.all[number])

    def _number_of_rest(self, world: World) -> int:
        number = self._rests.number(world._replace(members=_NO_MEMBERS, calls=_NO_CALLS))
        if number == len(self._crashes_left):
            self._crashes_left.append(world.crashes_left)
        return number

    # Steps.

    def _steps(self, state: int) -> Iterable[int]:
        numbers = _unpacked(state)
        *members, calls, rest = numbers
        a, b, c = members
        views = [self._seen[a], self._seen[b], self._seen[c]]
        found: list[int] = []
        for place, member in enumerate(members):
            key = (place, member, views[place - 1], views[place - 2], self._claims(calls, place), rest)
            changes = self._by_member.get(key)
            if changes is None:
                changes = self._by_member[key] = self._of_member(key)
            found += [self._after(numbers, place, change) for change in changes]
        for call in self._sets.all[calls]:
            source = self._sources[call]
            for place in (source, self._targets[call]):
                key = (call, place, members[place], views[place - 1], views[place - 2], rest)
                changes = self._by_call.get(key)
                if changes is None:
                    changes = self._by_call[key] = self._of_call(key, is_source=place == source)
                found += [self._after(numbers, place, change) for change in changes]
        for place, member in enumerate(members):
            process = (place, member, rest)
            changes = self._by_process.get(process)
            if changes is None:
                changes = self._by_process[process] = self._of_process(process)
            found += [self._after_all(numbers, place, change) for change in changes]
        if self._crashes_left[rest]:
            world = self._world(state)
            for name in MEMBERS:
                found.extend(self._pack(tidied(kept_house(step()))) for step in steps_of_crash(world, name))
        return found

    def _of_process(self, key: tuple[int, ...]) -> list[_Change]:
        place, member, rest = key
        world = self._part(place, member, self._nobody, self._nobody, rest)
        return self._changes_of(world, place, steps_of_process(world, MEMBERS[place]), keeps_house=False)

    def _after_all(self, numbers: _State, place: int, change: _Change) -> int:
        """Return the state behind a step that others see, so that their copies may go elsewhere."""
        members = list(numbers[:3])
        calls = numbers[3]
        members[place], rest, _, _ = change
        for each in range(3):
            views = [self._seen[member] for member in members]
            key = (each, members[each], views[each - 1], views[each - 2], rest)
            found = self._houses.get(key)
            if found is None:
                world = self._part(*key)
                found = self._houses[key] = self._changes_of(world, each, [partial(_same, world)])[0]
            members[each], rest, changed, _ = found
            calls = self._with_changed(calls, changed)
        for each in range(3):
            calls = self._without_over(calls, each, members)
        return self._settled(members, calls, rest)

    def _of_member(self, key: tuple[int, ...]) -> list[_Change]:
        place, member, before, second, calls, rest = key
        world = self._part(place, member, before, second, rest)._replace(calls=self._set_of(calls))
        return self._changes_of(world, place, steps_of_member(world, MEMBERS[place]))

    def _of_call(self, key: tuple[int, ...], *, is_source: bool) -> list[_Change]:
        number, place, member, before, second, rest = key
        call = self._calls.all[number]
        world = self._part(place, member, before, second, rest)._replace(calls=frozenset((call,)))
        steps = steps_at_source if is_source else steps_at_target
        return self._changes_of(world, place, steps(world, call))

    def _part(self, place: int, member: int, before: int, second: int, rest: int) -> World:
        """Return a state that has one member, and what is seen of the others: the one before it, and the other."""
        members = [self._members.all[member]] * 3
        members[place - 1], members[place - 2] = self._members.all[before], self._members.all[second]
        first, middle, last = members
        return self._rests.all[rest]._replace(members=(first, middle, last))

    def _changes_of(
        self, world: World, place: int, steps: Iterable[Step], *, keeps_house: bool = True
    ) -> list[_Change]:
        changes: list[_Change] = []
        name = MEMBERS[place]
        for step in steps:
            try:
                after = step()
                if keeps_house:
                    after = forgotten_crashed(kept_house(after, (name,)), (name,))
            except Outside:
                continue
            for other in MEMBERS:
                assert other == name or after.at(other) is world.at(other), "a step changes another member"
            added = frozenset(map(self._number_of_call, after.calls - world.calls))
            gone = frozenset(map(self._number_of_call, world.calls - after.calls))
            places = {_PLACES[call.source] for call in after.calls - world.calls} | {place}
            change = _Change(
                self._number_of_member(after.at(name)),
                self._number_of_rest(after),
                self._changes.number((gone, added)),
                tuple(sorted(places)),
            )
            if change not in changes:
                changes.append(change)
        return changes

    def _after(self, numbers: _State, place: int, change: _Change) -> int:
        members = list(numbers[:3])
        calls = numbers[3]
        members[place], rest, change_of_calls, places = change
        calls = self._with_changed(calls, change_of_calls)
        for each in places:
            calls = self._without_over(calls, each, members)
        return self._settled(members, calls, rest)

    def _with_changed(self, calls: int, change: int) -> int:
        """Return the number of the calls behind a change of them."""
        changed = self._changed.get((calls, change))
        if changed is None:
            gone, added = self._changes.all[change]
            left = added.union(call for call in self._sets.all[calls] if call not in gone)
            changed = self._changed[calls, change] = self._number_of_set(left)
        return changed

    def _settled(self, members: list[int], calls: int, rest: int) -> int:
        """Return a state, in which a member takes copies of a holder again if the heir has decided."""
        for place in range(3):
            heir = self._heirs[members[place]]
            if heir >= 0:
                key = (place, members[place], members[heir], calls)
                settled = self._decided.get(key)
                if settled is None:
                    settled = self._decided[key] = self._without_heir(place, members, calls)
                members[place] = settled
        a, b, c = members
        return (((a << _BITS | b) << _BITS | c) << _BITS | calls) << _BITS | rest

    def _without_heir(self, place: int, members: list[int], calls: int) -> int:
        name, member, heir = MEMBERS[place], self._members.all[members[place]], self._heirs[members[place]]
        first, middle, last = (self._members.all[each] for each in members)
        world = self._rests.all[0]._replace(members=(first, middle, last), calls=self._set_of(calls))
        if not is_decided(world, name, MEMBERS[heir]):
            return members[place]
        return self._number_of_member(member._replace(agreed=("", "")))

    def _claims(self, calls: int, place: int) -> int:
        """Return the number of the claims among calls that are on their way to a member."""
        found = self._claims_to.get((calls, place))
        if found is None:
            every = ((number, self._calls.all[number]) for number in self._sets.all[calls])
            name = MEMBERS[place]
            claims = frozenset(number for number, call in every if call.kind == "claim" and call.target == name)
            found = self._claims_to[calls, place] = self._number_of_set(claims)
        return found

    def _without_over(self, calls: int, place: int, members: list[int]) -> int:
        """Return the number of those of some calls that are not over, as far as a member is their source."""
        is_crashed, (a, b, c) = self._is_crashed, members
        crashed = is_crashed[a] | is_crashed[b] << 1 | is_crashed[c] << 2
        key = (calls, place, members[place], crashed)
        left = self._left.get(key)
        if left is None:
            name, source = MEMBERS[place], self._members.all[members[place]]
            numbers = self._sets.all[calls]
            its = ((number, call) for number in numbers if (call := self._calls.all[number]).source == name)
            downs = {each: "crashed" if crashed >> _PLACES[each] & 1 else "" for each in MEMBERS}
            over = frozenset(number for number, call in its if is_over(call, source, downs[call.target]))
            left = self._left[key] = self._number_of_set(number for number in numbers if number not in over)
        return left

    # Checks.

    def _check(self, state: int) -> None:
        a, b, c, calls, _ = _unpacked(state)
        key = (self._seen[a], self._seen[b], self._seen[c])
        if key not in self._served:
            check_serving(self._world(state))
            self._served.add(key)
        if not self._sets.all[calls]:
            world = self._world(state)
            if is_quiet(world):
                check_quiet(world)


def _same(world: World) -> World:
    return world


def _unpacked(state: int) -> _State:
    return (
        state >> 4 * _BITS,
        state >> 3 * _BITS & _MASK,
        state >> 2 * _BITS & _MASK,
        state >> _BITS & _MASK,
        state & _MASK,
    )
