"""Exhaustive search of the rules by which sessions are copied and go on elsewhere; `copy_model` says what is in it."""

from __future__ import annotations

import pytest

from tests.durable.copying.copy_model import check, start, steps
from tests.durable.copying.copy_search import search_copies
from tests.durable.search import search_all


@pytest.mark.parametrize(
    "bounds",
    [
        {"connects": 2},
        {"connects": 1, "crashes": 1},
        {"connects": 1, "losses": 1},
        {"changes": 1, "losses": 1, "crashes": 1},
        {"changes": 1, "partings": 1, "crashes": 1},
        {"changes": 1, "pauses": 1},
        {"changes": 1, "losses": 2, "ends": 1},
        {"changes": 1, "ends": 1, "crashes": 1},
    ],
    ids=str,
)
def test_every_order(bounds: dict[str, int]) -> None:
    """Whatever the order: one member serves, an heir has what was confirmed, and nobody begins over a session."""
    assert search_copies(start(**bounds)) > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "bounds",
    [
        {"connects": 1, "crashes": 1, "changes": 1},
        {"connects": 1, "pauses": 1},
        {"connects": 1, "pauses": 1, "changes": 1},
        {"connects": 2, "crashes": 1},
        {"changes": 1, "partings": 1, "pauses": 1},
    ],
    ids=str,
)
def test_every_order_of_more(bounds: dict[str, int]) -> None:
    """The same with a holder that goes on after it was found dead while its session or its copy moves."""
    assert search_copies(start(**bounds), states_max=30_000_000) > 10_000


@pytest.mark.parametrize(
    "bounds",
    [{"connects": 1, "losses": 1}, {"changes": 1, "pauses": 1}, {"changes": 1, "ends": 1, "crashes": 1}],
    ids=str,
)
def test_the_search_finds_the_states_that_a_plain_one_finds(bounds: dict[str, int]) -> None:
    """It computes each step once for all states that do not differ in what the step reads."""
    assert search_copies(start(**bounds)) == search_all(start(**bounds), steps, check)
