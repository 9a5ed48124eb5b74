"""Values that are held for long are left out of garbage collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fanout.runtime.gc_freeze import LongLived, collect_little_at_a_time


@pytest.fixture(autouse=True)
def _give_back() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_held_is_set_aside_as_it_grows() -> None:
    """The first note takes everything there is; then every growth by 50,000 values does, after a loss too."""
    gc.unfreeze()
    long_lived = LongLived()
    held: list[list[int]] = []

    def is_set_aside(values: int) -> bool:
        held.append([values])
        before = gc.get_freeze_count()
        long_lived.note(values)
        return gc.get_freeze_count() > before

    assert [is_set_aside(values) for values in (0, 1, 49_999, 50_000, 99_999, 100_000)] == [
        *(True, False, False),
        *(True, False, True),
    ]
    assert [is_set_aside(values) for values in (10, 50_009, 50_010)] == [False, False, True]


def test_garbage_of_the_moment_is_collected() -> None:
    """A cycle that nobody holds is not kept for ever."""

    class Cycle:
        alive = 0

        def __init__(self) -> None:
            self.itself = self
            Cycle.alive += 1

        def __del__(self) -> None:
            Cycle.alive -= 1

    Cycle()
    LongLived().note(0)
    assert Cycle.alive == 0


def test_full_collections_are_rare() -> None:
    """Half a million new objects cause none; with Python's settings they do."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        assert _full_collections(500_000) > 0
        collect_little_at_a_time()
        assert _full_collections(500_000) == 0
    finally:
        gc.set_threshold(*before)


def _full_collections(objects: int) -> int:
    gc.freeze()  # Python puts one off while what it found last is four times what is new
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    held = [[number] for number in range(objects)]
    return gc.get_stats()[2]["collections"] - before if held else 0
