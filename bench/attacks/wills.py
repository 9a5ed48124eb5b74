"""Clients with Will Messages of 20 KB that leave all at once, beside 200 subscribers."""

from __future__ import annotations

import asyncio
import contextlib

from bench.attacks.ordinary import connect, observe, open_stream
from bench.attacks.target import Target, Verdict
from fanout.mqtt.packets import Connect, Subscribe, Subscription, Will, encode

__all__ = ["NEEDS", "run"]

NEEDS = ("port",)
_CLIENTS = 3_000
_SUBSCRIBERS = 200
_TOGETHER = 100
_WILL = Will(b"attack/will", b"x" * 20_000)
_PING_S_MAX = 0.5
_CONNECTED_S = 30.0


async def run(target: Target) -> Verdict:
    """Connect them, let them go without DISCONNECT, and ping meanwhile."""
    user = "attacker" if "attacker" in target.users else None
    readers: list[asyncio.Task[None]] = []
    for number in range(target.scaled(_SUBSCRIBERS)):
        with contextlib.suppress(OSError, TimeoutError):
            address = target.addresses[number % len(target.addresses)]
            _, reader, writer = await connect(target, client_id=f"subscriber-{number}", user=user, address=address)
            writer.write(encode(Subscribe(1, (Subscription(b"attack/will"),)), version=5))
            readers.append(asyncio.create_task(_read(target, reader)))
    leaving: list[asyncio.StreamWriter] = []
    clients = target.scaled(_CLIENTS)
    for begin in range(0, clients, _TOGETHER):
        numbers = range(begin, min(begin + _TOGETHER, clients))
        begun = await asyncio.gather(*(_with_will(target, number, user) for number in numbers))
        leaving += [writer for writer in begun if writer is not None]
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
        figures={**noticed.figures, "wills": len(leaving)},
    )


async def _with_will(target: Target, number: int, user: str | None) -> asyncio.StreamWriter | None:
    """Return a connection with a Will Message; None if it is refused."""
    password = None if user is None else target.users[user].encode()
    packet = Connect(client_id=f"will-{number}", username=user, password=password, will=_WILL)
    with contextlib.suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(_CONNECTED_S):
            address = target.addresses[number % len(target.addresses)]
            reader, writer = await open_stream(target, target.port, address=address)
            writer.write(encode(packet, version=5))
            answer = await reader.readexactly(4)
            target.effort.done["wills"] += answer[3] == 0
            return writer
    return None


async def _read(target: Target, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 18):
            target.effort.done["bytes_read"] += len(data)
