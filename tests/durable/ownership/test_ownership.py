"""Rules of ownership that decide between two members which both know something: each as one question and its answer."""

from __future__ import annotations

import pytest

from fanout.durable.ownership.epochs import NO_EPOCH, Epoch
from fanout.durable.ownership.ownership import (
    Answer,
    Choice,
    Decision,
    Owner,
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
    has_older_right,
    refuse,
    take,
    take_back,
)

E1, E2, E3, E9 = (Epoch(counter, "a") for counter in (1, 2, 3, 9))
HEIR = Epoch(2, "!b")
ASKING = Ownership(Stage.ASKING, E9, before=E1)
ARRIVING = Ownership(Stage.ARRIVING, E9, before=E2)
FROZEN = Ownership(Stage.FROZEN, E1, promised=E3)
GIVEN = Ownership(Stage.CEDED, E2, given_since=E1)
BEGIN, LATER, COMING = Decision(Choice.BEGIN), Decision(Choice.LATER), Decision(Choice.LATER, is_coming=True)


@pytest.mark.parametrize(
    ("answers", "decision"),
    [
        ({"b": Answer(Reply.NONE)}, BEGIN),
        ({"b": Answer(Reply.LOST, E2), "c": Answer(Reply.NONE)}, Decision(Choice.BEGIN_ANEW)),
        ({"b": Answer(Reply.NONE), "c": None}, LATER),
        ({"b": Answer(Reply.HELD, E2), "c": None}, Decision(Choice.FETCH, "b", E2)),
        ({"b": Answer(Reply.HELD, E2), "c": Answer(Reply.HELD, E3)}, Decision(Choice.FETCH, "c", E3)),
        ({"b": Answer(Reply.HELD, E2), "c": Answer(Reply.NONE, E3)}, BEGIN),
        ({"b": Answer(Reply.REFUSED, E2)}, Decision(Choice.REFUSE)),
        ({"b": Answer(Reply.REFUSED, E2), "c": Answer(Reply.NONE, E3)}, BEGIN),
        ({"b": Answer(Reply.LATE, E9)}, LATER),
        ({"b": Answer(Reply.BUSY, E2)}, COMING),
        ({"b": Answer(Reply.BUSY, E2), "c": Answer(Reply.LATE, E9)}, LATER),
        # B goes on with a newer one, from its copy, since it has answered: C knows of that already.
        ({"b": Answer(Reply.HELD, HEIR), "c": Answer(Reply.NONE, Epoch(3, "!b"))}, COMING),
        ({"b": Answer(Reply.HELD, HEIR), "c": Answer(Reply.NONE, Epoch(3, "!c"))}, BEGIN),
        # A copy is kept, and its holder has not said that the session has ended.
        ({"b": Answer(Reply.KEPT, E2)}, COMING),
        ({"b": Answer(Reply.KEPT, E2), "a": Answer(Reply.NONE, E1)}, COMING),
        ({"b": Answer(Reply.KEPT, E2), "a": Answer(Reply.NONE, E2)}, BEGIN),
        ({"b": Answer(Reply.KEPT, E2), "a": Answer(Reply.NONE, E2), "c": Answer(Reply.NONE, Epoch(3, "!b"))}, COMING),
        ({"b": Answer(Reply.KEPT, E2), "a": Answer(Reply.NONE, E2), "c": Answer(Reply.NONE, E3)}, BEGIN),
    ],
)
def test_what_follows_from_the_answers(answers: dict[str, Answer | None], decision: Decision) -> None:
    """Whatever the order in which they came."""
    given = list(answers.items())
    assert choose(ASKING, given) == choose(ASKING, given[::-1]) == decision
    assert choose(begin(E9), given) == LATER, "the client went on to another member"


@pytest.mark.parametrize(
    ("own", "epoch", "after", "newer"),
    [
        (None, E1, Ownership(Stage.CEDED, E1), None),
        (begin(E1), E2, Ownership(Stage.CEDED, E2), None),
        (begin(E2), E1, begin(E2), E2),
        (begin(E2), E2, begin(E2), None),
        (FROZEN, NO_EPOCH, FROZEN, E1),
        (GIVEN, E1, GIVEN, None),
        (GIVEN, E2, Ownership(Stage.CEDED, E2), None),  # its next holder has it
        (GIVEN, HEIR, Ownership(Stage.CEDED, HEIR), None),  # that one never got it
        (ASKING, E1, ASKING, None),
        (ASKING, E3, Ownership(Stage.CEDED, E3), None),
        (ASKING, E9, ASKING, None),  # its holder says so that has just given it away
        (ARRIVING, E2, ARRIVING, None),
        (ARRIVING, E3, Ownership(Stage.CEDED, E3), None),
    ],
)
def test_what_a_claim_ends(own: Ownership | None, epoch: Epoch, after: Ownership, newer: Epoch | None) -> None:
    """What is older here, or on its way here; a newer session is told."""
    assert claim(own, epoch) == (after, newer)


def test_a_request_that_is_not_the_newest_is_late() -> None:
    """At the same epoch, too; and what is given away goes to whom it was promised."""
    assert take(FROZEN, E3) == (FROZEN, Answer(Reply.LATE, E3))
    assert refuse(FROZEN, E3) == Answer(Reply.LATE, E3)
    assert refuse(FROZEN, E9) == Answer(Reply.REFUSED, E1)
    assert fetch(FROZEN, E2) == (FROZEN, False)
    assert fetch(FROZEN, E3) == (FROZEN, True)
    assert fetch(GIVEN, NO_EPOCH) == (GIVEN, False)
    assert commit(None, E2) == (None, False)
    assert commit(FROZEN, E2) == (FROZEN, False)
    assert commit(FROZEN, E3) == (Ownership(Stage.CEDED, E3, given_since=E1), True)
    assert commit(Ownership(Stage.PROMISED, E1, promised=E3), E3)[1] is False


@pytest.mark.parametrize("own", [None, begin(E9), ASKING, Ownership(Stage.ARRIVING, E3)])
def test_a_late_answer_to_commit_changes_nothing(own: Ownership | None) -> None:
    """The client has begun anew meanwhile, or comes once more."""
    assert finish(own, E9, committed=True) == (own, False)


def test_a_request_that_ends_leaves_what_was_known() -> None:
    """So that nobody takes what is older for the newest."""
    given = Ownership(Stage.ASKING, E9, before=E2, given_since=E1)
    assert finish(ARRIVING, E9, committed=True) == (begin(E9), True)
    assert finish(ARRIVING, E9, committed=False) == (Ownership(Stage.CEDED, E2), False)
    assert abandon(given) == give_up(given, E9) == GIVEN
    assert give_up(given, E3) == given
    assert (ask(GIVEN, E9), ask(None, E3), ask(ASKING, E3)) == (
        given,
        Ownership(Stage.ASKING, E3),
        Ownership(Stage.ASKING, E3, before=E1),
    )
    assert ask(begin(E1), E9) is ask(ARRIVING, E9) is None
    assert arrive(ASKING, E9, found=True, since=E1) == (Ownership(Stage.ARRIVING, E9, before=E1), True)
    assert arrive(ASKING, E9, found=True, since=NO_EPOCH) == (Ownership(Stage.CEDED, E1), False)
    assert abandon(Ownership(Stage.ASKING, E9)) is None
    assert abandon(begin(E9)) == begin(E9)


def test_a_session_that_is_not_fetched_is_taken_back() -> None:
    """The request that it was promised to is late from then on; other stages stay."""
    assert take_back(FROZEN) == Ownership(Stage.OWNED, E1, promised=E3)
    for own in (None, begin(E1), GIVEN, ASKING):
        assert take_back(own) == own


def test_of_two_the_older_right_is_strictly_older() -> None:
    """Of a claim at the same time neither ends; an heir is one only of what was given away before."""
    mine, later = (Owner("u", superuser=False, anyone=False, since=since) for since in (1, 2))
    assert has_older_right(mine, later)
    assert not has_older_right(mine, mine)
    assert [one.is_of_heir(HEIR) for one in (GIVEN, begin(E1), Ownership(Stage.CEDED, E9, given_since=HEIR))] == [
        True,
        False,
        False,
    ]
    assert not GIVEN.is_of_heir(E3)
