"""Engine of one AMQP connection: python-qpid-proton without its sockets, TLS and SASL (AMQP 1.0, part 2).

The one module that touches the library beside the types of its links; all that a peer can make it raise becomes
`AmqpInvalid`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import cproton
from proton import (
    Collector,
    Condition,
    Connection,
    Described,
    Link,
    ProtonException,
    Session,
    Terminus,
    Transport,
    symbol,
)

from fanout.amqp.values import AmqpInvalid

__all__ = ["Engine", "Happening", "LinkRequest", "attach", "deliver", "end", "key_of", "read_link", "refuse", "settle"]

FRAME_BYTES_MAX: Final = 64 * 1024
"""Largest frame that is read."""
SESSIONS_MAX: Final = 64
"""Sessions of one connection: one for each JMS session."""
IDLE_S: Final = 60.0
"""Time after which a silent peer is gone; it is told to send something in half of it."""
SESSION_BYTES: Final = 1024 * 1024
"""Incoming bytes that one session may hold before they are read."""
_FAULTS = (ProtonException, ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError)
_NO_LOCAL: Final = frozenset({0x468C_00000003, "apache.org:no-local-filter:list"})

_SESSION: Any = Session
_LINK: Any = Link
T = TypeVar("T")


class Happening(enum.IntEnum):
    """Kinds of events of the engine that the door acts on."""

    OPEN = cproton.PN_CONNECTION_REMOTE_OPEN
    CLOSE = cproton.PN_CONNECTION_REMOTE_CLOSE
    SESSION_BEGIN = cproton.PN_SESSION_REMOTE_OPEN
    SESSION_END = cproton.PN_SESSION_REMOTE_CLOSE
    ATTACH = cproton.PN_LINK_REMOTE_OPEN
    LINK_CLOSE = cproton.PN_LINK_REMOTE_CLOSE
    LINK_DETACH = cproton.PN_LINK_REMOTE_DETACH
    FLOW = cproton.PN_LINK_FLOW
    DELIVERY = cproton.PN_DELIVERY
    FAULT = cproton.PN_TRANSPORT_ERROR


_HAPPENINGS: Final = frozenset(Happening)


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A link that a peer attaches, as far as the door looks at it."""

    name: str
    """Its name."""
    address: str
    """Address of the source that it reads, or of the target that it writes; empty for none."""
    is_null: bool
    """True if it has no such terminus: it asks for a durable subscription by its name."""
    is_durable: bool
    """True if its terminus outlives the connection."""
    no_local: bool
    """True if it wants no messages of its own connection."""
    is_queue: bool
    """True if its terminus is a queue."""
    settled: bool
    """True if it wants all deliveries settled."""
    unsettled: bool
    """True if it wants all deliveries unsettled."""
    unsupported: str
    """Names what this door does not offer and the link asks for, in plain words; empty for nothing."""


class Engine:
    """The engine: bytes in, events out, bytes out."""

    def __init__(self, container: str) -> None:
        """Begin, after SASL.

        Args:
            container: Container id of this node.
        """
        self.connection: Any = Connection()
        """The connection as the library has it."""
        self._transport: Any = Transport(Transport.SERVER)
        self._collector: Any = Collector()
        self.connection.container = container
        self.connection.collect(self._collector)
        self._transport.max_frame_size = FRAME_BYTES_MAX
        self._transport.channel_max = SESSIONS_MAX - 1
        self._transport.idle_timeout = IDLE_S
        self._transport.bind(self.connection)
        self._heard = True
        self._silent_at_s = 0.0
        self._is_silent = False
        self.ended = False
        """True once nothing more is to be written."""

    def receive(self, data: bytes) -> None:
        """Process bytes of the peer; `events` and `output` have the consequences."""
        self._heard = True
        try:
            while data:
                room = self._transport.capacity()
                if room <= 0:
                    return
                self._transport.push(data[:room])
                data = data[room:]
        except _FAULTS as error:
            raise AmqpInvalid(f"not valid AMQP: {type(error).__name__}") from error

    def events(self) -> Iterator[tuple[Happening, Any]]:
        """Yield what has happened, with the link or the session of the library, or the delivery of the engine."""
        implementation = self._collector._impl
        while not cproton.isnull(raw := cproton.pn_collector_peek(implementation)):
            kind = cproton.pn_event_type(raw)
            if kind == Happening.DELIVERY:
                yield Happening.DELIVERY, cproton.pn_event_delivery(raw)
            elif kind in _HAPPENINGS:
                link, session = cproton.pn_event_link(raw), cproton.pn_event_session(raw)
                yield Happening(kind), _SESSION.wrap(session) if cproton.isnull(link) else _LINK.wrap(link)
            cproton.pn_collector_pop(implementation)

    def output(self) -> bytes:
        """Return the bytes to write now."""
        parts = []
        while (count := cproton.pn_transport_pending(self._transport._impl)) > 0:
            parts.append(self._transport.peek(count))
            self._transport.pop(count)
        self.ended = count < 0 or self._is_silent
        return b"".join(parts)

    def tick(self, now_s: float, *, listens: bool) -> float:
        """Send what is due by the time, and end the connection of a silent peer.

        Args:
            now_s: The time.
            listens: False while this side does not let the peer say anything: then it is not silent.

        Returns:
            Time when to come again.
        """
        if self._heard or not listens:
            self._heard = False
            self._silent_at_s = now_s + IDLE_S
        elif self._silent_at_s <= now_s and not self._is_silent:
            self._is_silent = True
            self.close("amqp:resource-limit-exceeded", f"The peer has said nothing for {IDLE_S:.0f} s")
        return min(float(self._transport.tick(now_s)) or self._silent_at_s, self._silent_at_s)

    @property
    def fault(self) -> str:
        """The peer's breach of the protocol; empty for none."""
        condition = _guarded(lambda: self._transport.condition)
        return "" if condition is None else str(condition.description or condition.name)

    def read_open(self) -> tuple[str, list[str]]:
        """Return the container id of the peer, and the capabilities that it desires."""
        return _guarded(
            lambda: (
                self.connection.remote_container or "",
                [str(one) for one in self.connection.remote_desired_capabilities or ()],
            )
        )

    def open(self, capabilities: list[str]) -> None:
        """Open the connection, with the capabilities that it offers."""
        self.connection.offered_capabilities = [symbol(one) for one in capabilities]
        self.connection.open()
        cproton.pn_transport_pending(self._transport._impl)  # makes the frame, which tells the peer the idle time
        self._transport.idle_timeout = 0  # `tick` looks at it: the library has no pause

    def close(self, condition: str, description: str, info: Mapping[str, str] | None = None) -> None:
        """Close the connection; an empty condition is an end in good order."""
        if condition:
            symbols: Any = {symbol(name): symbol(value) for name, value in (info or {}).items()}
            self.connection.condition = Condition(condition, description, symbols or None)
        self.connection.open()
        self.connection.close()


def deliver(link: Any, tag: bytes, data: bytes, *, settled: bool) -> None:
    """Send a message on a link of the library; hot, so it goes to the engine itself."""
    implementation = link._impl
    delivery = cproton.pn_delivery(implementation, tag)
    cproton.pn_link_send(implementation, data)
    cproton.pn_link_advance(implementation)
    if settled:
        cproton.pn_delivery_settle(delivery)


def key_of(implementation: Any) -> int:
    """Return the identity of a link or a session of the engine, while it is alive."""
    return int(cproton.addressof(implementation))


def settle(delivery: Any, condition: str = "", description: str = "") -> None:
    """Accept and settle a delivery of the library; with a condition, reject it."""
    if condition:
        delivery.local.condition = Condition(condition, description)
        delivery.update(delivery.REJECTED)
    else:
        delivery.update(delivery.ACCEPTED)
    delivery.settle()


def read_link(link: Any) -> LinkRequest:
    """Return what a peer asks for by a link of the library that it attaches.

    Raises:
        AmqpInvalid: It cannot be read.
    """
    return _guarded(lambda: _read_link(link))


def _read_link(link: Any) -> LinkRequest:
    terminus = link.remote_source if link.is_sender else link.remote_target
    capabilities = _names_in(terminus.capabilities)
    filters = _filters_in(terminus.filter) if link.is_sender else []
    unsupported = ""
    if terminus.type == Terminus.COORDINATOR:
        unsupported = "transactions"
    elif terminus.dynamic or any(one.startswith("temporary") for one in capabilities):
        unsupported = "temporary topics and queues"
    elif other := [one for one in filters if one not in _NO_LOCAL]:
        unsupported = f"the filter {str(other[0])[:80]}; messages are selected by their topic only"
        if other[0] in (0x468C_00000004, "apache.org:selector-filter:string"):
            unsupported = "selectors; messages are selected by their topic only"
    return LinkRequest(
        name=link.name or "",
        address=terminus.address or "",
        is_null=terminus.type == Terminus.UNSPECIFIED,
        is_durable=terminus.durability != Terminus.NONDURABLE or terminus.expiry_policy == Terminus.EXPIRE_NEVER,
        no_local=bool(filters),
        is_queue="queue" in capabilities,
        settled=link.remote_snd_settle_mode == Link.SND_SETTLED,
        unsettled=link.remote_snd_settle_mode == Link.SND_UNSETTLED,
        unsupported=unsupported,
    )


def attach(link: Any, *, address: str = "") -> None:
    """Attach a link of the library that the peer attaches, on its terms.

    Args:
        link: The link.
        address: Address of the durable subscription that it found by its name; empty for the address that it gave.
    """
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    if address:
        link.source.type = Terminus.SOURCE
        link.source.address = address
        link.source.durability = Terminus.DELIVERIES
        link.source.expiry_policy = Terminus.EXPIRE_NEVER
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = Link.RCV_FIRST
    link.open()


def refuse(link: Any, condition: str, description: str) -> None:
    """Refuse a link of the library that the peer attaches: attach without the terminus, then detach."""
    if link.is_sender:
        link.source.type = Terminus.UNSPECIFIED
        link.target.copy(link.remote_target)
    else:
        link.source.copy(link.remote_source)
        link.target.type = Terminus.UNSPECIFIED
    link.open()
    end(link, condition, description)


def end(link: Any, condition: str = "", description: str = "") -> None:
    """Close a link of the library; an empty condition is an end in good order."""
    if condition:
        link.condition = Condition(condition, description)
    link.close()


def _names_in(data: Any) -> list[str]:
    """Return the symbols of a field that has one or several."""
    data.rewind()
    found = data.get_object() if data.next() else None
    if isinstance(found, str):
        return [found]
    return [str(one) for one in getattr(found, "elements", ()) if isinstance(one, str)]


def _filters_in(data: Any) -> list[int | str]:
    """Return the descriptors of the filters of a source, or else their names."""
    data.rewind()
    found = data.get_object() if data.next() else None
    filters: list[int | str] = []
    for name, value in (found if isinstance(found, dict) else {}).items():
        descriptor = value.descriptor if isinstance(value, Described) else name
        filters.append(int(descriptor) if isinstance(descriptor, int) else str(descriptor))
    return filters


def _guarded(read: Callable[[], T]) -> T:
    """Read what a peer has sent; the library raises many things for what is not valid."""
    try:
        return read()
    except _FAULTS as error:
        raise AmqpInvalid(f"a field cannot be read: {type(error).__name__}") from error
