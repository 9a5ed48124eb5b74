"""Comparison of the retained values of a pool's members, topic by topic, for a command and for the page of a node."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from fanout.errors import RequestRefused

if TYPE_CHECKING:
    from fanout.api.browse.models import TopicsDocument, TopicView

__all__ = ["DifferingTopic", "PoolComparison", "TopicReader", "compare_members"]

_PAGE: Final = 1_000
_LOOKS: Final = 3
"""Looks at a topic that members seem to hold differently; a message may just have come to one of them only."""
_PAUSE_S: Final = 1.0
"""Pause between two looks."""
_VALUE_BYTES: Final = 64
"""Bytes of each value that are read at the looks after the first: enough to tell two values apart."""
CANDIDATES_MAX: Final = 1_000
"""Topics that are looked at again; if more seem to differ, the rest is not read."""

_Values = dict[str, "TopicView | None"]
"""Member to its value; None for none."""


class TopicReader(Protocol):
    """Reads topics of one member."""

    def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
        """Return a page of `/v1/topics`."""


@dataclass(frozen=True, slots=True)
class DifferingTopic:
    """A topic that members hold differently."""

    topic: str
    values: Mapping[str, TopicView | None]
    """Member to its value at the last look, with the beginning of the payload; None for none."""

    @property
    def suspect(self) -> str:
        """The member to ask first: one without a value, or with the value that came first."""
        return min(
            self.values, key=lambda name: "" if (held := self.values[name]) is None else held.received.isoformat()
        )


@dataclass(frozen=True, slots=True)
class PoolComparison:
    """Retained values of members, compared."""

    topics: int
    """Topics of links that were read, of all members together."""
    differing: tuple[DifferingTopic, ...]
    """Topics that are not the same at all members, and stay as they are at one of them, in the order of their names."""
    changing: int
    """Topics whose values changed at each member between all looks, so that nothing can be said of them."""
    whole: bool
    """False if so many topics seemed to differ, or the time was up, that the rest was not read."""


def compare_members(
    members: Mapping[str, TopicReader],
    *,
    sleep: Callable[[float], object] = time.sleep,
    is_late: Callable[[], bool] = lambda: False,
) -> PoolComparison:
    """Compare what members hold of their links; topics of their own clients are left out.

    The members are read page by page, side by side, so that they are compared at nearly the same time. A topic that
    seems to differ is looked at again: it differs if one member stays unlike another in each look, and unchanged.

    Args:
        members: Name of each member, and its client.
        sleep: Pauses between two looks.
        is_late: Returns True when the time is up; topics that were not looked at often enough are left out then.

    Raises:
        NodeUnreachable: A member does not answer.
        RequestRefused: A member refuses the question.
    """
    count, seeming, whole = 0, dict[str, list[_Values]](), True
    streams = [_topics(name, client) for name, client in members.items()]
    for _, group in groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
        count += 1
        values: _Values = {**dict.fromkeys(members), **{name: view for _, name, view in group}}
        if _is_unlike(values):
            topic = next(view.topic for view in values.values() if view is not None)
            seeming[topic] = [values]
        if len(seeming) > CANDIDATES_MAX or is_late():
            whole = False
            break
    for _ in range(_LOOKS - 1):
        if seeming:
            sleep(_PAUSE_S)
            for topic in tuple(seeming):
                if is_late():
                    whole = False
                elif _is_unlike(values := _look(members, topic)):
                    seeming[topic].append(values)
                    continue
                del seeming[topic]
    differing = {topic: looks for topic, looks in seeming.items() if _one_stays(looks)}
    return PoolComparison(
        topics=count,
        differing=tuple(DifferingTopic(topic, looks[-1]) for topic, looks in differing.items()),
        changing=len(seeming) - len(differing),
        whole=whole,
    )


def _topics(name: str, client: TopicReader) -> Iterator[tuple[bytes, str, TopicView]]:
    """Yield the topics of one member's links, in the order of the bytes of their names."""
    after = ""
    while True:
        asked = {"value_bytes": "0", "limit": str(_PAGE), **({"after": after} if after else {})}
        page = client.topics(asked)
        for view in page.topics:
            if view.link is not None:
                yield view.topic.encode(), name, view
        if page.next is None:
            return
        if page.next.encode() <= after.encode():
            raise RequestRefused(f"{name} sends the same page of topics again", hint="Upgrade it")
        after = page.next


def _look(members: Mapping[str, TopicReader], topic: str) -> _Values:
    """Return what each member holds of a topic now."""
    asked = {"filter": topic, "value_bytes": str(_VALUE_BYTES), "limit": "1"}
    pages = {name: client.topics(asked) for name, client in members.items()}
    return {name: page.topics[0] if page.topics else None for name, page in pages.items()}


def _is_unlike(values: _Values) -> bool:
    return len({_digest(view) for view in values.values()}) > 1


def _one_stays(looks: Sequence[_Values]) -> bool:
    return any(len({_digest(values[name]) for values in looks}) == 1 for name in looks[0])


def _digest(view: TopicView | None) -> str | None:
    return None if view is None else view.digest
