"""Differences of two configurations: every key has a rule, and a reload makes no mixture that nobody asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fanout.config import AccessConfig, Address, NodeConfig, ServerConfig, parse_config
from fanout.config.access import HookConfig, QuotaSection, ReservedSection, RuleSection
from fanout.config.changes import RULES, Change, Cost, find_changes, merge, takes_selectors_alone
from fanout.config.settings import LinkConfig, ListenerConfig, SelectorSection
from fanout.config.translation import SECTIONS
from fanout.selection import Selector

FULL = parse_config((Path(__file__).parents[2] / "configs" / "full.toml").read_text(), path="full.toml")
WHOLE = {QuotaSection, ReservedSection, RuleSection}
"""Tables of a list that is compared as a whole."""
LISTED = {"links", "listen", "listener_tables", "selectors"}
"""Fields whose items are told apart by what names them."""


def named(changes: tuple[Change, ...]) -> list[tuple[str, str, str]]:
    """Return keys, kinds and costs."""
    return [(change.key, change.kind, change.rule.cost.value) for change in changes]


def test_every_key_has_a_rule() -> None:
    """A new key of the configuration cannot be forgotten."""
    assert set(RULES) == set(SECTIONS.values()) - WHOLE
    for section, rules in RULES.items():
        assert set(rules) == {field.name for field in dataclasses.fields(section)}, section
        for name, rule in rules.items():
            assert bool(rule.reason) is (rule.cost is Cost.RESTART), (section, name)


def test_same_configuration_has_no_changes() -> None:
    """Two readings of one file are equal."""
    assert find_changes(FULL, FULL) == ()
    assert merge(FULL, FULL) == FULL


@pytest.mark.parametrize(
    "section",
    [section for section in RULES if section not in {NodeConfig, LinkConfig, ListenerConfig, SelectorSection}],
)
def test_changed_key_is_found_and_taken_or_left(section: type) -> None:
    """Each key of each section: the difference names it, and only a change without a restart is in force behind it."""
    for name, rule in RULES[section].items():
        if name in LISTED:
            continue
        old, new = changed(FULL, section, name)
        [change] = find_changes(old, new)
        assert change.rule is rule
        assert merge(old, new) == (old if rule.cost is Cost.RESTART else new)


def changed(config: Any, section: type, name: str) -> tuple[Any, Any]:
    """Return a configuration, and another one of which only one key of a section differs; no rule is applied."""
    if isinstance(config, section):
        here: Any = config
        return config, dataclasses.replace(here, **{name: ("another", getattr(config, name))})
    for field in dataclasses.fields(config):
        inner: Any = getattr(config, field.name)
        if type(inner) in RULES:
            old, new = changed(inner, section, name)
            if old != new:
                before, after = ({field.name: each} for each in (old, new))
                return dataclasses.replace(config, **before), dataclasses.replace(config, **after)
    return config, config


def test_sections_come_and_go_as_a_whole() -> None:
    """A section that is absent on one side is one change."""
    without = dataclasses.replace(FULL, log=None, access=dataclasses.replace(FULL.access, http=None))
    assert named(find_changes(FULL, without)) == [("access.http", "removed", "nothing"), ("log", "removed", "restart")]
    assert named(find_changes(without, FULL)) == [("access.http", "added", "nothing"), ("log", "added", "restart")]
    assert merge(FULL, without) == dataclasses.replace(without, log=FULL.log)


LINK = LinkConfig(
    name="plant",
    primaries=(Address("mqtt", "a", 1883), Address("mqtt", "b", 1883)),
    selectors=(Selector("a/#"), Selector("b/#", prefix="x/")),
    client_id="edge",
)


def of_link(old: LinkConfig, new: LinkConfig) -> list[tuple[str, str, str]]:
    """Return the changes between two nodes with one link each, of which nothing needs a restart."""
    before, after = (dataclasses.replace(FULL, pool=None, links=(link,)) for link in (old, new))
    assert merge(before, after) == after
    return named(find_changes(before, after))


def test_selectors_are_told_apart_by_prefix_and_filter() -> None:
    """Another prefix is a removal and an addition; other keys are changes, and the order is none."""
    a, b = LINK.selectors
    new = (dataclasses.replace(b, qos=0, exclude=("b/c",)), dataclasses.replace(a, prefix="y/"))
    assert of_link(LINK, dataclasses.replace(LINK, selectors=new)) == [
        ("link[plant].selector[a/#]", "removed", "selector"),
        ("link[plant].selector[x/b/#].exclude", "changed", "selector"),
        ("link[plant].selector[x/b/#].qos", "changed", "selector"),
        ("link[plant].selector[y/a/#]", "added", "selector"),
    ]
    assert of_link(LINK, dataclasses.replace(LINK, selectors=(b, a))) == []


@pytest.mark.parametrize(
    ("changes", "cost"),
    [
        ({"username": "edge"}, "link"),
        ({"primaries": LINK.primaries[1:]}, "link"),
        ({"primaries": (Address("mqtt", "c", 1883),)}, "session"),
        ({"control_topic": "other"}, "session"),
        ({"version": 4}, "session"),
        ({"session_expiry_s": 0}, "session"),
    ],
)
def test_change_of_a_link_costs_its_session_where_that_cannot_go_on(changes: dict[str, Any], cost: str) -> None:
    """Another identity, another primary, or no session that outlives its connection."""
    found = of_link(LINK, dataclasses.replace(LINK, **changes))
    assert [each[1:] for each in found] == [("changed", cost)]


@pytest.mark.parametrize(
    ("old", "changes", "cost"),
    [
        ({"version": 4}, {}, "selector"),
        ({"session_expiry_s": 0}, {}, "selector"),
        ({}, {"keep_alive_s": 7}, "link"),
        ({"version": 4}, {"keep_alive_s": 7}, "session"),
        ({"selectors": (Selector("a/b"),)}, {}, "link"),
        ({"selectors": (Selector("b/#", live_only=True),)}, {}, "link"),
        ({"selectors": (Selector("b/#", live_only=True),), "version": 4}, {}, "session"),
    ],
)
def test_selector_costs_a_connection_where_the_link_connects_anyway(
    old: dict[str, Any], changes: dict[str, Any], cost: str
) -> None:
    """With another key of the link, and when the link must ask the primary what it is capable of."""
    before = dataclasses.replace(LINK, **old)
    after = dataclasses.replace(before, selectors=(*before.selectors, Selector("c/#")), **changes)
    found = of_link(before, after)
    assert found[0] == ("link[plant].selector[c/#]", "added", cost)
    assert {each[2] for each in found} == {cost}
    assert takes_selectors_alone(before, after) is (cost == "selector")


def test_listeners_are_told_apart_by_their_address() -> None:
    """One that stays is no change, wherever it stands; members that share a port need a restart."""
    one, two, three = (Address("mqtt", "127.0.0.1", port) for port in (1, 2, 3))
    tables = (ListenerConfig(address=two), ListenerConfig(address=three))
    old = ServerConfig(listen=(one,), listener_tables=tables)
    changed = dataclasses.replace(tables[1], proxy_protocol_from=("10.0.0.0/8",))  # type: ignore[arg-type]  # any value
    new = ServerConfig(listen=(two,), listener_tables=(changed,))
    for in_force, cost in (
        (old, "nothing"),
        (
            dataclasses.replace(old, listener_tables=(tables[0], dataclasses.replace(tables[1], share_port=True))),
            "restart",
        ),
    ):
        before, after = (NodeConfig(node=FULL.node, server=server) for server in (in_force, new))
        assert named(find_changes(before, after)) == [
            ("server.listener[mqtt://127.0.0.1:1]", "removed", cost),
            ("server.listener[mqtt://127.0.0.1:3]", "changed", cost),
        ]
        assert merge(before, after) == (before if cost == "restart" else after)


def test_links_of_some_nodes_need_a_restart() -> None:
    """On disk alone for each change, in a pool for links that come and go only."""
    other = dataclasses.replace(LINK, username="edge")
    pool = dataclasses.replace(FULL, links=(LINK,))
    on_disk = dataclasses.replace(pool, pool=None, retained=dataclasses.replace(pool.retained, storage="disc_only"))
    for node, links, cost in (
        (on_disk, (other,), "restart"),
        (pool, (other,), "link"),
        (pool, (LINK, dataclasses.replace(LINK, name="second")), "restart"),
        (pool, (), "restart"),
    ):
        new = dataclasses.replace(node, links=links)
        [change] = find_changes(node, new)
        assert (change.rule.cost.value, bool(change.rule.reason)) == (cost, cost == "restart")
        assert merge(node, new) == (node if cost == "restart" else new)


def test_keys_are_named_as_in_the_file() -> None:
    """Not by the names of the fields."""
    old = NodeConfig(node=FULL.node, access=AccessConfig(http=HookConfig(url="http://a/")))
    new = NodeConfig(
        node=FULL.node,
        access=AccessConfig(http=HookConfig(url="http://b/"), rules=(RuleSection(filter="#", allow="all"),)),
    )
    assert named(find_changes(old, new)) == [
        ("access.http.url", "changed", "nothing"),
        ("access.rule", "changed", "nothing"),
    ]
