"""What members that are away are to be told when they are back."""

from __future__ import annotations

import pytest

from fanout.durable.copying import absent_members
from fanout.durable.copying.absent_members import NotesForAbsent


def test_notes_are_told_once() -> None:
    """A note of a session replaces the former one, and goes with the others of its member."""
    notes = NotesForAbsent[int]()
    notes.put("b", "x", 1)
    notes.put("b", "x", 2)
    notes.put("c", "x", 3)
    assert (len(notes), notes.members) == (2, ("b", "c"))
    assert notes.pop("b") == {"x": 2}
    assert notes.pop("b") == {}
    assert (len(notes), notes.members) == (1, ("c",))


def test_members_that_never_come_back_leave_a_bounded_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest notes of the first member go, and in the end its name."""
    monkeypatch.setattr(absent_members, "_NOTES_MAX", 3)
    notes = NotesForAbsent[int]()
    for name in ("b", "c", "d"):
        for client_id in ("x", "y"):
            notes.put(name, client_id, 0)
    assert len(notes) == 3
    assert notes.members == ("c", "d")
    assert notes.pop("c") == {"y": 0}
