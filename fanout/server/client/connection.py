"""One client's Network Connection: a socket on one side, its session on the other.

Owns reading, writing, and the state of the Network Connection (MQTT 5, section 4.13 for faults); what packets set off
is `serving`'s business. It must not know the store, nor other connections.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final, Protocol, cast

from fanout.access.identity import Credentials
from fanout.errors import ProtocolError
from fanout.mqtt.decoder import Decoder, Item
from fanout.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    encode,
)
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.accept.peers import Peer
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import EntryFault, Limit
from fanout.server.base.deadlines import Deadline
from fanout.server.client.connack import Terms, encode_refusal
from fanout.server.client.topic_aliases import TopicAliases
from fanout.server.session.session import Session

__all__ = ["ClientConnection", "ConnectionState", "Handler"]

PIECE_MESSAGES: Final = 256
"""About how many messages one turn of the pacer sends to one client."""
PIECE_BYTES: Final = 256 * 1024
"""About how many bytes it sends at most."""
LINGER_S: Final = 5.0
"""How long a client may take to read what was written before its connection was closed."""
_KEEP_ALIVE_FACTOR = 1.5  # [MQTT-3.1.2-22]
_REPLIES_FACTOR = 2


class ConnectionState(enum.Enum):
    """Where a Network Connection is in its life."""

    CONNECTING = "connecting"
    """CONNECT has not come."""
    OPEN = "open"
    """CONNACK accepted the client."""
    CLOSING = "closing"
    """It is being closed; whatever still comes is ignored."""


class Handler(Protocol):
    """What connections belong to, and who takes what comes on them."""

    def add_connection(self, connection: ClientConnection) -> None:
        """Note a new connection."""

    def remove_connection(self, connection: ClientConnection) -> None:
        """Note that a connection is gone."""

    def open_session(self, connection: ClientConnection, packet: Connect) -> None:
        """Carry out a CONNECT: accept or refuse, take over, resume or begin the session."""

    def detach_session(self, session: Session) -> None:
        """Carry out the end of a session's connection."""

    def receive(self, connection: ClientConnection, session: Session, item: Item, /) -> None:
        """Take a packet, or a run of them, of the client with `session`."""


class ClientConnection(asyncio.BufferedProtocol):
    """The server's end of one Network Connection."""

    def __init__(
        self, context: ServerContext, handler: Handler, peer: Peer, slot: ConnectionSlot, *, decoder: Decoder
    ) -> None:
        """Make a connection without a socket.

        Args:
            context: What the parts of the server share.
            handler: Takes what comes.
            peer: Who is at the other end.
            slot: What it holds among the connections of the server.
            decoder: A new one.
        """
        self._context = context
        self._handler = handler
        self.peer = peer
        """Who is at the other end."""
        self.slot = slot
        """What it holds among the connections of the server, until it is gone."""
        self.state = ConnectionState.CONNECTING
        """Where it is in its life."""
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
        self.bridge = False
        """Whether the client is a bridge over MQTT 3.1.1."""
        self._aliases: TopicAliases | None = None
        self._writable = True
        self._reading = True
        self._suspended = False  # then nothing is read, and what was decoded is kept until `resume`
        self._kept_items: list[Item] = []
        self._continuing = False  # whether the next turn of the event loop takes more of what was read
        self._on_end: Callable[[], object] | None = None

    # The callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast("asyncio.Transport", transport)
        config = self._context.config
        self._transport.set_write_buffer_limits(high=config.write_buffer_high_bytes, low=config.write_buffer_low_bytes)
        self._handler.add_connection(self)
        passed_s = self._context.clock.monotonic() - self.slot.since_s  # with a PROXY header or TLS
        self._deadline = self._context.timer.after(config.connect_timeout_s - passed_s, self._connect_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the socket."""
        if self.state is ConnectionState.CONNECTING:  # the client left
            self._context.counters.connections_refused += 1
        self._end()
        self.state = ConnectionState.CLOSING
        self._cancel_deadline()
        self._handler.remove_connection(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Give the buffer to read into, which all connections share: it is emptied before the next read."""
        return self._context.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.receive(self._context.read_buffer[:nbytes])

    def receive(self, data: bytes | memoryview) -> None:
        """Take a piece of the stream of packets; a transport may still have one when the end has begun."""
        if self.is_closing():
            return
        self._last_received_s = self._context.clock.monotonic()
        self._context.counters.received_bytes += len(data)
        if self._suspended and self._decoder.fault is not None:
            return
        data = bytes(data)
        session = self.session
        if session is not None and not self._suspended and not self._decoder.buffered_bytes:
            taken, answer = session.acknowledge_read(data)
            if taken:
                self._answers.append(answer)
                data = data[taken:]
        items = self._decoder.feed(data)
        if self._suspended:  # a transport may still have had something
            self._kept_items += items
            return
        self._receive_items(items)

    def pause_writing(self) -> None:
        """Note that the client reads too slowly: its messages wait."""
        self._writable = False
        if self.session is not None:
            self.session.pause()

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        self._writable = True
        if not self._reading:
            self._reading = True
            self._read_on()
        if self.session is not None:
            self.session.resume()
            self.pump_later()

    @property
    def awaits_connect(self) -> bool:
        """Whether CONNECT has not come."""
        return self._decoder.version is None

    # What the packets of its client set off.

    def answer(self, data: bytes) -> None:
        """Send `data` behind the other answers; see `send_answers`."""
        self._answers.append(data)

    def answer_publishes(self, session: Session) -> None:
        """Answer the PUBLISHs that can be answered now; close where only that can say that one is refused."""
        acks, must_close = session.receiver.take_acks()
        self.answer(acks)
        if must_close:
            self._context.logger.warning("publish_refused_by_closing", address=self.address)
            self.close()

    # What the server does with it.

    def is_closing(self) -> bool:
        """Return whether it is being closed."""
        return self.state is ConnectionState.CLOSING

    def open(self, session: Session, terms: Terms, *, session_present: bool) -> None:
        """Accept the client: send CONNACK, then what the session has for it."""
        self.state = ConnectionState.OPEN
        self.session = session
        self._keep_alive_s = terms.keep_alive_s
        self.bridge = terms.bridge
        if terms.topic_alias_max:
            self._aliases = TopicAliases(terms.topic_alias_max, packet_bytes_max=terms.wire.packet_bytes_max)
        self._cancel_deadline()
        if terms.keep_alive_s:
            self._watch_keep_alive(terms.keep_alive_s * _KEEP_ALIVE_FACTOR)
        connack = Connack(session_present, ReasonCode.SUCCESS, terms.properties)
        self._answers.append(encode(connack, version=terms.wire.version))
        self._answers.append(session.connect(self._write, window=terms.window))
        self.send_answers()
        self.pump_later()

    def refuse(
        self, reason_code: ReasonCode, fault: ProtocolError | None = None, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Answer CONNECT with a failing CONNACK, where the client understands one, and close."""
        version = self._decoder.version
        self._answers.append(encode_refusal(reason_code, version=version, fault=fault, properties=properties))
        self._context.counters.connections_refused += 1
        self._context.counters.end(reason_code)
        self.close()

    def disconnect(self, reason_code: ReasonCode, *, properties: Properties = NO_PROPERTIES) -> None:
        """End the connection, telling an MQTT 5 client why; its session is detached at once."""
        if self.is_closing():
            return
        if self.state is ConnectionState.CONNECTING:
            if reason_code is ReasonCode.SERVER_SHUTTING_DOWN:
                reason_code = ReasonCode.SERVER_UNAVAILABLE  # CONNACK does not know the other (section 3.2.2.2)
            self.refuse(reason_code, properties=properties)
            return
        if self._decoder.version == 5:
            farewell = encode(Disconnect(reason_code, properties), version=5)
            if self.session is not None and not self.session.wire.takes(len(farewell)):  # [MQTT-3.1.2-24]
                farewell = encode(Disconnect(reason_code), version=5)
            self._answers.append(farewell)
        self._context.counters.end(reason_code)
        self.close()

    def send_acks(self) -> None:
        """Send the answers to PUBLISHs that can be given now."""
        if self.session is not None:
            self.answer_publishes(self.session)
            self.send_answers()

    def credentials(self, packet: Connect, *, client_id: str) -> Credentials:
        """Return what the client shows with its CONNECT and by where it comes from."""
        return Credentials(
            client_id=client_id,
            address=self.peer.host,
            local=self.peer.local,
            certificate_user=self.peer.certificate_user,
            username=packet.username,
            password=packet.password,
        )

    def suspend(self, on_end: Callable[[], object] | None = None) -> None:
        """Read nothing and take no packet until `resume`, because something must be decided first.

        Args:
            on_end: Called when the connection ends before.
        """
        self._suspended = True
        self._on_end = on_end
        if self.state is ConnectionState.CONNECTING:  # CONNECT came in time
            self._cancel_deadline()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    @property
    def is_suspended(self) -> bool:
        """Whether it waits for `resume`."""
        return self._suspended

    def resume(self) -> None:
        """Go on with what was kept, then with reading."""
        self._suspended = False
        self._on_end = None
        if self.is_closing():
            return
        self._last_received_s = self._context.clock.monotonic()
        kept, self._kept_items = self._kept_items, []
        self._receive_items(kept)
        if not self.is_closing():
            self._read_on()

    def end(self, fault: str) -> None:
        """Close, because the transport cannot go on, for the `fault` of the client if there is any."""
        if fault:
            self._context.counters.protocol_errors += 1
            self._context.counters.entry_faults[EntryFault.WEBSOCKET] += 1
            self._context.logger.warning("client_broke_transport", detail=fault, address=self.address)
        if self.state is ConnectionState.CONNECTING:
            self._context.counters.connections_refused += 1
        self.close()

    def abort(self) -> None:
        """End the connection at once, whatever was not sent."""
        self._transport.abort()

    def pump(self) -> bool:
        """Send one piece of what waits for the session; return whether more can be sent now."""
        session = self.session
        if session is None or not self._can_write():
            return False
        data = session.take(now_ns=self._context.clock.now_ns(), messages_max=PIECE_MESSAGES, bytes_max=PIECE_BYTES)
        if data:
            self._context.counters.sent_bytes += len(data)
            self._write(data)
        return self._can_write() and session.sender.pending and not session.sender.blocked

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
        if self._decoder.has_more and not self._continuing:
            self._continuing = True
            if not self._transport.is_closing():
                self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        """Take more of what was read, when others have had their turn."""
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
        self._context.counters.limits[Limit.CONNECT_TIMEOUT] += 1
        self._context.logger.debug("connect_timed_out", address=self.address)
        self.close()

    def _watch_keep_alive(self, seconds: float) -> None:
        self._deadline = self._context.timer.after(seconds, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        allowed_s = self._keep_alive_s * _KEEP_ALIVE_FACTOR
        left_s = self._last_received_s + allowed_s - self._context.clock.monotonic()
        if left_s > 0 or self._suspended:  # what the client sends meanwhile is not seen
            self._watch_keep_alive(left_s if left_s > 0 else allowed_s)
            return
        self._context.counters.keep_alive_timeouts += 1
        self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)

    # Writing and closing.

    def _read_on(self) -> None:
        if self._reading and not self._suspended and not self._continuing and not self._transport.is_closing():
            self._transport.resume_reading()

    def _can_write(self) -> bool:
        return self._writable and not self._transport.is_closing()

    def _write(self, data: bytes) -> None:
        # A socket that failed is known as such at once, but is reported only with the next turn of the event loop.
        if not self._transport.is_closing():
            self._transport.write(data if self._aliases is None else self._aliases.rewrite(data))

    def pump_later(self) -> None:
        """Send what waits for the session in its turn, if the client reads."""
        if self._writable and self.session is not None and self.session.sender.pending:
            self._context.pacer.schedule(self)

    def send_answers(self) -> None:
        """Write the answers that there are; a client that reads none of them is not read from until it does."""
        if not self._answers:
            return
        data = b"".join(self._answers)
        self._answers.clear()
        if not data:
            return
        self._context.counters.sent_bytes += len(data)
        self._write(data)
        limit = self._context.config.write_buffer_high_bytes * _REPLIES_FACTOR
        if self._reading and not self._writable and self._transport.get_write_buffer_size() > limit:
            self._reading = False
            self._transport.pause_reading()

    def fail(self, fault: ProtocolError) -> None:
        """End the connection because the client broke MQTT [MQTT-4.13.1-1]."""
        self._context.counters.protocol_errors += 1
        self._context.logger.warning(
            "client_broke_protocol", reason=fault.reason_code.text, detail=fault.detail, address=self.address
        )
        if self.state is ConnectionState.CONNECTING:
            self.refuse(fault.reason_code, fault)
        else:
            self.disconnect(fault.reason_code)

    def close(self) -> None:
        """Close the socket when what was written has been read; the session is detached now."""
        self._end()
        self.send_answers()
        self.state = ConnectionState.CLOSING
        self._cancel_deadline()
        self._transport.close()
        self._deadline = self._context.timer.after(LINGER_S, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
        session, self.session = self.session, None
        if session is not None:
            self._context.pacer.discard(self)
            self._handler.detach_session(session)
