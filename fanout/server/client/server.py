"""MQTT server for local clients: it joins listeners, connections, sessions and dispatch.

Owns its parts, their order of start and stop, and the set of connections. `packet_handlers` handles packets;
`session_lifecycle` begins and ends sessions.

Sessions are in memory; `moves` takes them out when the server has stopped, and puts them in before it starts. A
shutdown publishes no Will Messages, which the specification allows to be put off until the next start (MQTT 5, section
3.1.2.5).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from typing import Any, Final

from fanout.access.gate import Gate
from fanout.chain.stamp import StampCount
from fanout.config import Address, ListenerConfig, PoolConfig, ServerConfig
from fanout.mqtt.decoder import CONNECT_BYTES_MAX, Decoder, Item
from fanout.mqtt.packets import Connect
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.history import HistoryBatch
from fanout.replica.recent import RecentUpdates
from fanout.replica.update import Update
from fanout.runtime.slices import Slices
from fanout.runtime.turnstile import Turnstile
from fanout.server.accept.early_bytes import EarlyBytes
from fanout.server.accept.listeners import Listeners
from fanout.server.accept.peers import Peer
from fanout.server.accept.slots import ConnectionSlot, ConnectionSlots
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import Counters, EntryFault, Limit
from fanout.server.base.pacing import Pacer
from fanout.server.base.pauses import Pauses
from fanout.server.base.ports import Clock, Ingress, Logger, RetainedStore
from fanout.server.base.refusals import Refusals
from fanout.server.base.timer import Timer
from fanout.server.client.authorization_flow import AuthorizationFlow
from fanout.server.client.client_list import ClientPage, ClientQuery, list_clients
from fanout.server.client.connack import random_client_id, terms_for
from fanout.server.client.connection import ClientConnection
from fanout.server.client.packet_handlers import PacketHandlers
from fanout.server.client.session_lifecycle import SessionLifecycles
from fanout.server.client.slow_clients import LOOK_S, SlowClients
from fanout.server.routing.dispatch import Dispatcher
from fanout.server.routing.observer import OBSERVED, Observer
from fanout.server.routing.subscribers import SessionState
from fanout.server.session.registry import SessionRegistry
from fanout.server.session.session import Session
from fanout.server.session.user_quotas import UserQuotas

__all__ = ["Server"]

_READ_BYTES = 256 * 1024
_STRANGERS_S: Final = 0.001
"""Time of a turn of the event loop that CONNECTs and TLS handshakes take."""
_CONNECT_S: Final = 0.0003
"""Time that a CONNECT counts for at least: its user is verified by a task."""
_WORK_MAX: Final = 16 * 1024
"""Limit of decoding work for one client in one turn of the event loop, see `Decoder`: 256 packets of the smallest
kinds, which take some milliseconds. One read may hold 131,072 PINGREQs, which would take most of a second."""
_IDLE_POLL_S: Final = 0.02
"""Pause between checks for idle sessions when the server stops."""


class Server:
    """Server for MQTT 5 and 3.1.1, over a store of retained values."""

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
        subscribed: Callable[[Sequence[bytes]], None] | None = None,
        retain_available: bool = True,
        stamps: StampCount | None = None,
        pool: PoolConfig | None = None,
        amqp: Callable[[Server, Peer, ConnectionSlot], asyncio.BufferedProtocol] | None = None,
    ) -> None:
        """Make a server; `start` opens its listeners.

        Args:
            config: Addresses and limits.
            node_id: This node's identifier.
            store: The retained values that clients read.
            ingress: Receives the messages that clients publish.
            clock: The clock.
            logger: The log.
            known_topics: Topic Names that are known to be valid, such as the keys of a replica.
            assign_client_id: Makes Client Identifiers for clients that send none.
            gate: Decides who may connect, read and write; None allows everything.
            subscribed: Called with the granted Topic Filters of each SUBSCRIBE, shared subscriptions left out.
            retain_available: True when clients may publish retained messages.
            stamps: Count of all updates that are served here, for the links of other nodes; None when there is none.
            pool: The pool whose members on this machine share ports; None without one.
            amqp: Makes the protocol of a connection to a listener for AMQP; None without such a listener.
        """
        self.pauses = Pauses(clock)
        """Tells of times in which the process did not run."""
        counters = Counters()
        self.context = context = ServerContext(
            config=config,
            clock=clock,
            counters=counters,
            logger=logger,
            refusals=Refusals(counters, logger),
            timer=Timer(clock),
            pacer=Pacer(clock, self.pauses),
            pauses=self.pauses,
            turnstile=Turnstile(slice_s=_STRANGERS_S, processor_s=time.thread_time),
            read_buffer=memoryview(bytearray(_READ_BYTES)),
        )
        """Shared objects of its parts."""
        self.config = config
        """Addresses and limits."""
        self.logger = logger
        """The log."""
        self.counters = counters
        """Totals of this server."""
        self.quotas = UserQuotas(context, gate=gate)
        """Usage and quotas of users."""
        self.registry = SessionRegistry(config=config, store=store, counters=counters, quotas=self.quotas)
        """The sessions."""
        self.recent: RecentUpdates | None = None
        """Told of all that is dispatched, so that copies of sessions name places in it; None without copies."""
        self._clock = clock
        self._node_id = node_id
        self._stamps = stamps
        self._amqp = amqp
        self._retain_available = retain_available
        self._known_topics = known_topics
        self._assign_client_id = assign_client_id
        self._watchers: tuple[Callable[[list[Update]], None], ...] = ()
        self._dispatcher = Dispatcher(self.registry.index, counters=counters)
        self._slots = ConnectionSlots(config, counters=counters, now_s=clock.monotonic())
        self._early_bytes: EarlyBytes[ClientConnection] = EarlyBytes(config)
        self._connections: dict[ClientConnection, None] = {}
        self._listeners = Listeners()
        self._shared_listeners = Listeners(pool)
        self._all_gone = asyncio.Event()
        self.slow_clients = SlowClients(context)
        """Clients that read slowly."""
        self._authorization = authorization = AuthorizationFlow(context, gate=gate, ingress=ingress)
        self.lifecycles = SessionLifecycles(
            context,
            registry=self.registry,
            quotas=self.quotas,
            authorization=authorization,
            dispatcher=self._dispatcher,
            gate=gate,
        )
        """Begins and ends sessions."""
        self.gate = gate
        """Decides whether a client may connect; None without access control."""
        self._packet_handlers = PacketHandlers(
            context,
            registry=self.registry,
            authorization=authorization,
            lifecycles=self.lifecycles,
            subscribed=subscribed,
            retain_available=retain_available,
        )
        self.receive: Callable[[ClientConnection, Session, Item], None] = self._packet_handlers.receive
        """Handles the packets of accepted clients; bound here because each read calls it."""

    async def start(self) -> None:
        """Open the listeners; those at shared ports wait for `share_ports`.

        Raises:
            ListenError: An address cannot be bound, or a certificate cannot be used; no listener is open then.
        """
        await self._shared_listeners.check(self.shared_ports)
        await self._listeners.open(_own_ports(self.config), self)
        self._look_for_slow_clients()

    @property
    def shared_ports(self) -> Sequence[ListenerConfig]:
        """Listeners at ports that members of a pool share; see `share_ports`."""
        return [one for one in self.config.listeners if one.share_port]

    async def share_ports(self) -> None:
        """Listen at the shared ports too, beside the other members of the pool.

        Raises:
            ListenError: A port cannot be bound, or a stranger has it; none is open then.
        """
        await self._shared_listeners.open(self.shared_ports, self)
        if self.lifecycles.stopping:  # while the addresses were looked up
            self.leave_shared_ports()

    def leave_shared_ports(self) -> None:
        """Stop listening at the shared ports; connections stay open."""
        self._shared_listeners.close()

    async def stop(self, *, deadline_s: float = 5.0) -> None:
        """Close the listeners and every connection: each when its session is idle, or at the deadline.

        Args:
            deadline_s: Limit in seconds for sessions to become idle, and again for clients to read the last bytes.
        """
        self.lifecycles.stopping = True
        self._listeners.close()
        self._shared_listeners.close()
        reason_code, properties = self.lifecycles.farewell(ReasonCode.SERVER_SHUTTING_DOWN)
        until_s = asyncio.get_running_loop().time() + deadline_s
        while waiting := [one for one in self._connections if one.session is not None]:
            in_time = asyncio.get_running_loop().time() < until_s
            for connection in waiting:
                session = connection.session
                if session is not None and (session.is_idle or not in_time):
                    connection.disconnect(reason_code, properties=properties)
            if in_time and any(one.session is not None for one in waiting):
                await asyncio.sleep(_IDLE_POLL_S)
        for connection in list(self._connections):
            connection.disconnect(reason_code, properties=properties)
        try:
            async with asyncio.timeout(deadline_s):
                await self._wait_all_gone()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._wait_all_gone()
        while self.lifecycles.has_due_wills:  # noqa: ASYNC110  # each turn publishes some
            await asyncio.sleep(0)
        await self._authorization.close()
        self.context.turnstile.close()
        self.context.pacer.close()
        self.context.timer.close()

    @property
    def addresses(self) -> list[str]:
        """Addresses on which the server listens, with the real ports, and those that it shares."""
        return [*self._listeners.addresses, *(str(one.address) for one in self.shared_ports)]

    async def change(self, config: ServerConfig) -> None:
        """Take other listeners and limits; connections and sessions stay, with the limits that they began with.

        Raises:
            ListenError: An address cannot be bound, or a certificate cannot be used; nothing has changed.
        """
        own_ports = _own_ports(config)
        if own_ports != _own_ports(self.config):
            await self._listeners.change(own_ports, self)
        self.config = self.context.config = self.registry.config = config
        self._slots.limit(config, now_s=self._clock.monotonic())
        self._early_bytes.limit(config)

    def reload_certificates(self) -> None:
        """Read the files for TLS again, for new connections; open ones stay as they are."""
        errors = [*self._listeners.reload(), *self._shared_listeners.reload()]
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
        """Number of Network Connections, those before CONNECT included; as `figures` has it, at no cost."""
        return len(self._slots)

    @property
    def conflated_topics_max(self) -> int:
        """Number of newest values that wait for the slowest client; other clients mostly have the same objects."""
        # Only connected sessions: a hundred thousand may be without a connection, and have no newest values.
        sessions = (connection.session for connection in self._connections)
        queued = (session for session in sessions if session is not None and session.state is SessionState.QUEUED)
        return max((len(session.sender.newest_values) for session in queued), default=0)

    def dispatch(self, updates: list[Update], *, origin: str | None = None, position: int = 0) -> None:
        """Deliver a batch of updates to every session with a matching subscription.

        Args:
            updates: The updates in order; retained ones are in the store already.
            origin: Client Identifier of the local client that published all of them, for No Local; None when
                they came from elsewhere.
            position: Number of the batch in the history of messages on disk; 0 when it is not there.
        """
        if self.pauses.until_s is not None:
            self.pauses.check()
        if self.recent is not None:
            self.recent.note_dispatched(updates)
        session = self.registry.get(origin) if origin is not None else None
        self._dispatcher.dispatch(updates, now_ns=self._clock.now_ns(), origin=session, position=position)
        for watch in self._watchers:
            watch(updates)
        if self.registry.overflowed:
            self.lifecycles.end_overflowed()

    def dispatch_again(self, batch: HistoryBatch) -> None:
        """Deliver a batch that an earlier process has dispatched to the sessions that are restored so far."""
        session = None if batch.origin is None else self.registry.get(batch.origin.client_id)
        self._dispatcher.dispatch(batch.updates, now_ns=batch.dispatched_ns, origin=session, position=batch.position)

    def correct(self, values: Sequence[Update]) -> None:
        """Send the corrected expiry of delivered values to the fanout nodes below; other clients get nothing.

        Args:
            values: The values as they are in the store now.
        """
        self._dispatcher.correct(values, now_ns=self._clock.now_ns())
        if self.registry.overflowed:
            self.lifecycles.end_overflowed()

    def observe(self, topic_filter: bytes | None, take: Callable[[list[Update]], None]) -> Callable[[], None]:
        """Call a function with all updates that a Topic Filter matches, from now on.

        Args:
            topic_filter: A valid Topic Filter, not of a Shared Subscription; None for each batch as it is, which costs
                nothing for each message.
            take: Gets the updates of each batch, in order; must return at once, and leave the list as it is.

        Returns:
            A function that ends it.
        """
        if topic_filter is None:
            self._watchers = (*self._watchers, take)
            return partial(self._unwatch, take)
        observer = Observer(take)
        self.registry.index.change(observer, added={topic_filter: OBSERVED})
        return partial(self.registry.index.leave, observer)

    def _unwatch(self, take: Callable[[list[Update]], None]) -> None:
        self._watchers = tuple(watch for watch in self._watchers if watch != take)

    def count_readers(self, topic: bytes) -> int:
        """Return the number of sessions that subscribe to a valid Topic Name; of a share group all."""
        audiences, groups = self.registry.index.routes(topic)
        return sum(route.audience.sessions for route in audiences) + sum(map(len, groups))

    @property
    def session_count(self) -> int:
        """Number of sessions, those without a connection included."""
        return len(self.registry)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the server, by name: now, those of sessions as `SessionLoad.now` has them."""
        gauges = {
            "connections": self.connection_count,
            "sessions": len(self.registry),
            "audiences": self.registry.index.count,
        }
        return {**gauges, **self.registry.load.now()._asdict(), **self.counters.figures()}

    async def clients(self, query: ClientQuery, *, slices: Slices | None = None) -> ClientPage:
        """Return the figures of single clients, in slices of the event loop; None for slices of their own."""
        steps = list_clients(
            query,
            list(self.registry),
            get=self.registry.get,
            connection_of=self.lifecycles.connection_of.get,
            slow_s=self.slow_clients.slow_s,
            now_s=self._clock.monotonic(),
        )
        return await (slices or Slices()).run(steps)

    def pause_publishers(self, paused: bool) -> None:
        """Apply backpressure to publishers; see `PacketHandlers.pause_publishers`."""
        self._packet_handlers.pause_publishers(paused)

    # For connections.

    def take_slot(self, host: str, *, address: str) -> ConnectionSlot | None:
        """Take a slot for a new connection; None when it is refused; see `AcceptingServer`."""
        self.counters.connections_opened += 1
        if self.lifecycles.stopping:
            self.reject("stopping", address=address)
            return None
        slot = self._slots.take(host, now_s=self._clock.monotonic())
        if isinstance(slot, Limit):
            self.reject(slot.value, address=address)
            return None
        return slot

    def assign_host(self, slot: ConnectionSlot, host: str, *, address: str) -> bool:
        """Set the IP address of a connection; return False when it is refused for that."""
        reached = self._slots.name(slot, host)
        if reached is not None:
            self.reject(reached.value, address=address)
        return reached is None

    def release_slot(self, slot: ConnectionSlot) -> None:
        """Free the slot of a connection that has ended."""
        self._slots.release(slot)

    def reject(
        self,
        reason: str,
        *,
        address: str,
        why: EntryFault | Limit | None = None,
        left: bool = False,
        **more: object,
    ) -> None:
        """Count and log a connection that is refused before MQTT starts."""
        counters = self.counters
        counters.connections_refused += 1
        if isinstance(why, EntryFault):
            counters.entry_faults[why] += 1
        elif why is not None:
            counters.limits_reached[why] += 1
        log = self.logger.debug if left else self.logger.warning
        log("connection_refused", reason=reason, address=address, **more)

    def new_client(self, peer: Peer, slot: ConnectionSlot) -> ClientConnection:
        """Make the connection of a client of MQTT, to be started on its transport."""
        return ClientConnection(self.context, self, peer, slot, decoder=self.new_decoder())

    def new_protocol(self, peer: Peer, slot: ConnectionSlot, *, address: Address) -> asyncio.BufferedProtocol:
        """Make the protocol of a new connection."""
        if address.has_amqp:
            assert self._amqp is not None, "the node makes it before it listens"
            return self._amqp(self, peer, slot)
        connection = self.new_client(peer, slot)
        if not address.has_websocket:
            return connection
        from fanout.server.accept.websocket import WebSocket  # most nodes have no listener for it

        return WebSocket(
            connection,
            read_buffer=self.context.read_buffer,
            packet_bytes_max=self.config.packet_bytes_max,
            connect_bytes_max=min(self.config.packet_bytes_max, CONNECT_BYTES_MAX),
            origins=self.config.websocket_origins,
        )

    def add_connection(self, connection: ClientConnection) -> None:
        """Register a new connection."""
        self._connections[connection] = None

    def remove_connection(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended, and free its slot."""
        del self._connections[connection]
        self._packet_handlers.remove_connection(connection)
        self._slots.release(connection.slot)
        if not self._connections:
            self._all_gone.set()

    def count_early(self, connection: ClientConnection, nbytes: int) -> None:
        """Count bytes of a client that is not admitted; too many end the connections that have sent the most."""
        for limit, largest in self._early_bytes.add(connection, connection.slot.origin, nbytes):
            self.counters.limits_reached[limit] += 1
            self.logger.warning("connection_refused", reason=limit.value, address=largest.address)
            largest.refuse(ReasonCode.SERVER_BUSY)
            awaits_connect = largest.awaits_connect
            largest.free(self.new_decoder())  # now: hundreds may be read from before the transport ends
            if awaits_connect:
                largest.abort()  # there is no answer, and a WebSocket would hold the bytes until its close is answered

    def end_early(self, connection: ClientConnection) -> None:
        """Stop counting bytes of a client that was admitted, or has gone."""
        self._early_bytes.remove(connection)

    def new_decoder(self) -> Decoder:
        """Make the decoder of a new connection."""
        return Decoder(
            version=None,
            packet_bytes_max=self.config.packet_bytes_max,
            topic_alias_max=self.config.topic_alias_max,
            user_properties_max=self.config.user_properties_max,
            known_topics=self._known_topics,
            work_max=_WORK_MAX,
            role="server",
        )

    def open_session(self, connection: ClientConnection, packet: Connect) -> None:
        """Carry out a CONNECT when it is its turn: accept or refuse, take over, resume or begin the session."""
        withdraw: Callable[[], None] | None = None

        def carry_out() -> None:
            if not connection.is_closing():
                self._open_session(connection, packet)
            if withdraw is not None:
                connection.resume()

        withdraw = self.context.turnstile.run(carry_out, who=connection.slot.origin, at_least_s=_CONNECT_S)
        if withdraw is not None:
            connection.suspend(on_end=withdraw)

    def _open_session(self, connection: ClientConnection, packet: Connect) -> None:
        if connection.slot.over_rate:
            self.logger.warning("connection_refused", reason="connection_rate_max", address=connection.address)
            connection.refuse(ReasonCode.CONNECTION_RATE_EXCEEDED)
            return
        terms = terms_for(
            packet,
            config=self.config,
            node_id=self._node_id,
            assign_client_id=self._assign_client_id,
            retain_available=self._retain_available,
            stamps=self._stamps,
        )
        if isinstance(terms, ReasonCode):
            connection.refuse(terms)
            return
        self._authorization.connect(connection, packet, terms, then=partial(self.lifecycles.attach, connection, terms))

    def detach_session(self, session: Session) -> None:
        """Detach a session from its connection, which has ended; see `SessionLifecycles.detach`."""
        self.lifecycles.detach(session)

    # Its own.

    def _look_for_slow_clients(self) -> None:
        self.slow_clients.look(self._connections)
        self.context.timer.after(LOOK_S, self._look_for_slow_clients)

    async def _wait_all_gone(self) -> None:
        while self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()


def _own_ports(config: ServerConfig) -> list[ListenerConfig]:
    """Return the listeners at ports that no other process shares."""
    return [one for one in config.listeners if not one.share_port]
