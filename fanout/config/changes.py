"""Differences of two configurations, each with its cost in a running node, and what a reload makes of them (core).

Every key has one rule in `RULES`; `docs/reference/reload.md` shows them as a table. Sections are compared key by key.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from fanout.config.settings import LinkConfig, NodeConfig, SelectorSection, ServerConfig
from fanout.config.translation import SECTIONS, keys_of_fields
from fanout.selection import Selector

__all__ = ["RULES", "Change", "ChangeKind", "Cost", "Rule", "find_changes", "merge", "takes_selectors_alone"]

ChangeKind: TypeAlias = Literal["added", "changed", "removed"]
"""Kind of change of a key or a section."""
_Section = TypeVar("_Section")


class Cost(enum.StrEnum):
    """Cost of a change in a running node."""

    NOTHING = "nothing"
    """It holds from now on; nobody is disconnected, and no link does anything."""
    SELECTOR = "selector"
    """Its link goes on; this selector alone is proved, or its values removed."""
    LINK = "link"
    """The link connects anew with its session and verifies its values; one that is added begins, a removed one ends."""
    SESSION = "session"
    """The link begins a new session: its values are removed, and proved anew."""
    RESTART = "restart"
    """A running node cannot take it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Cost of a change of a key."""

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


def _rules(
    name: str, *, live: str = "", restart: Mapping[str, str] | None = None, other: Mapping[Cost, str] | None = None
) -> tuple[type, Mapping[str, Rule]]:
    """Return the dataclass of a section, and the rule of each of its fields.

    Args:
        name: The section, as in the file.
        live: Fields of which a change holds at once, separated by blanks; "*" for all others.
        restart: The reason of a restart to the fields that need it for that, in the same form.
        other: Another cost to its fields, in the same form.
    """
    section = SECTIONS[name]
    named = [(live, Rule(Cost.NOTHING)), *((names, Rule(Cost.RESTART, why)) for why, names in (restart or {}).items())]
    named += [(names, Rule(cost)) for cost, names in (other or {}).items()]
    rules = {name: rule for names, rule in named for name in names.split() if name != "*"}
    for names, rule in named:
        if names == "*":
            rules |= {field.name: rule for field in dataclasses.fields(section) if field.name not in rules}
    return section, rules


_READ_ONCE: Final = "the node reads it at its start only"
_PARTS: Final = "the node makes this part of itself at its start only"
RULES: Final[Mapping[type, Mapping[str, Rule]]] = dict(
    [
        _rules("", live="access", restart={_PARTS: "*"}, other={Cost.LINK: "links"}),
        _rules("node", live="drain_s", restart={"files and sessions depend on it": "id data_directory"}),
        _rules(
            "server",
            live="*",
            restart={"clients that are connected rely on it": "qos_max receive_maximum"},
        ),
        _rules("server.listener", live="*"),
        _rules(
            "access",
            live="anonymous password_file decisions_max http quotas reserved rules",
            restart={
                _READ_ONCE: "password_checks_max password_queue_max password_remember_s password_remembered_max",
            },
        ),
        _rules("access.http", live="*"),
        _rules("http", restart={_READ_ONCE: "*"}),
        _rules("pool", live="peers", restart={_READ_ONCE: "*"}),
        _rules(
            "log",
            live="flush_interval_s fsync_interval_s segment_bytes_max segment_age_max_s",
            restart={_READ_ONCE: "*"},
        ),
        _rules("log.ship", restart={_READ_ONCE: "*"}),
        _rules("retained", live="max_payload expiry_s", restart={_READ_ONCE: "*"}),
        _rules("sessions", restart={_READ_ONCE: "*"}),
        _rules(
            "link", other={Cost.LINK: "*", Cost.SESSION: "client_id version control_topic", Cost.SELECTOR: "selectors"}
        ),
        _rules("link.selector", other={Cost.SELECTOR: "*"}),
    ]
)
"""The rule of each field of each section; that of a section is for its addition and removal."""


def find_changes(old: NodeConfig, new: NodeConfig) -> tuple[Change, ...]:
    """Return the differences, in the order of the keys."""
    return tuple(_differences("", old, new))


def merge(old: _Section, new: _Section) -> _Section:
    """Return the section in force after a reload: `new`, but `old` where a change needs a restart.

    Args:
        old: A section that is in force; or the whole configuration.
        new: The same section of the file.
    """
    rules = _rules_of(old)
    values: dict[str, Any] = {}
    for name, rule in rules.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(old, NodeConfig) and isinstance(new, NodeConfig) and name == "links":
            values[name] = _merged_links(old, new)
        elif type(before) in RULES and type(after) is type(before):
            values[name] = merge(before, after)
        else:
            values[name] = before if rule.cost is Cost.RESTART else after
    return dataclasses.replace(old, **values)  # type: ignore[type-var]


def _differences(prefix: str, old: Any, new: Any) -> Iterator[Change]:
    section: type = type(old)
    keys = keys_of_fields(section)
    for name, rule in _rules_of(old).items():
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        key = f"{prefix}{keys[name]}"
        if section is NodeConfig and name == "links":
            yield from _link_changes(old, new)
            continue
        if name == "listen" and section is ServerConfig:
            yield from _listener_changes(old, new, rule)
            continue
        if name == "listener_tables":
            if old.listen == new.listen:
                yield from _listener_changes(old, new, rule)
            continue
        if type(before) in RULES and type(after) is type(before):
            yield from _differences(f"{key}.", before, after)
        elif after is None and type(before) in RULES:
            yield Change(key, "removed", rule)
        elif before is None and type(after) in RULES:
            yield Change(key, "added", rule)
        else:
            yield Change(key, "changed", rule)


def _rules_of(section: object) -> Mapping[str, Rule]:
    """Return the rules of a section that is in force."""
    rules = RULES[type(section)]
    if not isinstance(section, ServerConfig):
        return rules
    if any(one.share_port for one in section.listeners):
        return {**rules, **dict.fromkeys(("listen", "listener_tables"), Rule(Cost.RESTART, "members share the ports"))}
    return rules


def _listener_changes(old: ServerConfig, new: ServerConfig, rule: Rule) -> Iterator[Change]:
    before, after = ({str(one.address): one for one in config.listeners} for config in (old, new))
    for address in dict.fromkeys([*before, *after]):
        if address not in before or address not in after:
            yield Change(f"server.listener[{address}]", "removed" if address in before else "added", rule)
        elif before[address] != after[address]:
            yield Change(f"server.listener[{address}]", "changed", rule)


def _link_changes(old: NodeConfig, new: NodeConfig) -> Iterator[Change]:
    before, after = ({link.name: link for link in config.links} for config in (old, new))
    stays, set_stays = _why_links_stay(old)
    for name in dict.fromkeys([*before, *after]):
        key = f"link[{name}]"
        if name in before and name in after:
            for change in _changes_of_link(key, before[name], after[name]):
                yield dataclasses.replace(change, rule=Rule(Cost.RESTART, stays)) if stays else change
        else:
            rule = Rule(Cost.RESTART, set_stays) if set_stays else RULES[NodeConfig]["links"]
            yield Change(key, "removed" if name in before else "added", rule)


def _changes_of_link(key: str, old: LinkConfig, new: LinkConfig) -> Iterator[Change]:
    anew = None
    if not takes_selectors_alone(old, new):
        anew = Rule(Cost.SESSION if _ends_session(old, new) else Cost.LINK)
    keys = keys_of_fields(LinkConfig)
    for name, rule in RULES[LinkConfig].items():
        if name == "selectors":
            yield from _selector_changes(f"{key}.selector", old.selectors, new.selectors, anew)
        elif getattr(old, name) != getattr(new, name):
            yield Change(f"{key}.{keys[name]}", "changed", anew or rule)


def _selector_changes(
    key: str, old: Iterable[Selector], new: Iterable[Selector], anew: Rule | None
) -> Iterator[Change]:
    before, after = ({(one.prefix, one.filter): one for one in selectors} for selectors in (old, new))
    for place in dict.fromkeys([*before, *after]):
        here = f"{key}[{''.join(place)}]"
        if place not in before or place not in after:
            rule = anew or RULES[LinkConfig]["selectors"]
            yield Change(here, "removed" if place in before else "added", rule)
            continue
        for name, rule in RULES[SelectorSection].items():
            if getattr(before[place], name) != getattr(after[place], name):
                yield Change(f"{here}.{name}", "changed", anew or rule)


def takes_selectors_alone(old: LinkConfig, new: LinkConfig) -> bool:
    """Return True if a live link takes another configuration without a new connection: only selectors differ.

    With its first selector for retained values, and with its first wildcard among these, the link must ask the primary
    again for its capabilities, as it does when it connects.
    """
    asked, asks = ((any(kept), any(one.has_wildcard for one in kept)) for kept in map(_kept, (old, new)))
    return dataclasses.replace(new, selectors=old.selectors) == old and asks <= asked


def _kept(link: LinkConfig) -> list[Selector]:
    return [selector for selector in link.selectors if not selector.live_only]


def _ends_session(old: LinkConfig, new: LinkConfig) -> bool:
    """Return True if the session of a link at its primary cannot go on with another configuration."""
    resumable = all(link.version == 5 and link.session_expiry_s for link in (old, new))
    same = (old.client_id, old.control_topic) == (new.client_id, new.control_topic)
    return not (resumable and same) or set(old.primaries).isdisjoint(new.primaries)


def _why_links_stay(config: NodeConfig) -> tuple[str, str]:
    """Return why no link of a running node can change, and why none comes or goes; empty when they can."""
    why = ""
    if config.retained.storage == "disc_only":
        why = 'with retained.storage = "disc_only" the values of a link are not in memory'
    return why, why or ("the sessions of a pool have a place in the stream of each link" if config.pool else "")


def _merged_links(old: NodeConfig, new: NodeConfig) -> tuple[LinkConfig, ...]:
    stays, set_stays = _why_links_stay(old)
    after = {link.name: link for link in new.links}
    if stays:
        return old.links
    return tuple(after.get(link.name, link) for link in old.links) if set_stays else new.links
