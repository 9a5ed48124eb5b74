"""AMQP: messages of one JMS application beside an MQTT reader, and MQTT readers beside idle applications; ours only."""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.arguments import at_least
from bench.processes import Node, free_port
from bench.readers import Arrivals, Audience
from bench.report import Ask, Report, Row, alternate, medians, ratio
from bench.stage import OURS, Run, Side, burst

__all__ = ["add_arguments", "run"]

_READ_BYTES = 1 << 18
_SILENCE_S = 60
_CREDIT = 1_000
"""Credit of a consumer, as Apache Qpid JMS gives it."""
_HEARTBEAT = b"\0\0\0\x08\x02\0\0\0"
"""An empty frame: a peer is gone that says nothing for a minute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--messages", type=at_least(1), default=5_000, help="messages of a burst (5000)")
    parser.add_argument("--bursts", type=at_least(1), default=20, help="bursts of a run, one after another (20)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--idle", type=at_least(1), default=1_000, help="idle AMQP clients, a subscription each (1000)")
    parser.add_argument("--readers", type=at_least(1), default=50, help="MQTT readers beside them, at QoS 0 (50)")
    parser.add_argument("--pairs", type=at_least(1), default=7, help="runs without and with idle clients, in turn (7)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure at two equal nodes with the same past; the second has the idle clients."""
    sizes = {"messages": arguments.messages, "payload_bytes": arguments.payload_bytes, "bursts": arguments.bursts}
    with ExitStack() as ends:
        scratch = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="fanout-bench-")))
        (side, door), (beside, other_door) = (ends.enter_context(_node(scratch, name)) for name in ("alone", "beside"))
        peers = _Idle(other_door, arguments.idle)
        ends.callback(peers.close)
        without = f"{arguments.readers} MQTT readers"
        crowd = f"{without}, {arguments.idle} AMQP clients idle"
        read = partial(burst, subscribers=arguments.readers, qos=0, **sizes)
        measured = {without: partial(read, side), crowd: partial(peers.beside, partial(read, beside))}
        pairs: dict[str, list[Run]] = {name: [] for name in measured}
        for number in range(arguments.pairs):  # each is the first of a pair by turns
            for name in (without, crowd) if number % 2 == 0 else (crowd, without):
                pairs[name].append(measured[name]())
        status = beside.server.get("/v1/status").json()["server"]  # type: ignore[attr-defined]
        alone = alternate(
            arguments.runs,
            {
                "1 MQTT reader": partial(burst, side, subscribers=1, qos=1, **sizes),
                "1 AMQP consumer": partial(
                    burst, side, subscribers=1, qos=1, **sizes, clients=partial(_Consumer, door)
                ),
            },
        )
    if status["connections"] < 2 * arguments.idle:
        raise ConnectionError(f"{status['connections']} connections are left of {2 * arguments.idle} of idle clients")
    costs = [ratio(more.cpu_s_per_million, less.cpu_s_per_million) for less, more in zip(*pairs.values(), strict=True)]
    known = [one for one in costs if one is not None]
    asked = (Ask("CPU, times that without, median of pairs", median(known) if known else None, at_most=1.03),)
    rows = [
        Row(
            {"clients": name, "QoS": qos, **medians(results).figures()},
            asked if name == crowd else (),
            [asdict(one) for one in results],
        )
        for qos, kind in ((1, alone), (0, pairs))
        for name, results in kind.items()
    ]
    title = (
        f"{arguments.bursts} bursts of {arguments.messages} messages, published at the node; "
        f"medians of {arguments.runs} and {arguments.pairs} alternating runs"
    )
    return Report("jms", title, tuple(rows))


@contextmanager
def _node(scratch: Path, name: str) -> Iterator[tuple[Side, int]]:
    """Start a primary; give it, and its port for AMQP."""
    port = free_port()
    listener = f'[[server.listener]]\naddress = "amqp://127.0.0.1:{port}"\n'
    with Node(scratch, role="primary", name=name, settings=listener) as node:
        yield Side(OURS, node, node.port), port


class _Application:
    """One connection of an application with one consumer, on a socket that waits."""

    def __init__(self, port: int, name: str, topic: str, *, credit: int) -> None:
        # The load of other benches needs no library for AMQP.
        import cproton
        from proton import SASL, Collector, Connection, Link, Transport

        self._library: Any = cproton
        self._transport, self._collector, connection = Transport(), Collector(), Connection()
        connection.collect(self._collector)
        connection.container = name
        sasl: SASL = self._transport.sasl()
        sasl.allowed_mechs("ANONYMOUS")
        self._transport.bind(connection)
        self._connection = connection
        connection.open()
        session = connection.session()
        session.open()
        self._link = session.receiver("consumer")
        self._link.source.address = topic
        self._link.snd_settle_mode, self._link.rcv_settle_mode = Link.SND_UNSETTLED, Link.RCV_FIRST
        self._link.open()
        if credit:
            self._link.flow(credit)
        self.received = 0
        """Messages, each of which is settled."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_SILENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write()
        self.read_until(lambda: bool(self._link.state & Link.REMOTE_ACTIVE))

    def read_until(self, done: Callable[[], bool]) -> None:
        """Read, settle and give credit until `done`."""
        while not done():
            data = self.socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError(f"the server closed a connection: {self._connection.remote_condition}")
            while data and (room := self._transport.capacity()) > 0:
                self._transport.push(data[:room])
                data = data[room:]
            self._process()
            self._write()

    def _process(self) -> None:
        """Settle deliveries, by the library's own functions, which cost a tenth of its classes."""
        library, collector, link = self._library, self._collector._impl, self._link._impl
        settled = 0
        while not library.isnull(event := library.pn_collector_peek(collector)):
            if library.pn_event_type(event) == library.PN_DELIVERY:
                delivery = library.pn_event_delivery(event)
                if library.pn_delivery_readable(delivery) and not library.pn_delivery_partial(delivery):
                    library.pn_link_advance(link)
                    library.pn_delivery_update(delivery, library.PN_ACCEPTED)
                    library.pn_delivery_settle(delivery)
                    settled += 1
            library.pn_collector_pop(collector)
        self.received += settled
        missing = _CREDIT - library.pn_link_credit(link)
        if settled and missing >= _CREDIT // 3:
            library.pn_link_flow(link, missing)

    def _write(self) -> None:
        while (count := self._transport.pending()) > 0:
            self.socket.sendall(self._transport.peek(count))
            self._transport.pop(count)


class _Consumer:
    """The one subscriber of an audience, over AMQP."""

    def __init__(self, port: int, audience: Audience) -> None:
        self._application = _Application(port, "bench-consumer", f"{audience.root}/t/#", credit=_CREDIT)

    def count(self, messages: int) -> Arrivals:
        """Read until `messages` more have come."""
        application = self._application
        wanted, application.received = messages, 0
        application.read_until(lambda: application.received >= wanted)
        if application.received > wanted:
            raise ValueError(f"the consumer got {application.received - wanted} messages too many")
        return Arrivals(time.monotonic(), messages)


class _Idle:
    """Applications to which nothing is published."""

    def __init__(self, port: int, count: int) -> None:
        self._sockets = [
            _Application(port, f"idle-{number}", "other/#", credit=_CREDIT).socket for number in range(count)
        ]

    def beside(self, measure: Callable[[], Run]) -> Run:
        """Measure, after a sign of life of each."""
        for one in self._sockets:
            one.sendall(_HEARTBEAT)
        return measure()

    def close(self) -> None:
        """End the connections."""
        for one in self._sockets:
            with suppress(OSError):
                one.close()
