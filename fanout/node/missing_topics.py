"""Announcer of missing topics: tells a link's primary which topics clients wait for and the replica does not have.

Owns the order of the work: the rate limit first, then the search of the replica, in slices between which the event loop
serves others, then the announcement. Announcements that the primary did not take wait for the next try.

A topic is missing when the link is ready, so that it holds every retained value of its selectors, and no value matches
the filter. Until then a filter waits. Selectors that leave retained values out (`live_only`, `content`, `max_payload`)
prove nothing about the primary, so nothing is announced for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from structlog.typing import FilteringBoundLogger

from fanout.errors import SelectorInvalid
from fanout.link.missing_topics import Waiting
from fanout.link.model.status import Clock
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.topics import matches
from fanout.replica.store import Replica
from fanout.replica.update import Update
from fanout.selection import Selector, common_filter, sample_topic

if TYPE_CHECKING:
    from fanout.link.link import Link

__all__ = ["MissingAnnouncer"]

_SLICE_S: Final = 0.002
"""Length of one slice of a search, after which the event loop serves others."""
_REST: Final = 3.0
"""Pause after a slice, as a multiple of its time: searches take a quarter of the processor at most."""


class MissingAnnouncer:
    """Announces the missing topics of one link, in `run`.

    Attributes:
        topic: Topic of announcements, at the primary and from the nodes below.
    """

    def __init__(
        self,
        link: Link,
        *,
        replica: Replica,
        is_subscribed: Callable[[bytes], bool],
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Prepare.

        Args:
            link: The link.
            replica: The values of the link; only read.
            is_subscribed: Tells whether a client has a subscription with exactly this Topic Filter.
            clock: The time.
            logger: Takes log lines.
        """
        self.topic = link.missing.topic
        self._link = link
        self._missing = link.missing
        self._selectors = tuple(each for each in link.config.selectors if each.holds_all_retained)
        self._control_filter = f"{link.config.control_topic}/#"
        self._replica = replica
        self._is_subscribed = is_subscribed
        self._clock = clock
        self._logger = logger
        self._attention = asyncio.Event()
        """Set when there may be work."""
        self._searched: bytes | None = None
        """The Topic Filter of the search under way; None while there is none."""
        self._arrived = False
        """True if a matching topic arrived during the search, perhaps after the place of the search."""
        self._refused: ReasonCode | None = None
        """Reason Code with which the primary refused the newest announcements; None if it took them."""

    def add_subscribed(self, topic_filter: bytes) -> None:
        """Note a Topic Filter that a client has subscribed to, not a `$share` form."""
        if self._concerns(topic_filter):
            self._missing.add(topic_filter, Waiting(self._clock.now_ns() // 1000))
            self.wake()

    def add_relayed(self, payload: bytes) -> None:
        """Note an announcement of a node below."""
        self._missing.add_relayed(payload)
        self.wake()

    def wake(self) -> None:
        """Check again: the link may have become ready."""
        self._attention.set()

    def note(self, updates: Iterable[Update]) -> None:
        """Note updates that reach the replica during a search."""
        if self._searched is not None and not self._arrived:
            wanted = self._searched
            self._arrived = any(update[3] and update[1] and matches(wanted, update[0]) for update in updates)

    async def run(self) -> None:
        """Announce missing topics until cancelled."""
        while True:
            while not (len(self._missing) and self._link.status().ready):
                self._attention.clear()
                await self._attention.wait()
            wait_s = self._missing.wait_s(self._clock.monotonic())
            await asyncio.sleep(wait_s)
            if not wait_s and (next_one := self._missing.take()) is not None:
                await self._look_after(*next_one)

    def _concerns(self, topic_filter: bytes) -> bool:
        """Return True if a filter must wait: topics of the link may match it, and none is known to match."""
        if not self._parts(topic_filter):
            return False
        has_wildcard = b"+" in topic_filter or b"#" in topic_filter
        return has_wildcard or topic_filter not in self._replica.view or not self._link.status().ready

    def _parts(self, topic_filter: bytes) -> list[tuple[str, str, Selector]]:
        """Return the parts of a local filter that selectors cover, each as a local filter and one at the primary."""
        wanted = topic_filter.decode()
        common = ((common_filter(wanted, selector.local_filter), selector) for selector in self._selectors)
        return [(part, part.removeprefix(one.prefix), one) for part, one in common if part not in (None, one.prefix)]

    def _is_replicated(self, at_primary: str, selector: Selector) -> bool:
        """Return True if a selector replicates topics of a filter, excludes and the link's control topics left out."""
        try:
            wanted = Selector(at_primary, exclude=(*selector.exclude, self._control_filter))
        except SelectorInvalid:  # more levels than a selector may have, which a client's Topic Filter may
            return False
        return sample_topic(wanted) is not None

    async def _look_after(self, topic_filter: bytes, waiting: Waiting) -> None:
        """Announce the missing parts of a filter; if that fails, the filter waits again."""
        if not waiting.path and not self._is_subscribed(topic_filter):
            return
        for local, at_primary, selector in self._parts(topic_filter):
            if await self._is_there(local.encode()) or not self._is_replicated(at_primary, selector):
                continue
            if not self._link.status().ready:
                self._missing.add(topic_filter, waiting)
                return
            if not self._missing.is_repeated(at_primary, self._clock.monotonic()):
                await self._announce(topic_filter, at_primary, waiting)

    async def _announce(self, topic_filter: bytes, at_primary: str, waiting: Waiting) -> None:
        verdict = self._link.announce_missing(self._missing.announcement(at_primary, waiting))
        reason_code = verdict if isinstance(verdict, ReasonCode) else await verdict
        lost = reason_code.is_failure and not self._link.status().ready
        if lost or reason_code in (ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_BUSY):
            self._missing.add(topic_filter, waiting)
            return
        self._missing.note_answer(at_primary, accepted=not reason_code.is_failure, now=self._clock.monotonic())
        if not reason_code.is_failure:
            self._refused = None
        elif reason_code is not self._refused:
            self._refused = reason_code
            self._logger.warning("missing topic not announced", filter=at_primary, reason_code=reason_code.text)

    async def _is_there(self, topic_filter: bytes) -> bool:
        """Return True if the replica has a topic that matches a filter."""
        clock = self._clock
        self._searched, self._arrived = topic_filter, False
        try:
            began = clock.monotonic()
            for topics in self._replica.match_topics(topic_filter):
                if topics or self._arrived:
                    return True
                took_s = clock.monotonic() - began
                if took_s >= _SLICE_S:
                    await asyncio.sleep(_REST * took_s)
                    began = clock.monotonic()
            return self._arrived
        finally:
            self._searched = None
