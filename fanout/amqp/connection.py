"""One AMQP connection: its socket, its stages, its clients of MQTT and its links (decision 0075).

Stages: SASL, whose credentials the gate checks; then the engine. The connection has one client of MQTT, whose Client
Identifier is the container id: it publishes, and its end is the end of the connection. Each subscription has another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

import cproton

from fanout.access.gate import Gate
from fanout.access.identity import Credentials, Identity
from fanout.amqp import engine
from fanout.amqp.client import MqttClient, PacketCache
from fanout.amqp.conditions import condition_of, text_of
from fanout.amqp.engine import SESSION_BYTES, Engine, Happening
from fanout.amqp.publisher import Publisher, PublisherLink
from fanout.amqp.sasl import SASL_HEADER, Sasl, SaslOutcome
from fanout.amqp.subscriber import SubscriberLink
from fanout.amqp.values import AmqpInvalid
from fanout.mqtt.packets import Connack, Connect, Disconnect, Pingreq
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.runs import AckRun
from fanout.runtime.gc_freeze import let_go
from fanout.server.accept.peers import Peer
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.base.context import ServerContext
from fanout.server.base.timer import Deadline
from fanout.server.client.connection import LINGER_S, ClientConnection, ConnectionState

__all__ = ["AmqpConnection", "AmqpDoor", "HostServer"]

_READ_BYTES: Final = 16 * 1024
"""Limit of one read: the smallest frame that makes work has some 25 bytes, and takes some 20 us."""
LINKS_MAX: Final = 256
"""Limit of the links of one connection."""
EARLY_MAX: Final = 1_000
"""Limit of sessions, links and flows that a peer begins before the connection is open."""
_NAME_CHARACTERS_MAX: Final = 1_024
"""Limit of a container id and of the name of a link."""
_SOLE: Final = "sole-connection-for-container"
_ANONYMOUS_RELAY: Final = "ANONYMOUS-RELAY"
_NO_NAME: Final = "invalid-field"


class HostServer(Protocol):
    """Interface of the server to the door."""

    context: ServerContext
    """Shared objects of its parts."""
    gate: Gate | None
    """Decides who may connect; None without access control."""

    def new_client(self, peer: Peer, slot: ConnectionSlot) -> ClientConnection:
        """Make the connection of a client of MQTT."""

    def take_slot(self, host: str, *, address: str) -> ConnectionSlot | None:
        """Take a slot for a connection; None when it is refused."""


class AmqpDoor:
    """Makes the protocol of each connection to a listener for AMQP."""

    def __init__(self, container: str) -> None:
        """Begin with no connection.

        Args:
            container: Container id of this node.
        """
        self.container = container
        """Container id of this node."""
        self.cache = PacketCache()
        """Packets of the server that are decoded already."""
        self.containers: dict[str, AmqpConnection] = {}
        """Connections that want to be alone with their container id."""

    def __call__(self, server: HostServer, peer: Peer, slot: ConnectionSlot) -> AmqpConnection:
        """Make the protocol of a connection, which frees its slot in the end."""
        return AmqpConnection(self, server, peer, slot)


class AmqpConnection(asyncio.BufferedProtocol):
    """The server's side of one connection."""

    def __init__(self, door: AmqpDoor, server: HostServer, peer: Peer, slot: ConnectionSlot) -> None:
        self._door = door
        self._server = server
        self._context = server.context
        self._peer = peer
        self._slot = slot
        self.container = ""
        """Container id of the peer; empty before it has opened the connection."""
        self.origin = secrets.token_hex(8)
        """Name of the connection in messages that it publishes."""
        self.can_write = True
        """True while the peer reads."""
        self._sasl: Sasl | None = Sasl(has_certificate=peer.certificate_user is not None)
        self._credentials: tuple[str | None, bytes | None] = (None, None)
        self._identifying: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self._main: MqttClient
        self._publisher: Publisher
        self._is_open = False
        self._is_sole = False
        # Events from before the connection is open: the engine would forget the answers to them.
        self._early: list[tuple[Happening, Any]] = []
        self._ended = False
        self._is_full = False
        self._links: dict[int, SubscriberLink | PublisherLink] = {}
        self._awake: dict[SubscriberLink, None] = {}
        self._stalled: dict[SubscriberLink, None] = {}
        self._turning = False
        self._tick: Deadline | None = None
        self._ping: Deadline | None = None
        self._linger: Deadline | None = None
        self._transport: asyncio.Transport

    # The callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection, and the time in which it must be opened."""
        self._transport = cast("asyncio.Transport", transport)
        config = self._context.config
        self._transport.set_write_buffer_limits(high=config.write_buffer_high_bytes, low=config.write_buffer_low_bytes)
        connection = self._server.new_client(self._peer, self._slot)
        self._main = MqttClient(connection, cache=self._door.cache, wake=self._turn_later)
        self._publisher = Publisher(
            self._main,
            origin=self.origin,
            clock=self._context.clock,
            user_properties_max=config.user_properties_max,
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything."""
        self._ended = True
        if self._identifying is not None:
            self._identifying.cancel()
        for deadline in (self._tick, self._ping, self._linger):
            if deadline is not None:
                deadline.cancel()
        for link in self._links.values():
            if isinstance(link, SubscriberLink):
                link.detached(closed=False)
        self._links.clear()
        self._awake.clear()
        self._main.close()
        self._engine = None
        if self._door.containers.get(self.container) is self:
            del self._door.containers[self.container]
        let_go(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return a part of the read buffer that all connections share."""
        return self._context.read_buffer[:_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read, and answer."""
        if self._ended:
            return
        if self._main.connection.state is ConnectionState.CONNECTING:
            self._main.connection.count_early(nbytes)
        self._context.counters.received_bytes += nbytes
        try:
            self._receive(bytes(self._context.read_buffer[:nbytes]))
        except Exception as error:
            self._fail(error)
        if nbytes == _READ_BYTES:
            self._continue_later()

    @property
    def now_s(self) -> float:
        """Monotonic time."""
        return self._context.clock.monotonic()

    def pause_writing(self) -> None:
        """Let the server keep messages, and read nothing that asks for answers: the peer does not read.

        One that goes on like that is silent, and its connection ends after the idle time.
        """
        self.can_write = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self.can_write = True
        self._read_on()
        self._awake.update((link, None) for link in self._links.values() if isinstance(link, SubscriberLink))
        self._turn_later()

    def _continue_later(self) -> None:
        """Read nothing more in this turn of the event loop."""
        self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        can_read = self.can_write and not self._is_full and self._identifying is None
        if can_read and not self._ended and not self._transport.is_closing():
            self._transport.resume_reading()

    def _receive(self, data: bytes) -> None:
        sasl = self._sasl
        if sasl is not None:
            answer = sasl.receive(data)
            if answer:
                self._write(answer)
            if sasl.mechanism and self._identifying is None and not sasl.decided:
                self._transport.pause_reading()
                self._identifying = asyncio.get_running_loop().create_task(self._identify(sasl), name="amqp-identify")
            if not sasl.done:
                return
            self._sasl = None
            self._engine = Engine(self._door.container)
            data = sasl.rest()
        assert self._engine is not None
        self._engine.receive(data)
        self._process(self._engine)
        stalled, self._stalled = self._stalled, {}
        self._awake |= stalled
        self._turn()

    # SASL.

    async def _identify(self, sasl: Sasl) -> None:
        """Ask the gate about the credentials; the container id, which rules may name, is not known yet."""
        try:
            await self._decide(sasl)
        except Exception as error:
            self._fail(error)

    async def _decide(self, sasl: Sasl) -> None:
        gate, peer = self._server.gate, self._peer
        outcome = SaslOutcome.OK
        if gate is not None:
            answer = await gate.authenticate(
                Credentials(
                    client_id="",
                    address=peer.host,
                    local=peer.local,
                    certificate_user=peer.certificate_user,
                    username=sasl.username,
                    password=sasl.password,
                ),
                connects=False,
            )
            if not isinstance(answer, Identity):
                is_busy = answer in (ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE)
                outcome = SaslOutcome.SYS_TEMP if is_busy else SaslOutcome.AUTH
        self._credentials = sasl.username, sasl.password
        self._write(sasl.end(outcome))
        self._identifying = None
        if outcome is not SaslOutcome.OK:
            self._context.logger.info("client_refused", reason=f"SASL {outcome.name}", address=self._peer.address)
            self._end()
            return
        self._receive(b"")  # what has come meanwhile
        self._read_on()

    # Events of the engine.

    def _process(self, machine: Engine) -> None:
        for kind, subject in machine.events():
            match kind:
                case Happening.OPEN:
                    self._open(machine)
                case Happening.CLOSE:
                    machine.close("", "")
                case Happening.FAULT:
                    raise AmqpInvalid(machine.fault or "the connection ended in the middle")
                case _ if self._is_open:
                    self._take_event(kind, subject)
                case _ if len(self._early) < EARLY_MAX:
                    self._early.append((kind, subject))
                case _:
                    raise AmqpInvalid("too much before the connection is open")

    def _take_event(self, kind: Happening, subject: Any) -> None:
        match kind:
            case Happening.DELIVERY:
                self._take_delivery(subject)
            case Happening.FLOW:
                link = self._links.get(engine.key_of(subject._impl))
                if isinstance(link, SubscriberLink):
                    self.wake(link)
            case Happening.ATTACH:
                self._attach(subject)
            case Happening.LINK_CLOSE | Happening.LINK_DETACH:
                self._detach(subject, closed=kind is Happening.LINK_CLOSE)
            case Happening.SESSION_BEGIN:
                subject.incoming_capacity = SESSION_BYTES
                subject.open()
            case Happening.SESSION_END:
                self._end_session(subject)

    def _open(self, machine: Engine) -> None:
        if self.container:
            raise AmqpInvalid("a second open")
        name, desired = machine.read_open()
        container = name or secrets.token_hex(8)
        if len(container) > _NAME_CHARACTERS_MAX:
            raise AmqpInvalid("the container id is too long")
        self.container = container
        if _SOLE in desired and container in self._door.containers:
            machine.close(
                "amqp:invalid-field",
                "Another connection has this container id",
                {_NO_NAME: "container-id"},
            )
            return
        self._is_sole = _SOLE in desired
        self._main.send(self.connect_packet(container, clean_start=True, expiry_s=0, receive_maximum=1))

    def _attach(self, link: Any) -> None:
        request = engine.read_link(link)
        if len(self._links) >= LINKS_MAX:
            raise AmqpInvalid(f"more than {LINKS_MAX} links")
        if not 0 < len(request.name) <= _NAME_CHARACTERS_MAX:
            raise AmqpInvalid("the name of a link is missing, or too long")
        new: SubscriberLink | PublisherLink
        if link.is_sender:
            new = SubscriberLink(self, link, request)
        else:
            new = PublisherLink(link, request, message_bytes_max=self._context.config.packet_bytes_max)
        self._links[engine.key_of(link._impl)] = new

    def _detach(self, link: Any, *, closed: bool) -> None:
        known = self._links.pop(engine.key_of(link._impl), None)
        if isinstance(known, SubscriberLink):
            self._awake.pop(known, None)
            known.detached(closed=closed)
        elif known is not None:
            known.is_open = False
        if closed:
            link.close()
        else:
            link.detach()
        link.free()

    def _end_session(self, session: Any) -> None:
        key = engine.key_of(session._impl)
        for known, link in list(self._links.items()):
            implementation = link.link._impl
            if engine.key_of(cproton.pn_link_session(implementation)) == key:
                del self._links[known]
                if isinstance(link, SubscriberLink):
                    self._awake.pop(link, None)
                    link.detached(closed=False)
                else:
                    link.is_open = False
        session.close()
        session.free()

    def _take_delivery(self, delivery: Any) -> None:
        link = self._links.get(engine.key_of(cproton.pn_delivery_link(delivery)))
        if isinstance(link, SubscriberLink):
            link.settled(delivery)
            self.wake(link)
        elif link is not None and link.is_open:
            message = link.receive(delivery)
            if message is not None:
                self._publisher.publish(link, message, delivery)
                return
            held = sum(len(one.partial) for one in self._links.values() if isinstance(one, PublisherLink))
            if held > 2 * link.message_bytes_max:
                raise AmqpInvalid("too many messages are incomplete")

    # For the links.

    def new_client(self, *, wake: Callable[[], None]) -> MqttClient | None:
        """Make a client of MQTT for a link; None when there are too many connections."""
        slot = self._server.take_slot(self._peer.host, address=self._peer.address)
        if slot is None:
            return None
        connection = self._server.new_client(self._peer, slot)
        connection.known_as = self.container
        return MqttClient(connection, cache=self._door.cache, wake=wake)

    def connect_packet(self, client_id: str, *, clean_start: bool, expiry_s: int, receive_maximum: int) -> Connect:
        """Return the CONNECT of a client, with the credentials of the peer."""
        username, password = self._credentials
        return Connect(
            client_id,
            clean_start=clean_start,
            username=username,
            password=password,
            properties=Properties(session_expiry_interval=expiry_s or None, receive_maximum=receive_maximum),
        )

    def wake(self, link: SubscriberLink) -> None:
        """Give a link a turn."""
        self._awake[link] = None
        self._turn_later()

    def stall(self, link: SubscriberLink) -> None:
        """Give a link a turn once the peer has said something: its window is closed."""
        self._stalled[link] = None

    # Turns.

    def _turn_later(self) -> None:
        if not self._turning and not self._ended:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turning = False
        if not self._ended:
            try:
                self._turn()
            except Exception as error:
                self._fail(error)

    def _turn(self) -> None:
        """Hand on what the server has sent, and write."""
        self._take_of_server()
        machine = self._engine
        if machine is None or self._ended:
            return
        awake, self._awake = self._awake, {}
        for link in awake:
            link.turn()
        self._flush(machine)
        full = self._publisher.is_full
        if full is not self._is_full:
            self._is_full = full
            if full:
                self._transport.pause_reading()
            else:
                self._read_on()

    def _take_of_server(self) -> None:
        main = self._main
        while (item := main.take()) is not None:
            if isinstance(item, AckRun):
                self._publisher.answered(item)
            elif isinstance(item, Connack):
                self._connected(item)
            elif isinstance(item, Disconnect):
                self._close(condition_of(item.reason_code), text_of(item))
        self._publisher.send_waiting()
        if main.has_ended and not self._ended:
            self._close("amqp:connection:forced", "The server has ended the connection")
            self._end()

    def _connected(self, packet: Connack) -> None:
        if packet.reason_code:
            self._close(condition_of(packet.reason_code), f"The server refuses the connection: {text_of(packet)}")
            return
        if self._is_sole:
            self._door.containers[self.container] = self
        self._publisher.connected(packet)
        if packet.properties.server_keep_alive:
            self._keep_alive(packet.properties.server_keep_alive)
        if self._engine is not None:
            self._engine.open([_SOLE, _ANONYMOUS_RELAY])
            self._is_open = True
            early, self._early = self._early, []
            for kind, subject in early:
                self._take_event(kind, subject)

    def _keep_alive(self, seconds: int) -> None:
        """Keep the clients of MQTT alive: the engine sees whether the peer is."""
        for client in (self._main, *(one.client for one in self._links.values() if isinstance(one, SubscriberLink))):
            if client is not None:
                client.send(Pingreq())
        self._ping = self._context.timer.after(seconds / 2, partial(self._keep_alive, seconds))

    def _flush(self, machine: Engine) -> None:
        now_s = self._context.clock.monotonic()
        until_s = machine.tick(now_s, listens=not self._is_full)
        data = machine.output()
        if data:
            self._context.counters.sent_bytes += len(data)
            self._write(data)
        if machine.ended:
            self._end()
        elif self._tick is None or self._tick.at_s > until_s:
            if self._tick is not None:
                self._tick.cancel()
            self._tick = self._context.timer.after(max(until_s - now_s, 0.1), self._tick_now)

    def _tick_now(self) -> None:
        self._tick = None
        if not self._ended and self._engine is not None:
            self._flush(self._engine)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    # Ends.

    def _close(self, condition: str, description: str) -> None:
        """Close the connection in order."""
        if self._engine is not None:
            self._engine.close(condition, description)

    def _fail(self, error: Exception) -> None:
        """End the connection because the peer broke the protocol, or this side: then with a traceback."""
        fault = error.message if isinstance(error, AmqpInvalid) else type(error).__name__
        self._context.counters.protocol_errors += 1
        self._context.logger.warning(
            "client_broke_protocol",
            reason="AMQP",
            detail=fault[:200],
            address=self._peer.address,
            exc_info=None if isinstance(error, AmqpInvalid) else error,
        )
        if self._sasl is not None and not self._sasl.mechanism:
            self._write(SASL_HEADER)
        self._close("amqp:connection:framing-error", fault[:200])
        self._end()

    def _end(self) -> None:
        """Write the rest, and close the socket."""
        if self._ended:
            return
        self._ended = True
        if self._engine is not None:
            self._write(self._engine.output())
        self._main.close()
        self._transport.close()
        self._linger = self._context.timer.after(LINGER_S, self._transport.abort)
