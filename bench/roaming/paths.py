"""The ways between the members of a pool, and from each to the primary: proxies that are cut and healed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from bench.proxy import Proxy

__all__ = ["Paths"]

_END_S = 10.0


class Paths:
    """One proxy for each way; a context manager, whose methods may be called on any thread.

    They have an event loop in a thread of their own, so that clients do not slow members.
    """

    def __init__(self, primary_port: int, ports: Sequence[int]) -> None:
        """Describe the ways.

        Args:
            primary_port: Port of the primary on loopback.
            ports: Ports at which members ask each other, by number of the member.
        """
        numbers = range(len(ports))
        self._peers = {(asker, asked): Proxy(ports[asked]) for asker in numbers for asked in numbers if asker != asked}
        self._primary = [Proxy(primary_port) for _ in numbers]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="roaming paths", daemon=True)

    def peer_port(self, asker: int, asked: int) -> int:
        """Return the port at which one member asks another."""
        return self._peers[asker, asked].port

    def primary_port(self, member: int) -> int:
        """Return the port at which a member finds the primary."""
        return self._primary[member].port

    def cut_peers(self, member: int, *, asks: bool, is_asked: bool, silently: bool) -> None:
        """Cut a member off from the other members.

        Args:
            member: Its number.
            asks: True if it reaches no other member any more.
            is_asked: True if no other member reaches it any more.
            silently: True if nothing comes through any more, in place of connections that end.
        """
        ways = [
            proxy
            for (asker, asked), proxy in self._peers.items()
            if (asks and asker == member) or (is_asked and asked == member)
        ]
        self._call(lambda: _cut(ways, silently=silently))

    def cut_primary(self, member: int, *, silently: bool) -> None:
        """Cut a member off from the primary."""
        self._call(lambda: _cut([self._primary[member]], silently=silently))

    def heal(self) -> None:
        """Let everything through again; what was held back comes late."""
        self._call(lambda: _heal(self._all))

    @property
    def _all(self) -> list[Proxy]:
        return [*self._peers.values(), *self._primary]

    def _call(self, act: Callable[[], None]) -> None:
        async def call() -> None:
            act()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(_END_S)

    def __enter__(self) -> Self:
        self._thread.start()
        for proxy in self._all:
            asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result(_END_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for proxy in self._all:
            asyncio.run_coroutine_threadsafe(proxy.stop(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        self._loop.close()


def _cut(proxies: Iterable[Proxy], *, silently: bool) -> None:
    for proxy in proxies:
        if silently:
            proxy.pause()
        else:
            proxy.accepting = False
            proxy.cut()


def _heal(proxies: Iterable[Proxy]) -> None:
    for proxy in proxies:
        proxy.accepting = True
        proxy.resume()
