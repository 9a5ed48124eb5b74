"""Document of a link's unconfirmed topics: a page of them in order, and with the first page their branches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from fanout.api.models import BranchCount, UnconfirmedDocument

__all__ = ["BRANCHES_MAX", "PAGE_BYTES_MAX", "PAGE_TOPICS_MAX", "Unconfirmed", "unconfirmed_page"]

PAGE_TOPICS_MAX = 1_000
"""Largest number of topics of one page."""
PAGE_BYTES_MAX = 1 << 20
"""Size of topics at which a page ends, before the next topic."""
BRANCHES_MAX = 50
"""Largest number of branches shown; the deepest level that has no more is chosen."""
_DEPTH_MAX = 8
_PIECES_PER_TURN = 20
"""Pieces of some hundred topics that are counted in one turn of the event loop."""


class Unconfirmed(Protocol):
    """Unconfirmed topics of a link; `fanout.replica.unconfirmed.UnconfirmedTopics` are."""

    def __len__(self) -> int:
        """Return their number."""

    @property
    def unnamed(self) -> int:
        """Number of topics that are known only by their number."""

    def pieces(self, *, after: bytes = b"") -> Iterator[list[bytes]]:
        """Yield the others that sort after `after`, in order, in pieces."""


async def unconfirmed_page(link: str, unconfirmed: Unconfirmed, *, causes: str, after: str) -> UnconfirmedDocument:
    """Return one page.

    Args:
        link: Name of the link.
        unconfirmed: Its unconfirmed topics, which may change meanwhile.
        causes: Why topics may not have come, for an operator.
        after: Topic after which the page begins; empty for the first page.
    """
    topics: list[str] = []
    size, more = 0, False
    for piece in unconfirmed.pieces(after=after.encode()):
        for topic in piece:
            size += len(topic)
            more = bool(topics) and (len(topics) >= PAGE_TOPICS_MAX or size > PAGE_BYTES_MAX)
            if more:
                break
            topics.append(topic.decode())
        if more:
            break
    return UnconfirmedDocument(
        link=link,
        unconfirmed=len(unconfirmed),
        unnamed=unconfirmed.unnamed,
        causes=causes,
        branches=() if after else await _count_branches(unconfirmed),
        topics=tuple(topics),
        next=topics[-1] if more else None,
    )


async def _count_branches(unconfirmed: Unconfirmed) -> tuple[BranchCount, ...]:
    """Count the topics of each branch, at the deepest level that has few enough of them."""
    levels = [Counter[bytes]() for _ in range(_DEPTH_MAX)]
    for number, piece in enumerate(unconfirmed.pieces(), 1):
        for topic in piece:
            parts = topic.split(b"/")[:-1]
            for depth, counts in enumerate(levels, 1):
                counts[b"/".join(parts[:depth])] += 1
        while len(levels) > 1 and len(levels[-1]) > BRANCHES_MAX:
            levels.pop()
        if number % _PIECES_PER_TURN == 0:
            await asyncio.sleep(0)
    found = levels[-1].most_common(BRANCHES_MAX)
    return tuple(BranchCount(branch=branch.decode(), topics=topics) for branch, topics in found)
