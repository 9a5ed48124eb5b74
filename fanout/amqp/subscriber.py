"""Subscription of a JMS application: a link to it, fed by a client of MQTT.

A durable subscription is a durable session of that client, found by container id and link name. It is made with Retain
Handling 1, so retained messages come when the subscription is new, and the session goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import cproton

from fanout.amqp import engine
from fanout.amqp.client import MqttClient
from fanout.amqp.conditions import condition_of, text_of
from fanout.amqp.engine import LinkRequest
from fanout.amqp.messages import Delivered
from fanout.errors import ProtocolError
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.packets import Connack, Connect, Disconnect, Suback, Subscribe, Subscription, encode_acks
from fanout.mqtt.properties import Properties
from fanout.mqtt.topics import check_topic_filter

__all__ = ["LinkHost", "SubscriberLink"]

UNSETTLED_MAX: Final = 2_000
"""Limit of deliveries that wait to be settled on one link, and Receive Maximum of its client."""
UNSETTLED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of deliveries that wait to be settled on one link, at which no more are sent."""
OUTGOING_BYTES_MAX: Final = 256 * 1024
"""Bytes of a session of AMQP that the peer's window holds back; more stay with the server."""
TURN_MESSAGES: Final = 512
"""Messages of one link in one turn of the event loop."""
_OUTCOMES: Final = frozenset({cproton.PN_ACCEPTED, cproton.PN_REJECTED, cproton.PN_RELEASED, cproton.PN_MODIFIED})
_EXPIRES_NEVER: Final = 0xFFFF_FFFF
_ENDS: Final = Disconnect(0, Properties(session_expiry_interval=0))


class LinkHost(Protocol):
    """Interface of the connection to its links."""

    @property
    def can_write(self) -> bool:
        """True while the peer reads."""

    @property
    def origin(self) -> str:
        """Name of the connection in messages that it publishes."""

    @property
    def container(self) -> str:
        """Container id of the peer."""

    @property
    def now_s(self) -> float:
        """Monotonic time."""

    def new_client(self, *, wake: Callable[[], None]) -> MqttClient | None:
        """Make a client of MQTT for a link; None when there are too many connections."""

    def connect_packet(self, client_id: str, *, clean_start: bool, expiry_s: int, receive_maximum: int) -> Connect:
        """Return the CONNECT of a client, with the credentials of the peer."""

    def wake(self, link: SubscriberLink) -> None:
        """Give a link a turn."""

    def stall(self, link: SubscriberLink) -> None:
        """Give a link a turn once the peer has said something."""


class SubscriberLink:
    """One link to the peer."""

    def __init__(self, host: LinkHost, link: Any, request: LinkRequest) -> None:
        """Begin; the link is attached, or refused, when the server has answered.

        Args:
            host: The connection.
            link: The link of the library.
            request: Terms of the peer.
        """
        self._host = host
        self.link = link
        """The link of the library."""
        self._implementation = link._impl
        self._request = request
        self._filter = request.address.encode()
        self._client_id = f"{host.container}|{request.name}"
        self.client: MqttClient | None = None
        """Its client of MQTT; None when it has none (left)."""
        self._is_open = False
        self._sent = 0
        self._unsettled: dict[int, Delivered] = {}
        self._unsettled_bytes = 0
        self._released: dict[int, Delivered] = {}
        self._acks: list[int] = []
        problem = self._problem()
        if problem:
            self._refuse(*problem)
        else:
            self._connect(clean_start=not (request.is_durable or request.is_null))

    def _problem(self) -> tuple[str, str] | None:
        request = self._request
        if request.unsupported:
            return "amqp:not-implemented", f"This server has no {request.unsupported}"
        if request.is_queue:
            return "amqp:not-implemented", "This server keeps no queues: subscribe to a topic"
        if request.is_null and request.name:
            return None
        if self._filter.startswith(b"$share/"):
            return "amqp:not-implemented", "This server shares subscriptions among clients of MQTT only"
        try:
            check_topic_filter(self._filter)
        except ProtocolError as error:
            return "amqp:invalid-field", f"Not a topic that can be subscribed to: {error.detail}"
        return None

    def _connect(self, *, clean_start: bool) -> None:
        client = self._host.new_client(wake=lambda: self._host.wake(self))
        if client is None:
            self._refuse("amqp:resource-limit-exceeded", "There are too many connections and subscriptions")
            return
        self.client = client
        is_durable = self._request.is_durable or self._request.is_null
        client.send(
            self._host.connect_packet(
                self._client_id,
                clean_start=clean_start,
                expiry_s=_EXPIRES_NEVER if is_durable else 0,
                receive_maximum=UNSETTLED_MAX,
            )
        )

    # The server's side.

    def turn(self) -> None:
        """Hand on what the server has sent, as far as the peer takes it."""
        client = self.client
        if client is None:
            return
        if self._released:
            client.put_back([self._released[number] for number in sorted(self._released)])
            self._released.clear()
        may_send = self._may_send()
        credit = 0
        if may_send and not self._is_full:
            credit = min(cproton.pn_link_credit(self._implementation), UNSETTLED_MAX - len(self._unsettled))
        left = TURN_MESSAGES
        while (item := client.take()) is not None:
            if isinstance(item, Delivered):
                if credit <= 0 or left <= 0:
                    client.put_back([item])
                    break
                if self._deliver(item):
                    credit = credit - 1 if self._unsettled_bytes < UNSETTLED_BYTES_MAX else 0
                left -= 1
            elif isinstance(item, Connack):
                self._connected(client, item)
            elif isinstance(item, Suback):
                self._subscribed(client, item)
            elif isinstance(item, Disconnect):
                self._lost(item.reason_code)
            if self.client is not client:
                return
        self.send_acks()
        if client.has_ended:
            self._lost(None)
            return
        if self._is_open:
            client.hold(held=credit <= 0)
            if left <= 0:
                self._host.wake(self)
            elif not may_send and self._host.can_write:
                self._host.stall(self)
            elif self.link.drain_mode and (self._is_full or not client.has_waiting):
                self.link.drained()

    @property
    def _is_full(self) -> bool:
        return len(self._unsettled) >= UNSETTLED_MAX or self._unsettled_bytes >= UNSETTLED_BYTES_MAX

    def _may_send(self) -> bool:
        return (
            self._is_open
            and self._host.can_write
            and cproton.pn_session_outgoing_bytes(cproton.pn_link_session(self._implementation)) < OUTGOING_BYTES_MAX
        )

    def _deliver(self, message: Delivered) -> bool:
        """Send a message; return False for one that the peer does not want, or that expired since it released it."""
        packet_id = message.packet_id
        aged = message if message.left_ms is None else message.aged(self._host.now_s)
        if aged is None or (self._request.no_local and message.live_origin == self._host.origin):
            if packet_id:
                self._acks.append(packet_id)
            return False
        self._sent += 1
        settled = self._request.settled or not (packet_id or self._request.unsettled)
        engine.deliver(self.link, b"%d" % self._sent, aged.data, settled=settled)
        if not settled:
            self._unsettled[self._sent] = aged
            self._unsettled_bytes += len(aged.data)
        elif packet_id:
            self._acks.append(packet_id)
        return True

    def _connected(self, client: MqttClient, packet: Connack) -> None:
        if packet.reason_code:
            self._end_client()
            self._refuse(condition_of(packet.reason_code), text_of(packet))
            return
        session = client.connection.session
        subscriptions = {} if session is None or not packet.session_present else session.subscriptions
        if self._request.is_null:
            self._found(client, subscriptions.keys())
            return
        options = subscriptions.get(self._filter)
        if options is not None and len(subscriptions) == 1 and options.no_local is self._request.no_local:
            self._attach()
        elif packet.session_present:  # another topic, or other options: the former subscription ends
            client.close()
            self._connect(clean_start=True)
        else:
            wanted = Subscription(self._filter, qos=1, no_local=self._request.no_local, retain_handling=1)
            client.send(Subscribe(1, (wanted,)))

    def _found(self, client: MqttClient, filters: Any) -> None:
        """Answer a peer that looks for its durable subscription by name, to end it."""
        if len(filters) == 1:
            self._attach(address=next(iter(filters)).decode())
            return
        client.send(_ENDS)
        self._end_client()
        self._refuse("amqp:not-found", "There is no durable subscription with this name")

    def _subscribed(self, client: MqttClient, packet: Suback) -> None:
        (code,) = packet.reason_codes
        if code < 0x80:
            self._attach()
            return
        client.send(_ENDS)
        self._end_client()
        self._refuse(condition_of(code), f"The server refuses the subscription: {text_of(packet)}")

    def _attach(self, *, address: str = "") -> None:
        self._is_open = True
        engine.attach(self.link, address=address)
        self._host.wake(self)

    def _refuse(self, condition: str, description: str) -> None:
        engine.refuse(self.link, condition, description)

    def _lost(self, reason_code: int | None) -> None:
        """End the link, because the server has ended its client."""
        self._end_client()
        text = "The server has ended the subscription"
        condition = "amqp:link:detach-forced" if reason_code != 0x8E else "amqp:link:stolen"
        if reason_code:
            text = f"{text}: {condition_of(reason_code)}"
        if self._is_open:
            self._is_open = False
            engine.end(self.link, condition, text)
        else:
            self._refuse(condition, text)

    def _end_client(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    # The peer's side.

    def settled(self, delivery: Any) -> None:
        """Process what the peer says of a delivery of the engine."""
        if not cproton.pn_delivery_updated(delivery):
            return
        state = cproton.pn_delivery_remote_state(delivery)
        if state not in _OUTCOMES and not cproton.pn_delivery_settled(delivery):
            return
        number = int(cproton.pn_delivery_tag(delivery))
        remote = cproton.pn_delivery_remote(delivery)
        is_modified = state == cproton.PN_MODIFIED
        is_done = state in (cproton.PN_ACCEPTED, cproton.PN_REJECTED) or (
            is_modified and cproton.pn_disposition_is_undeliverable(remote)
        )
        has_failed = is_modified and cproton.pn_disposition_is_failed(remote)
        message = self._unsettled.pop(number, None)
        cproton.pn_delivery_settle(delivery)
        if message is None:
            return
        self._unsettled_bytes -= len(message.data)
        if not is_done:  # settled without an outcome is as released: the source has no other default (AMQP, 3.5.3)
            self._released[number] = message.failed() if has_failed else message
        elif message.packet_id:
            self._acks.append(message.packet_id)
        self._host.wake(self)

    def send_acks(self) -> None:
        """Acknowledge to the server what the peer has settled."""
        if self._acks and self.client is not None:
            acks, self._acks = self._acks, []
            self.client.send(encode_acks(PacketType.PUBACK, acks))

    def detached(self, *, closed: bool) -> None:
        """End the subscription if it is not durable, or if the peer has closed the link; else it goes on without it."""
        self._is_open = False
        if self.client is not None:
            self.send_acks()
            if closed:
                self.client.send(_ENDS)
            self._end_client()
