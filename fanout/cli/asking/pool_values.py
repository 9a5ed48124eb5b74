"""Comparison of the retained values of a pool's members, topic by topic, over their HTTP interfaces."""

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
CANDIDATES_MAX: Final = 1_000
"""Topics that are looked at again; if more seem to differ, the rest is not read."""

_Values = dict[str, "TopicView | None"]
"""Member to its value; None for none."""


class TopicReader(Protocol):
    """The part of `NodeClient` that a comparison needs."""

    def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
        """Return a page of `/v1/topics`."""


@dataclass(frozen=True, slots=True)
class DifferingTopic:
    """A topic that members hold differently."""

    topic: str
    values: Mapping[str, TopicView | None]
    """Member to its value at the last look, without payload; None for none."""


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
    """False if so many topics seemed to differ that the rest was not read."""


def compare_members(
    members: Mapping[str, TopicReader], *, sleep: Callable[[float], None] = time.sleep
) -> PoolComparison:
    """Compare what members hold of their links; topics of their own clients are left out.

    The members are read page by page, side by side, so that they are compared at nearly the same time. A topic that
    seems to differ is looked at again: it differs if one member stays unlike another in each look, and unchanged.

    Args:
        members: Name of each member, and its client.
        sleep: Pauses between two looks.

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
            if len(seeming) > CANDIDATES_MAX:
                whole = False
                break
    for _ in range(_LOOKS - 1):
        if seeming:
            sleep(_PAUSE_S)
            for topic in tuple(seeming):
                values = _look(members, topic)
                if _is_unlike(values):
                    seeming[topic].append(values)
                else:
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
    pages = {
        name: client.topics({"filter": topic, "value_bytes": "0", "limit": "1"}) for name, client in members.items()
    }
    return {name: page.topics[0] if page.topics else None for name, page in pages.items()}


def _is_unlike(values: _Values) -> bool:
    return len({_digest(view) for view in values.values()}) > 1


def _one_stays(looks: Sequence[_Values]) -> bool:
    return any(len({_digest(values[name]) for values in looks}) == 1 for name in looks[0])


def _digest(view: TopicView | None) -> str | None:
    return None if view is None else view.digest
