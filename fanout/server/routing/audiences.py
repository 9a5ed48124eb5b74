"""Index of audiences: groups of sessions with identical subscriptions and wire variant, which get identical bytes.

Owns the membership of sessions in audiences, the Topic Filters of all audiences in one trie, and the route cache from
Topic Name to audiences (MQTT 5, sections 3.3.4, 3.8.3.1 and 4.7).

A change of subscriptions costs time by the number of changed subscriptions, or by all of the session when it leaves an
audience with other members; it never costs by the number of topics. The route cache is cleared and filled again as
topics come. A session that joins or leaves an audience with other members does not clear it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from fanout.mqtt.topics import FilterTrie
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.subscribers import Audience, ShareGroup, Subscriber, SubscriptionOptions, TrieEntry

__all__ = ["NO_ROUTES", "AudienceIndex", "Encoding", "Route", "Routes"]

ROUTE_CACHE_TOPICS_MAX: Final = 262_144
"""Topics in the route cache. A full cache is cleared: finding a route again costs about 2 us."""


class Encoding(NamedTuple):
    """Parameters that decide the bytes of an update; routes with equal ones share an object, and encode it once."""

    wire: WireVariant
    """Wire variant of the receivers."""
    qos_max: int
    """The highest Maximum QoS of the matching subscriptions [MQTT-3.3.4-2]."""
    retain_as_published: bool
    """True when the RETAIN flag is kept."""
    identifiers: tuple[int, ...]
    """The Subscription Identifiers of the matching subscriptions [MQTT-3.3.4-4]."""


class Route(NamedTuple):
    """Delivery of a topic's updates to one audience."""

    audience: Audience
    encoding: Encoding
    own: Encoding | None
    """Encoding for the member that published the update; None when No Local excludes it."""


Routes: TypeAlias = tuple[tuple[Route, ...], tuple[ShareGroup, ...]]
"""Routes of a topic, sorted so that equal encodings are adjacent, and the share groups that match it."""

NO_ROUTES: Final[Routes] = ((), ())


class AudienceIndex:
    """All audiences, and their lookup by Topic Name."""

    def __init__(self, *, topics_max: int = ROUTE_CACHE_TOPICS_MAX, in_flight_bytes_max: int = sys.maxsize) -> None:
        """Make an index without audiences.

        Args:
            topics_max: Limit of topics in the route cache.
            in_flight_bytes_max: Approximate limit of bytes that a member may have in flight.
        """
        self.trie: FilterTrie[TrieEntry | ShareGroup] = FilterTrie()
        """Topic Filters of all audiences and share groups."""
        self._audiences: dict[tuple[WireVariant, int, bool], list[Audience]] = {}
        self._topics_max = topics_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self.cached: dict[bytes, Routes] = {}
        """The route cache, which the hot loop reads before it calls `routes`."""
        self._routes_of: dict[tuple[TrieEntry | ShareGroup, ...], Routes] = {}
        self._encodings: dict[Encoding, Encoding] = {}
        self.count = 0
        """Number of audiences."""

    def change(
        self, session: Subscriber, *, added: Mapping[bytes, SubscriptionOptions], removed: Sequence[bytes] = ()
    ) -> None:
        """Change the subscriptions of a session, and hence its audience.

        Args:
            session: The session; its `subscriptions`, `fingerprint` and `audience` are changed.
            added: Topic Filters with options, new ones or in place of old ones [MQTT-3.8.4-3].
            removed: Topic Filters that the session has.
        """
        old = session.audience
        alone = old is not None and len(old) == 1
        # The dictionary of a lone member is changed in place; a shared one is copied.
        subscriptions = old.subscriptions if alone and old is not None else dict(session.subscriptions)
        fingerprint = session.fingerprint
        if alone and old is not None:
            self._forget_key(old, fingerprint)
        for topic_filter in removed:
            fingerprint -= hash((topic_filter, subscriptions.pop(topic_filter)))
        for topic_filter, options in added.items():
            before = subscriptions.get(topic_filter)
            if before is not None:
                fingerprint -= hash((topic_filter, before))
            fingerprint += hash((topic_filter, options))
            subscriptions[topic_filter] = options
        session.fingerprint = fingerprint
        session.subscriptions = subscriptions
        if alone and old is not None:
            self._assign_audience(session, subscriptions, own=old, changed=[*removed, *added])
        else:
            if old is not None:
                old.discard(session)
            self._assign_audience(session, subscriptions, own=None, changed=subscriptions)

    def join(self, session: Subscriber, *, wire: WireVariant) -> None:
        """Set the wire variant of a session's new Network Connection, and move the session to the matching audience."""
        if wire != session.wire:
            self._move(session, wire=wire, age_bound=session.age_bound)

    def set_age_bound(self, session: Subscriber, age_bound: bool) -> None:
        """Note whether the age of what waits for a session has a bound, and move it to the matching audience."""
        if age_bound != session.age_bound:
            self._move(session, wire=session.wire, age_bound=age_bound)

    def _move(self, session: Subscriber, *, wire: WireVariant, age_bound: bool) -> None:
        subscriptions = dict(session.subscriptions)
        self.leave(session)
        session.wire, session.age_bound = wire, age_bound
        if subscriptions:
            self.change(session, added=subscriptions)

    def leave(self, session: Subscriber) -> None:
        """End all subscriptions of `session`."""
        audience = session.audience
        if audience is None:
            return
        fingerprint = session.fingerprint
        audience.discard(session)
        session.audience = None
        session.subscriptions = {}
        session.fingerprint = 0
        if len(audience) == 0:
            self._forget_key(audience, fingerprint)
            self._dissolve(audience)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the shared in-flight logs, counted once for all members."""
        return sum(audience.log.bytes for same in self._audiences.values() for audience in same)

    def add_group(self, group: ShareGroup) -> None:
        """Add a share group to the trie at its Topic Filter (without `$share/{ShareName}/`)."""
        self.trie.add(group.key[1], group)
        self._drop_routes()

    def remove_group(self, group: ShareGroup) -> None:
        """Remove a share group from the trie."""
        self.trie.remove(group.key[1], group)
        self._drop_routes()

    def has(self, topic_filter: bytes) -> bool:
        """Return whether a session has a subscription, not shared, to exactly this Topic Filter."""
        return any(isinstance(entry, TrieEntry) for entry in self.trie.at(topic_filter))

    def routes(self, topic: bytes) -> Routes:
        """Return the routes of a topic, from the cache if they are there."""
        routes = self.cached.get(topic)
        if routes is None:
            entries = tuple(self.trie.match(topic))
            # Most topics match the same set of subscriptions, so they share one object.
            routes = self._routes_of.get(entries)
            if routes is None:
                routes = self._routes_of[entries] = self._make_routes(entries) if entries else NO_ROUTES
            if len(self.cached) >= self._topics_max:
                self._drop_routes()
            self.cached[topic] = routes
        return routes

    def _assign_audience(
        self,
        session: Subscriber,
        subscriptions: dict[bytes, SubscriptionOptions],
        *,
        own: Audience | None,
        changed: Iterable[bytes],
    ) -> None:
        """Find or make the audience for `session`.

        Args:
            session: The session; in no audience, or the only member of `own`.
            subscriptions: Its new subscriptions.
            own: The audience with it as the only member, if any.
            changed: The Topic Filters in which `subscriptions` differs from the trie entries of `own`.
        """
        key = (session.wire, session.fingerprint, session.age_bound)
        if not subscriptions:
            session.audience = None
            if own is not None:
                self._dissolve(own)
            return
        for audience in self._audiences.get(key, ()):
            if audience.subscriptions == subscriptions:
                if own is not None:
                    self._dissolve(own)
                session.audience = audience
                session.subscriptions = audience.subscriptions
                audience.update(session)
                return
        if own is None:
            own = Audience(
                wire=session.wire,
                subscriptions=subscriptions,
                in_flight_bytes_max=self._in_flight_bytes_max,
                age_bound=session.age_bound,
            )
            self.count += 1
            own.update(session)
            session.audience = own
        self._audiences.setdefault(key, []).append(own)
        self._update_entries(own, changed)

    def _update_entries(self, audience: Audience, changed: Iterable[bytes]) -> None:
        entries, subscriptions = audience.entries, audience.subscriptions
        for topic_filter in changed:
            options = subscriptions.get(topic_filter)
            if options is None:
                self.trie.remove(topic_filter, entries.pop(topic_filter))
                continue
            entry = entries.get(topic_filter)
            if entry is None:
                entry = entries[topic_filter] = TrieEntry(audience, options)
                self.trie.add(topic_filter, entry)
            entry.options = options
            audience.qos_max = max(audience.qos_max, options.qos)
            audience.no_local = audience.no_local or options.no_local
        self._drop_routes()

    def _forget_key(self, audience: Audience, fingerprint: int) -> None:
        key = (audience.wire, fingerprint, audience.age_bound)
        same = self._audiences[key]
        same.remove(audience)
        if not same:
            del self._audiences[key]

    def _dissolve(self, audience: Audience) -> None:
        for topic_filter, entry in audience.entries.items():
            self.trie.remove(topic_filter, entry)
        audience.entries = {}
        for session in (*audience.direct, *audience.queued):
            session.follower.leave()
        audience.direct.clear()
        audience.queued.clear()
        self.count -= 1
        self._drop_routes()

    def _drop_routes(self) -> None:
        self.cached.clear()
        self._routes_of.clear()
        self._encodings.clear()

    def _make_routes(self, entries: tuple[TrieEntry | ShareGroup, ...]) -> Routes:
        matching: dict[Audience, list[SubscriptionOptions]] = {}
        groups: list[ShareGroup] = []
        for entry in entries:
            if isinstance(entry, TrieEntry):
                matching.setdefault(entry.audience, []).append(entry.options)
            else:
                groups.append(entry)
        routes: dict[Encoding, list[Route]] = {}
        for audience, options in matching.items():
            encoding = self.encoding(audience.wire, options)
            own: Encoding | None = encoding
            if audience.no_local:
                heard = [one for one in options if not one.no_local]
                own = self.encoding(audience.wire, heard) if heard else None
            routes.setdefault(encoding, []).append(Route(audience, encoding, own))
        return tuple(chain.from_iterable(routes.values())), tuple(groups)

    def encoding(self, wire: WireVariant, options: list[SubscriptionOptions]) -> Encoding:
        """Return the one encoding for a topic that several subscriptions of a session match (MQTT 5, section 3.3.4).

        It has the highest QoS [MQTT-3.3.4-2] and all Subscription Identifiers [MQTT-3.3.4-4], and keeps RETAIN when one
        of the subscriptions asks for it.
        """
        qos = max(one.qos for one in options)
        retain = any(one.retain_as_published for one in options)
        identifiers: tuple[int, ...] = ()
        if wire.version == 5:  # an identifier of several subscriptions is repeated (MQTT 5, section 3.3.4)
            identifiers = tuple(sorted(one.identifier for one in options if one.identifier))
        encoding = Encoding(wire, qos, retain, identifiers)
        return self._encodings.setdefault(encoding, encoding)
