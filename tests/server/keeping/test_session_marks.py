"""Marks of sessions, and who waits until they are kept at every place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fanout.server.keeping.session_keepers import SessionKeepers
from fanout.server.keeping.session_marks import ALL, SessionMarks
from fanout.server.routing.audiences import AudienceIndex
from tests.server.core_pieces import make_session, options


class Place:
    """A place that says when it has kept a group."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.marks = SessionMarks(self._keep)
        self.groups: list[list[str]] = []
        self._done: list[Callable[[], None]] = []

    def enter(self, client_id: str) -> None:
        """Keep a session from now on."""

    def add(self, client_id: str) -> None:
        """Keep a session that comes from elsewhere."""

    def note(self, client_id: str, *, subscriptions: bool = False) -> None:
        """Keep a session as it is."""

    def note_gone(self, client_id: str) -> None:
        """Keep a session that has no connection."""

    def note_moved(self, client_id: str) -> None:
        """Keep a session as it is given away."""

    def let_go(self, client_id: str) -> None:
        """Forget a session."""

    def kept(self) -> None:
        """Say that the oldest group is kept."""
        self._done.pop(0)()

    def _keep(self, client_ids: Sequence[str], done: Callable[[], None]) -> None:
        self.groups.append(list(client_ids))
        self._done.append(done)


class Places:
    """Two places, and the output of one client."""

    def __init__(self, *, qos: int = 1) -> None:
        """Begin with a client that is subscribed at a QoS."""
        self.first, self.second = Place(), Place()
        self.keepers = SessionKeepers(bytes_max=100)
        self.keepers.join(self.first, is_disk=True)
        self.keepers.join(self.second)
        session = make_session("c")
        session.expiry_s = 60
        index = AudienceIndex()
        index.change(session, added={b"t": options(qos)})
        self.written: list[bytes] = []
        gate = self.keepers.gate(session, write=self.written.append, on_room=lambda: None)
        assert gate is not None
        self.gate = gate


async def turn() -> None:
    """Let the turn of the event loop end."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_output_waits_for_every_place() -> None:
    """What one of them has, and what another session's group brings, lets nothing through."""
    places = Places()
    places.keepers.mark("c")
    places.gate.write(b"1")
    await turn()
    assert (places.first.groups, places.second.groups) == ([["c"]], [["c"]])
    places.first.kept()
    assert places.written == []
    places.first.marks.mark("d")  # as a look does, at one place alone
    await turn()
    places.first.kept()
    assert places.written == []
    places.second.kept()
    assert places.written == [b"1"]
    places.gate.write(b"2")
    assert places.written == [b"1", b"2"], "nothing is left to be kept"


async def test_a_session_changed_meanwhile_is_kept_once_more() -> None:
    """One group stands for all marks since the former one; output that relies on the later ones waits for it."""
    places = Places()
    places.keepers.mark("c")
    places.gate.write(b"1")
    await turn()
    assert places.keepers.mark("c") == places.keepers.mark("c")
    places.gate.write(b"2")
    for place in (places.first, places.second):
        place.kept()
    assert places.written == [b"1"]
    await turn()
    for place in (places.first, places.second):
        place.kept()
    assert places.written == [b"1", b"2"]
    assert places.first.groups == [["c"], ["c"]]


async def test_all_that_is_marked_is_waited_for() -> None:
    """What is marked later is not; without a mark nothing is waited for."""
    place = Place()
    await place.marks.written()
    names = [f"c{number}" for number in range(300)]
    for name in names:
        place.marks.mark(name)
    waiting = asyncio.create_task(place.marks.written())
    await turn()
    place.kept()
    await turn()
    assert (len(place.groups), waiting.done()) == (2, False)
    place.marks.mark("later")
    place.kept()
    await turn()
    assert waiting.done()
    assert [name for group in place.groups[:2] for name in group] == names


async def test_a_stop_puts_all_groups_on_their_way() -> None:
    """They are kept in order, and what is kept of them is known each time."""
    place = Place()
    for number in range(600):
        place.marks.mark(f"c{number}")
    place.marks.keep_all()
    assert [len(group) for group in place.groups] == [256, 256, 88]
    seen: list[int] = []
    for _ in range(3):
        seen.append(place.marks.kept_until)
        place.kept()
    assert (seen[1] - seen[0], seen[2] - seen[1], place.marks.kept_until) == (256, 256, ALL)
