"""A pool of nodes as processes, and clients with durable sessions that come to its members."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from bench.processes import free_port, pool_section
from fanout.mqtt.packets import Ack, PacketType, Publish, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_result, wait_until

__all__ = ["DISC", "DURABLE", "come_back", "leave_session", "publish_numbers", "start_pool", "take_numbers"]

DURABLE: Final = Properties(session_expiry_interval=600)
"""Properties of a CONNECT with a session that stays."""
DISC: Final = '[retained]\nstorage = "disc"\n[sessions]\nstorage = "disc"\n'
"""Sections of a configuration with values and sessions on disk."""
_LATER: Final = {4: 3, 5: ReasonCode.SERVER_UNAVAILABLE}
"""Reason Code of a CONNACK that asks the client to come again, by version."""


async def start_pool(
    mosquitto: Mosquitto,
    nodes: Nodes,
    *,
    count: int = 3,
    settings: str = "",
    sections: str = "",
    environment: Mapping[str, str] | None = None,
) -> list[LiveNode]:
    """Start secondaries edge-1 and so on that forward `plant/#` and make a pool; return when each knows all of it.

    Args:
        mosquitto: The primary.
        nodes: Where the members come from.
        count: How many they are.
        settings: Further lines for `[pool]`.
        sections: Further sections of the configuration.
        environment: Environment variables of their processes; None for those of this one.
    """
    ports = [free_port() for _ in range(count)]
    way = link(mosquitto.port, selector("plant/#", qos=2, writes="forward"), settings=QUICK)
    members = [
        nodes.secondary(pool_section(port, ports, settings=settings), sections, way, name=f"edge-{number}", log=False)
        for number, port in enumerate(ports, start=1)
    ]
    for member in members:
        member.environment = dict(member.environment if environment is None else environment)
    await asyncio.gather(*(member.begin() for member in members))
    for member in members:
        await wait_until(
            lambda member=member: member.document("/v1/pool")["ready"],  # type: ignore[misc]
            what=f"{member.name} knowing the pool",
        )
    return members


async def come_back(
    port: int,
    client_id: str,
    *,
    version: int = 5,
    clean_start: bool = False,
    properties: Properties = DURABLE,
    will: Will | None = None,
    user: str | None = None,
    has_ended: bool = False,
    deadline_s: float = 60.0,
) -> RawClient:
    """Connect, again as long as it is not known whether the session is there: members on a busy machine are silent.

    The password of `user` is its first letter. If a member `has_ended` just now, a connection may have waited to be
    accepted there, and ends.
    """
    own = properties if version == 5 else Properties()

    async def attempt() -> RawClient | None:
        try:
            client = await RawClient.connect(
                port,
                client_id,
                version=version,
                clean_start=clean_start,
                username=user,
                password=None if user is None else user[:1].encode(),
                properties=own,
                will=will,
            )
        except (ServerClosed, ConnectionError):
            if not has_ended:
                raise
            return None
        if client.connack.reason_code != _LATER[version]:
            return client
        await client.close()
        return None

    return await wait_result(attempt, deadline_s)


async def leave_session(node: LiveNode, client_id: str, *, qos: int) -> None:
    """Begin a session with a subscription to `plant/n`, and leave it there; return when nobody is connected."""
    async with await come_back(node.port, client_id) as client:
        assert client.connack.reason_code == ReasonCode.SUCCESS
        await client.subscribe(b"plant/n", qos=qos)
    await wait_until(lambda: node.document("/v1/status")["server"]["connections"] == 0)


async def publish_numbers(mosquitto: Mosquitto, first: int, last: int) -> None:
    """Publish numbers to `plant/n` at QoS 2, without `last`."""

    def send() -> None:
        with publisher(mosquitto.port) as client:
            publish_all(client, [("plant/n", b"%d" % number) for number in range(first, last)], qos=2, retain=False)

    await asyncio.to_thread(send)


async def take_numbers(client: RawClient, *, until: int) -> list[int]:
    """Take messages to the end of their handshakes until a number has come, and return their numbers."""
    got: list[int] = []
    open_ids: set[int] = set()
    while got[-1:] != [until] or open_ids:
        match await client.receive():
            case Publish(packet_id=int(packet_id), payload=payload, qos=1):
                got.append(int(payload))
                client.send(Ack(PacketType.PUBACK, packet_id))
            case Publish(packet_id=int(packet_id), payload=payload):
                got.append(int(payload))
                open_ids.add(packet_id)
                client.send(Ack(PacketType.PUBREC, packet_id))
            case Ack(type=PacketType.PUBREL, packet_id=packet_id):
                open_ids.discard(packet_id)
                client.send(Ack(PacketType.PUBCOMP, packet_id))
            case other:
                raise AssertionError(f"did not expect {other}")
    return got
