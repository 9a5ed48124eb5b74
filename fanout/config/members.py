"""Configuration of one of several members of a pool that run on this machine from one file.

Owns the settings in which members must differ, each derived from that of the file and the member's number, and the
faults of settings that members cannot share.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from fanout.config.address import Address
from fanout.config.pool import PoolConfig
from fanout.config.rules import find_faults
from fanout.config.settings import HttpConfig, LinkConfig, NodeConfig, ServerConfig
from fanout.config.values import NAME_CHARACTERS_MAX
from fanout.errors import ConfigError, ConfigFault, system_reason

__all__ = ["MEMBERS_MAX", "MemberNumber", "make_pool_token", "member_config"]

MEMBERS_MAX: Final = 16
"""Members on one machine: as many as a pool asks by default (`pool.members_max`)."""
_PORT_MAX: Final = 65_535
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of the machine, and the ones at which its own processes are asked."""
_TOKEN_FILE: Final = "pool-token"


@dataclass(frozen=True, slots=True)
class MemberNumber:
    """One of the members on this machine."""

    number: int
    """Its number, 1 for the first."""
    count: int
    """All members on this machine."""


def member_config(config: NodeConfig, member: MemberNumber, *, path: str) -> NodeConfig:
    """Return the configuration of one of the members that share a configuration.

    Args:
        config: The shared configuration, of a secondary.
        member: The member.
        path: Name of the file in errors.

    Raises:
        ConfigError: Several members cannot share it.
    """
    faults = [*_sharing_faults(config, member.count)]
    if not faults:
        derived = _derive(config, member)
        faults += find_faults(derived, role="secondary")
        if not faults:
            return derived
    raise ConfigError(path, tuple(faults))


def make_pool_token(config: NodeConfig) -> None:
    """Make the token that members on this machine show each other, unless there is one.

    Args:
        config: Configuration of a member; the file is its `pool.token_file` where that is derived.

    Raises:
        ConfigError: The file cannot be written.
    """
    path = None if config.pool is None else config.pool.token_file
    if path is None or path.name != _TOKEN_FILE or path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        aside.touch(mode=0o600, exist_ok=False)
        aside.write_text(secrets.token_urlsafe(32))
        with suppress(FileExistsError):  # another member was quicker
            path.hardlink_to(aside)
        aside.unlink()
    except OSError as error:
        fault = ConfigFault(
            "node.data_directory",
            f"cannot write the token of the pool: {system_reason(error)}",
            "Let this user write there, or name a file in pool.token_file.",
        )
        raise ConfigError(str(path), (fault,)) from error


def _sharing_faults(config: NodeConfig, count: int) -> Iterator[ConfigFault]:
    assert config.server is not None
    for listener in config.server.listeners:
        if listener.address.scheme == "unix" or listener.address.port == 0:
            yield ConfigFault(
                "server.listen" if listener.address in config.server.listen else "server.listener",
                f"{listener.address} is no port that {count} members can share",
                "Use a TCP port that is not 0, or start one process.",
            )
    if config.pool is not None and config.pool.dns is not None:
        yield ConfigFault(
            "pool.dns",
            f"it finds one member at each address, and {count} are on this machine",
            "List the addresses of all members of other machines in peers.",
        )
    if config.pool is not None and config.pool.listen.port == 0:
        yield ConfigFault("pool.listen", "members must know each other's port", "Write a port that is not 0.")
    longest = NAME_CHARACTERS_MAX - len(f"-{count}")
    if len(config.node.id) > longest:
        yield ConfigFault(
            "node.id",
            f"members append their number, and it has more than {longest} characters",
            "Choose a shorter one.",
        )
    yield from _port_faults(config, count)


def _port_faults(config: NodeConfig, count: int) -> Iterator[ConfigFault]:
    """Yield faults where two members would listen at one port."""
    assert config.server is not None
    ranges: list[tuple[str, Address]] = [("pool.listen", _pool_of(config).listen)]
    if config.http is not None:
        ranges.append(("http.listen", config.http.listen))
        if config.http.agent_listen is not None:
            ranges.append(("http.agent_listen", config.http.agent_listen))
    taken = {listener.address.port: "server.listen" for listener in config.server.listeners}
    for key, address in ranges:
        if address.port == 0:
            continue
        ports = range(address.port, address.port + count)
        other = next((taken[port] for port in ports if port in taken), None)
        if other is not None or ports[-1] > _PORT_MAX:
            yield ConfigFault(
                key,
                f"{count} members listen at the ports {ports[0]} to {ports[-1]}"
                + (f", and {other} has one of them" if other is not None else ", of which the last is no port"),
                f"Choose a port that is {count} or more away from the others.",
            )
        taken |= dict.fromkeys(ports, key)


def _pool_of(config: NodeConfig) -> PoolConfig:
    """Return the pool of the file, or one of this machine alone; with a token unless members have certificates."""
    pool = config.pool or PoolConfig()
    if pool.token_file is not None or pool.has_tls:
        return pool
    return replace(pool, token_file=config.node.data_directory / _TOKEN_FILE)


def _derive(config: NodeConfig, member: MemberNumber) -> NodeConfig:
    node_id = f"{config.node.id}-{member.number}"
    assert config.server is not None
    return replace(
        config,
        node=replace(config.node, id=node_id, data_directory=config.node.data_directory / node_id),
        server=_share_ports(config.server),
        http=None if config.http is None else _http(config.http, member),
        pool=_pool(_pool_of(config), member),
        log=None if config.log is None else replace(config.log, directory=config.log.directory / node_id),
        links=tuple(_link(link, config.node.id, member) for link in config.links),
    )


def _share_ports(server: ServerConfig) -> ServerConfig:
    shared = tuple(replace(listener, share_port=True) for listener in server.listeners)
    return replace(server, listen=(), listener_tables=shared)


def _own_port(address: Address, number: int) -> Address:
    return replace(address, port=address.port + number - 1) if address.port else address


def _http(http: HttpConfig, member: MemberNumber) -> HttpConfig:
    agent = None if http.agent_listen is None else _own_port(http.agent_listen, member.number)
    return replace(http, listen=_own_port(http.listen, member.number), agent_listen=agent)


def _pool(pool: PoolConfig, member: MemberNumber) -> PoolConfig:
    asked = replace(pool.listen, host=_EVERY_ADDRESS.get(pool.listen.host, pool.listen.host))
    here = (_own_port(asked, number) for number in range(1, member.count + 1))
    return replace(pool, listen=_own_port(pool.listen, member.number), peers=tuple(dict.fromkeys((*here, *pool.peers))))


def _link(link: LinkConfig, node_id: str, member: MemberNumber) -> LinkConfig:
    unnamed = replace(link, client_id="")
    if link.client_id == unnamed.client_id_of(node_id):
        return replace(link, client_id=unnamed.client_id_of(f"{node_id}-{member.number}"))
    return replace(link, client_id=f"{link.client_id}-{member.number}")
