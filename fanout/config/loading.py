"""Loading: makes a `NodeConfig` of a TOML file, or reports every fault in it at once.

Owns the order of the steps: read, parse, validate each value, then apply the rules between values. The rules are
applied to a file with faulty values too: each of those is replaced by an inert one, which breaks no rule.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from fanout.config.members import MemberNumber, member_config
from fanout.config.rules import Role, find_faults
from fanout.config.settings import NodeConfig
from fanout.config.translation import translate
from fanout.errors import ConfigError, ConfigFault, system_reason
from fanout.runtime.regular_files import open_regular

__all__ = [
    "CONFIG_BYTES_MAX",
    "LoadedConfig",
    "load_config",
    "load_file",
    "parse_bytes",
    "parse_config",
    "parse_tables",
]

_ADAPTER = TypeAdapter(NodeConfig)
_SECTION_KEYS = frozenset({"", "link", "server", "log"})  # listed when a section is missing
_SELECTING_KEYS = ("filter", "exclude", "prefix")
_TOML_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_TOML_TWICE = re.compile(r"Cannot declare \((.+)\) twice")
_TOML_NAME = re.compile(r"'([^']*)'")

CONFIG_BYTES_MAX = 16 * 1024 * 1024
"""Limit of the bytes of a configuration."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and the file that it came from."""

    config: NodeConfig
    path: Path
    """The file."""
    digest: str
    """SHA-256 of its bytes, in hexadecimal, as `sha256sum` prints it."""


def load_config(path: str | Path, *, role: Role | None = None) -> NodeConfig:
    """Read and validate a configuration file; see `load_file`."""
    return load_file(path, role=role).config


def load_file(path: str | Path, *, role: Role | None = None, member: MemberNumber | None = None) -> LoadedConfig:
    """Read and validate a configuration file.

    Args:
        path: The file.
        role: Role of the node; None checks only what holds for every role.
        member: The member whose configuration is wanted, where several share the file; None for a node alone.

    Raises:
        ConfigError: When the file cannot be read, is not TOML, or has faults; it carries all of them.
    """
    try:
        with open_regular(path) as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        hint = "Check its permissions." if isinstance(error, PermissionError) else "Check the path."
        fault = ConfigFault("", f"cannot read the configuration file: {system_reason(error)}", hint)
        raise ConfigError(str(path), (fault,)) from error
    config = parse_bytes(data, path=str(path), role=role)
    if member is not None:
        config = member_config(config, member, path=str(path))
    return LoadedConfig(config, Path(path), hashlib.sha256(data).hexdigest())


def parse_bytes(data: bytes, *, path: str, role: Role | None = None) -> NodeConfig:
    """Validate the bytes of a configuration file.

    Args:
        data: The bytes.
        path: Name of the file, for errors.
        role: As for `load_file`.

    Raises:
        ConfigError: They are too many, not TOML, or have faults; it carries all of them.
    """
    if len(data) > CONFIG_BYTES_MAX:
        fault = ConfigFault("", f"it is larger than {CONFIG_BYTES_MAX:,} bytes", "Give the file of a configuration.")
        raise ConfigError(path, (fault,))
    try:
        text = data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        fault = ConfigFault("", f"line {line}, column {column}: this is not UTF-8", "Save the file as UTF-8.")
        raise ConfigError(path, (fault,)) from error
    return parse_config(text, path=path, role=role)


def parse_config(text: str, *, path: str, role: Role | None = None) -> NodeConfig:
    """Validate the text of a configuration file.

    Args:
        text: TOML.
        path: Name of the file in errors.
        role: As for `load_config`.

    Raises:
        ConfigError: When the text is not TOML or has faults; it carries all of them.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(path, (_syntax_fault(error, text),)) from error
    return parse_tables(data, path=path, role=role)


def parse_tables(data: dict[str, Any], *, path: str, role: Role | None = None) -> NodeConfig:
    """Validate the tables of a configuration file.

    Args:
        data: The tables.
        path: Name of the file in errors.
        role: As for `load_config`.

    Raises:
        ConfigError: When there are faults; it carries all of them.
    """
    try:
        config = _validate(data)
        faults: list[ConfigFault] = []
    except ValidationError as error:
        details = error.errors(include_url=False)
        faults = [translate(detail, data=data) for detail in details]
        config = _validate(_made_inert(data, details))
    known = {fault.key for fault in faults}
    if any(key in data and key != "node" for key in known):  # a section has the wrong type or is misspelt
        known |= _SECTION_KEYS
    faults += [fault for fault in find_faults(config, role=role) if fault.key not in known]
    if faults:
        raise ConfigError(path, tuple(faults))
    return config


def _syntax_fault(error: Exception, text: str) -> ConfigFault:
    message = str(error)
    place = _TOML_PLACE.search(message)
    if place is None:  # nested too deeply for the parser, or a number of thousands of digits
        return ConfigFault("", f"the TOML cannot be read: {message}", "Simplify the file.")
    lines = text.split("\n")
    line, column = place["line"] or len(lines), place["column"] or len(lines[-1]) + 1
    problem = message[: place.start()]
    if place["line"] and problem == "Cannot overwrite a value":
        problem = f"the key {lines[int(line) - 1].partition('=')[0].strip()} is given a second time"
    elif twice := _TOML_TWICE.fullmatch(problem):
        problem = f"the section [{'.'.join(re.findall(_TOML_NAME, twice[1]))}] is given a second time"
    return ConfigFault(
        "",
        f"line {line}, column {column}: {problem[0].lower()}{problem[1:]}",
        'Correct the TOML there: text stands in "quotes", a list in [brackets], and each key is given once.',
    )


def _validate(data: dict[str, Any]) -> NodeConfig:
    config = _ADAPTER.validate_python(data)
    links = (
        link if link.client_id else dataclasses.replace(link, client_id=link.client_id_of(config.node.id))
        for link in config.links
    )
    return dataclasses.replace(config, links=tuple(links))


def _made_inert(data: dict[str, Any], details: list[ErrorDetails]) -> dict[str, Any]:
    """Return a copy of `data` with inert values in place of the faulty ones."""
    inert = copy.deepcopy(data)
    for detail in details:
        _make_inert(inert, detail["loc"])
    return inert


def _make_inert(data: dict[str, Any], location: tuple[Any, ...]) -> None:
    match location:
        case "link", int(link), "selector", int(selector), key, *_ if key not in _SELECTING_KEYS:
            data["link"][link]["selector"][selector].pop(key, None)
        case "link", int(link), "selector", int(selector), *_:  # a part of it would select other topics
            data["link"][link]["selector"][selector] = _inert_selector(link, selector)
        case "link", int(link):
            data["link"][link] = {key: _inert_values(link)[f"link.{key}"] for key in ("name", "primary", "selector")}
        case "link", int(link), key, *_:
            _replace(data["link"][link], key, _inert_values(link).get(f"link.{key}"))
        case "server", "listener", int(index), *_:  # its keys belong together
            data["server"]["listener"][index] = {"address": "mqtt://127.0.0.1:0"}
        case section, key, *_:
            _replace(data[section], key, _inert_values(0).get(f"{section}.{key}"))
        case _:
            _replace(data, location[0], _inert_values(0).get(location[0]))


def _replace(table: dict[str, Any], key: str, value: object) -> None:
    """Set `key` to `value`; None removes it, so that the default holds."""
    table.pop(key, None)
    if value is not None:
        table[key] = value


def _inert_values(link: int) -> dict[str, object]:
    """Return inert values by section and key; for other keys the default breaks no rule."""
    return {
        "node": {"id": "inert"},
        "node.id": "inert",
        "server.listen": ["mqtt://127.0.0.1:0"],
        "server.write_buffer_low_bytes": 1024,
        "server.write_buffer_high_bytes": 1024**4,
        "http.listen": "127.0.0.1:0",
        "pool.listen": "127.0.0.1:0",
        "pool.suspect_after_s": 86_400,
        "pool.ping_interval_s": 0.01,
        "pool.members_max": 64,
        "link.name": f"inert-{link}",
        "link.primary": f"mqtts://inert-{link}",  # the keys of TLS are legal with it
        "link.client_id": f"inert-{link}",
        "link.username": "inert",
        "link.count_url": "http://inert/",
        "link.retry_min_s": 0.01,
        "link.retry_max_s": 86_400,
        "link.selector": [_inert_selector(link, 0)],
    }


def _inert_selector(link: int, selector: int) -> dict[str, object]:
    return {"filter": f"$inert/{link}/{selector}"}  # no wildcard matches it, and no other filter is equal
