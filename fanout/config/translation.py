"""Translation of Pydantic's errors into faults for an operator: dotted key, problem, hint.

Owns the sentences for wrong types, limits, missing and unknown keys. The value of an unknown key is never repeated: it
may be a password.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fanout.config.access import AccessConfig, HookConfig, QuotaSection, ReservedSection, RuleSection
from fanout.config.address import Address
from fanout.config.pool import PoolConfig
from fanout.config.settings import (
    HttpConfig,
    IdentityConfig,
    LinkConfig,
    ListenerConfig,
    LogConfig,
    NodeConfig,
    RetainedConfig,
    SelectorSection,
    ServerConfig,
    SessionsConfig,
    ShipConfig,
)
from fanout.config.values import FAULT
from fanout.errors import ConfigFault
from fanout.escaping import printable

__all__ = ["SECTIONS", "keys_of_fields", "section_keys", "translate"]

SECTIONS: Mapping[str, type] = {
    "": NodeConfig,
    "node": IdentityConfig,
    "server": ServerConfig,
    "server.listener": ListenerConfig,
    "access": AccessConfig,
    "access.http": HookConfig,
    "access.quota": QuotaSection,
    "access.reserved": ReservedSection,
    "access.rule": RuleSection,
    "http": HttpConfig,
    "pool": PoolConfig,
    "log": LogConfig,
    "log.ship": ShipConfig,
    "retained": RetainedConfig,
    "sessions": SessionsConfig,
    "link": LinkConfig,
    "link.selector": SelectorSection,
}
"""The dataclass of each section; the empty name is the top level of the file."""

_TITLES = {
    "server.listener": "[[server.listener]]",
    "access.quota": "[[access.quota]]",
    "access.reserved": "[[access.reserved]]",
    "access.rule": "[[access.rule]]",
    "link": "[[link]]",
    "link.selector": "[[link.selector]]",
}
_SHOWN_CHARACTERS_MAX = 60

_MISSING_HINTS = {
    "node": 'Add a line [node] and below it id = "edge-1", with a name of your choice.',
    "node.id": 'Add id = "edge-1", with a name of your choice.',
    "server.listener.address": 'Add address = "mqtts://0.0.0.0:8883", or another address.',
    "access.http.url": 'Add url = "http://127.0.0.1:9000/mqtt", with the address of the service.',
    "access.rule.filter": 'Add filter = "plant/#", with the Topic Filter of the rule.',
    "log.ship.to": 'Add to = "s3://bucket/prefix", with the destination of the files.',
    "link.name": 'Add name = "plant", with a name of your choice.',
    "link.primary": 'Add primary = "mqtt://host:1883".',
    "link.selector.filter": 'Add filter = "plant/#", with the Topic Filter to replicate.',
}
_CHOICE_HINTS = {"link.version": "Use 5 (MQTT 5) or 4 (MQTT 3.1.1), without quotes."}
_UNITS = {"_s": "seconds", "_days": "days", "_bytes": "bytes", "bytes_max": "bytes", "max_payload": "bytes"}
"""Endings of names of keys with a unit; the value has no unit."""
_REFUSED_KEYS = {
    "workers": (
        "several processes serve clients as a pool on this machine now",
        'Remove the line, and start the node with "fanout secondary --members", with the number of processes: '
        "docs/how-to/one-machine.md. A primary is one process: put secondaries beside it.",
    ),
    "max_messages": (
        "the limits have a key each",
        "Use topics_max of [[link]] for values of a primary, and retained_topics_max of [server] for own values.",
    ),
    "password": ("the password itself must not be in this file", "Use password_file or password_env."),
    "role": (
        "the file does not decide the role",
        'Remove it, and start the node with "fanout primary", "fanout secondary" or "fanout tap".',
    ),
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of an error, with the value there."""

    section: str
    key: str
    value: object
    context: Mapping[str, Any]


def translate(error: ErrorDetails, *, data: Mapping[str, Any]) -> ConfigFault:
    """Return the fault for an error of Pydantic.

    Args:
        error: One of `ValidationError.errors()`.
        data: The validated tables.
    """
    names = [part for part in error["loc"] if isinstance(part, str)]
    place = _Place(".".join(names[:-1]), names[-1], error["input"], error.get("ctx", {}))
    sentence = _SENTENCES.get(error["type"])
    problem, hint = sentence(place) if sentence is not None else (error["msg"], _default_hint(place))
    return ConfigFault(*map(printable, (_dotted_key(error["loc"], data), problem, hint)))


@functools.cache
def section_keys(section: str) -> Mapping[str, object]:
    """Return the keys of a section as in the file, with their defaults (`MISSING` for none)."""
    kind = SECTIONS[section]
    keys = keys_of_fields(kind)
    return {keys[field.name]: field.default for field in dataclasses.fields(kind)}


@functools.cache
def keys_of_fields(kind: type) -> Mapping[str, str]:
    """Return the key in the file of each field of a section's dataclass."""
    keys: dict[str, str] = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        extras = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, FieldInfo)]
        keys[name] = next((extra.alias for extra in extras if extra.alias), name)
    return keys


def _dotted_key(location: tuple[int | str, ...], data: Mapping[str, Any]) -> str:
    text = ""
    here: object = data
    for part in location:
        if isinstance(part, str):
            text += f".{part}" if text else part
            here = here.get(part) if isinstance(here, dict) else None
        elif isinstance(here, list):  # not for a single text in place of a list
            text += f"[{part}]"
            here = here[part]
    return text


def _title(section: str) -> str:
    return _TITLES.get(section, f"[{section}]")


def _path(place: _Place) -> str:
    return f"{place.section}.{place.key}" if place.section else place.key


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value[:_SHOWN_CHARACTERS_MAX]}"' + ("..." if len(value) > _SHOWN_CHARACTERS_MAX else "")
    return str(value)[:_SHOWN_CHARACTERS_MAX]


def _kind(value: object) -> str:
    if isinstance(value, str):
        return f"the text {_shown(value)}"
    if isinstance(value, bool):
        return _shown(value)
    if isinstance(value, int | float):
        return f"the number {_shown(value)}"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    return "a date or a time"


def _default_hint(place: _Place) -> str:
    default = section_keys(place.section).get(place.key)
    if isinstance(default, Address):  # only HTTP has one that is not in a list
        default = default.authority
    elif isinstance(default, Path):
        default = str(default)
    if isinstance(default, int | float | str) and default != "":
        return f"The default is {_shown(default)}."
    return "Every key is shown in configs/full.toml."


def _number(noun: str) -> Callable[[_Place], tuple[str, str]]:
    def sentence(place: _Place) -> tuple[str, str]:
        hint = _default_hint(place)
        if isinstance(place.value, str):
            unit = next((unit for end, unit in _UNITS.items() if place.key.endswith(end)), "")
            bare = place.value.replace(".", "", 1).isdigit()
            how = "it" if bare else f"the number of {unit} alone," if unit else "the number alone,"
            hint = f"Write {how} without quotes. {hint}"
        return f"must be {noun}, but is {_kind(place.value)}", hint

    return sentence


def _limit(word: str, bound: str, limit: str) -> Callable[[_Place], tuple[str, str]]:
    def sentence(place: _Place) -> tuple[str, str]:
        allowed = f"{place.context[limit]:.15g}"
        return f"{_shown(place.value)} is too {word}; the {bound} is {allowed}", _default_hint(place)

    return sentence


def _fault(place: _Place) -> tuple[str, str]:
    return place.context["problem"], place.context["hint"]


def _missing(place: _Place) -> tuple[str, str]:
    return "is missing", _MISSING_HINTS[_path(place)]


def _unknown(place: _Place) -> tuple[str, str]:
    if place.key in _REFUSED_KEYS:
        return _REFUSED_KEYS[place.key]
    problem = f"{_title(place.section)} has no such key"
    if not place.section:
        is_section = isinstance(place.value, dict | list)
        problem = "there is no such section" if is_section else "there is no such key before the first section"
    keys = section_keys(place.section)
    close = difflib.get_close_matches(place.key.lower().replace("-", "_"), keys, n=1)
    elsewhere = [section for section in SECTIONS if place.key in section_keys(section)]
    elsewhere = [section for section in elsewhere if section.startswith(f"{place.section}.")] or elsewhere
    tables = [section for section in SECTIONS if section.endswith(f".{place.key}")]
    if tables:
        hint = f"Write {_title(tables[0])}."
    elif elsewhere:
        hint = f"It is a key of {' and '.join(map(_title, elsewhere))}; write it there"
        # The usual mistake: a key of the link after the selector, which TOML assigns to the selector.
        hint += ", above [[link.selector]]." if (place.section, elsewhere) == ("link.selector", ["link"]) else "."
    elif close:
        hint = f'Did you mean "{close[0]}"?'
    else:
        hint = f"Its keys are {', '.join(keys)}."
    return problem, hint


def _not_text(place: _Place) -> tuple[str, str]:
    return f"must be text in quotes, but is {_kind(place.value)}", _default_hint(place)


def _not_flag(place: _Place) -> tuple[str, str]:
    return f"must be true or false, but is {_kind(place.value)}", "Write true or false, without quotes."


def _not_list(place: _Place) -> tuple[str, str]:
    if _path(place) in SECTIONS:
        title = _title(_path(place))
        return (
            f"must be a list of tables, but is {_kind(place.value)}",
            f"Write {title}, with two brackets.",
        )
    hint = f"Write [{_shown(place.value)}]." if isinstance(place.value, str) else _default_hint(place)
    return f"must be a list, but is {_kind(place.value)}", hint


def _not_table(place: _Place) -> tuple[str, str]:
    title = _title(_path(place))
    return (
        f"must be a section, but is {_kind(place.value)}",
        f"Write {title} on a line of its own, its keys below it.",
    )


def _choice(place: _Place) -> tuple[str, str]:
    expected = str(place.context["expected"]).replace("'", '"')
    return f"{_kind(place.value)} is not possible here", _CHOICE_HINTS.get(_path(place), f"Use {expected}.")


def _not_finite(place: _Place) -> tuple[str, str]:
    return f"{place.value} is not a finite number", _default_hint(place)


_SENTENCES: Mapping[str, Callable[[_Place], tuple[str, str]]] = {
    FAULT: _fault,
    "missing": _missing,
    "unexpected_keyword_argument": _unknown,
    "int_type": _number("a whole number"),
    "float_type": _number("a number"),
    "finite_number": _not_finite,
    "greater_than_equal": _limit("small", "smallest value", "ge"),
    "less_than_equal": _limit("large", "largest value", "le"),
    "bool_type": _not_flag,
    "string_type": _not_text,
    "literal_error": _choice,
    "tuple_type": _not_list,
    "dataclass_type": _not_table,
}
