"""Registry of all sessions by Client Identifier, and their subscriptions.

Owns the effect of SUBSCRIBE and UNSUBSCRIBE (MQTT 5, sections 3.8 to 3.11) on a session, the audiences and the share
groups. `client.session_lifecycle` decides when a session begins and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from fanout.access.authorization import Access
from fanout.chain.age_bound import AgeBound
from fanout.chain.manifest import ASK_FOR_MANIFEST
from fanout.config import ServerConfig
from fanout.errors import ProtocolError
from fanout.mqtt.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.topics import parse_shared
from fanout.replica.update import Update
from fanout.server.base.counters import Counters, DropReason, Limit
from fanout.server.base.ports import RetainedStore
from fanout.server.messages.encoding import Message, SharedMessage, WireVariant, message_bytes
from fanout.server.messages.queue import MessageQueue
from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.share_groups import SharedSubscriptions
from fanout.server.routing.subscribers import ShareGroup, SubscriptionOptions
from fanout.server.session.exported_session import (
    ExportedMessage,
    ExportedRetained,
    ExportedSession,
    ExportedSubscription,
)
from fanout.server.session.load import SessionLoad
from fanout.server.session.retained_cache import RetainedPieces
from fanout.server.session.retained_delivery import RetainedDelivery
from fanout.server.session.session import Session
from fanout.server.session.session_export import RELEASED, MessageMaker, WaitingMessages
from fanout.server.session.user_quotas import UserQuotas

__all__ = ["SessionRegistry"]

_NONE_REFUSED: Final[Mapping[int, ReasonCode]] = MappingProxyType({})
_COLLECTED: Final = WireVariant(5)
"""Stands for the wire variant of a session that only collects messages, of which nothing is encoded."""
_SEND_ALWAYS = 0
_SEND_IF_NEW = 1


class SessionRegistry:
    """All sessions of a server."""

    def __init__(
        self, *, config: ServerConfig, store: RetainedStore, counters: Counters, quotas: UserQuotas | None = None
    ) -> None:
        self.config = config
        self.quotas = quotas
        """Usage and quotas of users; None where nobody counts it."""
        self._store = store
        self._counters = counters
        self._sessions: dict[str, Session] = {}
        self.index = AudienceIndex(in_flight_bytes_max=config.queue_bytes_max)
        """The audiences."""
        self.load = SessionLoad(self._sessions, self.index)
        """Queued and in-flight messages of all sessions."""
        self.overflowed: dict[Session, None] = {}
        """Sessions that must end because their queue overflowed; checked after each dispatch."""
        self._pieces = RetainedPieces()
        self._shared = SharedSubscriptions(self.index)

    def empty(self) -> SessionRegistry:
        """Return a registry without sessions, to collect messages: it counts for itself, without limits of queues."""
        config = replace(self.config, queue_messages_max=sys.maxsize, queue_bytes_max=sys.maxsize)
        return SessionRegistry(config=config, store=self._store, counters=Counters())

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Return all sessions."""
        return iter(self._sessions.values())

    def get(self, client_id: str) -> Session | None:
        """Return the session of a client, or None when it has none."""
        return self._sessions.get(client_id)

    @property
    def full(self) -> bool:
        """True when there is no room for a new session."""
        return len(self._sessions) >= self.config.sessions_max

    def create(self, client_id: str, *, wire: WireVariant) -> Session:
        """Create the session of a client that has none."""
        assert client_id not in self._sessions
        session = self._sessions[client_id] = self._make(client_id, wire=wire, overflowed=self.overflowed)
        self.count(session)
        return session

    def count(self, session: Session) -> None:
        """Count for its user what a session has now."""
        if self.quotas is not None:
            self.quotas.count(session)

    def set_access(self, session: Session, access: Access | None) -> None:
        """Give a session the rights of its client, and count it for the client's user."""
        if self.quotas is None:
            session.access = access
        else:
            self.quotas.set_access(session, access)

    def collect(self, subscriptions: Iterable[ExportedSubscription]) -> Session:
        """Collect the messages for a session that is still at another node, as a session that nobody can resume.

        Shared subscriptions are left out: other members of their groups get those messages. `stop_collecting` ends it.
        """
        session = self._make("", wire=_COLLECTED, overflowed={})
        self.collect_more(session, subscriptions)
        return session

    def collect_more(self, session: Session, subscriptions: Iterable[ExportedSubscription]) -> None:
        """Collect for further subscriptions with a session of `collect`."""
        added = {one.topic_filter: self._granted(one) for one in subscriptions if not _is_shared(one.topic_filter)}
        if added:
            self.index.change(session, added=added)

    def stop_collecting(self, session: Session) -> None:
        """Collect nothing more; what was collected stays in the queue of the session."""
        self.index.leave(session)

    def end(self, session: Session, *, undelivered: Iterable[Message] | None = None) -> list[tuple[ShareGroup, Update]]:
        """End a session, its subscriptions and its queue.

        Args:
            session: The session.
            undelivered: Messages that its client does not get; None for all that are not known to be delivered.

        Returns:
            Those of shared subscriptions, for the remaining members (MQTT 5, section 4.8.2).
        """
        shared: list[tuple[ShareGroup, Update]] = []
        if session.shared:
            groups = session.shared
            shared = [
                (groups[message.share], message[0])
                for message in (session.sender.undelivered() if undelivered is None else undelivered)
                if isinstance(message, SharedMessage) and message.share in groups
            ]
        self._remove(session)
        left = [(group, update) for group, update in shared if len(group)]
        if undelivered is None:
            self._counters.dropped[DropReason.SESSION_ENDED] += session.sender.unsent - len(left)
        return left

    def _remove(self, session: Session) -> None:
        """Remove a session and its subscriptions; its queue stays as it is, and gets nothing any more."""
        del self._sessions[session.client_id]
        self.overflowed.pop(session, None)
        self.index.leave(session)
        self._shared.leave(session)
        if self.quotas is not None:
            self.quotas.count(session, exists=False)

    def has_room_for(self, exported: ExportedSession, *, waiting: WaitingMessages | None = None) -> bool:
        """Return whether a session of another node is within the limits of this one; quotas of users are not asked.

        Args:
            exported: The session.
            waiting: Its queued messages; None to make them.
        """
        config = self.config
        filters = [one.topic_filter for one in exported.subscriptions]
        if waiting is None:
            waiting = WaitingMessages.of(exported, MessageMaker(now_ns=0))
        return (
            not self.full
            and len(filters) <= config.subscriptions_max
            and sum(map(len, filters)) <= config.filter_bytes_max
            and all(_levels(topic_filter) <= config.filter_levels_max for topic_filter in filters)
            and waiting.count <= config.queue_messages_max
            and waiting.bytes <= config.queue_bytes_max
        )

    def restore(
        self,
        exported: ExportedSession,
        *,
        messages: MessageMaker,
        waiting: WaitingMessages | None = None,
        retained_anew: bool = False,
    ) -> Session:
        """Make the session of an exported one; there is none of this client.

        Its subscriptions get from now on what comes; retained messages are due only as far as they were before.

        Args:
            exported: The session.
            messages: Makes its messages.
            waiting: Its queued messages; None to make them.
            retained_anew: True if all retained messages are due again.
        """
        session = self.create(exported.client_id, wire=exported.wire)
        session.owner_since = exported.owner_since
        added: dict[bytes, SubscriptionOptions] = {}
        for subscription in exported.subscriptions:
            options, shared = self._granted(subscription), parse_shared(subscription.topic_filter)
            if shared is None:
                added[subscription.topic_filter] = options
            else:
                self._shared.subscribe(session, shared, options)
        if added:
            self.index.change(session, added=added)
        session.receiver.restore(exported.unreleased)
        outbound = session.sender.inflight.outbound
        for one in exported.in_flight:
            message = RELEASED if one.message is None else messages.of(one.message)
            outbound.adopt(one.packet_id, message, one.state, size=message_bytes(message))
        outbound.continue_behind(exported.last_packet_id)
        if waiting is None:
            waiting = WaitingMessages.of(exported, messages)
        session.sender.restore(waiting.batches, replacing=self._replacing(waiting.replacing))
        everything = [ExportedRetained(topic_filter, None) for topic_filter in added]
        for left in everything if retained_anew else exported.retained:
            if (granted := added.get(left.topic_filter)) is not None:
                delivery = RetainedDelivery(left.topic_filter, options=granted, store=self._store, pieces=self._pieces)
                if left.topics is not None:
                    delivery.continue_with(left.topics)
                session.add_retained(delivery)
        return session

    def _make(self, client_id: str, *, wire: WireVariant, overflowed: dict[Session, None]) -> Session:
        queue = MessageQueue(
            messages_max=self.config.queue_messages_max,
            bytes_max=self.config.queue_bytes_max,
            overflow=self.config.queue_overflow,
        )
        return Session(client_id, wire=wire, queue=queue, overflowed=overflowed, counters=self._counters)

    def _granted(self, subscription: ExportedSubscription) -> SubscriptionOptions:
        """Return the options of another node's subscription, as far as this one grants them."""
        options = subscription.options
        return options._replace(qos=min(options.qos, self.config.qos_max))

    def _replacing(self, queued: Mapping[bytes, ExportedMessage]) -> dict[bytes, Update]:
        """Return the retained values, by topic, that the client gets by a queued message of the session."""
        return {
            value[0]: value
            for value in (self._store.get_many(list(queued)) if queued else ())
            if (value[1], value[4]) == (queued[value[0]].payload, queued[value[0]].properties)
        }

    def subscribe(
        self,
        session: Session,
        packet: Subscribe,
        *,
        bridge: bool = False,
        refused: Mapping[int, ReasonCode] = _NONE_REFUSED,
    ) -> Suback:
        """Carry out a SUBSCRIBE.

        Args:
            session: The client's.
            packet: The SUBSCRIBE.
            bridge: True for a bridge over MQTT 3.1.1, whose subscriptions all have Retain As Published and No Local.
            refused: Reason Codes of subscriptions that the client must not have, by their index in the packet.

        Returns:
            The SUBACK, to be sent before the retained messages of the session.
        """
        identifier = packet.properties.subscription_identifier
        manifest = session.wire.version == 5 and ASK_FOR_MANIFEST in packet.properties.user_property
        added: dict[bytes, SubscriptionOptions] = {}
        retained: dict[bytes, RetainedDelivery] = {}
        codes: list[int] = []
        config = self.config
        room = config.subscriptions_max - len(session.subscriptions) - len(session.shared)
        over_quota = False
        user_room = sys.maxsize if self.quotas is None else self.quotas.room_for_subscriptions(session.user)
        room_bytes = config.filter_bytes_max - sum(map(len, session.topic_filters))
        for index, subscription in enumerate(packet.subscriptions):
            if index in refused:
                codes.append(refused[index])
                continue
            topic_filter = subscription.topic_filter
            try:
                shared = parse_shared(topic_filter)
            except ProtocolError:
                codes.append(ReasonCode.TOPIC_FILTER_INVALID)
                continue
            if shared is not None:
                new = shared not in session.shared
            else:
                new = topic_filter not in session.subscriptions and topic_filter not in added
            size = len(topic_filter) if new else 0
            reached: Limit | None = None
            if not new:
                pass  # a reload may have lowered the limits below what the session has
            elif (shared[1] if shared is not None else topic_filter).count(b"/") >= config.filter_levels_max:
                reached = Limit.FILTER_LEVELS
            elif room <= 0:
                reached = Limit.SUBSCRIPTIONS
            elif size > room_bytes:
                reached = Limit.FILTER_BYTES
            elif user_room <= 0:
                reached = Limit.USER_SUBSCRIPTIONS
                over_quota = True
            if reached is not None:
                codes.append(ReasonCode.QUOTA_EXCEEDED)
                self._counters.limits_reached[reached] += 1
                continue
            room -= new
            user_room -= new
            room_bytes -= size
            options = SubscriptionOptions(
                qos=min(subscription.qos, config.qos_max),
                no_local=subscription.no_local or (bridge and shared is None),
                retain_as_published=subscription.retain_as_published or bridge,
                identifier=identifier[0] if identifier else 0,
            )
            codes.append(options.qos)
            if shared is not None:
                self._shared.subscribe(session, shared, options)
                continue
            added[topic_filter] = options
            if _wants_retained(subscription, new):
                retained[topic_filter] = RetainedDelivery(
                    topic_filter, options=options, store=self._store, pieces=self._pieces, manifest=manifest
                )
        if added:
            self.index.change(session, added=added)
        self.count(session)
        if over_quota and self.quotas is not None:
            self.quotas.log(Limit.USER_SUBSCRIPTIONS, user=session.user, client_id=session.client_id)
        told = self._take_age(session, packet, added)
        for delivery in retained.values():
            session.add_retained(delivery)
        if manifest and retained:
            told = (ASK_FOR_MANIFEST, *told)
        return Suback(packet.packet_id, tuple(codes), Properties(user_property=told) if told else NO_PROPERTIES)

    def limit_age(self, session: Session) -> None:
        """Bound the age of what waits for a session, as its client asked and the access rules say."""
        bound, access = session.age_asked, session.access
        if access is not None and (max_age_s := access.max_age_s):
            bound = AgeBound(max_age_s).tightened(bound)
        ends_later = bound is None and session.is_connected  # messages wait by its rules
        if bound != session.sender.bound and not ends_later:
            self.index.set_age_bound(session, bound is not None)
            session.limit_age(bound)

    def _take_age(self, session: Session, packet: Subscribe, added: Iterable[bytes]) -> tuple[tuple[str, str], ...]:
        """Bound the age of what waits for a session, if its client asks for that in a SUBSCRIBE.

        Topics that such a client subscribes to by name, in packets that do not ask, wait for no others.

        Args:
            session: The session.
            packet: The SUBSCRIBE, which is carried out.
            added: Its Topic Filters.

        Returns:
            The properties that confirm the bound; empty if the packet does not ask for one.
        """
        asked = AgeBound.asked_by(packet.properties.user_property)
        if asked is not None:
            session.age_asked = asked
            session.bounded = session.bounded.union(added)
        elif session.bounded:
            session.bounded = session.bounded.difference(added)
        self.limit_age(session)
        if session.bounded and not session.outlives_node:  # a session's value has no such queue
            session.sender.put_first(
                one for one in session.subscriptions if one not in session.bounded and not _has_wildcard(one)
            )
        return () if session.sender.bound is None or asked is None else session.sender.bound.properties

    def unsubscribe(self, session: Session, packet: Unsubscribe) -> Unsuback:
        """Carry out an UNSUBSCRIBE and return the UNSUBACK."""
        removed: dict[bytes, None] = {}
        codes: list[int] = []
        for topic_filter in packet.topic_filters:
            try:
                shared = parse_shared(topic_filter)
            except ProtocolError:
                codes.append(ReasonCode.TOPIC_FILTER_INVALID)
                continue
            if shared is not None:
                existed = self._shared.unsubscribe(session, shared)
            else:
                existed = topic_filter in session.subscriptions and topic_filter not in removed
                if existed:
                    removed[topic_filter] = None
            codes.append(ReasonCode.SUCCESS if existed else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        if removed:
            self.index.change(session, added={}, removed=list(removed))
            session.bounded = session.bounded.difference(removed)
            for topic_filter in removed:
                session.cancel_retained(topic_filter)  # [MQTT-3.10.4-2]
        self.count(session)
        return Unsuback(packet.packet_id, tuple(codes))


def _has_wildcard(topic_filter: bytes) -> bool:
    return b"+" in topic_filter or b"#" in topic_filter


def _is_shared(topic_filter: bytes) -> bool:
    return parse_shared(topic_filter) is not None


def _levels(topic_filter: bytes) -> int:
    """Return the number of levels of a Topic Filter; of a shared one without `$share` and the ShareName."""
    shared = parse_shared(topic_filter)
    return (topic_filter if shared is None else shared[1]).count(b"/") + 1


def _wants_retained(subscription: Subscription, new: bool) -> bool:
    """Return whether Retain Handling asks for retained messages [MQTT-3.3.1-9] to [MQTT-3.3.1-11]."""
    handling = subscription.retain_handling
    return handling == _SEND_ALWAYS or (handling == _SEND_IF_NEW and new)
