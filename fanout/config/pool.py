"""`[pool]`: the listener for the other members of a pool, their addresses, and how members recognize each other.

Owns the section and the rules for its keys (core); `fanout.config.rules` applies them together with all others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict

from fanout.config.address import Address
from fanout.config.values import (
    ByteCount,
    Count,
    Flag,
    HttpAddress,
    MemberCount,
    PathText,
    PeerAddress,
    PeerAddresses,
    Seconds,
    ServerReference,
)
from fanout.errors import ConfigFault

__all__ = ["PoolConfig", "find_pool_faults"]


_LISTEN: Final = Address("http", "127.0.0.1", 9201)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """`[pool]`: the members of a pool, which replicate the same selectors and know each other."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    listen: HttpAddress = _LISTEN
    """Address at which the other members ask this one."""
    peers: PeerAddresses = ()
    """Addresses of members; this node's own may be among them."""
    dns: PeerAddress | None = None
    """Name and port whose IP addresses are members, this node's own too; None for none."""
    token_file: PathText | None = None
    """File with the token that members show each other, the same at all; None for none."""
    certificate_file: PathText | None = None
    """PEM file with this member's certificate and the intermediate ones; None without TLS."""
    key_file: PathText | None = None
    """PEM file with its private key; None without TLS."""
    client_ca_file: PathText | None = None
    """PEM file with the CAs of all members' certificates; None without TLS."""
    ping_interval_s: Seconds = 0.25
    """Pause between two questions to each member."""
    suspect_after_s: Seconds = 0.5
    """Silence after which a member is suspect: nobody waits for it."""
    converge_after_s: Seconds = 5.0
    """Time in which a difference between members may end by itself; then they audit their links."""
    client_address: ServerReference | None = None
    """Address at which MQTT clients reach this member itself; where others send theirs (0x9C) when they leave."""
    dead_after_s: Seconds = 3.0
    """Silence, to this node and at the primary, after which a member is dead; an isolated one is fenced before."""
    unknown_sessions: Literal["refuse", "begin"] = "refuse"
    """Response to a client whose session may be at a silent member: wait for that member, or begin a new session."""
    drain_clients_per_s: Count = 500
    """Clients that a member sends away in a second when it leaves, after its other sessions were given to members."""
    session_copies: Flag = True
    """True if another member keeps a copy of each durable session, which goes on there when this one dies."""
    history_bytes: ByteCount = 64 * 1024 * 1024
    """Bytes of recent updates that are held, from which the queues of a dead member's sessions are made again."""
    copies_bytes: ByteCount = 256 * 1024 * 1024
    """Bytes that copies of other members' sessions take at most."""
    dns_interval_s: Seconds = 5.0
    """Pause between two look-ups of `dns`."""
    members_max: MemberCount = 16
    """Addresses that are asked at most; further ones of `dns` are left out, and a log line says so."""

    @property
    def has_tls(self) -> bool:
        """True if members talk over TLS, each with a certificate."""
        return self.certificate_file is not None

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches the listener."""
        return _is_loopback(self.listen)


def find_pool_faults(pool: PoolConfig | None, *, has_links: bool, has_server: bool) -> Iterator[ConfigFault]:
    """Yield the faults between the keys of `[pool]`, and between them and other sections.

    Args:
        pool: The section; None without one.
        has_links: True if the node replicates a primary.
        has_server: True if the node serves clients.
    """
    if pool is None:
        return
    if not has_links or not has_server:
        yield ConfigFault(
            "pool",
            "a pool is of secondaries, and this node "
            + ("serves no clients" if has_links else "replicates no primary"),
            "Remove [pool], or add [server] and [[link]].",
        )
    yield from _access_faults(pool)
    if pool.suspect_after_s <= pool.ping_interval_s:
        yield ConfigFault(
            "pool.suspect_after_s",
            f"{pool.suspect_after_s:g} is not more than ping_interval_s, {pool.ping_interval_s:g}, and every member "
            "would be suspect between two answers",
            "Choose at least twice the pause between two questions.",
        )
    if pool.dead_after_s < 2 * pool.suspect_after_s:
        yield ConfigFault(
            "pool.dead_after_s",
            f"{pool.dead_after_s:g} is less than twice suspect_after_s, {pool.suspect_after_s:g}, and a member that "
            "pauses would lose its sessions",
            "Choose some seconds: a member must be silent for longer than any pause of its process.",
        )
    if len(pool.peers) > pool.members_max:
        yield ConfigFault(
            "pool.peers",
            f"it has {len(pool.peers)} addresses, and members_max is {pool.members_max}",
            "Raise members_max, or remove addresses.",
        )


def _access_faults(pool: PoolConfig) -> Iterator[ConfigFault]:
    files: dict[str, Path | None] = {
        "certificate_file": pool.certificate_file,
        "key_file": pool.key_file,
        "client_ca_file": pool.client_ca_file,
    }
    given = [name for name, path in files.items() if path is not None]
    if given:
        for name in files.keys() - set(given):
            yield ConfigFault(
                f"pool.{name}",
                f"is missing, and {given[0]} needs it: members show each other certificates of one CA",
                f"Add {name}, the path of a PEM file.",
            )
    elif pool.token_file is None and not pool.is_local:
        yield ConfigFault(
            "pool.listen",
            f"{pool.listen.authority} is reached from other machines, and anybody there could pretend to be a member",
            "Add token_file, or certificate_file, key_file and client_ca_file; or listen on 127.0.0.1.",
        )


def _is_loopback(address: Address) -> bool:
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host == "localhost"
