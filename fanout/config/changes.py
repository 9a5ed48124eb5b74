"""Differences of two configurations, each with its cost in a running node, and what a reload makes of them (core).

Every key has one rule in `RULES`; `docs/reference/reload.md` shows them as a table. Sections are compared key by key.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from fanout.config.access import AccessConfig, HookConfig
from fanout.config.pool import PoolConfig
from fanout.config.settings import (
    HttpConfig,
    IdentityConfig,
    LogConfig,
    NodeConfig,
    RetainedConfig,
    ServerConfig,
    SessionsConfig,
    ShipConfig,
)
from fanout.config.translation import keys_of_fields

__all__ = ["RULES", "Change", "ChangeKind", "Cost", "Rule", "find_changes", "merge"]

ChangeKind: TypeAlias = Literal["added", "changed", "removed"]
"""What happened to a key or a section."""
_Section = TypeVar("_Section")


class Cost(enum.StrEnum):
    """Cost of a change in a running node."""

    NOTHING = "nothing"
    """It holds from now on; nobody is disconnected, and no link does anything."""
    RESTART = "restart"
    """A running node cannot take it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a change of a key costs."""

    cost: Cost
    reason: str = ""
    """Why it needs a restart; empty when it does not."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two configurations."""

    key: str
    """Dotted key, as faults have it."""
    kind: ChangeKind
    rule: Rule


def _rules(section: type, *, live: str = "", restart: Mapping[str, str] | None = None) -> Mapping[str, Rule]:
    """Return the rule of each field of a section.

    Args:
        section: Its dataclass.
        live: Fields of which a change holds at once, separated by blanks; "*" for all others.
        restart: The reason of a restart to the fields that need it for that, in the same form.
    """
    named = [(live, Rule(Cost.NOTHING)), *((names, Rule(Cost.RESTART, why)) for why, names in (restart or {}).items())]
    rules = {name: rule for names, rule in named for name in names.split() if name != "*"}
    for names, rule in named:
        if names == "*":
            rules |= {field.name: rule for field in dataclasses.fields(section) if field.name not in rules}
    return rules


_READ_ONCE: Final = "the node reads it at its start only"
_PARTS: Final = "the node makes this part of itself at its start only"
RULES: Final[Mapping[type, Mapping[str, Rule]]] = {
    NodeConfig: _rules(NodeConfig, live="access", restart={_PARTS: "*"}),
    IdentityConfig: _rules(
        IdentityConfig, restart={"files and sessions depend on it": "id data_directory", _READ_ONCE: "*"}
    ),
    ServerConfig: _rules(ServerConfig, restart={_READ_ONCE: "*"}),
    AccessConfig: _rules(
        AccessConfig,
        live="anonymous password_file decisions_max http rules",
        restart={
            _READ_ONCE: "password_checks_max password_queue_max password_remember_s password_remembered_max",
        },
    ),
    HookConfig: _rules(HookConfig, live="*"),
    HttpConfig: _rules(HttpConfig, restart={_READ_ONCE: "*"}),
    PoolConfig: _rules(PoolConfig, restart={_READ_ONCE: "*"}),
    LogConfig: _rules(LogConfig, restart={_READ_ONCE: "*"}),
    ShipConfig: _rules(ShipConfig, restart={_READ_ONCE: "*"}),
    RetainedConfig: _rules(RetainedConfig, restart={_READ_ONCE: "*"}),
    SessionsConfig: _rules(SessionsConfig, restart={_READ_ONCE: "*"}),
}
"""The rule of each field of each section; that of a section is for its addition and removal."""


def find_changes(old: NodeConfig, new: NodeConfig) -> tuple[Change, ...]:
    """Return the differences, in the order of the keys."""
    return tuple(_differences("", old, new))


def merge(old: _Section, new: _Section) -> _Section:
    """Return what is in force behind a reload: `new`, but `old` where a change needs a restart.

    Args:
        old: A section that is in force; or the whole configuration.
        new: The same section of the file.
    """
    rules = RULES[type(old)]
    values: dict[str, Any] = {}
    for name, rule in rules.items():
        before, after = getattr(old, name), getattr(new, name)
        if type(before) in RULES and type(after) is type(before):
            values[name] = merge(before, after)
        else:
            values[name] = before if rule.cost is Cost.RESTART else after
    return dataclasses.replace(old, **values)  # type: ignore[type-var]


def _differences(prefix: str, old: Any, new: Any) -> Iterator[Change]:
    section: type = type(old)
    keys = keys_of_fields(section)
    for name, rule in RULES[section].items():
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        key = f"{prefix}{keys[name]}"
        if type(before) in RULES and type(after) is type(before):
            yield from _differences(f"{key}.", before, after)
        elif after is None and type(before) in RULES:
            yield Change(key, "removed", rule)
        elif before is None and type(after) in RULES:
            yield Change(key, "added", rule)
        else:
            yield Change(key, "changed", rule)
