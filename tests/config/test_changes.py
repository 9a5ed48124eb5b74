"""Differences of two configurations: every key has a rule, and a reload makes no mixture that nobody asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fanout.config import AccessConfig, NodeConfig, parse_config
from fanout.config.access import HookConfig, RuleSection
from fanout.config.changes import RULES, Change, Cost, find_changes, merge
from fanout.config.settings import LinkConfig, ListenerConfig, SelectorSection
from fanout.config.translation import SECTIONS

FULL = parse_config((Path(__file__).parents[2] / "configs" / "full.toml").read_text(), path="full.toml")
WHOLE = {RuleSection, ListenerConfig, SelectorSection, LinkConfig}
"""Tables of lists, which are compared as a whole."""


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


@pytest.mark.parametrize("section", [section for section in RULES if section is not NodeConfig])
def test_changed_key_is_found_and_taken_or_left(section: type) -> None:
    """Each key of each section: the difference names it, and only a change without a restart is in force behind it."""
    for name, rule in RULES[section].items():
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
