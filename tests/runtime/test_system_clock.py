"""The clocks of the machine."""

from __future__ import annotations

import time

from fanout.runtime.system_clock import SystemClock


def test_clocks_are_those_of_the_machine() -> None:
    """Unix time in nanoseconds, and seconds that never go back, those of a suspended machine included."""
    clock = SystemClock()
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before_ns, before_s = time.time_ns(), time.clock_gettime(clock_id)
    assert before_ns <= clock.now_ns() <= time.time_ns()
    assert before_s <= clock.monotonic() <= time.clock_gettime(clock_id)
