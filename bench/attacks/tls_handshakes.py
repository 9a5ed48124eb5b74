"""TLS handshakes: 2,000 that never end, and as many whole ones, beside an ordinary client with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator

from bench.attacks.ordinary import observe, open_stream
from bench.attacks.target import Target, Verdict
from fanout.mqtt.packets import Connect, encode

__all__ = ["NEEDS", "run"]

NEEDS = ("port", "tls_port")
_SILENT = 2_000
_WHOLE = 2_000
_TOGETHER = 10
_PING_S = 0.25
_ADMITTED_S = 2.0
_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname = False
_CONTEXT.verify_mode = ssl.CERT_NONE  # the certificate is not what is attacked
_CLIENT_HELLO = bytes.fromhex("16030100f8010000f40303")
"""Its begin; the rest never comes."""


async def run(target: Target) -> Verdict:
    """Begin handshakes, hold them, make whole ones, and connect as an ordinary client meanwhile."""
    assert target.tls_port is not None
    silent: list[asyncio.StreamWriter] = []
    slowest_s = 0.0
    async with observe(target) as noticed:
        for number in range(target.scaled(_SILENT)):
            with contextlib.suppress(OSError):
                address = target.addresses[number % len(target.addresses)]
                _, writer = await open_stream(target, target.tls_port, address=address)
                writer.write(_CLIENT_HELLO)
                silent.append(writer)
        numbers = iter(range(target.scaled(_WHOLE)))
        whole = [asyncio.create_task(_make(target, numbers)) for _ in range(_TOGETHER)]
        while not all(task.done() for task in whole):
            slowest_s = max(slowest_s, await _admitted_s(target))
            await asyncio.sleep(0.1)
        done = sum([await task for task in whole])
        slowest_s = max(slowest_s, await _admitted_s(target))
    for writer in silent:
        writer.transport.abort()
    return Verdict(
        held=slowest_s <= target.within(_ADMITTED_S) and noticed.percentile(0.99) <= target.within(_PING_S),
        promise=f"an ordinary client gets in over TLS within {_ADMITTED_S:g} s, 99 % of pings take {_PING_S:g} s",
        figures={**noticed.figures, "admitted_s_max": round(slowest_s, 3), "silent": len(silent), "handshakes": done},
    )


async def _make(target: Target, numbers: Iterator[int]) -> int:
    done = 0
    for number in numbers:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(10):
                address = target.addresses[number % len(target.addresses)]
                _, writer = await open_stream(target, target.tls_port, address=address, tls=_CONTEXT)
                writer.transport.abort()
                target.effort.done["handshakes"] += 1
                done += 1
    return done


async def _admitted_s(target: Target) -> float:
    """Return how long an ordinary client takes from its first byte to CONNACK; infinity if it is not admitted."""
    user = "ordinary" if "ordinary" in target.users else None
    password = None if user is None else target.users[user].encode()
    begun_s = time.perf_counter()
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.tls_port, ssl=_CONTEXT)
            writer.write(encode(Connect(client_id="ordinary-tls", username=user, password=password), version=5))
            answer = await reader.readexactly(4)
            writer.close()
    except (OSError, EOFError, TimeoutError):
        return float("inf")
    return time.perf_counter() - begun_s if answer[3] == 0 else float("inf")
