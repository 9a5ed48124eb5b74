"""The target of an attack, what the attack did to it, and the verdict."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["Attack", "Effort", "Target", "Verdict", "can_attack"]


@dataclass(slots=True)
class Effort:
    """Actions of an attack: their number, and how fast they may come."""

    per_s: float | None = None
    """Most connections and requests in a second; None for as many as the attack can make."""
    done: Counter[str] = field(default_factory=Counter)
    """Number of actions by kind, such as `connections`."""
    _next_s: float = 0.0

    async def turn(self) -> None:
        """Wait until the next connection or request may begin."""
        if self.per_s is None:
            return
        now_s = time.monotonic()
        self._next_s = max(now_s, self._next_s + 1 / self.per_s)
        await asyncio.sleep(self._next_s - now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A started node, or a member of a pool, on this machine."""

    port: int
    """Port of its MQTT listener, on loopback."""
    http_port: int | None = None
    """Port of its HTTP interface; None without one."""
    ca_file: Path | None = None
    """CA of the certificate of its HTTP interface; None for HTTP without TLS."""
    tls_port: int | None = None
    """Port of its MQTT listener with TLS; None without one."""
    agent_port: int | None = None
    """Port of HAProxy's agent check; None without one."""
    pool_port: int | None = None
    """Port at which it listens for members of its pool; None without a pool."""
    pool_token: str | None = None
    """The token of its pool, for attacks of a member; None for attackers without it."""
    peer_ports: tuple[int, ...] = ()
    """Ports of the MQTT listeners of other members of its pool."""
    peer_http_ports: tuple[int, ...] = ()
    """Ports of their HTTP interfaces."""
    scratch: Path | None = None
    """Empty directory for files; None for none."""
    pid: int | None = None
    """Its process, whose resident memory is read; None for none to read."""
    users: Mapping[str, str] = field(default_factory=dict)
    """Users that may connect, each with the password: "ordinary" for the client that is measured, and "attacker"."""
    addresses: tuple[str, ...] = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
    """Addresses of this machine that attackers come from; the ordinary client comes from 127.0.0.1."""
    scale: float = 1.0
    """Size of the attack: 1 for the whole one, less for a quick form."""
    effort: Effort = field(default_factory=Effort)
    """Actions of the attack so far."""
    is_observed: bool = True
    """False if no ordinary client of its own looks on, since many attacks have one for all of them."""
    patience: float = 1.0
    """By how much longer than is promised the node may take; more than 1 where other work has the processors."""

    def scaled(self, count: int) -> int:
        """Return a number of the whole attack at the scale of this one, at least 1."""
        return max(1, round(count * self.scale))

    def within(self, promised_s: float) -> float:
        """Return the time for which a promise of so many seconds is waited here."""
        return promised_s * self.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of an attack."""

    held: bool
    """True if the node kept its promise."""
    promise: str
    """The promise, as a short sentence with its bound."""
    is_effort: bool = False
    """True if it is about the attack itself, which shows nothing unless it came to an end."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measured figures, by name with their units: `ping_s_max`, `resident_mib_max`."""

    @property
    def word(self) -> str:
        """The verdict as a word."""
        good, bad = ("ended", "UNFINISHED") if self.is_effort else ("holds", "BROKEN")
        return good if self.held else bad


class Attack(Protocol):
    """A module of this package."""

    async def run(self, target: Target) -> Verdict:
        """Attack, and judge."""


def can_attack(name: str, target: Target) -> bool:
    """Return True if the target has all that an attack needs, a module of this package."""
    return all(getattr(target, need) for need in importlib.import_module(f"bench.attacks.{name}").NEEDS)
