"""The clocks of the machine."""

from __future__ import annotations

import time

from fanout.runtime.system_clock import SystemClock


def test_clocks_are_those_of_the_machine() -> None:
    """Unix time in nanoseconds, and seconds that never go back."""
    clock = SystemClock()
    before_ns, before_s = time.time_ns(), time.monotonic()
    assert before_ns <= clock.now_ns() <= time.time_ns()
    assert before_s <= clock.monotonic() <= time.monotonic()
