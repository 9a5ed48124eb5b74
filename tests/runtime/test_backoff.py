"""The delays between attempts."""

from __future__ import annotations

from fanout.runtime.backoff import Backoff


def test_delays_double_with_jitter_up_to_the_longest() -> None:
    """Each delay is the doubled one plus at most the first, and never above the longest."""
    for _ in range(50):
        backoff = Backoff(min_s=0.5, max_s=10.0)
        delays = [backoff.next_delay_s() for _ in range(10)]
        for number, delay in enumerate(delays):
            least = min(0.5 * 2**number, 10.0)
            assert least <= delay <= min(least + 0.5, 10.0)
        assert backoff.attempts == 10


def test_jitter_differs() -> None:
    """Many links that lost the same primary do not come back at the same moment."""
    assert len({Backoff(min_s=0.5, max_s=10.0).next_delay_s() for _ in range(20)}) > 1


def test_a_success_begins_anew() -> None:
    """After a success that lasted the first delay is short again."""
    backoff = Backoff(min_s=0.5, max_s=10.0)
    for _ in range(8):
        backoff.next_delay_s()
    assert backoff.note_success(lasted_s=100.0)
    assert backoff.attempts == 0
    assert backoff.next_delay_s() <= 1.0


def test_a_success_that_does_not_last_begins_nothing_anew() -> None:
    """Ten times the last delay is enough, a little less is not; what lasted counts once."""
    backoff = Backoff(min_s=0.5, max_s=10.0)
    delays = [backoff.next_delay_s() for _ in range(3)]
    assert not backoff.note_success(lasted_s=9.99 * delays[-1])
    assert backoff.next_delay_s() >= 4.0
    assert not backoff.note_success(lasted_s=10 * delays[-1])
    assert backoff.note_success(lasted_s=45.0)
    assert backoff.next_delay_s() <= 1.0


def test_a_million_attempts_do_not_overflow() -> None:
    """A primary that is away for years does not break the arithmetic."""
    backoff = Backoff(min_s=0.5, max_s=30.0)
    backoff.attempts = 1_000_000
    assert backoff.next_delay_s() == 30.0
