"""Delivery of retained messages to one session after a SUBSCRIBE (MQTT 5, sections 3.3.1.3 and 3.8.4).

Owns the iteration over the matching retained values. Pieces are read one by one when they are sent, so a delivery to a
slow client holds no values. `sender` leaves out values that a live message replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fanout.chain.manifest import MANIFEST_TOPIC, Manifest, ManifestSum
from fanout.mqtt.publish import encode_publish
from fanout.replica.update import Update
from fanout.server.base.ports import RetainedStore
from fanout.server.messages.encoding import Message, WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.retained_cache import RetainedPieces

__all__ = ["EMPTY_PIECE_COST", "RetainedDelivery"]

EMPTY_PIECE_COST: Final = 64
"""Cost of a search step that found nothing, in messages."""


class RetainedDelivery:
    """The retained messages for one subscription that are not delivered yet.

    It outlives the Network Connection: the rest is delivered, as retained, when the session is resumed.
    """

    __slots__ = (
        "__weakref__",
        "_identifiers",
        "_left",
        "_left_from",
        "_pieces",
        "_store",
        "_sum",
        "_sum_begun",
        "_values",
        "_whole",
        "pings",
        "qos_max",
        "topic_filter",
    )

    def __init__(
        self,
        topic_filter: bytes,
        *,
        options: SubscriptionOptions,
        store: RetainedStore,
        pieces: RetainedPieces,
        manifest: bool = False,
    ) -> None:
        """Prepare the delivery; nothing is looked up before the first `take`.

        Args:
            topic_filter: Topic Filter of the subscription.
            options: Options that the subscription was granted.
            store: The retained values.
            pieces: Encoded pieces that deliveries share.
            manifest: True when a manifest with count and digest of the retained messages follows them.
        """
        self.topic_filter = topic_filter
        """The Topic Filter of the subscription."""
        self.pings = 0
        """PINGREQs to answer when the delivery is complete; see `SessionSender.ping`."""
        self.qos_max = options.qos
        """The Maximum QoS of the subscription."""
        self._identifiers = (options.identifier,) if options.identifier else ()
        self._store = store
        self._pieces = pieces
        pieces.add_user(self)
        self._values: Iterator[list[Update]] | None = None
        self._left: list[bytes] = []  # topics of a piece that was sent partly, from the index `_left_from`
        self._left_from = 0
        self._whole = False  # whether the last `take` returned a whole piece, as for other deliveries
        self._sum = ManifestSum() if manifest else None
        self._sum_begun = False

    def take(self, count: int) -> list[Update] | None:
        """Take the next values; None when there are none left.

        Args:
            count: Limit for values that were put back; a new piece is returned whole.

        Returns:
            The values; may be empty after a long search.
        """
        while self._left_from < len(self._left):  # looked up again, because they may have changed since
            topics = self._left[self._left_from : self._left_from + count]
            self._left_from += len(topics)
            if values := self._store.get_many(topics):
                self._whole = False
                return values
        if self._values is None:
            self._values = self._store.match(self.topic_filter)
        self._whole = True
        return next(self._values, None)

    def put_back(self, values: Sequence[Update]) -> None:
        """Put back the last of the taken values, which were not sent; the next `take` starts with their topics."""
        self._left = [value[0] for value in values] + self._left[self._left_from :]
        self._left_from = 0

    @property
    def has_manifest(self) -> bool:
        """True when a manifest follows the retained messages."""
        return self._sum is not None

    def topics_left(self, limit: int) -> tuple[bytes, ...] | None:
        """Return the topics that are left, up to a limit; the delivery cannot be continued afterwards.

        Returns:
            The topics; None when nothing was taken yet, or when there are more than `limit`. Search steps that find
            nothing count towards it too.
        """
        if self._values is None:
            return None
        topics = self._left[self._left_from :]
        left = limit - len(topics)
        for values in self._values:
            topics += [value[0] for value in values]
            left -= len(values) or EMPTY_PIECE_COST
            if left < 0:
                return None
        return tuple(topics)

    def continue_with(self, topics: Sequence[bytes]) -> None:
        """Deliver the values of these topics only: what `topics_left` of another delivery returned."""
        self._values = iter(())
        self._left = list(topics)
        self._left_from = 0

    def begin_manifest(self) -> bytes:
        """Return the manifest message before the first retained one; empty when none is due."""
        if self._sum is None or self._sum_begun:
            return b""
        self._sum_begun = True
        return self._manifest(None)

    def end_manifest(self) -> bytes:
        """Return the manifest message after the last retained one; empty when none was asked for."""
        return b"" if self._sum is None else self.begin_manifest() + self._manifest(self._sum)

    def note(self, values: Sequence[Update]) -> None:
        """Add values to the manifest that were sent, or that were dropped although they exist."""
        if self._sum is not None:
            for value in values:
                self._sum.add(value[0], value[1])

    def _manifest(self, total: ManifestSum | None) -> bytes:
        topic_filter = self.topic_filter.decode()
        manifest = Manifest(topic_filter, None) if total is None else Manifest(topic_filter, total.count, total.digest)
        return encode_publish(MANIFEST_TOPIC, manifest.encode(), version=5)

    def message(self, value: Update) -> Message:
        """Return the message for a value."""
        qos = value[2]
        return (value, qos if qos < self.qos_max else self.qos_max, True, self._identifiers)  # [MQTT-3.3.1-8]

    def batch(self, values: Sequence[Update], *, wire: WireVariant) -> MessageBatch | None:
        """Return the batch of `values`, which were just taken; it is shared with other deliveries.

        Returns:
            The batch; None when each value must be encoded alone, because no other delivery has the same part of a
            piece.
        """
        if not self._whole or len(values) == 1:
            return None
        return self._pieces.batch(values, wire=wire, qos_max=self.qos_max, identifiers=self._identifiers)
