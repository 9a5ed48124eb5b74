"""What the server needs from the node that joins it with the rest: values, verdicts and time.

Owns these interfaces only. The node implements them; nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Update

__all__ = ["Clock", "Ingress", "Logger", "PendingVerdict", "PublishVerdict", "RetainedStore"]


class PendingVerdict(Protocol):
    """A Reason Code that comes later; `asyncio.Future` is one."""

    def done(self) -> bool:
        """Return whether it has come."""

    def result(self) -> ReasonCode:
        """Return it."""


PublishVerdict: TypeAlias = ReasonCode | PendingVerdict
"""What becomes of a PUBLISH: a Reason Code of PUBACK, or an `asyncio.Future` of one, which must not fail."""


class Clock(Protocol):
    """The two clocks."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""


class Logger(Protocol):
    """Writes log lines: a constant message with fields, as structlog does."""

    def debug(self, event: str, **fields: Any) -> Any:
        """Log something for a developer."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log an event of the node's life."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log that something is degraded or was dropped."""

    def error(self, event: str, **fields: Any) -> Any:
        """Log what a person must act on."""


class RetainedStore(Protocol):
    """The retained values that clients read."""

    def match(self, topic_filter: bytes) -> Iterator[list[Update]]:
        """Yield the retained values whose topics a Topic Filter (valid, not shared) matches, in pieces.

        A piece has some hundred values at most; one may be empty, so that a long search comes in pieces too.
        While topics neither come nor go, the pieces of one filter are cut at the same places: so several clients
        can be given the same bytes.

        Much happens between two steps of the iterator, which must bear it: a topic that has a value from
        beginning to end is yielded exactly once, with the value of that moment; one that comes or goes
        meanwhile may or may not be. A batch is in the store before it is dispatched, and nothing of the
        server runs in between: so nobody sees a value twice, and nobody misses one.
        """

    def get_many(self, topics: Sequence[bytes]) -> list[Update]:
        """Return the retained values of those of some topics, none of them twice, that have one, in that order.

        All are asked for at once, since a store on disk looks each up with a statement otherwise. Topics that one piece
        of `match` had stay in order.
        """


class Ingress(Protocol):
    """Takes what local clients publish."""

    def publish(self, client_id: str, rows: list[PublishRow], now_ns: int) -> Sequence[PublishVerdict]:
        """Take a run of PUBLISH packets, Will Messages included: store, log, and dispatch what is accepted.

        Topic Names are valid; whether they may be published (`$SYS/...`, a topic of a replica) is decided
        here. Called on the event loop; `Server.dispatch` may be called from inside.

        Args:
            client_id: Client Identifier of the publisher, to be handed to `Server.dispatch` as origin.
            rows: In the order of arrival.
            now_ns: Unix time in nanoseconds, when they came.

        Returns:
            One verdict for each of `rows`. A verdict that comes later holds back the acknowledgements of
            later messages, which must keep their order [MQTT-4.6.0-2]; at QoS 0 it has no effect.
        """
