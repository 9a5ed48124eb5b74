"""CONNECTs of 380 KB that never end, from several addresses: memory that costs the attacker no credential."""

from __future__ import annotations

import asyncio
import contextlib

from bench.attacks.ordinary import connect, observe, open_stream, resident_mib
from bench.attacks.target import Target, Verdict
from fanout.mqtt.packets import Connect, Will, encode

__all__ = ["GROWTH_MIB", "NEEDS", "run"]

NEEDS = ("port",)
_CONNECTIONS = 400
_FIELD = b"x" * 0xFFFF
_ADMITTED_S = 2.0
GROWTH_MIB = 64.0
"""The budget of 32 MiB, and as much for what the allocator keeps."""


async def run(target: Target) -> Verdict:
    """Send the CONNECTs but for their last byte, and hold them; ordinary clients connect meanwhile."""
    text = _FIELD.decode()
    packet = Connect(client_id=text, username=text, password=_FIELD, will=Will(_FIELD, _FIELD))
    data = encode(packet, version=5)[:-1]
    before_mib = resident_mib(target)
    admitted = 0
    async with observe(target) as noticed:
        held = await asyncio.gather(
            *(_hold(target, data, target.addresses[number % len(target.addresses)]) for number in _range(target))
        )
        user = "ordinary" if "ordinary" in target.users else None
        for number in range(10):
            with contextlib.suppress(OSError, TimeoutError):
                code, _, writer = await connect(
                    target,
                    client_id=f"late-{number}",
                    user=user,
                    address=target.addresses[0],
                    deadline_s=target.within(_ADMITTED_S),
                )
                admitted += code == 0
                writer.close()
        for one in held:
            if one is not None:
                one.transport.abort()
    growth_mib = max(0.0, noticed.resident_mib_max - before_mib)
    return Verdict(
        held=admitted == 10 and growth_mib <= GROWTH_MIB,
        promise=f"memory grows by at most {GROWTH_MIB:g} MiB, and ordinary clients connect within {_ADMITTED_S:g} s",
        figures={**noticed.figures, "growth_mib": round(growth_mib, 1), "admitted_of_10": admitted},
    )


def _range(target: Target) -> range:
    return range(target.scaled(_CONNECTIONS))


async def _hold(target: Target, data: bytes, address: str) -> asyncio.StreamWriter | None:
    """Send data on a new connection, and leave it open; None when the target closed it."""
    try:
        _, writer = await open_stream(target, target.port, address=address)
        writer.write(data)
        await asyncio.wait_for(writer.drain(), 5)
    except (OSError, TimeoutError):
        return None
    return writer
