"""The figures as values."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fanout.reports.read.scope import NEVER_US
from fanout.reports.values.figures import UpdateFigures, covered_from, goes_on, percent, time_of
from tests.reports.documents import BEGIN, stamped
from tests.reports.oracle import micros


def test_times_keep_their_microseconds() -> None:
    """A time survives the way there and back exactly, where floating point would round it."""
    assert time_of(micros(BEGIN) + 1).microsecond == 1
    assert micros(time_of(2**52 + 1)) == 2**52 + 1
    assert time_of(10**18).year == 9999, "what the logs of earlier versions may hold"
    assert covered_from(NEVER_US) is None
    assert covered_from(micros(BEGIN)) == BEGIN


def test_a_share_of_nothing_is_not_known() -> None:
    """Nothing expected is neither 0 nor 100 per cent."""
    assert percent(0, 0) is None
    assert percent(1, 4) == 25


def test_values_are_frozen_and_strict() -> None:
    """A figure cannot be changed afterwards, nor have a field that the schema lacks."""
    figures = stamped()
    with pytest.raises(ValidationError):
        figures.missing = 3
    with pytest.raises(ValidationError):
        UpdateFigures.model_validate(figures.model_dump() | {"more": 1})


@pytest.mark.parametrize(
    ("missing", "within", "after", "expected"),
    [
        (1, 1, 0, None),  # nothing came since, and one loss shows no row of them
        (50, 50, 0, True),  # all are lost, up to the end
        (50, 50, 1, False),  # all were lost, and then one came
        (2, 100, 200, None),  # of 50 one: 200 without a loss come now and then
        (2, 100, 230, False),
        (50, 100, 2, True),  # no more came since the last than between two of them
        (50, 100, 3, None),
        (50, 100, 7, False),
    ],
)
def test_a_loss_goes_on_until_what_came_shows_its_end(
    missing: int, within: int, after: int, expected: bool | None
) -> None:
    """It goes on, or has ended with one chance in a hundred of an error; otherwise that is not known."""
    assert goes_on(missing, within=within, after=after) is expected
