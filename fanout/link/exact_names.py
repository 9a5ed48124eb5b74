"""Retained messages of a primary by exact Topic Name, requested on a short connection of its own.

A connection of its own brings no second copies of live messages into the link's session, and shows besides whether the
primary still accepts the user and the password. `docs/decisions/0014-sampling-audits.md` compares both ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fanout.config import Address, LinkConfig
from fanout.errors import LinkLost
from fanout.link.model.evidence import Order
from fanout.link.protocol.name_request import NAMES_MAX, NamedAnswer, NameRequest
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
    fence: bytes | None = None,
    order: Order = Order.NONE,
    username: str | None = None,
    password: bytes | None = None,
    clean_start: bool = True,
    deadline_s: float,
) -> NamedAnswer:
    """Return the retained messages that a primary sends for exact Topic Names.

    Args:
        address: Address of the primary.
        config: The link's configuration.
        topics: Topic Names at the primary, at most `NAMES_MAX`, in UTF-8 and without wildcards.
        node_id: This node.
        fence: Topic of a retained message that the primary is known to send to this user; None for none.
        order: Whether the primary is known to answer in order. If not, a topic is absent only after
            `snapshot_quiet_s` of silence.
        username: User Name in place of the link's; None for the link's, with its password.
        password: Password of `username`; None for none.
        clean_start: See `fanout.link.short_connection.short_connection`.
        deadline_s: Seconds that the whole request may take.

    Raises:
        ConfigError: The link's password cannot be read.
        FanoutError: The primary cannot be reached, refuses the connection, or does not answer in time.
        ValueError: There are too many topics, or one of them cannot be requested.
    """
    loop = asyncio.get_running_loop()
    try:
        async with (
            asyncio.timeout(deadline_s),
            short_connection(
                address,
                config,
                node_id=node_id,
                name=_SUFFIX,
                username=username,
                password=password,
                clean_start=clean_start,
            ) as connection,
        ):
            request = NameRequest(
                topics, sender=connection.sender, fence=fence, order=order, quiet_s=config.snapshot_quiet_s
            )

            def receive(item: Item) -> None:
                request.receive(item, loop.time())
                connection.write()

            connection.on_item = receive
            request.begin(loop.time())
            connection.write()
            while not request.done:
                deadline = request.deadline
                await connection.wait_read(seconds=None if deadline == _NEVER else deadline - loop.time())
                request.tick(loop.time())
                connection.write()
            return request.answer()
    except TimeoutError as error:
        raise LinkLost(
            f"the primary did not send retained messages by name within {deadline_s:g} s",
            hint="The primary's log may say why; if it is far away or busy, try again",
        ) from error
