"""Search of the node's own replication log for one topic, as part of the document."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fanout.api.models import utc_from_ns
from fanout.api.topic_facts import LoggedEvent, LoggedUpdate, TopicLog
from fanout.errors import LogError
from fanout.replica.update import ChangeKind, Phase

__all__ = ["search_log"]

_DETAIL_MAX = 400
"""Characters of the detail of an event."""


async def search_log(directory: Path, *, node: str, link: str, topic: str) -> TopicLog:
    """Return the newest rows of the node's log about a topic; in a thread, since files are read.

    Args:
        directory: The log's directory.
        node: The node.
        link: The link.
        topic: The topic's name at the primary.
    """
    from fanout.replog.read.showing import name_of_code
    from fanout.replog.read.topic_history import topic_history  # pyarrow.compute is not needed to start a node

    try:
        history = await asyncio.to_thread(topic_history, directory, node=node, link=link, topic=topic)
    except LogError as error:
        return TopicLog(error=error.message)
    since = None if history.whole or history.oldest_us is None else utc_from_ns(history.oldest_us * 1000)
    return TopicLog(
        updates=tuple(
            LoggedUpdate(
                at=row["applied"],
                change=name_of_code(ChangeKind, row["change"]),
                phase=name_of_code(Phase, row["phase"]),
                digest=f"{row['digest'] % 2**64:016x}",
                payload_bytes=row["payload_bytes"],
            )
            for row in history.updates
        ),
        events=tuple(
            LoggedEvent(
                at=row["at"],
                event=row["event"],
                state=row["state"],
                selector=row["selector"],
                detail=row["detail"][:_DETAIL_MAX],
            )
            for row in history.events
        ),
        searched_since=since,
    )
