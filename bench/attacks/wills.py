"""Clients with Will Messages of 20 KB that leave all at once, beside 200 subscribers."""

from __future__ import annotations

import asyncio

from bench.attacks.ordinary import connect, observe
from bench.attacks.target import Target, Verdict
from fanout.mqtt.packets import Connect, Subscribe, Subscription, Will, encode

__all__ = ["NEEDS", "run"]

NEEDS = ("port",)
_CLIENTS = 3_000
_SUBSCRIBERS = 200
_TOGETHER = 100
_WILL = Will(b"attack/will", b"x" * 20_000)
_PING_S_MAX = 0.5


async def run(target: Target) -> Verdict:
    """Connect them, let them go without DISCONNECT, and ping meanwhile."""
    user = "attacker" if "attacker" in target.users else None
    readers: list[asyncio.Task[None]] = []
    for number in range(target.scaled(_SUBSCRIBERS)):
        _, reader, writer = await connect(target, client_id=f"subscriber-{number}", user=user)
        writer.write(encode(Subscribe(1, (Subscription(b"attack/will"),)), version=5))
        readers.append(asyncio.create_task(_read(reader)))
    leaving: list[asyncio.StreamWriter] = []
    clients = target.scaled(_CLIENTS)
    for begin in range(0, clients, _TOGETHER):
        numbers = range(begin, min(begin + _TOGETHER, clients))
        leaving += await asyncio.gather(*(_with_will(target, number, user) for number in numbers))
    async with observe(target) as noticed:
        for writer in leaving:
            writer.transport.abort()
        await asyncio.sleep(5 * target.scale)
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return Verdict(
        held=noticed.percentile(1) <= target.within(_PING_S_MAX),
        promise=f"no ping of an ordinary client takes more than {_PING_S_MAX:g} s",
        figures=noticed.figures,
    )


async def _with_will(target: Target, number: int, user: str | None) -> asyncio.StreamWriter:
    address = (target.addresses[number % len(target.addresses)], 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, local_addr=address)
    password = None if user is None else target.users[user].encode()
    packet = Connect(client_id=f"will-{number}", username=user, password=password, will=_WILL)
    writer.write(encode(packet, version=5))
    await reader.readexactly(2)
    return writer


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 18):
        pass
