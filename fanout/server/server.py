"""The server that local clients talk to: it joins listeners, connections, sessions and dispatch.

Owns the tasks of its parts, when sessions and Will Messages are due, and which connection a
session has. What the specification demands of one packet is decided in the core modules; what becomes of a
published message, by the node behind `Ingress`.

Sessions live in memory: a restart ends them. A shutdown publishes no Will Message, which the specification
allows to be put off until the next start (MQTT 5, section 3.1.2.5).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from typing import Final

from fanout.access.authorization import Access
from fanout.access.gate import Gate
from fanout.config import ServerConfig
from fanout.mqtt.decoder import Decoder, PublishRow
from fanout.mqtt.packets import Connect, Unsubscribe
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Update
from fanout.server.admission import Admission, Claim, claim_of
from fanout.server.audiences import NO_ROUTES
from fanout.server.collaborators import Clock, Ingress, Logger, PublishVerdict, RetainedStore
from fanout.server.connection import ClientConnection
from fanout.server.counters import Counters, DropReason, EntryFault, Limit, ServerStats
from fanout.server.deadlines import Deadline
from fanout.server.dispatch import Dispatcher
from fanout.server.doorman import Doorman, Doorway
from fanout.server.handshake import Terms, random_client_id, terms_for
from fanout.server.listeners import Listeners
from fanout.server.pacing import Pacer
from fanout.server.payload_format import breaks_payload_format
from fanout.server.peers import Peer
from fanout.server.places import Place, Places
from fanout.server.registry import SessionRegistry
from fanout.server.sessions import Session
from fanout.server.timer import Timer
from fanout.server.websocket import WebSocket

__all__ = ["Server"]

_READ_BYTES = 256 * 1024
_CHECKED_MAX: Final = 256
"""Sessions and subscriptions that are checked again in one turn of the event loop."""
_SETTLE_POLL_S: Final = 0.02
"""Pause between looks for clients that have got everything, when the server stops."""


class Server:
    """An MQTT server, for MQTT 5 and 3.1.1, over values that somebody else keeps."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        node_id: str,
        store: RetainedStore,
        ingress: Ingress,
        clock: Clock,
        logger: Logger,
        known_topics: Container[bytes] = (),
        assign_client_id: Callable[[], str] = random_client_id,
        gate: Gate | None = None,
        doorman: Doorman | None = None,
        subscribed: Callable[[Sequence[bytes]], None] | None = None,
        retain_available: bool = True,
    ) -> None:
        """Make a server; `start` opens its listeners.

        Args:
            config: Addresses and limits.
            node_id: This node's identifier.
            store: The retained values that clients read.
            ingress: Takes what clients publish.
            clock: Gives the time.
            logger: Takes log lines.
            known_topics: Topic Names that are known to be valid, such as the keys of a replica.
            assign_client_id: Makes Client Identifiers for clients that send none.
            gate: Decides who may connect, read and write; None lets everybody do everything.
            doorman: Decides which process serves a client; None when there is only this one.
            subscribed: Told of the Topic Filters of each SUBSCRIBE that were granted, `$share` forms left out.
            retain_available: Whether clients may publish retained messages.
        """
        self.config = config
        """Addresses and limits."""
        self.clock = clock
        """Gives the time."""
        self.logger = logger
        """Takes log lines."""
        self.ingress = ingress
        """Takes what clients publish."""
        self.subscribed = subscribed
        """Told of Topic Filters that were granted."""
        self.retain_available = retain_available
        """Whether clients may publish retained messages."""
        self.counters = Counters()
        """What is counted."""
        self.registry = SessionRegistry(config=config, store=store, counters=self.counters)
        """The sessions."""
        self.admission = Admission(
            gate,
            subscriptions_max=config.subscriptions_max,
            ingress=ingress,
            clock=clock,
            counters=self.counters,
            logger=logger,
        )
        """Asks the gate."""
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        """What every connection reads into."""
        self.pacer: Pacer
        """Gives turns to connections with much to send; there from `start` on."""
        self._gate = gate
        self._doorman = doorman
        self._node_id = node_id
        self._known_topics = known_topics
        self._assign_client_id = assign_client_id
        self._dispatcher = Dispatcher(self.registry.index, counters=self.counters)
        self._places = Places(config, counters=self.counters, now_s=clock.monotonic())
        self._connections: dict[ClientConnection, None] = {}
        self._connection_of: dict[Session, ClientConnection] = {}
        self._timer = Timer(clock)
        self._loop: asyncio.AbstractEventLoop
        self._listeners = Listeners()
        self._stopping = False
        self._publishers_held = False
        self._waiting_publishers: list[ClientConnection] = []
        self._all_gone = asyncio.Event()

    async def start(self, sockets: Sequence[Sequence[socket.socket]] | None = None) -> None:
        """Open the listeners.

        Args:
            sockets: What each of them listens on already, because another process has opened it; None opens them.

        Raises:
            ListenError: An address cannot be bound, or a certificate cannot be used; no listener is open then.
        """
        self._loop = asyncio.get_running_loop()
        self.pacer = Pacer(loop=self._loop, monotonic=self.clock.monotonic)
        if sockets is None:
            await self._listeners.open(self.config.listeners, self)
        else:
            await self._listeners.serve(self.config.listeners, sockets, self)

    async def stop(self, *, deadline_s: float = 5.0) -> None:
        """Close the listeners and every connection: each once nothing is under way on it, or at the deadline.

        Args:
            deadline_s: How long messages and their answers may be under way, and then, how long clients may take to
                read what was written to them, in seconds.
        """
        self._stopping = True
        self._listeners.close()
        reason_code, properties = self._farewell(ReasonCode.SERVER_SHUTTING_DOWN)
        until_s = self._loop.time() + deadline_s
        while waiting := [one for one in self._connections if one.session is not None]:
            in_time = self._loop.time() < until_s
            for connection in waiting:
                session = connection.session
                if session is not None and (session.settled or not in_time):
                    connection.disconnect(reason_code, properties=properties)
            if in_time and any(one.session is not None for one in waiting):
                await asyncio.sleep(_SETTLE_POLL_S)
        for connection in list(self._connections):
            connection.disconnect(reason_code, properties=properties)
        try:
            async with asyncio.timeout(deadline_s):
                await self._wait_all_gone()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._wait_all_gone()
        await self.admission.close()
        self.pacer.close()
        self._timer.close()

    @property
    def addresses(self) -> list[str]:
        """Where the server listens, with the real ports."""
        return self._listeners.addresses

    def reload_certificates(self) -> None:
        """Read the files for TLS again; new connections get what they say now, open ones stay as they are."""
        errors = self._listeners.reload()
        for error in errors:
            self.logger.error("certificates_not_reloaded", reason=error.message, hint=error.hint)
        if not errors:
            self.logger.info("certificates_reloaded")

    @property
    def connections(self) -> Collection[ClientConnection]:
        """The Network Connections that are open."""
        return self._connections.keys()

    @property
    def connection_count(self) -> int:
        """How many Network Connections there are, those before CONNECT included; as `stats` says it, at no cost."""
        return len(self._places)

    @property
    def conflated_topics_max(self) -> int:
        """How many newest values wait for the slowest client; those of the others are mostly the same objects."""
        return max((len(session.sending.conflation) for session in self.registry), default=0)

    def dispatch(self, updates: list[Update], *, origin: str | None = None) -> int:
        """Deliver a batch of updates to every session with a matching subscription.

        Args:
            updates: In order; what is retained of them is in the store already.
            origin: Client Identifier of the local client that published all of them, for No Local; None when
                they came from elsewhere.

        Returns:
            How many messages were handed to sessions or queued for them, counting each session.
        """
        session = self.registry.get(origin) if origin is not None else None
        handed = self._dispatcher.dispatch(updates, now_ns=self.clock.now_ns(), origin=session)
        if self.registry.overflowed:
            self._end_overflowed()
        return handed

    def stats(self) -> ServerStats:
        """Return the server's figures at this moment."""
        counters = self.counters
        sessions = list(self.registry)
        return ServerStats(
            connections=self.connection_count,
            sessions=len(sessions),
            subscriptions=sum(len(session.subscriptions) + len(session.shared) for session in sessions),
            audiences=self.registry.index.count,
            queued_messages=sum(session.sending.queue.messages for session in sessions),
            queued_bytes=sum(session.sending.queue.bytes for session in sessions),
            conflated_topics=sum(len(session.sending.conflation) for session in sessions),
            in_flight_messages=sum(session.sending.in_flight for session in sessions),
            deliveries_total=counters.deliveries,
            sent_bytes_total=counters.sent_bytes,
            received_total=counters.received,
            received_bytes_total=counters.received_bytes,
            connections_opened_total=counters.connections_opened,
            connections_refused_total=counters.connections_refused,
            takeovers_total=counters.takeovers,
            keep_alive_timeouts_total=counters.keep_alive_timeouts,
            protocol_errors_total=counters.protocol_errors,
            wills_total=counters.wills,
            conflated_total=counters.conflated,
            sessions_overflowed_total=counters.sessions_overflowed,
            dropped_total={reason.value: count for reason, count in counters.dropped.items()},
            limits_reached_total={limit.value: count for limit, count in counters.limits.items()},
            entry_faults_total={fault.value: count for fault, count in counters.entry_faults.items()},
            ended_total={code.name.lower(): count for code, count in counters.ended.items()},
        )

    async def check_again(self) -> None:
        """Let what the gate decides now hold for all sessions: called when its configuration was replaced.

        A client that would not be let in any more is disconnected (0x87), and its session ends; other sessions lose
        the subscriptions that the rules do not grant any more. Cancelling leaves the rest as it is.
        """
        gate, checked = self._gate, 0
        if gate is None:
            return
        for session in list(self.registry):
            access = session.access
            if access is None or self.registry.get(session.client_id) is not session:
                continue
            if not gate.admits(access.identity):
                self._expel(session, access)
            else:
                filters = session.topic_filters
                checked += len(filters)
                if lost := access.lost(filters):
                    self._take_away(session, access, lost)
            checked += 1
            if checked >= _CHECKED_MAX:
                checked = 0
                await asyncio.sleep(0)

    async def send_away(self, concerns: Callable[[bytes], bool]) -> int:
        """Disconnect clients that have a subscription of a kind (0x9C, Use another server).

        Args:
            concerns: Says whether a Topic Filter is of that kind.

        Returns:
            How many clients that were.
        """
        sent = checked = 0
        reference = self.config.server_reference
        properties = NO_PROPERTIES if reference is None else Properties(server_reference=reference)
        for session, connection in list(self._connection_of.items()):
            filters = [*session.subscriptions, *(topic_filter for _, topic_filter in session.shared)]
            if self._connection_of.get(session) is connection and any(map(concerns, filters)):
                connection.disconnect(ReasonCode.USE_ANOTHER_SERVER, properties=properties)
                sent += 1
                checked += 1
            checked += len(filters)
            if checked >= _CHECKED_MAX:
                checked = 0
                await asyncio.sleep(0)
        return sent

    def run_due(self) -> None:
        """Do what is due by the clock; for tests that set it."""
        self._timer.run_due()

    # For connections.

    @property
    def entry_timeout_s(self) -> float:
        """How long a connection may take until its CONNECT is there, PROXY header and TLS handshake included."""
        return self.config.connect_timeout_s

    def arrive(self, host: str, *, address: str, accepted_here: bool = True) -> Place | None:
        """Give a new connection a place; None when it is refused; see `fanout.server.entry.Reception`.

        Args:
            host: From where it comes.
            address: The same with the port, for the log.
            accepted_here: Whether it is to be counted as opened; not when another process has accepted it.
        """
        self.counters.connections_opened += accepted_here
        if self._stopping:
            self.turn_away("stopping", address=address)
            return None
        place = self._places.take(host, now_s=self.clock.monotonic())
        if isinstance(place, Limit):
            self.turn_away(place.value, address=address)
            return None
        return place

    def name_place(self, place: Place, host: str, *, address: str) -> bool:
        """Note from where a connection comes; return False when it is refused for that."""
        reached = self._places.name(place, host)
        if reached is not None:
            self.turn_away(reached.value, address=address)
        return reached is None

    def leave(self, place: Place) -> None:
        """Free the place of a connection that is gone."""
        self._places.give_back(place)

    def turn_away(
        self,
        reason: str,
        *,
        address: str,
        why: EntryFault | Limit | None = None,
        left: bool = False,
        **more: object,
    ) -> None:
        """Count and log a connection that ended before anything of MQTT was spoken on it."""
        counters = self.counters
        counters.connections_refused += 1
        if isinstance(why, EntryFault):
            counters.entry_faults[why] += 1
        elif why is not None:
            counters.limits[why] += 1
        log = self.logger.debug if left else self.logger.warning
        log("connection_refused", reason=reason, address=address, **more)

    def new_protocol(self, peer: Peer, place: Place, *, websocket: bool) -> asyncio.BufferedProtocol:
        """Make what serves a connection."""
        connection: ClientConnection | Doorway
        if self._doorman is not None:
            connection = self._doorman.meet(peer, place, websocket=websocket)
        else:
            connection = ClientConnection(self, peer, place)
        if not websocket:
            return connection
        return WebSocket(
            connection,
            read_buffer=self.read_buffer,
            packet_bytes_max=self.config.packet_bytes_max,
            origins=self.config.websocket_origins,
        )

    def admit(self, connection: ClientConnection) -> None:
        """Note a new connection."""
        self._connections[connection] = None

    def forget(self, connection: ClientConnection) -> None:
        """Note that a connection is gone."""
        del self._connections[connection]
        self._places.give_back(connection.place)
        if not self._connections:
            self._all_gone.set()

    def new_decoder(self) -> Decoder:
        """Make the decoder of a new connection."""
        return Decoder(
            version=None,
            packet_bytes_max=self.config.packet_bytes_max,
            topic_alias_max=self.config.topic_alias_max,
            known_topics=self._known_topics,
            role="server",
        )

    def after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Do `action` in `seconds`, by the server's clock."""
        return self._timer.after(seconds, action)

    def open_session(self, connection: ClientConnection, packet: Connect) -> None:
        """Carry out a CONNECT: accept or refuse, take over, resume or begin the session."""
        if connection.place.over_rate:
            self.logger.warning("connection_refused", reason="connection_rate_max", address=connection.address)
            connection.refuse(ReasonCode.CONNECTION_RATE_EXCEEDED)
            return
        terms = terms_for(
            packet,
            config=self.config,
            node_id=self._node_id,
            assign_client_id=self._assign_client_id,
            retain_available=self.retain_available,
        )
        if isinstance(terms, ReasonCode):
            connection.refuse(terms)
            return
        self.admission.connect(connection, packet, terms, then=partial(self._let_in, connection, terms))

    def _let_in(self, connection: ClientConnection, terms: Terms, access: Access | None) -> None:
        session = self.registry.get(terms.client_id)
        claim = claim_of(access, session) if session is not None else Claim.RESUME
        if claim is Claim.REFUSED:
            self.logger.warning("client_id_of_another_user", client_id=terms.client_id, address=connection.address)
            connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
            return
        if session is not None and session in self._connection_of:
            self.counters.takeovers += 1
            self._connection_of[session].disconnect(ReasonCode.SESSION_TAKEN_OVER)  # [MQTT-3.1.4-3]
            session = self.registry.get(terms.client_id)
        if session is not None and (terms.clean_start or claim is Claim.START_CLEAN):
            self._end_session(session)  # [MQTT-3.1.2-4]
            session = None
        session_present = session is not None
        if session is None:
            if self.registry.full:
                self.counters.limits[Limit.SESSIONS] += 1
                self.logger.warning("client_refused", reason="sessions_max", address=connection.address)
                connection.refuse(ReasonCode.QUOTA_EXCEEDED)
                return
            session = self.registry.create(terms.client_id, wire=terms.wire)
        self._cancel_deadlines(session)  # no Will Message when it came back in time [MQTT-3.1.3-9]
        self.registry.index.join(session, wire=terms.wire)
        session.access = access
        session.will = terms.will
        session.expiry_s = terms.session_expiry_s
        self._connection_of[session] = connection
        self.logger.debug(
            "client_connected",
            client_id=session.client_id,
            address=connection.address,
            version=terms.wire.version,
            session_present=session_present,
        )
        connection.open(session, terms, session_present=session_present)

    def leave_session(self, session: Session) -> None:
        """Carry out the end of a session's connection: Will Message, and the session's end or its expiry."""
        address = self._connection_of.pop(session).address
        self.logger.debug("client_gone", client_id=session.client_id, address=address)
        session.disconnect()
        if self._stopping:
            return
        if session.expiry_s == 0:
            self._end_session(session)
            return
        session.expiry = self.after(session.expiry_s, lambda: self._end_session(session))  # [MQTT-3.1.2-23]
        if session.will is None:
            return
        if session.will.delay_s == 0:
            self._publish_will(session)
        elif session.will.delay_s < session.expiry_s:  # else the session's end comes first [MQTT-3.1.3-9]
            session.will_deadline = self.after(session.will.delay_s, lambda: self._publish_will(session))

    def publish(
        self, session: Session, rows: list[PublishRow], *, connection: ClientConnection
    ) -> list[PublishVerdict]:
        """Hand what a client may publish to the node, and return one verdict for each of `rows`.

        A payload that is not in the format it claims does not get there. MQTT 5 tells a client that nobody has
        subscribed to what it published (0x10), which costs one look into the route cache for each message.
        """
        bad = {index for index, row in enumerate(rows) if row[4] and breaks_payload_format(row)}
        if bad:
            good = [row for index, row in enumerate(rows) if index not in bad]
            taken = iter(self.admission.publish(session, good, connection=connection) if good else ())
            invalid = ReasonCode.PAYLOAD_FORMAT_INVALID
            verdicts = [invalid if index in bad else next(taken) for index in range(len(rows))]
        else:
            verdicts = list(self.admission.publish(session, rows, connection=connection))
        if session.wire.version == 5:
            routes, success = self.registry.index.routes, ReasonCode.SUCCESS
            for index, row in enumerate(rows):
                if row[2] & 0x06 and verdicts[index] is success and routes(row[0]) is NO_ROUTES:
                    verdicts[index] = ReasonCode.NO_MATCHING_SUBSCRIBERS
        if self._publishers_held and not connection.is_held:
            connection.hold()
            self._waiting_publishers.append(connection)
        return verdicts

    def hold_publishers(self, held: bool) -> None:
        """Let clients that publish wait, each from its next messages on, until called with False."""
        self._publishers_held = held
        if not held:
            waiting, self._waiting_publishers = self._waiting_publishers, []
            for connection in waiting:
                connection.release()

    def verdict_came(self, session: Session) -> None:
        """Note that a verdict on a message of `session` came later; its connection may be another one by now."""
        connection = self._connection_of.get(session)
        if connection is not None:
            connection.send_acks()

    # Its own.

    def _farewell(self, reason_code: ReasonCode) -> tuple[ReasonCode, Properties]:
        """Return what clients are told that have to leave: where to go, if the configuration knows it."""
        reference = self.config.server_reference
        if reference is None:
            return reason_code, NO_PROPERTIES
        return ReasonCode.USE_ANOTHER_SERVER, Properties(server_reference=reference)

    def _expel(self, session: Session, access: Access) -> None:
        self.logger.warning("client_expelled", client_id=session.client_id, user=access.identity.user)
        self._end_client(session, ReasonCode.NOT_AUTHORIZED)

    def _end_overflowed(self) -> None:
        while self.registry.overflowed:
            session, _ = self.registry.overflowed.popitem()
            queue = session.sending.queue
            self.counters.sessions_overflowed += 1
            self.logger.warning(
                "session_queue_overflowed",
                client_id=session.client_id,
                connected=session in self._connection_of,
                messages=queue.messages,
                bytes=queue.bytes,
            )
            self._end_client(session, ReasonCode.QUOTA_EXCEEDED)

    def _end_client(self, session: Session, reason_code: ReasonCode) -> None:
        """End a session, and its connection if there is one."""
        connection = self._connection_of.get(session)
        if connection is None:
            self._end_session(session)
            return
        session.expiry_s = 0
        connection.disconnect(reason_code)

    def _take_away(self, session: Session, access: Access, lost: list[bytes]) -> None:
        self.logger.warning(
            "subscriptions_revoked",
            client_id=session.client_id,
            user=access.identity.user,
            subscriptions=len(lost),
            filter=lost[0].decode(),
        )
        self.registry.unsubscribe(session, Unsubscribe(0, tuple(lost)))

    def _end_session(self, session: Session) -> None:
        self._cancel_deadlines(session)
        left = self.registry.end(session)
        if left:
            self._dispatcher.redeliver(left, now_ns=self.clock.now_ns())
            self._end_overflowed()
        self._publish_will(session)

    def _publish_will(self, session: Session) -> None:
        will, session.will = session.will, None
        if will is None:
            return
        self.counters.wills += 1
        (verdict,) = self.admission.publish(session, [will.row])
        if isinstance(verdict, int) and verdict.is_failure:
            self.counters.dropped[DropReason.REFUSED] += 1

    def _cancel_deadlines(self, session: Session) -> None:
        for deadline in (session.expiry, session.will_deadline):
            if deadline is not None:
                deadline.cancel()
        session.expiry = session.will_deadline = None

    async def _wait_all_gone(self) -> None:
        while self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()
