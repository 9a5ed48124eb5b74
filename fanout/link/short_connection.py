"""Short Network Connection to a primary, beside the link's own: with another Client Identifier and without a session.

So the link's connection and session are not affected. It has the link's TLS, WebSocket, limits and Keep Alive.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from fanout.config import Address, LinkConfig, read_password
from fanout.errors import FanoutError, LinkLost
from fanout.link.protocol.handshake import Handshake, disconnected, read_connack, unanswered_hint
from fanout.link.protocol.sender import PacketSender
from fanout.link.transport.connection import LinkConnection, connect, is_close
from fanout.link.transport.tls import LinkTls, load_tls_in_thread
from fanout.mqtt.decoder import Decoder, Item
from fanout.mqtt.packets import Connack, Disconnect
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["CLIENT_ID_BYTES", "ShortConnection", "short_client_id", "short_config", "short_connection"]

CLIENT_ID_BYTES = 64
"""Length up to which a Client Identifier gets its suffix whole; the lowest limit known of a broker is 100 (VerneMQ)."""
_READ_AHEAD_BYTES_MAX = 64 * 1024
_LEFT_SESSION_S = 10
"""Seconds for which the primary keeps the session of a connection without Clean Start that is lost."""


class ShortConnection:
    """An open short connection.

    Attributes:
        handshake: Content of its CONNACK.
        sender: Sender of packets; `write` writes them.
        on_item: Called with each item that comes; its errors end the connection.
    """

    def __init__(
        self, config: LinkConfig, *, node_id: str, address: Address, sender: PacketSender | None = None
    ) -> None:
        """Prepare; `short_connection` opens it.

        Args:
            config: The link's configuration, with the Client Identifier of the short connection.
            node_id: This node.
            address: Address of the primary.
            sender: Sender with messages of an earlier connection; None for a new one.
        """
        self.sender = sender or PacketSender(config, node_id=node_id)
        self.on_item: Callable[[Item], None] = _ignore
        self._config = config
        self._address = address
        self._decoder = Decoder(version=config.version, packet_bytes_max=config.packet_bytes_max, role="client")
        self._handshake: Handshake | None = None
        self._failure: Exception | None = None
        self._tls: LinkTls | None = None
        self.was_closed = False
        """True if the primary closed it after it had accepted it."""
        self._arrived = asyncio.Event()
        self._connection = LinkConnection(
            on_data=self._receive, on_closed=self._note_closed, read_ahead_bytes_max=_READ_AHEAD_BYTES_MAX
        )

    @property
    def handshake(self) -> Handshake:
        """Content of its CONNACK."""
        assert self._handshake is not None
        return self._handshake

    def write(self) -> None:
        """Write the output of the sender."""
        self._connection.write(self.sender.take())

    async def wait_read(self, *, seconds: float | None = None) -> None:
        """Wait until something was read since the last call, or the connection has ended.

        Args:
            seconds: Return after so many seconds in any case; None for never.

        Raises:
            FanoutError: The connection has ended.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return
        self._arrived.clear()
        if self._failure is not None:
            raise self._failure

    async def open(self, *, password: bytes | None, clean_start: bool) -> None:
        """Connect, and wait for CONNACK.

        Args:
            password: The password; None for none.
            clean_start: True if a session that the primary has is to be dropped.

        Raises:
            FanoutError: The primary cannot be reached, it refuses the connection, or it has a session for it.
        """
        config, sender, connection = self._config, self.sender, self._connection
        self._tls = await load_tls_in_thread(config, self._address)
        sender.begin_connection()
        sender.connect(clean_start=clean_start, password=password, now=0.0)
        await connect(
            connection,
            self._address,
            receive_buffer_bytes=config.receive_buffer_bytes,
            timeout_s=config.connect_timeout_s,
            tls=self._tls,
            frame_bytes_max=config.packet_bytes_max,
        )
        connection.read_ahead = False
        self.write()
        try:
            async with asyncio.timeout(config.connect_timeout_s):
                while self._handshake is None:
                    await self.wait_read()
        except TimeoutError as error:
            raise LinkLost("the primary does not answer CONNECT", hint=unanswered_hint(config)) from error
        if self._handshake.session_present:
            raise LinkLost(
                "the primary resumed a session for a new Client Identifier",
                hint="Perhaps it takes the User Name for the Client Identifier (Mosquitto: use_username_as_clientid):"
                " set sample_topics = 0 for the link",
            )
        sender.accept(self._handshake.limits)
        sender.check(self._config.selectors)

    async def close(self) -> None:
        """Send DISCONNECT if the primary accepted the connection, and close it."""
        self.on_item = _ignore
        if self._handshake is not None:
            ends = bool(self._config.session_expiry_s) and not self._handshake.session_present
            self.sender.disconnect(ReasonCode.SUCCESS, end_session=ends, now=0.0)
            self.write()
        await self._connection.close(after_disconnect=self._handshake is not None)

    def _receive(self, data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            for item in self._decoder.feed(data):
                self._take(item)
            if self._decoder.fault is not None:
                raise self._decoder.fault
        except Exception as error:  # the waiting caller gets it, a bug as well
            self._failure = error
        self._arrived.set()

    def _take(self, item: Item) -> None:
        if isinstance(item, Disconnect):
            raise disconnected(item)
        if self._handshake is None and isinstance(item, Connack):
            self._handshake = read_connack(item, self._config)
        elif self._handshake is not None:
            self.on_item(item)

    def _note_closed(self) -> None:
        if self._failure is None:
            error = self._connection.error
            self.was_closed = self._handshake is not None and is_close(error)
            hint = unanswered_hint(self._config, address=self._address) if self._handshake is None else ""
            if isinstance(error, FanoutError):
                self._failure = error
            elif self._tls is not None and (
                isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionResetError) and self._handshake is None)
            ):  # with TLS 1.3 a certificate may be refused after the handshake
                self._failure = self._tls.failure(error, self._address)
            else:
                self._failure = LinkLost(f"the connection was lost: {error or 'the primary closed it'}", hint=hint)
        self._arrived.set()


@asynccontextmanager
async def short_connection(
    address: Address,
    config: LinkConfig,
    *,
    node_id: str,
    name: str,
    username: str | None = None,
    password: bytes | None = None,
    clean_start: bool = True,
    sender: PacketSender | None = None,
) -> AsyncIterator[ShortConnection]:
    """Open a short connection for the time of the block.

    Args:
        address: Address of the primary.
        config: The link's configuration.
        node_id: This node.
        name: Suffix of its Client Identifier, which tells its purpose.
        username: User Name in place of the link's; None for the link's, with its password.
        password: Password of `username`; None for none.
        clean_start: False to find out, over MQTT 5, whether the primary gives it the session of the link: then it is an
            error, and the session stays for the link, which comes back at once.
        sender: Sender with messages of an earlier connection; None for a new one.

    Raises:
        FanoutError: The primary cannot be reached, or it refuses the connection.
    """
    if username is None:
        password = read_password(config)
    else:
        config = replace(config, username=username)
    clean_start = clean_start or config.version == 4  # MQTT 3.1.1 would leave a session for ever
    config = replace(short_config(config, node_id, name), session_expiry_s=0 if clean_start else _LEFT_SESSION_S)
    connection = ShortConnection(config, node_id=node_id, address=address, sender=sender)
    try:
        await connection.open(password=password, clean_start=clean_start)
        yield connection
    finally:
        await connection.close()


def short_config(config: LinkConfig, node_id: str, name: str) -> LinkConfig:
    """Return the configuration of a link with the Client Identifier of a short connection."""
    return replace(config, client_id=short_client_id(config.client_id_of(node_id), name))


def short_client_id(client_id: str, name: str) -> str:
    """Return the Client Identifier of a short connection: that of the link with a suffix.

    One that would be longer than both the link's and `CLIENT_ID_BYTES` is cut, and gets a digest instead of its end.
    """
    whole = f"{client_id}-{name}"
    size_max = max(len(client_id.encode()), CLIENT_ID_BYTES)
    if len(whole.encode()) <= size_max:
        return whole
    end = f"-{hashlib.sha256(client_id.encode()).hexdigest()[:8]}-{name}"
    return client_id.encode()[: size_max - len(end)].decode(errors="ignore") + end


def _ignore(_: Item) -> None:
    """Take an item that nobody awaits."""
