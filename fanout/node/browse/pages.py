"""Pages of topics, one topic, and the levels of a branch, from the replicas of a node."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from fanout.api.browse.models import PastValue, TopicDetail, TopicsDocument, TopicView, TreeChild, TreeDocument
from fanout.api.browse.payloads import show_payload
from fanout.api.browse.view import TopicQuery
from fanout.api.models import utc_from_ns
from fanout.node.browse.activity import TopicActivity
from fanout.node.browse.identity import stamp_of, traceparent_of
from fanout.replica.store import Replica
from fanout.replica.update import DIGEST, EXPIRES_NS, PAYLOAD, PROPERTIES, QOS, RECEIVED_NS, TOPIC, Update
from fanout.runtime.slices import Slices

__all__ = ["Store", "TopicPages", "past_value"]

_COUNTED_MAX: Final = 100_000
"""Topics of one level of a replica on disk that are counted one by one."""
_PAGE_BYTES_MAX: Final = 1 << 20
"""Characters of values on a page, after which it ends."""
_DETAIL_BYTES_MAX: Final = 1 << 20
"""Bytes of the payload that `/v1/topics/{topic}` shows."""
_CHANGE_BYTES_MAX: Final = 4096


class Store(NamedTuple):
    """A replica of a node."""

    link: str | None
    """The link that fills it; None for the node's own namespace."""
    replica: Replica
    """The replica."""


class TopicPages:
    """Reads the replicas of a node, in slices of the event loop."""

    def __init__(self, stores: Callable[[], Sequence[Store]], *, activity: TopicActivity, slices: Slices) -> None:
        """Read replicas.

        Args:
            stores: Returns the replicas, which do not overlap.
            activity: Counts messages by topic.
            slices: Share of the event loop for searches.
        """
        self._stores = stores
        self._slices = slices
        self._activity = activity

    async def page(self, query: TopicQuery) -> TopicsDocument:
        """Return a page of topics; the replicas may change meanwhile."""
        return await self._slices.run(self._page(query))

    def _page(self, query: TopicQuery) -> Generator[None, None, TopicsDocument]:
        self._activity.look()
        low = max(query.prefix, query.after + b"\0" if query.after else b"")
        high = query.prefix + b"\xff" if query.prefix else None
        words = [word.lower() for word in query.search.split()]
        found: list[tuple[bytes, int]] = []
        stores = self._stores()
        for number, store in enumerate(stores):
            last = found[query.limit][0] if len(found) > query.limit else None
            here: list[bytes] = []
            pieces = store.replica.topics.match(query.topic_filter, low=low, high=high)
            for topics in pieces:
                yield
                if words:
                    topics = [topic for topic in topics if all(word in topic.lower() for word in words)]
                here += topics
                if len(here) > query.limit or (last is not None and here and here[-1] >= last):
                    break
            found = sorted([*found, *((topic, number) for topic in here)])[: query.limit + 1]
        views: list[TopicView] = []
        size, last, more = 0, b"", len(found) > query.limit
        for topic, number in found[: query.limit]:
            yield
            if size > _PAGE_BYTES_MAX:
                more = True
                break
            last = topic
            update = stores[number].replica.view.get(topic)
            if update is not None:  # else it went away meanwhile
                views.append(self._view(stores[number], update, bytes_max=query.value_bytes))
                size += len(views[-1].value)
        return TopicsDocument(
            topics=tuple(views),
            next=last.decode() if more else None,
            held=sum(len(store.replica) for store in stores),
        )

    def topic(self, topic: bytes, *, readers: int | None) -> TopicDetail:
        """Return one topic, and remember its messages from now on.

        Args:
            topic: A valid Topic Name.
            readers: Sessions that subscribe to it; None if it is not to be told.
        """
        self._activity.look()
        changes = tuple(past_value(update, bytes_max=_CHANGE_BYTES_MAX) for update in self._activity.watch(topic))
        held = None
        for store in self._stores():
            update = store.replica.view.get(topic)
            if update is not None:
                held = self._view(store, update, bytes_max=_DETAIL_BYTES_MAX)
        return TopicDetail(topic=topic.decode(), held=held, changes=changes, readers=readers)

    async def tree(self, prefix: bytes, *, after: bytes | None, limit: int) -> TreeDocument:
        """Return a page of the levels below a branch.

        Args:
            prefix: The branch, without a slash at its end; empty for the first level of all topics.
            after: Name of the level after which the page begins; None for the first page.
            limit: Most levels on the page.
        """
        return await self._slices.run(self._tree(prefix, after, limit))

    def _tree(self, prefix: bytes, after: bytes | None, limit: int) -> Generator[None, None, TreeDocument]:
        self._activity.look()
        root = prefix + b"/" if prefix else b""
        stores = self._stores()
        low = root
        if after is not None:
            low += after + (b"\0" if _is_topic(stores, root + after) else b"0")  # "0" follows "/"
        levels: list[tuple[bytes, bytes]] = []
        for store in stores:
            first = islice(_levels(store, root, low, stores), limit + 1)
            for level in first:
                yield
                if level not in levels:
                    insort(levels, level)
        names = [name for _, name in levels]
        rates = self._activity.by_level(root)
        children: list[TreeChild] = []
        for name in names[:limit]:
            yield
            children.append(self._child(stores, root, name, rates))
        return TreeDocument(
            prefix=prefix.decode(),
            children=tuple(children),
            next=names[limit - 1].decode() if len(names) > limit else None,
        )

    def _child(self, stores: Sequence[Store], root: bytes, name: bytes, rates: dict[bytes, float] | None) -> TreeChild:
        topic = root + name
        is_topic, count, at_least = False, 0, False
        for store in stores:
            ends = topic in store.replica.topics
            below = store.replica.topics.count_between(topic + b"/", topic + b"0", most=_COUNTED_MAX)
            is_topic = is_topic or ends
            at_least = at_least or below == _COUNTED_MAX
            count += ends + below
        rate = None if rates is None else round(rates.get(name, 0.0), 3)
        return TreeChild(name=name.decode(), is_topic=is_topic, topics=count, at_least=at_least, per_second=rate)

    def _view(self, store: Store, update: Update, *, bytes_max: int) -> TopicView:
        selector = None
        if store.link is not None:
            index = store.replica.index_of(update[TOPIC])
            selectors = store.replica.selectors
            selector = selectors[index].filter if 0 <= index < len(selectors) else None
        rate = self._activity.rate(update[TOPIC])
        return TopicView(
            **past_value(update, bytes_max=bytes_max).model_dump(),
            topic=update[TOPIC].decode(),
            link=store.link,
            selector=selector,
            digest=f"{update[DIGEST]:016x}",
            expires=utc_from_ns(update[EXPIRES_NS]) if update[EXPIRES_NS] else None,
            updates=self._activity.messages(update[TOPIC]),
            per_second=None if rate is None else round(rate, 3),
        )


def past_value(update: Update, *, bytes_max: int) -> PastValue:
    """Return a value for a document, with at most `bytes_max` bytes of its payload."""
    shown = show_payload(update[PAYLOAD], bytes_max=bytes_max)
    return PastValue(
        received=utc_from_ns(update[RECEIVED_NS]),
        qos=update[QOS],
        payload_bytes=len(update[PAYLOAD]),
        format=shown.format,
        value=shown.value,
        cut=shown.cut,
        stamp=stamp_of(update),
        traceparent=traceparent_of(update[PROPERTIES]),
    )


def _is_topic(stores: Sequence[Store], topic: bytes) -> bool:
    return any(topic in store.replica.topics for store in stores)


def _levels(store: Store, root: bytes, low: bytes, stores: Sequence[Store]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the levels after `root`, in the order of their first topics from `low` on: its bytes, and its name.

    The topics `a`, `a-b` and `a/b` sort in this order, so the level `a` has two stretches with another level between.
    It comes with the first of them, which may be in another store.
    """
    high = root + b"\xff"
    while (topic := store.replica.topics.first(low, high)) is not None:
        name, slash, _ = topic[len(root) :].partition(b"/")
        if not slash:
            low = topic + b"\0"
            yield name, name
        else:
            low = root + name + b"0"
            if not _is_topic(stores, root + name):
                yield name + b"/", name
