"""Handlers for the packets of accepted clients (MQTT 5, chapter 3): they call the part in charge, and answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fanout.errors import ProtocolError
from fanout.mqtt.decoder import AckRun, Item, PublishRow, PublishRun
from fanout.mqtt.packets import Disconnect, Pingreq, Suback, Subscribe, Unsuback, Unsubscribe, encode
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.context import ServerContext
from fanout.server.base.ports import PublishVerdict
from fanout.server.client.authorization_flow import AuthorizationFlow
from fanout.server.client.connection import ClientConnection
from fanout.server.client.payload_format import breaks_payload_format
from fanout.server.client.session_lifecycle import SessionLifecycles
from fanout.server.routing.audiences import NO_ROUTES
from fanout.server.session.registry import SessionRegistry
from fanout.server.session.sender import PINGRESP
from fanout.server.session.session import Session

__all__ = ["PacketHandlers"]


class PacketHandlers:
    """Handles the packets of all clients of one server."""

    def __init__(
        self,
        context: ServerContext,
        *,
        registry: SessionRegistry,
        authorization: AuthorizationFlow,
        lifecycles: SessionLifecycles,
        subscribed: Callable[[Sequence[bytes]], None] | None,
        retain_available: bool,
    ) -> None:
        """Prepare.

        Args:
            context: Shared objects of the server.
            registry: Carries out SUBSCRIBE and UNSUBSCRIBE.
            authorization: Checks SUBSCRIBE packets, and publishes messages that are allowed.
            lifecycles: Has the connections of sessions.
            subscribed: Called with the granted Topic Filters of each SUBSCRIBE, shared subscriptions left out.
            retain_available: True when clients may publish retained messages.
        """
        self._context = context
        self._counters = context.counters
        self._refusals = context.refusals
        self._registry = registry
        self._authorization = authorization
        self._lifecycles = lifecycles
        self._subscribed = subscribed
        self._retain_available = retain_available
        self._has_limits = context.config.qos_max < 2 or not retain_available
        self._publishers_paused = False
        self._waiting_publishers: dict[ClientConnection, None] = {}

    def receive(self, connection: ClientConnection, session: Session, item: Item) -> None:
        """Process a packet, or a run of packets, of the client with `session`."""
        match item:
            case PublishRun():
                self._receive_publishes(connection, session, item)
            case AckRun():
                connection.answer(session.acknowledge(item))
                connection.pump_later()
            case Pingreq():
                if session.sender.ping():
                    connection.answer(PINGRESP)
            case Subscribe():
                if self._may_answer(connection, session, Suback(1, (0,) * len(item.subscriptions))):
                    self._receive_subscribe(connection, session, item)
            case Unsubscribe():
                if self._may_answer(connection, session, Unsuback(1, (0,) * len(item.topic_filters))):
                    unsuback = self._registry.unsubscribe(session, item)
                    self._lifecycles.note_subscriptions(session)
                    connection.answer(encode(unsuback, version=session.wire.version))
                    connection.pump_later()
            case Disconnect():
                self._receive_disconnect(connection, session, item)
            case _:  # AUTH, without an Authentication Method in CONNECT [MQTT-4.12.0-7]
                connection.fail(_protocol_error("AUTH without an Authentication Method"))

    def pause_publishers(self, paused: bool) -> None:
        """Apply backpressure: suspend each client at its next PUBLISH, until called with False."""
        self._publishers_paused = paused
        if not paused:
            waiting, self._waiting_publishers = self._waiting_publishers, {}
            for connection in waiting:
                connection.resume()

    def remove_connection(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        self._waiting_publishers.pop(connection, None)

    @staticmethod
    def _may_answer(connection: ClientConnection, session: Session, answer: Suback | Unsuback) -> bool:
        """Return whether an answer fits the Maximum Packet Size [MQTT-3.1.2-24]; if not, end the connection."""
        wire = session.wire
        if not wire.packet_bytes_max or wire.takes(len(encode(answer, version=wire.version))):
            return True
        connection.fail(
            ProtocolError(ReasonCode.PACKET_TOO_LARGE, "the answer is over the client's Maximum Packet Size")
        )
        return False

    def _receive_subscribe(self, connection: ClientConnection, session: Session, packet: Subscribe) -> None:
        def decided(refused: Mapping[int, ReasonCode]) -> None:
            suback = self._registry.subscribe(session, packet, bridge=connection.bridge, refused=refused)
            if over := suback.reason_codes.count(ReasonCode.QUOTA_EXCEEDED):
                self._context.logger.warning(
                    "subscriptions_over_limits",
                    client_id=session.client_id,
                    refused=over,
                    subscriptions=len(session.subscriptions) + len(session.shared),
                    hint="raise server.subscriptions_max, filter_bytes_max or filter_levels_max if the client is right",
                )
            connection.limit_age()
            self._lifecycles.note_subscriptions(session)
            connection.answer(encode(suback, version=session.wire.version))
            connection.pump_later()
            if self._subscribed is not None:
                answered = zip(packet.subscriptions, suback.reason_codes, strict=True)
                filters = [subscription.topic_filter for subscription, code in answered if code < 0x80]
                self._subscribed([each for each in filters if not each.startswith(b"$share/")])

        self._authorization.subscribe(connection, session, packet, then=decided)

    def _receive_publishes(self, connection: ClientConnection, session: Session, run: PublishRun) -> None:
        self._counters.received += len(run.rows)
        connection.send_answers()  # answers to earlier packets go before messages that this run causes
        receiver = session.receiver
        # A client of MQTT 3.1.1 does not know these limits. Closed, it would send the message again for ever.
        drops = session.wire.version == 4 and self._context.config.refused_publish == "acknowledge"
        fresh, fault = receiver.accept(
            run.rows,
            qos_max=2 if drops else self._context.config.qos_max,
            receive_maximum=self._context.config.receive_maximum,
            retain_available=drops or self._retain_available,
        )
        if fresh:
            verdicts = self._publish(connection, session, fresh)
            user = None if session.access is None else session.access.identity.user
            receiver.note_verdicts(fresh, verdicts)
            for row, verdict in zip(fresh, verdicts, strict=True):
                if not isinstance(verdict, int) or verdict >= 0x80:
                    then = partial(self._verdict_came, session) if row[2] & 6 else None
                    self._refusals.watch(row, verdict, client_id=session.client_id, user=user, then=then)
        connection.answer_publishes(session)
        if fault is not None and not connection.is_closing():
            connection.fail(fault)

    def _publish(self, connection: ClientConnection, session: Session, rows: list[PublishRow]) -> list[PublishVerdict]:
        """Publish the messages that are allowed, and return one verdict for each of `rows`.

        A message with an invalid Payload Format Indicator is refused. An MQTT 5 client is told when its message has no
        subscribers (0x10), which costs one lookup in the route cache for each message.
        """
        invalid = ReasonCode.PAYLOAD_FORMAT_INVALID
        bad = {index: invalid for index, row in enumerate(rows) if row[4] and breaks_payload_format(row)}
        if session.wire.version == 4 and self._has_limits:
            bad = self._beyond_limits(rows)
        if bad:
            good = [row for index, row in enumerate(rows) if index not in bad]
            taken = iter(self._authorization.publish(session, good, connection=connection) if good else ())
            verdicts = [bad[index] if index in bad else next(taken) for index in range(len(rows))]
        else:
            verdicts = list(self._authorization.publish(session, rows, connection=connection))
        if session.wire.version == 5:
            routes, success = self._registry.index.routes, ReasonCode.SUCCESS
            for index, row in enumerate(rows):
                if row[2] & 0x06 and verdicts[index] is success and routes(row[0]) is NO_ROUTES:
                    verdicts[index] = ReasonCode.NO_MATCHING_SUBSCRIBERS
        if self._publishers_paused and not connection.is_suspended:
            connection.suspend()
            self._waiting_publishers[connection] = None
        return verdicts

    def _beyond_limits(self, rows: list[PublishRow]) -> dict[int, ReasonCode]:
        """Return the positions of messages that a client of MQTT 5 may not send [MQTT-3.2.2-11] [MQTT-3.2.2-14]."""
        beyond: dict[int, ReasonCode] = {}
        for index, row in enumerate(rows):
            if row[2] >> 1 & 3 > self._context.config.qos_max:
                beyond[index] = ReasonCode.QOS_NOT_SUPPORTED
            elif row[2] & 1 and not self._retain_available:
                beyond[index] = ReasonCode.RETAIN_NOT_SUPPORTED
        return beyond

    def _verdict_came(self, session: Session) -> None:
        """Send acknowledgements after a pending verdict on a message of `session`, on its current connection.

        Without one the session has changed all the same: a message at QoS 2 is known that was sent and not answered.
        """
        connection = self._lifecycles.connection_of.get(session)
        if connection is not None:
            connection.send_acks()
        else:
            self._lifecycles.keepers.note(session.client_id)

    def _receive_disconnect(self, connection: ClientConnection, session: Session, packet: Disconnect) -> None:
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None:
            limit_s = self._context.config.session_expiry_max_s
            if expiry_s and limit_s and not session.expiry_s:  # section 3.14.2.2.2
                connection.fail(_protocol_error("Session Expiry Interval was 0 in CONNECT"))
                return
            session.expiry_s = min(expiry_s, limit_s)
        if packet.reason_code == ReasonCode.SUCCESS:
            session.will = None  # [MQTT-3.14.4-3]
        connection.close()


def _protocol_error(detail: str) -> ProtocolError:
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, detail)
