"""Rights of a link's user at the primary."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.link.rights import PrimaryKind, audit_rights, link_rights
from fanout.selection import Selector
from tests.link.harness import config_for

CONTROL = [("read", "fanout/control/edge-1/plant/#"), ("write", "fanout/control/edge-1/plant/#")]
VERSION, COUNT = ("read", "$SYS/broker/version"), ("read", "$SYS/broker/retained messages/count")
UPTIME = ("read", "$SYS/broker/uptime")


def rights(*selectors: Selector, primary: PrimaryKind = "mosquitto", **changes: Any) -> list[tuple[str, str]]:
    """Return access and Topic Filter of each right of a link with these selectors."""
    config = config_for(1883, *selectors, **changes)
    return [(right.access, right.filter) for right in link_rights(config, node_id="edge-1", primary=primary)]


def test_selectors_are_read_and_the_control_topic_both_ways() -> None:
    """A link needs its selectors, its control topic and two topics of the primary's own."""
    assert rights() == [("read", "plant/#"), *CONTROL, VERSION, COUNT, UPTIME]


def test_forwarded_selectors_are_written_too() -> None:
    """Only those; a right that two selectors need is there once."""
    selectors = Selector("a/#"), Selector("b/+", writes="forward"), Selector("b/+", exclude=("b/x",))
    assert rights(*selectors)[:3] == [("read", "a/#"), ("read", "b/+"), ("write", "b/+")]
    assert len(rights(*selectors)) == 3 + len([*CONTROL, VERSION, COUNT, UPTIME])


def test_a_member_of_a_pool_reads_the_heartbeats_of_the_others() -> None:
    """Those of the same link at any node; it writes its own only."""
    config = config_for(1883, control_topic="ops/x")
    found = link_rights(config, node_id="edge-1", primary="mosquitto", in_pool=True)
    assert [(right.access, right.filter) for right in found if right.filter.startswith("ops/")] == [
        ("read", "ops/x/edge-1/plant/#"),
        ("write", "ops/x/edge-1/plant/#"),
        ("read", "ops/x/+/plant"),
    ]


def test_everything_needs_the_primarys_own_topics() -> None:
    """The count of a primary covers its own topics, so a link that can compare it reads them all."""
    assert rights(Selector("#"))[-1] == ("read", "$SYS/#")
    assert rights(Selector("#"))[:-1] == [("read", "#"), *CONTROL]
    assert rights(Selector("#", exclude=("a/#",)))[-3:] == [VERSION, COUNT, UPTIME]


def test_announcements_need_the_topic_that_they_are_made_in() -> None:
    """With `announce_missing` the link publishes there; the topic is below the configured root."""
    found = rights(announce_missing=True, control_topic="ops/x")
    assert ("write", "ops/x/missing") in found
    assert ("read", "ops/x/edge-1/plant/#") in found


@pytest.mark.parametrize(
    ("selector", "asked"),
    [(Selector("plant/+"), True), (Selector("plant/+", live_only=True), False), (Selector("plant/a"), False)],
)
def test_a_primary_whose_order_is_unknown_is_asked_by_a_wildcard(selector: Selector, asked: bool) -> None:
    """Where the link selects a retained set by one."""
    assert (("read", "$SYS/+/version") in rights(selector, primary="other")) is asked
    assert ("read", "$SYS/+/version") not in rights(selector)


def test_a_fanout_primary_tells_of_itself_elsewhere() -> None:
    """It needs no sentinel."""
    assert rights(Selector("#"), primary="fanout") == [("read", "#"), *CONTROL, ("read", "$SYS/fanout/#")]


def test_the_user_for_audits_reads_the_retained_sets_and_writes_nothing() -> None:
    """It is asked for missing topics by name; there are none of a selector that is `live_only`."""
    selectors = Selector("a/#", writes="forward"), Selector("b/+"), Selector("c/+", live_only=True)
    found = audit_rights(config_for(1883, *selectors, audit_username="auditor"))
    assert [(right.access, right.filter) for right in found] == [("read", "a/#"), ("read", "b/+")]
    assert audit_rights(config_for(1883, *selectors)) == ()
