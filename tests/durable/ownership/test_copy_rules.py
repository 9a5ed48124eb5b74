"""Tables of the rules of copies."""

from __future__ import annotations

import pytest

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
from fanout.durable.ownership.ownership import Answer, Reply

E1, E2, E3 = Epoch(1, "a"), Epoch(2, "a"), Epoch(3, "a")
V = CopyVersion(E2, 5)


@pytest.mark.parametrize(
    ("version", "kept", "newest", "expected"),
    [
        (V, None, NO_EPOCH, True),
        (V, None, E2, True),
        (V, None, E3, False),
        (V, CopyVersion(E2, 4), E2, True),
        (V, V, E2, False),
        (V, CopyVersion(E2, 6), E2, False),
        (V, CopyVersion(E1, 900), E1, True),
        (V, CopyVersion(E3, 1), NO_EPOCH, False),
    ],
)
def test_copy_is_kept_when_it_is_newer(
    version: CopyVersion, kept: CopyVersion | None, newest: Epoch, *, expected: bool
) -> None:
    """A copy is kept unless a later one is kept, or a later session is known."""
    assert is_kept(version, kept=kept, newest=newest) is expected


@pytest.mark.parametrize(
    ("kept", "newest", "is_gone", "expected"),
    [
        (None, NO_EPOCH, True, None),
        (V, E3, True, None),
        (V, E3, False, None),
        (V, E2, False, Answer(Reply.KEPT, E2)),
        (V, NO_EPOCH, False, Answer(Reply.KEPT, E2)),
        (V, E2, True, Answer(Reply.BUSY, E2)),
    ],
)
def test_take_finds_a_copy(kept: CopyVersion | None, newest: Epoch, *, is_gone: bool, expected: Answer | None) -> None:
    """A keeper says that it has a copy, and that the session is about to go on once the holder is gone."""
    assert answer_take(kept, newest=newest, is_gone=is_gone) == expected


@pytest.mark.parametrize(
    ("kept", "newest", "lives", "expected"),
    [
        (None, NO_EPOCH, True, Right.LIVES),
        (CopyVersion(E3, 1), E3, True, Right.LIVES),
        (None, NO_EPOCH, False, Right.YES),
        (None, E2, False, Right.YES),
        (None, E3, False, Right.NEWER),
        (CopyVersion(E2, 4), E2, False, Right.YES),
        (V, E2, False, Right.YES),
        (CopyVersion(E2, 6), E2, False, Right.NEWER),
        (CopyVersion(E3, 0), NO_EPOCH, False, Right.NEWER),
    ],
)
def test_right_to_go_on(kept: CopyVersion | None, newest: Epoch, *, lives: bool, expected: Right) -> None:
    """An heir is refused where the holder is heard, a later copy is kept, or a later session is known."""
    assert answer_inherit(V, kept=kept, newest=newest, holder_lives=lives) is expected


def test_who_has_a_session_says_that_a_copy_is_of_no_use_once_its_own_is_kept() -> None:
    """Until then the older one is as true, and all that there is if this member dies."""
    for epoch in (E2, E3):
        rights = [
            answer_inherit(V, kept=None, newest=epoch, holder_lives=False, is_here=True, is_copied=is_copied)
            for is_copied in (False, True)
        ]
        assert rights == [Right.LIVES, Right.NEWER]


@pytest.mark.parametrize(("newest", "expected"), [(E1, Right.YES), (E2, Right.NEWER), (E3, Right.NEWER)])
def test_a_holder_that_is_asked_itself_knows_whether_a_session_has_come(newest: Epoch, expected: Right) -> None:
    """It has given away or ended what it had since the epoch of the copy."""
    assert answer_inherit(V, kept=None, newest=newest, holder_lives=False, is_holder=True) is expected


@pytest.mark.parametrize(
    ("version", "epoch", "is_of_heir", "expected"),
    [
        (V, E1, False, False),
        (V, E2, False, False),
        (V, E3, False, True),
        (V, E1, True, False),
        (CopyVersion(E3, GIVEN), E2, False, False),
        (CopyVersion(E3, GIVEN), E2, True, True),
    ],
)
def test_what_a_claim_outdates(version: CopyVersion, epoch: Epoch, *, is_of_heir: bool, expected: bool) -> None:
    """All that is older; and what was given away, if another member went on with the session meanwhile."""
    assert is_outdated(version, epoch=epoch, is_of_heir=is_of_heir) is expected


@pytest.mark.parametrize(
    ("newest", "answers", "expected"),
    [
        (E2, [], True),
        (NO_EPOCH, [Right.YES, Right.YES], True),
        (E3, [Right.YES], False),
        (E2, [Right.YES, Right.NEWER], False),
        (E2, [Right.LIVES], False),
    ],
)
def test_heir_goes_on(newest: Epoch, answers: list[Right], *, expected: bool) -> None:
    """A member goes on with a session when all others agree, and it knows of no later one."""
    assert may_inherit(V, newest=newest, answers=answers) is expected


def test_inherited_epoch_is_between_the_holder_and_a_later_client() -> None:
    """An heir's session is later than the holder's, and earlier than what a client begins in the next millisecond."""
    epoch = inherited_epoch(V, "b")
    assert V.epoch < epoch < Epoch(V.epoch.counter + 1, "a")
    assert epoch.member == "b"
    assert inherited_epoch(V, "c") != epoch


def test_a_session_that_never_came_to_its_next_holder_is_here_since_before() -> None:
    """An heir that went on with it meanwhile is later."""
    assert inherited_epoch(V, "b", given_since=E1) == E1
