"""Which address of a primary is tried next, and when."""

from __future__ import annotations

from fanout.link.transport.failover import AddressChoice


def test_the_first_is_tried_first_and_at_once() -> None:
    """Nothing has failed yet."""
    choice = AddressChoice(3, min_s=1, max_s=8)
    assert (choice.current, choice.try_at_s <= 0) == (0, True)


def test_a_failure_does_not_delay_the_others() -> None:
    """Each address is tried once without a pause; then the one whose pause ends first."""
    choice = AddressChoice(3, min_s=1, max_s=8)
    for expected in (1, 2):
        choice.fail(100.0)
        assert choice.current == expected
        assert choice.try_at_s <= 100.0
    choice.fail(100.0)
    assert 101.0 <= choice.try_at_s <= 102.0


def test_pauses_grow_for_each_address_alone() -> None:
    """Two that fail wait longer and longer, while a third one that worked has its short pause again."""
    choice = AddressChoice(2, min_s=1, max_s=8)
    now = 0.0
    for _ in range(12):
        choice.fail(now)
        now = max(now, choice.try_at_s)
    pauses = []
    for _ in range(2):
        choice.fail(now)
        pauses.append(choice.try_at_s - now)
    assert max(pauses) > 4
    choice.lose(now, live_s=80.0)
    assert 1 <= choice.try_at_s - now <= 2


def test_a_lost_one_is_tried_again_first() -> None:
    """A connection that worked and was lost is worth another try, after a pause; then the next has its turn."""
    choice = AddressChoice(2, min_s=1, max_s=8)
    choice.fail(0.0)
    choice.lose(10.0, live_s=5.0)
    assert choice.current == 1
    assert 11.0 <= choice.try_at_s <= 12.0
    choice.fail(12.0)
    assert choice.current == 0
    assert choice.try_at_s <= 12.0


def test_one_that_answered_is_used_at_once() -> None:
    """Whatever pause it had; the one that is left for it worked, so it has its short pause again."""
    choice = AddressChoice(2, min_s=1, max_s=8)
    for now in (0.0, 50.0, 100.0, 150.0, 200.0):
        choice.fail(now)
    assert choice.current == 1
    choice.take(0, 250.0, live_s=160.0)
    assert (choice.current, choice.try_at_s) == (0, 250.0)
    choice.fail(251.0)
    choice.fail(252.0)
    assert choice.current == 1
    assert 253.0 <= choice.try_at_s <= 254.0


def test_an_answer_is_no_success() -> None:
    """One that is used again and does not get a link live waits as if it had not answered, and is asked less often."""
    choice = AddressChoice(2, min_s=1, max_s=8)
    choice.fail(0.0)
    assert choice.may_return(0, 0.0)
    now, pauses = 0.0, []
    for _ in range(7):
        choice.take(0, now, live_s=160.0)
        choice.fail(now)
        assert choice.current == 1
        pause = next(pause for pause in range(1_000) if choice.may_return(0, now + pause))
        pauses.append(pause)
        now += pause
    assert 16 <= pauses[0] <= 32
    assert 64 <= pauses[2] <= 80
    assert max(pauses) <= 256
    choice.take(0, now, live_s=160.0)
    choice.lose(now, live_s=2560.0)
    choice.fail(now)
    assert choice.may_return(0, now)
    choice.take(0, now, live_s=160.0)
    choice.fail(now)
    assert choice.may_return(0, now + 32)


def test_an_address_that_does_not_work_for_long_has_failed() -> None:
    """Its pauses grow until it works for ten times the last one; and another address has its turn."""
    choice = AddressChoice(1, min_s=1, max_s=8)
    now, pauses = 0.0, []
    for _ in range(5):
        choice.lose(now, live_s=0.15)
        pauses.append(choice.try_at_s - now)
        now = choice.try_at_s
    assert [pause >= least for pause, least in zip(pauses, (1, 2, 4, 7.9, 7.9), strict=True)] == [True] * 5
    choice.lose(now, live_s=80.0)
    assert choice.try_at_s - now <= 2
    choices = AddressChoice(2, min_s=1, max_s=8)
    choices.lose(0.0, live_s=0.15)
    assert choices.current == 0
    choices.lose(2.0, live_s=0.15)
    assert choices.current == 1
    assert choices.try_at_s <= 2.0
