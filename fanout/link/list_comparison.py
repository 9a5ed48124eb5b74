"""Whether a link holds what its primary lists as retained (`fanout.link.retained_list`).

Owns the comparison, selector by selector, and why it does not agree. It must not know when it is made, nor what follows
from it (`fanout.link.link`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from structlog.typing import FilteringBoundLogger

from fanout.config import LinkConfig
from fanout.errors import FanoutError
from fanout.link.proof import Evidence
from fanout.link.session import LinkSession
from fanout.replica.store import Replica

__all__ = ["ListComparison"]


class ListComparison:
    """The comparison of one link with the list at its `count_url`.

    Attributes:
        why: Why the newest selector that was compared does not agree, in words; empty while that is not known.
    """

    def __init__(
        self, config: LinkConfig, *, session: LinkSession, replica: Replica, logger: FilteringBoundLogger
    ) -> None:
        """Prepare; nothing is asked.

        Args:
            config: The link's configuration; it must have `count_url`.
            session: The link's session, read only.
            replica: The link's replica, read only.
            logger: Where it is told that the list cannot be had.
        """
        from fanout.link.retained_list import RetainedList  # without its HTTP client a node starts 0.1 s sooner

        assert config.count_url is not None
        self.why = ""
        self._listed = RetainedList(
            config.count_url, key_file=config.count_key_file, timeout_s=config.connect_timeout_s
        )
        self._config = config
        self._session = session
        self._replica = replica
        self._logger = logger

    async def compare(self) -> AsyncIterator[tuple[int, bool]]:
        """Compare each selector that is proved, and not by a count already; tell for each whether it agrees.

        It agreed at the moment it is told; a set that moves meanwhile takes another time. The first list that cannot be
        had ends it.
        """
        session, values = self._session, self._replica.view
        for index, selector in enumerate(self._config.selectors):
            evidence, epoch = session.life.evidence[index], session.life.epoch
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
            prefix, control = selector.prefix.encode(), session.control.prefix
            wanted = {prefix + one for one in topics if selector.matches(one) and not one.startswith(control)}
            held = self._replica.count(index)
            agrees = session.life.epoch == epoch and len(wanted) == held and wanted <= values.keys()
            listed = f"the primary lists {len(wanted)} retained messages for {selector.filter}, {held} are here"
            self.why = "" if agrees else listed
            yield index, agrees
