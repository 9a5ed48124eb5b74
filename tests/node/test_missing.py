"""Which part of a client's filter waits for topics that are not there."""

from __future__ import annotations

import pytest

from fanout.node.missing import missing_filter
from fanout.replica.store import Replica
from fanout.replica.update import Phase, content_digest
from fanout.selection import Selector


@pytest.mark.parametrize(
    ("asked", "selector", "missing"),
    [
        ("plant/new", Selector("plant/#"), "plant/new"),
        ("plant/1", Selector("plant/#"), None),
        ("#", Selector("plant/#"), None),
        ("+/new/#", Selector("plant/#"), "plant/new/#"),
        ("office/x", Selector("plant/#"), None),
        ("hq/+/state", Selector("office/#", prefix="hq/"), "office/state"),
        ("hq/office/+", Selector("office/#", prefix="hq/"), "office/+"),
        ("#", Selector("office/#", prefix="hq/"), "office/#"),
        ("plant/debug/x", Selector("plant/#", exclude=("plant/debug/#",)), None),
        ("plant/+/x", Selector("plant/#", exclude=("plant/debug/#",)), "plant/+/x"),
    ],
)
def test_only_what_a_selector_would_bring_is_missing(asked: str, selector: Selector, missing: str | None) -> None:
    """It fits a selector, without its excludes, and matches nothing that is there; told with the primary's names."""
    replica = Replica(selectors=(selector,))
    if selector.filter == "plant/#":
        topic, payload = b"plant/1", b"x"
        replica.apply([(topic, payload, 0, True, b"", 1, 0, content_digest(topic, payload), None)], phase=Phase.LIVE)
    assert missing_filter(asked, selector, replica) == missing
