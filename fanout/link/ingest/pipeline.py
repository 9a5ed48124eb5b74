"""The way of a link's rows into its replica: converted, filtered, stamped, applied (core, the hot path of a link).

Owns the order of these steps, the QoS 2 state of the session, and the limit on messages without an acknowledgement. It
must not know in which state the link is, nor what messages outside the selectors mean
(`fanout.link.session.packet_router`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fanout.chain.stamp import StampCount, split_publisher_stamp, split_trailer
from fanout.config import LinkConfig
from fanout.errors import ProtocolError
from fanout.link.ingest.content_filter import ContentFilter
from fanout.link.ingest.convert import Batch, Converter
from fanout.link.ingest.redelivery import RedeliveryFilter
from fanout.link.model.events import Applied
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.delivery import Inbound
from fanout.mqtt.packets import PacketType, encode_acks
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Stamp, Update

__all__ = ["IngestPipeline", "encode_acknowledgement"]


class IngestPipeline:
    """Takes the rows of one link.

    Attributes:
        converter: Turns rows into updates; the pass over the retained sets tells it at which QoS they are subscribed.
        content: What is not replicated of what the selectors cover; None when they take everything.
        redelivery: What may come again in the resumed session.
        primary_stamps: Whether the primary is a fanout node that promised stamps: the trailer of its messages is read.
        newest_stamp: Stamp of the newest live update that came; None when it had none, and before the first.
    """

    def __init__(
        self, config: LinkConfig, *, replica: Replica, control_prefix: bytes, stamps: StampCount | None
    ) -> None:
        """Prepare for one link.

        Args:
            config: The link's configuration.
            replica: The link's replica, changed here.
            control_prefix: Where control topics begin; nothing below it is replicated.
            stamps: The node's count, used with `stamp_updates`; None stamps nothing.
        """
        self._overtaken_total = 0
        self.primary_stamps = False
        self.newest_stamp: Stamp | None = None
        self._inbound = Inbound()
        self.converter = Converter(
            config.selectors, replica=replica, control_prefix=control_prefix, inbound=self._inbound
        )
        self.converter.retain_all = config.version == 4 and config.retain_policy == "keep"
        self.content = (
            ContentFilter(config.selectors, replica=replica, copies_come=config.version == 4)
            if any(selector.is_choosy for selector in config.selectors)
            else None
        )
        self._replica = replica
        self._stamps = stamps if config.stamp_updates else None
        self._publishers_stamp = config.publisher_stamps
        self._stamps_itself = False
        """Whether live updates of the primary get this node's stamps."""
        self.redelivery = RedeliveryFilter(
            may_be_resumed=config.version == 5 and config.session_expiry_s > 0, held=self.converter.held
        )
        # Receive Maximum is of MQTT 5: MQTT 3.1.1 has no limit.
        self._receive_maximum = config.receive_maximum if config.version == 5 else None
        self._open_max = self._receive_maximum

    @property
    def overtaken_total(self) -> int:
        """Retained messages left out because something newer for their topic had come in front of them."""
        return self._overtaken_total + self.redelivery.outdated_total

    @property
    def unreleased(self) -> frozenset[int]:
        """Packet Identifiers of QoS 2 messages that were applied, and not released by the primary."""
        return self._inbound.unreleased

    def restore(self, unreleased: Iterable[int]) -> None:
        """Take over what an earlier process had in `unreleased`, with subscriptions whose QoS was settled."""
        self._inbound.restore(unreleased)
        self.redelivery.restore()
        self.converter.fixed_qos = [None] * len(self.converter.fixed_qos)

    def begin_session(self) -> None:
        """Forget the messages of the former session."""
        self._inbound = Inbound()
        self.converter.inbound = self._inbound
        self.redelivery.begin_session()

    def begin_connection(self, *, stamped: bool, resumed: bool = False, counts_up: bool = False) -> None:
        """Note that the primary accepted a Network Connection.

        Args:
            stamped: Whether it puts a stamp on what it sends.
            resumed: Whether the session goes on, so that it may send again what came on the former one.
            counts_up: Whether it is known to count Packet Identifiers up.
        """
        self._inbound.new_connection()
        self.redelivery.begin_connection(resumed=resumed, counts_up=counts_up)
        # Mosquitto 2.0.11 sends more in a resumed session; to refuse that would end each connection in the same way.
        self._open_max = None if resumed else self._receive_maximum
        self.converter.settling.clear()
        self.primary_stamps = stamped
        self._replica.counts_down |= stamped  # only fanout nodes stamp
        if stamped:
            self.converter.split_stamp = split_trailer
        else:
            self.converter.split_stamp = split_publisher_stamp if self._publishers_stamp else None
        self._stamps_itself = self._stamps is not None and not stamped

    def lift_receive_maximum(self) -> None:
        """Take any number of messages without an acknowledgement: this Network Connection is to a Mosquitto.

        Once messages wait, 2.0.11 sends as many as Receive Maximum with each PUBACK, whatever else is unacknowledged.
        To refuse them would end the connection in a burst, and bring the same once more.
        """
        self._open_max = None

    def acknowledge(self, rows: Sequence[PublishRow], *, now_ns: int, epoch: int) -> Applied:
        """Take rows that are known, which changes nothing."""
        batch = self.converter.convert(rows, now_ns=now_ns)
        return Applied(self._apply([], phase=Phase.AUDIT), encode_acknowledgement(batch), epoch)

    def take(
        self, rows: Sequence[PublishRow], *, phase: Phase | None, now_ns: int, epoch: int, queued: bool = False
    ) -> tuple[list[Applied], list[PublishRow]]:
        """Take the rows of one run, and return what they changed, in order, and those outside the selectors.

        Args:
            rows: In the order of arrival.
            phase: Why they came; None when the replica must tell which are copies, and then none needs acknowledging.
            now_ns: Unix time in nanoseconds of the read that brought them.
            epoch: The epoch they belong to.
            queued: Whether they were sent before the request of the running pass, and may come behind its copies.

        Raises:
            ProtocolError: The primary has sent more than Receive Maximum allows.
        """
        self._check_open(rows)
        batch = self.converter.convert(rows, now_ns=now_ns)
        if phase is None:
            parts = self._replica.split_pass(batch.updates)  # each is applied before the next one is told apart
            return [Applied(self._apply(part, phase=each), b"", epoch) for each, part in parts], batch.others
        self.redelivery.note(rows, batch, now_ns=now_ns)
        updates = batch.updates
        if queued:
            updates = [update for update in updates if not self._replica.overtakes(update)]
            self._overtaken_total += len(batch.updates) - len(updates)
        if updates and phase is Phase.LIVE:
            self.newest_stamp = updates[-1][8]
        changes = self._apply(updates, phase=phase, of_pass=not queued)
        acknowledgement = encode_acknowledgement(batch)
        if changes.updates or acknowledgement:
            return [Applied(changes, acknowledgement, epoch)], batch.others
        return [], batch.others

    def _check_open(self, rows: Sequence[PublishRow]) -> None:
        """Refuse rows beyond Receive Maximum before any of them counts as received: they are sent again.

        Raises:
            ProtocolError: They are beyond it.
        """
        if self._open_max is None or len(rows) + self._inbound.open_count <= self._open_max:
            return
        at_qos_1 = sum(1 for row in rows if row[2] & 6 == 2)
        at_qos_2 = self._inbound.unreleased.union(row[3] for row in rows if row[2] & 6 == 4)
        open_count = at_qos_1 + len(at_qos_2)
        if open_count > self._open_max:
            raise ProtocolError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, f"{open_count} messages at a time")

    def release(self, packet_id: int) -> bool:
        """Note PUBREL, and return whether its message is known."""
        return self._inbound.release(packet_id)

    def stamp_of(self, row: PublishRow) -> Stamp | None:
        """Return the primary's stamp on a row outside the selectors; None when it has none."""
        return split_trailer(row[4], row[6])[1] if self.primary_stamps else None

    def _apply(self, updates: list[Update], *, phase: Phase, of_pass: bool = True) -> Changes:
        """Apply what the selectors accept, stamped if the primary does not stamp."""
        if self.content is not None:
            updates = self.content.admit(updates, phase=phase)
        if self._stamps_itself:
            assert self._stamps is not None
            updates = self._stamps.complete(updates, live=phase is Phase.LIVE)
        return self._replica.apply(updates, phase=phase, of_pass=of_pass)


def encode_acknowledgement(batch: Batch) -> bytes:
    """Return the PUBACKs and PUBRECs for a batch, in one piece; empty when it needs none."""
    if not (batch.to_puback or batch.to_pubrec):
        return b""
    return encode_acks(PacketType.PUBACK, batch.to_puback) + encode_acks(PacketType.PUBREC, batch.to_pubrec)
