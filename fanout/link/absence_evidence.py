"""Exact evidence that unconfirmed topics are deleted at the primary: its list, and another user who asks by name.

`fanout.link.snapshot.absence` says what is done with it. The other user must be able to read what it is asked for. It
is asked for some confirmed topics too, which must come: a primary may hide topics from it as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from fanout.config import LinkConfig, read_audit_password
from fanout.errors import FanoutError
from fanout.link.exact_names import NAMES_MAX, NamedAnswer
from fanout.link.list_check import ListCheck
from fanout.replica.store import Replica

__all__ = ["REQUESTS_MAX", "AbsenceEvidence", "AskByName"]

REQUESTS_MAX: Final = 10
"""Largest number of requests by name; further topics stay unconfirmed until the next audit."""
_WITNESSES: Final = 16
"""Number of confirmed topics in each request."""
_CANDIDATES_MAX: Final = 100_000
"""Largest number of topics of a selector for which evidence is sought at a time."""


class AskByName(Protocol):
    """Request for retained messages by exact name; `Link.ask_by_name` is one."""

    def __call__(
        self, topics: Sequence[str], *, username: str | None = None, password: bytes | None = None, qos: int = 0
    ) -> Awaitable[NamedAnswer]:
        """Return the primary's answer."""


class AbsenceEvidence:
    """Evidence of one link."""

    def __init__(
        self,
        config: LinkConfig,
        *,
        replica: Replica,
        list_check: ListCheck | None,
        ask_by_name: AskByName,
        logger: FilteringBoundLogger,
    ) -> None:
        """Prepare; nothing is requested.

        Args:
            config: The link's configuration.
            replica: Its replica, read only.
            list_check: Comparison with the primary's list; None without one.
            ask_by_name: Request to the primary.
            logger: Logger for a source that is not available.
        """
        self._config = config
        self._replica = replica
        self._list_check = list_check
        self._ask_by_name = ask_by_name
        self._logger = logger

    async def absent(self) -> AsyncIterator[list[bytes]]:
        """Yield local topics that are deleted at the primary, in pieces."""
        sources: list[Callable[[int, list[bytes]], AsyncIterator[list[bytes]]]] = []
        if self._list_check is not None:
            sources.append(self._list_check.absent)
        if self._config.audit_username is not None:
            sources.append(self._absent_by_name)
        selectors = self._replica.selectors
        for source in sources:
            for index in range(len(selectors)):
                if self._replica.selectors is not selectors:  # a reload: positions and topics are others now
                    return
                topics = self._candidates(index)
                try:
                    async for found in source(index, topics):
                        if self._replica.selectors is not selectors:
                            return
                        yield found
                except FanoutError as error:
                    self._logger.warning("no evidence about missing topics", error=error.message, hint=error.hint)
                    break

    async def _absent_by_name(self, index: int, topics: list[bytes]) -> AsyncIterator[list[bytes]]:
        """Yield topics of a selector that do not come to the other user, who may read them."""
        selector = self._replica.selectors[index]
        prefix = selector.prefix.encode()
        names = {
            topic.removeprefix(prefix).decode(): topic for topic in topics if b"+" not in topic and b"#" not in topic
        }
        witnesses = [topic.removeprefix(prefix).decode() for topic in self._witnesses(index)]
        rest = iter(names)
        for _ in range(REQUESTS_MAX):
            asked = list(islice(rest, NAMES_MAX - _WITNESSES))
            if not asked or not witnesses:
                return
            answer = await self._ask_by_name(
                [*asked, *witnesses],
                username=self._config.audit_username,
                password=read_audit_password(self._config),
            )
            if not answer.values.keys() >= set(witnesses):
                raise FanoutError(
                    f"user {self._config.audit_username} cannot read topics of {selector.filter} that the link holds",
                    hint="Let audit_username read everything that the link's selectors match at the primary",
                )
            yield [names[name] for name in asked if name in answer.absent]

    def _candidates(self, index: int) -> list[bytes]:
        """Return unconfirmed topics of a selector."""
        replica = self._replica
        topics = (topic for piece in replica.unconfirmed.pieces() for topic in piece)
        return list(islice((topic for topic in topics if replica.index_of(topic) == index), _CANDIDATES_MAX))

    def _witnesses(self, index: int) -> list[bytes]:
        """Return confirmed topics of a selector."""
        replica = self._replica
        found = (
            topic for piece in replica.match_topics(replica.selectors[index].local_filter.encode()) for topic in piece
        )
        confirmed = (topic for topic in found if topic not in replica.unconfirmed)
        return list(islice(confirmed, _WITNESSES))
