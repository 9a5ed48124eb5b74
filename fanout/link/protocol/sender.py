"""Sender of a link: encodes packets, assigns Packet Identifiers, and tracks requests without an answer.

There is at most one PINGREQ under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fanout.chain.age_bound import AgeBound
from fanout.chain.manifest import ASK_FOR_MANIFEST
from fanout.chain.stamp import ASK_FOR_STAMPS, NODE_PROPERTY
from fanout.config import LinkConfig
from fanout.errors import PrimaryRefused
from fanout.mqtt.decoder import AckRun
from fanout.mqtt.delivery import AckOutcome, Outbound, SendState
from fanout.mqtt.packet_ids import PacketIds
from fanout.mqtt.packets import (
    Ack,
    Connect,
    Disconnect,
    PacketType,
    Pingreq,
    Subscribe,
    Subscription,
    Unsubscribe,
    encode,
    encode_acks,
)
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.publish import encode_publish
from fanout.mqtt.reason_codes import ReasonCode
from fanout.peer_text import clean_text
from fanout.selection import Selector

__all__ = ["OutgoingMessage", "PacketSender", "PrimaryLimits"]

_SPENT_MAX = 1_000
"""Packet Identifiers of given-up messages that are kept out of use."""
_OVERHEAD_BYTES_MAX = 22
"""PUBLISH without topic, payload and properties: fixed header 5, two lengths 6, Packet Identifier 2, expiry 5."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """An Application Message that the link publishes."""

    topic: bytes
    """Topic Name at the primary."""
    payload: bytes
    """Application Message."""
    qos: int = 1
    """1 or 2."""
    retain: bool = False
    """The RETAIN flag."""
    properties: bytes = b""
    """Encoded properties without their length and without the expiry."""
    expiry_s: int | None = None
    """Message Expiry Interval in seconds; None for none."""
    token: int = 0
    """Token of a forwarded message; 0 for an own message."""

    def encode(self, packet_id: int, *, version: int, dup: bool = False) -> bytes:
        """Return its PUBLISH."""
        return encode_publish(
            self.topic,
            self.payload,
            version=version,
            qos=self.qos,
            retain=self.retain,
            dup=dup,
            packet_id=packet_id,
            properties=self.properties,
            expiry_s=self.expiry_s,
        )

    def fits(self, packet_bytes_max: int) -> bool:
        """Say whether its PUBLISH over MQTT 5 has at most `packet_bytes_max` bytes."""
        most = len(self.topic) + len(self.payload) + len(self.properties) + _OVERHEAD_BYTES_MAX
        return most <= packet_bytes_max or len(self.encode(1, version=5)) <= packet_bytes_max


@dataclass(frozen=True, slots=True)
class PrimaryLimits:
    """Limits that a primary gives in CONNACK, with the defaults of MQTT."""

    receive_maximum: int = 0xFFFF
    """Messages at QoS 1 and 2 that may be sent without waiting."""
    maximum_qos: int = 2
    """Highest QoS; at 0, no PUBLISH of the link would be answered."""
    closes_at_messages: bool = False
    """True if it closes the connection at messages of the link, as seen: `maximum_qos` is 0 then."""
    retain_available: bool = True
    """True if the primary takes retained messages."""
    packet_bytes_max: int | None = None
    """Maximum Packet Size; None for no limit."""
    wildcards_available: bool = True
    """True if the primary takes Topic Filters with wildcards."""


class PacketSender:
    """Sender of one link.

    Attributes:
        version: 4 or 5.
        ping_sent_s: When the PINGREQ under way was sent, monotonic seconds; None when none is. There is never
            more than one, so that a PINGRESP can be told what it answers even if an earlier one was dropped.
        last_sent_s: When the newest packet was queued, monotonic seconds.
    """

    def __init__(self, config: LinkConfig, *, node_id: str) -> None:
        """Begin without output.

        Args:
            config: The link's configuration.
            node_id: This node, as told in CONNECT.
        """
        self.version = config.version
        self.ping_sent_s: float | None = None
        self.last_sent_s = 0.0
        self._config = config
        self._node_id = node_id
        self.output: list[bytes] = []
        """Packets that `take` returns."""
        self._packet_ids = PacketIds()
        self._requests: dict[int, int] = {}
        """Packet Identifiers of SUBSCRIBE and UNSUBSCRIBE packets without an answer, with their number of filters."""
        self._outbound: Outbound[OutgoingMessage] = Outbound(packet_ids=self._packet_ids)
        self._to_resend: deque[int] = deque()
        """Packet Identifiers of messages in flight that the resumed session has yet to send again."""
        self.held: deque[int] = deque()
        """Packet Identifiers of forwarded messages in flight that are to be sent again alone, one after another."""
        self._is_trying = False
        """True if the first of these was sent on this Network Connection."""
        self._spent: deque[int] = deque()
        """Packet Identifiers of messages at QoS 2 that were given up, the oldest first."""
        self._limits = PrimaryLimits()

    def begin_connection(self) -> None:
        """Forget the state of the former Network Connection."""
        self.output.clear()
        self._to_resend = deque(each for each in self._unanswered_forwards() if each not in self.held)
        self._is_trying = False
        self.ping_sent_s = None
        for packet_id in self._requests:
            self._packet_ids.release(packet_id)
        self._requests.clear()

    def begin_session(self) -> list[OutgoingMessage]:
        """Forget the former session, and return its messages in flight, which may have arrived or not.

        Requests of this Network Connection stay under way and keep their Packet Identifiers.
        """
        in_flight = [(packet_id, message) for packet_id, message, _ in self._outbound.in_flight()]
        self._packet_ids.release_all(packet_id for packet_id, _ in in_flight)
        self._packet_ids.release_all(self._spent)
        self._spent.clear()
        self._outbound = Outbound(window=self._outbound.window, packet_ids=self._packet_ids)
        self._to_resend.clear()
        self.held.clear()
        self._is_trying = False
        return [message for _, message in in_flight]

    @property
    def unfinished(self) -> frozenset[int]:
        """Packet Identifiers of QoS 2 messages that may have arrived and are not completed, given-up ones included."""
        in_flight = self._outbound.in_flight()
        return frozenset(packet_id for packet_id, message, _ in in_flight if message.qos == 2).union(self._spent)

    def restore(self, unfinished: Iterable[int]) -> None:
        """Take over `unfinished` of an earlier process, so that its Packet Identifiers become free again."""
        for packet_id in sorted(unfinished):
            self._outbound.restore_release(packet_id, OutgoingMessage(b"", b"", qos=2))

    def take(self) -> bytes:
        """Remove and return all output, in one piece."""
        data = b"".join(self.output)
        self.output.clear()
        return data

    def connect(self, *, clean_start: bool, password: bytes | None, now: float) -> None:
        """Send CONNECT."""
        config = self._config
        properties = Properties(
            session_expiry_interval=config.session_expiry_s,
            receive_maximum=config.receive_maximum,
            user_property=(ASK_FOR_STAMPS, (NODE_PROPERTY, self._node_id)),
        )
        packet = Connect(
            client_id=config.client_id_of(self._node_id),
            version=self.version,
            clean_start=clean_start,
            keep_alive=config.keep_alive_s,
            username=config.username,
            password=password,
            properties=properties,
            bridge=self.version == 4 and config.retain_policy == "bridge",
        )
        self._send(encode(packet, version=self.version), now)

    def accept(self, limits: PrimaryLimits) -> None:
        """Note the limits of the primary that accepted the Network Connection."""
        self._limits = limits
        self._outbound.window = limits.receive_maximum

    def check(self, selectors: Iterable[Selector]) -> None:
        """Check that the primary takes a SUBSCRIBE for each selector.

        Raises:
            PrimaryRefused: It does not.
        """
        for selector in selectors:
            if selector.has_wildcard and not self._limits.wildcards_available:  # section 3.2.2.3.11
                raise PrimaryRefused(
                    f"the primary accepts no Topic Filters with wildcards, as {selector.filter} is one (CONNACK:"
                    " Wildcard Subscription Available 0)",
                    reason_code=ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
                    hint="Use a selector for each topic, or another primary",
                )
            self._check_size(Subscribe(1, (Subscription(selector.filter.encode()),)))

    @property
    def limits(self) -> PrimaryLimits:
        """Limits of the primary."""
        return self._limits

    def takes(self, message: OutgoingMessage) -> bool:
        """Say whether the primary takes a message; at another one it would close the connection.

        A message with too high a QoS is taken: it is published at a lower one.
        """
        limits = self._limits
        if not limits.maximum_qos or (message.retain and not limits.retain_available):
            return False  # [MQTT-3.2.2-11] [MQTT-3.2.2-14]
        return limits.packet_bytes_max is None or message.fits(limits.packet_bytes_max)  # [MQTT-3.2.2-15]

    def subscribe(
        self,
        topic_filter: bytes,
        *,
        qos: int,
        no_local: bool,
        retain_handling: int,
        then_qos: int | None = None,
        sentinel: bytes | None = None,
        manifest: bool = False,
        bounded: bool = False,
        now: float,
    ) -> int:
        """Send SUBSCRIBE and return its Packet Identifier.

        Args:
            topic_filter: The Topic Filter.
            qos: Maximum QoS.
            no_local: True to exclude own messages.
            retain_handling: 0 sends the retained messages, 2 does not; MQTT 3.1.1 always sends them.
            then_qos: Maximum QoS that the subscription has after the retained messages, by a second entry in the same
                packet; None for the first one.
            sentinel: Topic of the sentinel, requested after the retained set: in the same packet, or in a second one if
                both are too large for one; None for none.
            manifest: True to request a manifest from a fanout node (`fanout.chain.manifest`).
            bounded: True for data, whose age at a fanout node may have a bound (`max_age_s`).
            now: Monotonic seconds.

        Raises:
            PrimaryRefused: It is larger than the primary takes.
        """
        subscription = Subscription(
            topic_filter,
            qos=qos,
            no_local=no_local,
            retain_as_published=True,  # otherwise live retained updates lose the flag [MQTT-3.3.1-12]
            retain_handling=retain_handling,
        )
        wishes: tuple[tuple[str, str], ...] = (ASK_FOR_MANIFEST,) if manifest else ()
        if bounded and self._config.max_age_s:
            wishes += AgeBound(self._config.max_age_s, self._config.max_age_qos).properties
        asked = Properties(user_property=wishes) if wishes else NO_PROPERTIES
        further: list[Subscription] = []
        if then_qos is not None:
            further.append(replace(subscription, qos=then_qos, retain_handling=2))
        if sentinel is not None:
            further.append(Subscription(sentinel))
        whole = Subscribe(1, (subscription, *further), asked)
        if not further or self._fits(encode(whole, version=self.version)):
            return self._request(whole, now)
        # A primary that is asked for more than one answers several packets in order, too.
        packet_id = self._request(Subscribe(1, (subscription,), asked), now)
        for each in further:
            self._request(Subscribe(1, (each,)), now)
        return packet_id

    def subscribe_names(self, names: Sequence[bytes], *, sentinel: bytes | None, now: float, qos: int = 0) -> int:
        """Send SUBSCRIBE for retained messages by exact Topic Name, and return its Packet Identifier.

        Without Retain As Published, so that RETAIN tells them from live messages.

        Args:
            names: Topic Names.
            sentinel: Topic of the sentinel, requested after them; None for none.
            now: Monotonic seconds.
            qos: Maximum QoS of all.

        Raises:
            PrimaryRefused: It is larger than the primary takes.
        """
        return self._request(_subscribe_names(names, sentinel, qos), now)

    def takes_names(self, names: Sequence[bytes], *, sentinel: bytes | None) -> bool:
        """Say whether the primary takes a packet as large as `subscribe_names` would send."""
        return self._fits(encode(_subscribe_names(names, sentinel, 0), version=self.version))

    def unsubscribe(self, *topic_filters: bytes, now: float) -> int:
        """Send UNSUBSCRIBE and return its Packet Identifier.

        Raises:
            PrimaryRefused: It is larger than the primary takes.
        """
        return self._request(Unsubscribe(1, topic_filters), now)

    def answered(self, packet_id: int) -> int:
        """Note the answer to a SUBSCRIBE or UNSUBSCRIBE; return its number of filters, 0 if none was under way."""
        filters = self._requests.pop(packet_id, 0)
        if filters:
            self._packet_ids.release(packet_id)
        return filters

    def ping(self, now: float) -> None:
        """Send PINGREQ; none may be under way."""
        assert self.ping_sent_s is None
        self.ping_sent_s = now
        self._send(encode(Pingreq(), version=self.version), now)

    def receive_pingresp(self) -> None:
        """Note that no PINGREQ is under way any more."""
        self.ping_sent_s = None

    def postpone(self, pause_s: float) -> None:
        """Count a pause in which nothing was read out of the time that PINGRESP takes."""
        if self.ping_sent_s is not None:
            self.ping_sent_s += pause_s

    @property
    def free(self) -> int:
        """Number of messages that the primary's Receive Maximum allows to be published now."""
        return self._outbound.free

    @property
    def window(self) -> int:
        """The primary's Receive Maximum."""
        return self._outbound.window

    def publish(self, message: OutgoingMessage, *, now: float) -> None:
        """Send a PUBLISH, at most at the primary's Maximum QoS; `free` must not be 0, and `takes` must be true."""
        if message.qos > self._limits.maximum_qos:
            message = replace(message, qos=self._limits.maximum_qos)
        packet_id = self._outbound.send(message, message.qos)
        self._send(message.encode(packet_id, version=self.version), now)

    def acknowledged(self, run: AckRun, *, now: float) -> list[tuple[OutgoingMessage, int]]:
        """Take PUBACK, PUBREC or PUBCOMP packets; send PUBREL where it is due.

        Returns:
            The completed messages, each with the Reason Code of the primary.
        """
        done: list[tuple[OutgoingMessage, int]] = []
        outbound = self._outbound
        for index, packet_id in enumerate(run.packet_ids):
            # PUBCOMP ends what PUBREC has accepted: 0x92 says that the primary had released it before.
            reason_code = 0 if run.reason_codes is None or run.type is PacketType.PUBCOMP else run.reason_codes[index]
            try:
                message = outbound.message(packet_id)
            except KeyError:
                if run.type is PacketType.PUBREC:
                    self._release(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND, now)
                continue
            if self._to_resend and packet_id in self._to_resend:
                self._to_resend.remove(packet_id)
            if self.held and packet_id == self.held[0]:
                self.held.popleft()
                self._is_trying = False
            outcome = outbound.acknowledge(run.type, packet_id, reason_code)
            if outcome is AckOutcome.RELEASE:
                self._release(packet_id, ReasonCode.SUCCESS, now)
            elif outcome in (AckOutcome.COMPLETED, AckOutcome.REFUSED):
                done.append((message, reason_code))
        self._resend(now)
        return done

    def resend_in_flight(self, now: float) -> list[OutgoingMessage]:
        """Send again the messages in flight [MQTT-4.4.0-1], as the present Receive Maximum allows.

        Returns:
            The messages that the present limits of the primary exclude; they may have arrived or not.
        """
        given_up: list[OutgoingMessage] = []
        self._to_resend.clear()
        for packet_id, message, state in list(self._outbound.in_flight()):
            if state is SendState.AWAIT_PUBCOMP:
                self._release(packet_id, ReasonCode.SUCCESS, now)
            elif not (self.takes(message) and message.qos <= self._limits.maximum_qos):
                given_up.append(self._drop(packet_id, state))
            elif packet_id not in self.held:
                self._to_resend.append(packet_id)
        self._resend(now)
        return given_up

    def unanswered(self) -> list[int]:
        """Return the Packet Identifiers of forwarded messages sent on this Network Connection and not answered."""
        unsent = {*self._to_resend, *self.held} - {*self._tried}
        return [packet_id for packet_id in self._unanswered_forwards() if packet_id not in unsent]

    def hold(self) -> None:
        """Have every forwarded message without an answer sent again alone (`try_held`), not by `resend_in_flight`."""
        self.held = deque(self._unanswered_forwards())

    def try_held(self, now: float) -> None:
        """Send the first of `held` again, unless it is under way or Receive Maximum allows nothing."""
        outbound = self._outbound
        unsent = len(self._to_resend) + len(self.held)
        if self.held and not self._is_trying and len(outbound) - unsent < outbound.window:  # [MQTT-3.3.4-9]
            self._is_trying = True
            packet_id = self.held[0]
            self._send(outbound.message(packet_id).encode(packet_id, version=self.version, dup=True), now)

    def drop_released(self) -> list[OutgoingMessage]:
        """Remove and return the messages that wait for PUBCOMP: without a session, a server may have dropped them."""
        released = [each for each, _, state in self._outbound.in_flight() if state is SendState.AWAIT_PUBCOMP]
        dropped = [self._outbound.message(packet_id) for packet_id in released]
        for packet_id in released:
            self._outbound.acknowledge(PacketType.PUBCOMP, packet_id)
        return dropped

    def message(self, packet_id: int) -> OutgoingMessage:
        """Return the message in flight with a Packet Identifier."""
        return self._outbound.message(packet_id)

    def quarantine(self, packet_id: int) -> None:
        """Never send a message again.

        At QoS 1 a receiver keeps nothing of a message. At QoS 2 it may know the Packet Identifier, which is not used
        again in this session, unless very many others were given up since.
        """
        message = self._drop(packet_id, SendState.AWAIT_PUBACK if self.message(packet_id).qos == 1 else None)
        if message.qos == 2:
            self._packet_ids.claim(packet_id)
            self._spent.append(packet_id)
            if len(self._spent) > _SPENT_MAX:
                self._packet_ids.release(self._spent.popleft())

    def _drop(self, packet_id: int, state: SendState | None) -> OutgoingMessage:
        message = self._outbound.message(packet_id)
        answer = PacketType.PUBACK if state is SendState.AWAIT_PUBACK else PacketType.PUBREC
        self._outbound.acknowledge(answer, packet_id, ReasonCode.UNSPECIFIED_ERROR)
        if packet_id in self.held:
            self._is_trying &= packet_id != self.held[0]
            self.held.remove(packet_id)
        return message

    def _unanswered_forwards(self) -> list[int]:
        in_flight = self._outbound.in_flight()
        return [each for each, message, state in in_flight if message.token and state is not SendState.AWAIT_PUBCOMP]

    @property
    def _tried(self) -> list[int]:
        return [self.held[0]] if self._is_trying else []

    def _resend(self, now: float) -> None:
        outbound = self._outbound
        while self._to_resend and len(outbound) - len(self._to_resend) < outbound.window:  # [MQTT-3.3.4-9]
            packet_id = self._to_resend.popleft()
            self._send(outbound.message(packet_id).encode(packet_id, version=self.version, dup=True), now)

    def complete(self, packet_id: int, *, known: bool, now: float) -> None:
        """Send PUBCOMP [MQTT-4.3.3-11]."""
        reason_code = ReasonCode.SUCCESS if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        self._send(encode(Ack(PacketType.PUBCOMP, packet_id, reason_code), version=self.version), now)

    def acknowledge(self, packet_ids: Sequence[int], *, now: float) -> None:
        """Send PUBACK for messages at QoS 1 that came."""
        self._send(encode_acks(PacketType.PUBACK, packet_ids), now)

    def disconnect(self, reason_code: ReasonCode, *, end_session: bool, now: float) -> None:
        """Send DISCONNECT.

        Args:
            reason_code: Reason Code. MQTT 3.1.1 has none; for a failure nothing is sent there.
            end_session: True if the primary ends the session at once (MQTT 5).
            now: Monotonic seconds.
        """
        if self.version == 4:
            if not reason_code.is_failure:
                self._send(encode(Disconnect(), version=4), now)
            return
        properties = Properties(session_expiry_interval=0 if end_session else None)
        self._send(encode(Disconnect(reason_code, properties), version=5), now)

    def _release(self, packet_id: int, reason_code: ReasonCode, now: float) -> None:
        self._send(encode(Ack(PacketType.PUBREL, packet_id, reason_code), version=self.version), now)

    def _request(self, packet: Subscribe | Unsubscribe, now: float) -> int:
        """Send a packet under a new Packet Identifier, and return that."""
        self._check_size(packet)
        packet_id = self._packet_ids.allocate()
        filters = packet.subscriptions if isinstance(packet, Subscribe) else packet.topic_filters
        self._requests[packet_id] = len(filters)
        self._send(encode(replace(packet, packet_id=packet_id), version=self.version), now)
        return packet_id

    def _check_size(self, packet: Subscribe | Unsubscribe) -> None:
        """Refuse a primary that takes no packet of this size: it would close the connection [MQTT-3.2.2-15].

        Raises:
            PrimaryRefused: The packet is too large.
        """
        encoded = encode(packet, version=self.version)
        if self._fits(encoded):
            return
        if isinstance(packet, Subscribe):
            name, topic_filter = "SUBSCRIBE", packet.subscriptions[0].topic_filter
        else:
            name, topic_filter = "UNSUBSCRIBE", packet.topic_filters[0]
        most = self._limits.packet_bytes_max
        raise PrimaryRefused(
            f"the primary accepts packets of at most {most} bytes (CONNACK: Maximum Packet Size),"
            f" and {name} for {clean_text(topic_filter.decode())} has {len(encoded)}",
            reason_code=ReasonCode.PACKET_TOO_LARGE,
            hint="Raise that limit of the primary (max_packet_size of Mosquitto, mqtt.max_packet_size of EMQX,"
            " server.packet_bytes_max of a fanout node), or use a shorter Topic Filter or control_topic",
        )

    def _fits(self, packet: bytes) -> bool:
        most = self._limits.packet_bytes_max
        return most is None or len(packet) <= most

    def _send(self, packet: bytes, now: float) -> None:
        self.output.append(packet)
        self.last_sent_s = now


def _subscribe_names(names: Sequence[bytes], sentinel: bytes | None, qos: int) -> Subscribe:
    asked = names if sentinel is None else (*names, sentinel)
    return Subscribe(1, tuple(Subscription(name, qos=qos) for name in asked))
