"""Comparison of a link's replica with the primary's list of retained topics (`fanout.link.emqx_list`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.config import LinkConfig
from fanout.errors import FanoutError
from fanout.link.model.evidence import Evidence
from fanout.link.session.machine import LinkSession
from fanout.replica.store import Replica
from fanout.selection import Selector

__all__ = ["ListCheck"]

_SLICE_TOPICS: Final = 2_000
"""Topics compared in one turn of the event loop: some milliseconds."""


class ListCheck:
    """Comparison of one link with the list at its `count_url`.

    Attributes:
        why: Why the selector compared last differs, in words; empty while that is unknown.
    """

    def __init__(
        self, config: LinkConfig, *, session: LinkSession, replica: Replica, logger: FilteringBoundLogger
    ) -> None:
        """Prepare; nothing is requested.

        Args:
            config: The link's configuration; it must have `count_url`.
            session: The link's session, read only.
            replica: The link's replica, read only.
            logger: Logger for a list that is not available.
        """
        from fanout.link.emqx_list import EmqxList  # without its HTTP client a node starts 0.1 s sooner

        assert config.count_url is not None
        self.why = ""
        self._listed = EmqxList(config.count_url, key_file=config.count_key_file, timeout_s=config.connect_timeout_s)
        self._session = session
        self._replica = replica
        self._logger = logger

    async def compare(self) -> AsyncIterator[tuple[int, bool]]:
        """Compare each selector that is proved, and not by a count already; yield its index and whether it agrees.

        It agrees at the moment of the yield. A set that changes during the comparison does not agree this time. The
        first list that is not available ends the comparison.
        """
        session, selectors = self._session, self._replica.selectors
        for index, selector in enumerate(selectors):
            evidence, epoch = session.lifecycle.evidence[index], session.lifecycle.epoch
            if selector.is_choosy or evidence is None or evidence.is_at_least(Evidence.COUNT):
                continue
            try:
                topics = await self._listed.topics(selector.filter)
            except FanoutError as error:
                if self.why != error.message:
                    self._logger.warning("retained messages not counted", error=error.message, hint=error.hint)
                self.why = error.message
                yield index, False
                return
            agrees = await self._agrees(selector, topics, index=index) and session.lifecycle.epoch == epoch
            if self._replica.selectors is not selectors:  # another one has this position
                yield index, False
                return
            yield index, agrees

    async def absent(self, index: int, topics: list[bytes]) -> AsyncIterator[list[bytes]]:
        """Yield the topics that the list does not have.

        Args:
            index: Position of their selector.
            topics: Local topics.

        Raises:
            FanoutError: The list is not available, or too long.
        """
        if topics:
            selector = self._replica.selectors[index]
            listed, prefix = await self._listed.topics(selector.filter), selector.prefix.encode()
            for start in range(0, len(topics), _SLICE_TOPICS):
                yield [one for one in topics[start : start + _SLICE_TOPICS] if one.removeprefix(prefix) not in listed]

    async def _agrees(self, selector: Selector, topics: set[bytes], *, index: int) -> bool:
        """Compare a list with the replica, some thousand topics per turn of the event loop, and note why it differs.

        Args:
            selector: The selector.
            topics: Listed topics for its filter; empty afterwards.
            index: Position of the selector.
        """
        replica, values = self._replica, self._replica.view
        prefix, control, version = selector.prefix.encode(), self._session.control.prefix, replica.topics_version
        listed = missing = 0
        while True:
            for _ in range(min(_SLICE_TOPICS, len(topics))):
                topic = topics.pop()  # freed bit by bit, not all at once
                if selector.matches(topic) and not topic.startswith(control):
                    listed += 1
                    missing += prefix + topic not in values and not replica.refused.skip_reason(prefix + topic)
            if not topics:
                break
            await asyncio.sleep(0)
        held = replica.count(index) + replica.refused.skipped_count(index)
        self.why = ""
        if missing or listed != held:
            self.why = f"the primary lists {listed} retained messages for {selector.filter}, {held} are here"
        elif replica.topics_version != version:
            self.why = f"topics came or went while {selector.filter} was compared with the primary's list"
        return not self.why
