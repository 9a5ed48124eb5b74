"""MQTT client of a probe: aiomqtt, with a record of the packets in the order of the wire.

aiomqtt shows messages only; the order of SUBACK, PINGRESP and messages, the CONNACK and the Reason Codes of PUBACK come
from the callbacks of paho-mqtt beneath it. fanout's own codec is not used, because the probe must be independent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

__all__ = ["ANSWER_S", "Arrival", "ProbeClient", "Target", "properties"]

ANSWER_S: Final = 5.0
"""Time for a primary to send CONNACK, SUBACK or PUBACK."""
_KEEP_ALIVE_S: Final = 60
_IN_FLIGHT_MAX: Final = 100
"""QoS 1 messages under way; fewer where the primary's Receive Maximum is lower."""
_RECEIVE_MAXIMUM: Final = 65_535
_RECEIVE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""The buffer of a link: bytes that wait in the primary's queue may be dropped there."""
_PINGREQ: Final = b"\xc0\x00"
_CLOSED: Final = "the primary closed the connection"


@dataclass(frozen=True, slots=True)
class Target:
    """A primary, with credentials."""

    host: str
    """Host name or address."""
    port: int
    """TCP port."""
    username: str | None = None
    """User Name; None sends none."""
    password: str | None = None
    """Password; None sends none."""
    tls: ssl.SSLContext | None = None
    """For the handshake of TLS; None without TLS."""
    websocket_path: str | None = None
    """Path of MQTT over WebSocket; None without WebSocket."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One packet from the primary, in the order of the wire."""

    kind: str
    """`SUBACK`, `PINGRESP` or `PUBLISH`."""
    at: float
    """Time of arrival, monotonic seconds."""
    message: paho.MQTTMessage | None = None
    """The message of a PUBLISH."""
    codes: tuple[int, ...] = ()
    """The Reason Codes of a SUBACK."""


def properties(packet_type: int, **values: Any) -> Properties:
    """Return the properties of a packet, named as paho-mqtt does (`MessageExpiryInterval`)."""
    result = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(result, name, value)
    return result


class ProbeClient:
    """A connection; a context manager that ends it.

    Attributes:
        arrivals: Packets that came, oldest first.
        session_present: As CONNACK says.
        connack: The properties of CONNACK by their names; empty over MQTT 3.1.1.
    """

    def __init__(
        self,
        target: Target,
        *,
        version: int,
        client_id: str,
        clean: bool = True,
        session_expiry_s: int = 0,
        bridge: bool = False,
    ) -> None:
        """Prepare; entering the context connects.

        Args:
            target: The primary, with credentials.
            version: 5, or 4 for MQTT 3.1.1.
            client_id: Client Identifier.
            clean: Clean Start, or Clean Session: whether to discard an existing session.
            session_expiry_s: Life of the session without a connection. Over MQTT 3.1.1 a session lives for ever unless
                `clean`.
            bridge: Whether to set the bridge bit of the protocol level (MQTT 3.1.1).
        """
        self.version = version
        self.arrivals: list[Arrival] = []
        self.session_present = False
        self.connack: dict[str, Any] = {}
        self._acknowledged: dict[int, int] = {}
        """Identifier of a published message to the Reason Code of its acknowledgement."""
        self._changed = asyncio.Event()
        five = version == 5
        self._client = aiomqtt.Client(
            target.host,
            target.port,
            username=target.username,
            password=target.password,
            identifier=client_id,
            protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
            clean_session=None if five else clean,
            clean_start=clean if five else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=properties(
                PacketTypes.CONNECT, SessionExpiryInterval=session_expiry_s, ReceiveMaximum=_RECEIVE_MAXIMUM
            )
            if five
            else None,
            timeout=ANSWER_S,
            keepalive=_KEEP_ALIVE_S,
            max_inflight_messages=_IN_FLIGHT_MAX,
            socket_options=((socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES),),
            tls_context=target.tls,
            # The context decides; else paho-mqtt would verify the host name itself.
            tls_insecure=None if target.tls is None or target.tls.check_hostname else True,
            transport="tcp" if target.websocket_path is None else "websockets",
            websocket_path=target.websocket_path,
            logger=_PahoLog(lambda: self._arrive("PINGRESP")),
        )
        # aiomqtt has no public access to paho-mqtt; only this line reaches it.
        self._paho: paho.Client = self._client._client
        self._watch()
        if bridge:
            self._paho.enable_bridge_mode()

    async def __aenter__(self) -> ProbeClient:
        """Connect.

        Raises:
            aiomqtt.MqttError: Nothing listens, or the primary refuses (`aiomqtt.MqttConnectError`).
        """
        try:
            await self._client.__aenter__()
        except aiomqtt.MqttError:
            if self._paho.socket() is not None:
                self._paho.disconnect()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send DISCONNECT; a lost connection is no error."""
        if self.is_connected:
            with contextlib.suppress(aiomqtt.MqttError):
                await self._client.__aexit__(None, None, None)
        gone = self._client._disconnected
        if gone.done():
            gone.exception()  # retrieved, so that asyncio does not complain

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._paho.is_connected()

    async def subscribe(
        self,
        *filters: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = True,
        retain_handling: int = 0,
    ) -> tuple[int, ...]:
        """Subscribe, and return the Reason Codes; the options are for MQTT 5 only.

        Raises:
            aiomqtt.MqttError: No SUBACK came.
        """
        asked = self._subscriptions(filters, qos, no_local, retain_as_published, retain_handling)
        codes = await self._client.subscribe(asked)
        return tuple(code if isinstance(code, int) else code.value for code in codes)

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        message_properties: Properties | None = None,
    ) -> int:
        """Publish, wait until the primary has the message, and return its Reason Code; MQTT 3.1.1 has none but 0.

        Raises:
            aiomqtt.MqttError: The connection ended, or there was no acknowledgement in time.
        """
        codes = await self.publish_all(
            [(topic, payload)], qos=qos, retain=retain, message_properties=message_properties
        )
        return codes[0]

    async def publish_all(
        self,
        messages: Sequence[tuple[str, bytes]],
        *,
        qos: int = 1,
        retain: bool = False,
        message_properties: Properties | None = None,
        timeout_s: float = ANSWER_S,
    ) -> list[int]:
        """Publish many messages, and return their Reason Codes.

        Args:
            messages: Topics and payloads.
            qos: Their QoS.
            retain: Their RETAIN.
            message_properties: Their properties (MQTT 5).
            timeout_s: Longest time without an acknowledgement.

        Raises:
            aiomqtt.MqttError: The connection ended, or there was no acknowledgement in time.
        """
        window = min(_IN_FLIGHT_MAX, self.connack.get("ReceiveMaximum", _IN_FLIGHT_MAX))
        codes: list[int] = []
        for first in range(0, len(messages), window):
            sent = [
                self._paho.publish(topic, payload, qos, retain, message_properties).mid
                for topic, payload in messages[first : first + window]
            ]
            for mid in sent:
                if not await self.until(partial(self._acknowledged.__contains__, mid), timeout_s):
                    raise aiomqtt.MqttError("no acknowledgement of a message came")
            codes += (self._acknowledged.pop(mid) for mid in sent)
        return codes

    def ask_for_set(self, filters: Sequence[str], *, qos: int, marker: tuple[str, bytes] | None) -> None:
        """Write SUBSCRIBE, PINGREQ and a QoS 1 message in one piece, as a link does for a snapshot.

        Raises:
            aiomqtt.MqttError: The primary has closed the connection.
        """
        sock: Any = self._paho.socket()
        if sock is None:
            raise aiomqtt.MqttError(_CLOSED)
        # Over WebSocket it is a wrapper, whose `send` makes a frame of what it is given.
        plain, send = (sock, sock.sendall) if isinstance(sock, socket.socket) else (sock._socket, sock.send)
        try:
            _cork(plain, on=True)
            # The subscribe of aiomqtt would wait for SUBACK before the others are written.
            self._paho.subscribe(self._subscriptions(filters, qos, no_local=False))
            self._paho.loop_write()
            send(_PINGREQ)  # paho-mqtt sends PINGREQ from its keep-alive only
            if marker is not None:
                self._paho.publish(*marker, qos=1)
                self._paho.loop_write()
            _cork(plain, on=False)
        except OSError as error:
            raise aiomqtt.MqttError(_CLOSED) from error

    def messages(self, *, since: int = 0) -> list[paho.MQTTMessage]:
        """Return the messages that came after the first `since` arrivals."""
        return [one.message for one in self.arrivals[since:] if one.message is not None]

    async def message(self, topic: str, *, since: int = 0, timeout_s: float) -> paho.MQTTMessage | None:
        """Wait for a message of a topic, and return it; None when none came in time.

        Args:
            topic: Its Topic Name.
            since: Number of first arrivals to ignore.
            timeout_s: Time limit.
        """
        found: list[paho.MQTTMessage] = []

        def came() -> bool:
            found[:] = [one for one in self.messages(since=since) if one.topic == topic]
            return bool(found)

        await self.until(came, timeout_s)
        return found[0] if found else None

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition` holds; return whether it did in time.

        Raises:
            aiomqtt.MqttError: The primary closed the connection meanwhile.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if not self.is_connected:
                        raise aiomqtt.MqttError(_CLOSED)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _subscriptions(
        self,
        filters: Sequence[str],
        qos: int,
        no_local: bool,
        retain_as_published: bool = True,
        retain_handling: int = 0,
    ) -> list[tuple[str, Any]]:
        if self.version == 4:
            return [(one, qos) for one in filters]
        options = SubscribeOptions(qos, no_local, retain_as_published, retain_handling)
        return [(one, options) for one in filters]

    def _watch(self) -> None:
        """Wrap each callback of aiomqtt to record packets first."""
        watched: Any = self._paho
        on_connect, on_disconnect = watched.on_connect, watched.on_disconnect
        on_subscribe, on_publish = watched.on_subscribe, watched.on_publish

        def connected(client: Any, data: Any, flags: Any, code: Any, told: Any) -> None:
            self.session_present = flags.session_present
            self.connack = told.json() if told else {}
            on_connect(client, data, flags, code, told)

        def received(client: Any, data: Any, message: paho.MQTTMessage) -> None:
            self._arrive("PUBLISH", message=message)

        def subscribed(client: Any, data: Any, mid: int, codes: Any, told: Any) -> None:
            self._arrive("SUBACK", codes=tuple(code.value for code in codes))
            if mid in self._client._pending_subscribes:
                on_subscribe(client, data, mid, codes, told)

        def published(client: Any, data: Any, mid: int, code: Any, told: Any) -> None:
            self._acknowledged[mid] = code.value
            self._changed.set()
            on_publish(client, data, mid, code, told)

        def disconnected(client: Any, data: Any, flags: Any, code: Any, told: Any) -> None:
            on_disconnect(client, data, flags, code, told)
            waiting = self._client._connected
            if not waiting.done():  # aiomqtt would wait on
                waiting.set_exception(aiomqtt.MqttError("the connection was closed without CONNACK"))
                waiting.exception()  # retrieved, also when nobody waits any more
            self._changed.set()

        watched.on_connect = connected
        watched.on_message = received
        watched.on_subscribe = subscribed
        watched.on_publish = published
        watched.on_disconnect = disconnected

    def _arrive(self, kind: str, *, message: paho.MQTTMessage | None = None, codes: tuple[int, ...] = ()) -> None:
        self.arrivals.append(Arrival(kind, time.monotonic(), message, codes))
        self._changed.set()


class _PahoLog(logging.Logger):
    """Takes the log of paho-mqtt and reports each PINGRESP, for which there is a log line and no callback."""

    def __init__(self, on_pingresp: Callable[[], None]) -> None:
        super().__init__("fanout.probe.paho", logging.CRITICAL)
        self._on_pingresp = on_pingresp

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if msg == "Received PINGRESP":
            self._on_pingresp()


def _cork(sock: socket.socket, *, on: bool) -> None:
    """Hold written bytes back, or release them, so that they leave in one segment where the system supports it."""
    if hasattr(socket, "TCP_CORK"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, int(on))
