"""The bound on the age that a SUBSCRIBE asks for."""

from __future__ import annotations

import pytest

from fanout.chain.age_bound import AgeBound


@pytest.mark.parametrize("bound", [AgeBound(0.5), AgeBound(3600.0, qos_max=1)])
def test_bound_is_asked_for_and_read(bound: AgeBound) -> None:
    """Among other User Properties too."""
    assert AgeBound.asked_by((("other", "1"), *bound.properties)) == bound


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e9", "soon", "0" * 20 + "1", "3601"])
def test_no_age_asks_for_no_bound(text: str) -> None:
    """A number that cannot be meant is ignored, as the property of somebody else is."""
    assert AgeBound.asked_by((("fanout-max-age-s", text),)) is None
    assert AgeBound.asked_by(()) is None
