"""Files that a configuration names: checks for `fanout check` that a node could use each of them.

Each file is opened as a node does at its start. Nothing is changed, and no fault repeats the content of a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from fanout.access.passwords import exposure_of, load_password_file
from fanout.amqp.opening import check_installed
from fanout.certificates import EXPIRING_S, file_expiry_s
from fanout.config import NodeConfig, read_audit_password, read_count_key, read_password, read_token
from fanout.errors import ConfigError, ConfigFault, ListenError
from fanout.link.transport.tls import find_tls_faults as find_link_tls_faults
from fanout.pool.peer_tls import find_tls_faults as find_pool_tls_faults
from fanout.runtime.regular_files import irregularity
from fanout.server.accept.tls import find_tls_faults

__all__ = ["find_file_faults", "find_file_warnings"]

_SECRETS: Final = ("password_file", "key_file", "token_file")
"""Ends of the keys that name a file with a secret."""


def find_file_faults(config: NodeConfig) -> list[ConfigFault]:
    """Return the faults of the files that `config` names, relative to the current directory."""
    if irregular := [*_irregular_files(config)]:
        return irregular  # the checks below would open them, and wait
    return [
        *_tls_faults(config),
        *_password_file_faults(config),
        *_link_faults(config),
        *_token_faults(config),
        *_pool_faults(config),
    ]


def find_file_warnings(config: NodeConfig, *, now_s: float) -> list[ConfigFault]:
    """Return warnings about these files, which have no faults.

    Args:
        config: The configuration.
        now_s: Unix time, in seconds.
    """
    return [*_exposed_files(config), *_password_file_warnings(config), *_certificate_warnings(config, now_s=now_s)]


def _named_files(value: object, key: str = "") -> Iterator[tuple[str, Path]]:
    """Yield each key below `key` that names a file, and the file."""
    if isinstance(value, Path) and key.endswith("_file"):
        yield key, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            name = {"links": "link", "listener_tables": "listener"}.get(field.name, field.name)
            yield from _named_files(getattr(value, field.name), f"{key}.{name}".removeprefix("."))
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _named_files(each, f"{key}[{index}]")


def _irregular_files(config: NodeConfig) -> Iterator[ConfigFault]:
    """Yield a fault for each name of something that is there and is no regular file."""
    for key, path in _named_files(config):
        with contextlib.suppress(OSError):  # it is not there, or not for this user: said by the check of this file
            if reason := irregularity(path):
                yield ConfigFault(key, f"{path}: {reason}", "Correct the path.")


def _exposed_files(config: NodeConfig) -> Iterator[ConfigFault]:
    """Yield a warning for each file with a secret that others on the machine reach."""
    for key, path in _named_files(config):
        if key.endswith(_SECRETS) and (exposure := exposure_of(path.stat().st_mode)):
            yield ConfigFault(key, f"{path}: {exposure}", "Run: chmod o= on it.")


def _password_file_warnings(config: NodeConfig) -> Iterator[ConfigFault]:
    path = config.access.password_file
    if config.server is None or path is None:
        return
    if not load_password_file(path).users:
        yield ConfigFault("access.password_file", f"{path}: it has no users", "Add some with fanout passwd.")


def _certificate_warnings(config: NodeConfig, *, now_s: float) -> Iterator[ConfigFault]:
    files: list[tuple[str, Path | None]] = []
    for index, listener in enumerate(config.server.listener_tables if config.server is not None else ()):
        key = f"server.listener[{index}]"
        files.append((f"{key}.certificate_file", listener.certificate_file))
        files.append((f"{key}.client_ca_file", listener.client_ca_file))
    if config.pool is not None:
        files.append(("pool.certificate_file", config.pool.certificate_file))
        files.append(("pool.client_ca_file", config.pool.client_ca_file))
    for index, link in enumerate(config.links):
        files.append((f"link[{index}].ca_file", link.ca_file))
        files.append((f"link[{index}].client_certificate_file", link.client_certificate_file))
    for key, path in files:
        expires_s = None if path is None else file_expiry_s(path, of_all=key.endswith("ca_file"))
        if expires_s is None or expires_s - now_s >= EXPIRING_S:
            continue
        day = f"{datetime.fromtimestamp(expires_s, UTC):%Y-%m-%d %H:%M} UTC"
        when = f"expires on {day}" if expires_s > now_s else f"has expired on {day}"
        yield ConfigFault(
            key,
            f"{path}: its certificate {when}",
            "Renew it; links read it again by themselves, listeners after SIGHUP, a pool after a restart.",
        )


def _tls_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    try:
        check_installed(config.server.listeners if config.server is not None else ())
    except ListenError as error:
        yield ConfigFault("server.listen", error.message, error.hint)
    for index, listener in enumerate(config.server.listener_tables if config.server is not None else ()):
        if listener.address.has_tls:
            for name, problem in find_tls_faults(listener):
                yield ConfigFault(f"server.listener[{index}].{name}", problem, "Correct the file or its path.")
    http = None if config.http is None else config.http.tls_listener
    for name, problem in () if http is None else find_tls_faults(http):
        yield ConfigFault(f"http.{name}", problem, "Correct the file or its path.")


def _pool_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    pool = config.pool
    if pool is None:
        return
    for name, problem in find_pool_tls_faults(pool):
        yield ConfigFault(f"pool.{name}", problem, "Correct the file or its path.")
    if pool.token_file is not None:
        yield from _faults_of(
            "pool.token_file", pool.token_file, partial(read_token, pool.token_file, key="pool.token_file")
        )


def _password_file_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    path = config.access.password_file
    if config.server is None or path is None:
        return
    try:
        load_password_file(path)
    except ConfigError as error:
        for fault in error.faults:
            place = f"{path}, {fault.key}" if fault.key else str(path)
            yield ConfigFault("access.password_file", f"{place}: {fault.problem}", fault.hint)


def _link_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    for index, link in enumerate(config.links):
        if any(address.has_tls for address in link.primaries):
            for name, problem in find_link_tls_faults(link):
                yield ConfigFault(f"link[{index}].{name}", problem, "Correct the file or its path.")
        # The password may be in a variable, which may be set for the node only.
        if link.password_file is not None:
            yield from _faults_of(f"link[{index}].password_file", link.password_file, partial(read_password, link))
        if link.audit_password_file is not None:
            key = f"link[{index}].audit_password_file"
            yield from _faults_of(key, link.audit_password_file, partial(read_audit_password, link))
        if link.count_key_file is not None:
            key = f"link[{index}].count_key_file"
            yield from _faults_of(key, link.count_key_file, partial(read_count_key, link.count_key_file))


def _token_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    path = None if config.http is None else config.http.token_file
    if path is not None:
        yield from _faults_of("http.token_file", path, partial(read_token, path))


def _faults_of(key: str, path: Path, read: Callable[[], object]) -> Iterator[ConfigFault]:
    try:
        read()
    except ConfigError as error:
        for fault in error.faults:
            yield ConfigFault(key, f"{path}: {fault.problem}", fault.hint)
