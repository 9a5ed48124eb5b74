"""Retained messages of a primary by exact Topic Name, requested on a short connection of its own.

A connection of its own brings no second copies of live messages into the link's session, and shows besides whether the
primary still accepts the user and the password. `docs/decisions/0014-sampling-audits.md` compares both ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fanout.config import Address, LinkConfig
from fanout.errors import FanoutError, LinkLost, ProtocolError
from fanout.link.model.evidence import Order
from fanout.link.protocol.name_request import CHUNK_NAMES, NAMES_MAX, NamedAnswer, NameRequest
from fanout.link.short_connection import short_connection
from fanout.mqtt.decoder import Item

__all__ = ["NAMES_MAX", "NamedAnswer", "ask_by_name"]

_SUFFIX = "names"
_NEVER = float("inf")


async def ask_by_name(
    address: Address,
    config: LinkConfig,
    topics: Sequence[str],
    *,
    node_id: str,
    sentinel: bytes | None = None,
    order: Order = Order.NONE,
    username: str | None = None,
    password: bytes | None = None,
    clean_start: bool = True,
    chunk_names: int = CHUNK_NAMES,
    deadline_s: float,
    qos: int = 0,
) -> NamedAnswer:
    """Return the retained messages that a primary sends for exact Topic Names.

    A primary may end the connection at a SUBSCRIBE with many names; then it is asked again with fewer at a time.

    Args:
        address: Address of the primary.
        config: The link's configuration.
        topics: Topic Names at the primary, at most `NAMES_MAX`, in UTF-8 and without wildcards.
        node_id: This node.
        sentinel: Topic of a retained message that the primary is known to send to this user; None for none.
        order: Order of the primary's answers. Unless it is known, a topic is absent only after
            `snapshot_quiet_s` of silence.
        username: User Name in place of the link's; None for the link's, with its password.
        password: Password of `username`; None for none.
        clean_start: See `fanout.link.short_connection.short_connection`.
        chunk_names: Largest number of names in one SUBSCRIBE, as an earlier answer has it.
        deadline_s: Seconds that the whole request may take.
        qos: QoS of the request, 0 or 1; see `fanout.link.protocol.name_request`.

    Raises:
        ConfigError: The link's password cannot be read.
        FanoutError: The primary cannot be reached, refuses the connection, or does not answer in time.
        ValueError: There are too many topics, or one of them cannot be requested.
    """
    loop = asyncio.get_running_loop()

    async def ask(chunk_names: int, *, clean_start: bool) -> NamedAnswer | int:
        """Return the answer on one connection, or how many names to request at a time on the next one."""
        request: NameRequest | None = None
        try:
            async with short_connection(
                address,
                config,
                node_id=node_id,
                name=_SUFFIX,
                username=username,
                password=password,
                clean_start=clean_start,
            ) as connection:
                request = NameRequest(
                    topics,
                    sender=connection.sender,
                    sentinel=sentinel,
                    order=order,
                    quiet_s=config.snapshot_quiet_s,
                    chunk_names=chunk_names,
                    qos=qos,
                )
                asked = request

                def receive(item: Item) -> None:
                    asked.receive(item, loop.time())
                    connection.write()

                connection.on_item = receive
                asked.begin(loop.time())
                connection.write()
                while not asked.done:
                    deadline = asked.deadline
                    await connection.wait_read(seconds=None if deadline == _NEVER else deadline - loop.time())
                    asked.tick(loop.time())
                    connection.write()
                return asked.answer()
        except FanoutError as error:
            smaller = None if request is None or isinstance(error, ProtocolError) else request.smaller_chunk
            if smaller is None:
                raise
            return smaller

    try:
        async with asyncio.timeout(deadline_s):
            while isinstance(answer := await ask(chunk_names, clean_start=clean_start), int):
                chunk_names = answer
                clean_start = True  # the session that the ended connection may have left is not the link's
            return answer
    except TimeoutError as error:
        raise LinkLost(
            f"the primary did not send retained messages by name within {deadline_s:g} s",
            hint="The primary's log may say why; if it is far away or busy, try again",
        ) from error
