"""A secondary on a line that carries less than is published: its lag, readiness and values; and what others feel.

The line (`bench.line`) stands between a `fanout primary` and a secondary. Every topic has a retained value, which is
published at an even rate and carries its time. A reader of the secondary takes the age of each value as it comes.
Others at the same primary are measured with and without a subscriber at such a line.
"""

from __future__ import annotations

import argparse
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.arguments import above_0, at_least
from bench.line import Line
from bench.load import connect, topic
from bench.paced import PacedRun, paced
from bench.processes import Mosquitto, Node, Server, link, selector, wait_for
from bench.report import Ask, Report, Row, alternate, medians, percentile
from bench.stage import Side
from fanout.chain.age_bound import AgeBound
from fanout.mqtt.decoder import Decoder, PublishRun
from fanout.mqtt.packets import Subscribe, Subscription, encode
from fanout.mqtt.properties import Properties
from fanout.mqtt.publish import encode_publish

__all__ = ["add_arguments", "run"]

_ROOT = "thin"
_OTHERS = "others"
_VERSION = 5
_TIME = struct.Struct("=QQ")
"""A time of `time.monotonic_ns`, which all processes of a machine share, and the number of the message."""
_READ_BYTES = 1 << 16
_SETTLE_S = 10.0
_READY_S = 60.0
_PACKET_BYTES_MAX = 1 << 20
_PUBACK_BYTES_MAX = 6
_NEVER_S = 0.0


@dataclass(frozen=True, slots=True)
class _Case:
    """One row of the table."""

    name: str
    max_age_s: float
    """0 for no bound."""
    round_trip_s: float = 0.0
    loss: float = 0.0
    qos: int = 0
    """Of messages and selector."""
    link: str = ""
    """Further lines for `[[link]]`."""
    broker: Sequence[str] | None = None
    """Lines of a Mosquitto's configuration, which is the primary then; None for a fanout node."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a secondary at a line."""

    lags_s: Sequence[float | None]
    """Lag in each sample; None where it was unknown."""
    ready: int
    """Samples in which the secondary was ready."""
    samples: int
    connections: int
    """Connections that the secondary opened over the line."""
    ages_s: Sequence[float]
    """Age of each value when it came to the reader."""
    wrong: int
    """Topics whose final value was wrong, or missing, after some time without updates."""
    conflated: int
    line_bytes_per_s: float
    topics: int

    @property
    def lag_s_max(self) -> float | None:
        """The greatest lag; None if it was unknown in a sample."""
        known = [lag for lag in self.lags_s if lag is not None]
        return max(known) if len(known) == len(self.lags_s) else None

    def figures(self) -> dict[str, float | int | str]:
        """Return what a table shows."""
        lag_s = self.lag_s_max
        return {
            "lag s, at most": "unknown" if lag_s is None else round(lag_s, 2),
            "ready": f"{self.ready} of {self.samples}",
            "connections": self.connections,
            "age s, median": round(median(self.ages_s), 2) if self.ages_s else "none",
            "age s, p99": round(percentile(list(self.ages_s), 0.99), 2) if self.ages_s else "none",
            "wrong values": self.wrong,
            "conflated": self.conflated,
            "line kbit/s": round(self.line_bytes_per_s * 8 / 1000, 1),
        }


@dataclass(slots=True)
class _Reader:
    """A subscriber of the secondary, in a thread."""

    port: int
    newest: dict[bytes, bytes] = field(default_factory=dict)
    """Newest payload by topic."""
    ages_s: list[float] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read until the end of the block."""
        client = connect(self.port, "bench-reader", version=_VERSION)
        subscriptions = (Subscription(f"{_ROOT}/#".encode(), retain_as_published=True),)
        client.sendall(encode(Subscribe(packet_id=1, subscriptions=subscriptions), version=_VERSION))
        thread = threading.Thread(target=self._read, args=(client,), name="reader", daemon=True)
        thread.start()
        try:
            yield
        finally:
            client.shutdown(socket.SHUT_RDWR)
            thread.join(_SETTLE_S)
            client.close()

    def _read(self, client: socket.socket) -> None:
        client.settimeout(None)
        decoder = Decoder(version=_VERSION, packet_bytes_max=_PACKET_BYTES_MAX, role="client")
        with suppress(OSError):
            while data := client.recv(_READ_BYTES):
                now_ns = time.monotonic_ns()
                for item in decoder.feed(data):
                    if isinstance(item, PublishRun):
                        for row in item.rows:
                            self.newest[row[0]] = row[1]
                            self.ages_s.append((now_ns - _TIME.unpack_from(row[1])[0]) / 1e9)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--line-kbit", type=above_0, default=50.0, help="rate of the line, kbit/s (50)")
    parser.add_argument("--offered-kbit", type=above_0, default=176.0, help="rate of what is published, kbit/s (176)")
    parser.add_argument("--topics", type=at_least(1), default=50, help="topics (50)")
    parser.add_argument("--message-bytes", type=at_least(60), default=110, help="size of a PUBLISH packet (110)")
    parser.add_argument("--qos", type=int, choices=(0, 1), default=0, help="QoS of messages and selector (0)")
    parser.add_argument("--max-age", type=above_0, default=1.0, help="max_age_s of the link, seconds (1)")
    parser.add_argument("--seconds", type=above_0, default=60.0, help="length of a run (60)")
    parser.add_argument("--samples", type=at_least(1), default=12, help="samples of lag and readiness in a run (12)")
    parser.add_argument("--others", type=at_least(1), default=200, help="other subscribers of the primary (200)")
    parser.add_argument("--others-rate", type=above_0, default=500.0, help="messages a second to each of them (500)")
    parser.add_argument("--foreign", action="store_true", help="measure settings of a link below a Mosquitto instead")
    parser.add_argument("--no-before", action="store_true", help="leave out the run without a bound")
    parser.add_argument("--no-others", action="store_true", help="leave out what others feel")


def run(arguments: argparse.Namespace) -> Report:
    """Measure a secondary at a line, without a bound and with one, then the others at the primary."""
    max_age_s, qos = arguments.max_age, arguments.qos
    cases = [
        _Case("max_age_s", max_age_s, qos=qos),
        _Case("max_age_s, round trip 600 ms, 1 % lost", max_age_s, round_trip_s=0.6, loss=0.01, qos=qos),
    ]
    if not arguments.no_before:
        cases.insert(0, _Case("no bound", _NEVER_S, qos=qos))
    if arguments.foreign:
        cases = _foreign()
    lines = [_row(case, [_measure(case, arguments) for _ in range(arguments.runs)]) for case in cases]
    if not arguments.no_others and not arguments.foreign:
        lines += _others(arguments)
    title = (
        f"{arguments.topics} topics, {arguments.offered_kbit:g} kbit/s offered in packets of {arguments.message_bytes}"
        f" bytes, {arguments.line_kbit:g} kbit/s carried; the worst of {arguments.runs} runs of"
        f" {arguments.seconds:g} s"
    )
    return Report("thin-line", title, tuple(lines))


def _foreign() -> list[_Case]:
    """Return settings of a link below a Mosquitto."""
    few = "max_queued_messages"
    return [
        _Case("QoS 0", _NEVER_S, broker=()),
        _Case("QoS 0, no samples", _NEVER_S, link="sample_topics = 0\n", broker=()),
        _Case(f"QoS 0, {few} 50", _NEVER_S, link="sample_topics = 0\n", broker=(f"{few} 50",)),
        _Case("QoS 1", _NEVER_S, qos=1, broker=()),
        _Case("QoS 1, receive_maximum 20", _NEVER_S, qos=1, link="receive_maximum = 20\n", broker=()),
        _Case("QoS 1, receive_maximum 5", _NEVER_S, qos=1, link="receive_maximum = 5\n", broker=()),
        _Case(
            f"QoS 1, receive_maximum 5, {few} 50",
            _NEVER_S,
            qos=1,
            link="receive_maximum = 5\n",
            broker=(f"{few} 50",),
        ),
    ]


def _row(case: _Case, runs: list[_Run]) -> Row:
    """Return the line of a case: the figures of its worst run."""
    worst = max(runs, key=lambda one: (one.samples - one.ready, one.wrong, one.lag_s_max or float("inf")))
    asked: tuple[Ask, ...] = ()
    if case.max_age_s:
        asked = (
            Ask("lag s", worst.lag_s_max, at_most=2.0),
            Ask("not ready", worst.samples - worst.ready, at_most=0),
            Ask("wrong values", worst.wrong, at_most=0),
        )
    kept = [
        {**asdict(one), "ages_s": None, "delivered": one.topics - one.wrong, "expected": one.topics} for one in runs
    ]
    return Row({"case": case.name, **worst.figures(), "others p99 ms": "", "others CPU s": ""}, asked, kept)


def _measure(case: _Case, arguments: argparse.Namespace) -> _Run:
    rate = arguments.line_kbit * 125
    with ExitStack() as ends:
        scratch = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="fanout-bench-")))
        primary: Server = (
            Node(scratch, role="primary", name="primary", log=False)
            if case.broker is None
            else Mosquitto(scratch, settings=case.broker)
        )
        ends.enter_context(primary)
        line = ends.enter_context(
            Line(primary.port, rate_bytes_per_s=rate, round_trip_s=case.round_trip_s, loss=case.loss)
        )
        settings = case.link
        if case.max_age_s:
            settings += f"max_age_s = {case.max_age_s}\nmax_age_qos = {case.qos}\n"
        secondary = ends.enter_context(
            Node(
                scratch,
                role="secondary",
                name="edge",
                log=False,
                links=link(line.port, selector(f"{_ROOT}/#", qos=case.qos), settings=settings),
            )
        )
        publisher = _Publisher(primary.port, arguments, qos=case.qos)
        ends.callback(publisher.close)
        publisher.publish_each_once()
        secondary.wait_ready(deadline_s=_READY_S)
        reader = _Reader(secondary.port)
        ends.enter_context(reader.reading())
        wait_for(lambda: len(reader.newest) == arguments.topics, what="the first values", deadline_s=_READY_S)
        reader.ages_s.clear()
        before_bytes, began_s = line.bytes_down_total, time.monotonic()
        lags_s: list[float | None] = []
        ready = 0
        publisher.start()
        for number in range(1, arguments.samples + 1):
            time.sleep(max(0.0, began_s + number * arguments.seconds / arguments.samples - time.monotonic()))
            lags_s.append(secondary.get("/v1/lag").json()["links"][0]["lag_seconds"])
            ready += secondary.readiness()["ready"] is True
        publisher.stop()
        carried = (line.bytes_down_total - before_bytes) / (time.monotonic() - began_s)
        with suppress(TimeoutError):
            wait_for(lambda: reader.newest == publisher.newest, what="the final values", deadline_s=_SETTLE_S)
        wrong = sum(reader.newest.get(name) != value for name, value in publisher.newest.items())
        conflated = 0
        if isinstance(primary, Node):
            conflated = primary.get("/v1/status").json()["server"]["conflated_total"]
        connections = line.connections_total
    return _Run(
        lags_s, ready, arguments.samples, connections, reader.ages_s, wrong, conflated, carried, arguments.topics
    )


class _Publisher:
    """Publishes retained values at an even rate, in a thread."""

    def __init__(self, port: int, arguments: argparse.Namespace, *, qos: int) -> None:
        self._client = connect(port, "bench-publisher", version=_VERSION)
        self._topics = arguments.topics
        self._qos = qos
        self._bytes = arguments.message_bytes
        self._per_s = arguments.offered_kbit * 125 / arguments.message_bytes
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._sent = 0
        self.newest: dict[bytes, bytes] = {}
        """Newest payload by topic."""

    def publish_each_once(self) -> None:
        """Publish one value of each topic."""
        for _ in range(self._topics):
            self._publish()

    def start(self) -> None:
        """Publish until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; `newest` is complete afterwards."""
        self._ends.set()
        self._thread.join(_SETTLE_S)

    def close(self) -> None:
        """Stop, and close the connection."""
        self._ends.set()
        self._client.close()

    def _run(self) -> None:
        began_s, sent = time.monotonic(), 0
        while not self._ends.is_set():
            while sent < (time.monotonic() - began_s) * self._per_s:
                self._publish()
                sent += 1
            self._ends.wait(1 / self._per_s)

    def _publish(self) -> None:
        name = topic(_ROOT, self._sent % self._topics)
        self._sent += 1
        head = _TIME.pack(time.monotonic_ns(), self._sent)
        packet_id = self._sent % 65_535 + 1 if self._qos else 0
        empty = len(encode_publish(name, b"", version=_VERSION, qos=self._qos, packet_id=packet_id))
        payload = head.ljust(self._bytes - empty, b"x")
        self._client.sendall(
            encode_publish(name, payload, version=_VERSION, qos=self._qos, retain=True, packet_id=packet_id)
        )
        self.newest[name] = payload
        if self._qos:
            self._client.recv(_PUBACK_BYTES_MAX)


def _others(arguments: argparse.Namespace) -> list[Row]:
    """Measure subscribers of a primary without and with one more, at a full line, that gets the same."""
    names = ("others, no thin line", "others, one at a full line")
    payload_bytes = arguments.message_bytes - 20

    def one(name: str) -> PacedRun:
        with ExitStack() as ends:
            scratch = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="fanout-bench-")))
            primary = ends.enter_context(Node(scratch, role="primary", name="primary", log=False))
            if name == names[1]:
                line = ends.enter_context(Line(primary.port, rate_bytes_per_s=arguments.line_kbit * 125))
                ends.enter_context(_subscriber(line.port, max_age_s=arguments.max_age))
            return paced(
                Side(_OTHERS, primary, primary.port),
                subscribers=arguments.others,
                samples=10,
                per_s=arguments.others_rate,
                seconds=arguments.seconds / 6,
                payload_bytes=payload_bytes,
            )

    runs = alternate(arguments.runs, {name: lambda name=name: one(name) for name in names})  # type: ignore[misc]
    lines = []
    for name, results in runs.items():
        middle = medians(results)
        empty: dict[str, float | int | str] = dict.fromkeys(
            ("lag s, at most", "ready", "connections", "age s, median", "age s, p99", "wrong values", "conflated"), ""
        )
        figures = {
            "case": name,
            **empty,
            "line kbit/s": "",
            "others p99 ms": middle.p99_ms,
            "others CPU s": middle.cpu_s,
        }
        asked: tuple[Ask, ...] = ()
        if name == names[1]:
            without, beside = (sum(each.cpu_s for each in results) for results in runs.values())
            asked = (Ask("CPU, times without", beside / without, at_most=1.1),)
        lines.append(Row(figures, asked, [asdict(result) for result in results]))
    return lines


@contextmanager
def _subscriber(port: int, *, max_age_s: float) -> Iterator[None]:
    """Subscribe to all that the others get, with a bound, and read it in a thread."""
    client = connect(port, "bench-thin", version=_VERSION)
    packet = Subscribe(1, (Subscription(b"#"),), Properties(user_property=AgeBound(max_age_s).properties))
    client.sendall(encode(packet, version=_VERSION))

    def read() -> None:
        client.settimeout(None)
        with suppress(OSError):
            while client.recv(_READ_BYTES):
                pass

    thread = threading.Thread(target=read, name="thin subscriber", daemon=True)
    thread.start()
    try:
        yield
    finally:
        client.shutdown(socket.SHUT_RDWR)
        thread.join(_SETTLE_S)
        client.close()
