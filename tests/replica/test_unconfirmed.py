"""Topics that are kept although a comparison did not bring them."""

from __future__ import annotations

import pytest

from fanout.replica import unconfirmed as module
from fanout.replica.unconfirmed import UnconfirmedTopics


def test_topics_are_noted_once_and_settled() -> None:
    """Those that are not here are ignored."""
    topics = UnconfirmedTopics()
    assert not topics
    topics.note([b"a", b"b", b"c"], selector_index=0)
    topics.note([b"b", b"d"], selector_index=0)
    topics.settle([b"a", b"x"])
    assert len(topics) == 3
    assert [topic for piece in topics.pieces() for topic in piece] == [b"b", b"c", b"d"]
    assert [topic for piece in topics.pieces(after=b"b") for topic in piece] == [b"c", b"d"]
    assert (b"b" in topics, b"a" in topics) == (True, False)
    topics.clear()
    assert len(topics) == 0


def test_beyond_the_bound_only_their_number_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pass over their selector counts them anew."""
    monkeypatch.setattr(module, "NAMES_MAX", 2)
    topics = UnconfirmedTopics()
    topics.note([b"a", b"b", b"c"], selector_index=0)
    topics.note([b"d"], selector_index=1)
    assert (len(topics), topics.unnamed) == (4, 2)
    topics.begin_pass(0)
    assert (len(topics), topics.unnamed) == (3, 1)
    topics.clear()
    assert len(topics) == topics.unnamed == 0
