"""Recovery of durable sessions from their records and the history of messages, as after a kill.

Each session is restored at the place in the history that its record names. Messages from there on are dispatched again,
to the sessions restored so far. So their queues are as they were, within the same limits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from fanout.durable.form.session_record import ALL_BATCHES, SessionRecord, decode_record
from fanout.durable.hosting.session_restart import SessionRestart
from fanout.errors import SessionFormInvalid
from fanout.replica.history import HistoryBatch, Origin
from fanout.server.base.ports import Logger
from fanout.server.client.server import Server

__all__ = ["Recovered", "recover_sessions"]

_AT_ONCE: Final = 64
"""Sessions or batches after which other tasks have a turn."""


class Recovered(NamedTuple):
    """Place of a restored session according to its record."""

    position: int
    """See `SessionRecord.position`."""
    epochs: bytes
    """See `SessionRecord.epochs`."""


async def recover_sessions(
    server: Server,
    restart: SessionRestart,
    *,
    records: Mapping[str, bytes],
    history: Iterable[HistoryBatch],
    logger: Logger,
) -> dict[str, Recovered]:
    """Restore sessions before the server serves.

    Args:
        server: The server, without sessions.
        restart: Puts sessions into it.
        records: Records by Client Identifier.
        history: Dispatched messages, in order.
        logger: Takes log lines.

    Returns:
        For each session that is there, and each that has expired and whose Will Message is to come, its place.
    """
    waiting = deque(sorted(_decoded(records, logger), key=attrgetter("position")))
    found: dict[str, Recovered] = {}
    as_of: dict[str, int] = {}

    async def restore_until(position: int | None) -> list[SessionRecord]:
        restored: list[SessionRecord] = []
        while waiting and (position is None or waiting[0].position <= position):
            record = waiting.popleft()
            if restart.restore(record.session, left_ns=record.written_ns, was_connected=record.is_connected):
                found[record.session.client_id] = Recovered(record.position, record.epochs)
                as_of[record.session.client_id] = record.as_of
                restored.append(record)
            if len(waiting) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return restored

    for number, batch in enumerate(history, 1):
        restored = await restore_until(batch.position)
        server.dispatch_again(batch)
        if batch.origin is not None and batch.position > as_of.get(batch.origin.client_id, ALL_BATCHES):
            _note_received(server, batch.origin)
        for record in restored:
            if record.position == batch.position:
                _drop_sent(server, record)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    await restore_until(None)
    server.lifecycles.end_overflowed()
    restart.tell()
    return found


def _note_received(server: Server, origin: Origin) -> None:
    """Note messages at QoS 2 that a session had published and its record does not know."""
    session = server.registry.get(origin.client_id)
    if session is not None:
        session.receiver.restore(origin.packet_ids)


def _drop_sent(server: Server, record: SessionRecord) -> None:
    """Drop from a queue the messages of the first batch that its client has got: all but the last `unsent` ones."""
    session = server.registry.get(record.session.client_id)
    if session is None or record.session.queue:  # what is before the batch is unsent, so all of it is
        return
    queue = session.sender.queue
    while queue.messages > record.unsent:
        batch, start = queue.head()
        queue.advance(min(queue.messages - record.unsent, len(batch.messages) - start))


def _decoded(records: Mapping[str, bytes], logger: Logger) -> list[SessionRecord]:
    found: list[SessionRecord] = []
    for client_id, data in records.items():
        try:
            found.append(decode_record(data))
        except SessionFormInvalid as error:
            logger.error("session not restored", client_id=client_id, reason=error.message, hint=error.hint)
    return found
