"""Network Connection of one client: reading and writing, Keep Alive, and its state (MQTT 5, section 4.13 for faults).

`packet_handlers` carries out the packets; `session_lifecycle` attaches and detaches the session.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from fanout.access.identity import Credentials
from fanout.errors import ProtocolError, UserPropertiesExceeded
from fanout.mqtt.decoder import Decoder, Item
from fanout.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    encode,
)
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.runtime.gc_freeze import let_go
from fanout.server.accept.peers import Peer
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import EntryFault, Limit
from fanout.server.base.timer import Deadline
from fanout.server.client.connack import Terms, encode_refusal
from fanout.server.client.send_buffer import SendBuffer
from fanout.server.client.topic_aliases import TopicAliases
from fanout.server.keeping.session_keepers import SessionKeepers
from fanout.server.routing.subscribers import Write
from fanout.server.session.gated_output import GatedOutput
from fanout.server.session.session import Session

__all__ = ["ClientConnection", "ConnectionState", "Handler"]

PIECE_MESSAGES: Final = 256
"""Approximate limit of messages that one turn of the pacer sends to one client."""
PIECE_BYTES: Final = 256 * 1024
"""Approximate limit of bytes of one turn."""
LINGER_S: Final = 5.0
"""Time that a client has to read the last bytes before its closed connection is aborted."""
_KEEP_ALIVE_FACTOR = 1.5  # [MQTT-3.1.2-22]
_REPLIES_FACTOR = 2


class ConnectionState(enum.Enum):
    """State of a Network Connection."""

    CONNECTING = "connecting"
    """CONNECT has not come."""
    OPEN = "open"
    """CONNACK accepted the client."""
    CLOSING = "closing"
    """It is being closed; packets that still come are ignored."""


class Handler(Protocol):
    """Interface of the server to its connections."""

    def add_connection(self, connection: ClientConnection) -> None:
        """Register a new connection."""

    def remove_connection(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""

    def count_early(self, connection: ClientConnection, nbytes: int) -> None:
        """Count bytes of a client that is not admitted; too many end the connections that have sent the most."""

    def end_early(self, connection: ClientConnection) -> None:
        """Stop counting bytes of a client that was admitted, or has gone."""

    def open_session(self, connection: ClientConnection, packet: Connect) -> None:
        """Carry out a CONNECT: accept or refuse, take over, resume or begin the session."""

    def detach_session(self, session: Session) -> None:
        """Detach a session from its connection, which has ended."""

    def receive(self, connection: ClientConnection, session: Session, item: Item, /) -> None:
        """Process a packet, or a run of packets, of the client with `session`."""


class ClientConnection(asyncio.BufferedProtocol):
    """The server's side of one Network Connection."""

    def __init__(
        self, context: ServerContext, handler: Handler, peer: Peer, slot: ConnectionSlot, *, decoder: Decoder
    ) -> None:
        """Make a connection without a socket.

        Args:
            context: Shared objects of the server.
            handler: The server.
            peer: The client's end.
            slot: Its connection slot.
            decoder: A new decoder.
        """
        self._context = context
        self._handler = handler
        self.peer = peer
        """The client's end."""
        self.slot = slot
        """Its connection slot, which the server frees in the end."""
        self.state = ConnectionState.CONNECTING
        """Its state."""
        self.session: Session | None = None
        """The client's session while the state is OPEN."""
        self.address = peer.address
        """The client's address, for the log."""
        self._decoder = decoder
        self._transport: asyncio.Transport
        self._answers: list[bytes] = []
        self._deadline: Deadline | None = None
        self._last_received_s = 0.0
        self._keep_alive_s = 0
        self.known_as: str | None = None
        """Client Identifier for the rules of access, if its session has another one; None for the session's."""
        self.bridge = False
        """True when the client is a bridge over MQTT 3.1.1."""
        self._aliases: TopicAliases | None = None
        self._writable = True
        self.paused_at_s = 0.0
        """When its socket became full last, monotonic seconds."""
        self._reading = True
        self._suspended = 0  # decisions that are pending; meanwhile nothing is read, and decoded packets are kept
        self._kept_items: list[Item] = []
        self._continuing = False  # whether the next turn of the event loop decodes more of the last read
        self._on_end: Callable[[], object] | None = None
        self._gate: GatedOutput | None = None
        """Holds its output back until the session is kept; None for a session that is kept nowhere."""
        self._send_buffer: SendBuffer | None = None
        """The system's buffer, if its session has a bound on the age of what waits."""

    # The callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection on its transport."""
        self._transport = cast("asyncio.Transport", transport)
        config = self._context.config
        self._transport.set_write_buffer_limits(high=config.write_buffer_high_bytes, low=config.write_buffer_low_bytes)
        self._handler.add_connection(self)
        passed_s = self._context.clock.monotonic() - self.slot.since_s  # for a PROXY header or TLS
        self._deadline = self._context.timer.after(config.connect_timeout_s - passed_s, self._connect_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the transport was closed."""
        if self.state is ConnectionState.CONNECTING:  # the client left
            self._context.counters.connections_refused += 1
        self._end()
        if self._gate is not None:
            self._gate.drop()
        self.state = ConnectionState.CLOSING
        self._cancel_deadline()
        self._handler.remove_connection(self)
        let_go(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer that all connections share; each read is processed before the next one."""
        return self._context.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read."""
        if self.state is ConnectionState.CONNECTING:
            self._handler.count_early(self, nbytes)
        self.receive(self._context.read_buffer[:nbytes])
        if nbytes == len(self._context.read_buffer) and not self.is_closing():
            self.continue_later()  # uvloop would read up to 32 times before it turns to other sockets

    def receive(self, data: bytes | memoryview) -> None:
        """Process a part of the packet stream; ignored while closing, when a transport may still deliver one."""
        if self.is_closing():
            return
        self._last_received_s = now_s = self._context.clock.monotonic()
        until_s = self._context.pauses.until_s
        if until_s is not None and now_s > until_s:  # in line: each read asks, and has the time
            self._context.pauses.look()
            if self.is_closing():
                return
        self._context.counters.received_bytes += len(data)
        if self._suspended and self._decoder.fault is not None:
            return
        data = bytes(data)
        session = self.session
        if session is not None and not self._suspended and not self._decoder.buffered_bytes:
            taken, answer = session.follower.acknowledge_read(data)
            if taken:
                self._answers.append(answer)
                data = data[taken:]
        items = self._decoder.feed(data)
        if self._suspended:  # a transport may still deliver data
            self._kept_items += items
            return
        self._receive_items(items)

    def pause_writing(self) -> None:
        """Record that the client reads too slowly: its messages are queued."""
        self._writable = False
        self.paused_at_s = self._context.clock.monotonic()
        if self._send_buffer is not None:
            self._send_buffer.note_full(self.paused_at_s)
        if self.session is not None:
            self.session.pause()

    def resume_writing(self) -> None:
        """Record that the client has caught up."""
        self._writable = True
        if self._send_buffer is not None:
            self._send_buffer.note_room(self._context.clock.monotonic())
        if not self._reading:
            self._reading = True
            self._read_on()
        self._go_on()

    def count_early(self, nbytes: int) -> None:
        """Count bytes that were read before CONNECT was complete; a transport that holds them calls it."""
        self._handler.count_early(self, nbytes)

    def free(self, decoder: Decoder) -> None:
        """Free what a connection that is being closed has received; `decoder` is a new one."""
        self._decoder = decoder
        self._kept_items = []

    @property
    def awaits_connect(self) -> bool:
        """True until CONNECT has come."""
        return self._decoder.version is None

    # For the packet handlers.

    def answer(self, data: bytes) -> None:
        """Send `data` after the other answers; see `send_answers`."""
        self._answers.append(data)

    def answer_publishes(self, session: Session) -> None:
        """Acknowledge the PUBLISHs that have a verdict; close a 3.1.1 connection if that cannot be said otherwise."""
        closes = self._context.config.refused_publish == "close"
        acks, must_close = session.receiver.take_acks(closes_at_refusal=closes)
        self.answer(acks)
        if must_close:
            self._context.logger.warning("publish_refused_by_closing", address=self.address)
            self.close()

    # For the server.

    @property
    def unsent_bytes(self) -> int:
        """Bytes written to it that the system has not taken."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str) -> Any:
        """Return information about its transport, as `asyncio.BaseTransport.get_extra_info`."""
        return self._transport.get_extra_info(name)

    def is_closing(self) -> bool:
        """Return whether it is being closed."""
        return self.state is ConnectionState.CLOSING

    def open(self, session: Session, terms: Terms, *, session_present: bool, keepers: SessionKeepers) -> None:
        """Accept the client: send CONNACK, then the messages of its session.

        Args:
            session: The session.
            terms: Agreement with the client.
            session_present: True if the client continues it.
            keepers: Keep sessions outside of this process.
        """
        self.state = ConnectionState.OPEN
        self._handler.end_early(self)
        self.session = session
        self._gate = keepers.gate(session, write=self._write, on_room=self._go_on)
        self._keep_alive_s = terms.keep_alive_s
        self.bridge = terms.bridge
        if terms.topic_alias_max:
            self._aliases = TopicAliases(terms.topic_alias_max, packet_bytes_max=terms.wire.packet_bytes_max)
        self._cancel_deadline()
        if terms.keep_alive_s:
            self._watch_keep_alive(terms.keep_alive_s * _KEEP_ALIVE_FACTOR)
        connack = Connack(session_present, ReasonCode.SUCCESS, terms.properties)
        self._answers.append(encode(connack, version=terms.wire.version))
        self._answers.append(session.connect(self._send, window=terms.window, wake=self.pump_later))
        self.limit_age()
        self.send_answers()
        self.pump_later()

    def limit_age(self) -> None:
        """Keep little before the client, in the system and in the transport, if its session has a bound on the age."""
        bound = None if self.session is None else self.session.sender.bound
        if bound is not None and self._send_buffer is not None:
            self._send_buffer.max_age_s = bound.max_age_s
        elif bound is not None:
            self._send_buffer = SendBuffer(self.get_extra_info("socket"), max_age_s=bound.max_age_s)
            self._transport.set_write_buffer_limits(high=1, low=0)

    def refuse(
        self, reason_code: ReasonCode, fault: ProtocolError | None = None, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Refuse the client with a CONNACK, if its protocol version is known, and close."""
        version = self._decoder.version
        self._answers.append(encode_refusal(reason_code, version=version, fault=fault, properties=properties))
        self._context.counters.connections_refused += 1
        self._context.counters.end(reason_code)
        self.close()

    def disconnect(self, reason_code: ReasonCode, *, properties: Properties = NO_PROPERTIES) -> None:
        """End the connection, with a DISCONNECT in MQTT 5; its session is detached at once."""
        if self.is_closing():
            return
        if self.state is ConnectionState.CONNECTING:
            if reason_code is ReasonCode.SERVER_SHUTTING_DOWN:
                reason_code = ReasonCode.SERVER_UNAVAILABLE  # the other is no Reason Code of CONNACK (section 3.2.2.2)
            self.refuse(reason_code, properties=properties)
            return
        if self._decoder.version == 5:
            farewell = encode(Disconnect(reason_code, properties), version=5)
            if self.session is not None and not self.session.wire.takes(len(farewell)):  # [MQTT-3.1.2-24]
                farewell = encode(Disconnect(reason_code), version=5)
            self._answers.append(farewell)
        self._context.counters.end(reason_code)
        self.close()

    def drop_gated(self) -> None:
        """Drop output that waits until its session is kept, and answers that are to come: neither may be said."""
        if self._gate is not None:
            self._gate.drop()
            if not self._gate.has_spoken:  # its CONNACK waited: the next one refuses the client [MQTT-3.14.0-1]
                self.state = ConnectionState.CONNECTING
            self._gate = None
            self._answers.clear()

    def send_acks(self) -> None:
        """Send the acknowledgements of PUBLISHs that have a verdict."""
        if self.session is not None:
            self.answer_publishes(self.session)
            self.send_answers()

    def credentials(self, packet: Connect, *, client_id: str) -> Credentials:
        """Return the client's credentials: from its CONNECT, its address and its certificate."""
        return Credentials(
            client_id=client_id if self.known_as is None else self.known_as,
            address=self.peer.host,
            local=self.peer.local,
            certificate_user=self.peer.certificate_user,
            username=packet.username,
            password=packet.password,
        )

    def suspend(self, on_end: Callable[[], object] | None = None) -> None:
        """Stop reading and processing packets until `resume` was called as often, because a decision is pending.

        Args:
            on_end: Called when the connection ends before `resume`.
        """
        self._suspended += 1
        if on_end is not None:
            self._on_end = on_end
        if self.state is ConnectionState.CONNECTING:  # CONNECT came in time
            self._cancel_deadline()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    @property
    def is_suspended(self) -> bool:
        """True while a decision is pending."""
        return self._suspended > 0

    def resume(self) -> None:
        """Process the kept packets once no other decision is pending, then continue to read."""
        self._suspended -= 1
        if self._suspended:
            return
        self._on_end = None
        if self.is_closing():
            return
        self._last_received_s = self._context.clock.monotonic()
        kept, self._kept_items = self._kept_items, []
        self._receive_items(kept)
        if not self.is_closing():
            self._read_on()

    def end(self, fault: str) -> None:
        """Close the connection because its WebSocket has ended; `fault` is the client's error, if any."""
        if fault:
            self._context.counters.protocol_errors += 1
            self._context.counters.entry_faults[EntryFault.WEBSOCKET] += 1
            self._context.logger.warning("client_broke_transport", detail=fault, address=self.address)
        if self.state is ConnectionState.CONNECTING:
            self._context.counters.connections_refused += 1
        self.close()

    def abort(self) -> None:
        """End the connection at once; unsent bytes are lost."""
        self._transport.abort()

    def pump(self) -> bool:
        """Send one piece of the session's messages; return whether more can be sent now."""
        session = self.session
        if session is None or not self._can_write():
            return False
        size = PIECE_BYTES if self._send_buffer is None else self._send_buffer.piece_bytes
        data = session.take(now_ns=self._context.clock.now_ns(), messages_max=PIECE_MESSAGES, bytes_max=size)
        if data:
            self._context.counters.sent_bytes += len(data)
            self._send(data)
        return self._can_write() and session.sender.pending and not session.sender.inflight.blocked

    # Packets.

    def _receive_items(self, items: list[Item]) -> None:
        for index, item in enumerate(items):
            self._receive(item)
            if self.is_closing():
                return
            if self._suspended:
                self._kept_items = items[index + 1 :]
                self.send_answers()
                return
        if self._decoder.fault is not None:
            self.fail(self._decoder.fault)
            return
        self.send_answers()
        if self._decoder.has_more:
            self.continue_later()

    def continue_later(self) -> None:
        """Read and process nothing more in this turn of the event loop."""
        if not self._continuing:
            self._continuing = True
            if not self._transport.is_closing():
                self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        """Process more of the last read, after other connections have had their turn."""
        self._continuing = False
        if self.is_closing() or self._suspended:  # `resume` goes on
            return
        if self._decoder.has_more:
            self._receive_items(self._decoder.feed(b""))
        self._read_on()

    def _receive(self, item: Item) -> None:
        if self.session is not None:
            self._handler.receive(self, self.session, item)
            return
        assert isinstance(item, Connect), "the decoder lets nothing else come first"
        self._handler.open_session(self, item)

    # Time.

    def _connect_timed_out(self) -> None:
        self._context.counters.connections_refused += 1
        self._context.counters.limits_reached[Limit.CONNECT_TIMEOUT] += 1
        self._context.logger.debug("connect_timed_out", address=self.address)
        self.close()

    def _watch_keep_alive(self, seconds: float) -> None:
        self._deadline = self._context.timer.after(seconds, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        allowed_s = self._keep_alive_s * _KEEP_ALIVE_FACTOR
        left_s = self._last_received_s + allowed_s - self._context.clock.monotonic()
        if left_s > 0 or self._suspended:  # packets are not seen while it is suspended
            self._watch_keep_alive(left_s if left_s > 0 else allowed_s)
            return
        self._context.counters.keep_alive_timeouts += 1
        self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)

    # Writing and closing.

    def _read_on(self) -> None:
        if self._reading and not self._suspended and not self._continuing and not self._transport.is_closing():
            self._transport.resume_reading()

    def _can_write(self) -> bool:
        has_room = self._gate is None or not self._gate.is_full
        return self._writable and has_room and not self._transport.is_closing()

    @property
    def _send(self) -> Write:
        """Writes bytes, once what they say is kept where that is asked for."""
        return self._write if self._gate is None else self._gate.write

    def _go_on(self) -> None:
        """Send messages again, after the socket or the gate was full."""
        if self.session is not None and self._can_write():
            self.session.resume()
            self.pump_later()

    def _write(self, data: bytes) -> None:
        # A transport whose socket failed is closing at once, but reports it only in the next turn of the event loop.
        if not self._transport.is_closing():
            self._transport.write(data if self._aliases is None else self._aliases.rewrite(data))

    def pump_later(self) -> None:
        """Schedule a turn to send the session's messages, if the socket is writable."""
        if self._writable and self.session is not None and self.session.sender.pending:
            self._context.pacer.schedule(self)

    def send_answers(self) -> None:
        """Write the collected answers; stop reading from a client that does not read its answers."""
        if not self._answers:
            return
        data = b"".join(self._answers)
        self._answers.clear()
        if not data:
            return
        self._context.counters.sent_bytes += len(data)
        self._send(data)
        limit = self._context.config.write_buffer_high_bytes * _REPLIES_FACTOR
        if self._reading and not self._writable and self._transport.get_write_buffer_size() > limit:
            self._reading = False
            self._transport.pause_reading()

    def fail(self, fault: ProtocolError) -> None:
        """End the connection because the client broke MQTT [MQTT-4.13.1-1]."""
        self._context.counters.protocol_errors += 1
        if isinstance(fault, UserPropertiesExceeded):
            self._context.counters.limits_reached[Limit.USER_PROPERTIES] += 1
        self._context.logger.warning(
            "client_broke_protocol", reason=fault.reason_code.text, detail=fault.detail, address=self.address
        )
        if self.state is ConnectionState.CONNECTING:
            self.refuse(fault.reason_code, fault)
        else:
            self.disconnect(fault.reason_code)

    def close(self) -> None:
        """Detach the session and close the socket once the client has read the written bytes."""
        self._end()
        self.send_answers()
        self.state = ConnectionState.CLOSING
        self._cancel_deadline()
        if self._gate is None:
            self._transport.close()
        else:
            self._gate.when_empty(self._transport.close)
        self._deadline = self._context.timer.after(LINGER_S, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _end(self) -> None:
        self._handler.end_early(self)
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
        session, self.session = self.session, None
        if session is not None:
            self._context.pacer.discard(self)
            self._handler.detach_session(session)
