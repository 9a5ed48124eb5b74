"""Tells a link's primary of topics that clients wait for and that are not there.

Owns when that is known, and the search for it, in slices between which the event loop does other things: first comes
what the limits allow, then the look whether the topics are missing, then the announcement; what the primary did not
get waits on. It must not know how a message gets to the primary, nor who the clients are.

"Missing" means that the link is ready, hence holds every retained value of its selectors, and none matches. While it is
not, a filter waits. Selectors that keep retained values out (`live_only`, `content`, `max_payload`) say nothing about
what the primary has, so nothing is announced for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from fanout.config import LinkConfig
from fanout.errors import SelectorInvalid
from fanout.link.missing_topics import MissingTopics, Waiting
from fanout.link.model.status import Clock, LinkStatus
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.topics import matches
from fanout.replica.store import Replica
from fanout.replica.update import Update
from fanout.selection import Selector, common_filter, sample_topic

__all__ = ["AnnouncingLink", "MissingAnnouncer"]

_SLICE_S: Final = 0.002
"""So long a search may take before others have their turn."""
_REST: Final = 3.0
"""Then it rests for so many times as long as it took: many searches take a quarter of the processor at most."""


class AnnouncingLink(Protocol):
    """A link, as far as it matters here (`fanout.link.link.Link`)."""

    config: LinkConfig
    missing: MissingTopics

    def announce_missing(self, payload: bytes) -> ReasonCode | asyncio.Future[ReasonCode]:
        """Publish an announcement; return the primary's Reason Code, now or later."""

    def status(self) -> LinkStatus:
        """Return how the link is."""


class MissingAnnouncer:
    """Announces for one link; `run` does it.

    Attributes:
        topic: Where it announces at the primary, and where nodes below announce here.
    """

    def __init__(
        self,
        link: AnnouncingLink,
        *,
        replica: Replica,
        is_subscribed: Callable[[bytes], Awaitable[bool]],
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Prepare.

        Args:
            link: The link.
            replica: What it holds, read only.
            is_subscribed: Says whether a client is subscribed to a Topic Filter, to this very one.
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
        """Set when there may be something to do."""
        self._searched: bytes | None = None
        """The Topic Filter of the search under way; None while there is none."""
        self._arrived = False
        """Whether a topic came that it matches, which may lie where the search was before."""
        self._refused: ReasonCode | None = None
        """Why the primary took none of the newest announcements; None when it did."""

    def add_subscribed(self, topic_filter: bytes) -> None:
        """Note a Topic Filter that a client has subscribed to, not a `$share` form."""
        if self._concerns(topic_filter):
            self._missing.add(topic_filter, Waiting(self._clock.now_ns() // 1000))
            self.wake()

    def add_relayed(self, payload: bytes) -> None:
        """Note what a node below has announced here."""
        self._missing.add_relayed(payload)
        self.wake()

    def wake(self) -> None:
        """Look again: the link may have become ready."""
        self._attention.set()

    def note(self, updates: Iterable[Update]) -> None:
        """Note what comes into the replica while it is searched."""
        if self._searched is not None and not self._arrived:
            wanted = self._searched
            self._arrived = any(update[3] and update[1] and matches(wanted, update[0]) for update in updates)

    async def run(self) -> None:
        """Announce what is missing, as long as the node lives."""
        while True:
            while not (len(self._missing) and self._link.status().ready):
                self._attention.clear()
                await self._attention.wait()
            wait_s = self._missing.wait_s(self._clock.monotonic())
            await asyncio.sleep(wait_s)
            if not wait_s and (next_one := self._missing.take()) is not None:
                await self._look_after(*next_one)

    def _concerns(self, topic_filter: bytes) -> bool:
        """Say whether a filter has to wait: topics of the link may match it, and it is not plain that one does."""
        if not self._parts(topic_filter):
            return False
        has_wildcard = b"+" in topic_filter or b"#" in topic_filter
        return has_wildcard or topic_filter not in self._replica.view or not self._link.status().ready

    def _parts(self, topic_filter: bytes) -> list[tuple[str, str, Selector]]:
        """Return the parts of a local filter that selectors cover, as filters here and at the primary."""
        wanted = topic_filter.decode()
        common = ((common_filter(wanted, selector.local_filter), selector) for selector in self._selectors)
        return [(part, part.removeprefix(one.prefix), one) for part, one in common if part not in (None, one.prefix)]

    def _is_replicated(self, at_primary: str, selector: Selector) -> bool:
        """Say whether a selector brings topics of a filter: not what it excludes, nor the link's control topics."""
        try:
            wanted = Selector(at_primary, exclude=(*selector.exclude, self._control_filter))
        except SelectorInvalid:  # more levels than a selector may have, which a client's Topic Filter may
            return False
        return sample_topic(wanted) is not None

    async def _look_after(self, topic_filter: bytes, waiting: Waiting) -> None:
        """Announce what is missing of a filter, or let it wait again if that cannot be."""
        if not waiting.path and not await self._is_subscribed(topic_filter):
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
        if lost or reason_code is ReasonCode.QUOTA_EXCEEDED:
            self._missing.add(topic_filter, waiting)
            return
        self._missing.note_answer(at_primary, accepted=not reason_code.is_failure, now=self._clock.monotonic())
        if not reason_code.is_failure:
            self._refused = None
        elif reason_code is not self._refused:
            self._refused = reason_code
            self._logger.warning("missing topic not announced", filter=at_primary, reason_code=reason_code.text)

    async def _is_there(self, topic_filter: bytes) -> bool:
        """Search the replica for a topic that a filter matches."""
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
