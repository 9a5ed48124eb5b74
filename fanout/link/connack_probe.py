"""Probe of a primary's address: one CONNECT on a connection of its own, to see what CONNACK says.

It uses another Client Identifier and no session, so the link's own connection and session are not affected.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fanout.config import Address, LinkConfig, read_password
from fanout.errors import FanoutError, LinkLost
from fanout.link.protocol.handshake import Handshake, read_connack
from fanout.link.protocol.sender import PacketSender
from fanout.link.transport.connection import LinkConnection, connect
from fanout.link.transport.tls import load_tls_in_thread
from fanout.mqtt.decoder import Decoder
from fanout.mqtt.packets import Connack
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["ask"]

_READ_AHEAD_BYTES_MAX = 64 * 1024


async def ask(address: Address, config: LinkConfig, *, node_id: str) -> Handshake | None:
    """Return the content of CONNACK from a primary at `address`; None when it does not accept the connection.

    Args:
        address: Address to probe.
        config: The link's configuration.
        node_id: This node.
    """
    client_id = f"{config.client_id or f'fanout-{node_id}-{config.name}'}-probe"
    config = replace(config, client_id=client_id, session_expiry_s=0)
    sender = PacketSender(config, node_id=node_id)
    decoder = Decoder(version=config.version, packet_bytes_max=config.packet_bytes_max, role="client")
    answered: asyncio.Future[Handshake] = asyncio.get_running_loop().create_future()

    def take(data: bytes) -> None:
        if answered.done():
            return
        try:
            for item in decoder.feed(data):
                if isinstance(item, Connack):
                    answered.set_result(read_connack(item, config))
                    return
            if decoder.fault is not None:
                raise decoder.fault
        except FanoutError as error:
            answered.set_exception(error)

    def closed() -> None:
        if not answered.done():
            answered.set_exception(LinkLost("the connection was closed"))

    connection = LinkConnection(on_data=take, on_closed=closed, read_ahead_bytes_max=_READ_AHEAD_BYTES_MAX)
    try:
        sender.connect(clean_start=True, password=read_password(config), now=0.0)
        await connect(
            connection,
            address,
            receive_buffer_bytes=config.receive_buffer_bytes,
            timeout_s=config.connect_timeout_s,
            tls=await load_tls_in_thread(config, address),
            frame_bytes_max=config.packet_bytes_max,
        )
        connection.read_ahead = False
        connection.write(sender.take())
        async with asyncio.timeout(config.connect_timeout_s):
            handshake = await answered
        sender.accept(handshake.limits)
        sender.disconnect(ReasonCode.SUCCESS, end_session=False, now=0.0)
        connection.write(sender.take())
    except (FanoutError, TimeoutError):
        return None
    finally:
        answered.cancel()
        await connection.close()
    return handshake
