"""Lifecycle of sessions: they begin, are resumed or taken over, expire and end; and their Will Messages.

Owns the Network Connection of each session, and the order of events when a connection starts or ends (MQTT 5, sections
3.1.2.5, 3.1.2.11, 3.1.3.2 and 4.1).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from fanout.access.authorization import Access
from fanout.access.gate import Gate
from fanout.mqtt.packets import Unsubscribe
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Update
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import Limit
from fanout.server.base.ports import SessionFinder, SessionFound
from fanout.server.client.authorization_flow import AuthorizationFlow, Claim, claim_of
from fanout.server.client.client_list import Kicked
from fanout.server.client.connack import Terms
from fanout.server.client.connection import ClientConnection
from fanout.server.keeping.session_keepers import SessionKeepers
from fanout.server.messages.encoding import Message
from fanout.server.routing.dispatch import Dispatcher
from fanout.server.routing.subscribers import ShareGroup
from fanout.server.session.registry import SessionRegistry
from fanout.server.session.session import Session
from fanout.server.session.session_fence import SessionFence
from fanout.server.session.user_quotas import UserQuotas
from fanout.server.session.wills import WillMessage

__all__ = ["SessionLifecycles"]

_CHECKED_MAX: Final = 256
"""Limit of sessions and subscriptions that are checked in one turn of the event loop."""
_LOST: Final = "The server that had the session is gone, and its messages are not held any more"
"""Reason String of a CONNACK with Session Present 0."""
_WILLS_S: Final = 0.005
"""Time for Will Messages in one turn of the event loop: thousands of clients may leave in one."""
_FREED_MAX: Final = 5_000
"""Limit of messages that are freed in one turn of the event loop: some milliseconds."""


class SessionLifecycles:
    """Begins and ends sessions, and has their connections."""

    def __init__(
        self,
        context: ServerContext,
        *,
        registry: SessionRegistry,
        quotas: UserQuotas,
        authorization: AuthorizationFlow,
        dispatcher: Dispatcher,
        gate: Gate | None,
    ) -> None:
        """Prepare.

        Args:
            context: Shared objects of the server.
            registry: The sessions.
            quotas: Usage and quotas of users.
            authorization: Publishes Will Messages that are allowed.
            dispatcher: Delivers undelivered messages of an ended session to the other members of its share groups.
            gate: Checks sessions again when its rules change; None allows everything.
        """
        self._context = context
        self.connection_of: dict[Session, ClientConnection] = {}
        """Open connections by session."""
        self.stopping = False
        """True while the server stops: sessions then do not end with their connection, nor publish Will Messages."""
        self.finder: SessionFinder | None = None
        """Finds sessions at other nodes; None for a node that is in no pool."""
        self.keepers = SessionKeepers(bytes_max=context.config.write_buffer_high_bytes)
        """Keep sessions outside of this process."""
        self.fence = SessionFence()
        """Up while another member of the pool may take this node for dead."""
        self._registry = registry
        self._quotas = quotas
        self._authorization = authorization
        self._dispatcher = dispatcher
        self._gate = gate
        self._timer = context.timer
        self._clock = context.clock
        self._pauses = context.pauses
        self._counters = context.counters
        self._refusals = context.refusals
        self._logger = context.logger
        self._ending_overflowed = False
        self._late_wills: deque[tuple[Session, WillMessage]] = deque()
        """Will Messages of overflowed sessions, published after all of these have ended."""
        self._due_wills: dict[str, tuple[Session, WillMessage]] = {}
        """Client Identifier to its Will Message that waits for the next turn of the event loop."""
        self._wills_s = 0.0
        """Time that Will Messages took in this turn."""
        self._wills_turn: asyncio.Handle | None = None
        """Begins the next turn of Will Messages; None when none was published in this one."""

    def attach(self, connection: ClientConnection, terms: Terms, access: Access | None) -> None:
        """Accept a client: resume or take over its session, or begin one; or refuse it after all.

        In a pool, a client whose session is not here waits until the other members have answered: it comes from there,
        or the client may end it. If no client has a user, everybody may, so nobody is asked.
        """
        finder = self.finder
        if finder is not None and finder.is_leaving:
            reason_code, properties = self.farewell(ReasonCode.USE_ANOTHER_SERVER)
            connection.refuse(reason_code, properties=properties)
        elif self._is_fenced_off(terms):
            self._refuse(connection, terms, ReasonCode.SERVER_UNAVAILABLE, reason="this node hears no other member")
        elif finder is None or (terms.clean_start and not self._quotas.has_users):
            self._attach(connection, terms, access)
        elif self._is_over_limit(connection, terms, access):
            return
        elif self._registry.get(terms.client_id) is None:
            user, superuser = ("", False) if access is None else (access.identity.user, access.identity.superuser)
            found = finder.find(terms.client_id, user=user, superuser=superuser, clean=terms.clean_start)
            connection.suspend(found.cancel)
            found.add_done_callback(partial(self._found, connection, terms, access))
        elif terms.clean_start or finder.may_resume:
            self._attach(connection, terms, access)
        else:
            self._refuse(connection, terms, ReasonCode.SERVER_UNAVAILABLE, reason="its session may be elsewhere by now")

    def _found(
        self, connection: ClientConnection, terms: Terms, access: Access | None, found: asyncio.Future[SessionFound]
    ) -> None:
        """Go on with a client once it is known where its session is."""
        if connection.is_closing() or found.cancelled():
            return
        if access is not None and self._gate is not None and not self._gate.admits(access.identity):
            self._refuse(connection, terms, ReasonCode.NOT_AUTHORIZED, reason="its rights have changed")
        elif self._is_fenced_off(terms):
            self._refuse(connection, terms, ReasonCode.SERVER_UNAVAILABLE, reason="this node hears no other member")
        elif found.result() is SessionFound.UNKNOWN and self._registry.get(terms.client_id) is None:
            self._refuse(connection, terms, ReasonCode.SERVER_UNAVAILABLE, reason="its session is not here yet")
        elif found.result() is SessionFound.OF_ANOTHER_USER:
            self._refuse(connection, terms, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, reason="another user's session")
        else:
            if found.result() is SessionFound.LOST:
                terms = replace(terms, properties=replace(terms.properties, reason_string=_LOST))
            self._attach(connection, terms, access)
        connection.resume()

    def _is_fenced_off(self, terms: Terms) -> bool:
        """Return whether a client asks for a durable session that this node may not serve now."""
        if self.finder is None or not self.finder.is_fenced:
            return False
        session = self._registry.get(terms.client_id)
        return terms.session_expiry_s > 0 or (session is not None and session.expiry_s > 0)

    def _refuse(self, connection: ClientConnection, terms: Terms, reason_code: ReasonCode, *, reason: str) -> None:
        self._logger.info("client_refused", client_id=terms.client_id, reason=reason, address=connection.address)
        connection.refuse(reason_code)

    def _attach(self, connection: ClientConnection, terms: Terms, access: Access | None) -> None:
        claim = self._claim(terms.client_id, access)
        if claim is Claim.REFUSED:
            self._logger.warning("client_id_of_another_user", client_id=terms.client_id, address=connection.address)
            connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
            return
        if self._is_over_limit(connection, terms, access):
            return
        former = self._registry.get(terms.client_id)
        session = self._session_to_resume(terms, claim)
        session_present = session is not None
        if session is None:
            session = self._registry.create(terms.client_id, wire=terms.wire)
            if former is not None and claim is Claim.RESUME:
                session.owner_since = former.owner_since
        self._open(connection, session, terms, access, session_present=session_present)

    def _is_over_limit(self, connection: ClientConnection, terms: Terms, access: Access | None) -> bool:
        """Refuse a client that needs more sessions or connections than there may be; nothing else has changed then.

        The session with its Client Identifier, and the connection of that, make room for it as far as they are its
        user's.
        """
        former, user = self._registry.get(terms.client_id), "" if access is None else access.identity.user
        own = former if former is not None and former.user == user else None
        reached = self._quotas.reached_by(
            user, new_session=own is None, new_connection=own is None or own not in self.connection_of
        )
        if reached is not None:
            self._quotas.refuse(reached, user=user, client_id=terms.client_id)
        elif former is None and self._registry.full:
            self._counters.limits_reached[Limit.SESSIONS] += 1
            self._logger.warning("client_refused", reason="sessions_max", address=connection.address)
        else:
            return False
        connection.refuse(ReasonCode.QUOTA_EXCEEDED)
        return True

    def _claim(self, client_id: str, access: Access | None) -> Claim:
        """Decide whether a client may have the session with its Client Identifier; nothing has changed then."""
        session = self._registry.get(client_id)
        if session is None or access is None or session.access is None:
            return Claim.RESUME
        return claim_of(access.identity, session.access.identity)

    def _session_to_resume(self, terms: Terms, claim: Claim) -> Session | None:
        """Return the session that a client continues, without its former connection; None when it begins one."""
        session = self._registry.get(terms.client_id)
        if session is not None and session in self.connection_of:
            self._counters.takeovers += 1
            self.connection_of[session].disconnect(ReasonCode.SESSION_TAKEN_OVER)  # [MQTT-3.1.4-3]
        self._send_due_will(terms.client_id)
        session = self._registry.get(terms.client_id)  # its own Will Message may have made its queue overflow
        if session is not None and (terms.clean_start or claim is Claim.START_CLEAN):
            self._end_session(session)  # [MQTT-3.1.2-4]
            self._send_due_will(terms.client_id)
            return None
        return session

    def _open(
        self,
        connection: ClientConnection,
        session: Session,
        terms: Terms,
        access: Access | None,
        *,
        session_present: bool,
    ) -> None:
        """Join a session and its new connection, and tell the client."""
        self.cancel_deadlines(session)  # no Will Message when it came back in time [MQTT-3.1.3-9]
        self._registry.index.join(session, wire=terms.wire)
        self._registry.set_access(session, access)
        session.will = terms.will
        session.expiry_s = terms.session_expiry_s
        self._registry.limit_age(session)
        self.connection_of[session] = connection
        if self.finder is not None:
            self.finder.began(session.client_id, is_copied=session.outlives_node)
        self._logger.debug(
            "client_connected",
            client_id=session.client_id,
            address=connection.address,
            version=terms.wire.version,
            session_present=session_present,
        )
        connection.open(session, terms, session_present=session_present, keepers=self.keepers)
        self._registry.count(session)

    def detach(self, session: Session) -> None:
        """Detach a session from its connection, which has ended: publish its Will Message, end it or let it expire."""
        address = self.connection_of.pop(session).address
        self._logger.debug("client_gone", client_id=session.client_id, address=address)
        session.disconnect()
        self._registry.count(session)
        self.keepers.note_gone(session.client_id)
        if self.stopping:
            return
        self._free(session.sender.newest_values.take_cleared())
        if session.expiry_s == 0:
            self._end_session(session)
            return
        will_s = None if session.will is None else session.will.delay_s
        self.set_deadlines(session, expiry_s=session.expiry_s, will_s=will_s)

    def set_deadlines(self, session: Session, *, expiry_s: float, will_s: float | None) -> None:
        """Let a session without a connection expire, and its Will Message be published, at its end at the latest.

        Args:
            session: The session.
            expiry_s: Seconds until it ends.
            will_s: Seconds until its Will Message, 0 for now; None when it has none.
        """
        if self.fence.hold_deadlines(session, expiry_s=expiry_s, will_s=will_s):
            return
        session.expiry = self._timer.after(expiry_s, lambda: self._expire(session))  # [MQTT-3.1.2-23]
        if will_s == 0:
            self._publish_will(session)
        elif will_s is not None:
            session.will_deadline = self._timer.after(will_s, lambda: self._expire_will(session))

    def cancel_deadlines(self, session: Session) -> None:
        """Let nothing happen to a session by the time."""
        for deadline in (session.expiry, session.will_deadline):
            if deadline is not None:
                deadline.cancel()
        session.expiry = session.will_deadline = None
        self.fence.forget(session)

    def raise_fence(self) -> int:
        """Serve durable sessions no more, until `lower_fence`: their connections and deadlines end.

        Everything at once: another node may have these sessions from the next moment on.

        Returns:
            The number of connections.
        """
        if self.fence.is_up:
            return 0
        self.fence.is_up = True
        now_s = self._clock.monotonic()
        for session in self._registry:
            expiry, will = session.expiry, session.will_deadline
            if expiry is not None:
                will_s = None if will is None or session.will is None else max(0.0, will.at_s - now_s)
                self.cancel_deadlines(session)
                self.fence.hold_deadlines(session, expiry_s=max(0.0, expiry.at_s - now_s), will_s=will_s)
        reason_code, properties = self.farewell(ReasonCode.SERVER_BUSY)  # 0x88 is of CONNACK only (section 3.14.2.1)
        durable = [connection for session, connection in self.connection_of.items() if session.expiry_s]
        for connection in durable:
            connection.drop_gated()
            connection.disconnect(reason_code, properties=properties)
        return len(durable)

    def lower_fence(self) -> None:
        """Serve durable sessions again: their deadlines go on with what remained, and Will Messages are published."""
        deadlines, wills = self.fence.lower()
        for session, held in deadlines.items():
            if self._registry.get(session.client_id) is session:  # a Will Message may have made its queue overflow
                self.set_deadlines(session, expiry_s=held.expiry_s, will_s=held.will_s)
        for session, will in wills:
            self._send_will(session, will)

    def revoke_lost(self, session: Session) -> int:
        """Remove subscriptions that the rules do not grant (any more); return the number that was checked."""
        access = session.access
        if access is None:
            return 0
        filters = session.topic_filters
        if lost := access.lost(filters):
            self._revoke(session, access, lost)
        return len(filters)

    def end_overflowed(self) -> None:
        """End the sessions whose queue has overflowed.

        Their ends may make other sessions overflow, by Will Messages and by messages of share groups. A nested call
        then returns at once, and the running loop ends those too: the members of an audience overflow all at once, and
        recursion would go as deep. Will Messages come last, so that no session that must end gets them.
        """
        if self._ending_overflowed:
            return
        self._ending_overflowed = True
        try:
            while self._registry.overflowed or self._late_wills:
                if self._registry.overflowed:
                    self._end_overflowed(self._registry.overflowed.popitem()[0])
                else:
                    self._send_will(*self._late_wills.popleft())
        finally:
            self._ending_overflowed = False

    async def check_again(self) -> None:
        """Apply the current rules of the gate to all sessions, after its configuration was replaced.

        A client that is not allowed any more is disconnected (0x87), and its session ends. Other sessions lose the
        subscriptions that are not allowed any more. Cancelling leaves the remaining sessions unchecked.
        """
        gate, checked = self._gate, 0
        if gate is None:
            return
        for session in list(self._registry):
            access = session.access
            if access is None or self._registry.get(session.client_id) is not session:
                continue
            if not gate.admits(access.identity):
                self._expel(session, access)
            else:
                checked += self.revoke_lost(session)
            checked += 1
            if checked >= _CHECKED_MAX:
                checked = 0
                await asyncio.sleep(0)

    async def send_away(self, concerns: Callable[[bytes], bool]) -> int:
        """Disconnect clients that have an affected subscription (0x9C, Use another server).

        Args:
            concerns: Returns True for affected Topic Filters.

        Returns:
            The number of clients.
        """
        sent = checked = 0
        reference = self._context.config.server_reference
        properties = NO_PROPERTIES if reference is None else Properties(server_reference=reference)
        for session, connection in list(self.connection_of.items()):
            filters = [*session.subscriptions, *(topic_filter for _, topic_filter in session.shared)]
            if self.connection_of.get(session) is connection and any(map(concerns, filters)):
                connection.disconnect(ReasonCode.USE_ANOTHER_SERVER, properties=properties)
                sent += 1
                checked += 1
            checked += len(filters)
            if checked >= _CHECKED_MAX:
                checked = 0
                await asyncio.sleep(0)
        return sent

    def kick(
        self, client_id: str, *, clean: bool = False, reason_code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION
    ) -> Kicked | None:
        """End the Network Connection of a client; its session stays, as after a lost connection.

        Args:
            client_id: Its Client Identifier.
            clean: True to end the session too, also of a client that is not connected.
            reason_code: Reason Code of the DISCONNECT.

        Returns:
            Its outcome; None when the client has no session.
        """
        session = self._registry.get(client_id)
        if session is None:
            return None
        was_connected = session in self.connection_of
        if was_connected or clean:
            self._logger.info(
                "client_kicked", client_id=client_id, user=session.user, connected=was_connected, clean=clean
            )
        if clean:
            self._end_client(session, reason_code)
        elif was_connected:
            self.connection_of[session].disconnect(reason_code)
        return Kicked(was_connected=was_connected, session_ended=self._registry.get(client_id) is not session)

    def end_taken_over(self, client_id: str) -> None:
        """End the session of a client, and its connection (0x8E), because it began a session elsewhere."""
        session = self._registry.get(client_id)
        if session is not None:
            if self.fence.is_up:
                session.will = None  # it is that of the node at which the client is, or which has the session
            self._counters.takeovers += session in self.connection_of
            self._end_client(session, ReasonCode.SESSION_TAKEN_OVER)

    def note_subscriptions(self, session: Session) -> None:
        """Note that subscriptions of a session have changed."""
        self.keepers.note(session.client_id, subscriptions=True)

    def redeliver(self, messages: list[tuple[ShareGroup, Update]]) -> None:
        """Deliver messages of shared subscriptions that a session has left, to the other members of its groups."""
        if messages:
            self._dispatcher.redeliver(messages, now_ns=self._clock.now_ns())
            self.end_overflowed()

    def farewell(self, reason_code: ReasonCode) -> tuple[ReasonCode, Properties]:
        """Return Reason Code and properties of a DISCONNECT: with the Server Reference, if one is configured."""
        reference = self._context.config.server_reference
        if reference is None:
            return reason_code, NO_PROPERTIES
        return ReasonCode.USE_ANOTHER_SERVER, Properties(server_reference=reference)

    def free_queue(self, session: Session) -> None:
        """Free the queue of a session that has ended, some batches in each turn of the event loop."""
        queue = session.sender.queue
        if queue.free(_FREED_MAX):
            asyncio.get_running_loop().call_soon(self.free_queue, session)

    # Its own.

    def _free(self, cleared: list[dict[bytes, Message]]) -> None:
        """Free the newest values of a client that has left, some thousand messages in each turn of the event loop."""
        left = _FREED_MAX
        while cleared:
            messages = cleared[-1]
            for _ in range(min(left, len(messages))):
                messages.popitem()
                left -= 1
            if messages:
                asyncio.get_running_loop().call_soon(self._free, cleared)
                return
            cleared.pop()

    def _end_overflowed(self, session: Session) -> None:
        queue = session.sender.queue
        self._counters.sessions_overflowed += 1
        self._logger.warning(
            "session_queue_overflowed",
            client_id=session.client_id,
            connected=session in self.connection_of,
            messages=queue.messages,
            bytes=queue.bytes,
        )
        self._end_client(session, ReasonCode.QUOTA_EXCEEDED)

    def _expel(self, session: Session, access: Access) -> None:
        self._logger.warning("client_expelled", client_id=session.client_id, user=access.identity.user)
        self._end_client(session, ReasonCode.NOT_AUTHORIZED)

    def _end_client(self, session: Session, reason_code: ReasonCode) -> None:
        """End a session, and its connection if there is one."""
        connection = self.connection_of.get(session)
        if connection is None:
            self._end_session(session)
            return
        session.expiry_s = 0
        connection.disconnect(reason_code)

    def _revoke(self, session: Session, access: Access, lost: list[bytes]) -> None:
        self._logger.warning(
            "subscriptions_revoked",
            client_id=session.client_id,
            user=access.identity.user,
            subscriptions=len(lost),
            filter=lost[0].decode(),
        )
        self._registry.unsubscribe(session, Unsubscribe(0, tuple(lost)))
        self.note_subscriptions(session)

    def _expire(self, session: Session) -> None:
        self._pauses.check()
        if not self.fence.is_up:  # else its deadlines stand still since now
            self._end_session(session)

    def _expire_will(self, session: Session) -> None:
        self._pauses.check()
        if not self.fence.is_up:
            self._publish_will(session)

    def _end_session(self, session: Session) -> None:
        self.cancel_deadlines(session)
        self.redeliver(self._registry.end(session))
        self.free_queue(session)
        self._publish_will(session)  # however long its Will Delay Interval still runs [MQTT-3.1.3-9]
        self.keepers.note(session.client_id)

    def _publish_will(self, session: Session) -> None:
        will, session.will = session.will, None
        if will is None:
            return
        self.keepers.note(session.client_id)
        if self.fence.hold_will(session, will):
            return
        if self._ending_overflowed:
            self._late_wills.append((session, will))
        else:
            self._send_due_will(session.client_id)
            self._due_wills[session.client_id] = session, will
            if self._wills_turn is None:
                self._wills_turn = asyncio.get_running_loop().call_soon(self._begin_wills_turn)
            self._send_due_wills()

    def _begin_wills_turn(self) -> None:
        self._wills_turn = None
        self._wills_s = 0.0
        if self._due_wills:
            self._wills_turn = asyncio.get_running_loop().call_soon(self._begin_wills_turn)
            self._send_due_wills()

    @property
    def has_due_wills(self) -> bool:
        """True if Will Messages wait for the next turn of the event loop."""
        return bool(self._due_wills)

    def _send_due_wills(self) -> None:
        """Publish the Will Messages that are due, as far as the time of this turn goes."""
        while self._due_wills and self._wills_s < _WILLS_S:
            begun_s = time.perf_counter()
            self._send_due_will(next(iter(self._due_wills)))
            self._wills_s += time.perf_counter() - begun_s

    def _send_due_will(self, client_id: str) -> None:
        """Publish the Will Message of a client that is due: always before anything of its next connection."""
        session, will = self._due_wills.pop(client_id, (None, None))
        if session is not None and will is not None and not self.fence.hold_will(session, will):
            self._send_will(session, will)

    def _send_will(self, session: Session, will: WillMessage) -> None:
        self._counters.wills += 1
        (verdict,) = self._authorization.publish(session, [will.row])
        user = None if session.access is None else session.access.identity.user
        self._refusals.watch(will.row, verdict, client_id=session.client_id, user=user)
