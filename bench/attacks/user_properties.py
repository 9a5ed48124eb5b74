"""As many User Properties as fit one packet: work that one small client causes for everybody."""

from __future__ import annotations

import asyncio
import contextlib

from bench.attacks.ordinary import connect, observe
from bench.attacks.target import Target, Verdict
from fanout.mqtt.packets import Disconnect, Packet, Publish, Subscribe, Subscription, encode
from fanout.mqtt.properties import Properties

__all__ = ["NEEDS", "run"]

NEEDS = ("port",)
_PROPERTIES = 180_000
_ATTEMPTS = 10
_PING_S_MAX = 0.25


async def run(target: Target) -> Verdict:
    """Send PUBLISH, SUBSCRIBE and DISCONNECT with them, again and again."""
    many = Properties(user_property=(("", ""),) * _PROPERTIES)
    packets: tuple[Packet, ...] = (
        Publish(b"attack/t", b"", properties=many),
        Subscribe(1, (Subscription(b"attack/t"),), many),
        Disconnect(0, many),
    )
    encoded = [encode(packet, version=5) for packet in packets]
    user = "attacker" if "attacker" in target.users else None
    async with observe(target) as noticed:
        for number in range(target.scaled(_ATTEMPTS)):
            for data in encoded:
                address = target.addresses[number % len(target.addresses)]
                with contextlib.suppress(OSError, TimeoutError):
                    _, reader, writer = await connect(target, client_id="properties", user=user, address=address)
                    writer.write(data)
                    target.effort.done["packets"] += 1
                    async with asyncio.timeout(5):
                        while await reader.read(4096):
                            pass
                    writer.close()
    return Verdict(
        held=noticed.percentile(1) <= target.within(_PING_S_MAX),
        promise=f"no ping of an ordinary client takes more than {_PING_S_MAX:g} s",
        figures=noticed.figures,
    )
