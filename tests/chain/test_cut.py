"""Cuts between members of a pool: their form on the wire, and what differs."""

from __future__ import annotations

import json

import pytest

from fanout.chain.cut import Cut, RetainedSet, cut_of_document, differing_selectors

CUT = Cut("123 4", (RetainedSet(2, 2**64 - 1), None, RetainedSet(0, 0)))


def test_a_cut_survives_the_wire() -> None:
    """With digests of 64 bits, which other readers of JSON would round as numbers."""
    document = json.loads(json.dumps(CUT.document()))
    assert document == {"marker": "123 4", "sets": [[2, "f" * 16], None, [0, "0" * 16]]}
    assert cut_of_document(document) == CUT


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"sets": []},
        {"marker": 1, "sets": []},
        {"marker": "1" * 49, "sets": []},
        {"marker": "1 2"},
        {"marker": "1 2", "sets": {}},
        {"marker": "1 2", "sets": [[1]]},
        {"marker": "1 2", "sets": [1]},
        {"marker": "1 2", "sets": [[-1, "0" * 16]]},
        {"marker": "1 2", "sets": [[True, "0" * 16]]},
        {"marker": "1 2", "sets": [[1, "0" * 15]]},
        {"marker": "1 2", "sets": [[1, "g" * 16]]},
        {"marker": "1 2", "sets": [[1, 7]]},
    ],
)
def test_what_is_no_cut_is_refused(document: object) -> None:
    """Nothing of a peer's document is believed before its form is checked."""
    with pytest.raises(ValueError, match="cut"):
        cut_of_document(document)


def test_selectors_differ_by_count_or_digest() -> None:
    """One that a member does not compare differs from nothing."""
    theirs = Cut("123 4", (RetainedSet(2, 1), RetainedSet(1, 1), RetainedSet(1, 0)))
    assert differing_selectors(CUT, theirs) == (0, 2)
    assert differing_selectors(CUT, CUT) == ()


def test_other_places_and_other_selectors_are_not_compared() -> None:
    """They say nothing."""
    assert differing_selectors(CUT, Cut("123 5", CUT.sets)) is None
    assert differing_selectors(CUT, Cut("123 4", CUT.sets[:1])) is None
    assert differing_selectors(CUT, Cut("123 4", (None,) * 3)) is None
